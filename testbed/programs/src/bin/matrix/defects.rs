//! Defects of stock UCX that occur on a device. Each is tested without the library, where it must
//! occur, and with it, where it must not. Other cases test the library under faults.
//! docs/DEFECTS.md lists them by the same numbers.

use crate::Ucx;
use crate::cases::{Case, Outcome, Pair, Stats, case};
use crate::counters::{aliases, counted};
use crate::peer::{EntryPoint, Launch, Peer, Side};

const BOTH: &[EntryPoint] = &[EntryPoint::Absent, EntryPoint::Preload];
/// Also as a plugin, in a UCX that supports it.
const EACH: &[EntryPoint] = &[EntryPoint::Absent, EntryPoint::Preload, EntryPoint::Plugin];
/// Bytes of a buffer.
const BYTES: u64 = 65_536;
/// Maximum number of counter reads: each takes milliseconds, and a process ends in tens of
/// milliseconds.
const QUESTIONS_MAX: u32 = 500;

/// All observed defects.
pub(crate) const CASES: &[Case] = &[
    Case {
        failing: Some("connect"),
        ..case(
            "D1 a queue pair that cannot be connected is used all the same",
            BOTH,
            unconnected,
        )
    },
    Case {
        failing: Some("bind"),
        ..case("D3 a failed binding fails the export", BOTH, failed_binding)
    },
    Case {
        failing: Some("bind"),
        ..case(
            "D4 after a failed binding every export fails",
            BOTH,
            after_a_failed_binding,
        )
    },
    Case {
        failing: Some("bind"),
        ..case(
            "D6 what cannot be invalidated is never deregistered",
            BOTH,
            leak,
        )
    },
    Case {
        failing: Some("lowest"),
        ..case(
            "D7 a restarted exporter's key is taken for its predecessor's",
            EACH,
            restarted,
        )
    },
    Case {
        failing: Some("counters"),
        ..case(
            "D8 and D14 what was imported is kept until the end",
            EACH,
            kept_aliases,
        )
    },
    case(
        "D9 a key just invalidated is bound again at once",
        BOTH,
        reused_at_once,
    ),
    Case {
        failing: Some("alias"),
        ..case(
            "D11 after a failed import the next one succeeds with nothing",
            BOTH,
            empty_import,
        )
    },
    case(
        "D13 a new export beneath an import that is held ends the importer",
        EACH,
        replaced,
    ),
    case(
        "D24 small transfers from imported memory are copied",
        &[EntryPoint::Absent, EntryPoint::Preload, EntryPoint::Module],
        copied,
    ),
    Case {
        failing: Some("allow"),
        ..case(
            "survives a key that may not be opened",
            &[EntryPoint::Preload],
            |launch, ucx, entry_point| survives(launch, ucx, entry_point, "allow"),
        )
    },
    Case {
        failing: Some("panic"),
        ..case(
            "survives a panic at each place",
            &[EntryPoint::Preload],
            panics,
        )
    },
    Case {
        failing: Some("panic"),
        ..case("survives without memory", &[EntryPoint::Preload], shortage)
    },
    Case {
        failing: Some("never"),
        ..case(
            "survives a binding that never completes",
            &[EntryPoint::Preload],
            |launch, ucx, entry_point| survives(launch, ucx, entry_point, "never"),
        )
    },
    Case {
        failing: Some("invalidate"),
        ..case(
            "survives an invalidation that fails",
            &[EntryPoint::Preload],
            |launch, ucx, entry_point| survives(launch, ucx, entry_point, "invalidate"),
        )
    },
];

/// The launch with the failing command on this side.
fn failing(launch: &Launch, name: &str, side: Side) -> Result<Launch, String> {
    let found = launch.failing.iter().find(|(has, _)| has == name);
    let (_, command) = found.ok_or_else(|| format!("no failing command {name}"))?;
    let mut launch = launch.clone();
    match side {
        Side::Host => launch.host.clone_from(command),
        Side::Dpu => launch.dpu.clone_from(command),
    }
    Ok(launch)
}

/// The host of such a pair.
fn start_host(launch: &Launch, ucx: &Ucx, entry_point: EntryPoint) -> Result<Peer, String> {
    Peer::start(
        launch,
        ucx,
        Side::Host,
        entry_point,
        &[("UCX_HANDLE_ERRORS", "none")],
    )
}

