//! Functions of other machines, and the process that carries requests to them.

use std::marker::PhantomData;
use std::sync::atomic::Ordering;

use super::Fabric;
use crate::sys;

/// The calling thread carries requests to other machines.
#[derive(Debug)]
pub struct Carrying<'f> {
    fabric: &'f Fabric,
    /// Number of the thread among those that have carried, from 1.
    pub(crate) epoch: u32,
    // The thread that locks a mutex must unlock it.
    not_send: PhantomData<*mut ()>,
}

impl Drop for Carrying<'_> {
    fn drop(&mut self) {
        // SAFETY: this thread has begun, and the value cannot leave it.
        unsafe { self.fabric.carrier().end() };
    }
}

impl Fabric {
    /// True if a function is on another machine.
    #[must_use]
    pub fn is_remote(&self, function: usize) -> bool {
        self.identity(function).is_some_and(|own| own.is_remote)
    }

    /// True if a process carries requests to other machines. Async-signal-safe.
    #[must_use]
    pub(crate) fn is_carried(&self) -> bool {
        self.carrier().is_alive()
    }

    /// Makes the calling thread the one that carries requests, until it ends or drops the result. None if another thread
    /// carries them.
    #[must_use]
    pub fn carry(&self) -> Option<Carrying<'_>> {
        Some(Carrying {
            fabric: self,
            epoch: self.carrier().begin()?,
            not_send: PhantomData,
        })
    }

    /// Hands a queue pair's new requests to the carrying process. Async-signal-safe.
    pub(crate) fn hand_over(&self, function: usize, slot: u32) {
        self.carrier().hand_over(function, slot);
    }

    /// Takes the queue pairs of a function that were handed over.
    pub(crate) fn handed_over(&self, function: usize, each: impl FnMut(u32)) {
        self.carrier().handed_over(function, each);
    }

    /// Says to the carrying process that events of the connection manager wait for it.
    pub(super) fn tell_carrier(&self) {
        self.carrier().tell();
    }

    /// True if events of the connection manager wait for the carrying process since the last call.
    pub(crate) fn is_carrier_told(&self) -> bool {
        self.carrier().is_told()
    }

    /// Number of times that queue pairs were handed over, for [`Fabric::wait_for_requests`].
    #[must_use]
    pub fn handed_over_count(&self) -> u32 {
        self.carrier().word.load(Ordering::Acquire)
    }

    /// Sleeps until a queue pair is handed over after `seen`, or for `timeout_ns`. Wake-ups without a reason occur.
    pub fn wait_for_requests(&self, seen: u32, timeout_ns: u64) {
        sys::futex_wait(&self.carrier().word, seen, timeout_ns);
    }
}

#[cfg(test)]
mod tests {
    use crate::fabric::limits::QPS_MAX;
    use crate::model::profile::ProfileTable;
    use crate::model::topology::Topology;

    use super::*;

    #[test]
    fn a_queue_pair_is_taken_once_for_all_its_requests() {
        let directory = tempfile::tempdir().unwrap();
        let topology = Topology::with_nodes(1).unwrap();
        let profile = (&ProfileTable::NONE, "none");
        let fabric = Fabric::create(directory.path(), &topology, profile, |_| {}).unwrap();
        let taken = || {
            let mut slots = Vec::new();
            fabric.handed_over(1, |slot| slots.push(slot));
            slots
        };
        assert_eq!(taken().len(), 0);
        let last = u32::try_from(QPS_MAX).unwrap() - 1;
        let before = fabric.handed_over_count();
        for slot in [last, 0, 63, 64, 4096, 0, u32::MAX] {
            fabric.hand_over(1, slot);
        }
        // A sleeper that has seen an older count does not sleep.
        fabric.wait_for_requests(before, u64::MAX / 2);
        assert_eq!(taken(), [0, 63, 64, 4096, last]);
        assert_eq!(taken().len(), 0);
        fabric.handed_over(0, |slot| panic!("{slot} of the other function"));
    }

    #[test]
    fn one_process_carries_and_its_death_is_seen() {
        let directory = tempfile::tempdir().unwrap();
        let topology = Topology::with_nodes(1).unwrap();
        let profile = (&ProfileTable::NONE, "none");
        let fabric = Fabric::create(directory.path(), &topology, profile, |_| {}).unwrap();
        assert!(!fabric.is_carried());
        // A thread that ends without a release.
        let carry = || {
            let carrying = || {
                let own = fabric.carry().map(std::mem::ManuallyDrop::new);
                (own.map(|own| own.epoch), sys::thread_id())
            };
            let (epoch, thread) = std::thread::scope(|scope| scope.spawn(carrying).join().unwrap());
            sys::tasks::wait_for_end(thread);
            epoch
        };
        assert_eq!(carry(), Some(1));
        assert!(!fabric.is_carried());
        let own = fabric.carry().unwrap();
        assert!(fabric.is_carried() && own.epoch == 2);
        assert_eq!(carry(), None);
        drop(own);
        assert!(!fabric.is_carried());
    }
}
