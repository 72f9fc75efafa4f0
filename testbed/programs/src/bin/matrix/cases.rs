//! The cases for each UCX and each way of loading the library. A case is a list of requests to two
//! peers.

use std::process::Command;

use crate::Ucx;
use crate::counters::commands;
use crate::peer::{EntryPoint, Launch, Peer, Side};

/// One case.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    /// Ways of loading the library in the peer, or in both peers.
    pub(crate) entry_points: &'static [EntryPoint],
    /// False for a UCX without the feature of the case.
    pub(crate) fits: fn(&Ucx) -> bool,
    /// The failing launch command that the case needs.
    pub(crate) failing: Option<&'static str>,
    pub(crate) run: Run,
}

type Run = fn(&Launch, &Ucx, EntryPoint) -> Result<(), String>;

/// A case for each UCX that the library knows, without a failing launch command.
pub(crate) const fn case(
    name: &'static str,
    entry_points: &'static [EntryPoint],
    run: Run,
) -> Case {
    Case {
        name,
        entry_points,
        fits: Ucx::is_known,
        failing: None,
        run,
    }
}

const ALL: &[EntryPoint] = &[
    EntryPoint::Preload,
    EntryPoint::Plugin,
    EntryPoint::Both,
    EntryPoint::Module,
];

/// All cases.
pub(crate) const CASES: &[Case] = &[
    case(
        "stock peers alone",
        &[EntryPoint::Absent],
        |launch, ucx, entry_point| transfers(launch, ucx, (entry_point, entry_point), &[]),
    ),
    case("export and import", ALL, |launch, ucx, entry_point| {
        transfers(launch, ucx, (entry_point, entry_point), &[])
    }),
    case("export to a stock peer", ALL, |launch, ucx, entry_point| {
        transfers(launch, ucx, (entry_point, EntryPoint::Absent), &[])
    }),
    case(
        "import from a stock peer",
        ALL,
        |launch, ucx, entry_point| transfers(launch, ucx, (EntryPoint::Absent, entry_point), &[]),
    ),
    case(
        "chained invalidation",
        &[EntryPoint::Preload],
        |launch, ucx, entry_point| {
            transfers(
                launch,
                ucx,
                (entry_point, entry_point),
                &[("UCX_XGVMI_INVALIDATE", "chained")],
            )
        },
    ),
    case(
        "posting through libmlx5",
        &[EntryPoint::Preload],
        |launch, ucx, entry_point| {
            let by_verbs = [("UCX_XGVMI_POST", "verbs")];
            transfers(launch, ucx, (entry_point, entry_point), &by_verbs)
        },
    ),
    case(
        "posting by ibv_post_send",
        &[EntryPoint::Preload],
        |launch, ucx, entry_point| {
            let by_send = [("UCX_XGVMI_POST", "send")];
            transfers(launch, ucx, (entry_point, entry_point), &by_send)
        },
    ),
    case("a pool of one key", &[EntryPoint::Preload], pool_of_one_key),
    case("parts of one region", ALL, parts),
    case("memory in chunks", ALL, chunks),
    case("two contexts", ALL, contexts),
    Case {
        fits: |ucx| ucx.version == FIRST_COPY,
        ..case(
            "two copies of UCX in one process",
            &[EntryPoint::Absent, EntryPoint::Preload],
            copies,
        )
    },
    case("numbers in xgvmi stat", &[EntryPoint::Preload], numbers),
    case("numbers in UCX's virtual file system", ALL, files),
    Case {
        failing: Some("counters"),
        ..case(
            "announced keys are exported and imported without a command",
            ALL,
            announced,
        )
    },
    Case {
        failing: Some("counters"),
        ..case(
            "the first export takes two commands more than stock's, and those of the proof",
            &[EntryPoint::Preload],
            first_export,
        )
    },
    case(
        "it weighs little and has no threads",
        &[EntryPoint::Preload],
        weight,
    ),
    Case {
        fits: |ucx| ucx.is_known() && cfg!(target_arch = "x86_64"),
        ..case(
            "ordinary memory costs next to nothing more",
            &[EntryPoint::Preload],
            overhead,
        )
    },
    case(
        "two threads in four contexts",
        &[EntryPoint::Absent, EntryPoint::Preload],
        threads,
    ),
    case("loaded late and unloaded", &[EntryPoint::Late], late),
];

/// Bytes of a transfer: a page, several pages, an unaligned length, and lengths of several pieces.
const SIZES: [u64; 5] = [4096, 65_536, 100_001, 1 << 20, 5 << 20];

