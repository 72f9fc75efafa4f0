//! An iSER target and its initiators, all of the distribution: tgt serves a file; libiscsi's conformance tests check it, and a
//! storage daemon of QEMU copies an image to and from it.

use super::device::{CLIENT, SERVER, Testbed};
use super::judges::{listening, moved};
use super::{Case, World};
use anyhow::{Context, Result, ensure};
use dev_setup as setup;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use testbed::port::free as free_port;
use testbed::process::{self, Running};

/// Bound of a hang, for one program.
const LIMIT: Duration = Duration::from_secs(120);
const NAME: &str = "iqn.2026-11.example:iser";
const INITIATOR: &str = "iqn.2026-11.example:initiator";
/// The target's address; tgt listens for iSER at this port only.
const PORTAL: &str = "127.66.1.1:3260";
const BYTES: usize = 32 << 20;
/// libiscsi sends less than 512 KiB at once.
const REQUEST: &str = "--request-size=262144";

/// Tests of libiscsi. Its own test `Async` of reads and writes crashes over iSER, in libiscsi.
const CONFORMANCE: &[&str] = &[
    "ALL.Read10.Simple",
    "ALL.Read10.BeyondEol",
    "ALL.Read16.Simple",
    "ALL.Write10.Simple",
    "ALL.Write16.Simple",
    "ALL.Verify10",
    "ALL.Verify16",
    "ALL.WriteSame10",
    "ALL.WriteSame16",
    "ALL.WriteVerify16.Simple",
    "ALL.CompareAndWrite",
    "ALL.OrWrite.Simple",
    "ALL.Inquiry.Standard",
];

type Act = fn(&Target<'_>) -> Result<()>;

pub(super) fn run_all(world: &World) -> Result<Vec<Case>> {
    let others: [(&str, Act); 2] = [
        ("iscsi-perf", perf),
        ("qemu-storage-daemon: every byte of an image", image),
    ];
    let mut cases = Vec::new();
    for (name, act) in others {
        if world.wants(name) {
            let result = Target::start(world).and_then(|target| act(&target));
            cases.push(Case::of(name, result));
        }
    }
    for test in CONFORMANCE.iter().filter(|test| world.wants(test)) {
        let result = Target::start(world).and_then(|target| conforms(&target, test));
        cases.push(Case::of(*test, result));
    }
    Ok(cases)
}

/// A running target with one disk, which is a file.
struct Target<'w> {
    world: &'w World,
    tools: setup::Judges,
    testbed: Testbed<'w>,
    _server: Running,
}

impl<'w> Target<'w> {
    fn start(world: &'w World) -> Result<Self> {
        let (tools, testbed) = (setup::machines()?, Testbed::new(world)?);
        let (socket, disk) = (testbed.path().join("tgt"), testbed.path().join("disk"));
        fs::write(&disk, vec![0; BYTES]).with_context(|| disk.display().to_string())?;
        let surrounded = |mut command: Command| {
            command.envs(world.env.for_libraries(&tools.libraries));
            command.env("TGT_IPC_SOCKET", &socket);
            command
        };
        let mut server = surrounded(testbed.command(SERVER, tools.root.join("usr/sbin/tgtd")));
        // Its portal of TCP is not used.
        let portal = format!("portal=127.0.0.1:{}", free_port()?);
        server.args(["-f", "-t", "1", "--iscsi", &portal]);
        let server = listening(&testbed, &mut server)?;
        let asked = |words: &[&str]| {
            let mut command = surrounded(Command::new(tools.root.join("usr/sbin/tgtadm")));
            command.args(["--lld", "iser", "--tid", "1"]).args(words);
            command
        };
        let is_up = || process::run(&mut asked(&["--mode", "target", "--op", "show"]), LIMIT);
        let new = ["--mode", "target", "--op", "new", "-T", NAME];
        let mut made = process::run(&mut asked(&new), LIMIT)?;
        let _ = process::wait_until(LIMIT, || {
            let again = !made.ok() && is_up().is_ok();
            if again && let Ok(next) = process::run(&mut asked(&new), LIMIT) {
                made = next;
            }
            made.ok()
        });
        let disk = disk.display().to_string();
        for line in [
            &[
                "--mode",
                "logicalunit",
                "--op",
                "new",
                "--lun",
                "1",
                "-b",
                &disk,
            ][..],
            &["--mode", "target", "--op", "bind", "-I", "ALL"],
            &["--mode", "target", "--op", "bind", "-Q", INITIATOR],
        ] {
            process::stdout(&mut asked(line), LIMIT)?;
        }
        Ok(Self {
            world,
            tools,
            testbed,
            _server: server,
        })
    }

