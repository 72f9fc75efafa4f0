//! Project rules that neither rustfmt nor clippy checks. Each rule is one test over the whole tree; `cargo xtask tidy`
//! runs them all.

mod docs;
mod graph;
mod layers;
mod pictures;
mod references;
mod size;
mod text;

use doc_numbers::tree::Tree;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The workspace's root directory.
fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_owned()
}

/// The tree with the page of all promises, read once for all rules.
fn tree() -> &'static Tree {
    static TREE: OnceLock<Tree> = OnceLock::new();
    TREE.get_or_init(|| {
        let mut tree = Tree::read(&root()).expect("the tree can be read");
        let page = docs::page_of_promises(&tree);
        tree.files.extend(page);
        tree
    })
}

/// The packages of the build, asked of cargo once for all rules.
/// Names of the files in the root, without hidden ones.
fn top() -> Vec<String> {
    let entries = std::fs::read_dir(root()).expect("the root can be read");
    let files = entries
        .flatten()
        .filter(|entry| entry.path().is_file())
        .filter_map(|entry| entry.file_name().into_string().ok());
    files.filter(|name| !name.starts_with('.')).collect()
}

fn packages() -> &'static [graph::Package] {
    static PACKAGES: OnceLock<Vec<graph::Package>> = OnceLock::new();
    PACKAGES.get_or_init(|| graph::packages(&root()).expect("cargo describes the workspace"))
}

/// Fails with one line for each fault.
fn assert_none(faults: &[String]) {
    assert!(faults.is_empty(), "\n{}\n", faults.join("\n"));
}

/// One test for each rule.
macro_rules! rules {
    ($($name:ident: $faults:expr,)*) => {
        $(
            #[test]
            fn $name() {
                assert_none(&$faults);
            }
        )*
    };
}

rules! {
    each_file_says_what_it_is_for: text::module_docs(tree()),
    no_code_is_disabled_or_unfinished: text::nothing_disabled(tree()),
    no_stray_file_is_at_the_top: text::stray(&top()),
    no_file_is_too_long: text::lengths(tree()),
    each_folder_keeps_its_budget: size::budgets(tree(), packages()),
    no_path_or_host_of_one_machine: text::nothing_local(tree()),
    the_core_of_the_pool_has_no_unsafe: text::safe_core(tree()),
    each_unsafe_function_states_its_contract: text::contracts(tree()),
    the_product_does_not_know_the_emulator: text::product_alone(tree()),
    only_the_testbed_starts_the_emulator: text::one_testbed(tree()),
    targets_without_test_builds_have_no_tests: text::untested(tree()),
    only_the_cdylibs_export_c_names: text::exports(tree()),
    modules_use_their_own_layer_and_those_below: layers::layers(tree()),
    no_modules_use_each_other_in_a_circle: layers::circles(tree()),
    links_in_documents_have_a_target: docs::links(tree()),
    each_page_is_in_the_book: docs::book(tree()),
    each_promise_has_its_test: docs::promises(tree()),
    the_architecture_names_each_crate: pictures::crates(tree()),
    pictures_are_those_of_the_tables: pictures::current(tree(), Path::new(env!("CARGO_TARGET_TMPDIR"))),
    documented_commands_exist: references::commands(tree()),
    documented_subcommands_exist: references::subcommands(tree()),
    documented_packages_exist: references::packages(tree()),
    documented_options_exist: references::options(tree()),
    documented_variables_exist: references::variables(tree()),
    documented_paths_exist: references::paths(tree()),
    numbers_are_those_of_the_committed_reports: docs::numbers(tree()),
    crates_depend_on_each_other_as_the_architecture_says: graph::edges(packages()),
    only_development_uses_tools: graph::tools(packages()),
    licences_are_accepted: graph::licences(packages()),
    no_dependency_needs_a_newer_compiler: graph::compilers(packages()),
}

#[cfg(test)]
mod tests {
    use super::*;
    use doc_numbers::tree::Source;

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
        assert!(tree().get("tests/rules/main.rs").is_some());
        assert!(
            !tree()
                .files
                .iter()
                .any(|file| file.path.starts_with("target/"))
        );
    }
}
