//! The DPU's adapter: registered memory, and copies between it and an initiator's memory through aliases.
//!
//! Copies run on the adapter's DMA engine (`mlx5dv_wr_memcpy`): one request, two local keys, no peer. An alias is a local
//! key of this function, so the engine takes it. An adapter without that engine transfers by RDMA READ and WRITE, which
//! one queue pair posts to itself.

use mlx5dv_sys::*;
use std::ffi::c_int;
use std::io;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::time::{Duration, Instant};
use xgvmi_pool::mlx5::{Function, Mlx5Device, Mlx5Options};
use xgvmi_pool::{DeviceError, Lkey, VirtAddr};

/// Time limit of one copy. A request has a few MiB, which take milliseconds.
const COPY_LIMIT: Duration = Duration::from_secs(10);
const PORT: u8 = 1;
/// Entries of a send queue. One request is under way at a time.
const ENTRIES: u32 = 4;

/// An error of the adapter.
#[derive(Debug, thiserror::Error)]
pub(super) enum EngineError {
    /// A call failed.
    #[error("{call}: {source}")]
    Call {
        call: &'static str,
        source: io::Error,
    },
    /// No library, or no device that can import keys.
    #[error("{0}")]
    Library(String),
    /// The device refuses.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The adapter refused an access.
    #[error(
        "the adapter cannot access the initiator's memory: completion status {0}; it was unmapped or its key has ended"
    )]
    Refused(u32),
    /// No completion within the limit.
    #[error("no completion of a copy within {} s", COPY_LIMIT.as_secs())]
    Late,
}

type Result<T> = std::result::Result<T, EngineError>;

/// How bytes move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// The DMA engine.
    Dma,
    /// RDMA READ and WRITE.
    Rdma,
}

/// An open function of the DPU.
#[derive(Debug)]
pub(super) struct Adapter {
    function: Function,
}

impl Adapter {
    /// Opens the mlx5 device with this name, or the first one.
    pub(super) fn open(name: Option<&str>) -> Result<Arc<Self>> {
        let lib = Mlx5Lib::open().map_err(|error| EngineError::Library(error.to_string()))?;
        let function = Function::open(&Arc::new(lib), name)?;
        Ok(Arc::new(Self { function }))
    }

    /// The device for aliases.
    pub(super) fn device(&self) -> Result<Arc<Mlx5Device>> {
        Ok(self.function.device(Mlx5Options::default())?)
    }

    fn lib(&self) -> &Mlx5Lib {
        self.function.parts().0
    }

    fn context(&self) -> *mut ibv_context {
        self.function.parts().1.as_ptr()
    }

    fn pd(&self) -> *mut ibv_pd {
        self.function.parts().2.as_ptr()
    }
}

/// Memory of this process that the adapter may read and write.
#[derive(Debug)]
pub(super) struct Buffer {
    adapter: Arc<Adapter>,
    mr: NonNull<ibv_mr>,
    bytes: Box<[u8]>,
}

// SAFETY: libibverbs' objects may be used from any thread, and the bytes have one owner.
unsafe impl Send for Buffer {}

impl Buffer {
    /// Zeros.
    pub(super) fn new(adapter: &Arc<Adapter>, len: usize) -> Result<Self> {
        let mut bytes = vec![0; len].into_boxed_slice();
        let addr = bytes.as_mut_ptr();
        // SAFETY: the memory lives in the same value, whose drop ends the registration first. Peers get no access beyond
        // what the loopback of an adapter without DMA engine needs.
        let mr = unsafe {
            adapter.lib().ibv_reg_mr_iova2(
                adapter.pd(),
                addr.cast(),
                len,
                addr as u64,
                IBV_ACCESS_LOCAL_WRITE,
            )
        };
        Ok(Self {
            adapter: Arc::clone(adapter),
            mr: NonNull::new(mr).ok_or_else(|| last("ibv_reg_mr"))?,
            bytes,
        })
    }

    /// The bytes. No copy is under way: copies are synchronous.
    pub(super) fn bytes(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    fn lkey(&self) -> u32 {
        // SAFETY: live as long as this value.
        unsafe { self.mr.as_ref() }.lkey
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: registered by `new`; copies are synchronous, so none uses it.
        unsafe { self.adapter.lib().ibv_dereg_mr(self.mr.as_ptr()) };
    }
}

/// Direction of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    /// From the initiator's memory.
    Fetch,
    /// To the initiator's memory.
    Deliver,
}

