//! An NBD server for one volume on a Unix socket: fixed newstyle handshake, structured replies, block status, flush, FUA,
//! trim, write zeroes, several connections.
//!
//! Each connection has a thread, which carries out its requests in order. Requests of several connections run at once.

mod handshake;
mod transmit;
pub mod wire;

pub use transmit::LENGTH_MAX;

use crate::geometry::SECTOR;
use crate::volume::Volume;
use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use wire::export_flag;

/// Most connections at once. Each may hold a buffer of 32 MiB.
pub const CONNECTIONS_MAX: usize = 32;
/// A client that takes longer for its handshake loses its connection.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// A volume and its name.
#[derive(Debug, Clone)]
pub struct Export {
    volume: Arc<Volume>,
    name: String,
}

impl Export {
    /// Exports a volume as `name`. The empty name is the default export.
    #[must_use]
    pub fn new(volume: Arc<Volume>, name: &str) -> Self {
        Self {
            volume,
            name: name.to_owned(),
        }
    }

    /// The volume.
    #[must_use]
    pub fn volume(&self) -> &Volume {
        &self.volume
    }

    fn name(&self) -> &str {
        &self.name
    }

    /// True if a client means this export. The empty name means the only one.
    fn is(&self, name: &str) -> bool {
        name.is_empty() || name == self.name
    }

    fn description(&self) -> String {
        format!("volume {}, {}", self.volume.id(), self.volume.geometry())
    }

    fn size(&self) -> u64 {
        self.volume.geometry().size()
    }

    fn flags(&self) -> u16 {
        export_flag::HAS_FLAGS
            | export_flag::FLUSH
            | export_flag::FUA
            | export_flag::TRIM
            | export_flag::WRITE_ZEROES
            | export_flag::DF
            | export_flag::MULTI_CONN
            | export_flag::CACHE
    }

    /// Smallest, preferred and largest request in bytes.
    fn block_sizes(&self) -> [u32; 3] {
        let preferred = self.volume.geometry().block_size().next_power_of_two();
        [SECTOR, preferred.clamp(4096, LENGTH_MAX), LENGTH_MAX]
    }
}

/// Serves one connection until the client leaves.
///
/// # Errors
/// The client breaks the protocol, or errors of the connection.
pub fn serve<S: Read + Write>(stream: &mut S, export: &Export) -> io::Result<()> {
    match handshake::shake(stream, export)? {
        Some(chosen) => transmit::serve(stream, export, chosen),
        None => Ok(()),
    }
}

/// Accepts connections without end, up to [`CONNECTIONS_MAX`] at once.
///
/// # Errors
/// The socket fails.
pub fn listen(listener: &UnixListener, export: &Export) -> io::Result<()> {
    let open = Arc::new(AtomicUsize::new(0));
    loop {
        let (stream, _) = match listener.accept() {
            Ok(accepted) => accepted,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if open.fetch_add(1, Ordering::Relaxed) >= CONNECTIONS_MAX {
            open.fetch_sub(1, Ordering::Relaxed);
            eprintln!("xgvmi-blk: a client was refused: {CONNECTIONS_MAX} are connected");
            continue;
        }
        let (export, count) = (export.clone(), Arc::clone(&open));
        let work = move || {
            if let Err(error) = serve_stream(&stream, &export) {
                eprintln!("xgvmi-blk: a client is disconnected: {error}");
            }
            count.fetch_sub(1, Ordering::Relaxed);
        };
        if let Err(error) = std::thread::Builder::new()
            .name("nbd".to_owned())
            .spawn(work)
        {
            open.fetch_sub(1, Ordering::Relaxed);
            eprintln!("xgvmi-blk: a client was refused: {error}");
        }
    }
}

fn serve_stream(stream: &UnixStream, export: &Export) -> io::Result<()> {
    let mut stream = stream;
    stream.set_read_timeout(Some(HANDSHAKE))?;
    let Some(chosen) = handshake::shake(&mut stream, export)? else {
        return Ok(());
    };
    stream.set_read_timeout(None)?;
    transmit::serve(&mut stream, export, chosen)
}

#[cfg(test)]
mod tests;
