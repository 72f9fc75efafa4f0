//! Rules that check one file's text at a time.

use doc_numbers::tree::Tree;

/// Longer files hold more than one subject.
const LINES_MAX: usize = 800;

/// Crates of the product. Their only interface with the emulator is the kernel's.
const PRODUCT: [&str; 17] = [
    "bindings/mlx5dv-sys/",
    "bindings/rdmacm-sys/",
    "ucx-sys/",
    "xgvmi-pool/",
    "shared/verbs/",
    "uct-plugin/",
    "cli/xgvmi/",
    "shared/ucp/",
    "shared/daemon/",
    "services/offload/",
    "services/blk/",
    "clients/ucc-tl/",
    "clients/naaice/",
    "services/naa/",
    "shared/report/",
    "tools/model/",
    "cli/cost/",
];

/// Files in the root. A program that writes to the directory in which it runs leaves others there.
const TOP: [&str; 12] = [
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "README.md",
    "SECURITY.md",
    "book.toml",
    "clippy.toml",
    "deny.toml",
    "rustfmt.toml",
];

pub(super) fn stray(names: &[String]) -> Vec<String> {
    names
        .iter()
        .filter(|name| !TOP.contains(&name.as_str()))
        .map(|name| format!("{name}: does not belong into the root"))
        .collect()
}

pub(super) fn module_docs(tree: &Tree) -> Vec<String> {
    tree.rust()
        .filter(|file| {
            let expected = if file.is_generated() {
                "/* automatically generated"
            } else {
                "//! "
            };
            !file.text.starts_with(expected)
        })
        .map(|file| format!("{}: does not begin with //! and what it is for", file.path))
        .collect()
}

pub(super) fn nothing_disabled(tree: &Tree) -> Vec<String> {
    // Split in two, so that the rule does not match this file.
    let banned = [
        concat!("#[ig", "nore"),
        concat!("#[should", "_panic"),
        concat!("to", "do!("),
        concat!("unimpl", "emented!("),
        concat!("thread::sl", "eep("),
    ];
    let mut faults = Vec::new();
    for file in tree.rust().filter(|file| !file.is_generated()) {
        // A fault of a suite lasts for a time: a stopped target must exceed the service's limit.
        let is_suite = file.path.starts_with("tests/suites/");
        let mut in_tests =
            !is_suite && file.path.starts_with("tests/") || file.path.contains("/tests/");
        faults.extend(file.faults(|line| {
            in_tests |= line.starts_with("#[cfg(test)]");
            let found = banned.iter().find(|word| line.contains(**word))?;
            // Sleeping is a fault only in tests; a tool may wait for a child or a port.
            (in_tests || !found.contains("thread")).then(|| (*found).to_owned())
        }));
    }
    faults
}

pub(super) fn lengths(tree: &Tree) -> Vec<String> {
    tree.rust()
        .filter(|file| !file.is_generated())
        .map(|file| (file.text.lines().count(), &file.path))
        .filter(|(lines, _)| *lines >= LINES_MAX)
        .map(|(lines, path)| {
            format!("{path}: {lines} lines; {LINES_MAX} is too many for one subject")
        })
        .collect()
}

pub(super) fn nothing_local(tree: &Tree) -> Vec<String> {
    let banned = [
        concat!("/wo", "rk/"),
        concat!("/tm", "p/"),
        concat!("/ro", "ot/"),
        concat!("../shared/de", "sign"),
        concat!("../shared/fa", "cts"),
        concat!("../shared/pro", "totypes"),
        concat!("../shared/re", "views"),
        concat!("../shared/se", "eds"),
        concat!("py", "pi.org"),
        concat!("crates", ".io"),
        concat!("deb.deb", "ian.org"),
    ];
    tree.files
        .iter()
        .filter(|file| !file.path.ends_with("Cargo.lock"))
        .flat_map(|file| {
            file.faults(|line| {
                banned
                    .iter()
                    .find(|word| line.contains(**word))
                    .map(|w| format!("names {w}"))
            })
        })
        .collect()
}

