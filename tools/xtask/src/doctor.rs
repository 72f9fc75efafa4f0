//! `cargo xtask doctor`: prints one row per requirement, with a fix if it is not met. The command changes nothing.

use crate::setup::{self, pins};
use crate::{process, workspace};
use anyhow::{Result, bail};
use std::ffi::CString;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

const HELP: &str = "\
Usage: cargo xtask doctor

Prints each requirement as OK, MISSING (the set-up downloads it) or FIX (a problem on this machine).
Exits with 1 only if the demo cannot run here.";

const QUESTION: Duration = Duration::from_secs(30);
const MIB: u64 = 1 << 20;
/// The emulator stores its state in shared memory, and UCX one segment per process.
const SHM_MIB: u64 = 64;
/// Measured size of a debug and a release build of the workspace, with a margin.
const BUILD_MIB: u64 = 3000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Ok,
    /// Absent; `cargo xtask setup` installs it.
    Missing,
    /// Works with a disadvantage, or is required only for a real device.
    Note,
    /// The demo cannot run until the user fixes this.
    Fix,
}

#[derive(Debug)]
struct Row {
    need: &'static str,
    state: State,
    found: String,
    /// The fix; empty if the check passed.
    fix: String,
}

impl Row {
    fn ok(need: &'static str, found: impl Into<String>) -> Self {
        Self {
            need,
            state: State::Ok,
            found: found.into(),
            fix: String::new(),
        }
    }

    fn not_ok(
        need: &'static str,
        state: State,
        found: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self {
            need,
            state,
            found: found.into(),
            fix: fix.into(),
        }
    }
}

