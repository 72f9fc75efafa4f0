//! Records of proofs across processes: empty files in the user's cache directory.
//!
//! A process with write access to the directory could record a form that does not work. Therefore
//! the process's user must own directory and file, and no other user may have write permission. A
//! process with more privileges than its user uses no records.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, OpenOptions};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use super::form::Form;
use super::identity::Identity;

/// Incremented when the bytes of a form or the steps of its proof change.
const VERSION: u32 = 1;

/// True if a record says that the form was proved on an adapter of this model and firmware.
pub(super) fn is_there(identity: &Identity<'_>, form: Form) -> bool {
    place(identity, form).is_some_and(|(dir, file)| is_there_in(&dir, &file))
}

/// Records that the form was proved. If that fails, the next process proves it again.
pub(super) fn keep(identity: &Identity<'_>, form: Form) {
    if let Some((dir, file)) = place(identity, form) {
        let _forgotten = keep_in(&dir, &file);
    }
}

fn place(identity: &Identity<'_>, form: Form) -> Option<(PathBuf, String)> {
    // SAFETY: queries the auxiliary vector only.
    if unsafe { libc::getauxval(libc::AT_SECURE) } != 0 {
        return None;
    }
    let dir = cache_dir(|name| std::env::var_os(name))?;
    Some((dir, file_name(&identity.model()?, form)))
}

fn file_name(model: &str, form: Form) -> String {
    format!("proved-{VERSION}-{model}-{form}")
}

/// Follows the XDG base directory specification: absolute paths only.
fn cache_dir<S: AsRef<OsStr>>(variable: impl Fn(&str) -> Option<S>) -> Option<PathBuf> {
    let path = |name| {
        let value = variable(name)?;
        let path = Path::new(value.as_ref()).to_owned();
        path.is_absolute().then_some(path)
    };
    let base = path("XDG_CACHE_HOME").or_else(|| Some(path("HOME")?.join(".cache")))?;
    Some(base.join("xgvmi"))
}

/// True if the user owns it and no other user has write permission.
fn is_trusted(found: &fs::Metadata) -> bool {
    // SAFETY: has no arguments and cannot fail.
    let user = unsafe { libc::geteuid() };
    found.uid() == user && found.mode() & 0o022 == 0
}

fn is_there_in(dir: &Path, file: &str) -> bool {
    let trusted = |path: &Path, is_kind: fn(&fs::Metadata) -> bool| {
        fs::symlink_metadata(path).is_ok_and(|found| is_kind(&found) && is_trusted(&found))
    };
    trusted(dir, fs::Metadata::is_dir) && trusted(&dir.join(file), fs::Metadata::is_file)
}

fn keep_in(dir: &Path, file: &str) -> std::io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    if !fs::symlink_metadata(dir).is_ok_and(|found| found.is_dir() && is_trusted(&found)) {
        return Ok(());
    }
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(dir.join(file))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_proof_is_remembered_for_its_form_alone() {
        let base = tempfile::tempdir().expect("a directory");
        let dir = base.path().join("below/xgvmi");
        let file = file_name("a2dc-0-24.40.1000", Form::Stock);
        assert!(!is_there_in(&dir, &file));
        keep_in(&dir, &file).expect("written");
        assert!(is_there_in(&dir, &file));
        assert!(!is_there_in(
            &dir,
            &file_name("a2dc-0-24.40.1000", Form::List)
        ));
        assert!(!is_there_in(
            &dir,
            &file_name("a2dc-0-24.41.1000", Form::Stock)
        ));
    }

    #[test]
    fn what_others_may_write_is_not_believed() {
        let base = tempfile::tempdir().expect("a directory");
        let dir = base.path().join("xgvmi");
        keep_in(&dir, "proved").expect("written");
        let chmod = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("the owner may");
        };
        for path in [dir.clone(), dir.join("proved")] {
            let mode = fs::metadata(&path).expect("there").mode();
            chmod(&path, mode | 0o020);
            assert!(!is_there_in(&dir, "proved"), "{}", path.display());
            chmod(&path, mode);
            assert!(is_there_in(&dir, "proved"));
        }
        // A link to a file of the user is not trusted either.
        std::os::unix::fs::symlink(dir.join("proved"), dir.join("link")).expect("a link");
        assert!(!is_there_in(&dir, "link"));
    }

    #[test]
    fn the_cache_is_where_users_have_it() {
        let dir = |set: &'static [(&'static str, &'static str)]| {
            cache_dir(|name| set.iter().find(|row| row.0 == name).map(|row| row.1))
        };
        assert_eq!(
            dir(&[("HOME", "/home/a"), ("XDG_CACHE_HOME", "/cache")]),
            Some("/cache/xgvmi".into())
        );
        assert_eq!(
            dir(&[("HOME", "/home/a"), ("XDG_CACHE_HOME", "relative")]),
            Some("/home/a/.cache/xgvmi".into())
        );
        assert_eq!(dir(&[]), None);
    }
}
