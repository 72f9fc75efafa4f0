//! Cost of the pool and the alias map without a device, compared with plain C code: a list under a
//! pthread mutex, and stock UCX's alias table.
//!
//! ```text
//! cargo bench -p pool-bench
//! ```
//!
//! Each name is a group with two members, `ours` and `peer`, measured one after the other in the
//! same run. The bench compiles the peers at its start. This needs a C compiler, and for the table
//! UCX's headers: `XGVMI_UCX_INCLUDE` names the directory that contains `ucs/datastruct/khash.h`.
//! If something is missing, the bench prints a line and skips the peer.
#![expect(clippy::print_stdout, reason = "a bench says what it leaves out")]

use std::thread;
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use pool_bench::peer::{Peer, Processor};
use pool_bench::subject::{Full, POOL_KEYS, attach, keys, lease, map, pool};

/// Processor time of the calling thread, without the time of other programs on the machine.
fn thread_time() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes the time to the given structure.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    assert_eq!(failed, 0, "every Linux has this clock");
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::from_secs(seconds) + Duration::from_nanos(u64::try_from(time.tv_nsec).unwrap_or(0))
}

fn timed(work: impl FnOnce()) -> Duration {
    let begin = thread_time();
    work();
    thread_time() - begin
}

/// Processors that this process may use and that are idle.
fn free_processors() -> Vec<usize> {
    // SAFETY: an all-zero set is a valid one.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set has the given size.
    if unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) } != 0 {
        return Vec::new();
    }
    // SAFETY: the numbers are those of the set.
    let allowed =
        (0..libc::CPU_SETSIZE as usize).filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, &set) });
    let allowed: Vec<_> = allowed.collect();
    // The fourth field is "RUNNING/ALL". One of the running threads is this thread.
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let running = load
        .split_whitespace()
        .nth(3)
        .and_then(|word| word.split('/').next());
    let running: usize = running
        .and_then(|word| word.parse().ok())
        .unwrap_or(usize::MAX);
    let free = allowed.len().saturating_sub(running.saturating_sub(1));
    allowed.into_iter().take(free).collect()
}

/// Two processors for two threads. Prints a line and returns `None` if fewer are free: threads that
/// share a processor do not contend.
fn two_processors(bench: &str) -> Option<[usize; 2]> {
    let free = free_processors();
    match free[..] {
        [first, second, ..] => Some([first, second]),
        _ => {
            println!(
                "{bench}: no number, {} free processors where two are needed",
                free.len()
            );
            None
        }
    }
}

fn pin(cpu: usize) {
    // SAFETY: an all-zero set is a valid one.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the number is valid for a set of this size.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: the set has the given size.
    let pinned = unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) };
    assert_eq!(pinned, 0, "the processor is one of this process's");
}

/// Runs `bench` beside a sleeping thread. Every process with UCX has a second thread, and in a
/// single-threaded process the locks of the C library are no-ops.
fn beside_a_thread(bench: impl FnOnce()) {
    let (end, ended) = std::sync::mpsc::channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || ended.recv());
        bench();
        drop(end);
    });
}

/// Wall-clock time of `rounds` rounds, divided between two threads that start together, each on its
/// own processor: the time of the slower one.
fn on_two_threads(cpus: [usize; 2], rounds: u64, work: impl Fn(u64) + Sync) -> Duration {
    let start = std::sync::Barrier::new(2);
    let half = rounds.div_ceil(2);
    let body = &|cpu| {
        pin(cpu);
        start.wait();
        let begin = Instant::now();
        work(half);
        begin.elapsed()
    };
    thread::scope(|scope| {
        let threads = cpus.map(|cpu| scope.spawn(move || body(cpu)));
        let times = threads.map(|thread| thread.join().expect("no panic"));
        times.into_iter().max().unwrap_or_default()
    })
}

fn lease_release(criterion: &mut Criterion) {
    beside_a_thread(|| lease_release_beside(criterion));
}

fn lease_release_beside(criterion: &mut Criterion) {
    let (pool, peer) = (pool(), Peer::list(Processor::This));
    let mut group = criterion.benchmark_group("lease_release_1t");
    group.bench_function("ours", |bench| {
        bench.iter_custom(|rounds| timed(|| lease(&pool, rounds)));
    });
    if let Some(peer) = &peer {
        let list = peer.make(POOL_KEYS);
        group.bench_function("peer", |bench| {
            bench.iter_custom(|rounds| timed(|| list.run(rounds)));
        });
    }
    group.finish();
    let Some(cpus) = two_processors("lease_release_2t") else {
        return;
    };
    let mut group = criterion.benchmark_group("lease_release_2t");
    group.bench_function("ours", |bench| {
        bench.iter_custom(|rounds| on_two_threads(cpus, rounds, |half| lease(&pool, half)));
    });
    if let Some(peer) = &peer {
        let list = peer.make(POOL_KEYS);
        group.bench_function("peer", |bench| {
            bench.iter_custom(|rounds| on_two_threads(cpus, rounds, |half| list.run(half)));
        });
    }
    group.finish();
}

fn alias_hit(criterion: &mut Criterion) {
    let keys = keys();
    let map = map(&keys);
    let mut group = criterion.benchmark_group("alias_hit_20k");
    group.bench_function("ours", |bench| {
        bench.iter_custom(|rounds| {
            timed(|| {
                attach(&map, &keys, rounds);
            })
        });
    });
    if let Some(peer) = Peer::table(Processor::This) {
        let numbers: Vec<u64> = keys.iter().map(|key| key.map_key()).collect();
        let table = peer.fill(&numbers);
        group.bench_function("peer", |bench| {
            bench.iter_custom(|rounds| timed(|| table.run(rounds)));
        });
    }
    group.finish();
}

/// Hits of two threads in one map. Stock UCX's table is not a peer here, because one thread at a
/// time uses it.
fn alias_hit_together(criterion: &mut Criterion) {
    let Some(cpus) = two_processors("alias_hit_2t") else {
        return;
    };
    let keys = keys();
    let map = map(&keys);
    let mut group = criterion.benchmark_group("alias_hit_2t");
    group.bench_function("ours", |bench| {
        bench.iter_custom(|rounds| on_two_threads(cpus, rounds, |half| attach(&map, &keys, half)));
    });
    group.finish();
}

/// Misses in a full map of the default size with all aliases in use.
fn alias_full(criterion: &mut Criterion) {
    let full = Full::filled();
    let mut group = criterion.benchmark_group("alias_full_64k");
    group.bench_function("ours", |bench| {
        bench.iter_custom(|rounds| timed(|| full.miss(rounds)));
    });
    group.finish();
}

criterion_group!(
    benches,
    lease_release,
    alias_hit,
    alias_hit_together,
    alias_full
);
criterion_main!(benches);
