//! The files of `--tls-certificate`, `--tls-key` and `--tls-client-ca`.

use super::options::TlsArgs;
use crate::nbd::{Pems, Tls, TlsError};
use anyhow::{Context as _, Result, anyhow, ensure};
use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use xgvmi_daemon::read_private;

/// Longest file.
const FILE_MAX: u64 = 1 << 20;

/// Contents of the files.
struct Files {
    certificate: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
}

/// TLS with the files of the options, if they name any.
pub(super) fn read(args: &TlsArgs) -> Result<Option<Tls>> {
    let Some(files) = Files::read(args)? else {
        return Ok(None);
    };
    let required = args.tls_optional != Some(true);
    let tls = Tls::new(&files.pems(), required).map_err(|error| named(args, &error))?;
    Ok(Some(tls))
}

/// Reads the files again.
pub(super) fn reload(args: &TlsArgs, tls: &Tls) -> Result<()> {
    match Files::read(args)? {
        Some(files) => tls
            .replace(&files.pems())
            .map_err(|error| named(args, &error)),
        None => Ok(()),
    }
}

impl Files {
    fn read(args: &TlsArgs) -> Result<Option<Self>> {
        let (Some(certificate), Some(key)) = (&args.tls_certificate, &args.tls_key) else {
            return Ok(None);
        };
        let client_ca = args.tls_client_ca.as_deref();
        Ok(Some(Self {
            certificate: public(certificate)?,
            key: read_private(key, "private key", FILE_MAX)?,
            client_ca: client_ca.map(public).transpose()?,
        }))
    }

    fn pems(&self) -> Pems<'_> {
        Pems {
            certificate: &self.certificate,
            key: &self.key,
            client_ca: self.client_ca.as_deref(),
        }
    }
}

fn public(path: &Path) -> Result<Vec<u8>> {
    let context = || format!("cannot read the certificate in {}", path.display());
    let mut bytes = Vec::new();
    let file = File::open(path).with_context(context)?;
    ensure!(
        file.metadata().with_context(context)?.is_file(),
        "the certificate in {} is no regular file",
        path.display()
    );
    file.take(FILE_MAX)
        .read_to_end(&mut bytes)
        .with_context(context)?;
    Ok(bytes)
}

/// The error with the names of the files that it is about.
fn named(args: &TlsArgs, error: &TlsError) -> anyhow::Error {
    let file = |path: &Option<std::path::PathBuf>| {
        let path = path.as_deref().unwrap_or(Path::new(""));
        path.display().to_string()
    };
    let (certificate, key) = (file(&args.tls_certificate), file(&args.tls_key));
    match error {
        TlsError::Certificate(_) => anyhow!("{certificate}: {error}"),
        TlsError::Mismatch => anyhow!("{key}: {error} in {certificate}"),
        TlsError::ClientCa(_) => anyhow!("{}: {error}", file(&args.tls_client_ca)),
        _ => anyhow!("{key}: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{Permissions, set_permissions, write};
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn files_that_cannot_be_used_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str, mode| {
            let path = dir.path().join(name);
            write(&path, text).unwrap();
            set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            path
        };
        let signed = |name: &str| {
            let one = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
            (one.cert.pem(), one.signing_key.serialize_pem())
        };
        let ((certificate, key), (_, other)) = (signed("a"), signed("b"));
        let certificate = file("cert.pem", &certificate, 0o644);
        let key = file("key.pem", &key, 0o640);
        let args = |key: &Path, ca: Option<&Path>| TlsArgs {
            tls_certificate: Some(certificate.clone()),
            tls_key: Some(key.to_owned()),
            tls_client_ca: ca.map(Path::to_owned),
            tls_optional: None,
        };
        let good = args(&key, Some(&certificate));
        let tls = read(&good).unwrap().expect("TLS");
        assert!(read(&TlsArgs::default()).unwrap().is_none());
        let open = file("open.pem", "", 0o644);
        let empty = file("empty.pem", "", 0o600);
        let other = file("other.pem", &other, 0o600);
        let nowhere = dir.path().join("nowhere");
        for (args, file, expect) in [
            (args(&open, None), &open, "is open to everybody (mode 644)"),
            (
                args(dir.path(), None),
                &dir.path().to_owned(),
                "is no regular file",
            ),
            (
                args(&nowhere, None),
                &nowhere,
                "cannot read the private key",
            ),
            (args(&empty, None), &empty, "the private key is unusable"),
            (
                args(&other, None),
                &other,
                "the private key is not that of the certificate",
            ),
            (
                args(&key, Some(&nowhere)),
                &nowhere,
                "cannot read the certificate",
            ),
            (
                args(&key, Some(dir.path())),
                &dir.path().to_owned(),
                "is no regular file",
            ),
            (args(&key, Some(&key)), &key, "it has no CERTIFICATE in PEM"),
        ] {
            for error in [read(&args).unwrap_err(), reload(&args, &tls).unwrap_err()] {
                let error = format!("{error:#}");
                assert!(error.contains(expect), "{error}");
                assert!(error.contains(&file.display().to_string()), "{error}");
            }
        }
        reload(&good, &tls).unwrap();
    }
}
