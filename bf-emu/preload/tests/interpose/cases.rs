//! The test cases. Each runs in its own process and reports its failures.

use std::ffi::{CString, c_int};
use std::fs::{self, File};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::checks::{
    FAULTS, UVERBS0, action, call, count, exchange, expect, expect_device, in_child, ok,
    open_device, stat_of,
};
use crate::{interfaces, races, variants};

/// One case.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    /// True if its environment requests devices.
    pub(crate) with_device: bool,
    /// Its expected exit code; None for the end by a signal.
    pub(crate) code: Option<i32>,
    pub(crate) act: fn() -> Result<(), String>,
}

const fn case(name: &'static str, act: fn() -> Result<(), String>) -> Case {
    Case {
        name,
        with_device: true,
        code: Some(0),
        act,
    }
}

pub(crate) const ALL: &[Case] = &[
    case("sysfs_is_read_by_name", sysfs_is_read_by_name),
    case("directories_are_listed", directories_are_listed),
    case(
        "links_and_real_paths_have_their_names",
        links_and_real_paths_have_their_names,
    ),
    case(
        "a_device_is_a_character_device",
        a_device_is_a_character_device,
    ),
    case("old_programs_find_the_device", old_programs_find_the_device),
    case("every_way_to_open", variants::every_way_to_open),
    case("every_way_to_read", variants::every_way_to_read),
    case("every_way_to_ask", variants::every_way_to_ask),
    case("every_way_to_resolve", variants::every_way_to_resolve),
    case("every_way_to_list", variants::every_way_to_list),
    case("opening_gives_contexts", opening_gives_contexts),
    case(
        "duplicates_are_the_device_too",
        duplicates_are_the_device_too,
    ),
    case("a_child_has_the_device_too", a_child_has_the_device_too),
    case(
        "a_received_file_is_the_device",
        a_received_file_is_the_device,
    ),
    case("a_vfork_child_closes_nothing", a_vfork_child_closes_nothing),
    case("other_files_are_left_alone", other_files_are_left_alone),
    case("a_number_that_is_used_again", a_number_that_is_used_again),
    case("no_netlink_socket_for_rdma", no_netlink_socket_for_rdma),
    case("ports_are_interfaces", interfaces::ports_are_listed),
    case("handlers_are_chained", handlers_are_chained),
    case(
        "a_sent_signal_does_not_meet_its_own_change",
        races::a_sent_signal_does_not_meet_its_own_change,
    ),
    case(
        "a_child_does_not_wait_for_a_thread_that_attaches",
        races::a_child_does_not_wait_for_a_thread_that_attaches,
    ),
    case("masks_are_reported_as_asked", masks_are_reported_as_asked),
    case("errno_survives_a_fault", errno_survives_a_fault),
    Case {
        code: None,
        ..case("a_fault_without_handler_ends_the_process", faults)
    },
    Case {
        code: None,
        ..case("a_sent_signal_ends_the_process", is_killed)
    },
    Case {
        with_device: false,
        ..case("without_asking_nothing_changes", nothing_changes)
    },
    Case {
        with_device: false,
        ..case(
            "without_asking_no_port_is_an_interface",
            interfaces::no_port_is_listed,
        )
    },
];

/// `RDMA_VERBS_IOCTL` (rdma/rdma_user_ioctl_cmds.h).
const RDMA_VERBS_IOCTL: libc::c_ulong = 0xc018_1b01;

