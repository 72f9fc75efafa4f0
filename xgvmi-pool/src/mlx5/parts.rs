//! The creation of a queue's verbs objects.

use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::time::Duration;

use mlx5dv_sys::{
    IBV_QP_INIT_ATTR_PD, IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, IBV_QPT_RC, MLX5DV_OBJ_CQ, MLX5DV_OBJ_QP,
    MLX5DV_QP_EX_WITH_RAW_WQE, MLX5DV_QP_INIT_ATTR_MASK_SEND_OPS_FLAGS, Mlx5Lib, ibv_context,
    ibv_cq, ibv_pd, ibv_qp, ibv_qp_cap, ibv_qp_init_attr, ibv_qp_init_attr_ex, mlx5dv_cq,
    mlx5dv_obj, mlx5dv_qp, mlx5dv_qp_init_attr,
};

use super::register::Register;
use super::send::Post;
use crate::error::DeviceError;

/// Building blocks that libmlx5 reserves per work request of a reliable connection: control, UMR
/// control, mkey context and one aligned list (`sq_overhead` of `providers/mlx5/verbs.c`).
pub(super) const WQEBBS_PER_REQUEST: u32 = 3;

/// Properties of a queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// Approximate number of building blocks of the ring.
    pub(super) wqebbs: u32,
    /// Maximum wait for a completion.
    pub(super) poll_timeout: Duration,
    /// The code that posts.
    pub(super) post: Post,
    /// Fence of a request behind a UMR.
    pub(super) fence: u8,
}

/// The parts of a queue during its creation. Dropping it destroys the existing parts.
pub(super) struct Parts<'l> {
    lib: &'l Arc<Mlx5Lib>,
    pd: NonNull<ibv_pd>,
    cq: NonNull<ibv_cq>,
    qp: Option<NonNull<ibv_qp>>,
    register: Option<Register>,
    pub(super) post: Post,
    /// Another object owns both queues now.
    kept: bool,
}

impl<'l> Parts<'l> {
    /// A completion queue, and a doorbell register if one is available.
    ///
    /// # Safety
    /// `context` and `pd` are live, were created by `lib`, and outlive this value and the queue
    /// made from it.
    pub(super) unsafe fn new(
        lib: &'l Arc<Mlx5Lib>,
        context: NonNull<ibv_context>,
        pd: NonNull<ibv_pd>,
        entries: i32,
    ) -> Result<Self, DeviceError> {
        // SAFETY: the context is live; a queue without a channel has no other requirement.
        let cq = unsafe {
            lib.ibv_create_cq(
                context.as_ptr(),
                entries,
                ptr::null_mut(),
                ptr::null_mut(),
                0,
            )
        };
        let cq = NonNull::new(cq).ok_or_else(|| refused("ibv_create_cq"))?;
        // SAFETY: the caller's promise.
        let register = unsafe { Register::alloc(lib, context, pd) }.ok();
        Ok(Self {
            lib,
            pd,
            cq,
            qp: None,
            register,
            post: Post::Raw,
            kept: false,
        })
    }

    pub(super) fn qp(&self) -> Result<NonNull<ibv_qp>, DeviceError> {
        self.qp.ok_or_else(|| unsupported("a queue pair"))
    }

    fn domain(&self) -> *mut ibv_pd {
        match &self.register {
            Some(register) => register.domain(),
            None => self.pd.as_ptr(),
        }
    }

