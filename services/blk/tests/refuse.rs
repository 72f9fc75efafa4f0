//! What is refused, by the command and by an export: the error says what is wrong, where, and what to do.

mod common;

use common::{
    EIO, ENOSPC, Nbd, READ, Running, WRITE, bad, create, good, names, program, run, turn,
    wait_until,
};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use xgvmi_blk::block::{Kind, part_length};
use xgvmi_blk::record::Half;
use xgvmi_blk::store::Mark;
use xgvmi_blk::{Role, Store, Target as _};

const EINVAL: u32 = 22;
const EOVERFLOW: u32 = 75;
const SIZE: usize = 64 << 10;
const BLOCK: usize = 1024;

/// Targets of a volume in a directory of their own.
fn volume(dir: &Path, name: &str, size: usize, block_size: usize) -> [PathBuf; 3] {
    let dir = dir.join(name);
    fs::create_dir(&dir).unwrap();
    create(&dir, size, block_size)
}

/// Two commands refuse these targets with this text, and the name of the target that is wrong.
#[track_caller]
fn refused(targets: &[&Path], name: &Path, fault: &str) {
    let words: Vec<&str> = targets.iter().map(|path| path.to_str().unwrap()).collect();
    let socket = name.with_extension("sock");
    for command in [
        [&["show"], &words[..]].concat(),
        [
            &["export"],
            &words[..],
            &["--socket", socket.to_str().unwrap()],
        ]
        .concat(),
    ] {
        let error = bad(&command);
        assert!(error.contains(fault), "no '{fault}': {error}");
        assert!(error.contains(name.to_str().unwrap()), "no name: {error}");
    }
}

/// A volume that cannot be created leaves none of its files behind, and touches no others. The reason is told once.
#[test]
fn a_volume_that_cannot_be_created_leaves_no_files() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let [a, b, nowhere, mine] = ["a", "b", "nowhere/c", "mine"].map(place);
    fs::write(&mine, "mine").unwrap();
    for (third, fault) in [
        (&nowhere, "No such file"),
        (&mine, "name exists: remove it"),
    ] {
        let error = bad(&["create", &a, &b, third, "--size", "1M"]);
        assert_eq!(error.matches(fault).count(), 1, "{error}");
        let left = fs::read_dir(dir.path()).unwrap();
        let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["mine"]);
    }
    let paths = create(dir.path(), SIZE, BLOCK);
    // No socket takes the place of a file.
    for option in ["--socket", "--vhost-socket"] {
        let words = paths.each_ref().map(|path| path.to_str().unwrap());
        let error = bad(&[&["export"], &words[..], &[option, &mine]].concat());
        assert!(error.contains("no socket"), "{error}");
    }
    assert_eq!(fs::read(&mine).unwrap(), b"mine");
    let _export = Running::export(&names(&paths), &dir.path().join("nbd"), &[]);
    let like = paths[0].to_str().unwrap();
    // A target in use is named by the status socket of its process.
    let error = bad(&["create", &a, "--like", like, "--role", "data_1"]);
    assert!(error.contains("give its status socket"), "{error}");
}

#[test]
fn targets_of_different_sizes() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let ours = volume(dir.path(), "a", SIZE, BLOCK);
    let theirs = volume(dir.path(), "b", 2 * SIZE, BLOCK);
    refused(
        &[&ours[0], &theirs[1]],
        &theirs[1],
        "do not belong to one volume",
    );
}

/// A volume becomes larger, up to the room of its index, and never smaller.
#[test]
fn a_size_that_is_smaller_or_has_no_room() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let ours = volume(dir.path(), "a", SIZE, BLOCK);
    let names = names(&ours);
    let targets: Vec<&str> = names.iter().map(String::as_str).collect();
    let resize = |size: u64| {
        let size = size.to_string();
        run(&[&["resize"], &targets[..], &["--size", &size]].concat())
    };
    let twice = 2 * SIZE as u64;
    assert!(resize(twice).status.success());
    for (size, fault) in [
        (
            twice - BLOCK as u64,
            "no volume becomes smaller: copy it to a new one",
        ),
        (twice + 512, "give a multiple of the block size"),
        (1 << 40, "its index has room for 65536 blocks"),
    ] {
        let error = String::from_utf8(resize(size).stderr).unwrap();
        assert!(error.contains(fault), "{error}");
        assert_eq!(error.trim_end().lines().count(), 1, "{error}");
    }
    let shown = good(&[&["show"], &targets[..]].concat());
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["size"], twice);
}

