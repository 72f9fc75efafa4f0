//! Encrypted volumes as processes: what is at the targets and on the wire, another program that reads them, rotation, refusals.

mod common;

use common::{LIMIT, Nbd, Running, SECTOR, bad, good, names, run, skip, turn, wait_until};
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

const SIZE: usize = 256 << 10;
const BLOCK: usize = 4096;

/// An encrypted volume in a directory of its own.
struct Place {
    dir: tempfile::TempDir,
    paths: [PathBuf; 3],
}

impl Place {
    fn new(block: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let paths = ["data_1", "data_2", "data_p"].map(|name| dir.path().join(name));
        let place = Self { dir, paths };
        let key = place.key("key", "the key of the creation");
        let (size, block) = (SIZE.to_string(), block.to_string());
        let options = ["--size", &size, "--block-size", &block, "--key-file", &key];
        let words = place.words();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        good(&[&["create"], &words[..], &options].concat());
        place
    }

    fn at(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    /// A key file.
    fn key(&self, name: &str, text: &str) -> String {
        let path = self.at(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        path
    }

    fn words(&self) -> Vec<String> {
        names(&self.paths)
    }

    fn export(&self, targets: &[String], key: &str) -> Running {
        let status = self.at("status");
        let more = ["--key-file", key, "--status-socket", &status];
        Running::export(targets, &self.dir.path().join("nbd"), &more)
    }

    fn client(&self) -> Nbd {
        Nbd::connect(&self.dir.path().join("nbd"))
    }

    /// Commands with the targets behind their first word.
    fn command<'a>(
        &'a self,
        words: &'a [String],
        first: &'a str,
        rest: &[&'a str],
    ) -> Vec<&'a str> {
        let words = words.iter().map(String::as_str);
        [first]
            .into_iter()
            .chain(words)
            .chain(rest.iter().copied())
            .collect()
    }

    #[track_caller]
    fn refused(&self, words: &[&str], expect: &str) {
        let error = bad(words);
        assert!(error.contains(expect), "{words:?}: {error}");
        let errors = error.lines().filter(|line| line.starts_with("error: "));
        assert_eq!(errors.count(), 1, "{error}");
    }

    fn holds(&self, pattern: &[u8]) -> bool {
        let mut all = self.paths.iter().map(|path| fs::read(path).unwrap());
        all.any(|bytes| shows(&bytes, pattern))
    }
}

fn shows(bytes: &[u8], pattern: &[u8]) -> bool {
    bytes.windows(pattern.len()).any(|found| found == pattern)
}

fn stop(running: Running) {
    running.signal(libc::SIGTERM);
    assert!(running.ended().success());
}

/// Bytes that can be found again. Every second block compresses.
fn pattern(block: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(block as u64);
    let line: Vec<u8> = (0..64).map(|_| random.u8(..)).collect();
    let mut bytes: Vec<u8> = line.iter().copied().cycle().take(BLOCK).collect();
    if block % 2 == 1 {
        random.fill(&mut bytes[64..]);
    }
    bytes
}

/// Passes bytes between a caller and a target, and keeps all of them.
fn listen_in(target: &str, heard: &Arc<Mutex<Vec<u8>>>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("tcp:{}", listener.local_addr().unwrap());
    let target = target.strip_prefix("tcp:").unwrap().to_owned();
    let heard = Arc::clone(heard);
    std::thread::spawn(move || {
        for caller in listener.incoming().map_while(Result::ok) {
            let Ok(target) = TcpStream::connect(&target) else {
                continue;
            };
            for (from, to) in [(&caller, &target), (&target, &caller)] {
                let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                let heard = Arc::clone(&heard);
                std::thread::spawn(move || pass(from, to, &heard));
            }
        }
    });
    address
}

fn pass(mut from: TcpStream, mut to: TcpStream, heard: &Mutex<Vec<u8>>) {
    let mut bytes = [0; 1 << 16];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        heard.lock().unwrap().extend(&bytes[..count]);
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    // It may be closed already.
    let _ = to.shutdown(Shutdown::Write);
}

/// What a client writes is nowhere in the files of the targets, nor between export and targets, and comes back.
#[test]
fn nothing_that_is_written_is_at_the_targets_or_on_the_wire() {
    let _turn = turn();
    let place = Place::new(BLOCK);
    let heard = Arc::new(Mutex::new(Vec::new()));
    let targets = place
        .paths
        .each_ref()
        .map(|path| Running::target(path, "127.0.0.1:0", &[]));
    let addresses: Vec<String> = targets.iter().map(Running::address).collect();
    let heard_at: Vec<String> = addresses.iter().map(|one| listen_in(one, &heard)).collect();
    let export = place.export(&heard_at, &place.at("key"));
    let mut client = place.client();
    for block in 0..16 {
        client.write(block * BLOCK, &pattern(block)).unwrap();
    }
    client.flush().unwrap();
    // Parts of blocks, too.
    client.write(SECTOR, &pattern(40)[..SECTOR]).unwrap();
    client.flush().unwrap();
    for block in 1..16 {
        assert!(
            client.read(block * BLOCK, BLOCK).unwrap() == pattern(block),
            "{block}"
        );
    }
    let written: Vec<Vec<u8>> = (0..16).chain([40]).map(pattern).collect();
    for bytes in &written {
        assert!(!place.holds(&bytes[..16]), "at a target");
    }
    {
        let heard = heard.lock().unwrap();
        assert!(heard.len() > 16 * BLOCK / 2, "{}", heard.len());
        for bytes in &written {
            assert!(!shows(&heard, &bytes[..16]), "on the wire");
        }
    }
    drop(client);
    stop(export);
    targets.into_iter().for_each(stop);
    // The search finds what is there: without a key the same writes are in the files.
    let plain = tempfile::tempdir().unwrap();
    let paths = common::create(plain.path(), SIZE, BLOCK);
    let export = Running::export(&names(&paths), &plain.path().join("nbd"), &[]);
    let mut client = Nbd::connect(&plain.path().join("nbd"));
    client.write_through(0, &pattern(0)).unwrap();
    assert!(shows(&fs::read(&paths[0]).unwrap(), &pattern(0)[..16]));
    drop(client);
    stop(export);
}

/// A program with other implementations of AES, BLAKE3 and LZ4 reads the files of two targets.
#[test]
fn another_implementation_reads_the_targets() {
    let _turn = turn();
    let python = |words: &[&str]| Command::new("python3").args(words).output();
    let has = python(&["-c", "import cryptography"]).is_ok_and(|done| done.status.success());
    if !has {
        skip(
            "encrypt::another_implementation_reads_the_targets",
            "needs python3-cryptography",
        );
        return;
    }
    for block in [64, 512, 4096, 65536] {
        let place = Place::new(block);
        let export = place.export(&place.words(), &place.at("key"));
        let mut client = place.client();
        let mut expect = vec![0; SIZE];
        let mut random = fastrand::Rng::with_seed(7);
        for sector in 0..96 {
            // From equal bytes, which compress to a few, to noise.
            let mut bytes = [u8::try_from(sector).unwrap() + 1; SECTOR];
            random.fill(&mut bytes[..sector * 5]);
            client.write(sector * SECTOR, &bytes).unwrap();
            expect[sector * SECTOR..][..SECTOR].copy_from_slice(&bytes);
        }
        drop(client);
        stop(export);
        let judge = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/judge.py");
        let image = place.at("image");
        let words = place.words();
        let done = python(&[judge, &place.at("key"), &image, &words[0], &words[1]]).unwrap();
        let errors = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{block}: {errors}");
        assert!(
            fs::read(&image).unwrap() == expect,
            "blocks of {block} bytes"
        );
    }
}

/// Commands that open the volume need its key file; `show` and `status` do not, and say that it is encrypted.
#[test]
fn commands_without_the_right_key_file_are_refused() {
    let _turn = turn();
    let place = Place::new(BLOCK);
    let words = place.words();
    let (key, other) = (
        place.at("key"),
        place.key("other", "the key of another volume"),
    );
    let socket = place.at("socket");
    for (first, rest) in [
        ("export", &["--socket", &socket][..]),
        ("service", &["--listen", "127.0.0.1:0"]),
        ("scrub", &[]),
        ("rebuild", &[]),
        ("resize", &["--size", "1M"]),
    ] {
        let command = place.command(&words, first, rest);
        place.refused(&command, "is encrypted: give --key-file FILE");
        let command = [&command[..], &["--key-file", &other]].concat();
        place.refused(&command, "is not that of volume");
        let command = [&command[..command.len() - 1], &["/nowhere"]].concat();
        place.refused(&command, "cannot read the key in /nowhere");
    }
    let open = place.key("open", "the key of the creation");
    fs::set_permissions(&open, fs::Permissions::from_mode(0o604)).unwrap();
    let scrub = |key: &str| {
        place
            .command(&words, "scrub", &["--key-file", key])
            .join(" ")
    };
    let refused = |key: &str, expect: &str| {
        let command = scrub(key);
        place.refused(&command.split(' ').collect::<Vec<_>>(), expect);
    };
    refused(&open, "is open to everybody (mode 604)");
    refused(&place.key("short", "short"), "a secret of 5 bytes");
    refused(&place.at("."), "is no regular file");
    let good_one = scrub(&key);
    good(&good_one.split(' ').collect::<Vec<_>>());
    let shown = good(&place.command(&words, "show", &[]));
    assert!(shown.contains("\"encrypted\": true"), "{shown}");
    // A key file that is not needed.
    let plain = tempfile::tempdir().unwrap();
    let paths = names(&common::create(plain.path(), SIZE, BLOCK));
    let command = place.command(&paths, "scrub", &["--key-file", &key]);
    place.refused(&command, "is not encrypted: leave --key-file out");
    for more in [["--memory", "1M"], ["--service", "127.0.0.1:1"]] {
        let command = [
            &["export", "--socket", &socket, "--key-file", &key][..],
            &more,
        ]
        .concat();
        place.refused(&command, more[0]);
    }
}

/// A key is rotated by a running export while a target is away, and by a command. The old key opens nothing any more, and no
/// block is written again.
#[test]
fn a_rotated_key_opens_the_volume_and_the_old_one_does_not() {
    let _turn = turn();
    let place = Place::new(BLOCK);
    let (old, new) = (
        place.at("key"),
        place.key("new", "the key of the second year"),
    );
    let mut targets = place
        .paths
        .each_ref()
        .map(|path| Some(Running::target(path, "127.0.0.1:0", &[])));
    let addresses: Vec<String> = targets.iter().flatten().map(Running::address).collect();
    let export = place.export(&addresses, &old);
    let mut client = place.client();
    for block in 0..16 {
        client
            .write_through(block * BLOCK, &pattern(block))
            .unwrap();
    }
    let status = place.at("status");
    let used = || -> Vec<(u64, u64)> {
        let text = good(&["status", "--json", "--socket", &status]);
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        let volume = &json["volume"];
        assert_eq!(volume["encrypted"], true);
        let targets = volume["targets"].as_array().unwrap().clone();
        let moved = volume["moved_bytes"].as_u64().unwrap();
        let one = |target: &serde_json::Value| (target["used"].as_u64().unwrap(), moved);
        targets.iter().map(one).collect()
    };
    let before = used();
    let ctl = |words: &[&str]| run(&[&["ctl", "--socket", &status], words].concat());
    for (file, expect) in [
        ("/nowhere", "cannot read the key"),
        (&*place.key("few", "few"), "a secret of 3"),
    ] {
        let output = ctl(&["rotate-key", file]);
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(
            !output.status.success() && error.contains(expect),
            "{error}"
        );
    }
    // One is away meanwhile.
    stop(targets[2].take().unwrap());
    let absent = || {
        let text = good(&["status", "--json", "--socket", &status]);
        text.matches("\"absent\":\"\"").count() == 2
    };
    wait_until("the export misses the target", || {
        let _ = client.write_through(20 * BLOCK, &pattern(20));
        absent()
    });
    let said = ctl(&["rotate-key", &new]);
    assert!(
        said.status.success(),
        "{}",
        String::from_utf8_lossy(&said.stderr)
    );
    let listen = addresses[2].strip_prefix("tcp:").unwrap();
    targets[2] = Some(Running::target(&place.paths[2], listen, &[]));
    wait_until("the target is back", || !absent());
    let after = used();
    // One block was written meanwhile, and nothing else but what the target lacked of it.
    assert!(
        after[0].1 - before[0].1 < 8 * BLOCK as u64,
        "{before:?}, {after:?}"
    );
    drop(client);
    stop(export);
    targets.into_iter().flatten().for_each(stop);
    let words = place.words();
    for two in [[0, 1], [0, 2], [1, 2]] {
        let two: Vec<String> = two.iter().map(|at| words[*at].clone()).collect();
        place.refused(
            &place.command(&two, "scrub", &["--key-file", &old]),
            "is not that of volume",
        );
        good(&place.command(&two, "scrub", &["--key-file", &new]));
    }
    // Offline, and back.
    let rotate = ["--key-file", &new, "--new-key-file", &old];
    good(&place.command(&words, "rotate-key", &rotate));
    place.refused(
        &place.command(&words, "rotate-key", &rotate),
        "is not that of volume",
    );
    let export = place.export(&words, &old);
    let mut client = place.client();
    for block in 0..16 {
        assert!(
            client.read(block * BLOCK, BLOCK).unwrap() == pattern(block),
            "{block}"
        );
    }
    drop(client);
    stop(export);
}

/// A new target, made like a file or like a running export, takes its place in an encrypted volume.
#[test]
fn a_target_of_an_encrypted_volume_is_replaced() {
    let _turn = turn();
    let place = Place::new(BLOCK);
    let (words, key) = (place.words(), place.at("key"));
    let export = place.export(&words, &key);
    let mut client = place.client();
    for block in 0..8 {
        client
            .write_through(block * BLOCK, &pattern(block))
            .unwrap();
    }
    let (status, one) = (place.at("status"), place.at("one"));
    good(&["create", &one, "--like", &status, "--role", "data_2"]);
    good(&["ctl", "--socket", &status, "replace", &one, "--wait"]);
    drop(client);
    stop(export);
    let two = place.at("two");
    good(&["create", &two, "--like", &one, "--role", "data_p"]);
    let targets = [words[0].clone(), one.clone(), two.clone()];
    good(&place.command(&targets, "rebuild", &["--key-file", &key]));
    for bytes in (0..8).map(pattern) {
        for path in [&one, &two] {
            assert!(!shows(&fs::read(Path::new(path)).unwrap(), &bytes[..16]));
        }
    }
    let export = place.export(&[one, two], &key);
    let mut client = place.client();
    client.stream.set_read_timeout(Some(LIMIT)).unwrap();
    for block in 0..8 {
        assert!(
            client.read(block * BLOCK, BLOCK).unwrap() == pattern(block),
            "{block}"
        );
    }
    drop(client);
    stop(export);
}
