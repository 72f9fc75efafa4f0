//! The counter file in processes that do something unusual: a full `/dev/shm`, and a fork. Each test has a `/dev/shm` of
//! its own, in a mount namespace.

#[allow(dead_code, reason = "each test uses its part of it")]
mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

/// A program and a module without a device, whose exports UCX handles itself.
struct Site {
    dir: TempDir,
    program: PathBuf,
    module: String,
}

impl Site {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let program = dir.path().join("program");
        common::compile("program.c", &program, &["-ldl"]);
        let module = dir.path().join("libuct_ib_mlx5.so.0");
        let flags = ["-shared", "-fPIC", "-Wl,-soname,libuct_ib_mlx5.so.0"];
        common::compile("module.c", &module, &flags);
        let module = module.to_string_lossy().into_owned();
        Self {
            dir,
            program,
            module,
        }
    }

    /// Runs the program with the library. `prepare` is a shell command for the new `/dev/shm`. `None` if this user may
    /// not mount it.
    fn run(&self, prepare: &str, arguments: &[&str]) -> Option<Output> {
        let mount = format!("mount -t tmpfs -o size=1m none /dev/shm && {prepare} || exit 99");
        let script = format!("{mount}; LD_PRELOAD={} exec \"$@\"", library());
        let mut command = Command::new("timeout");
        command.args(["60", "unshare", "-rm", "sh", "-c", &script, "sh"]);
        command.env("UCX_XGVMI_LOG_LEVEL", "diag");
        let output = command.arg(&self.program).args(arguments).output();
        let output = output.expect("timeout runs");
        let is_refused = String::from_utf8_lossy(&output.stderr).contains("unshare:");
        (!is_refused && output.status.code() != Some(99)).then_some(output)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

fn library() -> String {
    common::library().to_string_lossy().into_owned()
}

const NO_NAMESPACE: &str = "this user may not mount a file system in a namespace of its own";

#[test]
fn a_full_shared_memory_does_not_end_the_program() {
    let site = Site::new();
    // No block of the file system is free, but new files of no size are possible.
    let fill = "{ cat /dev/zero > /dev/shm/full 2> /dev/null || true; }";
    let Some(output) = site.run(fill, &[&site.module, "@/dev/null"]) else {
        common::skip(
            "a_full_shared_memory_does_not_end_the_program",
            NO_NAMESPACE,
        );
        return;
    };
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}: {text}", output.status);
    assert!(text.contains("no counters for xgvmi stat"), "{text}");
    assert!(text.contains("mem_dereg imported status 0"), "{text}");
}

/// The non-zero words of a counter file.
fn words(path: &Path) -> usize {
    let bytes = fs::read(path).expect("a copy");
    bytes
        .chunks(8)
        .filter(|word| word.iter().any(|&byte| byte != 0))
        .count()
}

#[test]
fn a_forked_child_counts_in_a_file_of_its_own() {
    let site = Site::new();
    let [before, child, after] = ["before", "child", "after"].map(|name| site.file(name));
    let copy = |path: &Path| format!("@{}", path.display());
    let open = format!("={}", site.module);
    let output = site.run(
        "true",
        &[
            &open,
            &copy(&before),
            "#",
            "*",
            "#",
            &open,
            "#",
            &copy(&child),
            "/",
            &copy(&after),
        ],
    );
    let Some(output) = output else {
        common::skip("a_forked_child_counts_in_a_file_of_its_own", NO_NAMESPACE);
        return;
    };
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}: {text}", output.status);
    assert!(words(&before) > 20, "the parent counts");
    assert_eq!(
        fs::read(&before).expect("a copy"),
        fs::read(&after).expect("a copy")
    );
    assert_eq!(
        words(&before),
        words(&child),
        "the child does the same work"
    );
    // The parent holds its lock; the child does not, and then holds its own.
    let descriptors: Vec<&str> = text
        .lines()
        .filter(|line| line.ends_with(" descriptors"))
        .collect();
    assert_eq!(
        descriptors,
        ["1 descriptors", "0 descriptors", "1 descriptors"]
    );
}
