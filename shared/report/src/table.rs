//! The one writer of tables: the columns of a report as lines of a terminal, as Markdown, and as a part of its file.

use crate::{format_size, scheme_title};
use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

/// How a cell is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// The text itself.
    Text,
    /// A scheme, by the name that people read.
    Scheme,
    /// Whole numbers without a fraction, others with two digits.
    Count,
    /// Digits after the point.
    Fixed(usize),
    /// Nanoseconds, as microseconds.
    Micro,
    /// Bytes. A dash in place of 0.
    Size,
    /// This text if the cell is false, else nothing.
    Unless(&'static str),
}

/// A column of the rows of a report.
#[derive(Debug, Clone, Copy)]
pub struct Column {
    /// Name of the field in a row. Points separate the parts of a nested name.
    pub name: &'static str,
    /// Unit of the field, or nothing.
    pub unit: &'static str,
    /// What people read.
    pub text: &'static str,
    form: Form,
    /// Width in lines that are printed one by one.
    width: usize,
    /// Whether some rows have no such field.
    optional: bool,
}

impl Column {
    /// A column of numbers in a unit.
    #[must_use]
    pub const fn new(
        name: &'static str,
        unit: &'static str,
        text: &'static str,
        form: Form,
    ) -> Self {
        Self {
            name,
            unit,
            text,
            form,
            width: 7,
            optional: false,
        }
    }

    /// A column of text.
    #[must_use]
    pub const fn text(name: &'static str, text: &'static str, width: usize) -> Self {
        Self {
            width,
            ..Self::new(name, "", text, Form::Text)
        }
    }

    /// The names of schemes.
    #[must_use]
    pub const fn scheme(width: usize) -> Self {
        Self {
            width,
            ..Self::new("scheme", "", "scheme", Form::Scheme)
        }
    }

    /// The sizes in bytes.
    #[must_use]
    pub const fn size() -> Self {
        Self::new("size", "bytes", "size", Form::Size)
    }

    /// Numbers of things.
    #[must_use]
    pub const fn count(name: &'static str, text: &'static str) -> Self {
        Self {
            width: 6,
            ..Self::new(name, "", text, Form::Count)
        }
    }

    /// The same column where rows may lack the field. Such a cell is a dash.
    #[must_use]
    pub const fn optional(self) -> Self {
        Self {
            optional: true,
            ..self
        }
    }

    fn is_text(&self) -> bool {
        matches!(self.form, Form::Text | Form::Scheme | Form::Unless(_))
    }

    /// The title with its unit.
    fn title(&self) -> String {
        match (self.form, self.unit) {
            (Form::Size, _) | (_, "") => self.text.to_owned(),
            (Form::Micro, _) => format!("{} (us)", self.text),
            (_, unit) => format!("{} ({unit})", self.text),
        }
    }

    /// The cell of a row.
    ///
    /// # Errors
    /// The row has no such field, or it has another type.
    pub fn cell(&self, row: &Value) -> Result<String> {
        match field(row, self.name) {
            Some(cell) => shown(cell, self.form).with_context(|| self.name.to_owned()),
            None if self.optional => Ok(ABSENT.to_owned()),
            None => bail!("a row has no {}: {row}", self.name),
        }
    }
}

/// What a cell without a value shows.
const ABSENT: &str = "-";

/// The field of a row. Points separate the parts of a nested name.
#[must_use]
pub fn field<'a>(row: &'a Value, name: &str) -> Option<&'a Value> {
    row.pointer(&format!("/{}", name.replace('.', "/")))
}

/// The columns with these names, in this order.
///
/// # Errors
/// The error names the one that is absent.
pub fn part(columns: &[Column], names: &[&str]) -> Result<Vec<Column>> {
    let named = |name: &&str| {
        let found = columns.iter().find(|column| column.name == *name);
        found
            .copied()
            .with_context(|| format!("no column '{name}'"))
    };
    names.iter().map(named).collect()
}

/// The columns as a part of a report's file.
#[must_use]
pub fn described(columns: &[Column]) -> Value {
    let column =
        |column: &Column| json!({"name": column.name, "unit": column.unit, "text": column.text});
    columns.iter().map(column).collect()
}

/// The titles, for lines that are printed one by one.
#[must_use]
pub fn head(columns: &[Column]) -> String {
    let titles = columns.iter().map(|column| (column, column.title()));
    padded(titles.map(|(column, title)| (title, column.width, column.is_text())))
}

