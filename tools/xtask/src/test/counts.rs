//! Counts of instructions and of memory that must not grow.

use super::tally::Case;
use crate::bench::{hotpath, instructions, scale, service, storage};
use crate::setup::Env;
use anyhow::Result;

/// Maximum ratio of a hot path's instructions to its peer's in the same run. The pool maintains states, numbers and an
/// order, which the C list does not.
const INSTRUCTIONS: [(&str, f64); 2] = [("lease_release", 1.5), ("alias_hit", 1.0)];

/// A miss at a map of 65,536 aliases in use, and the numbers of a map of 20,000, which a service process reads in each call.
const MAP_INSTRUCTIONS: [(&str, &str, f64); 2] = [
    ("alias_full", "a miss at a full map", 2000.0),
    (
        "alias_stats",
        "the numbers of a map of 20,000 aliases",
        200.0,
    ),
];

/// Ranks, service processes per node, and the maximum number of instructions of the services' own code per block. With
/// few ranks, the messages of a call cost more than its blocks.
const SERVICE_INSTRUCTIONS: [(u32, u32, f64); 5] = [
    (16, 1, 575.0),
    (64, 1, 193.0),
    (64, 4, 442.0),
    (256, 1, 127.0),
    (256, 4, 183.0),
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
const SCALE: [(&str, f64, f64, f64); 4] = [
    ("alltoall", 2048.0, 2048.0, 2.2 * 8.0 * 16_384.0),
    ("halo", 1024.0, 64.0, 2048.0),
    ("broadcast", 1024.0, 20.0, 1024.0),
    ("barrier", 1024.0, 18.0, 1024.0),
];
const SCALE_MEMORY_MAX: f64 = (64 << 20) as f64 + 32.0 * 2048.0;

/// Maximum instructions and calls of the allocator for a random write of 4 KiB to a block volume with targets in memory, a
/// flush behind each 64 included. A third of the instructions compress, checksum and copy the data.
const STORAGE_WRITE: [(&str, f64); 2] = [("instructions", 130_000.0), ("allocations", 32.0)];

/// Checks the cost of a small write to a block volume.
fn storage_write() -> Result<Vec<Case>> {
    let found = storage::per_write()?;
    let cases = STORAGE_WRITE
        .iter()
        .zip(found)
        .map(|((what, most), found)| {
            let name = format!("{what} of a random write of 4 KiB to a volume in memory");
            match found > 0.0 && found <= *most {
                true => Case::pass(name),
                false => Case::fail(name, format!("{found:.1}; at most {most}")),
            }
        });
    Ok(cases.collect())
}

/// Checks the messages and memory of a service in a large job.
fn at_scale() -> Result<Vec<Case>> {
    let cases = SCALE.iter().map(|&(collective, bytes, messages, memory)| {
        let name = format!("bytes, messages and memory of a {collective} of 16,384 ranks");
        let found = scale::counts(16_384, 512, collective)?;
        let is_kept = found.bytes() <= bytes
            && found.messages <= messages
            && found.memory_per_rank <= memory
            && found.memory_per_service <= SCALE_MEMORY_MAX;
        Ok(match is_kept {
            true => Case::pass(name),
            false => Case::fail(
                name,
                format!("{found:?}; at most {bytes}, {messages}, {memory} and {SCALE_MEMORY_MAX}"),
            ),
        })
    });
    cases.collect()
}

/// Checks memory and connect work of the service processes per rank.
fn services_per_rank() -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    for (ranks, services) in SERVICE_ALLOCATIONS {
        let name =
            format!("allocations of {services} services per node in later calls of {ranks} ranks");
        cases.push(match service::later_allocations(ranks, services)? {
            0.0 => Case::pass(name),
            found => Case::fail(name, format!("{found} in 16 calls")),
        });
    }
    for (ranks, services) in SERVICE_MEMORY {
        let name = format!("memory of {services} services per node per rank of {ranks}");
        let found = service::bytes_per_rank(ranks, services)?;
        cases.push(if found > 0.0 && found <= SERVICE_BYTES_MAX {
            Case::pass(name)
        } else {
            Case::fail(
                name,
                format!("{found:.0} bytes; at most {SERVICE_BYTES_MAX}"),
            )
        });
    }
    for services in [1, 4] {
        let name = format!("instructions of {services} services per node for a rank that connects");
        let few = service::per_connect(64, 256, services)?;
        let many = service::per_connect(256, 1024, services)?;
        let most = CONNECT_INSTRUCTIONS_MAX.min(few * CONNECT_GROWTH_MAX);
        cases.push(if few > 0.0 && many > 0.0 && many <= most {
            Case::pass(name)
        } else {
            let detail =
                format!("{few:.0} up to 256 ranks, {many:.0} up to 1,024; at most {most:.0}");
            Case::fail(name, detail)
        });
    }
    Ok(cases)
}

/// Checks the counts of an export and its release in strict mode against stock UCX.
fn hot_path(env: &Env) -> Result<Vec<Case>> {
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

/// Compares all counts with their limits.
pub(super) fn cases(env: &Env) -> Result<Vec<Case>> {
    if !instructions::can_count()? {
        println!("counts   not run: valgrind is not installed (apt-get install valgrind)");
        return Ok(Vec::new());
    }
    let pool = INSTRUCTIONS.iter().map(|&(subject, most)| {
        let name = format!("instructions of {subject}");
        let ours = instructions::per_round(env, subject, "ours")?;
        let peer = instructions::per_round(env, subject, "peer")?;
        Ok(if ours > 0.0 && peer > 0.0 && ours <= most * peer {
            Case::pass(name)
        } else {
            Case::fail(
                name,
                format!("{ours:.1}, the peer {peer:.1}; at most {most} times"),
            )
        })
    });
    let maps = MAP_INSTRUCTIONS.iter().map(|&(subject, what, most)| {
        let name = format!("instructions of {what}");
        let found = instructions::per_round(env, subject, "ours")?;
        Ok(if found > 0.0 && found <= most {
            Case::pass(name)
        } else {
            Case::fail(name, format!("{found:.1}; at most {most}"))
        })
    });
    let hot_path = hot_path(env)?.into_iter().map(Ok);
    service::build()?;
    let services = SERVICE_INSTRUCTIONS.iter().map(|&(ranks, services, most)| {
        let name =
            format!("instructions of {services} services per node for a block of {ranks} ranks");
        let found = service::per_block(ranks, services)?;
        Ok(if found > 0.0 && found <= most {
            Case::pass(name)
        } else {
            Case::fail(name, format!("{found:.0}; at most {most}"))
        })
    });
    let per_rank = services_per_rank()?.into_iter().map(Ok);
    let scale = at_scale()?.into_iter().chain(storage_write()?).map(Ok);
    let all = pool.chain(maps).chain(hot_path);
    all.chain(services).chain(per_rank).chain(scale).collect()
}
