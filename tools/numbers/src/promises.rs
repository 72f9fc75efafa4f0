//! The promises of the project: the file `tests/promises.toml`.

use anyhow::{Context, Result, bail, ensure};
use toml::{Table, Value};

/// The file of the promises, relative to the root of the tree.
pub const FILE: &str = "tests/promises.toml";

/// All promises.
#[derive(Debug, Default, Clone)]
pub struct Promises {
    /// Asserted promises by part of the project.
    pub areas: Vec<Area>,
    /// Promises that a benchmark compares.
    pub(crate) measured: Vec<Measured>,
    /// Titles and texts of the sections about them.
    pub(crate) notes: Vec<(String, String)>,
}

/// A part of the project.
#[derive(Debug, Clone)]
pub struct Area {
    /// Its name.
    pub name: String,
    pub(crate) note: Option<String>,
    /// Its promises.
    pub promises: Vec<Asserted>,
}

/// A promise that a test holds.
#[derive(Debug, Clone)]
pub struct Asserted {
    /// The promise, as Markdown.
    pub text: String,
    pub(crate) number: Option<String>,
    /// Tests (`file.rs::function`) and commands (`cargo xtask ...`).
    pub held_by: Vec<String>,
    pub(crate) note: Option<String>,
}

/// A promise about a number of a report.
#[derive(Debug, Clone)]
pub(crate) struct Measured {
    pub(crate) text: String,
    /// Query of the number; with several rows the worst counts.
    pub(crate) query: String,
    /// Query of a divisor.
    pub(crate) over: Option<String>,
    pub(crate) bound: Bound,
    pub(crate) unit: String,
    /// The reason if the committed reports do not reach the bound.
    pub(crate) why: Option<String>,
}

/// The bound of a promise.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Bound {
    AtMost(f64),
    Below(f64),
    AtLeast(f64),
    Above(f64),
}

use Bound::{Above, AtLeast, AtMost, Below};

impl Bound {
    pub(crate) fn holds(self, found: f64) -> bool {
        match self {
            AtMost(limit) => found <= limit,
            Below(limit) => found < limit,
            AtLeast(limit) => found >= limit,
            Above(limit) => found > limit,
        }
    }

    pub(crate) fn shown(self, unit: &str) -> String {
        let (sign, limit) = match self {
            AtMost(limit) => ("<=", limit),
            Below(limit) => ("<", limit),
            AtLeast(limit) => (">=", limit),
            Above(limit) => (">", limit),
        };
        format!("{sign} {limit} {unit}").trim_end().to_owned()
    }
}

impl Promises {
    /// Reads the text of the file.
    ///
    /// # Errors
    /// It is not TOML, a key is missing or unknown, or a promise names no test.
    pub fn parse(text: &str) -> Result<Self> {
        let read = || -> Result<Self> {
            let mut file = Fields::new(text.parse().context("not TOML")?);
            let promises = Self {
                areas: file.tables("area")?.map(area).collect::<Result<_>>()?,
                measured: file
                    .tables("measured")?
                    .map(measured)
                    .collect::<Result<_>>()?,
                notes: file.tables("note")?.map(note).collect::<Result<_>>()?,
            };
            file.end()?;
            Ok(promises)
        };
        read().context(FILE)
    }
}

fn area(table: Table) -> Result<Area> {
    let mut fields = Fields::new(table);
    let name = fields.line("name")?;
    let mut read = || -> Result<Area> {
        let area = Area {
            name: name.clone(),
            note: fields.optional("note")?,
            promises: fields
                .tables("promise")?
                .map(asserted)
                .collect::<Result<_>>()?,
        };
        fields.end()?;
        Ok(area)
    };
    read().with_context(|| format!("area '{name}'"))
}

fn asserted(table: Table) -> Result<Asserted> {
    let mut fields = Fields::new(table);
    let text = fields.line("text")?;
    let mut read = || -> Result<Asserted> {
        let promise = Asserted {
            text: text.clone(),
            number: fields.optional_line("number")?,
            held_by: fields.lines("held_by")?,
            note: fields.optional_line("note")?,
        };
        ensure!(!promise.held_by.is_empty(), "the promise names no test");
        fields.end()?;
        Ok(promise)
    };
    read().with_context(|| format!("promise '{text}'"))
}

fn measured(table: Table) -> Result<Measured> {
    let mut fields = Fields::new(table);
    let text = fields.line("text")?;
    let mut read = || -> Result<Measured> {
        let mut bounds = Vec::new();
        bounds.extend(fields.number("at_most")?.map(AtMost));
        bounds.extend(fields.number("below")?.map(Below));
        bounds.extend(fields.number("at_least")?.map(AtLeast));
        bounds.extend(fields.number("above")?.map(Above));
        let [bound] = bounds[..] else {
            bail!("a promise has one of at_most, below, at_least and above");
        };
        let promise = Measured {
            text: text.clone(),
            query: fields.line("query")?,
            over: fields.optional_line("over")?,
            bound,
            unit: fields.optional_line("unit")?.unwrap_or_default(),
            why: fields.optional_line("why")?,
        };
        fields.end()?;
        Ok(promise)
    };
    read().with_context(|| format!("promise '{text}'"))
}

