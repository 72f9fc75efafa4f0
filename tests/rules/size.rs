//! The size of the tree by role of the folders, and the budget of each folder.

use crate::graph::Package;
use crate::layers::{self, imports};
use doc_numbers::tree::{Source, Tree};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Variable with the path of the report that `cargo xtask tidy --json` asks for.
const REPORT: &str = "XGVMI_TIDY_JSON";

/// Most lines of code, comments and blank lines included, without tests and generated code. A row may have several
/// folders; a file belongs to the first row that matches. A change that needs more lines raises the budget of its row
/// in the same commit, or removes lines elsewhere.
///
/// All rows are the present numbers, rounded up.
const BUDGETS: &[(&[&str], usize)] = &[
    (&["tools/", "testbed/"], 28_570),
    (&["bf-emu/"], 49_530),
    (&["bindings/"], 2_700),
    (&["clients/"], 17_200),
    (&["cli/"], 4_500),
    (&["doca/"], 40_950),
    (&["osu-bench/"], 4_100),
    (&["services/"], 56_300),
    (&["shared/"], 10_880),
    (&["ucx-sys/"], 560),
    (&["uct-plugin/"], 13_270),
    (&["xgvmi-pool/"], 14_470),
];

/// Most words of all documents: the present number, and what a few open changes need. A document that grows shortens another passage.
const WORDS_MAX: usize = 30_200;

/// Endings of source files.
const SOURCES: [&str; 5] = [".rs", ".c", ".h", ".cc", ".py"];

/// What a line of source is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Role {
    Product,
    Device,
    Tools,
    /// Tests, fuzz targets, and programs that only tests and benchmarks run.
    Tests,
    /// Output of bindgen.
    Generated,
}

use Role::{Device, Generated, Product, Tests, Tools};

/// Top-level folders with sources.
const FOLDERS: [(&str, Role); 16] = [
    ("bf-emu", Device),
    ("bindings", Product),
    ("cli", Product),
    ("clients", Product),
    ("doca", Product),
    ("fuzz", Tests),
    ("osu-bench", Tools),
    ("patches", Product),
    ("services", Product),
    ("shared", Product),
    ("testbed", Tools),
    ("tests", Tests),
    ("tools", Tools),
    ("ucx-sys", Product),
    ("uct-plugin", Product),
    ("xgvmi-pool", Product),
];

/// A source file: its role, and how many of its lines are tests inside it.
#[derive(Debug)]
struct Sized<'a> {
    file: &'a Source,
    role: Role,
    lines: usize,
    tests: usize,
}

impl Sized<'_> {
    /// Lines that are no tests and not generated.
    fn code(&self) -> usize {
        match self.role {
            Tests | Generated => 0,
            Product | Device | Tools => self.lines - self.tests,
        }
    }
}

/// The rule: each source has a role, and each row keeps its budget. Writes the report if the variable asks for it.
pub(super) fn budgets(tree: &Tree, packages: &[Package]) -> Vec<String> {
    let mut faults = over(tree, BUDGETS);
    faults.extend(too_many_words(tree, WORDS_MAX));
    if let Some(path) = std::env::var_os(REPORT) {
        let circles = layers::circles(tree).len() + circles_of_crates(packages).len();
        let text = format!("{:#}\n", report(tree, circles));
        let path = Path::new(&path);
        if let Err(error) = std::fs::write(path, text) {
            faults.push(format!("cannot write {}: {error}", path.display()));
        }
    }
    faults
}

fn over(tree: &Tree, budgets: &[(&[&str], usize)]) -> Vec<String> {
    let (sizes, mut faults) = sizes(tree);
    let mut used = vec![0; budgets.len()];
    for size in sizes.iter().filter(|size| size.code() > 0) {
        let path = &size.file.path;
        let is_in = |folder: &&str| path.starts_with(folder);
        match budgets
            .iter()
            .position(|(folders, _)| folders.iter().any(is_in))
        {
            Some(row) => used[row] += size.code(),
            None => faults.push(format!(
                "{path}: its folder has no budget in tests/rules/size.rs"
            )),
        }
    }
    for ((folders, budget), used) in budgets.iter().zip(used) {
        let folders = folders.join(", ");
        if used > *budget {
            faults.push(format!(
                "{folders}: {used} lines of code without tests, the budget is {budget}; remove code, or raise the budget in \
                 tests/rules/size.rs"
            ));
        } else if used == 0 {
            faults.push(format!("{folders}: a budget without code"));
        }
    }
    faults
}

