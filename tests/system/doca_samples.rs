//! NVIDIA's samples of DOCA DPA, host and device side unmodified, from a directory that the user names.

use crate::doca::{archive, cc, has_compiler, libraries, link, no_compiler};
use crate::harness::{Case, Outcome};
use crate::world::{LIMIT, Testbed, World, succeed};
use anyhow::{Context as _, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use testbed::process::{self, Running, is_installed};

/// Variable with the directory of the samples.
const SAMPLES: &str = "XGVMI_DOCA_SAMPLES";
/// Programs of the samples' own build.
const TOOLS: [&str; 4] = ["meson", "ninja", "pkg-config", "unshare"];
/// Time limit of a build.
const BUILD_LIMIT: Duration = Duration::from_secs(1200);
/// The sample's own limit of ranks.
const RANKS_MAX: usize = 16;

/// A sample: the name of the case and of its folder, its arguments, and texts that its output has, each so often at least.
struct Sample {
    case: &'static str,
    folder: &'static str,
    arguments: fn() -> Vec<String>,
    says: &'static [(&'static str, usize)],
}

const RUNNING: [Sample; 5] = [
    Sample {
        case: "doca_sample_kernel_launch",
        folder: "kernel_launch",
        arguments: Vec::new,
        says: &[("Hello from kernel", 1)],
    },
    Sample {
        case: "doca_sample_ping_pong",
        folder: "ping_pong",
        arguments: Vec::new,
        says: &[
            ("Ping --> Pong Iteration #", 100),
            ("Pong --> Ping Iteration #", 100),
            ("Pong --> Ping Iteration #100", 1),
        ],
    },
    Sample {
        case: "doca_sample_basic_initiator_target",
        folder: "basic_initiator_target",
        arguments: Vec::new,
        says: &[
            ("Value of DPA received buffer is 10", 1),
            ("Set sync event to 10", 1),
        ],
    },
    Sample {
        case: "doca_sample_initiator_target",
        folder: "initiator_target",
        arguments: Vec::new,
        says: &[
            ("Received all data values, Notify Thread #2", 1),
            ("Set sync event value to 10", 1),
        ],
    },
    Sample {
        case: "doca_sample_nvqual",
        folder: "nvqual",
        arguments: burn_in,
        says: &[("\"used_harts\": [1,3],", 1), ("DPA run has completed.", 1)],
    },
];

/// One second on two units of 254: one stresses memory, and one computes.
fn burn_in() -> Vec<String> {
    let excluded: Vec<String> = [2]
        .into_iter()
        .chain(4..254)
        .map(|unit: u32| unit.to_string())
        .collect();
    let words = ["-pf_dev", "mlx5_0", "-test_dur", "1", "-user_fac", "0.01"];
    let words = words.into_iter().map(str::to_owned);
    words
        .chain(["-ex_eu".to_owned(), excluded.join(",")])
        .collect()
}

pub(crate) fn cases() -> Vec<Case> {
    let running = RUNNING
        .map(|sample| with_samples(sample.case, move |world, root| run(world, root, &sample)));
    let mut cases: Vec<Case> = running.into();
    cases.push(with_samples("doca_sample_verbs", verbs));
    cases.push(with_samples("doca_sample_all_to_all", all_to_all));
    cases.push(Case::that_may_skip("doca_sample_build", |world| {
        let outcome = if samples().is_none() {
            no_samples()
        } else if !has_compiler() {
            no_compiler()
        } else if let Some(program) = TOOLS.into_iter().find(|name| !is_installed(name)) {
            Outcome::Skipped(format!("no {program}"))
        } else if !can_mount() {
            Outcome::Skipped("no namespace of mounts".to_owned())
        } else {
            build(world).map(|()| Outcome::Passed)?
        };
        Ok(outcome)
    }));
    cases
}

/// A case that needs the compiler and the directory of the samples, which it gets.
fn with_samples(name: &'static str, run: impl Fn(&World, &Path) -> Result<()> + 'static) -> Case {
    Case::that_may_skip(name, move |world| match samples() {
        None => Ok(no_samples()),
        Some(_) if !has_compiler() => Ok(no_compiler()),
        Some(root) => run(world, &root).map(|()| Outcome::Passed),
    })
}

fn samples() -> Option<PathBuf> {
    let root = std::env::var_os(SAMPLES).filter(|root| !root.is_empty());
    root.map(PathBuf::from)
}

fn no_samples() -> Outcome {
    Outcome::Skipped(format!("{SAMPLES} names no directory of the samples"))
}

/// A command in a namespace of mounts, as root of its own or of the machine.
fn in_mounts(script: &str) -> Command {
    let mut command = Command::new("unshare");
    // SAFETY: geteuid(2) has no parameters, accesses no memory and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        command.args(["--user", "--map-root-user"]);
    }
    command.args(["--mount", "sh", "-e", "-c", script, "sh"]);
    command
}

