//! A context of stock UCX and a connection to itself, with the few calls that the cases need.

use std::ffi::c_void;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicU64, Ordering};

use ucx_sys::{
    UCP_ATOMIC_OP_ADD, UCP_EP_CLOSE_FLAG_FORCE, UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE,
    UCP_EP_PARAM_FIELD_REMOTE_ADDRESS, UCP_ERR_HANDLING_MODE_NONE, UCP_ERR_HANDLING_MODE_PEER,
    UCP_FEATURE_AMO64, UCP_FEATURE_EXPORTED_MEMH, UCP_FEATURE_RMA, UCP_MEM_MAP_PARAM_FIELD_ADDRESS,
    UCP_MEM_MAP_PARAM_FIELD_EXPORTED_MEMH_BUFFER, UCP_MEM_MAP_PARAM_FIELD_LENGTH,
    UCP_MEMH_PACK_FLAG_EXPORT, UCP_MEMH_PACK_PARAM_FIELD_FLAGS, UCP_OP_ATTR_FIELD_DATATYPE,
    UCP_OP_ATTR_FIELD_FLAGS, UCP_OP_ATTR_FIELD_MEMH, UCP_OP_ATTR_FIELD_MEMORY_TYPE,
    UCP_OP_ATTR_FIELD_REPLY_BUFFER, UCP_PARAM_FIELD_FEATURES, UCP_PARAM_FIELD_MT_WORKERS_SHARED,
    UCP_WORKER_ATTR_FIELD_ADDRESS, UCS_INPROGRESS, UCS_MEMORY_TYPE_HOST, UCS_OK, Ucp,
    ucp_context_h, ucp_dt_make_contig, ucp_ep_h, ucp_ep_params_t, ucp_err_handling_mode_t,
    ucp_feature, ucp_mem_h, ucp_mem_map_params_t, ucp_memh_buffer_release_params_t,
    ucp_memh_pack_params_t, ucp_params_t, ucp_request_param_t, ucp_rkey_h, ucp_worker_attr_t,
    ucp_worker_h, ucp_worker_params_t, ucs_ptr_is_ptr, ucs_ptr_status, ucs_status_t,
};

use crate::memory::Pages;

/// The API of the oldest tested UCX; newer versions support it as well.
const API: (u32, u32) = (1, 18);

/// An open context. Its creator closes it once, after all its objects are gone.
#[derive(Clone, Copy)]
pub(crate) struct Context {
    ucp: &'static Ucp,
    handle: ucp_context_h,
    /// UCX has no protocol for atomics on a connection with error handling.
    err_mode: ucp_err_handling_mode_t,
}

// SAFETY: contexts that are used by several threads are opened as shared.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// A connection of a context to itself, used by one thread.
pub(crate) struct Loopback {
    context: Context,
    worker: ucp_worker_h,
    endpoint: ucp_ep_h,
}

impl Context {
    /// Opens a context, `shared` if several threads with their own workers use it.
    pub(crate) fn open(ucp: &'static Ucp, shared: bool) -> Result<Self, String> {
        Self::with(ucp, shared, UCP_FEATURE_RMA | UCP_FEATURE_EXPORTED_MEMH)
    }

    /// Opens a context whose memory is also registered for atomics.
    pub(crate) fn open_for_atomics(ucp: &'static Ucp) -> Result<Self, String> {
        let features = UCP_FEATURE_RMA | UCP_FEATURE_AMO64 | UCP_FEATURE_EXPORTED_MEMH;
        let context = Self::with(ucp, false, features)?;
        let err_mode = UCP_ERR_HANDLING_MODE_NONE;
        Ok(Self {
            err_mode,
            ..context
        })
    }

    fn with(ucp: &'static Ucp, shared: bool, features: ucp_feature) -> Result<Self, String> {
        let fields = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED;
        let params = ucp_params_t {
            field_mask: fields.into(),
            features: features.into(),
            mt_workers_shared: shared.into(),
            ..Default::default()
        };
        let mut handle = null_mut();
        // SAFETY: the mask selects the set fields; without a configuration, UCX reads its own.
        let status = unsafe {
            ucp.ucp_init_version(API.0, API.1, &raw const params, null(), &raw mut handle)
        };
        let err_mode = UCP_ERR_HANDLING_MODE_PEER;
        let context = Self {
            ucp,
            handle,
            err_mode,
        };
        context.check("ucp_init", status)?;
        Ok(context)
    }

