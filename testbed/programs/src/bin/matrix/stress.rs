//! Two threads in four contexts that export, import, move, verify and release memory, while the
//! process forks and receives signals. All contexts are in one process: each pair of exporter and
//! importer is two of them.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use ucx_sys::Ucp;

use crate::context::{Context, Loopback};
use crate::memory::Pages;

const CONTEXTS: usize = 4;
const THREADS: u64 = 2;
/// Bytes of a buffer: a page, several pages, and an unaligned length. Below 1 KiB UCP would copy by
/// the CPU.
const SIZES: [usize; 3] = [4096, 65_536, 100_001];
/// Maximum number of children that are forked during the work.
const FORKS_MAX: u64 = 8;
/// Interval of the signals, in microseconds.
const TICK_US: i64 = 2000;
/// Number of exported buffers per thread, so that releases fall between others' exports.
const HELD: usize = 3;
/// Address of the first thread's buffers, and the distances between threads and between buffers.
/// The import cache keeps regions of released memory. UCP itself fails if two threads import parts
/// of one region at the same time (docs/DEFECTS.md, D13).
const PLACE: usize = 0x20_0000_0000;
const PLACES_OF_A_THREAD: usize = 0x1_0000_0000;
const PLACE_BYTES: usize = 1 << 20;

/// Number of received signals.
static TICKS: AtomicU64 = AtomicU64::new(0);

extern "C" fn on_tick(_signal: c_int) {
    TICKS.fetch_add(1, Ordering::Relaxed);
}

/// Runs `rounds` rounds in each thread. Returns a summary.
pub(crate) fn run(ucp: &'static Ucp, rounds: u64) -> Result<String, String> {
    let contexts = (0..CONTEXTS)
        .map(|_| Context::open(ucp, true))
        .collect::<Result<Vec<_>, _>>()?;
    meet(&contexts)?;
    let ticking = Ticking::start();
    let done = AtomicBool::new(false);
    let (results, forks) = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|number| {
                let contexts = &contexts;
                scope.spawn(move || work(contexts, number, rounds))
            })
            .collect();
        let done = &done;
        let forker = scope.spawn(move || forks(done));
        let results: Vec<_> = threads
            .into_iter()
            .map(|thread| {
                thread
                    .join()
                    .unwrap_or_else(|_| Err("it panicked".to_owned()))
            })
            .collect();
        done.store(true, Ordering::Relaxed);
        let forks = forker
            .join()
            .unwrap_or_else(|_| Err("it panicked".to_owned()));
        (results, forks)
    });
    drop(ticking);
    for context in contexts {
        context.close();
    }
    let bytes = results.into_iter().sum::<Result<u64, String>>()?;
    let (forks, ticks) = (forks?, TICKS.load(Ordering::Relaxed));
    Ok(format!("{bytes} {forks} {ticks}"))
}

/// Imports once from each context into each other context, with one thread: concurrent first
/// imports from one exporter fail in UCP itself (docs/DEFECTS.md, D12).
fn meet(contexts: &[Context]) -> Result<(), String> {
    let pages = Pages::map(SIZES[0]).map_err(|error| error.to_string())?;
    for exporter in contexts {
        let memh = exporter.register(pages.address(), SIZES[0])?;
        let key = exporter.export(memh)?;
        for importer in contexts {
            let imported = importer.import(&key)?;
            importer.unmap(imported)?;
        }
        exporter.unmap(memh)?;
    }
    Ok(())
}

/// A buffer that is exported by one context and imported by another.
struct Shared<'a> {
    pages: Pages,
    /// Index of its buffer in its thread.
    place: usize,
    exporter: &'a Context,
    memh: ucx_sys::ucp_mem_h,
    importer: &'a Context,
    imported: ucx_sys::ucp_mem_h,
}

impl Shared<'_> {
    fn end(self) -> Result<(), String> {
        self.importer.unmap(self.imported)?;
        self.exporter.unmap(self.memh)?;
        // Unmapping the pages removes the registration from UCX's cache, and the pool's key is
        // released.
        drop(self.pages);
        Ok(())
    }
}

