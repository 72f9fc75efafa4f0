//! The C library of a block volume, `libxgvmi_blk.so.0`. `include/xgvmi_blk.h` documents its functions.

pub mod queue;

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use xgvmi_blk::disk::Disk;
use xgvmi_blk::operate::{OpenArgs, Opener, initiator_secret};
use xgvmi_blk::{BlkError, Volume, client};

/// Most targets of a volume.
const TARGETS_MAX: usize = xgvmi_blk::geometry::TARGETS_MAX;

/// A volume that is open.
#[derive(Debug)]
pub struct XgvmiBlk {
    volume: Kind,
    /// Its queues that are open.
    queues: Arc<AtomicUsize>,
}

/// Who holds the targets.
#[derive(Debug)]
enum Kind {
    /// This process.
    Here {
        volume: Arc<Volume>,
        opener: Box<Opener>,
    },
    /// A service on this host's DPU.
    Behind(Arc<client::Volume>),
}

impl XgvmiBlk {
    fn disk(&self) -> &dyn Disk {
        match &self.volume {
            Kind::Here { volume, .. } => volume.as_ref(),
            Kind::Behind(volume) => volume.as_ref(),
        }
    }

    fn shared(&self) -> Arc<dyn Disk> {
        match &self.volume {
            Kind::Here { volume, .. } => Arc::clone(volume) as Arc<dyn Disk>,
            Kind::Behind(volume) => Arc::clone(volume) as Arc<dyn Disk>,
        }
    }
}

/// How targets are opened.
#[repr(C)]
#[derive(Debug)]
pub struct XgvmiBlkOptions {
    /// Bytes of this structure in the caller's version.
    pub size: usize,
    /// File with the secret.
    pub secret_file: *const c_char,
    /// Longest wait for a target's answer.
    pub target_timeout_ms: u64,
    /// Most bytes of data in each target file.
    pub capacity: u64,
    /// File with the key of an encrypted volume.
    pub key_file: *const c_char,
}

/// How a service is reached.
#[repr(C)]
#[derive(Debug)]
pub struct XgvmiBlkConnectOptions {
    /// Bytes of this structure in the caller's version.
    pub size: usize,
    /// File with the secret of initiators.
    pub secret_file: *const c_char,
    /// RDMA device of the host.
    pub device: *const c_char,
    /// Longest wait for a service that is gone.
    pub reconnect_ms: u64,
    /// Name by which the service knows the caller.
    pub identity: *const c_char,
    /// Name of the volume.
    pub volume: *const c_char,
}

/// Longest `reconnect_ms`.
const RECONNECT_MAX_MS: u64 = 600_000;

/// A number of errno, and a text.
struct Failure {
    errno: c_int,
    text: String,
}

impl Failure {
    fn invalid(text: &str) -> Self {
        Self {
            errno: libc::EINVAL,
            text: text.to_owned(),
        }
    }

    /// A panic.
    fn defect() -> Self {
        Self {
            errno: libc::EIO,
            text: "a defect of the library; standard error has its place".to_owned(),
        }
    }
}

