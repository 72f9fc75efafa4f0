//! A reliable queue pair with its own completion queue: creation, address, connection and waits. It posts nothing.

use crate::adapter::{Adapter, PORT};
use crate::error::{Result, VerbsError, check, last};
use mlx5dv_sys::*;
use std::ffi::c_int;
use std::io;
use std::os::fd::RawFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Polls before a thread sleeps: some microseconds.
const POLLS: u32 = 200;
/// Routers between two machines.
const HOPS: u8 = 64;

/// Sizes and operations of a queue pair.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    /// Requests in flight. After an error each of them has a completion.
    pub(crate) entries: u32,
    /// RDMA reads in flight.
    pub(crate) reads: u8,
    /// With the operation of the DMA engine.
    pub(crate) dma: bool,
    /// Receives in flight. With any, completions can wake a process.
    pub(crate) receives: u32,
    /// Completions can wake a process also without receives.
    pub(crate) wakes: bool,
}

/// Length of an [`Endpoint`]'s bytes.
const ENDPOINT: usize = 24;

/// Address of a queue pair, for its peer on another machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Endpoint {
    /// Number of the queue pair.
    queue: u32,
    /// Zero on Ethernet.
    lid: u16,
    /// `IBV_MTU_*`.
    mtu: u8,
    /// Each address of its port needs a global route.
    is_global: bool,
    gid: [u8; 16],
}

impl Endpoint {
    /// Its bytes, for a message to the peer.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; ENDPOINT] {
        let mut bytes = [0; ENDPOINT];
        bytes[..4].copy_from_slice(&self.queue.to_le_bytes());
        bytes[4..6].copy_from_slice(&self.lid.to_le_bytes());
        (bytes[6], bytes[7]) = (self.mtu, u8::from(self.is_global));
        bytes[8..].copy_from_slice(&self.gid);
        bytes
    }

    /// The endpoint of these bytes. The device refuses what no queue pair has.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; ENDPOINT]) -> Self {
        let mut gid = [0; 16];
        gid.copy_from_slice(&bytes[8..]);
        Self {
            queue: u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
            lid: u16::from_le_bytes([bytes[4], bytes[5]]),
            mtu: bytes[6],
            is_global: bytes[7] != 0,
            gid,
        }
    }
}

#[derive(Debug)]
pub(crate) struct QueuePair {
    adapter: Arc<Adapter>,
    channel: Option<NonNull<ibv_comp_channel>>,
    cq: NonNull<ibv_cq>,
    qp: NonNull<ibv_qp>,
    reads: u8,
}

// SAFETY: libibverbs' objects may be used from any thread.
unsafe impl Send for QueuePair {}

impl QueuePair {
    /// Creates it in the state RESET.
    ///
    /// # Errors
    /// libmlx5 refuses `dma` with [`io::ErrorKind::Unsupported`] if the adapter does not advertise the engine for this
    /// type of queue.
    pub(crate) fn create(adapter: &Arc<Adapter>, shape: Shape) -> Result<Self> {
        let lib = adapter.lib();
        let none = ptr::null_mut();
        let entries = shape.entries.saturating_add(shape.receives);
        let entries = c_int::try_from(entries).map_err(|_| VerbsError::Call {
            call: "ibv_create_cq",
            source: io::ErrorKind::InvalidInput.into(),
        })?;
        let channel = match shape.receives > 0 || shape.wakes {
            false => None,
            true => Some(create_channel(adapter)?),
        };
        let close = || {
            if let Some(channel) = channel {
                // SAFETY: just created, and nothing uses it.
                unsafe { lib.ibv_destroy_comp_channel(channel.as_ptr()) };
            }
        };
        let wakes = channel.map_or(ptr::null_mut(), NonNull::as_ptr);
        // SAFETY: the context is open, and the channel belongs to it.
        let cq = unsafe { lib.ibv_create_cq(adapter.context(), entries, none, wakes, 0) };
        let cq = NonNull::new(cq)
            .ok_or_else(|| last("ibv_create_cq"))
            .inspect_err(|_| close())?;
        let qp = create(adapter, cq, shape).inspect_err(|_| {
            // SAFETY: just created, without queue pair.
            unsafe { lib.ibv_destroy_cq(cq.as_ptr()) };
            close();
        })?;
        Ok(Self {
            adapter: Arc::clone(adapter),
            channel,
            cq,
            qp,
            reads: shape.reads,
        })
    }

    /// Descriptor of the completions' events; -1 for a queue pair without receives.
    pub(crate) fn channel_fd(&self) -> RawFd {
        // SAFETY: lives as long as this value.
        self.channel
            .map_or(-1, |channel| unsafe { channel.as_ref() }.fd)
    }

