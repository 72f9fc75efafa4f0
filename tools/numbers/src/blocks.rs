//! Generated parts of documents: a table between `<!-- numbers: ... -->` and `<!-- end -->` on lines of their own, or
//! one figure between `<!-- number: ... -->` and `<!-- end -->` in a sentence.
//!
//! The text between the markers is generated from the committed reports. Markers in fenced code are plain text.

use crate::query::Query;
use crate::reports::{JUDGE, REPORTS, Reports};
use crate::tables;
use anyhow::{Result, ensure};
use serde_json::json;

const TABLE: &str = "<!-- numbers: ";
const FIGURE: &str = "<!-- number: ";
const CLOSE: &str = " -->";
const END: &str = "<!-- end -->";

/// A document with new generated parts, and the parts that could not be generated.
#[derive(Debug, Default)]
pub struct Rendered {
    /// The whole text. A part that cannot be generated keeps its old text.
    pub text: String,
    /// Line number, starting at 1, and the fault.
    pub faults: Vec<(usize, String)>,
}

/// Generates all parts of a document.
pub fn render(text: &str, reports: &Reports) -> Rendered {
    let mut rendered = Rendered::default();
    let mut lines = text.split_inclusive('\n').enumerate();
    let mut fenced = false;
    while let Some((at, line)) = lines.next() {
        let number = at + 1;
        fenced ^= line.trim_start().starts_with("```");
        if fenced {
            rendered.text.push_str(line);
            continue;
        }
        let Some(marker) = table_marker(line) else {
            figures(line, number, reports, &mut rendered);
            continue;
        };
        rendered.text.push_str(line);
        let mut old = String::new();
        let mut closed = None;
        for (_, line) in lines.by_ref() {
            if line.trim_end() == END {
                closed = Some(line);
                break;
            }
            old.push_str(line);
        }
        let Some(end) = closed else {
            rendered
                .faults
                .push((number, format!("the block has no {END}")));
            rendered.text.push_str(&old);
            break;
        };
        match table(marker, reports) {
            Ok(new) => rendered.text.push_str(&format!("{new}\n")),
            Err(error) => {
                rendered.faults.push((number, format!("{error:#}")));
                rendered.text.push_str(&old);
            }
        }
        rendered.text.push_str(end);
    }
    rendered
}

/// Lines at which a document differs from the reports, and parts that could not be generated.
pub fn differences(text: &str, reports: &Reports) -> Vec<(usize, String)> {
    let rendered = render(text, reports);
    let mut faults = rendered.faults;
    if rendered.text != text {
        let (mut old, mut new) = (text.lines(), rendered.text.lines());
        let mut at = 0;
        loop {
            at += 1;
            match (old.next(), new.next()) {
                (None, None) => break,
                (old, new) if old != new => {
                    let new = new.unwrap_or("nothing");
                    faults.push((at, format!("the reports say: {new}")));
                    break;
                }
                _ => {}
            }
        }
    }
    faults
}

fn table_marker(line: &str) -> Option<&str> {
    line.trim_end().strip_prefix(TABLE)?.strip_suffix(CLOSE)
}

/// Replaces the figures of a line.
fn figures(line: &str, number: usize, reports: &Reports, rendered: &mut Rendered) {
    let mut rest = line;
    while let Some((before, after)) = rest.split_once(FIGURE) {
        // A marker in backticks is plain text.
        let code = before.matches('`').count() % 2 == 1;
        let parts = (!code)
            .then(|| after.split_once(CLOSE))
            .flatten()
            .and_then(|(marker, after)| Some((marker, after.split_once(END)?)));
        rendered.text.push_str(before);
        rendered.text.push_str(FIGURE);
        let Some((marker, (old, after))) = parts else {
            if !code {
                rendered
                    .faults
                    .push((number, format!("a figure has no {END} in its line")));
            }
            rest = after;
            continue;
        };
        let new = figure(marker, reports).unwrap_or_else(|error| {
            rendered.faults.push((number, format!("{error:#}")));
            old.to_owned()
        });
        rendered
            .text
            .push_str(&format!("{marker}{CLOSE}{new}{END}"));
        rest = after;
    }
    rendered.text.push_str(rest);
}

