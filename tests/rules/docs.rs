//! Rules about the documents: each link has a target, each page is in the book, each promise names an existing test, and
//! generated numbers are those of the committed reports.

use doc_numbers::tree::{Source, Tree};
use doc_numbers::{blocks, committed_reports};

const SPECIFICATION: &str = "docs/SPECIFICATION.md";
/// mdBook's table of contents.
const SUMMARY: &str = "docs/SUMMARY.md";

/// Relative links and pictures in Markdown must name a file or directory of the tree; an anchor must name a heading.
pub(super) fn links(tree: &Tree) -> Vec<String> {
    tree.markdown()
        .flat_map(|file| {
            file.faults(|line| {
                let broken: Vec<&str> = targets(line)
                    .filter(|target| !leads_somewhere(tree, file, target))
                    .collect();
                (!broken.is_empty()).then(|| format!("leads nowhere: {}", broken.join(", ")))
            })
        })
        .collect()
}

/// The last cell of each row in the specification's tables names the check of the promise in backticks:
/// `file.rs::function`, or a command that begins with `cargo xtask`.
pub(super) fn promises(tree: &Tree) -> Vec<String> {
    let Some(file) = tree.get(SPECIFICATION) else {
        return vec![format!("{SPECIFICATION} is absent")];
    };
    // Generated tables other than the judgement are figures, not promises.
    let mut is_figure = false;
    file.faults(|line| {
        if let Some(name) = line.strip_prefix("<!-- numbers: ") {
            is_figure = !name.starts_with("judge ");
        } else if line == "<!-- end -->" {
            is_figure = false;
        }
        if is_figure {
            return None;
        }
        let cells: Vec<&str> = line
            .trim()
            .strip_prefix('|')?
            .strip_suffix('|')?
            .split('|')
            .collect();
        let cell = cells.last()?.trim();
        let is_header = cell == "Held by"
            || cell == "Measured by"
            || cell.chars().all(|c| c == '-' || c == ':');
        if is_header {
            return None;
        }
        let holders: Vec<&str> = cell.split('`').skip(1).step_by(2).collect();
        if holders.is_empty() {
            return Some("a promise that names no test".to_owned());
        }
        let absent: Vec<&str> = holders
            .into_iter()
            .filter(|holder| !exists(tree, holder))
            .collect();
        (!absent.is_empty()).then(|| format!("no such test: {}", absent.join(", ")))
    })
}

/// Each page below `docs` must be in mdBook's table of contents. mdBook does not build the others.
pub(super) fn book(tree: &Tree) -> Vec<String> {
    let Some(summary) = tree.get(SUMMARY) else {
        return vec![format!("{SUMMARY} is absent")];
    };
    let listed: Vec<&str> = summary.text.lines().flat_map(targets).collect();
    tree.markdown()
        .filter_map(|file| file.path.strip_prefix("docs/"))
        .filter(|page| *page != "SUMMARY.md" && !listed.contains(page))
        .map(|page| format!("{SUMMARY} does not list {page}"))
        .collect()
}

/// Generated parts of the documents must be what `cargo xtask results --render` writes.
pub(super) fn numbers(tree: &Tree) -> Vec<String> {
    let reports = match committed_reports(tree) {
        Ok(reports) => reports,
        Err(error) => return vec![format!("{error:#}")],
    };
    let pages = tree.markdown().flat_map(|page| {
        let differences = blocks::differences(&page.text, &reports);
        let tell = |(line, fault)| format!("{}:{line}: {fault}", page.path);
        differences.into_iter().map(tell).collect::<Vec<String>>()
    });
    let mut faults: Vec<String> = pages.collect();
    if !faults.is_empty() {
        faults.push("`cargo xtask results --render` writes the parts anew".to_owned());
    }
    faults
}

fn exists(tree: &Tree, holder: &str) -> bool {
    if let Some(command) = holder.strip_prefix("cargo xtask ") {
        let name = command.split_whitespace().next().unwrap_or_default();
        return tree
            .get("tools/xtask/src/main.rs")
            .is_some_and(|f| f.text.contains(&format!("\"{name}\" =>")));
    }
    let Some((path, function)) = holder.split_once("::") else {
        return false;
    };
    // A function, or a row in a table of cases.
    let forms = [
        format!("fn {function}("),
        format!("\"{function}\""),
        format!("({function})"),
    ];
    tree.get(path)
        .is_some_and(|file| forms.iter().any(|form| file.text.contains(form)))
}

/// The targets of `](target)` in a line.
fn targets(line: &str) -> impl Iterator<Item = &str> {
    line.split("](")
        .skip(1)
        .filter_map(|rest| rest.split([')', ' ']).next())
}

