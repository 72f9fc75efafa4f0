//! The accelerator's side of one session.

use super::{Block, MemoryLimit};
use crate::abi::{CommContext, MrInternal, MrLocal, MrPeer, code};
use crate::endpoint::{ANNOUNCE_LIMIT, Ended, Endpoint, PROBE_INTERVAL, Role, wait_readable};
use crate::error::{NaaError, Result};
use crate::limits::RETRIES;
use crate::machine::{Completion, Naa, NaaStep, State};
use crate::verbs::{Id, Rights};
use crate::wire::{Grant, Message, Request, Start, answer, flag};
use std::ptr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Interval at which a waiting session looks whether its connection has ended, in addition to its events.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// Something that a session has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing yet.
    Wait,
    /// The regions are announced.
    Announced,
    /// Run a function.
    Run(Start),
    /// The host has ended the session.
    Ended,
}

/// A host's session, served by [`Worker::serve`].
#[derive(Debug)]
pub struct Worker {
    endpoint: Box<Endpoint>,
}

// SAFETY: the endpoint owns everything that its pointers refer to.
unsafe impl Send for Worker {}

impl Worker {
    pub(crate) fn new(endpoint: Box<Endpoint>) -> Self {
        Self { endpoint }
    }

    /// Tells whether the host has ended the connection, while [`Self::serve`] runs a function.
    pub fn watch(&self) -> impl Fn() -> bool + use<> {
        let ended = self.endpoint.end_mark();
        move || ended.get().is_some()
    }

    /// Serves the session until the host ends it: announces regions and runs functions.
    ///
    /// `shared` regions are in one [`Block`] with a file, so that another process can run the functions. `run` runs a
    /// function on the session's regions and returns its return code. A session that makes no call for `idle_limit` ends.
    ///
    /// # Errors
    /// Why the session ended, if the host did not end it.
    pub fn serve(
        mut self,
        shared: bool,
        idle_limit: Option<Duration>,
        mut run: impl FnMut(&mut CommContext, Option<&Block>, u8) -> u8,
    ) -> Result<()> {
        let began = Instant::now();
        let mut step = Step::Wait;
        while self.endpoint.state() < State::Announced {
            let left = ANNOUNCE_LIMIT.saturating_sub(began.elapsed());
            if left.is_zero() {
                return Err(NaaError::Late {
                    step: "the host's announcement",
                    limit: ANNOUNCE_LIMIT,
                });
            }
            step = self.endpoint.wait_step(shared, left.min(LOOK_INTERVAL))?;
            if step == Step::Ended {
                return Ok(());
            }
        }
        // The completion of the grant may be later than the host's first call, and is then the step that starts it.
        let mut idle_since = Instant::now();
        loop {
            match step {
                Step::Wait | Step::Announced => {
                    if let Some(limit) = idle_limit
                        && idle_since.elapsed() > limit
                    {
                        return Err(NaaError::Late {
                            step: "the pause between two calls",
                            limit,
                        });
                    }
                }
                Step::Ended => return Ok(()),
                Step::Run(start) => {
                    let endpoint = &mut self.endpoint;
                    endpoint.begin_function(start);
                    let code = run(
                        &mut endpoint.public,
                        endpoint.blocks.first(),
                        start.function,
                    );
                    endpoint.answer(code)?;
                    idle_since = Instant::now();
                }
            }
            step = self.endpoint.wait_step(shared, LOOK_INTERVAL)?;
        }
    }
}

/// Accepts a connection request: creates the queues and posts the announcement's receive first, so that no message of
/// the host finds the session unprepared.
pub(crate) fn accept_request(
    id: Id,
    peer: String,
    bytes_max: u64,
    memory: Arc<MemoryLimit>,
) -> Result<Box<Endpoint>> {
    let mut endpoint = Endpoint::new(Role::Naa(Naa::new()), peer);
    endpoint.bytes_max = bytes_max;
    endpoint.memory = Some(memory);
    id.set_options();
    endpoint.adopt(id);
    let prepared = endpoint
        .create_queues()
        .and_then(|()| endpoint.receive_message());
    let Some(id) = &endpoint.id else {
        unreachable!("set above");
    };
    match prepared {
        Ok(()) => id.accept(RETRIES)?,
        Err(error) => {
            // The host learns the reason; without the rejection it would wait for its limit.
            id.reject(&format!(
                "the accelerator cannot serve the session: {error}"
            ))?;
            return Err(error);
        }
    }
    endpoint.set_state(State::AnnouncementReceiving);
    Ok(endpoint)
}

