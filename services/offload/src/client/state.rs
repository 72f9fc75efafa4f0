//! State of a client, and its failures.

use super::lanes::{Lanes, Slice};
use super::names::Names;
use super::spans::Piece;
use super::streams::Messages;
use super::types::{CommunicatorId, Numbered};
use super::waiting::Waiting;
use super::window::Window;
use crate::control::Frame;
use crate::error::{OffloadError, Result};
use crate::library::Library;
use crate::token::Token;
use crate::wire::{Collective, HostFin, Members, Name};
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};
use xgvmi_daemon::{Link, LinkError};
use xgvmi_ucp::buffer::Buffer;
use xgvmi_ucp::{Context, Endpoint, MappedBuffer, MappedRange, Request as Operation, Worker};

/// Interval between checks whether the pool has grown.
const KEYS_LOOK: Duration = Duration::from_millis(100);

/// A rank's connection to its SPs: one, or with lanes several. All ranks must close it with [`Client::close`]. If a client is dropped instead, the
/// SPs consider the rank dead and fail the job.
#[derive(Debug)]
pub struct Client {
    // The fields drop in this order: outstanding calls before the objects they use, the connection before its worker,
    // the worker before its context.
    pub(super) live: HashMap<Collective, Live>,
    /// Calls of `live` that have not started at the SP.
    pub(super) waiting: Waiting,
    pub(super) window: Window,
    /// The ranks of this rank's SP in ascending order.
    pub(super) neighbours: Vec<u32>,
    /// Bytes of the memory of all calls' bounces.
    pub(super) bounced: usize,
    /// Ranges whose registration has failed, the last ones. UCX logs an error for each failure.
    pub(super) unregistrable: VecDeque<(usize, usize)>,
    pub(super) names: Names,
    pub(super) sends: Vec<Operation>,
    /// To the SP of each lane.
    pub(super) endpoints: Vec<Endpoint>,
    pub(super) worker: Worker,
    /// The memory that SPs used to test their connections. Its key stays in use until here, so no call receives it.
    pub(super) _greeting: MappedBuffer,
    pub(super) context: Context,
    /// The SP of each lane.
    pub(super) services: Vec<Connected>,
    pub(super) lanes: Lanes,
    pub(super) library: Option<Library>,
    /// Number of keys in this process's pools at the last announcement; `None` without an announcement.
    pub(super) announced_keys: Option<u64>,
    pub(super) keys_looked: Instant,
    pub(super) rank: u32,
    pub(super) direct_min: usize,
    pub(super) communicators: HashMap<u64, Communicator>,
    pub(super) messages: Messages,
    pub(super) limit: Option<Duration>,
    pub(super) spin: Duration,
    pub(super) link_checked: Instant,
    pub(super) failed: Option<String>,
    pub(super) numbers: Numbers,
}

/// An SP of this rank.
#[derive(Debug)]
pub(super) struct Connected {
    pub(super) address: String,
    pub(super) link: Link,
    /// Messages from the SP carry this token.
    pub(super) from_service: Token,
    /// Messages to the SP carry this token.
    pub(super) to_service: Token,
    /// Longest silence of the SP, as the SP reported it.
    pub(super) silence_max: Duration,
    pub(super) heard: Instant,
}

#[derive(Debug)]
pub(super) struct Communicator {
    pub(super) members: Members,
    /// Number of members that share this rank's SPs.
    pub(super) together: u32,
    pub(super) next: u32,
    /// By lane: number of ordinary reductions that have started, and of those that are under way at the SP.
    pub(super) turns: Vec<u32>,
    pub(super) open: Vec<u32>,
}

/// An outstanding call.
#[derive(Debug)]
pub(super) struct Live {
    pub(super) is_done: bool,
    pub(super) is_persistent: bool,
    /// The lanes in which it is under way, and those in which it is an ordinary reduction.
    pub(super) left: u64,
    pub(super) turns: u64,
    /// Ends in some lanes, while it is under way in others.
    pub(super) ended: Vec<(usize, HostFin)>,
    /// Its slices, if there are several.
    pub(super) slices: Vec<Slice>,
    /// Bytes that the call takes at an SP, about.
    pub(super) cost: usize,
    pub(super) receive: *mut u8,
    pub(super) receive_length: usize,
    /// Length of the message that a receive has got, if it is not that of the receive.
    pub(super) message: Option<u64>,
    /// What the call has registered. It is empty while the call waits.
    pub(super) held: Held,
}

/// Registrations and memory of a call, which are released at its end. The fields drop in this order.
#[derive(Debug, Default)]
pub(super) struct Held {
    pub(super) mapped: Vec<MappedRange>,
    pub(super) bounces: Vec<Bounce>,
    /// Names of its exports, and the lanes that have them: a call has two.
    pub(super) names: [Option<(Name, u64)>; 2],
}

/// Memory of the client that stands for a side's own memory during a call.
#[derive(Debug)]
pub(super) struct Bounce {
    pub(super) memory: Buffer,
    /// The ranges of the receive buffer to which the memory's bytes go at the end; empty for a send buffer.
    pub(super) back: Vec<Piece>,
}

#[derive(Debug, Default)]
pub(super) struct Numbers {
    pub(super) connect: Duration,
    pub(super) registration: Duration,
    pub(super) deregistration: Duration,
    pub(super) registrations: u64,
    pub(super) bounced_bytes: u64,
    pub(super) calls: u64,
    pub(super) announced_aliases: u64,
    pub(super) aliases: Option<(u64, u64)>,
}

