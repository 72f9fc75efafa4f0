//! `xgvmi doctor`: the requirements of the library on a machine with a BlueField, one line each,
//! with the fix for each one that is not met. The command changes nothing.

use std::fs;
use std::path::{Path, PathBuf};

use mlx5dv_sys::Mlx5Lib;
use naaice::spec::Scheme;
use serde_json::json;
use ucx_sys::Ucp;

use crate::accelerators::{self, Accelerators, Spec, Tried};
use crate::access::may_use;
use crate::binding::{self, Binding, Load};
use crate::capability::{self, Capability, Device};
use crate::info;
use crate::ucc::{self, Ucc};

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Write JSON
    #[arg(long)]
    json: bool,
    /// The libucp to check [default: the one that the loader finds]
    #[arg(long, value_name = "FILE")]
    ucx: Option<PathBuf>,
}

/// Result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Ok,
    /// Works, with a disadvantage.
    Note,
    /// The library cannot work until this is fixed.
    Fix,
}

impl State {
    const fn name(self) -> &'static str {
        match self {
            Self::Ok => "OK",
            Self::Note => "NOTE",
            Self::Fix => "FIX",
        }
    }
}

/// One line of the output.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Finding {
    need: String,
    state: State,
    found: String,
    /// The fix. Empty if the check passed.
    advice: String,
}

impl Finding {
    fn new(need: &str, state: State, found: impl Into<String>, advice: &str) -> Self {
        Self {
            need: need.to_owned(),
            state,
            found: found.into(),
            advice: advice.to_owned(),
        }
    }

    fn ok(need: &str, found: impl Into<String>) -> Self {
        Self::new(need, State::Ok, found, "")
    }
}

/// Runs all checks. Returns false if one of them needs a fix.
pub(crate) fn run(arguments: &Arguments) -> bool {
    let version = Ucp::load(arguments.ucx.as_deref()).map(Ucp::version);
    let mut findings = Vec::new();
    if let (Ok(version), Some(libraries)) = (&version, binding::libraries()) {
        let load = binding::load(Some(&libraries), info::has_plugins(version));
        findings.push(hooks(&load, &binding::binding(&libraries)));
    }
    findings.insert(0, ucx(version));
    findings.push(memory_lock(lock_limit()));
    findings.push(device_files(Path::new("/dev/infiniband")));
    match Mlx5Lib::open() {
        Ok(lib) => findings.extend(adapters(&capability::devices(&lib))),
        Err(error) => findings.push(Finding::new(
            "libmlx5",
            State::Fix,
            error.to_string(),
            "install rdma-core's libibverbs and its mlx5 provider",
        )),
    }
    findings.push(shared_memory(Path::new("/dev/shm")));
    findings.push(collectives(&ucc::look()));
    findings.extend(calls(&accelerators::look()));
    if arguments.json {
        println!("{}", as_json(&findings));
    } else {
        print!("{}", as_table(&findings));
    }
    findings.iter().all(|finding| finding.state != State::Fix)
}

fn ucx(version: Result<&str, impl ToString>) -> Finding {
    let need = "UCX";
    let version = match version {
        Ok(version) => version,
        Err(error) => {
            let advice = "install UCX 1.18 to 1.23 with its mlx5 module, or select it with --ucx";
            return Finding::new(need, State::Fix, error.to_string(), advice);
        }
    };
    let entry_points = info::entry_points(version);
    let found = format!("{version}, load by {entry_points}");
    match info::parse(version) {
        Some(number) if number > info::KNOWN[1] => {
            let advice =
                "run with UCX_LOG_LEVEL=info: an XGVMI line says if the library is inactive";
            Finding::new(need, State::Note, found, advice)
        }
        Some(number) if number >= info::KNOWN[0] => Finding::ok(need, found),
        _ => Finding::new(need, State::Fix, found, "use UCX 1.18 or later"),
    }
}

/// How the library gets UCX's calls in this environment.
fn hooks(load: &Load, binding: &Binding) -> Finding {
    let need = "hooks";
    let (state, found, advice) = match (load, binding) {
        (_, Binding::NoModule) => (
            State::Fix,
            "none: this UCX has no module libuct_ib_mlx5.so".to_owned(),
            "install UCX's InfiniBand package with mlx5 support",
        ),
        (Load::Absent, _) => (
            State::Note,
            format!("none: the library is {load}"),
            "set LD_PRELOAD or, from UCX 1.22 on, UCX_PLUGIN_PATH for the program",
        ),
        (Load::Plugin(_), _) => (State::Ok, format!("operations table, {load}"), ""),
        (Load::Preload(_), Binding::ByName) => (State::Ok, format!("by name, {load}"), ""),
        (Load::Preload(_), Binding::Inside) => (
            State::Ok,
            format!("operations table from uct_md_open on, {load}"),
            "",
        ),
        (Load::Preload(_), Binding::Closed) => (
            State::Fix,
            format!("none: this UCX binds its functions inside, {load}"),
            "from UCX 1.22 on set UCX_PLUGIN_PATH; otherwise use another build of UCX",
        ),
        (Load::Preload(_), Binding::Unknown(reason)) => (
            State::Note,
            format!("unknown, {load}: {reason}"),
            "run with UCX_XGVMI_LOG_LEVEL=debug: a line says how UCX calls the library",
        ),
    };
    Finding::new(need, state, found, advice)
}

