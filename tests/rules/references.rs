//! Rules about what the documents tell a reader to type or to open: commands, options, variables and files exist.

use doc_numbers::tree::{Source, Tree};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// Lists what former versions had.
const CHANGELOG: &str = "CHANGELOG.md";

/// Describes files of UCX's tree.
const PATCHES: &str = "patches/README.md";

/// Commands of this project with the folders of their source.
const PROGRAMS: [(&str, &[&str]); 5] = [
    ("bf-emu ", &["bf-emu/src/"]),
    ("xgvmi ", &["cli/xgvmi/src/"]),
    ("xgvmi-blk ", &["services/blk/src/"]),
    ("xgvmi-naa ", &["services/naa/src/", "shared/daemon/src/"]),
    (
        "xgvmi-sp ",
        &["services/offload/src/", "shared/daemon/src/"],
    ),
];

/// Variables of this project: the beginning of their names, and the folder whose source has the rest of the name in
/// quotes, or the whole name if there is no such folder.
const VARIABLES: [(&str, Option<&str>); 6] = [
    ("UCX_XGVMI_", Some("uct-plugin/src/config/")),
    ("UCC_TL_XGVMI_", Some("clients/ucc-tl/src/")),
    ("XGVMI_", None),
    ("BFEMU_", None),
    ("NAAICE_", None),
    ("NAA_", None),
];

/// Options in the documents that belong to programs of others and that no source here uses.
const OPTIONS_OF_OTHERS: [&str; 5] = [
    "--enghelp",
    "--full-index",
    "--mca",
    "--no-create-home",
    "--with-ucx",
];

/// `cargo xtask NAME` needs a command of that name. The next word needs to be known to that command.
pub(super) fn commands(tree: &Tree) -> Vec<String> {
    in_code(tree, |code| {
        let mut absent = Vec::new();
        for rest in code.split("cargo xtask ").skip(1) {
            let mut words = rest.split_whitespace().take_while(|word| is_name(word));
            let Some(name) = words.next() else { continue };
            let dispatched = |file: &Source| file.text.contains(&format!("\"{name}\" =>"));
            if !tree.get("tools/xtask/src/main.rs").is_some_and(dispatched) {
                absent.push(format!("cargo xtask {name}"));
                continue;
            }
            let folders = [
                format!("tools/xtask/src/{name}.rs"),
                format!("tools/xtask/src/{name}/"),
                format!("tools/{name}/src/"),
                format!("tests/{name}/src/"),
            ];
            let folders: Vec<&str> = folders.iter().map(String::as_str).collect();
            // Only these commands take a name.
            if ["bench", "demo", "setup", "suites", "test"].contains(&name)
                && let Some(part) = words.next()
                && !quotes(tree, &folders, part)
            {
                absent.push(format!("cargo xtask {name} {part}"));
            }
        }
        absent
    })
}

/// `xgvmi NAME`, `bf-emu NAME` and similar need a subcommand of that name.
pub(super) fn subcommands(tree: &Tree) -> Vec<String> {
    in_code(tree, |code| {
        // After a prompt or the folder of the program, or at the beginning of the code.
        let start = code.trim_start().trim_start_matches("$ ");
        let program = start.rsplit_once("bin/").map_or(start, |(_, after)| after);
        PROGRAMS
            .iter()
            .filter_map(|(name, folders)| {
                let word = program.strip_prefix(name)?.split_whitespace().next()?;
                (is_name(word) && !quotes(tree, folders, word) && !has_variant(tree, folders, word))
                    .then(|| format!("{name}{word}"))
            })
            .collect()
    })
}

