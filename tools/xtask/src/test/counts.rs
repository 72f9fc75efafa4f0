//! Counts of instructions and of memory that must not grow.

use super::tally::Case;
use crate::bench::{hotpath, instructions, scale, service, storage};
use crate::process;
use crate::setup::Env;
use anyhow::{Result, anyhow, ensure};

/// Maximum ratio of a hot path's instructions to its peer's in the same run. The pool maintains states, numbers and an
/// order, which the C list does not.
const INSTRUCTIONS: [(&str, f64); 2] = [("lease_release", 1.5), ("alias_hit", 1.0)];

/// A miss at a map of 65,536 aliases in use, and the numbers of a map of 20,000, which a service process reads after imports.
const MAP_INSTRUCTIONS: [(&str, &str, f64); 2] = [
    ("alias_full", "a miss at a full map", 2000.0),
    (
        "alias_stats",
        "the numbers of a map of 20,000 aliases",
        200.0,
    ),
];

/// Ranks, service processes per node, and the maximum number of instructions of the services' own code per block. With
/// few ranks, the messages of a call cost more than its blocks, and more service processes change nothing. The numbers
/// contain the look for kept imports and keys, and nothing of UCX.
///
/// The calls repeat. In one of 16 ranks on two nodes a HOST_ARRIVE takes 1,100 with the offers that follow from it; the cost of all
/// messages is about 1,450 per message, 300 for the blocks of a rank for one service, and 65 per block. With UCX, a block of 16 ranks
/// takes 95 more: the start and the end of its read. The main loop makes one or two system calls in 128 blocks. UCX takes 900
/// beside them. Allocations follow from the time alone: frames of heartbeats, and UCX's keepalive
/// (`ucp_ep_do_uct_ep_am_keepalive`), which packs the worker's address for each connection, by default each 20 s.
const SERVICE_INSTRUCTIONS: [(u32, u32, f64); 8] = [
    (4, 1, 1390.0),
    (4, 4, 1390.0),
    (16, 1, 255.0),
    (16, 4, 255.0),
    (64, 1, 78.0),
    (64, 4, 176.0),
    (256, 1, 61.0),
    (256, 4, 95.0),
];

/// Ranks, and service processes per node, of jobs whose later calls allocate no memory.
const SERVICE_ALLOCATIONS: [(u32, u32); 4] = [(4, 1), (16, 1), (64, 1), (64, 4)];

/// Ranks, and service processes per node, of jobs whose memory is checked.
const SERVICE_MEMORY: [(u32, u32); 4] = [(256, 1), (256, 4), (1024, 1), (1024, 4)];

/// Maximum peak memory of the services in bytes per rank. It is the same in each run.
const SERVICE_BYTES_MAX: f64 = 24.0 * 1024.0;

/// Maximum instructions of both ends for a rank that connects, and maximum ratio of those in a job of up to 1,024 ranks to
/// those in a job of up to 256. Work that grows with the job has a ratio of four.
const CONNECT_INSTRUCTIONS_MAX: f64 = 125_000.0;
const CONNECT_GROWTH_MAX: f64 = 1.5;

/// Collectives of 16,384 ranks on 512 nodes, with the most bytes per rank, the most messages of a service, and the most
/// memory of a rank, which in an alltoall has its data twice, 8 bytes for each member.
const SCALE: [(&str, f64, f64, f64); 7] = [
    ("alltoall", 2048.0, 2048.0, 2.2 * 8.0 * 16_384.0),
    ("halo", 1024.0, 64.0, 2048.0),
    ("broadcast", 1024.0, 20.0, 1024.0),
    ("barrier", 1024.0, 18.0, 1024.0),
    ("allreduce", 1024.0, 36.0, 1024.0),
    ("allreduce-64k", 1024.0, 36.0, 1024.0),
    ("allreduce-1m", 4096.0, 3220.0, 1024.0),
];
const SCALE_MEMORY_MAX: f64 = (64 << 20) as f64 + 32.0 * 2048.0;

/// Maximum instructions and calls of the allocator for a write to a block volume with targets in memory, a flush behind each 64
/// included: a random one of 4 KiB, and one of 256 KiB in order.
const STORAGE_WRITE: [(&str, [(&str, f64); 2]); 2] = [
    (
        "random write of 4 KiB",
        [("instructions", 95_000.0), ("allocations", 20.0)],
    ),
    (
        "write of 256 KiB in order",
        [("instructions", 1_945_000.0), ("allocations", 215.0)],
    ),
];

