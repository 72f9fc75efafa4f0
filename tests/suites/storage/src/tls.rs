//! Stock NBD clients with certificates, and without: libnbd, QEMU, and Python's ssl.

use super::{FILES, LIMIT, Place, SIZE_MIB, START, World};
use anyhow::{Context as _, Result, ensure};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;
use testbed::process::{self, Running};
use testbed::workspace;

type Test = fn(&Secure<'_>) -> Result<()>;

const TESTS: &[(&str, Test)] = &[
    ("nbdsh: commands, flags and refusals over TLS", nbdsh),
    ("nbdcopy: in and out over TLS, four connections", nbdcopy),
    ("qemu-img: convert and compare over TLS", qemu_img),
    ("qemu-io: patterns and discards over TLS", qemu_io),
    (
        "qemu-img: without TLS, and with wrong certificates, refused",
        qemu_refused,
    ),
    (
        "libnbd, ssl: certificates that do not match, old versions, silent clients, new certificates",
        refusals,
    ),
    ("libnbd: a thousand clients at once, and one more", crowd),
];

/// Clients of the last test.
const CROWD: &str = "1000";

/// An export that needs TLS, and its certificates.
struct Secure<'a> {
    place: Place<'a>,
    running: Running,
    port: String,
}

/// Runs all tests that are wanted.
///
/// # Errors
/// The directory cannot be created.
pub fn run_tls(world: &World<'_>) -> Result<Vec<(&'static str, Result<()>)>> {
    let wants =
        |name: &str| world.parts.is_empty() || world.parts.iter().any(|part| name.contains(part));
    let wanted = TESTS.iter().filter(|(name, _)| wants(name));
    wanted
        .map(|(name, test)| {
            let place = Place::on_host(world, "storage-tls")?;
            Ok((*name, Secure::new(place).and_then(|secure| test(&secure))))
        })
        .collect()
}

/// The files of an authority, and what it issues.
struct Authority<'a> {
    place: &'a Place<'a>,
    dir: String,
}

impl<'a> Authority<'a> {
    fn new(place: &'a Place<'a>, dir: &str) -> Result<Self> {
        fs::create_dir_all(place.path(dir))?;
        let (key, certificate) = (format!("{dir}/ca-key.pem"), format!("{dir}/ca-cert.pem"));
        let subject = format!("/CN=authority {dir}");
        let words = [
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "30",
        ];
        let files = ["-keyout", &key, "-out", &certificate, "-subj", &subject];
        place.stock("openssl", &[&words[..], &files].concat())?;
        let dir = dir.to_owned();
        Ok(Self { place, dir })
    }

    /// Issues a certificate to `FILE-cert.pem` and its key to `FILE-key.pem`.
    fn issue(&self, file: &str, days: &str) -> Result<()> {
        let dir = &self.dir;
        let (key, request) = (format!("{file}-key.pem"), format!("{file}.csr"));
        let words = [
            "req",
            "-new",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-subj",
            "/CN=xgvmi",
        ];
        let files = ["-keyout", &key, "-out", &request];
        self.place
            .stock("openssl", &[&words[..], &files].concat())?;
        let names =
            "subjectAltName=DNS:localhost,IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n";
        fs::write(self.place.path("names"), names)?;
        let (ca, ca_key) = (format!("{dir}/ca-cert.pem"), format!("{dir}/ca-key.pem"));
        let out = format!("{file}-cert.pem");
        let words = [
            "x509",
            "-req",
            "-in",
            &request,
            "-CA",
            &ca,
            "-CAkey",
            &ca_key,
            "-CAcreateserial",
            "-extfile",
            "names",
            "-days",
            days,
            "-out",
            &out,
        ];
        self.place.stock("openssl", &words).map(drop)
    }
}

