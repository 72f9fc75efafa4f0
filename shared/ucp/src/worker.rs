//! A UCP worker: the progress engine, the process's address, the inbox of active messages, and waiting.

use super::error::check;
use super::inbox::{InboxLimits, Message, Sender, Waiting};
use super::{Context, Result, UcpError};
use std::cell::RefCell;
use std::ffi::c_void;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::rc::Rc;
use std::time::{Duration, Instant};
use ucx_sys::{
    UCP_AM_FLAG_WHOLE_MSG, UCP_AM_HANDLER_PARAM_FIELD_ARG, UCP_AM_HANDLER_PARAM_FIELD_CB,
    UCP_AM_HANDLER_PARAM_FIELD_FLAGS, UCP_AM_HANDLER_PARAM_FIELD_ID, UCP_AM_RECV_ATTR_FLAG_RNDV,
    UCP_WORKER_ATTR_FIELD_ADDRESS, UCP_WORKER_PARAM_FIELD_THREAD_MODE, UCS_ERR_BUSY, UCS_OK,
    UCS_THREAD_MODE_SERIALIZED, Ucp, ucp_am_handler_param_t, ucp_am_recv_param_t,
    ucp_worker_attr_t, ucp_worker_h, ucp_worker_params_t, ucs_status_t,
};

/// Maximum number of steps of [`Worker::progress_until_idle`].
const PROGRESS_MAX: u32 = 256;

/// Steps after which [`Worker::progress_within`] looks at the waiting messages. Each step receives a few.
const PROGRESS_TURN: u32 = 4;

/// A worker that one thread uses at a time. Clones share it. The last object that uses it destroys it.
#[derive(Debug, Clone)]
pub struct Worker {
    inner: Rc<Inner>,
}

#[derive(Debug)]
struct Inner {
    context: Context,
    handle: ucp_worker_h,
    event_fd: RawFd,
    /// UCX calls back into the inboxes until the worker is destroyed. drop() destroys it before the
    /// fields are dropped.
    inboxes: Box<[Inbox]>,
    waiting: Rc<RefCell<Waiting>>,
}

/// Receives the messages of one identifier. All identifiers share the worker's queue, in order of
/// arrival.
#[derive(Debug)]
struct Inbox {
    id: u16,
    waiting: Rc<RefCell<Waiting>>,
}

impl Context {
    /// Creates a worker with an inbox for active messages of the identifiers `0..message_ids`.
    ///
    /// # Errors
    /// UCX's.
    pub fn worker(&self, message_ids: u16) -> Result<Worker> {
        Worker::new(self, message_ids, InboxLimits::default())
    }

    /// Like [`Context::worker`], with limits of the inbox.
    ///
    /// # Errors
    /// UCX's.
    pub fn worker_within(&self, message_ids: u16, limits: InboxLimits) -> Result<Worker> {
        Worker::new(self, message_ids, limits)
    }
}

impl Worker {
    fn new(context: &Context, message_ids: u16, limits: InboxLimits) -> Result<Self> {
        let ucp = context.ucp();
        let params = ucp_worker_params_t {
            field_mask: u64::from(UCP_WORKER_PARAM_FIELD_THREAD_MODE),
            thread_mode: UCS_THREAD_MODE_SERIALIZED,
            ..Default::default()
        };
        let mut handle = std::ptr::null_mut();
        // SAFETY: the context is alive, the one field is named in the mask, and `handle` can be written.
        let status =
            unsafe { ucp.ucp_worker_create(context.handle(), &raw const params, &raw mut handle) };
        check(ucp, "ucp_worker_create", status, String::new)?;
        let waiting = Rc::new(RefCell::new(Waiting::new(limits)));
        let inboxes = (0..message_ids).map(|id| Inbox {
            id,
            waiting: Rc::clone(&waiting),
        });
        let mut inner = Inner {
            context: context.clone(),
            handle,
            event_fd: -1,
            inboxes: inboxes.collect(),
            waiting,
        };
        // SAFETY: the worker is alive, and `event_fd` can be written.
        let status = unsafe { ucp.ucp_worker_get_efd(handle, &raw mut inner.event_fd) };
        check(ucp, "ucp_worker_get_efd", status, String::new)?;
        for inbox in &inner.inboxes {
            inner.listen(inbox)?;
        }
        Ok(Self {
            inner: Rc::new(inner),
        })
    }

    /// This worker's address, for its peers.
    ///
    /// # Errors
    /// UCX's.
    pub fn address(&self) -> Result<Vec<u8>> {
        let mut attr = ucp_worker_attr_t {
            field_mask: u64::from(UCP_WORKER_ATTR_FIELD_ADDRESS),
            ..Default::default()
        };
        let (ucp, handle) = (self.ucp(), self.handle());
        // SAFETY: the worker is alive, and `attr` can be written.
        let status = unsafe { ucp.ucp_worker_query(handle, &raw mut attr) };
        check(ucp, "ucp_worker_query", status, || "address".to_owned())?;
        // SAFETY: UCX gave this address with this length; it is valid until released, below.
        let address =
            unsafe { std::slice::from_raw_parts(attr.address.cast::<u8>(), attr.address_length) }
                .to_vec();
        // SAFETY: the address came from this worker and is released once.
        unsafe { ucp.ucp_worker_release_address(handle, attr.address) };
        Ok(address)
    }

