//! Connections between two fabrics by messages of the connection manager, over networks that lose and repeat messages.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;

use super::join::{A, B, Carriers, Machines, PORT};
use super::*;
use crate::engine::join::{Join, Seen};
use crate::engine::rdma_cm::{answer, connect, get};
use crate::engine::wire::icrc::Ends;
use crate::engine::wire::management::{self, Datagram, Message};
use crate::engine::wire::packet::{Body, Head, Packet, Service};
use crate::fabric::rdma_cm::{
    CmFile, CmId, EventKind, EventParam, Exchange, Params, Port, Side, Stage,
};
use crate::model::sockaddr::SocketAddress;

const SERVICE_PORT: u16 = 7471;
const TCP: u16 = 0x0106;
const UDP: u16 = 0x0111;
const IB: u16 = 0x013f;
const QP_RC: u8 = 2;
const QP_UC: u8 = 3;
const QP_XRC_INI: u8 = 9;
const QP_UD: u8 = 4;
/// Offset of the message in a packet: behind the transport headers.
const MESSAGE_AT: usize = 20;
const PATIENCE_NS: u64 = 16 * (4096 << 20);

/// A program of one of the machines: its file, and an identifier.
struct Program<'w> {
    world: &'w World,
    file: u32,
    id: Cell<u32>,
}

/// What a program has seen: the kind and the status.
type Events = Vec<(EventKind, i32)>;

impl<'w> Program<'w> {
    fn new(world: &'w World, function: usize, (space, qp_type): (u16, u8)) -> Self {
        let mut locked = world.fabric.lock();
        let manager = &mut locked.common().rdma_cm;
        let file = CmFile {
            pipe: -1,
            device: 1,
            inode: world.owner.process.into(),
            ..CmFile::default()
        };
        let file = manager.files.insert(world.owner, file).unwrap();
        let psn = 0x10 + u32::try_from(function).unwrap();
        let id = CmId {
            uid: 7,
            file,
            port_space: space,
            qp_type,
            reported: true,
            functions: 1 << function,
            here: Side { qp_num: 0, psn },
            ..CmId::default()
        };
        let id = Cell::new(manager.ids.insert(world.owner, id).unwrap());
        Self { world, file, id }
    }

    fn known(&self) -> CmId {
        *get(&mut self.world.fabric.lock(), self.id.get()).unwrap()
    }

    fn change(&self, change: impl FnOnce(&mut CmId)) {
        change(get(&mut self.world.fabric.lock(), self.id.get()).unwrap());
    }

    fn listen(&self) {
        self.change(|own| {
            own.stage = Stage::Listen;
            own.backlog = 8;
            own.source = SocketAddress::any();
            own.source.put_port(SERVICE_PORT);
            own.service = u64::from(own.port_space) << 16 | u64::from(SERVICE_PORT);
        });
    }

    /// Asks for a connection between two functions.
    fn connect(&self, (from, to): (usize, usize), params: &Params) {
        let fabric = &self.world.fabric;
        let address = |function: usize, port| {
            let gid = fabric.gid_entry(place(function), 3).unwrap().gid;
            SocketAddress::of_ip(&gid, port)
        };
        self.change(|own| {
            own.source = address(from, 4000);
            own.target = address(to, SERVICE_PORT);
            own.local = Port::new(place(from), 3);
            own.remote = Port::new(place(to), 3);
            own.stage = Stage::RouteResolved;
        });
        connect(&mut fabric.lock(), self.id.get(), params, PATIENCE_NS).unwrap();
    }

    fn has_event(&self) -> bool {
        self.world.fabric.lock().cm_first_event(self.file).is_some()
    }

    /// Takes the events, and follows a request to its new identifier.
    fn events(&self) -> Events {
        self.events_with()
            .into_iter()
            .map(|(kind, status, _)| (kind, status))
            .collect()
    }

    fn events_with(&self) -> Vec<(EventKind, i32, EventParam)> {
        let mut locked = self.world.fabric.lock();
        let mut seen = Vec::new();
        while let Some((slot, event)) = locked.cm_first_event(self.file) {
            locked.common().rdma_cm.events.remove(slot);
            if event.kind == EventKind::ConnectRequest {
                self.id.set(event.id);
                get(&mut locked, event.id).unwrap().reported = true;
            }
            seen.push((event.kind, event.status, event.param));
        }
        seen
    }

