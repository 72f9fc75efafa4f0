//! Tests the component's file: its exports, its dependencies, and that a program without UCC may load it.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString, c_char, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::process::Command;

/// The component under test. Cargo builds it next to the tests.
fn library() -> PathBuf {
    let test = std::env::current_exe().expect("the test's own path");
    let library = test.with_file_name("libucc_tl_xgvmi.so");
    assert!(
        library.is_file(),
        "{} is built before the tests",
        library.display()
    );
    library
}

fn readelf(option: &str) -> String {
    let output = Command::new("readelf")
        .args(["-W", option])
        .arg(library())
        .output()
        .expect("readelf runs");
    assert!(output.status.success());
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn it_exports_its_interfaces_and_its_status_alone() {
    let symbols = readelf("--dyn-syms");
    let defined: BTreeSet<&str> = symbols
        .lines()
        .filter(|line| line.contains(" GLOBAL ") || line.contains(" WEAK "))
        .filter(|line| !line.contains(" UND "))
        .filter_map(|line| line.split_whitespace().last())
        .collect();
    assert_eq!(
        defined,
        BTreeSet::from([
            "ucc_tl_xgvmi",
            "ucc_tl_xgvmi_status",
            "xgvmi_message_begin",
            "xgvmi_message_job",
            "xgvmi_message_rest",
            "xgvmi_message_end",
        ])
    );
}

#[test]
fn it_needs_only_the_c_library_and_stays() {
    let section = readelf("-d");
    // The process provides UCC and UCX.
    let needed = section.lines().filter(|line| line.contains("(NEEDED)"));
    let foreign: Vec<&str> = needed.filter(|line| line.contains("libuc")).collect();
    assert!(foreign.is_empty(), "{foreign:?}");
    for flag in ["SYMBOLIC", "NODELETE"] {
        assert!(section.contains(flag), "{flag} is missing:\n{section}");
    }
}

#[test]
fn without_ucc_it_says_so() {
    let name = CString::new(library().as_os_str().as_bytes()).expect("a path");
    // SAFETY: the component's constructor only looks for UCC.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
    assert!(!handle.is_null());
    // SAFETY: an open library and a text.
    let status = unsafe { libc::dlsym(handle, c"ucc_tl_xgvmi_status".as_ptr()) };
    assert!(!status.is_null());
    // SAFETY: the function has this type.
    let status = unsafe {
        std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> *const c_char>(status)
    };
    // SAFETY: takes nothing.
    let text = unsafe { status() };
    // SAFETY: a constant text.
    let text = unsafe { CStr::from_ptr(text) };
    assert_eq!(text, c"libucc.so.1 is not in this process");
}
