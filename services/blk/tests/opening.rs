//! Targets that are lost while a volume is opened.

mod common;

use common::*;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStderr, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const SECTORS: usize = 256;

/// The way to a target. It is cut for good after some bytes of the target, until it is mended.
struct Way {
    address: String,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    passed: AtomicU64,
    cut_at: AtomicU64,
    is_cut: AtomicBool,
}

impl State {
    fn passes(&self, count: usize) -> bool {
        let passed = self.passed.fetch_add(count as u64, Ordering::SeqCst) + count as u64;
        if passed > self.cut_at.load(Ordering::SeqCst) {
            self.is_cut.store(true, Ordering::SeqCst);
        }
        !self.is_cut.load(Ordering::SeqCst)
    }
}

impl Way {
    fn to(target: &Running, cut_at: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("tcp:{}", listener.local_addr().unwrap());
        let target = target.address().strip_prefix("tcp:").unwrap().to_owned();
        let state = Arc::new(State::default());
        state.cut_at.store(cut_at, Ordering::SeqCst);
        let of_thread = Arc::clone(&state);
        std::thread::spawn(move || {
            for near in listener.incoming() {
                let near = near.unwrap();
                if !of_thread.is_cut.load(Ordering::SeqCst) {
                    let far = TcpStream::connect(&target).unwrap();
                    pass(near.try_clone().unwrap(), far.try_clone().unwrap(), None);
                    pass(far, near, Some(Arc::clone(&of_thread)));
                }
            }
        });
        Self { address, state }
    }

    fn mend(&self) {
        self.state.cut_at.store(u64::MAX, Ordering::SeqCst);
        self.state.is_cut.store(false, Ordering::SeqCst);
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, state: Option<Arc<State>>) {
    to.set_nodelay(true).unwrap();
    std::thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            let passes = state.as_ref().is_none_or(|state| state.passes(count));
            if !passes || to.write_all(&bytes[..count]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
        let _ = from.shutdown(Shutdown::Both);
    });
}

/// An export on two targets, the second of which is behind a way. A cut closes the connection, so no answer of a busy machine
/// needs to be in time.
fn export(first: &Running, way: &Way, socket: &Path, limit: &str) -> Child {
    let mut command = program();
    command.args(["export", &first.address(), &way.address]);
    command.arg("--socket").arg(socket);
    command.args(["--target-timeout", "60s", "--outage-limit", limit]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

fn first_line(child: &mut Child) -> String {
    let mut line = String::new();
    let output = child.stdout.take().unwrap();
    BufReader::new(output).read_line(&mut line).unwrap();
    line
}

/// Reads errors until the export waits, or has ended. The reader must live as long as the export: it writes more.
fn waits(child: &mut Child) -> (bool, BufReader<ChildStderr>) {
    let mut errors = BufReader::new(child.stderr.take().unwrap());
    let mut said = String::new();
    while !said.contains("the opening waits for it") {
        if errors.read_line(&mut said).unwrap() == 0 {
            return (false, errors);
        }
    }
    (true, errors)
}

fn end(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

/// An export on two targets loses one at several points of its opening, waits for it, and serves.
#[test]
fn an_export_waits_for_a_target_that_is_lost_while_it_opens() {
    let dir = tempfile::tempdir().unwrap();
    let paths = create(dir.path(), SECTORS * SECTOR, 4096);
    let socket = dir.path().join("socket");
    let [first, second] = [0, 1].map(|role| Running::target(&paths[role], "127.0.0.1:0", &[]));
    // Bytes of a whole opening.
    let way = Way::to(&second, u64::MAX);
    let mut child = export(&first, &way, &socket, "20s");
    let line = first_line(&mut child);
    assert!(line.contains("exports volume"), "{line}");
    let whole = way.state.passed.load(Ordering::SeqCst);
    end(child);
    let mut waited = 0;
    let mut last = 0;
    for cut_at in (1..16).map(|part| whole * part / 16) {
        let way = Way::to(&second, cut_at);
        let mut child = export(&first, &way, &socket, "25s");
        let (has_waited, _errors) = waits(&mut child);
        if !has_waited {
            // Lost before it was found, which is a fault of the options.
            assert!(!child.wait().unwrap().success());
            continue;
        }
        waited += 1;
        last = cut_at;
        way.mend();
        let line = first_line(&mut child);
        assert!(line.contains("exports volume"), "{line}");
        let mut client = Nbd::connect(&socket);
        let data = sector(waited, 7);
        client.write(waited * SECTOR, &data).unwrap();
        assert_eq!(client.read(waited * SECTOR, SECTOR).unwrap(), data);
        end(child);
    }
    assert!(waited >= 3, "{waited} openings had found their targets");
    // Without a limit it fails as soon as the target is lost.
    let way = Way::to(&second, last);
    let mut child = export(&first, &way, &socket, "0s");
    assert!(!waits(&mut child).0);
    assert!(!child.wait().unwrap().success());
    // SIGTERM ends the wait. The test's own limit is less than that of the export.
    let way = Way::to(&second, last);
    let mut child = export(&first, &way, &socket, "10m");
    let (has_waited, _errors) = waits(&mut child);
    assert!(has_waited);
    // SAFETY: no memory is involved. The process was not waited for, so its number is still its own.
    let sent = unsafe { libc::kill(child.id().cast_signed(), libc::SIGTERM) };
    assert_eq!(sent, 0);
    wait_until("the export ends", || child.try_wait().unwrap().is_some());
    assert!(!child.wait().unwrap().success());
}
