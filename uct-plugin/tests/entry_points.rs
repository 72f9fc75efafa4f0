//! The ways of redirecting calls, tested with a module in the form of UCX's mlx5 that logs its
//! calls. There is no device, so every call reaches the module's own operations, with the same
//! arguments and results as without the library.

#[allow(dead_code, reason = "each test uses its part of it")]
mod common;

use std::fs;
use std::path::PathBuf;

use tempfile::TempDir;

/// A directory with the program, modules and copies of the library.
struct Bench {
    dir: TempDir,
    program: PathBuf,
}

/// Output of a run: the lines of the program and the modules, and the library's log.
#[derive(Debug, PartialEq, Eq)]
struct Said {
    calls: Vec<String>,
    log: Vec<String>,
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let program = dir.path().join("program");
        common::compile("program.c", &program, &["-ldl"]);
        Self { dir, program }
    }

    /// A module in its own directory, built with these definitions.
    fn module(&self, name: &str, definitions: &[&str]) -> String {
        let dir = self.dir.path().join(name);
        fs::create_dir_all(&dir).expect("a directory");
        let file = dir.join("libuct_ib_mlx5.so.0");
        let name = format!("-DNAME=\"{name}\"");
        let mut flags = vec!["-shared", "-fPIC", "-Wl,-soname,libuct_ib_mlx5.so.0", &name];
        flags.extend(definitions);
        common::compile("module.c", &file, &flags);
        file.to_string_lossy().into_owned()
    }

    /// A libuct, and a program that opens memory domains through it.
    fn through_libuct(&mut self) {
        let libuct = self.dir.path().join("libuct.so.0");
        let shared = ["-shared", "-fPIC", "-Wl,-soname,libuct.so.0"];
        common::compile("libuct.c", &libuct, &shared);
        self.program = self.dir.path().join("program through libuct");
        let libraries = self.dir.path().to_string_lossy();
        let path = format!("-Wl,-rpath,{libraries}");
        let flags = [
            "-DLIBUCT",
            "-L",
            &libraries,
            "-l:libuct.so.0",
            &path,
            "-ldl",
        ];
        common::compile("program.c", &self.program, &flags);
    }

    /// A module that depends on libuct and was linked with these options.
    fn module_of_libuct(&self, name: &str, options: &[&str]) -> String {
        let libraries = self.dir.path().to_string_lossy();
        let path = format!("-Wl,-rpath,{libraries}");
        let needed = [
            "-Wl,--no-as-needed",
            "-L",
            &libraries,
            "-l:libuct.so.0",
            &path,
        ];
        self.module(name, &[&needed[..], options].concat())
    }

    /// Another file that contains the library.
    fn copy_of_library(&self) -> String {
        let copy = self.dir.path().join("libuct_ib_mlx5_xgvmi.so.0");
        fs::copy(common::library(), &copy).expect("a copy");
        copy.to_string_lossy().into_owned()
    }

    /// The library's lines before UCX's log is known.
    fn errors(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Vec<String> {
        let output = common::run(&self.program, arguments, variables);
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        text.lines().map(str::to_owned).collect()
    }

    fn run(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Said {
        let mut all = vec![("UCX_XGVMI_LOG_LEVEL", "debug")];
        all.extend(variables);
        let text = common::stdout(&self.program, arguments, &all);
        let (log, calls) = text
            .lines()
            .map(str::to_owned)
            .partition(|line| line.starts_with("log "));
        Said { calls, log }
    }
}

fn library() -> String {
    common::library().to_string_lossy().into_owned()
}

/// Asserts that the calls equal those of a run without the library, and that the log's lines
/// contain these texts, in this order.
#[track_caller]
fn check(said: &Said, plain: &Said, log: &[&str]) {
    assert_eq!(said.calls, plain.calls);
    assert!(plain.log.is_empty());
    let as_expected = said.log.len() == log.len()
        && said
            .log
            .iter()
            .zip(log)
            .all(|(line, part)| line.contains(part));
    assert!(as_expected, "{:#?} instead of {log:#?}", said.log);
}

/// The library's message without an operations table.
const NO_TABLE: &str = "has no operations table named uct_ib_md_ops_devx_entry";

/// The library's message at the first export or import, because the module does not load
/// libibverbs.
const NO_DEVICE: &str = "everything is left to UCX: libibverbs or libmlx5 is too old";

#[test]
fn a_preload_is_called_by_name() {
    let bench = Bench::new();
    let module = bench.module("ucx", &[]);
    let plain = bench.run(&[&module], &[]);
    assert_eq!(
        plain
            .calls
            .iter()
            .filter(|line| line.starts_with("ucx "))
            .count(),
        15
    );
    let said = bench.run(&[&module], &[("LD_PRELOAD", &library())]);
    check(&said, &plain, &["calls this library by name", NO_DEVICE]);
}

/// The library's message at the end of a process whose calls did not reach it.
const UNUSED: &str = "nothing was served: UCX's calls do not reach this library";

#[test]
fn a_preload_serves_a_ucx_that_is_bound_inside() {
    let mut bench = Bench::new();
    bench.through_libuct();
    let preload = library();
    for options in ["-Wl,-Bsymbolic-functions", "-Wl,-Bsymbolic"] {
        let module = bench.module_of_libuct(options, &[options]);
        let plain = bench.run(&[&module], &[]);
        let said = bench.run(&[&module], &[("LD_PRELOAD", &preload)]);
        let patched = "through its patched operations table";
        check(&said, &plain, &[patched, NO_DEVICE]);
        let errors = bench.errors(&[&module], &[("LD_PRELOAD", &preload)]);
        assert!(errors.is_empty(), "{errors:?}");
    }
    // Without that option the preload is called by name, through the same function.
    let module = bench.module_of_libuct("by name", &[]);
    let plain = bench.run(&[&module], &[]);
    let said = bench.run(&[&module], &[("LD_PRELOAD", &preload)]);
    check(&said, &plain, &["calls this library by name", NO_DEVICE]);
    // Each copy of UCX has its own operations.
    let modules =
        ["one", "two"].map(|name| bench.module_of_libuct(name, &["-Wl,-Bsymbolic-functions"]));
    let [one, two] = modules.each_ref().map(String::as_str);
    let plain = bench.run(&[one, two, one], &[]);
    let said = bench.run(&[one, two, one], &[("LD_PRELOAD", &preload)]);
    assert_eq!(said.calls, plain.calls);
    let patched = |line: &&String| line.contains("patched operations table");
    assert_eq!(said.log.iter().filter(patched).count(), 2, "{said:#?}");
}

/// Programs find the functions of the preloaded file, so that file serves.
#[test]
fn a_preload_serves_before_a_plugin_in_a_ucx_that_is_bound_inside() {
    let mut bench = Bench::new();
    bench.through_libuct();
    let module = bench.module_of_libuct("ucx", &["-Wl,-Bsymbolic-functions"]);
    let plain = bench.run(&[&module, &module], &[]);
    let other_file = format!("+{}", bench.copy_of_library());
    // The module is loaded, then the plugin, and then a memory domain is opened.
    let said = bench.run(
        &["~", &module, &other_file, &module, &module],
        &[("LD_PRELOAD", &library())],
    );
    let lines = [
        "another copy of this library",
        "through its patched operations table",
        NO_DEVICE,
    ];
    check(&said, &plain, &lines);
}

#[test]
fn an_operations_table_in_constant_memory_is_served_or_reported() {
    let mut bench = Bench::new();
    bench.through_libuct();
    let preload = library();
    // The loader protects this table after it has filled it.
    let protected = [
        "-Wl,-Bsymbolic-functions",
        "-Wl,-z,relro,-z,now",
        "-DCONSTANT_TABLE",
    ];
    let module = bench.module_of_libuct("protected", &protected);
    let plain = bench.run(&[&module], &[]);
    let said = bench.run(&[&module], &[("LD_PRELOAD", &preload)]);
    check(
        &said,
        &plain,
        &["through its patched operations table", NO_DEVICE],
    );
}

#[test]
fn a_plugin_patches_the_table() {
    let bench = Bench::new();
    let module = bench.module("ucx", &[]);
    let plain = bench.run(&[&module], &[]);
    let plugin = format!("+{}", library());
    // Loaded after the module was opened, as UCX does it; before; and after an unload.
    let late = bench.run(&[&module, &plugin], &[]);
    check(
        &late,
        &plain,
        &["through its patched operations table", NO_DEVICE],
    );
    let early = bench.run(&[&plugin, &module], &[]);
    check(&early, &plain, &[]);
    let errors = bench.errors(&[&plugin, &module], &[]);
    let [error] = errors.as_slice() else {
        panic!("one warning is expected: {errors:?}");
    };
    assert!(
        error.contains("WARN") && error.contains(UNUSED) && error.contains("LD_PRELOAD"),
        "{error}"
    );
    let off = ("UCX_XGVMI_ENABLE", "n");
    assert!(bench.errors(&[&plugin, &module], &[off]).is_empty());
    assert!(bench.errors(&[&plugin], &[]).is_empty());
    assert!(bench.errors(&[&module, &plugin], &[]).is_empty());
    let twice = bench.run(&[&module, &plugin, "-", &module], &[]);
    let plain = bench.run(&[&module, &module], &[]);
    check(
        &twice,
        &plain,
        &["through its patched operations table", NO_DEVICE],
    );
}

#[test]
fn a_patched_ucx_is_registered_with() {
    let bench = Bench::new();
    let plugin = format!("+{}", library());
    for (answer, log) in [
        ("0", &["its key-provider table", NO_DEVICE][..]),
        // UCS_ERR_ALREADY_EXISTS: another provider is registered; UCS_ERR_UNSUPPORTED: another
        // table.
        ("(-18)", &["already has another key provider"]),
        (
            "(-22)",
            &[
                "refuses operations of version 1",
                "its patched operations table",
                NO_DEVICE,
            ],
        ),
    ] {
        let definition = format!("-DPROVIDERS={answer}");
        let module = bench.module("ucx", &[&definition]);
        let plain = bench.run(&[&module], &[]);
        check(&bench.run(&[&module, &plugin], &[]), &plain, log);
    }
    // The loader still selects a preload by name, and the preload does not register in addition.
    let module = bench.module("ucx", &["-DPROVIDERS=0"]);
    let plain = bench.run(&[&module], &[]);
    let said = bench.run(&[&module, &plugin], &[("LD_PRELOAD", &library())]);
    check(&said, &plain, &["calls this library by name", NO_DEVICE]);
}

#[test]
fn two_entry_points_at_once_serve_once() {
    let bench = Bench::new();
    let module = bench.module("ucx", &[]);
    let plain = bench.run(&[&module], &[]);
    let same_file = format!("+{}", library());
    let said = bench.run(&[&module, &same_file], &[("LD_PRELOAD", &library())]);
    check(&said, &plain, &["calls this library by name", NO_DEVICE]);
    let other_file = format!("+{}", bench.copy_of_library());
    let said = bench.run(&[&module, &other_file], &[("LD_PRELOAD", &library())]);
    check(
        &said,
        &plain,
        &[
            "another copy of this library",
            "calls this library by name",
            NO_DEVICE,
        ],
    );
}

#[test]
fn each_copy_of_ucx_keeps_its_own_operations() {
    let bench = Bench::new();
    let modules = ["one", "two", "three"].map(|name| bench.module(name, &[]));
    let [one, two, three] = modules.each_ref().map(String::as_str);
    let order = [one, two, one, three, two];
    let plain = bench.run(&order, &[]);
    let said = bench.run(&order, &[("LD_PRELOAD", &library())]);
    assert_eq!(said.calls, plain.calls);
    let by_name = said
        .log
        .iter()
        .filter(|line| line.contains("calls this library by name"));
    assert_eq!(by_name.count(), 3);
    let plugin = format!("+{}", library());
    let said = bench.run(&[one, &plugin, one, two], &[]);
    let plain = bench.run(&[one, one, two], &[]);
    assert_eq!(said.calls, plain.calls);
}

#[test]
fn an_unexpected_ucx_is_left_alone() {
    let bench = Bench::new();
    let preload = library();
    for (definition, log) in [
        ("-DWRONG_SLOT", "slot 8 of the operations table holds"),
        (
            "-DKEY_BYTES=10",
            "exported keys have 10 bytes instead of 6 or 14",
        ),
        ("-DWRONG_PD", "the protection domain of memory domain"),
        ("-DOTHER_ENTRY=uct_ib_mlx5_devx_entry", NO_TABLE),
        ("-DSHORT_ENTRY", NO_TABLE),
    ] {
        let module = bench.module("ucx", &[definition]);
        let plain = bench.run(&[&module], &[]);
        let quiet = [
            ("LD_PRELOAD", preload.as_str()),
            ("UCX_XGVMI_LOG_LEVEL", "warn"),
        ];
        check(&bench.run(&[&module], &quiet), &plain, &[log]);
    }
    let module = bench.module("ucx", &["-DNO_KEYS"]);
    let plain = bench.run(&[&module], &[]);
    let said = bench.run(&[&module], &[("LD_PRELOAD", &preload)]);
    check(&said, &plain, &["calls this library by name"]);
}

#[test]
fn it_can_be_switched_off() {
    let bench = Bench::new();
    let module = bench.module("ucx", &[]);
    let plain = bench.run(&[&module], &[]);
    let off = ("UCX_XGVMI_ENABLE", "n");
    let said = bench.run(&[&module], &[("LD_PRELOAD", &library()), off]);
    check(&said, &plain, &["disabled"]);
    let said = bench.run(&[&module, &format!("+{}", library())], &[off]);
    check(&said, &plain, &["disabled"]);
}

#[test]
fn a_key_file_that_is_no_secret_switches_it_off() {
    let bench = Bench::new();
    let module = bench.module("ucx", &[]);
    let plain = bench.run(&[&module], &[]);
    let preload = library();
    let missing = [
        ("LD_PRELOAD", preload.as_str()),
        ("UCX_XGVMI_KEY_FILE", "/no/such/key"),
    ];
    let off = [
        "UCX_XGVMI_KEY_FILE: cannot read /no/such/key: No such file",
        "disabled",
    ];
    check(&bench.run(&[&module], &missing), &plain, &off);
}

#[test]
fn short_keys_are_known_too() {
    let bench = Bench::new();
    let module = bench.module("ucx", &["-DKEY_BYTES=6"]);
    let plain = bench.run(&[&module], &[]);
    let said = bench.run(&[&module], &[("LD_PRELOAD", &library())]);
    check(&said, &plain, &["calls this library by name", NO_DEVICE]);
}
