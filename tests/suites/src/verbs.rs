//! Stock programs on libibverbs: the pingpongs of ibverbs-utils, and perftest without rdma_cm.

use super::device::{CLIENT, SERVER, Testbed};
use super::{Case, Outcome, World};
use anyhow::{Context, Result, ensure};
use std::time::Duration;
use testbed::link::Link;
use testbed::pair::run;
use testbed::port::free as free_port;

/// One pair of programs: the longest transfers several gigabytes, and the cores may be busy.
const LIMIT: Duration = Duration::from_secs(300);

/// Program and options of each pingpong. All compare one byte of each page of the last buffer.
const PINGPONGS: &[(&str, &str)] = &[
    ("ibv_rc_pingpong", "-c"),
    ("ibv_rc_pingpong", "-c -e"),
    ("ibv_rc_pingpong", "-c -N"),
    ("ibv_rc_pingpong", "-c -s 1048576 -n 50"),
    ("ibv_uc_pingpong", "-c"),
    ("ibv_uc_pingpong", "-c -e"),
    ("ibv_ud_pingpong", "-c -s 2048"),
    ("ibv_ud_pingpong", "-c -s 2048 -e"),
    ("ibv_srq_pingpong", "-c"),
    ("ibv_srq_pingpong", "-c -e -q 8"),
];

/// The same over Ethernet with each type of GID; a packet has 1024 bytes there.
const ROCE_PINGPONGS: &[(&str, &str)] = &[
    ("ibv_rc_pingpong", "-c -g 0"),
    ("ibv_rc_pingpong", "-c -e -g 3"),
    ("ibv_rc_pingpong", "-c -s 1048576 -n 50 -g 5"),
    ("ibv_uc_pingpong", "-c -g 1"),
    ("ibv_uc_pingpong", "-c -e -g 2"),
    ("ibv_ud_pingpong", "-c -s 1024 -g 0"),
    ("ibv_ud_pingpong", "-c -s 1024 -g 1"),
    ("ibv_ud_pingpong", "-c -s 1024 -e -g 3"),
    ("ibv_ud_pingpong", "-c -s 1024 -e -g 4"),
    ("ibv_srq_pingpong", "-c -e -q 8 -g 3"),
];

pub(super) fn pingpong(world: &World) -> Result<Vec<Case>> {
    let rows = match world.link {
        Link::Ethernet => ROCE_PINGPONGS,
        Link::Infiniband | Link::InfinibandGrh => PINGPONGS,
    };
    Ok(rows
        .iter()
        .map(|(program, options)| (format!("{program} {options}"), program, options))
        .filter(|(name, ..)| world.wants(name))
        .map(|(name, program, options)| Case::of(name, one_pingpong(world, program, options)))
        .collect())
}

fn one_pingpong(world: &World, program: &str, options: &str) -> Result<()> {
    let outputs = pair(world, program, options, "")?;
    for output in [&outputs.0, &outputs.1] {
        ensure!(
            output.contains("bytes in") && !output.contains("invalid data"),
            "wrong bytes arrived:\n{output}"
        );
    }
    Ok(())
}

/// Option of every perftest run: no warning about the processor's frequency.
const QUIET: &str = "-F";

