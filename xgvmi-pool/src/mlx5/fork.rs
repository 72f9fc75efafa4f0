//! Detects a forked child at the cost of one load, and holds the queue for single requests.
//!
//! The adapter's objects belong to the process that created them. A child shares their memory and
//! the kernel's file, so its requests and destructions would affect the parent. The queue's address is
//! therefore in a page that the kernel clears in a child.

use std::io;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use super::form::Form;
use super::progress::Single;
use super::queue::UmrQueue;
use crate::device::QuickPath;
use crate::error::ChainError;
use crate::key::Mkey;
use crate::region::Region;

/// The content of the page.
#[derive(Debug)]
#[repr(C)]
struct Page {
    /// One, and zero in a child.
    is_parent: u8,
    /// Length of the page.
    len: u32,
    /// Number of [`Quick`] with this page.
    holders: AtomicU32,
    /// From [`Arc::into_raw`]; null until single requests may use it.
    queue: AtomicPtr<UmrQueue>,
}

/// The queue for single requests, while the usual form of binds is proved.
#[derive(Debug)]
pub struct Quick(NonNull<Page>);

// SAFETY: the page's changing fields are atomics, and the queue may be used from any thread.
unsafe impl Send for Quick {}
// SAFETY: as above.
unsafe impl Sync for Quick {}

impl Quick {
    /// A page without a queue.
    fn new() -> io::Result<Self> {
        // SAFETY: queries a constant of the system.
        let len = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address that the kernel chooses affects no other memory.
        let page = unsafe { libc::mmap(ptr::null_mut(), len, protection, flags, -1, 0) };
        if page == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let page = NonNull::new(page.cast()).ok_or_else(|| io::Error::from_raw_os_error(0))?;
        let content = Page {
            is_parent: 1,
            len: u32::try_from(len).unwrap_or(4096),
            holders: AtomicU32::new(1),
            queue: AtomicPtr::default(),
        };
        // SAFETY: the page is new, writable, aligned, and larger than its content.
        unsafe { page.write(content) };
        let quick = Self(page);
        // SAFETY: the page is this value's own.
        if unsafe { libc::madvise(page.as_ptr().cast(), len, libc::MADV_WIPEONFORK) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(quick)
    }

    #[inline(always)]
    fn page(&self) -> &Page {
        // SAFETY: mapped as long as a value has it; a cleared page is a valid one as well.
        unsafe { self.0.as_ref() }
    }

    /// The queue. `None` also in a forked child.
    #[inline(always)]
    fn queue(&self) -> Option<&UmrQueue> {
        // SAFETY: from `Arc::into_raw` in `use_queue`. The page keeps that reference as long as a value
        // has the page.
        unsafe { self.page().queue.load(Ordering::Acquire).as_ref() }
    }

    /// Uses the queue from now on, if there is none yet.
    pub(super) fn use_queue(&self, queue: &Arc<UmrQueue>) {
        if self.queue().is_some() {
            return;
        }
        let queue = Arc::into_raw(Arc::clone(queue)).cast_mut();
        let order = (Ordering::AcqRel, Ordering::Relaxed);
        let place = &self.page().queue;
        if place
            .compare_exchange(ptr::null_mut(), queue, order.0, order.1)
            .is_err()
        {
            // SAFETY: from `Arc::into_raw` above, and not in the page.
            drop(unsafe { Arc::from_raw(queue) });
        }
    }
}

impl Clone for Quick {
    fn clone(&self) -> Self {
        self.page().holders.fetch_add(1, Ordering::Relaxed);
        Self(self.0)
    }
}

impl Drop for Quick {
    fn drop(&mut self) {
        // In a child the count is not one, so the page stays there, and so does the queue.
        if self.page().holders.fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        let queue = self.page().queue.load(Ordering::Acquire);
        if !queue.is_null() {
            // SAFETY: from `Arc::into_raw`, and no value has the page any more.
            drop(unsafe { Arc::from_raw(queue) });
        }
        let len = self.page().len as usize;
        // SAFETY: mapped by `new`, and no other value has it.
        unsafe { libc::munmap(self.0.as_ptr().cast(), len) };
    }
}

// Outside of the device's gate: the queue lives as long as this value. The lock under which it posts and
// polls is also held to tear it down, and then it refuses requests.
impl QuickPath for Quick {
    #[inline(always)]
    fn bind(&self, mkey: Mkey, region: Region) -> Option<Result<(), Box<ChainError>>> {
        let len = Form::stock_bytes(region)?;
        let queue = self.queue()?;
        match queue.bind(mkey, (region, len)) {
            Single::Done => Some(Ok(())),
            Single::Posted(first) => {
                let (addr, len) = (region.addr(), region.len());
                Some(queue.await_bind(first, mkey, addr, len, region.lkey()))
            }
            Single::Refused => None,
        }
    }

    #[inline(always)]
    fn invalidate(&self, mkey: Mkey) -> Option<Result<(), Box<ChainError>>> {
        let queue = self.queue()?;
        match queue.invalidate(mkey) {
            Single::Done => Some(Ok(())),
            Single::Posted(first) => Some(queue.await_invalidation(first, mkey)),
            Single::Refused => None,
        }
    }
}

/// Tells a process from its forked children.
#[derive(Debug)]
pub(super) struct ForkGuard {
    quick: Quick,
    parent: u32,
}

impl ForkGuard {
    /// A guard of the calling process.
    ///
    /// # Errors
    /// If the kernel does not map a page or is older than 4.14.
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            quick: Quick::new()?,
            parent: std::process::id(),
        })
    }

    /// The parent's id, if the calling process is a forked child of the guard's creator.
    #[inline]
    pub(super) fn parent(&self) -> Option<u32> {
        // SAFETY: the page is mapped as long as the guard lives. Volatile, because the kernel
        // changes it outside the language's memory model.
        let is_parent = unsafe { (&raw const (*self.quick.0.as_ptr()).is_parent).read_volatile() };
        (is_parent == 0).then_some(self.parent)
    }

    /// The queue for single requests.
    pub(super) fn quick(&self) -> &Quick {
        &self.quick
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_knows_that_it_is_one() {
        let guard = ForkGuard::new().expect("a page");
        assert_eq!(guard.parent(), None);
        // SAFETY: the child calls nothing but `_exit`.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let code = i32::from(guard.parent().is_none());
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(code) };
        }
        let mut status = 0;
        // SAFETY: waits for the child that was just made.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
        assert_eq!(status, 0, "the child took itself for the parent");
        assert_eq!(guard.parent(), None);
    }
}
