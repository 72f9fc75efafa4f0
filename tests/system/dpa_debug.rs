//! Debuggers of the DPA's programs: gdb on threads and on core files.

use crate::dpa::{PROBE, image_without, with_compiler};
use crate::harness::{Case, Outcome};
use crate::world::{LIMIT, Testbed, World, succeed};
use anyhow::{Context as _, Result, ensure};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use testbed::process;

/// The debugger.
const GDB: &str = "gdb-multiarch";

pub(crate) fn cases() -> Vec<Case> {
    vec![
        with_gdb("dpa_gdb", gdb),
        with_gdb("dpa_gdb_fault", gdb_fault),
        with_gdb("dpa_core_file", core_file),
        with_compiler("dpa_order", |world, image| {
            order(world, image).map(|()| Outcome::Passed)
        }),
        with_compiler("dpa_bad_packets", |world, image| {
            bad_packets(world, image).map(|()| Outcome::Passed)
        }),
    ]
}

/// A case that needs the compiler and the debugger.
fn with_gdb(name: &'static str, run: impl Fn(&World, &Path) -> Result<()> + 'static) -> Case {
    with_compiler(name, move |world, image| {
        let paths = std::env::var_os("PATH").unwrap_or_default();
        if !std::env::split_paths(&paths).any(|dir| dir.join(GDB).is_file()) {
            return Ok(Outcome::Skipped(format!(
                "no {GDB}; cargo xtask doctor names the packages"
            )));
        }
        run(world, image).map(|()| Outcome::Passed)
    })
}

/// The probe, with options of the DPA.
fn probe(testbed: &Testbed<'_>, world: &World, image: &Path, scenario: &str, dpa: &str) -> Command {
    let options = ["--dpa", dpa];
    let mut command = testbed.command_with(&options, "node0.dpu", world.built(PROBE));
    command.arg(image).arg(scenario);
    command
}

/// Starts the probe, whose threads wait for a debugger.
fn held(testbed: &Testbed<'_>, world: &World, image: &Path, scenario: &str) -> Result<Child> {
    let mut command = probe(testbed, world, image, scenario, "hold");
    Ok(command.stdout(Stdio::piped()).spawn()?)
}

/// What gdb says to commands.
fn debug(testbed: &Testbed<'_>, commands: &[&str]) -> Result<String> {
    let mut gdb = testbed.emulator("dpa");
    gdb.args(["gdb", "--", "-batch", "-nx"]);
    for command in commands {
        gdb.args(["-ex", command]);
    }
    process::stdout(&mut gdb, LIMIT)
}

/// All texts are in what gdb has said, in this order.
fn contains_in_order(said: &str, texts: &[&str]) -> Result<()> {
    let mut rest = said;
    for text in texts {
        let (_, after) = rest
            .split_once(text)
            .with_context(|| format!("no {text:?} after the texts before it in:\n{said}"))?;
        rest = after;
    }
    Ok(())
}

/// Lines of the probe's device side by their text.
fn line_of(text: &str) -> Result<usize> {
    let file = testbed::workspace::root().join("doca/flexio/examples/dpa_probe/device.c");
    let source = std::fs::read_to_string(file)?;
    let line = source.lines().position(|line| line.contains(text));
    Ok(line.with_context(|| text.to_owned())? + 1)
}

