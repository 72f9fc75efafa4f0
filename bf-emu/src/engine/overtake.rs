//! Adversary mode: a request that passes the one before it.
//!
//! An adapter works on several requests of a queue at once. Without a fence, a request behind an
//! RDMA read or an atomic reads its own data before theirs has arrived, and a request behind a UMR
//! sees the key before the change. Writes to keys with relaxed ordering pass other writes on the way
//! to memory. The completions stay in order.

use mlx5_prm::qp::service;
use mlx5_prm::wqe::{Ctrl, flag};

use super::access;
use super::adversary::{self, Choice};
use super::entry;
use super::outcome::{Fault, Outcome};
use super::peer::Poster;
use super::room;
use super::work::{self, Operation, WORK_BYTES_MAX, Work};
use crate::fabric::Locked;
use crate::memory::Space;

/// A request that may be passed, at the point where its effect is still to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum First {
    /// Its data has not arrived.
    Read,
    /// The word has changed. Its previous value has not arrived.
    Atomic,
    /// The key has not changed.
    Umr,
    /// Its data has not arrived.
    Write,
}

/// The request behind the one that is executed.
pub(super) struct Behind {
    /// The first request, its length in building blocks, and its owner's memory; None if no request
    /// may pass.
    first: Option<(Poster, u16, Space)>,
    passed: Option<Passed>,
    execute: Execute,
}

/// Executes the entry of a queue pair: its bytes, the most bytes of returned data in its completion,
/// and the request behind it.
pub(super) type Execute =
    fn(&mut Locked<'_>, &Poster, &[u8], u8, &mut Behind) -> Result<Outcome, Fault>;

/// A request that was executed before the one ahead of it, and is not completed.
pub(super) struct Passed {
    pub(super) poster: Poster,
    pub(super) ctrl: Ctrl,
    pub(super) result: Result<Outcome, Fault>,
}

impl Behind {
    /// No request may pass.
    const fn none(execute: Execute) -> Self {
        Self {
            first: None,
            passed: None,
            execute,
        }
    }

    /// The request behind the one that a copy of its queue pair stands at.
    pub(super) fn of(poster: &Poster, ctrl: &Ctrl, space: Space, execute: Execute) -> Self {
        let may = adversary::is_on();
        Self {
            first: may.then_some((*poster, ctrl.wqebbs(), space)),
            passed: None,
            execute,
        }
    }

    /// The request that has passed, if there was one.
    pub(super) fn passed(self) -> Option<Passed> {
        self.passed
    }

    /// Executes the next request now, if the seed, its fence and its kind allow it. The lock may be
    /// released meanwhile.
    pub(super) fn pass(&mut self, locked: &mut Locked<'_>, first: First) {
        let Some((poster, blocks, space)) = self.first.take() else {
            return;
        };
        let drawn = adversary::draw(poster.which(), Choice::Passed);
        let fabric = locked.fabric();
        // Rules of faults, and the link model, take the requests one after the other.
        if drawn.is_none_or(|drawn| drawn % 2 != 0)
            || fabric.has_faults()
            || fabric.profile().has_link()
        {
            return;
        }
        let mut next = poster;
        next.qp.sq_done = next.qp.sq_done.wrapping_add(u32::from(blocks));
        let mut bytes = [0; WORK_BYTES_MAX];
        let Some(ctrl) = entry::sound(locked, &next, &mut bytes) else {
            return;
        };
        let Ok(work) = work::parse(&bytes, next.qp.service) else {
            return;
        };
        let relaxed = || match work.operation {
            Operation::Write { remote, imm: None } if next.qp.service == service::RC => {
                let peer = next.qp.remote();
                peer.is_some_and(|peer| access::is_relaxed(locked, peer.function, remote.rkey))
            }
            _ => false,
        };
        if !may_pass(first, &work, relaxed)
            || ctrl.is_signaled() && room::sender_waits(locked, &next, space)
        {
            return;
        }
        let limit = match ctrl.is_signaled() {
            true => next.qp.cs_req,
            false => 0,
        };
        let execute = self.execute;
        let mut none = Self::none(execute);
        let result = execute(locked, &next, &bytes, limit, &mut none);
        // A request whose receiver is not ready waits for its turn.
        if !matches!(result, Err(Fault::NotYet(_))) {
            self.passed = Some(Passed {
                poster: next,
                ctrl,
                result,
            });
        }
    }
}

/// True if a request may take effect before the request ahead of it. `relaxed` tells whether it
/// writes to a key with relaxed ordering.
fn may_pass(first: First, second: &Work, relaxed: impl FnOnce() -> bool) -> bool {
    let fence = second.ctrl.flags & flag::FENCE_MASK;
    // Linux `mlx5/qp.h`, `MLX5_FENCE_MODE_*`.
    let small = matches!(
        fence,
        flag::FENCE_INITIATOR_SMALL | flag::FENCE_STRONG_ORDERING
    );
    let full = matches!(fence, flag::FENCE_FULL | flag::FENCE_STRONG_ORDERING);
    // libmlx5 adds the small fence of a request behind a UMR to this one.
    let both = fence >= flag::FENCE_SMALL_AND_FULL;
    let (behind_umr, behind_read) = (small || both, full || both);
    match first {
        First::Umr => !behind_umr,
        // InfiniBand Architecture 1.3, 10.8.3.3, as in Linux `rxe_req.c` (fence).
        First::Read | First::Atomic => {
            let ordered = matches!(
                second.operation,
                Operation::Read { .. } | Operation::Nop | Operation::Memcpy { .. }
            );
            !behind_read && !ordered
        }
        First::Write => relaxed(),
    }
}

#[cfg(test)]
mod tests {
    use mlx5_prm::wqe::RemoteAddress;

    use super::*;

    fn work(fence: u8, operation: Operation) -> Work {
        Work {
            ctrl: Ctrl {
                flags: fence,
                ..Ctrl::default()
            },
            address: None,
            xrc_srq: None,
            operation,
            data_at: 0,
            end: 0,
        }
    }

    #[test]
    fn what_a_fence_orders() {
        const SEND: Operation = Operation::Send {
            imm: None,
            invalidate: None,
        };
        let remote = RemoteAddress {
            address: 0,
            rkey: 0,
        };
        let small = flag::FENCE_INITIATOR_SMALL;
        let full = flag::FENCE_FULL;
        let strong = flag::FENCE_STRONG_ORDERING;
        let both = flag::FENCE_SMALL_AND_FULL;
        let libmlx5 = both | small;
        for (first, free) in [
            (First::Umr, [true, false, true, false, false, false]),
            (First::Read, [true, true, false, false, false, false]),
            (First::Atomic, [true, true, false, false, false, false]),
            (First::Write, [false; 6]),
        ] {
            for (fence, free) in [0, small, full, strong, both, libmlx5]
                .into_iter()
                .zip(free)
            {
                let passes = may_pass(first, &work(fence, SEND), || false);
                assert_eq!(passes, free, "{first:?} {fence:#x}");
            }
        }
        let read = work(0, Operation::Read { remote });
        assert!(!may_pass(First::Read, &read, || false));
        assert!(may_pass(First::Umr, &read, || false));
        let write = work(full, Operation::Write { remote, imm: None });
        assert!(may_pass(First::Write, &write, || true));
    }
}
