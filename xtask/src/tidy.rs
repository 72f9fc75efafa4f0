//! `cargo xtask tidy`: the project rules that neither rustfmt nor clippy checks. Each rule is one case of the test run.

mod docs;
mod graph;
mod layers;
mod text;

use crate::results::{COMMITTED, Reports};
use crate::workspace;
use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The text files of the tree.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    files: Vec<Source>,
}

/// A text file.
#[derive(Debug)]
pub(crate) struct Source {
    /// Relative to the root, with `/`.
    pub(crate) path: String,
    /// All of it.
    pub(crate) text: String,
}

type Rule = fn(&Tree) -> Vec<String>;

const RULES: &[(&str, Rule)] = &[
    ("each file says what it is for", text::module_docs),
    ("no disabled or unfinished code", text::nothing_disabled),
    ("no file is too long", text::lengths),
    ("no path or host of one machine", text::nothing_local),
    ("the core of the pool has no unsafe", text::safe_core),
    (
        "the product does not know the emulator",
        text::product_alone,
    ),
    (
        "C names are exported by the two cdylibs alone",
        text::exports,
    ),
    (
        "modules use their own layer and those below it",
        layers::layers,
    ),
    ("links in the documents lead somewhere", docs::links),
    ("each page is in the book", docs::book),
    ("each promise has its test", docs::promises),
    ("numbers are those of the committed reports", docs::numbers),
];

/// Runs `cargo xtask tidy`.
pub(crate) fn run() -> Result<ExitCode> {
    let mut clean = true;
    for (name, faults) in check(&workspace::root())? {
        println!(
            "{:<6} {name}",
            if faults.is_empty() { "ok" } else { "FAILED" }
        );
        for fault in &faults {
            println!("       {fault}");
        }
        clean &= faults.is_empty();
    }
    Ok(if clean {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// All rules with the faults that each found.
pub(crate) fn check(root: &Path) -> Result<Vec<(&'static str, Vec<String>)>> {
    let tree = Tree::read(root)?;
    let packages = graph::packages()?;
    let mut verdicts: Vec<_> = RULES
        .iter()
        .map(|(name, rule)| (*name, rule(&tree)))
        .collect();
    verdicts.push((
        "crates depend on each other as the architecture says",
        graph::edges(&packages),
    ));
    verdicts.push(("licences", graph::licences(&packages)));
    verdicts.push((
        "no dependency needs a newer compiler",
        graph::compilers(&packages),
    ));
    Ok(verdicts)
}

impl Tree {
    /// Reads all text files below the root, except for build output.
    ///
    /// # Errors
    /// If a directory cannot be listed.
    pub(crate) fn read(root: &Path) -> Result<Self> {
        let mut tree = Self::default();
        let mut dirs = vec![PathBuf::new()];
        while let Some(dir) = dirs.pop() {
            let absolute = root.join(&dir);
            let entries = fs::read_dir(&absolute)
                .with_context(|| format!("cannot list {}", absolute.display()))?;
            for entry in entries {
                let entry = entry?;
                let path = dir.join(entry.file_name());
                let kind = entry.file_type()?;
                // `.git` is a file in a linked work tree.
                if [".git", "target"].contains(&entry.file_name().to_string_lossy().as_ref()) {
                    continue;
                }
                if kind.is_dir() {
                    dirs.push(path);
                } else if kind.is_file()
                    && let Ok(text) = fs::read_to_string(root.join(&path))
                {
                    // What is not UTF-8 is not text.
                    tree.files.push(Source {
                        path: path.display().to_string(),
                        text,
                    });
                }
            }
        }
        tree.files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(tree)
    }

    fn rust(&self) -> impl Iterator<Item = &Source> {
        self.files.iter().filter(|file| file.path.ends_with(".rs"))
    }

    /// The documents.
    pub(crate) fn markdown(&self) -> impl Iterator<Item = &Source> {
        self.files.iter().filter(|file| file.path.ends_with(".md"))
    }

    /// The committed reports.
    ///
    /// # Errors
    /// If one of them is not JSON.
    pub(crate) fn reports(&self) -> Result<Reports> {
        let mut reports = Reports::default();
        for file in &self.files {
            let name = file.path.strip_prefix(&format!("{COMMITTED}/"));
            if let Some(name) = name.and_then(|name| name.strip_suffix(".json")) {
                reports.add(name, &file.text)?;
            }
        }
        Ok(reports)
    }

    fn get(&self, path: &str) -> Option<&Source> {
        self.files.iter().find(|file| file.path == path)
    }
}

impl Source {
    fn is_generated(&self) -> bool {
        self.path.ends_with("/bindings.rs")
    }

    /// `path:line: what` for each line in which `fault` finds something.
    fn faults(&self, mut fault: impl FnMut(&str) -> Option<String>) -> Vec<String> {
        let numbered = self.text.lines().enumerate();
        numbered
            .filter_map(|(at, line)| Some(format!("{}:{}: {}", self.path, at + 1, fault(line)?)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tree of planted files, for the rules' own tests.
    pub(super) fn planted(files: &[(&str, &str)]) -> Tree {
        let files = files.iter().map(|(path, text)| Source {
            path: (*path).to_owned(),
            text: (*text).to_owned(),
        });
        Tree {
            files: files.collect(),
        }
    }

    #[test]
    fn the_tree_holds_this_file_and_no_build_output() {
        let tree = Tree::read(&workspace::root()).unwrap();
        assert!(tree.get("xtask/src/tidy.rs").is_some());
        assert!(
            !tree
                .files
                .iter()
                .any(|file| file.path.starts_with("target/"))
        );
    }
}
