//! Protection domain, completion queue and queue pair of a connection.

use super::channel::{Id, check};
use super::nonblocking::set_nonblocking;
use crate::error::{NaaError, Result};
use rdmacm_sys::{
    IBV_QPT_RC, IBV_SEND_INLINE, IBV_SEND_SOLICITED, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM,
    IBV_WR_SEND, RdmaCmLib, ibv_comp_channel, ibv_context, ibv_cq, ibv_pd, ibv_poll_cq,
    ibv_post_recv, ibv_post_send, ibv_qp, ibv_qp_cap, ibv_qp_init_attr, ibv_recv_wr,
    ibv_req_notify_cq, ibv_send_wr, ibv_sge, ibv_wc,
};
use std::io;
use std::os::fd::RawFd;
use std::ptr::{self, NonNull};

/// Maximum bytes of a write: a port's limit, which every device has.
pub(crate) const WRITE_BYTES_MAX: u32 = 1 << 30;
/// Send requests: four per region below 4 GiB, and one that probes the peer.
const SENDS: u32 = 4 * 32 + 1;
/// Receive requests: one per direction of the announcement, and one per call.
const RECEIVES: u32 = 8;
/// Lengths up to which a write copies its data into its request. The first that the device accepts is used.
const INLINE_BYTES: [u32; 5] = [512, 256, 128, 64, 0];

/// The queues of one connection. The fields end in [`Drop`], the queue pair first.
#[derive(Debug)]
pub(crate) struct Queues {
    lib: &'static RdmaCmLib,
    /// Outlives the queues by the order of the owner's fields.
    id: *mut rdmacm_sys::rdma_cm_id,
    context: NonNull<ibv_context>,
    pd: Option<NonNull<ibv_pd>>,
    channel: Option<NonNull<ibv_comp_channel>>,
    cq: Option<NonNull<ibv_cq>>,
    qp: Option<NonNull<ibv_qp>>,
    inline_max: u32,
    unacknowledged: u32,
}

// SAFETY: libibverbs' objects may be used from any thread.
unsafe impl Send for Queues {}

/// One write of a chain.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Work {
    /// Local address, length and key; `None` writes nothing.
    pub(crate) from: Option<(u64, u32, u32)>,
    /// Remote address and key.
    pub(crate) to: (u64, u32),
    /// The immediate value in host byte order, for the last write.
    pub(crate) immediate: Option<u32>,
    /// Identifies the completion.
    pub(crate) wr_id: u64,
}

impl Work {
    /// The write in parts that a request can carry. The last part has the immediate value.
    pub(crate) fn split(self) -> impl Iterator<Item = Self> {
        let (from, length, key) = self.from.unwrap_or_default();
        // A write of nothing is one part.
        let parts = length.div_ceil(WRITE_BYTES_MAX).max(1);
        (0..parts).map(move |part| {
            let offset = u64::from(part) * u64::from(WRITE_BYTES_MAX);
            let left = u64::from(length) - offset;
            let bytes = u32::try_from(left).map_or(WRITE_BYTES_MAX, |l| l.min(WRITE_BYTES_MAX));
            Self {
                from: self.from.map(|_| (from + offset, bytes, key)),
                to: (self.to.0 + offset, self.to.1),
                immediate: self.immediate.filter(|_| part + 1 == parts),
                wr_id: self.wr_id,
            }
        })
    }
}

impl Queues {
    /// Creates the queues of an identifier that has a device.
    pub(crate) fn create(lib: &'static RdmaCmLib, id: &Id) -> Result<Self> {
        // SAFETY: the identifier is live.
        let context = unsafe { (*id.as_ptr()).verbs };
        let context = NonNull::new(context).ok_or(NaaError::Call {
            call: "rdma_resolve_addr gave no device",
            source: io::Error::from_raw_os_error(libc::ENODEV),
        })?;
        let mut queues = Self {
            lib,
            id: id.as_ptr(),
            context,
            pd: None,
            channel: None,
            cq: None,
            qp: None,
            inline_max: 0,
            unacknowledged: 0,
        };
        // An error drops what was created so far.
        queues.fill(id)?;
        Ok(queues)
    }

