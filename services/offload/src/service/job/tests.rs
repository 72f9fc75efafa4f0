//! A job whose ranks send faster than their SP handles their messages.

use super::*;
use crate::control::ServiceAddress;
use crate::service::transport::{Ended, Range, Transport, Worker};
use crate::wire::{
    Block, BlockList, Collective, Export, ExportRef, GREETING_BYTES, HostArrive, Route,
};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

/// Ranks of the job, all at this SP.
const RANKS: u32 = 128;

/// Length of each block: the longest that travels in messages at the default.
const BLOCK: u64 = 500;

/// Counts device calls and completions.
#[derive(Debug, Default, Clone)]
struct Counting {
    imports: Rc<Cell<u32>>,
    completions: Rc<Cell<u32>>,
}

/// Messages on the network, and those that have arrived.
#[derive(Debug, Default, Clone)]
struct Flood {
    coming: Rc<RefCell<VecDeque<Message>>>,
    waiting: Rc<RefCell<VecDeque<Message>>>,
    /// The most bytes that have waited.
    most: Rc<Cell<usize>>,
}

thread_local! {
    /// What [`Fabric::open`] returns in this thread.
    static PARTS: RefCell<(Counting, Flood)> = RefCell::default();
}

impl Transport for Counting {
    type Peer = ();
    type Memory = u64;
    type Key = ();
    type Packed = Vec<u8>;
    type Operation = ();
    type Reads = ();

    fn send(&self, (): &(), kind: Kind, _: Token, data: Vec<u8>) -> Result<Sent<()>> {
        if kind == Kind::HostFin {
            self.completions.set(self.completions.get() + 1);
        }
        Ok(Sent::AtOnce(data))
    }

    fn import(&self, export: ExportRef<'_>) -> Result<u64> {
        self.imports.set(self.imports.get() + 1);
        Ok(export.address)
    }

    fn address(&self, memory: &u64) -> u64 {
        *memory
    }

    fn pack(&self, _: &u64) -> Result<Vec<u8>> {
        Ok(vec![1])
    }

    fn stage(&self, _: usize) -> Result<u64> {
        Err(failed("no bytes to reduce"))
    }

    fn bytes<'a>(&self, _: &'a mut u64) -> Option<&'a mut [u8]> {
        None
    }

    fn unmap(&self, _: u64) -> Result<()> {
        Ok(())
    }

    fn unpack(&self, (): &(), _: &[u8]) -> Result<()> {
        Ok(())
    }

    fn read(&self, (): &mut (), _: Range<'_, Self>) -> Result<Option<u32>> {
        Ok(None)
    }

    fn reads_len((): &()) -> usize {
        0
    }

    fn next_read(&self, (): &mut ()) -> Option<(u32, Ended)> {
        None
    }

    fn aliases(&self) -> Option<(u64, u64)> {
        None
    }

    fn has_ended(&self, (): &()) -> Result<bool> {
        Ok(true)
    }
}

// SAFETY: the job of a test does not leave its thread.
unsafe impl Fabric for Counting {
    type Library = ();
    type Worker = Flood;

    fn version((): ()) -> &'static str {
        "none"
    }

    fn open((): (), _: Scheme, _: InboxLimits) -> Result<(Self, Flood)> {
        Ok(PARTS.with_borrow(Clone::clone))
    }

    fn greet(&self, (): &(), _: Token, _: Vec<u8>) -> Result<()> {
        Ok(())
    }

    fn abandon((): &()) {}
}

impl Worker for Flood {
    type Peer = ();

    fn address(&self) -> Result<Vec<u8>> {
        Ok(vec![1])
    }

    fn event_fd(&self) -> RawFd {
        -1
    }

    fn arm(&self) -> Result<bool> {
        Ok(true)
    }

    fn expect(&self, _: Token) {}

    fn strangers(&self) -> u64 {
        0
    }

    fn connect(&self, _: &[u8], _: &str) -> Result<()> {
        Ok(())
    }

    fn connect_for_gets(&self, _: &[u8], _: &str) -> Result<()> {
        Ok(())
    }

    /// One message ends.
    fn settle(&self, _: std::time::Duration) {}