/// A pair whose process may die without a report, because the case requires its death.
fn start(
    launch: &Launch,
    ucx: &Ucx,
    entry_point: EntryPoint,
    variables: &[(&str, &str)],
) -> Result<Pair, String> {
    let mut all = vec![("UCX_HANDLE_ERRORS", "none")];
    all.extend(variables);
    Pair::start(launch, ucx, (entry_point, entry_point), &all)
}

/// Requires a failure whose text contains these words.
pub(crate) fn must_fail<T>(result: Result<T, String>, words: &str) -> Outcome {
    match result {
        Err(error) if error.contains(words) => Ok(()),
        Err(error) => Err(format!("another failure than '{words}': {error}")),
        Ok(_) => Err(format!("the defect '{words}' does not show")),
    }
}

/// Exports without importing.
fn export(pair: &mut Pair, id: u32) -> Result<String, String> {
    pair.host.ask(&format!("map {id} {BYTES} {id}"))?;
    pair.host.ask(&format!("export {id}"))
}

fn unconnected(launch: &Launch, ucx: &Ucx, entry_point: EntryPoint) -> Outcome {
    let launch = failing(launch, "connect", Side::Host)?;
    let mut pair = start(&launch, ucx, entry_point, &[])?;
    if entry_point == EntryPoint::Absent {
        must_fail(export(&mut pair, 1), "Input/output error")?;
        return must_fail(export(&mut pair, 2), "it died");
    }
    for id in 1..4 {
        pair.share(id, BYTES)?;
        pair.check(id, id)?;
    }
    pair.host.log().map(drop)
}

fn failed_binding(launch: &Launch, ucx: &Ucx, entry_point: EntryPoint) -> Outcome {
    let launch = failing(launch, "bind", Side::Host)?;
    let mut pair = start(&launch, ucx, entry_point, &[])?;
    pair.share(1, BYTES)?;
    pair.share(2, BYTES)?;
    if entry_point == EntryPoint::Absent {
        return must_fail(export(&mut pair, 3), "Input/output error");
    }
    pair.share(3, BYTES)?;
    pair.check(3, 3)?;
    pair.check(1, 1)?;
    pair.host.log().map(drop)
}

fn after_a_failed_binding(launch: &Launch, ucx: &Ucx, entry_point: EntryPoint) -> Outcome {
    let launch = failing(launch, "bind", Side::Host)?;
    let mut pair = start(&launch, ucx, entry_point, &[])?;
    for id in 1..9 {
        if entry_point != EntryPoint::Absent {
            pair.share(id, BYTES)?;
            pair.check(id, id)?;
        } else if id < 3 {
            pair.share(id, BYTES)?;
        } else {
            must_fail(export(&mut pair, id), "Input/output error")?;
        }
    }
    pair.host.log().map(drop)
}

fn leak(launch: &Launch, ucx: &Ucx, entry_point: EntryPoint) -> Outcome {
    let launch = failing(launch, "bind", Side::Host)?;
    let mut pair = start(&launch, ucx, entry_point, &[])?;
    pair.share(1, BYTES)?;
    pair.share(2, BYTES)?;
    // The third export may fail.
    let _third = export(&mut pair, 3);
    for id in 1..3 {
        pair.forget(id)?;
    }
    let log = pair.host.log()?;
    let line = log.iter().find(|line| line.contains("failed to dereg"));
    match (entry_point, line) {
        (EntryPoint::Absent, None) => Err("everything was deregistered".to_owned()),
        (EntryPoint::Absent, Some(_)) | (_, None) => Ok(()),
        (_, Some(line)) => Err(line.clone()),
    }
}

