//! Releases the objects of a closed context or a dead process, and repairs the tables after a
//! process died while it changed them.

use mlx5_prm::qp::state;

use super::device::Locked;
use super::lock::Holder;
use super::objects::{Attached, MkeyOrigin};
use super::table::{Owner, Table};
use super::tables::Function;
use crate::memory::pins;
use crate::sys::tasks::has_ended;
pub use crate::sys::tasks::start_time;

impl Locked<'_> {
    /// Destroys every object of a context.
    pub fn release_context(&mut self, context: u32) {
        self.release(|owner| owner.context == context);
    }

    /// Destroys every object of a process, and removes the process.
    pub fn release_process(&mut self, process: u32) {
        self.cm_release(|owner| owner.process == process);
        self.release(|owner| owner.process == process);
        remove_all(&mut self.common().faults, |owner| owner.process == process);
        self.count_faults();
        if let Some(index) = process.checked_sub(1) {
            self.common().processes.remove(index);
        }
    }

    /// Releases the processes that have ended. Returns their number. Async-signal-safe.
    pub fn sweep(&mut self) -> usize {
        let mut swept = 0;
        let mut from = 0;
        while let Some(index) = self.common().processes.next(from, |_, _| true) {
            if self.is_gone(index + 1) {
                self.release_process(index + 1);
                swept += 1;
            }
            from = index + 1;
        }
        swept
    }

    /// Releases the objects of this process's earlier program. A program that calls `exec` keeps
    /// the process's number and start time, and loses everything else.
    pub fn release_pid(&mut self, pid: i32) {
        let is_it = |process: &Attached| process.pid == pid;
        while let Some(index) = self.common().processes.next(0, |_, p| is_it(p)) {
            self.release_process(index + 1);
        }
    }

    /// Releases a process that did not answer, if it has ended: now if the thread holds all locks, otherwise when it has
    /// released its own. Async-signal-safe.
    pub fn release_if_gone(&mut self, process: u32) {
        if !self.is_whole() {
            self.sweeps = true;
        } else if self.is_gone(process) {
            self.release_process(process);
        }
    }

    /// True if a process has ended: its memory no longer exists, or belongs to another program.
    ///
    /// A thread of each process holds a robust mutex while the program runs. The kernel marks the
    /// mutex at any end of the program, before the process number can be reused. A process without
    /// that thread is looked up by number and start time.
    fn is_gone(&mut self, process: u32) -> bool {
        let Some(slot) = process.checked_sub(1) else {
            return false;
        };
        match self.fabric().life(slot) {
            Some(Holder::Alive) => false,
            Some(Holder::Dead) => true,
            Some(Holder::Nobody) | None => self
                .common()
                .processes
                .get(slot)
                .is_some_and(|process| has_ended(process.pid, Some(process.start_time))),
        }
    }

    /// Destroys the objects that the DPA's runner has for a context.
    pub(crate) fn release_dpa(&mut self, runner: u32, context: u32) {
        self.release(|owner| owner.process == runner && owner.context == context);
    }

    fn release(&mut self, gone: impl Fn(Owner) -> bool) {
        for index in 0..self.fabric().identities().len() {
            let function = self.function(index);
            // Attachments to groups precede their queue pairs. Queues precede the objects that they
            // use, and keys precede their lists.
            function.detach_all(&gone);
            remove_all(&mut function.qps, &gone);
            remove_all(&mut function.srqs, &gone);
            remove_all(&mut function.cqs, &gone);
            remove_all(&mut function.channels, &gone);
            let mut from = 0;
            while let Some(mkey) = function.mkeys.next(from, |owner, _| gone(owner)) {
                function.remove_mkey(mkey);
                from = mkey + 1;
            }
            from = 0;
            while let Some(index) = function.umems.next(from, |owner, _| gone(owner)) {
                if let Some(umem) = function.umems.remove(index) {
                    pins::unpin(umem.pin);
                }
                from = index + 1;
            }
            remove_all(&mut function.pds, &gone);
        }
    }

    /// Repairs the tables after a holder of the lock died.
    pub(super) fn repair(&mut self) {
        self.common().processes.repair();
        self.common().faults.repair();
        self.cm_repair();
        for index in 0..self.fabric().identities().len() {
            let function = self.function(index);
            function.pds.repair();
            function.channels.repair();
            function.cqs.repair();
            function.srqs.repair();
            function.qps.repair();
            function.repair_groups();
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

fn remove_all<T: Copy, const N: usize>(table: &mut Table<T, N>, gone: impl Fn(Owner) -> bool) {
    let mut from = 0;
    while let Some(index) = table.next(from, |owner, _| gone(owner)) {
        table.remove(index);
        from = index + 1;
    }
}

impl Function {
    /// Removes an mkey and its translation list.
    pub fn remove_mkey(&mut self, slot: u32) -> bool {
        match self.mkeys.remove(slot) {
            Some(mkey) => {
                self.klms.give_back(mkey.list);
                if mkey.origin == MkeyOrigin::Region {
                    pins::unpin(mkey.pin);
                }
                true
            }
            None => false,
        }
    }

    /// True if a queue pair still uses the completion queue or the receive queue.
    #[must_use]
    pub fn queue_in_use(&self, cq: Option<u32>, srq: Option<u32>) -> bool {
        self.qps.iter().any(|(_, _, qp)| {
            qp.state != state::RST
                && (cq.is_some_and(|cq| qp.send_cq == cq || qp.recv_cq == cq)
                    || srq.is_some_and(|srq| qp.srq == srq + 1))
        })
    }
}