    fn progress(&self, steps: u32, waiting: usize) -> bool {
        let bytes = || -> usize { self.waiting.borrow().iter().map(|m| m.data.len()).sum() };
        let mut happened = false;
        for _ in 0..steps {
            if bytes() > waiting {
                break;
            }
            let Some(message) = self.coming.borrow_mut().pop_front() else {
                break;
            };
            self.waiting.borrow_mut().push_back(message);
            self.most.set(self.most.get().max(bytes()));
            happened = true;
        }
        happened
    }

    fn take(&self) -> Result<Option<Message>> {
        Ok(self.waiting.borrow_mut().pop_front())
    }
}

fn token(rank: u32) -> Token {
    Token(u128::from(rank + 1).to_le_bytes())
}

/// A job whose table has come.
fn job() -> (Job<Counting>, Counting, Flood) {
    let parts = (Counting::default(), Flood::default());
    PARTS.set(parts.clone());
    let joining = Joining {
        job: crate::job_id::JobId(1),
        rank: 0,
        size: RANKS,
        scheme: Scheme::Stock,
        ucx_version: "none".to_owned(),
    };
    let limits = Limits {
        sends: 4,
        receives: 4,
        direct_min: 512,
        imports: 4,
    };
    let mut job =
        Job::<Counting>::open((), &joining, limits, InboxLimits::default()).expect("opened");
    for rank in 0..RANKS {
        let keys = Keys {
            token: token(rank),
            address: vec![1],
            announcement: Vec::new(),
            greeting: export(2 * GREETING_BYTES),
        };
        job.admit(rank, &keys, token(rank)).expect("admitted");
    }
    let table = Table {
        services: vec![ServiceAddress {
            unique: 7,
            tcp: "dpu0:7700".to_owned(),
            worker: vec![1],
        }],
        service_of: vec![0; RANKS as usize],
    };
    job.set_table(table, 7).expect("valid");
    job.progress().expect("joined");
    (job, parts.0, parts.1)
}

fn export(length: u64) -> Export {
    Export {
        address: 1 << 40,
        length,
        packed: vec![1; 40],
        name: None,
    }
}

/// Each rank enters this number of alltoalls of blocks of `length` bytes.
fn enter(flood: &Flood, calls: u32, length: u64) {
    let block = |peer: u32| Block {
        peer,
        offset: u64::from(peer) * length,
        length,
    };
    let blocks: BlockList = (0..RANKS).map(block).collect();
    let is_short = length < 512;
    let bytes = usize::try_from(length).expect("short") * RANKS as usize;
    for sequence in 0..calls {
        for rank in 0..RANKS {
            let memory = (!is_short).then(|| export(length * u64::from(RANKS)));
            let message = HostArrive {
                collective: Collective {
                    communicator: 0,
                    sequence,
                    start: 0,
                    step: 0,
                },
                rank,
                together: RANKS,
                send_memory: memory.clone(),
                receive_memory: memory,
                sends: blocks.clone(),
                receives: blocks.clone(),
                short: vec![1; if is_short { bytes } else { 0 }],
                route: Route::Direct,
            };
            flood.coming.borrow_mut().push_back(Message {
                id: Kind::HostArrive as u16,
                header: token(rank).0[..].into(),
                data: message.to_bytes(),
            });
        }
    }
}

#[test]
fn messages_that_end_together_are_handled_in_turns() {
    let (mut job, counting, flood) = job();
    enter(&flood, 3, BLOCK);
    let all: usize = flood.coming.borrow().iter().map(|m| m.data.len()).sum();
    while job.progress().expect("no limit").happened || job.settle().expect("no limit") {}
    assert_eq!(counting.completions.get(), 3 * RANKS);
    let (most, message) = (flood.most.get(), all / 3 / RANKS as usize);
    assert!(most <= INBOX_TURN + message, "{most} of {all} bytes");
}

/// Each device call may take a millisecond. Between two looks at the timers there are few.
#[test]
fn a_turn_of_a_job_has_few_device_calls() {
    let (mut job, counting, flood) = job();
    enter(&flood, 1, 4096);
    loop {
        let before = counting.imports.get();
        let progress = job.progress().expect("no limit");
        let imports = counting.imports.get() - before;
        assert_eq!(imports, 2 * progress.entries);
        assert!(progress.entries <= ENTRIES_MAX, "{imports} imports");
        if !progress.happened && !job.settle().expect("no limit") {
            break;
        }
    }
    assert_eq!(counting.completions.get(), RANKS);
}
