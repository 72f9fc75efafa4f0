//! A queue pair that is connected to itself and accesses memory through a key, for tests of the key.
//! A refused request breaks it, so nothing else is posted to it.

use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mlx5dv_sys::{
    IBV_QP_STATE, IBV_QPS_RESET, IBV_QPT_RC, IBV_SEND_SIGNALED, IBV_WR_RDMA_READ,
    IBV_WR_RDMA_WRITE, Mlx5Lib, ibv_cq, ibv_post_send, ibv_qp, ibv_qp_attr, ibv_qp_init_attr,
    ibv_send_wr, ibv_sge,
};

use super::queue::UmrQueue;
use super::queues::Recipe;
use super::receive::{poll, syndrome_of};
use super::register::Register;
use crate::error::DeviceError;
use crate::key::{Lkey, Rkey, VirtAddr};

/// Maximum number of requests of one call.
const REQUESTS_MAX: usize = 2;

/// Direction of a transfer between local and remote memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// RDMA READ, from remote to local.
    Read,
    /// RDMA WRITE, from local to remote.
    Write,
}

/// One request: `len` bytes between `local`, by the key `lkey`, and `remote`, by the key `rkey`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Transfer {
    pub(super) direction: Direction,
    pub(super) rkey: Rkey,
    pub(super) remote: VirtAddr,
    pub(super) lkey: Lkey,
    pub(super) local: VirtAddr,
    pub(super) len: u32,
}

/// The queue pair and its completion queue. Both end by [`Reader::end`]: a forked child must not
/// destroy objects of its parent.
#[derive(Debug)]
pub(super) struct Reader {
    lib: Arc<Mlx5Lib>,
    poll_timeout: Duration,
    cq: NonNull<ibv_cq>,
    qp: NonNull<ibv_qp>,
    /// The work queue's register. The queue pair is in its domain, so it needs no register page of
    /// its own.
    register: Option<Arc<Register>>,
}

// SAFETY: libibverbs objects belong to the process and are safe to use from any thread.
unsafe impl Send for Reader {}

impl Reader {
    /// Creates and connects the queue pair on the context of `recipe`, beside `queue`.
    ///
    /// # Errors
    /// If the kernel refuses. No object remains then.
    pub(super) fn new(recipe: &Recipe, queue: &UmrQueue) -> Result<Self, DeviceError> {
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
        init.cap.max_send_wr = 2;
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
            lib: Arc::clone(&recipe.lib),
            poll_timeout: recipe.shape.poll_timeout,
            cq,
            qp,
            register,
        };
        match reader.connect(queue) {
            Ok(()) => Ok(reader),
            Err(error) => {
                reader.end();
                Err(error)
            }
        }
    }

    /// True if the queue pair has the register of this work queue, or one that libmlx5 locks.
    pub(super) fn fits(&self, queue: &UmrQueue) -> bool {
        match (&self.register, queue.register()) {
            (Some(own), Some(register)) => Arc::ptr_eq(own, &register),
            (None, None) => true,
            _ => false,
        }
    }

    /// Reconnects the queue pair after a refusal.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(super) fn reset(&self, queue: &UmrQueue) -> Result<(), DeviceError> {
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
            0 => self.connect(queue),
            errno => {
                let reason = format!("a queue pair to RESET: errno {errno}");
                Err(DeviceError::QueueDown { reason })
            }
        }
    }

    fn connect(&self, queue: &UmrQueue) -> Result<(), DeviceError> {
        // SAFETY: the queue pair is live and in the state RESET: it is new, or was just reset.
        unsafe { queue.loopback().connect(&self.lib, self.qp) }
    }

    /// Posts the requests together and waits for their completions. Returns the syndrome of each,
    /// `None` for success.
    ///
    /// # Errors
    /// If the requests are not posted, or have no completion within the device's limit.
    pub(super) fn run<const N: usize>(
        &self,
        queue: &UmrQueue,
        transfers: [Transfer; N],
    ) -> Result<[Option<u8>; N], DeviceError> {
        const { assert!(0 < N && N <= REQUESTS_MAX, "the rings have room for two") };
        let mut entries = transfers.map(|transfer| ibv_sge {
            addr: transfer.local.get(),
            length: transfer.len,
            lkey: transfer.lkey.raw(),
        });
        let entries = entries.as_mut_ptr();
        let mut place = 0;
        let mut requests = transfers.map(|transfer| {
            let mut wr = ibv_send_wr {
                // The array has an entry for each transfer.
                sg_list: entries.wrapping_add(place),
                num_sge: 1,
                opcode: match transfer.direction {
                    Direction::Read => IBV_WR_RDMA_READ,
                    Direction::Write => IBV_WR_RDMA_WRITE,
                },
                send_flags: IBV_SEND_SIGNALED,
                ..ibv_send_wr::default()
            };
            wr.wr.rdma.remote_addr = transfer.remote.get();
            wr.wr.rdma.rkey = transfer.rkey.raw();
            place += 1;
            wr
        });
        let first = requests.as_mut_ptr();
        for next in 1..N {
            // SAFETY: both places are in the array of N requests.
            unsafe { (*first.add(next - 1)).next = first.add(next) };
        }
        let mut bad = ptr::null_mut();
        let errno = queue.alone(|| {
            // SAFETY: the queue pair is live, and the list is in the two arrays. The adapter checks
            // its keys. No other thread rings the register meanwhile.
            unsafe { ibv_post_send(self.qp.as_ptr(), first, &raw mut bad) }
        });
        if errno != 0 {
            let reason = format!("a request through a key is not posted: errno {errno}");
            return Err(DeviceError::QueueDown { reason });
        }
        let mut outcomes = [None; N];
        for outcome in &mut outcomes {
            *outcome = self.wait()?;
        }
        Ok(outcomes)
    }

    /// Waits for the next completion. Completions of one queue pair come in the order of its
    /// requests.
    fn wait(&self) -> Result<Option<u8>, DeviceError> {
        let start = Instant::now();
        loop {
            // SAFETY: the completion queue is live, and only this reader uses it.
            if let Some(completion) = unsafe { poll(self.cq) } {
                return Ok(syndrome_of(completion.status));
            }
            let limit = self.poll_timeout;
            if start.elapsed() > limit {
                let request = "a request through a key".to_owned();
                return Err(DeviceError::TimedOut { request, limit });
            }
            std::hint::spin_loop();
        }
    }

    /// Destroys the queue pair and the completion queue.
    pub(super) fn end(self) {
        // If the kernel refuses, the objects end with the context.
        // SAFETY: created by `new`, and no longer posted to.
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
