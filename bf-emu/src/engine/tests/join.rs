//! Two fabrics whose carriers exchange packets in memory, over a good and a bad network.

mod services;

use std::net::SocketAddr;
use std::path::Path as FilePath;

use super::*;
use crate::engine::join::disturbance::{Disturbance, Way};
use crate::engine::join::{Join, Seen};
use crate::fabric::PortState;
use crate::fabric::counters::PortCounter;
use crate::model::address::GidType;

pub(super) const PORT: u16 = 4791;
/// Index of a GID of RoCE v2 with an IPv4 address.
const GID: u8 = 3;

/// A fabric of two nodes, one of them on another machine.
fn machine(remote: usize) -> World {
    let node = |index: usize| {
        let remote = if index == remote {
            "remote = true\n"
        } else {
            ""
        };
        format!("[[node]]\n{remote}[[node.function]]\nrole = \"host\"\nlink = \"ethernet\"\n")
    };
    let text = node(0) + &node(1);
    World::of(
        &Topology::parse(FilePath::new("t.toml"), &text).unwrap(),
        "none",
    )
}

/// The only own function of each machine.
pub(super) const A: usize = 0;
pub(super) const B: usize = 1;

pub(super) struct Machines {
    pub(super) a: World,
    pub(super) b: World,
}

impl Machines {
    pub(super) fn new() -> Self {
        Self {
            a: machine(B),
            b: machine(A),
        }
    }

    /// A connected queue pair on each machine.
    fn pair(&self) -> (Queue, Queue) {
        let (a, b) = (self.a.queue(A), self.b.queue(B));
        for (world, from, to) in [(&self.a, &a, &b), (&self.b, &b, &a)] {
            let gid = world.fabric.gid_entry(place(to.function), GID).unwrap().gid;
            world.change(from, |qp| {
                qp.set_remote(Some(place(to.function)));
                qp.remote_qpn = to.qpn;
                qp.path = Path {
                    dgid: gid,
                    is_global: 1,
                    sgid_index: GID,
                    port: 1,
                    path_mtu: 3,
                    timeout: 10,
                    retry_count: 7,
                    rnr_retry: 3,
                    min_rnr_timer: 1,
                    sq_psn: 0xff_fff0,
                    rq_psn: 0xff_fff0,
                    gid_type: GidType::RoceV2,
                    ..qp.path
                };
            });
        }
        (a, b)
    }

    pub(super) fn carriers(&self) -> Carriers<'_> {
        Carriers::of([&self.a, &self.b].map(|world| Join::new(&world.fabric, PORT).unwrap()))
    }
}

/// Both carriers and the network between them, with a clock that jumps to the next event.
pub(super) struct Carriers<'f> {
    pub(super) both: [Join<'f>; 2],
    network: Option<Disturbance>,
    /// How often a packet arrives; once without it.
    pub(super) copies: Option<Box<Copies>>,
    pub(super) now_ns: u64,
}

pub(super) type Copies = dyn FnMut(&[u8]) -> usize;

