//! The DPA: programs of the host run functions on it through stock libmlx5.

use crate::doca::libraries;
use crate::harness::{Case, Outcome};
use crate::world::{LIMIT, Testbed, World, succeed};
use anyhow::{Context as _, Result, ensure};
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use testbed::process;

/// The compiler of the DPA's programs.
const COMPILER: &str = "riscv64-unknown-elf-gcc";
/// The program of the host, an example of libflexio.
pub(crate) const PROBE: &str = "examples/dpa_probe";

/// Scenarios of the probe that run alone and end with `ok`.
const SCENARIOS: [(&str, &str); 16] = [
    ("dpa_calls", "calls"),
    ("dpa_memory", "memory"),
    ("dpa_launches", "launches"),
    ("dpa_launches_wait", "waits"),
    ("dpa_events", "events"),
    ("dpa_event_queue", "event_queue"),
    ("dpa_command_queue", "tasks"),
    ("dpa_window", "window"),
    ("dpa_messages", "messages"),
    ("dpa_threads_taken", "threads"),
    ("dpa_faults", "faults"),
    ("dpa_faults_of_others", "other"),
    ("dpa_key_destroyed", "key"),
    ("dpa_event_never", "never"),
    ("dpa_fork", "fork"),
    ("dpa_many_objects", "many"),
];

pub(crate) fn cases() -> Vec<Case> {
    let alone = SCENARIOS.map(|(name, scenario)| {
        with_compiler(name, move |world, image| {
            let testbed = Testbed::new(world)?;
            let said = succeed(probe(&testbed, world, image).arg(scenario))?;
            ensure!(said.trim().starts_with("ok"), "{said}");
            Ok(Outcome::Passed)
        })
    });
    let mut cases: Vec<Case> = alone.into();
    cases.extend([
        passing("dpa_queues", queues),
        passing("dpa_tools", tools),
        passing("dpa_runner_killed", runner_killed),
        passing("dpa_host_killed", host_killed),
        passing("dpa_full_disk", full_disk),
        passing("dpa_c_program", c_program),
        passing("dpa_limit_of_time", limit_of_time),
    ]);
    cases
}

/// A case that needs the compiler, and passes if it ends well.
fn passing(name: &'static str, run: fn(&World, &Path) -> Result<()>) -> Case {
    with_compiler(name, move |world, image| {
        run(world, image).map(|()| Outcome::Passed)
    })
}

/// A case that needs the compiler. It gets the program's image.
pub(crate) fn with_compiler(
    name: &'static str,
    run: impl Fn(&World, &Path) -> Result<Outcome> + 'static,
) -> Case {
    Case::that_may_skip(name, move |world| {
        let paths = std::env::var_os("PATH").unwrap_or_default();
        if !std::env::split_paths(&paths).any(|dir| dir.join(COMPILER).is_file()) {
            return Ok(Outcome::Skipped(format!(
                "no {COMPILER}; cargo xtask doctor names the packages"
            )));
        }
        run(world, &image()?)
    })
}

/// Compiles the probe's device side.
fn image() -> Result<PathBuf> {
    image_without(0)
}

/// The same without the call with this number that orders accesses.
pub(crate) fn image_without(number: u32) -> Result<PathBuf> {
    let source = testbed::workspace::root().join("doca/flexio/examples/dpa_probe/device.c");
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (library, script) = (dir.join("dpa_library.s"), dir.join("dpa.ld"));
    std::fs::write(&library, dpa_dev::assembly())?;
    std::fs::write(&script, dpa_dev::LINKER_SCRIPT)?;
    let image = dir.join(format!("dpa_probe_{number}.elf"));
    let mut compiler = Command::new(COMPILER);
    compiler
        .args([
            "-march=rv64imac",
            "-mabi=lp64",
            "-mcmodel=medany",
            "-O1",
            "-g",
        ])
        .args([
            "-ffreestanding",
            "-nostdlib",
            "-static",
            "-Wall",
            "-Wextra",
            "-Werror",
        ])
        .arg(format!("-DWITHOUT={number}"))
        .args(["-fno-optimize-sibling-calls", "-D__DPA__", "-T"])
        .arg(&script)
        .arg("-I")
        .arg(testbed::workspace::root().join("doca/dev/include"))
        .args([&source, &library])
        .args(["-lgcc", "-o"])
        .arg(&image);
    process::stdout(&mut compiler, LIMIT)?;
    Ok(image)
}

