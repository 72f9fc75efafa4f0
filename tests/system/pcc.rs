//! Congestion control: contexts of `libdoca_pcc` set the rates of stock perftest's queue pairs on the emulated device.

mod rates;
mod refusals;
mod survive;

use crate::doca::{cc, has_compiler, link, no_compiler};
use crate::harness::{Case, Outcome};
use crate::talk::Talk;
use crate::world::{LIMIT, Testbed, World};
use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use testbed::pair;
use testbed::process::{self, Running};

/// A number of messages that no test reaches.
const ENDLESS: &str = "10000000";

/// Variable with the directory of NVIDIA's samples of DOCA.
const SAMPLES: &str = "XGVMI_DOCA_SAMPLES";
/// Programs of its application: name, folder, sources, and the device library.
const APPLICATION: [(&str, &str, &[&str], &str); 3] = [
    (
        "rp_rtt_template",
        "rp/rtt_template",
        &["rp_rtt_template_dev_main.c", "algo/rtt_template.c"],
        "doca_pcc_dev",
    ),
    (
        "rp_switch_telemetry",
        "rp/switch_telemetry",
        &["rp_switch_telemetry_dev_main.c", "algo/telem_template.c"],
        "doca_pcc_dev",
    ),
    (
        "np_switch_telemetry",
        "np/switch_telemetry",
        &["np_switch_telemetry_dev_main.c"],
        "doca_pcc_np_dev",
    ),
];

/// Numbers of `doca_pcc_process_state_t`.
const ACTIVE: &str = "ok 0";
const STANDBY: &str = "ok 1";
const DEACTIVATED: &str = "ok 2";
const ERROR: &str = "ok 3";
/// Faults of the test program.
const CRASHES: u32 = 1;
const LOOPS: u32 = 2;
const RATE_ZERO: u32 = 3;
const RATE_ABOVE: u32 = 4;
const NO_PROBE: u32 = 5;
const SLOW: u32 = 6;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        with_compiler("pcc_setpoints_of_perftest", rates::setpoints),
        with_compiler("pcc_perftest_measures_the_set_point", rates::own_figure),
        with_compiler("pcc_two_senders_share_a_port", rates::two_senders),
        with_compiler("pcc_standbys_take_over", standbys),
        with_compiler("pcc_host_refusals", refusals::all),
        with_compiler("pcc_programs_that_misbehave", survive::misbehave),
        with_compiler("pcc_lost_events_and_a_port_that_is_down", survive::losses),
        with_compiler("pcc_mailbox_and_parameters_under_load", survive::under_load),
        with_compiler("pcc_receivers_answer_probes", survive::receivers),
        with_compiler("pcc_full_disk", survive::full_disk),
        Case::that_may_skip("pcc_sample_application", |world| {
            match std::env::var_os(SAMPLES).filter(|root| !root.is_empty()) {
                None => Ok(Outcome::Skipped(format!(
                    "{SAMPLES} names no directory of the samples"
                ))),
                Some(_) if !has_compiler() => Ok(no_compiler()),
                Some(root) => application(world, Path::new(&root)).map(|()| Outcome::Passed),
            }
        }),
    ]
}

fn with_compiler(name: &'static str, run: impl Fn(&World) -> Result<()> + 'static) -> Case {
    Case::that_may_skip(name, move |world| {
        if !has_compiler() {
            return Ok(no_compiler());
        }
        run(world).map(|()| Outcome::Passed)
    })
}

/// Nodes with Ethernet ports for full packets.
fn testbed(world: &World, nodes: u8) -> Result<Testbed<'_>> {
    let testbed = Testbed::new(world)?;
    let file = testbed.path().join("topology.toml");
    let mut text = String::new();
    for node in 1..=nodes {
        let _ = write!(
            text,
            "[[node]]\n[[node.function]]\nrole = \"host\"\nlink = \"ethernet\"\nmtu = 9000\naddresses = [\"{}\"]\n",
            address(node)
        );
    }
    std::fs::write(&file, text)?;
    Ok(testbed.with_topology(&file))
}

fn address(node: u8) -> String {
    format!("127.66.{node}.1")
}

