//! A thread that retries work that was impossible at its doorbell, such as a message whose receiver was not ready. It
//! also sends the events that moderation delays.
//!
//! Each process has one such thread, which starts with the first context, because a signal handler cannot start a
//! thread. It sleeps while it has nothing to do. Other processes read from its robust mutex whether this process lives.

use std::sync::atomic::{AtomicBool, Ordering};

use super::{complete, doorbell, wake};
use crate::fabric::objects::{Armed, Window};
use crate::fabric::{Fabric, QPN_BASE};
use crate::sys;

/// Time between tries: short against a receiver's own delays (10 us to 655 ms), long enough that
/// the thread takes a small part of a core.
const INTERVAL_NS: u64 = 50_000;
/// The thread looks for itself this often, should a wake-up be lost.
const IDLE_NS: u64 = 100_000_000;

static STARTED: AtomicBool = AtomicBool::new(false);
/// Starts the thread, if there is none yet. Not for signal handlers.
///
/// # Errors
/// The operating system gives no thread.
pub(crate) fn start(fabric: &'static Fabric, process: u32) -> std::io::Result<()> {
    if STARTED.swap(true, Ordering::AcqRel) {
        return Ok(());
    }
    wake::sleeps_on(fabric, process);
    // The thread holds all signals back, so that none of the application's handlers runs in it.
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
    // This thread lives as long as the program does: others look at it to know.
    if let Some(slot) = process.checked_sub(1) {
        fabric.live(slot);
    }
    let Some(word) = wake::word_of(fabric, process) else {
        return;
    };
    loop {
        let seen = word.load(Ordering::Acquire);
        let next_ns = tell_due(fabric, process).unwrap_or(u64::MAX);
        match try_all(fabric, process) {
            0 => sys::sleep(INTERVAL_NS),
            left_ns => sys::futex_wait(word, seen, left_ns.min(next_ns).min(IDLE_NS)),
        }
    }
}

/// Tries everything once. Returns the time until it is worth trying again: 0 if something waits for
/// another process, whose time nobody knows; longest if nothing waits.
fn try_all(fabric: &Fabric, process: u32) -> u64 {
    let mut left_ns = u64::MAX;
    for function in 0..fabric.identities().len() {
        let mut from = 0;
        loop {
            let locked = fabric.lock();
            let found = locked
                .peek(function)
                .qps
                .next(from, |owner, qp| owner.process == process && qp.pending);
            drop(locked);
            let Some(slot) = found else { break };
            from = slot + 1;
            // What is not due is left alone: a try would only find that out again.
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

/// Time until a queue pair that waits is due; None if it does not wait.
fn left_ns_of(fabric: &Fabric, function: usize, slot: u32) -> Option<u64> {
    let locked = fabric.lock();
    let qp = locked.peek(function).qps.get(slot)?;
    qp.pending
        .then(|| qp.due_ns().saturating_sub(sys::now_ns()))
}

/// Tells a process of its completion queues whose time is over. Returns the time until the next one's,
/// if there is one.
fn tell_due(fabric: &Fabric, process: u32) -> Option<u64> {
    if !fabric.has_moderated() {
        return None;
    }
    let locked = &mut fabric.lock();
    let now_ns = sys::now_ns();
    let mut next_ns: Option<u64> = None;
    for function in 0..fabric.identities().len() {
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
