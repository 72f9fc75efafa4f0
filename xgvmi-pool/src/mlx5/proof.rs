//! The proof of a form of binds: the adapter reads bytes of this process through a key.
//!
//! The proof binds the key of the first bind to a small buffer instead. Through the key, at the
//! buffer's addresses, the adapter must read the content of the buffer. It must refuse to read one
//! byte more, and after the invalidation it must refuse every read. The key is then free as before.
//!
//! The first read is an RDMA READ on the work queue, with the key as the remote key. A refused
//! request breaks its queue pair, so the other reads have a queue pair of their own. They are RDMA
//! WRITEs that take their data through the key as the local key: the adapter checks range and state
//! of a key in the same way for both uses. A refusal then concerns only the requester. With a remote
//! key the responder, which is the same queue pair, would fail as well. It would send an
//! asynchronous event, which UCX logs as an error, and might flush the request before its own
//! completion. The syndrome of a local key is the request's own, so the proof does not mistake a
//! broken queue pair for a refusal.
//!
//! The queue pair and the buffer remain for the proof of the other form, until the device is
//! closed. Their destruction would delay the first export.

use std::alloc::{self, Layout};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use libc::c_long;
use mlx5_prm::cqe::syndrome;
use mlx5dv_sys::{
    IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE, Mlx5Lib, ibv_mr,
};

use super::form::Form;
use super::queue::UmrQueue;
use super::queues::Recipe;
use super::reader::{Direction, Reader, Transfer};
use super::send_verbs::VerbsRequest;
use super::wqe::{Read, Request, Slot, Wqe};
use crate::device::UmrOp;
use crate::error::{ChainError, DeviceError};
use crate::key::{Lkey, Mkey, Rkey, VirtAddr};
use crate::region::Region;
use crate::span::Span;

/// Number of bytes that the key is bound to.
const BOUND: usize = 64;
/// Their offset in the page, with other bytes before and behind them.
const SOURCE: usize = 192;
/// The part of the page with content: the bound bytes and their neighbours.
const FILLED: std::ops::Range<usize> = SOURCE - BOUND..SOURCE + 2 * BOUND;
/// Offset of the target of a permitted read.
const TARGET: usize = 2048;
/// Offset of the target of a read that must fail, which would take one byte more.
const FORBIDDEN: usize = 3072;
/// Registered bytes.
const PAGE: usize = 4096;
/// The allocation around it: whole pages of the system, because a forked child may miss a page with registered bytes.
/// BlueField kernels with pages of 64 KiB exist.
fn layout(system_page: c_long) -> Layout {
    let bytes = usize::try_from(system_page).unwrap_or(PAGE).max(PAGE);
    let bytes = bytes.checked_next_power_of_two().unwrap_or(PAGE);
    // A power of two is a valid alignment, and PAGE a valid size.
    Layout::from_size_align(bytes, bytes).unwrap_or(Layout::new::<[u8; PAGE]>())
}

/// [`layout`] on this system.
fn own_layout() -> Layout {
    // SAFETY: queries a constant of the system.
    layout(unsafe { libc::sysconf(libc::_SC_PAGESIZE) })
}
/// Content of the targets before each read.
const EMPTY: u8 = 0;

/// Inputs of a proof.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bench<'d> {
    pub(super) recipe: &'d Recipe,
    pub(super) queue: &'d UmrQueue,
}

/// A step of a proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProofStep {
    /// Bind the key.
    Bind,
    /// Read the bytes through the key, at their addresses.
    Read,
    /// A read of one byte more must fail.
    Beyond,
    /// Invalidate the key.
    Invalidate,
    /// A read through the free key must fail.
    Invalid,
}

impl std::fmt::Display for ProofStep {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Bind => "the bind is refused",
            Self::Read => "the bytes are not read back",
            Self::Beyond => "a read beyond the end is not refused",
            Self::Invalidate => "the invalidation is refused",
            Self::Invalid => "a read through the invalid key is not refused",
        })
    }
}