/// A queue pair that is connected to itself, with its completion queue.
#[derive(Debug)]
pub(super) struct Engine {
    adapter: Arc<Adapter>,
    cq: NonNull<ibv_cq>,
    qp: NonNull<ibv_qp>,
    way: Way,
}

// SAFETY: libibverbs' objects may be used from any thread.
unsafe impl Send for Engine {}

impl Engine {
    /// A queue with the adapter's DMA engine, or without it if it has none. `rdma` does without in any case.
    pub(super) fn new(adapter: &Arc<Adapter>, rdma: bool) -> Result<Self> {
        let none = ptr::null_mut();
        let entries = 4;
        // SAFETY: the context is open.
        let cq = unsafe {
            adapter
                .lib()
                .ibv_create_cq(adapter.context(), entries, none, ptr::null_mut(), 0)
        };
        let cq = NonNull::new(cq).ok_or_else(|| last("ibv_create_cq"))?;
        let dma = if rdma {
            Err(io::ErrorKind::Unsupported.into())
        } else {
            queue_pair(adapter, cq, true)
        };
        let made = match dma {
            Ok(qp) => Ok((qp, Way::Dma)),
            // libmlx5 refuses the flag if the adapter does not advertise the engine for this type of queue.
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                queue_pair(adapter, cq, false).map(|qp| (qp, Way::Rdma))
            }
            Err(error) => Err(error),
        };
        let (qp, way) = made.map_err(|source| {
            // SAFETY: just created, without queue pair.
            unsafe { adapter.lib().ibv_destroy_cq(cq.as_ptr()) };
            EngineError::Call {
                call: "mlx5dv_create_qp",
                source,
            }
        })?;
        let engine = Self {
            adapter: Arc::clone(adapter),
            cq,
            qp,
            way,
        };
        engine.connect()?;
        Ok(engine)
    }

    /// How bytes move.
    pub(super) fn way(&self) -> Way {
        self.way
    }

    /// Copies the first `len` bytes of the buffer from or to the initiator's memory at `remote`, which `alias` refers
    /// to. After an error the engine is unusable.
    pub(super) fn copy(
        &mut self,
        direction: Direction,
        buffer: &mut Buffer,
        (alias, remote): (Lkey, VirtAddr),
        len: usize,
    ) -> Result<()> {
        assert!(len <= buffer.bytes.len(), "the service checks the length");
        let (lkey, addr) = (buffer.lkey(), buffer.bytes.as_ptr() as u64);
        match self.way {
            Way::Dma => self.post_dma(direction, (lkey, addr), (alias, remote), len)?,
            Way::Rdma => self.post_rdma(direction, (lkey, addr), (alias, remote), len)?,
        }
        self.wait()
    }

    fn post_dma(
        &self,
        direction: Direction,
        (lkey, addr): (u32, u64),
        (alias, remote): (Lkey, VirtAddr),
        len: usize,
    ) -> Result<()> {
        const BUILT: &str = "created with the operations of work requests and with memcpy";
        let ((to, to_addr), (from, from_addr)) = match direction {
            Direction::Fetch => ((lkey, addr), (alias.raw(), remote.get())),
            Direction::Deliver => ((alias.raw(), remote.get()), (lkey, addr)),
        };
        // SAFETY: the queue pair is live and was created with extended operations.
        let ex = unsafe { self.adapter.lib().ibv_qp_to_qp_ex(self.qp.as_ptr()) };
        // SAFETY: as above, by libmlx5.
        let dv = unsafe { self.adapter.lib().mlx5dv_qp_ex_from_ibv_qp_ex(ex) };
        // SAFETY: the queue pair is live; its operations were set when it was created.
        let (start, complete) = unsafe { ((*ex).wr_start, (*ex).wr_complete) };
        // SAFETY: as above.
        let memcpy = unsafe { (*dv).wr_memcpy }.expect(BUILT);
        let (start, complete) = (start.expect(BUILT), complete.expect(BUILT));
        // SAFETY: only this thread posts, because the caller holds the engine exclusively.
        unsafe { start(ex) };
        // SAFETY: a plain field of the live queue pair.
        unsafe { (*ex).wr_flags = IBV_SEND_SIGNALED };
        // SAFETY: the buffer is registered and nobody accesses it during the copy; the adapter checks the alias.
        unsafe { memcpy(dv, to, to_addr, from, from_addr, len) };
        // SAFETY: started above.
        let errno = unsafe { complete(ex) };
        check("ibv_wr_complete", errno)
    }

    fn post_rdma(
        &self,
        direction: Direction,
        (lkey, addr): (u32, u64),
        (alias, remote): (Lkey, VirtAddr),
        len: usize,
    ) -> Result<()> {
        let mut sge = ibv_sge {
            addr,
            length: u32::try_from(len).expect("a request has at most 32 MiB"),
            lkey,
        };
        let mut request = ibv_send_wr {
            sg_list: &raw mut sge,
            num_sge: 1,
            opcode: match direction {
                Direction::Fetch => IBV_WR_RDMA_READ,
                Direction::Deliver => IBV_WR_RDMA_WRITE,
            },
            send_flags: IBV_SEND_SIGNALED,
            ..ibv_send_wr::default()
        };
        request.wr.rdma.remote_addr = remote.get();
        request.wr.rdma.rkey = alias.raw();
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is live; the buffer is registered and nobody accesses it during the copy.
        let errno = unsafe { ibv_post_send(self.qp.as_ptr(), &raw mut request, &raw mut bad) };
        check("ibv_post_send", errno)
    }

    /// Waits for the completion. The device works on its own meanwhile.
    fn wait(&self) -> Result<()> {
        let began = Instant::now();
        let mut completion = ibv_wc::default();
        loop {
            // SAFETY: the queue is live, and the buffer has space for one completion.
            match unsafe { ibv_poll_cq(self.cq.as_ptr(), 1, &raw mut completion) } {
                0 if began.elapsed() < COPY_LIMIT => std::thread::yield_now(),
                0 => return Err(EngineError::Late),
                1 if completion.status == IBV_WC_SUCCESS => return Ok(()),
                1 => return Err(EngineError::Refused(completion.status)),
                _ => return Err(last("ibv_poll_cq")),
            }
        }
    }

    /// Moves the queue pair to its working state, connected to itself. Only RDMA uses the connection, but the DMA engine
    /// takes requests only of a queue in this state.
    fn connect(&self) -> Result<()> {
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
                // SAFETY: live as long as this value.
                dest_qp_num: unsafe { self.qp.as_ref() }.qp_num,
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

    /// The address of the own port, and its MTU.
    fn own_address(&self) -> Result<(ibv_ah_attr, ibv_mtu)> {
        let (lib, context) = (self.adapter.lib(), self.adapter.context());
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
                .lib()
                .ibv_modify_qp(self.qp.as_ptr(), &raw mut attr, mask)
        };
        check("ibv_modify_qp", errno)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // SAFETY: created by `new`; copies are synchronous.
        unsafe { self.adapter.lib().ibv_destroy_qp(self.qp.as_ptr()) };
        // SAFETY: its queue pair is gone.
        unsafe { self.adapter.lib().ibv_destroy_cq(self.cq.as_ptr()) };
    }
}

