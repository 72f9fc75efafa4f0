//! The kernel's side of a uverbs device: ioctls.
//!
//! [`ioctl`] copies a call in; one file per class of object carries it out under the device's lock.
//! Answers and errors are those of the kernel (`drivers/infiniband/core/uverbs_*.c`): what it does
//! not know is EPROTONOSUPPORT, on which libibverbs falls back to the older form of the command.

mod abi;
mod channel;
pub(crate) mod clock;
mod context;
mod cq;
mod devx;
mod fault;
mod ioctl;
mod memory;
mod qp;
mod srq;
mod write;
mod xrcd;

use std::cell::Cell;

use abi::{device, object};
use ioctl::Ioctl;
pub(crate) use ioctl::low32;
pub(crate) use qp::{destination, reset};

use crate::fabric::table::Owner;
use crate::fabric::{Fabric, Locked, NUMBER_BASE};
use crate::process::{Context, Process};
use crate::profile::CostKind;
use crate::stats::{Command, Counters, Refusal};
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
}

impl Kind {
    const ALL: [Self; 9] = [
        Self::Pd,
        Self::Cq,
        Self::Qp,
        Self::Srq,
        Self::Ah,
        Self::Mkey,
        Self::Umem,
        Self::Uar,
        Self::Xrcd,
    ];

    /// The handle of an object in a context: its kind and its place in the table.
    pub(crate) fn handle(self, slot: u32) -> u32 {
        (self as u32) << 24 | slot & 0xff_ffff
    }

    /// The place that a handle of this kind names.
    pub(crate) fn slot(self, handle: u32) -> Result<u32, Errno> {
        if handle >> 24 == self as u32 {
            Ok(handle & 0xff_ffff)
        } else {
            Err(Errno(libc::ENOENT))
        }
    }

    /// Kind and place that a handle names.
    pub(crate) fn split(handle: u32) -> Result<(Self, u32), Errno> {
        let kind = Self::ALL
            .into_iter()
            .find(|kind| *kind as u32 == handle >> 24);
        kind.map(|kind| (kind, handle & 0xff_ffff))
            .ok_or(Errno(libc::ENOENT))
    }
}

/// A call in progress: who makes it, on what, and how long hardware would take for it.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    pub(crate) process: &'a Process,
    pub(crate) context: Context,
    cost_ns: Cell<u64>,
}

impl Call<'_> {
    pub(crate) fn fabric(&self) -> &'static Fabric {
        self.process.fabric()
    }

    pub(crate) fn lock(&self) -> Locked<'static> {
        self.fabric().lock()
    }

    pub(crate) fn function(&self) -> usize {
        self.context.function
    }

    pub(crate) fn counters(&self) -> &'static Counters {
        self.fabric().counters(self.function())
    }

    /// Owner of what this call makes.
    pub(crate) fn owner(&self) -> Result<Owner, Errno> {
        Ok(Owner {
            process: self.process.number()?,
            context: self.context.number,
        })
    }

    /// Counts a command.
    pub(crate) fn count(&self, command: Command) {
        self.counters().command(command);
    }

    /// Notes that hardware would take time for the call.
    pub(crate) fn costs(&self, kind: CostKind, bytes: u64) {
        let cost = self.fabric().profile().cost_ns(kind, bytes);
        self.cost_ns.set(self.cost_ns.get().saturating_add(cost));
    }

    /// The answer to a table that is full.
    pub(crate) fn full(&self) -> Errno {
        self.counters().refuse(Refusal::TableFull);
        Errno(libc::ENOMEM)
    }
}

/// Number that the device gives to the object in `slot` of a table other than those of mkeys and
/// queue pairs.
pub(crate) fn number_of(slot: u32) -> u32 {
    slot + NUMBER_BASE
}

/// Slot of such a number.
pub(crate) fn slot_of_number(number: u32) -> Option<u32> {
    number.checked_sub(NUMBER_BASE)
}

