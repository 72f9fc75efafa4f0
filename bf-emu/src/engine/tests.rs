//! Tests of the adapter alone. This process owns functions of a fabric, writes requests into rings, and reads completions.

mod adversary;
mod agree;
mod cards;
mod crash;
mod dynamic;
mod faults;
mod join;
mod killed;
mod loopback;
mod manage;
mod memcpy;
mod messages;
mod scatter;
mod shared;
mod umr;

use mlx5_prm::cqe::{CQE_BYTES, Cqe, opcode as cqe_opcode, syndrome};
use mlx5_prm::mkey::{Klm, QPN_ANY};
use mlx5_prm::qp::{service, state};
use mlx5_prm::umr::{UmrContext, UmrCtrl, access, flag, mask};
use mlx5_prm::wqe::{Ctrl, Data, INVALID_LKEY, RemoteAddress, opcode};

use super::run;
use crate::fabric::numbers::{key_of, slot_of};
use crate::fabric::objects::{Attached, Cq, Mkey, MkeyKind, MkeyOrigin, Path, Qp, Ring, Target};
use crate::fabric::table::Owner;
use crate::fabric::{Fabric, Place, QPN_BASE};
use crate::model::profile::Profile;
use crate::model::topology::{Topology, VIEW_NAME_MAX};
use crate::sys;

/// Functions of the fabric: host and DPU of one node, and the host of another node.
const HOST: usize = 0;
const DPU: usize = 1;
const FAR: usize = 2;

const ALL_RIGHTS: u8 = access::LOCAL_READ
    | access::LOCAL_WRITE
    | access::REMOTE_READ
    | access::REMOTE_WRITE
    | access::ATOMIC;
const RING: u32 = 16;
const PD: u32 = 5;

struct World {
    _dir: tempfile::TempDir,
    fabric: Fabric,
    owner: Owner,
}

/// A queue pair and the memory that its owner provides. The device writes that memory by address.
/// The test reads it only between two runs.
struct Queue {
    function: usize,
    qpn: u32,
    ring: Box<[u8]>,
    dbrec: Box<[u64; 1]>,
    cqes: Box<[u8]>,
    posted: u16,
    received: u16,
    read: usize,
}

/// The first port of a function.
fn place(function: usize) -> Place {
    Place { function, port: 1 }
}

fn address(bytes: &[u8]) -> u64 {
    bytes.as_ptr().expose_provenance() as u64
}

impl World {
    fn new() -> Self {
        Self::with_nodes(2)
    }

    fn with_nodes(nodes: usize) -> Self {
        Self::of(&Topology::with_nodes(nodes).unwrap(), "none")
    }

    fn of(topology: &Topology, profile: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let profile = Profile::load(profile).unwrap();
        let fabric = super::create(dir.path(), topology, &profile).unwrap();
        let me = Attached {
            pid: sys::pid(),
            start_time: crate::fabric::release::start_time(sys::pid()).unwrap(),
            view: [0; VIEW_NAME_MAX],
        };
        let mut locked = fabric.lock();
        let processes = &mut locked.common().processes;
        let process = processes.insert(Owner::default(), me).unwrap() + 1;
        drop(locked);
        let context = 1;
        Self {
            _dir: dir,
            fabric,
            owner: Owner { process, context },
        }
    }

    /// Registers memory of this process. Returns its key.
    fn region(&self, function: usize, bytes: &[u8], rights: u8) -> u32 {
        self.mkey(
            function,
            Mkey {
                start: address(bytes),
                len: bytes.len() as u64,
                host: address(bytes),
                pd: PD,
                qpn: QPN_ANY,
                access: rights,
                variant: 0x11,
                ..Mkey::default()
            },
        )
    }

    fn mkey(&self, function: usize, mkey: Mkey) -> u32 {
        let slot = self
            .fabric
            .lock()
            .function(function)
            .mkeys
            .insert(self.owner, mkey)
            .unwrap();
        key_of(slot, mkey.variant)
    }

