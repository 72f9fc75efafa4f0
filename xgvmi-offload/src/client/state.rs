//! State of a client, and its failures.

use crate::control::Frame;
use crate::error::{OffloadError, Result};
use crate::library::Library;
use crate::token::Token;
use crate::wire::Collective;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};
use xgvmi_daemon::{Link, LinkError};
use xgvmi_ucp::buffer::Buffer;
use xgvmi_ucp::{Context, Endpoint, MappedBuffer, MappedRange, Request as Operation, Worker};

/// Maximum number of outstanding calls of a rank. Each holds two registrations and, at the SP, two imports.
pub(super) const LIVE_MAX: usize = 1024;

/// Interval between checks whether the pool has grown.
const KEYS_LOOK: Duration = Duration::from_millis(100);

/// A rank's connection to its SP. All ranks must close it with [`Client::close`]. If a client is dropped instead, the
/// SP considers the rank dead and fails the job.
#[derive(Debug)]
pub struct Client {
    // The fields drop in this order: outstanding calls before the objects they use, the connection before its worker,
    // the worker before its context.
    pub(super) live: HashMap<Collective, Live>,
    pub(super) sends: Vec<Operation>,
    pub(super) endpoint: Endpoint,
    pub(super) worker: Worker,
    /// The memory that SPs used to test their connections. Its key stays in use until here, so no call receives it.
    pub(super) _greeting: MappedBuffer,
    pub(super) context: Context,
    pub(super) link: Link,
    /// Messages from the SP carry this token.
    pub(super) from_service: Token,
    /// Messages to the SP carry this token.
    pub(super) to_service: Token,
    pub(super) library: Option<Library>,
    /// Number of keys in this process's pools at the last announcement; `None` without an announcement.
    pub(super) announced_keys: Option<u64>,
    pub(super) keys_looked: Instant,
    pub(super) service: String,
    pub(super) rank: u32,
    pub(super) direct_min: usize,
    pub(super) communicators: HashMap<u32, Communicator>,
    pub(super) limit: Duration,
    pub(super) spin: Duration,
    /// Longest silence of the SP, as the SP reported it.
    pub(super) silence_max: Duration,
    pub(super) link_checked: Instant,
    pub(super) heard: Instant,
    pub(super) failed: Option<String>,
    pub(super) numbers: Numbers,
}

#[derive(Debug)]
pub(super) struct Communicator {
    pub(super) members: Rc<[u32]>,
    pub(super) next: u32,
}

/// An outstanding call.
#[derive(Debug)]
pub(super) struct Live {
    pub(super) is_done: bool,
    /// Registered by the call and released at its end.
    pub(super) mapped: Vec<MappedRange>,
    pub(super) receive: *mut u8,
    pub(super) receive_length: usize,
    /// The send buffer of an in-place call.
    pub(super) copy: Option<Buffer>,
}

#[derive(Debug, Default)]
pub(super) struct Numbers {
    pub(super) connect: Duration,
    pub(super) registration: Duration,
    pub(super) deregistration: Duration,
    pub(super) registrations: u64,
    pub(super) calls: u64,
    pub(super) announced_aliases: u64,
    pub(super) aliases: Option<(u64, u64)>,
}

impl Client {
    /// Reads the control connection. The SP sends nothing but beats unless the job has failed.
    pub(super) fn listen(&mut self) -> Result<()> {
        self.link_checked = Instant::now();
        let taken = loop {
            match self.link.flush().and_then(|()| self.link.take()) {
                Ok(Some(body)) => match Frame::parse(&body) {
                    Ok(Frame::Beat) => self.heard = self.link_checked,
                    parsed => break Ok(Some(parsed)),
                },
                Ok(None) => break Ok(None),
                Err(error) => break Err(error),
            }
        };
        let silence = self.link_checked - self.heard;
        let reason = match taken {
            Ok(None) if silence > self.silence_max => format!(
                "nothing was heard of the service at {} for {} s",
                self.service,
                silence.as_secs()
            ),
            Ok(None) => {
                self.announce_more();
                return Ok(());
            }
            Ok(Some(Ok(Frame::Abort(reason)))) | Err(LinkError::Refused(reason)) => reason,
            Ok(Some(Ok(frame))) => {
                format!("the service at {} says {}", self.service, frame.name())
            }
            Ok(Some(Err(bad))) => format!("the service at {}: {bad}", self.service),
            Err(LinkError::Closed) => format!(
                "the service at {} has closed its connection: it has ended or was killed",
                self.service
            ),
            Err(error) => format!("the service at {} is lost: {error}", self.service),
        };
        Err(self.fail(reason, false))
    }

    /// Announces the keys by which the pool has grown since the last announcement. The SP creates their aliases while
    /// it serves calls.
    fn announce_more(&mut self) {
        let (Some(library), Some(announced)) = (self.library, self.announced_keys) else {
            return;
        };
        if self.link_checked - self.keys_looked < KEYS_LOOK {
            return;
        }
        self.keys_looked = self.link_checked;
        let keys = library.stats().pool_keys;
        if keys > announced
            && let Ok(announcement) = library.announce(0)
        {
            self.announced_keys = Some(keys);
            // If the send fails, the SP is gone; a later check detects that.
            let _ = self.link.send(&Frame::More(announcement).to_bytes());
        }
    }

    pub(super) fn arm(&mut self) -> Result<bool> {
        match self.worker.arm() {
            Ok(armed) => Ok(armed),
            Err(error) => Err(self.fail(error.to_string(), true)),
        }
    }

    pub(super) fn check(&self) -> Result<()> {
        match &self.failed {
            None => Ok(()),
            Some(reason) => Err(OffloadError::Failed(reason.clone())),
        }
    }

    /// Marks the job as failed. With `tell`, also notifies the SP, which notifies the other ranks.
    pub(super) fn fail(&mut self, reason: String, tell: bool) -> OffloadError {
        if tell && self.failed.is_none() {
            let frame = Frame::Abort(reason.clone());
            // If the send fails, the SP is gone; a later check detects that.
            let _ = self.link.send(&frame.to_bytes());
        }
        self.failed = Some(reason.clone());
        OffloadError::Failed(reason)
    }
}

impl Communicator {
    pub(super) fn new(members: Vec<u32>) -> Self {
        Self {
            members: members.into(),
            next: 0,
        }
    }
}

pub(super) fn arguments(text: String) -> OffloadError {
    OffloadError::Arguments(text)
}
