//! An NBD server for one volume on a Unix socket: fixed newstyle handshake, structured replies, block status, flush, FUA,
//! trim, write zeroes, several connections, several requests of each at once.

mod answer;
mod client;
mod connection;
mod export;
mod handshake;
mod server;
mod transmit;
pub mod wire;

pub use client::NbdMedium;
pub use connection::REQUESTS_MAX;
pub use export::Export;
pub use server::{CONNECTIONS_MAX, Server};
pub use wire::LENGTH_MAX;

use std::io::{self, Read, Write};

/// Serves one connection until the client leaves, one request after the other. The stream's clones are the stream.
///
/// # Errors
/// The client breaks the protocol, or errors of the connection.
pub fn serve<S: Read + Write + Clone + Send>(stream: &mut S, export: &Export) -> io::Result<()> {
    match handshake::shake(stream, export)? {
        Some((chosen, export)) => {
            let ends = (stream.clone(), stream.clone());
            connection::serve(ends, &export, chosen, (1, &|| ()))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
