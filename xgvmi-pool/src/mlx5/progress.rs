//! Progress of the requests of one queue, derived from its completions. No I/O: unit tests need no
//! device.

use std::sync::OnceLock;

use mlx5_prm::cqe::{self, Cqe};

use super::send_ring::low16;
use super::wqe::Request;
use crate::error::{ChainError, DeviceError, Rest};
use crate::sync::{AtomicU64, Ordering};

/// Completed requests, and the failure of the queue. The numbers of building blocks in the send
/// queue start at zero and never wrap, so a number identifies one request during the life of the
/// queue.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// Number of the first building block of the last completed signaled request, plus one.
    done: AtomicU64,
    failure: OnceLock<Box<Failure>>,
}

/// The end of a queue.
#[derive(Clone, Debug)]
struct Failure {
    /// Requests that start below this building block are complete.
    at: u64,
    rest: Rest,
    error: DeviceError,
}

/// Position of a chain in the ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ticket {
    /// First building block of the first request.
    pub(super) first: u64,
    /// First building block of the last request, which generates the completion of the chain.
    pub(super) last: u64,
}

/// The result of the post of one request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Single {
    /// It is complete.
    Done,
    /// Its completion is not there yet. Contains the number of its first building block.
    Posted(u64),
    /// It was not posted: the queue has failed or is full, or it posts through libmlx5.
    Refused,
}

impl Ticket {
    /// The position of a single request.
    pub(super) const fn single(first: u64) -> Self {
        Self { first, last: first }
    }
}

impl Progress {
    /// Building blocks below this one may be overwritten: their requests are complete.
    #[inline]
    pub(super) fn done(&self) -> u64 {
        self.done.load(Ordering::Acquire)
    }

    /// The reason why the queue accepts no more requests, if there is one.
    #[inline]
    pub(super) fn failure(&self) -> Option<&DeviceError> {
        self.failure.get().map(|failure| &failure.error)
    }

    /// The result of a chain, if it is known.
    #[inline]
    pub(super) fn outcome<R: Request>(
        &self,
        ticket: Ticket,
        chain: &[R],
    ) -> Option<Result<(), ChainError>> {
        // Before the check for a failure: earlier completions remain valid.
        if self.done() > ticket.last {
            return Some(Ok(()));
        }
        let failure = self.failure.get()?;
        // The reader of completions may have counted this chain before it met the failure.
        if self.done() > ticket.last {
            return Some(Ok(()));
        }
        Some(Err(failure.of_chain(ticket, chain)))
    }

    /// Number of the first building block of the request with this counter.
    #[inline]
    fn position(&self, counter: u16) -> u64 {
        let done = self.done.load(Ordering::Relaxed);
        // The adapter counts modulo 2^16, and fewer building blocks than that are in flight.
        done + u64::from(counter.wrapping_sub(low16(done)))
    }

    /// Records the success of a request. Called by one thread at a time, in the order of the queue.
    #[inline]
    pub(super) fn succeed(&self, counter: u16) {
        self.succeed_at(self.position(counter));
    }

    /// Like [`Progress::succeed`], with the number of the request's first building block.
    #[inline(always)]
    pub(super) fn succeed_at(&self, first: u64) {
        self.done.store(first + 1, Ordering::Release);
    }

    /// Records one completion. Called by one thread at a time, in the order of the queue.
    pub(super) fn count(&self, cqe: &Cqe, qpn: u32) {
        let at = self.position(cqe.wqe_counter);
        match cqe.opcode {
            cqe::opcode::REQ => self.done.store(at + 1, Ordering::Release),
            cqe::opcode::REQ_ERR => self.fail(Failure {
                at,
                rest: Rest::NotDone,
                error: DeviceError::Completion {
                    request: format!("work request {at} on queue pair {qpn:#x}"),
                    syndrome: cqe.syndrome,
                    vendor: cqe.vendor_syndrome,
                },
            }),
            // A send queue reports no other completions.
            _ => {}
        }
    }

    /// Abandons the queue: outstanding requests may or may not have been executed.
    pub(super) fn give_up(&self, error: DeviceError) {
        self.fail(Failure {
            at: self.done(),
            rest: Rest::Unknown,
            error,
        });
    }

    /// Ends the queue. Only the first reason counts, because all later failures follow from it.
    fn fail(&self, failure: Failure) {
        let _later = self.failure.set(Box::new(failure));
    }
}

