//! Generated numbers of the documents, and the judgement of measured promises. The crate reads the reports, generates the
//! marked parts of a document from them, compares a document with what it would generate, and reads the promises of
//! `tests/promises.toml`.
//!
//! `cargo xtask results` runs the benchmarks and writes the documents; `tests/rules` fails if a document differs;
//! `cargo xtask bench judge` prints the judgement.
//!
//! ```
//! use doc_numbers::reports::Reports;
//! let mut reports = Reports::default();
//! reports.add("demo", r#"{"mismatches":0,"rows":[]}"#)?;
//! let page = "Wrong bytes: <!-- number: demo mismatches -->?<!-- end -->\n";
//! let rendered = doc_numbers::blocks::render(page, &reports);
//! assert_eq!(rendered.text, "Wrong bytes: <!-- number: demo mismatches -->0<!-- end -->\n");
//! # Ok::<(), anyhow::Error>(())
//! ```

pub mod blocks;
mod compare;
pub mod judge;
mod keys;
mod links;
mod overlap;
pub mod page;
pub mod promises;
mod query;
pub mod reports;
pub mod service;
mod storage;
mod tables;
pub mod timeline;
pub mod tree;

use anyhow::Result;
use promises::Promises;
use reports::{COMMITTED, Reports};
use tree::Tree;

/// The committed reports of a tree, and its promises.
///
/// # Errors
/// One of the files is malformed.
pub fn committed_reports(tree: &Tree) -> Result<Reports> {
    let mut reports = Reports::default();
    for file in &tree.files {
        let name = file.path.strip_prefix(&format!("{COMMITTED}/"));
        if let Some(name) = name.and_then(|name| name.strip_suffix(".json")) {
            reports.add(name, &file.text)?;
        }
    }
    if let Some(file) = tree.get(promises::FILE) {
        reports.promises = Promises::parse(&file.text)?;
    }
    Ok(reports)
}
