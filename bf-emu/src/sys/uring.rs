//! A ring of io_uring whose registered buffers are pinned by the kernel (`linux/io_uring.h`).
//!
//! A buffer keeps its pages when its owner unmaps them. A transfer moves bytes between them and a pipe. Any process that
//! has the ring's file may make one; the caller takes care that only one runs at a time. No function allocates or locks,
//! so the signal handler may use all of them.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, Ordering};

use super::{Errno, Result, check, close, map_shared, to_fd, unmap};

const REGISTER_BUFFERS2: u32 = 15;
const REGISTER_BUFFERS_UPDATE: u32 = 16;
const RSRC_REGISTER_SPARSE: u32 = 1;
const ENTER_GETEVENTS: u32 = 1;
const FEAT_SINGLE_MMAP: u32 = 1;
const OFFSET_SQES: u64 = 0x1000_0000;
const OP_READ_FIXED: u8 = 4;
const OP_WRITE_FIXED: u8 = 5;

const PAGE: u64 = 4096;

/// `struct io_sqring_offsets` and `struct io_cqring_offsets`, whose last words differ.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Offsets {
    head: u32,
    tail: u32,
    mask: u32,
    entries: u32,
    /// Flags, or overflow.
    fifth: u32,
    /// Dropped, or the entries.
    sixth: u32,
    /// The array, or flags.
    seventh: u32,
    reserved: [u32; 3],
}

/// `struct io_uring_params`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Params {
    sq_entries: u32,
    cq_entries: u32,
    flags: u32,
    thread: [u32; 2],
    features: u32,
    wq_fd: u32,
    reserved: [u32; 3],
    sq: Offsets,
    cq: Offsets,
}

/// `struct io_uring_rsrc_register`, and `struct io_uring_rsrc_update2` with other names.
#[derive(Default)]
#[repr(C)]
struct Rsrc {
    number: u32,
    flags: u32,
    reserved: u64,
    data: u64,
    tags: u64,
}

#[derive(Default)]
#[repr(C)]
struct Update {
    offset: u32,
    reserved: u32,
    data: u64,
    tags: u64,
    number: u32,
    reserved2: u32,
}

/// `struct io_uring_sqe`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Request {
    opcode: u8,
    flags: u8,
    priority: u16,
    file: i32,
    offset: u64,
    address: u64,
    length: u32,
    op_flags: u32,
    user_data: u64,
    buffer: u16,
    personality: u16,
    reserved: [u32; 5],
}

/// `struct io_uring_cqe`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Completion {
    user_data: u64,
    result: i32,
    flags: u32,
}

/// Creates a ring with space for so many buffers. Returns its file, which closes at an exec.
///
/// # Errors
/// The kernel's error: it has no such rings, or may not give one to this process.
pub fn create(buffers: u32) -> Result<RawFd> {
    let (file, _) = set_up()?;
    let space = Rsrc {
        number: buffers,
        flags: RSRC_REGISTER_SPARSE,
        ..Rsrc::default()
    };
    let bytes = size_of::<Rsrc>() as u64;
    // SAFETY: the structure is the kernel's and outlives the call.
    let done = unsafe { register(file, REGISTER_BUFFERS2, (&raw const space).addr(), bytes) };
    match done {
        Ok(_) => Ok(file),
        Err(error) => {
            close(file);
            Err(error)
        }
    }
}

fn set_up() -> Result<(RawFd, Params)> {
    let mut params = Params::default();
    // SAFETY: the kernel reads and writes one structure, which outlives the call.
    let made = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1_u64, &raw mut params) };
    let file = to_fd(check(made)?);
    match params.features & FEAT_SINGLE_MMAP {
        0 => {
            close(file);
            Err(Errno(libc::ENOSYS))
        }
        _ => Ok((file, params)),
    }
}

/// # Safety
/// The argument is the address of what the operation reads.
unsafe fn register(file: RawFd, op: u32, argument: usize, number: u64) -> Result<usize> {
    let (file, op) = (i64::from(file), u64::from(op));
    // SAFETY: the caller's promise.
    check(unsafe { libc::syscall(libc::SYS_io_uring_register, file, op, argument, number) })
}

/// Pins a range of this process as buffer `slot`, or releases the slot if the length is 0.
///
/// # Errors
/// The kernel's error: a page is missing or not writable, or the limit of locked memory is reached.
pub fn pin(file: RawFd, slot: u32, start: u64, length: u64) -> Result<()> {
    let range = [start, length];
    let no_tag = 0_u64;
    let update = Update {
        offset: slot,
        data: (&raw const range).addr() as u64,
        tags: (&raw const no_tag).addr() as u64,
        number: 1,
        ..Update::default()
    };
    let bytes = size_of::<Update>() as u64;
    // SAFETY: the structure is the kernel's. It and the arrays of one element outlive the call.
    unsafe {
        register(
            file,
            REGISTER_BUFFERS_UPDATE,
            (&raw const update).addr(),
            bytes,
        )
    }
    .map(|_| ())
}

