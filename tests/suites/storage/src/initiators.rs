//! Initiators with names at a service: who may write which volume, who may not, and who may not connect any more.

use super::place::Place;
use super::{FILES, LIMIT, START};
use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use testbed::cluster::Cluster;
use testbed::port;
use testbed::process::{self, Running};

/// The service, and what its initiators need.
struct Site<'a> {
    place: &'a Place<'a>,
    device: Cluster,
    address: String,
}

impl Site<'_> {
    fn private(&self, name: &str, text: &str) -> Result<()> {
        private(self.place, name, text)
    }

    /// An export on the host of an initiator, at the socket of its name.
    fn export(&self, name: &str, secret: &str) -> Result<Running> {
        self.export_of(name, secret, (name, &[]))
    }

    /// The same at a socket, with more options.
    fn export_of(
        &self,
        name: &str,
        secret: &str,
        (socket, options): (&str, &[&str]),
    ) -> Result<Running> {
        let program = self.place.world.bin.join("xgvmi-blk");
        let mut command = self.device.command("node0.host", &program);
        command.current_dir(&self.place.dir);
        command.args(["export", "--service", &self.address, "--socket", socket]);
        command.args(["--identity", name, "--secret-file", secret]);
        command.args(options);
        Running::saying(&mut command, START, "exports volume")
    }

    /// Lets Debian's nbdsh carry out statements on the export of an initiator.
    fn nbdsh(&self, name: &str, statements: &str) -> Result<String> {
        let uri = format!("h.connect_uri('nbd+unix:///?socket={name}')");
        // Requests that the client itself would refuse go to the export.
        let start = format!("h.set_strict_mode(0)\n{uri}\n{ERRNO}{statements}");
        self.place
            .stock("/usr/bin/python3", &["-m", "nbd", "-c", &start])
    }

    /// The same of one of several volumes, at a socket with both names. The initiator's secret has its name.
    fn export_volume(&self, name: &str, volume: &str) -> Result<Running> {
        let socket = format!("{name}-{volume}");
        self.export_of(name, name, (&socket, &["--volume", volume]))
    }

    /// How a read, a write, a trim and a flush end at a socket.
    fn tries(&self, socket: &str) -> Result<String> {
        let tries = "print(tried(h.pread, 512, 0), tried(h.pwrite, b'x' * 512, 0), tried(h.trim, 4096, 0), \
                     tried(h.flush))";
        Ok(self.nbdsh(socket, tries)?.trim().to_owned())
    }

    /// An export that runs refuses a client with this reason, which QEMU shows.
    fn refuses(&self, socket: &str, reason: &str) -> Result<()> {
        let uri = format!("nbd+unix:///?socket={socket}");
        let refused = self.place.stock("qemu-img", &["info", &uri]);
        let fault = format!("{:#}", refused.err().context("it is refused")?);
        ensure!(fault.contains(reason), "{fault}");
        Ok(())
    }

    /// State of an initiator.
    fn state(&self, name: &str) -> Result<Value> {
        let told = self
            .place
            .ours(&["status", "--socket", "status", "--json"])?;
        let told: Value = serde_json::from_str(&told)?;
        let all = told["initiators"].as_array().context("a list")?;
        let one = all.iter().find(|one| one["name"] == name);
        Ok(one.cloned().unwrap_or(Value::Null))
    }
}

/// Says the number of the error of a request.
const ERRNO: &str = "\
def tried(call, *arguments):
    try:
        call(*arguments)
        return 'done'
    except nbd.Error as error:
        return error.errno
";

fn private(place: &Place<'_>, name: &str, text: &str) -> Result<()> {
    let path = place.path(name);
    fs::write(&path, text)?;
    Ok(fs::set_permissions(
        path,
        fs::Permissions::from_mode(0o600),
    )?)
}

fn hang_up(running: &Running) -> Result<()> {
    let process = running.group.child.id().cast_signed();
    // SAFETY: no memory is involved; the child was not waited for, so its number is its own.
    ensure!(unsafe { libc::kill(process, libc::SIGHUP) } == 0, "SIGHUP");
    Ok(())
}

const BOTH: &str = "[db1]\nsecret-file = 'db1.secret'\n[reader]\nsecret-file = 'reader.secret'\nread-only = true\n";

