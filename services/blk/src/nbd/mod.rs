//! An NBD server for volumes on a Unix socket or TCP: fixed newstyle handshake, TLS, structured replies, block status,
//! flush, FUA, trim, write zeroes, several connections, several requests of each at once.

mod answer;
mod client;
mod connection;
mod export;
mod handshake;
mod secure;
mod server;
mod stream;
mod tls;
mod transmit;
pub mod wire;

pub use crate::crew::REQUESTS_MAX;
pub use client::NbdMedium;
pub use export::{Export, Exports};
pub use server::{CLIENTS, CLIENTS_MAX, Server};
pub use stream::Listener;
pub use tls::{Pems, Tls, TlsError};
pub use wire::LENGTH_MAX;

use handshake::{Security, Shaken};
use std::io::{self, Read, Write};

/// Serves one connection until the client leaves, one request after the other. The stream's clones are the stream.
///
/// # Errors
/// The client breaks the protocol, or errors of the connection.
pub fn serve<S: Read + Write + Clone + Send>(stream: &mut S, export: &Export) -> io::Result<()> {
    let no_zeroes = handshake::greet(stream)?;
    match handshake::options(
        stream,
        &export.clone().into(),
        (Security::Absent, no_zeroes),
        &|| Ok(()),
    )? {
        Shaken::Chosen(chosen, export) => {
            let ends = (stream.clone(), stream.clone());
            connection::serve(ends, &export, chosen, (1, &|| ()))
        }
        Shaken::StartTls | Shaken::Left => Ok(()),
    }
}

#[cfg(test)]
mod tests;
