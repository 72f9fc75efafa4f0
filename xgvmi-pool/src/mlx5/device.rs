//! An mlx5 function with its keys, aliases and work queue.

use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use mlx5dv_sys::{MLX5DV_OBJ_PD, Mlx5Lib, ibv_context, ibv_pd, mlx5dv_devx_obj, mlx5dv_obj};

use super::caps::Caps;
use super::fork::{ForkGuard, Quick};
use super::form::Form;
use super::parts::Shape;
use super::proofs::{OnFailure, Proof, Proofs, Prove};
use super::queue::UmrQueue;
use super::queues::{Queues, Recipe};
use super::read::{self, ReadError};
use super::send::Post;
use super::{alias, caps, command, mkey, thread};
use crate::device::{Alias, AliasDevice, MkeyDevice, MkeyLimits, MkeySpec, QuickPath as _, UmrOp};
use crate::error::{ChainError, DeviceError, Rest};
use crate::gate::{Gate, Inside};
use crate::key::{AccessKey, Gvmi, Lkey, Mkey, MkeyIndex, RemoteKey, VirtAddr};
use crate::sync::{Mutex, lock};

/// Maximum time that closing waits for running calls. The kernel limits the time of a command.
const CLOSE_WAIT: Duration = Duration::from_secs(60);

/// Options of a device.
#[derive(Clone, Copy, Debug)]
pub struct Mlx5Options {
    /// Port of the work queue's connection. Default: the first active port.
    pub port: Option<u8>,
    /// Index in the port's GID table. Default on InfiniBand: the first entry. Default on Ethernet:
    /// the first entry that resolves, in UCX's order (RoCE v2 before v1, IPv4 before IPv6).
    pub gid_index: Option<u8>,
    /// Size of the send queue in building blocks of 64 bytes. A bind takes three, an invalidation
    /// two. Default 1024: 64 KiB, enough for a chain of 336 binds.
    pub sq_wqebbs: u32,
    /// Maximum wait for a completion before the device abandons the queue. Default 5 s: a request
    /// takes a microsecond, but a paused virtual machine takes seconds.
    pub poll_timeout: Duration,
    /// The adapter is known to support cross-function keys and aliases, so the device does not
    /// query it. Default: no.
    pub is_known_to_cross: bool,
    /// The code that posts binds and invalidations. Default: this crate.
    pub post: Post,
    /// Whether the device proves a form of binds before its first use. Default: once per process.
    pub prove: Prove,
    /// Callback for a form that does not work, called once per form from the call that detected it.
    /// Default: none.
    pub on_failure: Option<OnFailure>,
}

impl Default for Mlx5Options {
    fn default() -> Self {
        Self {
            port: None,
            gid_index: None,
            sq_wqebbs: 1024,
            poll_timeout: Duration::from_secs(5),
            is_known_to_cross: false,
            post: Post::default(),
            prove: Prove::default(),
            on_failure: None,
        }
    }
}

/// Bounds of [`Mlx5Options::sq_wqebbs`]: two of the largest requests, and a size that every adapter
/// supports.
const SQ_WQEBBS: std::ops::RangeInclusive<u32> = 64..=32_768;

/// A function of an adapter, with its exporting and its importing side.
#[derive(Debug)]
pub struct Mlx5Device {
    fork: ForkGuard,
    gate: Gate,
    proofs: Proofs,
    queues: Queues,
    lib: Arc<Mlx5Lib>,
    context: NonNull<ibv_context>,
    pdn: u32,
    caps: Caps,
    options: Mlx5Options,
    /// All existing objects by index. A key and an alias never have the same index: both are
    /// entries of the function's key table.
    objects: Mutex<HashMap<MkeyIndex, Object>>,
}

#[derive(Debug)]
struct Object(NonNull<mlx5dv_devx_obj>);

// SAFETY: DEVX objects belong to the process and are safe to use from any thread.
unsafe impl Send for Object {}
// SAFETY: the pointers are libibverbs' and libmlx5's objects, safe to use from any thread; all
// other fields are Send and Sync by themselves.
unsafe impl Send for Mlx5Device {}
// SAFETY: as above.
unsafe impl Sync for Mlx5Device {}

