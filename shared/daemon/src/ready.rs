//! Reports readiness: on standard output, and to systemd for a unit of `Type=notify`.

use super::error::{DaemonError, Result};
use std::io::{self, Write as _};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Writes a text on standard output.
///
/// # Errors
/// Errors of the system.
pub fn print(text: &str) -> Result<()> {
    let mut stdout = io::stdout();
    let written = stdout.write_all(text.as_bytes());
    written
        .and_then(|()| stdout.flush())
        .map_err(|error| DaemonError::io("writing to standard output", error))
}

/// Writes the first line of a service, which contains its addresses, and reports the readiness to systemd.
///
/// # Errors
/// Errors of the system.
pub fn ready(line: &str) -> Result<()> {
    print(&format!("{line}\n"))?;
    notify("READY=1").map_err(|error| DaemonError::io("telling systemd", error))
}

/// Sends `state` . Without systemd the function does nothing.
fn notify(state: &str) -> io::Result<()> {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else {
        return Ok(());
    };
    let socket = UnixDatagram::unbound()?;
    match path.to_str().and_then(|path| path.strip_prefix('@')) {
        Some(name) => {
            let address = SocketAddr::from_abstract_name(name)?;
            socket.send_to_addr(state.as_bytes(), &address)?;
        }
        None => {
            socket.send_to(state.as_bytes(), path)?;
        }
    }
    Ok(())
}