    /// A program of the initiator's machine.
    fn initiator(&self, program: &str) -> Command {
        let mut command = self.testbed.command(CLIENT, self.tools.bin.join(program));
        command.envs(self.world.env.for_libraries(&self.tools.libraries));
        command
    }

    fn url() -> String {
        format!("iser://{PORTAL}/{NAME}/1")
    }
}

fn conforms(target: &Target<'_>, test: &str) -> Result<()> {
    let mut command = target.initiator("iscsi-test-cu");
    command.args(["-d", "-f", "-n", "-i", INITIATOR, "-I", INITIATOR]);
    command.args(["-t", test]).arg(Target::url());
    let done = process::run(&mut command, LIMIT)?;
    // Total, ran, passed, failed. The program succeeds if a name has no test.
    let mut lines = done.output.lines().map(str::split_whitespace);
    let counts = lines.find_map(|mut words| (words.next()? == "tests").then(|| words.collect()));
    let counts: Vec<&str> = counts.unwrap_or_default();
    let is_good = counts.get(1).is_some_and(|ran| *ran != "0") && counts.get(3) == Some(&"0");
    ensure!(done.ok() && is_good, "{}\n{}", done.verdict(), done.output);
    moved(&target.testbed, 1)
}

fn perf(target: &Target<'_>) -> Result<()> {
    let mut command = target.initiator("iscsi-perf");
    let depth = ["-m", "8", "-b", "64", "-t", "2"];
    command.args(["-i", INITIATOR]).args(depth);
    let done = process::run(command.arg(Target::url()), LIMIT)?;
    ensure!(
        done.ok() && done.output.contains("finished"),
        "{}\n{}",
        done.verdict(),
        done.output
    );
    moved(&target.testbed, 1 << 20)
}

/// Copies an image to the target and back: both copies, and the target's file, have its bytes.
fn image(target: &Target<'_>) -> Result<()> {
    let dir = target.testbed.path();
    let [image, back, socket] = ["image", "back", "nbd"].map(|name| dir.join(name));
    let bytes = noise(BYTES);
    fs::write(&image, &bytes).context("the image")?;
    let disk = format!(
        "driver=iscsi,transport=iser,portal={PORTAL},target={NAME},lun=1,initiator-name={INITIATOR},node-name=disk"
    );
    let mut daemon = target.initiator("qemu-storage-daemon");
    daemon.env("QEMU_MODULE_DIR", target.tools.library("qemu")?);
    daemon.args(["--blockdev", &disk]);
    daemon.args([
        "--nbd-server",
        &format!("addr.type=unix,addr.path={}", socket.display()),
    ]);
    daemon.args([
        "--export",
        "type=nbd,id=e,node-name=disk,name=e,writable=on",
    ]);
    let variables = setup::storage()?;
    let uri = format!("nbd+unix:///e?socket={}", socket.display());
    let tool = |program: &str, words: &[&str]| {
        let mut command = Command::new(program);
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        command.args(words);
        command
    };
    let is_up = |_: &Running| {
        process::run(&mut tool("nbdinfo", &["--size", &uri]), LIMIT).is_ok_and(|done| done.ok())
    };
    let serving = Running::up(&mut daemon, LIMIT, is_up)?;
    let text = |path: &Path| path.display().to_string();
    for (from, to) in [(text(&image), uri.clone()), (uri.clone(), text(&back))] {
        process::stdout(&mut tool("nbdcopy", &[REQUEST, &from, &to]), LIMIT)
            .with_context(|| serving.said())?;
    }
    for copy in [&back, &dir.join("disk")] {
        let same = fs::read(copy).is_ok_and(|copy| copy == bytes);
        ensure!(same, "{} has other bytes", copy.display());
    }
    moved(&target.testbed, 2 * u64::try_from(BYTES)?)
}

/// Bytes without a pattern.
pub(super) fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    std::iter::repeat_with(next).take(length).collect()
}
