//! A client with simple replies and several requests at once, which tells when each was answered.

use anyhow::{Context as _, Result, ensure};
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

/// Bytes of a sector.
pub(crate) const SECTOR: usize = 512;
/// A reply that takes longer has failed the test.
const LIMIT: Duration = Duration::from_secs(60);
/// A silence that is noticed.
const SILENCE: Duration = Duration::from_secs(2);
const MAGIC: u32 = 0x2560_9513;
const READ: u16 = 0;
const WRITE: u16 = 1;
const FLUSH: u16 = 3;

/// What the client has heard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Heard {
    /// The answer to a request, with its error.
    Answer(u64, u32),
    /// Nothing for a while.
    Silence,
    /// The server is gone.
    End,
}

pub(crate) struct Client {
    stream: TcpStream,
    silent: Duration,
}

impl Client {
    pub(crate) fn connect(port: u16) -> Result<Self> {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(SILENCE))?;
        stream.write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\0")?;
        let mut greeting = [0; 18 + 10];
        stream.read_exact(&mut greeting).context("the handshake")?;
        Ok(Self {
            stream,
            silent: Duration::ZERO,
        })
    }

    fn post(
        &mut self,
        command: u16,
        cookie: u64,
        (offset, length): (u64, usize),
        data: &[u8],
    ) -> bool {
        let mut bytes = MAGIC.to_be_bytes().to_vec();
        bytes.extend([0; 2]);
        bytes.extend(command.to_be_bytes());
        bytes.extend(cookie.to_be_bytes());
        bytes.extend(offset.to_be_bytes());
        // Cannot be cut: at most a volume of the loops.
        bytes.extend(u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
        bytes.extend(data);
        self.stream.write_all(&bytes).is_ok()
    }

    /// Sends a write. False if the server is gone.
    pub(crate) fn write(&mut self, cookie: u64, offset: u64, data: &[u8]) -> bool {
        self.post(WRITE, cookie, (offset, data.len()), data)
    }

    /// The next answer to a write or flush.
    pub(crate) fn hear(&mut self) -> Result<Heard> {
        let mut reply = [0; 16];
        let mut at = 0;
        while at < reply.len() {
            match self.stream.read(&mut reply[at..]) {
                Ok(0) => return Ok(Heard::End),
                Ok(count) => at += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.silent += SILENCE;
                    ensure!(self.silent < LIMIT, "no answer in {LIMIT:?}");
                    if at == 0 {
                        return Ok(Heard::Silence);
                    }
                }
                Err(_) => return Ok(Heard::End),
            }
        }
        self.silent = Duration::ZERO;
        let [_, _, _, _, a, b, c, d, cookie @ ..] = reply;
        let error = u32::from_be_bytes([a, b, c, d]);
        Ok(Heard::Answer(u64::from_be_bytes(cookie), error))
    }

    /// Waits for one answer, which must be good.
    fn good(&mut self, what: &str) -> Result<()> {
        loop {
            match self.hear()? {
                Heard::Silence => {}
                Heard::Answer(_, 0) => return Ok(()),
                other => anyhow::bail!("{what}: {other:?}"),
            }
        }
    }

    pub(crate) fn flush(&mut self) -> Result<()> {
        ensure!(self.post(FLUSH, 0, (0, 0), &[]), "the server is gone");
        self.good("flush")
    }

    /// Sends a flush and hears nothing of it. False if the server is gone.
    pub(crate) fn flush_unheard(&mut self) -> bool {
        self.post(FLUSH, 2, (0, 0), &[])
    }

    /// Asks for bytes, and hears nothing of it. False if the server is gone.
    pub(crate) fn ask(&mut self, offset: u64, length: usize) -> bool {
        self.post(READ, 3, (offset, length), &[])
    }

    /// Reads bytes, which must be readable.
    pub(crate) fn read(&mut self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        ensure!(
            self.post(READ, 0, (offset, bytes.len()), &[]),
            "the server is gone"
        );
        self.good(&format!("read at {offset}"))?;
        self.stream.set_read_timeout(Some(LIMIT))?;
        self.stream
            .read_exact(bytes)
            .context("the data of a read")?;
        self.stream.set_read_timeout(Some(SILENCE))?;
        Ok(())
    }
}