pub(crate) type Outcome = Result<(), String>;

/// A host and a DPU.
pub(crate) struct Pair {
    pub(crate) host: Peer,
    pub(crate) dpu: Peer,
}

impl Pair {
    pub(crate) fn start(
        launch: &Launch,
        ucx: &Ucx,
        (host, dpu): (EntryPoint, EntryPoint),
        variables: &[(&str, &str)],
    ) -> Result<Self, String> {
        Ok(Self {
            host: Peer::start(launch, ucx, Side::Host, host, variables)?,
            dpu: Peer::start(launch, ucx, Side::Dpu, dpu, variables)?,
        })
    }

    /// Exports new memory twice, and imports it.
    pub(crate) fn share(&mut self, id: u32, bytes: u64) -> Outcome {
        self.host.ask(&format!("map {id} {bytes} {id}"))?;
        self.import(id)
    }

    pub(crate) fn import(&mut self, id: u32) -> Outcome {
        let key = self.host.ask(&format!("export {id}"))?;
        let again = self.host.ask(&format!("export {id}"))?;
        if key != again {
            return Err(format!("memory {id} has two keys"));
        }
        self.dpu.ask(&format!("import {id} {key}"))?;
        Ok(())
    }

    /// Moves the bytes from the host's to the DPU's memory and checks them.
    pub(crate) fn check(&mut self, id: u32, seed: u32) -> Outcome {
        self.dpu.ask(&format!("pull {id} {seed}"))?;
        self.dpu.ask(&format!("rkey {id}"))?;
        Ok(())
    }

    /// Unmaps the memory, so no cache can keep any part of it.
    pub(crate) fn forget(&mut self, id: u32) -> Outcome {
        self.dpu.ask(&format!("unmap {id}"))?;
        self.host.ask(&format!("unmap {id}"))?;
        self.host.ask(&format!("free {id}"))?;
        Ok(())
    }

    pub(crate) fn end(self) -> Outcome {
        self.dpu.end()?;
        self.host.end()
    }
}

fn transfers(
    launch: &Launch,
    ucx: &Ucx,
    entry_points: (EntryPoint, EntryPoint),
    variables: &[(&str, &str)],
) -> Outcome {
    let mut pair = Pair::start(launch, ucx, entry_points, variables)?;
    for (id, bytes) in (1..).zip(SIZES.into_iter().chain(SIZES)) {
        pair.share(id, bytes)?;
        pair.check(id, id)?;
        // The same memory with other bytes, so the check detects old content.
        pair.host.ask(&format!("fill {id} {}", id + 100))?;
        pair.check(id, id + 100)?;
        pair.forget(id)?;
    }
    pair.end()
}

fn pool_of_one_key(launch: &Launch, ucx: &Ucx, entry_point: EntryPoint) -> Outcome {
    let variables = [("UCX_XGVMI_POOL_MAX", "1")];
    let mut pair = Pair::start(launch, ucx, (entry_point, entry_point), &variables)?;
    // The second and the third export find the pool empty and take UCX's own path.
    for id in 1..4 {
        pair.share(id, 65_536)?;
    }
    for id in 1..4 {
        pair.check(id, id)?;
    }
    for id in 1..4 {
        pair.forget(id)?;
    }
    pair.share(9, 65_536)?;
    pair.check(9, 9)?;
    pair.forget(9)?;
    pair.end()
}

fn parts(launch: &Launch, ucx: &Ucx, entry_point: EntryPoint) -> Outcome {
    let mut pair = Pair::start(launch, ucx, (entry_point, entry_point), &[])?;
    pair.host.ask("map 1 1048576 1")?;
    // Parts of registered memory, overlapping, the smaller one first.
    pair.host.ask("part 2 1 65536 65536")?;
    pair.host.ask("part 3 1 0 524288")?;
    for id in [2, 3, 1] {
        pair.import(id)?;
    }
    for id in [1, 3] {
        pair.check(id, 1)?;
    }
    for id in [2, 3] {
        pair.dpu.ask(&format!("unmap {id}"))?;
        pair.host.ask(&format!("unmap {id}"))?;
    }
    pair.check(1, 1)?;
    pair.forget(1)?;
    pair.end()
}

