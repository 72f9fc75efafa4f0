//! State of a process beside its machine: threads, doorbells, messages, windows, the fault.

use crate::event_queue::EventQueue;
use crate::fault::Fault;
use crate::order::Order;
use crate::refusal::Refusal;
use crate::thread::{THREADS_MAX, Thread};
use crate::window::{WINDOW_BYTES, WINDOWS, WINDOWS_MAX};
use rv64::HartId;
use std::collections::{HashMap, HashSet};

/// Most outboxes of a process.
pub(crate) const OUTBOXES_MAX: usize = 256;

/// Most event queues of a process.
pub(crate) const EVENT_QUEUES_MAX: usize = 256;
/// Most command queues of a process.
pub(crate) const TASK_QUEUES_MAX: usize = 256;

/// A doorbell that waits for the end of the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Doorbell {
    Send { uar: u32, qpn: u32, index: u16 },
    Arm { uar: u32, cqn: u32, consumer: u32 },
    Events { id: u32, counter: u32, arms: bool },
}

/// State of a process.
#[derive(Debug)]
pub(crate) struct Kernel {
    /// By the number of the hart.
    pub(crate) threads: Vec<Option<Thread>>,
    /// Doorbells, and the harts that rang.
    pub(crate) doorbells: Vec<(HartId, Doorbell)>,
    /// Harts of handlers to activate.
    pub(crate) activations: Vec<HartId>,
    /// Keys of the windows, by their place.
    pub(crate) windows: Vec<u32>,
    places: HashMap<u32, usize>,
    /// Outboxes: number, and page of the doorbells.
    pub(crate) outboxes: HashMap<u32, u32>,
    /// Objects of windows.
    pub(crate) window_objects: HashSet<u32>,
    /// Event queues by their number.
    pub(crate) event_queues: HashMap<u32, EventQueue>,
    /// The reason of the last refused access or call.
    pub(crate) refusal: Option<String>,
    pub(crate) fault: Option<Fault>,
    /// A thread has ended the process.
    pub(crate) is_finished: bool,
    pub(crate) now_ns: u64,
    /// The record of accesses, if memory is weakly ordered.
    pub(crate) order: Option<Box<Order>>,
    /// A thread asks for a word again and again.
    pub(crate) is_polling: bool,
}

impl Kernel {
    pub(crate) fn new() -> Self {
        Self {
            threads: (0..THREADS_MAX).map(|_| None).collect(),
            doorbells: Vec::new(),
            activations: Vec::new(),
            windows: Vec::new(),
            places: HashMap::new(),
            outboxes: HashMap::new(),
            window_objects: HashSet::new(),
            event_queues: HashMap::new(),
            refusal: None,
            fault: None,
            is_finished: false,
            now_ns: 0,
            order: None,
            is_polling: false,
        }
    }

    pub(crate) fn thread(&self, hart: HartId) -> Option<&Thread> {
        self.threads.get(hart as usize)?.as_ref()
    }

    pub(crate) fn thread_mut(&mut self, hart: HartId) -> Option<&mut Thread> {
        self.threads.get_mut(hart as usize)?.as_mut()
    }

    /// The hart of a thread.
    pub(crate) fn hart_of(&self, number: u32) -> Option<HartId> {
        let is_it = |thread: &Option<Thread>| {
            thread
                .as_ref()
                .is_some_and(|thread| thread.view.number == number)
        };
        let at = self.threads.iter().position(is_it)?;
        HartId::try_from(at).ok()
    }

    /// Address of the window onto a key.
    pub(crate) fn window(&mut self, key: u32) -> Result<u64, Refusal> {
        let at = match self.places.get(&key) {
            Some(at) => *at,
            None if self.windows.len() >= WINDOWS_MAX => {
                return Err(Refusal(format!(
                    "the process has windows onto {WINDOWS_MAX} keys, the maximum"
                )));
            }
            None => {
                self.windows.push(key);
                self.places.insert(key, self.windows.len() - 1);
                self.windows.len() - 1
            }
        };
        Ok(WINDOWS + at as u64 * WINDOW_BYTES)
    }

    /// The key and the address behind an address in the range of windows.
    pub(crate) fn behind(&self, address: u64) -> Option<Result<(u32, u64), Refusal>> {
        let offset = address
            .checked_sub(WINDOWS)
            .filter(|offset| *offset < WINDOW_BYTES * WINDOWS_MAX as u64)?;
        let key = usize::try_from(offset / WINDOW_BYTES)
            .ok()
            .and_then(|at| self.windows.get(at));
        Some(match key {
            Some(key) => Ok((*key, offset % WINDOW_BYTES)),
            None => Err(Refusal(format!("no window is at {address:#x}"))),
        })
    }
}