/// Breakpoints by line and by function, variables, steps, registers, memory, and the end of the program.
fn gdb(world: &World, image: &Path) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let program = held(&testbed, world, image, "calls")?;
    let line = line_of("return a / b;")?;
    let at_line = format!("break device.c:{line}");
    let said = debug(
        &testbed,
        &[
            "break sum",
            "continue",
            "print count",
            "print words[0] + words[1]",
            "backtrace",
            "info threads",
            "stepi",
            "print $pc != 0",
            "delete",
            &at_line,
            "continue",
            "print a",
            "set var counter = 100",
            "print counter",
            "delete",
            "continue",
        ],
    )?;
    let stopped = format!("device.c:{line}");
    contains_in_order(
        &said,
        &[
            "Breakpoint 1, sum",
            "$1 = 100000",
            "$2 = 3",
            "#0  sum",
            "#1  ",
            "unpack_2",
            "* 1",
            "$3 = 1",
            "Breakpoint 2, divide",
            &stopped,
            "$4 = 85",
            "$5 = 100",
            "exited normally",
        ],
    )?;
    let done = program.wait_with_output()?;
    let said = String::from_utf8_lossy(&done.stdout);
    ensure!(done.status.success() && said.starts_with("ok"), "{said}");
    Ok(())
}

/// A fault under the debugger: gdb shows its place, and the program gets its error when the thread goes on.
fn gdb_fault(world: &World, image: &Path) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let program = held(&testbed, world, image, "fault")?;
    let said = debug(&testbed, &["continue", "backtrace", "continue"])?;
    let line = format!(
        "device.c:{}",
        line_of("*(volatile uint64_t *)address = 1;")?
    );
    contains_in_order(&said, &["SIGSEGV", "store (address=", &line, "#1  "])?;
    let done = program.wait_with_output()?;
    let said = String::from_utf8_lossy(&done.stdout);
    ensure!(
        done.status.success() && said.contains("store to 0x10"),
        "{said}"
    );
    Ok(())
}

/// The core files of a directory.
fn core_of(dir: &Path) -> Result<PathBuf> {
    let files = std::fs::read_dir(dir)?.filter_map(|entry| Some(entry.ok()?.path()));
    let mut cores = files.filter(|path| path.extension().is_some_and(|end| end == "core"));
    cores.next().context("no core file")
}

/// The device writes a core file at a fault. gdb shows the thread, the line, variables and memory.
fn core_file(world: &World, image: &Path) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let dir = tempfile::tempdir()?;
    let mut command = probe(&testbed, world, image, "fault", "core");
    let said = succeed(command.current_dir(dir.path()))?;
    ensure!(said.contains("store to 0x10"), "{said}");
    let core = core_of(dir.path())?;
    // Without the option there is none.
    let empty = tempfile::tempdir()?;
    let mut command = probe(&testbed, world, image, "fault", "");
    succeed(command.current_dir(empty.path()))?;
    ensure!(core_of(empty.path()).is_err(), "a core file without a wish");
    let mut gdb = Command::new(GDB);
    gdb.args(["-batch", "-nx"]);
    for command in [
        "backtrace",
        "print counter",
        "info registers a0",
        "info threads",
    ] {
        gdb.args(["-ex", command]);
    }
    let said = process::stdout(gdb.arg(image).arg(&core), LIMIT)?;
    let line = format!(
        "device.c:{}",
        line_of("*(volatile uint64_t *)address = 1;")?
    );
    contains_in_order(
        &said,
        &[
            "store (address=",
            &line,
            "#1  ",
            "unpack_1",
            "$1 = 5",
            "0x10",
            "* 1",
        ],
    )
}

/// Reports of weakly ordered memory about the probe without one of its fences: the program must work all the same.
fn order_reports(world: &World, image: &Path) -> Result<Vec<serde_json::Value>> {
    let testbed = Testbed::new(world)?;
    let said = succeed(&mut probe(&testbed, world, image, "order", "weak"))?;
    ensure!(said.starts_with("ok"), "{said}");
    let said = succeed(testbed.emulator("dpa").args(["order", "--json"]))?;
    let reports: serde_json::Value = serde_json::from_str(&said)?;
    Ok(reports.as_array().context("reports")?.clone())
}

