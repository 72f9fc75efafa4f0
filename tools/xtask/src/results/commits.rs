//! The commit that a report was measured at, in a file beside the report.

use super::machine;
use crate::workspace;
use anyhow::{Context, Result};
use doc_numbers::reports::REPORTS;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Runs a command, and notes the present commit for each report that it has written, also if it fails then.
pub(crate) fn noting<T>(command: impl FnOnce() -> Result<T>) -> Result<T> {
    // A command may change files of the tree.
    let commit = machine::commit();
    noting_in(&workspace::target_dir(), commit.as_deref(), command)
}

fn noting_in<T>(
    target: &Path,
    commit: Option<&str>,
    command: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let files = REPORTS.each_ref().map(|report| target.join(report.file));
    let before = files.each_ref().map(|file| written(file));
    let done = command();
    for (file, before) in files.iter().zip(before) {
        let now = written(file);
        if now.is_some() && now != before {
            note(file, commit)?;
        }
    }
    done
}

/// Notes the commit of a report. Without a commit, that of an earlier report does not remain.
pub(super) fn note(report: &Path, commit: Option<&str>) -> Result<()> {
    let place = beside(report);
    let noted = fs::write(&place, commit.unwrap_or_default());
    noted.with_context(|| format!("writing {}", place.display()))
}

/// The commit of a report, unless it is unknown. A report that was written after the note belongs to a command that was
/// ended early.
pub(super) fn of(report: &Path) -> Option<String> {
    let place = beside(report);
    if written(&place)? < written(report)? {
        return None;
    }
    let commit = fs::read_to_string(place).ok()?;
    Some(commit.trim().to_owned()).filter(|commit| !commit.is_empty())
}

fn beside(report: &Path) -> PathBuf {
    report.with_extension("commit")
}

fn written(file: &Path) -> Option<SystemTime> {
    fs::metadata(file).and_then(|data| data.modified()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_reports_of_a_command_have_its_commit() {
        let target = tempfile::tempdir().unwrap();
        let of_name = |name: &str| {
            let report = REPORTS.iter().find(|report| report.name == name).unwrap();
            target.path().join(report.file)
        };
        let (pool, cost) = (of_name("pool"), of_name("cost"));
        fs::create_dir_all(pool.parent().unwrap()).unwrap();
        fs::write(&pool, "{}").unwrap();
        assert_eq!(of(&pool), None);
        // A command that breaks a promise writes its report and fails.
        let failed: Result<()> = noting_in(target.path(), Some("abc-dirty\n"), || {
            fs::write(&cost, "{}")?;
            anyhow::bail!("a promise")
        });
        assert!(failed.is_err());
        assert_eq!((of(&pool), of(&cost)), (None, Some("abc-dirty".to_owned())));
        // Another command that writes it and is killed.
        let later = SystemTime::now() + Duration::from_secs(5);
        let file = fs::File::options().append(true).open(&cost).unwrap();
        file.set_modified(later).unwrap();
        assert_eq!(of(&cost), None);
        // A tree without commits.
        noting_in(target.path(), None, || {
            Ok(file.set_modified(later - Duration::from_secs(60))?)
        })
        .unwrap();
        assert_eq!(of(&cost), None);
    }
}
