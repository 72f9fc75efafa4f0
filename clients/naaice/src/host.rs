//! A host's session over an RDMA connection: the steps of the low-level interface.

use crate::abi::{MrInternal, MrLocal, MrPeer};
use crate::endpoint::{
    ANNOUNCE_LIMIT, CONNECT_LIMIT, Endpoint, PROBE_INTERVAL, RESOLVE_LIMIT_MS, Role, wait_readable,
};
use crate::error::{ArgumentError, NaaError, Result};
use crate::machine::{Completion, Host, HostStep, State};
use crate::verbs::{self, Event, EventChannel, EventKind, Id, Rights, WRITE_BYTES_MAX};
use crate::wire::{self, Message, REGIONS_MAX, Request, Start, flag};
use std::ptr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Where a session connects.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Target<'a> {
    pub(crate) remote: &'a str,
    pub(crate) port: u16,
    pub(crate) local: Option<&'a str>,
}

impl Endpoint {
    /// Opens a session and starts to resolve the accelerator's address. `regions` are addresses and sizes; the sizes
    /// of `internal` regions follow them on the accelerator.
    pub(crate) fn open_host(
        target: Target<'_>,
        function: u8,
        regions: &[(u64, u64)],
        internal: &[u64],
        naa_offset: u64,
    ) -> Result<Box<Self>> {
        let remote = verbs::resolve(target.remote, target.port, None)?;
        let local = target
            .local
            .map(|local| verbs::resolve(local, 0, Some(&remote)))
            .transpose()?;
        let lib = verbs::lib()?;
        let mut endpoint = Self::new(Role::Host(Host::new()), remote.to_string());
        endpoint.public.fncode = function;
        endpoint.public.immediate[0] = function;
        endpoint.set_regions(regions, internal, naa_offset)?;
        let channel = Arc::new(EventChannel::create(lib)?);
        let id = Id::create(lib, &channel)?;
        endpoint.public.ev_channel = channel.as_ptr();
        endpoint.public.id = id.as_ptr();
        endpoint.channel = Some(channel);
        id.set_options();
        let resolved = id.resolve_address(local.as_ref(), &remote, RESOLVE_LIMIT_MS);
        endpoint.id = Some(id);
        resolved.map_err(|error| NaaError::Connect {
            peer: endpoint.peer.clone(),
            reason: error.to_string(),
        })?;
        Ok(endpoint)
    }

    /// Sets the regions before they are registered.
    pub(crate) fn set_regions(
        &mut self,
        regions: &[(u64, u64)],
        internal: &[u64],
        naa_offset: u64,
    ) -> Result<()> {
        let all = regions.len() + internal.len();
        if regions.is_empty() {
            return Err(ArgumentError::NoRegions.into());
        }
        if all > REGIONS_MAX {
            return Err(ArgumentError::TooManyRegions(all).into());
        }
        for (index, (addr, size)) in regions.iter().enumerate() {
            check_region(&format!("region {index}"), Some(*addr), *size)?;
        }
        for (index, size) in internal.iter().enumerate() {
            check_region(&format!("internal region {index}"), None, *size)?;
        }
        // As in the original, internal regions come first on the accelerator.
        let sizes: Vec<u64> = internal
            .iter()
            .chain(regions.iter().map(|(_, size)| size))
            .copied()
            .collect();
        let addresses = wire::naa_addresses(naa_offset, &sizes).ok_or(ArgumentError::NaaAddress)?;
        let size_of = |size: u64| usize::try_from(size).expect("64-bit platforms only");
        self.internal = addresses
            .iter()
            .zip(internal)
            .map(|(addr, size)| MrInternal {
                addr: *addr,
                size: size_of(*size),
            })
            .collect();
        self.regions = regions
            .iter()
            .map(|(addr, size)| MrLocal {
                ibv: ptr::null_mut(),
                addr: *addr as *mut _,
                size: size_of(*size),
                to_write: false,
                single_send: false,
            })
            .collect();
        self.peers = addresses[internal.len()..]
            .iter()
            .zip(regions)
            .map(|(addr, (_, size))| MrPeer {
                addr: *addr,
                rkey: 0,
                size: size_of(*size),
                to_write: false,
                single_send: false,
            })
            .collect();
        self.show_regions();
        Ok(())
    }

