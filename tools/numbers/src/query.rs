//! The query language of markers: report, row filters, field, and format.
//!
//! `pool name=export_4gib ratio .0` is the field `ratio` of the single row of the report `pool` with the `name`
//! `export_4gib`, without a fraction. A value with spaces needs double quotes. Sizes may have the form `16K`.

use anyhow::{Context, Result, bail, ensure};
use bench_report::table::{Form, field as at, shown};
use serde_json::Value;

/// The words of a marker.
#[derive(Debug)]
pub(crate) struct Query {
    /// Name of the report, or of the table.
    pub(crate) report: String,
    /// Name of the list of rows, which follows a point in the report's name.
    list: String,
    filters: Vec<(String, String)>,
    /// Words after the filters.
    rest: Vec<String>,
}

impl Query {
    /// Parses a marker's text.
    ///
    /// # Errors
    /// The text is empty or has an unclosed quote.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let mut words = split(text)?.into_iter();
        let name = words.next().context("the marker names no report")?;
        let (report, list) = name.split_once('.').unwrap_or((&name, "rows"));
        let (filters, rest): (Vec<String>, Vec<String>) =
            words.partition(|word| word.contains('='));
        let filters = filters
            .iter()
            .filter_map(|word| word.split_once('='))
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect();
        Ok(Self {
            report: report.to_owned(),
            list: list.to_owned(),
            filters,
            rest,
        })
    }

    /// The rows of a report that match all filters. Filters with the same key are alternatives.
    ///
    /// # Errors
    /// No row matches.
    pub(crate) fn rows<'a>(&self, report: &'a Value, list: &str) -> Result<Vec<&'a Value>> {
        let rows = self.matching(report, list)?;
        ensure!(!rows.is_empty(), "no row of the report is {}", self.shown());
        Ok(rows)
    }

    fn matching<'a>(&self, report: &'a Value, list: &str) -> Result<Vec<&'a Value>> {
        let rows = report[list].as_array();
        let rows = rows.with_context(|| format!("the report has no '{list}'"))?;
        let accepted = |row: &&Value| {
            self.filters.iter().all(|(key, _)| {
                let mut values = self.filters.iter().filter(|(other, _)| other == key);
                at(row, key).is_some_and(|cell| values.any(|(_, value)| is(cell, value)))
            })
        };
        Ok(rows.iter().filter(accepted).collect())
    }

    /// Whether all rows have the same value of a key.
    pub(crate) fn fixes(&self, key: &str) -> bool {
        self.filters.iter().filter(|(of, _)| of == key).count() == 1
    }

    /// Rejects words that a table does not support.
    ///
    /// # Errors
    /// The error names the first such word.
    pub(crate) fn only_filters(&self) -> Result<()> {
        match self.rest.first() {
            Some(word) => bail!("'{word}' is not KEY=VALUE"),
            None => Ok(()),
        }
    }

    /// The figure for the words `[FUNCTION:]FIELD [FORM]`.
    ///
    /// # Errors
    /// The field does not exist, or several rows match without a function that accepts several.
    pub(crate) fn figure(&self, report: &Value) -> Result<String> {
        let (field, form) = match self.rest.as_slice() {
            [field] => (field, None),
            [field, form] => (field, Some(form.as_str())),
            _ => bail!("a figure is REPORT [KEY=VALUE]... [FUNCTION:]FIELD [FORM]"),
        };
        if self.filters.is_empty()
            && let Some(cell) = at(report, field)
        {
            return write(cell, form);
        }
        let rows = self.rows(report, &self.list)?;
        let (function, field) = field.split_once(':').unwrap_or((ONE, field));
        match function {
            ONE => write(self.one(&rows, field)?, form),
            "count" => Ok(rows.len().to_string()),
            "range" => {
                let numbers = numbers(&rows, field)?;
                let from = write(&least(&numbers).into(), form)?;
                let to = write(&greatest(&numbers).into(), form)?;
                Ok(if from == to {
                    from
                } else {
                    format!("{from} to {to}")
                })
            }
            _ => write(&reduce(function, &numbers(&rows, field)?)?.into(), form),
        }
    }

    /// The number for the words `[FUNCTION:]FIELD`, or `None` if the report has no such row or field.
    ///
    /// # Errors
    /// The value is not a number, or several rows match without a function.
    pub(crate) fn number(&self, report: &Value) -> Result<Option<f64>> {
        let [field] = self.rest.as_slice() else {
            bail!("a number is REPORT [KEY=VALUE]... [FUNCTION:]FIELD");
        };
        let cell_number = |cell: &Value| {
            let number = cell.as_f64();
            number.with_context(|| format!("'{field}' is {cell}, which is no number"))
        };
        if self.filters.is_empty()
            && let Some(cell) = at(report, field)
        {
            return cell_number(cell).map(Some);
        }
        let (function, field) = field.split_once(':').unwrap_or((ONE, field));
        let mut rows = self.matching(report, &self.list)?;
        // Only an optional part of a run writes this field.
        rows.retain(|row| at(row, field).is_some_and(|cell| !cell.is_null()));
        if rows.is_empty() {
            return Ok(None);
        }
        match function {
            ONE => cell_number(self.one(&rows, field)?).map(Some),
            _ => reduce(function, &numbers(&rows, field)?).map(Some),
        }
    }

    /// The field of the only row.
    fn one<'a>(&self, rows: &[&'a Value], field: &str) -> Result<&'a Value> {
        match rows {
            [row] => at(row, field).with_context(|| format!("a row has no '{field}': {row}")),
            several => bail!("{} rows are {}", several.len(), self.shown()),
        }
    }

    fn shown(&self) -> String {
        let filters: Vec<String> = self
            .filters
            .iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        filters.join(" ")
    }
}