/// Imports in sequence and all at once, with a limit of a few.
fn kept_aliases(launch: &Launch, ucx: &Ucx, entry_point: EntryPoint) -> Outcome {
    const IMPORTS: u32 = 12;
    const KEPT_MAX: i64 = 4;
    let variables = [("UCX_XGVMI_ALIAS_MAX", "4")];
    let mut pair = start(launch, ucx, entry_point, &variables)?;
    // Processes of earlier cases may still be exiting.
    let mut before = aliases(launch)?;
    for _ in 0..QUESTIONS_MAX {
        if before == 0 {
            break;
        }
        before = aliases(launch)?;
    }
    // All at once, so each has a key of its own.
    for id in 1..=IMPORTS {
        export(&mut pair, id)?;
    }
    let there = |pair: &mut Pair, is_held: bool| -> Result<i64, String> {
        for id in 1..=IMPORTS {
            pair.import(id)?;
            pair.check(id, id)?;
            if !is_held {
                pair.dpu.ask(&format!("unmap {id}"))?;
            }
        }
        Ok(aliases(launch)? - before)
    };
    let passing = there(&mut pair, false)?;
    let held = there(&mut pair, true)?;
    for id in 1..=IMPORTS {
        pair.check(id, id)?;
    }
    for id in 1..=IMPORTS {
        pair.dpu.ask(&format!("unmap {id}"))?;
    }
    // UCX releases imports above the limit at the next import.
    pair.import(1)?;
    pair.check(1, 1)?;
    pair.dpu.ask("unmap 1")?;
    export(&mut pair, 99)?;
    pair.import(99)?;
    let after = aliases(launch)? - before;
    if entry_point != EntryPoint::Absent {
        let stats = Stats::of(&mut pair.dpu)?;
        if stats.imports_left != 0 || stats.imports < u64::from(IMPORTS) {
            return Err(format!("{stats:?}"));
        }
    }
    pair.dpu.log()?;
    pair.host.log()?;
    let all = i64::from(IMPORTS);
    let is_as_it_should_be = match entry_point {
        EntryPoint::Absent => [passing, held, after] == [all, all, all + 1],
        // UCX may keep the same number of imports again, of those that found the map full.
        _ => passing <= KEPT_MAX && held == all && after <= 2 * KEPT_MAX,
    };
    match is_as_it_should_be {
        true => Ok(()),
        false => Err(format!(
            "{passing} aliases are left of {IMPORTS}, {held} with all in use, {after} after that"
        )),
    }
}

/// The host ends, and another one gets the same key number. Keys of 1.18 do not name their
/// exporter.
fn restarted(launch: &Launch, ucx: &Ucx, entry_point: EntryPoint) -> Outcome {
    let launch = failing(launch, "lowest", Side::Host)?;
    let mut pair = start(&launch, ucx, entry_point, &[])?;
    pair.share(1, BYTES)?;
    pair.check(1, 1)?;
    pair.dpu.ask("unmap 1")?;
    let Pair { host, dpu } = pair;
    host.log()?;
    let host = start_host(&launch, ucx, entry_point)?;
    let mut pair = Pair { host, dpu };
    pair.share(2, BYTES)?;
    let checked = pair.check(2, 2);
    match (
        ucx.version.starts_with("1.18") && entry_point == EntryPoint::Absent,
        checked,
    ) {
        (true, Ok(())) => Err("it does not show any more".to_owned()),
        (true, Err(_)) => Ok(()),
        (false, checked) => checked,
    }
}

/// One fault on the host: every export is served in some way, and every byte is correct.
fn survives(launch: &Launch, ucx: &Ucx, entry_point: EntryPoint, name: &str) -> Outcome {
    let launch = failing(launch, name, Side::Host)?;
    let variables = [("UCX_XGVMI_POLL_TIMEOUT", "200ms")];
    let mut pair = start(&launch, ucx, entry_point, &variables)?;
    let before = counted(&launch, "/refusals/injected")?;
    for round in 0..3 {
        let ids = || (1..5).map(|id| 10 * round + id);
        for id in ids() {
            pair.share(id, BYTES)?;
            pair.check(id, id)?;
        }
        for id in ids() {
            pair.check(id, id)?;
            pair.forget(id)?;
        }
    }
    pair.dpu.log()?;
    let log = pair.host.log()?;
    if counted(&launch, "/refusals/injected")? == before {
        return Err("nothing went wrong, so that nothing is shown".to_owned());
    }
    match log.iter().find(|line| line.contains("failed to dereg")) {
        None => Ok(()),
        Some(line) => Err(line.clone()),
    }
}

