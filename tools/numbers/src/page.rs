//! The page that shows all promises of `tests/promises.toml`.

use crate::blocks::{self, Rendered};
use crate::promises::{Area, FILE};
use crate::reports::Reports;
use std::fmt::Write as _;

/// The page, relative to the target directory.
pub const PAGE: &str = "promises.md";

/// The page of all promises. Its links begin at a directory below the root of the tree.
pub fn page(reports: &Reports) -> Rendered {
    let mut text = format!(
        "# Promises\n\nAll promises of {FILE}. A test fails if an asserted promise is broken. A benchmark \
             compares the measured promises.\n"
    );
    for area in &reports.promises.areas {
        write(area, &mut text);
    }
    text.push_str("\n## Measured\n\n<!-- numbers: judge -->\n<!-- end -->\n");
    for (title, note) in &reports.promises.notes {
        // Writing to a string cannot fail.
        let _ = write!(text, "\n### {title}\n\n{}\n", note.trim());
    }
    blocks::render(&below_the_root(&text), reports)
}

fn write(area: &Area, text: &mut String) {
    let _ = write!(
        text,
        "\n## {}\n\n| Promise | Number | Held by |\n|---|---|---|\n",
        area.name
    );
    for promise in &area.promises {
        let number = promise.number.as_deref().unwrap_or_default();
        let held_by = promise.held_by.join("`, `");
        let note = promise.note.iter().map(|note| format!("; {note}"));
        let note: String = note.collect();
        let _ = writeln!(text, "| {} | {number} | `{held_by}`{note} |", promise.text);
    }
    if let Some(note) = &area.note {
        let _ = write!(text, "\n{}\n", note.trim());
    }
}

/// Links of the file begin at the root. Those of a page one directory below it need `../`.
fn below_the_root(text: &str) -> String {
    let mut parts = text.split("](");
    let mut page = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let inside = !part.starts_with('#') && !part.starts_with("http");
        page.push_str(if inside { "](../" } else { "](" });
        page.push_str(part);
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::promises::Promises;
    use crate::promises::tests::SAMPLE;

    #[test]
    fn the_page_shows_every_part_of_the_file() {
        let mut reports = Reports::default();
        let rows = r#"{"rows":[{"name":"a","ours":1.0,"peer":2.5,"ratio":2.5,"unit":"ns"}]}"#;
        reports.add("pool", rows).unwrap();
        reports.promises = Promises::parse(SAMPLE).unwrap();
        let page = page(&reports);
        assert_eq!(page.faults, []);
        for part in [
            "## The pool\n\n| Promise | Number | Held by |\n|---|---|---|\n| Keys are reused ([B](#b), [C](https://c)) | \
             <!-- number: pool name=a ours .0 -->1<!-- end --> ns | `pool/a.rs::reused`, `cargo xtask demo`; on two nodes |\n",
            "\nMore in [A](../docs/A.md).\n",
            "| pool: fast | <= 2 ns | 1 ns | yes | `cargo xtask bench pool` |\n",
            "\n### Rows\n\nA row.\n",
        ] {
            assert!(page.text.contains(part), "{part}\n{}", page.text);
        }
    }
}