/// The reason why a form is not proved.
#[derive(Clone, Debug)]
pub(super) enum NoProof {
    /// The form does not work: the failed step, and its syndrome if there was one.
    Failed { step: ProofStep, syndrome: u8 },
    /// An unrelated error interrupted the proof.
    Inconclusive(DeviceError),
}

impl From<DeviceError> for NoProof {
    fn from(error: DeviceError) -> Self {
        Self::Inconclusive(error)
    }
}

/// The objects that the proofs of one device share.
#[derive(Debug)]
pub(super) struct Kit {
    memory: Memory,
    reader: Reader,
    /// The queue pair has refused a request and needs a new connection.
    is_broken: bool,
}

impl Kit {
    fn new(bench: Bench<'_>) -> Result<Self, DeviceError> {
        let memory = Memory::register(bench)?;
        match Reader::new(bench.recipe, bench.queue) {
            Ok(reader) => Ok(Self {
                memory,
                reader,
                is_broken: false,
            }),
            Err(error) => {
                memory.end();
                Err(error)
            }
        }
    }

    /// Destroys the objects. A kit that is only dropped leaves them, as a forked child must.
    pub(super) fn end(self) {
        self.reader.end();
        self.memory.end();
    }

    /// Connects the queue pair again if it has refused a request.
    fn mend(&mut self, bench: Bench<'_>) -> Result<(), DeviceError> {
        if self.is_broken {
            self.reader.reset(bench.queue)?;
            self.is_broken = false;
        }
        Ok(())
    }
}

/// Proves a form with a free key, which is free afterwards. After a failure the key may be in any
/// state. `kit` has the objects of an earlier proof, if there was one, and takes those of this
/// proof, if it succeeds.
pub(super) fn prove(
    bench: Bench<'_>,
    kit: &mut Option<Kit>,
    form: Form,
    key: Mkey,
) -> Result<(), NoProof> {
    let mut own = match kit.take() {
        Some(own) if own.reader.fits(bench.queue) => own,
        other => {
            // The work queue was replaced.
            if let Some(old) = other {
                old.end();
            }
            Kit::new(bench)?
        }
    };
    match prove_with(&mut own, bench, form, key) {
        Ok(()) => {
            *kit = Some(own);
            Ok(())
        }
        Err(error) => {
            own.end();
            Err(error)
        }
    }
}

fn prove_with(kit: &mut Kit, bench: Bench<'_>, form: Form, key: Mkey) -> Result<(), NoProof> {
    kit.memory.fill();
    kit.mend(bench)?;
    let memory = &kit.memory;
    let part = |offset: usize, len: usize| {
        let addr = VirtAddr::new(memory.addr(SOURCE + offset));
        Region::new(addr, len as u64, memory.lkey()).map_err(|error| {
            let what = format!("the buffer of a proof: {error}");
            DeviceError::Unsupported { what }
        })
    };
    let whole = [part(0, BOUND)?];
    // Two entries of the list: the second begins at the end of the first.
    let halves = [part(0, BOUND / 2)?, part(BOUND / 2, BOUND / 2)?];
    let parts: &[Region] = match form {
        Form::Stock => &whole,
        Form::List => &halves,
    };
    let span = Span::of(parts).map_err(|error| {
        let what = format!("the buffer of a proof: {error}");
        DeviceError::Unsupported { what }
    })?;
    let bind = UmrOp::Bind { mkey: key, span };
    let read = Read {
        key,
        from: VirtAddr::new(memory.addr(SOURCE)),
        lkey: memory.lkey(),
        to: VirtAddr::new(memory.addr(TARGET)),
        len: number(BOUND),
    };
    // One chain: the read has the fence of a request behind a UMR.
    let ran = bench.queue.run(&[Chained::Umr(bind), Chained::Read(read)]);
    ran.map_err(|error| match error.done {
        0 => failed(ProofStep::Bind, error),
        _ => failed(ProofStep::Read, error),
    })?;
    memory.compare(ProofStep::Read)?;

    memory.clear();
    let permitted = transfer(memory, key, (BOUND, TARGET));
    let beyond = transfer(memory, key, (BOUND + 1, FORBIDDEN));
    kit.is_broken = true;
    let [permitted, beyond] = kit.reader.run(bench.queue, [permitted, beyond])?;
    if let Some(syndrome) = permitted {
        let step = ProofStep::Read;
        return Err(NoProof::Failed { step, syndrome });
    }
    memory.compare(ProofStep::Read)?;
    is_refused(memory, beyond, ProofStep::Beyond)?;

    let free = UmrOp::Invalidate { mkey: key };
    let ran = bench.queue.run(&[free]);
    ran.map_err(|error| failed(ProofStep::Invalidate, error))?;
    kit.mend(bench)?;
    let invalid = transfer(&kit.memory, key, (BOUND, FORBIDDEN));
    kit.is_broken = true;
    let [invalid] = kit.reader.run(bench.queue, [invalid])?;
    is_refused(&kit.memory, invalid, ProofStep::Invalid)
}

