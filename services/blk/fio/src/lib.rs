//! Engine of fio, `libxgvmi-fio.so`: the service of `xgvmi-blk` reads and writes fio's own buffers.
//!
//! ```text
//! fio --name=job --ioengine=external:/usr/lib/.../xgvmi/libxgvmi-fio.so --service=127.0.0.1:7720 --rw=randwrite --bs=64k
//! ```

mod abi;
mod engine;
mod options;

use abi::{Engine, File, Job, Request};
use engine::Connected;
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use xgvmi_blk::client::{Io, Volume};

/// Prints a line. fio prints its own to the same place. Without standard error fio goes on: a panic would end it, because
/// some callers are called by C.
fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "xgvmi-fio: {text}");
}

/// What is known of a job.
#[derive(Debug, Default)]
struct Known {
    /// Its only file. fio has one for each job, also if the engine has none.
    file: usize,
    connected: Option<Arc<Connected>>,
}

/// Jobs by their address in fio, so that no more members of fio's structures are used. Those of a process that has forked
/// are those of its parent, which are not connected yet.
fn jobs() -> MutexGuard<'static, HashMap<usize, Known>> {
    static JOBS: OnceLock<Mutex<HashMap<usize, Known>>> = OnceLock::new();
    let jobs = JOBS.get_or_init(Mutex::default);
    jobs.lock().unwrap_or_else(PoisonError::into_inner)
}

fn connected(job: *mut Job) -> Option<Arc<Connected>> {
    jobs().get(&(job as usize))?.connected.clone()
}

/// A call of fio. After a panic, which prints its place, the call fails.
fn call<T>(failed: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(failed)
}

/// The engine, for fio's loader. Leaves `*engine` as it is if this fio is another one than the engine was made for.
///
/// # Safety
/// `engine` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn get_ioengine(engine: *mut *mut c_void) {
    static MADE: OnceLock<usize> = OnceLock::new();
    // SAFETY: a name; the result is checked.
    let version = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"fio_version_string".as_ptr()) };
    let version = version.cast::<c_char>();
    if version.is_null() {
        say("this program is no fio, or hides its version: use fio 3.33");
        return;
    }
    // SAFETY: each fio has its version there, as a string.
    let version = unsafe { CStr::from_ptr(version) };
    if version != abi::KNOWN {
        say(&format!(
            "this is {}; the engine serves {}, because fio changes its structures between versions",
            version.to_string_lossy(),
            abi::KNOWN.to_string_lossy()
        ));
        return;
    }
    let made = *MADE.get_or_init(|| Box::into_raw(Box::new(functions())) as usize);
    // SAFETY: the caller's promise. The engine is never freed, and only fio changes it.
    unsafe { engine.write(made as *mut c_void) };
}

fn functions() -> Engine {
    let mut engine = Engine::empty();
    engine.name = c"xgvmi".as_ptr();
    engine.version = abi::INTERFACE;
    engine.flags = abi::DISKLESS | abi::NO_EXTEND | abi::NO_DISK_STATISTICS | abi::NO_OFFLOAD;
    engine.init = Some(init);
    engine.queue = Some(queue);
    engine.wait = Some(wait);
    engine.take = Some(take);
    engine.cleanup = Some(cleanup);
    engine.open_file = Some(no_file);
    engine.close_file = Some(no_file);
    engine.invalidate = Some(no_file);
    engine.unlink_file = Some(no_file);
    engine.get_file_size = Some(file_size);
    engine.request_free = Some(request_free);
    // Cannot be cut: tens of bytes.
    engine.options_size = c_int::try_from(size_of::<options::Values>()).unwrap_or(c_int::MAX);
    engine.options = options::all();
    engine
}

unsafe extern "C" fn no_file(_: *mut Job, _: *mut File) -> c_int {
    0
}

/// fio asks before it forks: this process must not open the adapter.
unsafe extern "C" fn file_size(job: *mut Job, file: *mut File) -> c_int {
    call(libc::EIO, || {
        let known = jobs().entry(job as usize).or_default().file;
        if known != 0 && known != file as usize {
            say(
                "a job has one file, the volume: leave nrfiles at 1, and give at most one filename",
            );
            return libc::EINVAL;
        }
        // SAFETY: fio of the known version, as the loader has checked.
        let spec = match unsafe { options::spec(job) } {
            Ok(spec) => spec,
            Err(error) => {
                say(&error);
                return libc::EINVAL;
            }
        };
        match Volume::ask(&spec) {
            Ok(geometry) => {
                // SAFETY: fio's file, which it has passed to be changed.
                unsafe { (*file).size = geometry.size() };
                jobs().entry(job as usize).or_default().file = file as usize;
                0
            }
            Err(error) => {
                say(&error.to_string());
                engine::errno(&error)
            }
        }
    })
}

