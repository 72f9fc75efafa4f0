//! Queues of asynchronous requests: submitted by any thread, and taken when they have ended.

use super::{Failure, XgvmiBlk, call, open_volume};
use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use xgvmi_blk::aio::{DEPTH, DEPTH_MAX, Workers};
use xgvmi_blk::disk::Disk;
use xgvmi_blk::{BlkError, Result as BlkResult};

/// Bytes of an error's text, with the zero at its end.
const TEXT: usize = 112;

/// A request that has ended.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct XgvmiBlkCompletion {
    /// The caller's, of the submission.
    pub user_data: u64,
    /// 0, or a negative number of errno.
    pub result: c_int,
    /// Zero.
    pub reserved: c_int,
    /// The beginning of the error's text.
    pub error: [c_char; TEXT],
}

impl std::fmt::Debug for XgvmiBlkCompletion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("XgvmiBlkCompletion")
            .field("user_data", &self.user_data)
            .field("result", &self.result)
            .finish_non_exhaustive()
    }
}

/// A queue of requests of a volume.
pub struct XgvmiBlkQueue {
    disk: Arc<dyn Disk>,
    workers: Workers,
    shared: Arc<Shared>,
    /// Open queues of the volume.
    queues: Arc<AtomicUsize>,
}

impl std::fmt::Debug for XgvmiBlkQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("XgvmiBlkQueue").finish_non_exhaustive()
    }
}

struct Shared {
    depth: usize,
    /// Readable exactly as long as there is a completion.
    event: OwnedFd,
    state: Mutex<State>,
    /// A request has ended.
    ended: Condvar,
}

#[derive(Default)]
struct State {
    /// Requests that were submitted and not taken.
    taken: usize,
    completions: VecDeque<XgvmiBlkCompletion>,
}

/// Memory of the caller, who leaves it alone until the request has ended.
struct Memory(*mut c_void, usize);

// SAFETY: the caller promises that the memory stays and that nobody else uses it, whichever thread carries out the request.
unsafe impl Send for Memory {}

impl Memory {
    /// # Safety
    /// The memory is readable until the request has ended.
    unsafe fn bytes(&self) -> &[u8] {
        // SAFETY: the caller's promise; the length was checked against the volume.
        unsafe { std::slice::from_raw_parts(self.0.cast(), self.1) }
    }

    /// # Safety
    /// The memory is writable until the request has ended.
    unsafe fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.0.cast(), self.1) }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // No panic happens while it is locked.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request has ended.
    fn push(&self, completion: XgvmiBlkCompletion) {
        let mut state = self.state();
        state.completions.push_back(completion);
        if state.completions.len() == 1 {
            let one = 1u64;
            // SAFETY: a descriptor of this value, and the eight bytes of a number.
            unsafe { libc::write(self.event.as_raw_fd(), (&raw const one).cast(), 8) };
        }
        // One thread may wait for all, and another one for the first.
        self.ended.notify_all();
    }
}

/// The completion of a request.
fn completion(user_data: u64, failure: Option<Failure>) -> XgvmiBlkCompletion {
    let mut completion = XgvmiBlkCompletion {
        user_data,
        result: 0,
        reserved: 0,
        error: [0; TEXT],
    };
    let Some(failure) = failure else {
        return completion;
    };
    completion.result = -failure.errno;
    let mut end = failure.text.len().min(TEXT - 1);
    while !failure.text.is_char_boundary(end) {
        end -= 1;
    }
    for (to, from) in completion.error.iter_mut().zip(failure.text[..end].bytes()) {
        // A byte of text is one whichever sign C gives it.
        *to = c_char::from_ne_bytes([from]);
    }
    completion
}

/// The queue behind a pointer of the caller.
///
/// # Safety
/// `queue` is null, or comes from `xgvmi_blk_queue_open` and is not closed.
unsafe fn open_queue<'a>(queue: *const XgvmiBlkQueue) -> Result<&'a XgvmiBlkQueue, Failure> {
    // SAFETY: the caller's promise.
    unsafe { queue.as_ref() }.ok_or_else(|| Failure::invalid("the queue is NULL"))
}

impl XgvmiBlkQueue {
    fn submit(
        &self,
        user_data: u64,
        work: impl FnOnce(&dyn Disk) -> BlkResult<()> + Send + 'static,
    ) -> Result<(), Failure> {
        {
            let mut state = self.shared.state();
            if state.taken == self.shared.depth {
                return Err(Failure {
                    errno: libc::EAGAIN,
                    text: format!(
                        "the queue has {} requests: take completions first",
                        state.taken
                    ),
                });
            }
            state.taken += 1;
        }
        let shared = Arc::clone(&self.shared);
        let disk = Arc::clone(&self.disk);
        self.workers.submit(move || {
            let failure = match catch_unwind(AssertUnwindSafe(|| work(disk.as_ref()))) {
                Ok(done) => done.err().map(Failure::from),
                Err(_) => Some(Failure::defect()),
            };
            // Whoever has taken all completions may close queue and volume, and open the targets again.
            drop(disk);
            shared.push(completion(user_data, failure));
        });
        Ok(())
    }