/// A request in the chain of a bind and the read through it.
enum Chained<'s> {
    Umr(UmrOp<'s>),
    Read(Read),
}

impl Request for Chained<'_> {
    fn wqebbs(&self) -> usize {
        match self {
            Self::Umr(op) => op.wqebbs(),
            Self::Read(read) => read.wqebbs(),
        }
    }

    fn write(&self, slot: Slot, wqe: &mut Wqe) -> bool {
        match self {
            Self::Umr(op) => op.write(slot, wqe),
            Self::Read(read) => read.write(slot, wqe),
        }
    }

    fn is_umr(&self) -> bool {
        matches!(self, Self::Umr(_))
    }

    fn verbs(&self) -> Option<VerbsRequest> {
        match self {
            Self::Umr(op) => op.verbs(),
            Self::Read(read) => read.verbs(),
        }
    }
}

/// Only an error completion of the request itself counts against its form. If the responder side of
/// the same queue pair refuses a read, the read may also be flushed.
fn failed(step: ProofStep, error: ChainError) -> NoProof {
    match error.source {
        DeviceError::Completion { syndrome, .. }
            if syndrome != syndrome::WR_FLUSH_ERR || step == ProofStep::Read =>
        {
            NoProof::Failed { step, syndrome }
        }
        other => NoProof::Inconclusive(other),
    }
}

/// A read of `len` bytes of the source through a key to the offset `target` of the page.
fn transfer(memory: &Memory, key: Mkey, (len, target): (usize, usize)) -> Transfer {
    Transfer {
        direction: Direction::Write,
        lkey: Lkey::from_raw(key.raw()),
        local: VirtAddr::new(memory.addr(SOURCE)),
        rkey: memory.rkey(),
        remote: VirtAddr::new(memory.addr(target)),
        len: number(len),
    }
}

/// Checks the outcome of a read that the key must refuse. A request that was flushed was not
/// checked by the adapter, so it is no refusal.
fn is_refused(memory: &Memory, outcome: Option<u8>, step: ProofStep) -> Result<(), NoProof> {
    match outcome {
        Some(syndrome::LOCAL_PROT_ERR | syndrome::LOCAL_QP_OP_ERR) if memory.is_clear() => Ok(()),
        syndrome => Err(NoProof::Failed {
            step,
            syndrome: syndrome.unwrap_or_default(),
        }),
    }
}

/// A page for proofs only: a registered page may be missing in a forked child. It comes from the
/// heap, because a new mapping costs as much time as five commands.
#[derive(Debug)]
struct Memory {
    lib: Arc<Mlx5Lib>,
    page: NonNull<u8>,
    mr: NonNull<ibv_mr>,
}

// SAFETY: the page and its registration belong to this value, and libibverbs objects are safe to
// use from any thread.
unsafe impl Send for Memory {}