/// The cases of the hot path are measured together: a filter selects all of them by a part of this text.
const HOT_PATH: &str = "hot path: export and release through UCX, library, pool, emulator";

/// The words of the command line.
#[derive(Clone, Copy)]
struct Filters<'a>(&'a [String]);

impl Filters<'_> {
    /// Whether the filters select this name.
    fn select(self, name: &str) -> bool {
        self.0.is_empty() || self.0.iter().any(|word| name.contains(word.as_str()))
    }

    /// The cases of the items whose names are selected. The others are not measured.
    fn cases<I: Copy>(
        self,
        items: &[I],
        name: impl Fn(I) -> String,
        measure: impl Fn(I) -> Result<Verdict>,
    ) -> Result<Vec<Case>> {
        let wanted = items.iter().map(|item| (*item, name(*item)));
        let wanted = wanted.filter(|(_, name)| self.select(name));
        let cases = wanted.map(|(item, name)| {
            Ok(match measure(item)? {
                Ok(()) => Case::pass(name),
                Err(detail) => Case::fail(name, detail),
            })
        });
        cases.collect()
    }
}

/// Whether a count is kept, or what is wrong with it.
type Verdict = std::result::Result<(), String>;

/// A count above zero and not above its limit.
fn within(found: f64, most: f64) -> Verdict {
    match found > 0.0 && found <= most {
        true => Ok(()),
        false => Err(format!("{found:.1}; at most {most:.1}")),
    }
}

/// Checks the cost of a small write to a block volume.
fn storage_write(filters: Filters<'_>) -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    for ((write, most), runs) in STORAGE_WRITE.into_iter().zip(storage::WRITES) {
        let name = |what: &str| format!("{what} of a {write} to a volume in memory");
        if !most.iter().any(|(what, _)| filters.select(&name(what))) {
            continue;
        }
        let found = storage::per_write(runs)?;
        let items: Vec<_> = most.into_iter().zip(found).collect();
        cases.extend(filters.cases(
            &items,
            |((what, _), _)| name(what),
            |((_, most), found)| Ok(within(found, most)),
        )?);
    }
    Ok(cases)
}

/// Checks the messages and memory of a service in a large job.
fn at_scale(filters: Filters<'_>) -> Result<Vec<Case>> {
    let mut cases = filters.cases(
        &SCALE,
        |(collective, ..)| format!("bytes, messages and memory of a {collective} of 16,384 ranks"),
        |(collective, bytes, messages, memory)| {
            let found = scale::counts(16_384, 512, collective)?;
            let is_kept = found.bytes() <= bytes
                && found.messages <= messages
                && found.memory_per_rank <= memory
                && found.memory_per_service <= SCALE_MEMORY_MAX;
            Ok(match is_kept {
                true => Ok(()),
                false => Err(format!(
                    "{found:?}; at most {bytes}, {messages}, {memory} and {SCALE_MEMORY_MAX}"
                )),
            })
        },
    )?;
    cases.extend(filters.cases(
        &[scale::FLAT_MAX],
        |most| {
            let (of, (ranks, _)) = (scale::DENSE, scale::FLAT_SAMPLE);
            format!("instructions for a block of an {of} of {ranks} ranks: at most {most} times those of 64")
        },
        |most| Ok(within(scale::measured_flat()?, most)),
    )?);
    Ok(cases)
}

/// Checks the instructions, allocations, memory and connect work of the service processes.
fn services(filters: Filters<'_>) -> Result<Vec<Case>> {
    let mut cases = filters.cases(
        &SERVICE_INSTRUCTIONS,
        |(ranks, services, _)| {
            format!("instructions of {services} services per node for a block of {ranks} ranks")
        },
        |(ranks, services, most)| Ok(within(service::per_block(ranks, services)?, most)),
    )?;
    cases.extend(filters.cases(
        &SERVICE_ALLOCATIONS,
        |(ranks, services)| {
            format!("allocations of {services} services per node in later calls of {ranks} ranks")
        },
        |(ranks, services)| {
            Ok(match service::later_allocations(ranks, services)? {
                0.0 => Ok(()),
                found => Err(format!("{found} in 16 calls")),
            })
        },
    )?);
    cases.extend(filters.cases(
        &SERVICE_MEMORY,
        |(ranks, services)| format!("memory of {services} services per node per rank of {ranks}"),
        |(ranks, services)| {
            let found = service::bytes_per_rank(ranks, services)?;
            Ok(within(found, SERVICE_BYTES_MAX))
        },
    )?);
    cases.extend(filters.cases(
        &[1, 4],
        |services| format!("instructions of {services} services per node for a rank that connects"),
        |services| {
            let few = service::per_connect(64, 256, services)?;
            let many = service::per_connect(256, 1024, services)?;
            let most = CONNECT_INSTRUCTIONS_MAX.min(few * CONNECT_GROWTH_MAX);
            Ok(match few > 0.0 && many > 0.0 && many <= most {
                true => Ok(()),
                false => Err(format!(
                    "{few:.0} up to 256 ranks, {many:.0} up to 1,024; at most {most:.0}"
                )),
            })
        },
    )?);
    Ok(cases)
}

