//! Messages between two ranks, for the library that MPI programs preload (`clients/mpi`). It finds these C functions in the loaded
//! component:
//!
//! ```c
//! /* Whether there is a job of `size` ranks in which this process is `rank`: 1, and its number; or 0. */
//! int xgvmi_message_job(uint32_t rank, uint32_t size, uint8_t job[16]);
//! /* Starts to send a message to a rank of a job, or to receive one. NULL: it has not started; `why` gets the reason. Messages with
//!  * the same tag match in their order. The memory belongs to the message until its end. */
//! void *xgvmi_message_begin(const uint8_t job[16], int is_received, uint32_t peer, uint32_t tag, void *start, size_t length,
//!                           char *why, size_t room);
//! /* 0: under way; 1: complete, `length` gets the length of what was sent, also if it is more than there is memory for; -1: failed,
//!  * `why` gets the reason. Unless it is under way, it is gone then. */
//! int xgvmi_message_end(void *message, size_t *length, char *why, size_t room);
//! /* The caller waits for a message that is under way: rests as `UCC_TL_XGVMI_WAIT` says, at most 1 ms. */
//! void xgvmi_message_rest(void *message);
//! ```
//!
//! Any thread may call them. Messages that wait at the rank go on while the program is in no call: a thread makes progress while
//! messages are under way.

use crate::job::{self, Job, Progress};
use crate::log;
use crate::wait::{LOOKS, SLEEP, Wait};
use std::ffi::{c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};
use xgvmi_offload::{Memory, OffloadError, Patience, Request, Verdict};

/// Time between two looks of the thread.
const LOOK: Duration = Duration::from_millis(1);

/// A message under way.
struct Message {
    job: Arc<Job>,
    request: Request,
    length: usize,
    patience: Patience,
    /// Rests so far.
    rests: u32,
    what: String,
}

/// See above.
///
/// # Safety
/// `to` is 16 writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xgvmi_message_job(rank: u32, size: u32, to: *mut u8) -> c_int {
    let is_it = |job: &Job| job.rank == rank && job.size == size && job.failed().is_none();
    let found = catch_unwind(|| job::find(is_it));
    let Ok(Some(job)) = found else { return 0 };
    let id = job.id.to_ne_bytes();
    // SAFETY: the caller upholds the contract.
    unsafe { to.copy_from_nonoverlapping(id.as_ptr(), id.len()) };
    1
}

/// See above.
///
/// # Safety
/// `job` is 16 bytes of [`xgvmi_message_job`]. The memory is as for [`xgvmi_offload::Client::send`] or `recv`. `why` has `room`
/// writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xgvmi_message_begin(
    job: *const [u8; 16],
    is_received: c_int,
    peer: u32,
    tag: u32,
    start: *mut c_void,
    length: usize,
    why: *mut c_char,
    room: usize,
) -> *mut c_void {
    let begin = || -> Result<Message, OffloadError> {
        // SAFETY: the caller upholds the contract.
        let id = u128::from_ne_bytes(unsafe { *job });
        let found = job::find(|job| job.id == id);
        let job = found.ok_or_else(|| OffloadError::Failed("the job has ended".to_owned()))?;
        let memory = Memory::Temporary {
            start: start.cast(),
            length,
        };
        // SAFETY: the same.
        let request = unsafe { job.message(is_received != 0, [peer, tag], memory) }?;
        let direction = if is_received != 0 { "from" } else { "to" };
        Ok(Message {
            what: format!("a message of {length} bytes {direction} rank {peer}"),
            // Other ranks may be late by any time.
            patience: Patience::new(None, Instant::now()),
            rests: 0,
            job,
            request,
            length,
        })
    };
    match catch_unwind(AssertUnwindSafe(begin)) {
        Ok(Ok(message)) => {
            watch(&message.job);
            Box::into_raw(Box::new(message)).cast()
        }
        Ok(Err(error)) => {
            // SAFETY: the same.
            unsafe { say(&error.to_string(), why, room) };
            std::ptr::null_mut()
        }
        Err(_) => {
            // SAFETY: the same.
            unsafe { say("internal error", why, room) };
            std::ptr::null_mut()
        }
    }
}