fn reused_at_once(launch: &Launch, ucx: &Ucx, entry_point: EntryPoint) -> Outcome {
    let variables = [("UCX_XGVMI_POOL_INIT", "8")];
    let mut pair = start(launch, ucx, entry_point, &variables)?;
    pair.share(1, BYTES)?;
    pair.check(1, 1)?;
    // The host releases the memory; the DPU does not know that yet.
    pair.host.ask("unmap 1")?;
    pair.host.ask("free 1")?;
    let (_, place) = last_words(&export(&mut pair, 2)?)?;
    let (_, before) = last_words(&pair.dpu.ask("where 1")?)?;
    if place != before {
        return Err("the system gave other memory, so that nothing is shown".to_owned());
    }
    let checked = pair.check(1, 2);
    if entry_point == EntryPoint::Absent {
        // The old key reaches the new buffer.
        return checked;
    }
    must_fail(checked, "")
}

/// Splits the answer of an export into the key and the location of its memory.
fn last_words(answer: &str) -> Result<(String, String), String> {
    let (key, rest) = answer.split_once(' ').ok_or("a short answer")?;
    Ok((key.to_owned(), rest.to_owned()))
}

fn empty_import(launch: &Launch, ucx: &Ucx, entry_point: EntryPoint) -> Outcome {
    let launch = failing(launch, "alias", Side::Dpu)?;
    let mut pair = start(&launch, ucx, entry_point, &[])?;
    pair.share(1, BYTES)?;
    let second = pair.share(2, BYTES);
    if entry_point == EntryPoint::Absent {
        must_fail(second, "ucp_mem_map")?;
        // The same key is accepted again, although there is no alias now either.
        pair.import(2)?;
        return must_fail(pair.check(2, 2), "");
    }
    second?;
    pair.check(2, 2)?;
    pair.host.log().map(drop)
}

/// Places of injected panics, in the entry points and within the work.
const PLACES: [(Side, &str); 14] = [
    (Side::Host, "md_query"),
    (Side::Host, "mem_reg"),
    (Side::Host, "mkey_pack"),
    (Side::Host, "a key is bound"),
    (Side::Host, "mem_dereg"),
    (Side::Host, "a key is taken back"),
    (Side::Host, "md_close"),
    (Side::Dpu, "mem_attach"),
    (Side::Dpu, "an alias is pinned"),
    (Side::Dpu, "mkey_pack"),
    (Side::Dpu, "mem_dereg"),
    (Side::Dpu, "ucs_rcache_create"),
    (Side::Dpu, "ucp_memh_exported_unpack"),
    (Side::Dpu, "ucs_rcache_destroy"),
];

/// Selections of failing allocations, in the format of the library's debug build: one, every n-th,
/// and all from one on, at the start and in the middle of the work.
const FAILING: [&str; 18] = [
    "1+", "4+", "12+", "30+", "60+", "80+", "100+", "120+", "160+", "250+", "9", "33", "77", "/1",
    "/2", "/3", "/7", "/20",
];

/// If the library has no memory, UCX handles everything, and every byte is correct.
fn shortage(launch: &Launch, ucx: &Ucx, entry_point: EntryPoint) -> Outcome {
    let found = launch.failing.iter().find(|(has, _)| has == "panic");
    let (_, file) = found.ok_or("no debug library")?;
    let mut short = launch.clone();
    short.library = file.join(" ").into();
    let mut told = 0;
    for (at, which) in FAILING.into_iter().enumerate() {
        // Both sides get all selections, but not each in each UCX: that would take minutes.
        let side = match (at + ucx.version.len() + usize::from(ucx.version.ends_with(".1"))) % 2 {
            0 => Side::Host,
            _ => Side::Dpu,
        };
        let start = |at| {
            let variables: &[(&str, &str)] = &[("XGVMI_NO_MEMORY", which)];
            match at == side {
                true => Peer::start(&short, ucx, at, entry_point, variables),
                false => Peer::start(launch, ucx, at, entry_point, &[]),
            }
        };
        let name = |error| format!("allocations '{which}' of {side:?}: {error}");
        let mut pair = Pair {
            host: start(Side::Host).map_err(name)?,
            dpu: start(Side::Dpu).map_err(name)?,
        };
        for round in 0..3 {
            let ids = || (1..5).map(|id| 10 * round + id);
            for id in ids() {
                pair.share(id, BYTES).map_err(name)?;
            }
            for id in ids() {
                pair.check(id, id).map_err(name)?;
                pair.forget(id).map_err(name)?;
            }
        }
        let logs = [
            pair.dpu.log().map_err(name)?,
            pair.host.log().map_err(name)?,
        ];
        let mut lines = logs.iter().flatten();
        told += usize::from(
            lines.any(|line| line.contains("out of memory, UCX handles exports and imports")),
        );
    }
    // Fallible collections alone are not enough: without the reserve the same failure ends the
    // program, here the first allocation of the library.
    let variables: &[(&str, &str)] = &[("XGVMI_NO_MEMORY", "1!")];
    if Peer::start(&short, ucx, Side::Host, entry_point, variables).is_ok() {
        return Err("without the reserve a failed allocation does not end the program".to_owned());
    }
    // Some fail at the very end, where no new work starts.
    match told {
        told if told > FAILING.len() / 2 => Ok(()),
        told => Err(format!(
            "only {told} processes found that there was no memory"
        )),
    }
}