impl From<BlkError> for Failure {
    fn from(error: BlkError) -> Self {
        let errno = match &error {
            error if error.is_full() => libc::ENOSPC,
            BlkError::Geometry(_)
            | BlkError::Disagree { .. }
            | BlkError::OtherVolume { .. }
            | BlkError::Argument(_)
            | BlkError::NotATarget { .. } => libc::EINVAL,
            BlkError::Disconnected { .. } => libc::ENOTCONN,
            BlkError::Denied { .. } => libc::EPERM,
            error if error.is_used_elsewhere() => libc::EBUSY,
            _ => libc::EIO,
        };
        Self {
            errno,
            text: error.to_string(),
        }
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Runs a call. Its error becomes the thread's last one.
fn call(body: impl FnOnce() -> Result<(), Failure>) -> c_int {
    // After a panic the volume's tables are whole: each entry is replaced at once.
    match catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| Err(Failure::defect())) {
        Ok(()) => 0,
        Err(failure) => {
            let text = CString::new(failure.text.replace('\0', " ")).unwrap_or_default();
            // A thread that ends has no text any more.
            let _ = LAST.try_with(|last| last.replace(text));
            -failure.errno
        }
    }
}

/// The volume behind a pointer of the caller.
///
/// # Safety
/// `volume` is null, or comes from `xgvmi_blk_open` or `xgvmi_blk_connect` and is not closed.
unsafe fn open_volume<'a>(volume: *const XgvmiBlk) -> Result<&'a XgvmiBlk, Failure> {
    // SAFETY: the caller's promise.
    unsafe { volume.as_ref() }.ok_or_else(|| Failure::invalid("the volume is NULL"))
}

/// A text of the caller.
///
/// # Safety
/// `text` is null or a string that ends with a zero byte.
unsafe fn text(text: *const c_char, what: &str) -> Result<String, Failure> {
    if text.is_null() {
        return Err(Failure::invalid(&format!("{what} is NULL")));
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(text) };
    let text = text.to_str();
    Ok(text
        .map_err(|_| Failure::invalid(&format!("{what} is no UTF-8")))?
        .to_owned())
}

/// Largest structure of options that a version may have.
const OPTIONS_MAX: usize = 4096;

/// Options of a caller. All members are integers and pointers, which may be zero.
///
/// # Safety
/// All bytes zero are a valid value, and the first member is the size of the structure in the caller's version. Versions
/// only add members, each of a pointer's size, at the end.
unsafe trait Options: Sized {
    /// Name of the structure in C.
    const NAME: &'static str;
}

// SAFETY: a size, two pointers and two numbers of 64 bits.
unsafe impl Options for XgvmiBlkOptions {
    const NAME: &'static str = "xgvmi_blk_options";
}

// SAFETY: a size, four pointers and a number of 64 bits.
unsafe impl Options for XgvmiBlkConnectOptions {
    const NAME: &'static str = "xgvmi_blk_connect_options";
}

/// The caller's options; nothing for null. Members that the caller's version does not have are zero. Members that this
/// version does not have must be zero.
///
/// # Safety
/// `options` is null, or a structure whose first member is its size in the caller's version.
unsafe fn sized<T: Options>(options: *const T) -> Result<Option<T>, Failure> {
    if options.is_null() {
        return Ok(None);
    }
    // SAFETY: the first member, which exists in each version.
    let size = unsafe { options.cast::<usize>().read() };
    let has_members = size >= size_of::<usize>() && size.is_multiple_of(size_of::<usize>());
    if !has_members || size > OPTIONS_MAX {
        return Err(Failure::invalid(&format!(
            "options.size is {size}: set it to sizeof(struct {})",
            T::NAME
        )));
    }
    // SAFETY: the caller promises `size` bytes.
    let bytes = unsafe { std::slice::from_raw_parts(options.cast::<u8>(), size) };
    let known = size.min(size_of::<T>());
    if bytes[known..].iter().any(|byte| *byte != 0) {
        return Err(Failure::invalid(&format!(
            "options has members that library {} does not know: leave them zero, or install the library of the header",
            env!("CARGO_PKG_VERSION")
        )));
    }
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: `known` bytes of both, which do not overlap: one is the caller's, the other one is new.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), value.as_mut_ptr().cast(), known) };
    // SAFETY: whole members of the caller, and zero bytes, which the trait allows.
    Ok(Some(unsafe { value.assume_init() }))
}

/// Stores a volume that `open` returns.
///
/// # Safety
/// `volume` is null or writable.
unsafe fn new_volume(
    volume: *mut *mut XgvmiBlk,
    open: impl FnOnce() -> Result<Kind, Failure>,
) -> c_int {
    call(|| {
        if volume.is_null() {
            return Err(Failure::invalid("there is no place for the volume"));
        }
        // SAFETY: writable, which the caller promises.
        unsafe { volume.write(std::ptr::null_mut()) };
        let new = Box::new(XgvmiBlk {
            volume: open()?,
            queues: Arc::default(),
        });
        // SAFETY: as above.
        unsafe { volume.write(Box::into_raw(new)) };
        Ok(())
    })
}

/// The volume of a transfer; nothing if the transfer has no bytes.
///
/// # Safety
/// As [`open_volume`].
unsafe fn transfer<'a>(
    volume: *const XgvmiBlk,
    (offset, bytes, length): (u64, *const c_void, usize),
) -> Result<Option<&'a dyn Disk>, Failure> {
    // SAFETY: the caller's promise.
    let disk = unsafe { open_volume(volume) }?.disk();
    let checked = disk.geometry().check(offset, length as u64);
    checked.map_err(BlkError::from)?;
    if length == 0 {
        return Ok(None);
    }
    if bytes.is_null() {
        return Err(Failure::invalid("the buffer is NULL"));
    }
    Ok(Some(disk))
}