    /// Handles an event of the connection.
    pub(crate) fn handle_event(&mut self, event: &Event) -> Result<()> {
        let peer = self.peer.clone();
        let failed = |reason: &str| NaaError::Connect {
            peer: peer.clone(),
            reason: reason.to_owned(),
        };
        let outcome = match (&event.kind, &self.id) {
            (_, None) => Err(failed("the session is closed")),
            (EventKind::AddressResolved, Some(id)) => {
                let resolving = id.resolve_route(RESOLVE_LIMIT_MS);
                resolving
                    .and_then(|()| self.create_queues())
                    .map(|()| State::Ready)
            }
            (EventKind::RouteResolved, Some(id)) => {
                id.connect(self.public.retry_count).map(|()| State::Ready)
            }
            (EventKind::Established, _) => Ok(State::Connected),
            (EventKind::Rejected(reason), _) => Err(NaaError::Rejected {
                peer: peer.clone(),
                reason: match reason.as_str() {
                    "" => format!(" ({})", event.text),
                    reason => format!(": {reason}"),
                },
            }),
            (EventKind::Crowded, _) => Err(NaaError::Crowded { peer: peer.clone() }),
            (EventKind::Disconnected, _) => {
                Err(self.lost("the accelerator disconnected".to_owned()))
            }
            (EventKind::Closed, _) => return Ok(()),
            (EventKind::ConnectRequest | EventKind::DeviceRemoved | EventKind::Failed, _)
                if self.state() < State::Connected =>
            {
                Err(failed(&event.text))
            }
            (EventKind::ConnectRequest | EventKind::DeviceRemoved | EventKind::Failed, _) => {
                Err(self.lost(event.text.clone()))
            }
        };
        match outcome {
            Ok(state) => {
                self.set_state(state);
                Ok(())
            }
            Err(error) => Err(self.fail(error)),
        }
    }

    /// Takes and handles all events of the connection.
    pub(crate) fn handle_events(&mut self) -> Result<bool> {
        let mut any = false;
        loop {
            let event = match &self.channel {
                Some(channel) => channel.next()?,
                None => None,
            };
            let Some(event) = event else {
                return Ok(any);
            };
            any = true;
            self.handle_event(&event)?;
        }
    }

    /// Waits until the connection is established.
    pub(crate) fn connect(&mut self) -> Result<()> {
        let limit = self.call_limit().min(CONNECT_LIMIT);
        let began = Instant::now();
        while self.state() < State::Connected {
            self.check_alive()?;
            if self.handle_events()? {
                continue;
            }
            let left = limit.saturating_sub(began.elapsed());
            if left.is_zero() {
                return Err(self.fail(NaaError::Late {
                    step: "connecting",
                    limit,
                }));
            }
            wait_readable(&self.descriptors()[1..], left)?;
        }
        self.check_alive()
    }

    /// Registers all regions: outputs writable for the accelerator, inputs readable for this process's adapter only.
    ///
    /// # Safety
    /// The regions stay mapped until [`Endpoint::close`]. Nobody holds a reference to them while a call runs.
    pub(crate) unsafe fn register_regions(&mut self) -> Result<()> {
        for index in 0..self.regions.len() {
            let is_input_only = self.regions[index].to_write && !self.peers[index].to_write;
            let rights = if is_input_only {
                Rights::Read
            } else {
                Rights::Write
            };
            // SAFETY: the caller's promise.
            unsafe { self.register(index, rights) }?;
        }
        Ok(())
    }

    /// Sends the announcement. Its answer's receive is posted before.
    pub(crate) fn announce(&mut self) -> Result<()> {
        self.check_alive()?;
        if self.state() != State::Connected {
            return Err(NaaError::State {
                call: "naaice_init_mrsp",
                state: self.state().name(),
                rule: "announce once, after the connection is established",
            });
        }
        // Nothing is posted if the regions are not registered.
        let message = self.announcement()?;
        self.receive_message()?;
        self.call_began = Instant::now();
        self.send_message(&message)
    }