/// A panic causes one log line. Afterwards UCX handles everything, and every byte is correct.
fn panics(launch: &Launch, ucx: &Ucx, entry_point: EntryPoint) -> Outcome {
    let found = launch.failing.iter().find(|(has, _)| has == "panic");
    let (_, file) = found.ok_or("no library that panics")?;
    let mut panicking = launch.clone();
    panicking.library = file.join(" ").into();
    for (side, place) in PLACES {
        // A parser of handles that is bound inside has no slot. Its successor then does the work.
        let has_no_slot = launch.is_bound_inside && place == "ucp_memh_exported_unpack";
        let place = if has_no_slot { "ucs_rcache_get" } else { place };
        let start = |at| {
            let variables: &[(&str, &str)] = &[("XGVMI_PANIC", place)];
            match at == side {
                true => Peer::start(&panicking, ucx, at, entry_point, variables),
                false => Peer::start(launch, ucx, at, entry_point, &[]),
            }
        };
        let mut pair = Pair {
            host: start(Side::Host)?,
            dpu: start(Side::Dpu)?,
        };
        let name = |error| format!("a panic at '{place}' of {side:?}: {error}");
        for id in 1..4 {
            let key = export(&mut pair, id).map_err(name)?;
            pair.dpu.ask(&format!("import {id} {key}")).map_err(name)?;
            pair.check(id, id).map_err(name)?;
            pair.forget(id).map_err(name)?;
        }
        let logs = [
            pair.dpu.log().map_err(name)?,
            pair.host.log().map_err(name)?,
        ];
        let lines = logs.iter().flatten();
        match lines
            .filter(|line| line.contains("internal error in"))
            .count()
        {
            1 => {}
            count => return Err(name(format!("{count} lines about it"))),
        }
    }
    Ok(())
}

/// True if this UCX was built with the assertion that does not hold, as 1.19.0 is of the five.
fn asserts(ucx: &Ucx) -> Result<bool, String> {
    const SAYS: &[u8] = b"This may indicate that exported memory handle was destroyed";
    let libucp = std::fs::read(&ucx.libucp)
        .map_err(|error| format!("cannot read {}: {error}", ucx.libucp.display()))?;
    Ok(libucp.windows(SAYS.len()).any(|part| part == SAYS))
}

/// The host repeatedly releases memory and exports other memory at its address, while the DPU still
/// holds all its imports.
fn replaced(launch: &Launch, ucx: &Ucx, entry_point: EntryPoint) -> Outcome {
    let mut pair = start(launch, ucx, entry_point, &[])?;
    for id in 1..4 {
        pair.host
            .ask(&format!("map {id} {BYTES} {id} {ELSEWHERE}"))?;
        if id == 2 && entry_point == EntryPoint::Absent && asserts(ucx)? {
            return must_fail(pair.import(id), "it died");
        }
        // A UCX without assertions replaces the region.
        pair.import(id)?;
        pair.check(id, id)?;
        pair.host.ask(&format!("unmap {id}"))?;
        pair.host.ask(&format!("free {id}"))?;
    }
    for id in 1..4 {
        pair.dpu.ask(&format!("unmap {id}"))?;
    }
    pair.share(9, BYTES)?;
    pair.check(9, 9)?;
    pair.dpu.log()?;
    pair.host.log().map(drop)
}

