//! `xgvmi-blk service` as a site runs it: options in a file, secret, status, signals; and the C library on it.

use crate::agent::compile_with;
use crate::harness::Case;
use crate::offload::Process;
use crate::ports::set;
use crate::process;
use crate::storage::{By, Initiator, MIB, Place, addresses, span};
use crate::world::{LIMIT, World, free_port};
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("storage_c_library", c_library),
        Case::new("storage_named_c_library", c_names),
        Case::new("storage_service_reads_its_secret_again", reload),
        Case::new("storage_service_drains", drains),
        Case::new("storage_service_refuses_wrong_options", wrong_options),
        Case::new("storage_port_down_and_up", port_down_and_up),
        Case::new("storage_everything_killed_after_a_flush", |w| {
            everything_killed(w, By::Tcp)
        }),
        Case::new("storage_rdma_everything_killed_after_a_flush", |w| {
            everything_killed(w, By::Rdma)
        }),
        Case::new(
            "storage_targets_with_old_data_flipped_bits_and_no_space",
            damaged_targets,
        ),
    ]
}

/// `programs/blk_service.c`, linked with the library under test.
fn program(world: &World) -> Result<PathBuf> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let build = || -> Result<PathBuf> {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("xgvmi_blk");
        fs::create_dir_all(&dir)?;
        for name in ["libxgvmi_blk.so", "libxgvmi_blk.so.0"] {
            // Of an earlier run.
            let _ = fs::remove_file(dir.join(name));
            symlink(world.built("libxgvmi_blk_capi.so"), dir.join(name))?;
        }
        let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("../services/blk/capi/include");
        let dir = dir.display();
        let options = [
            format!("-I{}", header.display()),
            format!("-L{dir}"),
            format!("-Wl,-rpath,{dir}"),
            "-lxgvmi_blk".to_owned(),
            "-lpthread".to_owned(),
        ];
        compile_with("blk_service", &options)
    };
    let built = BUILT.get_or_init(|| build().map_err(|error| format!("{error:#}")));
    built.clone().map_err(anyhow::Error::msg)
}

fn write_secret(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text)?;
    Ok(fs::set_permissions(
        path,
        fs::Permissions::from_mode(0o600),
    )?)
}

fn words(path: &Path) -> String {
    path.display().to_string()
}

/// A C program on its own memory, from four threads, with every byte compared.
fn c_library(world: &World) -> Result<()> {
    let place = Place::new(world, 32 * MIB, 4096)?;
    let secret = place.testbed.path().join("secret");
    write_secret(&secret, "a secret of the volume's site")?;
    let options = ["--initiator-secret-file", &words(&secret)];
    let mut service = place.service(&place.names(), &options)?;
    let mut command = place.testbed.command("node0.host", program(world)?);
    command.arg(place.address()).arg(&secret);
    let said = process::stdout(&mut command, LIMIT)?;
    let verified = said.split_whitespace().next().unwrap_or_default();
    let verified: u64 = verified.parse().with_context(|| said.clone())?;
    ensure!(
        verified > 64 * MIB && said.contains("none wrong"),
        "the C program says: {said}"
    );
    service.signal(libc::SIGTERM)?;
    let (code, said) = service.end(LIMIT, &[" serves volume "])?;
    ensure!(code == Some(0), "{code:?}: {said}");
    let report = place.scrub()?;
    ensure!(
        report["bad_halves"] == 0 && report["lost_blocks"] == 0,
        "{report}"
    );
    Ok(())
}

/// A C program gives its name and that of a volume, and has the rights of this name there.
fn c_names(world: &World) -> Result<()> {
    let place = Place::new(world, 32 * MIB, 4096)?;
    let path = |name: &str| place.testbed.path().join(name);
    let second = ["b1", "b2", "b3"].map(|name| words(&path(name)));
    let mut create = Command::new(world.built("xgvmi-blk"));
    create.arg("create").args(&second).args(["--size", "8M"]);
    process::stdout(&mut create, LIMIT)?;
    let secret = path("db1.secret");
    write_secret(&secret, "the secret of one initiator")?;
    let initiators = path("initiators.toml");
    let text = "[db1]\nsecret-file = 'db1.secret'\nvolumes = { a = 'write', b = 'read' }\n\
                [db2]\nsecret-file = 'db1.secret'\nvolumes = { b = 'write' }\n";
    fs::write(&initiators, text)?;
    let volumes = [
        format!("--volume=a={}", place.names().join(",")),
        format!("--volume=b={}", second.join(",")),
    ];
    let options = ["--initiators", &words(&initiators)];
    let _service = place.service(&volumes, &options)?;
    let mut command = place.testbed.command("node0.host", program(world)?);
    command.arg(place.address()).arg(&secret).arg("rights");
    let said = process::stdout(&mut command, LIMIT)?;
    ensure!(said.trim() == "all as expected", "{said}");
    Ok(())
}

