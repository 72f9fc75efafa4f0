//! The case of firmware that makes relaxed-ordering keys only: UCX 1.23 then creates a key for each
//! export, and an alias for each import. The library's pool and aliases work as on other firmware.

use crate::Ucx;
use crate::cases::{Case, Outcome, Pair};
use crate::counters::counted;
use crate::peer::{EntryPoint, Launch};

pub(crate) const CASES: &[Case] = &[Case {
    name: "firmware with relaxed ordering only keeps the pool",
    entry_points: &[
        EntryPoint::Absent,
        EntryPoint::Preload,
        EntryPoint::Plugin,
        EntryPoint::Both,
    ],
    // Earlier versions do not know the firmware, and register no memory on it.
    fits: |ucx| ucx.is_since((1, 23)),
    failing: Some("relaxed-counters"),
    run,
}];

/// Buffers of a run.
const ROUNDS: u32 = 10;
/// Buffers before, which connect, open the pool and fill it.
const WARM_UP: u32 = 2;
const BYTES: u64 = 65_536;
/// Commands of keys and aliases, with their figures.
const COMMANDS: [(&str, &str); 5] = [
    ("/commands/create_mkey", "create_mkey"),
    (
        "/commands/allow_other_vhca_access",
        "allow_other_vhca_access",
    ),
    ("/commands/destroy_mkey", "destroy_mkey"),
    ("/commands/create_alias", "create_alias"),
    ("/commands/destroy_alias", "destroy_alias"),
];

fn run(launch: &Launch, ucx: &Ucx, entry_point: EntryPoint) -> Outcome {
    let launch = launch.on("relaxed")?;
    // One key, so all rounds use it and its alias.
    let variables = [("UCX_XGVMI_POOL_MAX", "1")];
    let mut pair = Pair::start(&launch, ucx, (entry_point, entry_point), &variables)?;
    let count = || -> Result<[i64; COMMANDS.len()], String> {
        let mut counts = [0; COMMANDS.len()];
        for (count, (pointer, _)) in counts.iter_mut().zip(COMMANDS) {
            *count = counted(&launch, pointer)?;
        }
        Ok(counts)
    };
    let mut before = count()?;
    for id in 1..=WARM_UP + ROUNDS {
        if id == WARM_UP + 1 {
            before = count()?;
        }
        pair.share(id, BYTES)?;
        pair.check(id, id)?;
        pair.forget(id)?;
    }
    let mut made = count()?;
    for ((made, before), (_, figure)) in made.iter_mut().zip(before).zip(COMMANDS) {
        *made -= before;
        launch.figures.add(figure, made.unsigned_abs());
    }
    pair.end()?;
    // Stock UCX: one of each command for each buffer.
    let expect = match entry_point {
        EntryPoint::Absent => [i64::from(ROUNDS); COMMANDS.len()],
        _ => [0; COMMANDS.len()],
    };
    match made == expect {
        true => Ok(()),
        false => Err(format!(
            "{ROUNDS} buffers: {COMMANDS:?}: {made:?}, not {expect:?}"
        )),
    }
}