/// Words of all documents.
fn words(tree: &Tree) -> usize {
    let pages = tree
        .markdown()
        .filter(|page| page.path != crate::docs::PAGE);
    pages.map(|page| page.text.split_whitespace().count()).sum()
}

fn too_many_words(tree: &Tree, most: usize) -> Option<String> {
    let words = words(tree);
    (words > most).then(|| {
        format!("the documents have {words} words, the maximum is {most}; shorten a passage, or raise it in tests/rules/size.rs")
    })
}

/// The report of `cargo xtask tidy --json`.
fn report(tree: &Tree, circles: usize) -> Value {
    let (sizes, _) = sizes(tree);
    let mut lines: BTreeMap<Role, usize> = BTreeMap::new();
    for size in &sizes {
        *lines.entry(size.role).or_default() += size.lines - size.tests;
        *lines.entry(Tests).or_default() += size.tests;
    }
    let lines = |role| lines.get(&role).copied().unwrap_or_default();
    let words = words(tree);
    let folders: BTreeSet<&str> = tree
        .files
        .iter()
        .filter_map(|file| file.path.split_once('/').map(|(folder, _)| folder))
        .filter(|folder| !folder.starts_with('.'))
        .collect();
    let written = sizes.iter().filter(|size| size.role != Generated);
    let largest = written.max_by_key(|size| size.lines);
    json!({
        "words": words,
        "top_level_folders": folders.len(),
        "lines": {
            "product": lines(Product), "device": lines(Device), "tools": lines(Tools), "tests": lines(Tests),
            "generated": lines(Generated),
        },
        "circles": circles,
        "largest_file": largest.map(|size| json!({"path": size.file.path, "lines": size.lines})),
    })
}

/// The source files of the tree, and those whose folder has no role.
fn sizes(tree: &Tree) -> (Vec<Sized<'_>>, Vec<String>) {
    let (mut sizes, mut faults) = (Vec::new(), Vec::new());
    let is_source = |file: &&Source| SOURCES.iter().any(|end| file.path.ends_with(end));
    let files: Vec<&Source> = tree.files.iter().filter(is_source).collect();
    let found: Vec<(usize, Vec<String>)> = files
        .iter()
        .map(|file| match file.path.ends_with(".rs") {
            true => imports::tests_in(&file.text),
            false => (0, Vec::new()),
        })
        .collect();
    let modules: BTreeSet<String> = files
        .iter()
        .zip(&found)
        .flat_map(|(file, (_, modules))| modules.iter().map(|name| module(&file.path, name)))
        .collect();
    for (file, (tests, _)) in files.into_iter().zip(found) {
        let top = file.path.split('/').next().unwrap_or_default();
        let Some((_, role)) = FOLDERS.iter().find(|(folder, _)| *folder == top) else {
            faults.push(format!(
                "{}: its folder has no role in tests/rules/size.rs",
                file.path
            ));
            continue;
        };
        let in_tests = || {
            let path = file.path.trim_end_matches(".rs");
            // The module itself, and the modules below it.
            let whole = path.match_indices('/').map(|(at, _)| &path[..at]);
            whole.chain([path]).any(|part| modules.contains(part)) || is_for_tests(&file.path)
        };
        let role = match role {
            _ if file.is_generated() => Generated,
            _ if in_tests() => Tests,
            role => *role,
        };
        sizes.push(Sized {
            file,
            role,
            lines: file.text.lines().count(),
            tests,
        });
    }
    (sizes, faults)
}

/// The path, without its ending, of a module that a file declares.
fn module(file: &str, name: &str) -> String {
    let stem = file.trim_end_matches(".rs");
    let folder = stem.rsplit_once('/').map_or("", |(folder, _)| folder);
    match stem.rsplit('/').next() {
        Some("lib" | "main" | "mod") => format!("{folder}/{name}"),
        _ => format!("{stem}/{name}"),
    }
}

/// Whether a file is in a folder of tests, benchmarks or their programs.
fn is_for_tests(path: &str) -> bool {
    let has = |folders: &[&str]| path.split('/').any(|part| folders.contains(&part));
    let is_demo = path.split('/').any(|part| part.ends_with("_demo"));
    has(&["tests", "bench", "benches", "examples"]) || (has(&["programs"]) && !is_demo)
}

