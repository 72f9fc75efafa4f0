//! The connection of a volume, and what its transfers share.

use super::host::Host;
use super::slots::Slots;
use super::spec::{Scheme, Spec};
use crate::error::{BlkError, Result};
use crate::frames::{Hello, PROTOCOL, Welcome};
use crate::geometry::{Geometry, Id};
use crate::pipe::{Broken, Pipe};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use xgvmi_daemon::{Link, LinkError, Secret};

/// Time between attempts to reach a service again.
const RETRY: Duration = Duration::from_millis(100);
/// Longest wait of a client that connects: the service may still count the connection that it has ended.
const RENEW: Duration = Duration::from_secs(1);

/// A volume and its connection.
#[derive(Debug)]
pub(super) struct Inner {
    pub(super) spec: Spec,
    /// In place of the one of `spec`: it can be another one meanwhile.
    pub(super) secret: Mutex<Option<Secret>>,
    pub(super) host: &'static Host,
    pub(super) block_size: u32,
    /// As the service said at the last connection: the volume can grow.
    pub(super) blocks: AtomicU64,
    pub(super) id: Id,
    pub(super) session: u64,
    pub(super) transfer_max: u32,
    pub(super) prepared: u32,
    /// As the service said at the last connection.
    pub(super) read_only: AtomicBool,
    pub(super) gate: Gate,
    pub(super) slots: Option<Slots>,
    pub(super) pipe: Mutex<Arc<Pipe>>,
}

impl Inner {
    pub(super) fn pipe(&self) -> MutexGuard<'_, Arc<Pipe>> {
        self.pipe.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn secret(&self) -> MutexGuard<'_, Option<Secret>> {
        self.secret.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn geometry(&self) -> Geometry {
        Geometry::known(self.block_size, self.blocks.load(Ordering::Acquire))
    }

    /// The connection; a new one if it was lost. `end` is when a call gives up.
    pub(super) fn live(&self, end: &mut Option<Instant>) -> Result<Arc<Pipe>> {
        let mut pipe = self.pipe();
        if !pipe.is_closed() {
            return Ok(Arc::clone(&pipe));
        }
        let end = *end.get_or_insert_with(|| Instant::now() + self.spec.reconnect);
        if let Some(slots) = &self.slots {
            slots.renew(self.host)?;
        }
        let spec = Spec {
            secret: self.secret().clone(),
            ..self.spec.clone()
        };
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match dial(&spec, self.host, (self.session, left)) {
                Ok((new, welcome)) => {
                    let same = welcome.volume == self.id
                        && welcome.geometry.block_size() == self.block_size
                        && welcome.geometry.blocks() >= self.geometry().blocks()
                        && welcome.transfer_max >= self.transfer_max
                        && welcome.requests_max >= self.gate.max;
                    if !same {
                        return Err(BlkError::Service {
                            service: self.spec.service.clone(),
                            reason: "another volume or other limits since the connection was lost"
                                .to_owned(),
                        });
                    }
                    let blocks = welcome.geometry.blocks();
                    self.blocks.store(blocks, Ordering::Release);
                    self.read_only.store(welcome.read_only, Ordering::Release);
                    *pipe = Arc::new(new);
                    return Ok(Arc::clone(&pipe));
                }
                Err(error) if Instant::now() + RETRY >= end => return Err(error),
                Err(_) => std::thread::sleep(RETRY),
            }
        }
    }

    /// Connects again if the service has ended the connection, as it does when the rights change. Does not wait for one that is
    /// away: requests do.
    ///
    /// # Errors
    /// Why the service refuses it.
    pub(super) fn renew(&self) -> std::result::Result<(), String> {
        if !self.pipe().is_closed_now() {
            return Ok(());
        }
        match self.live(&mut Some(Instant::now() + RENEW)) {
            Err(error @ BlkError::Service { .. }) => Err(error.to_string()),
            _ => Ok(()),
        }
    }

    /// True if a call that has lost its connection may try again.
    pub(super) fn may_retry(&self, end: &mut Option<Instant>) -> bool {
        let end = *end.get_or_insert_with(|| Instant::now() + self.spec.reconnect);
        Instant::now() < end
    }

    pub(super) fn length(&self, length: usize) -> Result<u32> {
        let fits = u32::try_from(length).ok();
        fits.filter(|length| (1..=self.transfer_max).contains(length))
            .ok_or_else(|| {
                BlkError::Argument(format!(
                    "a transfer of {length} bytes: the service takes 1 to {}",
                    self.transfer_max
                ))
            })
    }

    pub(super) fn broken(&self, error: &Broken) -> BlkError {
        BlkError::Disconnected {
            service: self.spec.service.clone(),
            reason: error.to_string(),
        }
    }
}