/// Address of the host's memory in [`copied`]: far from all addresses of a loader or an allocator.
const ELSEWHERE: u64 = 0x2000_0000_0000;

/// The defect is in UCP: the library cannot prevent it, a patched UCX does.
fn copied(launch: &Launch, ucx: &Ucx, entry_point: EntryPoint) -> Outcome {
    let mended = launch.mended.iter().any(|name| name == "D24");
    let mut pair = start(launch, ucx, entry_point, &[("UCX_ZCOPY_THRESH", "auto")])?;
    // Sizes that UCP copies into a request, or through a buffer.
    for (id, bytes) in [(1, 8), (2, 200), (3, 400)] {
        decoy(&mut pair, id, bytes)?;
        let pulled = pair.dpu.ask(&format!("pull {id} {id}"));
        match mended {
            true => drop(pulled?),
            false => must_fail(pulled, "bytes are wrong")?,
        }
    }
    // Sizes that UCP copies from a request: the bytes are written to the DPU's own memory.
    for (id, bytes) in [(4, 100), (5, 400)] {
        decoy(&mut pair, id, bytes)?;
        pair.dpu.ask(&format!("push {id} {}", id + 100))?;
        let seen = pair.host.ask(&format!("see {id} {}", id + 100));
        match mended {
            true => drop(seen?),
            false => must_fail(seen, "bytes are wrong")?,
        }
    }
    // If there is no other protocol, a patched UCX reports an error.
    if mended {
        decoy(&mut pair, 6, 8)?;
        must_fail(pair.dpu.ask("push 6 106"), "ucp_get_nbx")?;
        pair.host.ask("see 6 6")?;
    }
    if !mended && entry_point == EntryPoint::Absent {
        let put = copied_max(&mut pair, 10, |pair, id| {
            Ok(pair.dpu.ask(&format!("pull {id} {id}")))
        })?;
        let put = put.ok_or("the CPU copies puts of every length")?;
        launch.figures.add("put_copied_max_bytes", put);
        let get = copied_max(&mut pair, 40, |pair, id| {
            pair.dpu.ask(&format!("push {id} {}", id + 100))?;
            Ok(pair.host.ask(&format!("see {id} {}", id + 100)))
        })?;
        // UCX 1.18 emulates every get in software if the endpoint handles errors of its peer.
        match (get, ucx.is_since((1, 19))) {
            (Some(get), _) => launch.figures.add("get_copied_max_bytes", get),
            (None, false) => {}
            (None, true) => return Err("the CPU copies gets of every length".to_owned()),
        }
    }
    pair.host.log().map(drop)
}

/// The longest transfer of imported memory that the CPU copies, in bytes, found by bisection; none if the CPU copies
/// even the length from which on docs/DEFECTS.md promises that it does not. `transfer` returns what the check of the
/// bytes said. Uses memory from number `first` on.
fn copied_max(
    pair: &mut Pair,
    first: u32,
    transfer: impl Fn(&mut Pair, u32) -> Result<Result<String, String>, String>,
) -> Result<Option<u64>, String> {
    const PROMISED: u64 = 16 << 10;
    let (mut copied, mut moved) = (8, PROMISED + 1);
    let (mut id, mut bytes) = (first, PROMISED);
    while moved - copied > 1 {
        decoy(pair, id, bytes)?;
        match transfer(pair, id)? {
            Ok(_) => moved = bytes,
            Err(error) if error.contains("bytes are wrong") => copied = bytes,
            Err(error) => return Err(error),
        }
        id += 1;
        bytes = copied + (moved - copied) / 2;
    }
    Ok((copied < PROMISED).then_some(copied))
}

/// Shares the host's memory, and maps other memory at the same address in the DPU's process.
fn decoy(pair: &mut Pair, id: u32, bytes: u64) -> Outcome {
    let address = ELSEWHERE + (u64::from(id) << 24);
    pair.host.ask(&format!("map {id} {bytes} {id} {address}"))?;
    pair.import(id)?;
    pair.dpu.ask(&format!("decoy {id} {}", id + 50))?;
    Ok(())
}