fn can_mount() -> bool {
    process::run(&mut in_mounts("mount -t tmpfs none /opt"), LIMIT).is_ok_and(|done| done.ok())
}

/// The samples' own build, with Meson and their script, which names /opt/mellanox/doca, against the prefix of `cargo xtask
/// install --dpa`.
fn build(world: &World) -> Result<()> {
    const NAME: &str = "kernel_launch";
    const SCRIPT: &str = "mount -t tmpfs none /opt; mkdir /opt/mellanox; ln -s \"$1\" /opt/mellanox/doca; \
        cd \"$2\"; export PKG_CONFIG_PATH=/opt/mellanox/doca/lib/pkgconfig; meson setup build; ninja -C build";
    let root = samples().context("the samples")?;
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
    let prefix = dir.path().join("prefix");
    let mut install = Command::new(env!("CARGO"));
    install.args(["xtask", "install", "--dpa"]).arg(&prefix);
    process::stdout(&mut install, BUILD_LIMIT)?;
    // The public names of the build's files end in `.public`, which the installed samples do not.
    let copy = dir.path().join("samples");
    std::fs::create_dir_all(copy.join("samples"))?;
    for part in ["VERSION", "samples/doca_dpa"] {
        let mut cp = Command::new("cp");
        cp.arg("-r").arg(root.join(part)).arg(copy.join(part));
        process::stdout(&mut cp, LIMIT)?;
    }
    let samples = copy.join("samples/doca_dpa");
    let sample = samples.join(format!("dpa_{NAME}"));
    for file in [
        sample.join("meson.build"),
        samples.join("build_dpacc_samples.sh"),
    ] {
        let public = PathBuf::from(format!("{}.public", file.display()));
        if public.is_file() {
            std::fs::rename(&public, &file)?;
        }
    }
    process::stdout(in_mounts(SCRIPT).arg(&prefix).arg(&sample), BUILD_LIMIT)?;
    let testbed = Testbed::new(world)?;
    let program = sample.join(format!("build/doca_dpa_{NAME}"));
    let said = succeed(&mut testbed.command("node0.host", &program))?;
    ensure!(said.contains("Sample finished successfully"), "{said}");
    Ok(())
}

/// Compiles a sample of the library.
fn compile(world: &World, root: &Path, (case, name): (&str, &str)) -> Result<PathBuf> {
    let all = root.join("samples");
    let samples = all.join("doca_dpa");
    let folder = samples.join(format!("dpa_{name}"));
    let device = folder.join(format!("device/dpa_{name}_kernels_dev.c"));
    let archive = archive(world, &device, (case, "dpa_sample_app"))?;
    let inputs = [
        folder.join(format!("dpa_{name}_main.c")),
        folder.join(format!("host/dpa_{name}_sample.c")),
        samples.join("dpa_common.c"),
        archive,
    ];
    let mut cc = cc(&[&samples, &folder, &folder.join("common"), &all]);
    cc.arg("-DDOCA_ALLOW_EXPERIMENTAL_API");
    link(world, cc, &inputs, case)
}

/// Queue pairs that the program has laid out itself, on two nodes, by InfiniBand and by Ethernet: the target and the initiator of
/// the sample meet at its own port.
fn verbs(world: &World, root: &Path) -> Result<()> {
    let program = compile(world, root, ("doca_sample_verbs", "verbs_initiator_target"))?;
    for link in ["infiniband", "ethernet"] {
        let testbed = Testbed::new(world)?;
        let on = |node: &str, words: &[&str]| {
            let mut command = testbed.command_with(&["--link", link], node, &program);
            command.args(["-d", "mlx5_0"]).args(words);
            command
        };
        let mut target = on("node0.host", &[]);
        let target = Running::saying(&mut target, LIMIT, "listening for incoming connections")?;
        let said = succeed(&mut on("node1.host", &["-i", "127.0.0.1"]))?;
        let done = target.wait(LIMIT)?;
        // Three messages there and three writes back, and each side adds 1: from 9 to 15.
        let value = "Local buffer value after sample is 0xf";
        ensure!(said.contains(value), "{link}: {said}");
        ensure!(done.ok(), "{link}: {}", done.output);
        for said in [said, done.output] {
            let says = "Sample finished successfully";
            ensure!(said.contains(says), "{link}: {said}");
        }
    }
    Ok(())
}