    fn fill(&mut self, id: &Id) -> Result<()> {
        let lib = self.lib;
        // SAFETY: the context is live.
        let pd = NonNull::new(unsafe { lib.ibv_alloc_pd(self.context.as_ptr()) });
        self.pd = Some(pd.ok_or_else(|| NaaError::last("ibv_alloc_pd"))?);
        // SAFETY: the context is live.
        let channel = NonNull::new(unsafe { lib.ibv_create_comp_channel(self.context.as_ptr()) });
        let channel = channel.ok_or_else(|| NaaError::last("ibv_create_comp_channel"))?;
        self.channel = Some(channel);
        set_nonblocking(self.event_fd()).map_err(|source| NaaError::Call {
            call: "fcntl of the completion channel",
            source,
        })?;
        let entries = i32::try_from(SENDS + RECEIVES).expect("a small constant");
        // SAFETY: context and channel are live.
        let cq = unsafe {
            lib.ibv_create_cq(
                self.context.as_ptr(),
                entries,
                ptr::null_mut(),
                channel.as_ptr(),
                0,
            )
        };
        self.cq = Some(NonNull::new(cq).ok_or_else(|| NaaError::last("ibv_create_cq"))?);
        self.create_pair(id)
    }

    fn create_pair(&mut self, id: &Id) -> Result<()> {
        let mut refused = NaaError::last("rdma_create_qp");
        for inline in INLINE_BYTES {
            let mut attr = ibv_qp_init_attr {
                send_cq: self.cq(),
                recv_cq: self.cq(),
                cap: ibv_qp_cap {
                    max_send_wr: SENDS,
                    max_recv_wr: RECEIVES,
                    max_send_sge: 1,
                    max_recv_sge: 1,
                    max_inline_data: inline,
                },
                qp_type: IBV_QPT_RC,
                // Each request completes: the states count completions.
                sq_sig_all: 1,
                ..ibv_qp_init_attr::default()
            };
            // SAFETY: identifier, domain and completion queue are live.
            let made = unsafe {
                self.lib
                    .rdma_create_qp(id.as_ptr(), self.pd(), &raw mut attr)
            };
            match check("rdma_create_qp", made) {
                Ok(()) => {
                    // SAFETY: the identifier is live and now has a queue pair.
                    self.qp = NonNull::new(unsafe { (*id.as_ptr()).qp });
                    self.inline_max = attr.cap.max_inline_data;
                    return Ok(());
                }
                Err(error) => refused = error,
            }
        }
        Err(refused)
    }

    pub(crate) fn context(&self) -> *mut ibv_context {
        self.context.as_ptr()
    }

    pub(crate) fn pd(&self) -> *mut ibv_pd {
        self.pd.map_or(ptr::null_mut(), NonNull::as_ptr)
    }

    pub(crate) fn domain(&self) -> NonNull<ibv_pd> {
        self.pd.expect("created with the queues")
    }

    pub(crate) fn channel(&self) -> *mut ibv_comp_channel {
        self.channel.map_or(ptr::null_mut(), NonNull::as_ptr)
    }

    pub(crate) fn cq(&self) -> *mut ibv_cq {
        self.cq.map_or(ptr::null_mut(), NonNull::as_ptr)
    }

    pub(crate) fn qp(&self) -> *mut ibv_qp {
        self.qp.map_or(ptr::null_mut(), NonNull::as_ptr)
    }

    pub(crate) fn inline_max(&self) -> u32 {
        self.inline_max
    }

    /// Becomes readable after an event of [`Self::arm`].
    pub(crate) fn event_fd(&self) -> RawFd {
        // SAFETY: the channel is live as long as the queues.
        unsafe { (*self.channel()).fd }
    }

