//! The product without one of the orderings that it relies on. In the device's adversary mode a system test must fail.
//!
//! Each mutant is a change of one line in a copy of the sources, `target/mutants/tree`, which has a build of its own. The
//! place in the source names the ordering in a comment.

use super::adversary::tests_on_the_device;
use super::{Case, World};
use anyhow::{Context, Result, ensure};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use testbed::{process, workspace};

/// Seeds under which a mutant has to be noticed, and under which the product passes.
const SEEDS: u64 = 8;
/// Bound of a hang of one test. A mutant that hangs is noticed.
const LIMIT: Duration = Duration::from_secs(120);
/// Bound of a build.
const BUILD_LIMIT: Duration = Duration::from_secs(3600);

struct Mutant {
    /// The ordering that it lacks.
    name: &'static str,
    file: &'static str,
    /// Texts that occur once in the file, and what they become.
    changes: &'static [(&'static str, &'static str)],
    /// Arguments of `cargo build` for the programs of the test.
    packages: &'static str,
    /// The system test that notices it.
    test: &'static str,
}

const POOL: &str = "-p testbed-programs -p xgvmi-pool";
const OFFLOAD: &str = "-p xgvmi-offload -p testbed-programs -p uct-plugin";
const NAAICE: &str = "-p naaice -p xgvmi-naa";

const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "pool: no fence behind a UMR of a chain",
        file: "xgvmi-pool/src/mlx5/queue.rs",
        changes: &[(
            "fence = if op.is_umr() { self.fence } else { 0 };",
            "fence = 0;",
        )],
        packages: POOL,
        test: "pool_export_verbs",
    },
    Mutant {
        name: "pool: no fence behind a UMR of a single request",
        file: "xgvmi-pool/src/mlx5/queue.rs",
        changes: &[(
            "let (index, behind) = (low16(first), *fence);",
            "let (index, behind) = (low16(first), *fence & 0);",
        )],
        packages: "-p uct-plugin",
        // No request of the pool uses the key of an earlier one that is not complete, so no data changes: the flags of
        // the request differ from those of libmlx5.
        test: "pool_posts_what_stock_ucx_posts",
    },
    Mutant {
        name: "pool: a key is free before the completion of its invalidation",
        file: "xgvmi-pool/src/mlx5/queue.rs",
        changes: &[(
            "Ok(self.wait(Ticket::single(first), &[UmrOp::Invalidate { mkey }])?)",
            "let _ = (first, mkey);\n        Ok(())",
        )],
        packages: POOL,
        test: "pool_export_verbs",
    },
    Mutant {
        name: "offload: a job ends before its last messages have arrived",
        file: "services/offload/src/service/job.rs",
        changes: &[("self.worker.settle(SHUT_LIMIT);", "let _ = done;")],
        packages: "-p xgvmi-offload",
        test: "offload_last_messages_of_a_job_arrive",
    },
    Mutant {
        name: "storage: an answer before the completion of its copy",
        file: "shared/verbs/src/queue_pair.rs",
        changes: &[(WAITS, NEVER_WAITS)],
        packages: "-p xgvmi-blk -p testbed-programs",
        test: "storage_bytes_xgvmi",
    },
    Mutant {
        name: "accelerator: a call before the completion of its inputs",
        file: "shared/verbs/src/queue_pair.rs",
        changes: &[(WAITS, NEVER_WAITS)],
        packages: NAAICE,
        test: "naaice_dpu_pool",
    },
    Mutant {
        name: "offload: a finished call before the completion of its read",
        file: READING,
        changes: &[(BATCH, EARLY_ALL), FLIGHT, STARTED, REAPED],
        packages: OFFLOAD,
        test: "offload_kept_buffers",
    },
    Mutant {
        name: "offload: a sum before the completion of the reads of its contributions",
        file: READING,
        changes: &[(BATCH, EARLY_STAGED), FLIGHT, STARTED, REAPED],
        packages: OFFLOAD,
        // The service process notices it itself: memory that a read uses cannot be borrowed.
        test: "offload_known_sums",
    },
    Mutant {
        name: "naaice: the immediate value with the first write",
        file: "clients/naaice/src/endpoint.rs",
        changes: &[(
            "if let Some(last) = writes.last_mut() {",
            "if let Some(last) = writes.first_mut() {",
        )],
        packages: NAAICE,
        test: "naaice_verbs_infiniband",
    },
    Mutant {
        name: "naaice: no answer before the completion of the writes",
        file: "clients/naaice/src/machine.rs",
        changes: &[(
            "(State::DataSending, Completion::Started { immediate, bytes })\n                if self.answer.is_none() =>",
            "(State::DataSending, Completion::Started { immediate, bytes })\n                if self.writes_left == 0 =>",
        )],
        packages: NAAICE,
        test: "naaice_verbs_infiniband",
    },
    Mutant {
        name: "naaice: no call before the completion of the grant",
        file: "clients/naaice/src/server/worker.rs",
        changes: &[(
            "        let mut idle_since = Instant::now();\n        loop {",
            "        step = Step::Wait;\n        let mut idle_since = Instant::now();\n        loop {",
        )],
        packages: NAAICE,
        test: "naaice_kernel_processes_serve_again",
    },
];

