//! Gets in flight. UCX reports each end by a callback, so nobody tests them in turn.
//!
//! What a get needs until its end is in UCX's request: its tag, and the objects that it uses. So a start and an end look
//! nothing up.

use super::context::REQUEST_BYTES;
use super::endpoint::get_param;
use super::error::UcpError;
use super::{ImportedMemory, RemoteKey, Result};
use std::cell::{Cell, UnsafeCell};
use std::ffi::c_void;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use ucx_sys::{
    UCS_OK, Ucp, ucp_request_param_t, ucs_ptr_is_ptr, ucs_ptr_status, ucs_status_ptr_t,
    ucs_status_t,
};

/// Gets in flight, each with a tag of the caller.
///
/// It owns the objects that the gets use. If it is dropped before they are complete, it leaks these objects, because UCX
/// or the device may still use them. One thread may use it at a time, the one that uses the worker.
pub struct Gets {
    /// Number of gets that were started and not taken, and the number for which `ends` has room.
    count: usize,
    room: usize,
    /// Parameters of all gets. Its callback's argument is `ends`.
    param: ucp_request_param_t,
    /// Made from a box, which never moves.
    ends: NonNull<Ends>,
}

/// The gets that have ended and were not taken. UCX's callback adds to it.
#[derive(Default)]
struct Ends {
    /// It has the capacity for all gets in flight. A reference to it lives neither across a call of UCX nor across a drop.
    list: UnsafeCell<Vec<End>>,
    /// Set before the first get.
    ucp: Cell<Option<&'static Ucp>>,
}

/// A get that has ended.
struct End {
    flight: Flight,
    status: ucs_status_t,
}

/// A get, and the objects that it uses: the content of UCX's request.
struct Flight {
    tag: u64,
    _into: ImportedMemory,
    from: RemoteKey,
}

/// How a get has ended. The error is boxed because every get moves this, and few fail.
type Outcome = std::result::Result<(), Box<UcpError>>;

/// Gets that have ended: their tags and outcomes, see [`Gets::take_all`].
pub struct Taken<'a> {
    list: Vec<End>,
    /// Number of gets that were returned. Their objects stay in the list, because moving each costs more than its end.
    at: usize,
    gets: &'a mut Gets,
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
        let ends = NonNull::from(Box::leak(Box::<Ends>::default()));
        Self {
            count: 0,
            room: 0,
            param: get_param(Some((Some(self::ended as _), ends.as_ptr().cast()))),
            ends,
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
    /// returns the tag when the get has ended.
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
        let from = std::iter::once((from, remote_address));
        let (_, complete) = self.start_run(from, into, places, 1, tag)?;
        Ok(complete == 0)
    }

    /// Starts gets into the first of some places, see [`Gets::start`]: from each key with its remote address, at most `most`. Their
    /// tags count from `tag`. Returns how many were started, and how many of these are complete.
    ///
    /// # Errors
    /// [`UcpError::ImportedAccess`] if one of the places is unsuitable; the connection's error.
    #[inline(always)]
    pub fn start_run<'a>(
        &mut self,
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
        let most = most.min(count) as usize;
        if self.room - self.count < most {
            self.grow(into.ucp(), most);
        }
        // The loop has few variables: the processor has few registers.
        let (mut under_way, mut flight_tag) = (0, tag);
        let end = tag + most as u64;
        for (from, remote_address) in from {
            if flight_tag == end {
                break;
            }
            let answer = from.get(remote_address, address, length, &self.param);
            let answer = answer.inspect_err(|_| self.count += under_way)?;
            address = address.wrapping_add(stride);
            if ucs_ptr_is_ptr(answer) {
                under_way += 1;
                let flight = Flight {
                    tag: flight_tag,
                    _into: into.clone(),
                    from: from.clone(),
                };
                const { assert!(size_of::<Flight>() <= REQUEST_BYTES && align_of::<Flight>() <= 8) };
                // SAFETY: a request has REQUEST_BYTES for its user, aligned for pointers, see Context::open. UCX calls back
                // in the worker's progress alone, so not before this is there.
                unsafe { answer.cast::<Flight>().write(flight) };
            } else {
                check_complete(from, answer).inspect_err(|_| self.count += under_way)?;
            }
            flight_tag += 1;
        }
        self.count += under_way;
        let number = |number: u64| u32::try_from(number).expect("no more than their places");
        let all = number(flight_tag - tag);
        Ok((all, all - number(under_way as u64)))
    }

    /// Makes room for the ends of further gets.
    #[cold]
    fn grow(&mut self, ucp: &'static Ucp, more: usize) {
        // SAFETY: the box lives as long as this value, see drop().
        let ends = unsafe { self.ends.as_ref() };
        ends.ucp.set(Some(ucp));
        // SAFETY: no other reference to the list exists: UCX calls back in the worker's progress alone, and the functions of
        // this value make none meanwhile.
        let list = unsafe { &mut *ends.list.get() };
        list.reserve(self.count + more - list.len());
        self.room = list.capacity();
    }

    /// Takes all gets that have ended, as [`Gets::take`] does with less work for each. The worker must make no progress before the
    /// result is dropped: ends of that time would be lost.
    #[inline(always)]
    pub fn take_all(&mut self) -> Taken<'_> {
        // SAFETY: as in grow(); the reference to the list ends here.
        let list = unsafe { std::mem::take(&mut *self.ends.as_ref().list.get()) };
        self.count -= list.len();
        Taken {
            list,
            at: 0,
            gets: self,
        }
    }

    /// Takes a get that has ended: its tag, and its error if it has failed. The order is not that of the ends.
    #[inline(always)]
    pub fn take(&mut self) -> Option<(u64, Outcome)> {
        // SAFETY: as in grow(); the reference to the list ends here.
        let End { flight, status } = unsafe { (*self.ends.as_ref().list.get()).pop() }?;
        self.count -= 1;
        Some((flight.tag, flight.outcome(status)))
    }
}