    /// # Safety
    /// `bytes` has `length` bytes until the request has ended.
    unsafe fn transfer(
        &self,
        user_data: u64,
        (offset, bytes, length): (u64, *mut c_void, usize),
        work: impl FnOnce(&dyn Disk, Memory) -> BlkResult<()> + Send + 'static,
    ) -> Result<(), Failure> {
        let checked = self.disk.geometry().check(offset, length as u64);
        checked.map_err(BlkError::from)?;
        if length != 0 && bytes.is_null() {
            return Err(Failure::invalid("the buffer is NULL"));
        }
        let memory = Memory(bytes, length);
        self.submit(user_data, move |disk| match memory.1 {
            0 => Ok(()),
            _ => work(disk, memory),
        })
    }
}

impl Drop for XgvmiBlkQueue {
    fn drop(&mut self) {
        self.queues.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Opens a queue.
///
/// # Safety
/// `volume` is null, or open; `queue` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xgvmi_blk_queue_open(
    volume: *mut XgvmiBlk,
    depth: c_uint,
    queue: *mut *mut XgvmiBlkQueue,
) -> c_int {
    call(|| {
        if queue.is_null() {
            return Err(Failure::invalid("there is no place for the queue"));
        }
        // SAFETY: writable, which the caller promises.
        unsafe { queue.write(std::ptr::null_mut()) };
        // SAFETY: the caller's promise.
        let volume = unsafe { open_volume(volume) }?;
        let depth = match depth as usize {
            0 => DEPTH,
            depth if depth <= DEPTH_MAX => depth,
            depth => {
                let text = format!("a queue of {depth} requests: the most is {DEPTH_MAX}");
                return Err(Failure::invalid(&text));
            }
        };
        // SAFETY: no memory is involved.
        let event = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if event < 0 {
            let error = io::Error::last_os_error();
            return Err(Failure {
                errno: error.raw_os_error().unwrap_or(libc::EIO),
                text: format!("no descriptor for the queue: {error}"),
            });
        }
        volume.queues.fetch_add(1, Ordering::SeqCst);
        let new = Box::new(XgvmiBlkQueue {
            disk: volume.shared(),
            workers: Workers::new(depth),
            shared: Arc::new(Shared {
                depth,
                // SAFETY: a new descriptor, which nobody else has.
                event: unsafe { OwnedFd::from_raw_fd(event) },
                state: Mutex::default(),
                ended: Condvar::new(),
            }),
            queues: Arc::clone(&volume.queues),
        });
        // SAFETY: as above.
        unsafe { queue.write(Box::into_raw(new)) };
        Ok(())
    })
}

/// Waits for all requests and closes the queue.
///
/// # Safety
/// `queue` is null, or comes from `xgvmi_blk_queue_open` and is not closed. No other call uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xgvmi_blk_queue_close(queue: *mut XgvmiBlkQueue) -> c_int {
    call(|| {
        if queue.is_null() {
            return Ok(());
        }
        // SAFETY: it was made of a box, and nobody else uses it.
        let queue = unsafe { Box::from_raw(queue) };
        let shared = &queue.shared;
        let mut state = shared.state();
        while state.completions.len() < state.taken {
            state = shared
                .ended
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        Ok(())
    })
}

/// Descriptor that is readable as long as there is a completion; -EINVAL for null.
///
/// # Safety
/// `queue` is null, or comes from `xgvmi_blk_queue_open` and is not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xgvmi_blk_queue_fd(queue: *const XgvmiBlkQueue) -> c_int {
    // SAFETY: the caller's promise.
    match unsafe { open_queue(queue) } {
        Ok(queue) => queue.shared.event.as_raw_fd(),
        Err(failure) => call(|| Err(failure)),
    }
}

/// Submits a read.
///
/// # Safety
/// As [`xgvmi_blk_queue_fd`], and `length` bytes at `bytes` are writable, and used by nobody else, until the request has
/// ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xgvmi_blk_queue_read(
    queue: *mut XgvmiBlkQueue,
    offset: u64,
    bytes: *mut c_void,
    length: usize,
    user_data: u64,
) -> c_int {
    call(|| {
        // SAFETY: the caller's promise.
        let queue = unsafe { open_queue(queue) }?;
        let read = move |disk: &dyn Disk, mut memory: Memory| {
            // SAFETY: the caller's promise.
            disk.read(offset, unsafe { memory.bytes_mut() })
        };
        // SAFETY: the caller's promise.
        unsafe { queue.transfer(user_data, (offset, bytes, length), read) }
    })
}

