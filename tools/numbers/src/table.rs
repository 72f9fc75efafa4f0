//! Markdown tables from JSON rows. A missing required cell is an error; null is shown as a dash.

use anyhow::{Context, Result, ensure};
use bench_report::{format_size, scheme_title};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Format of a cell.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Form {
    Text,
    /// A scheme, by the name that people read.
    Scheme,
    /// Whole numbers without a fraction, others with two digits.
    Count,
    /// Digits after the point.
    Fixed(usize),
    /// Nanoseconds, as microseconds.
    Micro,
    /// Bytes.
    Size,
}

pub(crate) struct Column {
    /// Title of the column.
    pub(crate) title: &'static str,
    /// A JSON pointer within the row.
    path: &'static str,
    form: Form,
}

impl Column {
    pub(crate) const fn new(title: &'static str, path: &'static str, form: Form) -> Self {
        Self { title, path, form }
    }

    /// The cell of a row in this column.
    ///
    /// # Errors
    /// The row has no such cell, or it has another type.
    pub(crate) fn cell(&self, row: &Value) -> Result<String> {
        let cell = row.pointer(self.path);
        let cell = cell.with_context(|| format!("a row has no {}: {row}", self.path))?;
        shown(cell, self.form)
    }
}

/// One line per row, in order.
pub(crate) fn of_rows(rows: &[&Value], columns: &[Column]) -> Result<String> {
    ensure!(!rows.is_empty(), "there are no rows");
    let mut text = head(columns.iter().map(|column| {
        let is_text = matches!(column.form, Form::Text | Form::Scheme);
        (column.title.to_owned(), is_text)
    }));
    for row in rows {
        text.push('|');
        for column in columns {
            write!(text, " {} |", column.cell(row)?)?;
        }
        text.push('\n');
    }
    Ok(text.trim_end().to_owned())
}

/// Rows whose columns are the keys of the first row: `name`, then the others in alphabetical order.
pub(crate) fn of_any(rows: &[&Value]) -> Result<String> {
    let first = rows.first().context("there are no rows")?;
    let first = first.as_object().context("a row is no object")?;
    let mut keys: Vec<&str> = first.keys().map(String::as_str).collect();
    keys.sort_by_key(|key| (*key != "name", *key));
    let mut text = head(
        keys.iter()
            .map(|key| (key.replace('_', " "), first[*key].is_string())),
    );
    for row in rows {
        text.push('|');
        for key in &keys {
            let form = if row[key].is_string() {
                Form::Text
            } else {
                Form::Count
            };
            write!(text, " {} |", shown(&row[key], form)?)?;
        }
        text.push('\n');
    }
    Ok(text.trim_end().to_owned())
}

/// A line for each `down`, a column for each size `across`, and `cell` at the intersection.
pub(crate) fn pivot(
    rows: &[&Value],
    down: &str,
    across: &str,
    cell: impl Fn(&Value) -> Result<String>,
) -> Result<String> {
    let mut lines: BTreeMap<u64, BTreeMap<u64, String>> = BTreeMap::new();
    let number = |row: &Value, key: &str| {
        let number = row[key].as_u64();
        number.with_context(|| format!("a row has no {key}: {row}"))
    };
    for row in rows {
        let line = lines.entry(number(row, down)?).or_default();
        let before = line.insert(number(row, across)?, cell(row)?);
        ensure!(
            before.is_none(),
            "two rows are at {down} and {across} of {row}"
        );
    }
    let (_, first) = lines.first_key_value().context("there is no such row")?;
    let columns: Vec<u64> = first.keys().copied().collect();
    let titles: Vec<String> = columns
        .iter()
        .map(|size| size_of(*size))
        .collect::<Result<_>>()?;
    let titles = std::iter::once(down.to_owned()).chain(titles);
    let mut text = head(titles.map(|title| (title, false)));
    for (name, line) in &lines {
        write!(text, "| {name} |")?;
        for column in &columns {
            let cell = line
                .get(column)
                .with_context(|| format!("{name} lacks {column}"))?;
            write!(text, " {cell} |")?;
        }
        text.push('\n');
    }
    Ok(text.trim_end().to_owned())
}

/// Title line and rule; text is left-aligned, numbers are right-aligned.
fn head(titles: impl Iterator<Item = (String, bool)>) -> String {
    let (mut line, mut rule) = ("|".to_owned(), "|".to_owned());
    for (title, is_text) in titles {
        line.push_str(&format!(" {title} |"));
        rule.push_str(if is_text { "---|" } else { "---:|" });
    }
    format!("{line}\n{rule}\n")
}

/// A cell as text; null is a dash.
pub(crate) fn shown(cell: &Value, form: Form) -> Result<String> {
    if cell.is_null() {
        return Ok("-".to_owned());
    }
    let number = || {
        cell.as_f64()
            .with_context(|| format!("{cell} is no number"))
    };
    Ok(match form {
        Form::Text => cell
            .as_str()
            .with_context(|| format!("{cell} is no text"))?
            .to_owned(),
        Form::Scheme => scheme_title(
            cell.as_str()
                .with_context(|| format!("{cell} is no scheme"))?,
        ),
        Form::Count => {
            let number = number()?;
            if number.fract() == 0.0 {
                format!("{number:.0}")
            } else {
                format!("{number:.2}")
            }
        }
        Form::Fixed(digits) => format!("{:.digits$}", number()?),
        Form::Micro => format!("{:.2}", number()? / 1e3),
        Form::Size => {
            let size = cell.as_u64();
            size_of(size.with_context(|| format!("{cell} is no size"))?)?
        }
    })
}

fn size_of(size: u64) -> Result<String> {
    Ok(format_size(usize::try_from(size)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn cells_are_written_by_their_form() {
        let check = |cell: Value, form, expect: &str| {
            assert_eq!(shown(&cell, form).unwrap(), expect);
        };
        check(json!("a"), Form::Text, "a");
        check(json!(2.0), Form::Count, "2");
        check(json!(2.345), Form::Count, "2.35");
        check(json!(2.345), Form::Fixed(1), "2.3");
        check(json!(1022.0), Form::Micro, "1.02");
        check(json!(16384), Form::Size, "16 KiB");
        check(json!(1000), Form::Size, "1000 B");
        check(Value::Null, Form::Fixed(1), "-");
        for (cell, form) in [
            (json!(1), Form::Text),
            (json!("a"), Form::Count),
            (json!(-1), Form::Size),
        ] {
            assert!(shown(&cell, form).is_err(), "{cell}");
        }
    }

    #[test]
    fn rows_are_pivoted() {
        let rows = [
            json!({"nodes": 32, "size": 1024, "x": 1.0}),
            json!({"nodes": 2, "size": 1024, "x": 2.0}),
            json!({"nodes": 2, "size": 2048, "x": 3.0}),
            json!({"nodes": 32, "size": 2048, "x": 4.0}),
        ];
        let rows: Vec<&Value> = rows.iter().collect();
        let cell = |row: &Value| shown(&row["x"], Form::Fixed(1));
        let pivoted = pivot(&rows, "nodes", "size", cell).unwrap();
        assert!(
            pivoted.ends_with("| 2 | 2.0 | 3.0 |\n| 32 | 1.0 | 4.0 |"),
            "{pivoted}"
        );
        assert!(pivot(&[], "nodes", "size", cell).is_err());
        // The same machine twice, or a machine without one of the sizes.
        assert!(pivot(&[rows[0], rows[0]], "nodes", "size", cell).is_err());
        assert!(pivot(&rows[..3], "nodes", "size", cell).is_err());
    }
}
