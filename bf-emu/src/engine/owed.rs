//! Asynchronous events of queues. An event is recorded as owed before it is sent. If the sender
//! dies in between, the next holder of the device's lock sends it.
//!
//! An event that its owner acknowledges is counted immediately before it is written, and owed until
//! after the write. If the sender dies in between, nobody knows whether it was written: it is sent
//! again and counted as unsure.

use std::sync::atomic::{Ordering, fence};

use super::event::{self, Event};
use crate::fabric::Locked;
use crate::fabric::objects::Subscription;

/// An object that has events, by its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Object {
    QueuePair(u32),
    CompletionQueue(u32),
    SharedQueue(u32),
}

/// The event state of an object.
struct Account<'a> {
    /// Bits of [`Event::bit`].
    owed: &'a mut u16,
    /// Those that are being written.
    telling: &'a mut u16,
    /// Events written to its channel of verbs.
    sent: &'a mut u32,
    /// Those of them that may not have been written.
    unsure: &'a mut u32,
    handle: (u32, u64),
    devx: Subscription,
}

fn account<'a>(locked: &'a mut Locked<'_>, function: usize, object: Object) -> Option<Account<'a>> {
    let tables = locked.function(function);
    Some(match object {
        Object::QueuePair(slot) => {
            let qp = tables.qps.get_mut(slot)?;
            Account {
                owed: &mut qp.owed,
                telling: &mut qp.telling,
                sent: &mut qp.events_sent,
                unsure: &mut qp.events_unsure,
                handle: (qp.event_channel, qp.user_handle),
                devx: qp.devx,
            }
        }
        Object::CompletionQueue(slot) => {
            let cq = tables.cqs.get_mut(slot)?;
            Account {
                owed: &mut cq.owed,
                telling: &mut cq.telling,
                sent: &mut cq.async_events_sent,
                unsure: &mut cq.async_events_unsure,
                handle: (cq.event_channel, cq.user_handle),
                devx: cq.devx,
            }
        }
        Object::SharedQueue(slot) => {
            let srq = tables.srqs.get_mut(slot)?;
            Account {
                owed: &mut srq.owed,
                telling: &mut srq.telling,
                sent: &mut srq.events_sent,
                unsure: &mut srq.events_unsure,
                handle: (srq.event_channel, srq.user_handle),
                devx: Subscription::default(),
            }
        }
    })
}

/// Records that the owner of an object must be notified of events. Must precede the change that the
/// events report.
pub(super) fn owe(locked: &mut Locked<'_>, function: usize, object: Object, events: u16) {
    if let Some(account) = account(locked, function, object) {
        *account.owed |= events;
        fence(Ordering::Release);
    }
}

/// Sends the events that an object owes.
pub(super) fn pay(locked: &mut Locked<'_>, function: usize, object: Object) {
    for event in Event::ALL {
        let Some(account) = account(locked, function, object) else {
            return;
        };
        if *account.owed & event.bit() == 0 {
            continue;
        }
        if *account.telling & event.bit() != 0 {
            *account.unsure = account.unsure.wrapping_add(1);
        }
        let (handle, devx) = (account.handle, account.devx);
        let change = |locked: &mut Locked<'_>, counts: bool| {
            if let Some(account) = self::account(locked, function, object) {
                *account.telling |= event.bit();
                fence(Ordering::Release);
                *account.sent = account.sent.wrapping_add(u32::from(counts));
            }
        };
        let sent = event::asynchronous(locked, function, (handle, devx), event, change);
        if let Some(account) = self::account(locked, function, object) {
            if sent == Some(false) {
                *account.sent = account.sent.wrapping_sub(1);
            }
            // A sender that dies between these two is known to have sent the event.
            *account.telling &= !event.bit();
            fence(Ordering::Release);
            *account.owed &= !event.bit();
        }
    }
}

/// Completes and sends the owed events of completion queues and shared queues after the death of a
/// holder of the lock. Events of queue pairs are sent by [`super::complete`], because the error
/// state must be entered first.
pub(super) fn recover(locked: &mut Locked<'_>, function: usize) {
    let mut from = 0;
    while let Some(slot) = locked.peek(function).cqs.next(from, |_, cq| cq.owed != 0) {
        if let Some(cq) = locked.function(function).cqs.get_mut(slot) {
            cq.overrun = true;
        }
        pay(locked, function, Object::CompletionQueue(slot));
        from = slot + 1;
    }
    from = 0;
    while let Some(slot) = locked
        .peek(function)
        .srqs
        .next(from, |_, srq| srq.owed != 0)
    {
        if let Some(srq) = locked.function(function).srqs.get_mut(slot) {
            if srq.owed & Event::SrqLimit.bit() != 0 {
                srq.limit = 0;
            }
            srq.failed |= srq.owed & Event::SrqError.bit() != 0;
        }
        pay(locked, function, Object::SharedQueue(slot));
        from = slot + 1;
    }
}