    /// Forgets earlier events, and requests one for the next completion.
    pub(crate) fn arm(&self) -> Result<()> {
        if let Some(channel) = self.channel {
            let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
            let lib = self.lib();
            // SAFETY: a live channel, whose descriptor does not block; each event is of the one queue.
            while unsafe { lib.ibv_get_cq_event(channel.as_ptr(), &raw mut cq, &raw mut context) }
                == 0
            {
                // SAFETY: one event of a live queue.
                unsafe { lib.ibv_ack_cq_events(cq, 1) };
            }
        }
        // SAFETY: a live queue.
        check("ibv_req_notify_cq", unsafe {
            ibv_req_notify_cq(self.cq.as_ptr(), 0)
        })
    }

    /// Takes a completion.
    pub(crate) fn poll(&self) -> Result<Option<ibv_wc>> {
        let mut completion = ibv_wc::default();
        // SAFETY: the queue is live, and the buffer has space for one completion.
        match unsafe { ibv_poll_cq(self.cq.as_ptr(), 1, &raw mut completion) } {
            0 => Ok(None),
            1 if completion.status == IBV_WC_SUCCESS => Ok(Some(completion)),
            1 => Err(VerbsError::Refused {
                status: completion.status,
            }),
            _ => Err(last("ibv_poll_cq")),
        }
    }

    pub(crate) fn lib(&self) -> &Mlx5Lib {
        self.adapter.lib()
    }

    pub(crate) fn raw(&self) -> *mut ibv_qp {
        self.qp.as_ptr()
    }

    pub(crate) fn number(&self) -> u32 {
        // SAFETY: live as long as this value.
        unsafe { self.qp.as_ref() }.qp_num
    }