impl<'a> Secure<'a> {
    fn new(place: Place<'a>) -> Result<Self> {
        // Directories of clients: their own certificate, and the authority of the server.
        let good = Authority::new(&place, "good")?;
        let other = Authority::new(&place, "other")?;
        good.issue("good/client", "30")?;
        let copy = |from: &str, to: &str| {
            let to = place.path(to);
            fs::create_dir_all(to.parent().context("a directory")?)?;
            fs::copy(place.path(from), &to).with_context(|| to.display().to_string())
        };
        for (dir, issuer, root, days) in [
            ("foreign", &other, "good", "30"),
            ("wrong-ca", &good, "other", "30"),
            ("expired", &good, "good", "-1"),
        ] {
            copy(
                &format!("{root}/ca-cert.pem"),
                &format!("{dir}/ca-cert.pem"),
            )?;
            issuer.issue(&format!("{dir}/client"), days)?;
        }
        copy("good/ca-cert.pem", "none/ca-cert.pem")?;
        good.issue("own", "30")?;
        other.issue("next-own", "30")?;
        for (from, to) in [
            ("own-cert.pem", "server/cert.pem"),
            ("own-key.pem", "server/key.pem"),
            ("good/ca-cert.pem", "server/ca.pem"),
            ("next-own-cert.pem", "next/cert.pem"),
            ("next-own-key.pem", "next/key.pem"),
            ("other/ca-cert.pem", "next/ca.pem"),
            ("other/ca-cert.pem", "next/client/ca-cert.pem"),
        ] {
            copy(from, to)?;
        }
        other.issue("next/client/client", "30")?;
        let private = fs::Permissions::from_mode(0o600);
        fs::set_permissions(place.path("server/key.pem"), private)?;
        place.create(SIZE_MIB, 4096)?;
        let (running, port) = export(&place, &[])?;
        Ok(Self {
            place,
            running,
            port,
        })
    }

    fn uri(&self) -> String {
        let dir = self.place.path("good");
        format!(
            "nbds://localhost:{}/?tls-certificates={}",
            self.port,
            dir.display()
        )
    }

    /// The image of QEMU, with the certificates of `dir`.
    fn image(&self, dir: &str) -> [String; 2] {
        let dir = self.place.path(dir);
        [
            format!(
                "tls-creds-x509,id=tls,endpoint=client,dir={}",
                dir.display()
            ),
            format!("driver=nbd,host=localhost,port={},tls-creds=tls", self.port),
        ]
    }

    /// The volume holds the image, also to a check of the targets.
    fn holds(&self, image: &str) -> Result<()> {
        let uri = self.uri();
        self.place
            .stock("nbdcopy", &["--connections=4", &uri, "out"])?;
        self.place.same(image, "out")
    }
}

/// Exports the volume with TLS. Returns the port too.
fn export(place: &Place<'_>, more: &[&str]) -> Result<(Running, String)> {
    let mut command = Command::new(place.world.bin.join("xgvmi-blk"));
    command.arg("export").args(FILES).current_dir(&place.dir);
    command.args(["--listen", "127.0.0.1:0"]);
    command.args([
        "--tls-certificate",
        "server/cert.pem",
        "--tls-key",
        "server/key.pem",
    ]);
    command
        .args(["--tls-client-ca", "server/ca.pem"])
        .args(more);
    let running = Running::saying(&mut command, START, "exports volume")?;
    let said = running.said();
    let port = said.split("tcp:127.0.0.1:").nth(1);
    let port = port.and_then(|rest| rest.split_whitespace().next());
    let port = port.with_context(|| format!("no port: {said}"))?.to_owned();
    Ok((running, port))
}

fn nbdsh(secure: &Secure<'_>) -> Result<()> {
    let place = &secure.place;
    place.create_again(16)?;
    let (_running, port) = export(place, &[])?;
    let script = workspace::root().join("tests/suites/storage_nbdsh.py");
    let dir = place.path("good");
    let uri = format!(
        "uri = 'nbds://localhost:{port}/?tls-certificates={}'",
        dir.display()
    );
    let start = format!("exec(open('{}').read())", script.display());
    let said = place.stock("/usr/bin/python3", &["-m", "nbd", "-c", &uri, "-c", &start])?;
    ensure!(said.contains("all as expected"), "{said}");
    Ok(())
}

fn nbdcopy(secure: &Secure<'_>) -> Result<()> {
    let place = &secure.place;
    place.image("image", SIZE_MIB)?;
    place.stock(
        "nbdcopy",
        &["--connections=4", "--flush", "image", &secure.uri()],
    )?;
    secure.holds("image")
}

