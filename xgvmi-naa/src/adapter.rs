//! The DPU's adapter: registered memory, and transfers between it and the host's memory through aliases.

use mlx5dv_sys::*;
use naaice::wire::REGIONS_MAX;
use std::ffi::c_int;
use std::io;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::time::{Duration, Instant};
use xgvmi_pool::mlx5::{Mlx5Device, Mlx5Options};
use xgvmi_pool::{Lkey, VirtAddr};

/// Time limit of one transfer. 64 MiB take milliseconds; an adapter without answer is broken.
const TRANSFER_LIMIT: Duration = Duration::from_secs(30);
/// Maximum bytes of one request, below the adapter's 2 GiB.
const REQUEST_BYTES_MAX: usize = 1 << 30;
/// Requests of a chain: the regions of a session.
const CHAIN_MAX: usize = REGIONS_MAX;
/// Reads in flight. Every mlx5 device supports 16.
const READS_MAX: u8 = 16;
const PORT: u8 = 1;

/// An error of the adapter.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AdapterError {
    /// A call failed.
    #[error("{call}: {source}")]
    Call {
        call: &'static str,
        source: io::Error,
    },
    /// There is no such device, or it cannot import keys.
    #[error("{0}")]
    Device(String),
    /// The adapter refused an access.
    #[error("the adapter refused an access to the host's memory: completion status {0}")]
    Refused(u32),
    /// No completion within the limit.
    #[error("no completion of a transfer within {} s", TRANSFER_LIMIT.as_secs())]
    Late,
}

type Result<T> = std::result::Result<T, AdapterError>;

/// An open device with a protection domain.
#[derive(Debug)]
pub(crate) struct Adapter {
    lib: Arc<Mlx5Lib>,
    context: NonNull<ibv_context>,
    pd: NonNull<ibv_pd>,
    device: Option<Arc<Mlx5Device>>,
}

// SAFETY: libibverbs' objects may be used from any thread.
unsafe impl Send for Adapter {}
// SAFETY: as above.
unsafe impl Sync for Adapter {}

impl Adapter {
    /// Opens the mlx5 device with this name, or the first one.
    pub(crate) fn open(name: Option<&str>) -> Result<Self> {
        let lib = Mlx5Lib::open().map_err(|error| AdapterError::Device(error.to_string()))?;
        let lib = Arc::new(lib);
        let context = open_device(&lib, name)?;
        // SAFETY: just opened.
        let Some(pd) = NonNull::new(unsafe { lib.ibv_alloc_pd(context.as_ptr()) }) else {
            let error = last("ibv_alloc_pd");
            // SAFETY: just opened, without objects.
            unsafe { lib.ibv_close_device(context.as_ptr()) };
            return Err(error);
        };
        let mut adapter = Self {
            lib: Arc::clone(&lib),
            context,
            pd,
            device: None,
        };
        // SAFETY: opened with DEVX by this library; the drop closes the device before context and domain.
        let device = unsafe { Mlx5Device::open(lib, context, pd, Mlx5Options::default()) };
        adapter.device = Some(device.map_err(|error| AdapterError::Device(error.to_string()))?);
        Ok(adapter)
    }

    /// The device for aliases.
    pub(crate) fn device(&self) -> Arc<Mlx5Device> {
        Arc::clone(self.device.as_ref().expect("set by open"))
    }
}

impl Drop for Adapter {
    fn drop(&mut self) {
        if self.device.take().is_some_and(|device| !device.close()) {
            // An object remains: context and domain must stay as well.
            return;
        }
        // SAFETY: the domain has no objects: memory and queues hold an Arc of the adapter.
        unsafe { self.lib.ibv_dealloc_pd(self.pd.as_ptr()) };
        // SAFETY: its domain is gone.
        unsafe { self.lib.ibv_close_device(self.context.as_ptr()) };
    }
}

