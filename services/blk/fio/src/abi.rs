//! What fio and an engine share. fio promises nothing between its versions: each has a number of its engine interface, and
//! its structures change without one. So this engine serves one version ([`KNOWN`]) and refuses all others.
//!
//! Few members are used. The rest of each structure is padding, at offsets of that version for 64-bit Linux.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

/// The version whose layouts follow.
pub(crate) const KNOWN: &CStr = c"fio-3.33";
/// Number of its engine interface, which fio checks as well.
pub(crate) const INTERFACE: c_int = 31;

/// Engine flags: no file belongs to a job; a job cannot grow it; a job's requests leave its own thread.
pub(crate) const DISKLESS: c_int = 1 << 2;
pub(crate) const NO_EXTEND: c_int = 1 << 3;
pub(crate) const NO_DISK_STATISTICS: c_int = 1 << 4;
pub(crate) const NO_OFFLOAD: c_int = 1 << 15;

/// What a request is.
pub(crate) const READ: c_int = 0;
pub(crate) const WRITE: c_int = 1;
pub(crate) const TRIM: c_int = 2;
pub(crate) const SYNC: c_int = 3;
pub(crate) const DATASYNC: c_int = 4;

/// What became of a request.
pub(crate) const COMPLETED: c_int = 0;
pub(crate) const QUEUED: c_int = 1;

/// Kinds of options.
pub(crate) const STRING: c_int = 6;
pub(crate) const INTEGER: c_int = 8;
/// Category of an engine's options, and a group of it.
pub(crate) const CATEGORY: u64 = 1 << 6;
pub(crate) const GROUP: u64 = 1 << 37;

/// A job. Only [`Job::options`] reads it.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Job {
    _opaque: [u8; 4216],
    options: *mut c_void,
}

impl Job {
    /// The values of the engine's options.
    ///
    /// # Safety
    /// `job` comes from fio of the known version.
    pub(crate) unsafe fn options(job: *const Self) -> *mut c_void {
        // SAFETY: the caller's promise; the member is set before an engine is called.
        unsafe { (&raw const (*job).options).read() }
    }
}

/// A file of a job.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct File {
    _before: [u8; 48],
    pub(crate) size: u64,
}

/// A request.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Request {
    _before: [u8; 32],
    pub(crate) file: *mut File,
    _flags: c_uint,
    pub(crate) kind: c_int,
    _accounting: [u8; 24],
    pub(crate) offset: u64,
    _verify: [u8; 24],
    pub(crate) memory: *mut c_void,
    pub(crate) length: u64,
    _state: [u8; 16],
    pub(crate) left: u64,
    pub(crate) error: c_uint,
}

/// A value that an option may have.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Value([usize; 5]);

/// An option.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Choice {
    pub(crate) name: *const c_char,
    pub(crate) title: *const c_char,
    alias: *const c_char,
    pub(crate) kind: c_int,
    /// Where fio stores the value; 0 if a function does.
    pub(crate) offset: c_uint,
    offsets: [c_uint; 5],
    maximum: u64,
    minimum: c_int,
    float: [f64; 2],
    interval: c_uint,
    longest: c_uint,
    negated: c_int,
    priority: c_int,
    pub(crate) store: Option<unsafe extern "C" fn(*mut c_void, *const c_char) -> c_int>,
    pub(crate) help: *const c_char,
    pub(crate) default: *const c_char,
    values: [Value; 32],
    parent: *const c_char,
    hidden: [c_int; 2],
    inverse: [*const c_void; 2],
    verify: *const c_void,
    profile: [*const c_void; 2],
    pub(crate) category: u64,
    pub(crate) group: u64,
    interface: *mut c_void,
    flags: [c_int; 5],
}

/// The functions of an engine.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Engine {
    list: [*mut c_void; 2],
    pub(crate) name: *const c_char,
    pub(crate) version: c_int,
    pub(crate) flags: c_int,
    library: *mut c_void,
    setup: Option<unsafe extern "C" fn(*mut Job) -> c_int>,
    pub(crate) init: Option<unsafe extern "C" fn(*mut Job) -> c_int>,
    post_init: Option<unsafe extern "C" fn(*mut Job) -> c_int>,
    prepare: Option<unsafe extern "C" fn(*mut Job, *mut Request) -> c_int>,
    pub(crate) queue: Option<unsafe extern "C" fn(*mut Job, *mut Request) -> c_int>,
    commit: Option<unsafe extern "C" fn(*mut Job) -> c_int>,
    pub(crate) wait:
        Option<unsafe extern "C" fn(*mut Job, c_uint, c_uint, *const libc::timespec) -> c_int>,
    pub(crate) take: Option<unsafe extern "C" fn(*mut Job, c_int) -> *mut Request>,
    details: *const c_void,
    cancel: *const c_void,
    pub(crate) cleanup: Option<unsafe extern "C" fn(*mut Job)>,
    pub(crate) open_file: Option<unsafe extern "C" fn(*mut Job, *mut File) -> c_int>,
    pub(crate) close_file: Option<unsafe extern "C" fn(*mut Job, *mut File) -> c_int>,
    pub(crate) invalidate: Option<unsafe extern "C" fn(*mut Job, *mut File) -> c_int>,
    pub(crate) unlink_file: Option<unsafe extern "C" fn(*mut Job, *mut File) -> c_int>,
    pub(crate) get_file_size: Option<unsafe extern "C" fn(*mut Job, *mut File) -> c_int>,
    populate: *const c_void,
    terminate: *const c_void,
    memory: [*const c_void; 2],
    request_init: *const c_void,
    pub(crate) request_free: Option<unsafe extern "C" fn(*mut Job, *mut Request)>,
    zones: [*const c_void; 4],
    pub(crate) options_size: c_int,
    pub(crate) options: *mut Choice,
}

/// All members are zero or none.
macro_rules! zeroed {
    ($type:ty) => {
        impl $type {
            /// An empty one.
            pub(crate) const fn empty() -> Self {
                // SAFETY: all members are numbers, pointers that may be null, and functions that may be absent.
                unsafe { std::mem::zeroed() }
            }
        }
    };
}
zeroed!(Choice);
zeroed!(Engine);

const _: () = {
    assert!(std::mem::offset_of!(Job, options) == 4216);
    assert!(std::mem::offset_of!(File, size) == 48);
    assert!(std::mem::offset_of!(Request, file) == 32);
    assert!(std::mem::offset_of!(Request, kind) == 44);
    assert!(std::mem::offset_of!(Request, offset) == 72);
    assert!(std::mem::offset_of!(Request, memory) == 104);
    assert!(std::mem::offset_of!(Request, length) == 112);
    assert!(std::mem::offset_of!(Request, left) == 136);
    assert!(std::mem::offset_of!(Request, error) == 144);
    assert!(std::mem::offset_of!(Choice, offset) == 28);
    assert!(std::mem::offset_of!(Choice, longest) == 92);
    assert!(std::mem::offset_of!(Choice, store) == 104);
    assert!(std::mem::offset_of!(Choice, values) == 128);
    assert!(std::mem::offset_of!(Choice, category) == 1464);
    assert!(size_of::<Choice>() == 1512);
    assert!(std::mem::offset_of!(Engine, name) == 16);
    assert!(std::mem::offset_of!(Engine, queue) == 72);
    assert!(std::mem::offset_of!(Engine, options_size) == 248);
    assert!(size_of::<Engine>() == 264);
};
