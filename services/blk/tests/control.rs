//! Commands for a running export: replacement of a target, scrub and growth, while a client writes.

mod common;

use common::{
    EIO, FLUSH, LIMIT, Nbd, Running, SECTOR, WRITE, create, good, names, run, sector, turn,
    wait_until, wait_within,
};
use std::ffi::CString;
use std::fs;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

const BLOCK: usize = 1024;
const SECTORS: usize = 4096;
/// Kills while a target is replaced.
const KILLS: u64 = 6;

/// Three targets, an export and its status.
struct World {
    dir: tempfile::TempDir,
    paths: [PathBuf; 3],
    targets: Vec<Running>,
    /// Those that the export uses.
    used: [String; 3],
    export: Option<Running>,
}

impl World {
    fn new(sectors: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let paths = create(dir.path(), sectors * SECTOR, BLOCK);
        let targets: Vec<Running> = paths
            .iter()
            .map(|path| Running::target(path, "127.0.0.1:0", &[]))
            .collect();
        let used = [0, 1, 2].map(|at| targets[at].address());
        let mut world = Self {
            dir,
            paths,
            targets,
            used,
            export: None,
        };
        world.start();
        world
    }

    fn place(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn start(&mut self) {
        let status = self.place("status");
        let status = status.to_str().unwrap();
        let more = ["--status-socket", status, "--target-timeout", "60s"];
        let export = Running::export(&self.used, &self.place("nbd"), &more);
        self.export = Some(export);
    }

    fn client(&self) -> Nbd {
        Nbd::connect(&self.place("nbd"))
    }

    fn volume(&self) -> serde_json::Value {
        let text = good(&["status", "--json", "--socket", self.status()]);
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        json["volume"].clone()
    }

    fn status(&self) -> &'static str {
        // Each test has few of them.
        Box::leak(self.place("status").display().to_string().into_boxed_str())
    }

    fn ctl(&self, words: &[&str]) -> String {
        good(&[&["ctl", "--socket", self.status()], words].concat())
    }

    /// The one line by which a command is refused.
    #[track_caller]
    fn refused(&self, words: &[&str], expect: &str) {
        let output = run(&[&["ctl", "--socket", self.status()], words].concat());
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(
            !output.status.success() && error.contains(expect),
            "{error}"
        );
        assert_eq!(error.trim_end().lines().count(), 1, "{error}");
    }

    /// Starts a new target of a role. Returns its address.
    fn new_target(&mut self, role: usize, name: &str) -> String {
        let path = self.place(name);
        let role = ["data_1", "data_2", "data_p"][role];
        let words = ["create", path.to_str().unwrap(), "--like", self.status()];
        good(&[&words[..], &["--role", role]].concat());
        let target = Running::target(&path, "127.0.0.1:0", &[]);
        let address = target.address();
        self.targets.push(target);
        address
    }

    fn wait_complete(&self) {
        wait_until("all targets are complete", || self.is_complete());
    }

    fn is_complete(&self) -> bool {
        let volume = self.volume();
        let mut targets = volume["targets"].as_array().unwrap().iter();
        targets.all(|target| target["complete"] == true && target["missing_blocks"] == 0)
    }
}

/// A client that writes and flushes until it is told to end, or its server does.
struct Writer {
    ends: &'static AtomicBool,
    thread: JoinHandle<Written>,
}

/// What a writer has written.
struct Written {
    /// The acknowledged version of each sector.
    shadow: Vec<u64>,
    /// The write without an answer, and its version.
    open: Option<(std::ops::Range<usize>, u64)>,
    version: u64,
}