fn open_device(lib: &Mlx5Lib, name: Option<&str>) -> Result<NonNull<ibv_context>> {
    let mut count: c_int = 0;
    // SAFETY: the list is freed below, after the device was opened.
    let list = unsafe { lib.ibv_get_device_list(&raw mut count) };
    if list.is_null() {
        return Err(last("ibv_get_device_list"));
    }
    let mut names = Vec::new();
    let mut opened = None;
    for index in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the list has `count` entries.
        let device = unsafe { *list.add(index) };
        // SAFETY: a device of the list.
        if !unsafe { lib.mlx5dv_is_supported(device) } {
            continue;
        }
        // SAFETY: a device of the list has a name as long as the list lives.
        let found = unsafe { std::ffi::CStr::from_ptr(lib.ibv_get_device_name(device)) };
        let found = found.to_string_lossy().into_owned();
        if name.is_none_or(|name| name == found) {
            let mut attr = mlx5dv_context_attr {
                flags: MLX5DV_CONTEXT_FLAGS_DEVX,
                ..mlx5dv_context_attr::default()
            };
            // SAFETY: an mlx5 device of the list.
            let context = unsafe { lib.mlx5dv_open_device(device, &raw mut attr) };
            opened = Some(NonNull::new(context).ok_or_else(|| last("mlx5dv_open_device")));
            break;
        }
        names.push(found);
    }
    // SAFETY: the list of above; an open device does not need it.
    unsafe { lib.ibv_free_device_list(list) };
    opened.unwrap_or_else(|| {
        Err(AdapterError::Device(match name {
            Some(name) => format!("no mlx5 device {name}; there are {names:?}"),
            None => "no mlx5 device: check that the driver is loaded (ibv_devices)".to_owned(),
        }))
    })
}

/// Memory that the adapter may read and write. It does not own the memory.
#[derive(Debug)]
pub(crate) struct Registered {
    adapter: Arc<Adapter>,
    mr: NonNull<ibv_mr>,
}

// SAFETY: libibverbs' objects may be used from any thread.
unsafe impl Send for Registered {}

impl Registered {
    /// # Safety
    /// The memory stays mapped as long as the result lives.
    pub(crate) unsafe fn new(adapter: &Arc<Adapter>, addr: *mut u8, len: usize) -> Result<Self> {
        let at = addr as u64;
        // SAFETY: the caller's promise. Peers get no access.
        let mr = unsafe {
            adapter.lib.ibv_reg_mr_iova2(
                adapter.pd.as_ptr(),
                addr.cast(),
                len,
                at,
                IBV_ACCESS_LOCAL_WRITE,
            )
        };
        Ok(Self {
            adapter: Arc::clone(adapter),
            mr: NonNull::new(mr).ok_or_else(|| last("ibv_reg_mr"))?,
        })
    }

    fn lkey(&self) -> u32 {
        // SAFETY: live as long as this value.
        unsafe { self.mr.as_ref() }.lkey
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // SAFETY: registered by `new`; transfers are synchronous, so none uses it.
        unsafe { self.adapter.lib.ibv_dereg_mr(self.mr.as_ptr()) };
    }
}

/// Direction of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From the host.
    Read,
    /// To the host.
    Write,
}

/// Two queue pairs of this function, connected to each other. A request of the first one goes through the second one,
/// in the function that owns the alias.
#[derive(Debug)]
pub(crate) struct Mover {
    requester: QueuePair,
    /// The responder of the requests.
    _responder: QueuePair,
}

impl Mover {
    pub(crate) fn connect(adapter: &Arc<Adapter>) -> Result<Self> {
        let (requester, responder) = (QueuePair::create(adapter)?, QueuePair::create(adapter)?);
        requester.connect(responder.number())?;
        responder.connect(requester.number())?;
        Ok(Self {
            requester,
            _responder: responder,
        })
    }

    /// Transfers pieces between registered memory and the host's memory: chains of requests, each with one doorbell
    /// and one completion. After an error the queue pairs are unusable.
    ///
    /// # Safety
    /// Each piece's local range is inside the registered memory, which nobody accesses during the call.
    pub(crate) unsafe fn transfer(
        &self,
        direction: Direction,
        memory: &Registered,
        pieces: &[Piece],
    ) -> Result<()> {
        let requests: Vec<Piece> = pieces.iter().flat_map(Piece::split).collect();
        for chain in requests.chunks(CHAIN_MAX) {
            // SAFETY: the caller's promise.
            unsafe { self.post(direction, memory, chain) }?;
            self.requester.wait()?;
        }
        Ok(())
    }