pub(super) fn names(place: &Place<'_>) -> Result<()> {
    private(place, "key", "the key of this volume")?;
    let create = [
        &["create"],
        &FILES[..],
        &["--size", "16M", "--key-file", "key"],
    ]
    .concat();
    place.ours(&create)?;
    let site = Site {
        place,
        device: place.world.cluster(1)?,
        address: format!("127.0.0.1:{}", port::free()?),
    };
    site.private("db1.secret", "the secret of the data base")?;
    site.private("reader.secret", "the secret of the reader")?;
    fs::write(place.path("initiators.toml"), BOTH)?;
    let options = [
        "--initiators",
        "initiators.toml",
        "--key-file",
        "key",
        "--status-socket",
        "status",
    ];
    let words = [&FILES[..], &options].concat();
    let words: Vec<String> = words.into_iter().map(str::to_owned).collect();
    let service = place.start_service(&site.device, &words, &site.address)?;

    // Another name's secret, another name, and no name at all.
    for (name, secret) in [("reader", "db1.secret"), ("other", "db1.secret")] {
        let refused = site.export(name, secret).map(drop);
        let fault = format!("{:#}", refused.err().context("it is refused")?);
        ensure!(fault.contains("--identity"), "{fault}");
    }
    let writer = site.export("db1", "db1.secret")?;
    let reader = site.export("reader", "reader.secret")?;
    place.image("image", 16)?;
    place.stock("nbdcopy", &["--flush", "image", "nbd+unix:///?socket=db1"])?;
    place.stock("nbdcopy", &["nbd+unix:///?socket=reader", "out"])?;
    place.same("image", "out")?;
    let tries = "print(h.is_read_only(), tried(h.pwrite, b'x' * 512, 0), tried(h.trim, 4096, 0), \
                 tried(h.zero, 4096, 0), tried(h.flush))";
    let said = site.nbdsh("reader", tries)?;
    ensure!(said.trim() == "True EPERM EPERM EPERM done", "{said}");
    let said = site.nbdsh("db1", tries)?;
    ensure!(said.trim() == "False done done done done", "{said}");
    let (one, other) = (site.state("db1")?, site.state("reader")?);
    ensure!(
        one["fetched_bytes"].as_u64() >= Some(8 << 20) && one["failed"] == 0,
        "{one}"
    );
    ensure!(
        other["delivered_bytes"].as_u64() >= Some(8 << 20),
        "{other}"
    );
    ensure!(
        other["fetched_bytes"] == 0 && other["read_only"] == true,
        "{other}"
    );
    ensure!(
        service.said().contains("initiator reader has connected"),
        "{}",
        service.said()
    );

    let service = grows(&site, (service, &words))?;
    changes(&site, &service, tries)?;
    drop((writer, reader, service));
    let scrub = [&["scrub"], &FILES[..], &["--key-file", "key"]].concat();
    let report: Value = serde_json::from_str(&place.ours(&scrub)?)?;
    ensure!(
        report["bad_halves"] == 0 && report["lost_blocks"] == 0,
        "{report}"
    );
    Ok(())
}

/// The volume grows while initiators use it: their next clients see its size, and it survives the next service.
fn grows(site: &Site<'_>, (service, words): (Running, &[String])) -> Result<Running> {
    let place = site.place;
    let program = place.world.bin.join("xgvmi-blk");
    let resize = ["ctl", "--socket", "status", "resize", "32M"];
    // A client that is connected meanwhile keeps the size, and works.
    let held = format!(
        "import subprocess\n\
         subprocess.run([{program:?}] + {resize:?}, check=True, stdout=subprocess.DEVNULL)\n\
         print(h.get_size(), tried(h.pwrite, b'a' * 512, 0), tried(h.pread, 512, 0))"
    );
    let said = site.nbdsh("db1", &held)?;
    ensure!(said.trim() == "16777216 done done", "{said}");
    let end =
        "print(h.get_size(), tried(h.pwrite, b'z' * 65536, (32 << 20) - 65536), tried(h.flush))";
    for name in ["db1", "reader"] {
        let said = site.nbdsh(name, "print(h.get_size())")?;
        ensure!(said.trim() == "33554432", "{name}: {said}");
    }
    let said = site.nbdsh("db1", end)?;
    ensure!(said.trim() == "33554432 done done", "{said}");
    // It grows once more, and the exports learn it from another process.
    let resize = ["ctl", "--socket", "status", "resize", "48M"];
    place.ours(&resize)?;
    drop(service);
    let service = place.start_service(&site.device, words, &site.address)?;
    let read = "print(h.get_size(), h.pread(65536, (32 << 20) - 65536) == b'z' * 65536)";
    for name in ["db1", "reader"] {
        let said = site.nbdsh(name, read)?;
        ensure!(said.trim() == "50331648 True", "{name}: {said}");
    }
    Ok(service)
}

