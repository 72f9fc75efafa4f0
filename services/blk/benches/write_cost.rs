//! Writes blocks of 4 KiB at random places of a volume in memory, with a flush behind each 64, and prints the memory that a write
//! asks for as one line of JSON. `cargo xtask test counts` runs it and counts its instructions.
//!
//! ```text
//! write_cost WRITES
//! ```

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use xgvmi_blk::store::{MemoryMedium, NewTarget, Store, Target};
use xgvmi_blk::{Geometry, Id, Role, Volume};

const BLOCK: usize = 4096;
/// More groups of blocks than a target keeps in memory.
const BLOCKS: u64 = 16_384;
/// Blocks that are written in order before.
const AT_ONCE: usize = 256;
/// Writes between two flushes.
const EACH: u64 = 64;

/// The system allocator with a count of its calls.
struct Counting;

static CALLS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call forwards its arguments unchanged to the system allocator; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.fetch_add(1, Relaxed);
        // SAFETY: the caller upholds the contract of `GlobalAlloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        CALLS.fetch_add(1, Relaxed);
        // SAFETY: the caller upholds the contract of `GlobalAlloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        CALLS.fetch_add(1, Relaxed);
        // SAFETY: the caller upholds the contract of `GlobalAlloc`.
        unsafe { System.realloc(start, layout, size) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract of `GlobalAlloc`.
        unsafe { System.dealloc(start, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn main() -> ExitCode {
    let writes = std::env::args().nth(1).and_then(|word| word.parse().ok());
    let Some(writes) = writes.filter(|writes| *writes > 0) else {
        eprintln!("usage: write_cost WRITES");
        return ExitCode::FAILURE;
    };
    match run(writes) {
        Ok(calls) => {
            let said = format!("{{\"writes\":{writes},\"allocations\":{calls}}}");
            match writeln!(std::io::stdout(), "{said}") {
                Ok(()) => ExitCode::SUCCESS,
                Err(_) => ExitCode::FAILURE,
            }
        }
        Err(error) => {
            eprintln!("write_cost: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the calls of the allocator during the writes.
fn run(writes: u64) -> xgvmi_blk::Result<usize> {
    let geometry = Geometry::new(4096, BLOCKS)?;
    let mut targets: Vec<Arc<dyn Target>> = Vec::new();
    for role in Role::HALVES {
        let new = NewTarget {
            geometry,
            role,
            volume: Id([7; 16]),
            complete: true,
        };
        let medium = Box::new(MemoryMedium::default());
        targets.push(Arc::new(Store::create(
            &role.to_string(),
            medium,
            new,
            None,
        )?));
    }
    let volume = Volume::open(targets)?;
    let mut chance = fastrand::Rng::with_seed(1);
    // Data that does not compress.
    let mut bytes = vec![0; AT_ONCE * BLOCK];
    chance.fill(&mut bytes);
    for first in (0..BLOCKS).step_by(AT_ONCE) {
        volume.write(first * BLOCK as u64, &bytes)?;
    }
    volume.flush()?;
    let before = CALLS.load(Relaxed);
    for number in 1..=writes {
        let from = chance.usize(..AT_ONCE) * BLOCK;
        let block = chance.u64(..BLOCKS);
        volume.write(block * BLOCK as u64, &bytes[from..from + BLOCK])?;
        if number % EACH == 0 {
            volume.flush()?;
        }
    }
    Ok(CALLS.load(Relaxed) - before)
}