/// Memory that UCX registers in chunks, with several threads, also gets one key of the pool.
fn chunks(launch: &Launch, ucx: &Ucx, entry_point: EntryPoint) -> Outcome {
    let variables = [
        ("UCX_IB_REG_MT_THRESH", "512k"),
        ("UCX_IB_REG_MT_CHUNK", "512k"),
    ];
    let mut pair = Pair::start(launch, ucx, (entry_point, entry_point), &variables)?;
    // From two chunks to a number that UCX handles itself, beginning at unaligned addresses of a
    // chunk.
    for (id, bytes) in (1..).zip([600_000, 1 << 20, 5 << 20, 20 << 20, 3_000_001]) {
        pair.share(id, bytes)?;
        pair.check(id, id)?;
        pair.host.ask(&format!("fill {id} {}", id + 100))?;
        pair.check(id, id + 100)?;
    }
    let pid = pair.host.ask("pid")?;
    let shown = stat(launch, &pid)?.ok_or_else(|| format!("process {pid} is not shown"))?;
    let count = |name: &str| -> u64 {
        let domains = shown["processes"][0]["domains"].as_array();
        let counts = domains.into_iter().flatten().map(|domain| &domain[name]);
        counts.filter_map(serde_json::Value::as_u64).sum()
    };
    let (exports, left) = (count("exports"), count("exports_left"));
    if exports < 4 || exports <= 3 * left {
        return Err(format!(
            "{exports} exports from the pool, {left} left to UCX: {shown}"
        ));
    }
    for id in 1..=5 {
        pair.forget(id)?;
    }
    pair.end()
}

fn contexts(launch: &Launch, ucx: &Ucx, entry_point: EntryPoint) -> Outcome {
    let mut pair = Pair::start(launch, ucx, (entry_point, entry_point), &[])?;
    pair.share(1, 65_536)?;
    pair.host.ask("context 1")?;
    pair.share(2, 65_536)?;
    pair.check(1, 1)?;
    pair.check(2, 2)?;
    pair.forget(2)?;
    pair.host.ask("close")?;
    pair.host.ask("context 0")?;
    pair.check(1, 1)?;
    pair.share(3, 65_536)?;
    pair.check(3, 3)?;
    pair.forget(3)?;
    pair.forget(1)?;
    pair.end()
}

/// A copy whose libraries have their plain names, and a copy whose libraries have other names: the
/// loader treats two libraries of one name as one.
const FIRST_COPY: &str = "1.20.1";
const SECOND_COPY: &str = "1.23.0";

/// Each copy has a context on both sides, and exports to each copy.
fn copies(launch: &Launch, ucx: &Ucx, entry_point: EntryPoint) -> Outcome {
    let second = launch.others.iter();
    let second = second.clone().find(|other| other.version == SECOND_COPY);
    let Some(second) = second else {
        // The arguments select one version only.
        return Ok(());
    };
    let dirs = [&ucx.libraries, &second.libraries];
    let dirs: Vec<_> = dirs
        .into_iter()
        .flatten()
        .map(|dir| dir.display().to_string())
        .collect();
    let both = Ucx {
        libraries: (!dirs.is_empty()).then(|| dirs.join(":").into()),
        ..ucx.clone()
    };
    let mut pair = Pair::start(launch, &both, (entry_point, entry_point), &[])?;
    for peer in [&mut pair.host, &mut pair.dpu] {
        let version = peer.ask(&format!("copy {}", second.libucp.display()))?;
        if version != SECOND_COPY {
            return Err(format!("the second copy is UCX {version}"));
        }
    }
    let mut id = 0;
    for round in 0..3 {
        for (host, dpu) in [(0, 0), (1, 1), (0, 1), (1, 0)] {
            id += 1;
            pair.host.ask(&format!("context {host}"))?;
            pair.dpu.ask(&format!("context {dpu}"))?;
            pair.share(id, 65_536 + 4096 * round)?;
            pair.check(id, id)?;
        }
    }
    for id in 1..=id {
        // In the importer's context.
        pair.dpu
            .ask(&format!("context {}", u32::from(matches!(id % 4, 2 | 3))))?;
        pair.check(id, id)?;
        pair.forget(id)?;
    }
    if entry_point != EntryPoint::Absent {
        for (peer, is_host) in [(&mut pair.host, true), (&mut pair.dpu, false)] {
            let stats = Stats::of(peer)?;
            let (done, left) = match is_host {
                true => (stats.exports, stats.exports_left),
                false => (stats.imports, stats.imports_left),
            };
            if done < u64::from(id) || left != 0 {
                return Err(format!("host: {is_host}, {stats:?}"));
            }
        }
    }
    let log = pair.dpu.log()?;
    let led = "calls this library for its import cache";
    let copies = log.iter().filter(|line| line.contains(led)).count();
    if copies
        != if entry_point == EntryPoint::Absent {
            0
        } else {
            2
        }
    {
        return Err(format!("the caches of {copies} copies lead to the library"));
    }
    pair.host.end()
}

