//! Volumes of other layouts than 2+1, by whole processes on files: four parts and two parities lose any two targets. Parity
//! bytes on disk are judged by `tests/parity.rs`.

mod common;

use common::{Nbd, Running, SECTOR, bad, good, program, sector, turn};
use std::path::{Path, PathBuf};

const SECTORS: usize = 256;

fn all(dir: &Path) -> Vec<String> {
    let names = (0..6).map(|at| dir.join(at.to_string()).to_str().unwrap().to_owned());
    names.collect()
}

fn words<'a>(first: &[&'a str], names: &'a [String]) -> Vec<&'a str> {
    let names = names.iter().map(String::as_str);
    first.iter().copied().chain(names).collect()
}

/// An export of some targets, which ends as by SIGTERM after `with`.
fn with_export(dir: &Path, names: &[String], with: impl FnOnce(&mut Nbd)) {
    let socket: PathBuf = dir.join("nbd");
    let mut command = program();
    command.args(words(&["export"], names));
    let export = Running::start(command.arg("--socket").arg(&socket));
    with(&mut Nbd::connect(&socket));
    export.signal(libc::SIGTERM);
    assert!(export.ended().success());
}

fn write(client: &mut Nbd, range: std::ops::Range<usize>, version: u64) {
    let bytes: Vec<u8> = range
        .clone()
        .flat_map(|number| sector(number, version))
        .collect();
    client.write(range.start * SECTOR, &bytes).unwrap();
    client.flush().unwrap();
}

#[track_caller]
fn check(client: &mut Nbd, range: std::ops::Range<usize>, version: u64) {
    let found = client
        .read(range.start * SECTOR, range.len() * SECTOR)
        .unwrap();
    for (number, found) in range.zip(found.chunks(SECTOR)) {
        assert!(found == sector(number, version), "sector {number}");
    }
}

/// Created, written, read without each two of six targets, written without two, which then return; and one is replaced.
#[test]
fn four_parts_and_two_parities_lose_any_two_targets() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let names = all(dir.path());
    let size = (SECTORS * SECTOR).to_string();
    let options = [
        "create",
        "--size",
        &size,
        "--block-size",
        "1024",
        "--layout",
        "4+2",
    ];
    good(&words(&options, &names));
    let shown = good(&words(&["show"], &names));
    for role in ["data_1", "data_4", "parity_1", "parity_2"] {
        assert!(shown.contains(role), "{shown}");
    }
    with_export(dir.path(), &names, |client| write(client, 0..SECTORS, 1));
    let mut pairs = 0;
    for first in 0..6 {
        for second in first + 1..6 {
            let left = (0..6).filter(|at| ![first, second].contains(at));
            let left: Vec<String> = left.map(|at| names[at].clone()).collect();
            with_export(dir.path(), &left, |client| {
                check(client, 0..SECTORS, 1);
            });
            // The two return, and are trusted again.
            good(&words(&["rebuild"], &names));
            pairs += 1;
        }
    }
    assert_eq!(pairs, 15);
    // Three are too few.
    let error = bad(&words(&["scrub"], &names[..3]));
    assert!(
        error.contains("3 of 6 targets are usable; a volume needs 4"),
        "{error}"
    );
    // What is written without two is given to them when they return.
    with_export(dir.path(), &names[..4], |client| write(client, 7..90, 2));
    good(&words(&["rebuild"], &names));
    with_export(dir.path(), &names[2..], |client| {
        check(client, 0..7, 1);
        check(client, 7..90, 2);
        check(client, 90..SECTORS, 1);
    });
    good(&words(&["rebuild"], &names));
    // A new target in the place of one.
    let new = dir.path().join("new").to_str().unwrap().to_owned();
    good(&["create", &new, "--like", &names[0], "--role", "data_3"]);
    let mut with_new = names.clone();
    with_new[2].clone_from(&new);
    good(&words(&["rebuild"], &with_new));
    let report = good(&words(&["scrub"], &with_new));
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["bad_halves"], 0, "{report}");
    assert_eq!(report["lost_blocks"], 0, "{report}");
    with_export(dir.path(), &with_new[1..5], |client| {
        check(client, 7..90, 2);
        check(client, 90..SECTORS, 1);
    });
    let error = bad(&words(&["scrub"], &names));
    assert!(error.contains("has taken its place"), "{error}");
}