    /// Posts a chain. Its last request has a completion.
    ///
    /// # Safety
    /// As for [`Self::transfer`], until the completion.
    unsafe fn post(
        &self,
        direction: Direction,
        memory: &Registered,
        chain: &[Piece],
    ) -> Result<()> {
        let mut sges: Vec<ibv_sge> = chain
            .iter()
            .map(|piece| ibv_sge {
                addr: piece.local as u64,
                length: u32::try_from(piece.len).expect("at most 1 GiB"),
                lkey: memory.lkey(),
            })
            .collect();
        let mut requests: Vec<ibv_send_wr> = chain
            .iter()
            .zip(&mut sges)
            .map(|(piece, sge)| {
                let mut request = ibv_send_wr {
                    sg_list: ptr::from_mut(sge),
                    num_sge: 1,
                    opcode: match direction {
                        Direction::Read => IBV_WR_RDMA_READ,
                        Direction::Write => IBV_WR_RDMA_WRITE,
                    },
                    ..ibv_send_wr::default()
                };
                request.wr.rdma.remote_addr = piece.remote.get();
                request.wr.rdma.rkey = piece.alias.raw();
                request
            })
            .collect();
        for index in 1..requests.len() {
            let next = &raw mut requests[index];
            requests[index - 1].next = next;
        }
        if let Some(last) = requests.last_mut() {
            last.send_flags = IBV_SEND_SIGNALED;
        }
        let mut bad = ptr::null_mut();
        let qp = self.requester.qp.as_ptr();
        // SAFETY: the queue pair is live and has space for a chain; the list lives through the call; the caller
        // vouches for the memory until the completion.
        let errno = unsafe { ibv_post_send(qp, requests.as_mut_ptr(), &raw mut bad) };
        check("ibv_post_send", errno)
    }
}

/// A range of registered memory and its counterpart in the host's memory, which `alias` refers to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Piece {
    pub(crate) local: *mut u8,
    pub(crate) alias: Lkey,
    pub(crate) remote: VirtAddr,
    pub(crate) len: usize,
}

impl Piece {
    /// The piece in parts that a request can transfer.
    fn split(&self) -> impl Iterator<Item = Self> {
        let whole = *self;
        (0..whole.len)
            .step_by(REQUEST_BYTES_MAX)
            .map(move |at| Self {
                local: whole.local.wrapping_add(at),
                remote: VirtAddr::new(whole.remote.get() + at as u64),
                len: (whole.len - at).min(REQUEST_BYTES_MAX),
                ..whole
            })
    }
}

/// A queue pair with its own completion queue.
#[derive(Debug)]
struct QueuePair {
    adapter: Arc<Adapter>,
    cq: NonNull<ibv_cq>,
    qp: NonNull<ibv_qp>,
}

// SAFETY: libibverbs' objects may be used from any thread.
unsafe impl Send for QueuePair {}

impl QueuePair {
    fn create(adapter: &Arc<Adapter>) -> Result<Self> {
        let lib = &adapter.lib;
        // After an error each request of a chain has a completion.
        let entries = c_int::try_from(CHAIN_MAX).expect("a small constant");
        let none = ptr::null_mut();
        // SAFETY: the context is open.
        let cq = unsafe {
            lib.ibv_create_cq(adapter.context.as_ptr(), entries, none, ptr::null_mut(), 0)
        };
        let cq = NonNull::new(cq).ok_or_else(|| last("ibv_create_cq"))?;
        let mut init = ibv_qp_init_attr {
            send_cq: cq.as_ptr(),
            recv_cq: cq.as_ptr(),
            qp_type: IBV_QPT_RC,
            ..ibv_qp_init_attr::default()
        };
        init.cap.max_send_wr = u32::try_from(CHAIN_MAX).expect("a small constant");
        init.cap.max_send_sge = 1;
        // SAFETY: domain and completion queue are live.
        let Some(qp) =
            NonNull::new(unsafe { lib.ibv_create_qp(adapter.pd.as_ptr(), &raw mut init) })
        else {
            let error = last("ibv_create_qp");
            // SAFETY: just created, without queue pair.
            unsafe { lib.ibv_destroy_cq(cq.as_ptr()) };
            return Err(error);
        };
        Ok(Self {
            adapter: Arc::clone(adapter),
            cq,
            qp,
        })
    }

    fn number(&self) -> u32 {
        // SAFETY: live as long as this value.
        unsafe { self.qp.as_ref() }.qp_num
    }

