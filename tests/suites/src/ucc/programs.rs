//! This project's own test programs on stock UCC: persistent collectives, services that fail under a program that goes
//! on, and the collectives that UCC itself offloads.

use super::job::{
    Backend, Launcher, RANKS, STRICT_ORDER, Services, Site, Variable, device, variable,
};
use super::{LIMIT, QUESTION, succeed};
use crate::device::Testbed;
use anyhow::{Context, Result, ensure};
use dev_setup::mpi;
use serde_json::Value;
use std::ffi::OsString;
use std::fs;
use std::process::Command;
use std::time::Duration;
use testbed::process::{self, Running};
use testbed::workspace;

/// Time limit for compiling a small C program.
const COMPILE: Duration = Duration::from_secs(60);
/// Rounds that must have succeeded before a service is killed.
const ROUNDS_BEFORE: usize = 20;

/// Compiles a program of `tests/programs` for Open MPI, UCC and UCX; returns its path.
pub fn compile(site: &Site<'_>, name: &str) -> Result<String> {
    let wheel = mpi::wheel(&site.world.env);
    let program = site.world.dir.join(name);
    let mut command = Command::new(&wheel.compiler);
    command
        .envs(wheel.environment.clone())
        .args(["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&program)
        .arg(workspace::root().join(format!("tests/programs/{name}.c")))
        .arg("-isystem")
        .arg(site.tree.include())
        .arg("-isystem")
        .arg(&site.world.env.ucx_include)
        .arg(site.tree.library())
        .arg(site.world.env.ucx_lib_dir.join("libucp.so.0"))
        // The libraries need a newer C library than the compiler's; the tree has it.
        .arg("-Wl,--allow-shlib-undefined");
    process::stdout(&mut command, COMPILE)?;
    Ok(program.display().to_string())
}

/// Compiles a program of `tests/programs` that knows only MPI; returns its path.
pub fn compile_mpi(site: &Site<'_>, name: &str) -> Result<String> {
    compile_mpi_with(site, name, &[])
}

/// The same, with further arguments for the compiler.
pub(crate) fn compile_mpi_with(site: &Site<'_>, name: &str, more: &[OsString]) -> Result<String> {
    let wheel = mpi::wheel(&site.world.env);
    let program = site.world.dir.join(name);
    let mut command = Command::new(&wheel.compiler);
    command
        .envs(wheel.environment.clone())
        .args(["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&program)
        .arg(workspace::root().join(format!("tests/programs/{name}.c")))
        .args(more);
    process::stdout(&mut command, COMPILE)?;
    Ok(program.display().to_string())
}

/// MPI itself must not use the device or UCC.
fn plain_mpi() -> Vec<Variable> {
    [
        ("OMPI_MCA_pml", "ob1"),
        ("OMPI_MCA_btl", "self,sm"),
        ("OMPI_MCA_coll_ucc_enable", "0"),
        ("UCC_COLL_TRACE", "warn"),
    ]
    .into_iter()
    .map(variable)
    .collect()
}

fn direct(
    site: &Site<'_>,
    services: &Services<'_>,
    mode: &str,
    on_failure: &str,
) -> Result<Command> {
    direct_with(site, services, &[mode], on_failure)
}

fn direct_with(
    site: &Site<'_>,
    services: &Services<'_>,
    words: &[&str],
    on_failure: &str,
) -> Result<Command> {
    program(site, services, "ucc_direct", words, on_failure)
}

fn program(
    site: &Site<'_>,
    services: &Services<'_>,
    name: &str,
    words: &[&str],
    on_failure: &str,
) -> Result<Command> {
    program_with(site, services, (name, words), on_failure, &[])
}

fn program_with(
    site: &Site<'_>,
    services: &Services<'_>,
    (name, words): (&str, &[&str]),
    on_failure: &str,
    more: &[Variable],
) -> Result<Command> {
    let program = compile(site, name)?;
    let words: Vec<&str> = std::iter::once(program.as_str())
        .chain(words.iter().copied())
        .collect();
    Ok(site.job(
        (&services.testbed, Backend::Offload(services)),
        Launcher::OpenMpi,
        &words,
        |_| {
            let mut variables = plain_mpi();
            variables.push(variable(("UCC_TL_XGVMI_ON_FAILURE", on_failure)));
            variables.push(variable(("UCC_TL_XGVMI_LIMIT", "30s")));
            variables.extend(more.iter().cloned());
            variables
        },
    ))
}

/// Each post of a persistent request transfers the data that the buffers then hold. UCX has no cache of registrations here:
/// the request has registered its buffers once.
pub(super) fn persistent(site: &Site<'_>) -> Result<()> {
    const COLLECTIVES: [&str; 5] = ["alltoallv", "alltoall", "allgather", "allreduce", "bcast"];
    const POSTS: u64 = 300;
    // Two buffers of each request, and one of the broadcast's.
    const BINDS: u64 = 9 * RANKS;
    let services = site.services("xgvmi", &[])?;
    let prefix = Counters::prefix(site);
    let emulator = site.world.bin.join("bf-emu").display().to_string();
    let state = services.testbed.state().display().to_string();
    let posts = POSTS.to_string();
    let words = [
        "persistent",
        &posts,
        &prefix,
        &emulator,
        "stats",
        "--json",
        "--state",
        &state,
    ];
    let no_cache = [variable(("UCX_RCACHE_ENABLE", "n"))];
    let mut command = program_with(site, &services, ("ucc_direct", &words), "error", &no_cache)?;
    let output = succeed(&mut command)?;
    for collective in COLLECTIVES {
        let line = format!("ok persistent {collective}");
        ensure!(output.lines().any(|said| said == line), "{output}");
    }
    let completed = services.completed()?;
    let expect = RANKS * POSTS * COLLECTIVES.len() as u64;
    ensure!(
        completed == expect,
        "the services completed {completed} calls of ranks, not {expect}:\n{output}"
    );
    let found = Counters::of(&prefix)?;
    ensure!(
        found[4..] == [BINDS, BINDS],
        "{COUNTED:?} in {POSTS} posts of each: {found:?}, not {BINDS} binds"
    );
    Ok(())
}

/// A mode of the program that uses UCC in legal and rare ways: all its collectives are offloaded.
pub(super) fn legal(site: &Site<'_>, mode: &str, collectives: u64) -> Result<()> {
    let services = site.services("xgvmi", &[])?;
    all_offloaded(site, &services, &[mode], collectives)
}

/// All teams of the ranks end and others begin, six times. Their jobs leave nothing at the services: no job, descriptor or
/// thread.
pub(super) fn jobs(site: &Site<'_>) -> Result<()> {
    /// Of the program: in each round one exchange of all ranks and one of half of them.
    const ROUNDS: u64 = 6;
    let services = site.services("xgvmi", &[])?;
    // UCX keeps some objects after the first job of a service.
    all_offloaded(site, &services, &["teams"], 4)?;
    let before = services.held()?;
    all_offloaded(site, &services, &["jobs"], 4 + 2 * ROUNDS)?;
    let said: String = services.running.iter().map(Running::said).collect();
    let ended = said.matches(": done, ").count() as u64;
    // The first job of the second program has no call.
    ensure!(
        ended == 2 * (1 + 1 + ROUNDS),
        "{ended} jobs have ended:\n{said}"
    );
    // A service may still be closing the last job's connections. A job that leaves something behind leaves it each time.
    let more = usize::try_from(ROUNDS)?;
    let limit: Vec<usize> = before.iter().flatten().map(|count| count + more).collect();
    let mut after = Vec::new();
    let few = process::wait_until(QUESTION, || {
        after = services.held().unwrap_or_default();
        after.len() == before.len() && after.iter().flatten().zip(&limit).all(|(a, l)| a < l)
    });
    ensure!(
        few,
        "descriptors and threads of the services: {before:?} before the jobs, {after:?} after them"
    );
    Ok(())
}

/// Registrations of buffers fail at each node, as those of protected memory do on a machine with a device: the blocks are
/// copied.
pub(super) fn protected(site: &Site<'_>) -> Result<()> {
    // A round has four registrations at each node, and each failure one more.
    const RULES: &str = "node0.host command reg_mr nth 1 errno EFAULT; node0.host command reg_mr nth 11 errno EFAULT; \
                         node1.host command reg_mr nth 1 errno EFAULT; node1.host command reg_mr nth 11 errno EFAULT";
    let services = site.services("xgvmi", &[])?;
    let prefix = site.world.dir.join("ucc-protected").display().to_string();
    let emulator = site.world.bin.join("bf-emu").display().to_string();
    let state = services.testbed.state().display().to_string();
    let mut words = vec!["protected", &prefix, &emulator, "fault", "--state", &state];
    words.extend(["add", RULES]);
    all_offloaded(site, &services, &words, 6)?;
    let mut list = Command::new(&emulator);
    let said = process::stdout(
        list.args(["fault", "--state", &state, "list", "--json"]),
        QUESTION,
    )?;
    let rules: Value = serde_json::from_str(&said).with_context(|| said.clone())?;
    let rules = rules.as_array().with_context(|| said.clone())?;
    ensure!(
        rules.len() == 4 && rules.iter().all(|rule| rule["struck"] == 1),
        "not each rule has hit once: {said}"
    );
    Ok(())
}

fn all_offloaded(
    site: &Site<'_>,
    services: &Services<'_>,
    words: &[&str],
    collectives: u64,
) -> Result<()> {
    let mut command = program(site, services, "ucc_legal", words, "error")?;
    let output = succeed(&mut command)?;
    ensure!(output.lines().any(|line| line == "done"), "{output}");
    let completed = services.completed()?;
    ensure!(
        completed == RANKS * collectives,
        "the services completed {completed} calls of {RANKS} ranks, not {collectives} of each:\n{output}"
    );
    Ok(())
}

/// A process forks while it is connected. The child cannot use the team and ends as a process does; the parent goes on.
pub(super) fn forked(site: &Site<'_>) -> Result<()> {
    /// Of the program: rounds before and after the child.
    const ROUNDS: u64 = 2 * 10;
    let services = site.services("xgvmi", &[])?;
    let output = succeed(&mut direct(site, &services, "fork", "error")?)?;
    ensure!(output.lines().any(|line| line == "done"), "{output}");
    ensure!(
        output.matches("this is a child process").count() as u64 == RANKS,
        "not every child was told why it cannot use the team:\n{output}"
    );
    let completed = services.completed()?;
    ensure!(
        completed == ROUNDS * RANKS,
        "the services completed {completed} calls of ranks:\n{output}"
    );
    Ok(())
}

/// Collectives that the component leaves to others: no rank begins them, and calls before and after them are offloaded.
pub(super) fn left(site: &Site<'_>) -> Result<()> {
    let services = site.services("xgvmi", &[])?;
    let output = succeed(&mut direct(site, &services, "left", "error")?)?;
    for line in [
        "generic datatype refused",
        "averages on the services",
        "active set on the services",
        "done",
    ] {
        ensure!(output.lines().any(|said| said == line), "{line}: {output}");
    }
    let completed = services.completed()?;
    ensure!(
        completed == 5 * RANKS + 2,
        "the services completed {completed} calls of ranks:\n{output}"
    );
    Ok(())
}

/// A block that several ranks of a service process get from another node crosses the network once. The rank that got it
/// passes it on.
pub(super) fn shared(site: &Site<'_>) -> Result<()> {
    const ROUNDS: u64 = 10;
    // An allgather of two ranks on each of two nodes: each service delivers 2 x 4 blocks, of which 2 x 2 come from the
    // other node, and one half of these are copies. A broadcast: the root's service delivers 1 block, the other one 2, of
    // which one rank reads from the root, and the other one from that rank. These are reads of a tree, not copies.
    const BLOCKS: u64 = ROUNDS * (2 * 8 + 1 + 2);
    const COPIES: u64 = ROUNDS * (2 * 2);
    let services = site.services("xgvmi", &[])?;
    let output = succeed(&mut direct(site, &services, "shared", "error")?)?;
    ensure!(output.lines().any(|line| line == "done"), "{output}");
    ensure!(services.completed()? == 2 * ROUNDS * RANKS, "{output}");
    let said: String = services.running.iter().map(Running::said).collect();
    let sum = |word: &str| -> u64 {
        let words: Vec<&str> = said.split_whitespace().collect();
        let numbers = words
            .windows(2)
            .filter(|pair| pair[1].trim_end_matches(',') == word);
        numbers.filter_map(|pair| pair[0].parse::<u64>().ok()).sum()
    };
    // "done, 40 calls of its ranks completed, 95 blocks, 20 copies"
    ensure!(
        sum("blocks") == BLOCKS && sum("copies") == COPIES,
        "{BLOCKS} blocks and {COPIES} copies are not what the services say:\n{said}"
    );
    Ok(())
}

/// Allreduces of fresh buffers: every element, and no command of the device in steady state.
pub(super) fn reduce(site: &Site<'_>) -> Result<()> {
    /// Of the program: rounds of an allreduce of two buffers and of one in place.
    const ROUNDS: u64 = 10;
    const EARLIER: u64 = 80;
    // Of two fresh buffers in each round: UCX's cache still has the buffer of the allreduce in place.
    const BINDS: u64 = 2 * ROUNDS * RANKS;
    let services = site.services("xgvmi", &[])?;
    let prefix = Counters::prefix(site);
    let emulator = site.world.bin.join("bf-emu").display().to_string();
    let state = services.testbed.state().display().to_string();
    let words = [
        "reduce", &prefix, &emulator, "stats", "--json", "--state", &state,
    ];
    let output = succeed(&mut direct_with(site, &services, &words, "error")?)?;
    ensure!(output.lines().any(|line| line == "done"), "{output}");
    let completed = services.completed()?;
    let expect = 2 * (ROUNDS + EARLIER) * RANKS;
    ensure!(
        completed == expect,
        "the services completed {completed} calls of ranks, not {expect}:\n{output}"
    );
    let found = Counters::of(&prefix)?;
    ensure!(
        found == [0, 0, 0, 0, BINDS, BINDS],
        "{COUNTED:?} in {ROUNDS} rounds: {found:?}"
    );
    Ok(())
}

/// With `error` all collectives after the failure fail. With `host` they succeed on the hosts. With `abort` the processes end.
pub(super) fn endure(site: &Site<'_>, mode: &str, on_failure: &str) -> Result<()> {
    let mut services = site.services("xgvmi", &[])?;
    let mut command = direct(site, &services, mode, on_failure)?;
    let job = Running::spawn(&mut command)?;
    let begun = process::wait_until(LIMIT, || {
        let said = job.said();
        said.lines()
            .filter(|line| line.starts_with("round "))
            .count()
            > ROUNDS_BEFORE
            || said.contains("rank ")
    });
    ensure!(begun, "no round was completed: {}", job.said());
    services.running.pop();
    let done = job.wait(LIMIT)?;
    if on_failure == "abort" {
        let says = "the process ends (UCC_TL_XGVMI_ON_FAILURE=abort)";
        ensure!(
            !done.ok() && !done.timed_out && done.output.contains(says),
            "{}\n{}",
            done.verdict(),
            done.output
        );
        return Ok(());
    }
    ensure!(done.ok(), "{}\n{}", done.verdict(), done.output);
    let line = done
        .output
        .lines()
        .find(|line| line.starts_with("first failure in round "))
        .with_context(|| done.output.clone())?;
    let good: u64 = line
        .split_once(", ")
        .and_then(|(_, rest)| rest.split(' ').next()?.parse().ok())
        .with_context(|| line.to_owned())?;
    match on_failure {
        "error" => ensure!(good == 0, "{line}: with 'error' none may succeed"),
        // Calls that other ranks had begun at the failure still fail.
        _ => ensure!(good >= 15, "{line}: with 'host' the hosts carry on"),
    }
    ensure!(
        done.output.contains("has failed: ") && done.output.lines().any(|line| line == "done"),
        "{}",
        done.output
    );
    Ok(())
}

/// One of UCC's own offloaded collectives.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stock {
    pub(super) mode: &'static str,
    /// Bytes from each host to each host.
    pub(super) block: u64,
    pub(super) scheme: &'static str,
    /// Further variables of all processes.
    pub(super) variables: &'static [(&'static str, &'static str)],
    /// Expected commands per iteration on the host and its DPU together: creations and destructions of keys, of
    /// aliases; binds and invalidations.
    pub(super) commands: [u64; 6],
}

/// A key per buffer: keys, permissions and aliases come and go with the buffers.
const KEY_PER_BUFFER: [u64; 6] = [2, 2, 2, 2, 0, 0];
/// A pool: source and destination are bound and invalidated.
const POOL: [u64; 6] = [0, 0, 0, 0, 2, 2];
/// `ucc_mem_map` packs remote keys with 64-bit atomics, for which stock UCX creates another key per buffer.
const POOL_AND_ATOMIC_KEYS: [u64; 6] = [2, 2, 0, 0, 2, 2];
/// Makes stock UCX create none.
const NO_ATOMIC_KEYS: &[(&str, &str)] = &[("UCX_IB_INDIRECT_ATOMIC", "n")];
/// Avoids D24 for blocks that UCX would copy with the CPU.
const SMALL: &[(&str, &str)] = &[("UCX_ZCOPY_THRESH", "0")];

const fn stock(
    mode: &'static str,
    block: u64,
    scheme: &'static str,
    variables: &'static [(&'static str, &'static str)],
    commands: [u64; 6],
) -> Stock {
    Stock {
        mode,
        block,
        scheme,
        variables,
        commands,
    }
}

pub(super) const STOCK: &[Stock] = &[
    stock("sliding", 32768, "ksm", &[], KEY_PER_BUFFER),
    stock("sliding", 32768, "stock", &[], POOL),
    stock("sliding", 32768, "xgvmi", &[], POOL),
    stock("sliding", 64, "xgvmi", &[], POOL),
    stock("alltoall", 16384, "stock", &[], POOL_AND_ATOMIC_KEYS),
    stock("alltoall", 16384, "stock", NO_ATOMIC_KEYS, POOL),
    stock("alltoall", 16384, "xgvmi", &[], POOL),
    stock("alltoall", 512, "xgvmi", SMALL, POOL),
    stock("alltoallv", 65536, "ksm", NO_ATOMIC_KEYS, KEY_PER_BUFFER),
    stock("alltoallv", 65536, "stock", NO_ATOMIC_KEYS, POOL),
    stock("alltoallv", 65536, "xgvmi", &[], POOL),
];

impl Stock {
    pub(super) fn name(&self) -> String {
        let mut name = format!(
            "UCC's own {} of {} B, {}",
            self.mode, self.block, self.scheme
        );
        for (variable, value) in self.variables {
            name += &format!(", {variable}={value}");
        }
        name
    }
}

const WARM_UP: u64 = 80;
const ITERATIONS: u64 = 10;
const HOSTS: u64 = 2;
const COUNTED: [(&str, &str); 6] = [
    ("commands", "create_mkey"),
    ("commands", "destroy_mkey"),
    ("commands", "create_alias"),
    ("commands", "destroy_alias"),
    ("wqes", "umr_bind"),
    ("wqes", "umr_invalidate"),
];

/// Hosts export memory, and DPU processes run stock UCC's collective on it: every byte, and the device's commands.
pub(super) fn stock_offload(site: &Site<'_>, stock: &Stock) -> Result<()> {
    let testbed = Testbed::new(site.world)?;
    let program = compile(site, "ucc_dpu")?;
    let emulator = site.world.bin.join("bf-emu").display().to_string();
    let state = testbed.state().display().to_string();
    let prefix = Counters::prefix(site);
    let (block, warm_up, iterations) = (
        stock.block.to_string(),
        WARM_UP.to_string(),
        ITERATIONS.to_string(),
    );
    let words = [
        &program,
        stock.mode,
        &block,
        &warm_up,
        &iterations,
        &prefix,
        &emulator,
        "stats",
        "--json",
        "--state",
        &state,
    ];
    let functions = ["node0.host", "node1.host", "node0.dpu", "node1.dpu"];
    let mut command = site.spread(&testbed, &functions, &words, |_| {
        let mut variables = plain_mpi();
        variables.extend(
            [
                ("UCC_TL_UCP_EXPORTED_MEMORY_HANDLE", "y"),
                (
                    "UCC_TL_UCP_TUNE",
                    "alltoall:@onesided:inf#alltoallv:@onesided:inf#allreduce:@sliding_window:inf",
                ),
            ]
            .into_iter()
            .map(variable),
        );
        // With relaxed ordering, UCX's other key stays.
        variables.push(variable(STRICT_ORDER));
        if stock.scheme == "ksm" {
            variables.push(variable(("UCX_IB_XGVMI_UMR_ENABLE", "n")));
        }
        variables.extend(device(stock.scheme, site.world));
        variables.extend(stock.variables.iter().copied().map(variable));
        variables
    });
    let output = succeed(&mut command)?;
    let bytes = (WARM_UP + ITERATIONS) * HOSTS * HOSTS * stock.block;
    let line = format!("{bytes} bytes compared");
    ensure!(
        output.lines().any(|said| said == line),
        "no '{line}':\n{output}"
    );
    let found = Counters::of(&prefix)?;
    let expect = stock.commands.map(|count| count * ITERATIONS * HOSTS);
    ensure!(
        found == expect,
        "{COUNTED:?} in {ITERATIONS} iterations on {HOSTS} nodes: {found:?}, not {expect:?}"
    );
    Ok(())
}

/// Counters of the device that a program's rank 0 writes to files.
struct Counters;

impl Counters {
    /// Prefix of the files. Those of an earlier run are removed.
    fn prefix(site: &Site<'_>) -> String {
        let prefix = site.world.dir.join("ucc-counters").display().to_string();
        for title in ["before", "after"] {
            let _ = fs::remove_file(format!("{prefix}.{title}"));
        }
        prefix
    }

    /// The differences of [`COUNTED`] between the files.
    fn of(prefix: &str) -> Result<[u64; COUNTED.len()]> {
        let read = |title| -> Result<Value> {
            let file = format!("{prefix}.{title}");
            let text = fs::read_to_string(&file).with_context(|| format!("no {file}"))?;
            serde_json::from_str(&text).with_context(|| format!("the counters in {file}: {text}"))
        };
        let (before, after) = (read("before")?, read("after")?);
        let mut found = [0; COUNTED.len()];
        for (at, (group, name)) in COUNTED.into_iter().enumerate() {
            found[at] = sum(&after, group, name)? - sum(&before, group, name)?;
        }
        Ok(found)
    }
}

/// Sum of a counter over all functions.
pub fn sum(counters: &Value, group: &str, name: &str) -> Result<u64> {
    over_functions(counters, &format!("/{group}/{name}"))
}

/// Number of doorbells of all functions.
pub fn doorbells(counters: &Value) -> Result<u64> {
    over_functions(counters, "/doorbells")
}

fn over_functions(counters: &Value, path: &str) -> Result<u64> {
    let functions = counters["functions"].as_array().context("no functions")?;
    let counts = functions.iter().map(|function| {
        let count = function.pointer(path).and_then(Value::as_u64);
        count.with_context(|| format!("no counter {path}"))
    });
    counts.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_summed_over_functions() {
        let text =
            r#"{"functions":[{"wqes":{"a":1},"doorbells":3},{"wqes":{"a":2},"doorbells":4}]}"#;
        let read: Value = serde_json::from_str(text).unwrap();
        assert_eq!(sum(&read, "wqes", "a").unwrap(), 3);
        assert_eq!(doorbells(&read).unwrap(), 7);
        assert!(sum(&read, "wqes", "b").is_err());
    }
}
