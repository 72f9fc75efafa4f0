//! Reports the daemon's state to systemd, for a unit of `Type=notify`.

use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Sends `state` (`READY=1`, `RELOADING=1`, `STOPPING=1`). Without systemd the function does nothing.
///
/// # Errors
/// Errors of the system.
pub fn notify(state: &str) -> io::Result<()> {
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