    /// Waits for one completion. The device works on its own meanwhile.
    ///
    /// Ordering: bytes that the device moves may arrive in any order, and again, until the completion.
    /// What a caller reports to the other side, and the next use of a buffer, come after this call.
    pub(crate) fn wait(&self, limit: Duration) -> Result<()> {
        let began = Instant::now();
        while self.poll()?.is_none() {
            if began.elapsed() >= limit {
                return Err(VerbsError::Late { limit });
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    /// As [`QueuePair::wait`], for transfers that take longer: the thread sleeps after some polls.
    pub(crate) fn wait_asleep(&self, limit: Duration) -> Result<()> {
        let end = Instant::now() + limit;
        for _ in 0..POLLS {
            if self.poll()?.is_some() {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        loop {
            self.arm()?;
            // One that came before would wake nobody.
            if self.poll()?.is_some() {
                return Ok(());
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(VerbsError::Late { limit });
            }
            let mut fd = libc::pollfd {
                fd: self.channel_fd(),
                events: libc::POLLIN,
                revents: 0,
            };
            let left = c_int::try_from(left.as_millis() + 1).unwrap_or(c_int::MAX);
            // SAFETY: one entry, which lives through the call. An error or a signal only ends the wait.
            unsafe { libc::poll(&raw mut fd, 1, left) };
        }
    }

    /// The address of this queue pair.
    pub(crate) fn endpoint(&self) -> Result<Endpoint> {
        let port = self.adapter.port()?;
        Ok(Endpoint {
            queue: self.number(),
            lid: port.lid,
            mtu: port.mtu,
            is_global: port.is_global,
            gid: self.adapter.first_gid(port)?.1,
        })
    }

    /// Moves the queue pair to its working state, connected to one of another machine, which may read and not write.
    pub(crate) fn connect_to(&self, peer: &Endpoint) -> Result<()> {
        let port = self.adapter.port()?;
        let mut address = ibv_ah_attr {
            dlid: peer.lid,
            port_num: PORT,
            ..ibv_ah_attr::default()
        };
        if port.is_global || peer.is_global {
            address.is_global = 1;
            address.grh.dgid = ibv_gid { raw: peer.gid };
            address.grh.sgid_index = self.adapter.first_gid(port)?.0;
            address.grh.hop_limit = HOPS;
        }
        let mtu = port.mtu.min(peer.mtu).into();
        self.connect_by((address, mtu), peer.queue, IBV_ACCESS_REMOTE_READ)
    }

    /// Moves the queue pair to its working state, connected to a queue pair of the same port. The own number is allowed.
    pub(crate) fn connect(&self, peer: u32) -> Result<()> {
        let access = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
        self.connect_by(self.own_address()?, peer, access)
    }

    fn connect_by(
        &self,
        (address, mtu): (ibv_ah_attr, ibv_mtu),
        peer: u32,
        access: u32,
    ) -> Result<()> {
        self.modify(
            ibv_qp_attr {
                qp_state: IBV_QPS_INIT,
                port_num: PORT,
                qp_access_flags: access,
                ..ibv_qp_attr::default()
            },
            IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
        )?;
        self.modify(
            ibv_qp_attr {
                qp_state: IBV_QPS_RTR,
                path_mtu: mtu,
                dest_qp_num: peer,
                max_dest_rd_atomic: self.reads,
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
                max_rd_atomic: self.reads,
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
        let port = self.adapter.port()?;
        let mut address = ibv_ah_attr {
            dlid: port.lid,
            port_num: PORT,
            ..ibv_ah_attr::default()
        };
        if port.is_global {
            let mut gid = ibv_gid::default();
            // SAFETY: the context is open.
            let errno = unsafe { lib.ibv_query_gid(context, PORT, 0, &raw mut gid) };
            check("ibv_query_gid", errno)?;
            address.is_global = 1;
            address.grh.dgid = gid;
            address.grh.hop_limit = 1;
        }
        Ok((address, port.mtu.into()))
    }

    fn modify(&self, mut attr: ibv_qp_attr, mask: ibv_qp_attr_mask) -> Result<()> {
        let mask = c_int::try_from(mask).expect("a mask of 27 bits");
        let lib = self.adapter.lib();
        // SAFETY: the queue pair is live, the attributes are those that the mask names.
        let errno = unsafe { lib.ibv_modify_qp(self.qp.as_ptr(), &raw mut attr, mask) };
        check("ibv_modify_qp", errno)
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: created by `create`; transfers are synchronous.
        unsafe { self.adapter.lib().ibv_destroy_qp(self.qp.as_ptr()) };
        // SAFETY: its queue pair is gone, and each event has been acknowledged.
        unsafe { self.adapter.lib().ibv_destroy_cq(self.cq.as_ptr()) };
        if let Some(channel) = self.channel {
            // SAFETY: its completion queue is gone.
            unsafe {
                self.adapter
                    .lib()
                    .ibv_destroy_comp_channel(channel.as_ptr())
            };
        }
    }
}

/// A channel whose descriptor does not block.
fn create_channel(adapter: &Adapter) -> Result<NonNull<ibv_comp_channel>> {
    let lib = adapter.lib();
    // SAFETY: the context is open.
    let channel = unsafe { lib.ibv_create_comp_channel(adapter.context()) };
    let channel = NonNull::new(channel).ok_or_else(|| last("ibv_create_comp_channel"))?;
    // SAFETY: just created.
    let fd = unsafe { channel.as_ref() }.fd;
    // SAFETY: flags of an open descriptor.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    // SAFETY: as above.
    if flags < 0 || unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) } < 0 {
        let error = last("fcntl");
        // SAFETY: just created, and nothing uses it.
        unsafe { lib.ibv_destroy_comp_channel(channel.as_ptr()) };
        return Err(error);
    }
    Ok(channel)
}

fn create(adapter: &Adapter, cq: NonNull<ibv_cq>, shape: Shape) -> Result<NonNull<ibv_qp>> {
    let mut init = ibv_qp_init_attr_ex {
        send_cq: cq.as_ptr(),
        recv_cq: cq.as_ptr(),
        qp_type: IBV_QPT_RC,
        comp_mask: IBV_QP_INIT_ATTR_PD,
        pd: adapter.pd(),
        ..ibv_qp_init_attr_ex::default()
    };
    init.cap.max_send_wr = shape.entries;
    init.cap.max_send_sge = 1;
    init.cap.max_recv_wr = shape.receives;
    init.cap.max_recv_sge = u32::from(shape.receives > 0);
    let mut own = mlx5dv_qp_init_attr::default();
    if shape.dma {
        init.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        init.send_ops_flags = u64::from(IBV_QP_EX_WITH_RDMA_WRITE);
        own.comp_mask = u64::from(MLX5DV_QP_INIT_ATTR_MASK_SEND_OPS_FLAGS);
        own.send_ops_flags = u64::from(MLX5DV_QP_EX_WITH_MEMCPY);
    }
    let (lib, context) = (adapter.lib(), adapter.context());
    // SAFETY: domain and completion queue are live, the attributes are those that the masks name.
    let qp = unsafe { lib.mlx5dv_create_qp(context, &raw mut init, &raw mut own) };
    NonNull::new(qp).ok_or_else(|| last("mlx5dv_create_qp"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_comes_back_from_its_bytes() {
        let endpoint = Endpoint {
            queue: 0x12_3456,
            lid: 0x789,
            mtu: 5,
            is_global: true,
            gid: std::array::from_fn(|at| u8::try_from(at).expect("sixteen")),
        };
        assert_eq!(Endpoint::from_bytes(&endpoint.to_bytes()), endpoint);
    }
}