#[test]
fn targets_of_different_block_sizes() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let ours = volume(dir.path(), "a", SIZE, BLOCK);
    let store = Store::open_file(&ours[0], None).unwrap();
    let new = xgvmi_blk::store::NewTarget {
        geometry: xgvmi_blk::Geometry::of_size(512, SIZE as u64 / 2).unwrap(),
        role: Role::SECOND,
        volume: store.identity().volume,
        complete: true,
    };
    drop(store);
    let other = dir.path().join("other");
    drop(Store::create_file(&other, new, None).unwrap());
    refused(
        &[&ours[0], &other],
        &other,
        "64 blocks of 1024 bytes and 64 blocks of 512 bytes",
    );
}

/// Also if the identifier is the same.
#[test]
fn targets_of_different_layouts() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let ours = volume(dir.path(), "a", SIZE, BLOCK);
    let store = Store::open_file(&ours[0], None).unwrap();
    let identity = store.identity();
    let copies = "mirror-2".parse::<xgvmi_blk::Layout>().unwrap();
    let new = xgvmi_blk::store::NewTarget {
        geometry: identity.geometry,
        role: copies.roles().nth(1).unwrap(),
        volume: identity.volume,
        complete: true,
    };
    drop(store);
    let other = dir.path().join("other");
    drop(Store::create_file(&other, new, None).unwrap());
    let words = [&ours[0], &ours[1], &other].map(|path| path.to_str().unwrap());
    let socket = dir.path().join("sock");
    let more = ["--socket", socket.to_str().unwrap()];
    let error = bad(&[&["export"], &words[..], &more].concat());
    assert_eq!(error.trim_end().lines().count(), 1, "{error}");
    assert!(error.contains(words[2]), "no name: {error}");
    assert!(
        error.contains("2+1") && error.contains("mirror-2"),
        "{error}"
    );
    let paths = [ours[0].as_path(), &other];
    refused(&paths, &other, "do not belong to one volume");
}

#[test]
fn targets_of_different_volumes() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let ours = volume(dir.path(), "a", SIZE, BLOCK);
    let theirs = volume(dir.path(), "b", SIZE, BLOCK);
    refused(&[&ours[0], &ours[1], &theirs[2]], &theirs[2], "volume ");
    let roles = [&ours[0], &theirs[0]].map(PathBuf::as_path);
    refused(&roles, &theirs[0], "do not belong to one volume");
}

#[test]
fn the_same_target_twice() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let ours = volume(dir.path(), "a", SIZE, BLOCK);
    // The second opening of one file finds its lock.
    refused(
        &[&ours[0], &ours[0]],
        &ours[0],
        "another process uses this target",
    );
    let copy = dir.path().join("copy");
    fs::copy(&ours[0], &copy).unwrap();
    refused(&[&ours[0], &copy], &copy, "they are the same target");
    let target = Running::target(&ours[1], "127.0.0.1:0", &[]);
    let address = target.address();
    let error = bad(&["show", &address, &address]);
    assert!(error.contains("they are the same target"), "{error}");
}

#[test]
fn a_target_of_a_later_generation() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let ours = volume(dir.path(), "a", SIZE, BLOCK);
    let (socket, away) = (dir.path().join("nbd"), dir.path().join("away"));
    fs::rename(&ours[2], &away).unwrap();
    let log = dir.path().join("log");
    let mut command = program();
    command
        .arg("export")
        .args(&ours)
        .arg("--socket")
        .arg(&socket);
    command.stderr(Stdio::from(fs::File::create(&log).unwrap()));
    let _export = Running::start(&mut command);
    Nbd::connect(&socket).write(0, &[7; 1024]).unwrap();
    // Another process has opened the volume with this target since.
    let later = Store::open_file(&away, None).unwrap();
    later.mark(99, Mark::Complete).unwrap();
    drop(later);
    fs::rename(&away, &ours[2]).unwrap();
    let said = || fs::read_to_string(&log).unwrap();
    wait_until("the export refuses it", || {
        said().contains("another process has opened the volume since: close this one")
    });
    assert!(said().contains(ours[2].to_str().unwrap()), "{}", said());
    assert_eq!(Nbd::connect(&socket).read(0, 1024), Ok(vec![7; 1024]));
}

