//! Registrations by memory handle: those that were exported, and those whose memory UCX's own structures do
//! not show at the known offset, see [`crate::rkey`].
//!
//! A registration is one cache line. The address of the memory handle selects its first line. If that line
//! is occupied, the handle gets one of the next lines, and its first line counts it. A handle that is not
//! recorded therefore costs a look at one line.
//!
//! A thread claims a line for a handle under the lock of the handle's first line, so threads that export one
//! handle at the same time find the same line. The thread that fills the line decides about the export, and
//! the others wait. The deregistration of the handle, or the closing of its domain, frees the line. UCX never
//! does both at once.

// `tests/models` runs this file in every order of its steps.
#[cfg_attr(loom, path = "registrations/registration.rs")]
mod registration;

use std::sync::atomic::Ordering;

use xgvmi_pool::BoundKey;

use crate::abi::{MdHandle, MemHandle};
#[cfg(not(loom))]
use crate::hot;
use crate::memh::mix;
use crate::rkey::Memory;
use registration::NO_MEMH;
pub(crate) use registration::{Exported, Registration};

/// Number of lines, a power of two: a rank has some dozens of temporary buffers at a time. They are part of
/// the library's zeroed data, so unused pages take no memory.
const LINES: usize = if cfg!(loom) { 4 } else { 16_384 };
/// Number of lines that a handle may have, from its first one on. If all are occupied, UCX handles the
/// memory.
const WINDOW: usize = if cfg!(loom) { 2 } else { 16 };

/// All lines.
pub(crate) type Lines = [Registration; LINES];

/// The lines of a table.
pub(crate) trait Source {
    fn lines(&self) -> &Lines;
}

/// Those of [`REGISTRATIONS`].
#[derive(Debug)]
pub(crate) struct Global;

#[cfg(not(loom))]
impl Source for Global {
    #[inline(always)]
    fn lines(&self) -> &Lines {
        hot::near!(ALL_LINES)
    }
}

/// Apart from the rest, so that it is all zero.
#[cfg(not(loom))]
static ALL_LINES: Lines = [const { Registration::NONE }; LINES];

/// Registered memory of all served domains.
#[cfg(not(loom))]
pub(crate) static REGISTRATIONS: Registrations = Registrations { source: Global };

/// The registrations by memory handle.
#[derive(Debug)]
pub(crate) struct Registrations<S = Global> {
    source: S,
}

/// The export of a memory handle.
#[derive(Debug)]
pub(crate) enum Export<'a> {
    /// It is decided.
    Decided(&'a Registration, Exported),
    /// The calling thread decides: it must call [`Registration::decide`].
    Deciding(&'a Registration),
    /// The handle's memory is not known.
    Unknown,
    /// No line is free.
    Full,
}

/// The first line of a handle, its number, and the handle's address.
#[derive(Clone, Copy, Debug)]
struct Home<'a> {
    line: &'a Registration,
    at: usize,
    memh: usize,
}

impl<S: Source> Registrations<S> {
    /// Records memory that a domain has just registered. Returns the key of an older handle at the
    /// same address and of the same domain, which UCX freed without this library's knowledge. A key
    /// of another domain stays bound until that domain closes: only its own pool can release it, and
    /// nothing holds that pool open here. Without a free line it records nothing, and UCX handles the
    /// registration.
    #[cold]
    pub(crate) fn note(&self, md: MdHandle, memh: MemHandle, memory: Memory) -> Option<BoundKey> {
        let older = self.forget_of(md, memh);
        let home = self.home(memh);
        let _locked = home.line.lock();
        if let Some(line) = self.claim(home, md, memory) {
            line.decide(Exported::No);
        }
        match older {
            Some(Exported::FromPool(key)) => Some(key),
            Some(Exported::No | Exported::Natively) | None => None,
        }
    }

    /// A line for a live memory handle that is exported for the first time, if its first line is free. The
    /// caller decides.
    #[inline(always)]
    pub(crate) fn begin(
        &self,
        md: MdHandle,
        memh: MemHandle,
        memory: Memory,
    ) -> Option<&Registration> {
        let home = self.home(memh);
        let _locked = match home.line.is_of(NO_MEMH) {
            true => home.line.try_lock()?,
            false => return None,
        };
        let is_free = home.line.is_of(NO_MEMH) && !home.line.has_displaced();
        if is_free {
            home.line.fill(home.memh, md, memory);
        }
        is_free.then_some(home.line)
    }