/// UCC is required only for offloaded collectives, so its absence is not an error.
fn collectives(found: &Ucc) -> Finding {
    let need = "UCC";
    let note = |advice| Finding::new(need, State::Note, found.to_string(), advice);
    match found {
        Ucc::Absent(_) => note("only offloaded collectives need it: see docs/UCC.md"),
        Ucc::Alone { .. } => {
            note("link the component there, or make a directory of links: see docs/UCC.md")
        }
        Ucc::Refused { .. } => note("use UCC 1.5 to 1.9"),
        Ucc::Ready {
            configured: false, ..
        } => note("set UCC_TL_XGVMI_CONFIG or UCC_TL_XGVMI_SERVICES for all ranks"),
        Ucc::Ready { .. } => Finding::ok(need, found.to_string()),
    }
}

/// Calls to accelerators. A machine without them has one line.
fn calls(found: &Accelerators) -> Vec<Finding> {
    let library = match &found.library {
        Ok(()) => Finding::ok("NAAICE", "libnaaice.so"),
        Err(error) => {
            let advice = "only calls to accelerators need it: see docs/NAAICE.md";
            Finding::new("NAAICE", State::Note, format!("none: {error}"), advice)
        }
    };
    if found.library.is_err() && found.spec == Spec::Absent {
        return vec![library];
    }
    vec![library, connections(found)]
        .into_iter()
        .chain(specification(&found.spec))
        .collect()
}

/// The device of RDMA connections. Services on the own DPU do not need it.
fn connections(found: &Accelerators) -> Finding {
    let need = "rdma_cm";
    let Err(reason) = &found.manager else {
        return Finding::ok(need, "/dev/infiniband/rdma_cm");
    };
    let is_needed = match &found.spec {
        Spec::Tried(tried, _) => tried.iter().any(|tried| tried.scheme == Scheme::Verbs),
        Spec::Absent | Spec::Faulty(_) => false,
    };
    let advice = "load the kernel module rdma_ucm; in a container, add the device";
    let state = if is_needed { State::Fix } else { State::Note };
    Finding::new(need, state, reason, advice)
}

fn specification(spec: &Spec) -> Vec<Finding> {
    let need = "NAA_SPEC";
    let (tried, others) = match spec {
        Spec::Absent => {
            let advice =
                "set it to ADDRESS:[PORT]:FUNCTION:INPUTS for programs that call accelerators";
            return vec![Finding::new(need, State::Note, "not set", advice)];
        }
        Spec::Faulty(fault) => {
            return vec![Finding::new(need, State::Fix, fault, "correct this entry")];
        }
        Spec::Tried(tried, others) => (tried, *others),
    };
    let mut findings: Vec<Finding> = tried.iter().map(accelerator).collect();
    if others > 0 {
        let found = format!("{others} more entries were not tried");
        findings.push(Finding::ok(need, found));
    }
    findings
}

fn accelerator(tried: &Tried) -> Finding {
    let need = "accelerator";
    let codes: Vec<String> = tried.functions.iter().map(u8::to_string).collect();
    let name = format!("{}, functions {}", tried.name, codes.join(" "));
    match (&tried.reached, tried.scheme) {
        (Ok(()), Scheme::Dpu) => Finding::ok(need, format!("{name}: the service listens")),
        (Ok(()), Scheme::Verbs) => Finding::ok(need, format!("{name}: there is an RDMA route")),
        (Err(reason), _) => {
            let advice = "start the accelerator there, or correct NAA_SPEC";
            Finding::new(need, State::Fix, format!("{name}: {reason}"), advice)
        }
    }
}

