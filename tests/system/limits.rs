//! The limits of the device, the errors beyond them, and its memory use.

use crate::agent::Agent;
use crate::harness::Case;
use crate::world::{Testbed, World};
use anyhow::{Result, ensure};
use std::collections::BTreeSet;

const FUNCTION: &str = "node0.host";
/// The kernel's error, and libmlx5's error for a refused device command.
const ENOMEM: i32 = 12;

/// A kind of object, and the number that a function can hold in addition to each agent's own.
struct Limit {
    name: &'static str,
    kind: &'static str,
    most: u64,
}

/// The limits in docs/EMULATION.md, section Limits. Channels are absent, because a process cannot
/// open that many files.
const LIMITS: &[Limit] = &[
    Limit {
        name: "limit_domains",
        kind: "pd",
        most: 4096 - 2,
    },
    Limit {
        name: "limit_completion_queues",
        kind: "cq",
        most: 16 * 1024 - 1,
    },
    Limit {
        name: "limit_shared_receive_queues",
        kind: "srq",
        most: 4096,
    },
    Limit {
        name: "limit_queue_pairs",
        kind: "qp",
        most: 16 * 1024,
    },
    // The memory itself uses the first one.
    Limit {
        name: "limit_regions",
        kind: "mr",
        most: 128 * 1024 - 1,
    },
    // Each has a list of at least four entries.
    Limit {
        name: "limit_windows",
        kind: "mw",
        most: 64 * 1024,
    },
    Limit {
        name: "limit_indirect_mkeys",
        kind: "mkey",
        most: 64 * 1024,
    },
    Limit {
        name: "limit_umems",
        kind: "umem",
        most: 64 * 1024,
    },
];

pub(crate) fn cases() -> Vec<Case> {
    let limit = |row: &'static Limit| Case::new(row.name, move |world: &World| full(world, row));
    let mut cases: Vec<Case> = LIMITS.iter().map(limit).collect();
    cases.push(Case::new("limit_memory_of_eight_functions", memory));
    cases.push(Case::new("limit_queue_pair_numbers_rest", numbers_rest));
    cases
}

fn full(world: &World, row: &Limit) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let mut agent = Agent::start(&testbed, FUNCTION)?;
    agent.memory(0, 4096, "w")?;
    let answer = agent.tell(&format!("make {} {}", row.kind, row.most + 1))?;
    let (made, errno): (u64, i32) = (answer.value("made")?, answer.value("errno")?);
    ensure!(
        (made, errno) == (row.most, ENOMEM),
        "{made} were made, then errno {errno}"
    );
    ensure!(
        answer.value::<u32>("again")? == 1,
        "one that goes makes no room"
    );
    let counted = testbed.stats()?.refusals(FUNCTION, "table_full")?;
    ensure!(counted == 1, "counted {counted} times");
    Ok(())
}

/// A queue pair number that a process has left is not used again soon: packets of its former peers would meet the new queue
/// pair.
fn numbers_rest(world: &World) -> Result<()> {
    const PROCESSES: usize = 20;
    let testbed = Testbed::new(world)?;
    let mut numbers = BTreeSet::new();
    for _ in 0..PROCESSES {
        let mut agent = Agent::start(&testbed, FUNCTION)?;
        numbers.insert(agent.tell("qp 0")?.value::<u32>("qpn")?);
        agent.end()?;
    }
    ensure!(
        numbers.len() == PROCESSES,
        "{PROCESSES} queue pairs one after the other have the numbers {numbers:x?}"
    );
    Ok(())
}

/// Eight functions with 4,096 mkeys each, with their translation lists.
fn memory(world: &World) -> Result<()> {
    const MKEYS: u64 = 4096;
    const BYTES_MAX: u64 = 64 << 20;
    let testbed = Testbed::of(world, 4)?;
    let mut agents = Vec::new();
    for node in 0..4 {
        for side in ["host", "dpu"] {
            let function = format!("node{node}.{side}");
            let mut agent = Agent::start(&testbed, &function)?;
            let answer = agent.tell(&format!("make mkey {MKEYS}"))?;
            let made: u64 = answer.value("made")?;
            ensure!(made == MKEYS, "{function} has {made}");
            agents.push(agent);
        }
    }
    let bytes = testbed.device_bytes()?;
    ensure!(bytes <= BYTES_MAX, "{bytes} bytes");
    Ok(())
}