    /// Sends the announcement; the caller has posted its answer's receive.
    pub(crate) fn send_announcement(&mut self) -> Result<()> {
        let message = self.announcement()?;
        self.call_began = Instant::now();
        self.send_message(&message)
    }

    fn announcement(&self) -> Result<Message> {
        let mut requests = Vec::with_capacity(REGIONS_MAX);
        for (index, (region, peer)) in self.regions.iter().zip(&self.peers).enumerate() {
            let Some((_, rkey)) = self.keys(index) else {
                return Err(NaaError::State {
                    call: "naaice_init_mrsp",
                    state: self.state().name(),
                    rule: "register the regions first (naaice_register_mrs)",
                });
            };
            let mut flags = 0;
            if region.single_send {
                flags |= flag::SINGLE_SEND;
            }
            if region.to_write {
                flags |= flag::INPUT;
            }
            if peer.to_write {
                flags |= flag::OUTPUT;
            }
            requests.push(Request {
                flags,
                naa_addr: peer.addr,
                addr: region.addr as u64,
                rkey,
                size: u32::try_from(peer.size).expect("checked by set_regions"),
            });
        }
        requests.extend(self.internal.iter().map(|region| Request {
            flags: flag::INTERNAL,
            naa_addr: region.addr,
            addr: 0,
            rkey: 0,
            size: u32::try_from(region.size).expect("checked by set_regions"),
        }));
        Ok(Message::Request(requests))
    }

    /// Checks the accelerator's announcement against the own one before anything of it is used.
    fn read_grants(&mut self, bytes: u32) -> Result<()> {
        let wrong = |peer: &str, reason: String| NaaError::Announcement {
            peer: peer.to_owned(),
            reason,
        };
        let grants = match self.received(bytes)? {
            Message::Grant(grants) => grants,
            Message::Error(code) => {
                let reason = format!("the accelerator cannot serve the regions (code {code})");
                return Err(wrong(&self.peer, reason));
            }
            Message::Request(_) => {
                return Err(wrong(
                    &self.peer,
                    "a host's message from an accelerator".to_owned(),
                ));
            }
        };
        if grants.len() != self.peers.len() {
            let reason = format!("{} regions instead of {}", grants.len(), self.peers.len());
            return Err(wrong(&self.peer, reason));
        }
        for (index, (grant, peer)) in grants.iter().zip(&self.peers).enumerate() {
            if grant.size as usize != peer.size {
                let reason = format!(
                    "region {index} has {} bytes instead of {}",
                    grant.size, peer.size
                );
                return Err(wrong(&self.peer, reason));
            }
        }
        for (grant, peer) in grants.iter().zip(&mut self.peers) {
            peer.addr = grant.addr;
            peer.rkey = grant.rkey;
        }
        self.set_state(State::Announced);
        Ok(())
    }

    /// Handles a completion. An error ends the session.
    pub(crate) fn host_completion(&mut self, completion: Completion) -> Result<()> {
        let step = self.with_host(|host| host.on(completion));
        let done = step.and_then(|step| match step {
            HostStep::Wait => Ok(()),
            HostStep::ReadAnnouncement(bytes) => self.read_grants(bytes),
            HostStep::Finish { immediate, bytes } => {
                self.public.naa_returncode = wire::return_code(immediate);
                self.answer = wire::answer_of(immediate);
                self.public.bytes_received = self.bytes_of_last_output(bytes);
                Ok(())
            }
        });
        done.map_err(|error| self.fail(error))
    }

    /// Bytes of the last output, whose last write carried `bytes`: an output beyond a write's limit arrives in parts.
    fn bytes_of_last_output(&self, bytes: u32) -> u32 {
        let last = self.peers.iter().rev().find(|peer| peer.to_write);
        let Some(size) = last.and_then(|peer| u32::try_from(peer.size).ok()) else {
            return bytes;
        };
        let tail = size % WRITE_BYTES_MAX;
        match size > WRITE_BYTES_MAX && bytes == if tail == 0 { WRITE_BYTES_MAX } else { tail } {
            true => size,
            false => bytes,
        }
    }

