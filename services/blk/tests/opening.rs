//! Targets that are lost while a volume is opened.

mod common;

use common::*;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::Stdio;
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

/// An export on two targets loses one at several points of its opening, waits for it, and serves.
#[test]
fn an_export_waits_for_a_target_that_is_lost_while_it_opens() {
    let dir = tempfile::tempdir().unwrap();
    let paths = create(dir.path(), SECTORS * SECTOR, 4096);
    let socket = dir.path().join("socket");
    let [first, second] = [0, 1].map(|role| Running::target(&paths[role], "127.0.0.1:0", &[]));
    let start = |way: &Way, more: &[&str]| {
        let mut command = program();
        command.args(["export", &first.address(), &way.address]);
        command.arg("--socket").arg(&socket);
        command.args(["--target-timeout", "200ms"]).args(more);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    // Bytes of a whole opening, and those until it has found its targets: an export that waits for nothing tells.
    let way = Way::to(&second, u64::MAX);
    let mut child = start(&way, &[]);
    let mut line = String::new();
    let output = child.stdout.take().unwrap();
    BufReader::new(output).read_line(&mut line).unwrap();
    assert!(line.contains("exports volume"), "{line}");
    let whole = way.state.passed.load(Ordering::SeqCst);
    child.kill().unwrap();
    child.wait().unwrap();
    let mut waited = 0;
    for eighth in 1..8 {
        let way = Way::to(&second, whole * eighth / 8);
        let mut child = start(&way, &["--outage-limit", "0s"]);
        let early = {
            let mut said = String::new();
            let mut errors = child.stderr.take().unwrap();
            errors.read_to_string(&mut said).unwrap();
            assert!(!child.wait().unwrap().success(), "{said}");
            said
        };
        let way = Way::to(&second, whole * eighth / 8);
        let mut child = start(&way, &["--outage-limit", "25s"]);
        let mut errors = BufReader::new(child.stderr.take().unwrap());
        let mut said = String::new();
        while !said.contains("the opening waits for it") {
            if errors.read_line(&mut said).unwrap() == 0 {
                break;
            }
        }
        if !said.contains("the opening waits for it") {
            // Lost before it was found, which is a fault of the options.
            assert!(!child.wait().unwrap().success(), "{said} {early}");
            continue;
        }
        waited += 1;
        way.mend();
        let mut line = String::new();
        let output = child.stdout.take().unwrap();
        BufReader::new(output).read_line(&mut line).unwrap();
        assert!(line.contains("exports volume"), "{line} after {said}");
        let mut client = Nbd::connect(&socket);
        let data = sector(waited, 7);
        client.write(waited * SECTOR, &data).unwrap();
        assert_eq!(client.read(waited * SECTOR, SECTOR).unwrap(), data);
        child.kill().unwrap();
        child.wait().unwrap();
    }
    assert!(waited >= 3, "{waited} openings had found their targets");
}
