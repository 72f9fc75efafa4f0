//! `cargo xtask tidy`: the project rules that neither rustfmt nor clippy checks. Each rule is one case of the test run.

mod docs;
mod graph;
mod layers;
mod text;

use crate::tree::Tree;
use crate::workspace;
use anyhow::Result;
use std::path::Path;
use std::process::ExitCode;

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Source;

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