/// A poll of a completion queue that waits, and one that takes what is there.
const WAITS: &str = "while self.poll()?.is_none() {";
const NEVER_WAITS: &str = "while self.poll()?.is_none() && limit == Duration::MAX {";

/// The start of a batch of reads, which is delivered at its start: always, or if it goes to memory of the service.
const READING: &str = "services/offload/src/service/mover/reading.rs";
const BATCH: &str = "let (id, batch) = (unread.id, unread.batch);";
const EARLY_ALL: &str = "let (id, batch, early) = (unread.id, unread.batch, true);";
const EARLY_STAGED: &str = "let (id, batch) = (unread.id, unread.batch);
        let early = receive_at(&self.entered, batch.call, batch.local);
        let early = matches!(early, Ok(Receive::Staged(_)));";
const FLIGHT: (&str, &str) = (
    "batch: id,\n                part: batch.part,",
    "batch: if early { u32::MAX } else { id },\n                part: batch.part,",
);
const STARTED: (&str, &str) = (
    "if done > 0 {\n            self.delivered(id, done);",
    "if early || done > 0 {\n            self.delivered(id, if early { count } else { done });",
);
const REAPED: (&str, &str) = (
    "if Flight::lane(tag) == lane {\n                count += more;",
    "if Flight::of(tag).batch == u32::MAX {\n                continue;
            }
            if Flight::lane(tag) == lane {\n                count += more;",
);

/// The copy of the sources and its build.
struct Copy {
    tree: PathBuf,
    build: PathBuf,
}

pub(super) fn run_all(world: &World) -> Result<Vec<Case>> {
    let copy = Copy::new()?;
    let mut cases = Vec::new();
    let tests: BTreeSet<_> = MUTANTS.iter().map(|one| (one.test, one.packages)).collect();
    for (test, packages) in tests {
        let name = format!("{test} of the product itself");
        if world.wants(&name) {
            cases.push(Case::of(name, copy.product(world, packages, test)));
        }
    }
    for mutant in MUTANTS.iter().filter(|mutant| world.wants(mutant.name)) {
        cases.push(Case::of(mutant.name, copy.notices(world, mutant)));
    }
    Ok(cases)
}

impl Mutant {
    /// Its source.
    fn of(&self, source: &str) -> Result<String> {
        let mut changed = source.to_owned();
        for (from, to) in self.changes {
            let found = source.matches(from).count();
            ensure!(
                found == 1,
                "{}: {} has '{from}' {found} times: change the mutant",
                self.name,
                self.file
            );
            changed = changed.replace(from, to);
        }
        Ok(changed)
    }
}

