//! The three files of a report: `report.json` for programs, `report.md` for readers, `report.svg` as a plot.

use crate::table::{Column, described};
use anyhow::{Context as _, Result};
use serde::Serialize;
use std::fs;
use std::path::Path;

const FILES: [&str; 3] = ["report.json", "report.md", "report.svg"];

/// Removes the report of an earlier run from `directory`, so that it cannot pass for the report of a failed run.
///
/// # Errors
/// The system's error, with the file. An absent file is no error.
pub fn remove(directory: &Path) -> Result<()> {
    for name in FILES {
        let file = directory.join(name);
        match fs::remove_file(&file) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("removing {}", file.display()));
            }
            _ => {}
        }
    }
    Ok(())
}

/// The text of a report's file: the report with a description of its `columns`.
///
/// # Errors
/// The report is no object.
pub fn json(report: &impl Serialize, columns: &[Column]) -> Result<String> {
    let mut report = serde_json::to_value(report)?;
    let object = report.as_object_mut().context("the report is no object")?;
    object.insert("columns".to_owned(), described(columns));
    Ok(format!("{report:#}\n"))
}

/// Removes the report of an earlier run, so that it cannot pass for the report of a failed run, and makes its directory.
///
/// # Errors
/// The system's error, with the directory.
pub fn prepare(file: &Path) -> Result<()> {
    let _ = fs::remove_file(file);
    let place = file.parent().context("the report has a directory")?;
    fs::create_dir_all(place).with_context(|| format!("cannot create {}", place.display()))
}

/// Writes a report with its columns.
///
/// # Errors
/// As for [`json`], or the system's error with the file.
pub fn save(file: &Path, report: &impl Serialize, columns: &[Column]) -> Result<()> {
    fs::write(file, json(report, columns)?)
        .with_context(|| format!("cannot write {}", file.display()))
}

/// Creates `directory` and writes the report with its columns, its Markdown and its plot into it.
///
/// # Errors
/// The system's error, with the file.
pub fn write(
    directory: &Path,
    (report, columns): (&impl Serialize, &[Column]),
    markdown: &str,
    plot: &str,
) -> Result<()> {
    fs::create_dir_all(directory).with_context(|| format!("making {}", directory.display()))?;
    let json = json(report, columns)?;
    for (name, text) in FILES.iter().zip([&json, markdown, plot]) {
        let file = directory.join(name);
        fs::write(&file, text).with_context(|| format!("writing {}", file.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_files_are_written_and_removed() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let target = directory.path().join("demo");
        let report = (&serde_json::json!({ "schema": 1 }), &[Column::size()][..]);
        write(&target, report, "text", "plot").expect("written");
        let text = fs::read_to_string(target.join(FILES[0])).expect("read");
        let read: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(read["columns"][0]["name"], "size");
        let sizes = || FILES.map(|name| target.join(name).metadata().map_or(0, |m| m.len()));
        assert_eq!(sizes()[1..], [4, 4]);
        for _ in 0..2 {
            remove(&target).expect("removed, or not there");
            assert_eq!(sizes(), [0; 3]);
        }
    }
}