/// A second opener beside an export that serves: it is refused, or ends the other one's use of the volume. The export
/// that has lost its volume answers with errors and ends; it never serves zeros.
#[test]
fn a_second_opener_beside_a_live_export() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let paths = create(dir.path(), SIZE, BLOCK);
    let targets = paths
        .each_ref()
        .map(|path| Running::target(path, "127.0.0.1:0", &[]));
    let addresses = targets.each_ref().map(Running::address);
    let words = addresses.each_ref().map(String::as_str);
    let (socket, second) = (dir.path().join("nbd"), dir.path().join("second"));
    let first = Running::export(&addresses, &socket, &[]);
    let mut client = Nbd::connect(&socket);
    client.write_through(0, &[7; BLOCK]).unwrap();
    // To look at the volume disturbs nobody.
    let shown = good(&[&["show"], &words[..]].concat());
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["lost_blocks"], 0, "{shown}");
    for command in ["scrub", "rebuild", "export"] {
        let more = ["--socket", second.to_str().unwrap()];
        let more = if command == "export" { &more[..] } else { &[] };
        let error = bad(&[&[command], &words[..], more].concat());
        assert!(
            error.contains("another process uses this target") && error.contains("--take-over"),
            "{command}: {error}"
        );
    }
    client.write_through(BLOCK, &[8; BLOCK]).unwrap();
    assert_eq!(client.read(4 * BLOCK, BLOCK), Ok(vec![0; BLOCK]));
    // The export is killed, and the next one opens the volume at once.
    drop(client);
    first.kill();
    let first = Running::export(&addresses, &socket, &[]);
    let mut client = Nbd::connect(&socket);
    assert_eq!(client.read(BLOCK, BLOCK), Ok(vec![8; BLOCK]));
    let later = Running::export(&addresses, &second, &["--take-over"]);
    let mut other = Nbd::connect(&second);
    other.write_through(4 * BLOCK, &[9; BLOCK]).unwrap();
    // The other export has data here, and this one knows of none.
    assert!(client.is_refused_to_read(4 * BLOCK, BLOCK));
    assert!(!first.ended().success());
    assert_eq!(other.read(0, BLOCK), Ok(vec![7; BLOCK]));
    assert_eq!(other.read(4 * BLOCK, BLOCK), Ok(vec![9; BLOCK]));
    drop(other);
    later.signal(libc::SIGTERM);
    assert!(later.ended().success());
}

#[test]
fn one_target_is_no_volume() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let ours = volume(dir.path(), "a", SIZE, BLOCK);
    let error = bad(&["show", ours[1].to_str().unwrap()]);
    assert!(
        error.contains("a volume needs 2: data_1 is absent"),
        "{error}"
    );
    let file = dir.path().join("file");
    for (bytes, fault) in [
        (&b"text"[..], "no target of xgvmi-blk"),
        (b"XGVMIBLK", "damaged"),
    ] {
        fs::write(&file, bytes).unwrap();
        let error = bad(&["target", file.to_str().unwrap()]);
        assert!(error.contains(fault) && error.contains("file"), "{error}");
    }
}

