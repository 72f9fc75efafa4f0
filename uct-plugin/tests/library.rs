//! The library as a file: its name, its exported symbols, its dependencies and its size.

#[allow(dead_code, reason = "each test uses its part of it")]
mod common;

use std::collections::BTreeSet;
use std::path::Path;

fn readelf(option: &str) -> String {
    let library = common::library();
    common::stdout(
        Path::new("readelf"),
        &["-W", option, &library.to_string_lossy()],
        &[],
    )
}

/// Values in brackets in the dynamic section's lines that contain `kind`.
fn dynamic(kind: &str) -> BTreeSet<String> {
    let in_brackets = |line: &str| {
        let (_, rest) = line.split_once('[')?;
        Some(rest.split_once(']')?.0.to_owned())
    };
    readelf("-d")
        .lines()
        .filter(|line| line.contains(kind))
        .filter_map(in_brackets)
        .collect()
}

#[test]
fn it_has_the_name_that_ucx_asks_for() {
    let name = "libuct_ib_mlx5_xgvmi.so.0".to_owned();
    assert_eq!(dynamic("(SONAME)"), BTreeSet::from([name]));
}

#[test]
fn it_shows_ucxs_seven_functions_its_own_interface_and_nothing_else() {
    let symbols = readelf("--dyn-syms");
    let defined: BTreeSet<&str> = symbols
        .lines()
        .filter(|line| line.contains(" GLOBAL ") || line.contains(" WEAK "))
        .filter(|line| !line.contains(" UND "))
        .filter_map(|line| line.split_whitespace().last())
        .collect();
    let expect = [
        "mkey_pack",
        "mem_attach",
        "mem_dereg",
        "mem_reg",
        "md_close",
        "md_query",
    ]
    .map(|operation| format!("uct_ib_mlx5_devx_{operation}"));
    let own = ["announce", "announce_keys", "accept", "stats", "version"]
        .map(|name| format!("xgvmi_{name}"));
    let open = ["uct_md_open".to_owned()];
    let expect = expect.iter().chain(&open).chain(&own);
    let expect = expect.map(String::as_str).collect();
    assert_eq!(defined, expect);
}

#[test]
fn it_needs_only_the_c_library() {
    // Every other dependency would be loaded into each program with the preload, and could be
    // another copy than UCX's.
    let allowed = [
        "libc.so.6",
        "libm.so.6",
        "libgcc_s.so.1",
        "ld-linux-x86-64.so.2",
        "ld-linux-aarch64.so.1",
    ];
    let surplus: Vec<String> = dynamic("(NEEDED)")
        .into_iter()
        .filter(|name| !allowed.contains(&name.as_str()))
        .collect();
    assert!(surplus.is_empty(), "{surplus:?}");
}

#[test]
fn it_is_bound_to_itself_and_stays() {
    let section = readelf("-d");
    for flag in ["SYMBOLIC", "NODELETE"] {
        assert!(section.contains(flag), "{flag} is missing:\n{section}");
    }
}

#[test]
fn a_program_without_ucx_notices_nothing() {
    let library = common::library();
    let preload = library.to_string_lossy();
    let plain = common::run(
        Path::new("/bin/sh"),
        &["-c", "true; echo out; echo err >&2"],
        &[],
    );
    let loaded = common::run(
        Path::new("/bin/sh"),
        &["-c", "true; echo out; echo err >&2"],
        &[("LD_PRELOAD", &preload)],
    );
    assert_eq!(plain, loaded);
    assert!(loaded.status.success());
}