impl Client {
    /// Reads the control connections. An SP sends nothing but beats unless the job has failed, and no further beat before
    /// the answer to the last one.
    pub(super) fn listen(&mut self) -> Result<()> {
        self.link_checked = Instant::now();
        for lane in 0..self.services.len() {
            self.listen_in(lane)?;
        }
        self.announce_more();
        Ok(())
    }

    fn listen_in(&mut self, lane: usize) -> Result<()> {
        let of = &mut self.services[lane];
        let taken = loop {
            match of.link.flush().and_then(|()| of.link.take()) {
                Ok(Some(body)) => match Frame::parse(&body) {
                    Ok(Frame::Beat) => {
                        of.heard = self.link_checked;
                        if let Err(error) = of.link.send(&Frame::Beat.to_bytes()) {
                            break Err(error);
                        }
                    }
                    parsed => break Ok(Some(parsed)),
                },
                Ok(None) => break Ok(None),
                Err(error) => break Err(error),
            }
        };
        let silence = self.link_checked.saturating_duration_since(of.heard);
        let service = &of.address;
        let reason = match taken {
            Ok(None) if silence > of.silence_max => format!(
                "nothing was heard of the service at {service} for {} s",
                silence.as_secs()
            ),
            Ok(None) => return Ok(()),
            Ok(Some(Ok(Frame::Abort(reason)))) | Err(LinkError::Refused(reason)) => reason,
            Ok(Some(Ok(frame))) => {
                format!("the service at {service} says {}", frame.name())
            }
            Ok(Some(Err(bad))) => format!("the service at {service}: {bad}"),
            Err(LinkError::Closed) => format!(
                "the service at {service} has closed its connection: it has ended or was killed"
            ),
            Err(error) => format!("the service at {service} is lost: {error}"),
        };
        // The other lanes learn the cause from here.
        self.tell(&reason, Some(lane));
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
            let more = Frame::More(announcement).to_bytes();
            for service in &mut self.services {
                let _ = service.link.send(&more);
            }
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

    /// Marks the job as failed. With `tell`, also notifies the SPs, which notify the other ranks.
    pub(super) fn fail(&mut self, reason: String, tell: bool) -> OffloadError {
        if tell {
            self.tell(&reason, None);
        }
        self.failed = Some(reason.clone());
        OffloadError::Failed(reason)
    }

    /// Tells the SPs that the job has failed, except that of a lane.
    fn tell(&mut self, reason: &str, except: Option<usize>) {
        if self.failed.is_some() {
            return;
        }
        let frame = Frame::Abort(reason.to_owned()).to_bytes();
        for (lane, service) in self.services.iter_mut().enumerate() {
            if except != Some(lane) {
                // If the send fails, the SP is gone; a later check detects that.
                let _ = service.link.send(&frame);
            }
        }
    }
}

impl Communicator {
    /// `neighbours` are the ranks of this rank's SPs in ascending order.
    pub(super) fn new(members: Members, neighbours: &[u32], lanes: usize) -> Self {
        let ours = members.iter();
        let ours = ours.filter(|member| neighbours.binary_search(member).is_ok());
        Self {
            together: u32::try_from(ours.count()).unwrap_or(u32::MAX),
            members,
            next: 0,
            turns: vec![0; lanes],
            open: vec![0; lanes],
        }
    }

    /// Numbers a call.
    pub(super) fn number(&mut self, id: CommunicatorId, is_persistent: bool) -> Numbered {
        let sequence = self.next;
        self.next = sequence.wrapping_add(1);
        Numbered {
            communicator: id.0,
            sequence,
            starts: 0,
            is_persistent,
        }
    }

    /// The turn of an ordinary reduction that starts in a lane.
    pub(super) fn turn(&mut self, lane: usize) -> u32 {
        let next = &mut self.turns[lane];
        let turn = *next;
        *next = turn.wrapping_add(1);
        turn
    }
}

impl Numbered {
    /// The next start of the call.
    pub(super) fn start(&mut self) -> Collective {
        let start = self.starts;
        self.starts = start.wrapping_add(1);
        Collective {
            communicator: self.communicator,
            sequence: self.sequence,
            start,
            step: 0,
        }
    }
}

pub(super) fn arguments(text: String) -> OffloadError {
    OffloadError::Arguments(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn persistent_calls_match_by_number_in_any_order_of_their_starts() {
        let mut starts = [Vec::new(), Vec::new()];
        for (rank, starts) in starts.iter_mut().enumerate() {
            let mut communicator = Communicator::new(vec![0, 1].into(), &[1], 2);
            let id = CommunicatorId(5);
            let mut a = communicator.number(id, true);
            let mut b = communicator.number(id, true);
            // One rank starts A first, the other one B.
            let calls = if rank == 0 {
                [&mut a, &mut b]
            } else {
                [&mut b, &mut a]
            };
            for call in calls {
                starts.push(call.start());
            }
            starts.push(a.start());
            starts.push(communicator.number(id, false).start());
        }
        starts[1].swap(0, 1);
        assert_eq!(starts[0], starts[1]);
        let numbers: Vec<(u32, u32)> = starts[0]
            .iter()
            .map(|start| (start.sequence, start.start))
            .collect();
        assert_eq!(numbers, [(0, 0), (1, 0), (0, 1), (2, 0)]);
    }

    #[test]
    fn ordinary_reductions_have_turns_in_each_lane() {
        let mut communicator = Communicator::new(vec![0, 1].into(), &[1], 2);
        let turns = [0, 1, 0, 0, 1].map(|lane| communicator.turn(lane));
        assert_eq!(turns, [0, 0, 1, 2, 1]);
    }
}