#[test]
fn block_sizes_that_are_no_multiple_of_64_or_exceed_1_mib() {
    let dir = tempfile::tempdir().unwrap();
    let names = names(&["a", "b", "c"].map(|name| dir.path().join(name)));
    let files: Vec<&str> = names.iter().map(String::as_str).collect();
    let create = |size: &str, block_size: &str| {
        let options = ["--size", size, "--block-size", block_size];
        bad(&[&["create"], &files[..], &options[..]].concat())
    };
    for (block_size, size) in [
        ("0", "1M"),
        ("32", "1M"),
        ("100", "1M"),
        ("2M", "4M"),
        ("1048640", "8M"),
    ] {
        let error = create(size, block_size);
        assert!(error.contains("multiple of 64 up to 1048576"), "{error}");
    }
    for (size, fault) in [
        ("0", "0 blocks"),
        ("4097", "multiple of the block size"),
        ("17T", "choose another block size"),
        ("x", "number of bytes"),
    ] {
        let error = create(size, "4096");
        assert!(error.contains(fault), "{error}");
    }
    assert!(
        fs::read_dir(dir.path()).unwrap().next().is_none(),
        "a file was created"
    );
}

/// Runs requests that an export must refuse, and one that it must serve afterwards.
#[track_caller]
fn requests_refused(cases: &[(u16, usize, usize, u32)]) {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("nbd");
    let mut command = program();
    command
        .args(["export", "--memory", "65536", "--socket"])
        .arg(&socket);
    let _export = Running::start(command.stderr(Stdio::null()));
    let mut client = Nbd::connect(&socket);
    client.write(SIZE - 512, &[9; 512]).unwrap();
    for &(command, offset, length, expect) in cases {
        let data = if command == WRITE {
            vec![1; length]
        } else {
            Vec::new()
        };
        client.post((command, 0), offset, length, &data);
        assert_eq!(client.reply(), Err(expect), "{command} {offset} {length}");
    }
    let whole = client.read(0, SIZE).unwrap();
    assert!(
        whole[..SIZE - 512].iter().all(|byte| *byte == 0),
        "something was written"
    );
    assert_eq!(whole[SIZE - 512..], [9; 512]);
}

#[test]
fn requests_beyond_the_end() {
    requests_refused(&[
        (READ, SIZE, 512, EINVAL),
        (READ, SIZE - 512, 1024, EINVAL),
        (READ, usize::MAX - 511, 512, EINVAL),
        (WRITE, SIZE, 512, ENOSPC),
        (WRITE, SIZE - 512, 1024, ENOSPC),
    ]);
}

#[test]
fn requests_that_are_not_aligned() {
    requests_refused(&[
        (READ, 1, 512, EINVAL),
        (READ, 0, 100, EINVAL),
        (WRITE, 256, 512, EINVAL),
        (WRITE, 0, 511, EINVAL),
    ]);
}

#[test]
fn requests_without_length() {
    requests_refused(&[(READ, 0, 0, EINVAL), (WRITE, 0, 0, EINVAL)]);
}

#[test]
fn requests_of_more_than_32_mib() {
    let long = (32 << 20) + 512;
    requests_refused(&[(READ, 0, long, EOVERFLOW), (WRITE, 0, long, EOVERFLOW)]);
}

/// Stores LZ4 bytes with right checksums and parity as block 1, and expects an error for this block alone.
#[track_caller]
fn lz4_refused(stored: &[u8]) {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let ours = volume(dir.path(), "a", SIZE, BLOCK);
    let (first, second) = stored.split_at(stored.len().div_ceil(2));
    let parity = xgvmi_blk::block::xor(first, second);
    for (path, data) in ours.iter().zip([first, second, &parity]) {
        let store = Store::open_file(path, None).unwrap();
        let half = Half {
            generation: 1,
            kind: Kind::Lz4,
            stored: u32::try_from(stored.len()).unwrap(),
            data: data.to_vec().into(),
        };
        assert_eq!(data.len(), part_length(half.stored, store.identity().role));
        store.prepare(1, &half, 0).unwrap();
        store.commit(1, 1).unwrap();
    }
    let (socket, log) = (dir.path().join("nbd"), dir.path().join("log"));
    let mut command = program();
    command
        .arg("export")
        .args(&ours)
        .arg("--socket")
        .arg(&socket);
    command.stderr(Stdio::from(fs::File::create(&log).unwrap()));
    let export = Running::start(&mut command);
    let mut client = Nbd::connect(&socket);
    assert_eq!(client.read(BLOCK, BLOCK), Err(EIO));
    assert_eq!(client.read(0, BLOCK), Ok(vec![0; BLOCK]));
    let said = fs::read_to_string(&log).unwrap();
    assert!(
        said.contains("block 1 is lost: the LZ4 bytes do not make a whole block"),
        "{said}"
    );
    // A part of it cannot be written; all of it can.
    assert_eq!(client.write(BLOCK, &[5; 512]), Err(EIO));
    client.write(BLOCK, &[5; BLOCK]).unwrap();
    assert_eq!(client.read(BLOCK, BLOCK), Ok(vec![5; BLOCK]));
    drop(client);
    export.signal(libc::SIGTERM);
    assert!(export.ended().success());
    let words = names(&ours);
    let report: serde_json::Value =
        serde_json::from_str(&good(&["scrub", &words[0], &words[1], &words[2]])).unwrap();
    assert_eq!(
        (&report["bad_halves"], &report["lost_blocks"]),
        (&0.into(), &0.into())
    );
}

