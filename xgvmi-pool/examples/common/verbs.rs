//! The parts of libibverbs that a program needs beside the pool: a device, memory, and a queue pair
//! for reads.

use std::error::Error;
use std::ffi::{CStr, c_int};
use std::fmt;
use std::io;
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mlx5dv_sys::*;
use xgvmi_pool::mlx5::{Mlx5Device, Mlx5Options};
use xgvmi_pool::{Lkey, Region, VirtAddr};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Access rights of peers to registered memory.
const ACCESS: u32 = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

/// Time limit of a completion.
const COMPLETION_LIMIT: Duration = Duration::from_secs(10);

/// An open device with a protection domain.
pub(crate) struct Context {
    lib: Arc<Mlx5Lib>,
    context: NonNull<ibv_context>,
    pd: NonNull<ibv_pd>,
}

impl Context {
    /// Opens the mlx5 device with this name, or the first one.
    pub(crate) fn open(lib: &Arc<Mlx5Lib>, name: Option<&str>) -> Outcome<Self> {
        let mut count: c_int = 0;
        // SAFETY: the list is freed below, after the device was opened.
        let list = unsafe { lib.ibv_get_device_list(&raw mut count) };
        if list.is_null() {
            return Err(last_error("ibv_get_device_list"));
        }
        let devices = (0..usize::try_from(count)?).map(|index| {
            // SAFETY: the list has `count` entries.
            unsafe { *list.add(index) }
        });
        let mut found = None;
        for device in devices {
            // SAFETY: a device of the list.
            let is_mlx5 = unsafe { lib.mlx5dv_is_supported(device) };
            // SAFETY: a device of the list has a name as long as the list lives.
            let device_name = unsafe { CStr::from_ptr(lib.ibv_get_device_name(device)) };
            if is_mlx5 && name.is_none_or(|name| device_name.to_bytes() == name.as_bytes()) {
                found = Some(device);
                break;
            }
        }
        let context = found.and_then(|device| {
            let mut attr = mlx5dv_context_attr {
                flags: MLX5DV_CONTEXT_FLAGS_DEVX,
                ..mlx5dv_context_attr::default()
            };
            // SAFETY: an mlx5 device of the list.
            NonNull::new(unsafe { lib.mlx5dv_open_device(device, &raw mut attr) })
        });
        let opened = context.ok_or_else(|| last_error("mlx5dv_open_device (or no such device)"));
        // SAFETY: the list of above; an open device does not need it.
        unsafe { lib.ibv_free_device_list(list) };
        let context = opened?;
        // SAFETY: just opened.
        let pd = unsafe { lib.ibv_alloc_pd(context.as_ptr()) };
        let pd = NonNull::new(pd).ok_or_else(|| last_error("ibv_alloc_pd"))?;
        Ok(Self {
            lib: Arc::clone(lib),
            context,
            pd,
        })
    }

    /// Its protection domain.
    pub(crate) fn domain(&self) -> NonNull<ibv_pd> {
        self.pd
    }

    /// The pool's device on this context.
    pub(crate) fn pool_device(&self, options: Mlx5Options) -> Outcome<Arc<Mlx5Device>> {
        let lib = Arc::clone(&self.lib);
        // SAFETY: opened with DEVX by this library; the program closes the device before it drops
        // this context.
        let device = unsafe { Mlx5Device::open(lib, self.context, self.pd, options) }?;
        Ok(device)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: the domain has no objects: memory and queues borrow the context.
        unsafe { self.lib.ibv_dealloc_pd(self.pd.as_ptr()) };
        // SAFETY: its domain is gone.
        unsafe { self.lib.ibv_close_device(self.context.as_ptr()) };
    }
}

/// Registered memory of this process.
pub(crate) struct Memory<'a> {
    context: &'a Context,
    bytes: Box<[u8]>,
    mr: NonNull<ibv_mr>,
}

impl<'a> Memory<'a> {
    /// New memory with the pattern of the seed.
    pub(crate) fn register(context: &'a Context, len: usize, seed: u64) -> Outcome<Self> {
        Self::of(context, pattern(seed).take(len).collect())
    }

    /// Registers these bytes.
    pub(crate) fn of(context: &'a Context, mut bytes: Box<[u8]>) -> Outcome<Self> {
        let len = bytes.len();
        let addr = bytes.as_mut_ptr();
        // SAFETY: the memory lives in the box, which is dropped after the registration.
        let mr = unsafe {
            context
                .lib
                .ibv_reg_mr_iova2(context.pd.as_ptr(), addr.cast(), len, addr as u64, ACCESS)
        };
        let mr = NonNull::new(mr).ok_or_else(|| last_error("ibv_reg_mr_iova2"))?;
        Ok(Self { context, bytes, mr })
    }

    pub(crate) fn addr(&self) -> u64 {
        self.bytes.as_ptr() as u64
    }

