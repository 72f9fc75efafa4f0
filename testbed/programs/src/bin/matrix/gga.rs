//! Defects of stock UCX on memory domains of its GGA transport. The library serves these domains if UCX calls it by name.

use crate::Ucx;
use crate::cases::{Case, Outcome, Pair, case};
use crate::counters::counted;
use crate::defects::must_fail;
use crate::peer::{EntryPoint, Launch};

pub(crate) const CASES: &[Case] = &[Case {
    failing: Some("gga-counters"),
    // 1.18 demands a capability that the device lacks; the binary of 1.23 is built without this transport.
    fits: |ucx| ucx.is_since((1, 19)) && !ucx.is_since((1, 22)),
    ..case(
        "D16 and D17 imported memory has no key on a GGA domain, and ordinary keys take one of the pool",
        &[EntryPoint::Absent, EntryPoint::Preload],
        domains,
    )
}];

/// Ordinary keys of a run.
const ROUNDS: u32 = 10;
const BYTES: u64 = 65_536;

fn domains(launch: &Launch, ucx: &Ucx, entry_point: EntryPoint) -> Outcome {
    let launch = launch.on("gga")?;
    let variables = [("UCX_TLS", "rc_x,gga")];
    let mut pair = Pair::start(&launch, ucx, (entry_point, entry_point), &variables)?;
    pair.share(1, BYTES)?;
    // D17, with the library too: UCX asks for an exported key whenever it packs an ordinary one.
    let before = counted(&launch, "/wqes/umr_bind")?;
    for id in 2..2 + ROUNDS {
        pair.host.ask(&format!("map {id} {BYTES} {id}"))?;
        pair.host.ask(&format!("rkey {id}"))?;
        pair.host.ask(&format!("unmap {id}"))?;
        pair.host.ask(&format!("free {id}"))?;
    }
    let binds = counted(&launch, "/wqes/umr_bind")? - before;
    if binds != i64::from(ROUNDS) {
        return Err(format!("{ROUNDS} ordinary keys took {binds} binds"));
    }
    if entry_point == EntryPoint::Absent || launch.is_bound_inside {
        // D16: a UCX that checks parameters refuses, the others end by a fault.
        let checked = pair.check(1, 1);
        let refused = must_fail(checked.clone(), "Invalid parameter");
        return refused.or_else(|_| must_fail(checked, "it died"));
    }
    pair.check(1, 1)?;
    pair.forget(1)?;
    pair.end()
}
