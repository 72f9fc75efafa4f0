//! The library in stock UCX's own `ucx_info`, on a machine without a device: it adds its options
//! and changes nothing.

#[allow(dead_code, reason = "each test uses its part of it")]
mod common;

use std::path::PathBuf;

use common::Stock;

/// `ucx_info` with and without the library.
struct UcxInfo {
    program: PathBuf,
    libraries: String,
    library: String,
}

impl UcxInfo {
    /// Prints a line to standard output if there is no UCX.
    fn find(test: &str) -> Option<Self> {
        let Some(stock) = Stock::find() else {
            common::skip(test, "no stock UCX: cargo xtask setup");
            return None;
        };
        Some(Self {
            program: stock.tools.join("ucx_info"),
            libraries: stock.libraries.to_string_lossy().into_owned(),
            library: common::library().to_string_lossy().into_owned(),
        })
    }

    fn plain(&self, arguments: &[&str], variables: &[(&str, &str)]) -> String {
        let mut all = vec![("LD_LIBRARY_PATH", self.libraries.as_str())];
        all.extend(variables);
        common::stdout(&self.program, arguments, &all)
    }

    /// The library's output before UCX's log is open.
    fn errors(&self, arguments: &[&str], variables: &[(&str, &str)]) -> String {
        let mut all = vec![
            ("LD_LIBRARY_PATH", self.libraries.as_str()),
            ("LD_PRELOAD", self.library.as_str()),
        ];
        all.extend(variables);
        let output = common::run(&self.program, arguments, &all);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    fn loaded(&self, arguments: &[&str], variables: &[(&str, &str)]) -> String {
        let mut all = vec![("LD_PRELOAD", self.library.as_str())];
        all.extend(variables);
        self.plain(arguments, &all)
    }
}

/// Lines about our options.
fn ours(text: &str) -> Vec<&str> {
    text.lines()
        .filter(|line| line.starts_with("UCX_XGVMI_"))
        .collect()
}

#[test]
fn options_are_listed_with_their_values() {
    let Some(ucx_info) = UcxInfo::find("options_are_listed_with_their_values") else {
        return;
    };
    assert!(ours(&ucx_info.plain(&["-c"], &[])).is_empty());
    let listed = ucx_info.loaded(&["-c"], &[]);
    // The library's own tests check their names and defaults.
    assert_eq!(ours(&listed).len(), 27);
    assert_eq!(ours(&listed)[0], "UCX_XGVMI_ENABLE=y");
    let changed = ucx_info.loaded(
        &["-c"],
        &[
            ("UCX_XGVMI_POOL_MAX", "77"),
            ("UCX_XGVMI_LOG_LEVEL", "debug"),
        ],
    );
    assert!(changed.contains("UCX_XGVMI_POOL_MAX=77\n"), "{changed}");
    assert!(changed.contains("UCX_XGVMI_LOG_LEVEL=debug\n"), "{changed}");
    let variables = [
        ("UCX_XGVMI_POLL_TIMEOUT", "20ms"),
        ("UCX_XGVMI_INVALIDATE", "chained"),
        ("UCX_XGVMI_KEY_FILE", "/etc/job.key"),
    ];
    let changed = ucx_info.loaded(&["-c"], &variables);
    assert!(
        changed.contains("UCX_XGVMI_POLL_TIMEOUT=20000.00us\n"),
        "{changed}"
    );
    assert!(
        changed.contains("UCX_XGVMI_INVALIDATE=chained\n"),
        "{changed}"
    );
    assert!(
        changed.contains("UCX_XGVMI_KEY_FILE=/etc/job.key\n"),
        "{changed}"
    );
}

#[test]
fn a_file_sets_them_as_well() {
    let Some(ucx_info) = UcxInfo::find("a_file_sets_them_as_well") else {
        return;
    };
    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = dir.path().join("ucx.conf");
    let lines = "UCX_XGVMI_POOL_MAX=78\nUCX_XGVMI_POOL_ORDER=lifo\n";
    std::fs::write(file, lines).expect("a file");
    let dir = dir.path().to_string_lossy();
    let listed = ucx_info.loaded(&["-c"], &[("UCX_CONFIG_DIR", &dir)]);
    assert!(listed.contains("UCX_XGVMI_POOL_MAX=78\n"), "{listed}");
    assert!(listed.contains("UCX_XGVMI_POOL_ORDER=lifo\n"), "{listed}");
    // The environment takes precedence.
    let variables = [("UCX_CONFIG_DIR", &*dir), ("UCX_XGVMI_POOL_MAX", "79")];
    let listed = ucx_info.loaded(&["-c"], &variables);
    assert!(listed.contains("UCX_XGVMI_POOL_MAX=79\n"), "{listed}");
}

#[test]
fn a_value_out_of_range_is_reported_too() {
    let Some(ucx_info) = UcxInfo::find("a_value_out_of_range_is_reported_too") else {
        return;
    };
    for (name, value, expected) in [
        ("POOL_MAX", "0", "Expected: 1 to 1048576; 1 is used"),
        (
            "POOL_INIT",
            "5000",
            "Expected: at most that of POOL_MAX; 4096 is used",
        ),
        ("BATCH", "20000", "Expected: 1 to 16384; 16384 is used"),
        ("POLL_TIMEOUT", "0", "Expected: more than 0; 5s is used"),
        (
            "ALIAS_TTL",
            "-1s",
            "cannot convert float seconds to Duration",
        ),
    ] {
        let variable = format!("UCX_XGVMI_{name}");
        let said = ucx_info.errors(&["-c"], &[(&variable, value)]);
        let line = said
            .lines()
            .find(|line| line.contains(&format!("Invalid value for {name}")));
        let line = line.unwrap_or_else(|| panic!("no line of {name}: {said}"));
        assert!(line.contains(expected), "{line}");
    }
}

#[test]
fn a_bad_value_is_reported_in_ucx_style() {
    let Some(ucx_info) = UcxInfo::find("a_bad_value_is_reported_in_ucx_style") else {
        return;
    };
    let text = ucx_info.loaded(&["-c"], &[("UCX_XGVMI_POOL_MAX", "many")]);
    assert!(
        text.contains("Invalid value for POOL_MAX: 'many'. Expected: unsigned integer"),
        "{text}"
    );
}

#[test]
fn a_variable_is_used_and_a_typo_gets_a_hint() {
    let test = "a_variable_is_used_and_a_typo_gets_a_hint";
    let (Some(stock), Some(mut init)) = (Stock::find(), UcxInfo::find(test)) else {
        return;
    };
    let dir = tempfile::tempdir().expect("a temporary directory");
    init.program = dir.path().join("init");
    let [include, libraries] =
        [&stock.include, &stock.libraries].map(|path| path.to_string_lossy());
    common::compile(
        "init.c",
        &init.program,
        &[
            "-I",
            &include,
            "-L",
            &libraries,
            // libucp finds its dependencies itself.
            "-Wl,--unresolved-symbols=ignore-in-shared-libs",
            "-l:libucp.so.0",
        ],
    );
    let right = [("UCX_XGVMI_POOL_MAX", "77")];
    let text = init.plain(&[], &right);
    assert!(
        text.contains("unused environment variable: UCX_XGVMI_POOL_MAX"),
        "{text}"
    );
    assert_eq!(init.loaded(&[], &right), "done\n");
    let text = init.loaded(&[], &[("UCX_XGVMI_POLMAX", "77")]);
    assert!(
        text.contains("UCX_XGVMI_POLMAX (maybe: UCX_XGVMI_POOL_MAX?)"),
        "{text}"
    );
}

#[test]
fn devices_and_transports_stay_as_they_are() {
    let Some(ucx_info) = UcxInfo::find("devices_and_transports_stay_as_they_are") else {
        return;
    };
    // Amounts of free memory vary; the list of resources is constant.
    let things = |text: String| {
        let is_thing = |line: &&str| {
            [
                "Memory domain:",
                "Component:",
                "Transport:",
                "Device:",
                "Connection manager:",
            ]
            .iter()
            .any(|word| line.contains(word))
        };
        text.lines()
            .filter(is_thing)
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let plain = things(ucx_info.plain(&["-d"], &[]));
    assert!(plain.len() > 3, "{plain:?}");
    assert_eq!(plain, things(ucx_info.loaded(&["-d"], &[])));
}
