//! UCX's own tools on stock UCX of their version: `ucx_perftest` over each transport, and with two daemons on the DPUs.

use super::device::{CLIENT, DPU, SERVER, Testbed};
use super::stock::{self, Stock};
use super::transport::{TRANSPORTS, Transport};
use super::{Case, World, in_order};
use anyhow::{Context, Result, ensure};
use dev_setup::versions::VERSIONS;
use std::fs;
use std::path::Path;
use std::time::Duration;
use testbed::{pair, port};

/// A batch takes several seconds on two idle cores; with daemons four processes poll.
const LIMIT: Duration = Duration::from_secs(300);

/// Tests of `ucx_perftest`, and whether they run in every version or only in the set-up's own. The iterations fill
/// every queue once: the test proves that the protocol works, and `ucp` verifies the bytes.
const TESTS: &[(&str, bool)] = &[
    ("tag_lat -s 8 -n 600", true),
    ("tag_lat -s 8 -n 100 -E sleep", true),
    ("tag_lat -s 65536 -n 50", false),
    ("tag_bw -s 1048576 -n 30", true),
    ("tag_sync_lat -s 8 -n 200", false),
    ("ucp_am_lat -s 8 -n 600", false),
    ("ucp_am_bw -s 1048576 -n 30", true),
    ("stream_lat -s 8 -n 600", true),
    ("stream_bw -s 65536 -n 100", false),
    ("ucp_put_lat -s 8 -n 600", true),
    ("ucp_put_bw -s 1048576 -n 30", false),
    ("ucp_get -s 8 -n 600", false),
    ("ucp_get -s 1048576 -n 30", true),
    ("ucp_add -s 8 -n 200", false),
    ("ucp_fadd -s 8 -n 200", true),
    ("ucp_swap -s 8 -n 200", false),
    ("ucp_cswap -s 8 -n 200", false),
    ("ucp_fadd -s 4 -n 200", false),
];

/// With daemons UCX supports one test; `ucp_am_lat` crashes UCX's own daemon.
const DAEMON_TESTS: &[&str] = &["ucp_am_bw -s 65536 -n 50", "ucp_am_bw -s 1048576 -n 10"];

pub(super) fn run_all(world: &World) -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    for version in VERSIONS {
        let is_own = version.name == world.env.ucx_version;
        let tests = || TESTS.iter().filter(|(_, everywhere)| is_own || *everywhere);
        let wanted = |by: &str, test: &str| {
            let name = format!("{} {by} {test}", version.name);
            world.wants(&name).then_some(name)
        };
        let batches = TRANSPORTS.iter().map(|transport| {
            let named =
                tests().filter_map(|(test, _)| Some((*test, wanted(transport.name, test)?)));
            (transport, named.collect::<Vec<_>>())
        });
        let batches: Vec<_> = batches.filter(|(_, tests)| !tests.is_empty()).collect();
        let with_daemons = DAEMON_TESTS.iter();
        let with_daemons: Vec<_> = with_daemons
            .filter_map(|test| Some((*test, wanted("daemons", test)?)))
            .collect();
        if batches.is_empty() && with_daemons.is_empty() {
            continue;
        }
        let Some(tools) = stock::tools(world, version) else {
            continue;
        };
        let there = tools.and_then(|tools| Ok((tools, Stock::fetch(world, version)?)));
        let (tools, stock) = match there {
            Ok(there) => there,
            Err(error) => {
                cases.push(Case::of(version.name, Err(error)));
                continue;
            }
        };
        for (transport, tests) in batches {
            cases.extend(batch(world, &stock, &tools, transport, tests));
        }
        for (test, name) in with_daemons {
            let result = relayed(world, &stock, &tools, test);
            cases.push(Case::of(name, result));
        }
    }
    Ok(cases)
}

/// Runs the tests one after the other in one pair of processes.
fn batch(
    world: &World,
    stock: &Stock,
    tools: &Path,
    transport: &Transport,
    tests: Vec<(&str, String)>,
) -> Vec<Case> {
    let words: Vec<&str> = tests.iter().map(|(test, _)| *test).collect();
    let (output, result) = match batch_run(world, stock, tools, transport, &words) {
        Ok(ran) => ran,
        Err(error) => (String::new(), Err(error)),
    };
    let finished: Vec<bool> = (0..tests.len())
        .map(|number| has_numbers(&output, &batch_name(number)))
        .collect();
    in_order(tests.into_iter().map(|(_, name)| name), &finished, result)
}

