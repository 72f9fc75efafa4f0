//! Exports and releases buffers through UCX between marks, for a tool that counts instructions.
//!
//! ```text
//! ucp_hot_path LIBUCP HOST_DEVICE BYTES ROUNDS [time|threads]
//! ```
//!
//! With `threads` it has no marks. Two threads, each with a context of its own, export and release until standard input ends.
//! It prints the numbers of the threads, and for each line of the input the rounds that each thread has done.
//!
//! With `time` it has no marks. It prints the nanoseconds that an export and its release add to registration and
//! deregistration: the difference of the medians of all rounds with and without an export, which alternate.
//!
//! A mark is a system call that no kernel has, see the crate `step-count`. Sections of a round: 1 `ucp_mem_map`, 2 the
//! first `ucp_memh_pack` with EXPORT, 3 the second, which finds the key, 7 `ucp_memh_buffer_release` of both, 4
//! `ucp_mem_unmap`. Rounds without an export, one for each eight of the others: 5 `ucp_mem_map`, 6 `ucp_mem_unmap`. UCX's registration cache is off, so that each
//! round registers and exports anew, as a temporary buffer does.

use anyhow::{Result, bail, ensure};
use std::io::{BufRead as _, Write as _, stdin, stdout};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use ucx_sys::Ucp;
use xgvmi_ucp::buffer::Buffer;
use xgvmi_ucp::{Context, MappedBuffer};

/// Number of the system call that is a mark.
const MARK: i64 = 0x5847_564d;
/// Rounds before the first that counts: caches, tables and the pool have what they need.
const WARM: usize = 160;

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [library, device, bytes, rounds, timed @ ..] = words.as_slice() else {
        bail!("usage: hot_path LIBUCP HOST_DEVICE BYTES ROUNDS [time|threads]");
    };
    let (bytes, rounds): (usize, usize) = (bytes.parse()?, rounds.parse()?);
    let ucp = Ucp::load(Some(Path::new(library)))?;
    for (name, value) in [
        ("UCX_NET_DEVICES", format!("{device}:1")),
        ("UCX_RCACHE_ENABLE", "n".to_owned()),
        ("UCX_TLS", "rc_x,self".to_owned()),
    ] {
        // SAFETY: this process has no other thread yet; UCX reads the environment when the context is made.
        unsafe { std::env::set_var(name, value) };
    }
    if timed == ["threads"] {
        return in_threads(ucp, bytes);
    }
    let context = Context::new(ucp, "hot_path")?;
    let mut buffer = Buffer::untouched(bytes)?;
    for _ in 0..WARM {
        buffer = exported(&context, buffer, |_| ())?;
    }
    if timed == ["time"] {
        writeln!(stdout(), "{}", time(&context, buffer, rounds)?)?;
        return Ok(());
    }
    for round in 0..rounds {
        buffer = exported(&context, buffer, mark)?;
        if round % 8 == 0 {
            buffer = plain(&context, buffer)?;
        }
    }
    Ok(())
}

/// Time between two rounds of a thread of [`in_threads`].
const PAUSE: Duration = Duration::from_millis(2);

/// A thread of [`in_threads`], on lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Worker {
    /// Number of the thread, zero before its first round.
    thread: AtomicI32,
    rounds: AtomicU64,
}

/// Two threads export until standard input ends.
fn in_threads(ucp: &'static Ucp, bytes: usize) -> Result<()> {
    let workers = [Worker::default(), Worker::default()];
    let (opening, is_over) = (Mutex::new(()), AtomicBool::new(false));
    let work = |worker: &Worker| -> Result<()> {
        let one_at_a_time = opening.lock();
        let context = Context::new(ucp, "hot_path")?;
        let mut buffer = Buffer::untouched(bytes)?;
        for _ in 0..WARM {
            buffer = exported(&context, buffer, |_| ())?;
        }
        drop(one_at_a_time);
        // SAFETY: the call has no arguments and cannot fail.
        worker
            .thread
            .store(unsafe { libc::gettid() }, Ordering::Release);
        while !is_over.load(Ordering::Relaxed) {
            buffer = exported(&context, buffer, |_| ())?;
            worker.rounds.fetch_add(1, Ordering::Relaxed);
            // While one thread is counted, the other one leaves the processor to it for most of the time.
            std::thread::sleep(PAUSE);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads = [0, 1].map(|number| {
            let (work, worker) = (&work, &workers[number]);
            scope.spawn(move || work(worker))
        });
        let are_warm = || {
            workers
                .iter()
                .all(|worker| worker.thread.load(Ordering::Acquire) != 0)
        };
        while !are_warm() && !threads.iter().any(|thread| thread.is_finished()) {
            std::thread::yield_now();
        }
        let talk = || -> Result<()> {
            ensure!(are_warm(), "a thread cannot export");
            let [first, second] = &workers;
            let number = |worker: &Worker| worker.thread.load(Ordering::Acquire);
            writeln!(stdout(), "{} {}", number(first), number(second))?;
            for line in stdin().lock().lines() {
                line?;
                let rounds = |worker: &Worker| worker.rounds.load(Ordering::Relaxed);
                writeln!(stdout(), "{} {}", rounds(first), rounds(second))?;
            }
            Ok(())
        };
        let talked = talk();
        is_over.store(true, Ordering::Relaxed);
        for thread in threads {
            let ended = thread.join();
            ensure!(ended.is_ok(), "a thread panicked");
            ended.unwrap_or(Ok(()))?;
        }
        talked
    })
}

/// Nanoseconds that the exports add.
fn time(context: &Context, mut buffer: Buffer, rounds: usize) -> Result<i128> {
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let start = Instant::now();
        let mapped = MappedBuffer::new(context, buffer)?;
        let packed = mapped.export()?;
        drop(packed);
        buffer = mapped.unmap()?;
        with.push(start.elapsed());
        let start = Instant::now();
        buffer = MappedBuffer::new(context, buffer)?.unmap()?;
        without.push(start.elapsed());
    }
    let median = |mut times: Vec<Duration>| {
        times.sort_unstable();
        times
            .get(times.len() / 2)
            .map_or(0, Duration::as_nanos)
            .cast_signed()
    };
    Ok(median(with) - median(without))
}

/// One round with an export.
fn exported(context: &Context, buffer: Buffer, mark: fn(u64)) -> Result<Buffer> {
    mark(1);
    let mapped = MappedBuffer::new(context, buffer)?;
    mark(2);
    let packed = mapped.export()?;
    mark(3);
    let again = mapped.export()?;
    mark(7);
    drop((packed, again));
    mark(4);
    let buffer = mapped.unmap()?;
    mark(0);
    Ok(buffer)
}

/// One round without.
fn plain(context: &Context, buffer: Buffer) -> Result<Buffer> {
    mark(5);
    let mapped = MappedBuffer::new(context, buffer)?;
    mark(6);
    let buffer = mapped.unmap()?;
    mark(0);
    Ok(buffer)
}

fn mark(label: u64) {
    // SAFETY: no kernel has this system call: it fails, and touches nothing.
    unsafe { libc::syscall(MARK, label) };
}
