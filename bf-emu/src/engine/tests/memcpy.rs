//! Copies by the DMA engine.

use mlx5_prm::wqe::{MmoMetadata, mmo};

use super::*;

struct Copy {
    world: World,
    queue: Queue,
    opaque: Box<[u8]>,
    opaque_key: u32,
}

impl Copy {
    /// A queue pair of the DPU without a connection: a copy has no peer.
    fn new() -> Self {
        Self::of(World::new())
    }

    fn of(world: World) -> Self {
        let queue = world.queue(DPU);
        let opaque = vec![0xaau8; 64].into_boxed_slice();
        let opaque_key = world.region(DPU, &opaque, ALL_RIGHTS);
        Self {
            world,
            queue,
            opaque,
            opaque_key,
        }
    }

    fn post(&mut self, segments: &[[u8; 16]]) -> Vec<Cqe> {
        let metadata = MmoMetadata {
            opaque_lkey: self.opaque_key,
            opaque_address: address(&self.opaque),
            ..MmoMetadata::default()
        };
        let body = segments.concat();
        let segments: [&[u8]; 2] = [&metadata.to_bytes(), &body];
        self.world
            .post_variant(&mut self.queue, (opcode::MMO, mmo::DMA), &segments)
    }
}

#[test]
fn memory_is_copied_without_a_peer() {
    let mut copy = Copy::new();
    let (source, target) = (vec![7u8; 5000], vec![0u8; 5000]);
    let from = copy.world.region(DPU, &source, access::LOCAL_READ);
    let to = copy.world.region(DPU, &target, ALL_RIGHTS);
    let cqes = copy.post(&[segment(from, &source), segment(to, &target)]);
    expect_success(&cqes, 5000);
    assert_eq!(cqes[0].wqe_opcode, opcode::MMO);
    assert_eq!(target, source);
    assert!(copy.opaque.iter().all(|byte| *byte == 0xaa));
}

/// The data path of a storage service: both directions through the alias of a pooled key of the
/// host, until the host invalidates the key.
#[test]
fn an_alias_is_a_source_and_a_destination() {
    let mut copy = Copy::new();
    let mut host = copy.world.queue(HOST);
    let theirs = vec![3u8; 4096];
    let behind = copy.world.region(HOST, &theirs, ALL_RIGHTS);
    let klm = Klm {
        byte_count: 4096,
        mkey: behind,
        address: address(&theirs),
    };
    let free = copy.world.umr_key(HOST, 4);
    copy.world
        .bind(&mut host, free, 0x22, &[klm], address(&theirs), 4096);
    let key = key_of(slot_of(free).unwrap(), 0x22);
    let alias = copy.world.alias(DPU, HOST, key);
    let ours = vec![0u8; 4096];
    let lkey = copy.world.region(DPU, &ours, ALL_RIGHTS);
    let fetched = copy.post(&[segment(alias, &theirs), segment(lkey, &ours)]);
    expect_success(&fetched, 4096);
    assert_eq!(ours, theirs);
    let answer = vec![9u8; 4096];
    let lkey = copy.world.region(DPU, &answer, ALL_RIGHTS);
    let returned = copy.post(&[segment(lkey, &answer), segment(alias, &theirs)]);
    expect_success(&returned, 4096);
    assert_eq!(theirs, answer);
    copy.world.invalidate(&mut host, key);
    let refused = copy.post(&[segment(alias, &theirs), segment(lkey, &answer)]);
    expect_error(&refused, syndrome::LOCAL_PROT_ERR);
}