    fn accept(&self, params: &Params) {
        let mut locked = self.world.fabric.lock();
        answer::accept(&mut locked, self.id.get(), 8, params, PATIENCE_NS).unwrap();
    }

    fn establish(&self) {
        answer::establish(&mut self.world.fabric.lock(), self.id.get()).unwrap();
    }

    fn disconnect(&self) {
        answer::disconnect(&mut self.world.fabric.lock(), self.id.get(), PATIENCE_NS).unwrap();
    }

    fn destroy(&self) {
        self.world.fabric.lock().cm_destroy(self.id.get());
    }
}

/// A requester on machine A and a listener on machine B.
fn programs(machines: &Machines, kind: (u16, u8)) -> (Program<'_>, Program<'_>) {
    let active = Program::new(&machines.a, A, kind);
    let passive = Program::new(&machines.b, B, kind);
    passive.listen();
    (active, passive)
}

fn params(qp_num: u32, text: &[u8]) -> Params {
    let mut params = Params {
        qp_num,
        responder_resources: 3,
        initiator_depth: 5,
        retry_count: 6,
        rnr_retry_count: 7,
        data_len: u8::try_from(text.len()).unwrap(),
        ..Params::default()
    };
    params.data[..text.len()].copy_from_slice(text);
    params
}

/// Number of identifiers and events on a machine.
fn left(world: &World) -> (u32, u32) {
    let mut locked = world.fabric.lock();
    let manager = &locked.common().rdma_cm;
    (manager.ids.live(), manager.events.live())
}

/// Number of a message in its packet; None for other packets.
fn attribute(packet: &[u8]) -> Option<u16> {
    let is_message = packet[0] == 0x64 && packet[5..8] == [0, 0, 1];
    is_message.then(|| u16::from_be_bytes([packet[MESSAGE_AT + 16], packet[MESSAGE_AT + 17]]))
}

/// A connection from its request to the end of its numbers' rest.
fn whole_connection(machines: &Machines, carriers: &mut Carriers<'_>) {
    connection_of(machines, carriers, (TCP, QP_RC));
}

fn connection_of(machines: &Machines, carriers: &mut Carriers<'_>, kind: (u16, u8)) {
    use EventKind as E;
    let (active, passive) = programs(machines, kind);
    active.connect((A, B), &params(0x111, b"question"));
    carriers.settle_until(|| passive.has_event());
    let asked = passive.events_with();
    assert_eq!(asked.len(), 1, "{asked:?}");
    let event = asked[0].2.connection();
    assert_eq!((asked[0].0, event.qp_num), (E::ConnectRequest, 0x111));
    // Private data has the length of the message without addresses, and each side's numbers are as it sees them.
    assert_eq!((event.data_len, &event.data[..9]), (56, &b"question\0"[..]));
    assert_eq!((event.responder_resources, event.initiator_depth), (5, 3));
    let new = passive.known();
    assert_eq!((new.there.qp_num, new.there.psn), (0x111, 0x10));
    assert_eq!(new.qp_type, kind.1);
    assert_eq!((new.retry_count, new.rnr_retry_count), (6, 7));
    assert_eq!(
        (new.source, new.target),
        (active.known().target, active.known().source)
    );
    passive.accept(&params(0x222, b"answer"));
    carriers.settle_until(|| active.has_event());
    let answered = active.events_with();
    assert_eq!(answered.len(), 1, "{answered:?}");
    let event = answered[0].2.connection();
    assert_eq!((answered[0].0, event.qp_num), (E::ConnectResponse, 0x222));
    assert_eq!((event.data_len, &event.data[..7]), (196, &b"answer\0"[..]));
    let there = active.known().there;
    assert_eq!(
        (there.qp_num, there.psn),
        (0x222, passive.known().here.psn & 0xff_ffff)
    );
    active.establish();
    carriers.settle_until(|| passive.has_event());
    assert_eq!(passive.events(), [(E::Established, 0)]);
    assert_eq!(passive.known().exchange, Exchange::Established);
    active.disconnect();
    carriers.settle_until(|| passive.has_event());
    assert_eq!(passive.events(), [(E::Disconnected, 0)]);
    passive.disconnect();
    carriers.settle();
    assert_eq!(active.events(), [(E::Disconnected, 0)]);
    for program in [&active, &passive] {
        assert_eq!(program.known().exchange, Exchange::TimeWait);
        assert_eq!(program.events(), []);
    }
    // Nothing is left but the identifiers of the programs, one of them the listener.
    assert_eq!((left(&machines.a), left(&machines.b)), ((1, 0), (2, 0)));
}