/// An ioctl on a uverbs device.
pub(crate) fn ioctl(
    process: &Process,
    context: Context,
    request: u64,
    argument: usize,
) -> Result<i32, Errno> {
    if request != ioctl::RDMA_VERBS_IOCTL {
        return Err(Errno(libc::ENOTTY));
    }
    let start_ns = if process.fabric().profile().is_free() {
        0
    } else {
        sys::now_ns()
    };
    let call = Call {
        process,
        context,
        cost_ns: Cell::new(0),
    };
    let ioctl = Ioctl::read(argument)?;
    let traced = fault::traced(&call, &ioctl);
    let result = fault::inject(&call, &ioctl).unwrap_or_else(|| dispatch(&call, &ioctl));
    if matches!(result, Err(Errno(libc::EPROTONOSUPPORT | libc::EOPNOTSUPP))) {
        call.counters().refuse(Refusal::UnknownIoctl);
    }
    let cost_ns = call.cost_ns.get();
    if cost_ns != 0 {
        sys::wait_until(start_ns.saturating_add(cost_ns));
    }
    if let Some(traced) = traced {
        traced.end(&call, result);
    }
    result.map(|()| 0)
}

fn dispatch(call: &Call<'_>, ioctl: &Ioctl) -> Result<(), Errno> {
    const CREATE: u16 = 0;
    const DESTROY: u16 = 1;
    const QUERY_MR: u16 = 3;
    const DRIVER_CREATE: u16 = abi::DRIVER;
    const DRIVER_DESTROY: u16 = abi::DRIVER + 1;
    match (ioctl.object, ioctl.method) {
        (object::DEVICE, device::INVOKE_WRITE) => write::invoke(call, ioctl),
        (object::DEVICE, device::QUERY_PORT) => context::query_port(call, ioctl),
        (object::DEVICE, device::GET_CONTEXT) => context::get_context(call, ioctl),
        (object::DEVICE, device::QUERY_CONTEXT) => context::query_context(call, ioctl),
        (object::DEVICE, device::QUERY_GID_TABLE) => context::query_gid_table(call, ioctl),
        (object::DEVICE, device::QUERY_GID_ENTRY) => context::query_gid_entry(call, ioctl),
        (object::ASYNC_EVENT, CREATE) => channel::create_async(call, ioctl),
        (object::PD, 0) => memory::dealloc_pd(call, ioctl),
        (object::PD, abi::DRIVER) => memory::query_pd(call, ioctl),
        (object::XRCD, 0) => xrcd::close(call, ioctl),
        (object::AH, 0) => context::destroy_ah(ioctl),
        (object::MR, QUERY_MR) => memory::query_mr(call, ioctl),
        (object::MR, 1) => memory::dereg_mr(call, ioctl),
        (object::MW, 0) => memory::dealloc_mw(call, ioctl),
        (object::CQ, CREATE) => cq::create(call, ioctl),
        (object::CQ, DESTROY) => cq::destroy(call, ioctl),
        (object::QP, CREATE) => qp::create(call, ioctl),
        (object::QP, DESTROY) => qp::destroy(call, ioctl),
        (object::SRQ, CREATE) => srq::create(call, ioctl),
        (object::SRQ, DESTROY) => srq::destroy(call, ioctl),
        (object::UAR, DRIVER_CREATE) => context::alloc_uar(call, ioctl),
        (object::UAR, DRIVER_DESTROY) => context::dealloc_uar(call, ioctl),
        (object::DEVX, method) => devx::device(call, ioctl, method),
        (object::DEVX_OBJ, method) => devx::object(call, ioctl, method),
        (object::DEVX_UMEM, DRIVER_CREATE) => memory::reg_umem(call, ioctl),
        (object::DEVX_UMEM, DRIVER_DESTROY) => memory::dereg_umem(call, ioctl),
        (object::DEVX_ASYNC_CMD_FD | object::DEVX_ASYNC_EVENT_FD, DRIVER_CREATE) => {
            channel::create_devx(call, ioctl)
        }
        _ => Err(Errno(libc::EPROTONOSUPPORT)),
    }
}