fn numbers(launch: &Launch, ucx: &Ucx, entry_point: EntryPoint) -> Outcome {
    let mut pair = Pair::start(launch, ucx, (entry_point, entry_point), &[])?;
    for id in 1..4 {
        pair.share(id, 65_536)?;
    }
    let (host, dpu) = (pair.host.ask("pid")?, pair.dpu.ask("pid")?);
    for (pid, name) in [(&host, "exports"), (&dpu, "imports")] {
        let shown = stat(launch, pid)?.ok_or_else(|| format!("process {pid} is not shown"))?;
        // A process has one memory domain per transport of the device.
        let domains = shown["processes"][0]["domains"].as_array();
        let counts = domains.into_iter().flatten().map(|domain| &domain[name]);
        let count: u64 = counts.filter_map(serde_json::Value::as_u64).sum();
        if count < 3 {
            return Err(format!(
                "process {pid} shows {count} {name}, not 3: {shown}"
            ));
        }
    }
    for id in 1..4 {
        pair.forget(id)?;
    }
    pair.end()?;
    match stat(launch, &host)? {
        None => Ok(()),
        Some(shown) => Err(format!("a dead process is shown: {shown}")),
    }
}

fn files(launch: &Launch, ucx: &Ucx, entry_point: EntryPoint) -> Outcome {
    let mut pair = Pair::start(launch, ucx, (entry_point, entry_point), &[])?;
    for id in 1..4 {
        pair.share(id, 65_536)?;
    }
    pair.forget(2)?;
    // UCX's cache deregisters unmapped memory at the next request for memory.
    pair.share(4, 65_536)?;
    let expect = [
        ("exports", 4),
        ("releases", 1),
        ("pool_in_use", 3),
        ("imports", 0),
    ];
    for (name, expect) in expect {
        let found = pair.host.ask(&format!("file {name}"))?;
        if found != expect.to_string() {
            return Err(format!("{name} is {found} instead of {expect}"));
        }
    }
    let imports = pair.dpu.ask("file imports")?;
    if imports != "4" {
        return Err(format!("imports is {imports} instead of 4"));
    }
    // A closed context has no remaining objects.
    pair.host.ask("context 1")?;
    pair.share(5, 65_536)?;
    pair.forget(5)?;
    pair.host.ask("close")?;
    pair.host.ask("context 0")?;
    pair.host.ask("file exports")?;
    pair.end()
}

fn announced(launch: &Launch, ucx: &Ucx, entry_point: EntryPoint) -> Outcome {
    let mut pair = Pair::start(launch, ucx, (entry_point, entry_point), &[])?;
    let message = pair.host.ask("announce")?;
    let ready = pair.dpu.ask(&format!("accept {message}"))?;
    // A repeated message finds all aliases. An older message has no effect.
    let later = pair.host.ask("announce")?;
    for (message, expect) in [(&message, &*ready), (&later, &*ready), (&message, "0")] {
        let again = pair.dpu.ask(&format!("accept {message}"))?;
        if again != expect {
            return Err(format!("{again} aliases instead of {expect}"));
        }
    }
    if ready.parse::<u32>().is_ok_and(|ready| ready < 64) {
        return Err(format!("{ready} aliases, which is less than a pool has"));
    }
    if pair.dpu.ask("accept 5847564d49414c4c0100").is_ok() {
        return Err("a damaged message was accepted".to_owned());
    }
    for id in 1..=32 {
        pair.host.ask(&format!("map {id} 65536 {id}"))?;
        let before = commands(launch)?;
        let key = pair.host.ask(&format!("export {id}"))?;
        pair.dpu.ask(&format!("import {id} {key}"))?;
        match commands(launch)? - before {
            0 => {}
            made => return Err(format!("export and import {id} made {made} commands")),
        }
    }
    for id in 1..=32 {
        pair.check(id, id)?;
        pair.forget(id)?;
    }
    pair.end()
}

