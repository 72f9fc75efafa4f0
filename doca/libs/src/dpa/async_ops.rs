//! Asynchronous operations of threads: a queue pair that is connected to itself.

use super::completion::{Queue, Sizes};
use super::{Block, Completion, Dpa};
use crate::error::{Code, Result, call, fail};
use crate::object::{
    Alone, Lease, Object, check_count, check_place, find, getters, publish, withdraw,
};
use crate::path;
use dpa_dev::objects::{Kind, async_ops};
use std::sync::Arc;

/// Most operations at a time.
const ELEMENTS_MAX: u32 = 32_768;

/// `struct doca_dpa_async_ops`.
#[derive(Debug)]
pub struct AsyncOps {
    dpa: Arc<Dpa>,
    elements: u32,
    user_data: u64,
    state: Alone<State>,
    _lease: Lease,
}

#[derive(Debug, Default)]
struct State {
    completion: Option<(Arc<Completion>, Lease)>,
    live: Option<(Block, Queue)>,
}

impl Object for AsyncOps {
    const NAME: &'static str = "struct doca_dpa_async_ops";
}

/// `doca_dpa_async_ops_create`.
///
/// # Safety
/// `place` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_dpa_async_ops_create(
    dpa: *mut Dpa,
    elements: u32,
    user_data: u64,
    place: *mut *mut AsyncOps,
) -> Code {
    call("doca_dpa_async_ops_create", || {
        check_place(place)?;
        let dpa = find(dpa)?;
        dpa.core()?;
        check_count(elements, ELEMENTS_MAX, "asynchronous operations")?;
        if u32::try_from(user_data).is_err() {
            fail!(
                InvalidValue,
                "the user data {user_data:#x} has more than 32 bits, and completions have 32"
            );
        }
        let created = Arc::new(AsyncOps {
            _lease: dpa.users.lease(AsyncOps::NAME),
            dpa,
            elements,
            user_data,
            state: Alone::default(),
        });
        // SAFETY: checked above.
        unsafe { place.write(publish(&created)) };
        Ok(())
    })
}

/// `doca_dpa_async_ops_destroy`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_dpa_async_ops_destroy(async_ops: *mut AsyncOps) -> Code {
    call("doca_dpa_async_ops_destroy", || {
        let ops = find(async_ops)?;
        let mut state = ops.state.enter()?;
        *state = State::default();
        withdraw(&ops);
        Ok(())
    })
}

getters! {
    AsyncOps;
    doca_dpa_async_ops_get_queue_size: u32 = |ops| ops.elements;
    doca_dpa_async_ops_get_user_data: u64 = |ops| ops.user_data;
    doca_dpa_async_ops_get_dpa_handle: u64 = |ops| ops.handle()?;
}

/// `doca_dpa_async_ops_attach`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_dpa_async_ops_attach(
    async_ops: *mut AsyncOps,
    completion: *mut Completion,
) -> Code {
    call("doca_dpa_async_ops_attach", || {
        let (ops, completion) = (find(async_ops)?, find(completion)?);
        let mut state = ops.state.enter()?;
        if state.live.is_some() {
            fail!(BadState, "the asynchronous operations are started");
        }
        if !Arc::ptr_eq(&ops.dpa.core()?, &completion.core()?) {
            fail!(
                NotPermitted,
                "the completion queue belongs to another DPA context"
            );
        }
        let lease = completion.users.lease(AsyncOps::NAME);
        state.completion = Some((completion, lease));
        Ok(())
    })
}

impl AsyncOps {
    /// The handle of started operations.
    fn handle(&self) -> Result<u64> {
        match &self.state.enter()?.live {
            Some((block, _)) => Ok(block.address()),
            None => fail!(
                BadState,
                "the asynchronous operations are not started: call doca_dpa_async_ops_start first"
            ),
        }
    }

    fn start(&self, completion: &Arc<Completion>) -> Result<(Block, Queue)> {
        let core = self.dpa.core()?;
        let sizes = Sizes {
            send: self.elements,
            receive: None,
            shared: None,
            user_data: u32::try_from(self.user_data).unwrap_or_default(),
        };
        let queue = Queue::new(completion, sizes)?;
        let own = path::End::of(core.dev(), queue.qp().number(), 0)?;
        path::prepare(queue.qp(), 0)?;
        path::connect(queue.qp(), core.dev(), &own, path::Settings::default())?;
        queue.set_connected()?;
        let words = [
            (async_ops::QUEUE, queue.address()),
            (async_ops::COMPLETION, completion.handle()?),
        ];
        let handle = Block::object(&core, Kind::AsyncOps, async_ops::WORDS, &words)?;
        Ok((handle, queue))
    }
}

/// `doca_dpa_async_ops_start`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_dpa_async_ops_start(async_ops: *mut AsyncOps) -> Code {
    call("doca_dpa_async_ops_start", || {
        let ops = find(async_ops)?;
        let mut state = ops.state.enter()?;
        if state.live.is_some() {
            fail!(BadState, "the asynchronous operations are started already");
        }
        let Some((completion, _)) = &state.completion else {
            fail!(
                BadConfig,
                "the asynchronous operations have no completion queue: call doca_dpa_async_ops_attach first"
            );
        };
        let live = ops.start(completion)?;
        state.live = Some(live);
        Ok(())
    })
}

/// `doca_dpa_async_ops_stop`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_dpa_async_ops_stop(async_ops: *mut AsyncOps) -> Code {
    call("doca_dpa_async_ops_stop", || {
        let ops = find(async_ops)?;
        if ops.state.enter()?.live.take().is_none() {
            fail!(BadState, "the asynchronous operations are not started");
        }
        Ok(())
    })
}
