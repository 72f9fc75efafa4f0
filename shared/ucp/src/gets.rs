//! Gets in flight. UCX reports each end by a callback, so nobody tests them in turn.

use super::context::REQUEST_BYTES;
use super::endpoint::get_param;
use super::error::UcpError;
use super::{ImportedMemory, RemoteKey, Result};
use std::cell::RefCell;
use std::ffi::c_void;
use std::fmt;
use ucx_sys::{
    UCS_OK, Ucp, ucp_request_param_t, ucs_ptr_is_ptr, ucs_ptr_status, ucs_status_ptr_t,
    ucs_status_t,
};

/// Gets in flight, by number. The numbers are below the maximum number of gets that were in flight at once.
///
/// It owns the objects that the gets use. If it is dropped before they are complete, it leaks these objects, because UCX
/// or the device may still use them. One thread may use it at a time, the one that uses the worker.
pub struct Gets {
    flights: Vec<Option<Flight>>,
    /// Numbers of empty places.
    free: Vec<u32>,
    /// Parameters of all gets. Its callback's argument is `ended`.
    param: ucp_request_param_t,
    /// Boxed, so that the callback's argument does not move.
    ended: Box<Ended>,
}

/// Number and status of each get that has ended and was not taken. UCX's callback adds to it. It has the capacity for all
/// gets in flight.
type Ended = RefCell<Vec<(u32, ucs_status_t)>>;

/// A get in flight and the objects that it uses.
struct Flight {
    request: ucs_status_ptr_t,
    into: ImportedMemory,
    from: RemoteKey,
}

impl Gets {
    /// No gets.
    #[must_use]
    pub fn new() -> Self {
        let ended: Box<Ended> = Box::default();
        let argument = (&raw const *ended).cast_mut().cast();
        Self {
            flights: Vec::new(),
            free: Vec::new(),
            param: get_param(Some((Some(self::ended as _), argument))),
            ended,
        }
    }

    /// Number of gets that have been started and not taken.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.flights.len() - self.free.len()
    }

    /// Whether there are no gets.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// RDMA READ: moves `length` bytes from the peer's memory at `remote_address` directly into the imported memory of a
    /// third process at `address`. No byte passes through this process. Returns the get's number; `None` if it is complete.
    /// [`Gets::take`] returns the number when the get has ended.
    ///
    /// # Errors
    /// [`UcpError::ImportedAccess`] for an unsuitable range; the connection's error.
    #[inline(always)]
    pub fn start(
        &mut self,
        from: &RemoteKey,
        remote_address: u64,
        into: &ImportedMemory,
        address: u64,
        length: usize,
    ) -> Result<Option<u32>> {
        let answer = from.get(remote_address, into, address, length, &mut self.param)?;
        if !ucs_ptr_is_ptr(answer) {
            return not_started(from, answer);
        }
        let index = match self.free.pop() {
            Some(index) => index,
            None => self.grow(),
        };
        const { assert!(size_of::<u32>() <= REQUEST_BYTES) };
        // SAFETY: a request has REQUEST_BYTES for its user, aligned for pointers, see Context::open. UCX calls back in
        // the worker's progress alone, so not before the index is there.
        unsafe { answer.cast::<u32>().write(index) };
        let flight = &mut self.flights[index as usize];
        debug_assert!(flight.is_none(), "the place of a get is free");
        if flight.is_none() {
            *flight = Some(Flight {
                request: answer,
                into: into.clone(),
                from: from.clone(),
            });
        }
        Ok(Some(index))
    }

    /// Adds a place for a get and for its end.
    #[cold]
    fn grow(&mut self) -> u32 {
        self.flights.push(None);
        let count = self.flights.len();
        let mut ended = self.ended.borrow_mut();
        let more = count - ended.len();
        ended.reserve(more);
        self.free.reserve(count);
        u32::try_from(count - 1).expect("each get in flight is a request of UCX in memory")
    }

    /// Takes a get that has ended: its number, and its error if it has failed. The order is not that of the ends. The
    /// number is free for another get. The error is boxed because every get moves this result, and few fail.
    #[inline(always)]
    pub fn take(&mut self) -> Option<(u32, std::result::Result<(), Box<UcpError>>)> {
        let (index, status) = self.ended.borrow_mut().pop()?;
        let flight = self.flights[index as usize].take();
        let flight = flight.expect("UCX calls back once per get, and its place is full until then");
        self.free.push(index);
        let ucp = flight.from.ucp();
        // SAFETY: the request came from UCP and is complete; nothing uses it again.
        unsafe { (ucp.ucp_request_free)(flight.request) };
        Some((index, boxed(ucp, status)))
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
        for flight in self.flights.drain(..).flatten() {
            let Flight {
                request,
                into,
                from,
                ..
            } = flight;
            // SAFETY: the request came from UCP and is freed once. UCP itself puts off the release of one that is still in
            // flight, and calls nobody back for it.
            unsafe { from.ucp().ucp_request_free(request) };
            std::mem::forget((into, from));
        }
    }
}

/// The answer for a get that is complete, or that UCX refuses.
#[cold]
fn not_started(from: &RemoteKey, answer: ucs_status_ptr_t) -> Result<Option<u32>> {
    match ucs_ptr_status(answer) {
        UCS_OK => Ok(None),
        status => Err(failed(from.ucp(), status)),
    }
}

#[inline]
fn boxed(ucp: &Ucp, status: ucs_status_t) -> std::result::Result<(), Box<UcpError>> {
    if status == UCS_OK {
        Ok(())
    } else {
        Err(Box::new(failed(ucp, status)))
    }
}

#[cold]
fn failed(ucp: &Ucp, status: ucs_status_t) -> UcpError {
    UcpError::call(ucp, "ucp_get_nbx", "in flight", status)
}

/// UCX's callback for the end of a get.
///
/// # Safety
/// Only UCX may call it, in the progress of the worker, for a request of [`Gets::start`]: the argument is the list of its
/// [`Gets`], which frees the request before it is dropped.
unsafe extern "C" fn ended(request: *mut c_void, status: ucs_status_t, argument: *mut c_void) {
    // SAFETY: see above; only shared references to the list exist.
    let ended = unsafe { &*argument.cast::<Ended>() };
    // SAFETY: Gets::start has written the index.
    let index = unsafe { request.cast::<u32>().read() };
    // The list is not borrowed while progress() runs. If it were, a get that never ends would be better than a panic here.
    if let Ok(mut ended) = ended.try_borrow_mut() {
        ended.push((index, status));
    }
}