fn errno<T>(result: io::Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

fn sysfs_is_read_by_name() -> Result<(), String> {
    for (path, text) in [
        ("/sys/class/infiniband_verbs/abi_version", "6\n"),
        ("/sys/class/infiniband_verbs/uverbs1/ibdev", "mlx5_1\n"),
        ("/sys//class/./infiniband/mlx5_0/device/vendor", "0x15b3\n"),
        ("/sys/bus/pci/devices/bf00:03:00.1/device", "0xa2dc\n"),
        ("/sys/devices/pcibf00:03/bf00:03:00.0/numa_node", "-1\n"),
    ] {
        expect(path, ok(path, fs::read_to_string(path))?, text.to_owned())?;
        let mut line = [0_u8; 64];
        let name = CString::new(path).map_err(|error| error.to_string())?;
        // SAFETY: C strings.
        let file = unsafe { libc::fopen(name.as_ptr(), c"r".as_ptr()) };
        expect("fopen", file.is_null(), false)?;
        // SAFETY: the file is open, and the buffer holds 63 characters and a NUL.
        unsafe { libc::fgets(line.as_mut_ptr().cast(), 64, file) };
        // SAFETY: the file is open and not used again.
        unsafe { libc::fclose(file) };
        expect(path, &line[..text.len()], text.as_bytes())?;
    }
    Ok(())
}

fn directories_are_listed() -> Result<(), String> {
    let names = |path: &str| -> Result<Vec<String>, String> {
        let entries = ok(path, fs::read_dir(path))?.flatten();
        let mut names: Vec<_> = entries
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        Ok(names)
    };
    let both = |name: &str| vec![format!("{name}0"), format!("{name}1")];
    expect("infiniband", names("/sys/class/infiniband")?, both("mlx5_"))?;
    let mut devices = vec!["rdma_cm".to_owned()];
    devices.extend(both("uverbs"));
    expect("dev", names("/dev/infiniband")?, devices)?;
    // Opens a directory and then files by relative names, like libibverbs.
    let class = File::options()
        .read(true)
        .custom_flags(libc::O_DIRECTORY)
        .open("/sys/class/infiniband_verbs");
    let class = ok("open class", class)?;
    let flags = libc::O_RDONLY | libc::O_DIRECTORY;
    // SAFETY: a C string.
    let device = unsafe { libc::openat(class.as_raw_fd(), c"uverbs1".as_ptr(), flags) };
    let device = ok("openat uverbs1", call(device))?;
    // SAFETY: a C string.
    let file = call(unsafe { libc::openat(device, c"dev".as_ptr(), libc::O_RDONLY) });
    // SAFETY: just opened, without another owner.
    let file = unsafe { File::from_raw_fd(ok("openat dev", file)?) };
    expect(
        "dev",
        ok("read dev", io::read_to_string(file))?,
        "231:193\n".to_owned(),
    )
}

fn links_and_real_paths_have_their_names() -> Result<(), String> {
    let function = "devices/pcibf00:03/bf00:03:00.0";
    let target = ok("readlink", fs::read_link("/sys/class/infiniband/mlx5_0"))?;
    let expected = format!("../../{function}/infiniband/mlx5_0");
    expect("readlink", target.as_path(), Path::new(&expected))?;
    for (path, real) in [
        (
            "/sys/class/infiniband/mlx5_0",
            format!("/sys/{function}/infiniband/mlx5_0"),
        ),
        (
            "/sys/class/infiniband_verbs/uverbs0/device/",
            format!("/sys/{function}"),
        ),
        (
            "/sys/bus/pci/devices/bf00:03:00.0",
            format!("/sys/{function}"),
        ),
        (
            "/dev/infiniband/uverbs0",
            "/dev/infiniband/uverbs0".to_owned(),
        ),
        ("/sys/class", "/sys/class".to_owned()),
    ] {
        let found = ok(path, fs::canonicalize(path))?;
        expect(path, found.as_path(), Path::new(&real))?;
    }
    let missing = fs::canonicalize("/sys/class/infiniband/mlx5_7");
    expect("mlx5_7", errno(missing), Some(libc::ENOENT))
}

fn a_device_is_a_character_device() -> Result<(), String> {
    // The standard library uses statx.
    let device = ok("uverbs1", fs::metadata("/dev/infiniband/uverbs1"))?;
    expect("type", device.file_type().is_char_device(), true)?;
    expect("rdev", device.rdev(), libc::makedev(231, 193))?;
    let file = ok(
        "open",
        File::options()
            .read(true)
            .write(true)
            .open("/dev/infiniband/uverbs1"),
    )?;
    let found = ok("statx of file", file.metadata())?;
    expect("type of file", found.file_type().is_char_device(), true)?;
    expect("rdev of file", found.rdev(), libc::makedev(231, 193))?;
    expect_device("fstat", &stat_of(file.as_raw_fd())?, 193)?;

    let mut stat = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: a C string, and a buffer for the result.
    let answer = unsafe { libc::stat(UVERBS0.as_ptr(), stat.as_mut_ptr()) };
    ok("stat", call(answer))?;
    // SAFETY: zeroed memory is a valid result, and the call has written it.
    expect_device("stat", &unsafe { stat.assume_init() }, 192)?;

    // SAFETY: a C string.
    let access = unsafe { libc::access(UVERBS0.as_ptr(), libc::R_OK | libc::W_OK) };
    expect("access", access, 0)?;
    let absent = fs::metadata("/dev/infiniband/uverbs2");
    expect("uverbs2", errno(absent), Some(libc::ENOENT))?;
    let absent = File::open("/dev/infiniband/uverbs2");
    expect("open uverbs2", errno(absent), Some(libc::ENOENT))
}

/// The functions that programs for an old C library call, looked up by name as by their loader.
#[cfg(target_arch = "x86_64")]
fn old_programs_find_the_device() -> Result<(), String> {
    type Xstat = unsafe extern "C" fn(c_int, *const std::ffi::c_char, *mut libc::stat) -> c_int;
    for name in [c"__xstat", c"__xstat64", c"__lxstat", c"__lxstat64"] {
        // SAFETY: a C string.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        expect("dlsym", found.is_null(), false)?;
        // SAFETY: the C library's function with this name has this type.
        let xstat = unsafe { std::mem::transmute::<*mut std::ffi::c_void, Xstat>(found) };
        let mut stat = MaybeUninit::<libc::stat>::zeroed();
        // SAFETY: version 1 is that of x86-64; a C string, and a buffer for the result.
        let answer = unsafe { xstat(1, UVERBS0.as_ptr(), stat.as_mut_ptr()) };
        ok("xstat", call(answer))?;
        // SAFETY: zeroed memory is a valid result, and the call has written it.
        expect_device("xstat", &unsafe { stat.assume_init() }, 192)?;
    }
    Ok(())
}

#[cfg(not(target_arch = "x86_64"))]
fn old_programs_find_the_device() -> Result<(), String> {
    Ok(())
}

fn opening_gives_contexts() -> Result<(), String> {
    let (first, second) = (open_device()?, open_device()?);
    let inodes = (
        stat_of(first.as_raw_fd())?.st_ino,
        stat_of(second.as_raw_fd())?.st_ino,
    );
    expect("two contexts are one", inodes.0 == inodes.1, false)?;
    // SAFETY: no pointers.
    let flags = unsafe { libc::fcntl(first.as_raw_fd(), libc::F_GETFD) };
    expect("close-on-exec", flags, libc::FD_CLOEXEC)?;
    // SAFETY: the device accepts this request with a valid address only, and otherwise returns an
    // error.
    let answer = unsafe { libc::ioctl(first.as_raw_fd(), RDMA_VERBS_IOCTL, 0_usize) };
    expect(
        "ioctl without arguments fails",
        errno(call(answer)).is_some(),
        true,
    )?;
    // SAFETY: the pointer is not used.
    let answer = unsafe { libc::ioctl(first.as_raw_fd(), libc::TCGETS, 0_usize) };
    expect(
        "a terminal's ioctl",
        errno(call(answer)),
        Some(libc::ENOTTY),
    )
}

fn duplicates_are_the_device_too() -> Result<(), String> {
    let first = open_device()?;
    // SAFETY: no pointers.
    let plain = ok("dup", call(unsafe { libc::dup(first.as_raw_fd()) }))?;
    // SAFETY: no pointers.
    let high = call(unsafe { libc::fcntl(first.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 500) });
    let high = ok("fcntl", high)?;
    drop(first);
    for fd in [plain, high] {
        expect_device("a duplicate", &stat_of(fd)?, 192)?;
    }
    // Another file may get the descriptor of a duplicate. It is then no device.
    let file = ok("open", File::open("/dev/null"))?;
    // SAFETY: no pointers.
    ok("dup2", call(unsafe { libc::dup2(file.as_raw_fd(), plain) }))?;
    expect("rdev", stat_of(plain)?.st_rdev, libc::makedev(1, 3))?;
    // SAFETY: no pointers.
    ok("close", call(unsafe { libc::close(high) }))?;
    let mut stat = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: the buffer is large enough for the result.
    let closed = call(unsafe { libc::fstat(high, stat.as_mut_ptr()) });
    expect("fstat of a closed file", errno(closed), Some(libc::EBADF))
}

fn a_child_has_the_device_too() -> Result<(), String> {
    exchange(libc::SIGSEGV, Some(&open_page_action(0)))?;
    let device = open_device()?;
    in_child(|| {
        expect_device("inherited", &stat_of(device.as_raw_fd())?, 192)?;
        let own = open_device()?;
        expect_device("opened in the child", &stat_of(own.as_raw_fd())?, 192)?;
        let page = closed_page()?;
        // SAFETY: the page is mapped. The handler makes it writable.
        unsafe { page.write_volatile(7) };
        expect("faults", FAULTS.load(Ordering::Relaxed), 1)
    })?;
    expect_device("after the child", &stat_of(device.as_raw_fd())?, 192)
}

/// Like `ibv_import_device`: the receiver has opened nothing, and calls fstat on the file first.
fn a_received_file_is_the_device() -> Result<(), String> {
    let mut ends = [0; 2];
    // SAFETY: a buffer for two descriptors.
    let pair = unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, ends.as_mut_ptr()) };
    ok("socketpair", call(pair))?;
    let [here, there] = ends;
    in_child(|| send_file(there, open_device()?.as_raw_fd()))?;
    let fd = receive_file(here)?;
    expect_device("received", &stat_of(fd)?, 192)?;
    // SAFETY: the device accepts this request with a valid address only, and otherwise returns an
    // error.
    let answer = call(unsafe { libc::ioctl(fd, RDMA_VERBS_IOCTL, 0_usize) });
    expect(
        "ioctl is refused as no device's",
        errno(answer) == Some(libc::ENOTTY),
        false,
    )
}

