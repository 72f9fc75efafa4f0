//! Rules about the documents: each link has a target, each page is in the book, each promise names an existing test, and
//! generated numbers are those of the committed reports.

use crate::references::sources;
use doc_numbers::promises::{FILE, Promises};
use doc_numbers::tree::{Source, Tree};
use doc_numbers::{blocks, committed_reports, page};

/// Path in the tree of the page that shows all promises. The rules for documents check it; it is not a file.
pub(super) const PAGE: &str = "tests/promises.toml.md";

/// The page of all promises as a document of the tree.
pub(super) fn page_of_promises(tree: &Tree) -> Option<Source> {
    // The rules report a malformed file.
    let reports = committed_reports(tree).ok()?;
    Some(Source {
        path: PAGE.to_owned(),
        text: page::page(&reports).text,
    })
}

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

/// Each asserted promise names checks that exist: `file.rs::function`, or a command that begins with `cargo xtask`.
pub(super) fn promises(tree: &Tree) -> Vec<String> {
    let Some(file) = tree.get(FILE) else {
        return vec![format!("{FILE} is absent")];
    };
    let promises = match Promises::parse(&file.text) {
        Ok(promises) => promises,
        Err(error) => return vec![format!("{error:#}")],
    };
    let all = promises.areas.iter().flat_map(|area| &area.promises);
    all.flat_map(|promise| {
        let absent = promise.held_by.iter().filter(|check| !exists(tree, check));
        absent.map(|check| format!("{FILE}: '{}': no such check: {check}", promise.text))
    })
    .collect()
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

/// Whether a test function, or a command with the suites and cases that it names, exists.
fn exists(tree: &Tree, holder: &str) -> bool {
    if let Some(command) = holder.strip_prefix("cargo xtask ") {
        let words = words(command);
        let Some((name, rest)) = words.split_first() else {
            return false;
        };
        let main = tree.get("tools/xtask/src/main.rs");
        let is_command = main.is_some_and(|f| f.text.contains(&format!("\"{name}\" =>")));
        return is_command && cases(name, rest).iter().all(|case| is_named(tree, case));
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

/// The words of a command. Those in double quotes are one word.
fn words(command: &str) -> Vec<String> {
    let parts = command.split('"').enumerate();
    parts
        .flat_map(|(at, part)| match at % 2 {
            0 => part.split_whitespace().map(str::to_owned).collect(),
            _ => vec![part.to_owned()],
        })
        .collect()
}

/// The suites and the parts of names of cases that the arguments of a command choose.
fn cases<'a>(command: &str, arguments: &'a [String]) -> Vec<&'a str> {
    let mut words = arguments.iter().map(String::as_str);
    match command {
        "suites" => {
            let suites: Vec<&str> = words.by_ref().take_while(|word| *word != "--").collect();
            // The cases of pyverbs are those of its own files.
            let is_ours = |suite: &&str| !suite.ends_with("pyverbs");
            let cases = words.filter(|_| suites.iter().all(is_ours));
            cases.chain(suites.iter().copied()).collect()
        }
        "matrix" => {
            let values = words.clone().skip(1).zip(words);
            let values = values.filter(|(_, option)| *option == "--only");
            values.map(|(value, _)| value).collect()
        }
        _ => Vec::new(),
    }
}

/// Whether a source outside of the rules contains a name. Suites over Ethernet have the names of the others.
fn is_named(tree: &Tree, name: &str) -> bool {
    let name = name.strip_prefix("roce-").unwrap_or(name);
    sources(tree).any(|file| file.text.contains(name))
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
        let check = |held_by: &str, expect: &[&str]| {
            let promises = format!(
                "[[area]]\nname = \"a\"\n[[area.promise]]\ntext = \"b\"\nheld_by = [{held_by}]\n"
            );
            let tree = planted(&[
                (FILE, &promises),
                ("a/t.rs", "fn holds() {}\n(\"row\", 1)\n"),
                (
                    "tools/xtask/src/main.rs",
                    "\"demo\" => demo::run(rest),\n\"suites\" => suites::run(rest),\n\"matrix\" => matrix::run(rest),\n",
                ),
                (
                    "tests/suites/src/lib.rs",
                    "\"ucc\", \"a job that is killed\"",
                ),
            ]);
            let faults = super::promises(&tree);
            let expect: Vec<String> = expect
                .iter()
                .map(|check| format!("{FILE}: 'b': no such check: {check}"))
                .collect();
            assert_eq!(faults, expect, "{held_by}");
        };
        check(r#""a/t.rs::holds", "a/t.rs::row""#, &[]);
        check(
            r#""a/t.rs::holds", "a/t.rs::gone", "b.rs::holds", "by hope""#,
            &["a/t.rs::gone", "b.rs::holds", "by hope"],
        );
        check(
            r#""cargo xtask demo --quick", "cargo xtask gone""#,
            &["cargo xtask gone"],
        );
        check(
            r#"'cargo xtask suites ucc roce-ucc -- "is killed"', 'cargo xtask matrix --ucx 9 --only "a job"'"#,
            &[],
        );
        check(
            r#"'cargo xtask suites ucx', 'cargo xtask suites ucc -- "killed at"', 'cargo xtask matrix --only "jobs"'"#,
            &[
                "cargo xtask suites ucx",
                "cargo xtask suites ucc -- \"killed at\"",
                "cargo xtask matrix --only \"jobs\"",
            ],
        );
        assert_eq!(
            super::promises(&planted(&[])),
            [format!("{FILE} is absent")]
        );
        let malformed = super::promises(&planted(&[(FILE, "[[area]]\n")]));
        assert!(malformed[0].contains("name is missing"), "{malformed:?}");
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