    /// A key with `entries` entries, which a UMR must bind before use.
    fn umr_key(&self, function: usize, entries: usize) -> u32 {
        let list = self
            .fabric
            .lock()
            .function(function)
            .klms
            .take(entries)
            .unwrap();
        self.mkey(
            function,
            Mkey {
                list,
                pd: PD,
                qpn: QPN_ANY,
                access: access::LOCAL_READ,
                kind: MkeyKind::Klm,
                origin: MkeyOrigin::Command,
                free: true,
                umr_enabled: true,
                allowed: true,
                ..Mkey::default()
            },
        )
    }

    fn alias(&self, function: usize, of: usize, key: u32) -> u32 {
        let index = slot_of(key).unwrap();
        let generation = self.fabric.lock().peek(of).mkeys.generation(index).unwrap();
        let target = Target {
            function: u32::try_from(of).unwrap(),
            index,
            generation,
        };
        self.mkey(
            function,
            Mkey {
                pd: PD,
                qpn: QPN_ANY,
                target,
                kind: MkeyKind::Alias,
                origin: MkeyOrigin::Alias,
                ..Mkey::default()
            },
        )
    }

    fn queue(&self, function: usize) -> Queue {
        let ring = vec![0u8; RING as usize * (64 + 64)].into_boxed_slice();
        let dbrec = Box::new([0u64; 1]);
        let cqes = vec![0xffu8; 2 * RING as usize * CQE_BYTES].into_boxed_slice();
        let mut locked = self.fabric.lock();
        let tables = locked.function(function);
        let cq = Cq {
            ring: Ring {
                base: address(&cqes),
                count: 2 * RING,
                log_stride: 6,
            },
            // The completion queue's own record stays zero: the tests consume no entry.
            dbrec: dbrec.as_ptr().expose_provenance() as u64,
            ..Cq::default()
        };
        let cq = tables.cqs.insert(self.owner, cq).unwrap();
        let qp = Qp {
            rq: Ring {
                base: address(&ring),
                count: RING,
                log_stride: 6,
            },
            sq: Ring {
                base: address(&ring) + u64::from(RING) * 64,
                count: RING,
                log_stride: 6,
            },
            dbrec: dbrec.as_ptr().expose_provenance() as u64,
            pd: PD,
            send_cq: cq,
            recv_cq: cq,
            access: ALL_RIGHTS,
            service: service::RC,
            state: state::RTS,
            path: Path {
                max_rd_atomic: 16,
                max_dest_rd_atomic: 16,
                ..Path::default()
            },
            ..Qp::default()
        };
        let slot = tables.qps.insert(self.owner, qp).unwrap();
        let qpn = slot + QPN_BASE;
        Queue {
            function,
            qpn,
            ring,
            dbrec,
            cqes,
            posted: 0,
            received: 0,
            read: 0,
        }
    }

    fn connect(&self, a: &Queue, b: &Queue) {
        for (from, to) in [(a, b), (b, a)] {
            self.change(from, |qp| {
                qp.set_remote(Some(place(to.function)));
                qp.remote_qpn = to.qpn;
            });
        }
    }

    fn pair(&self, a: usize, b: usize) -> (Queue, Queue) {
        let (a, b) = (self.queue(a), self.queue(b));
        self.connect(&a, &b);
        (a, b)
    }

    fn change(&self, queue: &Queue, change: impl FnOnce(&mut Qp)) {
        let mut locked = self.fabric.lock();
        let slot = queue.qpn - QPN_BASE;
        change(locked.function(queue.function).qps.get_mut(slot).unwrap());
    }

    fn state(&self, queue: &Queue) -> u8 {
        self.fabric
            .lock()
            .peek(queue.function)
            .qps
            .get(queue.qpn - QPN_BASE)
            .unwrap()
            .state
    }

