//! Contexts and progress engines. RDMA alone has a context, and the DPA executes its data path.

use crate::dpa::Dpa;
use crate::error::{Code, Result, call, fail};
use crate::object::{Alone, Lease, Object, Users, check_place, find, publish, store, withdraw};
use std::sync::{Arc, Weak};

/// `doca_ctx_state_changed_callback_t`.
type Callback = unsafe extern "C" fn(u64, *mut Ctx, u32, u32);

/// `DOCA_CTX_STATE_IDLE` and `DOCA_CTX_STATE_RUNNING`.
const IDLE: u32 = 0;
const RUNNING: u32 = 2;

/// What a context starts and stops.
pub(crate) trait DataPath: std::fmt::Debug + Send + Sync {
    fn start(&self) -> Result<()>;
    fn stop(&self) -> Result<()>;
    fn is_running(&self) -> Result<bool>;
    /// The DPA executes the data path from the next start on.
    fn set_dpa(&self, dpa: Arc<Dpa>) -> Result<()>;
}

/// `struct doca_ctx`.
#[derive(Debug)]
pub struct Ctx {
    path: Weak<dyn DataPath>,
    state: Alone<State>,
}

#[derive(Debug, Default)]
struct State {
    user_data: u64,
    callback: Option<Callback>,
    engine: Option<Lease>,
}

impl Object for Ctx {
    const NAME: &'static str = "struct doca_ctx";
}

impl Ctx {
    pub(crate) fn new(path: Weak<dyn DataPath>) -> Self {
        Self {
            path,
            state: Alone::default(),
        }
    }

    fn path(&self) -> Result<Arc<dyn DataPath>> {
        match self.path.upgrade() {
            Some(path) => Ok(path),
            None => fail!(InvalidValue, "the object of this context was destroyed"),
        }
    }

    /// Tells the program that the state has changed. No lock is held.
    fn tell(self: &Arc<Self>, before: u32, after: u32) -> Result<()> {
        let (callback, user_data) = {
            let state = self.state.enter()?;
            (state.callback, state.user_data)
        };
        if let Some(callback) = callback {
            // SAFETY: the program's own function and data.
            unsafe { callback(user_data, Arc::as_ptr(self).cast_mut(), before, after) };
        }
        Ok(())
    }
}

/// `doca_ctx_start`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_ctx_start(ctx: *mut Ctx) -> Code {
    call("doca_ctx_start", || {
        let ctx = find(ctx)?;
        ctx.path()?.start()?;
        ctx.tell(IDLE, RUNNING)
    })
}

/// `doca_ctx_stop`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_ctx_stop(ctx: *mut Ctx) -> Code {
    call("doca_ctx_stop", || {
        let ctx = find(ctx)?;
        ctx.path()?.stop()?;
        ctx.tell(RUNNING, IDLE)
    })
}

/// `doca_ctx_get_state`.
///
/// # Safety
/// `state` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_ctx_get_state(ctx: *const Ctx, state: *mut u32) -> Code {
    call("doca_ctx_get_state", || {
        let runs = find(ctx)?.path()?.is_running()?;
        // SAFETY: as the caller promises.
        unsafe { store(state, if runs { RUNNING } else { IDLE }) }
    })
}

/// `doca_ctx_get_num_inflight_tasks`.
///
/// # Safety
/// `count` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_ctx_get_num_inflight_tasks(
    ctx: *const Ctx,
    count: *mut usize,
) -> Code {
    call("doca_ctx_get_num_inflight_tasks", || {
        find(ctx)?;
        // SAFETY: as the caller promises.
        unsafe { store(count, 0) }
    })
}

/// `doca_ctx_set_datapath_on_dpa`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_ctx_set_datapath_on_dpa(ctx: *mut Ctx, dpa: *mut Dpa) -> Code {
    call("doca_ctx_set_datapath_on_dpa", || {
        let dpa = find(dpa)?;
        find(ctx)?.path()?.set_dpa(dpa)
    })
}

/// `doca_ctx_set_user_data`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_ctx_set_user_data(ctx: *mut Ctx, user_data: u64) -> Code {
    call("doca_ctx_set_user_data", || {
        find(ctx)?.state.enter()?.user_data = user_data;
        Ok(())
    })
}

/// `doca_ctx_get_user_data`.
///
/// # Safety
/// `user_data` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_ctx_get_user_data(ctx: *const Ctx, user_data: *mut u64) -> Code {
    call("doca_ctx_get_user_data", || {
        let value = find(ctx)?.state.enter()?.user_data;
        // SAFETY: as the caller promises.
        unsafe { store(user_data, value) }
    })
}

/// `doca_ctx_set_state_changed_cb`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_ctx_set_state_changed_cb(ctx: *mut Ctx, callback: Option<Callback>) -> Code {
    call("doca_ctx_set_state_changed_cb", || {
        find(ctx)?.state.enter()?.callback = callback;
        Ok(())
    })
}

/// `struct doca_pe`.
#[derive(Debug, Default)]
pub struct Pe {
    users: Arc<Users>,
}

impl Object for Pe {
    const NAME: &'static str = "struct doca_pe";
}

/// `doca_pe_create`.
///
/// # Safety
/// `pe` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_pe_create(pe: *mut *mut Pe) -> Code {
    call("doca_pe_create", || {
        check_place(pe)?;
        // SAFETY: checked above.
        unsafe { pe.write(publish(&Arc::<Pe>::default())) };
        Ok(())
    })
}

/// `doca_pe_destroy`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_pe_destroy(pe: *mut Pe) -> Code {
    call("doca_pe_destroy", || {
        let pe = find(pe)?;
        pe.users.check_none()?;
        withdraw(&pe);
        Ok(())
    })
}

/// `doca_pe_progress`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_pe_progress(pe: *mut Pe) -> u8 {
    call("doca_pe_progress", || find(pe).map(drop));
    0
}

/// `doca_pe_connect_ctx`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_pe_connect_ctx(pe: *mut Pe, ctx: *mut Ctx) -> Code {
    call("doca_pe_connect_ctx", || {
        let (pe, ctx) = (find(pe)?, find(ctx)?);
        if ctx.path()?.is_running()? {
            fail!(
                BadState,
                "the context runs: connect it before doca_ctx_start"
            );
        }
        let mut state = ctx.state.enter()?;
        if state.engine.is_some() {
            fail!(InUse, "the context has a progress engine already");
        }
        state.engine = Some(pe.users.lease(Ctx::NAME));
        Ok(())
    })
}

/// `doca_pe_get_num_inflight_tasks`.
///
/// # Safety
/// `count` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_pe_get_num_inflight_tasks(pe: *const Pe, count: *mut usize) -> Code {
    call("doca_pe_get_num_inflight_tasks", || {
        find(pe)?;
        // SAFETY: as the caller promises.
        unsafe { store(count, 0) }
    })
}