impl Endpoint {
    /// The mark that another thread sets when the connection has ended.
    pub(crate) fn end_mark(&self) -> Arc<Ended> {
        Arc::clone(&self.ended)
    }

    /// Waits for the next step, at most for `limit`.
    pub(crate) fn wait_step(&mut self, shared: bool, limit: Duration) -> Result<Step> {
        match self.next_step(shared)? {
            Step::Wait => {}
            step => return Ok(step),
        }
        self.queues()?.arm(self.awaits_peer())?;
        match self.next_step(shared)? {
            Step::Wait => {}
            step => return Ok(step),
        }
        wait_readable(&self.descriptors()[..1], limit)?;
        if let Some(queues) = &mut self.queues {
            queues.take_events();
        }
        self.next_step(shared)
    }

    /// Handles the completions that are there, up to the next step. Never waits.
    pub(crate) fn next_step(&mut self, shared: bool) -> Result<Step> {
        loop {
            match self.take_completion() {
                Ok(None) => break,
                Ok(Some(completion)) => match self.naa_completion(completion, shared)? {
                    Step::Wait => {}
                    step => return Ok(step),
                },
                // The flushed requests of a connection that the host has ended.
                Err(_) if self.has_ended() => return self.end(),
                Err(error) => return Err(self.fail(error)),
            }
        }
        if self.has_ended() {
            return self.end();
        }
        self.probe_idle_host()?;
        Ok(Step::Wait)
    }

    /// Probes a host that makes no call: a host that has lost power must not keep its session.
    fn probe_idle_host(&mut self) -> Result<()> {
        if self.state() != State::DataReceiving || self.probed.elapsed() < PROBE_INTERVAL {
            return Ok(());
        }
        self.probed = Instant::now();
        self.probe().map_err(|error| self.fail(error))
    }

    fn has_ended(&self) -> bool {
        self.ended.get().is_some()
    }

    fn end(&mut self) -> Result<Step> {
        self.set_state(State::Finished);
        Ok(Step::Ended)
    }

    /// Handles one completion.
    pub(crate) fn naa_completion(&mut self, completion: Completion, shared: bool) -> Result<Step> {
        let step = self.with_naa(|naa| naa.on(completion));
        let step = match step {
            Ok(NaaStep::Wait) => match completion {
                Completion::Sent => Ok(Step::Announced),
                _ => Ok(Step::Wait),
            },
            Ok(NaaStep::Run(start)) => Ok(Step::Run(start)),
            Ok(NaaStep::HostFailed) => {
                Err(self.lost("the host reports an error on its side".to_owned()))
            }
            Ok(NaaStep::ReadAnnouncement(bytes)) => self.grant(bytes, shared).map(|()| Step::Wait),
            Err(error) => Err(error),
        };
        step.map_err(|error| self.fail(error))
    }

    /// Reads the host's announcement, allocates and registers the regions, and announces them.
    pub(crate) fn grant(&mut self, bytes: u32, shared: bool) -> Result<()> {
        let granted = self
            .received(bytes)
            .and_then(|message| self.read_request(message, shared));
        match granted {
            Ok(grants) => {
                // Before the answer: the host's first call must find a receive.
                self.receive_start()?;
                self.send_message(&Message::Grant(grants))
            }
            Err(error) => {
                // The host learns that there is a reason; the message has no space for it.
                self.send_message(&Message::Error(1))?;
                Err(error)
            }
        }
    }

    fn read_request(&mut self, message: Message, shared: bool) -> Result<Vec<Grant>> {
        match message {
            Message::Request(requests) => self.allocate(&requests, shared),
            Message::Grant(_) | Message::Error(_) => Err(NaaError::Announcement {
                peer: self.peer.clone(),
                reason: "a host must send an announcement and request".to_owned(),
            }),
        }
    }

    /// Allocates and registers the regions of a host's message.
    pub(crate) fn allocate_for(&mut self, message: Message) -> Result<Vec<Grant>> {
        if !self.regions.is_empty() {
            return Err(NaaError::Announcement {
                peer: self.peer.clone(),
                reason: "the session has its regions already".to_owned(),
            });
        }
        self.read_request(message, false)
    }

