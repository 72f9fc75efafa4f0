//! Requests that arrive from other machines: the checks, the receive entries and the memory of those of this machine.

use mlx5_prm::cqe::{Cqe, opcode as cqe_opcode, syndrome};
use mlx5_prm::qp::service;
use mlx5_prm::umr::access;

use crate::engine::access::{Need, resolve};
use crate::engine::atomic::change;
use crate::engine::event::Event;
use crate::engine::list::{Failure, List};
use crate::engine::message::{MESSAGE_BYTES_MAX, arrived, complete_entry, invalidate, next_entry};
use crate::engine::outcome::{
    Fault, NO_ANSWER, REMOTE_ACCESS, REMOTE_INVALID, REMOTE_OPERATION, Reason,
};
use crate::engine::peer::{Poster, permits, with_srq};
use crate::engine::receive::{self, Entry};
use crate::engine::refused::{Refused, settle_here};
use crate::engine::scatter::Scattered;
use crate::engine::wire::arriving::{Arrived, Refusal, Target};
use crate::engine::wire::packet::{self, Nak, Range, Service};
use crate::engine::work::{Atomic, AtomicKind};
use crate::fabric::Locked;
use crate::fabric::counters::PortCounter;
use crate::fabric::journal::Take;
use crate::memory::MemoryError;

/// The queue pair at which requests arrive.
pub(super) struct Landing<'a, 'l> {
    pub(super) locked: &'a mut Locked<'l>,
    pub(super) peer: Poster,
    /// The entry of the message that is arriving.
    pub(super) entry: &'a mut Option<Entry>,
}

impl Landing<'_, '_> {
    /// Refuses a request. The queue pair enters the error state.
    fn refuse(&mut self, event: Event, fault: Fault) -> Refusal {
        let refused = Refused::by(&self.peer, event, fault);
        self.settle(refused)
    }

    fn settle(&mut self, refused: Refused) -> Refusal {
        const ANSWERS: [(Fault, Nak); 3] = [
            (REMOTE_INVALID, Nak::InvalidRequest),
            (REMOTE_ACCESS, Nak::RemoteAccess),
            (REMOTE_OPERATION, Nak::RemoteOperation),
        ];
        let fault = settle_here(self.locked, refused);
        if let Fault::NotYet(Reason::NotReady(timer)) = fault {
            return Refusal::NotReady(timer);
        }
        let answer = ANSWERS.iter().find(|(known, _)| *known == fault);
        answer.map_or(Refusal::Silent, |(_, nak)| Refusal::Nak(*nak))
    }

    /// Completes the entry of the message that is arriving.
    fn end_entry(&mut self, entry: &Entry, cqe: Cqe) {
        let (function, qpn) = (self.peer.function, self.peer.qpn);
        // An entry of a shared queue was taken when the message began.
        let take = match self.peer.qp.srq {
            0 => receive::taking(self.locked, function, (qpn, &self.peer.qp), entry),
            _ => Take::default(),
        };
        let completion = (cqe, &Scattered::NONE);
        complete_entry(self.locked, &self.peer, entry.counter, completion, take);
    }

    /// Completes the entry in error, and refuses the message.
    fn fail_entry(&mut self, entry: &Entry, syndrome: u8, fault: Fault) -> Refusal {
        let cqe = Cqe {
            opcode: cqe_opcode::RESP_ERR,
            syndrome,
            ..Cqe::default()
        };
        if syndrome == syndrome::LOCAL_LENGTH_ERR {
            arrived(self.locked, &self.peer, PortCounter::RespLocalLengthError);
        }
        self.end_entry(entry, cqe);
        self.refuse(Event::QpFatal, fault)
    }

    fn list(&self, need: Need, range: &Range) -> List {
        let length = range.length.into();
        List::of_key(self.peer.side(), need, range.rkey, range.address, length)
    }

    /// Checks a range of an RDMA request.
    fn check(&mut self, right: u8, need: Need, range: &Range) -> Result<(), Refusal> {
        if !permits(&self.peer, right) || range.length > MESSAGE_BYTES_MAX {
            return Err(self.refuse(Event::QpRequestError, REMOTE_INVALID));
        }
        let list = self.list(need, range);
        if list.check(self.locked, range.length.into()).is_err() {
            return Err(self.refuse_access());
        }
        Ok(())
    }

    /// Refuses a range of an RDMA request. An unreliable connection only drops it.
    fn refuse_access(&mut self) -> Refusal {
        match self.peer.qp.service {
            service::UC => Refusal::Silent,
            _ => self.refuse(Event::QpAccessError, REMOTE_ACCESS),
        }
    }

    /// The answer to an access that failed although its range was checked.
    fn failed(&mut self, failure: Failure) -> Refusal {
        match failure {
            Failure::SourceGone | Failure::TargetGone => Refusal::Silent,
            Failure::Source | Failure::Target => self.refuse_access(),
        }
    }
}

impl Target for Landing<'_, '_> {
    fn invalid(&mut self) {
        self.refuse(Event::QpRequestError, REMOTE_INVALID);
    }

    fn select(&mut self, service: Service) -> bool {
        let Service::Extended { srq } = service else {
            return true;
        };
        with_srq(self.locked, self.peer, srq)
            .map(|peer| self.peer = peer)
            .is_ok()
    }