/// The probe in the DPU of a node.
fn probe(testbed: &Testbed<'_>, world: &World, image: &Path) -> Command {
    let mut command = testbed.command("node0.dpu", world.built(PROBE));
    command.arg(image);
    command
}

/// A kernel posts RDMA writes on a queue pair in DPA memory, and their completions activate a thread.
fn queues(world: &World, image: &Path) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let said = succeed(probe(&testbed, world, image).arg("completions"))?;
    ensure!(said.trim().starts_with("ok "), "{said}");
    let stats = testbed.stats()?;
    let writes = stats.executed("rdma_write")?;
    ensure!(writes == 50, "{writes} writes");
    Ok(())
}

/// Starts the probe and waits for its first line.
fn started(testbed: &Testbed<'_>, world: &World, image: &Path, scenario: &str) -> Result<Child> {
    let mut child = probe(testbed, world, image)
        .arg(scenario)
        .stdout(Stdio::piped())
        .spawn()?;
    let out = child.stdout.as_mut().context("its output")?;
    // One byte at a time: what follows stays in the pipe.
    let mut line = String::new();
    BufReader::with_capacity(1, out).read_line(&mut line)?;
    ensure!(line.trim() == "running", "{line}");
    Ok(child)
}

fn reported(testbed: &Testbed<'_>) -> Result<serde_json::Value> {
    let said = succeed(testbed.emulator("dpa").args(["stat", "--json"]))?;
    Ok(serde_json::from_str(&said)?)
}

/// `bf-emu dpa stat` shows the threads of a program that runs; without one there are none.
fn tools(world: &World, image: &Path) -> Result<()> {
    let testbed = Testbed::new(world)?;
    ensure!(reported(&testbed)?.as_array().is_some_and(Vec::is_empty));
    let mut child = started(&testbed, world, image, "stays")?;
    let report = reported(&testbed)?;
    let table = succeed(testbed.emulator("dpa").arg("ps"))?;
    child.kill()?;
    child.wait()?;
    let process = &report[0];
    ensure!(process["function"] == "node0.dpu", "{report}");
    ensure!(table.contains("node0.dpu"), "{table}");
    let threads = process["threads"].as_array().context("threads")?;
    let kinds: Vec<_> = threads.iter().map(|thread| &thread["kind"]).collect();
    ensure!(kinds == ["call", "handler"], "{report}");
    let instructions = |thread: &serde_json::Value| thread["instructions"].as_u64();
    ensure!(
        threads.iter().all(|thread| instructions(thread) > Some(0)),
        "{report}"
    );
    Ok(())
}

/// Number of the runner's process.
fn runner(testbed: &Testbed<'_>) -> Result<i32> {
    let said = succeed(testbed.emulator("ps").arg("--json"))?;
    let processes: serde_json::Value = serde_json::from_str(&said)?;
    let processes = processes.as_array().context("processes")?;
    let runner = processes.iter().find(|process| process["view"] == "dpa");
    let pid = runner.and_then(|process| process["pid"].as_i64());
    let pid = pid.with_context(|| format!("no runner in {said}"))?;
    Ok(i32::try_from(pid)?)
}

/// The runner is killed during a remote call: the call fails, the context is lost, and a new program works.
fn runner_killed(world: &World, image: &Path) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let child = started(&testbed, world, image, "loops")?;
    let pid = runner(&testbed)?;
    // SAFETY: numbers only; the process is the testbed's own.
    unsafe { libc::kill(pid, libc::SIGKILL) };
    let done = child.wait_with_output()?;
    let said = String::from_utf8_lossy(&done.stdout);
    ensure!(
        done.status.success() && said.contains("ended: the DPA is lost"),
        "{said}"
    );
    let said = succeed(probe(&testbed, world, image).arg("calls"))?;
    ensure!(said.starts_with("ok"), "{said}");
    Ok(())
}