/// Function of a field without a prefix.
const ONE: &str = "one";

/// The field of each row.
fn numbers(rows: &[&Value], field: &str) -> Result<Vec<f64>> {
    let number = |row: &&Value| {
        let cell = at(row, field).with_context(|| format!("a row has no '{field}': {row}"))?;
        let number = cell.as_f64();
        number.with_context(|| format!("'{field}' is {cell}, which is no number"))
    };
    rows.iter().map(number).collect()
}

fn reduce(function: &str, numbers: &[f64]) -> Result<f64> {
    Ok(match function {
        "sum" => numbers.iter().sum(),
        "min" => least(numbers),
        "max" => greatest(numbers),
        other => bail!("no function '{other}'; there are count, sum, min, max and range"),
    })
}

fn least(numbers: &[f64]) -> f64 {
    numbers.iter().copied().fold(f64::INFINITY, f64::min)
}

fn greatest(numbers: &[f64]) -> f64 {
    numbers.iter().copied().fold(f64::NEG_INFINITY, f64::max)
}

/// Splits at spaces outside of double quotes.
fn split(text: &str) -> Result<Vec<String>> {
    let (mut words, mut word, mut quoted) = (Vec::new(), String::new(), false);
    for letter in text.chars() {
        match letter {
            '"' => quoted = !quoted,
            space if space.is_whitespace() && !quoted => {
                if !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
            }
            other => word.push(other),
        }
    }
    ensure!(!quoted, "a quote is open");
    if !word.is_empty() {
        words.push(word);
    }
    Ok(words)
}

/// Whether a cell equals a filter's value.
fn is(cell: &Value, wanted: &str) -> bool {
    match cell {
        Value::String(text) => text == wanted,
        Value::Number(number) => number.as_f64() == size(wanted),
        Value::Bool(flag) => flag.to_string() == wanted,
        _ => false,
    }
}

/// Parses a number with an optional suffix K, M or G.
fn size(text: &str) -> Option<f64> {
    let (digits, unit) = match text.strip_suffix(['K', 'M', 'G']) {
        Some(digits) => (digits, text.chars().next_back()),
        None => (text, None),
    };
    let number: f64 = digits.parse().ok()?;
    let factor = match unit {
        Some('K') => 1024.0,
        Some('M') => 1024.0 * 1024.0,
        Some(_) => 1024.0 * 1024.0 * 1024.0,
        None => 1.0,
    };
    Some(number * factor)
}