    /// Posts a request and rings the doorbell. Returns the resulting completions of this queue.
    fn post(&self, queue: &mut Queue, opcode: u8, imm: u32, segments: &[&[u8]]) -> Vec<Cqe> {
        let ctrl = Ctrl {
            opcode,
            imm,
            ..Ctrl::default()
        };
        self.post_ctrl(queue, ctrl, segments)
    }

    /// Like [`World::post`], with a variant of the opcode.
    fn post_variant(
        &self,
        queue: &mut Queue,
        (opcode, opmod): (u8, u8),
        segments: &[&[u8]],
    ) -> Vec<Cqe> {
        let ctrl = Ctrl {
            opcode,
            opmod,
            ..Ctrl::default()
        };
        self.post_ctrl(queue, ctrl, segments)
    }

    fn post_ctrl(&self, queue: &mut Queue, ctrl: Ctrl, segments: &[&[u8]]) -> Vec<Cqe> {
        queue.lay(ctrl, &segments.concat());
        queue.ring_doorbell();
        run(&self.fabric, queue.function, queue.qpn);
        queue.completions()
    }

    fn write(&self, queue: &mut Queue, from: (u32, &[u8]), to: (u32, u64)) -> Vec<Cqe> {
        let remote = RemoteAddress {
            address: to.1,
            rkey: to.0,
        }
        .to_bytes();
        self.post(
            queue,
            opcode::RDMA_WRITE,
            0,
            &[&remote, &segment(from.0, from.1)],
        )
    }

    fn read(&self, queue: &mut Queue, into: (u32, &[u8]), from: (u32, u64)) -> Vec<Cqe> {
        let remote = RemoteAddress {
            address: from.1,
            rkey: from.0,
        }
        .to_bytes();
        self.post(
            queue,
            opcode::RDMA_READ,
            0,
            &[&remote, &segment(into.0, into.1)],
        )
    }

    fn bind(
        &self,
        queue: &mut Queue,
        key: u32,
        variant: u8,
        klms: &[Klm],
        start: u64,
        len: u64,
    ) -> Vec<Cqe> {
        let octowords = u16::try_from(klms.len().next_multiple_of(4)).unwrap();
        let ctrl = UmrCtrl {
            flags: flag::INLINE,
            klm_octowords: octowords,
            mkey_mask: mask::FREE
                | mask::MKEY
                | mask::LEN
                | mask::START_ADDR
                | mask::LOCAL_WRITE
                | mask::REMOTE_READ
                | mask::REMOTE_WRITE,
            ..UmrCtrl::default()
        };
        let context = UmrContext {
            access: ALL_RIGHTS,
            qpn: QPN_ANY,
            variant,
            start_addr: start,
            len,
            ..UmrContext::default()
        };
        let mut list = vec![0; usize::from(octowords) * 16];
        for (entry, klm) in list.chunks_mut(16).zip(klms) {
            entry.copy_from_slice(&klm.to_bytes());
        }
        self.post(
            queue,
            opcode::UMR,
            key,
            &[&ctrl.to_bytes(), &context.to_bytes(), &list],
        )
    }

    fn invalidate(&self, queue: &mut Queue, key: u32) -> Vec<Cqe> {
        let ctrl = UmrCtrl {
            mkey_mask: mask::FREE | mask::MKEY,
            ..UmrCtrl::default()
        };
        let context = UmrContext {
            free: true,
            qpn: QPN_ANY,
            ..UmrContext::default()
        };
        self.post(
            queue,
            opcode::UMR,
            key,
            &[&ctrl.to_bytes(), &context.to_bytes()],
        )
    }
}