    /// Progresses communication once. True if something happened.
    #[inline]
    pub fn progress(&self) -> bool {
        // SAFETY: the worker is alive and used by this thread alone.
        unsafe { self.ucp().ucp_worker_progress(self.handle()) != 0 }
    }

    /// Progresses communication until nothing happens, at most 256 times: a connection on which something always
    /// happens does not keep the caller from its time limits. [`Worker::arm`] tells whether there is more to do.
    #[inline]
    pub fn progress_until_idle(&self) {
        for _ in 0..PROGRESS_MAX {
            if !self.progress() {
                break;
            }
        }
    }

    /// Progresses communication until nothing happens, at most about `steps` times, and until messages of more than `waiting`
    /// bytes wait, with those of a few more steps. True if something happened.
    #[inline]
    pub fn progress_within(&self, steps: u32, waiting: usize) -> bool {
        let (progress, handle) = (self.ucp().ucp_worker_progress, self.handle());
        for turn in 0..steps.div_ceil(PROGRESS_TURN) {
            if self.waiting_bytes() > waiting {
                return turn > 0;
            }
            for step in 0..PROGRESS_TURN {
                // SAFETY: the worker is alive and used by this thread alone.
                if unsafe { progress(handle) } == 0 {
                    return turn + step > 0;
                }
            }
        }
        true
    }

    /// Takes the oldest message that `wanted` accepts.
    ///
    /// # Errors
    /// [`UcpError::InboxFull`] if messages were refused.
    #[inline]
    pub fn take(&self, wanted: impl Fn(&Message) -> bool) -> Result<Option<Message>> {
        if self.inner.waiting.borrow().is_quiet() {
            return Ok(None);
        }
        self.inner.waiting.borrow_mut().take(wanted)
    }

    /// Bytes of the messages that [`Worker::take`] can return.
    #[inline]
    #[must_use]
    pub fn waiting_bytes(&self) -> usize {
        self.inner.waiting.borrow().bytes()
    }

    /// Keeps the buffer of a message that has been handled, for a later message.
    #[inline]
    pub fn reuse(&self, message: Message) {
        self.inner.waiting.borrow_mut().reuse(message.data);
    }

    /// From now on, the worker receives messages only from senders that were passed to this function. It drops others
    /// and counts them.
    pub fn expect(&self, sender: Sender) {
        self.inner.waiting.borrow_mut().expect(sender);
    }

    /// Number of dropped messages of unexpected senders.
    #[must_use]
    pub fn strangers(&self) -> u64 {
        self.inner.waiting.borrow().strangers()
    }

    #[inline]
    pub(super) fn ucp(&self) -> &'static Ucp {
        self.inner.context.ucp()
    }

    #[inline]
    pub(super) fn handle(&self) -> ucp_worker_h {
        self.inner.handle
    }

    /// Becomes readable, once armed, when the worker has work. The worker owns it.
    #[must_use]
    pub fn event_fd(&self) -> RawFd {
        self.inner.event_fd
    }

    /// Arms the event descriptor. False if the worker already has work.
    ///
    /// # Errors
    /// UCX's.
    pub fn arm(&self) -> Result<bool> {
        // SAFETY: the worker is alive and was made in a context with the wake-up feature.
        let status = unsafe { self.ucp().ucp_worker_arm(self.handle()) };
        if status == UCS_ERR_BUSY {
            return Ok(false);
        }
        check(self.ucp(), "ucp_worker_arm", status, String::new)?;
        Ok(true)
    }
}

impl Inner {
    fn listen(&self, inbox: &Inbox) -> Result<()> {
        let params = ucp_am_handler_param_t {
            field_mask: u64::from(
                UCP_AM_HANDLER_PARAM_FIELD_ID
                    | UCP_AM_HANDLER_PARAM_FIELD_CB
                    | UCP_AM_HANDLER_PARAM_FIELD_ARG
                    | UCP_AM_HANDLER_PARAM_FIELD_FLAGS,
            ),
            id: u32::from(inbox.id),
            // A message arrives in one piece, whatever its length. Messages of different lengths
            // may overtake each other.
            flags: UCP_AM_FLAG_WHOLE_MSG,
            cb: Some(receive),
            arg: (&raw const *inbox).cast_mut().cast(),
        };
        let ucp = self.context.ucp();
        // SAFETY: the worker is alive, the fields are named in the mask, and the inbox outlives the worker: it
        // is one of `inboxes`, boxed and so never moved, which go only after drop() has destroyed the worker.
        let status = unsafe { ucp.ucp_worker_set_am_recv_handler(self.handle, &raw const params) };
        check(ucp, "ucp_worker_set_am_recv_handler", status, || {
            format!("id {}", inbox.id)
        })
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: the worker is destroyed once; every endpoint on it holds this Rc, so none is left.
        unsafe { self.context.ucp().ucp_worker_destroy(self.handle) };
    }
}

