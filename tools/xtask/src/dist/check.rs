//! Checks a package for the applicable faults that lintian reports, from the output of `dpkg-deb`.

use super::{LIMIT, Machine};
use crate::process;
use crate::stage::{
    ACCELERATOR_CMAKE, ACCELERATOR_HEADERS, ACCELERATOR_LIBRARY, FIO_ENGINE, LIBRARY, OTHER_NAME,
    Part, STORAGE_EXAMPLES, STORAGE_LIBRARY, STORAGE_UNITS, UCC_COMPONENT,
};
use anyhow::{Context, Result};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

/// An entry of a package in the output of `dpkg-deb --contents`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    /// For example `-rw-r--r--`.
    mode: String,
    owner: String,
    path: String,
    /// Target of a link.
    link: Option<String>,
}

/// Sets the permissions of a staged tree's directories as a package requires, independent of the umask.
pub(super) fn settle(root: &Path) -> Result<()> {
    let mut dirs = vec![root.to_owned()];
    while let Some(dir) = dirs.pop() {
        let what = || dir.display().to_string();
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).with_context(what)?;
        for entry in fs::read_dir(&dir).with_context(what)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                dirs.push(entry.path());
            }
        }
    }
    Ok(())
}

/// Faults of the package.
pub(super) fn package(part: Part, file: &Path, machine: &Machine) -> Result<Vec<String>> {
    let dpkg =
        |option: &str| process::stdout(Command::new("dpkg-deb").arg(option).arg(file), LIMIT);
    let contents = dpkg("--contents")?;
    let entries: Option<Vec<Entry>> = contents.lines().map(entry).collect();
    let entries = entries.with_context(|| format!("dpkg-deb shows:\n{contents}"))?;
    let mut faults: Vec<String> = entries.iter().filter_map(misplaced).collect();
    faults.extend(missing(part, &entries, machine));
    faults.extend(dangling(&entries));
    let control = dpkg("--field")?;
    for (name, value) in [
        ("Package", part.package()),
        ("Version", env!("CARGO_PKG_VERSION")),
        ("Architecture", machine.architecture),
    ] {
        let line = format!("{name}: {value}");
        if !control.lines().any(|found| found == line) {
            faults.push(format!("the control file has no '{line}'"));
        }
    }
    Ok(faults)
}

/// `-rw-r--r-- root/root  12 2026-11-20 22:00 ./usr/share/x -> y`
fn entry(line: &str) -> Option<Entry> {
    let (head, path) = line.split_once(" ./")?;
    let mut words = head.split_ascii_whitespace();
    let (path, link) = match path.split_once(" -> ") {
        Some((path, link)) => (path, Some(link.to_owned())),
        None => (path, None),
    };
    Some(Entry {
        mode: words.next()?.to_owned(),
        owner: words.next()?.to_owned(),
        path: path.trim_end_matches('/').to_owned(),
        link,
    })
}

fn misplaced(entry: &Entry) -> Option<String> {
    let Entry {
        mode,
        owner,
        path,
        link,
    } = entry;
    let in_bin = path.starts_with("usr/bin/");
    let wanted: &[&str] = match mode.as_bytes().first() {
        Some(b'd') => &["drwxr-xr-x"],
        Some(b'l') => &["lrwxrwxrwx"],
        _ if in_bin => &["-rwxr-xr-x"],
        _ => &["-rw-r--r--"],
    };
    if owner != "root/root" {
        return Some(format!("{path} belongs to {owner}"));
    }
    if !wanted.contains(&mode.as_str()) {
        return Some(format!("{path} is {mode}, not {}", wanted[0]));
    }
    if !path.is_empty() && path != "usr" && !path.starts_with("usr/") {
        return Some(format!("{path} is not below /usr"));
    }
    if link.as_ref().is_some_and(|link| link.starts_with('/')) {
        return Some(format!("{path} leads to an absolute path"));
    }
    None
}