pub(super) fn safe_core(tree: &Tree) -> Vec<String> {
    let core = |path: &str| {
        path.starts_with("xgvmi-pool/src/")
            && !path.starts_with("xgvmi-pool/src/mlx5/")
            // The signal mask of threads. Without the feature `mlx5` it has no such code.
            && path != "xgvmi-pool/src/signals.rs"
    };
    tree.rust()
        .filter(|file| core(&file.path))
        .flat_map(|file| {
            file.faults(|line| {
                let code = line.split("//").next().unwrap_or_default();
                let mut words = code.split(|c: char| !c.is_alphanumeric() && c != '_');
                words
                    .any(|word| word == "unsafe")
                    .then(|| "unsafe outside mlx5/".to_owned())
            })
        })
        .collect()
}

/// Crates whose unsafe functions are callbacks of a foreign interface (UCC's components, fio's engines). Their contract is
/// that of the interface's header.
const FOREIGN_CONTRACTS: [&str; 2] = ["clients/ucc-tl/", "services/blk/"];

/// Each unsafe function states its preconditions under `# Safety`. Methods of an unsafe trait have those of the trait.
pub(super) fn contracts(tree: &Tree) -> Vec<String> {
    let files = tree.rust().filter(|file| {
        let mut foreign = FOREIGN_CONTRACTS.iter();
        !file.is_generated() && !foreign.any(|start| file.path.starts_with(*start))
    });
    files
        .flat_map(|file| {
            // Of the comments and attributes directly above, and of the unsafe implementation around.
            let (mut stated, mut in_trait) = (false, false);
            file.faults(|line| {
                let code = line.trim_start();
                in_trait = (in_trait && line != "}") || line.starts_with("unsafe impl");
                if code.starts_with("//") || code.starts_with("#[") {
                    stated |= code.contains("# Safety");
                    return None;
                }
                let was_stated = std::mem::take(&mut stated);
                let item = code.split_once("unsafe ").and_then(|(visibility, item)| {
                    let is_item = visibility.is_empty() || visibility.starts_with("pub");
                    let item = item.strip_prefix("extern \"C\" ").unwrap_or(item);
                    is_item.then(|| item.strip_prefix("fn "))?
                });
                let name = item?.split(['(', '<']).next()?;
                (!was_stated && !in_trait && !name.is_empty())
                    .then(|| format!("{name} has no `# Safety`"))
            })
        })
        .collect()
}

pub(super) fn product_alone(tree: &Tree) -> Vec<String> {
    tree.files
        .iter()
        .filter(|file| PRODUCT.iter().any(|folder| file.path.starts_with(folder)))
        .flat_map(|file| {
            file.faults(|line| {
                let line = line.to_lowercase().replace(['-', '_'], "");
                line.contains("bfemu")
                    .then(|| "names the emulator".to_owned())
            })
        })
        .collect()
}

/// Programs run on an emulated device through [`testbed::cluster::Cluster`]: one place owns its directory, its options and
/// its end.
pub(super) fn one_testbed(tree: &Tree) -> Vec<String> {
    let owners = ["testbed/", "bf-emu/"];
    tree.rust()
        .filter(|file| !owners.iter().any(|owner| file.path.starts_with(owner)))
        .flat_map(|file| {
            file.faults(|line| {
                line.contains(concat!("\"--", "as\""))
                    .then(|| "starts the emulator; use testbed::cluster::Cluster".to_owned())
            })
        })
        .collect()
}

/// A target that cargo does not build for tests has none.
pub(super) fn untested(tree: &Tree) -> Vec<String> {
    let manifests = tree.files.iter().filter_map(|file| {
        let folder = file.path.strip_suffix("Cargo.toml")?;
        Some((folder, &file.text))
    });
    manifests
        .flat_map(|(folder, text)| {
            let targets = text
                .split("\n[")
                .filter(|part| part.contains("\ntest = false"));
            targets.flat_map(move |target| tests_of(tree, folder, target))
        })
        .collect()
}