impl Mlx5Device {
    /// Opens the function of a verbs context. The first bind creates the work queue, so an importer
    /// has none.
    ///
    /// # Errors
    /// If the adapter does not support cross-function keys, or does not answer; if an option is out
    /// of range.
    ///
    /// # Safety
    /// `context` was opened by `lib` with DEVX, `pd` was allocated on it, and both outlive
    /// [`Mlx5Device::close`] and the drop of the device.
    pub unsafe fn open(
        lib: Arc<Mlx5Lib>,
        context: NonNull<ibv_context>,
        pd: NonNull<ibv_pd>,
        options: Mlx5Options,
    ) -> Result<Arc<Self>, DeviceError> {
        if !SQ_WQEBBS.contains(&options.sq_wqebbs) {
            let what = format!("sq_wqebbs {}, allowed are {SQ_WQEBBS:?}", options.sq_wqebbs);
            return Err(DeviceError::Unsupported { what });
        }
        let fork = ForkGuard::new().map_err(|error| DeviceError::Unsupported {
            what: format!("a page that is emptied on fork: {error}"),
        })?;
        // SAFETY: the caller's promise.
        let caps = unsafe { caps::query(&lib, context, options.is_known_to_cross) }?;
        // SAFETY: the caller's promise.
        let pdn = unsafe { domain_number(&lib, pd) }?;
        let recipe = Recipe {
            lib: Arc::clone(&lib),
            context,
            pd,
            ports: caps.ports,
            access: caps.access(),
            port: options.port,
            gid_index: options.gid_index,
            shape: Shape {
                wqebbs: options.sq_wqebbs,
                poll_timeout: options.poll_timeout,
                post: options.post,
                fence: caps.umr_fence,
            },
        };
        // SAFETY: the caller's promise; `close` and the drop close the queues.
        let queues = unsafe { Queues::new(recipe) };
        Ok(Arc::new(Self {
            lib,
            context,
            pdn,
            caps,
            options,
            queues,
            proofs: Proofs::new(options.prove, options.on_failure),
            objects: Mutex::new(HashMap::new()),
            gate: Gate::new(),
            fork,
        }))
    }

    /// Destroys the work queue and all remaining objects. Afterwards the device refuses every call,
    /// and the caller may close context and domain. Close the pool and the alias map first. Returns
    /// false if the device could not destroy an object. In a forked child it does nothing.
    pub fn close(&self) -> bool {
        if self.fork.parent().is_some() {
            self.queues.forget();
            return true;
        }
        if !self.gate.shut() {
            return true;
        }
        if !self.gate.wait_empty(CLOSE_WAIT) {
            // A call is stuck in the kernel. It would be worse to destroy its objects under it.
            return false;
        }
        self.proofs.close();
        let mut clean = self.queues.close().is_ok();
        for (index, Object(made)) in lock(&self.objects).drain() {
            let object = || format!("{index:?}");
            // SAFETY: the object is in the table, so it was created and not destroyed.
            let gone = unsafe { command::destroy(&self.lib, made, "DESTROY", object) };
            clean &= gone.is_ok();
        }
        clean
    }

    /// The forms of binds that were proved or that failed so far.
    #[must_use]
    pub fn proofs(&self) -> Vec<Proof> {
        self.proofs.done()
    }

    /// Proves a form of binds ahead of its first use, with a free key of this device. No other code
    /// may use the key meanwhile. After a success the key is free, and the first bind finds the
    /// form proved. A form that is already proved costs nothing here.
    ///
    /// # Errors
    /// If the form does not work, or the proof was inconclusive. The key may be bound then, to
    /// memory that is no longer registered: invalidate it, or destroy it.
    pub fn prove(&self, form: Form, key: Mkey) -> Result<(), ChainError> {
        let not_posted = |source| ChainError {
            done: 0,
            rest: Rest::NotDone,
            source,
        };
        let _inside = self.enter().map_err(not_posted)?;
        if self.proofs.is_usable(form) {
            return Ok(());
        }
        self.proofs.prove(&self.queues, (form, key))
    }

    /// Reads `into.len()` bytes at `from` through the alias `key` of this function, with one RDMA
    /// READ. It serves tests of keys and aliases: each call creates and destroys a queue pair.
    ///
    /// # Errors [`ReadError::Refused`] if the adapter refuses the read, [`ReadError::Device`] if it
    /// could not be posted.
    pub fn read(&self, key: Lkey, from: VirtAddr, into: &mut [u8]) -> Result<(), ReadError> {
        let _inside = self.enter()?;
        read::read(&self.queues, key, from, into)
    }

    /// The code that posts to the present work queue.
    ///
    /// # Errors
    /// If there is no queue and none can be created now.
    pub fn posted_by(&self) -> Result<Post, DeviceError> {
        let _inside = self.enter()?;
        Ok(self.queues.get()?.posted_by())
    }

    /// Runs any chain, inside the gate.
    #[inline(never)]
    fn run_inside(&self, chain: &[UmrOp<'_>]) -> Result<(), ChainError> {
        let _inside = self.enter().map_err(not_posted)?;
        while let Some(form) = self.proofs.missing(chain) {
            self.proofs.prove(&self.queues, form)?;
        }
        if let Some(queue) = self.queues.made() {
            if self.proofs.is_usable(Form::Stock) {
                self.fork.quick().use_queue(queue);
            }
            if !queue.has_failed() {
                return queue.run(chain);
            }
        }
        self.queues.get().map_err(not_posted)?.run(chain)
    }

    /// Runs one request.
    #[inline(never)]
    fn run_one(&self, op: &UmrOp<'_>) -> Result<(), ChainError> {
        let quick = self.fork.quick();
        let ran = match op {
            UmrOp::Invalidate { mkey } => quick.invalidate(*mkey),
            UmrOp::Bind { mkey, span } => match span.regions() {
                &[region] => quick.bind(*mkey, region),
                _ => None,
            },
        };
        match ran {
            Some(ran) => ran.map_err(|failed| *failed),
            None => self.run_inside(std::slice::from_ref(op)),
        }
    }

    #[inline]
    fn enter(&self) -> Result<Inside<'_>, DeviceError> {
        if let Some(parent) = self.fork.parent() {
            return Err(DeviceError::Forked { parent });
        }
        // Not `ok_or`, which would build and drop an error in each call.
        match self.gate.enter() {
            Some(inside) => Ok(inside),
            None => Err(DeviceError::Closed),
        }
    }

