//! An emulated cluster of two nodes, and pairs of programs in it: a server and its client.

use super::World;
use crate::process::{self, Done, Running};
use anyhow::{Result, bail, ensure};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
pub(crate) use testbed::port::free as free_port;
use testbed::port::listens;

/// Function of the server.
pub(super) const SERVER: &str = "node0.host";
/// Function of the client.
pub(super) const CLIENT: &str = "node1.host";
/// Time limit for the creation of an emulator state, which consists of a few files.
const QUESTION: Duration = Duration::from_secs(20);

/// A new device. Dropping this value removes it.
pub(crate) struct Testbed<'a> {
    world: &'a World,
    /// State directory of the device.
    pub(crate) state: PathBuf,
}

impl<'a> Testbed<'a> {
    pub(crate) fn new(world: &'a World) -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        // All processes of the device map its file: it is in memory, so no disk writes it back.
        process::sweep(Path::new(process::STATE_PARENT), "xgvmi-suite");
        let name = format!(
            "{}/xgvmi-suite-{}-{number}",
            process::STATE_PARENT,
            std::process::id()
        );
        let state = PathBuf::from(name);
        ensure!(!state.exists(), "{} is in the way", state.display());
        Ok(Self { world, state })
    }

    /// Command that runs `program` in `function`.
    pub(crate) fn command(&self, function: &str, program: impl AsRef<OsStr>) -> Command {
        self.command_with(&["--nodes", "2"], function, program)
    }

    /// As [`Testbed::command`], with options of `bf-emu run`, such as the number of nodes.
    pub(super) fn command_with(
        &self,
        options: &[&str],
        function: &str,
        program: impl AsRef<OsStr>,
    ) -> Command {
        let mut command = self.emulator("run");
        command
            .args(options)
            .args(
                self.world
                    .profile
                    .iter()
                    .flat_map(|name| ["--profile", *name]),
            )
            .args(["--link", self.world.link.name()])
            .args(["--as", function, "--"])
            .arg(program)
            .envs(self.world.env.for_verbs());
        command
    }

    /// A tool of ibverbs-utils or perftest.
    pub(super) fn verbs_tool(&self, name: &str) -> PathBuf {
        match &self.world.env.verbs_root {
            Some(root) => root.join("usr/bin").join(name),
            None => PathBuf::from(name),
        }
    }

    /// Sum of the device's counters of a group that `wanted` selects, over all functions.
    pub(super) fn counted(&self, group: &str, wanted: impl Fn(&str) -> bool) -> Result<u64> {
        let text = process::stdout(self.emulator("stats").arg("--json"), QUESTION)?;
        let stats: serde_json::Value = serde_json::from_str(&text)?;
        let functions = stats["functions"].as_array().into_iter().flatten();
        let counters = functions.filter_map(|function| function[group].as_object());
        let counters: Vec<_> = counters.flatten().collect();
        ensure!(!counters.is_empty(), "bf-emu stats has no {group}: {text}");
        Ok(counters
            .into_iter()
            .filter(|(name, _)| wanted(name))
            .filter_map(|(_, value)| value.as_u64())
            .sum())
    }

    /// The live objects of the device, one line each.
    pub(super) fn objects(&self) -> Result<String> {
        process::stdout(&mut self.emulator("dump"), QUESTION)
    }

    /// Checks that no request of a program was refused. Unknown commands at the start of programs are allowed.
    pub(super) fn ensure_nothing_refused(&self) -> Result<()> {
        let refused = self.refused(|_| true)?;
        ensure!(refused == 0, "{refused} requests were refused");
        Ok(())
    }

    /// The device refused nothing but the requests by which each of `exporters` processes proves a form of binds: one
    /// beyond the end of a local key and one through an invalid one, for one form or for both.
    pub(super) fn ensure_only_proofs_refused(&self, exporters: u64) -> Result<()> {
        const READS_OF_A_PROOF: u64 = 2;
        const PROOF: &str = "local_protection";
        let other = self.refused(|name| name != PROOF)?;
        ensure!(other == 0, "{other} requests were refused");
        let proofs = self.refused(|name| name == PROOF)?;
        let (least, most) = (
            READS_OF_A_PROOF * exporters,
            2 * READS_OF_A_PROOF * exporters,
        );
        ensure!(
            (least..=most).contains(&proofs),
            "{proofs} accesses were refused; the proofs of {exporters} processes make {least} to {most}"
        );
        Ok(())
    }

    /// Work requests that the device refused for a reason that `wanted` accepts.
    fn refused(&self, wanted: impl Fn(&str) -> bool) -> Result<u64> {
        const KINDS: [&str; 6] = [
            "local_",
            "remote_",
            "retry_",
            "window_",
            "unknown_work",
            "cq_overrun",
        ];
        self.counted("refusals", |name: &str| {
            KINDS.iter().any(|kind| name.starts_with(kind)) && wanted(name)
        })
    }

    fn emulator(&self, subcommand: &str) -> Command {
        let mut command = Command::new(self.world.bin.join("bf-emu"));
        command.arg(subcommand).arg("--state").arg(&self.state);
        command
    }
}

impl Drop for Testbed<'_> {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.state);
    }
}

/// Results of a server and its client.
pub(super) struct Ended {
    pub(super) server: Done,
    pub(super) client: Done,
}

impl Ended {
    /// An error with both outputs unless both succeeded.
    pub(super) fn result(&self, server: &Command, client: &Command) -> Result<()> {
        let (server, client) = (process::shown(server), process::shown(client));
        ensure!(
            self.client.ok() && self.server.ok(),
            "{server}\n{client}\n-- server: {}\n{}\n-- client: {}\n{}",
            self.server.verdict(),
            self.server.output.trim_end(),
            self.client.verdict(),
            self.client.output.trim_end()
        );
        Ok(())
    }
}

/// Runs a server, and a client after the server listens on `port`; both must succeed. Returns both outputs.
pub(super) fn run(
    server: &mut Command,
    client: &mut Command,
    port: u16,
    limit: Duration,
) -> Result<(String, String)> {
    let ended = both(server, client, port, limit)?;
    ended.result(server, client)?;
    Ok((ended.server.output, ended.client.output))
}

/// Runs a server, and a client after the server listens on `port`, to their ends.
///
/// # Errors
/// The server did not start.
pub(super) fn both(
    server: &mut Command,
    client: &mut Command,
    port: u16,
    limit: Duration,
) -> Result<Ended> {
    let running = listening(server, port, limit)?;
    let client = process::run(client, limit)?;
    // The server of a failed client would wait without end.
    let patience = match client.ok() {
        true => limit,
        false => Duration::from_secs(1),
    };
    let server = running.wait(patience)?;
    Ok(Ended { server, client })
}

/// Starts a server and waits until it listens on `port`.
pub(super) fn listening(server: &mut Command, port: u16, limit: Duration) -> Result<Running> {
    started(server, limit, || listens(port))
}

/// Starts a server and waits until it is up.
pub(super) fn started(
    server: &mut Command,
    limit: Duration,
    is_up: impl Fn() -> bool,
) -> Result<Running> {
    let mut running = Running::spawn(server)?;
    let up = process::wait_until(limit, || is_up() || running.group.has_ended());
    if !up || running.group.has_ended() {
        let done = running.wait(Duration::ZERO)?;
        bail!(
            "the server did not come up: {}\n{}\n{}",
            done.verdict(),
            process::shown(server),
            done.output.trim_end()
        );
    }
    Ok(running)
}