/// A message of one byte, with a control buffer for one file descriptor.
fn with_message<T>(act: impl FnOnce(&mut libc::msghdr) -> T) -> T {
    let mut byte = [0_u8];
    let mut piece = libc::iovec {
        iov_base: byte.as_mut_ptr().cast(),
        iov_len: 1,
    };
    let mut control = [0_u64; 8];
    // SAFETY: a message header is plain data.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut piece;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    // SAFETY: arithmetic only.
    message.msg_controllen = unsafe { libc::CMSG_SPACE(4) } as usize;
    act(&mut message)
}

fn send_file(socket: c_int, file: c_int) -> Result<(), String> {
    with_message(|message| {
        // SAFETY: the message has a buffer for one header with one descriptor.
        unsafe {
            let header = libc::CMSG_FIRSTHDR(message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(4) as usize;
            libc::CMSG_DATA(header)
                .cast::<c_int>()
                .write_unaligned(file);
        }
        // SAFETY: a complete message.
        let sent = unsafe { libc::sendmsg(socket, message, 0) };
        expect("sendmsg", sent, 1)
    })
}

fn receive_file(socket: c_int) -> Result<c_int, String> {
    with_message(|message| {
        // SAFETY: a complete message.
        let received = unsafe { libc::recvmsg(socket, message, 0) };
        expect("recvmsg", received, 1)?;
        // SAFETY: the kernel has written the message.
        let header = unsafe { libc::CMSG_FIRSTHDR(message) };
        expect("no file came", header.is_null(), false)?;
        // SAFETY: the message contains one descriptor.
        Ok(unsafe { libc::CMSG_DATA(header).cast::<c_int>().read_unaligned() })
    })
}

fn a_vfork_child_closes_nothing() -> Result<(), String> {
    let device = open_device()?;
    let fd = device.as_raw_fd();
    #[expect(
        deprecated,
        reason = "what starters of programs do, and the case to be covered"
    )]
    // SAFETY: the child makes two system calls and does not access its parent's memory.
    let child = unsafe { libc::vfork() };
    if child == 0 {
        // SAFETY: no pointers. `_exit` does not change the parent's memory.
        unsafe {
            libc::close(fd);
            libc::_exit(0);
        }
    }
    // SAFETY: no status is requested.
    let answer = unsafe { libc::waitpid(child, ptr::null_mut(), 0) };
    ok("waitpid", call(answer))?;
    expect_device("after the child", &stat_of(fd)?, 192)?;
    // The context is alive: its ioctl still reaches the device, which refuses the address.
    // SAFETY: the device accepts this request with a valid address only, and otherwise returns an
    // error.
    let answer = call(unsafe { libc::ioctl(fd, RDMA_VERBS_IOCTL, 0_usize) });
    expect(
        "ioctl is refused as no device's",
        errno(answer) == Some(libc::ENOTTY),
        false,
    )
}