/// Options in a file; the status in its forms; a new secret for new connections while an open one continues.
fn reload(world: &World) -> Result<()> {
    let place = Place::new(world, 32 * MIB, 4096)?;
    let path = |name: &str| place.testbed.path().join(name);
    let (secret, old, new) = (path("secret"), path("old"), path("new"));
    write_secret(&secret, "the first secret of this test")?;
    write_secret(&old, "the first secret of this test")?;
    write_secret(&new, "another secret of this test")?;
    let (config, status) = (path("service.toml"), path("status"));
    let text = format!(
        "targets = {:?}\nlisten = \"{}\"\ninitiator-secret-file = {secret:?}\nworkers = 2\n\
         status-socket = {status:?}\n",
        place.names(),
        place.address()
    );
    fs::write(&config, text)?;
    let mut service = place.service(&[], &["--config", &words(&config)])?;
    let client = |secret: &Path| -> Result<Initiator> {
        let mut command = place.testbed.command("node0.host", program(world)?);
        command.arg(place.address()).arg(secret).arg("hold");
        Initiator::start(&mut command)
    };
    let mut open = client(&old)?;
    open.good(&json!("round"))?;
    let ask = |form: &str| -> Result<String> {
        let mut command = Command::new(world.built("xgvmi-blk"));
        command.args(["status", form, "--socket"]).arg(&status);
        process::stdout(&mut command, LIMIT)
    };
    let told: Value = serde_json::from_str(&ask("--json")?)?;
    ensure!(
        told["program"] == "service" && told["requests"]["initiators"] == 1,
        "{told}"
    );
    ensure!(told["requests"]["fetched_bytes"] == MIB, "{told}");
    let prom = ask("--prom")?;
    for line in [
        format!("xgvmi_blk_fetched_bytes_total {MIB}"),
        "xgvmi_blk_initiators 1".to_owned(),
        "xgvmi_blk_target_present{role=\"data_p\"} 1".to_owned(),
    ] {
        ensure!(prom.lines().any(|found| found == line), "{line}\n{prom}");
    }
    // An unusable file changes nothing.
    fs::write(&secret, "short")?;
    service.signal(libc::SIGHUP)?;
    service.hear("the secret stays as it was")?;
    client(&old)?.good(&json!("round"))?;
    write_secret(&secret, "another secret of this test")?;
    service.signal(libc::SIGHUP)?;
    let changed = process::wait_until(LIMIT, || client(&new).is_ok());
    ensure!(changed, "the new secret does not count");
    let Err(error) = client(&old) else {
        anyhow::bail!("an initiator with the old secret is served");
    };
    ensure!(format!("{error:#}").contains("secret"), "{error:#}");
    open.good(&json!("round"))?;
    let told: Value = serde_json::from_str(&ask("--json")?)?;
    ensure!(told["requests"]["failed"] == 0, "{told}");
    service.signal(libc::SIGTERM)?;
    let (code, said) = service.end(LIMIT, &[" serves volume "])?;
    ensure!(code == Some(0) && !status.exists(), "{code:?}: {said}");
    Ok(())
}

/// SIGTERM under writes, again and again: no write is lost and none fails, because the initiator repeats at the next
/// service what this one has not taken.
fn drains(world: &World) -> Result<()> {
    let place = Place::new(world, 16 * MIB, 4096)?;
    let mut service = place.service(&place.names(), &[])?;
    let mut initiator = place.initiator("announced")?;
    let mut within = 0;
    for seed in 0..6 {
        initiator.send(&span("Write", 0, 16 * MIB, (65536, seed)))?;
        // The delay only chooses the requests that SIGTERM meets. Nothing depends on its length.
        std::thread::park_timeout(Duration::from_millis(seed * 23 % 60));
        service.signal(libc::SIGTERM)?;
        let (code, said) = service.end(LIMIT, &[" serves volume "])?;
        ensure!(code == Some(0), "{code:?}: {said}");
        ensure!(!said.contains("have no answer"), "{said}");
        // Everything was settled and is durable: the next service finds nothing to repair.
        let report = place.scrub()?;
        ensure!(
            report["bad_halves"] == 0 && report["lost_blocks"] == 0,
            "{report}"
        );
        within += report["blocks"].as_u64().unwrap_or(0);
        service = place.service(&place.names(), &[])?;
        let done = initiator.answer()?;
        ensure!(done["failed"] == 0, "{done}");
        initiator.good(&span("Read", 0, 16 * MIB, (MIB, seed)))?;
    }
    ensure!(within > 0, "no block was written before a signal");
    Ok(())
}

