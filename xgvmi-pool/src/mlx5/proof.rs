//! The proof of a form of binds: the adapter reads bytes of this process through a key.
//!
//! The proof binds the key of the first bind to a small buffer instead. Through the key, at the
//! buffer's addresses, the adapter must read the content of the buffer. It must refuse to read one
//! byte more, and after the invalidation it must refuse every read. The key is then free as before.
//! A refused read breaks its queue pair, so such reads have a queue pair of their own. That queue
//! pair first reads successfully, so the proof does not mistake a broken queue pair for a refusal.

use std::ptr::{self, NonNull};
use std::time::{SystemTime, UNIX_EPOCH};

use mlx5_prm::cqe::syndrome;
use mlx5dv_sys::{
    IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE, Mlx5Lib, ibv_mr,
};

use super::form::Form;
use super::queue::UmrQueue;
use super::queues::Recipe;
use super::reader::{Reader, Transfer};
use super::wqe::Read;
use crate::device::UmrOp;
use crate::error::{ChainError, DeviceError};
use crate::key::{Lkey, Mkey, Rkey, VirtAddr};
use crate::region::Region;
use crate::span::Span;

/// Number of bytes that the key is bound to.
const BOUND: usize = 64;
/// Their offset in the page, with other bytes before and behind them.
const SOURCE: usize = 192;
/// Offset of the target of the reads, which takes one byte more.
const TARGET: usize = 2048;
/// Bytes of the registered page.
const PAGE: usize = 4096;
/// Content of the target before each read.
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

/// Proves a form with a free key, which is free afterwards. After a failure the key may be in any
/// state.
pub(super) fn prove(bench: Bench<'_>, form: Form, key: Mkey) -> Result<(), NoProof> {
    let mut page = Page::new()?;
    page.fill();
    let memory = Registration::new(bench, &mut page)?;
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
    let ran = bench.queue.run(&[bind]);
    ran.map_err(|error| failed(ProofStep::Bind, error))?;
    let read = Read {
        key,
        from: VirtAddr::new(memory.addr(SOURCE)),
        lkey: memory.lkey(),
        to: VirtAddr::new(memory.addr(TARGET)),
        len: number(BOUND),
    };
    let ran = bench.queue.run(&[read]);
    ran.map_err(|error| failed(ProofStep::Read, error))?;
    memory.compare(ProofStep::Read)?;

    // A queue pair for reads that fail.
    let reader = Reader::new(bench.recipe, bench.queue)?;
    let key = Rkey::from_raw(key.raw());
    reads(&reader, &memory, key)?;
    is_refused(&reader, &memory, (key, BOUND + 1), ProofStep::Beyond)?;
    let free = UmrOp::Invalidate {
        mkey: Mkey::from_raw(key.raw()),
    };
    let ran = bench.queue.run(&[free]);
    ran.map_err(|error| failed(ProofStep::Invalidate, error))?;
    reader.reset()?;
    reads(&reader, &memory, memory.rkey())?;
    is_refused(&reader, &memory, (key, BOUND), ProofStep::Invalid)
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

/// A page for this proof only: a registered page may be missing in a forked child.
#[derive(Debug)]
struct Page(NonNull<u8>);

impl Page {
    fn new() -> Result<Self, DeviceError> {
        let (protection, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        );
        // SAFETY: a new mapping at an address that the kernel chooses.
        let page = unsafe { libc::mmap(ptr::null_mut(), PAGE, protection, flags, -1, 0) };
        match NonNull::new(page) {
            Some(made) if page != libc::MAP_FAILED => Ok(Self(made.cast())),
            _ => Err(refused("mmap of a page")),
        }
    }

    /// Fills the source with bytes that differ between nearby offsets and between consecutive
    /// proofs.
    fn fill(&mut self) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.map_or(0, |since| since.subsec_nanos());
        let mut state = self.0.addr().get() as u64 ^ u64::from(now) << 32 | 1;
        for at in 0..TARGET {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let [byte, ..] = state.to_le_bytes();
            // SAFETY: within the page, which this value owns.
            unsafe { self.0.add(at).write_volatile(byte | 1) };
        }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and no longer registered.
        unsafe { libc::munmap(self.0.as_ptr().cast(), PAGE) };
    }
}

/// The page, registered.
#[derive(Debug)]
struct Registration<'d> {
    lib: &'d Mlx5Lib,
    page: &'d mut Page,
    mr: NonNull<ibv_mr>,
}

impl<'d> Registration<'d> {
    fn new(bench: Bench<'d>, page: &'d mut Page) -> Result<Self, DeviceError> {
        let access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
        let start = page.0.as_ptr();
        // SAFETY: the domain is live, and the page outlives the registration.
        let mr = unsafe {
            bench.recipe.lib.ibv_reg_mr_iova2(
                bench.recipe.pd.as_ptr(),
                start.cast(),
                PAGE,
                start.addr() as u64,
                access,
            )
        };
        let mr = NonNull::new(mr).ok_or_else(|| refused("ibv_reg_mr of a page"))?;
        let lib: &Mlx5Lib = &bench.recipe.lib;
        Ok(Self { lib, page, mr })
    }

    fn addr(&self, at: usize) -> u64 {
        (self.page.0.addr().get() + at) as u64
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
        unsafe { self.page.0.add(at).read_volatile() }
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
            // SAFETY: within the page, which only this value uses, and no read is in progress.
            unsafe { self.page.0.add(TARGET + at).write_volatile(EMPTY) };
        }
    }

    fn is_clear(&self) -> bool {
        (0..=BOUND).all(|at| self.byte(TARGET + at) == EMPTY)
    }
}

impl Drop for Registration<'_> {
    fn drop(&mut self) {
        // If the kernel refuses, the registration ends with the context.
        // SAFETY: registered by
        // `new`, and no longer in use.
        unsafe { self.lib.ibv_dereg_mr(self.mr.as_ptr()) };
    }
}

/// Reads `len` bytes of the source through a key.
fn transfer(memory: &Registration<'_>, (rkey, len): (Rkey, usize)) -> Transfer {
    Transfer {
        rkey,
        from: VirtAddr::new(memory.addr(SOURCE)),
        lkey: memory.lkey(),
        to: VirtAddr::new(memory.addr(TARGET)),
        len: number(len),
    }
}

/// A read that the key must permit.
fn reads(reader: &Reader<'_>, memory: &Registration<'_>, key: Rkey) -> Result<(), NoProof> {
    memory.clear();
    match reader.read(transfer(memory, (key, BOUND)))? {
        None => memory.compare(ProofStep::Read),
        Some(syndrome) => Err(NoProof::Failed {
            step: ProofStep::Read,
            syndrome,
        }),
    }
}

/// A read that the key must refuse.
fn is_refused(
    reader: &Reader<'_>,
    memory: &Registration<'_>,
    read: (Rkey, usize),
    step: ProofStep,
) -> Result<(), NoProof> {
    memory.clear();
    match reader.read(transfer(memory, read))? {
        // The queue pair is both sides. The side that refuses may flush the other side's request
        // before its own answer arrives.
        Some(
            syndrome::REMOTE_ACCESS_ERR
            | syndrome::REMOTE_OP_ERR
            | syndrome::REMOTE_INVAL_REQ_ERR
            | syndrome::WR_FLUSH_ERR,
        ) if memory.is_clear() => Ok(()),
        syndrome => Err(NoProof::Failed {
            step,
            syndrome: syndrome.unwrap_or_default(),
        }),
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