fn other_files_are_left_alone() -> Result<(), String> {
    let device = open_device()?;
    // SAFETY: a C string.
    let memory = call(unsafe { libc::memfd_create(c"mine".as_ptr(), 0) });
    let memory = ok("memfd_create", memory)?;
    expect(
        "a memory file",
        stat_of(memory)?.st_mode & libc::S_IFMT,
        libc::S_IFREG,
    )?;
    // SAFETY: not a file of the device. The argument is not used.
    let answer = call(unsafe { libc::ioctl(memory, RDMA_VERBS_IOCTL, 0_usize) });
    expect("ioctl", errno(answer), Some(libc::ENOTTY))?;
    expect(
        "null",
        ok("null", fs::metadata("/dev/null"))?.rdev(),
        libc::makedev(1, 3),
    )?;
    expect("class", Path::new("/sys/class").is_dir(), true)?;
    drop(device);
    Ok(())
}

/// A file of the connection manager is replaced without the C library: writes to its number go to the new file.
fn a_number_that_is_used_again() -> Result<(), String> {
    let manager = c"/dev/infiniband/rdma_cm";
    // SAFETY: the path is a C string.
    let fd = call(unsafe { libc::open(manager.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) });
    let fd = ok("open", fd)?;
    let mut ends = [0; 2];
    // SAFETY: the array has space for both ends.
    ok("pipe", call(unsafe { libc::pipe(ends.as_mut_ptr()) }))?;
    // SAFETY: three numbers; the descriptors are open.
    let replaced = unsafe { libc::syscall(libc::SYS_dup3, ends[1], fd, libc::O_CLOEXEC) };
    expect("dup3", replaced, i64::from(fd))?;
    // SAFETY: the byte is readable.
    let written = unsafe { libc::write(fd, b"x".as_ptr().cast(), 1) };
    expect("a write to the pipe", written, 1)?;
    let mut byte = 0u8;
    // SAFETY: the byte belongs to this frame.
    let read = unsafe { libc::read(ends[0], (&raw mut byte).cast(), 1) };
    expect("a read from the pipe", (read, byte), (1, b'x'))
}

