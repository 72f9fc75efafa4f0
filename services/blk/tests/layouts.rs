//! Volumes of other layouts than 2+1, by whole processes on files and behind target processes: K parts and M parities lose any
//! M targets. Parity bytes on disk are judged by `tests/parity.rs`.

mod common;

use common::{
    ENOSPC, Nbd, RECORDS_AT, Running, SECTOR, WRITE, bad, good, old_or_new, program, sector, turn,
    wait_until,
};
use std::path::{Path, PathBuf};
use xgvmi_blk::Layout;

const SECTORS: usize = 256;
const BLOCK: usize = 1024;

/// The files of a new volume, one for each target.
fn created(dir: &Path, layout: Layout) -> Vec<String> {
    let name = |at: usize| dir.join(at.to_string()).to_str().unwrap().to_owned();
    let names: Vec<String> = (0..layout.targets()).map(name).collect();
    let (size, block) = ((SECTORS * SECTOR).to_string(), BLOCK.to_string());
    let layout = layout.to_string();
    let options = ["create", "--size", &size, "--block-size", &block];
    good(&words(
        &[&options[..], &["--layout", &layout]].concat(),
        &names,
    ));
    names
}

fn words<'a>(first: &[&'a str], names: &'a [String]) -> Vec<&'a str> {
    let names = names.iter().map(String::as_str);
    first.iter().copied().chain(names).collect()
}

/// An export of some targets, which ends as by SIGTERM after `with`.
fn with_export(dir: &Path, names: &[String], with: impl FnOnce(&mut Nbd)) {
    let socket: PathBuf = dir.join("nbd");
    let mut command = program();
    command.args(words(&["export"], names));
    let export = Running::start(command.arg("--socket").arg(&socket));
    with(&mut Nbd::connect(&socket));
    export.signal(libc::SIGTERM);
    assert!(export.ended().success());
}

fn bytes(range: std::ops::Range<usize>, version: u64) -> Vec<u8> {
    range.flat_map(|number| sector(number, version)).collect()
}

fn write(client: &mut Nbd, range: std::ops::Range<usize>, version: u64) {
    let at = range.start * SECTOR;
    client.write(at, &bytes(range, version)).unwrap();
    client.flush().unwrap();
}

#[track_caller]
fn check(client: &mut Nbd, range: std::ops::Range<usize>, version: u64) {
    let found = client
        .read(range.start * SECTOR, range.len() * SECTOR)
        .unwrap();
    for (number, found) in range.zip(found.chunks(SECTOR)) {
        assert!(found == sector(number, version), "sector {number}");
    }
}

/// Created, written, read without each two of six targets, written without two, which then return; and one is replaced.
#[test]
fn four_parts_and_two_parities_lose_any_two_targets() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let names = created(dir.path(), "4+2".parse().unwrap());
    let shown = good(&words(&["show"], &names));
    for role in ["data_1", "data_4", "parity_1", "parity_2"] {
        assert!(shown.contains(role), "{shown}");
    }
    with_export(dir.path(), &names, |client| write(client, 0..SECTORS, 1));
    let mut pairs = 0;
    for first in 0..6 {
        for second in first + 1..6 {
            let left = (0..6).filter(|at| ![first, second].contains(at));
            let left: Vec<String> = left.map(|at| names[at].clone()).collect();
            with_export(dir.path(), &left, |client| {
                check(client, 0..SECTORS, 1);
            });
            // The two return, and are trusted again.
            good(&words(&["rebuild"], &names));
            pairs += 1;
        }
    }
    assert_eq!(pairs, 15);
    // Three are too few.
    let error = bad(&words(&["scrub"], &names[..3]));
    assert!(
        error.contains("3 of 6 targets are usable; a volume needs 4"),
        "{error}"
    );
    // What is written without two is given to them when they return.
    with_export(dir.path(), &names[..4], |client| write(client, 7..90, 2));
    good(&words(&["rebuild"], &names));
    with_export(dir.path(), &names[2..], |client| {
        check(client, 0..7, 1);
        check(client, 7..90, 2);
        check(client, 90..SECTORS, 1);
    });
    good(&words(&["rebuild"], &names));
    // A new target in the place of one.
    let new = dir.path().join("new").to_str().unwrap().to_owned();
    good(&["create", &new, "--like", &names[0], "--role", "data_3"]);
    let mut with_new = names.clone();
    with_new[2].clone_from(&new);
    good(&words(&["rebuild"], &with_new));
    let report = good(&words(&["scrub"], &with_new));
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["bad_halves"], 0, "{report}");
    assert_eq!(report["lost_blocks"], 0, "{report}");
    with_export(dir.path(), &with_new[1..5], |client| {
        check(client, 7..90, 2);
        check(client, 90..SECTORS, 1);
    });
    let error = bad(&words(&["scrub"], &names));
    assert!(error.contains("has taken its place"), "{error}");
}

/// Target processes of a volume, its export, and a client that knows what it has written.
struct Site {
    dir: tempfile::TempDir,
    layout: Layout,
    files: Vec<String>,
    targets: Vec<Option<Running>>,
    /// Addresses of the targets.
    used: Vec<String>,
    export: Option<Running>,
    client: Option<Nbd>,
    shadow: Vec<u64>,
    version: u64,
    random: fastrand::Rng,
}