/// A service that cannot be right does not start, and says why.
fn wrong_options(world: &World) -> Result<()> {
    let place = Place::new(world, 8 * MIB, 4096)?;
    let mut other = Command::new(world.built("xgvmi-blk"));
    let others = ["x", "y", "z"].map(|name| words(&place.testbed.path().join(name)));
    other.arg("create").args(&others).args(["--size", "8M"]);
    process::stdout(&mut other, LIMIT)?;
    let names = place.names();
    let config = place.testbed.path().join("bad.toml");
    fs::write(&config, "worker = 3")?;
    let config = words(&config);
    let (mixed, twice) = (
        [names[0].as_str(), &others[1], &names[2]],
        [names[0].as_str(), &names[0], &names[1]],
    );
    let good: Vec<&str> = names.iter().map(String::as_str).collect();
    for (targets, options, rc, expect) in [
        (&mixed[..], &[][..], 1, "do not belong to one volume"),
        (&twice, &[], 1, "another process uses this target"),
        (&good, &["--workers", "65"], 2, "65 is not in 1..=64"),
        (&good, &["--transfer-mib", "33"], 2, "33 is not in 1..=32"),
        (&good, &["--config", &config], 2, "unknown option worker"),
        (&good, &["--listen", "0.0.0.0:0"], 1, "needs a secret"),
        (&good, &["--device", "mlx5_99"], 1, "mlx5_99"),
        (&[], &[], 1, "no targets"),
    ] {
        let mut command = place.testbed.command("node0.dpu", world.built("xgvmi-blk"));
        command.arg("service").args(targets).args(options);
        if !options.contains(&"--listen") {
            command.args(["--listen", "127.0.0.1:0"]);
        }
        let (code, said) = Process::spawn(&mut command)?.end(LIMIT, &[expect])?;
        ensure!(
            code == Some(rc) && said.contains(expect),
            "{expect}: {said}"
        );
    }
    Ok(())
}

/// The port goes down under transfers and comes up again. The DMA engine does not use it; a connection of the queue pair to
/// itself may, so such a transfer may fail. Nothing is wrong afterwards.
fn port_down_and_up(world: &World) -> Result<()> {
    for options in [&[][..], &["--rdma"]] {
        let place = Place::new(world, 32 * MIB, 4096)?;
        let _service = place.service(&place.names(), options)?;
        let mut initiator = place.initiator("announced")?;
        initiator.good(&span("Write", 16 * MIB, 16 * MIB, (MIB, 1)))?;
        initiator.send(&span("Write", 0, 16 * MIB, (65536, 2)))?;
        set(&place.testbed, "node0", 1, "down")?;
        // Some requests meet the port that is down. Nothing depends on their number.
        std::thread::park_timeout(Duration::from_millis(30));
        set(&place.testbed, "node0", 1, "up")?;
        let done = initiator.answer()?;
        let reason = done["reason"].as_str().unwrap_or_default();
        let may_fail = !options.is_empty() && reason.contains("cannot access the host's memory");
        ensure!(done["failed"] == 0 || may_fail, "{options:?}: {done}");
        for (kind, offset, seed) in [("Read", 16 * MIB, 1), ("Write", 0, 3), ("Read", 0, 3)] {
            initiator.good(&span(kind, offset, 16 * MIB, (MIB, seed)))?;
        }
    }
    Ok(())
}