    pub(crate) fn close(self) {
        // SAFETY: by the contract of the type, it is open and has no objects.
        unsafe { self.ucp.ucp_cleanup(self.handle) };
    }

    /// Registers memory of this process.
    pub(crate) fn register(
        &self,
        address: *mut c_void,
        length: usize,
    ) -> Result<ucp_mem_h, String> {
        self.map(&ucp_mem_map_params_t {
            field_mask: (UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH).into(),
            address,
            length,
            ..Default::default()
        })
    }

    /// Imports memory that another context has exported.
    pub(crate) fn import(&self, key: &[u8]) -> Result<ucp_mem_h, String> {
        self.map(&ucp_mem_map_params_t {
            field_mask: UCP_MEM_MAP_PARAM_FIELD_EXPORTED_MEMH_BUFFER.into(),
            exported_memh_buffer: key.as_ptr().cast(),
            ..Default::default()
        })
    }

    fn map(&self, params: &ucp_mem_map_params_t) -> Result<ucp_mem_h, String> {
        let mut memh = null_mut();
        // SAFETY: the context is open, and the mask selects the set fields.
        let status = unsafe { self.ucp.ucp_mem_map(self.handle, params, &raw mut memh) };
        self.check("ucp_mem_map", status)?;
        Ok(memh)
    }

    /// The key by which another context imports the memory.
    pub(crate) fn export(&self, memh: ucp_mem_h) -> Result<Vec<u8>, String> {
        let params = ucp_memh_pack_params_t {
            field_mask: UCP_MEMH_PACK_PARAM_FIELD_FLAGS.into(),
            flags: UCP_MEMH_PACK_FLAG_EXPORT.into(),
        };
        let (mut buffer, mut bytes) = (null_mut(), 0);
        // SAFETY: the memory is mapped, and the mask selects the set fields.
        let status = unsafe {
            self.ucp
                .ucp_memh_pack(memh, &raw const params, &raw mut buffer, &raw mut bytes)
        };
        self.check("ucp_memh_pack", status)?;
        // SAFETY: UCX returned a buffer of that length.
        let key = unsafe { std::slice::from_raw_parts(buffer.cast::<u8>(), bytes) }.to_vec();
        let params = ucp_memh_buffer_release_params_t::default();
        // SAFETY: the buffer is UCX's.
        unsafe { self.ucp.ucp_memh_buffer_release(buffer, &raw const params) };
        Ok(key)
    }

    /// Releases memory that this context has mapped or imported.
    pub(crate) fn unmap(&self, memh: ucp_mem_h) -> Result<(), String> {
        // SAFETY: the memory belongs to this context and is released here.
        let status = unsafe { self.ucp.ucp_mem_unmap(self.handle, memh) };
        self.check("ucp_mem_unmap", status)
    }

    /// Packs memory for a remote peer, and passes the buffer to a function.
    pub(crate) fn pack_rkey<R>(
        &self,
        memh: ucp_mem_h,
        look: impl FnOnce(*const c_void) -> R,
    ) -> Result<R, String> {
        let (mut buffer, mut bytes) = (null_mut(), 0);
        // SAFETY: the memory is mapped.
        let status = unsafe {
            self.ucp
                .ucp_rkey_pack(self.handle, memh, &raw mut buffer, &raw mut bytes)
        };
        self.check("ucp_rkey_pack", status)?;
        let seen = look(buffer);
        // SAFETY: the buffer is UCX's.
        unsafe { self.ucp.ucp_rkey_buffer_release(buffer) };
        Ok(seen)
    }