    /// Handles all completions and events that are there. Never waits.
    pub(crate) fn progress(&mut self) -> Result<()> {
        self.check_alive()?;
        let before = self.state();
        loop {
            match self.take_completion() {
                Ok(Some(completion)) => self.host_completion(completion)?,
                Ok(None) => break,
                Err(error) => return Err(self.fail(error)),
            }
        }
        // An answer may have arrived just before the accelerator disconnected.
        if self.state() == before && self.state() < State::Finished {
            self.handle_events()?;
        }
        self.check_time()
    }

    /// Probes the connection, and ends a call that exceeds its limit.
    fn check_time(&mut self) -> Result<()> {
        let (step, limit) = match self.state() {
            State::DataSending | State::DataReceiving => ("the call", self.call_limit()),
            State::AnnouncementSending | State::AnnouncementReceiving => {
                ("the announcement", self.call_limit().min(ANNOUNCE_LIMIT))
            }
            _ => return Ok(()),
        };
        if self.call_began.elapsed() > limit {
            return Err(self.fail(NaaError::Late { step, limit }));
        }
        if self.state() == State::DataReceiving && self.probed.elapsed() > PROBE_INTERVAL {
            self.probed = Instant::now();
            self.probe().map_err(|error| self.fail(error))?;
        }
        Ok(())
    }

    /// Waits until the state differs from `from`. Every outcome is an error or another state, within the call's limit.
    pub(crate) fn wait_past(&mut self, from: State) -> Result<()> {
        loop {
            self.progress()?;
            if self.state() != from {
                return Ok(());
            }
            self.queues()?.arm(self.awaits_peer())?;
            // What completed before the request caused no event.
            self.progress()?;
            if self.state() != from {
                return Ok(());
            }
            wait_readable(&self.descriptors(), self.next_check())?;
            if let Some(queues) = &mut self.queues {
                queues.take_events();
            }
        }
    }

    /// Time until [`Self::check_time`] has something to do.
    fn next_check(&self) -> Duration {
        let limit = self.call_limit().saturating_sub(self.call_began.elapsed());
        limit.min(PROBE_INTERVAL).max(Duration::from_millis(1))
    }

    /// Starts a call: writes the inputs.
    pub(crate) fn begin_call(&mut self) -> Result<()> {
        self.check_alive()?;
        if !matches!(self.state(), State::Announced | State::Finished) {
            return Err(NaaError::State {
                call: "naa_invoke",
                state: self.state().name(),
                rule: match self.state() {
                    State::DataSending | State::DataReceiving => {
                        "a call runs; wait until naa_test or naa_wait reports its end"
                    }
                    _ => "create the session first",
                },
            });
        }
        let posted = self.receive_start().and_then(|()| self.write_inputs());
        posted.map_err(|error| self.fail(error))
    }

    /// Writes the inputs and starts the function. Single send regions take part in the first call only.
    pub(crate) fn write_inputs(&mut self) -> Result<()> {
        if self.public.no_rpc_calls > 0 {
            for region in &mut self.regions {
                if region.single_send && region.to_write {
                    region.to_write = false;
                    self.public.no_input_mrs = self.public.no_input_mrs.saturating_sub(1);
                }
            }
        }
        let inputs: Vec<usize> = (0..self.regions.len())
            .filter(|index| self.regions[*index].to_write)
            .collect();
        let [_, a, b, c] = self.public.immediate;
        let start = Start {
            function: self.public.fncode,
            user: u32::from_le_bytes([0, a, b, c]),
        };
        self.public.naa_returncode = 0;
        self.answer = 0;
        self.public.bytes_received = 0;
        self.call_began = Instant::now();
        self.probed = self.call_began;
        self.write_regions(&inputs, start.to_immediate())?;
        self.public.no_rpc_calls = self.public.no_rpc_calls.wrapping_add(1);
        Ok(())
    }
}

fn check_region(name: &str, addr: Option<u64>, size: u64) -> Result<()> {
    let error = match addr {
        Some(0) => ArgumentError::Null(name.to_owned()),
        _ if size == 0 => ArgumentError::Empty(name.to_owned()),
        _ if size > wire::REGION_BYTES_MAX => ArgumentError::TooLarge {
            name: name.to_owned(),
            size,
        },
        Some(addr) if addr.checked_add(size).is_none() => ArgumentError::Range(name.to_owned()),
        _ => return Ok(()),
    };
    Err(error.into())
}
