//! An export that is killed with SIGKILL again and again, while a client writes. Each block is then the old or the new
//! one, what was acknowledged is there, and what was not is whole.

mod common;

use common::{SECTOR, sector, turn};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use xgvmi_blk::store::NewTarget;
use xgvmi_blk::{Geometry, Id, Layout, Role, Store, Target, Volume};

const KILLS: u32 = 200;
const BLOCK: usize = 1024;
const SECTORS: usize = 128;
const FIRST_SEED: u64 = 4;

/// Creates the targets of one volume.
fn create(dir: &Path, layout: Layout) -> Vec<PathBuf> {
    let create = |role: Role| {
        let path = dir.join(role.to_string());
        let new = NewTarget {
            geometry: Geometry::of_size(u32::try_from(BLOCK).unwrap(), (SECTORS * SECTOR) as u64)
                .unwrap(),
            role,
            volume: Id([7; 16]),
            complete: true,
        };
        Store::create_file(&path, new, None).unwrap();
        path
    };
    layout.roles().map(create).collect()
}

struct Server {
    child: Child,
    stream: UnixStream,
}

impl Server {
    fn start(paths: &[PathBuf], socket: &Path) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_xgvmi-blk"));
        command
            .arg("export")
            .args(paths)
            .arg("--socket")
            .arg(socket);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert!(line.contains("exports volume"), "{line}");
        let mut stream = UnixStream::connect(socket).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(30)))
            .unwrap();
        stream
            .write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\0")
            .unwrap();
        let mut greeting = [0; 18 + 10];
        stream.read_exact(&mut greeting).unwrap();
        Self { child, stream }
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Sends a request and waits for its simple reply. False if the server is gone.
fn request(stream: &mut UnixStream, command: u16, at: usize, data: &[u8]) -> bool {
    let mut bytes = 0x2560_9513u32.to_be_bytes().to_vec();
    bytes.extend(0u16.to_be_bytes());
    bytes.extend(command.to_be_bytes());
    bytes.extend(1u64.to_be_bytes());
    bytes.extend(((at * SECTOR) as u64).to_be_bytes());
    bytes.extend(u32::try_from(data.len()).unwrap().to_be_bytes());
    bytes.extend(data);
    let mut reply = [0; 16];
    if stream.write_all(&bytes).is_err() || stream.read_exact(&mut reply).is_err() {
        return false;
    }
    assert_eq!(reply[4..8], [0; 4], "an error of the export");
    true
}

/// The write that was under way when the server was killed.
type Pending = Option<(std::ops::Range<usize>, u64)>;

/// Writes and flushes until the server is gone. Returns the write that has no reply.
fn write_until_killed(
    stream: &mut UnixStream,
    random: &mut fastrand::Rng,
    shadow: &mut [u64],
    version: &mut u64,
) -> Pending {
    loop {
        *version += 1;
        let count = random.usize(1..=9);
        let at = random.usize(..SECTORS - count);
        let data: Vec<u8> = (at..at + count)
            .flat_map(|number| sector(number, *version))
            .collect();
        if !request(stream, 1, at, &data) {
            return Some((at..at + count, *version));
        }
        shadow[at..at + count].fill(*version);
        if random.usize(..8) == 0 && !request(stream, 3, 0, &[]) {
            return None;
        }
    }
}

/// Reads the volume without one of its targets, and compares. Blocks of the pending write become what they are.
fn verify(paths: &[PathBuf], absent: &[usize], shadow: &mut [u64], pending: &Pending, round: u32) {
    let present = paths
        .iter()
        .enumerate()
        .filter(|(index, _)| !absent.contains(index));
    let open = |(_, path): (usize, &PathBuf)| {
        Arc::new(Store::open_file(path, None).unwrap()) as Arc<dyn Target>
    };
    let present: Vec<Arc<dyn Target>> = present.map(open).collect();
    let volume = match absent {
        [] => Volume::open(present).unwrap(),
        // Of a mirror one that is absent may have newer data.
        _ => Volume::open_without_absent(present, None).unwrap(),
    };
    let mut bytes = vec![0; SECTORS * SECTOR];
    volume.read(0, &mut bytes).unwrap();
    let per_block = BLOCK / SECTOR;
    for (block, content) in bytes.chunks(BLOCK).enumerate() {
        let first = block * per_block;
        let is = |of: &dyn Fn(usize) -> u64| {
            let sectors = content.chunks(SECTOR).enumerate();
            sectors
                .into_iter()
                .all(|(index, bytes)| bytes == sector(first + index, of(first + index)))
        };
        if is(&|number| shadow[number]) {
            continue;
        }
        let Some((range, version)) = pending else {
            panic!("kill {round}: block {block} is not what was acknowledged, without {absent:?}");
        };
        let new = |number: usize| {
            if range.contains(&number) {
                *version
            } else {
                shadow[number]
            }
        };
        assert!(
            is(&new),
            "kill {round}: block {block} is neither old nor new, without {absent:?}"
        );
        let new: Vec<u64> = (first..first + per_block).map(new).collect();
        shadow[first..first + per_block].copy_from_slice(&new);
    }
    let report = volume.scrub().unwrap();
    assert_eq!(report.lost_blocks, 0, "kill {round}");
    if absent.is_empty() {
        assert_eq!(report.bad_halves, 0, "kill {round}: parity or checksums");
    }
}