/// Tests in the sources of such a target.
fn tests_of(tree: &Tree, folder: &str, target: &str) -> Vec<String> {
    let named = target
        .lines()
        .find_map(|line| line.strip_prefix("path = \"")?.strip_suffix('"'));
    let mut root = format!("{folder}{}", named.unwrap_or("src/lib.rs"));
    // A path to another package of this folder.
    while let Some(up) = root.find("/../") {
        let parent = root[..up].rfind('/').map_or(0, |slash| slash + 1);
        root.replace_range(parent..up + 4, "");
    }
    let beside_library = root == format!("{folder}src/main.rs")
        && tree.get(&format!("{folder}src/lib.rs")).is_some();
    let modules = ["main.rs", "lib.rs"]
        .iter()
        .find_map(|end| root.strip_suffix(end))
        .filter(|_| !beside_library);
    let own = |path: &str| match modules {
        Some(modules) => path
            .strip_prefix(modules)
            .is_some_and(|rest| !rest.starts_with("bin/")),
        None => path == root,
    };
    let attribute = concat!("#[te", "st]");
    tree.rust()
        .filter(|file| own(&file.path) && file.text.contains(attribute))
        .map(|file| {
            format!(
                "{}: its tests do not run, {folder}Cargo.toml has `test = false`",
                file.path
            )
        })
        .collect()
}

