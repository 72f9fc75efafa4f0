//! Measures the data path of service processes without UCX. It runs one job and prints time and memory as one line of
//! JSON. `cargo xtask bench service` runs it and counts its instructions.
//!
//! ```text
//! service_cost RANKS SERVICES_PER_NODE BLOCK_BYTES ROUNDS
//! service_cost connect RANKS SERVICES_PER_NODE
//! service_cost connect-one RANKS NODES
//! service_cost scale RANKS NODES alltoall|halo|broadcast|barrier|allreduce|allreduce-64k|allreduce-1m ROUNDS
//! service_cost several RANKS NODES alltoall|halo|broadcast|barrier|allreduce SERVICES_PER_NODE
//! service_cost tree RANKS NODES broadcast|gather|scatter RADIX SENDS
//! service_cost reduce f32|f64|f16|bf16|i32|i64 MEMBERS BYTES ROUNDS
//! service_cost copy BYTES ROUNDS
//! ```
//!
//! With `connect` it measures the connect of a job instead, with `connect-one` that of one node of a large job, and with `scale`
//! the messages and the memory of a call. With `several` it counts the connections and messages of a service, without lanes and
//! with them, and with `tree` the messages and levels of the services' trees. With `reduce` it sums vectors as a service does, and with
//! `copy` it copies memory.

use std::alloc::{GlobalAlloc, Layout, System};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use xgvmi_offload::standin::{Plan, connect, reduce, run, scale};
use xgvmi_offload::{Element, Operation, Reduction};

/// The system allocator with counts of the bytes in use and of the allocations.
struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);
static USED: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call forwards its arguments unchanged to the system allocator; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let used = USED.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK.fetch_max(used, Relaxed);
        ALLOCATIONS.fetch_add(1, Relaxed);
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
    match words.split_first() {
        Some((first, rest)) if first == "connect" => return connects(rest, false),
        Some((first, rest)) if first == "connect-one" => return connects(rest, true),
        Some((first, rest)) if first == "scale" => return scales(rest),
        Some((first, rest)) if first == "several" => return several(rest),
        Some((first, rest)) if first == "tree" => return tree(rest),
        Some((first, rest)) if first == "reduce" => return reduces(rest),
        Some((first, rest)) if first == "copy" => return copies(rest),
        _ => {}
    }
    let numbers: Option<Vec<u32>> = words.iter().map(|word| word.parse().ok()).collect();
    let Some([ranks, services_per_node, block_bytes, rounds]) = numbers.as_deref() else {
        return usage();
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
            answer(&format!(
                "{{\"blocks\":{},\"messages\":{},\"time_ns\":{},\"peak_bytes\":{peak},\"allocations\":{}}}",
                outcome.blocks,
                outcome.messages,
                outcome.time.as_nanos(),
                ALLOCATIONS.load(Relaxed)
            ))
        }
        Err(error) => fail(&error),
    }
}

/// Connects a job, or one node of it.
fn connects(words: &[String], is_one: bool) -> ExitCode {
    let numbers: Option<Vec<u32>> = words.iter().map(|word| word.parse().ok()).collect();
    let Some(&[ranks, number]) = numbers.as_deref() else {
        return usage();
    };
    if let Err(error) = raise_descriptors() {
        return fail(&error);
    }
    let outcome = match is_one {
        true => connect::one::connect(&connect::one::Plan {
            ranks,
            nodes: number,
        }),
        false => connect::connect(&connect::Plan {
            ranks,
            services_per_node: number,
        }),
    };
    match outcome {
        Ok(outcome) => answer(&format!(
            "{{\"messages\":{},\"time_ns\":{}}}",
            outcome.messages,
            outcome.time.as_nanos()
        )),
        Err(error) => fail(&error),
    }
}

fn pattern_of(name: &str) -> Option<scale::Pattern> {
    Some(match name {
        "alltoall" => scale::Pattern::Alltoall,
        "halo" => scale::Pattern::Halo,
        "broadcast" => scale::Pattern::Broadcast,
        "barrier" => scale::Pattern::Barrier,
        "allreduce" => scale::Pattern::Allreduce,
        "allreduce-64k" => scale::Pattern::Vector(64 << 10),
        "allreduce-1m" => scale::Pattern::Vector(1 << 20),
        "gather" => scale::Pattern::Gather,
        "scatter" => scale::Pattern::Scatter,
        _ => return None,
    })
}

/// Counts connections and messages on nodes with several services.
fn several(words: &[String]) -> ExitCode {
    let [ranks, nodes, pattern, services] = words else {
        return usage();
    };
    let (Ok(ranks), Ok(nodes), Ok(services)) = (ranks.parse(), nodes.parse(), services.parse())
    else {
        return usage();
    };
    let Some(pattern) = pattern_of(pattern) else {
        return usage();
    };
    let of = scale::several::Several {
        ranks,
        nodes,
        services,
        least: ranks / nodes / services,
        pattern,
    };
    let row = |has_lanes| {
        scale::several::run(&of, has_lanes).map(|most| {
            format!(
                "{{\"lanes\":{},\"to_services\":{},\"to_ranks\":{},\"messages\":{},\"of_ranks\":{},\"blocks\":{}}}",
                most.lanes,
                most.to_services,
                most.to_ranks,
                most.messages,
                most.of_ranks,
                most.blocks
            )
        })
    };
    match row(false).and_then(|before| Ok((before, row(true)?))) {
        Ok((before, after)) => answer(&format!("[{before},{after}]")),
        Err(error) => fail(&error),
    }
}