/// A program with all fences has no report. Without one of them it has a report with the line of the access.
fn order(world: &World, image: &Path) -> Result<()> {
    let reports = order_reports(world, image)?;
    ensure!(reports.is_empty(), "{reports:?}");
    for (number, text, function, line) in [
        (1, "a doorbell may overtake this store", "", None),
        (
            2,
            "without a fence after its owner bit",
            "take",
            Some("own->qpn = be32_to_cpu(cqe->qpn)"),
        ),
        (3, "a doorbell may overtake this store", "", None),
        (
            4,
            "__dpa_thread_window_writeback",
            "doubled",
            Some("[at] *= 2;"),
        ),
        (
            5,
            "__dpa_thread_window_read_inv",
            "word_of",
            Some("return *(volatile uint64_t *)word;"),
        ),
    ] {
        let reports = order_reports(world, &image_without(number)?)?;
        ensure!(!reports.is_empty(), "nothing without call {number}");
        for report in &reports {
            let has = |field: &str, text: &str| {
                let value = report[field].as_str();
                value.is_some_and(|value| value.contains(text))
            };
            let place = line.map(line_of).transpose()?;
            let is_there = place.is_none_or(|line| report["line"] == line);
            ensure!(
                has("text", text) && has("function", function) && is_there && report["line"] != 0,
                "without call {number}: {report}"
            );
        }
    }
    Ok(())
}

/// A packet of the protocol.
fn packet(body: &str) -> Vec<u8> {
    let sum = body.bytes().fold(0u8, u8::wrapping_add);
    format!("${body}#{sum:02x}").into_bytes()
}

/// Bad packets get an error or end the debugger with one line. The program goes on.
fn bad_packets(world: &World, image: &Path) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let packets =
        |bodies: &[&str]| -> Vec<u8> { bodies.iter().flat_map(|body| packet(body)).collect() };
    for (bytes, answers) in [
        // Memory at no address and beyond all bounds, a breakpoint at no code, registers of no thread.
        (
            packets(&["qSupported:swbreak+", "m0,8", "Z0,10,2", "Hg7fffffff", "g"]),
            true,
        ),
        (
            packets(&[
                "qSupported:swbreak+",
                "m0,ffffffffffffffff",
                "Z9,,",
                "vCont;;;",
                "X0,9:",
                "zzz",
            ]),
            true,
        ),
        // A wrong checksum, a packet longer than any, bytes that are none.
        (b"$qSupported#00".to_vec(), false),
        (vec![b'$'; 100_000], false),
        (vec![0xff; 4096], false),
    ] {
        let program = held(&testbed, world, image, "calls")?;
        let process = waiting(&testbed)?;
        let mut stub = testbed.emulator("dpa");
        stub.args(["gdb", "--stdio", "--process", &process.to_string()]);
        stub.stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut stub = stub.spawn()?;
        // It may end before it has read all.
        let _ = stub.stdin.take().context("its input")?.write_all(&bytes);
        let mut said = Vec::new();
        stub.stdout
            .take()
            .context("its output")?
            .read_to_end(&mut said)?;
        let done = stub.wait_with_output()?;
        let errors = String::from_utf8_lossy(&done.stderr).into_owned();
        ensure!(
            errors.lines().count() <= 2 && !errors.contains("panicked"),
            "{errors}"
        );
        ensure!(!answers || said.contains(&b'$'), "no answer: {errors}");
        let done = program.wait_with_output()?;
        let said = String::from_utf8_lossy(&done.stdout);
        ensure!(done.status.success() && said.starts_with("ok"), "{said}");
    }
    Ok(())
}

/// The process of the DPA that waits for a debugger.
fn waiting(testbed: &Testbed<'_>) -> Result<u64> {
    for _ in 0..10_000 {
        let said = succeed(testbed.emulator("dpa").args(["ps", "--json"]))?;
        let processes: serde_json::Value = serde_json::from_str(&said)?;
        let found = processes.as_array().into_iter().flatten();
        let mut held = found.filter(|process| process["held"] == true);
        if let Some(process) = held.next() {
            return process["id"].as_u64().context("its number");
        }
    }
    anyhow::bail!("no process waits for a debugger")
}