    fn open(&mut self) -> Result<(), Refusal> {
        if self.entry.is_some() {
            // It was reserved for a message whose rest was dropped.
            return Ok(());
        }
        let entry = match next_entry(self.locked, &self.peer) {
            Ok(entry) => entry,
            Err(refused) => return Err(self.settle(refused)),
        };
        let (function, qpn) = (self.peer.function, self.peer.qpn);
        if self.peer.qp.srq != 0 {
            // Another queue pair must not get the same entry.
            let take = receive::taking(self.locked, function, (qpn, &self.peer.qp), &entry);
            receive::count(self.locked, &take);
            receive::taken(self.locked, &take);
        }
        *self.entry = Some(entry);
        Ok(())
    }

    fn deliver(&mut self, offset: u32, data: &[u8]) -> Result<(), Refusal> {
        let entry = self.entry.take().ok_or(Refusal::Silent)?;
        let offset = u64::from(offset);
        if offset + data.len() as u64 > entry.list.length() {
            let (syndrome, fault) = (syndrome::LOCAL_LENGTH_ERR, REMOTE_INVALID);
            return Err(self.fail_entry(&entry, syndrome, fault));
        }
        match entry.list.write_at(self.locked, offset, data) {
            Ok(()) => *self.entry = Some(entry),
            Err(Failure::TargetGone | Failure::SourceGone) => return Err(Refusal::Silent),
            Err(Failure::Target | Failure::Source) => {
                let (syndrome, fault) = (syndrome::LOCAL_PROT_ERR, REMOTE_OPERATION);
                return Err(self.fail_entry(&entry, syndrome, fault));
            }
        }
        Ok(())
    }

    fn close(&mut self, message: &Arrived) -> Result<(), Refusal> {
        if let Some(key) = message.invalidate
            && !invalidate(self.locked, &self.peer, key)
        {
            return Err(self.refuse(Event::QpAccessError, REMOTE_ACCESS));
        }
        let entry = self.entry.take().ok_or(Refusal::Silent)?;
        let opcode = match (message.is_write, message.invalidate, message.imm) {
            (true, ..) => cqe_opcode::RESP_WR_IMM,
            (false, Some(_), _) => cqe_opcode::RESP_SEND_INV,
            (false, None, Some(_)) => cqe_opcode::RESP_SEND_IMM,
            (false, None, None) => cqe_opcode::RESP_SEND,
        };
        let cqe = Cqe {
            opcode,
            imm: message.imm.or(message.invalidate).unwrap_or(0),
            byte_count: message.length,
            solicited: message.solicited,
            ..Cqe::default()
        };
        self.end_entry(&entry, cqe);
        Ok(())
    }

    fn write(&mut self, target: &Range, offset: u32, data: &[u8]) -> Result<(), Refusal> {
        if offset == 0 {
            arrived(self.locked, &self.peer, PortCounter::RxWriteRequests);
            self.check(access::REMOTE_WRITE, Need::RemoteWrite, target)?;
        }
        let list = self.list(Need::RemoteWrite, target);
        let written = list.write_at(self.locked, offset.into(), data);
        written.map_err(|failure| self.failed(failure))
    }

    fn check_read(&mut self, source: &Range) -> Result<(), Refusal> {
        arrived(self.locked, &self.peer, PortCounter::RxReadRequests);
        self.check(access::REMOTE_READ, Need::RemoteRead, source)
    }

    fn read(&mut self, source: &Range, offset: u32, into: &mut [u8]) -> Result<(), Refusal> {
        if !permits(&self.peer, access::REMOTE_READ) {
            return Err(Refusal::Silent);
        }
        let list = self.list(Need::RemoteRead, source);
        let read = list.read_at(self.locked, offset.into(), into);
        read.map_err(|failure| self.failed(failure))
    }

    fn read_again(&mut self, source: &Range, offset: u32, into: &mut [u8]) -> Option<()> {
        let list = self.list(Need::RemoteRead, source);
        let read = permits(&self.peer, access::REMOTE_READ)
            .then(|| list.read_at(self.locked, offset.into(), into));
        read?.ok()
    }

    fn atomic(&mut self, address: u64, rkey: u32, atomic: packet::Atomic) -> Result<u64, Refusal> {
        const BYTES: u64 = 8;
        if !permits(&self.peer, access::ATOMIC) || !address.is_multiple_of(BYTES) {
            return Err(self.refuse(Event::QpRequestError, REMOTE_INVALID));
        }
        arrived(self.locked, &self.peer, PortCounter::RxAtomicRequests);
        let side = self.peer.side();
        let piece = resolve(self.locked, side, rkey, address, BYTES, Need::RemoteAtomic);
        let piece = piece.ok().filter(|piece| piece.length == BYTES);
        let atomic = Atomic {
            bytes: 8,
            kind: match atomic {
                packet::Atomic::CompareSwap { compare, swap } => {
                    AtomicKind::CompareSwap { compare, swap }
                }
                packet::Atomic::FetchAdd { add } => AtomicKind::FetchAdd { add },
            },
        };
        let changed = piece
            .ok_or(MemoryError::Fault)
            .and_then(|piece| change(piece.space, piece.address, atomic));
        changed.map_err(|error| match error {
            MemoryError::Gone => self.settle(NO_ANSWER.into()),
            MemoryError::Fault => self.refuse(Event::QpAccessError, REMOTE_ACCESS),
        })
    }
}