/// Each refusal completes in error with a local syndrome, and moves nothing.
#[test]
fn what_a_key_does_not_grant_is_refused() {
    type Change = fn(&Copy, &mut Parts);
    struct Parts {
        from: u32,
        to: u32,
        source: Vec<u8>,
        target: Vec<u8>,
        opaque: Option<u32>,
    }
    let cases: [(&str, Change, u8); 6] = [
        (
            "no local write",
            |copy, parts| {
                parts.to = copy.world.region(DPU, &parts.target, access::REMOTE_READ);
            },
            syndrome::LOCAL_PROT_ERR,
        ),
        (
            "another protection domain",
            |copy, parts| {
                let slot = slot_of(parts.to).unwrap();
                let mut locked = copy.world.fabric.lock();
                locked.function(DPU).mkeys.get_mut(slot).unwrap().pd = PD + 1;
            },
            syndrome::LOCAL_PROT_ERR,
        ),
        (
            "no source key",
            |_, parts| parts.from ^= 1,
            syndrome::LOCAL_PROT_ERR,
        ),
        (
            "two lengths",
            |_, parts| parts.target.truncate(63),
            syndrome::LOCAL_LENGTH_ERR,
        ),
        (
            "beyond the end of the key",
            |copy, parts| {
                parts.from = copy
                    .world
                    .region(DPU, &parts.source[..63], access::LOCAL_READ);
            },
            syndrome::LOCAL_PROT_ERR,
        ),
        (
            "no opaque buffer",
            |_, parts| parts.opaque = Some(0x1234),
            syndrome::LOCAL_PROT_ERR,
        ),
    ];
    for (name, change, expect) in cases {
        let mut copy = Copy::new();
        let mut parts = Parts {
            from: 0,
            to: 0,
            source: vec![7; 64],
            target: vec![0; 64],
            opaque: None,
        };
        parts.from = copy.world.region(DPU, &parts.source, ALL_RIGHTS);
        parts.to = copy.world.region(DPU, &parts.target, ALL_RIGHTS);
        change(&copy, &mut parts);
        copy.opaque_key = parts.opaque.unwrap_or(copy.opaque_key);
        let cqes = copy.post(&[
            segment(parts.from, &parts.source),
            segment(parts.to, &parts.target),
        ]);
        assert_eq!(cqes.len(), 1, "{name}");
        assert_eq!(
            (cqes[0].opcode, cqes[0].syndrome),
            (cqe_opcode::REQ_ERR, expect),
            "{name}"
        );
        assert!(parts.target.iter().all(|byte| *byte == 0), "{name}");
        assert_eq!(copy.world.state(&copy.queue), state::ERR, "{name}");
    }
}

/// BlueField-3: a command permits each queue pair to copy.
#[test]
fn firmware_may_demand_a_permission() {
    let topology = Topology::with_nodes(2).unwrap();
    for permitted in [false, true] {
        let mut copy = Copy::of(World::of(&topology, "gga"));
        let slot = copy.queue.qpn - QPN_BASE;
        let mut locked = copy.world.fabric.lock();
        locked.function(DPU).qps.get_mut(slot).unwrap().copies = permitted;
        drop(locked);
        let (source, target) = (vec![7u8; 64], vec![0u8; 64]);
        let from = copy.world.region(DPU, &source, access::LOCAL_READ);
        let to = copy.world.region(DPU, &target, ALL_RIGHTS);
        let cqes = copy.post(&[segment(from, &source), segment(to, &target)]);
        if permitted {
            expect_success(&cqes, 64);
        } else {
            expect_error(&cqes, syndrome::LOCAL_QP_OP_ERR);
        }
        assert_eq!(target == source, permitted);
    }
}

/// An entry has one source and one destination in memory, and nothing else.
#[test]
fn malformed_entries_are_refused() {
    let inline = Data::Inline { length: 12 }.to_bytes();
    for count in 0..4 {
        let mut copy = Copy::new();
        let memory = vec![0u8; 64];
        let key = copy.world.region(DPU, &memory, ALL_RIGHTS);
        let mut segments = vec![segment(key, &memory); count];
        if count == 2 {
            segments[1] = inline;
        }
        let cqes = copy.post(&segments);
        expect_error(&cqes, syndrome::LOCAL_QP_OP_ERR);
    }
}