/// UCX's callback for an active message; runs inside ucp_worker_progress, so on the worker's thread.
///
/// # Safety
/// Only UCX may call it, on the worker's thread: `arg` is the pointer of the handler's registration, and header and data are
/// valid for their lengths during the call.
unsafe extern "C" fn receive(
    arg: *mut c_void,
    header: *const c_void,
    header_length: usize,
    data: *mut c_void,
    length: usize,
    param: *const ucp_am_recv_param_t,
) -> ucs_status_t {
    // SAFETY: `arg` is the inbox that listen() registered; it lives until the worker is destroyed, and only shared
    // references to it exist.
    let inbox = unsafe { &*arg.cast::<Inbox>() };
    // SAFETY: UCX passes valid parameters to every call.
    let attr = unsafe { (*param).recv_attr };
    let by_rendezvous = attr & u64::from(UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
    // The inbox is not borrowed while progress() runs. If it were, dropping the message would be better than a panic
    // here.
    let Ok(mut waiting) = inbox.waiting.try_borrow_mut() else {
        return UCS_OK;
    };
    if by_rendezvous {
        // Senders use the eager protocol (Endpoint::send).
        waiting.exceed("messages by rendezvous", 1, 0);
        return UCS_OK;
    }
    // SAFETY: UCX gives this many bytes of header, valid during the callback.
    let header = unsafe { bytes(header, header_length) };
    if let Some(account) = waiting.reserve(header, length) {
        let mut buffer = waiting.buffer();
        // SAFETY: an eager message, so UCX gives this many bytes of data, valid during the callback.
        buffer.extend_from_slice(unsafe { bytes(data, length) });
        let message = Message {
            id: inbox.id,
            header: header.into(),
            data: buffer,
        };
        waiting.push(account, message);
    }
    UCS_OK
}

/// # Safety
/// `start` is valid for `length` bytes as long as the result is used, or `length` is 0.
unsafe fn bytes<'a>(start: *const c_void, length: usize) -> &'a [u8] {
    if length == 0 {
        return &[];
    }
    // SAFETY: the caller's promise, and the length is not 0.
    unsafe { std::slice::from_raw_parts(start.cast::<u8>(), length) }
}

/// The way in which a process waits for progress of a worker.
///
/// It first polls for a short time, then sleeps on the worker's event descriptor. Idle processes so
/// leave the cores to working processes, of which there may be more than cores. While asleep it
/// also watches the control channel.
#[derive(Debug)]
pub struct Waiter {
    spin: Duration,
    control: RawFd,
}

impl Waiter {
    /// Polls for `spin` before it sleeps. `control` is a descriptor. Its hang-up ends every wait.
    /// It must stay open as long as the waiter is used.
    #[must_use]
    pub fn new(spin: Duration, control: BorrowedFd<'_>) -> Self {
        Self {
            spin,
            control: control.as_raw_fd(),
        }
    }

    /// Progresses `worker` until `ready` returns a value, for at most `limit`. `what` appears in
    /// errors.
    ///
    /// # Errors
    /// [`UcpError::Timeout`], [`UcpError::Abandoned`], or the error of `ready`, UCX or the system.
    pub fn until<T>(
        &self,
        worker: &Worker,
        limit: Duration,
        what: &'static str,
        mut ready: impl FnMut() -> Result<Option<T>>,
    ) -> Result<T> {
        let start = Instant::now();
        loop {
            worker.progress_until_idle();
            if let Some(value) = ready()? {
                return Ok(value);
            }
            let waited = start.elapsed();
            if waited < self.spin {
                std::hint::spin_loop();
            } else if waited >= limit {
                return Err(UcpError::Timeout { what, limit });
            } else if worker.arm()? {
                self.sleep(worker, limit - waited, what)?;
            }
        }
    }

    fn sleep(&self, worker: &Worker, limit: Duration, what: &'static str) -> Result<()> {
        let fd = |fd| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        };
        let mut fds = [fd(worker.inner.event_fd), fd(self.control)];
        // Only the hang-up of the control channel matters here. Commands are read between
        // operations.
        fds[1].events = libc::POLLRDHUP;
        // Rounded up, so that a limit below a millisecond still sleeps. Far below i32::MAX for all
        // practical limits.
        let timeout_ms = i32::try_from(limit.as_millis() + 1).unwrap_or(i32::MAX);
        // SAFETY: two valid pollfd structures, that many counted.
        let result = unsafe { libc::poll(fds.as_mut_ptr(), 2, timeout_ms) };
        if result < 0 {
            let source = std::io::Error::last_os_error();
            if source.kind() == std::io::ErrorKind::Interrupted {
                return Ok(());
            }
            return Err(UcpError::Wait {
                call: "poll",
                what,
                source,
            });
        }
        if fds[1].revents & (libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR) != 0 {
            return Err(UcpError::Abandoned { what });
        }
        Ok(())
    }
}