impl Queue {
    /// Writes a request into the ring, without a doorbell.
    fn lay(&mut self, ctrl: Ctrl, body: &[u8]) {
        let ds = u8::try_from((16 + body.len()).div_ceil(16)).unwrap();
        let ctrl = Ctrl {
            index: self.posted,
            qpn: self.qpn,
            ds,
            flags: mlx5_prm::wqe::flag::CE_ALWAYS | ctrl.flags,
            ..ctrl
        };
        let bytes = [&ctrl.to_bytes(), body].concat();
        for block in bytes.chunks(64) {
            let at = (RING as usize + usize::from(self.posted) % RING as usize) * 64;
            self.ring[at..at + block.len()].copy_from_slice(block);
            self.posted += 1;
        }
    }

    fn ring_doorbell(&mut self) {
        let record = u32::from(self.received).to_be_bytes();
        let send = u32::from(self.posted).to_be_bytes();
        self.dbrec[0] = u64::from_ne_bytes([
            record[0], record[1], record[2], record[3], send[0], send[1], send[2], send[3],
        ]);
    }

    fn post_receive(&mut self, key: u32, bytes: &[u8]) {
        let at = usize::from(self.received) % RING as usize * 64;
        self.ring[at..at + 16].copy_from_slice(&segment(key, bytes));
        let end = Data::Memory {
            length: 0,
            lkey: INVALID_LKEY,
            address: 0,
        };
        self.ring[at + 16..at + 32].copy_from_slice(&end.to_bytes());
        self.received += 1;
        self.ring_doorbell();
    }

    fn completions(&mut self) -> Vec<Cqe> {
        let mut found = Vec::new();
        while let Some(bytes) = self.cqes[self.read * CQE_BYTES..].first_chunk() {
            let cqe = Cqe::parse(bytes);
            if cqe.opcode == cqe_opcode::INVALID {
                break;
            }
            self.read += 1;
            found.push(Cqe {
                timestamp: 0,
                ..cqe
            });
        }
        found
    }
}

fn segment(key: u32, bytes: &[u8]) -> [u8; 16] {
    let length = u32::try_from(bytes.len()).unwrap();
    Data::Memory {
        length,
        lkey: key,
        address: address(bytes),
    }
    .to_bytes()
}

#[track_caller]
fn expect_success(cqes: &[Cqe], bytes: usize) {
    assert_eq!(cqes.len(), 1, "{cqes:?}");
    assert_eq!(
        (cqes[0].opcode, cqes[0].byte_count as usize),
        (cqe_opcode::REQ, bytes)
    );
}

#[track_caller]
fn expect_error(cqes: &[Cqe], syndrome: u8) {
    assert_eq!(cqes.len(), 1, "{cqes:?}");
    assert_eq!(
        (cqes[0].opcode, cqes[0].syndrome),
        (cqe_opcode::REQ_ERR, syndrome)
    );
}

#[test]
fn data_moves_between_functions_with_equal_numbers() {
    let world = World::new();
    let (mut host, mut far) = world.pair(HOST, FAR);
    assert_eq!(host.qpn, far.qpn, "numbers are per function");
    let (source, target) = (vec![7u8; 5000], vec![0u8; 5000]);
    let lkey = world.region(HOST, &source, access::LOCAL_READ);
    let rkey = world.region(FAR, &target, ALL_RIGHTS);
    assert_eq!(lkey, rkey);
    expect_success(
        &world.write(&mut host, (lkey, &source), (rkey, address(&target))),
        5000,
    );
    assert_eq!(target, source);
    assert!(far.completions().is_empty());
}