fn figure(marker: &str, reports: &Reports) -> Result<String> {
    let query = Query::parse(marker)?;
    match reports.get(&query.report)? {
        Some(report) => query.figure(report),
        None => Ok("(not measured)".to_owned()),
    }
}

fn table(marker: &str, reports: &Reports) -> Result<String> {
    let query = Query::parse(marker)?;
    query.only_filters()?;
    let table = tables::named(&query.report)?;
    if table.report == JUDGE {
        // The promises have no committed file; they are computed from the committed reports.
        let judged = json!({ "rows": crate::judge::rows(reports)? });
        return table.body(&judged, &query);
    }
    match reports.get(table.report)? {
        Some(report) => {
            let text = table.body(report, &query)?;
            ensure!(!text.is_empty(), "the table is empty");
            Ok(text)
        }
        None => {
            let made_by = REPORTS.iter().find(|report| report.name == table.report);
            let made_by = made_by.map_or_else(|| "cargo xtask results".to_owned(), |r| r.shown());
            Ok(format!("Not measured yet: `{made_by}` measures it."))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reports() -> Reports {
        let mut reports = Reports::default();
        let rows = r#"{"rows":[{"name":"a","ours":1.0,"peer":2.5,"ratio":2.5,"unit":"ns"}]}"#;
        reports.add("pool", rows).unwrap();
        reports
    }

    #[test]
    fn blocks_and_figures_are_replaced_and_the_rest_stays() {
        let page = "x\n<!-- numbers: pool name=a -->\nold\nold\n<!-- end -->\n\
                    is <!-- number: pool name=a ratio .1 -->9<!-- end --> times, \
                    <!-- number: pool name=a ours .0 --><!-- end --> ns\n\
                    <!-- numbers: cost -->\n<!-- end -->\n";
        let rendered = render(page, &reports());
        assert_eq!(rendered.faults, []);
        let text = &rendered.text;
        assert!(
            text.starts_with("x\n<!-- numbers: pool name=a -->\n| ours |"),
            "{text}"
        );
        assert!(
            text.contains("\n| 1.0 | 2.5 | ns | 2.50 |\n<!-- end -->\n"),
            "{text}"
        );
        assert!(text.contains("-->2.5<!-- end --> times, "), "{text}");
        assert!(text.contains("-->1<!-- end --> ns\n"), "{text}");
        assert!(
            text.contains("Not measured yet: `cargo xtask bench cost` measures it.\n"),
            "{text}"
        );
        // Generated text stays unchanged and is no difference.
        assert_eq!(render(text, &reports()).text, *text);
        assert_eq!(differences(text, &reports()), []);
        assert_eq!(
            differences(page, &reports())[0],
            (
                3,
                "the reports say: | ours | peer | unit | times better |".to_owned()
            )
        );
    }

    #[test]
    fn markers_in_code_are_text() {
        let page = "```text\n<!-- numbers: gone -->\n```\n`<!-- number: gone x -->1<!-- end -->`\n";
        let rendered = render(page, &reports());
        assert_eq!((rendered.text.as_str(), rendered.faults.len()), (page, 0));
    }

    #[test]
    fn what_cannot_be_generated_is_named_with_its_line_and_stays() {
        let check = |page: &str, line: usize, expect: &str| {
            let rendered = render(page, &reports());
            assert_eq!(rendered.text, page);
            let (at, fault) = &rendered.faults[0];
            assert_eq!(*at, line, "{fault}");
            assert!(fault.contains(expect), "{fault}");
        };
        check("a\n<!-- numbers: pool -->\nb\n", 2, "no <!-- end -->");
        check(
            "<!-- numbers: gone -->\nb\n<!-- end -->\n",
            1,
            "no table 'gone'",
        );
        check(
            "<!-- numbers: pool name=z -->\nb\n<!-- end -->\n",
            1,
            "no row",
        );
        check(
            "<!-- numbers: pool z -->\nb\n<!-- end -->\n",
            1,
            "'z' is not KEY=VALUE",
        );
        check(
            "a <!-- number: pool name=a ratio --> b\n",
            1,
            "no <!-- end --> in its line",
        );
        check(
            "a <!-- number: gone x -->1<!-- end -->\n",
            1,
            "no report 'gone'",
        );
    }
}