/// # Safety
/// As [`xgvmi_blk_open`].
unsafe fn arguments(
    targets: *const *const c_char,
    count: usize,
    options: *const XgvmiBlkOptions,
) -> Result<(Vec<String>, OpenArgs), Failure> {
    if targets.is_null() || !(1..=TARGETS_MAX).contains(&count) {
        return Err(Failure::invalid("give one to eleven targets"));
    }
    // SAFETY: `count` pointers, which the caller promises.
    let targets = unsafe { std::slice::from_raw_parts(targets, count) };
    let each = targets.iter().map(|target| {
        // SAFETY: the caller promises strings.
        unsafe { text(*target, "a target") }
    });
    let targets = each.collect::<Result<Vec<_>, _>>()?;
    let mut args = OpenArgs::default();
    // SAFETY: the caller's promise.
    if let Some(options) = unsafe { sized(options) }? {
        if options.target_timeout_ms != 0 {
            let limit = Duration::from_millis(options.target_timeout_ms);
            args = OpenArgs::with_target_timeout(limit)
                .map_err(|error| Failure::invalid(&format!("{error:#}")))?;
        }
        if !options.secret_file.is_null() {
            // SAFETY: the caller promises a string.
            let path = unsafe { text(options.secret_file, "options.secret_file") }?;
            args.secret_file = Some(PathBuf::from(path));
        }
        if !options.key_file.is_null() {
            // SAFETY: the caller promises a string.
            let path = unsafe { text(options.key_file, "options.key_file") }?;
            args.key_file = Some(PathBuf::from(path));
        }
        args.capacity = Some(options.capacity).filter(|size| *size != 0);
    }
    Ok((targets, args))
}

/// Opens a volume.
///
/// # Safety
/// `targets` has `count` strings, `options` is null or a structure, `volume` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xgvmi_blk_open(
    targets: *const *const c_char,
    count: usize,
    options: *const XgvmiBlkOptions,
    volume: *mut *mut XgvmiBlk,
) -> c_int {
    let open = || {
        // SAFETY: the caller's promise.
        let (targets, args) = unsafe { arguments(targets, count, options) }?;
        let opener = Opener::new(&targets, &args);
        let opener = opener.map_err(|error| Failure::invalid(&format!("{error:#}")))?;
        Ok(Kind::Here {
            volume: Arc::new(opener.open_volume()?),
            opener: Box::new(opener),
        })
    };
    // SAFETY: the caller's promise.
    unsafe { new_volume(volume, open) }
}

