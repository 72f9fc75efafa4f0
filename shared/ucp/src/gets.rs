//! Gets in flight. UCX reports each end by a callback, so nobody tests them in turn.
//!
//! Gets that start together are a run: it owns the objects that they use, and its ends are taken together. So a start and an end
//! look nothing up, and an end moves nothing.

use super::context::REQUEST_BYTES;
use super::endpoint::get_param;
use super::error::UcpError;
use super::{ImportedMemory, RemoteKey, Result};
use std::any::Any;
use std::cell::Cell;
use std::ffi::c_void;
use std::fmt;
use std::ptr::NonNull;
use std::rc::Rc;
use ucx_sys::{
    UCS_OK, Ucp, ucp_request_param_t, ucs_ptr_is_ptr, ucs_ptr_status, ucs_status_ptr_t,
    ucs_status_t,
};

/// Gets in flight, each with a tag of the caller.
///
/// It owns the objects that the gets use. If it is dropped before they are complete, it leaks these objects, because UCX
/// or the device may still use them. One thread may use it at a time, the one that uses the worker.
pub struct Gets {
    /// Number of gets that were started and not taken.
    count: usize,
    /// Parameters of all gets. The argument of their callback is their run.
    param: ucp_request_param_t,
    /// Made from a box, which never moves.
    ends: NonNull<Ends>,
    /// Runs without gets, for reuse: at most as many as there were gets in flight.
    #[expect(clippy::vec_box, reason = "UCX has their addresses")]
    free: Vec<Box<Run>>,
}

/// The runs with gets that have ended and were not taken, in the order of the first of these ends. UCX's callback adds to it.
#[derive(Default)]
struct Ends {
    first: Cell<Option<NonNull<Run>>>,
    last: Cell<Option<NonNull<Run>>>,
}

/// Gets that were started together, and the objects that they use.
struct Run {
    /// Tag of the first one, and number of those that are in flight or not taken.
    tag: u64,
    left: usize,
    into: Option<ImportedMemory>,
    keys: Option<Rc<dyn Any>>,
    /// Those that have ended and were not taken, and the tag and status of one of them that has failed.
    ended: Cell<usize>,
    failed: Cell<Option<(u64, ucs_status_t)>>,
    /// The next run in [`Ends`].
    next: Cell<Option<NonNull<Run>>>,
    ends: NonNull<Ends>,
    ucp: &'static Ucp,
}

/// How gets have ended. The error is boxed because few fail.
type Outcome = std::result::Result<(), Box<UcpError>>;

/// Gets of a run that have ended, see [`Gets::take`].
#[derive(Debug)]
pub struct Taken {
    /// Tag of the run's first get, or of the one that has failed.
    pub tag: u64,
    /// Number of gets.
    pub count: u32,
    /// The error of one of them.
    pub outcome: Outcome,
}

/// Equally spaced ranges of one length, into which gets write.
#[derive(Debug, Clone, Copy)]
pub struct Places {
    /// Address of the first one.
    pub address: u64,
    /// Distance to the next one.
    pub stride: u64,
    /// Length of each.
    pub length: usize,
    /// Their number.
    pub count: u32,
}

impl Gets {
    /// No gets.
    #[must_use]
    pub fn new() -> Self {
        Self {
            count: 0,
            param: get_param(Some((Some(self::ended as _), std::ptr::null_mut()))),
            ends: NonNull::from(Box::leak(Box::<Ends>::default())),
            free: Vec::new(),
        }
    }

    /// Number of gets that have been started and not taken.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are no gets.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// RDMA READ: moves `length` bytes from the peer's memory at `remote_address` directly into the imported memory of a
    /// third process at `address`. No byte passes through this process. False if it is complete. Otherwise [`Gets::take`]
    /// returns the tag when the get has ended: it is a run of its own.
    ///
    /// # Errors
    /// [`UcpError::ImportedAccess`] for an unsuitable range; the connection's error.
    #[inline]
    pub fn start(
        &mut self,
        from: &RemoteKey,
        remote_address: u64,
        into: &ImportedMemory,
        address: u64,
        length: usize,
        tag: u64,
    ) -> Result<bool> {
        let places = Places {
            address,
            stride: 0,
            length,
            count: 1,
        };
        let sources = std::iter::once((from, remote_address));
        // SAFETY: the key is its own owner.
        let (_, complete) = unsafe { self.start_run(from.owner(), sources, into, places, 1, tag) }?;
        Ok(complete == 0)
    }

    /// Starts gets into the first of some places, see [`Gets::start`]: from each key with its remote address, at most `most`. Their
    /// tags count from `tag`. Returns how many were started, and how many of these are complete.
    ///
    /// # Errors
    /// [`UcpError::ImportedAccess`] if one of the places is unsuitable; the connection's error.
    ///
    /// # Safety
    /// `keys` owns a clone of each key of `from` as long as it is shared. So the run takes one reference, and none to each key.
    #[inline(always)]
    pub unsafe fn start_run<'a>(
        &mut self,
        keys: &Rc<impl Any>,
        from: impl Iterator<Item = (&'a RemoteKey, u64)>,
        into: &ImportedMemory,
        places: Places,
        most: u32,
        tag: u64,
    ) -> Result<(u32, u32)> {
        let Places {
            mut address,
            stride,
            length,
            count,
        } = places;
        self.param.memh = into.access_run(address, stride, length, count)?;
        let most = most.min(count);
        let run = self.run(into, keys);
        self.param.user_data = run.as_ptr().cast();
        // SAFETY: UCX calls back in the worker's progress alone, so nobody else has a reference to the run until this function
        // returns.
        let of = unsafe { &mut *run.as_ptr() };
        of.tag = tag;
        // The loop has few variables: the processor has few registers.
        let (mut flight_tag, end, mut started) = (tag, tag + u64::from(most), Ok(()));
        let mut under_way = 0;
        for (key, remote_address) in from {
            if flight_tag == end {
                break;
            }
            let answer = match key.get(remote_address, address, length, &self.param) {
                Ok(answer) => answer,
                Err(error) => {
                    started = Err(error);
                    break;
                }
            };
            address = address.wrapping_add(stride);
            if ucs_ptr_is_ptr(answer) {
                under_way += 1;
                const { assert!(size_of::<u64>() <= REQUEST_BYTES) };
                // SAFETY: a request has REQUEST_BYTES for its user, aligned for pointers, see Context::open. UCX calls back
                // in the worker's progress alone, so not before this is there.
                unsafe { answer.cast::<u64>().write(flight_tag) };
            } else if let Err(error) = check_complete(key, answer) {
                started = Err(error);
                break;
            }
            flight_tag += 1;
        }
        of.left = under_way;
        self.count += under_way;
        if under_way == 0 {
            // SAFETY: no get uses the run.
            unsafe { self.release(run) };
        }
        started?;
        let number = |number: u64| u32::try_from(number).expect("no more than their places");
        let all = number(flight_tag - tag);
        Ok((all, all - number(under_way as u64)))
    }