pub(super) fn exports(tree: &Tree) -> Vec<String> {
    // An rlib that exports a libc name would interpose it in its own tests.
    let words = [concat!("no_", "mangle"), concat!("export_", "name")];
    tree.rust()
        .filter(|file| !file.path.starts_with("uct-plugin/src/"))
        .filter(|file| !file.path.starts_with("bf-emu/preload/src/"))
        .filter(|file| !file.path.starts_with("clients/ucc-tl/src/"))
        .filter(|file| !file.path.starts_with("clients/naaice/src/capi/"))
        .filter(|file| !file.path.starts_with("services/blk/capi/src/"))
        .filter(|file| !file.path.starts_with("services/blk/fio/src/"))
        .filter(|file| !file.path.starts_with("doca/libs/src/"))
        .filter(|file| !file.path.starts_with("doca/flexio/src/"))
        .flat_map(|file| {
            file.faults(|line| {
                let attribute = line.trim_start().starts_with("#[");
                (attribute && words.iter().any(|word| line.contains(word)))
                    .then(|| "exports a C name".to_owned())
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::planted;

    fn check(rule: fn(&Tree) -> Vec<String>, files: &[(&str, &str)], expect: &[&str]) {
        let faults = rule(&planted(files));
        let places: Vec<String> = faults
            .iter()
            .map(|f| f.splitn(3, ':').take(2).collect::<Vec<_>>().join(":"))
            .collect();
        let starts = places
            .iter()
            .zip(expect)
            .all(|(place, want)| place.starts_with(want));
        assert!(
            faults.len() == expect.len() && starts,
            "{faults:?} is not {expect:?}"
        );
    }

    #[test]
    fn a_stray_file_is_found() {
        let names = ["README.md", "idmap.txt"].map(str::to_owned);
        assert_eq!(stray(&names).len(), 1);
    }

    #[test]
    fn module_docs_are_asked_for() {
        check(
            module_docs,
            &[("a/a.rs", "//! What.\n"), ("a/b.rs", "use x;\n")],
            &["a/b.rs"],
        );
        check(
            module_docs,
            &[("a/src/bindings.rs", "/* automatically generated by x */\n")],
            &[],
        );
        check(
            module_docs,
            &[("a/src/bindings.rs", "//! by hand\n")],
            &["a/src/bindings.rs"],
        );
    }

    #[test]
    fn disabled_code_is_found() {
        let ignored = concat!("fn a() {}\n#[ig", "nore = \"x\"]\n");
        check(nothing_disabled, &[("a.rs", ignored)], &["a.rs:2"]);
        let wait = concat!("thread::sl", "eep(x);\n");
        check(nothing_disabled, &[("a.rs", wait)], &[]);
        check(
            nothing_disabled,
            &[("a/tests/b.rs", wait)],
            &["a/tests/b.rs:1"],
        );
        let inside = format!("#[cfg(test)]\nmod tests {{\n{wait}");
        check(nothing_disabled, &[("a.rs", &inside)], &["a.rs:3"]);
    }

    #[test]
    fn long_files_are_found() {
        let line = "//! x\n";
        check(
            lengths,
            &[("a.rs", &line.repeat(799)), ("b.rs", &line.repeat(800))],
            &["b.rs"],
        );
    }

    #[test]
    fn local_paths_are_found() {
        let text = format!("ok\nsee {}x\n", concat!("/tm", "p/"));
        check(
            nothing_local,
            &[("a.md", &text), ("Cargo.lock", &text)],
            &["a.md:2"],
        );
    }

    #[test]
    fn unsafe_in_the_core_is_found() {
        let text = "// unsafe in a comment\nlet unsafely = 1;\nunsafe { x() }\n";
        check(
            safe_core,
            &[("xgvmi-pool/src/pool.rs", text)],
            &["xgvmi-pool/src/pool.rs:3"],
        );
        check(
            safe_core,
            &[
                ("xgvmi-pool/src/mlx5/umr.rs", text),
                ("bf-emu/src/a.rs", text),
            ],
            &[],
        );
    }

    #[test]
    fn unsafe_functions_without_a_contract_are_found() {
        let text = "/// # Safety\n/// None.\n#[inline]\nunsafe fn a() {}\npub unsafe fn b() {}\n\
                    unsafe impl T for S {\n    unsafe fn c() {}\n}\n    unsafe extern \"C\" fn $name(\n\
                    type F = unsafe fn(u8);\n/// More.\npub(crate) unsafe fn d<T>() {}\n";
        let file = ("a.rs", text);
        check(contracts, &[file], &["a.rs:5", "a.rs:9", "a.rs:12"]);
        check(contracts, &[("clients/ucc-tl/src/a.rs", text)], &[]);
    }

    #[test]
    fn the_emulator_is_not_named_in_the_product() {
        let text = "getenv(\"BFEMU_STATE\")\n";
        check(
            product_alone,
            &[("uct-plugin/src/lib.rs", text), ("tests/src/a.rs", text)],
            &["uct-plugin/src/lib.rs:1"],
        );
    }

    #[test]
    fn stray_exports_are_found() {
        let text = concat!("#[unsafe(no_", "mangle)]\n");
        check(
            exports,
            &[
                ("bf-emu/src/lib.rs", text),
                ("bf-emu/preload/src/lib.rs", text),
            ],
            &["bf-emu/src/lib.rs:1"],
        );
    }

    #[test]
    fn tests_that_do_not_run_are_found() {
        let attribute = concat!("#[te", "st]\n");
        let manifest = "[package]\nname = \"a\"\n\n[[bin]]\nname = \"b\"\npath = \"src/main.rs\"\ntest = false\n\n[[bin]]\n\
                        name = \"c\"\npath = \"src/bin/c/main.rs\"\ntest = false\n\n[[bin]]\nname = \"d\"\n\
                        path = \"../other/examples/d.rs\"\ntest = false\n";
        let sources = [
            ("x/a/Cargo.toml", manifest),
            ("x/a/src/main.rs", attribute),
            ("x/a/src/part.rs", attribute),
            ("x/a/src/bin/c/part.rs", attribute),
            ("x/a/src/bin/e.rs", attribute),
            ("x/other/examples/d.rs", attribute),
            ("x/other/src/lib.rs", attribute),
        ];
        let in_folder = "x/a/src/bin/c/part.rs";
        let found = [
            "x/a/src/main.rs",
            "x/a/src/part.rs",
            in_folder,
            "x/other/examples/d.rs",
        ];
        check(untested, &sources, &found);
        let beside = [&sources[..], &[("x/a/src/lib.rs", "")]].concat();
        let found = ["x/a/src/main.rs", in_folder, "x/other/examples/d.rs"];
        check(untested, &beside, &found);
    }
}