fn no_netlink_socket_for_rdma() -> Result<(), String> {
    // SAFETY: no pointers.
    let rdma = call(unsafe { libc::socket(libc::AF_NETLINK, libc::SOCK_RAW, 20) });
    expect("rdma", errno(rdma), Some(libc::EPROTONOSUPPORT))?;
    // SAFETY: no pointers.
    let route = call(unsafe { libc::socket(libc::AF_NETLINK, libc::SOCK_RAW, 0) });
    ok("route", route).map(drop)
}

static BLOCKED_IN_HANDLER: AtomicU32 = AtomicU32::new(0);
/// Page that the handler below makes writable after a store to it faulted.
static PAGE: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);

extern "C" fn open_page(signal: c_int, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
    FAULTS.fetch_add(1, Ordering::Relaxed);
    let blocked = mask(libc::SIG_BLOCK, None).map_or(0, |set| {
        [libc::SIGUSR1, signal]
            .iter()
            .filter(|signal| has(&set, **signal))
            .count()
    });
    BLOCKED_IN_HANDLER.store(
        u32::try_from(blocked).unwrap_or(u32::MAX),
        Ordering::Relaxed,
    );
    let page = ptr::with_exposed_provenance_mut(PAGE.load(Ordering::Relaxed));
    // SAFETY: a mapping of this program without other users.
    unsafe { libc::mprotect(page, 4096, libc::PROT_READ | libc::PROT_WRITE) };
    // SAFETY: the location of the calling thread's errno is always valid.
    unsafe { *libc::__errno_location() = libc::EXDEV };
}