/// Limit of pinned memory in bytes. `None` means unlimited.
fn lock_limit() -> Option<u64> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the structure is writable.
    let status = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) };
    (status != 0 || limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

fn memory_lock(limit: Option<u64>) -> Finding {
    match limit {
        None => Finding::ok("ulimit -l", "unlimited"),
        Some(bytes) => Finding::new(
            "ulimit -l",
            State::Note,
            format!("{} KiB", bytes >> 10),
            "registered memory is pinned: set memlock to unlimited in limits.conf, or run as root",
        ),
    }
}

/// The adapters' device files: `uverbs0` and so on.
fn device_files(dir: &Path) -> Finding {
    let need = "device files";
    let is_verbs = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default();
        name.to_string_lossy().starts_with("uverbs")
    };
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut files: Vec<_> = entries.map(|entry| entry.path()).filter(is_verbs).collect();
    files.sort();
    let shown = |files: &[PathBuf]| {
        let names: Vec<_> = files
            .iter()
            .map(|file| file.display().to_string())
            .collect();
        names.join(" ")
    };
    if files.is_empty() {
        let advice =
            "load the kernel modules mlx5_ib and ib_uverbs; in a container, add /dev/infiniband";
        let found = format!("no uverbs in {}", dir.display());
        return Finding::new(need, State::Fix, found, advice);
    }
    let (open, closed): (Vec<_>, Vec<_>) = files.into_iter().partition(|file| may_use(file));
    if closed.is_empty() {
        return Finding::ok(need, shown(&open));
    }
    let state = if open.is_empty() {
        State::Fix
    } else {
        State::Note
    };
    let advice = "give this user read and write permission";
    Finding::new(
        need,
        state,
        format!("no access to {}", shown(&closed)),
        advice,
    )
}

fn adapters(devices: &[Device]) -> Vec<Finding> {
    if devices.is_empty() {
        let advice = "no mlx5 adapter is visible to libibverbs; see ibv_devices";
        return vec![Finding::new("adapter", State::Fix, "none", advice)];
    }
    devices.iter().map(adapter).collect()
}

fn adapter(device: &Device) -> Finding {
    let (need, firmware) = (device.name.as_str(), &device.firmware);
    let Capability {
        vhca_id,
        second_page,
        alias,
        allow,
    } = match &device.answer {
        Ok(capability) => *capability,
        Err(error) => {
            let advice = "use kernel 5.0 or later, and give this user permission to use DEVX";
            let found = format!("firmware {firmware}, {error}");
            return Finding::new(need, State::Fix, found, advice);
        }
    };
    let lacks: Vec<&str> = [
        (second_page, "hca_cap_2"),
        (alias, "cross_vhca_object_to_object_supported of mkeys"),
        (allow, "allowed_object_for_other_vhca_access of mkeys"),
    ]
    .into_iter()
    .filter_map(|(has, name)| (!has).then_some(name))
    .collect();
    let found = format!("firmware {firmware}, vhca_id {vhca_id:#x}");
    match lacks.as_slice() {
        [] => Finding::ok(need, format!("{found}, cross-GVMI keys are supported")),
        lacks => {
            let advice = "use a BlueField-2 or -3 in DPU mode with current firmware";
            let found = format!("{found}, lacks {}", lacks.join(" and "));
            Finding::new(need, State::Fix, found, advice)
        }
    }
}

fn shared_memory(dir: &Path) -> Finding {
    match may_use(dir) {
        true => Finding::ok("xgvmi stat", format!("{} is writable", dir.display())),
        false => Finding::new(
            "xgvmi stat",
            State::Note,
            format!("{} is not writable", dir.display()),
            "xgvmi stat shows nothing; everything else works",
        ),
    }
}

fn as_table(findings: &[Finding]) -> String {
    let mut text = String::new();
    for finding in findings {
        let (state, need, found) = (finding.state.name(), &finding.need, &finding.found);
        text.push_str(&format!("{state:<5}{need:<13} {found}\n"));
        if !finding.advice.is_empty() {
            text.push_str(&format!("{:19}-> {}\n", "", finding.advice));
        }
    }
    text
}

