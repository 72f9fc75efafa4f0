//! A call in progress and the handles of objects. Device commands and verbs share both.

use std::cell::Cell;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::engine::tick;
use crate::fabric::counters::{Command, Counters, Refusal};
use crate::fabric::objects::Mkey;
use crate::fabric::table::Owner;
use crate::fabric::{
    CHANNELS_MAX, CQS_MAX, Fabric, Function, Identity, Locked, MCAST_GROUP_QPS_MAX,
    MCAST_GROUPS_MAX, MKEYS_MAX, PDS_MAX, QPS_MAX, SRQS_MAX, UMEMS_MAX, klm,
};
use crate::model::profile::CostKind;
use crate::process::{Context, KeyNumbers, Process};
use crate::sys::{self, Errno};

/// Kinds of objects in handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Pd = 1,
    Cq,
    Qp,
    Srq,
    Ah,
    Mkey,
    Umem,
    Uar,
    Xrcd,
    Dm,
    Dpa,
}

impl Kind {
    const ALL: [Self; 11] = [
        Self::Pd,
        Self::Cq,
        Self::Qp,
        Self::Srq,
        Self::Ah,
        Self::Mkey,
        Self::Umem,
        Self::Uar,
        Self::Xrcd,
        Self::Dm,
        Self::Dpa,
    ];

    /// The handle of an object in a context: its kind and its index in the table.
    pub(crate) fn handle(self, slot: u32) -> u32 {
        (self as u32) << 24 | slot & 0xff_ffff
    }

    /// The index in a handle of this kind.
    pub(crate) fn slot(self, handle: u32) -> Result<u32, Errno> {
        if handle >> 24 == self as u32 {
            Ok(handle & 0xff_ffff)
        } else {
            Err(Errno(libc::ENOENT))
        }
    }

    /// The kind and the index in a handle.
    pub(crate) fn split(handle: u32) -> Result<(Self, u32), Errno> {
        let kind = Self::ALL
            .into_iter()
            .find(|kind| *kind as u32 == handle >> 24);
        kind.map(|kind| (kind, handle & 0xff_ffff))
            .ok_or(Errno(libc::ENOENT))
    }
}

/// A call in progress: its caller, its function, and the time that hardware would need.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    pub(crate) process: &'a Process,
    pub(crate) context: Context,
    /// File descriptor of the context.
    pub(crate) fd: RawFd,
    /// Signals that the caller blocks.
    pub(crate) signals: u64,
    cost_ns: Cell<u64>,
}

impl<'a> Call<'a> {
    pub(crate) fn new(process: &'a Process, context: Context, fd: RawFd, signals: u64) -> Self {
        Self {
            process,
            context,
            fd,
            signals,
            cost_ns: Cell::new(0),
        }
    }

    /// Time that hardware would need for the work so far, in nanoseconds.
    pub(crate) fn cost_ns(&self) -> u64 {
        self.cost_ns.get()
    }

    pub(crate) fn fabric(&self) -> &'static Fabric {
        self.process.fabric()
    }

    /// Takes the lock of the function's card.
    pub(crate) fn lock(&self) -> Locked<'static> {
        self.fabric().lock_function(self.function())
    }

    /// Takes the locks of the cards of all functions of which this process has objects.
    pub(crate) fn lock_used(&self) -> Locked<'static> {
        tick::uses(self.function());
        tick::lock_used(self.fabric())
    }

    pub(crate) fn function(&self) -> usize {
        self.context.function
    }

    /// Identity of the function.
    pub(crate) fn identity(&self) -> Result<&'static Identity, Errno> {
        let identity = self.fabric().identity(self.function());
        identity.ok_or(Errno(libc::ENODEV))
    }

    pub(crate) fn counters(&self) -> &'static Counters {
        self.fabric().counters(self.function())
    }

    /// Owner of the objects that this call creates.
    pub(crate) fn owner(&self) -> Result<Owner, Errno> {
        tick::uses(self.function());
        Ok(Owner {
            process: self.process.number()?,
            context: self.context.number,
        })
    }

    /// Counts a command.
    pub(crate) fn count(&self, command: Command) {
        self.counters().command(command);
    }

    /// Adds the time that hardware would need.
    pub(crate) fn costs(&self, kind: CostKind, bytes: u64) {
        let cost = self.fabric().profile().cost_ns(kind, bytes);
        self.cost_ns.set(self.cost_ns.get().saturating_add(cost));
    }

    /// The errno for a full table.
    pub(crate) fn full(&self, table: Full) -> Errno {
        self.counters().refuse(Refusal::TableFull);
        self.tell_full(table);
        Errno(libc::ENOMEM)
    }

    /// Logs a full table, once in a process: an application sees only an errno.
    pub(crate) fn tell_full(&self, table: Full) {
        static TOLD: AtomicU32 = AtomicU32::new(0);
        if TOLD.fetch_or(1 << table as u32, Ordering::Relaxed) & 1 << table as u32 != 0 {
            return;
        }
        let name = self.fabric().identity(self.function());
        let name = name.map_or("?", Identity::name);
        let (what, most) = table.limit();
        let text = format!(
            "bf-emu: {name} has the maximum number of {what}, {most} (docs/EMULATION.md, Limits); \
             'bf-emu dump' shows their owners\n"
        );
        let _ = sys::write(2, text.as_bytes());
    }

    /// Inserts an mkey into its table.
    pub(crate) fn insert_mkey(
        &self,
        function: &mut Function,
        owner: Owner,
        mkey: Mkey,
    ) -> Option<u32> {
        match self.process.key_numbers() {
            KeyNumbers::Resting => function.mkeys.insert(owner, mkey),
            KeyNumbers::Lowest => function.mkeys.insert_lowest(owner, mkey),
        }
    }
}

/// A table of a function that can be full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Full {
    Pds,
    Channels,
    Cqs,
    Srqs,
    Qps,
    Umems,
    Mkeys,
    Translations,
    Groups,
    GroupQps,
}

impl Full {
    /// Name of the objects and the largest number of them.
    fn limit(self) -> (&'static str, usize) {
        match self {
            Self::Pds => ("protection and XRC domains", PDS_MAX),
            Self::Channels => ("channels", CHANNELS_MAX),
            Self::Cqs => ("completion queues", CQS_MAX),
            Self::Srqs => ("shared receive queues", SRQS_MAX),
            Self::Qps => ("queue pairs", QPS_MAX),
            Self::Umems => ("umems", UMEMS_MAX),
            Self::Mkeys => ("mkeys", MKEYS_MAX),
            Self::Translations => ("entries of indirect mkeys", klm::ENTRIES_MAX),
            Self::Groups => ("multicast groups", MCAST_GROUPS_MAX),
            Self::GroupQps => ("queue pairs of a multicast group", MCAST_GROUP_QPS_MAX),
        }
    }
}