/// Commands of the first export, with an empty pool and no queue, and of the second.
fn first_export(launch: &Launch, ucx: &Ucx, entry_point: EntryPoint) -> Outcome {
    const MORE_MAX: i64 = 2;
    // A registration, two queues, four states twice except RESET, and their end.
    const PROOF_MAX: i64 = 13;
    let counted = |entry_point, prove| -> Result<[i64; 2], String> {
        let variables = [("UCX_XGVMI_PROVE", prove)];
        let mut host = Peer::start(launch, ucx, Side::Host, entry_point, &variables)?;
        let mut counts = [0; 2];
        for (count, id) in counts.iter_mut().zip(1..) {
            host.ask(&format!("map {id} 65536 {id}"))?;
            let before = commands(launch)?;
            host.ask(&format!("export {id}"))?;
            *count = commands(launch)? - before;
        }
        host.log()?;
        Ok(counts)
    };
    let stock = counted(EntryPoint::Absent, "n")?;
    for (prove, more_max) in [("n", MORE_MAX), ("y", MORE_MAX + PROOF_MAX)] {
        let ours = counted(entry_point, prove)?;
        if stock[0] == 0 || ours[0] > stock[0] + more_max || ours[1] > stock[1] {
            let text = format!("proof {prove}: {ours:?} commands, {stock:?} of stock UCX");
            return Err(text);
        }
    }
    Ok(())
}

/// Size of the file, memory of an idle process, and number of threads after some work.
fn weight(launch: &Launch, ucx: &Ucx, entry_point: EntryPoint) -> Outcome {
    const KIB_MAX: u64 = 2048;
    let file = std::fs::metadata(&launch.library).map_err(|error| error.to_string())?;
    if file.len() > KIB_MAX * 1024 {
        return Err(format!("the library has {} bytes", file.len()));
    }
    let numbers = |peer: &mut Peer| -> Result<(u64, u64), String> {
        let answer = peer.ask("weight")?;
        let numbers: Vec<u64> = answer.split(' ').flat_map(str::parse).collect();
        match numbers[..] {
            [threads, kib] => Ok((threads, kib)),
            _ => Err(format!("an unknown answer: {answer}")),
        }
    };
    let mut plain = Pair::start(launch, ucx, (EntryPoint::Absent, EntryPoint::Absent), &[])?;
    let mut pair = Pair::start(launch, ucx, (entry_point, entry_point), &[])?;
    let (_, kib) = numbers(&mut pair.host)?;
    if kib == 0 || kib > KIB_MAX {
        return Err(format!("{kib} KiB of memory"));
    }
    for pair in [&mut plain, &mut pair] {
        pair.share(1, 65_536)?;
        pair.check(1, 1)?;
    }
    let sides = [
        (&mut plain.host, &mut pair.host),
        (&mut plain.dpu, &mut pair.dpu),
    ];
    for (plain, with) in sides {
        let (without, with) = (numbers(plain)?.0, numbers(with)?.0);
        if with != without {
            return Err(format!("{without} threads, {with} with the library"));
        }
    }
    plain.end()?;
    pair.end()
}

/// Instructions that the library adds to ordinary operations, at UCP's interface.
fn overhead(launch: &Launch, ucx: &Ucx, entry_point: EntryPoint) -> Outcome {
    const CALLS: u32 = 8;
    // Of the library. UCX's own instructions depend on the processor: with relaxed ordering of PCI, which UCX chooses by
    // it, UCX registers memory twice.
    const ADDED_MAX: [(&str, u64); 2] = [("ucp_mem_map", 64), ("ucp_rkey_pack", 32)];
    let mut peer = Peer::start(launch, ucx, Side::Host, entry_point, &[])?;
    let answer = peer.ask(&format!("steps {CALLS}"))?;
    peer.log()?;
    let numbers: Vec<u64> = answer.split(' ').flat_map(str::parse).collect();
    let (pairs, _) = numbers.as_chunks::<2>();
    if let [[map_added, map], [pack_added, pack]] = pairs {
        launch.figures.add("mem_map_instructions", *map);
        launch.figures.add("mem_map_added_instructions", *map_added);
        launch.figures.add("rkey_pack_instructions", *pack);
        launch
            .figures
            .add("rkey_pack_added_instructions", *pack_added);
    }
    for ((what, added_max), [added, rest]) in ADDED_MAX.iter().zip(pairs) {
        // Zero would mean that the library is missing, and UCX itself needs hundreds.
        let is_counted = *added > 0 && *rest > 300;
        if !is_counted || added > added_max {
            return Err(format!(
                "{what}: {rest} instructions, and {added} of the library"
            ));
        }
    }
    match pairs.len() {
        2 => Ok(()),
        _ => Err(format!("an unknown answer: {answer}")),
    }
}