    /// Posts a receive into the buffer, or one without a buffer.
    ///
    /// # Safety
    /// The buffer is registered with the key and stays valid until the request completes.
    pub(crate) unsafe fn post_receive(&self, buffer: Option<(u64, u32, u32)>) -> Result<()> {
        let mut sge = sge(buffer.unwrap_or_default());
        let mut request = ibv_recv_wr {
            wr_id: 0,
            next: ptr::null_mut(),
            sg_list: &raw mut sge,
            num_sge: i32::from(buffer.is_some()),
        };
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is live; the caller vouches for the buffer.
        let errno = unsafe { ibv_post_recv(self.qp(), &raw mut request, &raw mut bad) };
        posted("ibv_post_recv", errno)
    }

    /// Sends a message.
    ///
    /// # Safety
    /// As for [`Self::post_receive`].
    pub(crate) unsafe fn post_message(&self, buffer: (u64, u32, u32)) -> Result<()> {
        let mut sge = sge(buffer);
        let mut request = ibv_send_wr {
            wr_id: 1,
            sg_list: &raw mut sge,
            num_sge: 1,
            opcode: IBV_WR_SEND,
            send_flags: IBV_SEND_SOLICITED,
            ..ibv_send_wr::default()
        };
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is live; the caller vouches for the buffer.
        let errno = unsafe { ibv_post_send(self.qp(), &raw mut request, &raw mut bad) };
        posted("ibv_post_send", errno)
    }

    /// Posts a chain of writes.
    ///
    /// # Safety
    /// As for [`Self::post_receive`], for each write.
    pub(crate) unsafe fn post_writes(&self, writes: &[Work]) -> Result<()> {
        let mut sges: Vec<ibv_sge> = writes
            .iter()
            .map(|w| sge(w.from.unwrap_or_default()))
            .collect();
        let mut requests: Vec<ibv_send_wr> = writes
            .iter()
            .zip(&mut sges)
            .map(|(write, sge)| self.write(write, sge))
            .collect();
        for index in 1..requests.len() {
            let next = &raw mut requests[index];
            requests[index - 1].next = next;
        }
        let Some(first) = requests.first_mut() else {
            return Ok(());
        };
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is live; the list lives through the call; the caller vouches for the buffers.
        let errno = unsafe { ibv_post_send(self.qp(), ptr::from_mut(first), &raw mut bad) };
        posted("ibv_post_send", errno)
    }

    fn write(&self, write: &Work, sge: &mut ibv_sge) -> ibv_send_wr {
        let mut request = ibv_send_wr {
            wr_id: write.wr_id,
            sg_list: ptr::from_mut(sge),
            num_sge: i32::from(write.from.is_some()),
            opcode: IBV_WR_RDMA_WRITE,
            ..ibv_send_wr::default()
        };
        if write
            .from
            .is_some_and(|(_, length, _)| length <= self.inline_max)
        {
            request.send_flags |= IBV_SEND_INLINE;
        }
        if let Some(immediate) = write.immediate {
            request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
            request.send_flags |= IBV_SEND_SOLICITED;
            request.__bindgen_anon_1.imm_data = immediate.to_be();
        }
        let (addr, key) = write.to;
        request.wr.rdma.remote_addr = addr;
        request.wr.rdma.rkey = key;
        request
    }

    /// Takes a completion.
    pub(crate) fn poll(&self) -> Result<Option<ibv_wc>> {
        let mut completion = ibv_wc::default();
        // SAFETY: the queue is live, and the buffer has space for one completion.
        match unsafe { ibv_poll_cq(self.cq(), 1, &raw mut completion) } {
            0 => Ok(None),
            1 => Ok(Some(completion)),
            errno => Err(NaaError::Call {
                call: "ibv_poll_cq",
                source: io::Error::from_raw_os_error(errno.wrapping_abs()),
            }),
        }
    }

    /// Requests an event for the next solicited completion, or for any. Poll once more before waiting.
    pub(crate) fn arm(&self, solicited_only: bool) -> Result<()> {
        // SAFETY: the queue is live and has a channel.
        let errno = unsafe { ibv_req_notify_cq(self.cq(), i32::from(solicited_only)) };
        posted("ibv_req_notify_cq", errno)
    }

