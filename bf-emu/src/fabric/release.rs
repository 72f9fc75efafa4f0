//! Taking objects away from a context or a process that is gone, and putting the tables right after
//! one died in the middle of a change.

use mlx5_prm::qp::state;

use super::Locked;
use super::objects::Attached;
use super::table::Owner;
use crate::sys;

impl Locked<'_> {
    /// Destroys every object of a context.
    pub fn release_context(&mut self, context: u32) {
        self.release(|owner| owner.context == context);
    }

    /// Destroys every object of a process, and forgets it.
    pub fn release_process(&mut self, process: u32) {
        self.release(|owner| owner.process == process);
        if let Some(index) = process.checked_sub(1) {
            self.common().processes.remove(index);
        }
    }

    /// Releases the processes that are gone. Returns how many.
    ///
    /// A process is gone if its number is free, or belongs to one that started at another time.
    pub fn sweep(&mut self) -> usize {
        let is_gone = |process: &Attached| start_time(process.pid) != Some(process.start_time);
        let mut swept = 0;
        let mut from = 0;
        while let Some(index) = self
            .common()
            .processes
            .next(from, |_, process| is_gone(process))
        {
            self.release_process(index + 1);
            swept += 1;
            from = index + 1;
        }
        swept
    }

    /// Releases a process that did not answer, if it is really gone. Async-signal-safe.
    pub fn release_if_gone(&mut self, process: u32) {
        if self
            .pid(process)
            .is_some_and(|pid| !sys::process_exists(pid))
        {
            self.release_process(process);
        }
    }

    fn release(&mut self, gone: impl Fn(Owner) -> bool) {
        for index in 0..self.fabric().identities().len() {
            let function = self.function(index);
            // Queues before what they use, keys before their lists.
            while let Some(qp) = function.qps.next(0, |owner, _| gone(owner)) {
                function.qps.remove(qp);
            }
            while let Some(srq) = function.srqs.next(0, |owner, _| gone(owner)) {
                function.srqs.remove(srq);
            }
            while let Some(cq) = function.cqs.next(0, |owner, _| gone(owner)) {
                function.cqs.remove(cq);
            }
            while let Some(channel) = function.channels.next(0, |owner, _| gone(owner)) {
                function.channels.remove(channel);
            }
            let mut from = 0;
            while let Some(mkey) = function.mkeys.next(from, |owner, _| gone(owner)) {
                function.remove_mkey(mkey);
                from = mkey + 1;
            }
            let mut from = 0;
            while let Some(umem) = function.umems.next(from, |owner, _| gone(owner)) {
                function.umems.remove(umem);
                from = umem + 1;
            }
            while let Some(pd) = function.pds.next(0, |owner, _| gone(owner)) {
                function.pds.remove(pd);
            }
        }
    }

    /// Puts the tables right after a holder of the lock died.
    pub(super) fn repair(&mut self) {
        self.common().processes.repair();
        for index in 0..self.fabric().identities().len() {
            let function = self.function(index);
            function.pds.repair();
            function.channels.repair();
            function.cqs.repair();
            function.srqs.repair();
            function.qps.repair();
            function.umems.repair();
            function.mkeys.repair();
            function.klms.forget_all();
            for (_, _, mkey) in function.mkeys.iter() {
                function.klms.keep(mkey.list);
            }
        }
        self.sweep();
    }
}

impl super::Function {
    /// Takes an mkey and its list away.
    pub fn remove_mkey(&mut self, slot: u32) -> bool {
        match self.mkeys.remove(slot) {
            Some(mkey) => {
                self.klms.give_back(mkey.list);
                true
            }
            None => false,
        }
    }

    /// True if a queue pair exists that still may use the completion or receive queue.
    #[must_use]
    pub fn queue_in_use(&self, cq: Option<u32>, srq: Option<u32>) -> bool {
        self.qps.iter().any(|(_, _, qp)| {
            qp.state != state::RST
                && (cq.is_some_and(|cq| qp.send_cq == cq || qp.recv_cq == cq)
                    || srq.is_some_and(|srq| qp.srq == srq + 1))
        })
    }
}

/// When a process started, in clock ticks since boot; None if there is no such process, or only
/// its remains are left for its parent.
#[must_use]
pub fn start_time(pid: i32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the program's name in parentheses and may hold anything.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X" | "x") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}