#[test]
fn a_connection_of_two_machines_has_the_events_of_one_machine() {
    let machines = Machines::new();
    let mut carriers = machines.carriers();
    let sent = Rc::new(RefCell::new(Vec::new()));
    let note = Rc::clone(&sent);
    carriers.copies = Some(Box::new(move |packet| {
        note.borrow_mut().push(attribute(packet).unwrap());
        1
    }));
    whole_connection(&machines, &mut carriers);
    // REQ, REP, RTU, DREQ, DREP; nothing was repeated.
    assert_eq!(*sent.borrow(), [0x10, 0x13, 0x14, 0x15, 0x16]);
    for join in &carriers.both {
        assert_eq!(join.seen(), Seen::default());
    }
}

#[test]
fn queue_pairs_of_an_unreliable_connection_find_each_other() {
    let machines = Machines::new();
    connection_of(&machines, &mut machines.carriers(), (IB, QP_UC));
}

/// Late messages of a program in adversary mode are not lost: another process sends them.
#[test]
fn a_connection_stands_in_adversary_mode() {
    for seed in 0..8 {
        let machines = Machines::new();
        let mut carriers = machines.carriers();
        let (active, passive) = programs(&machines, (TCP, QP_RC));
        crate::engine::adversary::MODE.set(Some((seed, 0)));
        active.connect((A, B), &params(0x111, b""));
        while !passive.has_event() {
            // The thread of a real program looks again.
            crate::engine::rdma_cm::deliver_waiting(&mut machines.a.fabric.lock());
            carriers.settle_until(|| passive.has_event());
        }
        passive.events();
        passive.accept(&params(0x222, b""));
        carriers.settle_until(|| active.has_event());
        active.establish();
        // The carriers are not in this mode.
        crate::engine::adversary::MODE.set(None);
        carriers.settle();
        assert_eq!(
            passive.events(),
            [(EventKind::Established, 0)],
            "seed {seed}"
        );
    }
}

#[test]
fn lost_and_repeated_messages_change_no_event() {
    for message in 0x10..=0x16 {
        for (first, later) in [(0, 1), (2, 2), (3, 1)] {
            let machines = Machines::new();
            let mut carriers = machines.carriers();
            let mut count = 0;
            carriers.copies = Some(Box::new(move |packet| {
                if attribute(packet) != Some(message) {
                    return 1;
                }
                count += 1;
                if count == 1 { first } else { later }
            }));
            whole_connection(&machines, &mut carriers);
        }
    }
    // Each message arrives at the fourth time, and twice then.
    let machines = Machines::new();
    let mut carriers = machines.carriers();
    let mut counts = std::collections::BTreeMap::new();
    carriers.copies = Some(Box::new(move |packet| {
        let count = counts.entry(attribute(packet)).or_insert(0);
        *count += 1;
        if *count % 4 == 0 { 2 } else { 0 }
    }));
    whole_connection(&machines, &mut carriers);
}