    /// Takes all events of the channel.
    pub(crate) fn take_events(&mut self) {
        loop {
            let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
            // SAFETY: the channel is live and does not block; both results can be written.
            let taken = unsafe {
                self.lib
                    .ibv_get_cq_event(self.channel(), &raw mut cq, &raw mut context)
            };
            if taken != 0 {
                return;
            }
            self.unacknowledged += 1;
        }
    }

    /// Text of a completion's status.
    pub(crate) fn status(&self, completion: &ibv_wc) -> String {
        // SAFETY: the function takes any number and returns a constant text.
        let text =
            unsafe { std::ffi::CStr::from_ptr(self.lib.ibv_wc_status_str(completion.status)) };
        text.to_string_lossy().into_owned()
    }
}

impl Queues {
    /// Destroys the queue pair. Afterwards the adapter accesses no registration for this connection.
    pub(crate) fn end_pair(&mut self) {
        if self.qp.take().is_some() {
            // SAFETY: the identifier outlives the queues and owns this queue pair.
            unsafe { self.lib.rdma_destroy_qp(self.id) };
        }
    }
}

impl Drop for Queues {
    fn drop(&mut self) {
        self.end_pair();
        if let Some(cq) = self.cq {
            if self.unacknowledged > 0 {
                // SAFETY: exactly these events were taken.
                unsafe { self.lib.ibv_ack_cq_events(cq.as_ptr(), self.unacknowledged) };
            }
            // SAFETY: its queue pair is gone.
            unsafe { self.lib.ibv_destroy_cq(cq.as_ptr()) };
        }
        if let Some(channel) = self.channel {
            // SAFETY: its completion queue is gone.
            unsafe { self.lib.ibv_destroy_comp_channel(channel.as_ptr()) };
        }
        if let Some(pd) = self.pd {
            // SAFETY: registrations end before the queues (order of the owner's fields).
            unsafe { self.lib.ibv_dealloc_pd(pd.as_ptr()) };
        }
    }
}

fn sge((addr, length, lkey): (u64, u32, u32)) -> ibv_sge {
    ibv_sge { addr, length, lkey }
}

fn posted(call: &'static str, errno: i32) -> Result<()> {
    match errno {
        0 => Ok(()),
        errno => Err(NaaError::Call {
            call,
            source: io::Error::from_raw_os_error(errno.wrapping_abs()),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(length: u32) -> Vec<(u64, u32, u64, Option<u32>)> {
        let write = Work {
            from: Some((1 << 40, length, 7)),
            to: (1 << 44, 9),
            immediate: Some(5),
            wr_id: 1,
        };
        let part = |part: Work| {
            let (from, bytes, key) = part.from.expect("it has bytes");
            assert_eq!((key, part.to.1), (7, 9));
            (
                from - (1 << 40),
                bytes,
                part.to.0 - (1 << 44),
                part.immediate,
            )
        };
        write.split().map(part).collect()
    }

    #[test]
    fn a_region_beyond_a_write_is_written_in_parts() {
        const MAX: u32 = WRITE_BYTES_MAX;
        const GIB: u64 = 1 << 30;
        assert_eq!(parts(1), [(0, 1, 0, Some(5))]);
        assert_eq!(parts(MAX), [(0, MAX, 0, Some(5))]);
        assert_eq!(parts(MAX + 1), [(0, MAX, 0, None), (GIB, 1, GIB, Some(5))]);
        let all = parts(u32::MAX);
        assert_eq!(all.len(), 4);
        assert_eq!(all[3], (3 * GIB, MAX - 1, 3 * GIB, Some(5)));
        let nothing = Work {
            from: None,
            to: (0, 0),
            immediate: Some(5),
            wr_id: 1,
        };
        assert_eq!(nothing.split().count(), 1);
    }
}
