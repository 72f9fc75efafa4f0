//! Notification completions: what device code activates a thread by.

use super::thread::Thread;
use super::{Block, Dpa};
use crate::error::{Code, Result, call, fail};
use crate::object::{Alone, Lease, Object, check_place, find, getters, publish, withdraw};
use dpa_dev::objects::{Kind, notification};
use std::sync::Arc;

/// `struct doca_dpa_notification_completion`.
#[derive(Debug)]
pub struct Notification {
    dpa: Arc<Dpa>,
    thread: Arc<Thread>,
    live: Alone<Option<(Block, Lease)>>,
    _lease: Lease,
}

impl Object for Notification {
    const NAME: &'static str = "struct doca_dpa_notification_completion";
}

/// `doca_dpa_notification_completion_create`.
///
/// # Safety
/// `completion` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_dpa_notification_completion_create(
    dpa: *mut Dpa,
    thread: *mut Thread,
    completion: *mut *mut Notification,
) -> Code {
    call("doca_dpa_notification_completion_create", || {
        check_place(completion)?;
        let (dpa, thread) = (find(dpa)?, find(thread)?);
        if !Arc::ptr_eq(&dpa.core()?, &thread.dpa.core()?) {
            fail!(NotPermitted, "the thread belongs to another DPA context");
        }
        let created = Arc::new(Notification {
            _lease: dpa.users.lease(Notification::NAME),
            dpa,
            thread,
            live: Alone::new(None),
        });
        // SAFETY: checked above.
        unsafe { completion.write(publish(&created)) };
        Ok(())
    })
}

/// `doca_dpa_notification_completion_destroy`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_dpa_notification_completion_destroy(completion: *mut Notification) -> Code {
    call("doca_dpa_notification_completion_destroy", || {
        let completion = find(completion)?;
        *completion.live.enter()? = None;
        withdraw(&completion);
        Ok(())
    })
}

getters! {
    Notification;
    doca_dpa_notification_completion_get_thread: *const Thread = |completion| Arc::as_ptr(&completion.thread);
    doca_dpa_notification_completion_get_dpa_handle: u64 = |completion| started(&*completion.live.enter()?)?;
}

/// `doca_dpa_notification_completion_start`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_dpa_notification_completion_start(completion: *mut Notification) -> Code {
    call("doca_dpa_notification_completion_start", || {
        let completion = find(completion)?;
        let mut live = completion.live.enter()?;
        if live.is_some() {
            fail!(BadState, "the notification completion is started");
        }
        let number = u64::from(completion.thread.number()?);
        let words = [(notification::THREAD, number)];
        let core = completion.dpa.core()?;
        let block = Block::object(&core, Kind::Notification, notification::WORDS, &words)?;
        *live = Some((block, completion.thread.users.lease(Notification::NAME)));
        Ok(())
    })
}

/// `doca_dpa_notification_completion_stop`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_dpa_notification_completion_stop(completion: *mut Notification) -> Code {
    call("doca_dpa_notification_completion_stop", || {
        let completion = find(completion)?;
        let mut live = completion.live.enter()?;
        if live.take().is_none() {
            fail!(BadState, "the notification completion is not started");
        }
        Ok(())
    })
}

fn started(live: &Option<(Block, Lease)>) -> Result<u64> {
    match live {
        Some((block, _)) => Ok(block.address()),
        None => fail!(
            BadState,
            "the notification completion is not started: call doca_dpa_notification_completion_start first"
        ),
    }
}