impl<'f> Carriers<'f> {
    pub(super) fn of(both: [Join<'f>; 2]) -> Self {
        Self {
            both,
            network: None,
            copies: None,
            now_ns: 1,
        }
    }

    /// Runs until nothing is on the way.
    pub(super) fn settle(&mut self) {
        self.settle_until(|| false);
    }

    /// The same, or until something is so.
    pub(super) fn settle_until(&mut self, is_so: impl Fn() -> bool) {
        for _ in 0..1_000_000 {
            if is_so() {
                return;
            }
            let mut sent: Vec<(Way, Vec<u8>)> = Vec::new();
            let mut next = None;
            let network = &mut self.network;
            for join in &mut self.both {
                let mut note = |way, packet: &[u8]| sent.push((way, packet.to_owned()));
                let due = join.work(self.now_ns, &mut |from, to, packet| match network {
                    Some(network) => network.pass((from, to), packet, &mut note),
                    None => note((from, to), packet),
                });
                next = [next, due].into_iter().flatten().min();
            }
            if sent.is_empty()
                && let Some(network) = network
            {
                network.release(|way, packet| sent.push((way, packet.to_owned())));
            }
            if sent.is_empty() {
                match next {
                    Some(due) => self.now_ns = self.now_ns.max(due),
                    None => return,
                }
            }
            for ((from, to), packet) in sent {
                let ends = (SocketAddr::new(from, PORT), to);
                let copies = self.copies.as_mut().map_or(1, |copies| copies(&packet));
                for join in &mut self.both {
                    if join.addresses().any(|own| own == to.ip()) {
                        (0..copies).for_each(|_| join.receive(self.now_ns, ends, &packet));
                    }
                }
            }
        }
        panic!("the machines exchange packets without end");
    }

    /// Posts a request and waits for its completions.
    fn post(
        &mut self,
        world: &World,
        queue: &mut Queue,
        opcode: u8,
        segments: &[&[u8]],
    ) -> Vec<Cqe> {
        let mut cqes = world.post(queue, opcode, 0x1234, segments);
        self.settle();
        cqes.extend(queue.completions());
        cqes
    }
}

fn remote(key: u32, bytes: &[u8]) -> [u8; 16] {
    RemoteAddress {
        address: address(bytes),
        rkey: key,
    }
    .to_bytes()
}

fn pattern(seed: usize, length: usize) -> Vec<u8> {
    let byte = |at: usize| u8::try_from((at * 7 + at / 253 + seed) % 251).unwrap();
    (0..length).map(byte).collect()
}

/// All operations, each over a network that loses, repeats and reorders packets in another way.
#[test]
fn all_operations_reach_another_machine_over_a_bad_network() {
    const BYTES: usize = 40_000;
    let mut repeated = 0;
    for seed in 0..6 {
        let machines = Machines::new();
        let (a, b) = (&machines.a, &machines.b);
        let mut carriers = machines.carriers();
        carriers.network = (seed != 0).then(|| Disturbance::new(seed));
        let (mut near, mut far) = machines.pair();
        let (ours, theirs) = (pattern(1, BYTES), vec![0_u8; BYTES]);
        let (lkey, rkey) = (
            a.region(A, &ours, ALL_RIGHTS),
            b.region(B, &theirs, ALL_RIGHTS),
        );
        let written = [&remote(rkey, &theirs)[..], &segment(lkey, &ours)];
        let cqes = carriers.post(a, &mut near, opcode::RDMA_WRITE, &written);
        expect_success(&cqes, BYTES);
        assert!(theirs == ours, "seed {seed}");
        let back = vec![0_u8; BYTES];
        let into = a.region(A, &back, ALL_RIGHTS);
        let read = [&remote(rkey, &theirs)[..], &segment(into, &back)];
        let cqes = carriers.post(a, &mut near, opcode::RDMA_READ, &read);
        expect_success(&cqes, BYTES);
        assert!(back == ours, "seed {seed}");
        // Messages, the other way round.
        let inbox = vec![0_u8; 3000];
        let ikey = a.region(A, &inbox, ALL_RIGHTS);
        near.post_receive(ikey, &inbox);
        let cqes = carriers.post(
            b,
            &mut far,
            opcode::SEND_IMM,
            &[&segment(rkey, &theirs[..2999])],
        );
        expect_success(&cqes, 2999);
        let received = near.completions();
        assert_eq!(
            (received.len(), received[0].byte_count, received[0].imm),
            (1, 2999, 0x1234)
        );
        assert_eq!(received[0].opcode, cqe_opcode::RESP_SEND_IMM);
        assert!(
            inbox[..2999] == theirs[..2999] && inbox[2999] == 0,
            "seed {seed}"
        );
        far.post_receive(rkey, &theirs);
        let cqes = carriers.post(
            a,
            &mut near,
            opcode::RDMA_WRITE_IMM,
            &[&remote(rkey, &theirs), &segment(lkey, &ours[..1])],
        );
        expect_success(&cqes, 1);
        assert_eq!(far.completions()[0].opcode, cqe_opcode::RESP_WR_IMM);
        // Atomic operations are executed once.
        let (word, before) = (vec![0_u8; 8], vec![0_u8; 8]);
        let (wkey, bkey) = (
            b.region(B, &word, ALL_RIGHTS),
            a.region(A, &before, ALL_RIGHTS),
        );
        for count in 0..5_u64 {
            let operands = [3_u64.to_be_bytes(), 0_u64.to_be_bytes()].concat();
            let add = [&remote(wkey, &word)[..], &operands, &segment(bkey, &before)];
            let cqes = carriers.post(a, &mut near, opcode::ATOMIC_FA, &add);
            expect_success(&cqes, 8);
            let value = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().unwrap());
            assert_eq!(
                (value(&before), value(&word)),
                (3 * count, 3 * count + 3),
                "seed {seed}"
            );
        }
        let counters = [a.fabric.counters(A), b.fabric.counters(B)];
        repeated += counters
            .map(|own| own.of_port(1, PortCounter::DuplicateRequest))
            .iter()
            .sum::<u64>();
        assert!(counters[0].of_port(1, PortCounter::PortXmitPackets) > 40);
        for join in &carriers.both {
            assert_eq!(join.seen(), Seen::default(), "seed {seed}");
        }
    }
    assert!(repeated > 10, "{repeated}");
}