/// Crates of the workspace that depend on themselves through others. Dependencies of tests count.
fn circles_of_crates(packages: &[Package]) -> Vec<&str> {
    let ours: BTreeMap<&str, &Package> = packages
        .iter()
        .filter(|package| package.ours)
        .map(|package| (package.name.as_str(), package))
        .collect();
    let meets_itself = |start: &str| {
        let mut seen: BTreeSet<&str> = BTreeSet::new();
        let mut left = vec![start];
        while let Some(package) = left.pop().and_then(|name| ours.get(name)) {
            // A crate's own tests may depend on the crate itself.
            let names = package.dependencies.iter().map(String::as_str);
            let next = names.filter(|name| *name != package.name && ours.contains_key(name));
            left.extend(next.filter(|name| seen.insert(name)));
        }
        seen.contains(start)
    };
    ours.keys()
        .copied()
        .filter(|name| meets_itself(name))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::planted;

    const FILES: &[(&str, &str)] = &[
        ("README.md", "three short words\n"),
        ("docs/A.md", "two words\n"),
        (crate::docs::PAGE, "not a file\n"),
        (".ci/run.py", ""),
        (
            "xgvmi-pool/src/lib.rs",
            "//! x\nmod a;\nfn f() { \"}\"; }\n#[cfg(test)]\nmod only;\n\n#[cfg(all(test, not(loom)))]\nmod tests {\n    fn g() {}\n}\n",
        ),
        ("xgvmi-pool/src/only.rs", "1\n2\n"),
        ("xgvmi-pool/src/only/more.rs", "1\n"),
        ("xgvmi-pool/src/a/tests/b.rs", "1\n"),
        ("xgvmi-pool/examples/c/main.rs", "1\n2\n3\n"),
        ("xgvmi-pool/include/x.h", "1\n2\n"),
        ("testbed/programs/src/storage_demo/main.rs", "1\n2\n3\n4\n"),
        ("ucx-sys/src/bindings.rs", "1\n2\n3\n4\n5\n"),
        ("bf-emu/src/lib.rs", "1\n"),
        ("tools/x/src/main.rs", "1\n2\n"),
        ("tests/programs/p.c", "1\n2\n3\n"),
    ];

    #[test]
    fn more_words_than_the_maximum_are_a_fault() {
        let tree = planted(FILES);
        assert_eq!(words(&tree), 5);
        assert_eq!(too_many_words(&tree, 5), None);
        let fault = too_many_words(&tree, 4).expect("one more");
        assert!(fault.contains("have 5 words, the maximum is 4"), "{fault}");
    }

    #[test]
    fn a_small_tree_is_measured() {
        let tree = planted(FILES);
        assert_eq!(
            report(&tree, 3),
            json!({
                "words": 5,
                "top_level_folders": 7,
                "lines": {"product": 6, "device": 1, "tools": 6, "tests": 16, "generated": 5},
                "circles": 3,
                "largest_file": {"path": "xgvmi-pool/src/lib.rs", "lines": 10},
            })
        );
    }

    #[test]
    fn a_folder_beyond_its_budget_and_one_without_are_found() {
        let tree = planted(FILES);
        let rows: &[(&[&str], usize)] = &[
            (&["tools/", "testbed/"], 6),
            (&["xgvmi-pool/"], 5),
            (&["ucx-sys/"], 5),
        ];
        let faults = over(&tree, rows);
        let expect = [
            ".ci/run.py: its folder has no role",
            "bf-emu/src/lib.rs: its folder has no budget",
            "xgvmi-pool/: 6 lines of code without tests, the budget is 5",
            "ucx-sys/: a budget without code",
        ];
        assert_eq!(faults.len(), expect.len(), "{faults:#?}");
        for (fault, part) in faults.iter().zip(expect) {
            assert!(fault.starts_with(part), "{fault}");
        }
    }

    #[test]
    fn crates_in_a_circle_are_found() {
        let package = |name, on| crate::graph::tests::package(name, "MIT", true, on);
        let packages = [
            package("a", &["b", "a"][..]),
            package("b", &["c"][..]),
            package("c", &["b"][..]),
        ];
        assert_eq!(circles_of_crates(&packages), ["b", "c"]);
    }
}