/// The line of one row below [`head`].
///
/// # Errors
/// As for [`Column::cell`].
pub fn line(columns: &[Column], row: &Value) -> Result<String> {
    let width = |column: &Column| column.width.max(column.title().chars().count());
    let cells = columns
        .iter()
        .map(|column| Ok((column.cell(row)?, width(column), column.is_text())))
        .collect::<Result<Vec<_>>>()?;
    Ok(padded(cells.into_iter()))
}

/// A whole table with titles; each column is as wide as its longest cell.
///
/// # Errors
/// As for [`Column::cell`].
pub fn text(columns: &[Column], rows: &[Value]) -> Result<String> {
    let mut lines = vec![columns.iter().map(Column::title).collect::<Vec<_>>()];
    for row in rows {
        lines.push(
            columns
                .iter()
                .map(|column| column.cell(row))
                .collect::<Result<_>>()?,
        );
    }
    let long = |text: &String| text.chars().count();
    let widths: Vec<usize> = (0..columns.len())
        .map(|at| lines.iter().map(|line| long(&line[at])).max())
        .map(Option::unwrap_or_default)
        .collect();
    let mut text = String::new();
    for line in lines {
        let cells = line.into_iter().zip(&widths).zip(columns);
        let cells = cells.map(|((cell, width), column)| (cell, *width, column.is_text()));
        text.push_str(&padded(cells));
        text.push('\n');
    }
    Ok(text)
}

/// Text on the left, numbers on the right, two spaces between.
fn padded(cells: impl Iterator<Item = (String, usize, bool)>) -> String {
    let cells: Vec<String> = cells
        .map(|(cell, width, is_text)| match is_text {
            true => format!("{cell:<width$}"),
            false => format!("{cell:>width$}"),
        })
        .collect();
    cells.join("  ").trim_end().to_owned()
}

/// The table in Markdown, with a line for each row.
///
/// # Errors
/// There is no row, or as for [`Column::cell`].
pub fn markdown<'a>(
    columns: &[Column],
    rows: impl IntoIterator<Item = &'a Value>,
) -> Result<String> {
    let mut text = titles(
        columns
            .iter()
            .map(|column| (column.title(), column.is_text())),
    );
    let mut is_empty = true;
    for row in rows {
        is_empty = false;
        text.push_str("\n|");
        for column in columns {
            text.push_str(&format!(" {} |", column.cell(row)?));
        }
    }
    ensure!(!is_empty, "there are no rows");
    Ok(text)
}

/// A table in Markdown of cells with the names of their line and their column. Lines and columns come in the order of their
/// first cells.
///
/// # Errors
/// There is no cell, or a line has no cell or two cells in a column.
pub fn crossed(corner: &str, cells: &[(String, String, String)]) -> Result<String> {
    ensure!(!cells.is_empty(), "there are no rows");
    let unique = |names: &mut Vec<String>, name: &String| {
        if !names.contains(name) {
            names.push(name.clone());
        }
    };
    let (mut lines, mut columns) = (Vec::new(), Vec::new());
    for (line, column, _) in cells {
        unique(&mut lines, line);
        unique(&mut columns, column);
    }
    let numbers = columns.iter().map(|column| (column.clone(), false));
    let is_text = lines.iter().any(|line| line.parse::<u64>().is_err());
    let mut text = titles(std::iter::once((corner.to_owned(), is_text)).chain(numbers));
    for line in &lines {
        text.push_str(&format!("\n| {line} |"));
        for column in &columns {
            let mut found = cells.iter().filter(|(l, c, _)| l == line && c == column);
            match (found.next(), found.next()) {
                (Some((_, _, cell)), None) => text.push_str(&format!(" {cell} |")),
                (None, _) => bail!("'{line}' lacks {column}"),
                (Some(_), Some(_)) => bail!("two rows are at {line} and {column}"),
            }
        }
    }
    Ok(text)
}

/// Title line and rule; text is left-aligned, numbers are right-aligned.
fn titles(titles: impl Iterator<Item = (String, bool)>) -> String {
    let (mut line, mut rule) = ("|".to_owned(), "|".to_owned());
    for (title, is_text) in titles {
        line.push_str(&format!(" {title} |"));
        rule.push_str(if is_text { "---|" } else { "---:|" });
    }
    format!("{line}\n{rule}")
}

