//! The emulated cluster of the suites: two nodes with the suite's link and profile.

use super::World;
use anyhow::{Result, ensure};
use std::ops::Deref;
use std::path::PathBuf;
use testbed::cluster::Cluster;

/// Function of the server.
pub(super) const SERVER: &str = "node0.host";
/// Function of the client.
pub(super) const CLIENT: &str = "node1.host";
/// The function of the server's adapter that its DPU uses.
pub(super) const DPU: &str = "node0.dpu";

/// A new device of the suites' link and profile, with two nodes. Dropping it removes the device.
#[derive(Debug)]
pub struct Testbed<'a> {
    world: &'a World,
    cluster: Cluster,
}

impl Deref for Testbed<'_> {
    type Target = Cluster;

    fn deref(&self) -> &Cluster {
        &self.cluster
    }
}

impl<'a> Testbed<'a> {
    /// With two nodes.
    ///
    /// # Errors
    /// See [`Cluster::new`].
    pub fn new(world: &'a World) -> Result<Self> {
        Self::of(world, 2)
    }

    /// With another number of nodes.
    ///
    /// # Errors
    /// See [`Cluster::new`].
    pub fn of(world: &'a World, nodes: u32) -> Result<Self> {
        let profile = world.profile.iter();
        let cluster = Cluster::new(world.bin.join("bf-emu"), nodes)?
            .with(profile.flat_map(|name| ["--profile", *name]))
            .with(["--link", world.link.name()])
            .envs(world.env.for_verbs());
        Ok(Self { world, cluster })
    }

    /// With more options of `bf-emu run`.
    pub(super) fn with(mut self, options: &[&str]) -> Self {
        self.cluster = self.cluster.with(options);
        self
    }

    /// A tool of ibverbs-utils or perftest.
    pub(super) fn verbs_tool(&self, name: &str) -> PathBuf {
        match &self.world.env.verbs_root {
            Some(root) => root.join("usr/bin").join(name),
            None => PathBuf::from(name),
        }
    }

    /// The live objects of the device, one line each.
    pub(super) fn objects(&self) -> Result<String> {
        self.ask("dump", &[])
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
        self.stats()?.counted("refusals", |name: &str| {
            KINDS.iter().any(|kind| name.starts_with(kind)) && wanted(name)
        })
    }
}