/// # Safety
/// As [`xgvmi_blk_connect`].
unsafe fn spec(
    service: *const c_char,
    options: *const XgvmiBlkConnectOptions,
) -> Result<client::Spec, Failure> {
    // SAFETY: the caller's promise.
    let mut spec = client::Spec::new(&unsafe { text(service, "the service") }?);
    // SAFETY: the caller's promise.
    let Some(options) = unsafe { sized(options) }? else {
        return Ok(spec);
    };
    let mut identity = None;
    if !options.identity.is_null() {
        // SAFETY: the caller promises a string.
        identity = Some(unsafe { text(options.identity, "options.identity") }?);
        if options.secret_file.is_null() {
            return Err(Failure::invalid(
                "options.identity without options.secret_file",
            ));
        }
    }
    if !options.secret_file.is_null() {
        // SAFETY: the caller promises a string.
        let path = unsafe { text(options.secret_file, "options.secret_file") }?;
        let secret = initiator_secret(Path::new(&path), identity.as_deref());
        spec.secret = Some(secret.map_err(|error| Failure::invalid(&format!("{error:#}")))?);
    }
    if !options.device.is_null() {
        // SAFETY: the caller promises a string.
        spec.device = Some(unsafe { text(options.device, "options.device") }?);
    }
    if !options.volume.is_null() {
        // SAFETY: the caller promises a string.
        spec.volume = unsafe { text(options.volume, "options.volume") }?;
    }
    if options.reconnect_ms > RECONNECT_MAX_MS {
        return Err(Failure::invalid(&format!(
            "options.reconnect_ms is {}; the most is {RECONNECT_MAX_MS}",
            options.reconnect_ms
        )));
    }
    if options.reconnect_ms != 0 {
        spec.reconnect = Duration::from_millis(options.reconnect_ms);
    }
    Ok(spec)
}

/// Connects to the volume of a service.
///
/// # Safety
/// `service` is a string, `options` is null or a structure, `volume` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xgvmi_blk_connect(
    service: *const c_char,
    options: *const XgvmiBlkConnectOptions,
    volume: *mut *mut XgvmiBlk,
) -> c_int {
    let open = || {
        // SAFETY: the caller's promise.
        let spec = unsafe { spec(service, options) }?;
        Ok(Kind::Behind(Arc::new(client::Volume::connect(&spec)?)))
    };
    // SAFETY: the caller's promise.
    unsafe { new_volume(volume, open) }
}

/// Flushes and closes a volume.
///
/// # Safety
/// `volume` is null, or comes from `xgvmi_blk_open` or `xgvmi_blk_connect` and is not closed. No other call uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xgvmi_blk_close(volume: *mut XgvmiBlk) -> c_int {
    call(|| {
        if volume.is_null() {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        let queues = unsafe { open_volume(volume) }?
            .queues
            .load(Ordering::SeqCst);
        if queues != 0 {
            return Err(Failure {
                errno: libc::EBUSY,
                text: format!("{queues} queues of the volume are open: close them first"),
            });
        }
        // SAFETY: it was made of a box, and nobody else uses it.
        let volume = unsafe { Box::from_raw(volume) };
        Ok(volume.disk().flush()?)
    })
}

/// Size of the volume in bytes; 0 for null.
///
/// # Safety
/// `volume` is null, or comes from `xgvmi_blk_open` or `xgvmi_blk_connect` and is not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xgvmi_blk_size(volume: *const XgvmiBlk) -> u64 {
    // SAFETY: the caller's promise.
    let volume = unsafe { open_volume(volume) };
    volume.map_or(0, |volume| volume.disk().geometry().size())
}

/// Bytes of a block; 0 for null.
///
/// # Safety
/// As [`xgvmi_blk_size`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xgvmi_blk_block_size(volume: *const XgvmiBlk) -> u32 {
    // SAFETY: the caller's promise.
    let volume = unsafe { open_volume(volume) };
    volume.map_or(0, |volume| volume.disk().geometry().block_size())
}

