//! The device as the operating system of a DPA process sees it: memory behind keys, doorbells, messages.

use std::collections::VecDeque;

use dpa_os::{Denied, Message};
use mlx5_prm::mkey::QPN_ANY;

use crate::engine::access::{Denied as Reason, Need, Side, resolve};
use crate::engine::{Place, ring_arm, ring_send};
use crate::fabric::numbers::{qp_slot, slot_of_number};
use crate::fabric::table::Owner;
use crate::fabric::{Fabric, Function, Locked};
use crate::memory::Space;

/// Most messages that wait for the host. Later ones replace the oldest.
const MESSAGES_MAX: usize = 4096;
/// Bytes of a doorbell record.
const RECORD_BYTES: u64 = 8;

/// The device for one process of the DPA.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) fabric: &'static Fabric,
    pub(super) function: usize,
    pub(super) context: u32,
    /// The runner's number on the device.
    pub(super) runner: u32,
    /// Protection domain of accesses behind keys.
    pub(super) pd: u32,
    pub(super) messages: VecDeque<Message>,
    /// Accesses behind keys.
    pub(super) accesses: u64,
    /// Doorbells.
    pub(super) doorbells: u64,
}

impl Device {
    /// Does something with each contiguous piece of a range behind a key.
    fn each(
        &mut self,
        (key, address, length): (u32, u64, usize),
        need: Need,
        mut act: impl FnMut(Space, u64, std::ops::Range<usize>) -> crate::memory::Result<()>,
    ) -> Result<(), Denied> {
        self.accesses += 1;
        let side = Side {
            function: self.function,
            pd: self.pd,
            qpn: QPN_ANY,
        };
        let denied = |at: usize, text: &str| {
            let address = address.wrapping_add(at as u64);
            Denied(format!("key {key:#x}, address {address:#x}: {text}"))
        };
        let locked = self.fabric.lock();
        let mut done = 0;
        while done < length {
            let at = address.wrapping_add(done as u64);
            let piece = resolve(&locked, side, key, at, (length - done) as u64, need)
                .map_err(|reason| denied(done, text(reason)))?;
            let bytes = usize::try_from(piece.length).unwrap_or(length - done);
            if bytes == 0 {
                return Err(denied(done, "the key's list has an empty entry"));
            }
            act(piece.space, piece.address, done..done + bytes)
                .map_err(|_| denied(done, "the memory behind the key is not mapped"))?;
            done += bytes;
        }
        Ok(())
    }

    /// True for objects of the context in memory of the DPA.
    fn is_own(&self, owner: Owner) -> bool {
        (owner.process, owner.context) == (self.runner, self.context)
    }

    /// The queue pair's page of doorbells, if the context has it.
    fn page_of(&self, locked: &Locked<'_>, qpn: u32) -> Option<u32> {
        let qps = &locked.peek(self.function).qps;
        qps.owned(qp_slot(qpn), self.context).map(|qp| qp.uar)
    }
}

fn places(ranges: impl IntoIterator<Item = (u64, u64)>) -> Vec<(usize, u64)> {
    let ranges = ranges.into_iter();
    let known = ranges.filter_map(|(at, bytes)| Some((usize::try_from(at).ok()?, bytes)));
    known.collect()
}

fn text(reason: Reason) -> &'static str {
    match reason {
        Reason::NoKey => "no such key",
        Reason::Free => "the key is not bound",
        Reason::Foreign => "the key belongs to another protection domain",
        Reason::Rights => "the key does not grant this access",
        Reason::Bounds => "beyond the key's range",
        Reason::Depth => "the key's chain is too long",
        Reason::Stale => "the alias has lost its key",
    }
}

impl dpa_os::Device for Device {
    fn read(&mut self, key: u32, address: u64, bytes: &mut [u8]) -> Result<(), Denied> {
        let range = (key, address, bytes.len());
        self.each(range, Need::LocalRead, |space, at, part| {
            space.read(at, &mut bytes[part])
        })
    }

    fn write(&mut self, key: u32, address: u64, bytes: &[u8]) -> Result<(), Denied> {
        let range = (key, address, bytes.len());
        self.each(range, Need::LocalWrite, |space, at, part| {
            space.write(at, &bytes[part])
        })
    }