fn as_json(findings: &[Finding]) -> String {
    let rows: Vec<_> = findings
        .iter()
        .map(|finding| {
            json!({
                "need": finding.need, "state": finding.state.name(),
                "found": finding.found, "advice": finding.advice,
            })
        })
        .collect();
    json!({ "findings": rows }).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(finding: &Finding, state: State, part: &str) {
        assert_eq!(finding.state, state, "{finding:?}");
        assert!(finding.found.contains(part), "{finding:?}");
        assert_eq!(finding.advice.is_empty(), state == State::Ok, "{finding:?}");
    }

    #[test]
    fn each_ucx_is_judged_by_its_version() {
        let of = |version| ucx(Ok::<_, String>(version));
        check(&of("1.18.1"), State::Ok, "LD_PRELOAD");
        check(&of("1.23.0"), State::Ok, "UCX_PLUGIN_PATH");
        check(&of("1.24.0"), State::Note, "unknown version");
        check(&of("1.13.1"), State::Fix, "too old");
        check(&ucx(Err("cannot open libucp")), State::Fix, "cannot open");
    }

    #[test]
    fn the_way_of_the_calls_is_named() {
        let preload = Load::Preload("/opt/library.so".into());
        let plugin = Load::Plugin("/opt/library.so".into());
        let unknown = Binding::Unknown("no access".to_owned());
        for (load, binding, state, part) in [
            (
                &preload,
                Binding::ByName,
                State::Ok,
                "by name, LD_PRELOAD=/opt/",
            ),
            (&preload, Binding::Inside, State::Ok, "from uct_md_open on"),
            (
                &preload,
                Binding::Closed,
                State::Fix,
                "none: this UCX binds",
            ),
            (&preload, unknown.clone(), State::Note, "no access"),
            (
                &plugin,
                unknown,
                State::Ok,
                "operations table, plugin /opt/",
            ),
            (
                &plugin,
                Binding::NoModule,
                State::Fix,
                "none: this UCX has no",
            ),
            (
                &Load::Absent,
                Binding::ByName,
                State::Note,
                "none: the library is not",
            ),
        ] {
            check(&hooks(load, &binding), state, part);
        }
    }

    #[test]
    fn the_firmware_is_judged_by_its_bits() {
        let device = |answer| Device {
            name: "mlx5_2".to_owned(),
            firmware: "32.43.1014".to_owned(),
            answer,
        };
        let capability = |alias, allow| Capability {
            vhca_id: 0x21,
            second_page: true,
            alias,
            allow,
        };
        let of = |alias, allow| adapter(&device(Ok(capability(alias, allow))));
        check(&of(true, true), State::Ok, "vhca_id 0x21, cross-GVMI keys");
        check(&of(false, true), State::Fix, "lacks cross_vhca_object");
        check(&of(true, false), State::Fix, "lacks allowed_object");
        let refused = device(Err("cannot be opened".to_owned()));
        check(&adapter(&refused), State::Fix, "cannot be opened");
        check(&adapters(&[])[0], State::Fix, "none");
    }

    #[test]
    fn rights_are_looked_at() {
        check(&memory_lock(None), State::Ok, "unlimited");
        check(&memory_lock(Some(8 << 20)), State::Note, "8192 KiB");
        let dir = tempfile::tempdir().expect("a directory");
        check(&device_files(dir.path()), State::Fix, "no uverbs");
        fs::write(dir.path().join("rdma_cm"), "").expect("a file");
        check(&device_files(dir.path()), State::Fix, "no uverbs");
        fs::write(dir.path().join("uverbs0"), "").expect("a file");
        check(&device_files(dir.path()), State::Ok, "uverbs0");
        check(&shared_memory(dir.path()), State::Ok, "is writable");
        check(
            &shared_memory(&dir.path().join("none")),
            State::Note,
            "none",
        );
    }

    #[test]
    fn accelerators_are_judged_if_the_machine_calls_them() {
        let found = |library: Result<(), &str>, manager: Result<(), &str>, spec| Accelerators {
            library: library.map_err(str::to_owned),
            manager: manager.map_err(str::to_owned),
            spec,
        };
        let tried = |scheme, reached: Result<(), &str>| {
            let tried = Tried {
                name: "a:1".to_owned(),
                functions: vec![1, 2],
                scheme,
                reached: reached.map_err(str::to_owned),
            };
            Spec::Tried(vec![tried], 0)
        };
        let none = calls(&found(Err("no such file"), Err("no device"), Spec::Absent));
        check(&none[0], State::Note, "no such file");
        assert_eq!(none.len(), 1, "a machine without accelerators has one line");
        let unset = calls(&found(Ok(()), Err("no device"), Spec::Absent));
        check(&unset[0], State::Ok, "libnaaice.so");
        check(&unset[1], State::Note, "no device");
        check(&unset[2], State::Note, "not set");
        let faulty = Spec::Faulty("entry 2".to_owned());
        check(
            &calls(&found(Ok(()), Ok(()), faulty))[2],
            State::Fix,
            "entry 2",
        );
        let verbs = calls(&found(
            Ok(()),
            Err("no device"),
            tried(Scheme::Verbs, Ok(())),
        ));
        check(&verbs[1], State::Fix, "no device");
        check(
            &verbs[2],
            State::Ok,
            "a:1, functions 1 2: there is an RDMA route",
        );
        let dpu = calls(&found(
            Ok(()),
            Err("no device"),
            tried(Scheme::Dpu, Err("refused")),
        ));
        check(&dpu[1], State::Note, "no device");
        check(&dpu[2], State::Fix, "refused");
    }

    #[test]
    fn findings_are_written_for_man_and_machine() {
        let findings = [memory_lock(None), memory_lock(Some(1024))];
        let table = as_table(&findings);
        assert!(
            table.starts_with("OK   ulimit -l     unlimited\nNOTE "),
            "{table}"
        );
        assert_eq!(table.matches("-> ").count(), 1, "{table}");
        let value: serde_json::Value = serde_json::from_str(&as_json(&findings)).expect("JSON");
        assert_eq!(value["findings"][1]["state"], "NOTE");
    }
}
