//! Repeats one operation, for instruction counters: run it under `valgrind --tool=callgrind` with
//! two numbers of rounds, and divide the difference.
//!
//! ```text
//! pool-instructions lease_release|alias_hit|alias_stats|alias_full ours|peer ROUNDS
//! pool-instructions alias_hit marked ROUNDS
//! ```
//!
//! The subjects and their peers are those of the benchmarks. The second form is for the crate `step-count`: a round is one
//! hit, with label 1, or two hits of different aliases, with label 2. The difference of their cache lines is what each hit
//! reads beside the lines that every hit reads.

use std::error::Error;
use std::hint::black_box;

use pool_bench::peer::{Peer, Processor};
use pool_bench::subject::{Full, POOL_KEYS, attach, keys, lease, map, pool};

const USAGE: &str = "usage: pool-instructions lease_release|alias_hit|alias_stats|alias_full ours|peer|marked ROUNDS";

/// Number of the system call of a mark, see `step-count`.
const MARK: i64 = 0x5847_564d;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [what, whose, rounds] = words.as_slice() else {
        return Err(USAGE.into());
    };
    let rounds: u64 = rounds.parse()?;
    match (what.as_str(), whose.as_str()) {
        ("lease_release", "ours") => lease(&pool(), rounds),
        ("lease_release", "peer") => {
            let peer = Peer::list(Processor::Any).ok_or("no peer")?;
            peer.make(POOL_KEYS).run(rounds);
        }
        ("alias_hit", "ours") => {
            let keys = keys();
            attach(&map(&keys), &keys, rounds);
        }
        ("alias_hit", "peer") => {
            let numbers: Vec<u64> = keys().iter().map(|key| key.map_key()).collect();
            let peer = Peer::table(Processor::Any).ok_or("no peer")?;
            peer.fill(&numbers).run(rounds);
        }
        ("alias_hit", "marked") => {
            let keys = keys();
            let map = map(&keys);
            // Warm: the first hit of a thread numbers it.
            attach(&map, &keys, 100);
            for pair in keys.chunks_exact(2).cycle().take(usize::try_from(rounds)?) {
                // On the stack, whose lines are not counted.
                let pair = std::hint::black_box([pair[0], pair[1]]);
                for (label, count) in [(1, 1), (2, 2)] {
                    mark(label);
                    attach(&map, &pair, count);
                    mark(0);
                }
            }
        }
        ("alias_stats", "ours") => {
            let map = map(&keys());
            for _ in 0..rounds {
                black_box(map.stats_without_hits());
            }
        }
        ("alias_full", "ours") => Full::filled().miss(rounds),
        _ => return Err(USAGE.into()),
    }
    Ok(())
}

fn mark(label: u64) {
    // SAFETY: no kernel implements this system call: it fails without an effect.
    unsafe { libc::syscall(MARK, label) };
}
