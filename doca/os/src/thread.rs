//! Threads of a process.

use mlx5_prm::dpa::{ThreadAttr, ThreadKind as Kind};

/// Most threads of a process, and of the whole device: one for each hardware thread.
pub const THREADS_MAX: u32 = 256;

/// A thread as a device call sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ThreadView {
    /// Its number on the device.
    pub number: u32,
    /// What it is for.
    pub kind: Kind,
    /// Its index among the threads of its launch.
    pub rank: u32,
    /// Threads of its launch; otherwise 1.
    pub count: u32,
    /// The argument of its function.
    pub argument: u64,
    /// Address of its local storage, or 0.
    pub local_storage: u64,
}

/// How an activation has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Ending {
    /// The function has returned.
    #[default]
    Return,
    /// The next event starts it again.
    Reschedule,
    /// No event starts it again.
    Finish,
    /// It starts again at once.
    Retrigger,
}

/// A thread.
#[derive(Debug)]
pub(crate) struct Thread {
    pub(crate) view: ThreadView,
    pub(crate) attributes: ThreadAttr,
    /// A handler that events start.
    pub(crate) is_prepared: bool,
    /// An event has come that has not started it.
    pub(crate) is_pending: bool,
    pub(crate) is_running: bool,
    pub(crate) ending: Ending,
    pub(crate) activations: u64,
    /// Instructions of the hart at the start of the activation.
    pub(crate) began_at: u64,
    /// Since when it waits for a word; 0 if it does not.
    pub(crate) waits_since_ns: u64,
    /// Keys of its windows.
    pub(crate) windows: [Option<u32>; 2],
    /// Page of its doorbells.
    pub(crate) uar: Option<u32>,
}

impl Thread {
    pub(crate) fn new(number: u32, kind: Kind, attributes: ThreadAttr) -> Self {
        Self {
            view: ThreadView {
                number,
                kind,
                rank: 0,
                count: 1,
                argument: attributes.argument,
                local_storage: attributes.local_storage,
            },
            attributes,
            is_prepared: false,
            is_pending: false,
            is_running: false,
            ending: Ending::Return,
            activations: 0,
            began_at: 0,
            waits_since_ns: 0,
            windows: [None; 2],
            uar: None,
        }
    }
}
