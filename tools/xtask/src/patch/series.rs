//! The patch series in `patches/`: the files that they change, with git's object ids of the contents before and after.

use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};

/// A UCX version with patches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Target {
    /// Directory in `patches/`.
    pub(crate) name: &'static str,
    /// The version that it reports.
    pub(crate) version: &'static str,
    /// The commit on which the series was tested.
    pub(crate) commit: &'static str,
    /// A file of an installation, and its contents if the patches are applied.
    pub(crate) mark: (&'static str, &'static [u8]),
    /// Defects that the patches fix, by the numbers in docs/DEFECTS.md.
    pub(crate) mends: &'static [&'static str],
}

/// All patched versions.
pub(crate) const TARGETS: [Target; 2] = [
    Target {
        name: "1.18.1",
        version: "1.18.1",
        commit: "d9aa5650d4cbcbb00d61af980614dbe9dd27a1f2",
        mark: ("libuct_ib.so.0", b":mlx5:mlx5_xgvmi"),
        mends: &[],
    },
    Target {
        name: "master",
        version: "1.23.0",
        commit: "9466d104a317c8ffddd9734e72055d8bbda021b3",
        mark: ("libuct_ib_mlx5.so.0", b"uct_ib_mlx5_xgvmi_register"),
        mends: &["D24"],
    },
];

/// Change of one file by a series.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Change {
    /// Path relative to the tree's root.
    pub(crate) path: String,
    /// Required object id of the original contents; `None` if the file must not exist.
    pub(crate) before: Option<String>,
    /// Object id of the final contents.
    pub(crate) after: String,
}

/// The patches of a series, in order.
pub(crate) fn files(dir: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(dir).with_context(|| format!("cannot list {}", dir.display()))?;
    let mut files = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "patch")
        {
            files.push(path);
        }
    }
    files.sort();
    if files.is_empty() {
        bail!("no patch in {}", dir.display());
    }
    Ok(files)
}

/// The combined changes of a series.
pub(crate) fn changes(dir: &Path) -> Result<Vec<Change>> {
    let mut all: Vec<Change> = Vec::new();
    for file in files(dir)? {
        let what = || file.display().to_string();
        let text = fs::read_to_string(&file).with_context(what)?;
        for change in parse(&text).with_context(what)? {
            match all.iter_mut().find(|earlier| earlier.path == change.path) {
                None => all.push(change),
                Some(earlier) if change.before.as_ref() == Some(&earlier.after) => {
                    earlier.after = change.after;
                }
                Some(_) => bail!("{}: {} is not as left before", what(), change.path),
            }
        }
    }
    Ok(all)
}