/// Each refusal: the damage of the key and the poster's syndrome. In each case the target does not
/// change and both ends enter the error state.
#[test]
fn a_key_that_does_not_open_moves_nothing() {
    type Damage = fn(&World, u32, &[u8]) -> (u32, u64);
    let cases: [(&str, Damage); 6] = [
        ("another variant", |_, key, bytes| (key ^ 1, address(bytes))),
        ("no such key", |_, key, bytes| {
            (key + 0x1000, address(bytes))
        }),
        ("one byte below", |_, key, bytes| (key, address(bytes) - 1)),
        ("one byte above", |_, key, bytes| (key, address(bytes) + 1)),
        ("a range that wraps", |_, key, _| (key, u64::MAX - 7)),
        ("another domain", |world, key, bytes| {
            let slot = slot_of(key).unwrap();
            world
                .fabric
                .lock()
                .function(FAR)
                .mkeys
                .get_mut(slot)
                .unwrap()
                .pd = PD + 1;
            (key, address(bytes))
        }),
    ];
    for (name, damage) in cases {
        let world = World::new();
        let (mut host, far) = world.pair(HOST, FAR);
        let (source, target) = (vec![7u8; 64], vec![0u8; 64]);
        let lkey = world.region(HOST, &source, access::LOCAL_READ);
        let rkey = world.region(FAR, &target, ALL_RIGHTS);
        let to = damage(&world, rkey, &target);
        let cqes = world.write(&mut host, (lkey, &source), to);
        assert_eq!(cqes.len(), 1, "{name}");
        assert_eq!(cqes[0].syndrome, syndrome::REMOTE_ACCESS_ERR, "{name}");
        assert_eq!(target, [0; 64], "{name}");
        assert_eq!(
            (world.state(&host), world.state(&far)),
            (state::ERR, state::ERR),
            "{name}"
        );
    }
}

#[test]
fn rights_are_those_of_the_key_and_of_the_queue() {
    let check = |rights: u8, queue: u8, write: u8, read: u8| {
        for (reads, expect) in [(false, write), (true, read)] {
            let world = World::new();
            let (mut host, far) = world.pair(HOST, FAR);
            world.change(&far, |qp| qp.access = queue);
            let (ours, theirs) = (vec![1u8; 8], vec![2u8; 8]);
            let lkey = world.region(HOST, &ours, ALL_RIGHTS);
            let remote = (world.region(FAR, &theirs, rights), address(&theirs));
            let cqes = if reads {
                world.read(&mut host, (lkey, &ours), remote)
            } else {
                world.write(&mut host, (lkey, &ours), remote)
            };
            assert_eq!(
                cqes[0].syndrome, expect,
                "{rights:x} {queue:x} read {reads}"
            );
        }
    };
    let (bad_key, bad_queue) = (syndrome::REMOTE_ACCESS_ERR, syndrome::REMOTE_INVAL_REQ_ERR);
    check(ALL_RIGHTS, ALL_RIGHTS, 0, 0);
    check(access::REMOTE_READ, ALL_RIGHTS, bad_key, 0);
    check(access::REMOTE_WRITE, ALL_RIGHTS, 0, bad_key);
    check(ALL_RIGHTS, access::REMOTE_READ, bad_queue, 0);
    check(ALL_RIGHTS, access::REMOTE_WRITE, 0, bad_queue);
}

#[test]
fn a_local_key_without_rights_is_a_local_error() {
    let world = World::new();
    let (mut host, _far) = world.pair(HOST, FAR);
    let (ours, theirs) = (vec![1u8; 8], vec![2u8; 8]);
    let lkey = world.region(HOST, &ours, access::LOCAL_READ);
    let rkey = world.region(FAR, &theirs, ALL_RIGHTS);
    let cqes = world.read(&mut host, (lkey, &ours), (rkey, address(&theirs)));
    expect_error(&cqes, syndrome::LOCAL_PROT_ERR);
    assert_eq!(ours, [1; 8]);
}