/// A read-only page.
fn closed_page() -> Result<*mut u64, String> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let page = unsafe { libc::mmap(ptr::null_mut(), 4096, libc::PROT_READ, flags, -1, 0) };
    expect("mmap", page == libc::MAP_FAILED, false)?;
    PAGE.store(page.expose_provenance(), Ordering::Relaxed);
    Ok(page.cast())
}

fn open_page_action(flags: c_int) -> libc::sigaction {
    let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut libc::c_void) = open_page;
    action(handler as usize, libc::SA_SIGINFO | flags, &[libc::SIGUSR1])
}

fn handlers_are_chained() -> Result<(), String> {
    let before = exchange(libc::SIGSEGV, Some(&open_page_action(0)))?;
    let _device = open_device()?;
    // A handler from before the device was opened serves faults that do not concern the device.
    let page = closed_page()?;
    // SAFETY: the page is mapped. The handler makes it writable.
    unsafe { page.write_volatile(7) };
    expect("faults", FAULTS.load(Ordering::Relaxed), 1)?;
    expect(
        "blocked in it",
        BLOCKED_IN_HANDLER.load(Ordering::Relaxed),
        2,
    )?;
    // SAFETY: the page is mapped.
    expect("stored", unsafe { page.read_volatile() }, 7)?;

    let found = exchange(libc::SIGSEGV, None)?;
    expect(
        "handler",
        found.sa_sigaction,
        open_page_action(0).sa_sigaction,
    )?;
    expect("flags", found.sa_flags & libc::SA_SIGINFO, libc::SA_SIGINFO)?;
    expect("mask", has(&found.sa_mask, libc::SIGUSR1), true)?;

    // So does a later handler, and only once if it is a one-shot handler.
    let once = open_page_action(libc::SA_RESETHAND | libc::SA_NODEFER);
    exchange(libc::SIGSEGV, Some(&once))?;
    let page = closed_page()?;
    // SAFETY: as above.
    unsafe { page.write_volatile(8) };
    expect("faults", FAULTS.load(Ordering::Relaxed), 2)?;
    expect(
        "blocked in it",
        BLOCKED_IN_HANDLER.load(Ordering::Relaxed),
        1,
    )?;
    expect(
        "reset",
        exchange(libc::SIGSEGV, None)?.sa_sigaction,
        libc::SIG_DFL,
    )?;

    // The older call, and a signal that is sent.
    let handler: extern "C" fn(c_int) = count;
    // SAFETY: a handler of the correct type.
    let old = unsafe { libc::signal(libc::SIGSEGV, handler as usize) };
    expect("signal", old, libc::SIG_DFL)?;
    // SAFETY: no preconditions.
    unsafe { libc::raise(libc::SIGSEGV) };
    expect("faults", FAULTS.load(Ordering::Relaxed), 3)?;
    // SAFETY: no handler.
    let old = unsafe { libc::signal(libc::SIGSEGV, libc::SIG_IGN) };
    expect("signal", old, handler as usize)?;
    // SAFETY: no preconditions.
    unsafe { libc::raise(libc::SIGSEGV) };
    exchange(libc::SIGSEGV, Some(&before)).map(drop)
}

fn has(set: &libc::sigset_t, signal: c_int) -> bool {
    // SAFETY: a set and a valid signal.
    unsafe { libc::sigismember(set, signal) == 1 }
}

fn mask(how: c_int, signals: Option<&[c_int]>) -> Result<libc::sigset_t, String> {
    let set = signals.map(|signals| action(0, 0, signals).sa_mask);
    let mut old = action(0, 0, &[]).sa_mask;
    let new = set.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: NULL or a set, and a buffer for one.
    let answer = unsafe { libc::sigprocmask(how, new, &raw mut old) };
    ok("sigprocmask", call(answer))?;
    Ok(old)
}

