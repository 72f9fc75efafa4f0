//! The library's own interface for programs: the header against the library, and the results of the
//! functions without a device. The cases of `cargo xtask matrix` test them with a device.

#[allow(dead_code, reason = "each test uses its part of it")]
mod common;

#[expect(dead_code, reason = "it is made for the library")]
#[path = "../src/numbers.rs"]
mod numbers;

use std::mem::size_of;
use std::path::Path;

use numbers::Numbers;
use tempfile::TempDir;

/// The program with its output, with the library and without.
struct Program {
    dir: TempDir,
}

impl Program {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
        let include = include.to_string_lossy();
        let program = dir.path().join("api");
        let flags = ["-I", &include, "-Wall", "-Wextra", "-Werror", "-ldl"];
        common::compile("api.c", &program, &flags);
        Self { dir }
    }

    fn lines(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Vec<String> {
        let text = common::stdout(&self.dir.path().join("api"), arguments, variables);
        text.lines().map(str::to_owned).collect()
    }
}

#[test]
fn the_header_is_what_the_library_has() {
    let library = common::library();
    let library = library.to_string_lossy();
    let lines = Program::new().lines(&[], &[("LD_PRELOAD", &library)]);
    let mut expect = vec![format!("size {} 8", size_of::<Numbers>())];
    for (at, (name, _)) in Numbers::NONE.each().enumerate() {
        expect.push(format!("{name} {} 8", 8 * at));
    }
    assert_eq!(lines[..expect.len()], expect);
    let header = include_str!("../include/xgvmi.h");
    for (name, _) in Numbers::NONE.each() {
        assert!(header.contains(&format!("uint64_t {name};")), "{name}");
    }
}

#[test]
fn without_a_device_it_says_so() {
    let program = Program::new();
    let library = common::library();
    let library = library.to_string_lossy();
    let expect = [
        &format!("version {}", env!("CARGO_PKG_VERSION")),
        "announce 1 1 1",
        "announce_keys 1 1 1",
        "accept 1 1 1",
        "newer 0 0 0 0",
        "older 0 0 0",
        "null 1",
    ];
    // The size and the numbers come first.
    let head = 1 + Numbers::NONE.each().count();
    let preloaded = program.lines(&[], &[("LD_PRELOAD", &library)]);
    assert!(
        preloaded.iter().map(String::as_str).skip(head).eq(expect),
        "{preloaded:#?}"
    );
    let opened = program.lines(&[&library], &[]);
    assert!(
        opened.iter().map(String::as_str).skip(head).eq(expect),
        "{opened:#?}"
    );
}
