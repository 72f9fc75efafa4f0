//! The file with the initiators of a service that have a name and a secret of their own.
//!
//! ```toml
//! [db1]
//! secret-file = "db1.secret"    # beside this file
//! volumes = { a = "write", b = "read" }    # without: all
//! [backup]
//! secret-file = "backup.secret"
//! read-only = true
//! connections = 2
//! ```

use super::common::{check_name, named_secret};
use crate::service::{CONNECTIONS_MAX, IDENTITIES_MAX, Initiator, Right};
use anyhow::{Context as _, Result, bail, ensure};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

/// Longest file.
const FILE_MAX: u64 = 64 << 10;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Entry {
    secret_file: PathBuf,
    #[serde(default)]
    read_only: bool,
    connections: Option<usize>,
    volumes: Option<BTreeMap<String, Right>>,
}

/// Reads the file and the secrets that it names, for a service of volumes with these names.
///
/// # Errors
/// It cannot be read, has something else, or a secret or a volume is none.
pub(super) fn read(path: &Path, volumes: &[String]) -> Result<Vec<Initiator>> {
    let place = || path.display().to_string();
    let mut text = String::new();
    let file = File::open(path).with_context(place)?;
    let length = file.take(FILE_MAX + 1).read_to_string(&mut text);
    if length.with_context(place)? as u64 > FILE_MAX {
        bail!("{}: longer than {FILE_MAX} bytes", place());
    }
    let entries: BTreeMap<String, Entry> = toml::from_str(&text).with_context(place)?;
    ensure!(
        entries.len() <= IDENTITIES_MAX,
        "{}: {} initiators; the most is {IDENTITIES_MAX}",
        place(),
        entries.len()
    );
    let dir = path.parent().unwrap_or_else(|| Path::new(""));
    let initiators = entries.into_iter().map(|(name, entry)| {
        check_name("an initiator", &name).with_context(place)?;
        let connections = entry.connections.unwrap_or(CONNECTIONS_MAX);
        ensure!(
            (1..=CONNECTIONS_MAX).contains(&connections),
            "{}: {name}: connections are 1 to {CONNECTIONS_MAX}",
            place()
        );
        for volume in entry.volumes.iter().flat_map(BTreeMap::keys) {
            ensure!(
                volumes.contains(volume),
                "{}: {name}: the service has no volume '{volume}': {}",
                place(),
                match volumes {
                    [] => "its volume has no name, give it one (--volume NAME=TARGETS)".to_owned(),
                    _ => format!("name some of {}", volumes.join(", ")),
                }
            );
        }
        Ok(Initiator {
            secret: named_secret(&dir.join(entry.secret_file), &name)?,
            name,
            read_only: entry.read_only,
            volumes: entry.volumes,
            connections,
        })
    });
    initiators.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn initiators_come_from_a_file_and_what_is_none_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("initiators.toml");
        let secret = dir.path().join("secret");
        std::fs::write(&secret, "a secret of sixteen bytes").unwrap();
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
        let all = |text: &str| {
            std::fs::write(&path, text).unwrap();
            read(&path, &["x".to_owned(), "y".to_owned()])
        };
        let found = all("[a]\nsecret-file='secret'\nvolumes={x='read',y='write'}\n\
             [b-2]\nsecret-file='secret'\nread-only=true\nconnections=2");
        let found = found.unwrap();
        let seen: Vec<_> = found
            .iter()
            .map(|one| (&*one.name, one.read_only, one.connections))
            .collect();
        assert_eq!(seen, [("a", false, CONNECTIONS_MAX), ("b-2", true, 2)]);
        let rights = [("x", Right::Read), ("y", Right::Write)];
        let rights = rights.map(|(name, right)| (name.to_owned(), right));
        assert_eq!(found[0].volumes, Some(rights.into()));
        assert_eq!(found[1].volumes, None);
        assert!(
            found[0].secret != found[1].secret,
            "a secret belongs to its name"
        );
        assert!(found[0].secret == super::super::initiator_secret(&secret, Some("a")).unwrap());
        assert!(all("").unwrap().is_empty());
        let many: String = (0..65)
            .map(|at| format!("[n{at}]\nsecret-file='secret'\n"))
            .collect();
        let long = format!("['{}']\nsecret-file='secret'", "n".repeat(65));
        for (text, expect) in [
            ("[a]", "secret-file"),
            ("[a]\nsecret-file='nowhere'", "nowhere"),
            ("[a]\nsecret-file='secret'\nreadonly=true", "readonly"),
            (
                "[a]\nsecret-file='secret'\nconnections=0",
                "connections are 1 to 16",
            ),
            ("['a b']\nsecret-file='secret'", "'a b': the name"),
            (&long, "the name"),
            (&many, "65 initiators; the most is 64"),
            (&"#".repeat(70_000), "longer than 65536 bytes"),
            ("=", "initiators.toml"),
            (
                "[a]\nsecret-file='secret'\nvolumes={z='read'}",
                "a: the service has no volume 'z': name some of x, y",
            ),
            ("[a]\nsecret-file='secret'\nvolumes={x='append'}", "append"),
        ] {
            let error = format!("{:#}", all(text).unwrap_err());
            assert!(error.contains(expect), "{error}");
        }
        std::fs::write(&path, "[a]\nsecret-file='secret'\nvolumes={x='read'}").unwrap();
        let error = format!("{:#}", read(&path, &[]).unwrap_err());
        assert!(error.contains("its volume has no name"), "{error}");
    }
}