    /// Waits for one completion. The device works on its own meanwhile.
    fn wait(&self) -> Result<()> {
        let began = Instant::now();
        let mut completion = ibv_wc::default();
        loop {
            // SAFETY: the queue is live, and the buffer has space for one completion.
            match unsafe { ibv_poll_cq(self.cq.as_ptr(), 1, &raw mut completion) } {
                0 if began.elapsed() < TRANSFER_LIMIT => std::thread::yield_now(),
                0 => return Err(AdapterError::Late),
                1 if completion.status == IBV_WC_SUCCESS => return Ok(()),
                1 => return Err(AdapterError::Refused(completion.status)),
                _ => return Err(last("ibv_poll_cq")),
            }
        }
    }

    /// Moves the queue pair to its working state, connected to another one of the same port.
    fn connect(&self, peer: u32) -> Result<()> {
        self.modify(
            ibv_qp_attr {
                qp_state: IBV_QPS_INIT,
                port_num: PORT,
                qp_access_flags: IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE,
                ..ibv_qp_attr::default()
            },
            IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
        )?;
        let (address, mtu) = self.own_address()?;
        self.modify(
            ibv_qp_attr {
                qp_state: IBV_QPS_RTR,
                path_mtu: mtu,
                dest_qp_num: peer,
                max_dest_rd_atomic: READS_MAX,
                min_rnr_timer: 12,
                ah_attr: address,
                ..ibv_qp_attr::default()
            },
            IBV_QP_STATE
                | IBV_QP_AV
                | IBV_QP_PATH_MTU
                | IBV_QP_DEST_QPN
                | IBV_QP_RQ_PSN
                | IBV_QP_MAX_DEST_RD_ATOMIC
                | IBV_QP_MIN_RNR_TIMER,
        )?;
        self.modify(
            ibv_qp_attr {
                qp_state: IBV_QPS_RTS,
                timeout: 14,
                retry_cnt: 7,
                rnr_retry: 7,
                max_rd_atomic: READS_MAX,
                ..ibv_qp_attr::default()
            },
            IBV_QP_STATE
                | IBV_QP_TIMEOUT
                | IBV_QP_RETRY_CNT
                | IBV_QP_RNR_RETRY
                | IBV_QP_SQ_PSN
                | IBV_QP_MAX_QP_RD_ATOMIC,
        )
    }

    /// The address of the own port, and its MTU.
    fn own_address(&self) -> Result<(ibv_ah_attr, ibv_mtu)> {
        let lib = &self.adapter.lib;
        let context = self.adapter.context.as_ptr();
        let mut port = ibv_port_attr::default();
        // SAFETY: the context is open; the library fills in the older part of the structure.
        let errno = unsafe { lib.ibv_query_port(context, PORT, ptr::from_mut(&mut port).cast()) };
        check("ibv_query_port", errno)?;
        let mut address = ibv_ah_attr {
            dlid: port.lid,
            port_num: PORT,
            ..ibv_ah_attr::default()
        };
        if u32::from(port.link_layer) == IBV_LINK_LAYER_ETHERNET {
            let mut gid = ibv_gid::default();
            // SAFETY: the context is open.
            let errno = unsafe { lib.ibv_query_gid(context, PORT, 0, &raw mut gid) };
            check("ibv_query_gid", errno)?;
            address.is_global = 1;
            address.grh.dgid = gid;
            address.grh.hop_limit = 1;
        }
        Ok((address, port.active_mtu))
    }

    fn modify(&self, mut attr: ibv_qp_attr, mask: ibv_qp_attr_mask) -> Result<()> {
        let mask = c_int::try_from(mask).expect("a mask of 27 bits");
        // SAFETY: the queue pair is live, the attributes are those that the mask names.
        let errno = unsafe {
            self.adapter
                .lib
                .ibv_modify_qp(self.qp.as_ptr(), &raw mut attr, mask)
        };
        check("ibv_modify_qp", errno)
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: created by `create`; transfers are synchronous.
        unsafe { self.adapter.lib.ibv_destroy_qp(self.qp.as_ptr()) };
        // SAFETY: its queue pair is gone.
        unsafe { self.adapter.lib.ibv_destroy_cq(self.cq.as_ptr()) };
    }
}

fn check(call: &'static str, errno: c_int) -> Result<()> {
    match errno {
        0 => Ok(()),
        errno => Err(AdapterError::Call {
            call,
            source: io::Error::from_raw_os_error(errno.wrapping_abs()),
        }),
    }
}

fn last(call: &'static str) -> AdapterError {
    AdapterError::Call {
        call,
        source: io::Error::last_os_error(),
    }
}