fn qemu_img(secure: &Secure<'_>) -> Result<()> {
    let place = &secure.place;
    place.image("image", SIZE_MIB)?;
    let [object, target] = secure.image("good");
    let words = [
        "convert",
        "-n",
        "-f",
        "raw",
        "--object",
        &object,
        "--target-image-opts",
    ];
    place.stock("qemu-img", &[&words[..], &["image", &target]].concat())?;
    let source = format!("driver=raw,file.{}", target.replace(',', ",file."));
    let words = ["compare", "--object", &object, "--image-opts", &source];
    let image = "driver=raw,file.driver=file,file.filename=image";
    let same = place.stock("qemu-img", &[&words[..], &[image]].concat())?;
    ensure!(same.contains("identical"), "{same}");
    secure.holds("image")
}

fn qemu_io(secure: &Secure<'_>) -> Result<()> {
    let [object, image] = secure.image("good");
    let mut words = vec!["--object", &object, "--image-opts", &image];
    for command in [
        "write -P 7 4k 1M",
        "write -P 9 -f 1M 64k",
        "aio_write -P 3 8M 16M",
        "aio_read 0 4M",
        "aio_flush",
        "read -P 7 4k 1020k",
        "read -P 9 1M 64k",
        "discard 4k 8k",
        "read -P 0 4k 8k",
        "write -z 2M 64k",
        "flush",
        "read -P 3 8M 16M",
    ] {
        words.extend(["-c", command]);
    }
    let said = secure.place.stock("qemu-io", &words)?;
    ensure!(
        !said.contains("failed") && !said.contains("error"),
        "{said}"
    );
    Ok(())
}

fn qemu_refused(secure: &Secure<'_>) -> Result<()> {
    let info = |words: &[&str]| -> Result<String> {
        let mut command = Command::new("qemu-img");
        command
            .arg("info")
            .args(words)
            .current_dir(&secure.place.dir);
        for (name, value) in secure.place.world.tools {
            command.env(name, value);
        }
        let done = process::run(&mut command, LIMIT)?;
        ensure!(!done.ok(), "{words:?} is served:\n{}", done.output);
        Ok(done.output)
    };
    let plain = format!("nbd://localhost:{}/", secure.port);
    let said = info(&[&plain])?;
    ensure!(said.to_lowercase().contains("tls"), "{said}");
    for dir in ["foreign", "wrong-ca", "expired", "none"] {
        let [object, image] = secure.image(dir);
        info(&["--object", &object, "--image-opts", &image])?;
    }
    let [object, image] = secure.image("good");
    let other = format!("{image},tls-hostname=other.example");
    info(&["--object", &object, "--image-opts", &other])?;
    let served = ["info", "--object", &object, "--image-opts", &image];
    secure.place.stock("qemu-img", &served).map(drop)
}

fn refusals(secure: &Secure<'_>) -> Result<()> {
    let script = workspace::root().join("tests/suites/storage_tls.py");
    let (script, dir) = (
        script.display().to_string(),
        secure.place.dir.display().to_string(),
    );
    let pid = secure.running.group.child.id().to_string();
    let words = [script.as_str(), &secure.port, &pid, &dir];
    let said = secure.place.stock("/usr/bin/python3", &words)?;
    ensure!(said.contains("all as expected"), "{said}");
    // One line for each client, with its reason.
    let told = secure.running.said();
    for reason in [
        "it does not use TLS, which is required",
        "TLS: invalid peer certificate: UnknownIssuer",
        "TLS: invalid peer certificate: Expired",
        "TLS: peer sent no certificates",
        "TLS: peer is incompatible",
        "TLS: received corrupt message",
        "it has left during the TLS handshake",
        "the certificates were read again",
    ] {
        ensure!(told.contains(reason), "'{reason}' is not in:\n{told}");
    }
    Ok(())
}

/// The clients have requests under way together; one more learns that there is no place.
fn crowd(secure: &Secure<'_>) -> Result<()> {
    let place = &secure.place;
    place.create_again(16)?;
    let (running, port) = export(place, &["--clients", CROWD])?;
    let script = workspace::root().join("tests/suites/storage_crowd.py");
    let (script, dir) = (
        script.display().to_string(),
        place.path("good").display().to_string(),
    );
    let said = place.stock("/usr/bin/python3", &[&script, &port, CROWD, &dir])?;
    ensure!(said.contains("all as expected: 1000 clients"), "{said}");
    let told = running.said();
    ensure!(
        told.contains("all 1000 places for clients are taken (--clients)"),
        "{told}"
    );
    Ok(())
}