/// The host program, built once per run, with a program of a sender and one of a receiver.
fn host(world: &World) -> Result<PathBuf> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let built = BUILT.get_or_init(|| build(world).map_err(|error| format!("{error:#}")));
    built.clone().map_err(anyhow::Error::msg)
}

fn build(world: &World) -> Result<PathBuf> {
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs");
    let mut inputs = vec![programs.join("pcc_host.c")];
    for (source, app, library, more) in [
        ("pcc_device.c", "pcc_test_app", "doca_pcc_dev", ""),
        (
            "pcc_device.c",
            "pcc_lacking_app",
            "doca_pcc_dev",
            " -DPCC_LACKS",
        ),
        ("pcc_np_device.c", "pcc_test_np_app", "doca_pcc_np_dev", ""),
    ] {
        let archive = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{app}.a"));
        let mut driver = Command::new(world.built("dpacc"));
        driver
            .arg(programs.join(source))
            .arg("-o")
            .arg(&archive)
            .args(["-mcpu=nv-dpa-bf3", "-hostcc=gcc"])
            .arg(format!("--app-name={app}"))
            .arg(format!(
                "--devicecc-options=-g -O2 -Wall -Wextra -Werror -DE_MODE_LE{more}"
            ))
            .arg(format!("-device-libs=-L. -l{library}"));
        process::stdout(&mut driver, LIMIT)?;
        inputs.push(archive);
    }
    link(world, cc(&[]), &inputs, "pcc_host")
}

/// A running host program, whose device is open.
struct Host(Talk);

impl Host {
    fn start(testbed: &Testbed<'_>, world: &World, node: u8) -> Result<Self> {
        Self::start_with(testbed, world, node, None)
    }

    fn start_with(
        testbed: &Testbed<'_>,
        world: &World,
        node: u8,
        core: Option<&Path>,
    ) -> Result<Self> {
        let function = format!("node{}.host", node - 1);
        let mut command = testbed.command(&function, host(world)?);
        command.args(core);
        let mut host = Self(Talk::start(&mut command)?);
        host.ok("open")?;
        Ok(host)
    }

    /// With a context that has started.
    fn started(testbed: &Testbed<'_>, world: &World, node: u8) -> Result<Self> {
        let mut host = Self::start(testbed, world, node)?;
        host.ok("create")?;
        host.ok("start")?;
        Ok(host)
    }

    /// The answer to a command. Lines of the log and of the device come between.
    fn ask(&mut self, command: &str) -> Result<String> {
        self.0.say(command)?;
        loop {
            let line = self.0.hear(LIMIT)?;
            if !line.starts_with('[') {
                return Ok(line);
            }
        }
    }

    fn ok(&mut self, command: &str) -> Result<String> {
        let answer = self.ask(command)?;
        ensure!(answer.starts_with("ok"), "{command}: {answer}");
        Ok(answer)
    }

    fn expect(&mut self, command: &str, expect: &str) -> Result<()> {
        let answer = self.ask(command)?;
        ensure!(answer == expect, "{command}: {answer} in place of {expect}");
        Ok(())
    }

    /// Waits until a line is in its log.
    fn says(&self, line: &str) -> Result<()> {
        let said = process::wait_until(LIMIT, || self.0.complaints().contains(line));
        ensure!(said, "no '{line}' in:\n{}", self.0.complaints());
        Ok(())
    }

    /// Waits for a state.
    fn becomes(&mut self, state: &str) -> Result<()> {
        for _ in 0..60 {
            if self.ask("state")? == state {
                return Ok(());
            }
            self.ok("wait 1")?;
        }
        bail!("the state is {} in place of {state}", self.ask("state")?)
    }
}

/// A pair of perftest that runs until it is dropped, or by itself to its end.
struct Pair {
    server: Running,
    client: Running,
}