/// Formats a cell: `.2` digits after the point, `,` for thousands separators, `us` for nanoseconds as microseconds,
/// `k.2` for thousands with two digits, `%` for a share, `size` for bytes; without a format the cell stays unchanged.
fn write(cell: &Value, form: Option<&str>) -> Result<String> {
    match form {
        None if cell.is_string() => shown(cell, Form::Text),
        None => shown(cell, Form::Count),
        Some("us") => shown(cell, Form::Micro),
        Some(form) if form.starts_with("k.") => {
            let number = cell
                .as_f64()
                .with_context(|| format!("{cell} is no number"))?;
            write(&(number / 1e3).into(), form.strip_prefix('k'))
        }
        Some("size") => shown(cell, Form::Size),
        Some("%") => {
            let number = cell
                .as_f64()
                .with_context(|| format!("{cell} is no number"))?;
            Ok(format!("{:.0} %", number * 100.0))
        }
        Some(",") => Ok(thousands(&shown(cell, Form::Fixed(0))?)),
        Some(form) => {
            let digits = form
                .strip_prefix('.')
                .and_then(|digits| digits.parse().ok());
            let digits: usize = digits.with_context(|| format!("no form '{form}'"))?;
            shown(cell, Form::Fixed(digits))
        }
    }
}

/// `12,345` for `12345`.
fn thousands(digits: &str) -> String {
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        let left = digits.len() - at;
        if at > 0 && left.is_multiple_of(3) && !text.ends_with('-') {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn report() -> Value {
        json!({"verified_bytes": 15_060_811_776_u64, "other": [{"x": 3}, {"x": 4}], "rows": [
            {"name": "a b", "size": 16384, "x": {"p50": 1.25}, "share": 0.873, "ns": 2310},
            {"name": "c", "size": 16384, "x": {"p50": 3.5}, "share": 0.5, "ns": 1},
        ]})
    }

    #[test]
    fn figures_are_found_and_written() {
        let check = |text: &str, expect: &str| {
            let figure = Query::parse(text).unwrap().figure(&report()).unwrap();
            assert_eq!(figure, expect, "{text}");
        };
        check(r#"r name="a b" x.p50 .1"#, "1.2");
        check("r name=c size=16K x.p50", "3.50");
        check("r name=c name", "c");
        check("r size=16K max:x.p50 .1", "3.5");
        check("r size=16K range:x.p50 .2", "1.25 to 3.50");
        check("r name=c range:x.p50 .2", "3.50");
        check("r size=16K count:x", "2");
        check("r size=16K name=c count:x", "1");
        check(r#"r name=c name="a b" count:x"#, "2");
        check("r sum:x.p50 .2", "4.75");
        check("r.other max:x", "4");
        check("r verified_bytes ,", "15,060,811,776");
        check(r#"r name="a b" ns us"#, "2.31");
        check("r name=c size size", "16 KiB");
        check("r name=c share %", "50 %");
        check(r#"r name="a b" ns k.1"#, "2.3");
    }

    #[test]
    fn what_cannot_be_answered_is_refused() {
        let check = |text: &str, expect: &str| {
            let error = Query::parse(text).and_then(|query| query.figure(&report()));
            let error = error.unwrap_err().to_string();
            assert!(error.contains(expect), "{text}: {error}");
        };
        check("", "names no report");
        check("r name=\"a", "a quote is open");
        check("r name=gone x.p50", "no row of the report is name=gone");
        check("r size=16K x.p50", "2 rows are size=16K");
        check("r name=c y", "a row has no 'y'");
        check("r name=c x.p50 nice", "no form 'nice'");
        check("r name=c mean:x.p50", "no function 'mean'");
        check("r name=c min:name", "no number");
        check("r name=c", "a figure is REPORT");
    }
}