    /// Atomic with respect to other atomics of the device, because all of them hold its lock.
    fn atomic(
        &mut self,
        key: u32,
        address: u64,
        size: u8,
        operation: rv64::Atomic,
        operand: u64,
    ) -> Result<u64, Denied> {
        let size_of = usize::from(size);
        let mut old = 0;
        let range = (key, address, size_of);
        self.each(range, Need::LocalWrite, |space, at, part| {
            if part.len() != size_of {
                return Err(crate::memory::MemoryError::Fault);
            }
            let mut word = [0; 8];
            space.read(at, &mut word[..size_of])?;
            old = u64::from_le_bytes(word);
            let new = operation.apply(old, operand, size).to_le_bytes();
            space.write(at, &new[..size_of])
        })?;
        Ok(old)
    }

    fn ring_send(&mut self, uar: u32, qpn: u32, _index: u16) -> Result<(), Denied> {
        self.doorbells += 1;
        let page = self.page_of(&self.fabric.lock(), qpn);
        if page != Some(uar) {
            return Err(Denied(format!(
                "doorbell of queue pair {qpn:#x}: {}",
                match page {
                    Some(_) => "it has another page of doorbells than the thread's outbox",
                    None => "the process has no such queue pair",
                }
            )));
        }
        let place = Place {
            uar,
            register: None,
        };
        ring_send(self.fabric, self.function, (self.context, qpn), place);
        Ok(())
    }

    fn arm(&mut self, _uar: u32, cqn: u32, consumer: u32) -> Result<(), Denied> {
        self.doorbells += 1;
        let locked = self.fabric.lock();
        let cqs = &locked.peek(self.function).cqs;
        let is_ours =
            slot_of_number(cqn).is_some_and(|slot| cqs.owned(slot, self.context).is_some());
        drop(locked);
        if !is_ours {
            return Err(Denied(format!(
                "doorbell of completion queue {cqn:#x}: the process has no such queue"
            )));
        }
        let command = consumer & 0xff_ffff;
        ring_arm(
            self.fabric,
            self.function,
            (self.context, cqn),
            Some(command),
        );
        Ok(())
    }

    /// Bytes that a port has received (1) or sent (2): port, and kind shifted by 4.
    fn port_counter(&mut self, number: u64) -> u64 {
        let (sent, received) = self.fabric.port_bytes(self.fabric.card(self.function));
        match (number & 0xf, number >> 4 & 0xf) {
            (0, 1) => received,
            (0, 2) => sent,
            _ => 0,
        }
    }

    fn sent(&mut self, qpn: u32) -> Vec<(usize, u64)> {
        let locked = self.fabric.lock();
        let Function { qps, mkeys, .. } = locked.peek(self.function);
        let Some(qp) = qps.owned(qp_slot(qpn), self.context) else {
            return Vec::new();
        };
        let ring = u64::from(qp.sq.count) << qp.sq.log_stride;
        let own = mkeys.iter().filter(|(_, owner, _)| self.is_own(*owner));
        let keys = own.map(|(_, _, key)| (key.host, key.len));
        let all = [(qp.sq.base, ring), (qp.dbrec, RECORD_BYTES)];
        places(all.into_iter().chain(keys))
    }

    fn completions(&mut self, cqn: u32) -> Option<[(usize, u64); 2]> {
        let locked = self.fabric.lock();
        let cqs = &locked.peek(self.function).cqs;
        let cq = slot_of_number(cqn).and_then(|slot| cqs.owned(slot, self.context))?;
        let ring = u64::from(cq.ring.count) << cq.ring.log_stride;
        let both = places([(cq.ring.base, ring), (cq.dbrec, RECORD_BYTES)]);
        both.first_chunk().copied()
    }

    fn completion_rings(&mut self) -> Vec<(usize, u64)> {
        let locked = self.fabric.lock();
        let cqs = locked.peek(self.function).cqs.iter();
        let own = cqs.filter(|(_, owner, _)| self.is_own(*owner));
        places(own.map(|(_, _, cq)| {
            let bytes = u64::from(cq.ring.count) << cq.ring.log_stride;
            (cq.ring.base, bytes)
        }))
    }

    fn message(&mut self, message: Message) {
        if self.messages.len() >= MESSAGES_MAX {
            self.messages.pop_front();
        }
        self.messages.push_back(message);
    }
}