fn leads_somewhere(tree: &Tree, from: &Source, target: &str) -> bool {
    if target.contains("://") || target.starts_with("mailto:") {
        return true;
    }
    let (target, anchor) = target.split_once('#').unwrap_or((target, ""));
    if target.is_empty() {
        return has_heading(from, anchor);
    }
    let target = target.trim_end_matches('/');
    let mut parts: Vec<&str> = from.path.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "." => {}
            ".." => {
                if parts.pop().is_none() {
                    return false;
                }
            }
            part => parts.push(part),
        }
    }
    let path = parts.join("/");
    if let Some(page) = tree.get(&path).filter(|page| page.path.ends_with(".md")) {
        return has_heading(page, anchor);
    }
    tree.files
        .iter()
        .any(|f| f.path == path || f.path.starts_with(&format!("{path}/")))
}

/// Whether a page has a heading with this anchor. The empty anchor is the page itself.
fn has_heading(page: &Source, anchor: &str) -> bool {
    let headings = page.text.lines().filter(|line| line.starts_with('#'));
    let mut anchors = headings.map(|line| {
        let kept = line.trim_start_matches('#').trim().to_lowercase();
        let kept = kept.chars().filter_map(|c| match c {
            ' ' => Some('-'),
            '-' | '_' => Some(c),
            c => c.is_alphanumeric().then_some(c),
        });
        kept.collect::<String>()
    });
    anchor.is_empty() || anchors.any(|known| known == anchor)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::planted;

    #[test]
    fn broken_links_are_found() {
        let page = "[a](../README.md) [b](x.svg \"title\")\n[c](https://x) [d](#here-it-is) [e](../tools/xtask)\n\
                    [f](gone.md) [g](../README.md#uses-a_b)\n# Here it is:\n[h](#gone) [i](../README.md#gone)\n";
        let tree = planted(&[
            ("docs/A.md", page),
            ("docs/x.svg", ""),
            ("README.md", "## Uses `A_b`\n"),
            ("tools/xtask/src/main.rs", ""),
        ]);
        let expect = [
            "docs/A.md:3: leads nowhere: gone.md",
            "docs/A.md:5: leads nowhere: #gone, ../README.md#gone",
        ];
        assert_eq!(links(&tree), expect);
    }

    #[test]
    fn a_page_outside_the_book_is_found() {
        let summary = "# Summary\n\n- [A](A.md)\n";
        let tree = planted(&[
            ("README.md", ""),
            ("docs/SUMMARY.md", summary),
            ("docs/A.md", ""),
            ("docs/B.md", ""),
        ]);
        assert_eq!(book(&tree), ["docs/SUMMARY.md does not list B.md"]);
        assert_eq!(book(&planted(&[])), ["docs/SUMMARY.md is absent"]);
    }

    #[test]
    fn a_promise_without_a_test_is_found() {
        let page = "| Promise | Number | Held by |\n|---|---|---|\n| a | 1 | `a/t.rs::holds` |\n\
                    | b | 2 | `cargo xtask demo` |\n| c | 3 | by hope |\n| d | 4 | `a/t.rs::gone` |\n\
                    | e | 5 | `a/t.rs::row` |\n";
        let tree = planted(&[
            (SPECIFICATION, page),
            ("a/t.rs", "fn holds() {}\n(\"row\", 1)\n"),
            ("tools/xtask/src/main.rs", "\"demo\" => demo::run(rest),\n"),
        ]);
        let faults = promises(&tree);
        assert_eq!(faults.len(), 2, "{faults:?}");
        assert!(
            faults[0].starts_with("docs/SPECIFICATION.md:5:"),
            "{faults:?}"
        );
        assert!(faults[1].contains("a/t.rs::gone"), "{faults:?}");
    }

    #[test]
    fn a_number_that_no_report_holds_is_found() {
        let report = r#"{"rows":[{"name":"a","ours":1.5}]}"#;
        let check = |text: &str, expect: &[&str]| {
            let tree = planted(&[("docs/A.md", text), ("docs/results/pool.json", report)]);
            let found = numbers(&tree);
            let found: Vec<&str> = found.iter().map(String::as_str).collect();
            assert_eq!(found, expect, "{text}");
        };
        check(
            "<!-- number: pool name=a ours .1 -->1.5<!-- end --> ns\n",
            &[],
        );
        check(
            "a\n<!-- number: pool name=a ours .1 -->1.4<!-- end --> ns\n",
            &[
                "docs/A.md:2: the reports say: <!-- number: pool name=a ours .1 -->1.5<!-- end --> ns",
                "`cargo xtask results --render` writes the parts anew",
            ],
        );
        let broken = planted(&[("docs/results/pool.json", "{")]);
        assert!(numbers(&broken)[0].contains("docs/results/pool.json"));
    }
}