#[test]
fn refusals_have_their_reason_on_the_other_machine() {
    use EventKind as E;
    type Act = fn(&Program<'_>, &Program<'_>, &mut Carriers<'_>);
    let cases: [(&str, Act, Events, Events); 5] = [
        (
            "no listener",
            |_, passive, _| passive.change(|own| own.stage = Stage::Bound),
            vec![(E::Rejected, 8)],
            vec![],
        ),
        (
            "the program refuses",
            |_, passive, carriers| {
                carriers.settle_until(|| passive.has_event());
                assert_eq!(passive.events(), [(E::ConnectRequest, 0)]);
                let mut locked = passive.world.fabric.lock();
                let because = params(0, b"because");
                answer::reject(&mut locked, passive.id.get(), 28, &because).unwrap();
            },
            vec![(E::Rejected, 28)],
            vec![],
        ),
        (
            "the requester gives up",
            |active, passive, carriers| {
                carriers.settle_until(|| passive.has_event());
                assert_eq!(passive.events(), [(E::ConnectRequest, 0)]);
                passive.change(|own| own.uid = 9);
                active.destroy();
            },
            vec![],
            vec![(E::Rejected, 4)],
        ),
        (
            "another service of queue pairs",
            |active, _, _| active.change(|own| own.qp_type = QP_XRC_INI),
            vec![(E::Rejected, 9)],
            vec![],
        ),
        (
            "a full queue of the listener",
            |_, passive, _| passive.change(|own| own.backlog = 0),
            vec![(E::Rejected, 28)],
            vec![],
        ),
    ];
    for (name, act, near, far) in cases {
        // A lost rejection is repeated when the request is.
        for lost in [0, 1] {
            let machines = Machines::new();
            let mut carriers = machines.carriers();
            let mut left = lost;
            carriers.copies = Some(Box::new(move |packet| {
                let lose =
                    left > 0 && attribute(packet) == Some(0x12) && name != "the requester gives up";
                left -= usize::from(lose);
                usize::from(!lose)
            }));
            let (active, passive) = programs(&machines, (TCP, QP_RC));
            if name == "another service of queue pairs" {
                act(&active, &passive, &mut carriers);
                active.connect((A, B), &params(1, b""));
            } else {
                if matches!(name, "no listener" | "a full queue of the listener") {
                    act(&active, &passive, &mut carriers);
                }
                active.connect((A, B), &params(1, b""));
                if !matches!(name, "no listener" | "a full queue of the listener") {
                    act(&active, &passive, &mut carriers);
                }
            }
            carriers.settle();
            let seen = active.events_with();
            let kinds: Events = seen
                .iter()
                .map(|(kind, status, _)| (*kind, *status))
                .collect();
            assert_eq!(kinds, near, "{name}, {lost} lost");
            if name == "the program refuses" {
                let data = seen[0].2.connection();
                assert_eq!((data.data_len, &data.data[..8]), (148, &b"because\0"[..]));
            }
            assert_eq!(passive.events(), far, "{name}, {lost} lost");
        }
    }
}

#[test]
fn a_datagram_service_is_found_once() {
    use EventKind as E;
    for (lost, copies) in [(None, 1), (None, 3), (Some(0x17), 1), (Some(0x18), 2)] {
        let machines = Machines::new();
        let mut carriers = machines.carriers();
        let mut lost = lost;
        carriers.copies = Some(Box::new(move |packet| {
            if attribute(packet) == lost {
                lost = None;
                return 0;
            }
            copies
        }));
        let (active, passive) = programs(&machines, (UDP, QP_UD));
        active.connect((A, B), &params(0, b"who"));
        carriers.settle_until(|| passive.has_event());
        let asked = passive.events_with();
        assert_eq!((asked.len(), asked[0].0), (1, E::ConnectRequest));
        let event = asked[0].2.datagrams();
        assert_eq!((event.data_len, &event.data[..4]), (180, &b"who\0"[..]));
        passive.accept(&params(0x333, b"me"));
        carriers.settle();
        assert_eq!(passive.events(), []);
        let found = active.events_with();
        assert_eq!((found.len(), found[0].0), (1, E::Established));
        let event = found[0].2.datagrams();
        assert_eq!((event.qp_num, event.qkey), (0x333, 0x0123_4567));
        assert_eq!((event.data_len, &event.data[..3]), (136, &b"me\0"[..]));
        assert_eq!((left(&machines.a), left(&machines.b)), ((1, 0), (2, 0)));
    }
}

#[test]
fn a_datagram_service_that_does_not_exist_or_refuses_has_its_status() {
    for (listens, status) in [(false, 1), (true, 2)] {
        let machines = Machines::new();
        let mut carriers = machines.carriers();
        let (active, passive) = programs(&machines, (UDP, QP_UD));
        passive.change(|own| own.stage = if listens { Stage::Listen } else { Stage::Bound });
        active.connect((A, B), &params(0, b""));
        carriers.settle_until(|| passive.has_event() || active.has_event());
        if listens {
            assert_eq!(passive.events(), [(EventKind::ConnectRequest, 0)]);
            let mut locked = machines.b.fabric.lock();
            answer::reject(&mut locked, passive.id.get(), 28, &Params::default()).unwrap();
        }
        carriers.settle();
        assert_eq!(active.events(), [(EventKind::Unreachable, status)]);
    }
}

#[test]
fn a_machine_that_does_not_answer_is_unreachable() {
    let machines = Machines::new();
    let mut carriers = machines.carriers();
    let sent = Rc::new(Cell::new(0));
    let note = Rc::clone(&sent);
    carriers.copies = Some(Box::new(move |_| {
        note.set(note.get() + 1);
        0
    }));
    let (active, _passive) = programs(&machines, (TCP, QP_RC));
    active.connect((A, B), &params(1, b""));
    carriers.settle();
    assert_eq!(
        active.events(),
        [(EventKind::Unreachable, -libc::ETIMEDOUT)]
    );
    // The first message and 15 repetitions, within the patience of the program.
    assert_eq!(sent.get(), 16);
    assert_eq!(carriers.now_ns, 1 + PATIENCE_NS);
    assert_eq!(left(&machines.a), (1, 0));
}

/// A program that decides for longer than the requester repeats: the requester is asked for patience.
#[test]
fn a_slow_program_is_waited_for() {
    let machines = Machines::new();
    let mut carriers = machines.carriers();
    let sent = Rc::new(RefCell::new(Vec::new()));
    let note = Rc::clone(&sent);
    carriers.copies = Some(Box::new(move |packet| {
        note.borrow_mut().push(attribute(packet).unwrap());
        1
    }));
    let (active, passive) = programs(&machines, (TCP, QP_RC));
    active.connect((A, B), &params(1, b""));
    let deadline = active.known().deadline_ns;
    let waits = |own: &Program<'_>| own.known().deadline_ns != deadline;
    carriers.settle_until(|| waits(&active));
    // REQ, the repeated one, and MRA.
    assert_eq!(*sent.borrow(), [0x10, 0x10, 0x11]);
    assert!(active.known().deadline_ns >= deadline + (4096 << 24));
    assert_eq!(passive.events(), [(EventKind::ConnectRequest, 0)]);
    passive.accept(&params(2, b""));
    carriers.settle_until(|| active.has_event());
    assert_eq!(active.events(), [(EventKind::ConnectResponse, 0)]);
}

/// A request of a queue pair whose connection stands here: the other machine has forgotten it.
#[test]
fn a_new_request_of_a_connected_queue_pair_ends_the_old_connection() {
    let machines = Machines::new();
    let mut carriers = machines.carriers();
    let (active, passive) = programs(&machines, (TCP, QP_RC));
    active.connect((A, B), &params(0x111, b""));
    carriers.settle_until(|| passive.has_event());
    passive.events();
    passive.accept(&params(0x222, b""));
    carriers.settle_until(|| active.has_event());
    active.establish();
    carriers.settle();
    assert_eq!(passive.events(), [(EventKind::Established, 0)]);
    // The carrier of machine A begins anew.
    let [near, far] = carriers.both;
    drop(near);
    let mut carriers = Carriers::of([Join::new(&machines.a.fabric, PORT).unwrap(), far]);
    // Its requests to end the connection are lost.
    carriers.copies = Some(Box::new(|packet| {
        usize::from(attribute(packet) != Some(0x15))
    }));
    assert_eq!(
        active.events(),
        [
            (EventKind::ConnectResponse, 0),
            (EventKind::Disconnected, 0)
        ]
    );
    let again = Program::new(&machines.a, A, (TCP, QP_RC));
    again.connect((A, B), &params(0x111, b""));
    carriers.settle();
    assert_eq!(again.events(), [(EventKind::Rejected, 10)]);
    assert_eq!(passive.events(), [(EventKind::Disconnected, 0)]);
}

/// A carrier that starts many times ends the connections of the one before, and leaves nothing.
#[test]
fn connections_end_with_their_carrier_and_later_ones_stand() {
    let machines = Machines::new();
    for _ in 0..200 {
        let mut carriers = machines.carriers();
        let (active, passive) = programs(&machines, (TCP, QP_RC));
        active.connect((A, B), &params(0x111, b""));
        carriers.settle_until(|| passive.has_event());
        passive.events();
        passive.accept(&params(0x222, b""));
        carriers.settle_until(|| active.has_event());
        active.establish();
        carriers.settle();
        assert_eq!(passive.events(), [(EventKind::Established, 0)]);
        drop(carriers);
        // One that dies before it has told the other machine, and one that does so.
        drop(machines.carriers());
        machines.carriers().settle();
        for program in [&active, &passive] {
            assert_eq!(program.events().last(), Some(&(EventKind::Disconnected, 0)));
            program.world.fabric.lock().cm_close(program.file);
        }
    }
    for world in [&machines.a, &machines.b] {
        assert_eq!(left(world), (0, 0));
        assert_eq!(world.fabric.lock().common().rdma_cm.files.live(), 1);
    }
}

/// A program that reads its events, and does what they ask for. Returns true if there were some.
fn react(program: &Program<'_>, seen: &mut Vec<EventKind>) -> bool {
    let events = program.events();
    let id = program.id.get();
    let locked = &mut program.world.fabric.lock();
    for (kind, _) in &events {
        // A call fails if the connection has ended.
        let _ = match kind {
            EventKind::ConnectRequest => {
                answer::accept(locked, id, 8, &params(0x222, b""), PATIENCE_NS)
            }
            EventKind::ConnectResponse => answer::establish(locked, id),
            EventKind::Disconnected => answer::disconnect(locked, id, PATIENCE_NS),
            _ => Ok(()),
        };
    }
    seen.extend(events.iter().map(|(kind, _)| kind));
    !events.is_empty()
}

/// Kills the carrier of either machine after each message of a connection, with the message lost or not, and once more
/// before it has told the other machine. No program waits for one that has gone.
#[test]
fn a_carrier_that_dies_at_any_message_leaves_no_program_waiting() {
    let mut told = 0;
    for (message, arrives, victim, deaths) in (0x10..=0x16)
        .flat_map(|message| [0, 1].map(|arrives| (message, arrives)))
        .flat_map(|(message, arrives)| [0, 1].map(|victim| (message, arrives, victim)))
        .flat_map(|(message, arrives, victim)| [1, 2].map(|n| (message, arrives, victim, n)))
    {
        let place = format!("{message:#x}, {arrives} arrives, {deaths} deaths of {victim}");
        let machines = Machines::new();
        let mut carriers = machines.carriers();
        let over = Rc::new(Cell::new(false));
        let note = Rc::clone(&over);
        carriers.copies = Some(Box::new(move |packet| {
            // Nothing passes between the message and the death.
            let copies = match (note.get(), attribute(packet) == Some(message)) {
                (true, _) => 0,
                (false, true) => arrives,
                (false, false) => 1,
            };
            note.set(note.get() || attribute(packet) == Some(message));
            copies
        }));
        let (active, passive) = programs(&machines, (TCP, QP_RC));
        let (mut near, mut far) = (Vec::new(), Vec::new());
        active.connect((A, B), &params(0x111, b""));
        for _ in 0..100 {
            carriers.settle_until(|| over.get() || active.has_event() || passive.has_event());
            if over.get() {
                break;
            }
            let both = [react(&active, &mut near), react(&passive, &mut far)];
            if both == [false; 2] && active.known().exchange == Exchange::Established {
                active.disconnect();
            }
        }
        carriers.copies = None;
        for _ in 0..deaths {
            let [a, b] = carriers.both;
            let again = |world: &'static str| panic!("{world}: the old one still carries");
            let [kept, world] = match victim {
                0 => {
                    drop(a);
                    [
                        b,
                        Join::new(&machines.a.fabric, PORT).unwrap_or_else(|| again("A")),
                    ]
                }
                _ => {
                    drop(b);
                    [
                        a,
                        Join::new(&machines.b.fabric, PORT).unwrap_or_else(|| again("B")),
                    ]
                }
            };
            carriers = Carriers::of(match victim {
                0 => [world, kept],
                _ => [kept, world],
            });
        }
        for round in 0.. {
            carriers.settle();
            crate::engine::rdma_cm::deliver_waiting(&mut machines.a.fabric.lock());
            if [react(&active, &mut near), react(&passive, &mut far)] == [false; 2] {
                break;
            }
            assert!(round < 20, "{place}: {near:?} {far:?}");
        }
        let stands = [&active, &passive].map(|own| own.known().exchange == Exchange::Established);
        assert_eq!(stands[0], stands[1], "{place}: {near:?} {far:?}");
        assert!(
            matches!(
                active.known().exchange,
                Exchange::Idle | Exchange::TimeWait | Exchange::Established
            ),
            "{place}: {near:?} {far:?}"
        );
        told += usize::from(far.contains(&EventKind::Disconnected));
        if !stands[0] {
            for program in [&active, &passive] {
                program.world.fabric.lock().cm_close(program.file);
            }
            carriers.settle();
            assert_eq!(
                (left(&machines.a), left(&machines.b)),
                ((0, 0), (0, 0)),
                "{place}"
            );
        }
    }
    assert!(told > 8, "{told}");
}

/// Without a carrier a request waits; a carrier that starts sends it.
#[test]
fn a_request_waits_for_a_carrier() {
    let machines = Machines::new();
    let (active, passive) = programs(&machines, (TCP, QP_RC));
    active.connect((A, B), &params(0x111, b""));
    assert_eq!(active.events(), []);
    let mut carriers = machines.carriers();
    crate::engine::rdma_cm::deliver_waiting(&mut machines.a.fabric.lock());
    carriers.settle_until(|| passive.has_event());
    assert_eq!(passive.events(), [(EventKind::ConnectRequest, 0)]);
}

/// Messages that no exchange expects, with any contents, and more requests than a machine serves: all are answered or
/// dropped, and the tables do not grow.
#[test]
fn strange_messages_are_bounded() {
    let machines = Machines::new();
    let carriers = machines.carriers();
    let [from, to] = [0, 1].map(|index: usize| {
        SocketAddr::new(carriers.both[index].addresses().next().unwrap(), PORT)
    });
    let (active, passive) = programs(&machines, (TCP, QP_RC));
    active.connect((A, B), &params(0x111, b""));
    let mut carriers = carriers;
    let request = Rc::new(RefCell::new(Vec::new()));
    let note = Rc::clone(&request);
    carriers.copies = Some(Box::new(move |packet| {
        if attribute(packet) == Some(0x10) {
            *note.borrow_mut() = packet[MESSAGE_AT..MESSAGE_AT + 256].to_vec();
        }
        1
    }));
    carriers.settle_until(|| passive.has_event());
    let [_, mut join] = carriers.both;
    let good = Datagram::decode(&request.borrow()).unwrap();
    let mut receive = |bytes: &[u8], qkey: u32| {
        let head = Head {
            service: Service::Datagram,
            body: Body::Datagram {
                imm: None,
                qkey,
                source: 1,
            },
            queue: management::QUEUE,
            psn: 0,
            pkey: 0xffff,
            solicited: false,
            ack: false,
        };
        let mut packet = Vec::new();
        Packet { head, data: bytes }.encode(&mut packet);
        let ends = Ends {
            from,
            to,
            identification: 0,
        };
        packet.extend(ends.icrc(&packet).unwrap());
        join.receive(5, (from, to), &packet);
        let mut answers = Vec::new();
        join.work(5, &mut |_, _, packet| answers.extend(attribute(packet)));
        (join.seen(), answers)
    };
    // Another key, and another length.
    let stray = receive(&good.encode(), 7).0;
    assert_eq!((stray.stray, stray.malformed), (1, 0));
    assert_eq!(receive(&[0; 255], management::QKEY).0.malformed, 1);
    // Answers to nothing. An end of an unknown connection is confirmed.
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut byte = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[5]
    };
    for round in 0..2_000_usize {
        let mut bytes = good.encode();
        bytes[17] = 0x11 + byte() % 8;
        let bits = if round % 2 == 0 { 24..256 } else { 32..48 };
        for at in bits {
            bytes[at] = byte();
        }
        let (_, answers) = receive(&bytes, management::QKEY);
        assert!(answers.len() <= 1, "{answers:?}");
    }
    // Requests for connections, of which the listener takes eight.
    let Message::Request(request) = good.message else {
        panic!("{good:?}");
    };
    for number in 0..5_000 {
        let message = Message::Request(management::Request {
            number,
            queue: number + 0x1000,
            ..request
        });
        let (_, answers) = receive(&Datagram { message, ..good }.encode(), management::QKEY);
        assert!(answers.len() <= 1, "{answers:?}");
    }
    let (ids, events) = left(&machines.b);
    assert!(ids <= 20 && events <= 10, "{ids} {events}");
}
