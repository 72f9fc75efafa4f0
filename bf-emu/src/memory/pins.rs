//! Pinned pages: a registration whose pages stay the device's when its owner unmaps them, as on hardware.
//!
//! The owner's kernel pins the pages as buffers of a ring (`sys::uring`), one ring for each function. Other processes take a
//! copy of the ring's file. Whoever uses a ring holds the lock of its function, so there is one request at a time. A page
//! that cannot be pinned (no ring, too many or too long registrations, memory without permission to write) is accessed by
//! its address.
//!
//! The signal handler uses the accesses: they do not allocate, lock or panic.

use std::cell::UnsafeCell;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};

use crate::sys::{self, Errno, Result, uring};

/// Most pinned registrations of a process in each function.
const SLOTS: usize = 16_384;
/// Most functions of a fabric with rings; others have none.
const RINGS: usize = 64;
/// Longest pinned registration: the kernel's limit.
const BYTES_MAX: u64 = 1 << 30;
/// Most rings that a process has mapped.
const PLACES: usize = 64;
/// Most bytes that a pipe takes at once.
const STEP: usize = 64 * 1024;
/// Lowest file descriptor; half of the process's limit if that is lower.
const NUMBER_MIN: u64 = 4000;

static ON: AtomicBool = AtomicBool::new(false);

/// Pinned pages of a registration; the default value for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Pin {
    /// Number of the ring, unequal to those of earlier processes.
    ring: u32,
    /// Its file in the owner.
    file: i32,
    /// The buffer.
    slot: u32,
}

impl Pin {
    /// True if the pages are pinned.
    #[must_use]
    pub fn is_some(self) -> bool {
        self.ring != 0
    }
}

/// A ring of this process.
#[derive(Debug)]
struct Own {
    claimed: AtomicBool,
    ring: AtomicU32,
    file: AtomicI32,
    used: [AtomicBool; SLOTS],
}

static OWN: [Own; RINGS] = [const {
    Own {
        claimed: AtomicBool::new(false),
        ring: AtomicU32::new(0),
        file: AtomicI32::new(-1),
        used: [const { AtomicBool::new(false) }; SLOTS],
    }
}; RINGS];

/// Whether this process pins the pages of its registrations.
pub(crate) fn set(on: bool) {
    ON.store(on, Ordering::Relaxed);
}

fn claim(flag: &AtomicBool) {
    while flag.swap(true, Ordering::Acquire) {
        sys::yield_now();
    }
}

/// Pins a range of this process, if the mode and the kernel allow it.
#[must_use]
pub(crate) fn pin(function: usize, start: u64, length: u64) -> Pin {
    if !ON.load(Ordering::Relaxed) || length == 0 || length > BYTES_MAX {
        return Pin::default();
    }
    let Some(own) = OWN.get(function) else {
        return Pin::default();
    };
    claim(&own.claimed);
    if own.ring.load(Ordering::Relaxed) == 0 {
        own.open();
    }
    own.claimed.store(false, Ordering::Release);
    let (ring, file) = (
        own.ring.load(Ordering::Relaxed),
        own.file.load(Ordering::Relaxed),
    );
    let free = |used: &&AtomicBool| !used.swap(true, Ordering::Relaxed);
    if file < 0 {
        return Pin::default();
    }
    let Some((slot, used)) = (0..).zip(&own.used).find(|(_, used)| free(used)) else {
        return Pin::default();
    };
    match uring::pin(file, slot, start, length) {
        Ok(()) => Pin { ring, file, slot },
        Err(_) => {
            used.store(false, Ordering::Relaxed);
            Pin::default()
        }
    }
}

/// Releases pages that this process has pinned. Those of others go with their process.
pub(crate) fn unpin(pin: Pin) {
    if !pin.is_some() {
        return;
    }
    let mine = |own: &&Own| own.ring.load(Ordering::Relaxed) == pin.ring;
    let Some(own) = OWN.iter().find(mine) else {
        return;
    };
    let _ = uring::pin(pin.file, pin.slot, 0, 0);
    if let Some(used) = own.used.get(pin.slot as usize) {
        used.store(false, Ordering::Relaxed);
    }
}

impl Own {
    /// Creates the ring. A process tries once.
    fn open(&self) {
        /// The number of a ring that does not exist.
        const NEVER: u32 = u32::MAX;
        let file = uring::create(u32::try_from(SLOTS).unwrap_or(u32::MAX)).and_then(high);
        let unique = sys::now_ns() ^ u64::from(sys::pid().unsigned_abs()) << 24;
        let [a, b, c, d, ..] = unique.to_le_bytes();
        let ring = u32::from_le_bytes([a, b, c, d]).clamp(1, NEVER - 1);
        self.file.store(file.unwrap_or(-1), Ordering::Relaxed);
        if let Err(error) = file {
            tell(error);
        }
        let ring = if file.is_ok() { ring } else { NEVER };
        self.ring.store(ring, Ordering::Relaxed);
    }
}

/// Logs that nothing is pinned, once in a process.
fn tell(error: Errno) {
    static TOLD: AtomicBool = AtomicBool::new(false);
    if TOLD.swap(true, Ordering::Relaxed) {
        return;
    }
    let text = format!(
        "bf-emu: no registration is pinned, because the kernel gives no io_uring: {error}; allow it \
         (kernel.io_uring_disabled, the container's filter), or do not set BFEMU_MEMLOCK=pinned\n"
    );
    let _ = sys::write(2, text.as_bytes());
}

/// Moves a file to a number that programs do not expect to be free.
fn high(file: RawFd) -> Result<RawFd> {
    let from = NUMBER_MIN.min(sys::limits::files_max() / 2);
    let high = sys::duplicate_from(file, from);
    sys::close(file);
    high
}

