//! The three files of a report: `report.json` for programs, `report.md` for readers, `report.svg` as a plot.

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

/// Creates `directory` and writes the report, its Markdown and its plot into it.
///
/// # Errors
/// The system's error, with the file.
pub fn write(directory: &Path, report: &impl Serialize, markdown: &str, plot: &str) -> Result<()> {
    fs::create_dir_all(directory).with_context(|| format!("making {}", directory.display()))?;
    let json = serde_json::to_string_pretty(report)? + "\n";
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
        write(&target, &[1], "text", "plot").expect("written");
        let sizes = || FILES.map(|name| target.join(name).metadata().map_or(0, |m| m.len()));
        assert_eq!(sizes(), [8, 4, 4]);
        for _ in 0..2 {
            remove(&target).expect("removed, or not there");
            assert_eq!(sizes(), [0; 3]);
        }
    }
}