fn missing(part: Part, entries: &[Entry], machine: &Machine) -> Vec<String> {
    let there: BTreeSet<&str> = entries.iter().map(|entry| entry.path.as_str()).collect();
    let lib = format!("usr/lib/{}", machine.triplet);
    let doc = format!("usr/share/doc/{}", part.package());
    let mut wanted = vec![format!("{doc}/copyright"), format!("{doc}/changelog.gz")];
    match part {
        Part::Product => {
            for dir in ["ucx", "xgvmi"] {
                wanted.push(format!("{lib}/{dir}/{LIBRARY}"));
                wanted.push(format!("{lib}/{dir}/{OTHER_NAME}"));
            }
            wanted.push(format!("{lib}/pkgconfig/xgvmi.pc"));
            wanted.push("usr/include/xgvmi.h".to_owned());
        }
        Part::Offload => {
            wanted.push("usr/lib/systemd/system/xgvmi-sp.service".to_owned());
            wanted.push("usr/share/xgvmi-offload/osu_mpi.c".to_owned());
            for source in [
                "xgvmi_mpi.c",
                "xgvmi_mpi.h",
                "xgvmi_mpi_agree.c",
                "xgvmi_mpi_messages.c",
                "xgvmi_mpi_messages.h",
                "xgvmi_mpi_pairs.c",
                "xgvmi_mpi_persistent.c",
                "xgvmi_mpi_requests.c",
            ] {
                wanted.push(format!("usr/share/xgvmi-offload/{source}"));
            }
            wanted.push("usr/share/xgvmi-offload/reads.c".to_owned());
            wanted.push(format!("{lib}/xgvmi/{UCC_COMPONENT}"));
            wanted.push(format!("{lib}/ucc/{UCC_COMPONENT}"));
            wanted.push(format!("{doc}/examples/xgvmi-sp.toml"));
            wanted.push(format!("{doc}/examples/offload.toml"));
        }
        Part::Storage => {
            wanted.extend(STORAGE_UNITS.map(|name| format!("usr/lib/systemd/system/{name}")));
            wanted.extend(STORAGE_EXAMPLES.map(|name| format!("{doc}/examples/{name}")));
            wanted.push(format!("{lib}/{STORAGE_LIBRARY}"));
            wanted.push(format!("{lib}/libxgvmi_blk.so"));
            wanted.push(format!("{lib}/xgvmi/{FIO_ENGINE}"));
            wanted.push("usr/include/xgvmi_blk.h".to_owned());
        }
        Part::Accelerator => {
            wanted.push("usr/lib/systemd/system/xgvmi-naa.service".to_owned());
            wanted.push(format!("{doc}/examples/xgvmi-naa.toml"));
            wanted.push(format!("{lib}/{ACCELERATOR_LIBRARY}"));
            wanted.extend(ACCELERATOR_HEADERS.map(|name| format!("usr/include/naaice/{name}")));
            wanted.extend(ACCELERATOR_CMAKE.map(|name| format!("{lib}/cmake/naaice/{name}")));
        }
        Part::Emulator => wanted.push("usr/lib/bf-emu/libbfemu_preload.so".to_owned()),
    }
    for name in part.commands() {
        wanted.push(format!("usr/bin/{name}"));
        wanted.push(format!("usr/share/man/man1/{name}.1.gz"));
        wanted.push(format!("usr/share/bash-completion/completions/{name}"));
        wanted.push(format!("usr/share/zsh/vendor-completions/_{name}"));
        wanted.push(format!("usr/share/fish/vendor_completions.d/{name}.fish"));
    }
    let absent = wanted
        .into_iter()
        .filter(|path| !there.contains(path.as_str()));
    absent.map(|path| format!("{path} is missing")).collect()
}

/// Links without a target in the package.
fn dangling(entries: &[Entry]) -> Vec<String> {
    let there: BTreeSet<PathBuf> = entries
        .iter()
        .map(|entry| PathBuf::from(&entry.path))
        .collect();
    let mut faults = Vec::new();
    for entry in entries {
        let Some(link) = &entry.link else { continue };
        let mut end = PathBuf::from(&entry.path);
        end.pop();
        for part in Path::new(link).components() {
            match part {
                Component::ParentDir => drop(end.pop()),
                part => end.push(part),
            }
        }
        if !there.contains(&end) {
            faults.push(format!(
                "{} leads to {}, which is not there",
                entry.path,
                end.display()
            ));
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "\
drwxr-xr-x root/root         0 2026-11-20 22:00 ./
drwxr-xr-x root/root         0 2026-11-20 22:00 ./usr/
-rw-r--r-- root/root      1024 2026-11-20 22:00 ./usr/lib/x/a.so
-rwxr-xr-x root/root      1024 2026-11-20 22:00 ./usr/bin/a b
lrwxrwxrwx root/root         0 2026-11-20 22:00 ./usr/lib/y/b.so -> ../x/a.so";

    fn faults(text: &str) -> Vec<String> {
        let entries: Vec<Entry> = text.lines().map(|line| entry(line).unwrap()).collect();
        let mut faults: Vec<String> = entries.iter().filter_map(misplaced).collect();
        faults.extend(dangling(&entries));
        faults
    }

    #[test]
    fn each_fault_is_told() {
        assert_eq!(faults(GOOD), Vec::<String>::new());
        for (from, to, expect) in [
            (
                "-rw-r--r-- root/root",
                "-rw-r--r-- me/me",
                "belongs to me/me",
            ),
            ("-rw-r--r--", "-rw-rw-r--", "is -rw-rw-r--"),
            ("-rwxr-xr-x", "-rw-r--r--", "a b is -rw-r--r--"),
            ("drwxr-xr-x", "drwxrwxr-x", "is drwxrwxr-x"),
            ("./usr/lib/x/a.so", "./opt/a.so", "not below /usr"),
            ("../x/a.so", "/usr/lib/x/a.so", "absolute"),
            (
                "../x/a.so",
                "../z/a.so",
                "usr/lib/z/a.so, which is not there",
            ),
        ] {
            let text = GOOD.replace(from, to);
            let found = faults(&text).join("\n");
            assert!(found.contains(expect), "{expect}: {found}");
        }
        assert_eq!(entry("what is this"), None);
    }

    #[test]
    fn what_must_be_there_is_missed() {
        let machine = Machine::of("x86_64").unwrap();
        for part in Part::ALL {
            let missed = missing(part, &[], &machine);
            for name in part.commands() {
                let page = format!("man1/{name}.1.gz is missing");
                assert!(
                    missed.iter().any(|fault| fault.ends_with(&page)),
                    "{missed:?}"
                );
            }
        }
        let missed = missing(Part::Product, &[], &machine).join("\n");
        assert!(
            missed.contains("usr/lib/x86_64-linux-gnu/ucx/libuct_ib_mlx5_xgvmi.so.0 is missing")
        );
        assert!(missed.contains("xgvmi.h is missing"));
    }
}
