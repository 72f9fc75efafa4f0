//! An emulated device for a service on a DPU and an export on its host.

use super::World;
use anyhow::{Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use testbed::process;

/// A new device of one node. Dropping it removes it.
#[derive(Debug)]
pub(super) struct Device {
    state: PathBuf,
    emulator: PathBuf,
}

impl Device {
    pub(super) fn new(world: &World<'_>) -> Result<Self> {
        const PREFIX: &str = "xgvmi-storage";
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        // All processes of the device map its file: it is in memory, so no disk writes it back.
        let parent = Path::new(process::STATE_PARENT);
        process::sweep(parent, PREFIX);
        let state = parent.join(format!("{PREFIX}-{}-{number}", std::process::id()));
        ensure!(!state.exists(), "{} is in the way", state.display());
        Ok(Self {
            state,
            emulator: world.bin.join("bf-emu"),
        })
    }

    /// Command that runs `program` in `function`.
    pub(super) fn command(&self, world: &World<'_>, function: &str, program: &Path) -> Command {
        let mut command = Command::new(&self.emulator);
        command.args(["run", "--nodes", "1", "--state"]);
        command
            .arg(&self.state)
            .args(["--as", function, "--"])
            .arg(program);
        for (name, value) in world.verbs {
            command.env(name, value);
        }
        command
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // The next run retries a failed removal.
        let _ = std::fs::remove_dir_all(&self.state);
    }
}