/// A literal and a match that repeats it: `length` bytes in all, and five literals at the end.
fn lz4(length: usize) -> Vec<u8> {
    let mut bytes = vec![0x1f, b'a', 1, 0];
    let mut left = length - 1 - 4 - 15 - 5;
    while left >= 255 {
        bytes.push(255);
        left -= 255;
    }
    bytes.push(u8::try_from(left).unwrap());
    bytes.extend([0x50, b'b', b'b', b'b', b'b', b'b']);
    bytes
}

#[test]
fn lz4_that_expands_beyond_its_block() {
    lz4_refused(&lz4(BLOCK + 1));
}

#[test]
fn lz4_that_stops_short() {
    lz4_refused(&lz4(BLOCK - 1));
}

#[test]
fn lz4_that_points_before_its_start() {
    let mut bytes = lz4(BLOCK);
    bytes[2] = 2;
    lz4_refused(&bytes);
}

/// The bytes of the three tests above are LZ4 but for their one defect.
#[test]
fn lz4_of_the_right_length_is_accepted() {
    let stored = lz4(BLOCK);
    let (first, second) = stored.split_at(stored.len().div_ceil(2));
    let mut block = [0; BLOCK];
    xgvmi_blk::block::decode(Kind::Lz4, &[first, second], &mut block).unwrap();
    assert_eq!(
        (block[0], block[BLOCK - 6], block[BLOCK - 5]),
        (b'a', b'a', b'b')
    );
}

#[test]
fn malformed_images() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (image, one, two, parity, out) = (path("i"), path("1"), path("2"), path("p"), path("o"));
    fs::write(&image, [7; 8192]).unwrap();
    good(&["sbc", "write", &image, &one, &two, &parity]);
    let right = fs::read(&one).unwrap();
    let read = || bad(&["sbc", "read", &out, "--data-1", &one, "--data-2", &two]);
    type Change = fn(&mut Vec<u8>);
    let changes: [(Change, &str); 7] = [
        (|bytes| bytes[0] ^= 1, "magic number"),
        (|bytes| bytes.truncate(9), "shorter than a header"),
        (
            |bytes| bytes.truncate(100),
            "the header announces 4096 bytes, the file has 84",
        ),
        (|bytes| bytes.push(0), "the file has 4097"),
        (|bytes| bytes[11] = 33, "multiple of 64"),
        (|bytes| bytes[19] ^= 1, "block 0: its original length"),
        (|bytes| bytes[16 + 2048 + 7] = 0xff, "block 1: "),
    ];
    for (change, fault) in changes {
        let mut bytes = right.clone();
        change(&mut bytes);
        fs::write(&one, bytes).unwrap();
        let error = read();
        assert!(error.contains(fault), "no '{fault}': {error}");
    }
    assert!(!Path::new(&out).exists(), "a malformed image was written");
    let error = bad(&["sbc", "read", &out, "--data-1", &one]);
    assert!(
        error.contains("give two of data_1, data_2 and data_p"),
        "{error}"
    );
    let error = bad(&[
        "sbc",
        "write",
        &image,
        &one,
        &two,
        &parity,
        "--block-size",
        "100",
    ]);
    assert!(error.contains("multiple of 64 up to 1048576"), "{error}");
}