    /// Connects to itself.
    pub(crate) fn connect(&self) -> Result<Loopback, String> {
        let ucp = self.ucp;
        let mut worker = null_mut();
        let params = ucp_worker_params_t::default();
        // SAFETY: the context is open.
        let status =
            unsafe { ucp.ucp_worker_create(self.handle, &raw const params, &raw mut worker) };
        self.check("ucp_worker_create", status)?;
        let mut attributes = ucp_worker_attr_t {
            field_mask: UCP_WORKER_ATTR_FIELD_ADDRESS.into(),
            ..Default::default()
        };
        // SAFETY: the worker exists, and the mask selects the requested fields.
        let status = unsafe { ucp.ucp_worker_query(worker, &raw mut attributes) };
        self.check("ucp_worker_query", status)?;
        let address = attributes.address;
        let fields = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
        let params = ucp_ep_params_t {
            field_mask: fields.into(),
            address,
            err_mode: self.err_mode,
            ..Default::default()
        };
        let mut endpoint = null_mut();
        // SAFETY: the worker exists, and the address is its own.
        let status = unsafe { ucp.ucp_ep_create(worker, &raw const params, &raw mut endpoint) };
        // SAFETY: the address came from the worker.
        unsafe { ucp.ucp_worker_release_address(worker, address) };
        self.check("ucp_ep_create", status)?;
        Ok(Loopback {
            context: *self,
            worker,
            endpoint,
        })
    }

    fn check(&self, call: &str, status: ucs_status_t) -> Result<(), String> {
        if status == UCS_OK {
            Ok(())
        } else {
            Err(format!("{call}: {}", self.ucp.status_string(status)))
        }
    }
}

/// Parameters of a transfer with a memory handle of host memory.
fn of_host(memh: ucp_mem_h) -> ucp_request_param_t {
    ucp_request_param_t {
        op_attr_mask: UCP_OP_ATTR_FIELD_MEMH | UCP_OP_ATTR_FIELD_MEMORY_TYPE,
        memh,
        memory_type: UCS_MEMORY_TYPE_HOST,
        ..Default::default()
    }
}

impl Loopback {
    /// Lets the adapter copy the memory's bytes to memory of this process, and checks them.
    pub(crate) fn pull(
        &self,
        memh: ucp_mem_h,
        address: *mut c_void,
        bytes: usize,
        seed: u32,
    ) -> Result<(), String> {
        let mut pages = Pages::map(bytes).map_err(|error| error.to_string())?;
        pages.spoil(seed);
        let target = self.context.register(pages.address(), bytes)?;
        let rkey = self.own_rkey(target)?;
        let params = of_host(memh);
        let (endpoint, ucp) = (self.endpoint, self.context.ucp);
        let to = pages.address().addr() as u64;
        // SAFETY: the memory handle identifies the source in another process, so only the adapter
        // accesses it; the target is mapped until the flush is complete.
        let put = unsafe { ucp.ucp_put_nbx(endpoint, address, bytes, to, rkey, &raw const params) };
        self.wait("ucp_put_nbx", put)?;
        let params = ucp_request_param_t::default();
        // SAFETY: the endpoint is open.
        let flush = unsafe { ucp.ucp_ep_flush_nbx(endpoint, &raw const params) };
        self.wait("ucp_ep_flush_nbx", flush)?;
        // SAFETY: no operation uses it any more.
        unsafe { ucp.ucp_rkey_destroy(rkey) };
        self.context.unmap(target)?;
        pages.check(seed)
    }

    /// Lets the adapter copy bytes of this process to the memory.
    pub(crate) fn push(
        &self,
        memh: ucp_mem_h,
        address: *mut c_void,
        bytes: usize,
        seed: u32,
    ) -> Result<(), String> {
        let mut pages = Pages::map(bytes).map_err(|error| error.to_string())?;
        pages.fill(seed);
        let source = self.context.register(pages.address(), bytes)?;
        let rkey = self.own_rkey(source)?;
        let params = of_host(memh);
        let (endpoint, ucp) = (self.endpoint, self.context.ucp);
        let from = pages.address().addr() as u64;
        // SAFETY: the memory handle identifies the target in another process, or a decoy; the
        // source is mapped until the request is complete.
        let get =
            unsafe { ucp.ucp_get_nbx(endpoint, address, bytes, from, rkey, &raw const params) };
        let got = self.wait("ucp_get_nbx", get);
        // SAFETY: no operation uses it any more.
        unsafe { ucp.ucp_rkey_destroy(rkey) };
        self.context.unmap(source)?;
        got
    }