impl Memory {
    fn register(bench: Bench<'_>) -> Result<Self, DeviceError> {
        // SAFETY: the layout has a size.
        let page = unsafe { alloc::alloc_zeroed(own_layout()) };
        let page = NonNull::new(page).ok_or_else(|| refused("allocation of a page"))?;
        let access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
        let access = access | bench.recipe.access;
        let (lib, pd) = (&bench.recipe.lib, bench.recipe.pd);
        let (start, iova) = (page.as_ptr().cast(), page.addr().get() as u64);
        // SAFETY: the domain is live, and the page outlives the registration.
        let mr = unsafe { lib.ibv_reg_mr_iova2(pd.as_ptr(), start, PAGE, iova, access) };
        let Some(mr) = NonNull::new(mr) else {
            let error = refused("ibv_reg_mr of a page");
            // SAFETY: just allocated, and not registered.
            unsafe { alloc::dealloc(page.as_ptr(), own_layout()) };
            return Err(error);
        };
        let lib = Arc::clone(lib);
        Ok(Self { lib, page, mr })
    }

    /// Ends the registration and frees the page.
    fn end(self) {
        // SAFETY: registered by `register`, and no longer in use.
        let errno = unsafe { self.lib.ibv_dereg_mr(self.mr.as_ptr()) };
        // If the kernel refuses, the registration ends with the context, and the page remains.
        if errno == 0 {
            // SAFETY: allocated by `register`, and no longer in use.
            unsafe { alloc::dealloc(self.page.as_ptr(), own_layout()) };
        }
    }

    fn addr(&self, at: usize) -> u64 {
        (self.page.addr().get() + at) as u64
    }

    fn lkey(&self) -> Lkey {
        // SAFETY: registered.
        Lkey::from_raw(unsafe { self.mr.as_ref() }.lkey)
    }

    fn rkey(&self) -> Rkey {
        // SAFETY: registered.
        Rkey::from_raw(unsafe { self.mr.as_ref() }.rkey)
    }

    fn byte(&self, at: usize) -> u8 {
        // SAFETY: within the page; volatile, because the adapter writes it.
        unsafe { self.page.add(at).read_volatile() }
    }

    fn set(&self, at: usize, byte: u8) {
        // SAFETY: within the page, which only this value uses, and no request is in progress.
        unsafe { self.page.add(at).write_volatile(byte) };
    }

    /// Fills the source with bytes that differ between nearby offsets and between consecutive
    /// proofs, and clears the targets.
    fn fill(&self) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.map_or(0, |since| since.subsec_nanos());
        let mut state = self.addr(0) ^ u64::from(now) << 32 | 1;
        for at in FILLED {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let [byte, ..] = state.to_le_bytes();
            self.set(at, byte | 1);
        }
        self.clear();
    }

    /// Checks that exactly the requested bytes have arrived.
    fn compare(&self, step: ProofStep) -> Result<(), NoProof> {
        let arrived = (0..BOUND).all(|at| self.byte(TARGET + at) == self.byte(SOURCE + at));
        match arrived && self.byte(TARGET + BOUND) == EMPTY {
            true => Ok(()),
            false => Err(NoProof::Failed { step, syndrome: 0 }),
        }
    }

    fn clear(&self) {
        for at in 0..=BOUND {
            self.set(TARGET + at, EMPTY);
            self.set(FORBIDDEN + at, EMPTY);
        }
    }

    /// True if no byte has arrived at the target of a read that must fail.
    fn is_clear(&self) -> bool {
        (0..=BOUND).all(|at| self.byte(FORBIDDEN + at) == EMPTY)
    }
}

/// The conversion cannot fail: lengths are at most one page.
fn number(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

fn refused(call: &'static str) -> DeviceError {
    let error = std::io::Error::last_os_error();
    DeviceError::QueueDown {
        reason: format!("{call}: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::{PAGE, layout};

    #[test]
    fn registered_bytes_share_no_page_of_any_size() {
        for (system, expect) in [(4096, 4096), (64 << 10, 64 << 10), (1024, PAGE), (-1, PAGE)] {
            let layout = layout(system);
            assert_eq!(
                (layout.size(), layout.align()),
                (expect, expect),
                "{system}"
            );
        }
    }
}
