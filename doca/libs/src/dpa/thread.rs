//! Threads that completions activate.

use super::affinity::Affinity;
use super::{Core, Dpa, failed};
use crate::error::{Code, Fault, Result, call, fail};
use crate::object::{
    Alone, Guard, Lease, Object, Users, check_place, find, publish, store, withdraw,
};
use flexio::ThreadAttr;
use std::sync::Arc;

/// `struct doca_dpa_thread`.
#[derive(Debug)]
pub struct Thread {
    pub(super) dpa: Arc<Dpa>,
    state: Alone<State>,
    /// Completions that activate it.
    pub(super) users: Arc<Users>,
    _lease: Lease,
}

#[derive(Debug, Default)]
struct State {
    /// The thread of the device, when it is started.
    live: Option<flexio::Thread>,
    stub: usize,
    argument: u64,
    local_storage: u64,
    affinity: Option<Arc<Affinity>>,
}

impl Object for Thread {
    const NAME: &'static str = "struct doca_dpa_thread";
}

impl Thread {
    /// The settings, which do not change after the start.
    fn settings(&self) -> Result<Guard<'_, State>> {
        let state = self.state.enter()?;
        if state.live.is_some() {
            fail!(
                BadState,
                "the thread is started: make its settings before doca_dpa_thread_start"
            );
        }
        Ok(state)
    }

    /// Number of the started thread on the device.
    pub(super) fn number(&self) -> Result<u32> {
        match &self.state.enter()?.live {
            Some(live) => Ok(live.number()),
            None => Err(not_started()),
        }
    }
}

fn not_started() -> Fault {
    Fault::new(
        Code::BadState,
        "the thread is not started: call doca_dpa_thread_start first",
    )
}

/// `doca_dpa_thread_create`.
///
/// # Safety
/// `thread` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_dpa_thread_create(dpa: *mut Dpa, thread: *mut *mut Thread) -> Code {
    call("doca_dpa_thread_create", || {
        check_place(thread)?;
        let dpa = find(dpa)?;
        dpa.core()?;
        let created = Arc::new(Thread {
            _lease: dpa.users.lease(Thread::NAME),
            dpa,
            state: Alone::default(),
            users: Arc::default(),
        });
        // SAFETY: checked above.
        unsafe { thread.write(publish(&created)) };
        Ok(())
    })
}

/// `doca_dpa_thread_destroy`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_dpa_thread_destroy(thread: *mut Thread) -> Code {
    call("doca_dpa_thread_destroy", || {
        let thread = find(thread)?;
        let mut state = thread.state.enter()?;
        thread.users.check_none()?;
        state.live = None;
        withdraw(&thread);
        Ok(())
    })
}

/// `doca_dpa_thread_set_func_arg`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_dpa_thread_set_func_arg(thread: *mut Thread, func: usize, arg: u64) -> Code {
    call("doca_dpa_thread_set_func_arg", || {
        let thread = find(thread)?;
        let mut state = thread.settings()?;
        let function = thread.dpa.core()?.function(func)?;
        if !matches!(function.argument_bytes, 0 | 8) {
            fail!(
                InvalidValue,
                "the kernel {} has {} bytes of arguments: the kernel of a thread has one uint64_t or none",
                function.name,
                function.argument_bytes
            );
        }
        (state.stub, state.argument) = (func, arg);
        Ok(())
    })
}

/// `doca_dpa_thread_get_func_arg`.
///
/// # Safety
/// The places are NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_dpa_thread_get_func_arg(
    thread: *mut Thread,
    func: *mut usize,
    arg: *mut u64,
) -> Code {
    call("doca_dpa_thread_get_func_arg", || {
        let thread = find(thread)?;
        let state = thread.state.enter()?;
        // SAFETY: as the caller promises.
        unsafe {
            store(func, state.stub)?;
            store(arg, state.argument)
        }
    })
}

/// `doca_dpa_thread_set_local_storage`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_dpa_thread_set_local_storage(thread: *mut Thread, address: u64) -> Code {
    call("doca_dpa_thread_set_local_storage", || {
        find(thread)?.settings()?.local_storage = address;
        Ok(())
    })
}

/// `doca_dpa_thread_get_local_storage`.
///
/// # Safety
/// `address` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_dpa_thread_get_local_storage(
    thread: *mut Thread,
    address: *mut u64,
) -> Code {
    call("doca_dpa_thread_get_local_storage", || {
        let value = find(thread)?.state.enter()?.local_storage;
        // SAFETY: as the caller promises.
        unsafe { store(address, value) }
    })
}

/// `doca_dpa_thread_set_affinity`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_dpa_thread_set_affinity(
    thread: *mut Thread,
    affinity: *mut Affinity,
) -> Code {
    call("doca_dpa_thread_set_affinity", || {
        let affinity = find(affinity)?;
        find(thread)?.settings()?.affinity = Some(affinity);
        Ok(())
    })
}

/// `doca_dpa_thread_get_affinity`.
///
/// # Safety
/// `affinity` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_dpa_thread_get_affinity(
    thread: *mut Thread,
    affinity: *mut *const Affinity,
) -> Code {
    call("doca_dpa_thread_get_affinity", || {
        let of = find(thread)?.state.enter()?.affinity.clone();
        let pointer = of.map_or(std::ptr::null(), |of| Arc::as_ptr(&of));
        // SAFETY: as the caller promises.
        unsafe { store(affinity, pointer) }
    })
}

fn create(core: &Core, state: &State) -> Result<flexio::Thread> {
    let function = core.function(state.stub)?;
    let unit = match &state.affinity {
        Some(affinity) => *affinity.unit.enter()?,
        None => None,
    };
    let attributes = ThreadAttr {
        function: core.process().symbol(&function.name).map_err(failed)?,
        argument: state.argument,
        local_storage: state.local_storage,
        affinity: unit.map_or(flexio::Affinity::None, flexio::Affinity::Unit),
    };
    flexio::Thread::create(core.process(), &attributes).map_err(failed)
}

/// `doca_dpa_thread_start`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_dpa_thread_start(thread: *mut Thread) -> Code {
    call("doca_dpa_thread_start", || {
        let thread = find(thread)?;
        let mut state = thread.settings()?;
        if state.stub == 0 {
            fail!(
                BadConfig,
                "the thread has no kernel: call doca_dpa_thread_set_func_arg first"
            );
        }
        let core = thread.dpa.core()?;
        state.live = Some(create(&core, &state)?);
        Ok(())
    })
}

/// `doca_dpa_thread_stop`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_dpa_thread_stop(thread: *mut Thread) -> Code {
    call("doca_dpa_thread_stop", || {
        let thread = find(thread)?;
        let mut state = thread.state.enter()?;
        thread.users.check_none()?;
        match state.live.take() {
            Some(_) => Ok(()),
            None => Err(not_started()),
        }
    })
}

/// `doca_dpa_thread_run`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_dpa_thread_run(thread: *mut Thread) -> Code {
    call("doca_dpa_thread_run", || {
        let thread = find(thread)?;
        let state = thread.state.enter()?;
        match &state.live {
            Some(live) => live.run(state.argument).map_err(failed),
            None => Err(not_started()),
        }
    })
}
