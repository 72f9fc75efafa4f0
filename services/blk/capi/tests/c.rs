//! A C program uses the library, and a C++ compiler accepts the header.

use std::path::{Path, PathBuf};
use std::process::Command;
use xgvmi_blk::store::NewTarget;
use xgvmi_blk::{Geometry, Id, Role, Store};

/// Directory of the built library, which is that of this test.
fn built() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().unwrap().to_owned()
}

#[track_caller]
fn run(command: &mut Command) -> String {
    let done = command.output().unwrap();
    let errors = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{command:?}: {errors}");
    String::from_utf8(done.stdout).unwrap()
}

fn create(path: &Path, role: Role, id: u8) {
    let new = NewTarget {
        geometry: Geometry::of_size(4096, 1 << 20).unwrap(),
        role,
        volume: Id([id; 16]),
        complete: true,
    };
    Store::create_file(path, new, None).unwrap();
}

#[test]
fn a_c_program_reads_and_writes_a_volume() {
    let dir = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR"));
    // The program finds the library by its soname.
    let library = built().join("libxgvmi_blk_capi.so");
    for name in ["libxgvmi_blk.so", "libxgvmi_blk.so.0"] {
        std::os::unix::fs::symlink(&library, dir.path().join(name)).unwrap();
    }
    let program = dir.path().join("volume");
    let mut cc = Command::new("cc");
    cc.args([
        "-std=c11",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-D_GNU_SOURCE",
        "-g",
        "-pthread",
    ]);
    cc.arg("-I").arg(source.join("include"));
    cc.arg("-o")
        .arg(&program)
        .arg(source.join("tests/volume.c"));
    run(cc.arg("-L").arg(dir.path()).arg("-lxgvmi_blk"));
    let mut volume = Command::new(&program);
    volume.env("LD_LIBRARY_PATH", dir.path());
    for role in Role::HALVES {
        let path = dir.path().join(role.to_string());
        create(&path, role, 7);
        volume.arg(path);
    }
    let other = dir.path().join("other");
    create(&other, Role::SECOND, 8);
    let said = run(volume.arg(other));
    assert!(said.contains("all as expected"), "{said}");
}

#[test]
fn the_header_is_c_and_cxx() {
    let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/xgvmi_blk.h");
    for (compiler, language) in [("cc", "c"), ("c++", "c++")] {
        let mut command = Command::new(compiler);
        command.args([
            "-Wall",
            "-Wextra",
            "-Werror",
            "-pedantic",
            "-fsyntax-only",
            "-x",
            language,
        ]);
        run(command.arg(&header));
    }
}