impl Pair {
    fn start(
        testbed: &Testbed<'_>,
        world: &World,
        (from, to): (u8, u8),
        number: u16,
        more: &[&str],
    ) -> Result<Self> {
        let tool = world.verbs_tool("ib_write_bw");
        let port = number.to_string();
        let command = |node: u8| {
            let mut command = testbed.command(&format!("node{}.host", node - 1), &tool);
            command.args(["-F", "-s", "8192", "-p", &port]).args(more);
            command
        };
        let mut server = command(to);
        let server = if more.contains(&"-R") {
            // The port space of TCP, and the port.
            let listener = format!(
                "stage Listen exchange Idle service {:#x}",
                0x106_0000 + u32::from(number)
            );
            let is_up = |_: &Running| {
                let objects = testbed.ask("dump", &[]).unwrap_or_default();
                objects.contains(&listener)
            };
            Running::up(&mut server, LIMIT, is_up)?
        } else {
            pair::listening(&mut server, number, LIMIT)?
        };
        let client = Running::spawn(command(from).arg(address(to)))?;
        Ok(Self { server, client })
    }

    /// Both have ended well.
    fn end(self) -> Result<()> {
        for one in [self.client, self.server] {
            let done = one.wait(LIMIT)?;
            ensure!(done.ok(), "{}\n{}", done.verdict(), done.output);
        }
        Ok(())
    }
}

fn report(testbed: &Testbed<'_>) -> Result<Value> {
    Ok(serde_json::from_str(
        &testbed.ask("dpa", &["flows", "--json"])?,
    )?)
}

/// Numbers of the flow of a node, 0 before its first message.
#[derive(Debug, Clone, Copy, Default)]
struct Flow {
    messages: u64,
    late_ns: u64,
    rate: u64,
    events: u64,
    lost: u64,
    slot: u64,
}

fn flow(testbed: &Testbed<'_>, node: u8) -> Result<Flow> {
    let report = report(testbed)?;
    let name = format!("node{}.host", node - 1);
    let flows = report["flows"].as_array().context("flows")?;
    // Perftest has another queue pair for its settings.
    let of_node = flows.iter().filter(|flow| flow["function"] == *name);
    let is_data = |flow: &&Value| flow["payload_bytes"].as_u64() >= Some(8192);
    let Some(found) = of_node
        .filter(is_data)
        .max_by_key(|flow| flow["payload_bytes"].as_u64())
    else {
        return Ok(Flow::default());
    };
    let number = |key: &str| {
        found[key]
            .as_u64()
            .with_context(|| format!("{key} in {found}"))
    };
    Ok(Flow {
        messages: number("messages")?,
        late_ns: number("late_ns")?,
        rate: number("rate")?,
        events: number("events")?,
        lost: number("lost_events")?,
        slot: number("slot")?,
    })
}

/// Waits for a condition of a node's flow, and returns it.
fn until(
    testbed: &Testbed<'_>,
    node: u8,
    what: &str,
    is_so: impl Fn(&Flow) -> bool,
) -> Result<Flow> {
    let mut last = Ok(Flow::default());
    process::wait_until(LIMIT, || {
        last = flow(testbed, node);
        last.as_ref().map_or(true, &is_so)
    });
    let last = last?;
    ensure!(is_so(&last), "no flow with {what}: {last:?}");
    Ok(last)
}

/// A value of a card's counters.
fn counter(report: &Value, node: u8, name: &str) -> Result<u64> {
    let function = format!("node{}.host", node - 1);
    let cards = report["cards"].as_array().context("cards")?;
    let card = cards.iter().find(|card| card["function"] == *function);
    let value = card.and_then(|card| card["counters"][name].as_u64());
    value.with_context(|| format!("no {name} of {function}"))
}

/// Waits until a program has handled more events of a node's flow.
fn goes_on(testbed: &Testbed<'_>, node: u8) -> Result<Flow> {
    let events = flow(testbed, node)?.events;
    until(testbed, node, "further events", |flow| {
        flow.events > events + 5
    })
}