/// See above.
///
/// # Safety
/// `message` is one of [`xgvmi_message_begin`] that is under way; no other thread uses it. `length` is writable, and `why` has `room`
/// writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xgvmi_message_end(
    message: *mut c_void,
    length: *mut usize,
    why: *mut c_char,
    room: usize,
) -> c_int {
    let message: *mut Message = message.cast();
    let test = || {
        // SAFETY: the caller upholds the contract.
        unsafe { &mut *message }.test()
    };
    let (said, answer) = match catch_unwind(AssertUnwindSafe(test)) {
        Ok(Ok(false)) => return 0,
        Ok(Ok(true)) => (None, 1),
        Ok(Err(error)) => (Some(error.to_string()), -1),
        Err(_) => (Some("internal error".to_owned()), -1),
    };
    if let Some(said) = said {
        // SAFETY: the same.
        unsafe { say(&said, why, room) };
    }
    // SAFETY: xgvmi_message_begin() has made it, and the caller does not use it any more.
    let message = unsafe { Box::from_raw(message) };
    let sent = message.request.message_length();
    let sent = sent.map_or(message.length, |sent| {
        usize::try_from(sent).unwrap_or(usize::MAX)
    });
    // SAFETY: the caller upholds the contract.
    unsafe { length.write(sent) };
    message.job.message_over();
    answer
}

/// See above.
///
/// # Safety
/// As for [`xgvmi_message_end`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xgvmi_message_rest(message: *mut c_void) {
    let message: *mut Message = message.cast();
    let rest = || {
        // SAFETY: the caller upholds the contract.
        unsafe { &mut *message }.rest();
    };
    // What fails is told by the next test.
    let _ = catch_unwind(AssertUnwindSafe(rest));
}

impl Message {
    fn rest(&mut self) {
        self.rests = self.rests.saturating_add(1);
        match self.job.wait {
            Wait::Yield => std::thread::yield_now(),
            Wait::Sleep if self.rests > LOOKS => self.job.rest(SLEEP),
            Wait::Spin | Wait::Sleep => {}
        }
    }

    fn test(&mut self) -> Result<bool, OffloadError> {
        match self.job.test(&mut self.request)? {
            Progress::Over => return Ok(true),
            Progress::Unknown => return Ok(false),
            Progress::Under => {}
        }
        let rank = self.job.rank;
        match self.patience.look(Instant::now()) {
            Verdict::Wait | Verdict::GiveUp(_) => Ok(false),
            Verdict::Warn(waited) => {
                if self.job.may_warn() {
                    log::warning!(
                        "rank {rank}: {} is not complete after {} s: has the other rank not started it, or with a length \
                         below the threshold, a wildcard or a probe?",
                        self.what,
                        waited.as_secs()
                    );
                }
                Ok(false)
            }
        }
    }
}

/// Starts the thread that makes progress until no message is under way, unless there is one.
fn watch(job: &Arc<Job>) {
    if !job.wants_watch() {
        return;
    }
    let of = Arc::clone(job);
    let look = move || {
        while of.advance() {
            std::thread::sleep(LOOK);
        }
    };
    // The program's signals go to its own threads: a thread inherits the mask of the one that starts it.
    // SAFETY: both sets are initialized before they are read.
    let spawned = unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let spawned = std::thread::Builder::new()
            .name("xgvmi-messages".to_owned())
            .spawn(look);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
        spawned
    };
    if let Err(error) = spawned {
        log::warning!("no thread for messages: {error}; they go on in calls of the program only");
    }
}

/// Writes a text and its end.
///
/// # Safety
/// `to` has `room` writable bytes.
unsafe fn say(text: &str, to: *mut c_char, room: usize) {
    let Some(most) = room.checked_sub(1) else {
        return;
    };
    let text = &text.as_bytes()[..text.len().min(most)];
    // SAFETY: the caller upholds the contract, and the text ends before the last byte.
    unsafe {
        to.cast::<u8>()
            .copy_from_nonoverlapping(text.as_ptr(), text.len());
        to.add(text.len()).write(0);
    }
}
