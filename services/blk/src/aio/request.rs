//! A request as a future.

use super::places::{Entry, Places};
use super::workers::Workers;
use crate::disk::Disk;
use crate::error::BlkError;
use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// What the requests of a disk share.
pub(super) struct Inner {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) workers: Workers,
    pub(super) places: Arc<Places>,
}

/// What a request does with the disk, or with the reason why it does not begin.
type Work<T> = Box<dyn FnOnce(Result<&dyn Disk, BlkError>) -> T + Send>;

/// A request. It begins when it is first polled and there is a place for it.
///
/// Dropping it before that leaves the disk alone. Dropping it later does not end the request: it is carried out with its own
/// buffer, whose memory is freed afterwards.
#[must_use = "a request does nothing unless it is awaited"]
pub struct Request<T> {
    inner: Arc<Inner>,
    stage: Stage<T>,
}

enum Stage<T> {
    New(Work<T>),
    /// It waits for a place under this number.
    Waits(u64, Work<T>),
    Begun(Arc<Slot<T>>),
    Ended,
}

/// Where the outcome of a request arrives.
struct Slot<T>(Mutex<(Option<Outcome<T>>, Option<Waker>)>);

type Outcome<T> = Result<T, Box<dyn Any + Send>>;

impl<T> Slot<T> {
    fn locked(&self) -> MutexGuard<'_, (Option<Outcome<T>>, Option<Waker>)> {
        // Both values are replaced as a whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> std::fmt::Debug for Request<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let stage = match self.stage {
            Stage::New(_) => "new",
            Stage::Waits(..) => "waits",
            Stage::Begun(_) => "begun",
            Stage::Ended => "ended",
        };
        f.debug_struct("Request").field("stage", &stage).finish()
    }
}

impl<T: Send + 'static> Request<T> {
    pub(super) fn new(
        inner: &Arc<Inner>,
        work: impl FnOnce(Result<&dyn Disk, BlkError>) -> T + Send + 'static,
    ) -> Self {
        Self {
            inner: Arc::clone(inner),
            stage: Stage::New(Box::new(work)),
        }
    }

    /// A request that begins now, in a place of its own.
    pub(super) fn begun(
        inner: &Arc<Inner>,
        work: impl FnOnce(Result<&dyn Disk, BlkError>) -> T + Send + 'static,
    ) -> Self {
        let slot = begin(inner, Box::new(work), || ());
        Self {
            inner: Arc::clone(inner),
            stage: Stage::Begun(slot),
        }
    }
}

/// Gives a request to the threads. `ended` is called after it, before its outcome can be seen. The request has no share of
/// the disk any more then: a caller who has seen all outcomes may close it.
fn begin<T: Send + 'static>(
    inner: &Arc<Inner>,
    work: Work<T>,
    ended: impl FnOnce() + Send + 'static,
) -> Arc<Slot<T>> {
    let slot = Arc::new(Slot(Mutex::new((None, None))));
    let of_request = Arc::clone(&slot);
    let disk = Arc::clone(&inner.disk);
    inner.workers.submit(move || {
        let outcome = catch_unwind(AssertUnwindSafe(|| work(Ok(disk.as_ref()))));
        drop(disk);
        ended();
        let waker = {
            let mut slot = of_request.locked();
            slot.0 = Some(outcome);
            slot.1.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    });
    slot
}

impl<T> Unpin for Request<T> {}

impl<T: Send + 'static> Future for Request<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let this = &mut *self;
        let (number, work) = match std::mem::replace(&mut this.stage, Stage::Ended) {
            Stage::New(work) => (None, work),
            Stage::Waits(number, work) => (Some(number), work),
            Stage::Begun(slot) => return this.look(slot, context),
            Stage::Ended => panic!("a request was polled after its end"),
        };
        match this.inner.places.enter(number, context.waker()) {
            Entry::Waits(number) => {
                this.stage = Stage::Waits(number, work);
                Poll::Pending
            }
            Entry::Closed => Poll::Ready(work(Err(BlkError::Argument(
                "the volume is closed for asynchronous requests".to_owned(),
            )))),
            Entry::Taken => {
                let inner = Arc::clone(&this.inner);
                let places = Arc::clone(&inner.places);
                let slot = begin(&inner, work, move || places.leave());
                this.look(slot, context)
            }
        }
    }
}

impl<T> Request<T> {
    /// The outcome, if there is one.
    fn look(&mut self, slot: Arc<Slot<T>>, context: &Context<'_>) -> Poll<T> {
        let outcome = {
            let mut slot = slot.locked();
            let outcome = slot.0.take();
            if outcome.is_none() {
                slot.1 = Some(context.waker().clone());
            }
            outcome
        };
        match outcome {
            Some(Ok(outcome)) => Poll::Ready(outcome),
            // As in a blocking call.
            Some(Err(panic)) => resume_unwind(panic),
            None => {
                self.stage = Stage::Begun(slot);
                Poll::Pending
            }
        }
    }
}

impl<T> Drop for Request<T> {
    fn drop(&mut self) {
        if let Stage::Waits(number, _) = self.stage {
            self.inner.places.forget(number);
        }
    }
}
