//! Measures the data path of service processes without UCX. It runs one job and prints time and memory as one line of
//! JSON. `cargo xtask bench service` runs it and counts its instructions.
//!
//! Usage: `service_cost RANKS SERVICES_PER_NODE BLOCK_BYTES ROUNDS`

use std::alloc::{GlobalAlloc, Layout, System};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use xgvmi_offload::standin::{Plan, run};

/// The system allocator with a count of the bytes in use.
struct Counting;

static USED: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call forwards its arguments unchanged to the system allocator; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let used = USED.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK.fetch_max(used, Relaxed);
        // SAFETY: the caller upholds the contract of `GlobalAlloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        USED.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller upholds the contract of `GlobalAlloc`.
        unsafe { System.dealloc(start, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let numbers: Option<Vec<u32>> = words.iter().map(|word| word.parse().ok()).collect();
    let Some([ranks, services_per_node, block_bytes, rounds]) = numbers.as_deref() else {
        eprintln!("usage: service_cost RANKS SERVICES_PER_NODE BLOCK_BYTES ROUNDS");
        return ExitCode::from(2);
    };
    let plan = Plan {
        ranks: *ranks,
        services_per_node: *services_per_node,
        block_bytes: u64::from(*block_bytes),
        rounds: *rounds,
    };
    let mut base = 0;
    let before = || {
        base = USED.load(Relaxed);
        PEAK.store(base, Relaxed);
    };
    match run(&plan, before) {
        Ok(outcome) => {
            let peak = PEAK.load(Relaxed) - base;
            let line = format!(
                "{{\"blocks\":{},\"messages\":{},\"time_ns\":{},\"peak_bytes\":{peak}}}",
                outcome.blocks,
                outcome.messages,
                outcome.time.as_nanos()
            );
            #[expect(clippy::print_stdout, reason = "a program's answer")]
            {
                println!("{line}");
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