unsafe extern "C" fn init(job: *mut Job) -> c_int {
    call(libc::EIO, || {
        // SAFETY: fio of the known version, as the loader has checked.
        let spec = match unsafe { options::spec(job) } {
            Ok(spec) => spec,
            Err(error) => {
                say(&error);
                return libc::EINVAL;
            }
        };
        match Connected::new(&spec) {
            Ok(connected) => {
                let mut jobs = jobs();
                jobs.entry(job as usize).or_default().connected = Some(Arc::new(connected));
                0
            }
            Err(error) => {
                say(&error.to_string());
                engine::errno(&error)
            }
        }
    })
}

unsafe extern "C" fn cleanup(job: *mut Job) {
    call((), || {
        jobs().remove(&(job as usize));
    });
}

unsafe extern "C" fn queue(job: *mut Job, request: *mut Request) -> c_int {
    // SAFETY: fio's request, which belongs to the engine until it returns it.
    let request = unsafe { &mut *request };
    let name = std::ptr::from_mut(request) as usize;
    let handed = call(Err(libc::EIO), || {
        let connected = connected(job).ok_or(libc::ENOTCONN)?;
        let known = jobs().get(&(job as usize)).map_or(0, |known| known.file);
        if request.file as usize != known {
            say("this fio keeps requests otherwise than fio 3.33");
            return Err(libc::EINVAL);
        }
        let io = io(request).ok_or(libc::EINVAL)?;
        // SAFETY: fio neither uses nor unmaps the memory before it has taken the request back, or has announced its end.
        unsafe { connected.hand(name, io) }
    });
    match handed {
        Ok(()) => abi::QUEUED,
        Err(errno) => {
            request.error = errno.unsigned_abs();
            abi::COMPLETED
        }
    }
}

fn io(request: &Request) -> Option<Io> {
    let (offset, memory) = (request.offset, request.memory.cast::<u8>());
    let length = usize::try_from(request.length).ok()?;
    match request.kind {
        abi::READ => Some(Io::Read {
            offset,
            memory,
            length,
        }),
        abi::WRITE => Some(Io::Write {
            offset,
            memory,
            length,
        }),
        abi::TRIM => Some(Io::Trim { offset, length }),
        abi::SYNC | abi::DATASYNC => Some(Io::Flush),
        _ => None,
    }
}

unsafe extern "C" fn wait(
    job: *mut Job,
    least: c_uint,
    most: c_uint,
    limit: *const libc::timespec,
) -> c_int {
    call(-libc::EIO, || {
        let Some(connected) = connected(job) else {
            return -libc::ENOTCONN;
        };
        // SAFETY: null, or fio's time.
        let limit = unsafe { limit.as_ref() }.map(|limit| {
            let seconds = u64::try_from(limit.tv_sec).unwrap_or(0);
            Duration::new(seconds, u32::try_from(limit.tv_nsec).unwrap_or(0))
        });
        let count = connected.wait(least as usize, most as usize, limit);
        // Cannot be cut: not more than `most`.
        c_int::try_from(count).unwrap_or(c_int::MAX)
    })
}

unsafe extern "C" fn take(job: *mut Job, index: c_int) -> *mut Request {
    call(std::ptr::null_mut(), || {
        let index = usize::try_from(index).ok();
        let taken = index.and_then(|index| connected(job)?.take(index));
        let Some((name, errno)) = taken else {
            return std::ptr::null_mut();
        };
        let request = name as *mut Request;
        // SAFETY: fio's request, which the engine now returns.
        unsafe {
            (*request).error = errno.unsigned_abs();
            (*request).left = 0;
        }
        request
    })
}

/// fio unmaps the memory of a request next.
unsafe extern "C" fn request_free(job: *mut Job, request: *mut Request) {
    call((), || {
        if let Some(connected) = connected(job) {
            connected.forget(request as usize);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_no_fio_gets_no_engine() {
        let mut engine = std::ptr::null_mut();
        // SAFETY: a pointer that can be written.
        unsafe { get_ioengine(&raw mut engine) };
        assert!(engine.is_null());
    }
}
