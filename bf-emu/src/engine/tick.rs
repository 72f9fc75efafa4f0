//! A thread that retries work that was impossible at its doorbell, such as a message whose receiver
//! was not ready. It also sends the events that moderation delays.
//!
//! Each process has one such thread, which starts with the first context, because a signal handler
//! cannot start a thread. It sleeps while it has nothing to do. Other processes read from its
//! robust mutex whether this process lives.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::{complete, doorbell, rdma_cm, wake};
use crate::fabric::cards::Cards;
use crate::fabric::objects::{Armed, Window};
use crate::fabric::{Fabric, Locked, QPN_BASE};
use crate::sys;

/// Time between tries. It is short against a receiver's own delays (10 us to 655 ms), and long
/// enough that the thread uses a small part of a core.
const INTERVAL_NS: u64 = 50_000;
/// Longest sleep, in case a wake-up is lost.
const IDLE_NS: u64 = 100_000_000;

/// Shortest time between two looks at the connection manager's deadlines.
const CONNECTIONS_NS: u64 = 10_000_000;

static STARTED: AtomicBool = AtomicBool::new(false);
/// The functions of which this process has objects, a bit for each.
static USED: AtomicU64 = AtomicU64::new(0);
/// The process has opened the connection manager, whose deadlines the thread looks after.
static CONNECTS: AtomicBool = AtomicBool::new(false);

/// Looks after the connection manager's deadlines too, from now on.
pub(crate) fn connects() {
    CONNECTS.store(true, Ordering::Relaxed);
}

/// Looks after the objects of a function too, from now on.
pub(crate) fn uses(function: usize) {
    let bit =
        u32::try_from(function).map_or(0, |function| 1_u64.checked_shl(function).unwrap_or(0));
    if USED.load(Ordering::Relaxed) & bit != bit {
        USED.fetch_or(bit, Ordering::Relaxed);
    }
}

/// The functions of which this process has objects. The locks of other cards are left alone.
fn used(fabric: &Fabric) -> impl Iterator<Item = usize> {
    let used = USED.load(Ordering::Relaxed);
    (0..fabric.identities().len()).filter(move |function| used >> (function % 64) & 1 == 1)
}

/// Takes the locks of the cards of all functions of which this process has objects.
pub(crate) fn lock_used(fabric: &Fabric) -> Locked<'_> {
    let cards = used(fabric).fold(Cards::default(), |cards, one| {
        cards.and(fabric.card_of(one))
    });
    fabric.lock_cards(cards)
}

/// Starts the thread, if it does not exist. Not for signal handlers.
///
/// # Errors
/// The operating system cannot create a thread.
pub(crate) fn start(fabric: &'static Fabric, process: u32) -> std::io::Result<()> {
    if STARTED.swap(true, Ordering::AcqRel) {
        return Ok(());
    }
    wake::sleeps_on(fabric, process);
    // All signals are blocked in this thread, so none of the application's handlers runs in it.
    let held = sys::SignalsHeld::new();
    let thread = std::thread::Builder::new()
        .name("bf-emu".to_owned())
        .stack_size(128 * 1024)
        .spawn(move || run(fabric, process));
    drop(held);
    match thread {
        Ok(_) => Ok(()),
        Err(error) => {
            STARTED.store(false, Ordering::Release);
            Err(error)
        }
    }
}

/// The child of a fork has no such thread.
pub(crate) fn after_fork_in_child() {
    STARTED.store(false, Ordering::Release);
}

fn run(fabric: &'static Fabric, process: u32) {
    // This thread lives as long as the program. Other processes use it to detect the program's end.
    if let Some(slot) = process.checked_sub(1) {
        fabric.live(slot);
    }
    let Some(word) = wake::word_of(fabric, process) else {
        return;
    };
    let mut connections_at_ns = 0;
    loop {
        let seen = word.load(Ordering::Acquire);
        let now_ns = sys::now_ns();
        if CONNECTS.load(Ordering::Relaxed) && now_ns >= connections_at_ns {
            rdma_cm::expire(fabric, process);
            connections_at_ns = now_ns.saturating_add(CONNECTIONS_NS);
        }
        let next_ns = tell_due(fabric, process).unwrap_or(u64::MAX);
        match try_all(fabric, process) {
            0 => sys::sleep(INTERVAL_NS),
            left_ns => sys::futex_wait(word, seen, left_ns.min(next_ns).min(IDLE_NS)),
        }
    }
}

/// Tries everything once. Returns the time until the next try: 0 if a request waits for another
/// process, because that time is unknown; the longest time if nothing waits.
fn try_all(fabric: &Fabric, process: u32) -> u64 {
    let mut left_ns = u64::MAX;
    for function in used(fabric) {
        let mut from = 0;
        loop {
            let locked = fabric.lock_function(function);
            let found = locked
                .peek(function)
                .qps
                .next(from, |owner, qp| owner.process == process && qp.pending);
            drop(locked);
            let Some(slot) = found else { break };
            from = slot + 1;
            // A queue pair that is not due is skipped, because a try would fail.
            match left_ns_of(fabric, function, slot) {
                Some(left @ 1..) => {
                    left_ns = left_ns.min(left);
                    continue;
                }
                Some(0) => {}
                None => continue,
            }
            doorbell::run(fabric, function, slot + QPN_BASE);
            left_ns = left_ns.min(left_ns_of(fabric, function, slot).unwrap_or(u64::MAX));
        }
    }
    left_ns
}

/// Time until a waiting queue pair is due; None if it does not wait.
fn left_ns_of(fabric: &Fabric, function: usize, slot: u32) -> Option<u64> {
    let locked = fabric.lock_function(function);
    let qp = locked.peek(function).qps.get(slot)?;
    qp.pending
        .then(|| qp.due_ns().saturating_sub(sys::now_ns()))
}

/// Notifies a process of its completion queues whose window has ended. Returns the time until the
/// end of the next window, if there is one.
fn tell_due(fabric: &Fabric, process: u32) -> Option<u64> {
    if !fabric.has_moderated() {
        return None;
    }
    let now_ns = sys::now_ns();
    let mut next_ns: Option<u64> = None;
    for function in used(fabric) {
        let locked = &mut fabric.lock_function(function);
        let mut from = 0;
        while let Some(slot) = locked.peek(function).cqs.next(from, |owner, cq| {
            owner.process == process && cq.window.due_ns != 0
        }) {
            from = slot + 1;
            let Some(cq) = locked.function(function).cqs.get_mut(slot) else {
                continue;
            };
            if cq.window.due_ns > now_ns {
                let left_ns = cq.window.due_ns - now_ns;
                next_ns = Some(next_ns.map_or(left_ns, |next| next.min(left_ns)));
                continue;
            }
            cq.window = Window::default();
            if cq.armed != Armed::No {
                complete::tell_armed(locked, function, slot);
            }
        }
    }
    next_ns
}