/// A datagram reaches a queue pair with its key, behind its header. Others are dropped.
#[test]
fn a_datagram_reaches_another_machine() {
    const QKEY: u32 = 0x1111_2222;
    let machines = Machines::new();
    let (a, b) = (&machines.a, &machines.b);
    let mut carriers = machines.carriers();
    let (mut near, mut far) = machines.pair();
    for (world, queue) in [(a, &near), (b, &far)] {
        world.change(queue, |qp| {
            qp.service = service::UD;
            qp.qkey = QKEY;
            qp.set_remote(None);
        });
    }
    let (ours, theirs) = (pattern(3, 1000), vec![0_u8; 1100]);
    let (lkey, rkey) = (
        a.region(A, &ours, ALL_RIGHTS),
        b.region(B, &theirs, ALL_RIGHTS),
    );
    far.post_receive(rkey, &theirs);
    let vector = |qkey: u32, to: usize| {
        let mut vector = [0; 48];
        vector[..4].copy_from_slice(&qkey.to_be_bytes());
        vector[8..12].copy_from_slice(&(1 << 31 | far.qpn).to_be_bytes());
        vector[20..26].copy_from_slice(&a.fabric.mac_of(place(to)).unwrap().0);
        vector[29] = GID << 4;
        let gid = a.fabric.gid_entry(place(to), GID).unwrap().gid;
        vector[32..].copy_from_slice(&gid);
        vector
    };
    let (wrong, right, own) = (vector(7, B), vector(QKEY, B), vector(QKEY, A));
    for vector in [wrong, right, own] {
        let cqes = carriers.post(
            a,
            &mut near,
            opcode::SEND_IMM,
            &[&vector, &segment(lkey, &ours)],
        );
        expect_success(&cqes, 1000);
    }
    let cqes = far.completions();
    assert_eq!(cqes.len(), 1, "{cqes:?}");
    let cqe = &cqes[0];
    assert_eq!(
        (cqe.byte_count, cqe.imm, cqe.src_qpn),
        (1040, 0x1234, near.qpn)
    );
    assert_eq!(
        (cqe.opcode, cqe.rx_flags),
        (cqe_opcode::RESP_SEND_IMM, 0x1a)
    );
    assert!(theirs[40..1040] == ours);
    // The IPv4 header names both machines.
    assert_eq!(theirs[20..22], [0x45, 0]);
    assert_eq!(theirs[32..40], [127, 66, 1, 1, 127, 66, 2, 1]);
    let counters = b.fabric.counters(B);
    assert_eq!(counters.of_port(1, PortCounter::QkeyViolations), 1);
}