impl Site {
    fn new(layout: &str) -> Self {
        Self::with(layout, |_, file| Running::target(file, "127.0.0.1:0", &[]))
    }

    fn with(layout: &str, start: impl Fn(usize, &Path) -> Running) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let layout: Layout = layout.parse().unwrap();
        let files = created(dir.path(), layout);
        let of_file = |(at, file): (usize, &String)| start(at, Path::new(file));
        let targets: Vec<Running> = files.iter().enumerate().map(of_file).collect();
        let mut site = Self {
            layout,
            used: targets.iter().map(Running::address).collect(),
            files,
            targets: targets.into_iter().map(Some).collect(),
            export: None,
            client: None,
            shadow: vec![0; SECTORS],
            version: 0,
            random: fastrand::Rng::with_seed(layout.targets() as u64),
            dir,
        };
        site.export();
        site
    }

    fn place(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    /// Starts the export, again if there was one, with the addresses that the targets have now.
    fn export(&mut self) {
        let (socket, status) = (self.dir.path().join("nbd"), self.place("status"));
        if let Some(export) = self.export.take() {
            export.kill();
        }
        let more = ["--status-socket", &status, "--outage-limit", "60s"];
        self.export = Some(Running::export(&self.used, &socket, &more));
        self.client = Some(Nbd::connect(&socket));
    }

    fn client(&mut self) -> &mut Nbd {
        self.client.as_mut().unwrap()
    }

    /// State of a target in the export.
    fn target(&self, at: usize) -> serde_json::Value {
        let told = good(&["status", "--json", "--socket", &self.place("status")]);
        let told: serde_json::Value = serde_json::from_str(&told).unwrap();
        told["volume"]["targets"][at].clone()
    }

    #[track_caller]
    fn wait_complete(&self) {
        for at in 0..self.layout.targets() {
            wait_until("the target is complete", || {
                self.target(at)["complete"] == true && self.target(at)["missing_blocks"] == 0
            });
        }
    }

    fn kill(&mut self, at: usize) {
        self.targets[at].take().unwrap().kill();
    }

    /// Starts a target again, at its address.
    fn start(&mut self, at: usize) {
        let listen = self.used[at].strip_prefix("tcp:").unwrap();
        self.targets[at] = Some(Running::target(Path::new(&self.files[at]), listen, &[]));
    }

    /// Starts an empty target of a role.
    fn new_target(&mut self, at: usize) {
        let role = self.target(at)["role"].as_str().unwrap().to_owned();
        let file = self.place(&format!("new {at}"));
        let like = self.place("status");
        good(&["create", &file, "--like", &like, "--role", &role]);
        let target = Running::target(Path::new(&file), "127.0.0.1:0", &[]);
        self.used[at] = target.address();
        self.files[at] = file;
        self.targets[at] = Some(target);
    }

    /// Sends a write to sectors below `end`. Returns them.
    fn post(&mut self, end: usize) -> std::ops::Range<usize> {
        // One that does not compress.
        self.version += 3;
        let count = self.random.usize(1..=9);
        let at = self.random.usize(..end - count);
        let bytes = bytes(at..at + count, self.version);
        let request = ((WRITE, 0), at * SECTOR);
        self.client()
            .post(request.0, request.1, bytes.len(), &bytes);
        at..at + count
    }

    /// The reply to a write, which must be good.
    #[track_caller]
    fn written(&mut self, range: std::ops::Range<usize>) {
        assert_eq!(self.client().reply(), Ok(()));
        self.shadow[range].fill(self.version);
    }

    #[track_caller]
    fn write(&mut self, count: usize, end: usize) {
        for _ in 0..count {
            let range = self.post(end);
            self.written(range);
        }
        assert_eq!(self.client().flush(), Ok(()));
    }

    #[track_caller]
    fn read_all(&mut self, when: &str) {
        let found = self.client().read(0, SECTORS * SECTOR).unwrap();
        for (number, found) in found.chunks(SECTOR).enumerate() {
            let expect = sector(number, self.shadow[number]);
            assert!(found == expect, "{when}: sector {number}");
        }
    }

    /// As many targets as there are parities, at random.
    fn few(&mut self) -> Vec<usize> {
        let all = 0..self.layout.targets();
        self.random.choose_multiple(all, self.layout.spare())
    }

    /// Everything ends as by SIGTERM, and the files hold everything.
    fn finish(mut self) {
        self.wait_complete();
        self.read_all("in the end");
        let export = self.export.take().unwrap();
        export.signal(libc::SIGTERM);
        assert!(export.ended().success());
        self.targets.clear();
        let report = good(&words(&["scrub"], &self.files));
        let report: serde_json::Value = serde_json::from_str(&report).unwrap();
        assert_eq!(report["bad_halves"], 0, "{report}");
        assert_eq!(report["lost_blocks"], 0, "{report}");
    }
}