impl Failure {
    /// The error of a chain that was outstanding at the failure.
    fn of_chain<R: Request>(&self, ticket: Ticket, chain: &[R]) -> ChainError {
        let mut position = ticket.first;
        let mut done = 0;
        for op in chain {
            if position >= self.at {
                break;
            }
            done += 1;
            position += op.wqebbs() as u64;
        }
        ChainError {
            done,
            rest: self.rest,
            source: self.error.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::device::UmrOp;
    use crate::key::Mkey;

    const QPN: u32 = 0x48;

    fn invalidations(count: usize) -> Vec<UmrOp<'static>> {
        vec![
            UmrOp::Invalidate {
                mkey: Mkey::from_raw(0x77fb)
            };
            count
        ]
    }

    fn completion(at: u64, opcode: u8, syndrome: u8) -> Cqe {
        Cqe {
            opcode,
            syndrome,
            wqe_counter: low16(at),
            ..Cqe::default()
        }
    }

    fn good(at: u64) -> Cqe {
        completion(at, cqe::opcode::REQ, 0)
    }

    fn bad(at: u64, syndrome: u8) -> Cqe {
        completion(at, cqe::opcode::REQ_ERR, syndrome)
    }

    fn timed_out() -> DeviceError {
        DeviceError::TimedOut {
            request: "a request".to_owned(),
            limit: Duration::ZERO,
        }
    }

    #[test]
    fn a_chain_is_done_when_its_last_request_reports() {
        let progress = Progress::default();
        let (first, second) = (Ticket { first: 0, last: 2 }, Ticket { first: 4, last: 4 });
        let chain = invalidations(2);
        assert!(progress.outcome(first, &chain).is_none());
        progress.count(&good(2), QPN);
        assert_eq!(progress.outcome(first, &chain), Some(Ok(())));
        assert!(progress.outcome(second, &chain[..1]).is_none());
        progress.count(&good(4), QPN);
        assert_eq!(progress.outcome(second, &chain[..1]), Some(Ok(())));
    }

    #[test]
    fn the_adapters_counter_comes_round_and_ours_does_not() {
        let progress = Progress::default();
        let mut at = 0;
        for _ in 0..1000 {
            at += 331;
            progress.count(&good(at), QPN);
            assert_eq!(progress.done(), at + 1);
        }
        // One request later than the last one, as far as a ring permits.
        progress.count(&good(at + 32_768), QPN);
        assert_eq!(progress.done(), at + 32_769);
    }

    #[test]
    fn an_error_tells_which_requests_are_done() {
        let progress = Progress::default();
        let chain = invalidations(4);
        let before = Ticket { first: 0, last: 0 };
        let mine = Ticket { first: 2, last: 8 };
        let behind = Ticket {
            first: 10,
            last: 16,
        };
        progress.count(&good(0), QPN);
        // The adapter refuses the third request of the chain and flushes all requests behind it.
        progress.count(&bad(6, cqe::syndrome::MW_BIND_ERR), QPN);
        progress.count(&bad(8, cqe::syndrome::WR_FLUSH_ERR), QPN);
        progress.count(&bad(10, cqe::syndrome::WR_FLUSH_ERR), QPN);
        assert_eq!(progress.outcome(before, &chain[..1]), Some(Ok(())));
        for (ticket, done) in [(mine, 2), (behind, 0)] {
            let failed = progress
                .outcome(ticket, &chain)
                .expect("known")
                .expect_err("failed");
            assert_eq!((failed.done, failed.rest), (done, Rest::NotDone));
            let syndrome = cqe::syndrome::MW_BIND_ERR;
            assert!(
                matches!(failed.source, DeviceError::Completion { syndrome: s, .. } if s == syndrome)
            );
        }
    }

    /// Defect D5 of stock UCX: a completion that arrives after its request was abandoned must not
    /// count for the next request.
    #[test]
    fn a_late_completion_counts_for_no_other_request() {
        let progress = Progress::default();
        let chain = invalidations(1);
        let (slow, next) = (Ticket { first: 0, last: 0 }, Ticket { first: 2, last: 2 });
        progress.give_up(timed_out());
        for ticket in [slow, next] {
            let failed = progress
                .outcome(ticket, &chain)
                .expect("known")
                .expect_err("failed");
            assert_eq!((failed.done, failed.rest), (0, Rest::Unknown));
        }
        progress.count(&good(0), QPN);
        assert_eq!(
            progress.outcome(slow, &chain),
            Some(Ok(())),
            "it is its own completion"
        );
        assert!(
            progress
                .outcome(next, &chain)
                .is_some_and(|outcome| outcome.is_err())
        );
    }

    #[test]
    fn the_first_failure_counts() {
        let progress = Progress::default();
        progress.give_up(timed_out());
        progress.count(&bad(0, cqe::syndrome::WR_FLUSH_ERR), QPN);
        assert_eq!(progress.failure(), Some(&timed_out()));
    }
}