fn note(table: Table) -> Result<(String, String)> {
    let mut fields = Fields::new(table);
    let note = (fields.line("title")?, fields.text("text")?);
    fields.end()?;
    Ok(note)
}

/// The keys of a table that have not been read.
struct Fields {
    left: Table,
}

impl Fields {
    fn new(left: Table) -> Self {
        Self { left }
    }

    fn optional(&mut self, key: &str) -> Result<Option<String>> {
        match self.left.remove(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => bail!("{key}: a text is expected, not {other}"),
        }
    }

    fn text(&mut self, key: &str) -> Result<String> {
        self.optional(key)?
            .with_context(|| format!("{key} is missing"))
    }

    /// A text that fits into a cell of a table.
    fn optional_line(&mut self, key: &str) -> Result<Option<String>> {
        let text = self.optional(key)?;
        let fits = |text: &String| !text.is_empty() && !text.contains(['|', '\n']);
        ensure!(
            text.as_ref().is_none_or(fits),
            "{key}: a text of one line without '|' is expected"
        );
        Ok(text)
    }

    fn line(&mut self, key: &str) -> Result<String> {
        self.optional_line(key)?
            .with_context(|| format!("{key} is missing"))
    }

    fn number(&mut self, key: &str) -> Result<Option<f64>> {
        match self.left.remove(key) {
            None => Ok(None),
            Some(Value::Float(number)) => Ok(Some(number)),
            // Bounds are far below 2^53.
            #[expect(clippy::cast_precision_loss, reason = "bounds are small numbers")]
            Some(Value::Integer(number)) => Ok(Some(number as f64)),
            Some(other) => bail!("{key}: a number is expected, not {other}"),
        }
    }

    fn list(&mut self, key: &str) -> Result<Vec<Value>> {
        match self.left.remove(key) {
            None => Ok(Vec::new()),
            Some(Value::Array(list)) => Ok(list),
            Some(other) => bail!("{key}: a list is expected, not {other}"),
        }
    }

    fn lines(&mut self, key: &str) -> Result<Vec<String>> {
        let text = |value| match value {
            Value::String(text) => Ok(text),
            other => bail!("{key}: a text is expected, not {other}"),
        };
        self.list(key)?.into_iter().map(text).collect()
    }

    fn tables(&mut self, key: &str) -> Result<impl Iterator<Item = Table> + use<>> {
        let table = |value| match value {
            Value::Table(table) => Ok(table),
            other => bail!("{key}: a table is expected, not {other}"),
        };
        let tables: Result<Vec<Table>> = self.list(key)?.into_iter().map(table).collect();
        Ok(tables?.into_iter())
    }

    /// All keys have been read.
    fn end(&self) -> Result<()> {
        let keys: Vec<&str> = self.left.keys().map(String::as_str).collect();
        ensure!(keys.is_empty(), "unknown keys: {}", keys.join(", "));
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) const SAMPLE: &str = r#"
[[area]]
name = "The pool"
note = "More in [A](docs/A.md)."
[[area.promise]]
text = "Keys are reused ([B](#b), [C](https://c))"
number = "<!-- number: pool name=a ours .0 --><!-- end --> ns"
held_by = ["pool/a.rs::reused", "cargo xtask demo"]
note = "on two nodes"
[[measured]]
text = "pool: fast"
query = "pool name=a ours"
at_most = 2
unit = "ns"
[[note]]
title = "Rows"
text = "A row."
"#;

    #[test]
    fn a_malformed_file_is_refused_with_the_promise_and_the_key() {
        let check = |from: &str, to: &str, expect: &str| {
            let text = SAMPLE.replacen(from, to, 1);
            let error = format!("{:#}", Promises::parse(&text).unwrap_err());
            assert!(error.starts_with(FILE) && error.contains(expect), "{error}");
        };
        check("[[area]]", "[[area", "not TOML");
        check("held_by", "tests", "promise 'Keys are reused");
        check(
            "held_by = [\"pool/a.rs::reused\", \"cargo xtask demo\"]",
            "",
            "names no test",
        );
        check("held_by = [", "held_by = [1, ", "held_by: a text");
        check("name = ", "name = 1 #", "name: a text");
        check("number = \"", "number = \"a|", "without '|'");
        check("at_most = 2", "at_most = \"2\"", "a number is expected");
        check(
            "at_most = 2",
            "at_most = 2\nabove = 1",
            "'pool: fast': a promise has one of",
        );
        check("unit", "units", "unknown keys: units");
        check("title", "titel", "title is missing");
        check("[[note]]", "[[notes]]", "unknown keys: notes");
    }
}
