//! Completion moderation: delays the event of a completion queue until a number of entries exist,
//! or until a time after the first of them. The entries themselves are never delayed.
//!
//! A window opens with the first entry that the queue's owner waits for. The writer of the last
//! entry of the window sends the event. If that entry does not come, the owner's own thread
//! ([`super::tick`]) sends the event at the end of the window. The process that opens the window
//! wakes this thread. If that process dies first, the thread finds the window by itself, ten times
//! a second. A queue without moderation uses none of this.

use super::wake;
use crate::fabric::Locked;
use crate::fabric::objects::{Cq, Moderation, Window};

impl Moderation {
    /// Longest time in microseconds: the field has 12 bits (PRM, completion queue context; the
    /// kernel's `MLX5_MAX_CQ_PERIOD`).
    pub const PERIOD_US_MAX: u16 = (1 << 12) - 1;
    /// Largest number of entries (the kernel's `MLX5_MAX_CQ_COUNT`).
    pub const COUNT_MAX: u16 = u16::MAX;

    /// True if events are delayed. The PRM defines zero in either value as no moderation. A count
    /// of one never delays an event.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.count > 1 && self.period_us != 0
    }
}

/// The effect of an entry on the event of its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The owner is notified now.
    Tell,
    /// The owner is notified later; its thread knows of the window.
    Hold,
    /// The owner is notified later; its thread must be woken, because the window is new.
    Open,
}

/// Decides about the event after an entry for which the queue is armed. `solicited` says that the
/// sender requested an event. All values are absolute, so a repetition changes nothing.
pub(super) fn entry(cq: &mut Cq, solicited: bool, now_ns: impl Fn() -> u64) -> Verdict {
    if !cq.moderation.is_on() || solicited && cq.moderation.solicited_breaks {
        return Verdict::Tell;
    }
    let opens = cq.window.due_ns == 0;
    if opens {
        cq.window = Window {
            due_ns: now_ns().saturating_add(period_ns(cq)).max(1),
            from: cq.produced.wrapping_sub(1),
        };
    }
    verdict(cq, opens)
}

/// Decides about the event when the owner arms the queue while entries beyond `consumed` are
/// unread.
pub(super) fn armed_late(cq: &mut Cq, consumed: u32, now_ns: u64) -> Verdict {
    if !cq.moderation.is_on() {
        return Verdict::Tell;
    }
    let opens = cq.window.due_ns == 0;
    let due_ns = match opens {
        true => now_ns.saturating_add(period_ns(cq)).max(1),
        false => cq.window.due_ns,
    };
    cq.window = Window {
        due_ns,
        from: consumed,
    };
    verdict(cq, opens)
}

fn verdict(cq: &Cq, opens: bool) -> Verdict {
    let held = cq.produced.wrapping_sub(cq.window.from);
    if held >= u32::from(cq.moderation.count) {
        Verdict::Tell
    } else if opens {
        Verdict::Open
    } else {
        Verdict::Hold
    }
}

fn period_ns(cq: &Cq) -> u64 {
    u64::from(cq.moderation.period_us) * 1000
}

/// Changes the moderation of a completion queue. An event that is delayed now is sent at once.
pub(crate) fn set(locked: &mut Locked<'_>, function: usize, slot: u32, moderation: Moderation) {
    if moderation.is_on() {
        locked.fabric().moderates();
    }
    let cqs = &mut locked.function(function).cqs;
    let owner = cqs.owner(slot);
    let Some(cq) = cqs.get_mut(slot) else { return };
    cq.moderation = moderation;
    if cq.window.due_ns != 0 {
        cq.window.due_ns = 1;
        if let Some(owner) = owner {
            wake::wake_of(locked.fabric(), owner.process);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks a queue with these values: its entries, each with its time, and the decision about
    /// the event.
    #[track_caller]
    fn check(count: u16, period_us: u16, entries: &[(u64, bool, Verdict)]) {
        let mut cq = Cq {
            moderation: Moderation {
                count,
                period_us,
                solicited_breaks: true,
            },
            produced: u32::MAX - 1,
            ..Cq::default()
        };
        for (now_ns, solicited, expect) in entries {
            cq.produced = cq.produced.wrapping_add(1);
            let verdict = entry(&mut cq, *solicited, || *now_ns);
            assert_eq!(verdict, *expect, "{now_ns}: {cq:?}");
            let again = entry(&mut cq, *solicited, || *now_ns);
            let known = if verdict == Verdict::Open {
                Verdict::Hold
            } else {
                verdict
            };
            assert_eq!(again, known, "a second time: {cq:?}");
        }
    }

    #[test]
    fn so_many_entries_or_a_solicited_one() {
        use Verdict::{Hold, Open, Tell};
        check(
            3,
            10,
            &[(5, false, Open), (6, false, Hold), (9, false, Tell)],
        );
        check(3, 10, &[(5, false, Open), (6, true, Tell)]);
        for (count, period_us) in [(0, 10), (1, 10), (3, 0)] {
            check(count, period_us, &[(5, false, Tell)]);
        }
    }

    #[test]
    fn what_is_unread_when_it_is_armed_counts() {
        let moderation = Moderation {
            count: 4,
            period_us: 7,
            solicited_breaks: false,
        };
        for (unread, due_ns, expect) in [
            (1, 0, (Verdict::Open, 8000)),
            (3, 0, (Verdict::Open, 8000)),
            (3, 4000, (Verdict::Hold, 4000)),
            (4, 0, (Verdict::Tell, 8000)),
        ] {
            let mut cq = Cq {
                produced: 10,
                moderation,
                window: Window { due_ns, from: 0 },
                ..Cq::default()
            };
            let verdict = armed_late(&mut cq, 10 - unread, 1000);
            assert_eq!((verdict, cq.window.due_ns), expect, "{unread}, {due_ns}");
        }
    }
}
