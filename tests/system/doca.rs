//! The C libraries of DOCA: programs that use their headers run kernels on the emulated DPA.

use crate::harness::{Case, Outcome};
use crate::world::{LIMIT, Testbed, World, succeed};
use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use testbed::process::{self, Running};

/// The compiler of the DPA's programs.
const COMPILER: &str = "riscv64-unknown-elf-gcc";
/// Names of the one library, for the linker.
const LIBRARIES: [&str; 6] = [
    "doca_common",
    "doca_argp",
    "doca_rdma",
    "doca_verbs",
    "doca_dpa",
    "flexio",
];

/// Scenarios of the program `doca_host.c`, each with the text that a line of the library must have.
const SCENARIOS: [(&str, &str, &str); 11] = [
    ("doca_chain", "chain", ""),
    ("doca_diamond", "diamond", ""),
    (
        "doca_launches",
        "launches",
        "no kernel launched before it raises above 7",
    ),
    (
        "doca_memory",
        "memory",
        "are beyond the allocation, which has 99 from there",
    ),
    (
        "doca_calls",
        "calls",
        "0 entries of a hash table: allowed are 1 to",
    ),
    (
        "doca_buffers",
        "buffers",
        "1 struct doca_buf_arr still in use",
    ),
    ("doca_rdma", "rdma", "no description of a memory map"),
    (
        "doca_connections",
        "connections",
        "the receive queue has its 4 operations",
    ),
    (
        "doca_threads",
        "threads",
        "the kernel of a thread has one uint64_t",
    ),
    ("doca_faults", "faults", "doca_device.c:"),
    (
        "doca_two_threads",
        "callers",
        "is inside doca_dpa_rpc on the same object",
    ),
];

pub(crate) fn cases() -> Vec<Case> {
    let own = SCENARIOS.map(|(name, scenario, line)| {
        with_compiler(name, move |world| run_scenario(world, scenario, line))
    });
    let mut cases: Vec<Case> = own.into();
    cases.extend([
        with_compiler("doca_demo", demo),
        with_compiler("doca_programs_at_once", programs_at_once),
        with_compiler("doca_names_of_2_0", names_of_2_0),
    ]);
    cases
}

/// A case that needs the compiler.
pub(crate) fn with_compiler(
    name: &'static str,
    run: impl Fn(&World) -> Result<()> + 'static,
) -> Case {
    Case::that_may_skip(name, move |world| {
        if !has_compiler() {
            return Ok(no_compiler());
        }
        run(world).map(|()| Outcome::Passed)
    })
}

/// The demo's kernels post on aliases of the hosts' keys: all bytes arrive, pooled keys cost no command, and launches of equal
/// width create no device object. The program itself compares the bytes and counts the objects.
fn demo(world: &World) -> Result<()> {
    const SIZES: [u64; 2] = [1 << 12, 1 << 16];
    const CALLS: u64 = 3;
    let output = Path::new(env!("CARGO_TARGET_TMPDIR")).join("demo-dpa");
    let _ = std::fs::remove_dir_all(&output);
    let mut command = Command::new(world.built("xgvmi-testbed"));
    command.arg("dpa-demo").arg("--bin").arg(world.built(""));
    command.arg("--output").arg(&output);
    command.args(["--profile", "none", "--sizes", "4K,64K"]);
    command.args(["--iterations", &CALLS.to_string()]);
    world.with_verbs(&mut command);
    succeed(&mut command)?;
    let text = std::fs::read_to_string(output.join("report.json"))?;
    let report: Value = serde_json::from_str(&text)?;
    // Calls of each scheme: warm-up of the first size and of the second one, and timed ones; 4 ranks receive 4 blocks each.
    let bytes = 2 * 16 * (SIZES[0] * (34 + CALLS) + SIZES[1] * (3 + CALLS));
    ensure!(report["verified_bytes"] == bytes, "{report:#}");
    ensure!(report["mismatches"] == 0, "{report:#}");
    let kinds = report["launch"].as_array().context("launches")?;
    let objects: Vec<f64> = kinds
        .iter()
        .filter_map(|of| of["objects"].as_f64())
        .collect();
    ensure!(objects == [16.0, 0.0, 0.0], "{report:#}");
    let rows = report["rows"].as_array().context("rows")?;
    ensure!(rows.len() == 4, "{report:#}");
    let (mut per_block, mut commands) = (Vec::new(), Vec::new());
    for row in rows {
        per_block.push(row["dpa_instructions_per_block"].as_f64());
        commands.push((row["scheme"].as_str(), row["key_commands"].as_f64()));
    }
    // Two buffers of each rank: create, allow, alias, and two destructions.
    let of = |scheme, count| (Some(scheme), Some(count));
    let expect = [of("ksm", 40.0), of("xgvmi", 0.0)].repeat(2);
    ensure!(commands == expect, "{report:#}");
    // A read takes the same instructions for each kind of key and each size.
    ensure!(
        per_block
            .iter()
            .all(|of| *of == per_block[0] && of.is_some_and(|of| of > 0.0)),
        "{report:#}"
    );
    Ok(())
}

pub(crate) fn has_compiler() -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths).any(|dir| dir.join(COMPILER).is_file())
}