/// As many targets as there are parities are killed and return, others are killed and replaced, and others are killed.
fn targets_are_killed_return_and_are_replaced(layout: &str) {
    let _turn = turn();
    let mut site = Site::new(layout);
    site.write(64, SECTORS);
    let few = site.few();
    few.iter().for_each(|at| site.kill(*at));
    site.read_all("some are killed");
    site.write(32, SECTORS);
    site.read_all("written without some");
    few.iter().for_each(|at| site.start(*at));
    site.wait_complete();
    // One of several returns after the replacement of those behind it.
    let mut few = site.few();
    few.sort_by_key(|at| std::cmp::Reverse(*at));
    few.iter().for_each(|at| site.kill(*at));
    site.write(8, SECTORS);
    let returns = if few.len() > 1 { few.pop() } else { None };
    for at in few {
        site.new_target(at);
        let (new, socket) = (site.used[at].clone(), site.place("status"));
        good(&["ctl", "--socket", &socket, "replace", &new]);
        site.write(1, SECTORS);
    }
    if let Some(at) = returns {
        site.start(at);
    }
    site.wait_complete();
    let few = site.few();
    few.iter().for_each(|at| site.kill(*at));
    site.read_all("others were replaced");
    site.write(8, SECTORS);
    few.iter().for_each(|at| site.start(*at));
    site.finish();
}

#[test]
fn two_parts_and_two_parities_are_killed_return_and_are_replaced() {
    targets_are_killed_return_and_are_replaced("2+2");
}

#[test]
fn three_parts_and_a_parity_are_killed_return_and_are_replaced() {
    targets_are_killed_return_and_are_replaced("3+1");
}

#[test]
fn eight_parts_and_three_parities_are_killed_return_and_are_replaced() {
    targets_are_killed_return_and_are_replaced("8+3");
}

/// Each round has three failures in a row, of which none is over before the next one: targets and exports are killed with a
/// write under way, which ends well in each case.
fn three_failures_in_a_row(layout: &str, rounds: usize) {
    let _turn = turn();
    let mut site = Site::new(layout);
    site.write(32, SECTORS);
    for round in 0..rounds {
        for _ in 0..3 {
            let most = site.layout.spare() + 1;
            let count = site.random.usize(1..=most);
            let all = 0..site.layout.targets();
            let killed = site.random.choose_multiple(all, count);
            let ends_export = site.random.bool();
            killed.iter().for_each(|at| site.kill(*at));
            // With one more than there are parities it waits for one that returns.
            let posted = (!ends_export).then(|| site.post(SECTORS));
            killed.iter().for_each(|at| site.start(*at));
            match posted {
                None => site.export(),
                Some(range) => site.written(range),
            }
        }
        site.read_all(&format!("round {round}"));
        site.write(4, SECTORS);
    }
    site.finish();
}

#[test]
fn two_parts_and_two_parities_have_three_failures_in_a_row() {
    three_failures_in_a_row("2+2", 4);
}

#[test]
fn eight_parts_and_three_parities_have_three_failures_in_a_row() {
    three_failures_in_a_row("8+3", 4);
}

/// As many disks are full as there are parities: all is written and readable. With one more writes are refused, and nothing is
/// lost. All are completed when there is space.
fn several_disks_are_full(layout: &str) {
    let _turn = turn();
    let parsed = layout.parse::<Layout>().unwrap();
    let (spare, record) = (parsed.spare(), 64 + BLOCK / parsed.needed());
    let room = |records: usize| RECORDS_AT + (records * record) as u64;
    let mut site = Site::with(layout, |at, file| match at {
        at if at < spare => Running::limited(file, room(8)),
        at if at == spare => Running::limited(file, room(100)),
        _ => Running::target(file, "127.0.0.1:0", &[]),
    });
    // Only the last one has space for these.
    site.write(32, SECTORS / 8);
    site.read_all("as many disks are full as there are parities");
    for at in 0..=spare {
        let target = site.target(at);
        assert_eq!(target["absent"], "", "it stays in use: {target}");
        assert_eq!(target["missing_blocks"] == 0, at == spare, "{target}");
    }
    let mut refused = 0;
    for _ in 0..200 {
        // Each of them reads the whole volume.
        if refused == 16 {
            break;
        }
        let range = site.post(SECTORS);
        match site.client().reply() {
            Ok(()) => site.shadow[range].fill(site.version),
            Err(error) => {
                assert_eq!(error, ENOSPC);
                refused += 1;
                let bytes = site.client().read(0, SECTORS * SECTOR).unwrap();
                old_or_new(&bytes, BLOCK, &mut site.shadow, (range, site.version));
            }
        }
    }
    assert!(refused > 0, "the disks have space for everything");
    site.read_all("too many disks are full");
    for at in 0..=spare {
        site.kill(at);
        site.start(at);
    }
    // By this the export learns of it.
    site.write(1, SECTORS);
    site.finish();
}

#[test]
fn two_disks_of_two_parts_and_two_parities_are_full() {
    several_disks_are_full("2+2");
}

#[test]
fn three_disks_of_eight_parts_and_three_parities_are_full() {
    several_disks_are_full("8+3");
}