/// `cargo build -p NAME --bin PROGRAM` and similar need a package of that name with that program or example.
pub(super) fn packages(tree: &Tree) -> Vec<String> {
    in_code(tree, |code| {
        let is_cargos_own = |rest: &&str| !rest.starts_with("xtask");
        let mut absent = Vec::new();
        for rest in code.split("cargo ").skip(1).filter(is_cargos_own) {
            let words: Vec<&str> = rest.split_whitespace().collect();
            let mut folder = None;
            for pair in words.windows(2) {
                let [option, name] = pair else { continue };
                let known = match *option {
                    "-p" => {
                        folder = folder_of(tree, name);
                        folder.is_some()
                    }
                    "--bin" | "--example" => folder.is_none_or(|at| has_program(tree, at, name)),
                    _ => true,
                };
                if !known {
                    absent.push(format!("{option} {name}"));
                }
            }
        }
        absent
    })
}

/// The folder of a package, with the slash at its end.
fn folder_of<'a>(tree: &'a Tree, package: &str) -> Option<&'a str> {
    let line = format!("name = \"{package}\"");
    let is = |file: &&Source| file.text.lines().any(|found| found == line);
    let mut manifests = tree
        .files
        .iter()
        .filter(|file| file.path.ends_with("Cargo.toml"));
    manifests.find(is)?.path.strip_suffix("Cargo.toml")
}

/// Whether a package has a program or an example.
fn has_program(tree: &Tree, folder: &str, name: &str) -> bool {
    let named = tree.get(&format!("{folder}Cargo.toml"));
    let line = format!("name = \"{name}\"");
    if named.is_some_and(|manifest| manifest.text.contains(&line)) {
        return true;
    }
    ["src/bin", "examples"].iter().any(|at| {
        let start = format!("{folder}{at}/{name}");
        let rest = |file: &Source| file.path.strip_prefix(&start).map(str::to_owned);
        let mut found = tree.files.iter().filter_map(rest);
        found.any(|rest| rest == ".rs" || rest.starts_with('/'))
    })
}

/// Each long option must be known to some source of the tree: as `--name`, as `"name"`, or as the field `name` of
/// options that a derive reads.
pub(super) fn options(tree: &Tree) -> Vec<String> {
    let exists = |option: &str| {
        let name = &option[2..];
        let forms = [
            option.to_owned(),
            format!("\"{name}\""),
            format!(" {}: ", name.replace('-', "_")),
        ];
        let knows = |file: &Source| forms.iter().any(|form| file.text.contains(form));
        sources(tree).any(knows)
    };
    // Documents name most options several times, and a search reads all sources.
    let known: RefCell<BTreeMap<String, bool>> = RefCell::default();
    in_code(tree, |code| {
        let words = code.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
        words
            .filter(|word| word.starts_with("--") && is_name(&word[2..]))
            .filter(|option| !OPTIONS_OF_OTHERS.contains(option))
            .filter(|option| {
                let mut known = known.borrow_mut();
                let entry = known.entry((*option).to_owned());
                !*entry.or_insert_with(|| exists(option))
            })
            .map(ToOwned::to_owned)
            .collect()
    })
}

