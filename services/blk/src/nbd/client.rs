//! A target's medium on an NBD server, such as nbdkit, behind a Unix socket.
//!
//! The server must accept requests of any length. Requests of several threads use connections of their own if the server
//! has several.

use super::wire::{
    GREETING, OPTION_REPLY_MAGIC, REQUEST_MAGIC, SIMPLE_REPLY_MAGIC, export_flag, handshake_flag,
    info, option, reply,
};
use crate::store::Medium;
use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Most connections to a server.
const CONNECTIONS_MAX: usize = 4;
/// Longest wait for a reply.
const LIMIT: Duration = Duration::from_secs(30);
/// Longest reply to an option.
const REPLY_MAX: usize = 64 << 10;
/// Longest request.
const LENGTH_MAX: usize = 1 << 20;

const READ: u16 = 0;
const WRITE: u16 = 1;
const FLUSH: u16 = 3;

/// What a server tells about its export.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Told {
    /// Bytes of the export.
    size: u64,
    flags: u16,
    /// Shortest request.
    least: u32,
}

#[derive(Debug, Default)]
struct Connections {
    idle: Vec<UnixStream>,
    open: usize,
}

/// An export of an NBD server.
#[derive(Debug)]
pub struct NbdMedium {
    socket: PathBuf,
    told: Told,
    connections: Mutex<Connections>,
    freed: Condvar,
}