/// Requests with and without a destination keep their order: the window is invalid only behind the write.
#[test]
fn a_key_that_is_invalidated_behind_a_write_serves_the_write() {
    let machines = Machines::new();
    let (a, b) = (&machines.a, &machines.b);
    let mut carriers = machines.carriers();
    let (mut near, _far) = machines.pair();
    let (ours, theirs) = (pattern(2, 9000), vec![0_u8; 9000]);
    let direct = a.region(A, &ours, ALL_RIGHTS);
    let rkey = b.region(B, &theirs, ALL_RIGHTS);
    let window = a.umr_key(A, 4);
    let klm = Klm {
        byte_count: 9000,
        mkey: direct,
        address: address(&ours),
    };
    let mut cqes = a.bind(&mut near, window, 0x77, &[klm], address(&ours), 9000);
    let bound = window & !0xff | 0x77;
    cqes.extend(a.write(&mut near, (bound, &ours), (rkey, address(&theirs))));
    cqes.extend(a.invalidate(&mut near, bound));
    cqes.extend(a.write(&mut near, (bound, &ours), (rkey, address(&theirs))));
    assert_eq!(cqes, [], "a doorbell only hands requests over");
    carriers.settle();
    let cqes: Vec<_> = near.completions().iter().map(|cqe| cqe.syndrome).collect();
    assert_eq!(cqes, [0, 0, 0, syndrome::LOCAL_PROT_ERR]);
    assert!(theirs == ours);
}

/// Each refusal has the status that it has between two nodes of one machine.
#[test]
fn refusals_have_their_status_on_both_machines() {
    type Spoil = fn(&Machines, &Queue, &Queue);
    let cases: [(&str, u8, Spoil, u8, u8); 7] = [
        (
            "no right",
            opcode::RDMA_WRITE,
            |m, _, far| m.b.change(far, |qp| qp.access = 0),
            syndrome::REMOTE_INVAL_REQ_ERR,
            state::ERR,
        ),
        (
            "another key",
            opcode::RDMA_WRITE,
            |m, _, _| {
                let slot = slot_of(m.b.region(B, &[], ALL_RIGHTS)).unwrap() - 1;
                m.b.fabric
                    .lock()
                    .function(B)
                    .mkeys
                    .get_mut(slot)
                    .unwrap()
                    .variant ^= 1;
            },
            syndrome::REMOTE_ACCESS_ERR,
            state::ERR,
        ),
        (
            "no receive",
            opcode::SEND,
            |_, _, _| {},
            syndrome::RNR_RETRY_EXC_ERR,
            state::RTS,
        ),
        (
            "another packet number",
            opcode::RDMA_WRITE,
            |m, _, far| m.b.change(far, |qp| qp.path.rq_psn = 5),
            syndrome::TRANSPORT_RETRY_EXC_ERR,
            state::RTS,
        ),
        (
            "a port without a link",
            opcode::RDMA_WRITE,
            |m, _, _| {
                m.a.fabric.lock().put_port_state(place(A), PortState::Down);
            },
            syndrome::TRANSPORT_RETRY_EXC_ERR,
            state::RTS,
        ),
        (
            "a port without a link on the other machine",
            opcode::RDMA_WRITE,
            |m, _, _| {
                m.b.fabric.lock().put_port_state(place(B), PortState::Down);
            },
            syndrome::TRANSPORT_RETRY_EXC_ERR,
            state::RTS,
        ),
        (
            "in reset",
            opcode::RDMA_WRITE,
            |m, _, far| m.b.change(far, |qp| qp.state = state::RST),
            syndrome::TRANSPORT_RETRY_EXC_ERR,
            state::RST,
        ),
    ];
    for (name, opcode, spoil, status, far_state) in cases {
        let machines = Machines::new();
        let (a, b) = (&machines.a, &machines.b);
        let mut carriers = machines.carriers();
        let (mut near, far) = machines.pair();
        let (ours, theirs) = (vec![7_u8; 3000], vec![0_u8; 3000]);
        let (lkey, rkey) = (
            a.region(A, &ours, ALL_RIGHTS),
            b.region(B, &theirs, ALL_RIGHTS),
        );
        spoil(&machines, &near, &far);
        let target = remote(rkey, &theirs);
        let data = segment(lkey, &ours);
        let segments: &[&[u8]] = match opcode {
            opcode::SEND => &[&data],
            _ => &[&target, &data],
        };
        let cqes = carriers.post(a, &mut near, opcode, segments);
        expect_error(&cqes, status);
        assert_eq!(
            (a.state(&near), b.state(&far)),
            (state::ERR, far_state),
            "{name}"
        );
        assert_eq!(theirs, [0; 3000], "{name}");
    }
}

