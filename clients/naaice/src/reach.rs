//! Looks whether the accelerators of a specification can be reached, without a session and without a secret.

use crate::endpoint::{RESOLVE_LIMIT_MS, wait_readable};
use crate::error::{NaaError, Result};
use crate::spec::{Entry, Scheme};
use crate::verbs::{self, EventChannel, EventKind, Id};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Tries to reach the accelerator of an entry within `limit`: a service by a TCP connection, another accelerator by
/// address and route of its RDMA connection. The latter does not tell whether it listens.
///
/// # Errors
/// Why it cannot be reached.
pub fn reach(entry: &Entry, limit: Duration) -> Result<()> {
    match entry.scheme {
        Scheme::Dpu => xgvmi_daemon::reach(&entry.peer(), limit)
            .map(drop)
            .map_err(|error| failed(entry, error.to_string())),
        Scheme::Verbs => route(entry, limit),
    }
}

fn failed(entry: &Entry, reason: String) -> NaaError {
    NaaError::Connect {
        peer: entry.peer(),
        reason,
    }
}

fn route(entry: &Entry, limit: Duration) -> Result<()> {
    let began = Instant::now();
    let remote = verbs::resolve(&entry.address, entry.port, None)?;
    let lib = verbs::lib()?;
    // The channel ends after its identifier.
    let channel = Arc::new(EventChannel::create(lib)?);
    let id = Id::create(lib, &channel)?;
    let as_connect = |error: NaaError| failed(entry, error.to_string());
    id.resolve_address(None, &remote, RESOLVE_LIMIT_MS)
        .map_err(as_connect)?;
    loop {
        let Some(event) = channel.next()? else {
            let left = limit.saturating_sub(began.elapsed());
            if left.is_zero() {
                let step = "finding the route";
                return Err(NaaError::Late { step, limit });
            }
            wait_readable(&[channel.fd()], left)?;
            continue;
        };
        match event.kind {
            EventKind::AddressResolved => {
                id.resolve_route(RESOLVE_LIMIT_MS).map_err(as_connect)?;
            }
            EventKind::RouteResolved => return Ok(()),
            _ => return Err(failed(entry, event.text)),
        }
    }
}