fn malformed(text: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

impl NbdMedium {
    /// Connects to the default export of the server at `socket`.
    ///
    /// # Errors
    /// There is no such server, it does not accept any length, is read-only, or has no FLUSH.
    pub fn connect(socket: &Path) -> io::Result<Self> {
        let (stream, told) = connect(socket)?;
        if told.least > 1 {
            return Err(malformed(
                "the NBD server needs longer requests than a byte",
            ));
        }
        if told.flags & export_flag::READ_ONLY != 0 {
            return Err(malformed("the NBD server is read-only"));
        }
        if told.flags & export_flag::FLUSH == 0 {
            return Err(malformed(
                "the NBD server has no FLUSH, so it cannot tell when data is durable: use another plugin or disk",
            ));
        }
        Ok(Self {
            socket: socket.to_owned(),
            told,
            connections: Mutex::new(Connections {
                idle: vec![stream],
                open: 1,
            }),
            freed: Condvar::new(),
        })
    }

    fn connections(&self) -> MutexGuard<'_, Connections> {
        // A panic cannot leave the table half changed.
        self.connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection that no other thread uses.
    fn take(&self) -> io::Result<UnixStream> {
        let several = self.told.flags & export_flag::MULTI_CONN != 0;
        let most = if several { CONNECTIONS_MAX } else { 1 };
        let mut connections = self.connections();
        loop {
            if let Some(stream) = connections.idle.pop() {
                return Ok(stream);
            }
            if connections.open < most {
                connections.open += 1;
                drop(connections);
                return connect(&self.socket)
                    .map(|(stream, _)| stream)
                    .inspect_err(|_| self.close_one());
            }
            connections = self
                .freed
                .wait(connections)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn close_one(&self) {
        self.connections().open -= 1;
        self.freed.notify_one();
    }

    /// Carries out one request. A connection with an error is closed.
    fn request(&self, command: u16, offset: u64, data: Data<'_>) -> io::Result<()> {
        let mut stream = self.take()?;
        match exchange(&mut stream, command, offset, data) {
            Ok(done) => {
                self.connections().idle.push(stream);
                self.freed.notify_one();
                done.map_or(Ok(()), |errno| Err(io::Error::from_raw_os_error(errno)))
            }
            Err(error) => {
                self.close_one();
                Err(error)
            }
        }
    }
}

enum Data<'a> {
    None,
    Read(&'a mut [u8]),
    Write(&'a [u8]),
}

/// Sends a request and waits for the reply. Returns the server's error number, if any.
fn exchange(
    stream: &mut UnixStream,
    command: u16,
    offset: u64,
    data: Data<'_>,
) -> io::Result<Option<i32>> {
    let length = match &data {
        Data::None => 0,
        Data::Read(bytes) => bytes.len(),
        Data::Write(bytes) => bytes.len(),
    };
    let mut request = REQUEST_MAGIC.to_be_bytes().to_vec();
    request.extend([0, 0]);
    request.extend(command.to_be_bytes());
    request.extend(offset.to_be_bytes());
    request.extend(offset.to_be_bytes());
    // Cannot be cut: at most LENGTH_MAX.
    request.extend(u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
    if let Data::Write(bytes) = data {
        request.extend_from_slice(bytes);
    }
    stream.write_all(&request)?;
    let [a, b, c, d, e, f, g, h, cookie @ ..] = take::<16>(stream)?;
    if u32::from_be_bytes([a, b, c, d]) != SIMPLE_REPLY_MAGIC || cookie != offset.to_be_bytes() {
        return Err(malformed("the NBD server's reply is malformed"));
    }
    match i32::from_be_bytes([e, f, g, h]) {
        0 => {}
        errno => return Ok(Some(errno)),
    }
    if let Data::Read(bytes) = data {
        stream.read_exact(bytes)?;
    }
    Ok(None)
}

fn take<const N: usize>(stream: &mut UnixStream) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Connects and chooses the default export.
fn connect(socket: &Path) -> io::Result<(UnixStream, Told)> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.set_write_timeout(Some(LIMIT))?;
    let flags = handshake_flag::FIXED | handshake_flag::NO_ZEROES;
    if take(&mut stream)? != GREETING || take(&mut stream).map(u16::from_be_bytes)? & flags != flags
    {
        return Err(malformed(
            "it is no NBD server with the fixed newstyle handshake",
        ));
    }
    let mut asked = u32::from(flags).to_be_bytes().to_vec();
    asked.extend(b"IHAVEOPT");
    asked.extend(option::GO.to_be_bytes());
    asked.extend(8u32.to_be_bytes());
    asked.extend([0, 0, 0, 0, 0, 1]);
    asked.extend(info::BLOCK_SIZE.to_be_bytes());
    stream.write_all(&asked)?;
    let mut told = Told::default();
    loop {
        let magic = u64::from_be_bytes(take(&mut stream)?);
        let number = u32::from_be_bytes(take(&mut stream)?);
        let kind = u32::from_be_bytes(take(&mut stream)?);
        let length = u32::from_be_bytes(take(&mut stream)?) as usize;
        if magic != OPTION_REPLY_MAGIC || number != option::GO || length > REPLY_MAX {
            return Err(malformed("the NBD server's answer to GO is malformed"));
        }
        let mut data = vec![0; length];
        stream.read_exact(&mut data)?;
        match kind {
            reply::ACK => return Ok((stream, told)),
            reply::INFO => told.add(&data),
            _ => return Err(malformed("the NBD server refuses its default export")),
        }
    }
}

impl Told {
    /// Adds one piece of information. Unknown ones are ignored, as the protocol asks.
    fn add(&mut self, data: &[u8]) {
        match data {
            [0, 0, size @ .., a, b] if size.len() == 8 => {
                self.size = size
                    .iter()
                    .fold(0, |size, byte| size << 8 | u64::from(*byte));
                self.flags = u16::from_be_bytes([*a, *b]);
            }
            [0, 3, a, b, c, d, ..] => self.least = u32::from_be_bytes([*a, *b, *c, *d]),
            _ => {}
        }
    }
}

impl Medium for NbdMedium {
    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let mut at = offset;
        for part in bytes.chunks_mut(LENGTH_MAX) {
            let length = part.len() as u64;
            self.request(READ, at, Data::Read(part))?;
            at += length;
        }
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut at = offset;
        for part in bytes.chunks(LENGTH_MAX) {
            self.request(WRITE, at, Data::Write(part))?;
            at += part.len() as u64;
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.request(FLUSH, 0, Data::None)
    }

    /// The space stays allocated until it is used again.
    fn release(&self, _: u64, _: u64) {}

    fn size(&self) -> Option<u64> {
        Some(self.told.size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nbd::{Export, Listener, Server};
    use std::os::unix::net::UnixListener;
    use std::sync::Arc;

    /// A server of this crate needs sectors: it is refused, and a reply of it is understood.
    #[test]
    fn a_server_with_sectors_is_refused_and_others_are_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        assert!(NbdMedium::connect(&path).is_err(), "there is no server");
        let server = Server::new(
            Listener::Unix(UnixListener::bind(&path).unwrap()),
            export(),
            None,
        );
        let server = Arc::new(server);
        std::thread::spawn({
            let server = Arc::clone(&server);
            move || server.run()
        });
        let error = NbdMedium::connect(&path).unwrap_err().to_string();
        assert!(error.contains("longer requests"), "{error}");
        // The server notices later that a client has left, and counts it until then.
        let end = std::time::Instant::now() + LIMIT;
        while server.connections() != 0 {
            assert!(std::time::Instant::now() < end, "a connection stays open");
            std::thread::yield_now();
        }
        // With whole sectors the requests themselves work.
        let (stream, told) = connect(&path).unwrap();
        assert_eq!((told.least, told.size), (512, 1 << 20));
        let medium = NbdMedium {
            socket: path,
            told,
            connections: Mutex::new(Connections {
                idle: vec![stream],
                open: 1,
            }),
            freed: Condvar::new(),
        };
        let bytes: Vec<u8> = (0..4096u32).map(|n| n.to_le_bytes()[0] | 1).collect();
        medium.write(512, &bytes).unwrap();
        medium.sync().unwrap();
        let mut back = vec![0; 8192];
        medium.read(0, &mut back).unwrap();
        assert!(back[512..4608] == bytes && back[..512] == [0; 512]);
        let error = medium.write(1 << 20, &bytes).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
        // Each of several threads has a connection.
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| medium.write(8192, &bytes).unwrap());
            }
        });
        assert!(server.connections() <= CONNECTIONS_MAX);
        assert_eq!(server.connections(), medium.connections().open);
        server.drain();
    }

    /// A server that acknowledges writes and cannot flush: its target would acknowledge flushes that nothing carries out.
    #[test]
    fn a_server_without_flush_is_refused() {
        for (flags, expect) in [
            (export_flag::HAS_FLAGS, "no FLUSH"),
            (export_flag::HAS_FLAGS | export_flag::READ_ONLY, "read-only"),
            (export_flag::HAS_FLAGS | export_flag::FLUSH, ""),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("socket");
            let listener = UnixListener::bind(&path).unwrap();
            let server = std::thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                let mine = handshake_flag::FIXED | handshake_flag::NO_ZEROES;
                stream.write_all(&GREETING).unwrap();
                stream.write_all(&mine.to_be_bytes()).unwrap();
                // The client's flags and its GO.
                let _: [u8; 4 + 16 + 8] = take(&mut stream).unwrap();
                let size = [
                    &[0; 2][..],
                    &(1u64 << 20).to_be_bytes(),
                    &flags.to_be_bytes(),
                ];
                for (kind, data) in [(reply::INFO, size.concat()), (reply::ACK, Vec::new())] {
                    let length = u32::try_from(data.len()).unwrap();
                    let head = [
                        &OPTION_REPLY_MAGIC.to_be_bytes()[..],
                        &option::GO.to_be_bytes(),
                        &kind.to_be_bytes(),
                        &length.to_be_bytes(),
                    ];
                    stream.write_all(&head.concat()).unwrap();
                    stream.write_all(&data).unwrap();
                }
            });
            let connected = NbdMedium::connect(&path);
            server.join().unwrap();
            match connected {
                Ok(_) => assert!(expect.is_empty(), "{expect}"),
                Err(error) => assert!(error.to_string().contains(expect), "{error}"),
            }
        }
    }

    fn export() -> Export {
        crate::nbd::tests::export()
    }
}