/// The file of the initiators changes while they are connected.
fn changes(site: &Site<'_>, service: &Running, tries: &str) -> Result<()> {
    let place = site.place;
    // The writer becomes a reader: its next client hears it.
    fs::write(
        place.path("initiators.toml"),
        BOTH.replacen(".secret'\n", ".secret'\nread-only = true\n", 1),
    )?;
    hang_up(service)?;
    let hears = |what: &str| {
        let told = format!("initiator db1 may {what} the volume");
        let changed = || service.said().contains(&told);
        ensure!(process::wait_until(LIMIT, changed), "{}", service.said());
        Ok(())
    };
    hears("only read")?;
    ensure!(site.state("db1")?["read_only"] == true);
    let said = site.nbdsh("db1", tries)?;
    ensure!(said.trim() == "True EPERM EPERM EPERM done", "{said}");
    // And a writer again.
    fs::write(place.path("initiators.toml"), BOTH)?;
    hang_up(service)?;
    hears("write")?;
    let said = site.nbdsh("db1", tries)?;
    ensure!(said.trim() == "False done done done done", "{said}");

    // A file with a fault changes nothing. One without the writer ends its connection, and no other.
    fs::write(
        place.path("initiators.toml"),
        "[reader]\nsecret-file = 'nowhere'\n",
    )?;
    hang_up(service)?;
    let told = || service.said().contains("stays as it was");
    ensure!(process::wait_until(LIMIT, told), "{}", service.said());
    ensure!(
        site.state("db1")?["connections"] == 1,
        "{}",
        site.state("db1")?
    );
    let only_reader = BOTH.split_once("[reader]").context("both")?.1;
    fs::write(
        place.path("initiators.toml"),
        format!("[reader]{only_reader}"),
    )?;
    hang_up(service)?;
    let gone = || {
        service
            .said()
            .contains("initiator db1 may not connect any more")
    };
    ensure!(process::wait_until(LIMIT, gone), "{}", service.said());
    site.refuses("db1", "--identity")?;
    ensure!(site.state("db1")?.is_null(), "{}", site.state("db1")?);
    place.stock("nbdcopy", &["nbd+unix:///?socket=reader", "out"])?;
    Ok(())
}