/// Compiles a sample of the library and runs it on a host.
fn run(world: &World, root: &Path, sample: &Sample) -> Result<()> {
    let program = compile(world, root, (sample.case, sample.folder))?;
    let testbed = Testbed::new(world)?;
    let said = succeed(
        testbed
            .command("node0.host", &program)
            .args((sample.arguments)()),
    )?;
    ensure!(said.contains("Sample finished successfully"), "{said}");
    for (text, count) in sample.says {
        let found = said.matches(text).count();
        ensure!(found >= *count, "{found} times {text:?} in {said}");
    }
    Ok(())
}

/// NVIDIA's all-to-all under stock Open MPI, on two nodes: each rank receives what the others send to it.
fn all_to_all(world: &World, root: &Path) -> Result<()> {
    let program = compile_all_to_all(world, root)?;
    for ranks in [2, 4, RANKS_MAX] {
        let testbed = Testbed::new(world)?;
        let said = succeed(&mut job(world, &testbed, &program, ranks)?)?;
        let [sent, received] = ["send buffs", "recv buffs"].map(|title| matrix(&said, title));
        ensure!(sent.len() == ranks && received.len() == ranks, "{said}");
        let count = sent[0].len() / ranks;
        ensure!(count > 0, "{said}");
        for (to, row) in received.iter().enumerate() {
            let expect: Vec<i64> = sent
                .iter()
                .flat_map(|of| of[to * count..][..count].to_vec())
                .collect();
            ensure!(*row == expect, "rank {to} of {ranks}: {said}");
        }
    }
    // The sample itself refuses more ranks.
    let testbed = Testbed::new(world)?;
    let done = process::run(&mut job(world, &testbed, &program, RANKS_MAX + 2)?, LIMIT)?;
    let says = "Maximum number of processes is 16";
    ensure!(!done.ok() && done.output.contains(says), "{}", done.output);
    Ok(())
}

/// A job with the same number of ranks on the host of each of two nodes. Each rank sends 8 numbers to each.
fn job(world: &World, testbed: &Testbed<'_>, program: &Path, ranks: usize) -> Result<Command> {
    let mut command = world.mpi()?;
    let bytes = (ranks * 8 * 4).to_string();
    for node in 0..2 {
        if node > 0 {
            command.arg(":");
        }
        let placed = testbed.command(&format!("node{node}.host"), program);
        command.args(["-np", &(ranks / 2).to_string()]);
        command.arg(placed.get_program()).args(placed.get_args());
        command.args(["-m", &bytes]);
        for (name, value) in placed.get_envs() {
            // The launcher's libraries come first and are already set.
            if let Some(value) = value
                && name != "LD_LIBRARY_PATH"
            {
                command.env(name, value);
            }
        }
    }
    Ok(command)
}

fn compile_all_to_all(world: &World, root: &Path) -> Result<PathBuf> {
    let folder = root.join("applications/dpa_all_to_all");
    let device = folder.join("device/dpa_all_to_all_dev.c");
    let archive = archive(world, &device, ("doca_all_to_all", "dpa_all2all_app"))?;
    let launcher = world.mpi()?;
    let compiler = Path::new(launcher.get_program()).with_file_name("mpicc");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("doca_sample_all_to_all");
    let libraries = libraries(world)?;
    let mut mpicc = Command::new(&compiler);
    for (name, value) in launcher.get_envs() {
        if let Some(value) = value {
            mpicc.env(name, value);
        }
    }
    mpicc.args(cc(&[&folder.join("host")]).get_args().filter(|word| {
        // The sample compares numbers with and without sign.
        *word != "-Werror" && *word != "-Wextra" && *word != "-Wall"
    }));
    mpicc
        .arg("-DDOCA_ALLOW_EXPERIMENTAL_API")
        .arg(folder.join("host/dpa_all_to_all.c"))
        .arg(folder.join("host/dpa_all_to_all_core.c"))
        .arg(archive)
        .arg("-L")
        .arg(&libraries)
        .arg(format!("-Wl,-rpath,{}", libraries.display()))
        .args(["-ldoca_dpa", "-ldoca_rdma", "-ldoca_argp", "-ldoca_common"])
        .args(["-lm", "-lpthread", "-o"])
        .arg(&program);
    process::stdout(&mut mpicc, LIMIT).with_context(|| compiler.display().to_string())?;
    Ok(program)
}

/// The rows of numbers below a title, as the sample prints them: `Rank 0 |1   2|`.
fn matrix(said: &str, title: &str) -> Vec<Vec<i64>> {
    let lines = said.lines().skip_while(|line| !line.contains(title));
    let rows = lines
        .skip(1)
        .map_while(|line| line.strip_prefix("Rank ")?.split_once('|'));
    rows.map(|(_, row)| {
        let numbers = row.trim_end_matches('|').split_whitespace();
        numbers.filter_map(|number| number.parse().ok()).collect()
    })
    .collect()
}
