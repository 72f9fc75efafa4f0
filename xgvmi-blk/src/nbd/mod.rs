//! An NBD server for one volume on a Unix socket: fixed newstyle handshake, structured replies, block status, flush, FUA,
//! trim, write zeroes, several connections.
//!
//! Each connection has a thread, which carries out its requests in order. Requests of several connections run at once.

mod export;
mod handshake;
mod transmit;
pub mod wire;

pub use export::Export;
pub use wire::LENGTH_MAX;

use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Most connections at once. Each may hold a buffer of 32 MiB.
pub const CONNECTIONS_MAX: usize = 32;
/// A client that takes longer for its handshake loses its connection.
const HANDSHAKE: Duration = Duration::from_secs(10);

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