/// Programs of perftest and options; the sizes of `-a` go to 8 MiB, or to one packet for datagrams.
const PERFTESTS: &[(&str, &[&str])] = &[
    (
        "ib_write_lat",
        &[
            "-n 500",
            "-n 10 -a",
            "-c UC -n 10 -a",
            "-n 500 -s 64 -I 64",
            "-n 500 -s 8 -I 0",
            "-c DC -n 500",
            "-c XRC -n 500",
        ],
    ),
    (
        "ib_write_bw",
        &[
            "-n 50 -a",
            "-n 50 -a -b",
            "-c UC -n 50 -a",
            "-c UC -n 50 -a -b",
            "-n 500 -q 16",
            "-n 500 -q 16 -b",
            "-n 512 -s 64 -I 64 -l 8",
            "-n 500 -Q 1",
            "-n 500 -s 4096 -m 1024 -S 2",
            "-c DC -n 20 -a",
            "-c DC -n 200 -q 4 -b",
        ],
    ),
    (
        "ib_read_lat",
        &[
            "-n 500",
            "-n 10 -a",
            "-n 500 -e",
            "-n 500 -o 1",
            "-c DC -n 500",
        ],
    ),
    (
        "ib_read_bw",
        &[
            "-n 50 -a",
            "-n 50 -a -b",
            "-n 500 -q 16",
            "-n 200 -e",
            "-n 200 -o 1 -q 2",
            "-c DC -n 20 -a",
            "-c XRC -n 20 -a",
        ],
    ),
    (
        "ib_send_lat",
        &[
            "-n 500",
            "-n 10 -a",
            "-c UC -n 10 -a",
            "-c UD -n 10 -a",
            "-n 500 -e",
            "-c UD -n 500 -e",
            "-n 500 --use-srq",
            "-c UD -n 500 --use-srq",
            "-n 500 -s 64 -I 64",
            "-c UD -n 1000 -s 64 -I 64",
            "-c DC -n 500",
            "-c DC -n 200 -e",
            "-c XRC -n 500",
        ],
    ),
    (
        "ib_send_bw",
        &[
            "-n 50 -a",
            "-n 50 -a -b",
            "-c UC -n 50 -a",
            "-c UD -n 500 -a",
            "-n 200 -e",
            "-n 200 -q 16",
            "-n 200 -q 8 --use-srq",
            "-n 200 -q 8 -b --use-srq",
            "-n 512 -s 64 -I 64 -l 8",
            "-c UD -n 500 -s 1024 -b",
            "-c DC -n 20 -a",
            "-c XRC -n 200 -q 4",
        ],
    ),
    (
        "ib_atomic_lat",
        &[
            "-n 1000 -A FETCH_AND_ADD",
            "-n 1000 -A CMP_AND_SWAP",
            "-n 500 -e",
            "-c DC -n 500",
            "-c XRC -n 500",
        ],
    ),
    (
        "ib_atomic_bw",
        &[
            "-n 1000 -A FETCH_AND_ADD",
            "-n 1000 -A CMP_AND_SWAP -b",
            "-n 500 -q 8 -o 4",
            "-n 200 -e",
            "-c DC -n 200 -A CMP_AND_SWAP",
        ],
    ),
];

/// The known perftest defect that caused a test's failure, if any. The test then counts as skipped.
fn own_fault(case: &Case) -> Option<&'static str> {
    /// Messages of the defects. With a queue of one request and one channel for both completion queues, perftest
    /// confuses the event of the answer with that of its own request; and a DC server never releases one of the two
    /// queues.
    const FAULTS: [&str; 2] = ["Failed to close event channel", "Couldn't post send: scnt="];
    let Outcome::Failed(detail) = &case.outcome else {
        return None;
    };
    let is_known = case.name.contains("-c DC") && case.name.contains(" -e");
    let said = FAULTS.iter().any(|fault| detail.contains(fault));
    (is_known && said).then_some("perftest's own fault with events on DC")
}

pub(super) fn perftest(world: &World) -> Result<Vec<Case>> {
    let rows = PERFTESTS
        .iter()
        .flat_map(|(program, rows)| rows.iter().map(move |options| (program, options)));
    /// GID indices of an Ethernet port: IPv4 and IPv6 in RoCE v2, link-local in both versions.
    const GIDS: [&str; 4] = ["3", "5", "1", "0"];
    let with_gid = |(number, (program, options)): (usize, (_, &&str))| {
        let gid = GIDS[number % GIDS.len()];
        match world.link {
            Link::Ethernet => (program, format!("{options} -x {gid}")),
            Link::Infiniband | Link::InfinibandGrh => (program, (*options).to_owned()),
        }
    };
    Ok(rows
        .enumerate()
        .map(with_gid)
        .map(|(program, options)| (format!("{program} {options}"), program, options))
        .filter(|(name, ..)| world.wants(name))
        .map(|(name, program, options)| {
            let result = pair(world, program, &options, QUIET).map(drop);
            let mut case = Case::of(name, result);
            if let Some(reason) = own_fault(&case) {
                case.outcome = Outcome::Skipped(reason.to_owned());
            }
            case
        })
        .collect())
}

/// Runs a program as server and client on a new device; the device must not refuse any request.
fn pair(world: &World, program: &str, options: &str, more: &str) -> Result<(String, String)> {
    let testbed = Testbed::new(world)?;
    let tool = testbed.verbs_tool(program);
    let port = free_port()?;
    let command = |function: &str| {
        let mut command = testbed.command(function, &tool);
        command
            .args(["-d", "mlx5_0", "-p", &port.to_string()])
            .args(options.split_whitespace())
            .args(more.split_whitespace());
        command
    };
    let (mut server, mut client) = (command(SERVER), command(CLIENT));
    let outputs = run(&mut server, client.arg("127.0.0.1"), port, LIMIT)?;
    testbed
        .ensure_nothing_refused()
        .with_context(|| format!("{}\n{}", outputs.0, outputs.1))?;
    let moved = testbed.stats()?.counted("wqes", |name| name != "flushed")?;
    ensure!(moved > 0, "the device executed nothing");
    Ok(outputs)
}