/// Changes of one patch. A patch may only add lines, so that it contains no lines of UCX.
fn parse(text: &str) -> Result<Vec<Change>> {
    let mut changes: Vec<Change> = Vec::new();
    let mut added_left = 0_usize;
    for (at, line) in text.lines().enumerate() {
        let here = || format!("line {}: {line}", at + 1);
        if added_left > 0 {
            if !line.starts_with('+') {
                bail!("{}: not an added line", here());
            }
            added_left -= 1;
        } else if let Some(names) = line.strip_prefix("diff --git a/") {
            let path = names.split(" b/").next().with_context(here)?;
            changes.push(Change {
                path: path.to_owned(),
                before: None,
                after: String::new(),
            });
        } else if let Some(numbers) = line.strip_prefix("index ") {
            let change = changes.last_mut().with_context(here)?;
            let numbers = numbers.split(' ').next().with_context(here)?;
            let (before, after) = numbers.split_once("..").with_context(here)?;
            let is_number = |text: &str| text.len() == 40;
            if !is_number(before) || !is_number(after) {
                bail!("{}: shortened numbers", here());
            }
            change.before = (!before.bytes().all(|c| c == b'0')).then(|| before.to_owned());
            change.after = after.to_owned();
        } else if let Some(hunk) = line.strip_prefix("@@ -") {
            // `-AT,0 +AT[,COUNT] @@`
            let (old, rest) = hunk.split_once(" +").with_context(here)?;
            let (new, _) = rest.split_once(" @@").with_context(here)?;
            if !old.ends_with(",0") {
                bail!("{}: a hunk that takes lines away or repeats some", here());
            }
            added_left = match new.split_once(',') {
                None => 1,
                Some((_, count)) => count.parse().with_context(here)?,
            };
        }
    }
    if added_left > 0 {
        bail!("it ends within a hunk");
    }
    if changes.iter().any(|change| change.after.is_empty()) || changes.is_empty() {
        bail!("not a patch with the numbers of contents");
    }
    Ok(changes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace;

    const A: &str = "1111111111111111111111111111111111111111";
    const B: &str = "2222222222222222222222222222222222222222";
    const NONE: &str = "0000000000000000000000000000000000000000";

    fn patch(path: &str, before: &str, after: &str, hunk: &str) -> String {
        format!(
            "From 0\nSubject: x\n\ndiff --git a/{path} b/{path}\nindex {before}..{after} 100644\n\
             --- a/{path}\n+++ b/{path}\n{hunk}"
        )
    }

    /// Path, contents before, contents after.
    type Expected<'a> = (&'a str, Option<&'a str>, &'a str);

    #[track_caller]
    fn check(text: &str, expect: Result<&[Expected<'_>], &str>) {
        let found = parse(text);
        match expect {
            Ok(expect) => {
                let found = found.unwrap();
                let found: Vec<_> = found
                    .iter()
                    .map(|change| {
                        let before = change.before.as_deref();
                        (change.path.as_str(), before, change.after.as_str())
                    })
                    .collect();
                assert_eq!(found, expect);
            }
            Err(expect) => {
                let error = format!("{:#}", found.unwrap_err());
                assert!(error.contains(expect), "{error}");
            }
        }
    }

    #[test]
    fn a_patch_only_adds() {
        let hunk = "@@ -7,0 +8,2 @@\n+a\n+--- b\n@@ -9,0 +12 @@\n+c\n";
        check(&patch("a.c", A, B, hunk), Ok(&[("a.c", Some(A), B)]));
        check(&patch("a.c", NONE, B, hunk), Ok(&[("a.c", None, B)]));
        for (hunk, expect) in [
            ("@@ -7 +7 @@\n-a\n+b\n", "takes lines away"),
            ("@@ -7,2 +7,3 @@\n a\n+b\n c\n", "takes lines away"),
            ("@@ -7,0 +8,2 @@\n+a\n b\n", "not an added line"),
            ("@@ -7,0 +8,2 @@\n+a\n", "ends within"),
        ] {
            check(&patch("a.c", A, B, hunk), Err(expect));
        }
        check(&patch("a.c", "111", "222", ""), Err("shortened"));
        check("nothing", Err("not a patch"));
    }

    #[test]
    fn a_series_continues_where_it_left_off() {
        let dir = tempfile::tempdir().unwrap();
        let hunk = "@@ -7,0 +8 @@\n+a\n";
        let write = |name: &str, text: String| fs::write(dir.path().join(name), text).unwrap();
        assert!(changes(dir.path()).is_err());
        write("1.patch", patch("a.c", NONE, A, hunk));
        write("2.patch", patch("a.c", A, B, hunk));
        let whole = changes(dir.path()).unwrap();
        assert_eq!(whole.len(), 1);
        assert_eq!(
            (whole[0].before.as_deref(), whole[0].after.as_str()),
            (None, B)
        );
        write("3.patch", patch("a.c", A, B, hunk));
        let error = format!("{:#}", changes(dir.path()).unwrap_err());
        assert!(error.contains("not as left before"), "{error}");
    }

    #[test]
    fn each_target_has_its_series() {
        let patches = workspace::root().join("patches");
        let readme = fs::read_to_string(patches.join("README.md")).unwrap();
        for target in TARGETS {
            assert!(!changes(&patches.join(target.name)).unwrap().is_empty());
            // The page names the commit and describes each patch.
            assert!(readme.contains(target.commit), "{}", target.commit);
            for file in files(&patches.join(target.name)).unwrap() {
                let name = file.file_name().unwrap().to_string_lossy().into_owned();
                assert!(readme.contains(&name), "{name}");
            }
        }
    }
}
