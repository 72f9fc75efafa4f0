//! A UCP endpoint: a connection to one peer's worker.

use super::error::check;
use super::inbox::Sender;
use super::request::Holds;
use super::{Request, Result, Waiter, Worker};
use std::cell::{Cell, OnceCell};
use std::ffi::c_void;
use std::rc::Rc;
use std::time::Duration;
use ucx_sys::{
    UCP_AM_SEND_FLAG_EAGER, UCP_EP_CLOSE_FLAG_FORCE, UCP_EP_PARAM_FIELD_ERR_HANDLER,
    UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE, UCP_EP_PARAM_FIELD_REMOTE_ADDRESS,
    UCP_ERR_HANDLING_MODE_NONE, UCP_ERR_HANDLING_MODE_PEER, UCP_OP_ATTR_FIELD_CALLBACK,
    UCP_OP_ATTR_FIELD_FLAGS, UCP_OP_ATTR_FIELD_MEMH, UCP_OP_ATTR_FIELD_MEMORY_TYPE,
    UCP_OP_ATTR_FIELD_USER_DATA, UCS_ERR_NOT_CONNECTED, UCS_MEMORY_TYPE_HOST, UCS_OK, Ucp,
    ucp_ep_h, ucp_ep_params_t, ucp_err_handler_t, ucp_err_handling_mode_t, ucp_request_param_t,
    ucp_rkey_h, ucp_send_nbx_callback_t, ucs_status_ptr_t, ucs_status_t,
};

/// A connection. Clones share it. [`Endpoint::close`], or the drop of the last clone, closes it.
#[derive(Debug, Clone)]
pub struct Endpoint {
    inner: Rc<Inner>,
}

/// A message that was sent with [`Endpoint::send_as`].
#[derive(Debug)]
pub enum Sent {
    /// UCX has sent or copied it. Its data is free for another message.
    AtOnce(Vec<u8>),
    /// It is under way.
    Started(Request),
}

#[derive(Debug)]
struct Inner {
    worker: Worker,
    handle: Cell<ucp_ep_h>,
    peer: String,
    /// Without this flag UCX refuses an immediate close.
    handles_errors: bool,
    /// The sender of the first message, see [`Endpoint::send_as`].
    sender: OnceCell<Sender>,
    /// UCX's error callback writes it. Boxed, so that the callback's argument does not move.
    failure: Box<Cell<ucs_status_t>>,
}

impl Worker {
    /// Connects to the worker that has `address`; `peer` names it in errors.
    ///
    /// # Errors
    /// UCX's error. `Destination is unreachable` means that the two sides have no common transport.
    ///
    /// # Safety
    /// `address` holds the bytes of some worker's [`Worker::address`], unchanged: UCX reads them without knowing
    /// their length.
    pub unsafe fn connect(&self, address: &[u8], peer: &str) -> Result<Endpoint> {
        // Without peer error handling UCX ends the process on a transport error, and no error names
        // the step.
        // SAFETY: the caller's contract is the callee's.
        unsafe { Endpoint::connect(self, address, peer, UCP_ERR_HANDLING_MODE_PEER) }
    }

    /// Like [`Worker::connect`], for gets into imported memory, with every UCX from 1.18 on. Both
    /// sides must use it.
    ///
    /// UCX 1.18 has no zero-copy get on a connection with peer error handling. Its CPU would copy
    /// from addresses of other processes. With UCX 1.18 the connection therefore has no error
    /// handling, and UCX ends this process if the peer dies.
    ///
    /// # Errors
    /// As [`Worker::connect`].
    ///
    /// # Safety
    /// As [`Worker::connect`].
    pub unsafe fn connect_for_gets(&self, address: &[u8], peer: &str) -> Result<Endpoint> {
        let err_mode = if self.ucp().version().starts_with("1.18.") {
            UCP_ERR_HANDLING_MODE_NONE
        } else {
            UCP_ERR_HANDLING_MODE_PEER
        };
        // SAFETY: the caller's promise is the callee's.
        unsafe { Endpoint::connect(self, address, peer, err_mode) }
    }
}