/// The active process is killed, stopped, crashes, loops: the next one takes over, and perftest loses nothing.
fn standbys(world: &World) -> Result<()> {
    let testbed = testbed(world, 2)?;
    let core = testbed.path().join("core.txt");
    let mut hosts = Vec::new();
    for _ in 0..4 {
        let mut host = Host::start_with(&testbed, world, 1, Some(&core))?;
        host.ok("create")?;
        host.ok("start")?;
        hosts.push(host);
    }
    let [mut killed, mut stopped, mut crashed, mut looped] =
        <[Host; 4]>::try_from(hosts).map_err(|_| anyhow::anyhow!("four hosts"))?;
    killed.expect("state", ACTIVE)?;
    for standby in [&mut stopped, &mut crashed, &mut looped] {
        standby.expect("state", STANDBY)?;
    }
    for host in [&mut killed, &mut stopped, &mut crashed, &mut looped] {
        host.ok("mbps 1600")?;
    }
    // Far more messages than the changes below take. After them nothing limits the rest.
    let pair = Pair::start(&testbed, world, (1, 2), 18515, &["-R", "-n", "10000"])?;
    goes_on(&testbed, 1)?;
    killed.0.end()?;
    stopped.becomes(ACTIVE)?;
    goes_on(&testbed, 1)?;
    stopped.ok("stop")?;
    crashed.becomes(ACTIVE)?;
    stopped.expect("state", "DOCA_ERROR_BAD_STATE")?;
    goes_on(&testbed, 1)?;
    crashed.ok(&format!("fault {CRASHES}"))?;
    crashed.becomes(ERROR)?;
    looped.becomes(ACTIVE)?;
    let said = std::fs::read_to_string(&core)?;
    ensure!(
        said.contains("doca_pcc_dev_user_algo") && said.contains("pcc_device.c:"),
        "{said}"
    );
    crashed.expect("mbps 1", "DOCA_ERROR_BAD_STATE")?;
    crashed.ok("destroy")?;
    goes_on(&testbed, 1)?;
    looped.ok(&format!("fault {LOOPS}"))?;
    looped.becomes(DEACTIVATED)?;
    looped.expect("start", "DOCA_ERROR_BAD_STATE")?;
    looped.says("doca_pcc_start: the PCC process has ended: ")?;
    looped.expect("mbps 1", "DOCA_ERROR_BAD_STATE")?;
    // Nobody is left: the device's own algorithm controls.
    ensure!(report(&testbed)?["cards"][0]["is_controlled"] == false);
    pair.end()
}

/// NVIDIA's application for PCC, host and device code, runs unmodified: its template controls perftest.
fn application(world: &World, root: &Path) -> Result<()> {
    let folder = root.join("applications/pcc");
    let device = folder.join("device");
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let mut inputs = ["pcc.c", "pcc_core.c"]
        .map(|name| folder.join("host").join(name))
        .to_vec();
    for (name, place, sources, library) in APPLICATION {
        let place = device.join(place);
        let archive = dir.join(format!("pcc_{name}.a"));
        let includes = [
            device.clone(),
            place.join("algo"),
            root.join("applications/common/device"),
        ];
        let includes = includes.map(|dir| format!(" -I{}", dir.display())).concat();
        let mut driver = Command::new(world.built("dpacc"));
        driver
            .args(sources.iter().map(|source| place.join(source)))
            .arg("-o")
            .arg(&archive)
            .args(["-mcpu=nv-dpa-bf3", "-hostcc=gcc"])
            .arg(format!("--app-name=pcc_{name}_app"))
            .arg(format!(
                "--devicecc-options=-O2 -DSIMX_BUILD -DE_MODE_LE{includes}"
            ))
            .arg(format!("-device-libs=-L. -l{library}"));
        process::stdout(&mut driver, LIMIT)?;
        inputs.push(archive);
    }
    let mut compiler = cc(&[&folder.join("host")]);
    compiler.args(["-w", "-DDOCA_ALLOW_EXPERIMENTAL_API"]);
    let program = link(world, compiler, &inputs, "doca_pcc")?;
    let testbed = testbed(world, 2)?;
    let core = testbed.path().join("core.txt");
    let mut command = testbed.command("node0.host", &program);
    command.args(["-d", "mlx5_0", "-f"]).arg(&core);
    let is_active = |_: &Running| {
        report(&testbed).is_ok_and(|report| report["cards"][0]["is_controlled"] == true)
    };
    let running = Running::up(&mut command, LIMIT, is_active)?;
    let pair = Pair::start(&testbed, world, (1, 2), 18515, &["-R", "-n", ENDLESS])?;
    let flow = until(&testbed, 1, "events", |flow| flow.events > 200)?;
    ensure!(flow.slot == 0 && flow.messages > 50, "{flow:?}");
    drop((pair, running));
    Ok(())
}