/// Opens all targets and completes them.
fn complete(paths: &[PathBuf], layout: Layout) {
    let open = |path: &PathBuf| Arc::new(Store::open_file(path, None).unwrap()) as Arc<dyn Target>;
    let volume = Volume::open(paths.iter().map(open).collect()).unwrap();
    for role in layout.roles() {
        volume.rebuild(role).unwrap();
    }
}

#[test]
fn every_block_is_old_or_new_after_each_kill() {
    kill_again_and_again(Layout::HALVES, KILLS);
}

#[test]
fn every_block_of_a_mirror_is_old_or_new_after_each_kill() {
    kill_again_and_again("mirror-2".parse().unwrap(), KILLS / 4);
}

/// Also without as many targets as there are parities.
#[test]
fn every_block_of_six_targets_is_old_or_new_after_each_kill() {
    kill_again_and_again("4+2".parse().unwrap(), KILLS / 4);
}

fn kill_again_and_again(layout: Layout, kills: u32) {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let paths = create(dir.path(), layout);
    let socket = dir.path().join("socket");
    let mut random = fastrand::Rng::with_seed(FIRST_SEED);
    let mut shadow = vec![0; SECTORS];
    let mut version = 0;
    let mut pendings = 0;
    for round in 0..kills {
        let Server {
            mut child,
            mut stream,
        } = Server::start(&paths, &socket);
        let delay = Duration::from_micros(random.u64(..12_000));
        let killer = std::thread::spawn(move || {
            // The delay only chooses where the process is killed. Nothing depends on its length.
            std::thread::park_timeout(delay);
            child.kill().unwrap();
            child.wait().unwrap();
        });
        let pending = write_until_killed(&mut stream, &mut random, &mut shadow, &mut version);
        killer.join().unwrap();
        pendings += u32::from(pending.is_some());
        // With all targets first: they decide. Then without one of them, and without a pending write.
        verify(&paths, &[], &mut shadow, &pending, round);
        if round % 8 == 0 {
            let all = 0..paths.len();
            let few = all
                .clone()
                .map(|one| all.clone().map(move |other| [one, other]));
            let few = few.flatten().filter(|[one, other]| one < other);
            let many: Vec<Vec<usize>> = match layout.spare() {
                1 => all.map(|one| vec![one]).collect(),
                _ => few.map(|few| few.to_vec()).collect(),
            };
            for absent in many {
                verify(&paths, &absent, &mut shadow, &None, round);
                complete(&paths, layout);
            }
        }
    }
    assert!(
        version > u64::from(kills),
        "{version} writes for {kills} kills"
    );
    assert!(pendings > 0, "no write was under way at any kill");
}

/// The same with a target absent: the two others decide, and the third one follows when it returns.
#[test]
fn a_degraded_export_that_is_killed_keeps_its_decision() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let layout = Layout::HALVES;
    let paths = create(dir.path(), layout);
    let socket = dir.path().join("socket");
    let mut random = fastrand::Rng::with_seed(FIRST_SEED + 1);
    let mut shadow = vec![0; SECTORS];
    let mut version = 0;
    for round in 0..24 {
        let absent = usize::try_from(round % 3).unwrap();
        let mut present = paths.to_vec();
        present.remove(absent);
        let mut server = Server::start(&present, &socket);
        let mut stream = server.stream.try_clone().unwrap();
        let child = server.child.id();
        let killer = std::thread::spawn(move || {
            std::thread::park_timeout(Duration::from_micros(u64::from(round) * 300));
            // SAFETY: no memory is involved. The process is not waited for before, so its number is still its own.
            unsafe { libc::kill(child.cast_signed(), libc::SIGKILL) };
        });
        let pending = write_until_killed(&mut stream, &mut random, &mut shadow, &mut version);
        killer.join().unwrap();
        server.child.wait().unwrap();
        drop(server);
        verify(&paths, &[absent], &mut shadow, &pending, round);
        // The absent target returns and is completed.
        let server = Server::start(&paths, &socket);
        server.kill();
        complete(&paths, layout);
        for other in 0..3 {
            verify(&paths, &[other], &mut shadow, &None, round);
        }
    }
}