impl Endpoint {
    /// # Safety
    /// As [`Worker::connect`].
    unsafe fn connect(
        worker: &Worker,
        address: &[u8],
        peer: &str,
        err_mode: ucp_err_handling_mode_t,
    ) -> Result<Self> {
        let failure = Box::new(Cell::new(UCS_OK));
        let params = ucp_ep_params_t {
            field_mask: u64::from(
                UCP_EP_PARAM_FIELD_REMOTE_ADDRESS
                    | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE
                    | UCP_EP_PARAM_FIELD_ERR_HANDLER,
            ),
            address: address.as_ptr().cast(),
            err_mode,
            err_handler: ucp_err_handler_t {
                cb: Some(failed),
                arg: (&raw const *failure).cast_mut().cast(),
            },
            ..Default::default()
        };
        let ucp = worker.ucp();
        let mut handle = std::ptr::null_mut();
        // SAFETY: the worker is alive, the fields are named in the mask, the caller vouches for the address, the
        // callback's argument lives as long as the endpoint, and `handle` can be written.
        let status =
            unsafe { ucp.ucp_ep_create(worker.handle(), &raw const params, &raw mut handle) };
        check(ucp, "ucp_ep_create", status, || peer.to_owned())?;
        Ok(Self {
            inner: Rc::new(Inner {
                worker: worker.clone(),
                handle: Cell::new(handle),
                peer: peer.to_owned(),
                handles_errors: err_mode == UCP_ERR_HANDLING_MODE_PEER,
                sender: OnceCell::new(),
                failure,
            }),
        })
    }

    /// The peer's name, from [`Worker::connect`].
    #[must_use]
    pub fn peer(&self) -> &str {
        &self.inner.peer
    }

    /// Sends an active message with the eager protocol, for control messages and short data.
    ///
    /// # Errors
    /// The connection's error, if it has failed before.
    pub fn send(&self, id: u16, header: Vec<u8>, data: Vec<u8>) -> Result<Request> {
        self.check_alive()?;
        let param = ucp_request_param_t {
            op_attr_mask: UCP_OP_ATTR_FIELD_FLAGS,
            flags: UCP_AM_SEND_FLAG_EAGER,
            ..Default::default()
        };
        // SAFETY: the endpoint is alive, and header and data live until the operation is complete: the request holds
        // them (moving a Vec does not move its bytes).
        let answer = unsafe {
            self.worker().ucp().ucp_am_send_nbx(
                self.handle(),
                u32::from(id),
                header.as_ptr().cast(),
                header.len(),
                data.as_ptr().cast(),
                data.len(),
                &raw const param,
            )
        };
        let holds = Holds::Message { header, data };
        Ok(Request::new(self.worker(), answer, holds))
    }

    /// Like [`Endpoint::send`], with a header that only names the sender. It is cheapest if all messages over the
    /// connection have the same sender.
    ///
    /// # Errors
    /// As [`Endpoint::send`].
    #[inline]
    pub fn send_as(&self, id: u16, sender: Sender, data: Vec<u8>) -> Result<Sent> {
        // The connection keeps the header, so no message allocates it. UCX would allocate a copy of it.
        let header = self.inner.sender.get_or_init(|| sender);
        if *header != sender {
            return self.send(id, sender.to_vec(), data).map(Sent::Started);
        }
        self.check_alive()?;
        let param = ucp_request_param_t {
            op_attr_mask: UCP_OP_ATTR_FIELD_FLAGS,
            flags: UCP_AM_SEND_FLAG_EAGER,
            ..Default::default()
        };
        // SAFETY: the endpoint is alive, and header and data live until the operation is complete: the request holds
        // the connection, which never moves its header, and the data (moving a Vec does not move its bytes).
        let answer = unsafe {
            self.worker().ucp().ucp_am_send_nbx(
                self.handle(),
                u32::from(id),
                header.as_ptr().cast(),
                header.len(),
                data.as_ptr().cast(),
                data.len(),
                &raw const param,
            )
        };
        if answer.is_null() {
            return Ok(Sent::AtOnce(data));
        }
        let to: Rc<Inner> = Rc::clone(&self.inner);
        let holds = Holds::SentAs { to, data };
        Ok(Sent::Started(Request::new(self.worker(), answer, holds)))
    }

    /// Starts a get with a key of this endpoint, whose UCX comes with it. `param` is of [`get_param`], with the handle that
    /// [`ImportedMemory::access_run`] has returned for a range with these bytes. It serves any number of gets.
    #[inline(always)]
    pub(super) fn post_get(
        &self,
        (ucp, key): (&Ucp, ucp_rkey_h),
        remote_address: u64,
        address: u64,
        length: usize,
        param: &ucp_request_param_t,
    ) -> Result<ucs_status_ptr_t> {
        self.check_alive()?;
        // An address of another process. This process never dereferences it, because access_run()
        // refuses all lengths that UCX would copy with the CPU.
        let destination = std::ptr::without_provenance_mut::<c_void>(usize_of(address));
        // SAFETY: endpoint and key belong together; the handle covers the destination; the caller holds both until the
        // operation is complete. A wrong remote address is refused by the peer's device.
        Ok(unsafe {
            (ucp.ucp_get_nbx)(
                self.handle(),
                destination,
                length,
                remote_address,
                key,
                param,
            )
        })
    }