/// The states of a pooled key as the DPU sees them through its alias, on both sides of a transfer.
#[test]
fn an_alias_follows_its_key_through_bind_and_invalidate() {
    let world = World::new();
    let mut umr = {
        let queue = world.queue(HOST);
        world.change(&queue, |qp| {
            qp.set_remote(Some(place(HOST)));
            qp.remote_qpn = QPN_BASE;
        });
        queue
    };
    let (first, second) = (vec![3u8; 4096], vec![4u8; 4096]);
    let (k1, k2) = (
        world.region(HOST, &first, ALL_RIGHTS),
        world.region(HOST, &second, ALL_RIGHTS),
    );
    let key = world.umr_key(HOST, 4);
    let alias = world.alias(DPU, HOST, key);
    let fetch = |alias: u32, from: &[u8]| {
        let (mut dpu, _far) = world.pair(DPU, FAR);
        let target = vec![0u8; 4096];
        let rkey = world.region(FAR, &target, ALL_RIGHTS);
        // The alias is the local key: the DPU sends from the host's memory.
        let cqes = world.write(&mut dpu, (alias, from), (rkey, address(&target)));
        (cqes[0].syndrome, target)
    };
    assert_eq!(
        fetch(alias, &first),
        (syndrome::LOCAL_PROT_ERR, vec![0; 4096]),
        "not bound yet"
    );

    let klm = |key: u32, bytes: &[u8]| Klm {
        byte_count: 4096,
        mkey: key,
        address: address(bytes),
    };
    let bound = world.bind(
        &mut umr,
        key,
        0xfb,
        &[klm(k1, &first)],
        address(&first),
        4096,
    );
    expect_success(&bound, 0);
    assert_eq!(fetch(alias, &first), (0, first.clone()));
    assert_eq!(
        fetch(alias, &second).0,
        syndrome::LOCAL_PROT_ERR,
        "out of range"
    );
    expect_success(&world.invalidate(&mut umr, key), 0);
    assert_eq!(
        fetch(alias, &first),
        (syndrome::LOCAL_PROT_ERR, vec![0; 4096]),
        "invalidated"
    );

    // The same alias serves the next buffer. This list joins two ranges.
    let both = [klm(k2, &second), klm(k1, &first)];
    expect_success(&world.bind(&mut umr, key, 0xfb, &both, 0, 8192), 0);
    let (mut dpu, _far) = world.pair(DPU, FAR);
    let target = vec![0u8; 8192];
    let rkey = world.region(FAR, &target, ALL_RIGHTS);
    let from = Data::Memory {
        length: 8192,
        lkey: alias,
        address: 0,
    }
    .to_bytes();
    let to = RemoteAddress {
        address: address(&target),
        rkey,
    }
    .to_bytes();
    expect_success(
        &world.post(&mut dpu, opcode::RDMA_WRITE, 0, &[&to, &from]),
        8192,
    );
    assert_eq!(target, [second, first.clone()].concat());

    // The key's number is reused: the old alias gives no access to the new key.
    let slot = slot_of(key).unwrap();
    assert!(world.fabric.lock().function(HOST).remove_mkey(slot));
    let again = world.region(HOST, &first, ALL_RIGHTS);
    assert_eq!(again >> 8, key >> 8);
    assert_eq!(
        fetch(alias, &first),
        (syndrome::LOCAL_PROT_ERR, vec![0; 4096]),
        "stale"
    );
}

#[test]
fn a_bind_that_does_not_fit_is_refused() {
    let world = World::new();
    let bytes = vec![0u8; 64];
    let region = world.region(HOST, &bytes, ALL_RIGHTS);
    let klms = [Klm {
        byte_count: 8,
        mkey: region,
        address: address(&bytes),
    }; 8];
    let (mut umr, _other) = world.pair(HOST, FAR);
    let small = world.umr_key(HOST, 4);
    let cqes = world.bind(&mut umr, small, 0xfb, &klms, address(&bytes), 64);
    expect_error(&cqes, syndrome::LOCAL_QP_OP_ERR);
    // A memory region of verbs does not permit UMR.
    let (mut umr, _other) = world.pair(HOST, FAR);
    let cqes = world.bind(&mut umr, region, 0xfb, &klms[..1], address(&bytes), 8);
    expect_error(&cqes, syndrome::MW_BIND_ERR);
}
