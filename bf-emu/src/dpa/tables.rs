//! What the runner knows: sessions, objects, threads.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mlx5_prm::dpa::congestion;

use super::worker::Worker;
use crate::process::Process;

/// Largest number of an object: a handle has 24 bits.
const OBJECTS_MAX: u32 = 0xff_ffff;

/// A context of a program: its number on the device, and that of its process.
pub(super) type Session = (u32, u32);

/// An object.
#[derive(Clone, Debug)]
pub(super) struct Object {
    pub(super) session: Session,
    pub(super) what: What,
}

/// What an object is. All except a process name theirs.
#[derive(Clone, Debug)]
pub(super) enum What {
    Process(Arc<Dpa>),
    Memory {
        process: u32,
        address: u64,
    },
    Thread {
        process: u32,
    },
    Outbox {
        process: u32,
        id: u32,
    },
    Window {
        process: u32,
        id: u32,
    },
    EventQueue {
        process: u32,
    },
    CommandQueue {
        process: u32,
    },
    /// Congestion control of the card with this first function.
    Telemetry {
        card: usize,
    },
}

impl What {
    /// The process of an object that is none.
    pub(super) fn process(&self) -> Option<u32> {
        match self {
            Self::Process(_) | Self::Telemetry { .. } => None,
            Self::Memory { process, .. }
            | Self::Thread { process }
            | Self::Outbox { process, .. }
            | Self::Window { process, .. }
            | Self::EventQueue { process }
            | Self::CommandQueue { process } => Some(*process),
        }
    }
}

/// A process of the DPA.
#[derive(Debug)]
pub(super) struct Dpa {
    pub(super) worker: Arc<Worker>,
    pub(super) function: usize,
    /// The card: functions of one card share its DPA.
    pub(super) card: u64,
    /// Slots of its umem and its channel.
    pub(super) umem: u32,
    pub(super) channel: u32,
    /// Address of its heap in the runner, and bytes.
    pub(super) place: (u64, u64),
    /// The program of the host.
    pub(super) pid: i32,
    /// Its own program, an ELF file.
    pub(super) image: Arc<Vec<u8>>,
}

/// A program's context.
#[derive(Debug)]
pub(super) struct Open {
    /// Why the last command was refused.
    pub(super) reason: String,
}

/// What the runner knows.
#[derive(Debug, Default)]
pub(super) struct Tables {
    pub(super) sessions: HashMap<Session, Open>,
    pub(super) objects: HashMap<u32, Object>,
    /// Threads of each card: number of the thread, and the process or command queue whose end frees it.
    pub(super) threads: HashMap<u32, (u64, u32)>,
    last: u32,
    /// Outboxes and windows made so far.
    pub(super) configured: u32,
}

impl Tables {
    /// A free number for an object or a thread.
    pub(super) fn number(&mut self) -> Option<u32> {
        for _ in 0..OBJECTS_MAX {
            self.last = if self.last >= OBJECTS_MAX {
                1
            } else {
                self.last + 1
            };
            let (objects, threads) = (&self.objects, &self.threads);
            if !objects.contains_key(&self.last) && !threads.contains_key(&self.last) {
                return Some(self.last);
            }
        }
        None
    }
}

/// Functions of the device library: the one that reads the arguments, and itself.
pub(super) type Functions = (u64, u64);

/// A process of congestion control.
#[derive(Debug, Clone)]
pub(super) struct Attached {
    pub(super) id: u32,
    pub(super) dpa: Arc<Dpa>,
    pub(super) card: usize,
    pub(super) role: u8,
    pub(super) event: Functions,
    /// Address of the block of an event, or of a probe and its packet.
    pub(super) block: u64,
    /// Form and hop limit of the sender's probes.
    pub(super) probe: (u8, u8),
    pub(super) unwanted: u32,
    pub(super) state: u8,
    /// Why it has failed.
    pub(super) reason: String,
}

/// All processes of congestion control, in the order of their starts.
#[derive(Debug, Default)]
pub(super) struct Contexts {
    pub(super) all: Vec<Attached>,
    pub(super) has_thread: bool,
}

impl Contexts {
    pub(super) fn active(&self, card: usize) -> Option<&Attached> {
        self.find(card, congestion::REACTION)
    }

    /// The process that answers probes at a card.
    pub(super) fn receiver(&self, card: usize) -> Option<&Attached> {
        self.find(card, congestion::NOTIFICATION)
    }

    fn find(&self, card: usize, role: u8) -> Option<&Attached> {
        let mut of_card = self.all.iter().filter(|one| one.card == card);
        of_card.find(|one| (one.role, one.state) == (role, congestion::ACTIVE))
    }
}

/// The runner.
#[derive(Debug)]
pub(super) struct Runner {
    pub(super) process: &'static Process,
    /// Its number on the device.
    pub(super) number: u32,
    pub(super) tables: Mutex<Tables>,
    pub(super) congestion: Mutex<Contexts>,
    pub(super) socket: PathBuf,
}

impl Runner {
    pub(super) fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