/// A reliable queue pair, with the DMA engine's operation or without.
fn queue_pair(adapter: &Adapter, cq: NonNull<ibv_cq>, dma: bool) -> io::Result<NonNull<ibv_qp>> {
    let mut init = ibv_qp_init_attr_ex {
        send_cq: cq.as_ptr(),
        recv_cq: cq.as_ptr(),
        qp_type: IBV_QPT_RC,
        comp_mask: IBV_QP_INIT_ATTR_PD,
        pd: adapter.pd(),
        ..ibv_qp_init_attr_ex::default()
    };
    init.cap.max_send_wr = ENTRIES;
    init.cap.max_send_sge = 1;
    let mut own = mlx5dv_qp_init_attr::default();
    if dma {
        init.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        init.send_ops_flags = u64::from(IBV_QP_EX_WITH_RDMA_WRITE);
        own.comp_mask = u64::from(MLX5DV_QP_INIT_ATTR_MASK_SEND_OPS_FLAGS);
        own.send_ops_flags = u64::from(MLX5DV_QP_EX_WITH_MEMCPY);
    }
    // SAFETY: domain and completion queue are live, the attributes are those that the masks name.
    let qp = unsafe {
        adapter
            .lib()
            .mlx5dv_create_qp(adapter.context(), &raw mut init, &raw mut own)
    };
    NonNull::new(qp).ok_or_else(io::Error::last_os_error)
}

fn check(call: &'static str, errno: c_int) -> Result<()> {
    match errno {
        0 => Ok(()),
        errno => Err(EngineError::Call {
            call,
            source: io::Error::from_raw_os_error(errno.wrapping_abs()),
        }),
    }
}

fn last(call: &'static str) -> EngineError {
    EngineError::Call {
        call,
        source: io::Error::last_os_error(),
    }
}
