//! Private namespaces for programs that need another root: the tree of another Debian suite. They contain only the
//! loopback interface, and their mounts end with the last process.

use crate::process::{self, Running};
use crate::workspace;
use anyhow::{Context, Result, ensure};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Time limit for about a dozen mounts.
const MOUNTING: Duration = Duration::from_secs(30);
/// The process that holds the namespaces ends after this time at the latest.
const KEEP_S: &str = "7200";

/// Script for the mounts: `$1` is the new root, `$2` the tree, the rest are directories that keep their paths. The tree
/// needs no shell: it gets this machine's. Python
/// enables the loopback interface if iproute2 is absent.
const MOUNTS: &str = r#"
set -e
mount --make-rprivate /
root=$1; tree=$2; shift 2
mount -t tmpfs none "$root"
for name in usr etc; do mkdir "$root/$name"; mount --bind "$tree/$name" "$root/$name"; done
for name in lib lib64 sbin; do ln -s "usr/$name" "$root/$name"; done
mkdir "$root/bin"; cp /bin/sh "$root/bin/sh"
for name in dev proc sys tmp; do mkdir "$root/$name"; mount --rbind "/$name" "$root/$name"; done
for dir; do mkdir -p "$root$dir"; mount --bind "$dir" "$root$dir"; done
ip link set lo up 2>/dev/null || python3 -c '
import fcntl, socket, struct
fcntl.ioctl(socket.socket(), 0x8914, struct.pack("16sH14x", b"lo", 0x41))'
echo ready
exec sleep "$KEEP_S"
"#;

/// Namespaces with a tree as a second root. They end when this value is dropped and all their programs have ended.
#[derive(Debug)]
pub struct Place {
    keeper: Running,
    root: PathBuf,
    is_root: bool,
}

impl Place {
    /// Creates the namespaces. `dir` is a directory for the mount point.
    ///
    /// # Errors
    /// The system does not allow it.
    pub fn new(tree: &Path, dir: &Path, cache: &Path) -> Result<Self> {
        // SAFETY: geteuid(2) has no parameters, accesses no memory and cannot fail.
        let is_root = unsafe { libc::geteuid() } == 0;
        Self::with(tree, dir, cache, is_root)
    }

    /// As [`Place::new`], in the user namespace that a user without privileges needs.
    ///
    /// # Errors
    /// The system does not allow it.
    pub fn as_user(tree: &Path, dir: &Path, cache: &Path) -> Result<Self> {
        Self::with(tree, dir, cache, false)
    }

    fn with(tree: &Path, dir: &Path, cache: &Path, is_root: bool) -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let root = dir.join(format!("root-{}-{number}", std::process::id()));
        fs::create_dir_all(&root).with_context(|| format!("cannot create {}", root.display()))?;
        let mut command = Command::new("unshare");
        if !is_root {
            command.args(["--user", "--map-root-user"]);
        }
        command.args(["--mount", "--net", "sh", "-c", MOUNTS, "sh"]);
        command.arg(&root).arg(tree);
        command
            .arg(workspace::root())
            .arg(workspace::target_dir())
            .arg(cache);
        command.env("KEEP_S", KEEP_S);
        let mut keeper = Running::spawn(&mut command)?;
        let ready = |keeper: &Running| keeper.said().lines().any(|line| line == "ready");
        process::wait_until(MOUNTING, || ready(&keeper) || keeper.group.has_ended());
        ensure!(
            ready(&keeper),
            "cannot make namespaces: {}",
            keeper.said().trim_end()
        );
        Ok(Self {
            keeper,
            root,
            is_root,
        })
    }

    /// A program of this machine inside the namespaces.
    pub fn outside(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command
            .arg("--target")
            .arg(self.keeper.group.child.id().to_string());
        if !self.is_root {
            command.args(["--user", "--preserve-credentials"]);
        }
        command.args(["--mount", "--net", "--"]).arg(program);
        command
    }

    /// A program of the tree with only the environment in `variables`.
    pub fn inside(&self, variables: &[(String, String)], program: &str) -> Command {
        let mut command = self.outside("chroot");
        command
            .arg(&self.root)
            .args(["/usr/bin/env", "-i", "PATH=/usr/bin:/bin", "HOME=/tmp"]);
        command.args(
            variables
                .iter()
                .map(|(name, value)| format!("{name}={value}")),
        );
        command.arg(program);
        command
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.keeper.group.kill();
        let _ = fs::remove_dir(&self.root);
    }
}