/// What initiators may do with each of two volumes: nothing, read, or write.
pub(super) fn rights(place: &Place<'_>) -> Result<()> {
    let targets = |name: &str| ["1", "2", "3"].map(|part| format!("{name}{part}"));
    let mut options = Vec::new();
    for name in ["a", "b"] {
        let files = targets(name);
        let mut words = vec!["create"];
        words.extend(files.iter().map(String::as_str));
        place.ours(&[&words[..], &["--size", "16M"]].concat())?;
        options.push(format!("--volume={name}={}", files.join(",")));
    }
    let site = Site {
        place,
        device: place.world.cluster(1)?,
        address: format!("127.0.0.1:{}", port::free()?),
    };
    for name in ["db1", "logs"] {
        site.private(name, "a secret of the site's own")?;
    }
    let file = |of_db1: &str| {
        let text = format!(
            "[db1]\nsecret-file = 'db1'\nvolumes = {of_db1}\n[logs]\nsecret-file = 'logs'\nvolumes = {{ b = 'write' }}\n"
        );
        fs::write(place.path("initiators.toml"), text)
    };
    file("{ a = 'write', c = 'read' }")?;
    options.extend(["--initiators=initiators.toml", "--status-socket=status"].map(str::to_owned));
    let refused = place.start_service(&site.device, &options, &site.address);
    let fault = format!("{:#}", refused.err().context("it is refused")?);
    ensure!(
        fault.contains("db1: the service has no volume 'c': name some of a, b"),
        "{fault}"
    );
    file("{ a = 'write', b = 'read' }")?;
    let service = place.start_service(&site.device, &options, &site.address)?;

    // A volume that an initiator may not use is as one that is not there.
    for name in ["a", "c"] {
        let refused = site.export_of("logs", "logs", ("x", &["--volume", name]));
        let fault = format!("{:#}", refused.err().context("it is refused")?);
        let expect =
            format!("there is no volume '{name}' for initiator logs: name one of b (--volume)");
        ensure!(fault.contains(&expect), "{fault}");
    }
    let exports = (
        site.export_volume("db1", "a")?,
        site.export_volume("db1", "b")?,
        site.export_volume("logs", "b")?,
    );
    place.image("image", 16)?;
    let uri = |socket: &str| format!("nbd+unix:///?socket={socket}");
    for (socket, reads_only) in [("db1-a", false), ("db1-b", true), ("logs-b", false)] {
        let told = place.stock("nbdinfo", &["--json", &uri(socket)])?;
        let told: Value = serde_json::from_str(&told)?;
        ensure!(
            told["exports"][0]["is_read_only"] == reads_only,
            "{socket}: {told}"
        );
        if !reads_only {
            place.stock("nbdcopy", &["--flush", "image", &uri(socket)])?;
        }
    }
    place.stock("nbdcopy", &[&uri("db1-b"), "out"])?;
    place.same("image", "out")?;
    let said = |socket: &str| site.tries(socket);
    ensure!(said("db1-a")? == "done done done done");
    ensure!(said("db1-b")? == "done EPERM EPERM done");
    ensure!(said("logs-b")? == "done done done done");
    let volumes = &site.state("db1")?["volumes"];
    ensure!(
        volumes["a"] == "write" && volumes["b"] == "read",
        "{volumes}"
    );

    rights_change(&site, &service, &|rights: &str| Ok(file(rights)?))?;
    drop((exports, service));
    for name in ["a", "b"] {
        let files = targets(name);
        let words = files.iter().map(String::as_str);
        let words: Vec<&str> = std::iter::once("scrub").chain(words).collect();
        let report: Value = serde_json::from_str(&place.ours(&words)?)?;
        ensure!(
            report["bad_halves"] == 0 && report["lost_blocks"] == 0,
            "{report}"
        );
    }
    Ok(())
}

/// The rights of an initiator at both volumes change while its exports run.
fn rights_change(
    site: &Site<'_>,
    service: &Running,
    file: &dyn Fn(&str) -> Result<()>,
) -> Result<()> {
    let said = |socket: &str| site.tries(socket);
    let change = |rights: &str, told: &dyn Fn() -> bool| -> Result<()> {
        file(rights)?;
        hang_up(service)?;
        let changed = process::wait_until(LIMIT, told);
        ensure!(changed, "{rights}: {}", service.said());
        Ok(())
    };
    change("{ a = 'read', b = 'write' }", &|| {
        let told = ["only read volume a", "write volume b"];
        let has = |what| {
            service
                .said()
                .contains(&format!("initiator db1 may {what}\n"))
        };
        told.into_iter().all(has)
    })?;
    // Exports that run hear of it with their next client.
    for (volume, reads_only) in [("a", true), ("b", false)] {
        let uri = format!("nbd+unix:///?socket=db1-{volume}");
        let told = site.place.stock("nbdinfo", &["--json", &uri])?;
        let told: Value = serde_json::from_str(&told)?;
        ensure!(
            told["exports"][0]["is_read_only"] == reads_only,
            "{volume}: {told}"
        );
    }
    ensure!(said("db1-a")? == "done EPERM EPERM done");
    ensure!(said("db1-b")? == "done done done done");

    // A name that is none changes nothing. One volume is taken away, and what it has open there ends.
    change("{ z = 'read' }", &|| {
        service.said().contains("stays as it was")
    })?;
    ensure!(said("db1-a")? == "done EPERM EPERM done");
    change("{ b = 'write' }", &|| {
        let told = "initiator db1 may not use volume a any more";
        service.said().contains(told)
    })?;
    site.refuses(
        "db1-a",
        "there is no volume 'a' for initiator db1: name one of b",
    )?;
    ensure!(said("db1-b")? == "done done done done");
    ensure!(said("logs-b")? == "done done done done");
    let one = site.state("db1")?;
    ensure!(
        one["connections"] == 1 && one["volumes"]["a"].is_null(),
        "{one}"
    );
    Ok(())
}