    /// Lets the adapter add different numbers to words of this process's memory, at its begin and
    /// at increasing offsets, and checks each word and each earlier value.
    pub(crate) fn add(&self, memh: ucp_mem_h, words: *mut u64, times: u64) -> Result<(), String> {
        let rkey = self.own_rkey(memh)?;
        let mut all = Ok(());
        for number in 0..times {
            let at = usize::try_from(number * number).map_err(|error| error.to_string())?;
            // SAFETY: the caller's memory has this word, and nothing else accesses it.
            let word = unsafe { AtomicU64::from_ptr(words.add(at)) };
            let (before, operand) = (word.load(Ordering::SeqCst), number << 33 | 1);
            let mut fetched = 0_u64;
            let params = ucp_request_param_t {
                op_attr_mask: UCP_OP_ATTR_FIELD_DATATYPE | UCP_OP_ATTR_FIELD_REPLY_BUFFER,
                datatype: ucp_dt_make_contig(8),
                reply_buffer: (&raw mut fetched).cast(),
                ..Default::default()
            };
            // SAFETY: operand and result live until the request is complete.
            let request = unsafe {
                self.context.ucp.ucp_atomic_op_nbx(
                    self.endpoint,
                    UCP_ATOMIC_OP_ADD,
                    (&raw const operand).cast(),
                    1,
                    word.as_ptr().addr() as u64,
                    rkey,
                    &raw const params,
                )
            };
            let added = self.wait("ucp_atomic_op_nbx", request);
            let after = word.load(Ordering::SeqCst);
            all = added.and(
                match (fetched == before, after == before.wrapping_add(operand)) {
                    (true, true) => Ok(()),
                    _ => Err(format!(
                        "word {at}: {before:#x}, fetched {fetched:#x}, now {after:#x}"
                    )),
                },
            );
            if all.is_err() {
                break;
            }
        }
        // SAFETY: no operation uses it any more.
        unsafe { self.context.ucp.ucp_rkey_destroy(rkey) };
        all
    }

    /// An rkey of this process's own memory, for the connection to itself.
    fn own_rkey(&self, memh: ucp_mem_h) -> Result<ucp_rkey_h, String> {
        let mut rkey = null_mut();
        let (endpoint, ucp) = (self.endpoint, self.context.ucp);
        let status = self.context.pack_rkey(memh, |buffer| {
            // SAFETY: the endpoint is open, and the buffer is UCX's.
            unsafe { ucp.ucp_ep_rkey_unpack(endpoint, buffer, &raw mut rkey) }
        })?;
        self.context.check("ucp_ep_rkey_unpack", status)?;
        Ok(rkey)
    }

    fn wait(&self, call: &str, request: *mut c_void) -> Result<(), String> {
        if !ucs_ptr_is_ptr(request) {
            return self.context.check(call, ucs_ptr_status(request));
        }
        let ucp = self.context.ucp;
        loop {
            // SAFETY: the request is in progress.
            let status = unsafe { ucp.ucp_request_check_status(request) };
            if status != UCS_INPROGRESS {
                // SAFETY: it is complete.
                unsafe { ucp.ucp_request_free(request) };
                return self.context.check(call, status);
            }
            // SAFETY: the worker exists, and only this thread uses it.
            unsafe { ucp.ucp_worker_progress(self.worker) };
        }
    }

    pub(crate) fn close(self) {
        let params = ucp_request_param_t {
            op_attr_mask: UCP_OP_ATTR_FIELD_FLAGS,
            flags: UCP_EP_CLOSE_FLAG_FORCE,
            ..Default::default()
        };
        // SAFETY: nothing uses the endpoint any more.
        let close = unsafe {
            self.context
                .ucp
                .ucp_ep_close_nbx(self.endpoint, &raw const params)
        };
        // A failure to close a connection to itself does not matter here.
        let _closed = self.wait("ucp_ep_close_nbx", close);
        // SAFETY: its only endpoint is closed.
        unsafe { self.context.ucp.ucp_worker_destroy(self.worker) };
    }
}
