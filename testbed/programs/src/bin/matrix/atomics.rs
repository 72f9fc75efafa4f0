//! The case of atomics on exported memory: UCX creates a second key for each such buffer, the library
//! does not, and the atomics work in both.

use crate::Ucx;
use crate::cases::{Case, Outcome, case};
use crate::counters::counted;
use crate::peer::{EntryPoint, Launch, Peer, Side};

pub(crate) const CASES: &[Case] = &[Case {
    failing: Some("counters"),
    ..case(
        "atomics on exported memory take no second key",
        &[EntryPoint::Absent, EntryPoint::Preload],
        run,
    )
}];

/// Buffers of a run.
const ROUNDS: u32 = 10;
/// Buffers before, which connect and fill UCX's pool of exported keys.
const WARM_UP: u32 = 2;
/// Atomics on each buffer.
const ADDS: i64 = 16;
const BYTES: u32 = 65_536;

/// One way to use a buffer.
struct Use {
    /// Variables of the process.
    variables: &'static [(&'static str, &'static str)],
    /// Requests between registration and atomics.
    requests: [&'static str; 2],
    /// Second keys for each buffer, without and with the library.
    keys: fn(&Ucx) -> [i64; 2],
}

/// By default UCX decides this by the processor.
const STRICT: (&str, &str) = ("UCX_IB_PCI_RELAXED_ORDERING", "n");

const USES: [Use; 4] = [
    Use {
        variables: &[STRICT],
        requests: ["export", "rkey"],
        keys: |_| [1, 0],
    },
    // UCX's second key exists at the export, so all remote keys of the buffer contain it.
    Use {
        variables: &[STRICT],
        requests: ["rkey", "export"],
        keys: |_| [1, 1],
    },
    // Atomics must use a registration with strict order, so UCX's second key stays.
    Use {
        variables: &[("UCX_IB_PCI_RELAXED_ORDERING", "try")],
        requests: ["export", "rkey"],
        keys: |_| [1, 1],
    },
    // UCX 1.18 accepts the setting and ignores it.
    Use {
        variables: &[STRICT, ("UCX_IB_INDIRECT_ATOMIC", "n")],
        requests: ["export", "rkey"],
        keys: |ucx| [i64::from(!ucx.is_since((1, 19))), 0],
    },
];

fn run(launch: &Launch, ucx: &Ucx, entry_point: EntryPoint) -> Outcome {
    for way in &USES {
        let made = way
            .run(launch, ucx, entry_point)
            .map_err(|error| format!("{way}: {error}"))?;
        let [without, with] = (way.keys)(ucx);
        let expect = match entry_point {
            EntryPoint::Absent => without,
            _ => with,
        };
        let expect = [expect, expect, ADDS].map(|count| count * i64::from(ROUNDS));
        if made != expect {
            return Err(format!("{way}: {made:?}, not {expect:?}"));
        }
    }
    Ok(())
}

impl Use {
    /// Creations and destructions of keys, and atomics, in all rounds.
    fn run(&self, launch: &Launch, ucx: &Ucx, entry_point: EntryPoint) -> Result<[i64; 3], String> {
        let mut variables = vec![
            // Each round registers anew.
            ("UCX_RCACHE_ENABLE", "n"),
            // Atomics by the adapter.
            ("UCX_ATOMIC_MODE", "device"),
        ];
        variables.extend(self.variables);
        let mut host = Peer::start(launch, ucx, Side::Host, entry_point, &variables)?;
        host.ask("atomic 1")?;
        let count = || -> Result<[i64; 3], String> {
            Ok([
                counted(launch, "/commands/create_mkey")?,
                counted(launch, "/commands/destroy_mkey")?,
                counted(launch, "/wqes/atomic")?,
            ])
        };
        let mut before = [0; 3];
        for id in 1..=WARM_UP + ROUNDS {
            if id == WARM_UP + 1 {
                before = count()?;
            }
            host.ask(&format!("map {id} {BYTES} {id}"))?;
            for request in self.requests {
                host.ask(&format!("{request} {id}"))?;
            }
            host.ask(&format!("add {id} {ADDS}"))?;
            host.ask(&format!("unmap {id}"))?;
            host.ask(&format!("free {id}"))?;
        }
        let mut made = count()?;
        for (made, before) in made.iter_mut().zip(before) {
            *made -= before;
        }
        host.end()?;
        Ok(made)
    }
}

impl std::fmt::Display for Use {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [first, second] = self.requests;
        write!(f, "{first} then {second}, {:?}", self.variables)
    }
}