    /// The export of a live memory handle. `memory` is that of a handle that is not recorded.
    pub(crate) fn export(
        &self,
        md: MdHandle,
        memh: MemHandle,
        memory: Option<Memory>,
    ) -> Export<'_> {
        let home = self.home(memh);
        if home.line.is_of(home.memh)
            && let exported @ (Exported::FromPool(_) | Exported::Natively) = home.line.exported()
        {
            return Export::Decided(home.line, exported);
        }
        let recorded = {
            let _locked = home.line.lock();
            match (self.find(home), memory) {
                (Some(line), _) => line,
                (None, None) => return Export::Unknown,
                (None, Some(memory)) => {
                    let claimed = self.claim(home, md, memory);
                    return claimed.map_or(Export::Full, Export::Deciding);
                }
            }
        };
        // Without the lock: another thread may decide about this handle.
        match recorded.decision() {
            Exported::No => Export::Deciding(recorded),
            exported => Export::Decided(recorded, exported),
        }
    }

    /// The key of a live memory handle that was exported with its first line, if that has this memory.
    #[inline(always)]
    pub(crate) fn exported(&self, memh: MemHandle, memory: Memory) -> Option<BoundKey> {
        let home = self.home(memh);
        match home.line.is_of(home.memh) && home.line.memory() == memory {
            true => match home.line.exported() {
                Exported::FromPool(key) => Some(key),
                Exported::No | Exported::Natively => None,
            },
            false => None,
        }
    }

    /// The registration of a live memory handle, if it is recorded.
    pub(crate) fn known(&self, memh: MemHandle) -> Option<&Registration> {
        self.find(self.home(memh))
    }

    /// Removes a memory handle. Returns its kind of export.
    #[inline(always)]
    pub(crate) fn forget(&self, memh: MemHandle) -> Option<Exported> {
        let home = self.home(memh);
        if home.line.is_of(home.memh) {
            return Some(home.line.take());
        }
        match home.line.has_displaced() {
            false => None,
            true => self.forget_displaced(memh),
        }
    }

    /// Removes a memory handle whose line is not its first one.
    #[cold]
    fn forget_displaced(&self, memh: MemHandle) -> Option<Exported> {
        let home = self.home(memh);
        let _locked = home.line.lock();
        let line = self.find(home)?;
        home.line.displaced.fetch_sub(1, Ordering::Relaxed);
        Some(line.take())
    }

    /// Removes an older handle at the same address. Returns its kind of export, if it is of the same
    /// domain.
    fn forget_of(&self, md: MdHandle, memh: MemHandle) -> Option<Exported> {
        let of = self.known(memh)?.md();
        let exported = self.forget(memh)?;
        (of == md.addr()).then_some(exported)
    }

    /// Removes all memory of a domain, and passes each exported key of it to `each`, which runs
    /// without a lock.
    pub(crate) fn forget_all(&self, md: usize, mut each: impl FnMut(BoundKey)) {
        for line in self.source.lines() {
            let memh = line.memh.load(Ordering::Acquire);
            if memh == NO_MEMH || line.md() != md {
                continue;
            }
            let memh = std::ptr::without_provenance_mut(memh);
            if let Some(Exported::FromPool(key)) = self.forget(memh) {
                each(key);
            }
        }
    }

    /// The line of a handle. Exact for a handle whose line was claimed before the call.
    #[inline(always)]
    fn find<'a>(&'a self, home: Home<'a>) -> Option<&'a Registration> {
        if home.line.is_of(home.memh) {
            return Some(home.line);
        }
        match home.line.has_displaced() {
            false => None,
            true => self.others(home).find(|line| line.is_of(home.memh)),
        }
    }

    /// Claims and fills a line for a handle that has none, under the lock of its first line. The caller decides.
    fn claim<'a>(
        &'a self,
        home: Home<'a>,
        md: MdHandle,
        memory: Memory,
    ) -> Option<&'a Registration> {
        if home.line.is_of(NO_MEMH) {
            home.line.fill(home.memh, md, memory);
            return Some(home.line);
        }
        for line in self.others(home) {
            // The handles whose first line it is claim it under its lock.
            if let Some(_locked) = line.try_lock()
                && line.is_of(NO_MEMH)
            {
                home.line.displaced.fetch_add(1, Ordering::Relaxed);
                line.fill(home.memh, md, memory);
                return Some(line);
            }
        }
        None
    }

    /// The lines for a handle after its first one.
    fn others(&self, home: Home<'_>) -> impl Iterator<Item = &Registration> {
        let lines = self.source.lines();
        (1..WINDOW).map(move |step| &lines[(home.at + step) % LINES])
    }

    #[inline(always)]
    fn home(&self, memh: MemHandle) -> Home<'_> {
        // The bits above the lowest 32 are the best mixed ones.
        let [.., b4, b5, b6, b7] = mix(memh.addr()).to_le_bytes();
        let at = u32::from_le_bytes([b4, b5, b6, b7]) as usize % LINES;
        Home {
            line: &self.source.lines()[at],
            at,
            memh: memh.addr(),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(all(test, loom))]
#[path = "registrations/models.rs"]
mod models;
