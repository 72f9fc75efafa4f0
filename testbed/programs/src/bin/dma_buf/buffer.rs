//! A dma-buf of ordinary memory, and its registration.

use std::error::Error;
use std::ffi::{c_int, c_ulong, c_void};
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::ptr::{self, NonNull};

use libloading::Library;
use mlx5dv_sys::{
    IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE, ibv_mr, ibv_pd,
};
use xgvmi_pool::{Lkey, Region, VirtAddr};

use crate::verbs::Context;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// The kernel or the device does not support dma-buf.
#[derive(Debug)]
pub(crate) struct Unavailable(String);

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for Unavailable {}

/// `struct udmabuf_create` (`linux/udmabuf.h`).
#[repr(C)]
struct UdmabufCreate {
    memfd: u32,
    flags: u32,
    offset: u64,
    size: u64,
}

/// `UDMABUF_CREATE`, `_IOW('u', 0x42, struct udmabuf_create)`.
const UDMABUF_CREATE: c_ulong = 0x4018_7542;

/// Mapped memory with its dma-buf.
pub(crate) struct Buffer {
    mapped: NonNull<u8>,
    len: usize,
    dma_buf: OwnedFd,
}

impl Buffer {
    /// New memory of `len` bytes, which must be whole pages.
    pub(crate) fn new(len: usize) -> Outcome<Self> {
        const DEVICE: &str = "/dev/udmabuf";
        let udmabuf = File::options().read(true).write(true).open(DEVICE);
        let udmabuf = udmabuf.map_err(|error| Unavailable(format!("{DEVICE}: {error}")))?;
        // SAFETY: the name is a string; the call creates a descriptor or fails.
        let memfd = unsafe { libc::memfd_create(c"dma_buf".as_ptr(), libc::MFD_ALLOW_SEALING) };
        if memfd < 0 {
            return Err(last("memfd_create"));
        }
        // SAFETY: just created, with no other owner.
        let memory = unsafe { OwnedFd::from_raw_fd(memfd) };
        let fd = memory.as_raw_fd();
        // SAFETY: sets the length of the descriptor's memory.
        if unsafe { libc::ftruncate(fd, i64::try_from(len)?) } != 0 {
            return Err(last("ftruncate"));
        }
        // SAFETY: the kernel requires that the memory cannot shrink any more.
        if unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) } != 0 {
            return Err(last("F_SEAL_SHRINK"));
        }
        let create = UdmabufCreate {
            memfd: u32::try_from(fd)?,
            flags: 0,
            offset: 0,
            size: u64::try_from(len)?,
        };
        // SAFETY: the request reads this structure and creates a descriptor or fails.
        let made = unsafe { libc::ioctl(udmabuf.as_raw_fd(), UDMABUF_CREATE, &raw const create) };
        if made < 0 {
            return Err(last("UDMABUF_CREATE"));
        }
        // SAFETY: just created, with no other owner.
        let dma_buf = unsafe { OwnedFd::from_raw_fd(made) };
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses affects no other memory.
        let mapped =
            unsafe { libc::mmap(ptr::null_mut(), len, protection, libc::MAP_SHARED, fd, 0) };
        if mapped == libc::MAP_FAILED {
            return Err(last("mmap"));
        }
        let mapped = NonNull::new(mapped.cast()).ok_or("a mapping at zero")?;
        Ok(Self {
            mapped,
            len,
            dma_buf,
        })
    }

    /// Writes each byte as a function of its offset.
    pub(crate) fn fill(&mut self, byte: impl Fn(usize) -> u8) {
        // SAFETY: mapped as long as this value lives, and no request uses it while it is borrowed.
        let bytes = unsafe { std::slice::from_raw_parts_mut(self.mapped.as_ptr(), self.len) };
        for (at, place) in bytes.iter_mut().enumerate() {
            *place = byte(at);
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: mapped as long as this value lives; the adapter only reads it.
        unsafe { std::slice::from_raw_parts(self.mapped.as_ptr(), self.len) }
    }

    /// Registers the dma-buf, under the addresses of the mapping.
    pub(crate) fn register(&self, context: &Context) -> Outcome<Registered> {
        type RegDmabufMr =
            unsafe extern "C" fn(*mut ibv_pd, u64, usize, u64, c_int, c_int) -> *mut ibv_mr;
        // SAFETY: the library of the context; its constructors have already run.
        let library = unsafe { Library::new("libibverbs.so.1") }?;
        // SAFETY: the type is that of `infiniband/verbs.h`.
        let register = unsafe { library.get::<RegDmabufMr>(b"ibv_reg_dmabuf_mr\0") };
        let register = *register.map_err(|error| Unavailable(error.to_string()))?;
        let access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
        let addr = self.mapped.as_ptr() as u64;
        let fd = self.dma_buf.as_raw_fd();
        // SAFETY: the domain is live, and the descriptor is a dma-buf of this length.
        let mr = unsafe {
            register(
                context.domain().as_ptr(),
                0,
                self.len,
                addr,
                fd,
                c_int::try_from(access)?,
            )
        };
        let Some(mr) = NonNull::new(mr) else {
            let error = io::Error::last_os_error();
            let what = format!("ibv_reg_dmabuf_mr: {error}");
            return match error.raw_os_error() {
                Some(libc::EOPNOTSUPP | libc::ENOTTY | libc::EPROTONOSUPPORT) => {
                    Err(Unavailable(what).into())
                }
                _ => Err(what.into()),
            };
        };
        // SAFETY: just registered.
        let lkey = Lkey::from_raw(unsafe { (*mr.as_ptr()).lkey });
        let region = Region::new(VirtAddr::new(addr), u64::try_from(self.len)?, lkey)?;
        Ok(Registered { region })
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and no longer borrowed.
        unsafe { libc::munmap(self.mapped.as_ptr().cast::<c_void>(), self.len) };
    }
}

/// The registration. It ends with the context.
pub(crate) struct Registered {
    region: Region,
}

impl Registered {
    pub(crate) fn region(&self) -> Region {
        self.region
    }
}

fn last(call: &str) -> Box<dyn Error> {
    format!("{call}: {}", io::Error::last_os_error()).into()
}