/// Each variable of the project must be read by some source of the tree.
pub(super) fn variables(tree: &Tree) -> Vec<String> {
    in_lines(tree, |line, _| {
        let words =
            line.split(|c: char| !(c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_'));
        words
            .filter_map(|word| {
                let starts =
                    |(start, _): &&(&str, _)| word.len() > start.len() && word.starts_with(start);
                let (start, folder) = VARIABLES.iter().find(starts)?;
                let known = match folder {
                    // A name that ends so stands for several: `UCX_XGVMI_POOL_*`.
                    _ if word.ends_with('_') => true,
                    Some(folder) => quotes(tree, &[folder], &word[start.len()..]),
                    None => sources(tree).any(|file| file.text.contains(word)),
                };
                (!known).then(|| word.to_owned())
            })
            .collect()
    })
}

/// Each path in backticks that begins with a folder of the tree, or that ends with `.rs`, must lead to a file or folder.
pub(super) fn paths(tree: &Tree) -> Vec<String> {
    let folders: Vec<&str> = tree
        .files
        .iter()
        .filter_map(|file| file.path.split_once('/').map(|(first, _)| first))
        .collect();
    let exists = |path: &str| {
        let path = path.trim_end_matches('/');
        let inside = format!("{path}/");
        let (whole, after) = (
            |at: &str| at == path || at.starts_with(&inside),
            format!("/{path}"),
        );
        let is_part = |at: &str| path.ends_with(".rs") && at.ends_with(&after);
        let mut all = tree.files.iter().map(|file| file.path.as_str());
        all.any(|at| whole(at) || is_part(at))
    };
    in_lines(tree, |line, page| {
        if [CHANGELOG, PATCHES].contains(&page) {
            return Vec::new();
        }
        line.split('`')
            .skip(1)
            .step_by(2)
            // `file.rs::function`, `file.c:12`
            .map(|span| span.split(':').next().unwrap_or_default())
            .filter(|span| !span.contains([' ', '*', '{', '=', '(', '<']))
            .filter(|span| {
                let ours = span
                    .split_once('/')
                    .is_some_and(|(first, _)| folders.contains(&first));
                (ours || span.ends_with(".rs")) && !exists(span)
            })
            .map(ToOwned::to_owned)
            .collect()
    })
}

/// A line for each fault that `fault` finds in a line of a document, given the line and the page's path.
fn in_lines(tree: &Tree, fault: impl Fn(&str, &str) -> Vec<String>) -> Vec<String> {
    tree.markdown()
        .flat_map(|page| {
            page.faults(|line| {
                let found = fault(line, &page.path);
                (!found.is_empty()).then(|| format!("does not exist: {}", found.join(", ")))
            })
        })
        .collect()
}

/// As `in_lines`, for each piece of code: a line of a block without its comment, or a span between backticks.
fn in_code(tree: &Tree, fault: impl Fn(&str) -> Vec<String>) -> Vec<String> {
    tree.markdown()
        .flat_map(|page| {
            let mut in_block = false;
            page.faults(|line| {
                if line.trim_start().starts_with("```") {
                    in_block = !in_block;
                    return None;
                }
                let found: Vec<String> = if in_block {
                    fault(line.split(" #").next().unwrap_or_default())
                } else {
                    line.split('`')
                        .skip(1)
                        .step_by(2)
                        .flat_map(&fault)
                        .collect()
                };
                (!found.is_empty()).then(|| format!("does not exist: {}", found.join(", ")))
            })
        })
        .collect()
}

/// Sources that may know an option or a variable. The rules are not among them, because their tests name absent ones.
pub(super) fn sources(tree: &Tree) -> impl Iterator<Item = &Source> {
    let endings = [".rs", ".c", ".h", ".py", ".sh"];
    tree.files.iter().filter(move |file| {
        !file.path.starts_with("tests/rules/") && endings.iter().any(|end| file.path.ends_with(end))
    })
}

/// Whether a source below one of the folders has the word in quotes.
fn quotes(tree: &Tree, folders: &[&str], word: &str) -> bool {
    let quoted = format!("\"{word}\"");
    sources(tree).any(|file| {
        folders.iter().any(|folder| file.path.starts_with(folder)) && file.text.contains(&quoted)
    })
}

/// Whether a source below one of the folders has the word as a variant of the commands that a derive reads.
fn has_variant(tree: &Tree, folders: &[&str], word: &str) -> bool {
    let parts = word.split('-').filter_map(|part| {
        let (first, rest) = part.split_at_checked(1)?;
        Some(first.to_ascii_uppercase() + rest)
    });
    let variant: String = parts.collect();
    let forms = ['(', ',', ' '].map(|after| format!("    {variant}{after}"));
    sources(tree).any(|file| {
        folders.iter().any(|folder| file.path.starts_with(folder))
            && file.text.contains("Subcommand")
            && forms.iter().any(|form| file.text.contains(form))
    })
}

/// Whether a word is the name of a command or an option, and not a placeholder, a path or an option.
fn is_name(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_lowercase())
        && !word.ends_with('-')
        && word
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::planted;

    const MAIN: (&str, &str) = (
        "tools/xtask/src/main.rs",
        "\"demo\" => demo::run(),\n\"tidy\" => tidy(),\n",
    );

    fn check(
        rule: fn(&Tree) -> Vec<String>,
        page: &str,
        sources: &[(&str, &str)],
        expect: &[&str],
    ) {
        let mut files = vec![("docs/A.md", page), MAIN];
        files.extend(sources);
        let faults = rule(&planted(&files));
        let expect: Vec<String> = expect
            .iter()
            .map(|fault| format!("docs/A.md:{fault}"))
            .collect();
        assert_eq!(faults, expect, "{page}");
    }

    #[test]
    fn absent_commands_are_found() {
        let page = "`cargo xtask demo --quick` `cargo xtask tidy`, `cargo xtask gone`\n\
                    ```sh\ncargo xtask demo ucc    # cargo xtask old\ncargo xtask demo uxx\n```\n";
        check(
            commands,
            page,
            &[("tools/xtask/src/demo.rs", "first == \"ucc\"")],
            &[
                "1: does not exist: cargo xtask gone",
                "4: does not exist: cargo xtask demo uxx",
            ],
        );
        let page = "`xgvmi stat --json` `xgvmi probe`\n```sh\nhost$ $HOME/bin/xgvmi start\n```\n";
        check(
            subcommands,
            page,
            &[("cli/xgvmi/src/main.rs", "\"stat\" => stat(),")],
            &[
                "1: does not exist: xgvmi probe",
                "3: does not exist: xgvmi start",
            ],
        );
    }

    #[test]
    fn absent_packages_and_programs_are_found() {
        let page = "`cargo build -p a --example b`, `cargo run -p gone`\n```sh\ncargo build -p a --bin b\n```\n\
                    `cargo run -p a --bin c` `cargo xtask bench -p x`\n";
        check(
            packages,
            page,
            &[
                (
                    "x/Cargo.toml",
                    "[package]\nname = \"a\"\n[[bin]]\nname = \"c\"\n",
                ),
                ("x/src/bin/b/main.rs", ""),
            ],
            &["1: does not exist: -p gone"],
        );
        let page = "`cargo build -p a --example b`\n";
        let manifest = ("x/Cargo.toml", "name = \"a\"\n");
        check(
            packages,
            page,
            &[manifest, ("x/examples/bb.rs", "")],
            &["1: does not exist: --example b"],
        );
    }

    #[test]
    fn absent_options_are_found() {
        let page = "`x --level 3 --max-size 2` `y --quick` -- `z --mca a` `--gone`\n";
        let source = "Long(\"level\"), max_size: u32, pub max_size: u32, \"  --quick  fewer\"\n";
        check(
            options,
            page,
            &[("a/src/b.rs", source)],
            &["1: does not exist: --gone"],
        );
    }

    #[test]
    fn absent_variables_are_found() {
        let page = "`UCX_XGVMI_POOL_MAX`, `UCX_XGVMI_*`, UCX_XGVMI_POOL_MIN\n`BFEMU_AS` `BFEMU_AT=3` `UCX_LOG_LEVEL`\n";
        let sources = [
            ("uct-plugin/src/config/table.rs", "name: \"POOL_MAX\""),
            ("b/src/a.rs", "var(\"BFEMU_AS\")"),
        ];
        check(
            variables,
            page,
            &sources,
            &[
                "1: does not exist: UCX_XGVMI_POOL_MIN",
                "2: does not exist: BFEMU_AT",
            ],
        );
    }

    #[test]
    fn absent_files_are_found() {
        let page =
            "`a/src/b.rs:3` `src/b.rs` `a/` `a/src/*.rs` `d/e.c`\n`a/c.toml` `gone.rs::test`\n";
        check(
            paths,
            page,
            &[("a/src/b.rs", "")],
            &["2: does not exist: a/c.toml, gone.rs"],
        );
        let former = planted(&[(CHANGELOG, "`a/gone.md`\n"), ("a/b", "")]);
        assert!(paths(&former).is_empty());
    }
}
