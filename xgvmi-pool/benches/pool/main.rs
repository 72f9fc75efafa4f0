//! What the pool and the alias map cost without a device, beside what stock code would: a C list
//! under a pthread mutex, and the table that stock UCX keeps its aliases in.
//!
//! ```text
//! cargo bench -p xgvmi-pool
//! ```
//!
//! Each name is a group with two members, `ours` and `peer`, measured one after the other in the same
//! run. The peers are compiled when the bench starts, which needs a C compiler, and UCX's headers for
//! the table: `XGVMI_UCX_INCLUDE` names the directory that holds `ucs/datastruct/khash.h`. What is
//! missing is said, and the peer left out.
#![expect(clippy::print_stdout, reason = "a bench says what it leaves out")]

mod peer;
mod subject;

use std::thread;
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use peer::{Peer, Processor};
use subject::{POOL_KEYS, attach, keys, lease, map, pool};

/// Processor time of the calling thread. What other programs on the machine take does not count.
fn thread_time() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes the time to where it is told.
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

/// Time for which the calling thread was ready to run and had no processor, as far as the system tells.
fn time_without_processor() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanos = text.split_whitespace().nth(1);
    Duration::from_nanos(nanos.and_then(|nanos| nanos.parse().ok()).unwrap_or(0))
}

/// Unlike [`timed`], with the time for which the work waits for locks.
fn timed_with_waits(work: impl FnOnce()) -> Duration {
    let (begin, without) = (Instant::now(), time_without_processor());
    work();
    begin
        .elapsed()
        .saturating_sub(time_without_processor() - without)
}

/// Runs `bench` beside a thread that sleeps. Every process that uses UCX has one, and in a process
/// without, locks of the C library are no locks.
fn beside_a_thread(bench: impl FnOnce()) {
    let (end, ended) = std::sync::mpsc::channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || ended.recv());
        bench();
        drop(end);
    });
}

/// Time of `rounds` rounds, shared out to two threads that start together: that of the slower one.
fn on_two_threads(rounds: u64, work: impl Fn(u64) + Sync) -> Duration {
    let start = std::sync::Barrier::new(2);
    let half = rounds.div_ceil(2);
    let body = || {
        start.wait();
        timed_with_waits(|| work(half))
    };
    thread::scope(|scope| {
        let threads = [scope.spawn(body), scope.spawn(body)];
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
    let mut group = criterion.benchmark_group("lease_release_2t");
    group.bench_function("ours", |bench| {
        bench.iter_custom(|rounds| on_two_threads(rounds, |half| lease(&pool, half)));
    });
    if let Some(peer) = &peer {
        let list = peer.make(POOL_KEYS);
        group.bench_function("peer", |bench| {
            bench.iter_custom(|rounds| on_two_threads(rounds, |half| list.run(half)));
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

criterion_group!(benches, lease_release, alias_hit);
criterion_main!(benches);