/// Name of a test in a batch.
fn batch_name(number: usize) -> String {
    format!("test{number}")
}

/// The client's output, and whether the run succeeded.
fn batch_run(
    world: &World,
    stock: &Stock,
    tools: &Path,
    transport: &Transport,
    tests: &[&str],
) -> Result<(String, Result<()>)> {
    let lines = tests.iter().enumerate();
    let lines: Vec<String> = lines
        .map(|(number, test)| format!("{} -t {test}\n", batch_name(number)))
        .collect();
    let file = world.dir.join("ucx.batch");
    fs::write(&file, lines.concat()).with_context(|| format!("cannot write {}", file.display()))?;
    let testbed = Testbed::new(world)?;
    let port = port::free()?;
    let command = |function: &str| {
        let mut command = testbed.command(function, tools.join("ucx_perftest"));
        command
            .envs(stock.environment(world, transport.tls))
            .args(["-p", &port.to_string(), "-b"])
            .arg(&file);
        command
    };
    let (mut server, mut client) = (command(SERVER), command(CLIENT));
    // Few warm-up rounds, and one line per test.
    client.args(["-w", "10", "-f", "127.0.0.1"]);
    let ended = pair::both(&mut server, &mut client, port, LIMIT)?;
    let judged = || {
        ended.result(&server, &client)?;
        let moved = testbed.stats()?.counted("wqes", |name| name != "flushed")?;
        ensure!(moved > 0, "the device executed nothing");
        Ok(())
    };
    let result = judged();
    Ok((ended.client.output, result))
}

/// Two hosts whose DPUs transfer the messages: UCX's own use of cross-function keys.
fn relayed(world: &World, stock: &Stock, tools: &Path, test: &str) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let ports = [port::free()?, port::free()?, port::free()?];
    let [port, local, remote] = ports.map(|port| port.to_string());
    let command = |function: &str, program: &str, port: &str| {
        let mut command = testbed.command(function, tools.join(program));
        command
            .envs(stock.environment(world, "rc_x,tcp"))
            // Clients find daemons by their IP addresses, which needs a network device.
            .env("UCX_NET_DEVICES", "mlx5_0:1,lo")
            .args(["-p", port]);
        command
    };
    // The daemons continue after their test; dropping them ends them.
    let mut at_client = command("node1.dpu", "ucx_perftest_daemon", &local);
    let mut at_server = command(DPU, "ucx_perftest_daemon", &remote);
    let _client_daemon = pair::listening(&mut at_client, ports[1], LIMIT)?;
    let _server_daemon = pair::listening(&mut at_server, ports[2], LIMIT)?;
    let mut server = command(SERVER, "ucx_perftest", &port);
    let mut client = command(CLIENT, "ucx_perftest", &port);
    client
        .args(["127.0.0.1", "-t"])
        .args(test.split_whitespace())
        .arg("-g")
        .arg(format!("127.0.0.1:{local}"))
        .arg("-G")
        .arg(format!("127.0.0.1:{remote}"));
    let (_, output) = pair::run(&mut server, &mut client, ports[0], LIMIT)?;
    ensure!(has_numbers(&output, "Final:"), "no result:\n{output}");
    let aliases = testbed
        .stats()?
        .counted("commands", |name| name == "create_alias")?;
    ensure!(
        aliases >= 2,
        "the DPUs made {aliases} aliases, not 2 or more"
    );
    let moved = testbed
        .stats()?
        .counted("wqes", |name| name == "rdma_read" || name == "rdma_write")?;
    ensure!(moved > 0, "no data went through the aliases");
    testbed.ensure_nothing_refused()
}

/// Whether `ucx_perftest` wrote a line of numbers that starts with a word.
fn has_numbers(output: &str, first: &str) -> bool {
    output.lines().any(|line| {
        let mut words = line.split_whitespace();
        words.next() == Some(first) && words.filter(|word| word.parse::<f64>().is_ok()).count() >= 4
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_a_line_of_numbers() {
        let output = "| Test | # iterations |\ntest1    600   13.5  1905.4  4236.3  0.00  0.00   525   236\n\
                      test12 crashed\nFinal: 50 4014.1 20733.1 20733.1 3.01 3.01 48 48\n";
        let check = |first: &str, expect| assert_eq!(has_numbers(output, first), expect, "{first}");
        check("test1", true);
        check("test12", false);
        check("test2", false);
        check("Final:", true);
    }
}