/// A mapped ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ring {
    /// Its file.
    pub file: RawFd,
    counters: u64,
    requests: u64,
    bytes: u64,
    /// Places of the head and tail of requests, and of completions; and of the entries of completions.
    at: [u32; 5],
}

impl Ring {
    /// Maps the ring of a file from [`create`], of any process. The layout is the same for all of them.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn map(file: RawFd) -> Result<Self> {
        let (model, params) = set_up()?;
        close(model);
        let completions_end = u64::from(params.cq.sixth) + 16 * u64::from(params.cq_entries);
        let array_end = u64::from(params.sq.seventh) + 4;
        let bytes = completions_end.max(array_end).next_multiple_of(PAGE);
        let counters = map_shared(file, 0, bytes)?;
        match map_shared(file, OFFSET_SQES, PAGE) {
            Ok(requests) => Ok(Self {
                file,
                counters,
                requests,
                bytes,
                at: [
                    params.sq.head,
                    params.sq.tail,
                    params.cq.head,
                    params.cq.tail,
                    params.cq.sixth,
                ],
            }),
            Err(error) => {
                unmap(counters, bytes);
                Err(error)
            }
        }
    }

    /// Removes the mapping and closes the file.
    pub fn close(self) {
        unmap(self.counters, self.bytes);
        unmap(self.requests, PAGE);
        close(self.file);
    }

    fn word(&self, place: u32) -> &AtomicU32 {
        let address = self.counters + u64::from(place);
        let address = usize::try_from(address).unwrap_or_default();
        // SAFETY: the word is in the mapping, which outlives this structure, and aligned. The kernel changes it by atomic
        // operations too.
        unsafe { AtomicU32::from_ptr(std::ptr::with_exposed_provenance_mut(address)) }
    }

    /// Moves bytes from a pipe into buffer `slot`, or out of it. `address` is the one at which the range was pinned.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn transfer(
        &self,
        slot: u16,
        (address, length): (u64, u32),
        (pipe, is_in): (RawFd, bool),
    ) -> Result<usize> {
        let [sq_head, sq_tail, cq_head, cq_tail, entries] = self.at;
        // A process that was killed may have left a request or an answer. Its request has never begun.
        let first = self.word(sq_head).load(Ordering::Acquire);
        self.word(sq_tail).store(first, Ordering::Relaxed);
        let answer = self.word(cq_tail).load(Ordering::Acquire);
        self.word(cq_head).store(answer, Ordering::Release);
        let request = Request {
            opcode: if is_in { OP_READ_FIXED } else { OP_WRITE_FIXED },
            file: pipe,
            offset: u64::MAX,
            address,
            length,
            buffer: slot,
            ..Request::default()
        };
        let place = usize::try_from(self.requests).unwrap_or_default();
        // SAFETY: the first place of the mapping, which nobody else uses now: see above.
        unsafe {
            std::ptr::with_exposed_provenance_mut::<Request>(place).write_volatile(request);
        }
        self.word(sq_tail)
            .store(first.wrapping_add(1), Ordering::Release);
        loop {
            let waiting = self.word(sq_head).load(Ordering::Acquire) == first;
            let entered = self.enter(u64::from(waiting));
            if self.word(cq_tail).load(Ordering::Acquire) != answer {
                break;
            }
            match entered {
                Ok(_) | Err(Errno(libc::EINTR)) => {}
                Err(error) => return Err(error),
            }
        }
        // The ring has two entries, whose index is the lowest bit of the counter.
        let place = self.counters + u64::from(entries) + 16 * u64::from(answer & 1);
        let place = usize::try_from(place).unwrap_or_default();
        // SAFETY: an entry of the mapping, which the kernel wrote before the counter.
        let found =
            unsafe { std::ptr::with_exposed_provenance::<Completion>(place).read_volatile() };
        self.word(cq_head)
            .store(answer.wrapping_add(1), Ordering::Release);
        usize::try_from(found.result).map_err(|_| Errno(-found.result))
    }

    fn enter(&self, requests: u64) -> Result<usize> {
        let (wanted, flags, none) = (1_u64, u64::from(ENTER_GETEVENTS), 0_u64);
        let file = i64::from(self.file);
        // SAFETY: the call reads the ring only; there is no signal mask.
        check(unsafe {
            libc::syscall(
                libc::SYS_io_uring_enter,
                file,
                requests,
                wanted,
                flags,
                none,
                none,
            )
        })
    }
}

/// A copy of a file of another process, which closes at an exec.
///
/// # Errors
/// The kernel's error: the process has ended, or may not be looked into.
pub fn file_of(process: i32, file: RawFd) -> Result<RawFd> {
    let (process, file, flags) = (i64::from(process), i64::from(file), 0_u64);
    // SAFETY: the calls take numbers only.
    let handle = check(unsafe { libc::syscall(libc::SYS_pidfd_open, process, flags) })?;
    // SAFETY: as above.
    let copy = check(unsafe { libc::syscall(libc::SYS_pidfd_getfd, handle, file, flags) });
    close(to_fd(handle));
    copy.map(to_fd)
}