fn threads(launch: &Launch, ucx: &Ucx, entry_point: EntryPoint) -> Outcome {
    const ROUNDS: u64 = 400;
    let variables = [
        // UCX's own thread deregisters unmapped memory beyond this limit.
        ("UCX_RCACHE_MAX_UNRELEASED", "256k"),
        ("UCX_XGVMI_POOL_MAX", "16"),
        ("UCX_XGVMI_INVALIDATE", "chained"),
        ("UCX_XGVMI_REFILL", "y"),
        ("UCX_XGVMI_POOL_LOW", "2"),
        ("UCX_XGVMI_LOG_LEVEL", "info"),
    ];
    let mut host = Peer::start(launch, ucx, Side::Host, entry_point, &variables)?;
    let done = host.ask(&format!("stress {ROUNDS}"))?;
    let numbers: Vec<u64> = done.split(' ').flat_map(str::parse).collect();
    let &[bytes, forks, ticks] = numbers.as_slice() else {
        return Err(format!("an unknown answer: {done}"));
    };
    if bytes < 2 * ROUNDS * 4096 || forks == 0 || ticks == 0 {
        return Err(format!("{bytes} bytes, {forks} forks, {ticks} signals"));
    }
    if entry_point != EntryPoint::Absent {
        let numbers = Stats::of(&mut host)?;
        // UCX served the exports for which the pool had no key at that moment.
        let is_right = numbers.exports >= ROUNDS
            && numbers.exports + numbers.exports_left >= 2 * ROUNDS
            && numbers.imports >= ROUNDS
            && numbers.imports + numbers.imports_left >= 2 * ROUNDS
            && numbers.releases == numbers.exports
            && numbers.releases_failed == 0
            && numbers.pool_in_use == 0;
        if !is_right {
            return Err(format!("{numbers:?}"));
        }
    }
    host.log().map(drop)
}

/// The library's counters that the cases check.
#[derive(Debug)]
pub(crate) struct Stats {
    pub(crate) pool_in_use: u64,
    pub(crate) exports: u64,
    pub(crate) exports_left: u64,
    pub(crate) releases: u64,
    pub(crate) releases_failed: u64,
    pub(crate) imports: u64,
    pub(crate) imports_left: u64,
}

impl Stats {
    pub(crate) fn of(peer: &mut Peer) -> Result<Self, String> {
        let answer = peer.ask("stats")?;
        let numbers: Vec<u64> = answer.split(' ').flat_map(str::parse).collect();
        match numbers[..] {
            [
                _,
                _,
                _,
                pool_in_use,
                exports,
                exports_left,
                releases,
                releases_failed,
                _,
                _,
                _,
                _,
                imports,
                imports_left,
                _,
                _,
            ] => Ok(Self {
                pool_in_use,
                exports,
                exports_left,
                releases,
                releases_failed,
                imports,
                imports_left,
            }),
            _ => Err(format!("unknown numbers: {answer}")),
        }
    }
}

/// The command's output for a process; `None` if it does not list the process.
fn stat(launch: &Launch, pid: &str) -> Result<Option<serde_json::Value>, String> {
    let command = launch.library.with_file_name("xgvmi");
    let output = Command::new(&command)
        .args(["stat", "--json", "--pid", pid])
        .output()
        .map_err(|error| format!("{}: {error}", command.display()))?;
    if !output.status.success() {
        return Ok(None);
    }
    serde_json::from_slice(&output.stdout)
        .map(Some)
        .map_err(|error| format!("xgvmi stat: {error}"))
}

fn late(launch: &Launch, ucx: &Ucx, entry_point: EntryPoint) -> Outcome {
    let mut pair = Pair::start(launch, ucx, (entry_point, EntryPoint::Absent), &[])?;
    pair.share(1, 65_536)?;
    pair.host
        .ask(&format!("load {}", launch.library.display()))?;
    // Earlier exports keep their keys; new exports use the pool.
    pair.check(1, 1)?;
    pair.import(1)?;
    pair.share(2, 65_536)?;
    pair.check(2, 2)?;
    pair.host.ask("unload")?;
    pair.share(3, 65_536)?;
    pair.check(3, 3)?;
    for id in [1, 2, 3] {
        pair.forget(id)?;
    }
    pair.end()
}