    fn allocate(&mut self, requests: &[Request], shared: bool) -> Result<Vec<Grant>> {
        const PAGE: u64 = 4096;
        let refuse = |reason: String| NaaError::Announcement {
            peer: self.peer.clone(),
            reason,
        };
        let parameters = requests.iter().filter(|request| !request.is_internal());
        if parameters.clone().next().is_none() {
            return Err(refuse("it has internal regions only".to_owned()));
        }
        // Cannot overflow: at most 32 regions below 4 GiB.
        let total: u64 = requests
            .iter()
            .map(|r| u64::from(r.size).next_multiple_of(PAGE))
            .sum();
        if total > self.bytes_max {
            return Err(refuse(format!(
                "its regions have {total} bytes; this accelerator serves at most {} per session",
                self.bytes_max
            )));
        }
        if let Some(memory) = &self.memory {
            let Some(taken) = memory.take(total) else {
                return Err(refuse(format!(
                    "its regions have {total} bytes; {} of the {} bytes for all sessions are in use",
                    memory.used(),
                    memory.max()
                )));
            };
            self.taken = Some(taken);
        }
        let mut places = Vec::with_capacity(requests.len());
        let memory = |source| NaaError::Call {
            call: "memory of the regions",
            source,
        };
        let size_of = |size: u32| size as usize;
        if shared {
            let total = usize::try_from(total).expect("64-bit platforms only");
            let block = Block::new(total, true).map_err(memory)?;
            let mut at = block.as_ptr() as u64;
            for request in requests {
                places.push(at);
                at += u64::from(request.size).next_multiple_of(PAGE);
            }
            self.blocks.push(block);
        } else {
            for request in requests {
                let block = Block::new(size_of(request.size), false).map_err(memory)?;
                places.push(block.as_ptr() as u64);
                self.blocks.push(block);
            }
        }
        for (request, at) in requests.iter().zip(places) {
            if request.is_internal() {
                self.internal.push(MrInternal {
                    addr: at,
                    size: size_of(request.size),
                });
                continue;
            }
            let is = |wanted: u8| request.flags & wanted != 0;
            self.regions.push(MrLocal {
                ibv: ptr::null_mut(),
                addr: at as *mut _,
                size: size_of(request.size),
                to_write: is(flag::OUTPUT),
                single_send: is(flag::SINGLE_SEND),
            });
            self.peers.push(MrPeer {
                addr: request.addr,
                rkey: request.rkey,
                size: size_of(request.size),
                to_write: is(flag::INPUT),
                single_send: is(flag::SINGLE_SEND),
            });
        }
        let count = |wanted: bool| u8::from(wanted);
        self.public.no_input_mrs = self.peers.iter().map(|peer| count(peer.to_write)).sum();
        self.public.no_output_mrs = self
            .regions
            .iter()
            .map(|region| count(region.to_write))
            .sum();
        self.show_regions();
        self.register_grants()
    }

    fn register_grants(&mut self) -> Result<Vec<Grant>> {
        for index in 0..self.regions.len() {
            // The host never writes a region that is an output only.
            let rights = if self.peers[index].to_write {
                Rights::Write
            } else {
                Rights::Read
            };
            // SAFETY: the region is in a block that lives until the session is closed.
            unsafe { self.register(index, rights) }?;
        }
        self.grants()
    }

    /// The session's regions, for the host.
    pub(crate) fn grants(&self) -> Result<Vec<Grant>> {
        let mut grants = Vec::with_capacity(self.regions.len());
        for (index, region) in self.regions.iter().enumerate() {
            let Some((_, rkey)) = self.keys(index) else {
                return Err(self.lost(format!("region {index} is not registered")));
            };
            grants.push(Grant {
                addr: region.addr as u64,
                rkey,
                size: u32::try_from(region.size).expect("from a 32-bit field"),
            });
        }
        Ok(grants)
    }

    /// Shows a call to its kernel.
    pub(crate) fn begin_function(&mut self, start: Start) {
        self.probed = Instant::now();
        self.public.fncode = start.function;
        self.public.immediate = start.user.to_le_bytes();
        self.public.naa_returncode = code::SUCCESS;
        self.public.no_rpc_calls = self.public.no_rpc_calls.wrapping_add(1);
    }

    /// Ends a call: writes the outputs, or with an error code nothing but the code. The next call's receive is posted
    /// before.
    pub(crate) fn answer(&mut self, code: u8) -> Result<()> {
        let outputs: Vec<usize> = match code {
            code::SUCCESS => (0..self.regions.len())
                .filter(|index| self.regions[*index].to_write)
                .collect(),
            _ => Vec::new(),
        };
        let posted = self
            .receive_start()
            .and_then(|()| self.write_regions(&outputs, answer(code)));
        posted.map_err(|error| {
            if self.has_ended() {
                self.lost("the host has ended the session".to_owned())
            } else {
                self.fail(error)
            }
        })
    }
}