/// Without a carrier, and after its death, requests fail like those to a peer that does not answer.
#[test]
fn requests_fail_without_a_carrier() {
    let machines = Machines::new();
    let (a, b) = (&machines.a, &machines.b);
    let (ours, theirs) = (vec![7_u8; 3000], vec![0_u8; 3000]);
    let (lkey, rkey) = (
        a.region(A, &ours, ALL_RIGHTS),
        b.region(B, &theirs, ALL_RIGHTS),
    );
    let fails = |queue: &mut Queue| {
        let mut cqes = a.write(queue, (lkey, &ours), (rkey, address(&theirs)));
        while cqes.is_empty() {
            // The thread of a real program looks again.
            run(&a.fabric, A, queue.qpn);
            cqes = queue.completions();
        }
        expect_error(&cqes, syndrome::TRANSPORT_RETRY_EXC_ERR);
    };
    let (mut near, _) = machines.pair();
    fails(&mut near);
    // A carrier that ends while the queue pair waits for its answers, in a thread as in its own process.
    let (mut near, _) = machines.pair();
    std::thread::scope(|scope| {
        let carry = || {
            let mut join = Join::new(&a.fabric, PORT).unwrap();
            join.work(1, &mut |_, _, _| {});
            let sent = a.write(&mut near, (lkey, &ours), (rkey, address(&theirs)));
            assert_eq!(sent, []);
            let mut packets = 0;
            join.work(2, &mut |_, _, _| packets += 1);
            assert_eq!(packets, 3);
        };
        scope.spawn(carry).join().unwrap();
    });
    let mut cqes = near.completions();
    assert_eq!(cqes, []);
    while cqes.is_empty() {
        run(&a.fabric, A, near.qpn);
        cqes = near.completions();
    }
    expect_error(&cqes, syndrome::TRANSPORT_RETRY_EXC_ERR);
    // A later carrier does not know the state of a connection of an earlier one.
    let (mut near, _) = machines.pair();
    a.change(&near, |qp| qp.carried = 1);
    let mut carriers = machines.carriers();
    let written = [&remote(rkey, &theirs)[..], &segment(lkey, &ours)];
    let cqes = carriers.post(a, &mut near, opcode::RDMA_WRITE, &written);
    expect_error(&cqes, syndrome::TRANSPORT_RETRY_EXC_ERR);
}

/// Datagrams that are no packets, or for nobody, change nothing and are counted.
#[test]
fn strange_datagrams_are_counted_by_kind() {
    use crate::engine::wire::icrc::Ends;
    let machines = Machines::new();
    let (_near, far) = machines.pair();
    let mut carriers = machines.carriers();
    let join = &mut carriers.both[1];
    let to = SocketAddr::new(join.addresses().next().unwrap(), PORT);
    let from = SocketAddr::new(carriers.both[0].addresses().next().unwrap(), PORT);
    let join = &mut carriers.both[1];
    let ends = Ends {
        from,
        to,
        identification: 0,
    };
    let mut send = |packet: &[u8], damage: u8| {
        let mut icrc = ends.icrc(packet).unwrap();
        icrc[0] ^= damage;
        join.receive(1, (from, to), &[packet, &icrc].concat());
    };
    let [_, a, b, c] = far.qpn.to_be_bytes();
    let ack = |code: u8, low: u8| {
        [
            code,
            0x40,
            0xff,
            0xff,
            0,
            a,
            b,
            c ^ low,
            0,
            0xff,
            0xff,
            0xf0,
            0,
            0,
            0,
            0,
        ]
    };
    send(&ack(0x11, 0), 1);
    send(&ack(0x1f, 0), 0);
    send(&ack(0x11, 0x40), 0);
    // Nothing was sent, so there is nothing to acknowledge.
    send(&ack(0x11, 0), 0);
    let seen = Seen {
        wrong_checksum: 1,
        malformed: 1,
        stray: 2,
    };
    assert_eq!(carriers.both[1].seen(), seen);
}
