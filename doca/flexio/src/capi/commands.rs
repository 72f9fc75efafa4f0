//! The C interface: event queues and command queues.

use super::objects::check_context;
use super::{CProcess, destroy, given, guard, put};
use crate::error::{Error, Result};
use crate::events::{Eq, EqAttr};
use crate::process::Process;
use crate::tasks::{CommandQueue, CommandQueueAttr};
use crate::thread::Thread;
use mlx5dv_sys::ibv_context;
use std::ffi::{c_int, c_void};

/// `struct flexio_eq_attr`.
#[repr(C)]
pub(crate) struct CEqAttr {
    log_eq_ring_depth: u8,
    uar_id: u32,
    thread: *const Thread,
}

/// An event queue for C, with its ring.
pub(crate) struct CEq {
    // Destroyed before its ring.
    pub(super) queue: Eq,
    ring: Ring,
}

struct Ring {
    process: Process,
    address: u64,
}

impl Drop for Ring {
    fn drop(&mut self) {
        // The end of the process has freed it otherwise.
        let _ = self.process.free(self.address);
    }
}

/// Creates an event queue with a ring of its own.
///
/// # Safety
/// The header's.
#[unsafe(no_mangle)]
unsafe extern "C" fn flexio_eq_create(
    process: *const CProcess,
    context: *mut ibv_context,
    attr: *const CEqAttr,
    eq: *mut *mut CEq,
) -> u32 {
    guard("flexio_eq_create", || {
        // SAFETY: from `flexio_process_create`, and the caller's attributes.
        let (own, attr) = unsafe {
            (
                given(process, "the process")?,
                given(attr, "the attributes")?,
            )
        };
        let process = &own.process;
        check_context(process, context)?;
        let log_entries = u32::from(attr.log_eq_ring_depth);
        let initial = Eq::initial_ring(log_entries);
        let ring = Ring {
            address: process.allocate(initial.len() as u64)?,
            process: process.clone(),
        };
        process.copy_in(ring.address, &initial)?;
        // SAFETY: NULL, or from `flexio_event_handler_get_thread`.
        let thread = unsafe { attr.thread.as_ref() };
        let attr = EqAttr {
            ring: ring.address,
            log_entries,
            thread: thread.map(Thread::number),
        };
        let queue = Eq::create(process, &attr)?;
        // SAFETY: the caller's place.
        unsafe { put(eq, Box::into_raw(Box::new(CEq { queue, ring }))) }
    })
}

/// Destroys an event queue.
///
/// # Safety
/// The header's.
#[unsafe(no_mangle)]
unsafe extern "C" fn flexio_eq_destroy(eq: *mut CEq) -> u32 {
    // SAFETY: from `flexio_eq_create`.
    unsafe { destroy("flexio_eq_destroy", eq) }
}

/// Number of an event queue.
///
/// # Safety
/// The header's.
#[unsafe(no_mangle)]
unsafe extern "C" fn flexio_eq_get_eq_num(eq: *const CEq) -> u32 {
    // SAFETY: from `flexio_eq_create`.
    unsafe { eq.as_ref() }.map_or(u32::MAX, |eq| eq.queue.number())
}

/// Address of its ring.
///
/// # Safety
/// The header's.
#[unsafe(no_mangle)]
unsafe extern "C" fn flexio_eq_get_ring_daddr(eq: *const CEq) -> u64 {
    // SAFETY: from `flexio_eq_create`.
    unsafe { eq.as_ref() }.map_or(0, |eq| eq.ring.address)
}

/// `struct flexio_cmdq_attr`.
#[repr(C)]
pub(crate) struct CmdqAttr {
    workers: c_int,
    batch_size: c_int,
    state: u32,
}

/// Creates a command queue.
///
/// # Safety
/// The header's.
#[unsafe(no_mangle)]
unsafe extern "C" fn flexio_cmdq_create(
    process: *const CProcess,
    attr: *const CmdqAttr,
    cmdq: *mut *mut CommandQueue,
) -> u32 {
    guard("flexio_cmdq_create", || {
        // SAFETY: from `flexio_process_create`, and the caller's attributes.
        let (own, attr) = unsafe {
            (
                given(process, "the process")?,
                given(attr, "the attributes")?,
            )
        };
        let (workers, batch) = (u16::try_from(attr.workers), u32::try_from(attr.batch_size));
        let (Ok(workers), Ok(batch)) = (workers, batch) else {
            return Err(Error::failed(format!(
                "{} workers with batches of {}",
                attr.workers, attr.batch_size
            )));
        };
        let attr = CommandQueueAttr {
            workers,
            batch,
            runs: match attr.state {
                0 => false,
                1 => true,
                state => return Err(Error::failed(format!("no state {state}"))),
            },
        };
        let made = CommandQueue::create(&own.process, &attr)?;
        // SAFETY: the caller's place.
        unsafe { put(cmdq, Box::into_raw(Box::new(made))) }
    })
}

/// Destroys a command queue. Tasks that run end at once.
///
/// # Safety
/// The header's.
#[unsafe(no_mangle)]
unsafe extern "C" fn flexio_cmdq_destroy(cmdq: *mut CommandQueue) -> u32 {
    // SAFETY: from `flexio_cmdq_create`.
    unsafe { destroy("flexio_cmdq_destroy", cmdq) }
}

/// Adds a task.
///
/// # Safety
/// The header's.
#[unsafe(no_mangle)]
unsafe extern "C" fn flexio_cmdq_task_add(
    cmdq: *const CommandQueue,
    function: *const c_void,
    argument: u64,
) -> u32 {
    guard("flexio_cmdq_task_add", || {
        // SAFETY: from `flexio_cmdq_create`.
        let queue = unsafe { given(cmdq, "the command queue") }?;
        let app = queue.process().app();
        let function = app
            .find(function.addr())
            .ok_or_else(|| Error::failed(format!("no function of the program {}", app.name())))?;
        if function.argument_bytes != 8 {
            return Err(Error::failed(format!(
                "{} has {} bytes of arguments: a task has one uint64_t",
                function.name, function.argument_bytes
            )));
        }
        queue.add(&function, argument)
    })
}

/// Lets the threads of a command queue take tasks.
///
/// # Safety
/// The header's.
#[unsafe(no_mangle)]
unsafe extern "C" fn flexio_cmdq_state_running(cmdq: *const CommandQueue) -> u32 {
    guard("flexio_cmdq_state_running", || {
        // SAFETY: from `flexio_cmdq_create`.
        unsafe { given(cmdq, "the command queue") }?.run()
    })
}

/// 1 if all tasks have ended, or if none can end any more.
///
/// # Safety
/// The header's.
#[unsafe(no_mangle)]
unsafe extern "C" fn flexio_cmdq_is_empty(cmdq: *const CommandQueue) -> c_int {
    let mut is_empty = true;
    guard("flexio_cmdq_is_empty", || -> Result<()> {
        // SAFETY: from `flexio_cmdq_create`.
        is_empty = unsafe { given(cmdq, "the command queue") }?.is_empty()?;
        Ok(())
    });
    is_empty.into()
}