/// Checks the counts of an export and its release in strict mode against stock UCX.
fn hot_path(env: &Env, filters: Filters<'_>) -> Result<Vec<Case>> {
    if !filters.select(HOT_PATH) {
        return Ok(Vec::new());
    }
    if !cfg!(target_arch = "x86_64") {
        println!("counts   of the hot path not run: only for x86_64");
        return Ok(Vec::new());
    }
    let judged = hotpath::judge(env)?;
    let cases = judged.into_iter().map(|(name, failure)| match failure {
        None => Case::pass(name),
        Some(detail) => Case::fail(name, detail),
    });
    Ok(cases.collect())
}

/// The counts of service processes and of the block volume.
fn of_services(filters: Filters<'_>) -> Result<Vec<Case>> {
    service::build()?;
    let mut cases = services(filters)?;
    cases.extend(at_scale(filters)?);
    cases.extend(storage_write(filters)?);
    Ok(cases)
}

/// Compares the counts that the words select, or all of them, with their limits.
pub(super) fn cases(env: &Env, words: &[String]) -> Result<Vec<Case>> {
    let filters = Filters(words);
    if !instructions::can_count()? {
        println!("counts   not run: valgrind is not installed (apt-get install valgrind)");
        return Ok(Vec::new());
    }
    let mut cases = filters.cases(
        &INSTRUCTIONS,
        |(subject, _)| format!("instructions of {subject}"),
        |(subject, most)| {
            let ours = instructions::per_round(env, subject, "ours")?;
            let peer = instructions::per_round(env, subject, "peer")?;
            Ok(match ours > 0.0 && peer > 0.0 && ours <= most * peer {
                true => Ok(()),
                false => Err(format!(
                    "{ours:.1}, the peer {peer:.1}; at most {most} times"
                )),
            })
        },
    )?;
    cases.extend(filters.cases(
        &MAP_INSTRUCTIONS,
        |(_, what, _)| format!("instructions of {what}"),
        |(subject, _, most)| {
            let found = instructions::per_round(env, subject, "ours")?;
            Ok(within(found, most))
        },
    )?);
    // The steps of the hot path and the runs of valgrind count instructions, which no load changes.
    let (stepped, counted) = std::thread::scope(|scope| {
        let stepped = scope.spawn(|| (hot_path(env, filters), process::used()));
        let counted = of_services(filters);
        (stepped.join(), counted)
    });
    let (stepped, used) = stepped.map_err(|_| anyhow!("the thread of the hot path has failed"))?;
    process::charge(used);
    cases.extend(stepped?);
    cases.extend(counted?);
    ensure!(
        words.is_empty() || !cases.is_empty(),
        "no count has one of these words in its name: {}",
        words.join(" ")
    );
    Ok(cases)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn only_what_the_words_select_is_measured() {
        let check = |words: &[&str], expect: &[u32]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            let measured = RefCell::new(Vec::new());
            let cases = Filters(&words).cases(
                &[4, 16, 64],
                |ranks: u32| format!("a block of {ranks} ranks"),
                |ranks| {
                    measured.borrow_mut().push(ranks);
                    Ok(within(f64::from(ranks), 16.0))
                },
            );
            let cases = cases.expect("measured");
            assert_eq!(*measured.borrow(), expect);
            assert_eq!(cases.len(), expect.len());
            let failed = cases.iter().filter(|case| case.is_failure()).count();
            assert_eq!(failed, usize::from(expect.contains(&64)));
        };
        check(&[], &[4, 16, 64]);
        check(&["of 16"], &[16]);
        check(&["of 16", "64"], &[16, 64]);
        check(&["connect"], &[]);
    }
}
