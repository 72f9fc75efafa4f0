//! Counts the instructions of a call by single-stepping: the processor traps after each instruction
//! while its trap flag is set. The counts are exact and independent of the load of the machine.
//! Only on x86_64.

use std::fs;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::context::Context;
use crate::memory::Pages;

/// Address range of an object in this process, and the number of instructions executed there.
struct Object {
    start: AtomicUsize,
    end: AtomicUsize,
    steps: AtomicU64,
}

impl Object {
    const fn new() -> Self {
        Self {
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            steps: AtomicU64::new(0),
        }
    }
}

/// The launcher's preload, if there is one: it represents the kernel and the adapter.
static DEVICE: Object = Object::new();
/// The library under test.
static LIBRARY: Object = Object::new();
/// UCX, libibverbs, libmlx5 and the C library.
static REST: Object = Object::new();

const LIBRARY_FILE: &str = "libuct_ib_mlx5_xgvmi.so";

/// Bytes of a buffer.
const BYTES: usize = 65_536;
/// Address of the first buffer, and the distance of the buffers: the cost of UCX's tables depends
/// on addresses.
const PLACE: usize = 0x20_0000_0000;
const PLACE_BYTES: usize = 1 << 20;
/// Number of buffers registered in advance, so tables have space.
const BEFORE: usize = 256;

#[cfg(target_arch = "x86_64")]
extern "C" fn on_step(
    _signal: libc::c_int,
    _info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: the kernel passes a context of this type to a handler with SA_SIGINFO.
    let registers = unsafe { &(*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let at = usize::try_from(registers[libc::REG_RIP as usize]).unwrap_or(0);
    let holds = |object: &&Object| {
        (object.start.load(Ordering::Relaxed)..object.end.load(Ordering::Relaxed)).contains(&at)
    };
    let object = [&DEVICE, &LIBRARY].into_iter().find(holds);
    let steps = &object.unwrap_or(&REST).steps;
    steps.fetch_add(1, Ordering::Relaxed);
}

/// Instructions of the work in the library, and outside both the library and the device.
type Steps = (u64, u64);

#[cfg(target_arch = "x86_64")]
fn count<R>(work: impl FnOnce() -> R) -> (R, Steps) {
    LIBRARY.steps.store(0, Ordering::Relaxed);
    REST.steps.store(0, Ordering::Relaxed);
    // SAFETY: sets the trap flag; from here on each instruction traps to the handler, which only
    // counts.
    unsafe { std::arch::asm!("pushfq", "or qword ptr [rsp], 0x100", "popfq") };
    let result = work();
    // SAFETY: clears the flag.
    unsafe { std::arch::asm!("pushfq", "and qword ptr [rsp], -257", "popfq") };
    let steps = |object: &Object| object.steps.load(Ordering::Relaxed);
    (result, (steps(&LIBRARY), steps(&REST)))
}

#[cfg(not(target_arch = "x86_64"))]
fn count<R>(work: impl FnOnce() -> R) -> (R, Steps) {
    (work(), (0, 0))
}

/// Instructions of `ucp_mem_map` of new memory and of `ucp_rkey_pack`, inside the library and
/// outside it. The minimum of `calls` calls, because a table grows from time to time.
pub(crate) fn run(context: Context, calls: usize) -> Result<String, String> {
    prepare()?;
    let mut registrations = Vec::new();
    let mut packs = Vec::new();
    let mut kept = Vec::new();
    let at = |number: usize| std::ptr::without_provenance_mut(PLACE + number * PLACE_BYTES);
    for number in 0..BEFORE {
        let pages = Pages::map_at(at(calls + number), BYTES).map_err(|error| error.to_string())?;
        kept.push((context.register(pages.address(), BYTES)?, pages));
    }
    for call in 0..calls {
        let place = at(call);
        let mut pages = Pages::map_at(place, BYTES).map_err(|error| error.to_string())?;
        pages.fill(1);
        let (memh, steps) = count(|| context.register(pages.address(), BYTES));
        let memh = memh?;
        registrations.push(steps);
        let (packed, steps) = count(|| context.pack_rkey(memh, |_rkey| ()));
        packed?;
        packs.push(steps);
        kept.push((memh, pages));
    }
    for (memh, _pages) in kept {
        context.unmap(memh)?;
    }
    let least = |all: &[Steps], which: fn(&Steps) -> u64| all.iter().map(which).min().unwrap_or(0);
    let both = |all: &[Steps]| {
        let (library, rest) = (least(all, |steps| steps.0), least(all, |steps| steps.1));
        format!("{library} {rest}")
    };
    Ok(format!("{} {}", both(&registrations), both(&packs)))
}

fn prepare() -> Result<(), String> {
    let maps = fs::read_to_string("/proc/self/maps").map_err(|error| error.to_string())?;
    let preloaded = std::env::var("LD_PRELOAD").unwrap_or_default();
    let device = preloaded
        .split([':', ' '])
        .find(|file| !file.contains(LIBRARY_FILE));
    // A name that no mapping has.
    let device = device.filter(|file| !file.is_empty()).unwrap_or("\0");
    for (object, file) in [(&DEVICE, device), (&LIBRARY, LIBRARY_FILE)] {
        let lines = maps.lines().filter(|line| line.contains(file));
        let ranges: Vec<(usize, usize)> = lines
            .filter_map(|line| {
                let (start, end) = line.split(' ').next()?.split_once('-')?;
                let parse = |text| usize::from_str_radix(text, 16).ok();
                Some((parse(start)?, parse(end)?))
            })
            .collect();
        let start = ranges.iter().map(|range| range.0).min().unwrap_or(0);
        let end = ranges.iter().map(|range| range.1).max().unwrap_or(0);
        object.start.store(start, Ordering::Relaxed);
        object.end.store(end, Ordering::Relaxed);
    }
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: an all-zero sigaction is a valid one.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = on_step;
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
        // SAFETY: the handler only counts.
        if unsafe { libc::sigaction(libc::SIGTRAP, &raw const action, null_mut()) } != 0 {
            return Err(format!("sigaction: {}", std::io::Error::last_os_error()));
        }
    }
    Ok(())
}