/// The rounds of one thread. Returns the number of moved bytes, which were all correct.
fn work(contexts: &[Context], number: u64, rounds: u64) -> Result<u64, String> {
    let loopbacks = contexts
        .iter()
        .map(Context::connect)
        .collect::<Result<Vec<Loopback>, _>>()?;
    let mut held: Vec<Shared<'_>> = Vec::new();
    let mut places: Vec<usize> = (0..=HELD).collect();
    let first_place = PLACE + usize::try_from(number).unwrap_or(0) * PLACES_OF_A_THREAD;
    let mut bytes_moved = 0;
    for round in 0..rounds {
        // Selects every pair of contexts in turn, in another order in each thread.
        let mixed = (round * THREADS + number).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let pick = |shift: u32, count: usize| (mixed >> shift) as usize % count;
        let (exporter, at) = (&contexts[pick(0, CONTEXTS)], pick(8, CONTEXTS));
        let bytes = SIZES[pick(16, SIZES.len())];
        let seed = u32::try_from(mixed & 0xffff_ffff).unwrap_or(0);
        let place = places.pop().ok_or("no place is left")?;
        let address = first_place + place * PLACE_BYTES;
        let here = std::ptr::without_provenance_mut(address);
        let mut pages = Pages::map_at(here, bytes).map_err(|error| error.to_string())?;
        pages.fill(seed);
        let memh = exporter.register(pages.address(), bytes)?;
        let key = exporter.export(memh)?;
        let imported = contexts[at].import(&key)?;
        let address = pages.address();
        loopbacks[at]
            .pull(imported, address, bytes, seed)
            .map_err(|error| format!("thread {number}, round {round}: {error}"))?;
        bytes_moved += bytes as u64;
        held.push(Shared {
            pages,
            place,
            exporter,
            memh,
            importer: &contexts[at],
            imported,
        });
        if held.len() > HELD {
            let oldest = held.remove(pick(24, HELD));
            places.push(oldest.place);
            oldest.end()?;
        }
    }
    for shared in held {
        shared.end()?;
    }
    for loopback in loopbacks {
        loopback.close();
    }
    Ok(bytes_moved)
}

/// Forks children that exit at once, one after the other, until the threads are done. UCX releases
/// its caches before each fork. Returns their number.
fn forks(done: &AtomicBool) -> Result<u64, String> {
    let mut forks = 0;
    while !done.load(Ordering::Relaxed) && forks < FORKS_MAX {
        // SAFETY: the child calls nothing but `_exit`.
        let pid = unsafe { libc::fork() };
        match pid {
            // SAFETY: ends the child at once, without its destructors.
            0 => unsafe { libc::_exit(7) },
            1.. => {}
            _ => return Err(format!("fork: {}", std::io::Error::last_os_error())),
        }
        let mut status = 0;
        // SAFETY: waits for the child that was just created.
        while unsafe { libc::waitpid(pid, &raw mut status, 0) } != pid {
            if std::io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
                return Err(format!("waitpid: {}", std::io::Error::last_os_error()));
            }
        }
        if libc::WEXITSTATUS(status) != 7 {
            return Err(format!("a child ended with {status:#x}"));
        }
        forks += 1;
    }
    Ok(forks)
}

/// Signals at short intervals, until the drop.
struct Ticking;

impl Ticking {
    fn start() -> Self {
        // SAFETY: an all-zero sigaction is a valid one.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = on_tick as extern "C" fn(c_int) as usize;
        action.sa_flags = libc::SA_RESTART;
        // SAFETY: the handler only counts.
        unsafe { libc::sigaction(libc::SIGALRM, &raw const action, std::ptr::null_mut()) };
        Self::set(TICK_US);
        Self
    }

    fn set(tick_us: i64) {
        let tick = libc::timeval {
            tv_sec: 0,
            tv_usec: tick_us,
        };
        let timer = libc::itimerval {
            it_interval: tick,
            it_value: tick,
        };
        // SAFETY: the timer is complete, and its signal has a handler.
        unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const timer, std::ptr::null_mut()) };
    }
}

impl Drop for Ticking {
    fn drop(&mut self) {
        Self::set(0);
    }
}