    /// Registers a part of it again, with a key of its own.
    pub(crate) fn register_part(&self, part: Range<usize>) -> Outcome<Part<'_>> {
        let bytes = &self.bytes[part];
        let (addr, len) = (bytes.as_ptr() as u64, bytes.len());
        let Context { lib, pd, .. } = self.context;
        // SAFETY: the memory outlives the part, which borrows it.
        let mr = unsafe {
            lib.ibv_reg_mr_iova2(
                pd.as_ptr(),
                ptr::without_provenance_mut(bytes.as_ptr().addr()),
                len,
                addr,
                ACCESS,
            )
        };
        let mr = NonNull::new(mr).ok_or_else(|| last_error("ibv_reg_mr_iova2"))?;
        // SAFETY: just registered.
        let lkey = Lkey::from_raw(unsafe { (*mr.as_ptr()).lkey });
        let region = Region::new(VirtAddr::new(addr), u64::try_from(len)?, lkey)?;
        Ok(Part { lib, mr, region })
    }

    pub(crate) fn lkey(&self) -> Lkey {
        // SAFETY: live as long as this value.
        Lkey::from_raw(unsafe { (*self.mr.as_ptr()).lkey })
    }

    /// The content. The adapter may have written it, so the compiler must not assume its value.
    pub(crate) fn bytes(&self) -> &[u8] {
        std::hint::black_box(&self.bytes)
    }

    /// Checks every byte. Returns the number of bytes.
    pub(crate) fn verify(&self, seed: u64) -> Outcome<usize> {
        let bytes = self.bytes();
        match bytes
            .iter()
            .zip(pattern(seed))
            .position(|(byte, expect)| *byte != expect)
        {
            None => Ok(bytes.len()),
            Some(at) => Err(format!("byte {at} of {} is wrong", bytes.len()).into()),
        }
    }
}

impl Drop for Memory<'_> {
    fn drop(&mut self) {
        // SAFETY: registered by `register`; no request in flight uses it.
        unsafe { self.context.lib.ibv_dereg_mr(self.mr.as_ptr()) };
    }
}

/// A part of registered memory with an additional registration of its own.
pub(crate) struct Part<'a> {
    lib: &'a Mlx5Lib,
    mr: NonNull<ibv_mr>,
    region: Region,
}

impl Part<'_> {
    pub(crate) fn region(&self) -> Region {
        self.region
    }
}

impl Drop for Part<'_> {
    fn drop(&mut self) {
        // SAFETY: registered by `register_part`; no request in flight uses it.
        unsafe { self.lib.ibv_dereg_mr(self.mr.as_ptr()) };
    }
}

/// Bytes that differ between seeds and between offsets.
fn pattern(seed: u64) -> impl Iterator<Item = u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    std::iter::repeat_with(move || random.u8(..))
}

/// An access that the adapter refused.
#[derive(Debug)]
pub(crate) struct Refused {
    status: ibv_wc_status,
}

impl Refused {
    /// Report to the peer: the expected refusal of an invalid key, or the number of another one.
    pub(crate) fn word(&self) -> &'static str {
        match self.status {
            IBV_WC_REM_ACCESS_ERR => "refused",
            _ => "failed otherwise",
        }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the adapter refused the access: completion status {}",
            self.status
        )
    }
}

impl Error for Refused {}

/// Two queue pairs of this function, connected to each other. A remote read of the first one goes
/// through the second one, in the function that owns the alias.
pub(crate) struct Reader<'a> {
    requester: QueuePair<'a>,
    /// The responder of the requests, kept as long as the requester exists.
    _responder: QueuePair<'a>,
}

impl<'a> Reader<'a> {
    pub(crate) fn connect(context: &'a Context) -> Outcome<Self> {
        let (requester, responder) = (QueuePair::create(context)?, QueuePair::create(context)?);
        requester.connect(responder.number())?;
        responder.connect(requester.number())?;
        Ok(Self {
            requester,
            _responder: responder,
        })
    }

    /// Reads all of `into` from the remote address with the key.
    pub(crate) fn read(
        &self,
        into: &Memory<'_>,
        key: Lkey,
        from: VirtAddr,
    ) -> Outcome<Result<(), Refused>> {
        let mut sge = ibv_sge {
            addr: into.addr(),
            length: u32::try_from(into.bytes.len())?,
            lkey: into.lkey().raw(),
        };
        let mut request = ibv_send_wr {
            sg_list: &raw mut sge,
            num_sge: 1,
            opcode: IBV_WR_RDMA_READ,
            send_flags: IBV_SEND_SIGNALED,
            ..ibv_send_wr::default()
        };
        request.wr.rdma.remote_addr = from.get();
        request.wr.rdma.rkey = key.raw();
        let QueuePair { qp, cq, .. } = &self.requester;
        let mut bad = ptr::null_mut();
        // SAFETY: the memory is registered and lives until the completion arrives.
        let errno = unsafe { ibv_post_send(qp.as_ptr(), &raw mut request, &raw mut bad) };
        check("ibv_post_send", errno)?;
        let start = Instant::now();
        let mut completion = ibv_wc::default();
        loop {
            // SAFETY: the queue is live, and the buffer has space for one completion.
            match unsafe { ibv_poll_cq(cq.as_ptr(), 1, &raw mut completion) } {
                0 if start.elapsed() < COMPLETION_LIMIT => std::thread::yield_now(),
                1 if completion.status == IBV_WC_SUCCESS => return Ok(Ok(())),
                1 => {
                    return Ok(Err(Refused {
                        status: completion.status,
                    }));
                }
                polled => return Err(format!("no completion: ibv_poll_cq gave {polled}").into()),
            }
        }
    }
}