/// Connects and says hello with the keys of the host's adapter.
pub(super) fn dial(
    spec: &Spec,
    host: &'static Host,
    (session, wait): (u64, Duration),
) -> Result<(Pipe, Welcome)> {
    let announcement = match spec.scheme {
        Scheme::Announced => host.announcement(),
        Scheme::Copy | Scheme::Ksm | Scheme::Pool | Scheme::Stock => Vec::new(),
    };
    let hello = Hello {
        pooled: spec.scheme != Scheme::Ksm,
        gvmi: host.gvmi().get(),
        access_key: host.access_key().clone(),
        stock: spec.scheme == Scheme::Stock,
        session,
        announcement,
        volume: spec.volume.clone(),
    };
    let (link, welcome) = greet(spec, &hello, wait)?;
    let limit = answer_limit(spec, &welcome);
    let pipe = Pipe::new(link, limit).map_err(|error| BlkError::Disconnected {
        service: spec.service.clone(),
        reason: error.to_string(),
    })?;
    Ok((pipe, welcome))
}

/// Longest wait for an answer: a request may wait for targets at the service, which is no reason to give the service up.
fn answer_limit(spec: &Spec, welcome: &Welcome) -> Duration {
    spec.limit + Duration::from_millis(welcome.wait_ms.into())
}

/// Connects and says hello.
pub(super) fn greet(spec: &Spec, hello: &Hello, wait: Duration) -> Result<(Link, Welcome)> {
    let failed = |reason: &dyn std::fmt::Display| BlkError::Disconnected {
        service: spec.service.clone(),
        reason: reason.to_string(),
    };
    let link = Link::connect(&spec.service, wait, PROTOCOL, spec.secret.as_ref());
    let mut link = link.map_err(|error| failed(&error))?;
    link.send(&hello.to_bytes())
        .map_err(|error| failed(&error))?;
    let bytes = match link.wait(spec.limit) {
        Ok(Some(bytes)) => bytes,
        Ok(None) => return Err(failed(&"no welcome in time")),
        Err(LinkError::Refused(reason)) => {
            return Err(BlkError::Service {
                service: spec.service.clone(),
                reason,
            });
        }
        Err(error) => return Err(failed(&error)),
    };
    let welcome = Welcome::parse(&bytes).map_err(|error| failed(&error))?;
    Ok((link, welcome))
}

/// Bounds the requests under way.
#[derive(Debug)]
pub(super) struct Gate {
    pub(super) max: u32,
    inside: Mutex<u32>,
    left: Condvar,
}

impl Gate {
    pub(super) fn new(max: u32) -> Self {
        Self {
            max,
            inside: Mutex::new(0),
            left: Condvar::new(),
        }
    }

    pub(super) fn try_enter(&self) -> bool {
        let mut inside = self.inside.lock().unwrap_or_else(PoisonError::into_inner);
        let free = *inside < self.max;
        *inside += u32::from(free);
        free
    }

    pub(super) fn enter(&self) {
        let mut inside = self.inside.lock().unwrap_or_else(PoisonError::into_inner);
        while *inside >= self.max {
            inside = self
                .left
                .wait(inside)
                .unwrap_or_else(PoisonError::into_inner);
        }
        *inside += 1;
    }

    pub(super) fn leave(&self) {
        let mut inside = self.inside.lock().unwrap_or_else(PoisonError::into_inner);
        *inside -= 1;
        self.left.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request may wait for lost targets as long as the options of a service allow.
    #[test]
    fn an_initiator_waits_longer_than_its_service() {
        let spec = Spec::new("service");
        // Of a service with its defaults.
        let wait = Duration::from_secs(50);
        let welcome = Welcome {
            geometry: Geometry::new(4096, 1).unwrap(),
            volume: Id([0; 16]),
            transfer_max: 1,
            requests_max: 1,
            prepared: 0,
            wait_ms: u32::try_from(wait.as_millis()).unwrap(),
            read_only: false,
        };
        assert!(answer_limit(&spec, &welcome) >= wait + spec.limit);
    }
}