/// A ring that this process has mapped, its own or another's, and a pipe for its transfers.
#[derive(Clone, Copy, Debug)]
struct Mapped {
    /// The ring's number and its process.
    of: (u32, i32),
    ring: uring::Ring,
    /// Read end and write end.
    pipe: (RawFd, RawFd),
}

#[derive(Debug)]
struct Place {
    claimed: AtomicBool,
    mapped: UnsafeCell<Option<Mapped>>,
}

// SAFETY: the thread that has set `claimed` uses the rest alone.
unsafe impl Sync for Place {}

static PLACE: [Place; PLACES] = [const {
    Place {
        claimed: AtomicBool::new(false),
        mapped: UnsafeCell::new(None),
    }
}; PLACES];

/// Reads pinned pages of a process by the address of their registration. None if the ring is not reachable.
pub(super) fn read(process: i32, pin: Pin, address: u64, bytes: &mut [u8]) -> Option<Result<()>> {
    with_ring(process, pin, |mapped, slot| {
        let (source, sink) = mapped.pipe;
        let mut done = 0;
        while done < bytes.len() {
            let rest = bytes.get_mut(done..).unwrap_or_default();
            let step = length(rest.len());
            let at = (address.wrapping_add(done as u64), step);
            let moved = mapped.ring.transfer(slot, at, (sink, false))?;
            let part = rest.get_mut(..moved).unwrap_or_default();
            if part.is_empty() || sys::read(source, part)? != moved {
                return Err(Errno(libc::EIO));
            }
            done += moved;
        }
        Ok(())
    })
}

/// Writes pinned pages, like [`read`].
pub(super) fn write(process: i32, pin: Pin, address: u64, bytes: &[u8]) -> Option<Result<()>> {
    with_ring(process, pin, |mapped, slot| {
        let (source, sink) = mapped.pipe;
        let mut done = 0;
        while done < bytes.len() {
            let rest = bytes.get(done..).unwrap_or_default();
            let part = rest.get(..rest.len().min(STEP)).unwrap_or_default();
            let given = sys::write(sink, part)?;
            let at = (address.wrapping_add(done as u64), length(given));
            if given == 0 || mapped.ring.transfer(slot, at, (source, true))? != given {
                return Err(Errno(libc::EIO));
            }
            done += given;
        }
        Ok(())
    })
}

/// Bytes of one step.
fn length(bytes: usize) -> u32 {
    u32::try_from(bytes.min(STEP)).unwrap_or(0)
}

fn with_ring(
    process: i32,
    pin: Pin,
    act: impl FnOnce(&Mapped, u16) -> Result<()>,
) -> Option<Result<()>> {
    let slot = u16::try_from(pin.slot).ok()?;
    let place = PLACE.get(pin.ring as usize % PLACES)?;
    claim(&place.claimed);
    // SAFETY: this thread has set `claimed`.
    let held = unsafe { &mut *place.mapped.get() };
    let wanted = (pin.ring, process);
    if held.is_none_or(|mapped| mapped.of != wanted) {
        if let Some(other) = held.take() {
            other.close();
        }
        *held = open(process, pin);
    }
    let done = held.map(|mapped| act(&mapped, slot));
    if let Some(Err(_)) = done
        && let Some(broken) = held.take()
    {
        // The pipe may hold the rest of the transfer.
        broken.close();
    }
    place.claimed.store(false, Ordering::Release);
    match done? {
        Ok(()) => Some(Ok(())),
        // The program has closed the files, or the registration has ended: the address says what is there.
        Err(_) if sys::tasks::exists(process) => None,
        Err(_) => Some(Err(Errno(libc::ESRCH))),
    }
}

#[cold]
fn open(process: i32, pin: Pin) -> Option<Mapped> {
    let file = match process == sys::pid() {
        true => sys::duplicate_from(pin.file, NUMBER_MIN.min(sys::limits::files_max() / 2)),
        false => uring::file_of(process, pin.file).and_then(high),
    };
    let file = file.ok()?;
    let Ok(ring) = uring::Ring::map(file) else {
        sys::close(file);
        return None;
    };
    let Ok((source, sink)) = sys::pipe(false) else {
        ring.close();
        return None;
    };
    let raised = (high(source), high(sink));
    if let (Ok(source), Ok(sink)) = raised
        && sys::set_nonblocking(sink).is_ok()
    {
        return Some(Mapped {
            of: (pin.ring, process),
            ring,
            pipe: (source, sink),
        });
    }
    ring.close();
    for end in [raised.0, raised.1].into_iter().flatten() {
        sys::close(end);
    }
    None
}

impl Mapped {
    fn close(self) {
        self.ring.close();
        sys::close(self.pipe.0);
        sys::close(self.pipe.1);
    }
}

/// The child of a fork uses the parent's rings no longer, and would keep its pages.
pub(super) fn after_fork_in_child() {
    for place in &PLACE {
        // SAFETY: the child has one thread.
        if let Some(mapped) = unsafe { (*place.mapped.get()).take() } {
            mapped.close();
        }
        place.claimed.store(false, Ordering::Relaxed);
    }
    for own in OWN
        .iter()
        .filter(|own| own.ring.load(Ordering::Relaxed) != 0)
    {
        let file = own.file.swap(-1, Ordering::Relaxed);
        if file >= 0 {
            sys::close(file);
        }
        own.ring.store(0, Ordering::Relaxed);
        for used in &own.used {
            used.store(false, Ordering::Relaxed);
        }
    }
    for own in &OWN {
        own.claimed.store(false, Ordering::Relaxed);
    }
}
