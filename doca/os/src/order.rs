//! Weakly ordered memory: accesses that a card's memory may not order, because a fence, a writeback or an invalidation is missing.
//!
//! The emulated memory is strongly ordered, so a program with such a mistake works here and fails on a card now and then. This is
//! the record of what each thread has accessed since it last ordered its accesses. Four rules are checked:
//!
//! - stores to what a doorbell lets the device read, before a fence on them (`__dpa_thread_fence`, `__dpa_thread_memory_writeback`);
//! - a completion's fields, read without a fence after its owner bit;
//! - stores to a window, at a doorbell or at the end of the function without `__dpa_thread_window_writeback`;
//! - a second load from a window that meets another value without `__dpa_thread_window_read_inv`: a card may give the old one.

use dpa_dev::intrinsics::Operation;
use rv64::{HartId, MemoryAccess};
use std::collections::{BTreeMap, HashMap};

/// Most accesses of a kind that are remembered for a thread.
const ACCESSES_MAX: usize = 4096;
/// Most reports of a process: one for each instruction.
const REPORTS_MAX: usize = 256;
/// Bytes of a completion. The last one has the owner bit.
const COMPLETION_BYTES: u64 = 64;
/// Memory spaces of a fence, see [`dpa_dev::intrinsics::SPACES`], and kinds of accesses.
const MMIO: u64 = 3;
const READS: u64 = 1;
const WRITES: u64 = 2;

/// An access without the needed order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrderReport {
    /// Number of the thread.
    pub thread: u32,
    /// Address of the instruction with the access.
    pub pc: u64,
    /// What is missing.
    pub text: &'static str,
}

/// An access: its address, its bytes and its instruction.
type Access = (u64, u64, u64);

#[derive(Debug, Default)]
struct Thread {
    /// Stores to memory of the process since the last fence.
    stores: Vec<Access>,
    /// Stores to windows since the last writeback.
    window_stores: Vec<Access>,
    /// Values of loads from windows since the last invalidation, by address and size.
    window_loads: HashMap<(u64, u8), u64>,
    /// Completions whose owner bit was read since the last fence.
    owners: Vec<u64>,
}

/// The record of a process.
#[derive(Debug, Default)]
pub(crate) struct Order {
    threads: HashMap<HartId, Thread>,
    /// Rings of completion queues: first address and bytes.
    rings: Vec<(u64, u64)>,
    /// By instruction.
    reports: BTreeMap<u64, &'static str>,
    /// Reports that nobody has taken: hart, instruction, text.
    new: Vec<(HartId, u64, &'static str)>,
}

fn overlaps((address, bytes, _): Access, (start, length): (u64, u64)) -> bool {
    address < start.saturating_add(length) && start < address.saturating_add(bytes)
}

fn remember(list: &mut Vec<Access>, access: Access) {
    if list.len() >= ACCESSES_MAX {
        // The oldest half: reports may get lost, but none is wrong.
        list.drain(..ACCESSES_MAX / 2);
    }
    list.push(access);
}

impl Order {
    fn report(&mut self, hart: HartId, pc: u64, text: &'static str) {
        if self.reports.len() < REPORTS_MAX && self.reports.insert(pc, text).is_none() {
            self.new.push((hart, pc, text));
        }
    }

    /// The reports since the last call.
    pub(crate) fn take(&mut self) -> Vec<(HartId, u64, &'static str)> {
        std::mem::take(&mut self.new)
    }

    /// The rings of the process's completion queues.
    pub(crate) fn set_rings(&mut self, rings: Vec<(u64, u64)>) {
        self.rings = rings;
    }