    /// Starts to close the connection like [`Endpoint::close`], without waiting: outstanding
    /// operations end with an error while the worker makes progress.
    pub fn abandon(&self) {
        drop(self.inner.close());
    }

    /// Closes the connection without asking the peer. Both sides must have agreed that they are
    /// finished, because outstanding operations are lost.
    ///
    /// An orderly close would wait for the peer's acknowledgement, for as long as UCX's longest
    /// timeout if the peer has already closed its side.
    ///
    /// # Errors
    /// UCX's error, or that of the wait. The endpoint is closed in any case.
    pub fn close(&self, waiter: &Waiter, limit: Duration) -> Result<()> {
        self.inner
            .close()
            .map_or(Ok(()), |request| request.wait(waiter, limit))
    }

    #[inline]
    pub(super) fn worker(&self) -> &Worker {
        &self.inner.worker
    }

    #[inline]
    pub(super) fn handle(&self) -> ucp_ep_h {
        self.inner.handle.get()
    }

    #[inline(always)]
    pub(super) fn check_alive(&self) -> Result<()> {
        if !self.handle().is_null() && self.inner.failure.get() == UCS_OK {
            return Ok(());
        }
        self.check_failed()
    }

    #[cold]
    fn check_failed(&self) -> Result<()> {
        let status = if self.handle().is_null() {
            UCS_ERR_NOT_CONNECTED
        } else {
            self.inner.failure.get()
        };
        check(self.worker().ucp(), "connection", status, || {
            self.peer().to_owned()
        })
    }
}

impl Inner {
    /// Closes the endpoint on the first call and returns the operation that does it.
    fn close(&self) -> Option<Request> {
        let handle = self.handle.replace(std::ptr::null_mut());
        if handle.is_null() {
            return None;
        }
        if !self.handles_errors {
            // It is destroyed with its worker. An orderly close would wait for a peer that may no
            // longer exist.
            return None;
        }
        let param = ucp_request_param_t {
            op_attr_mask: UCP_OP_ATTR_FIELD_FLAGS,
            flags: UCP_EP_CLOSE_FLAG_FORCE,
            ..Default::default()
        };
        let ucp = self.worker.ucp();
        // SAFETY: the endpoint came from ucp_ep_create and is closed once: its handle was just taken away.
        let answer = unsafe { ucp.ucp_ep_close_nbx(handle, &raw const param) };
        Some(Request::new(&self.worker, answer, Holds::Nothing))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Only after an error: the process is about to end, and a wait could hang.
        drop(self.close());
        if !self.handles_errors {
            // The endpoint is open until its worker is destroyed, and UCX may call back until then.
            // A few bytes are leaked.
            let none = Box::new(Cell::new(UCS_OK));
            Box::leak(std::mem::replace(&mut self.failure, none));
        }
    }
}

/// Parameters of gets. `end` is the callback for their ends, and its argument.
pub(super) fn get_param(
    end: Option<(ucp_send_nbx_callback_t, *mut c_void)>,
) -> ucp_request_param_t {
    let mut param = ucp_request_param_t {
        op_attr_mask: UCP_OP_ATTR_FIELD_MEMH | UCP_OP_ATTR_FIELD_MEMORY_TYPE,
        memory_type: UCS_MEMORY_TYPE_HOST,
        ..Default::default()
    };
    if let Some((callback, argument)) = end {
        param.op_attr_mask |= UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
        param.cb.send = callback;
        param.user_data = argument;
    }
    param
}

/// UCX's callback for a failed connection: stores the reason for the next call.
///
/// # Safety
/// Only UCX may call it, on the worker's thread: `arg` is the cell that the endpoint was created with, and the endpoint lives.
unsafe extern "C" fn failed(arg: *mut c_void, _endpoint: ucp_ep_h, status: ucs_status_t) {
    // SAFETY: `arg` is the cell that connect() registered. It lives as long as the endpoint, and UCX calls back from
    // the worker's progress, so on its thread.
    unsafe { &*arg.cast::<Cell<ucs_status_t>>() }.set(status);
}

/// Addresses are 64 bits wide on the wire and on every machine that UCX's mlx5 module runs on.
const fn usize_of(address: u64) -> usize {
    const { assert!(size_of::<usize>() == size_of::<u64>()) };
    #[expect(clippy::cast_possible_truncation, reason = "the same width, see above")]
    let address = address as usize;
    address
}