/// SIGKILL for the targets, the service and the initiator at once, under writes: what was flushed before is there.
fn everything_killed(world: &World, by: By) -> Result<()> {
    let place = Place::new(world, 16 * MIB, 4096)?;
    let ports = [free_port()?, free_port()?, free_port()?];
    let target = |index: usize| place.target(by, index, ports[index]);
    let names = addresses(by, ports);
    for round in 0..5 {
        let mut processes = vec![target(0)?, target(1)?, target(2)?];
        processes.push(place.service(&names, &[])?);
        let mut initiator = place.initiator("announced")?;
        if round > 0 {
            initiator.good(&span("Read", 0, 8 * MIB, (MIB, round - 1)))?;
        }
        initiator.good(&span("Write", 0, 8 * MIB, (65536, round)))?;
        initiator.good(&json!("Flush"))?;
        initiator.send(&span("Write", 8 * MIB, 8 * MIB, (65536, round)))?;
        std::thread::park_timeout(Duration::from_millis(round * 11));
        for process in &processes {
            process.signal(libc::SIGKILL)?;
        }
        initiator.kill()?;
        for process in &mut processes {
            process.end(LIMIT, &[" serves "])?;
        }
    }
    let report = place.scrub()?;
    ensure!(
        report["bad_halves"] == 0 && report["lost_blocks"] == 0,
        "{report}"
    );
    for absent in 0..3 {
        let mut two = place.names();
        two.remove(absent);
        let mut service = place.service(&two, &[])?;
        let mut initiator = place.initiator("announced")?;
        initiator
            .good(&span("Read", 0, 8 * MIB, (MIB, 4)))
            .with_context(|| format!("without target {absent}"))?;
        service.signal(libc::SIGTERM)?;
        service.end(LIMIT, &[" serves "])?;
    }
    Ok(())
}

/// A target whose file system is full, one with flipped bits and one with old data, in turn, behind the service.
fn damaged_targets(world: &World) -> Result<()> {
    let place = Place::new(world, 8 * MIB, 4096)?;
    let saved = place.testbed.path().join("saved");
    let mut service = place.service(&place.names(), &[])?;
    let mut initiator = place.initiator("announced")?;
    let both = |initiator: &mut Initiator, seed: u64| -> Result<()> {
        for kind in ["Write", "Read"] {
            initiator.good(&span(kind, 0, 8 * MIB, (65536, seed)))?;
        }
        Ok(())
    };
    let stop = |service: &mut Process| -> Result<()> {
        service.signal(libc::SIGTERM)?;
        service.end(LIMIT, &[" serves "]).map(drop)
    };
    both(&mut initiator, 1)?;
    for index in 0..3 {
        let role = ["data_1", "data_2", "data_p"][index];
        let seed = 10 * index as u64;
        // Old data: the copy lacks the writes of the next service.
        stop(&mut service)?;
        fs::copy(&place.files[index], &saved)?;
        service = place.service(&place.names(), &[])?;
        both(&mut initiator, seed + 2)?;
        stop(&mut service)?;
        fs::copy(&saved, &place.files[index])?;
        service = place.service(&place.names(), &[])?;
        initiator.good(&span("Read", 0, 8 * MIB, (MIB, seed + 2)))?;
        service.hear(&format!("{role} is complete"))?;
        // Flipped bits in every record that the damage meets.
        stop(&mut service)?;
        let mut bytes = fs::read(&place.files[index])?;
        // Behind two superblocks, and an index in which the volume can grow.
        let records = 1_937_408;
        for at in (records + 100..bytes.len()).step_by(10_007) {
            bytes[at] ^= 0x10;
        }
        fs::write(&place.files[index], bytes)?;
        service = place.service(&place.names(), &[])?;
        initiator.good(&span("Read", 0, 8 * MIB, (MIB, seed + 2)))?;
        stop(&mut service)?;
        // Flipped bits of the parity are seen only by a scrub.
        place.scrub()?;
        let report = place.scrub()?;
        ensure!(
            report["bad_halves"] == 0 && report["lost_blocks"] == 0,
            "{report}"
        );
        service = place.service(&place.names(), &[])?;
    }
    // All targets are full: writes get the reason, and nothing that was there is lost.
    stop(&mut service)?;
    service = place.service(&place.names(), &["--capacity", "1M"])?;
    let done = initiator.batch(&span("Write", 0, 8 * MIB, (65536, 77)))?;
    let reason = done["reason"].as_str().unwrap_or_default();
    ensure!(done["failed"] != 0 && reason.contains("full"), "{done}");
    ensure!(done["wrong"] == 0, "{done}");
    stop(&mut service)?;
    let _service = place.service(&place.names(), &[])?;
    both(&mut initiator, 99)
}
