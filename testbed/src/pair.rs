//! A server and its client: the client starts when the server is up.

use crate::port::listens;
use crate::process::{self, Done, Running};
use anyhow::{Result, ensure};
use std::process::Command;
use std::time::Duration;

/// Results of a server and its client.
#[derive(Debug)]
pub struct Ended {
    /// The server's.
    pub server: Done,
    /// The client's.
    pub client: Done,
}

impl Ended {
    /// Whether both have succeeded.
    ///
    /// # Errors
    /// One of them has failed. The error has both command lines and outputs.
    pub fn result(&self, server: &Command, client: &Command) -> Result<()> {
        let (server, client) = (process::shown(server), process::shown(client));
        ensure!(
            self.client.ok() && self.server.ok(),
            "{server}\n{client}\n-- server: {}\n{}\n-- client: {}\n{}",
            self.server.verdict(),
            self.server.output.trim_end(),
            self.client.verdict(),
            self.client.output.trim_end()
        );
        Ok(())
    }
}

/// Runs a server, and a client after the server listens on `port`; both must succeed. Returns the outputs of server and client.
///
/// # Errors
/// One of them has failed.
pub fn run(
    server: &mut Command,
    client: &mut Command,
    port: u16,
    limit: Duration,
) -> Result<(String, String)> {
    let ended = both(server, client, port, limit)?;
    ended.result(server, client)?;
    Ok((ended.server.output, ended.client.output))
}

/// Runs a server, and a client after the server listens on `port`, to their ends.
///
/// # Errors
/// The server did not start.
pub fn both(
    server: &mut Command,
    client: &mut Command,
    port: u16,
    limit: Duration,
) -> Result<Ended> {
    let running = listening(server, port, limit)?;
    let client = process::run(client, limit)?;
    // The server of a failed client would wait without end.
    let patience = match client.ok() {
        true => limit,
        false => Duration::from_secs(1),
    };
    let server = running.wait(patience)?;
    Ok(Ended { server, client })
}

/// Starts a server and waits until it listens on `port`.
///
/// # Errors
/// It has ended, or does not listen within `limit`.
pub fn listening(server: &mut Command, port: u16, limit: Duration) -> Result<Running> {
    Running::up(server, limit, |_| listens(port))
}