/// The program of the host is killed while its kernel loops: its objects and its threads are gone, and the runner ends.
fn host_killed(world: &World, image: &Path) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let mut child = started(&testbed, world, image, "stays")?;
    child.kill()?;
    child.wait()?;
    // A signal ends a program that waits for a remote call, too.
    let mut child = started(&testbed, world, image, "loops")?;
    let runs = |report: &serde_json::Value| {
        let processes = report.as_array()?.iter();
        let mut threads = processes
            .filter_map(|process| process["threads"].as_array())
            .flatten();
        threads.find(|thread| thread["kind"] == "call" && thread["runs"] == true)?;
        Some(())
    };
    let mut asked = 0;
    while runs(&reported(&testbed)?).is_none() {
        asked += 1;
        ensure!(asked < 1000, "the call does not begin");
    }
    let pid = i32::try_from(child.id())?;
    // SAFETY: numbers only; the process is this test's own child.
    unsafe { libc::kill(pid, libc::SIGTERM) };
    child.wait()?;
    // The runner sees the end of a program a little later. The number of questions only bounds a hang.
    let is_gone =
        || Ok::<_, anyhow::Error>(reported(&testbed)?.as_array().is_some_and(Vec::is_empty));
    let mut asked = 0;
    while !is_gone()? {
        asked += 1;
        ensure!(asked < 1000, "objects of a killed program stay");
    }
    let said = succeed(probe(&testbed, world, image).arg("threads"))?;
    ensure!(said.starts_with("ok"), "{said}");
    Ok(())
}

/// A function that runs for longer than the limit, here of a second, is killed.
fn limit_of_time(world: &World, image: &Path) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let mut command = testbed.command_with(&["--dpa", "limit=1"], "node0.dpu", world.built(PROBE));
    let said = succeed(command.arg(image).arg("limit"))?;
    ensure!(said.trim().starts_with("ok"), "{said}");
    Ok(())
}

/// The disk of the runner's log is full: a fault is reported to its program all the same, and a new program works.
fn full_disk(world: &World, image: &Path) -> Result<()> {
    let testbed = Testbed::new(world)?;
    succeed(&mut testbed.command("node0.dpu", "true"))?;
    std::os::unix::fs::symlink("/dev/full", testbed.state().join("dpa.log"))?;
    let place = tempfile::tempdir()?;
    let options = ["--dpa", "core"];
    let mut command = testbed.command_with(&options, "node0.dpu", world.built(PROBE));
    command.arg(image).arg("fault").current_dir(place.path());
    let said = succeed(&mut command)?;
    ensure!(said.contains("store to 0x10"), "{said}");
    let said = succeed(probe(&testbed, world, image).arg("calls"))?;
    ensure!(said.starts_with("ok"), "{said}");
    Ok(())
}

/// A C program, whose device side our compiler driver makes: the archive registers the functions with libflexio.
fn c_program(world: &World, _image: &Path) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs");
    let (archive, program) = (dir.join("flexio_test_app.a"), dir.join("flexio_host"));
    let mut driver = Command::new(world.built("dpacc"));
    driver
        .arg(programs.join("flexio_device.c"))
        .arg("-o")
        .arg(&archive)
        .args([
            "-mcpu=nv-dpa-bf3",
            "-hostcc=gcc",
            "--app-name=flexio_test_app",
        ])
        .arg("--devicecc-options=-g")
        .arg("-I")
        .arg(&programs);
    process::stdout(&mut driver, LIMIT)?;
    let libraries = libraries(world)?;
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-g", "-Wall", "-Wextra", "-Werror"])
        .arg(programs.join("flexio_host.c"))
        .arg(&archive)
        .arg("-I")
        .arg(testbed::workspace::root().join("doca/flexio/include"))
        .arg("-L")
        .arg(&libraries)
        .arg(format!("-Wl,-rpath,{}", libraries.display()))
        .args(["-lflexio", "-lmlx5", "-libverbs", "-o"])
        .arg(&program);
    process::stdout(&mut cc, LIMIT)?;
    let place = tempfile::tempdir()?;
    let mut command = testbed.command("node0.dpu", &program);
    let said = succeed(command.current_dir(place.path()))?;
    let files = std::fs::read_dir(place.path())?;
    let files = files.collect::<std::io::Result<Vec<_>>>()?;
    let [core] = &files[..] else {
        anyhow::bail!("{files:?}");
    };
    let core = std::fs::read(core.path())?;
    // An ELF file of the kind core.
    ensure!(
        core.get(..18)
            .is_some_and(|head| head.starts_with(b"\x7fELF") && head[16] == 4)
    );
    ensure!(
        said.starts_with("mixed 1 2\n") && said.trim_end().ends_with("ok"),
        "{said}"
    );
    ensure!(
        said.contains("in wrong+0x0") && said.contains("flexio_device.c:22"),
        "{said}"
    );
    Ok(())
}