    /// A run without gets.
    #[inline]
    fn run<K: Any>(&mut self, into: &ImportedMemory, keys: &Rc<K>) -> NonNull<Run> {
        let mut run = self.free.pop().unwrap_or_else(|| {
            Box::new(Run {
                tag: 0,
                left: 0,
                into: None,
                keys: None,
                ended: Cell::new(0),
                failed: Cell::new(None),
                next: Cell::new(None),
                ends: self.ends,
                ucp: into.ucp(),
            })
        });
        run.into = Some(into.clone());
        run.keys = Some(Rc::<K>::clone(keys));
        NonNull::from(Box::leak(run))
    }

    /// Keeps a run without gets for reuse.
    ///
    /// # Safety
    /// The run is one of [`Gets::run`], and no get uses it.
    #[inline]
    unsafe fn release(&mut self, run: NonNull<Run>) {
        // SAFETY: it was made from a box, which nobody else has.
        let mut run = unsafe { Box::from_raw(run.as_ptr()) };
        (run.into, run.keys) = (None, None);
        self.free.push(run);
    }

    /// Takes the gets of a run that have ended, the oldest run first.
    #[inline]
    pub fn take(&mut self) -> Option<Taken> {
        // SAFETY: the box lives as long as this value, see drop(), and has shared references only.
        let ends = unsafe { self.ends.as_ref() };
        let run = ends.first.get()?;
        // SAFETY: a run lives until its last get is taken. UCX calls back in the worker's progress alone, so nobody else has a
        // reference to it until this function returns.
        let of = unsafe { &mut *run.as_ptr() };
        ends.first.set(of.next.take());
        let count = of.ended.take();
        of.left -= count;
        self.count -= count;
        let mut taken = Taken {
            tag: of.tag,
            count: u32::try_from(count).expect("no more than their places"),
            outcome: Ok(()),
        };
        if let Some((tag, status)) = of.failed.take() {
            taken.tag = tag;
            taken.outcome = Err(Box::new(failed(of.ucp, status)));
        }
        if of.left == 0 {
            // SAFETY: no get uses the run.
            unsafe { self.release(run) };
        }
        Some(taken)
    }
}

impl Default for Gets {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Gets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gets")
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

impl Drop for Gets {
    fn drop(&mut self) {
        while self.take().is_some() {}
        // Otherwise the callback may still come: the box and the runs in flight stay.
        if self.count == 0 {
            // SAFETY: it was made from a box in new(). No get is in flight, so UCX does not call back any more.
            drop(unsafe { Box::from_raw(self.ends.as_ptr()) });
        }
    }
}

/// Checks the answer for a get that is complete, or that UCX refuses.
#[cold]
fn check_complete(from: &RemoteKey, answer: ucs_status_ptr_t) -> Result<()> {
    match ucs_ptr_status(answer) {
        UCS_OK => Ok(()),
        status => Err(failed(from.ucp(), status)),
    }
}

#[cold]
fn failed(ucp: &Ucp, status: ucs_status_t) -> UcpError {
    UcpError::call(ucp, "ucp_get_nbx", "in flight", status)
}

/// UCX's callback for the end of a get.
///
/// # Safety
/// Only UCX may call it, once, in the progress of the worker, for a request of [`Gets::start_run`]: the argument is the run of the
/// get, which lives until the get is taken.
unsafe extern "C" fn ended(request: *mut c_void, status: ucs_status_t, argument: *mut c_void) {
    let this = NonNull::new(argument.cast::<Run>()).expect("the run of the get");
    // SAFETY: see above; nobody has an exclusive reference to it while progress() runs.
    let run = unsafe { this.as_ref() };
    let before = run.ended.get();
    run.ended.set(before + 1);
    if before == 0 {
        // SAFETY: it lives as long as gets are in flight, and has shared references only.
        let ends = unsafe { run.ends.as_ref() };
        match ends.first.get().and(ends.last.get()) {
            // SAFETY: a run in the list has a get that was not taken, so it lives.
            Some(last) => unsafe { last.as_ref() }.next.set(Some(this)),
            None => ends.first.set(Some(this)),
        }
        ends.last.set(Some(this));
    }
    if status != UCS_OK {
        // SAFETY: start_run() has written the tag.
        let tag = unsafe { request.cast::<u64>().read() };
        run.failed.set(Some((tag, status)));
    }
    // SAFETY: the request came from UCP and is freed once; UCX permits it in the callback.
    unsafe { (run.ucp.ucp_request_free)(request) };
}