/// A queue pair with its own completion queue.
struct QueuePair<'a> {
    context: &'a Context,
    cq: NonNull<ibv_cq>,
    qp: NonNull<ibv_qp>,
}

impl<'a> QueuePair<'a> {
    fn create(context: &'a Context) -> Outcome<Self> {
        let lib = &context.lib;
        // SAFETY: the context is open.
        let cq = unsafe {
            lib.ibv_create_cq(
                context.context.as_ptr(),
                4,
                ptr::null_mut(),
                ptr::null_mut(),
                0,
            )
        };
        let cq = NonNull::new(cq).ok_or_else(|| last_error("ibv_create_cq"))?;
        let mut init = ibv_qp_init_attr {
            send_cq: cq.as_ptr(),
            recv_cq: cq.as_ptr(),
            qp_type: IBV_QPT_RC,
            ..ibv_qp_init_attr::default()
        };
        init.cap.max_send_wr = 4;
        init.cap.max_send_sge = 1;
        // SAFETY: domain and completion queue are live.
        let qp = unsafe { lib.ibv_create_qp(context.pd.as_ptr(), &raw mut init) };
        let qp = NonNull::new(qp).ok_or_else(|| last_error("ibv_create_qp"))?;
        Ok(Self { context, cq, qp })
    }

    fn number(&self) -> u32 {
        // SAFETY: live as long as this value.
        unsafe { (*self.qp.as_ptr()).qp_num }
    }

    /// Moves the queue pair to its working state, connected to another one of the same port.
    fn connect(&self, peer: u32) -> Outcome<()> {
        const PORT: u8 = 1;
        let lib = &self.context.lib;
        let mut port = ibv_port_attr::default();
        let out = ptr::from_mut(&mut port).cast();
        // SAFETY: the context is open; the library fills in the older part of the structure.
        let errno = unsafe { lib.ibv_query_port(self.context.context.as_ptr(), PORT, out) };
        check("ibv_query_port", errno)?;

        self.modify(
            ibv_qp_attr {
                qp_state: IBV_QPS_INIT,
                port_num: PORT,
                qp_access_flags: IBV_ACCESS_REMOTE_READ,
                ..ibv_qp_attr::default()
            },
            IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
        )?;
        let mut address = ibv_ah_attr {
            dlid: port.lid,
            port_num: PORT,
            ..ibv_ah_attr::default()
        };
        if u32::from(port.link_layer) == IBV_LINK_LAYER_ETHERNET {
            let mut gid = ibv_gid::default();
            // SAFETY: the context is open.
            let errno =
                unsafe { lib.ibv_query_gid(self.context.context.as_ptr(), PORT, 0, &raw mut gid) };
            check("ibv_query_gid", errno)?;
            address.is_global = 1;
            address.grh.dgid = gid;
            address.grh.hop_limit = 1;
        }
        self.modify(
            ibv_qp_attr {
                qp_state: IBV_QPS_RTR,
                path_mtu: port.active_mtu,
                dest_qp_num: peer,
                max_dest_rd_atomic: 1,
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
                max_rd_atomic: 1,
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

    fn modify(&self, mut attr: ibv_qp_attr, mask: ibv_qp_attr_mask) -> Outcome<()> {
        let mask = c_int::try_from(mask)?;
        // SAFETY: the queue pair is live, the attributes are those that the mask names.
        let errno = unsafe {
            self.context
                .lib
                .ibv_modify_qp(self.qp.as_ptr(), &raw mut attr, mask)
        };
        check("ibv_modify_qp", errno)
    }
}

impl Drop for QueuePair<'_> {
    fn drop(&mut self) {
        // SAFETY: created by `create`; no request is in flight.
        unsafe { self.context.lib.ibv_destroy_qp(self.qp.as_ptr()) };
        // SAFETY: its queue pair is gone.
        unsafe { self.context.lib.ibv_destroy_cq(self.cq.as_ptr()) };
    }
}

fn check(call: &str, errno: c_int) -> Outcome<()> {
    if errno == 0 {
        return Ok(());
    }
    Err(format!("{call}: {}", io::Error::from_raw_os_error(errno)).into())
}

fn last_error(call: &str) -> Box<dyn Error> {
    format!("{call}: {}", io::Error::last_os_error()).into()
}