pub(crate) fn no_compiler() -> Outcome {
    Outcome::Skipped(format!(
        "no {COMPILER}; cargo xtask doctor names the packages"
    ))
}

/// A directory with the library under all its names.
pub(crate) fn libraries(world: &World) -> Result<PathBuf> {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("doca-libs");
    std::fs::create_dir_all(&dir)?;
    let library = world.built("libdoca_common.so");
    let names = LIBRARIES.iter().map(|name| format!("lib{name}.so"));
    for name in names.chain(["libdoca_common.so.2".to_owned()]) {
        let link = dir.join(name);
        if std::fs::read_link(&link).is_ok_and(|to| to == library) {
            continue;
        }
        let _ = std::fs::remove_file(&link);
        std::os::unix::fs::symlink(&library, &link)
            .with_context(|| format!("a link {}", link.display()))?;
    }
    Ok(dir)
}

/// The C compiler with headers and warnings.
pub(crate) fn cc(more: &[&Path]) -> Command {
    let root = testbed::workspace::root();
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-g", "-Wall", "-Wextra", "-Werror"]);
    for dir in ["doca/libs/include", "doca/flexio/include"] {
        cc.arg("-I").arg(root.join(dir));
    }
    for dir in more {
        cc.arg("-I").arg(dir);
    }
    cc
}

/// Compiles device code to an archive.
pub(crate) fn archive(world: &World, source: &Path, (name, app): (&str, &str)) -> Result<PathBuf> {
    let archive = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.a"));
    let mut driver = Command::new(world.built("dpacc"));
    driver
        .arg(source)
        .arg("-o")
        .arg(&archive)
        .args(["-mcpu=nv-dpa-bf3", "-hostcc=gcc"])
        .arg(format!("--app-name={app}"))
        .arg("--devicecc-options=-g -O2 -Wall -Wextra -Werror")
        .arg("-device-libs=-L. -ldoca_dpa_dev -ldoca_dpa_dev_comm");
    process::stdout(&mut driver, LIMIT)?;
    Ok(archive)
}

/// Links a program of object or source files.
pub(crate) fn link(
    world: &World,
    mut cc: Command,
    inputs: &[PathBuf],
    name: &str,
) -> Result<PathBuf> {
    let dir = libraries(world)?;
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    cc.args(inputs)
        .arg("-L")
        .arg(&dir)
        .arg(format!("-Wl,-rpath,{}", dir.display()));
    cc.args(LIBRARIES.map(|name| format!("-l{name}")));
    cc.args(["-libverbs", "-lpthread", "-lm", "-o"])
        .arg(&program);
    process::stdout(&mut cc, LIMIT)?;
    Ok(program)
}

/// The test program, compiled once for all scenarios.
fn compile(world: &World) -> Result<&'static Path> {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    if let Some(program) = PROGRAM.get() {
        return Ok(program);
    }
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs");
    let device = programs.join("doca_device.c");
    let archive = archive(world, &device, ("doca_test", "doca_test_app"))?;
    let inputs = [programs.join("doca_host.c"), archive];
    let program = link(world, cc(&[]), &inputs, "doca_host")?;
    Ok(PROGRAM.get_or_init(|| program))
}

/// Programs that begin and end at the same time: each may have the first or the last session of the DPA.
fn programs_at_once(world: &World) -> Result<()> {
    const AT_ONCE: usize = 8;
    let program = compile(world)?;
    let testbed = Testbed::new(world)?;
    testbed.create()?;
    for _ in 0..2 {
        let start = |_| Running::spawn(testbed.command("node0.host", program).arg("memory"));
        let running: Result<Vec<_>> = (0..AT_ONCE).map(start).collect();
        for one in running? {
            let done = one.wait(LIMIT)?;
            ensure!(done.ok(), "{}\n{}", done.verdict(), done.output);
        }
    }
    Ok(())
}

fn run_scenario(world: &World, scenario: &str, line: &str) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let program = compile(world)?;
    let said = succeed(testbed.command("node0.host", program).arg(scenario))?;
    ensure!(said.lines().any(|line| line == "ok"), "{said}");
    ensure!(said.contains(line), "no line with {line:?} in {said}");
    let refused = said.lines().find_map(|line| line.strip_prefix("refused "));
    let refused: usize = refused.context("no count of refusals")?.parse()?;
    let lines = said.matches("[DOCA][ERR][DOCA] doca_").count();
    ensure!(
        lines == refused,
        "{lines} lines of {refused} refusals: {said}"
    );
    Ok(())
}

/// A program with the names of DOCA 2.0: a chain, copies, a transposition, RDMA.
fn names_of_2_0(world: &World) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs");
    let device = programs.join("doca_device_2_0.c");
    let archive = archive(world, &device, ("doca_test_2_0", "doca_test_2_0_app"))?;
    let inputs = [programs.join("doca_host_2_0.c"), archive];
    let program = link(world, cc(&[]), &inputs, "doca_host_2_0")?;
    let said = succeed(&mut testbed.command("node0.host", &program))?;
    ensure!(said.lines().any(|line| line == "ok"), "{said}");
    ensure!(said.contains("transferred 4096 bytes"), "{said}");
    Ok(())
}
