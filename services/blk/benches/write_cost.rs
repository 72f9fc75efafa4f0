//! Writes blocks of 4 KiB at random places of a volume in memory, or 64 of them at once in order, with a flush behind each 64, and
//! prints the memory that a write asks for as one line of JSON. `cargo xtask test counts` runs it and counts its instructions.
//! With `read` the blocks are read instead, with `copies` a pair of targets behind sockets of this process is written in order; with
//! a key file the volume is encrypted.
//!
//! ```text
//! write_cost WRITES [random|in-order|read|copies] [KEY_FILE]
//! ```

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::Write as _;
use std::net::TcpListener;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use xgvmi_blk::remote::{Address, RemoteTarget, TargetServer};
use xgvmi_blk::store::{Mark, MemoryMedium, NewTarget, Store, Target};
use xgvmi_blk::{BlkError, Geometry, Id, KeyFile, Volume};

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
    let order = std::env::args().nth(2);
    let reads = order.as_deref() == Some("read");
    let copies = order.as_deref() == Some("copies");
    let at_once = match order.as_deref() {
        None | Some("random" | "read") => Some(1),
        Some("in-order" | "copies") => Some(64),
        Some(_) => None,
    };
    let (Some(writes), Some(at_once)) = (writes.filter(|writes| *writes > 0), at_once) else {
        eprintln!("usage: write_cost WRITES [random|in-order|read|copies] [KEY_FILE]");
        return ExitCode::FAILURE;
    };
    let key = std::env::args().nth(3);
    let key = key.map(|path| KeyFile::read(Path::new(&path)));
    let done = key.transpose();
    match done.and_then(|key| run(writes, at_once, key.as_ref(), (reads, copies))) {
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

/// Returns the calls of the allocator during the writes, each of so many blocks.
fn run(
    writes: u64,
    at_once: usize,
    key: Option<&KeyFile>,
    (reads, copies): (bool, bool),
) -> xgvmi_blk::Result<usize> {
    let geometry = Geometry::new(4096, BLOCKS)?;
    let mut targets: Vec<Arc<dyn Target>> = Vec::new();
    let wrapping = key.map(|key| key.new_wrapping(Id([7; 16]))).transpose()?;
    let layout = match copies {
        true => "mirror-2".parse().map_err(|reason| refused(&reason))?,
        false => xgvmi_blk::Layout::HALVES,
    };
    for role in layout.roles() {
        let new = NewTarget {
            geometry,
            role,
            volume: Id([7; 16]),
            complete: true,
        };
        let medium = Box::new(MemoryMedium::default());
        let store = Store::create(&role.to_string(), medium, new, None)?;
        if let Some(wrapping) = wrapping {
            store.mark(0, Mark::Wrapping(wrapping))?;
        }
        targets.push(match copies {
            true => Arc::new(served(store).map_err(|error| refused(&error))?),
            false => Arc::new(store),
        });
    }
    let volume = Volume::open_with(targets, key)?;
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
        let from = chance.usize(..=AT_ONCE - at_once) * BLOCK;
        let block = match at_once {
            1 => chance.u64(..BLOCKS),
            at_once => number * at_once as u64 % BLOCKS,
        };
        let part = &mut bytes[from..from + at_once * BLOCK];
        if reads {
            volume.read(block * BLOCK as u64, part)?;
            continue;
        }
        volume.write(block * BLOCK as u64, part)?;
        if number % EACH == 0 {
            volume.flush()?;
        }
    }
    Ok(CALLS.load(Relaxed) - before)
}

/// A target behind a socket of this process.
fn served(store: Store) -> Result<RemoteTarget, Box<dyn std::error::Error>> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let limit = Duration::from_secs(60);
    let to = Address {
        address: listener.local_addr()?.to_string(),
        secret: None,
        limit,
        longest: limit,
        patience: limit,
        owner: [1; 16],
        take_over: false,
        rdma: None,
    };
    let server = Arc::new(TargetServer::new(store, Vec::new()));
    std::thread::spawn(move || server.run(&listener));
    Ok(RemoteTarget::connect(&to)?)
}

fn refused(reason: &impl ToString) -> BlkError {
    BlkError::Refused {
        target: "the volume".to_owned(),
        reason: reason.to_string(),
    }
}