/// A cell as text; null is a dash.
///
/// # Errors
/// The cell has another type than the form.
pub fn shown(cell: &Value, form: Form) -> Result<String> {
    if let Form::Unless(text) = form {
        return Ok(if *cell == false { text } else { "" }.to_owned());
    }
    if cell.is_null() {
        return Ok(ABSENT.to_owned());
    }
    let text = || cell.as_str().with_context(|| format!("{cell} is no text"));
    let number = || {
        cell.as_f64()
            .with_context(|| format!("{cell} is no number"))
    };
    Ok(match form {
        Form::Text => text()?.to_owned(),
        Form::Scheme => scheme_title(text()?),
        Form::Count => match number()? {
            whole if whole.fract() == 0.0 => format!("{whole:.0}"),
            number => format!("{number:.2}"),
        },
        Form::Fixed(digits) => format!("{:.digits$}", number()?),
        Form::Micro => format!("{:.2}", number()? / 1e3),
        Form::Size => match cell.as_u64() {
            Some(0) => ABSENT.to_owned(),
            Some(size) => format_size(usize::try_from(size)?),
            None => bail!("{cell} is no size"),
        },
        Form::Unless(_) => String::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: &[Column] = &[
        Column::scheme(12),
        Column::size(),
        Column::new("us.p50", "us", "p50", Form::Fixed(1)),
        Column::new("step_ns", "ns", "step", Form::Micro).optional(),
        Column::count("n", "count"),
        Column::new("fits", "", "", Form::Unless("too long")),
    ];

    fn rows() -> [Value; 2] {
        [
            json!({"scheme": "ksm", "size": 16384, "us": {"p50": 1.25}, "n": 2, "fits": true}),
            json!({"scheme": "mpi", "size": 1000, "us": {"p50": null}, "n": 2.5, "step_ns": 1022.0, "fits": false}),
        ]
    }

    #[test]
    fn one_list_of_columns_makes_every_table() {
        let [first, second] = rows();
        let markdown = markdown(COLUMNS, &rows()).unwrap();
        assert_eq!(
            markdown,
            "| scheme | size | p50 (us) | step (us) | count |  |\n|---|---:|---:|---:|---:|---|\n\
             | per-buffer | 16 KiB | 1.2 | - | 2 |  |\n| mpi | 1000 B | - | 1.02 | 2.50 | too long |"
        );
        assert_eq!(
            text(COLUMNS, &rows()).unwrap(),
            "scheme        size  p50 (us)  step (us)  count\n\
             per-buffer  16 KiB       1.2          -      2\n\
             mpi         1000 B         -       1.02   2.50  too long\n"
        );
        // Lines one by one have the widths of the columns.
        assert_eq!(
            head(COLUMNS),
            "scheme           size  p50 (us)  step (us)   count"
        );
        assert_eq!(
            line(COLUMNS, &first).unwrap(),
            "per-buffer     16 KiB       1.2          -       2"
        );
        assert!(line(COLUMNS, &second).unwrap().ends_with("2.50  too long"));
        let described = described(&COLUMNS[2..4]);
        assert_eq!(
            described,
            json!([{"name": "us.p50", "unit": "us", "text": "p50"}, {"name": "step_ns", "unit": "ns", "text": "step"}])
        );
        let part = part(COLUMNS, &["n", "size"]).unwrap();
        assert_eq!(line(&part, &first).unwrap(), "     2   16 KiB");
    }

    #[test]
    fn a_missing_or_wrong_cell_is_an_error() {
        let error = |row: Value| format!("{:#}", line(COLUMNS, &row).unwrap_err());
        assert!(error(json!({})).contains("no scheme"));
        let [mut row, _] = rows();
        row["size"] = json!(-1);
        assert_eq!(error(row), "size: -1 is no size");
        assert!(markdown(COLUMNS, &[]).is_err());
        assert!(part(COLUMNS, &["gone"]).is_err());
        for (cell, form) in [(json!(1), Form::Text), (json!("a"), Form::Count)] {
            assert!(shown(&cell, form).is_err(), "{cell}");
        }
    }

    #[test]
    fn cells_are_crossed() {
        let cell = |line: &str, column: &str, text: &str| (line.into(), column.into(), text.into());
        let cells = [
            cell("2", "1 KiB", "a"),
            cell("2", "2 KiB", "b"),
            cell("32", "2 KiB", "d"),
            cell("32", "1 KiB", "c"),
        ];
        assert_eq!(
            crossed("nodes", &cells).unwrap(),
            "| nodes | 1 KiB | 2 KiB |\n|---:|---:|---:|\n| 2 | a | b |\n| 32 | c | d |"
        );
        let error = |cells: &[_]| crossed("nodes", cells).unwrap_err().to_string();
        assert_eq!(error(&cells[..3]), "'32' lacks 1 KiB");
        assert_eq!(
            error(&[cells[0].clone(), cells[0].clone()]),
            "two rows are at 2 and 1 KiB"
        );
        assert!(crossed("nodes", &[]).is_err());
    }
}
