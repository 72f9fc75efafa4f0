//! The kernel's side of a uverbs device: ioctls.
//!
//! [`ioctl`] copies the call. One file per class of object executes it under the device's lock.
//! Answers and errors are those of the kernel (`drivers/infiniband/core/uverbs_*.c`). An unknown
//! method returns EPROTONOSUPPORT, and libibverbs then uses the older form of the command.

mod abi;
mod address;
mod channel;
mod context;
mod cq;
mod devx;
mod dm;
mod fault;
mod ioctl;
mod memory;
mod methods;
mod multicast;
mod odp;
mod pinning;
mod qp;
mod spec;
mod srq;
mod transition;
mod write;
mod xrcd;

use std::os::fd::RawFd;

use ioctl::Ioctl;

use crate::commands::call::Call;
use crate::engine::polling;
use crate::fabric::counters::Refusal;
use crate::process::{Context, Process};
use crate::sys::{self, Errno};

/// An ioctl on the file `fd` of a context.
///
/// # Errors
/// The kernel's errno.
pub fn ioctl(
    process: &Process,
    (context, fd): (Context, RawFd),
    request: u64,
    argument: usize,
) -> Result<i32, Errno> {
    let held = sys::SignalsHeld::new();
    let call = Call::new(process, context, fd, held.before());
    let answer = carry_out(&call, request, argument);
    polling::changed();
    answer
}

fn carry_out(call: &Call<'_>, request: u64, argument: usize) -> Result<i32, Errno> {
    if request != ioctl::RDMA_VERBS_IOCTL {
        return Err(Errno(libc::ENOTTY));
    }
    let start_ns = if call.fabric().profile().is_free() {
        0
    } else {
        sys::now_ns()
    };
    let (ioctl, method) = match parse(argument) {
        Ok(parsed) => parsed,
        Err(errno) => {
            call.counters().refuse(refusal_of(errno));
            return Err(errno);
        }
    };
    let traced = fault::traced(call, &ioctl);
    let result = if call.fabric().has_failed(call.function()) && !method.releases() {
        // mlx5/core/cmd.c, `mlx5_internal_err_ret_value`: releases succeed.
        Err(Errno(libc::EIO))
    } else {
        fault::inject(call, &ioctl).unwrap_or_else(|| (method.run)(call, &ioctl))
    };
    if matches!(result, Err(Errno(libc::EOPNOTSUPP))) {
        call.counters().refuse(Refusal::UnknownIoctl);
    }
    let cost_ns = call.cost_ns();
    if cost_ns != 0 {
        sys::wait_until(start_ns.saturating_add(cost_ns));
    }
    if let Some(traced) = traced {
        traced.end(call, result);
    }
    result.map(|()| 0)
}

/// Copies a call and checks it against the attributes of its method.
fn parse(argument: usize) -> Result<(Ioctl, &'static spec::Method), Errno> {
    let ioctl = Ioctl::read(argument)?;
    let method = methods::find(ioctl.object, ioctl.method).ok_or(Errno(libc::EPROTONOSUPPORT))?;
    method.check(&ioctl)?;
    Ok((ioctl, method))
}

/// The refusal counted for a call that fails before its execution.
fn refusal_of(errno: Errno) -> Refusal {
    match errno {
        Errno(libc::EPROTONOSUPPORT | libc::EOPNOTSUPP) => Refusal::UnknownIoctl,
        _ => Refusal::BadIoctl,
    }
}
