//! A queue pair that is connected to itself and reads memory through a key, one RDMA READ at a
//! time. A refused read breaks it, so nothing else is posted to it.

use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mlx5dv_sys::{
    IBV_QP_STATE, IBV_QPS_RESET, IBV_QPT_RC, IBV_SEND_SIGNALED, IBV_WR_RDMA_READ, Mlx5Lib, ibv_cq,
    ibv_post_send, ibv_qp, ibv_qp_attr, ibv_qp_init_attr, ibv_send_wr, ibv_sge,
};

use super::queue::UmrQueue;
use super::queues::Recipe;
use super::receive::{poll, syndrome_of};
use super::register::Register;
use crate::error::DeviceError;
use crate::key::{Lkey, Rkey, VirtAddr};

/// One read: `len` bytes at `from`, by the key `rkey`, to `to`, by the key `lkey`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Transfer {
    pub(super) rkey: Rkey,
    pub(super) from: VirtAddr,
    pub(super) lkey: Lkey,
    pub(super) to: VirtAddr,
    pub(super) len: u32,
}

/// The queue pair and its completion queue.
#[derive(Debug)]
pub(super) struct Reader<'d> {
    lib: &'d Mlx5Lib,
    queue: &'d UmrQueue,
    poll_timeout: Duration,
    cq: NonNull<ibv_cq>,
    qp: NonNull<ibv_qp>,
    /// The work queue's register. The queue pair is in its domain, so it needs no register page of
    /// its own.
    _register: Option<Arc<Register>>,
}

impl<'d> Reader<'d> {
    /// Creates and connects the queue pair on the context of `recipe`, beside `queue`.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(super) fn new(recipe: &'d Recipe, queue: &'d UmrQueue) -> Result<Self, DeviceError> {
        let lib: &Mlx5Lib = &recipe.lib;
        let (none, channel) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the context is live; a queue without a channel has no other requirement.
        let cq = unsafe { lib.ibv_create_cq(recipe.context.as_ptr(), 2, none, channel, 0) };
        let cq = NonNull::new(cq).ok_or_else(|| refused("ibv_create_cq"))?;
        let mut init = ibv_qp_init_attr {
            send_cq: cq.as_ptr(),
            recv_cq: cq.as_ptr(),
            qp_type: IBV_QPT_RC,
            ..ibv_qp_init_attr::default()
        };
        init.cap.max_send_wr = 1;
        init.cap.max_send_sge = 1;
        let register = queue.register();
        let domain = register
            .as_ref()
            .map_or(recipe.pd.as_ptr(), |register| register.domain());
        // SAFETY: the domain is live, and so is the completion queue that the attributes name.
        let qp = unsafe { lib.ibv_create_qp(domain, &raw mut init) };
        let Some(qp) = NonNull::new(qp) else {
            let error = refused("ibv_create_qp");
            // SAFETY: just created and unused.
            unsafe { lib.ibv_destroy_cq(cq.as_ptr()) };
            return Err(error);
        };
        let reader = Self {
            lib,
            queue,
            poll_timeout: recipe.shape.poll_timeout,
            cq,
            qp,
            _register: register,
        };
        // SAFETY: a new queue pair is in the state RESET.
        unsafe { queue.loopback().connect(lib, qp) }?;
        Ok(reader)
    }

    /// Reconnects the queue pair after a refusal.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(super) fn reset(&self) -> Result<(), DeviceError> {
        let mut attr = ibv_qp_attr {
            qp_state: IBV_QPS_RESET,
            ..ibv_qp_attr::default()
        };
        let mask = IBV_QP_STATE.cast_signed();
        // SAFETY: the queue pair is live, and the attributes are those that the mask names.
        match unsafe {
            self.lib
                .ibv_modify_qp(self.qp.as_ptr(), &raw mut attr, mask)
        } {
            0 => {}
            errno => {
                let reason = format!("a queue pair to RESET: errno {errno}");
                return Err(DeviceError::QueueDown { reason });
            }
        }
        // SAFETY: it is in the state RESET.
        unsafe { self.queue.loopback().connect(self.lib, self.qp) }
    }

    /// Reads and waits for the completion. Returns its syndrome, `None` for success.
    ///
    /// # Errors
    /// If the request is not posted, or has no completion within the device's limit.
    pub(super) fn read(&self, transfer: Transfer) -> Result<Option<u8>, DeviceError> {
        let mut sge = ibv_sge {
            addr: transfer.to.get(),
            length: transfer.len,
            lkey: transfer.lkey.raw(),
        };
        let mut wr = ibv_send_wr {
            sg_list: &raw mut sge,
            num_sge: 1,
            opcode: IBV_WR_RDMA_READ,
            send_flags: IBV_SEND_SIGNALED,
            ..ibv_send_wr::default()
        };
        wr.wr.rdma.remote_addr = transfer.from.get();
        wr.wr.rdma.rkey = transfer.rkey.raw();
        let mut bad = ptr::null_mut();
        let errno = self.queue.alone(|| {
            // SAFETY: the queue pair is live, and the list is one request. The adapter checks its
            // keys. No other thread rings the register meanwhile.
            unsafe { ibv_post_send(self.qp.as_ptr(), &raw mut wr, &raw mut bad) }
        });
        if errno != 0 {
            let reason = format!("a read is not posted: errno {errno}");
            return Err(DeviceError::QueueDown { reason });
        }
        let start = Instant::now();
        loop {
            // SAFETY: the completion queue is live, and only this reader uses it.
            if let Some(completion) = unsafe { poll(self.cq) } {
                return Ok(syndrome_of(completion.status));
            }
            let limit = self.poll_timeout;
            if start.elapsed() > limit {
                let request = "a read through a key".to_owned();
                return Err(DeviceError::TimedOut { request, limit });
            }
            std::hint::spin_loop();
        }
    }
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        // If the kernel refuses, the objects end with the context.
        // SAFETY: created by `new`, and no
        // longer posted to.
        unsafe { self.lib.ibv_destroy_qp(self.qp.as_ptr()) };
        // SAFETY: its queue pair is gone.
        unsafe { self.lib.ibv_destroy_cq(self.cq.as_ptr()) };
    }
}

fn refused(call: &'static str) -> DeviceError {
    let error = std::io::Error::last_os_error();
    DeviceError::QueueDown {
        reason: format!("{call}: {error}"),
    }
}