    fn keep(&self, index: MkeyIndex, made: NonNull<mlx5dv_devx_obj>) {
        let before = lock(&self.objects).insert(index, Object(made));
        assert!(
            before.is_none(),
            "the adapter gave index {index:?} out twice"
        );
    }

    fn destroy(&self, call: &'static str, index: MkeyIndex) -> Result<(), DeviceError> {
        let _inside = self.enter()?;
        let object = || format!("{index:?}");
        let Some(Object(made)) = lock(&self.objects).remove(&index) else {
            let errno = libc::ENOENT;
            return Err(DeviceError::Refused {
                call,
                object: object(),
                status: 0,
                syndrome: 0,
                errno,
            });
        };
        // SAFETY: it was in the table, so it was created and not destroyed. Now only this call has
        // it.
        let gone = unsafe { command::destroy(&self.lib, made, call, object) };
        if gone.is_err() {
            // It still exists: closing tries again.
            self.keep(index, made);
        }
        gone
    }
}

/// An error before the first request of a chain.
#[cold]
fn not_posted(source: DeviceError) -> ChainError {
    ChainError {
        done: 0,
        rest: Rest::NotDone,
        source,
    }
}

impl MkeyDevice for Mlx5Device {
    type Quick = Quick;

    fn quick(&self) -> Quick {
        self.fork.quick().clone()
    }

    #[inline]
    fn gvmi(&self) -> Gvmi {
        self.caps.gvmi
    }

    fn limits(&self) -> MkeyLimits {
        MkeyLimits {
            klm_entries_max: self.caps.klm_entries_max,
            chain_ops_max: UmrQueue::chain_ops_max(self.options.sq_wqebbs),
        }
    }

    #[inline]
    fn is_ours(&self) -> bool {
        self.fork.parent().is_none()
    }

    #[inline(always)]
    fn thread_mark() -> Option<usize> {
        thread::pointer()
    }

    fn create_mkey(&self, spec: &MkeySpec) -> Result<MkeyIndex, DeviceError> {
        let _inside = self.enter()?;
        // SAFETY: context and domain are live because the device is open.
        let (index, made) = unsafe {
            let spec = (spec, self.caps.is_relaxed_only);
            mkey::create(&self.lib, self.context, self.pdn, spec)
        }?;
        self.keep(index, made);
        Ok(index)
    }

    fn destroy_mkey(&self, mkey: MkeyIndex) -> Result<(), DeviceError> {
        self.destroy("DESTROY_MKEY", mkey)
    }

    #[inline]
    fn run(&self, chain: &[UmrOp<'_>]) -> Result<(), ChainError> {
        if let Some(parent) = self.fork.parent() {
            return Err(not_posted(DeviceError::Forked { parent }));
        }
        if let [op] = chain {
            return self.run_one(op);
        }
        self.run_inside(chain)
    }

    fn recoveries(&self) -> u64 {
        self.queues.recoveries()
    }
}

impl AliasDevice for Mlx5Device {
    #[inline]
    fn is_ours(&self) -> bool {
        self.fork.parent().is_none()
    }

    #[inline(always)]
    fn thread_mark() -> Option<usize> {
        thread::pointer()
    }

    fn create_alias(&self, key: &RemoteKey, access: &AccessKey) -> Result<Alias, DeviceError> {
        let _inside = self.enter()?;
        // SAFETY: context and domain are live because the device is open.
        let (made, object) =
            unsafe { alias::create(&self.lib, self.context, self.pdn, key, access) }?;
        self.keep(made.index, object);
        Ok(made)
    }

    fn destroy_alias(&self, alias: MkeyIndex) -> Result<(), DeviceError> {
        self.destroy("DESTROY_GENERAL_OBJECT", alias)
    }
}

impl Drop for Mlx5Device {
    fn drop(&mut self) {
        self.close();
    }
}

/// Number of a protection domain.
///
/// # Safety
/// `pd` is live and made by `lib`.
pub(super) unsafe fn domain_number(lib: &Mlx5Lib, pd: NonNull<ibv_pd>) -> Result<u32, DeviceError> {
    let mut raw = mlx5dv_sys::mlx5dv_pd::default();
    let mut obj = mlx5dv_obj::default();
    obj.pd.in_ = pd.as_ptr();
    obj.pd.out = &raw mut raw;
    // SAFETY: the domain is live, and the output is its own.
    let errno = unsafe { lib.mlx5dv_init_obj(&raw mut obj, u64::from(MLX5DV_OBJ_PD)) };
    if errno != 0 {
        let what = format!("the number of a protection domain (mlx5dv_init_obj: errno {errno})");
        return Err(DeviceError::Unsupported { what });
    }
    Ok(raw.pdn)
}