impl Copy {
    /// Copies what differs from an earlier copy.
    fn new() -> Result<Self> {
        let dir = workspace::target_dir().join("mutants");
        let copy = Self {
            tree: dir.join("tree"),
            build: dir.join("build"),
        };
        let mut list = Command::new("git");
        list.current_dir(workspace::root());
        list.args([
            "ls-files",
            "--cached",
            "--others",
            "--exclude-standard",
            "-z",
        ]);
        let files = process::stdout(&mut list, LIMIT)?;
        for file in files.split('\0').filter(|file| !file.is_empty()) {
            let (from, to) = (workspace::root().join(file), copy.tree.join(file));
            // A file that was removed and not committed, and a link to a directory, are no sources.
            if from.is_file() {
                refresh(&from, &to).with_context(|| format!("cannot copy {file}"))?;
            }
        }
        Ok(copy)
    }

    /// All seeds pass without a change.
    fn product(&self, world: &World, packages: &str, test: &str) -> Result<()> {
        self.compile(packages)?;
        for seed in 1..=SEEDS {
            let output = self.fails(world, test, seed)?;
            ensure!(
                output.is_none(),
                "seed {seed}: {}",
                output.unwrap_or_default()
            );
        }
        Ok(())
    }

    /// One seed fails with the change.
    fn notices(&self, world: &World, mutant: &Mutant) -> Result<()> {
        let path = self.tree.join(mutant.file);
        let source = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        fs::write(&path, mutant.of(&source)?)?;
        let noticed = self.compile(mutant.packages).and_then(|()| {
            for seed in 1..=SEEDS {
                if self.fails(world, mutant.test, seed)?.is_some() {
                    return Ok(true);
                }
            }
            Ok(false)
        });
        fs::write(&path, source)?;
        ensure!(noticed?, "{} passes under {SEEDS} seeds", mutant.test);
        Ok(())
    }

    fn compile(&self, packages: &str) -> Result<()> {
        let mut command = Command::new("cargo");
        command
            .current_dir(&self.tree)
            .env("CARGO_TARGET_DIR", &self.build)
            .args(["build", "--quiet", "-p", "bf-emu", "-p", "bf-emu-preload"])
            .args(packages.split_whitespace());
        let done = process::run(&mut command, BUILD_LIMIT)?;
        ensure!(done.ok(), "{}\n{}", done.verdict(), done.output);
        Ok(())
    }

    /// The output of a test that fails, or hangs.
    fn fails(&self, world: &World, test: &str, seed: u64) -> Result<Option<String>> {
        let mut command = tests_on_the_device(Command::new("cargo"), &world.env)?;
        command
            .env("XGVMI_TEST_BIN", self.build.join("debug"))
            .env("BFEMU_MODE", format!("adversary:{seed}"))
            .args(["--", test]);
        let done = process::run(&mut command, LIMIT)?;
        if done.ok() {
            // The name may be the beginning of several.
            let counts = done.output.split_once("test result: ok. ");
            let ran = counts.is_some_and(|(_, counts)| {
                !counts.starts_with("0 passed") && counts.contains(" passed; 0 failed; 0 skipped")
            });
            ensure!(ran, "{test} did not run:\n{}", done.output);
            return Ok(None);
        }
        Ok(Some(format!("{}\n{}", done.verdict(), done.output)))
    }
}

/// Copies a file if its contents differ, so that cargo builds again what has changed only.
fn refresh(from: &Path, to: &Path) -> Result<()> {
    let bytes = fs::read(from)?;
    if fs::read(to).is_ok_and(|old| old == bytes) {
        return Ok(());
    }
    if let Some(dir) = to.parent() {
        fs::create_dir_all(dir)?;
    }
    fs::write(to, bytes)?;
    fs::set_permissions(to, fs::metadata(from)?.permissions())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A change of the product must not leave a mutant that lacks nothing.
    #[test]
    fn each_mutant_is_a_change_of_the_present_source() {
        for mutant in MUTANTS {
            let path = workspace::root().join(mutant.file);
            let source = fs::read_to_string(&path).unwrap();
            let changed = mutant.of(&source).unwrap();
            assert_ne!(source, changed, "{}", mutant.name);
        }
    }
}