impl Writer {
    fn start(mut client: Nbd, mut written: Written) -> Self {
        let ends: &AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
        let thread = std::thread::spawn(move || {
            let sectors = written.shadow.len();
            let mut random = fastrand::Rng::with_seed(written.version);
            while !ends.load(Ordering::Relaxed) {
                written.version += 1;
                let count = random.usize(1..=9);
                let at = random.usize(..sectors - count);
                let range = at..at + count;
                let data: Vec<u8> = range
                    .clone()
                    .flat_map(|number| sector(number, written.version))
                    .collect();
                match client.try_write(at * SECTOR, &data) {
                    Some(done) => assert_eq!(done, Ok(()), "a write of a volume with two targets"),
                    None => {
                        written.open = Some((range, written.version));
                        break;
                    }
                }
                written.shadow[range].fill(written.version);
                if random.usize(..16) == 0 && client.try_flush().is_none() {
                    break;
                }
            }
            written
        });
        Self { ends, thread }
    }

    fn end(self) -> Written {
        self.ends.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

impl Written {
    fn new(sectors: usize) -> Self {
        Self {
            shadow: vec![0; sectors],
            open: None,
            version: 0,
        }
    }

    /// Compares everything. Blocks of the write without an answer are old or new.
    #[track_caller]
    fn check(&mut self, client: &mut Nbd, when: &str) {
        let bytes = client.read(0, self.shadow.len() * SECTOR).unwrap();
        let open = self.open.take();
        for (block, bytes) in bytes.chunks(BLOCK).enumerate() {
            let numbers = block * BLOCK / SECTOR..(block + 1) * BLOCK / SECTOR;
            let new = |number: usize| match &open {
                Some((range, version)) if range.contains(&number) => *version,
                _ => self.shadow[number],
            };
            let is = |of: &dyn Fn(usize) -> u64| {
                let mut sectors = numbers.clone().zip(bytes.chunks(SECTOR));
                sectors.all(|(number, bytes)| bytes == sector(number, of(number)))
            };
            if is(&|number| self.shadow[number]) {
                continue;
            }
            assert!(is(&new), "{when}: block {block} is neither old nor new");
            let new: Vec<u64> = numbers.clone().map(new).collect();
            self.shadow[numbers].copy_from_slice(&new);
        }
    }
}

/// Each target is replaced by one at another address while a client writes. Then the old one is not needed any more, and any
/// of the others can be lost.
#[test]
fn each_target_is_replaced_while_a_client_writes() {
    let _turn = turn();
    let mut world = World::new(SECTORS);
    world.wait_complete();
    let mut written = Written::new(SECTORS);
    for role in 0..3 {
        let address = world.new_target(role, &format!("new_{role}"));
        let writer = Writer::start(world.client(), written);
        let said = world.ctl(&["replace", &address, "--wait"]);
        assert!(said.contains(&address), "{said}");
        // The old one ends while the client still writes.
        world.targets[role].child.kill().unwrap();
        world.used[role] = address.clone();
        written = writer.end();
        written.check(&mut world.client(), "after a replacement");
        let volume = world.volume();
        assert_eq!(volume["targets"][role]["name"], address, "{volume}");
        assert_eq!(volume["replacements"], role + 1, "{volume}");
        assert_eq!(volume["lost_blocks"], 0, "{volume}");
        world.wait_complete();
    }
    assert!(written.version > 30, "{} writes", written.version);
    let shown: serde_json::Value = serde_json::from_str(&world.ctl(&["show"])).unwrap();
    assert_eq!(shown["replacements"], 3);
    // Any two of the new ones have everything.
    world.export.take().unwrap().signal(libc::SIGKILL);
    for absent in 0..3 {
        let mut used = world.used.to_vec();
        used.remove(absent);
        let socket = world.place(&format!("nbd_{absent}"));
        let export = Running::export(&used, &socket, &[]);
        written.check(&mut Nbd::connect(&socket), "without one of the new targets");
        export.kill();
    }
}

/// The export is killed at some time of a replacement. It opens with the new target, and with the old one, which does not
/// count.
#[test]
fn an_export_that_is_killed_in_a_replacement_opens_again() {
    let _turn = turn();
    let mut world = World::new(SECTORS);
    world.wait_complete();
    let mut written = Written::new(SECTORS);
    let mut in_the_middle = 0;
    for round in 0..KILLS {
        let role = usize::try_from(round % 3).unwrap();
        let address = world.new_target(role, &format!("new_{round}"));
        let writer = Writer::start(world.client(), written);
        world.ctl(&["replace", &address]);
        wait_until("the new target has some blocks, or all", || {
            let target = world.volume()["targets"][role].clone();
            target["complete"] == true || target["used"].as_u64() > Some(0)
        });
        let target = world.volume()["targets"][role].clone();
        world.export.take().unwrap().kill();
        in_the_middle += u64::from(target["complete"] == false);
        written = writer.end();
        let old = std::mem::replace(&mut world.used[role], address);
        if round % 2 == 0 {
            // The options still name the old one.
            let new = std::mem::replace(&mut world.used[role], old.clone());
            world.start();
            written.check(&mut world.client(), "with the old target");
            let absent = world.volume()["targets"][role]["absent"].clone();
            let absent = absent.as_str().unwrap();
            assert!(absent.contains("has taken its place"), "{absent}");
            world.export.take().unwrap().kill();
            world.used[role] = new;
        }
        world.start();
        written.check(&mut world.client(), "with the new target");
        world.wait_complete();
        written.check(&mut world.client(), "when it is complete");
    }
    assert!(
        in_the_middle > 0,
        "no kill was in the middle of a replacement"
    );
}

/// A target that was replaced holds old data. With another one that was away since, it must not show them.
#[test]
fn a_replaced_target_shows_no_old_data() {
    let _turn = turn();
    let mut world = World::new(64);
    world.client().write_through(0, &[1; BLOCK]).unwrap();
    world.wait_complete();
    let old = world.used[1].clone();
    let address = world.new_target(1, "new");
    world.ctl(&["replace", &address, "--wait"]);
    // Without data_1, which holds the first data from here on, as the old target does.
    world.targets[0].child.kill().unwrap();
    world.client().write_through(0, &[2; BLOCK]).unwrap();
    world.export.take().unwrap().kill();
    let first = Running::target(&world.paths[0], "127.0.0.1:0", &[]);
    let socket = world.place("other");
    let words = ["export", &first.address(), &old];
    let output = run(&[&words[..], &["--socket", socket.to_str().unwrap()]].concat());
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("has taken its place"), "{error}");
    let used = [address, world.used[2].clone()];
    let _export = Running::export(&used, &socket, &[]);
    assert_eq!(Nbd::connect(&socket).read(0, BLOCK), Ok(vec![2; BLOCK]));
}

#[test]
fn replacements_that_would_lose_something_are_refused() {
    let _turn = turn();
    let mut world = World::new(64);
    world.wait_complete();
    world.client().write_through(0, &[1; BLOCK]).unwrap();
    // A target of another volume.
    let elsewhere = world.place("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    let others = create(&elsewhere, 64 * SECTOR, BLOCK);
    world.refused(
        &["replace", &names(&others)[1]],
        "do not belong to one volume",
    );
    // Those in use, by their names and by others.
    let used = world.used.clone();
    world.refused(
        &["replace", &used[1]],
        "is a target of this process already",
    );
    let other_name = used[1].replace("127.0.0.1", "localhost");
    world.refused(&["replace", &other_name], "it is in use as data_2");
    let file = world.paths[0].to_str().unwrap().to_owned();
    world.refused(&["replace", &file], "another process uses this target");
    world.refused(&["replace", "nothing"], "nothing");
    // One of the two others is away.
    let address = world.new_target(1, "new");
    world.targets[0].child.kill().unwrap();
    world.client().write_through(0, &[2; BLOCK]).unwrap();
    world.refused(
        &["replace", &address],
        "data_2 cannot be replaced now: data_1 is absent",
    );
    let volume = world.volume();
    assert_eq!(volume["replacements"], 0, "{volume}");
    assert_eq!(volume["targets"][1]["name"], used[1], "{volume}");
    assert_eq!(world.client().read(0, BLOCK), Ok(vec![2; BLOCK]));
    // The one that is away itself can be replaced.
    let address = world.new_target(0, "new_0");
    world.ctl(&["replace", &address, "--wait"]);
    assert_eq!(world.volume()["targets"][0]["name"], address);
    // Without the path of a socket.
    let error = String::from_utf8(run(&["ctl", "show"]).stderr).unwrap();
    assert!(error.contains("--socket FILE"), "{error}");
}

/// Where the last record in the file of a small volume is.
fn last_record(path: &Path) -> u64 {
    let bytes = fs::read(path).unwrap();
    let at = bytes.windows(4).rposition(|word| word == b"XBH1");
    at.unwrap_or_else(|| panic!("no record in {}", path.display())) as u64
}

#[test]
fn a_scrub_beside_clients_repairs_a_damaged_block() {
    let _turn = turn();
    let world = World::new(64);
    let mut client = world.client();
    let noise: Vec<u8> = (0..64).flat_map(|number| sector(number, 3)).collect();
    client.write(0, &noise).unwrap();
    client.flush().unwrap();
    world.wait_complete();
    // A scrub of one byte per second runs until it is stopped, and no second one beside it.
    world.refused(&["scrub", "--rate", "0"], "rate 0");
    world.refused(&["scrub", "--stop"], "no scrub runs");
    world.ctl(&["scrub", "--rate", "1"]);
    assert_eq!(world.volume()["scrubbing"], 1);
    world.refused(&["scrub"], "a scrub runs");
    client.write(0, &noise).unwrap();
    // It has read what it reads at once, and waits for more seconds than any test has.
    let scrubbed = world.volume()["scrubbed_blocks"].as_u64().unwrap();
    assert!(scrubbed <= 1, "{scrubbed} of 32 blocks");
    world.ctl(&["scrub", "--stop"]);
    wait_until("the scrub ends", || world.volume()["scrubs"] == 1);
    assert_eq!(world.volume()["scrubbing"], 0);
    client.flush().unwrap();
    // One byte of a half block.
    let file = fs::File::options()
        .read(true)
        .write(true)
        .open(&world.paths[1])
        .unwrap();
    let at = last_record(&world.paths[1]) + 64 + 5;
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[!byte[0]], at).unwrap();
    let before = world.volume();
    let said = world.ctl(&["scrub", "--wait"]);
    assert_eq!(
        said.trim_end(),
        "1 half blocks were absent or wrong, 0 blocks cannot be read"
    );
    let after = world.volume();
    let more = |name: &str| after[name].as_u64().unwrap() - before[name].as_u64().unwrap();
    assert_eq!((more("scrub_bad_halves"), more("repaired_halves")), (1, 1));
    assert_eq!(more("scrubbed_blocks"), 32);
    let text = good(&["status", "--prom", "--socket", world.status()]);
    for line in [
        "xgvmi_blk_scrub_bad_halves_total 1",
        "xgvmi_blk_scrubbing 0",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
    assert!(world.ctl(&["scrub", "--wait"]).starts_with("0 half blocks"));
    assert_eq!(client.read(0, 64 * SECTOR).unwrap(), noise);
}

/// Eight FLUSHes at once, while a target does not answer: one sync serves those that wait behind the first one.
#[test]
fn flushes_that_wait_have_one_sync() {
    let _turn = turn();
    let world = World::new(64);
    world.wait_complete();
    let mut client = world.client();
    client.write(0, &[1; BLOCK]).unwrap();
    let before = world.volume();
    let more = |now: &serde_json::Value, name: &str| {
        now[name].as_u64().unwrap() - before[name].as_u64().unwrap()
    };
    world.targets[1].signal(libc::SIGSTOP);
    for _ in 0..8 {
        client.post((FLUSH, 0), 0, 0, &[]);
    }
    wait_until("all FLUSHes wait", || more(&world.volume(), "flushes") == 8);
    wait_until("the first one waits for the target", || {
        more(&world.volume(), "flush_groups") == 1
    });
    world.targets[1].signal(libc::SIGCONT);
    for _ in 0..8 {
        assert_eq!(client.reply(), Ok(()));
    }
    let groups = more(&world.volume(), "flush_groups");
    assert!((1..=2).contains(&groups), "8 FLUSHes in {groups} groups");
    // After SIGKILL to the export it is there.
    drop(world.export);
    let socket = world.dir.path().join("again");
    let _export = Running::export(&world.used, &socket, &[]);
    assert_eq!(Nbd::connect(&socket).read(0, BLOCK), Ok(vec![1; BLOCK]));
}

/// No status and no command waits for the requests that wait for targets.
#[test]
fn the_status_is_told_while_all_targets_are_busy() {
    let _turn = turn();
    let world = World::new(64);
    world.wait_complete();
    let mut client = world.client();
    world
        .targets
        .iter()
        .for_each(|target| target.signal(libc::SIGSTOP));
    client.post((WRITE, 0), 0, BLOCK, &[1; BLOCK]);
    wait_until("the write is under way", || {
        let text = good(&["status", "--json", "--socket", world.status()]);
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        json["buffered_bytes"].as_u64().unwrap() >= BLOCK as u64
    });
    good(&["status", "--prom", "--socket", world.status()]);
    world.ctl(&["show"]);
    world.refused(&["scrub", "--stop"], "no scrub runs");
    let waits = Duration::from_millis(1);
    client.stream.set_read_timeout(Some(waits)).unwrap();
    let early = client.stream.read(&mut [0]);
    assert!(early.is_err(), "the write has an answer: {early:?}");
    client.stream.set_read_timeout(Some(LIMIT)).unwrap();
    world
        .targets
        .iter()
        .for_each(|target| target.signal(libc::SIGCONT));
    assert_eq!(client.reply(), Ok(()));
}

/// The volume grows while a client is connected. The next one sees the new size, also after SIGKILL.
#[test]
fn a_volume_grows_while_it_is_exported() {
    let _turn = turn();
    let mut world = World::new(64);
    let (size, more) = (64 * SECTOR, 96 * SECTOR);
    let mut client = world.client();
    assert_eq!(client.size, size as u64);
    client.write_through(size - BLOCK, &[1; BLOCK]).unwrap();
    let size_text = |bytes: usize| bytes.to_string();
    world.refused(
        &["resize", &size_text(size - BLOCK)],
        "no volume becomes smaller",
    );
    world.refused(
        &["resize", &size_text(size + 512)],
        "multiple of the block size",
    );
    world.refused(&["resize", "1T"], "its index has room for");
    let said = world.ctl(&["resize", &size_text(more)]);
    assert!(said.contains(&size_text(more)), "{said}");
    let mut next = world.client();
    assert_eq!(next.size, more as u64);
    assert_eq!(next.read(size, more - size).unwrap(), vec![0; more - size]);
    next.write_through(more - BLOCK, &[2; BLOCK]).unwrap();
    assert_eq!(client.read(size - BLOCK, BLOCK).unwrap(), vec![1; BLOCK]);
    world.export.take().unwrap().kill();
    // One that was not there when the volume grew follows.
    world.start();
    let mut again = world.client();
    assert_eq!(again.size, more as u64);
    assert_eq!(again.read(more - BLOCK, BLOCK).unwrap(), vec![2; BLOCK]);
    assert_eq!(again.read(more, BLOCK), Err(22), "EINVAL, not {EIO}");
}

/// Snapshots by commands, read by their names, through a target that is away, one that is replaced, growth and a kill.
#[test]
fn a_snapshot_is_read_by_its_name_and_deleted() {
    const EPERM: u32 = 1;
    let _turn = turn();
    let mut world = World::new(64);
    let mut client = world.client();
    client.write_through(0, &[1; BLOCK]).unwrap();
    world.wait_complete();
    world.ctl(&["snapshot", "create", "first"]);
    client.write(0, &[2; BLOCK]).unwrap();
    world.refused(&["snapshot", "create", "first"], "there is a snapshot");
    world.refused(&["snapshot", "create", "a/b"], "letters");
    world.refused(&["snapshot", "delete", "none"], "there is no snapshot");
    let socket = world.place("nbd");
    let mut first = Nbd::connect_to(&socket, "first");
    assert_eq!(first.read(0, BLOCK), Ok(vec![1; BLOCK]));
    assert_eq!(first.write(0, &[3; BLOCK]), Err(EPERM));
    assert_eq!(client.read(0, BLOCK), Ok(vec![2; BLOCK]));
    // A volume that lacks a target.
    world.targets[0].child.kill().unwrap();
    client.write_through(BLOCK, &[4; BLOCK]).unwrap();
    world.refused(&["snapshot", "create", "second"], "--force");
    world.ctl(&["snapshot", "create", "second", "--force"]);
    client.write_through(BLOCK, &[5; BLOCK]).unwrap();
    let listen = world.used[0].strip_prefix("tcp:").unwrap().to_owned();
    world.targets[0] = Running::target(&world.paths[0], &listen, &[]);
    world.wait_complete();
    world.ctl(&["resize", &(128 * SECTOR).to_string()]);
    let address = world.new_target(1, "new");
    world.ctl(&["replace", &address, "--wait"]);
    world.used[1] = address;
    // The one that was away and the new one have both snapshots.
    world.export.take().unwrap().kill();
    let more = ["--status-socket", world.status()];
    world.export = Some(Running::export(&world.used[..2], &socket, &more));
    let list = world.ctl(&["snapshot", "list"]);
    let list: serde_json::Value = serde_json::from_str(&list).unwrap();
    assert_eq!(
        (&list[0]["name"], &list[1]["name"]),
        (&"first".into(), &"second".into())
    );
    assert_eq!(list[1]["size"], 64 * SECTOR as u64);
    for (name, bytes) in [("first", [1, 0]), ("second", [2, 4]), ("", [2, 5])] {
        let mut client = Nbd::connect_to(&socket, name);
        for (at, byte) in bytes.into_iter().enumerate() {
            let read = client.read(at * BLOCK, BLOCK);
            assert_eq!(read, Ok(vec![byte; BLOCK]), "{name}");
        }
    }
    let mut first = Nbd::connect_to(&socket, "first");
    for name in ["first", "second"] {
        world.ctl(&["snapshot", "delete", name]);
    }
    assert_eq!(first.read(0, BLOCK), Err(EIO), "it was deleted");
    wait_until("the space comes back", || {
        world.ctl(&["snapshot", "list"]).trim() == "[]"
    });
    let mut client = world.client();
    assert_eq!(client.read(BLOCK, BLOCK), Ok(vec![5; BLOCK]));
}

/// A target on a small file system of its own.
struct Small {
    address: String,
    /// A file that takes space there.
    filler: PathBuf,
}

impl Small {
    /// Starts a new target of data_2. None if this user may not mount a file system.
    fn start(world: &mut World) -> Option<Self> {
        let dir = world.place("small");
        fs::create_dir(&dir).unwrap();
        let unshare = |script: &str| {
            let mut command = Command::new("unshare");
            command.args(["-rm", "sh", "-c", script]);
            command.arg(env!("CARGO_BIN_EXE_xgvmi-blk"));
            command.arg(&dir).arg(world.status());
            command
                .env_remove("XDG_RUNTIME_DIR")
                .env_remove("RUNTIME_DIRECTORY");
            command
        };
        let mount = "mount -t tmpfs -o size=8m none \"$1\"";
        let mounted = unshare(mount).output();
        if !mounted.is_ok_and(|output| output.status.success()) {
            return None;
        }
        let script = format!(
            "{mount} && \"$0\" create \"$1/new\" --like \"$2\" --role data_2 >&2 \
             && exec \"$0\" target \"$1/new\" --listen 127.0.0.1:0"
        );
        let target = Running::start(&mut unshare(&script));
        let of_process = format!("/proc/{}/root{}", target.child.id(), dir.display());
        let address = target.address();
        world.targets.push(target);
        Some(Self {
            address,
            filler: Path::new(&of_process).join("filler"),
        })
    }

    /// Fills the file system but for so many bytes.
    fn leave(&self, bytes: u64) {
        fs::write(&self.filler, "").unwrap();
        let path = CString::new(self.filler.as_os_str().as_bytes()).unwrap();
        let mut system = std::mem::MaybeUninit::uninit();
        // SAFETY: a path with its end, and the place of a result, which is filled in if the call is successful.
        let system: libc::statvfs = unsafe {
            assert_eq!(libc::statvfs(path.as_ptr(), system.as_mut_ptr()), 0);
            system.assume_init()
        };
        let filler = system.f_bavail * system.f_frsize - bytes;
        fs::write(&self.filler, vec![1; usize::try_from(filler).unwrap()]).unwrap();
    }
}

/// A target on a small file system takes the place of another one. Without space for what there is it is refused, and the old
/// one stays. If its disk becomes full afterwards, the two others serve, and it is completed when there is space.
#[test]
fn a_replacement_on_a_full_disk_goes_on_when_there_is_space() {
    let _turn = turn();
    let mut world = World::new(SECTORS);
    world.wait_complete();
    let noise = |sectors: std::ops::Range<usize>| -> Vec<u8> {
        sectors.flat_map(|number| sector(number, 3)).collect()
    };
    let mut client = world.client();
    client.write_through(0, &noise(0..SECTORS / 2)).unwrap();
    let held = world.volume()["targets"][0]["used"].as_u64().unwrap();
    let Some(small) = Small::start(&mut world) else {
        common::skip(
            "a_replacement_on_a_full_disk_goes_on_when_there_is_space",
            "this user may not mount a file system in a namespace of its own",
        );
        return;
    };
    let old = world.used[1].clone();
    small.leave(held / 2);
    world.refused(
        &["replace", &small.address],
        &format!("and needs {held}: free some there, or give another target"),
    );
    let volume = world.volume();
    assert_eq!(volume["targets"][1]["name"], old, "{volume}");
    assert_eq!(volume["replacements"], 0, "{volume}");
    // Space for what there is, and not for as much again.
    small.leave(held + held / 2);
    world.ctl(&["replace", &small.address]);
    client.write(0, &noise(0..SECTORS)).unwrap();
    client.flush().unwrap();
    wait_until("the new target is full", || {
        world.volume()["targets"][1]["missing_blocks"].as_u64() > Some(0)
    });
    let volume = world.volume();
    assert_eq!(volume["targets"][1]["name"], small.address, "{volume}");
    assert_eq!(volume["lost_blocks"], 0, "{volume}");
    assert_eq!(client.read(0, SECTORS * SECTOR), Ok(noise(0..SECTORS)));
    fs::remove_file(&small.filler).unwrap();
    // The rebuild has failed as often as it could meanwhile, and is tried again within a minute.
    let longest = Duration::from_secs(60) + LIMIT;
    wait_within(longest, "all are complete", || world.is_complete());
    // It has everything.
    world.targets[0].child.kill().unwrap();
    assert_eq!(client.read(0, SECTORS * SECTOR), Ok(noise(0..SECTORS)));
}
