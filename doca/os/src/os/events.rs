//! Event queues of a process.

use super::{Os, OsError};
use crate::event_queue::{COUNTER, ENTRY_BYTES, EventQueue, LOG_MAX};
use crate::kernel::EVENT_QUEUES_MAX;

impl Os {
    /// Adds an event queue. Its ring has entries with the owner bit 1 at first.
    ///
    /// # Errors
    /// The ring is not in an allocation, the thread is no event handler, or the process has all event queues.
    pub fn add_event_queue(
        &mut self,
        id: u32,
        (ring, log_entries): (u64, u32),
        thread: Option<u32>,
    ) -> Result<(), OsError> {
        self.alive()?;
        if log_entries > LOG_MAX {
            return Err(OsError::Full {
                what: "entries of an event queue",
                most: 1 << LOG_MAX,
            });
        }
        self.check(ring, ENTRY_BYTES << log_entries)?;
        if let Some(thread) = thread {
            self.handler(thread)?;
        }
        if self.kernel.event_queues.len() >= EVENT_QUEUES_MAX {
            return Err(OsError::Full {
                what: "event queues",
                most: EVENT_QUEUES_MAX,
            });
        }
        let queue = EventQueue {
            ring,
            log_entries,
            thread,
            produced: 0,
            consumed: 0,
            is_armed: true,
        };
        self.kernel.event_queues.insert(id, queue);
        Ok(())
    }

    /// Removes an event queue.
    pub fn remove_event_queue(&mut self, id: u32) {
        self.kernel.event_queues.remove(&id);
    }

    /// An event of a completion queue: for the event queue with this number, or for an event handler.
    ///
    /// # Errors
    /// The process has neither, or has ended.
    pub fn event(&mut self, id: u32, cqn: u32) -> Result<(), OsError> {
        let Some(queue) = self.kernel.event_queues.get_mut(&id) else {
            return self.activate(id);
        };
        if queue.is_full() {
            let entries = 1 << queue.log_entries;
            let text = format!("event queue {id} has no room: {entries} events wait");
            self.set_fault(self.caller, 0, 0, text);
            return Ok(());
        }
        let (at, entry) = queue.entry(cqn);
        queue.produced = (queue.produced + 1) & COUNTER;
        let wakes = queue.thread.filter(|_| queue.is_armed);
        queue.is_armed = false;
        if let Err(fault) = self.machine.memory_mut().write(at, &entry) {
            let text = format!("an entry of event queue {id} at {at:#x}: {fault}");
            self.set_fault(self.caller, 0, at, text);
            return Ok(());
        }
        match wakes {
            // The handler may have been destroyed since.
            Some(thread) => self.activate(thread),
            None => Ok(()),
        }
    }

    /// A doorbell: the entries below the counter are free. Armed, the queue activates its handler for those from there on.
    pub(super) fn consumed(&mut self, id: u32, counter: u32, arms: bool) -> Result<(), String> {
        let Some(queue) = self.kernel.event_queues.get_mut(&id) else {
            return Err(format!(
                "doorbell of event queue {id}: the process has no such queue"
            ));
        };
        queue.consumed = counter & COUNTER;
        queue.is_armed |= arms;
        let wakes = queue
            .thread
            .filter(|_| queue.is_armed && queue.has_events());
        if let Some(thread) = wakes {
            queue.is_armed = false;
            let _ = self.activate(thread);
        }
        Ok(())
    }
}