impl Flight {
    #[inline(always)]
    fn outcome(&self, status: ucs_status_t) -> Outcome {
        match status {
            UCS_OK => Ok(()),
            status => Err(Box::new(failed(self.from.ucp(), status))),
        }
    }
}

impl Iterator for Taken<'_> {
    type Item = (u64, Outcome);

    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        let End { flight, status } = self.list.get(self.at)?;
        self.at += 1;
        Some((flight.tag, flight.outcome(*status)))
    }
}

impl Drop for Taken<'_> {
    #[inline]
    fn drop(&mut self) {
        let mut list = std::mem::take(&mut self.list);
        list.clear();
        // SAFETY: as in Gets::take_all(). The list there has no memory, so that its drop calls nothing.
        unsafe { *self.gets.ends.as_ref().list.get() = list };
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

impl fmt::Debug for Taken<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Taken")
            .field("len", &(self.list.len() - self.at))
            .finish_non_exhaustive()
    }
}

impl Drop for Gets {
    fn drop(&mut self) {
        while self.take().is_some() {}
        if self.count == 0 {
            // SAFETY: it was made from a box in new(). No get is in flight, so UCX does not call back any more.
            drop(unsafe { Box::from_raw(self.ends.as_ptr()) });
            return;
        }
        // The callback may still come: the box stays, and without room the callback leaks the objects of its get.
        // SAFETY: as in take(). The list is empty, so that its drop calls nothing.
        unsafe { *self.ends.as_ref().list.get() = Vec::new() };
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
/// Only UCX may call it, once, in the progress of the worker, for a request of [`Gets::start_run`]: the argument is the list of its
/// [`Gets`], which lives as long as gets are in flight.
unsafe extern "C" fn ended(request: *mut c_void, status: ucs_status_t, argument: *mut c_void) {
    // SAFETY: see above; only shared references to it exist.
    let ends = unsafe { &*argument.cast::<Ends>() };
    // SAFETY: start_run() has written it, and it is read once.
    let flight = unsafe { request.cast::<ManuallyDrop<Flight>>().read() };
    // SAFETY: nobody else has a reference to the list while progress() runs.
    let list = unsafe { &mut *ends.list.get() };
    let at = list.len();
    if at < list.capacity() {
        let flight = ManuallyDrop::into_inner(flight);
        // SAFETY: the place is within the capacity, and is written before the length contains it.
        unsafe {
            list.as_mut_ptr().add(at).write(End { flight, status });
            list.set_len(at + 1);
        }
    }
    if let Some(ucp) = ends.ucp.get() {
        // SAFETY: the request came from UCP and is freed once; UCX permits it in the callback.
        unsafe { (ucp.ucp_request_free)(request) };
    }
}