/// Submits a write.
///
/// # Safety
/// As [`xgvmi_blk_queue_fd`], and `length` bytes at `bytes` are readable, and written by nobody, until the request has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xgvmi_blk_queue_write(
    queue: *mut XgvmiBlkQueue,
    offset: u64,
    bytes: *const c_void,
    length: usize,
    user_data: u64,
) -> c_int {
    call(|| {
        // SAFETY: the caller's promise.
        let queue = unsafe { open_queue(queue) }?;
        let write = move |disk: &dyn Disk, memory: Memory| {
            // SAFETY: the caller's promise.
            disk.write(offset, unsafe { memory.bytes() })
        };
        // SAFETY: the caller's promise.
        unsafe { queue.transfer(user_data, (offset, bytes.cast_mut(), length), write) }
    })
}

/// Submits a flush.
///
/// # Safety
/// As [`xgvmi_blk_queue_fd`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xgvmi_blk_queue_flush(queue: *mut XgvmiBlkQueue, user_data: u64) -> c_int {
    // SAFETY: the caller's promise.
    call(|| unsafe { open_queue(queue) }?.submit(user_data, |disk| disk.flush()))
}

/// Submits zeros.
///
/// # Safety
/// As [`xgvmi_blk_queue_fd`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xgvmi_blk_queue_write_zeroes(
    queue: *mut XgvmiBlkQueue,
    offset: u64,
    length: u64,
    user_data: u64,
) -> c_int {
    let work = move |disk: &dyn Disk| disk.write_zeroes(offset, length, false);
    // SAFETY: the caller's promise.
    call(|| unsafe { open_queue(queue) }?.submit(user_data, work))
}

/// Submits a trim.
///
/// # Safety
/// As [`xgvmi_blk_queue_fd`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xgvmi_blk_queue_trim(
    queue: *mut XgvmiBlkQueue,
    offset: u64,
    length: u64,
    user_data: u64,
) -> c_int {
    let work = move |disk: &dyn Disk| disk.trim(offset, length);
    // SAFETY: the caller's promise.
    call(|| unsafe { open_queue(queue) }?.submit(user_data, work))
}

/// Takes completions. Returns their number.
///
/// # Safety
/// As [`xgvmi_blk_queue_fd`], and `completions` has `max` places.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xgvmi_blk_queue_take(
    queue: *mut XgvmiBlkQueue,
    completions: *mut XgvmiBlkCompletion,
    min: c_uint,
    max: c_uint,
    timeout_ms: c_int,
) -> c_int {
    let mut count = 0;
    let failed = call(|| {
        // SAFETY: the caller's promise.
        let queue = unsafe { open_queue(queue) }?;
        if completions.is_null() || min > max || max > c_int::MAX.cast_unsigned() {
            return Err(Failure::invalid(
                "give places for completions, and a minimum that is not larger than the maximum",
            ));
        }
        let shared = &queue.shared;
        let state = shared.wait(min as usize, timeout_ms);
        count = shared.take(state, max as usize, |at, completion| {
            // SAFETY: the caller promises `max` places.
            unsafe { completions.add(at).write(completion) };
        });
        Ok(())
    });
    match failed {
        // Cannot be cut: at most `max`.
        0 => c_int::try_from(count).unwrap_or(c_int::MAX),
        failed => failed,
    }
}

impl Shared {
    /// Waits for so many completions, or all that can come, or the end of the time. Negative: without end.
    fn wait(&self, min: usize, timeout_ms: c_int) -> MutexGuard<'_, State> {
        let end = u64::try_from(timeout_ms).ok();
        let end = end.map(|limit| Instant::now() + Duration::from_millis(limit));
        let mut state = self.state();
        while state.completions.len() < min.min(state.taken) {
            let Some(end) = end else {
                state = self
                    .ended
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = self.ended.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state
    }

    fn take(
        &self,
        mut state: MutexGuard<'_, State>,
        max: usize,
        mut put: impl FnMut(usize, XgvmiBlkCompletion),
    ) -> usize {
        let count = state.completions.len().min(max);
        for (at, completion) in state.completions.drain(..count).enumerate() {
            put(at, completion);
        }
        state.taken -= count;
        if count > 0 && state.completions.is_empty() {
            let mut number = 0u64;
            // SAFETY: a descriptor of this value, and the eight bytes of a number.
            unsafe { libc::read(self.event.as_raw_fd(), (&raw mut number).cast(), 8) };
        }
        // Another thread may wait for requests that are no longer there.
        self.ended.notify_all();
        count
    }
}