/// Runs the command.
pub(crate) fn run(arguments: Vec<String>) -> Result<ExitCode> {
    match arguments.first().map(String::as_str) {
        None => {}
        Some("-h" | "--help") => {
            println!("{HELP}");
            return Ok(ExitCode::SUCCESS);
        }
        Some(other) => bail!("no option '{other}'; try: cargo xtask doctor --help"),
    }
    let inventory = setup::inventory()?;
    let mut rows = vec![
        architecture(),
        rustc(),
        tool("C compiler", "cc", "gcc"),
        python(),
    ];
    rows.push(packages(&inventory));
    rows.push(if inventory.wheels_present {
        Row::ok("stock UCX", format!("{} in the cache", pins::UCX_VERSION))
    } else {
        Row::not_ok(
            "stock UCX",
            State::Missing,
            "not in the cache",
            "cargo xtask setup",
        )
    });
    rows.push(block_clients(&inventory));
    rows.push(riscv(&inventory));
    rows.push(shared_memory());
    rows.push(ptrace_scope(
        fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope")
            .ok()
            .as_deref(),
    ));
    rows.push(process_vm_readv());
    rows.push(locked_memory());
    rows.push(disk("disk for builds", &workspace::root(), BUILD_MIB));
    rows.push(disk(
        "disk for the cache",
        &inventory.cache,
        pins::CACHE_MIB,
    ));

    print(&rows);
    let impossible = rows.iter().any(|row| row.state == State::Fix);
    Ok(if impossible {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

fn print(rows: &[Row]) {
    let need = rows.iter().map(|row| row.need.len()).max().unwrap_or(0);
    let found = rows.iter().map(|row| row.found.len()).max().unwrap_or(0);
    for row in rows {
        let state = match row.state {
            State::Ok => "OK",
            State::Missing => "MISSING",
            State::Note => "NOTE",
            State::Fix => "FIX",
        };
        let line = format!(
            "{state:<8} {:<need$}  {:<found$}  {}",
            row.need, row.found, row.fix
        );
        println!("{}", line.trim_end());
    }
}

fn architecture() -> Row {
    match std::env::consts::ARCH {
        "x86_64" => Row::ok("architecture", "x86_64"),
        other => Row::not_ok(
            "architecture",
            State::Fix,
            other,
            "the emulated device decodes x86-64 doorbell stores; use an x86-64 machine",
        ),
    }
}

fn rustc() -> Row {
    const MSRV: &str = env!("CARGO_PKG_RUST_VERSION");
    let found = first_line(Command::new("rustc").arg("--version"));
    let version = found
        .as_deref()
        .and_then(|line| line.split_whitespace().nth(1));
    match version {
        Some(version) if at_least(version, MSRV) => {
            Row::ok("rustc", format!("{version} (>= {MSRV})"))
        }
        Some(version) => Row::not_ok(
            "rustc",
            State::Fix,
            version,
            format!("rustc >= {MSRV} is needed"),
        ),
        None => Row::not_ok(
            "rustc",
            State::Fix,
            "not found",
            format!("rustc >= {MSRV} is needed"),
        ),
    }
}

/// Compares dotted versions numerically.
fn at_least(version: &str, minimum: &str) -> bool {
    let numbers = |text: &str| -> Vec<u32> {
        text.split(['.', '-'])
            .map_while(|part| part.parse().ok())
            .collect()
    };
    numbers(version) >= numbers(minimum)
}

fn tool(need: &'static str, program: &str, package: &str) -> Row {
    match first_line(Command::new(program).arg("--version")) {
        Some(line) => Row::ok(need, line),
        None => {
            let fix = format!("sudo apt-get install --no-install-recommends {package}");
            Row::not_ok(need, State::Fix, format!("no {program}"), fix)
        }
    }
}

fn python() -> Row {
    let row = tool("python3", "python3", "python3");
    if row.state != State::Ok {
        return row;
    }
    if first_line(Command::new("python3").args(["-c", "import ensurepip, venv; print(1)"]))
        .is_some()
    {
        Row::ok("python3", format!("{}, with venv", row.found))
    } else {
        let fix = format!(
            "sudo apt-get install --no-install-recommends {} (set-up does without, by a pip of its own)",
            pins::APT_VENV
        );
        Row::not_ok(
            "python3",
            State::Note,
            format!("{}, without venv", row.found),
            fix,
        )
    }
}

fn packages(inventory: &setup::Inventory) -> Row {
    let missing = inventory.missing_packages.join(" ");
    if missing.is_empty() {
        Row::ok(
            "libibverbs and tools",
            format!("{} packages installed", pins::APT_PACKAGES.len()),
        )
    } else if inventory.verbs_unpacked {
        Row::ok("libibverbs and tools", "unpacked in the cache")
    } else {
        let fix = format!("sudo apt-get install --no-install-recommends {missing}");
        Row::not_ok(
            "libibverbs and tools",
            State::Missing,
            format!("without {missing}"),
            fix,
        )
    }
}

/// Only the suite `storage` and the benchmark of the same name use them.
fn block_clients(inventory: &setup::Inventory) -> Row {
    more(
        "stock block clients",
        pins::STORAGE_PACKAGES,
        &inventory.missing_storage,
        "cargo xtask suites storage",
    )
}

/// Only `dpacc` and the tests of device code use them.
fn riscv(inventory: &setup::Inventory) -> Row {
    more(
        "compilers for RISC-V",
        pins::RISCV_PACKAGES,
        &inventory.missing_riscv,
        "cargo xtask test unit",
    )
}

/// A list of packages that a later command installs.
fn more(need: &'static str, packages: &[&str], missing: &[&str], command: &str) -> Row {
    if missing.is_empty() {
        return Row::ok(need, format!("{} packages installed", packages.len()));
    }
    let found = format!("without {}", missing.join(" "));
    Row::not_ok(need, State::Missing, found, command)
}

fn shared_memory() -> Row {
    const NEED: &str = "/dev/shm";
    match free_mib("/dev/shm") {
        Some(free) if free >= SHM_MIB => Row::ok(NEED, format!("{free} MiB free")),
        Some(free) => Row::not_ok(
            NEED,
            State::Fix,
            format!("{free} MiB free"),
            format!("{SHM_MIB} MiB are needed; in a container: --shm-size=1g"),
        ),
        None => Row::not_ok(NEED, State::Fix, "absent", "mount a tmpfs on /dev/shm"),
    }
}

/// `setting` is the content of Yama's file; `None` on a kernel without Yama.
fn ptrace_scope(setting: Option<&str>) -> Row {
    const NEED: &str = "ptrace_scope";
    match setting.map(str::trim) {
        None => Row::ok(NEED, "no Yama: processes of one user may read each other"),
        Some("0") => Row::ok(NEED, "0: processes of one user may read each other"),
        Some("1") => Row::ok(
            NEED,
            "1: only by consent, which the emulated device gives itself",
        ),
        Some("2") if is_root() => Row::ok(NEED, "2: only root, which you are"),
        Some(other) => Row::not_ok(
            NEED,
            State::Fix,
            format!("{other}: processes may not read each other"),
            "sudo sysctl kernel.yama.ptrace_scope=1 (3 stays until the next boot)",
        ),
    }
}

/// The emulated device moves data between processes with this system call. Some containers block it.
fn process_vm_readv() -> Row {
    const NEED: &str = "process_vm_readv";
    let (source, mut target) = ([0x5a_u8; 8], [0_u8; 8]);
    let local = libc::iovec {
        iov_base: target.as_mut_ptr().cast(),
        iov_len: target.len(),
    };
    let remote = libc::iovec {
        iov_base: source.as_ptr().cast_mut().cast(),
        iov_len: source.len(),
    };
    // SAFETY: both vectors describe live arrays of the given length in this process; the kernel only writes `target`
    // and only reads `source`, which the type cannot express.
    let moved = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
    if moved == 8 && source == target {
        Row::ok(NEED, "allowed")
    } else {
        Row::not_ok(
            NEED,
            State::Fix,
            format!("refused: {}", std::io::Error::last_os_error()),
            "in a container: --cap-add=SYS_PTRACE, or a seccomp profile that allows it",
        )
    }
}

fn locked_memory() -> Row {
    const NEED: &str = "ulimit -l";
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the pointer refers to a live rlimit, which the call fills in.
    let rc = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) };
    if rc != 0 {
        return Row::not_ok(NEED, State::Note, "unknown", "");
    }
    if limit.rlim_cur == libc::RLIM_INFINITY {
        return Row::ok(NEED, "unlimited");
    }
    let found = format!("{} KiB", limit.rlim_cur / 1024);
    Row::not_ok(
        NEED,
        State::Note,
        found,
        "enough here; a real device pins memory: ulimit -l unlimited",
    )
}

fn disk(need: &'static str, path: &Path, wanted_mib: u64) -> Row {
    match free_mib(&path.to_string_lossy()) {
        Some(free) if free < wanted_mib => Row::not_ok(
            need,
            State::Note,
            format!("{free} MiB free"),
            format!("a first run takes up to {wanted_mib} MiB"),
        ),
        Some(free) => Row::ok(need, format!("{free} MiB free")),
        None => Row::not_ok(need, State::Note, "unknown", ""),
    }
}

fn free_mib(path: &str) -> Option<u64> {
    let path = CString::new(path).ok()?;
    let mut stat = std::mem::MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: `path` is a C string and `stat` is large enough for the result.
    let rc = unsafe { libc::statvfs(path.as_ptr(), stat.as_mut_ptr()) };
    if rc != 0 {
        return None;
    }
    // SAFETY: the call returned 0, so it has filled in the structure.
    let stat = unsafe { stat.assume_init() };
    Some(stat.f_bavail * stat.f_frsize / MIB)
}

fn is_root() -> bool {
    // SAFETY: geteuid(2) has no parameters, accesses no memory and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

fn first_line(command: &mut Command) -> Option<String> {
    let text = process::stdout(command, QUESTION).ok()?;
    text.lines().next().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_compare_by_number() {
        let check = |version, minimum, expect| {
            assert_eq!(at_least(version, minimum), expect, "{version} {minimum}");
        };
        check("1.95.0", "1.88", true);
        check("1.88.0", "1.88", true);
        check("1.9.0", "1.88", false);
        check("1.97.0-nightly", "1.88", true);
        check("", "1.88", false);
    }

    #[test]
    fn each_ptrace_scope_is_explained() {
        let check =
            |setting, expect| assert_eq!(ptrace_scope(setting).state, expect, "{setting:?}");
        check(None, State::Ok);
        check(Some("0\n"), State::Ok);
        check(Some("1\n"), State::Ok);
        check(Some("2\n"), if is_root() { State::Ok } else { State::Fix });
        check(Some("3\n"), State::Fix);
    }

    #[test]
    fn this_machine_may_read_its_own_memory() {
        let row = process_vm_readv();
        assert_eq!(row.state, State::Ok, "{row:?}");
    }
}