    /// An access to memory of the process.
    pub(crate) fn memory(&mut self, access: &MemoryAccess) {
        let (address, bytes) = (access.address, u64::from(access.size));
        let thread = self.threads.entry(access.hart).or_default();
        if access.is_store {
            remember(&mut thread.stores, (address, bytes, access.pc));
            return;
        }
        let in_ring = |(start, length): &&(u64, u64)| address.wrapping_sub(*start) < *length;
        let Some((start, _)) = self.rings.iter().find(in_ring) else {
            return;
        };
        let entry = start + (address - start) / COMPLETION_BYTES * COMPLETION_BYTES;
        if address + bytes == entry + COMPLETION_BYTES {
            if thread.owners.len() < ACCESSES_MAX && !thread.owners.contains(&entry) {
                thread.owners.push(entry);
            }
        } else if thread.owners.contains(&entry) {
            let text = "a completion is read without a fence after its owner bit: call __dpa_thread_fence(__DPA_MEMORY, __DPA_R, __DPA_R)";
            self.report(access.hart, access.pc, text);
        }
    }

    /// A load from a window.
    pub(crate) fn window_load(
        &mut self,
        hart: HartId,
        pc: u64,
        (address, size): (u64, u8),
        value: u64,
    ) {
        let loads = &mut self.threads.entry(hart).or_default().window_loads;
        if loads.len() >= ACCESSES_MAX {
            loads.clear();
        }
        if loads
            .insert((address, size), value)
            .is_some_and(|old| old != value)
        {
            let text = "a second load from a window may give the old value: call __dpa_thread_window_read_inv() before it";
            self.report(hart, pc, text);
        }
    }

    /// A store to a window.
    pub(crate) fn window_store(&mut self, hart: HartId, pc: u64, (address, size): (u64, u8)) {
        let thread = self.threads.entry(hart).or_default();
        let own = (address, u64::from(size), pc);
        thread
            .window_loads
            .retain(|(start, bytes), _| !overlaps(own, (*start, u64::from(*bytes))));
        remember(&mut thread.window_stores, own);
    }

    /// A doorbell, with the memory that the device reads because of it.
    pub(crate) fn doorbell(&mut self, hart: HartId, visible: &[(u64, u64)]) {
        let thread = self.threads.entry(hart).or_default();
        let unordered = |store: &&Access| visible.iter().any(|range| overlaps(**store, *range));
        let found: Vec<u64> = thread
            .stores
            .iter()
            .filter(unordered)
            .map(|store| store.2)
            .collect();
        for pc in found {
            let text = "a doorbell may overtake this store: call __dpa_thread_memory_writeback() or __dpa_thread_fence(__DPA_MEMORY, __DPA_W, __DPA_W) between them";
            self.report(hart, pc, text);
        }
        self.unwritten(hart);
    }

    /// A function of a thread has ended. Its memory stays in the cache, its stores to windows may be lost.
    pub(crate) fn ended(&mut self, hart: HartId) {
        self.unwritten(hart);
        if let Some(thread) = self.threads.get_mut(&hart) {
            thread.stores.clear();
            thread.owners.clear();
        }
    }

    fn unwritten(&mut self, hart: HartId) {
        let Some(thread) = self.threads.get_mut(&hart) else {
            return;
        };
        for (.., pc) in std::mem::take(&mut thread.window_stores) {
            let text = "the host may not see this store to a window: call __dpa_thread_window_writeback() after it";
            self.report(hart, pc, text);
        }
    }

    /// An intrinsic with its operand.
    pub(crate) fn intrinsic(&mut self, hart: HartId, operation: Operation, operand: u64) {
        let thread = self.threads.entry(hart).or_default();
        match operation {
            Operation::Fence if operand & 0xff != MMIO => {
                let before = operand >> 8 & 0xff;
                self.fence(hart, before & READS != 0, before & WRITES != 0);
            }
            Operation::MemoryWriteback => thread.stores.clear(),
            Operation::WindowWriteback => thread.window_stores.clear(),
            Operation::WindowReadInv => thread.window_loads.clear(),
            _ => {}
        }
    }

    /// A fence on memory of the process, after loads, after stores or after both.
    pub(crate) fn fence(&mut self, hart: HartId, loads: bool, stores: bool) {
        let thread = self.threads.entry(hart).or_default();
        if loads {
            thread.owners.clear();
        }
        if stores {
            thread.stores.clear();
        }
    }
}