/// Counts the messages and the levels of a tree.
fn tree(words: &[String]) -> ExitCode {
    let [ranks, nodes, pattern, radix, sends] = words else {
        return usage();
    };
    let (Ok(ranks), Ok(nodes)) = (ranks.parse(), nodes.parse()) else {
        return usage();
    };
    let (Ok(radix), Ok(sends)) = (radix.parse(), sends.parse()) else {
        return usage();
    };
    let Some(pattern) = pattern_of(pattern) else {
        return usage();
    };
    let of = scale::trees::Tree {
        ranks,
        nodes,
        pattern,
        radix,
        sends,
    };
    match scale::trees::run(&of) {
        Ok(found) => answer(&format!(
            "{{\"messages\":{},\"all_messages\":{},\"offers\":{},\"depth\":{}}}",
            found.messages, found.all_messages, found.offers, found.depth
        )),
        Err(error) => fail(&error),
    }
}

/// Sums vectors.
fn reduces(words: &[String]) -> ExitCode {
    let Some((name, numbers)) = words.split_first() else {
        return usage();
    };
    let element = match name.as_str() {
        "f32" => Element::F32,
        "f64" => Element::F64,
        "f16" => Element::F16,
        "bf16" => Element::BF16,
        "i32" => Element::I32,
        "i64" => Element::I64,
        _ => return usage(),
    };
    let numbers: Option<Vec<u32>> = numbers.iter().map(|word| word.parse().ok()).collect();
    let Some(&[members, bytes, rounds]) = numbers.as_deref() else {
        return usage();
    };
    let reduction = Reduction::new(element, Operation::Sum);
    let plan = reduction.map(|reduction| reduce::Plan {
        reduction,
        members: members as usize,
        bytes: bytes as usize,
        rounds,
    });
    let Some(plan) = plan.filter(|plan| plan.bytes.is_multiple_of(plan.reduction.element_size()))
    else {
        return usage();
    };
    let reduced = u64::from(members.saturating_sub(1)) * u64::from(bytes) * u64::from(rounds);
    timed(reduced, reduce::run(&plan))
}

/// Copies memory.
fn copies(words: &[String]) -> ExitCode {
    let numbers: Option<Vec<u32>> = words.iter().map(|word| word.parse().ok()).collect();
    let Some(&[bytes, rounds]) = numbers.as_deref() else {
        return usage();
    };
    timed(
        u64::from(bytes) * u64::from(rounds),
        reduce::copy(bytes as usize, rounds),
    )
}

fn timed(bytes: u64, time: std::time::Duration) -> ExitCode {
    answer(&format!(
        "{{\"bytes\":{bytes},\"time_ns\":{}}}",
        time.as_nanos()
    ))
}

/// Measures a call of many light ranks.
fn scales(words: &[String]) -> ExitCode {
    let [ranks, nodes, pattern, rounds] = words else {
        return usage();
    };
    let Some(pattern) = pattern_of(pattern) else {
        return usage();
    };
    let (Ok(ranks), Ok(nodes), Ok(rounds)) = (ranks.parse(), nodes.parse(), rounds.parse()) else {
        return usage();
    };
    let plan = scale::Plan {
        ranks,
        nodes,
        pattern,
        rounds,
    };
    let base = AtomicUsize::new(0);
    let memory = scale::Memory {
        mark: &|| {
            let used = USED.load(Relaxed);
            base.store(used, Relaxed);
            PEAK.store(used, Relaxed);
        },
        peak: &|| PEAK.load(Relaxed).saturating_sub(base.load(Relaxed)),
    };
    match scale::run(&plan, memory) {
        Ok(outcome) => answer(&format!(
            "{{\"to_service\":{},\"offers_per_rank\":{},\"answers_per_rank\":{},\"to_rank\":{},\"messages\":{},\
             \"blocks\":{},\"memory_per_rank\":{},\"memory_per_service\":{}}}",
            outcome.to_service,
            outcome.offers_per_rank,
            outcome.answers_per_rank,
            outcome.to_rank,
            outcome.messages,
            outcome.blocks,
            outcome.memory_per_rank,
            outcome.memory_per_service
        )),
        Err(error) => fail(&error),
    }
}

/// Raises the limit of open descriptors to its maximum: both ends of all connections are in this process.
fn raise_descriptors() -> std::io::Result<()> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the structure is writable.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: the structure is initialized.
    if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    Ok(())
}

#[expect(clippy::print_stdout, reason = "a program's answer")]
fn answer(line: &str) -> ExitCode {
    println!("{line}");
    ExitCode::SUCCESS
}

fn fail(error: &dyn std::error::Error) -> ExitCode {
    eprintln!("error: {error}");
    ExitCode::FAILURE
}

fn usage() -> ExitCode {
    eprintln!(
        "usage: service_cost RANKS SERVICES_PER_NODE BLOCK_BYTES ROUNDS, service_cost connect RANKS SERVICES_PER_NODE, \
         service_cost connect-one RANKS NODES, or service_cost scale RANKS NODES alltoall|halo|broadcast|barrier|allreduce|allreduce-64k|allreduce-1m ROUNDS, \
         or service_cost several with SERVICES_PER_NODE in place of ROUNDS, \
         or service_cost tree RANKS NODES broadcast|gather|scatter RADIX SENDS, \
         or service_cost reduce f32|f64|f16|bf16|i32|i64 MEMBERS BYTES ROUNDS, or service_cost copy BYTES ROUNDS"
    );
    ExitCode::from(2)
}