    /// Creates the queue pair for the posting code, and returns libmlx5's description of both
    /// queues.
    pub(super) fn create_qp(
        &mut self,
        context: NonNull<ibv_context>,
        shape: Shape,
    ) -> Result<(mlx5dv_qp, mlx5dv_cq), DeviceError> {
        let cq = self.cq.as_ptr();
        let cap = ibv_qp_cap {
            max_send_wr: shape.wqebbs.div_ceil(WQEBBS_PER_REQUEST),
            max_send_sge: 1,
            ..ibv_qp_cap::default()
        };
        if shape.post == Post::Raw {
            self.create_plain(cap)?;
            let described = self.describe()?;
            // A register that another queue pair may share accepts single stores from any thread. A
            // doorbell must not come between another thread's stores to a BlueFlame buffer, and
            // libmlx5's lock prevents that.
            if self.register.is_some() || described.0.bf.size == 0 {
                return Ok(described);
            }
            self.destroy_qp();
        }
        if shape.post == Post::Send {
            return self.create_for_post_send(cap);
        }
        self.post = Post::Verbs;
        let mut init = ibv_qp_init_attr_ex {
            send_cq: cq,
            recv_cq: cq,
            cap,
            qp_type: IBV_QPT_RC,
            comp_mask: IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
            pd: self.domain(),
            ..ibv_qp_init_attr_ex::default()
        };
        let mut mlx5_init = mlx5dv_qp_init_attr {
            comp_mask: u64::from(MLX5DV_QP_INIT_ATTR_MASK_SEND_OPS_FLAGS),
            send_ops_flags: u64::from(MLX5DV_QP_EX_WITH_RAW_WQE),
            ..mlx5dv_qp_init_attr::default()
        };
        // SAFETY: the context is live, and so are all objects that the attributes name.
        let qp = unsafe {
            self.lib
                .mlx5dv_create_qp(context.as_ptr(), &raw mut init, &raw mut mlx5_init)
        };
        self.qp = NonNull::new(qp);
        match self.qp {
            Some(_) => self.describe(),
            // A libmlx5 that is too old refuses the flag.
            None => self.create_for_post_send(cap),
        }
    }

    fn create_for_post_send(
        &mut self,
        cap: ibv_qp_cap,
    ) -> Result<(mlx5dv_qp, mlx5dv_cq), DeviceError> {
        self.post = Post::Send;
        self.create_plain(cap)?;
        self.describe()
    }

    /// Creates the queue pair without extended operations.
    fn create_plain(&mut self, cap: ibv_qp_cap) -> Result<(), DeviceError> {
        let cq = self.cq.as_ptr();
        let mut init = ibv_qp_init_attr {
            send_cq: cq,
            recv_cq: cq,
            cap,
            qp_type: IBV_QPT_RC,
            ..ibv_qp_init_attr::default()
        };
        // SAFETY: the domain is live, and so is the completion queue that the attributes name.
        let qp = unsafe { self.lib.ibv_create_qp(self.domain(), &raw mut init) };
        self.qp = Some(NonNull::new(qp).ok_or_else(|| refused("ibv_create_qp"))?);
        Ok(())
    }

    /// libmlx5's description of both queues.
    fn describe(&self) -> Result<(mlx5dv_qp, mlx5dv_cq), DeviceError> {
        let mut raw_qp = mlx5dv_qp::default();
        let mut raw_cq = mlx5dv_cq::default();
        let mut obj = mlx5dv_obj::default();
        obj.qp.in_ = self.qp()?.as_ptr();
        obj.qp.out = &raw mut raw_qp;
        obj.cq.in_ = self.cq.as_ptr();
        obj.cq.out = &raw mut raw_cq;
        let kinds = u64::from(MLX5DV_OBJ_QP | MLX5DV_OBJ_CQ);
        // SAFETY: the objects are live and of the kinds named, and the outputs are theirs.
        match unsafe { self.lib.mlx5dv_init_obj(&raw mut obj, kinds) } {
            0 => Ok((raw_qp, raw_cq)),
            _ => Err(unsupported("raw access to queues (mlx5dv_init_obj)")),
        }
    }

    fn destroy_qp(&mut self) {
        if let Some(qp) = self.qp.take() {
            // SAFETY: just created and unused.
            unsafe { self.lib.ibv_destroy_qp(qp.as_ptr()) };
        }
    }

    /// Passes both queues and the register to the caller.
    pub(super) fn keep(mut self) -> (NonNull<ibv_cq>, Option<Register>) {
        self.kept = true;
        (self.cq, self.register.take())
    }
}

impl Drop for Parts<'_> {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        self.destroy_qp();
        // SAFETY: just created, and its queue pair is gone.
        unsafe { self.lib.ibv_destroy_cq(self.cq.as_ptr()) };
    }
}

pub(super) fn unsupported(what: &'static str) -> DeviceError {
    DeviceError::Unsupported {
        what: what.to_owned(),
    }
}

fn refused(call: &'static str) -> DeviceError {
    let errno = std::io::Error::last_os_error()
        .raw_os_error()
        .expect("it is an errno");
    DeviceError::QueueDown {
        reason: format!("{call}: errno {errno}"),
    }
}