fn masks_are_reported_as_asked() -> Result<(), String> {
    let both = [libc::SIGSEGV, libc::SIGUSR1];
    let reported = || -> Result<[bool; 2], String> {
        let set = mask(libc::SIG_BLOCK, None)?;
        Ok(both.map(|signal| has(&set, signal)))
    };
    expect("at first", reported()?, [false, false])?;
    mask(libc::SIG_BLOCK, Some(&both))?;
    expect("blocked", reported()?, [true, true])?;
    // A fault, such as a doorbell, still reaches its handler.
    exchange(libc::SIGSEGV, Some(&open_page_action(0)))?;
    let _device = open_device()?;
    let page = closed_page()?;
    // SAFETY: the page is mapped. The handler makes it writable.
    unsafe { page.write_volatile(7) };
    expect("faults", FAULTS.load(Ordering::Relaxed), 1)?;
    mask(libc::SIG_UNBLOCK, Some(&[libc::SIGUSR1]))?;
    expect("one unblocked", reported()?, [true, false])?;
    mask(libc::SIG_SETMASK, Some(&[libc::SIGUSR1]))?;
    expect("set", reported()?, [false, true])?;
    // Another thread has its own mask. It inherits the mask that is really blocked.
    let other = std::thread::spawn(move || -> Result<[bool; 2], String> {
        let set = mask(libc::SIG_BLOCK, None)?;
        Ok(both.map(|signal| has(&set, signal)))
    });
    expect(
        "another thread",
        other.join().map_err(|_| "a panic")??,
        [false, true],
    )?;

    // The mask of another signal's handler is reported as requested, and filtered too.
    let handler: extern "C" fn(c_int) = count;
    exchange(libc::SIGUSR2, Some(&action(handler as usize, 0, &both)))?;
    let found = exchange(libc::SIGUSR2, None)?;
    expect(
        "handler's mask",
        both.map(|signal| has(&found.sa_mask, signal)),
        [true, true],
    )
}

fn errno_survives_a_fault() -> Result<(), String> {
    exchange(libc::SIGSEGV, Some(&open_page_action(0)))?;
    let _device = open_device()?;
    let page = closed_page()?;
    let location = {
        // SAFETY: no preconditions.
        unsafe { libc::__errno_location() }
    };
    // SAFETY: the location of the calling thread's errno is always valid.
    unsafe { *location = libc::EPIPE };
    // SAFETY: the page is mapped. The handler makes it writable, and sets errno.
    unsafe { page.write_volatile(7) };
    // SAFETY: as above.
    expect("errno", unsafe { location.read_volatile() }, libc::EPIPE)
}

fn faults() -> Result<(), String> {
    let _device = open_device()?;
    exchange(libc::SIGSEGV, Some(&action(libc::SIG_DFL, 0, &[])))?;
    // SAFETY: none. This fault must end the process. The address is mapped but read-only.
    unsafe { closed_page()?.write_volatile(1) };
    Ok(())
}

fn is_killed() -> Result<(), String> {
    let _device = open_device()?;
    exchange(libc::SIGSEGV, Some(&action(libc::SIG_DFL, 0, &[])))?;
    // SAFETY: no preconditions.
    unsafe { libc::raise(libc::SIGSEGV) };
    Ok(())
}

fn nothing_changes() -> Result<(), String> {
    expect(
        "our PCI domain",
        Path::new("/sys/bus/pci/devices/bf00:03:00.0").exists(),
        false,
    )?;
    let real = ok("class", fs::canonicalize("/sys/class"))?;
    expect("class", real.as_path(), Path::new("/sys/class"))?;
    mask(libc::SIG_BLOCK, Some(&[libc::SIGSEGV]))?;
    let mut real = 0_u64;
    // SAFETY: no new set, and a buffer for a set of the kernel's size.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            0,
            ptr::null::<u64>(),
            &raw mut real,
            8_usize,
        )
    };
    expect(
        "really blocked",
        real & (1 << (libc::SIGSEGV - 1)) != 0,
        true,
    )
}