/// Reads a range.
///
/// # Safety
/// As [`xgvmi_blk_size`], and `length` bytes at `bytes` are writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xgvmi_blk_read(
    volume: *mut XgvmiBlk,
    offset: u64,
    bytes: *mut c_void,
    length: usize,
) -> c_int {
    call(|| {
        // SAFETY: the caller's promise.
        let Some(disk) = unsafe { transfer(volume, (offset, bytes, length)) }? else {
            return Ok(());
        };
        // SAFETY: `length` writable bytes, which the caller promises; the check above limits the length.
        let bytes = unsafe { std::slice::from_raw_parts_mut(bytes.cast::<u8>(), length) };
        Ok(disk.read(offset, bytes)?)
    })
}

/// Writes a range.
///
/// # Safety
/// As [`xgvmi_blk_size`], and `length` bytes at `bytes` are readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xgvmi_blk_write(
    volume: *mut XgvmiBlk,
    offset: u64,
    bytes: *const c_void,
    length: usize,
) -> c_int {
    call(|| {
        // SAFETY: the caller's promise.
        let Some(disk) = unsafe { transfer(volume, (offset, bytes, length)) }? else {
            return Ok(());
        };
        // SAFETY: `length` readable bytes, which the caller promises; the check above limits the length.
        let bytes = unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), length) };
        Ok(disk.write(offset, bytes)?)
    })
}

/// Makes everything durable.
///
/// # Safety
/// As [`xgvmi_blk_size`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xgvmi_blk_flush(volume: *mut XgvmiBlk) -> c_int {
    // SAFETY: the caller's promise.
    call(|| Ok(unsafe { open_volume(volume) }?.disk().flush()?))
}

/// Writes zeros.
///
/// # Safety
/// As [`xgvmi_blk_size`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xgvmi_blk_write_zeroes(
    volume: *mut XgvmiBlk,
    offset: u64,
    length: u64,
) -> c_int {
    call(|| {
        // SAFETY: the caller's promise.
        let volume = unsafe { open_volume(volume) }?;
        Ok(volume.disk().write_zeroes(offset, length, false)?)
    })
}

/// Gives space back.
///
/// # Safety
/// As [`xgvmi_blk_size`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xgvmi_blk_trim(volume: *mut XgvmiBlk, offset: u64, length: u64) -> c_int {
    call(|| {
        // SAFETY: the caller's promise.
        let volume = unsafe { open_volume(volume) }?;
        Ok(volume.disk().trim(offset, length)?)
    })
}

/// Number of targets in use; 0 for null and for the volume of a service.
///
/// # Safety
/// As [`xgvmi_blk_size`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xgvmi_blk_targets(volume: *const XgvmiBlk) -> c_uint {
    // SAFETY: the caller's promise.
    let volume = unsafe { open_volume(volume) };
    // Cannot be cut: 0 to 3.
    volume.map_or(0, |volume| match &volume.volume {
        Kind::Here { volume, .. } => {
            c_uint::try_from(volume.present().len()).unwrap_or(c_uint::MAX)
        }
        Kind::Behind(_) => 0,
    })
}

/// Takes targets back and completes them.
///
/// # Safety
/// As [`xgvmi_blk_size`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xgvmi_blk_repair(volume: *mut XgvmiBlk) -> c_int {
    call(|| {
        // SAFETY: the caller's promise.
        let volume = unsafe { open_volume(volume) }?;
        let Kind::Here { volume, opener } = &volume.volume else {
            return Err(Failure {
                errno: libc::EOPNOTSUPP,
                text: "the service keeps its targets complete by itself".to_owned(),
            });
        };
        let repaired = opener.repair(volume);
        repaired.map_err(|error| Failure {
            errno: libc::EIO,
            text: format!("{error:#}"),
        })
    })
}

/// The text of this thread's last error.
#[unsafe(no_mangle)]
pub extern "C" fn xgvmi_blk_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr())
        .unwrap_or(c"".as_ptr())
}

/// Version of the library.
#[unsafe(no_mangle)]
pub extern "C" fn xgvmi_blk_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}
