//! A job whose ranks send faster than their SP handles their messages.

use super::*;
use crate::control::ServiceAddress;
use crate::service::fakes::{Device, Flood, PARTS, handle};
use crate::wire::{Block, BlockList, Collective, Export, GREETING_BYTES, HostArrive, Route};

/// Ranks of the job, all at this SP.
const RANKS: u32 = 128;

/// Length of each block: the longest that travels in messages at the default.
const BLOCK: u64 = 500;

fn token(rank: u32) -> Token {
    Token(u128::from(rank + 1).to_le_bytes())
}

/// A job whose table has come.
fn job() -> (Job<Device>, Device, Flood) {
    let parts = (Device::default(), Flood::default());
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
        radix: crate::radix::Radix::default(),
    };
    let mut job =
        Job::<Device>::open((), &joining, limits, InboxLimits::default()).expect("opened");
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
        packed: handle(1 << 40, length, 0),
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
    let (mut job, device, flood) = job();
    enter(&flood, 3, BLOCK);
    let all: usize = flood.coming.borrow().iter().map(|m| m.data.len()).sum();
    while job.progress().expect("no limit").happened || job.settle().expect("no limit") {}
    assert_eq!(device.completions(), 3 * RANKS);
    let (most, message) = (flood.most.get(), all / 3 / RANKS as usize);
    assert!(most <= INBOX_TURN + message, "{most} of {all} bytes");
}

/// Each device call may take a millisecond. Between two looks at the timers there are few.
#[test]
fn a_turn_of_a_job_has_few_device_calls() {
    let (mut job, device, flood) = job();
    enter(&flood, 1, 4096);
    loop {
        let before = device.made();
        let progress = job.progress().expect("no limit");
        let imports = device.made() - before;
        assert_eq!(imports, 2 * progress.entries);
        assert!(progress.entries <= ENTRIES_MAX, "{imports} imports");
        if !progress.happened && !job.settle().expect("no limit") {
            break;
        }
    }
    assert_eq!(device.completions(), RANKS);
}
