//! Connections to other machines: one process of each machine carries the requests of its queue pairs in packets of RoCE
//! v2, and executes those that arrive. Its caller owns the sockets and the clock.
//!
//! A doorbell only hands the queue pair over (`engine/carried.rs`). The process reads the posted entries, keeps them until they are acknowledged, and completes them in order. If it dies, the requests fail
//! like those to a peer that does not answer.

mod datagrams;
pub mod disturbance;
mod incoming;
mod manager;
mod network;
mod outgoing;

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};

use mlx5_prm::qp::{service, state};

use super::carried::{Key, is_carried, mtu_of, poster_of, running, watch};
use super::notice;
use super::partition;
use super::peer::Poster;
use super::receive::Entry;
use super::step;
use super::wire::icrc::Ends;
use super::wire::management::{self, Datagram};
use super::wire::packet::{Body, Packet, Service};
use super::wire::responder::{self, Responder};
use super::wire::unreliable::Listener;
use crate::fabric::counters::PortCounter;
use crate::fabric::objects::SERVICE_XRC_TARGET;
use crate::fabric::remote::Carrying;
use crate::fabric::{Fabric, Locked, Place, QPN_BASE};
use crate::model::address::{GidType, gid_of};
use crate::sys;
use incoming::Landing;
use manager::Manager;
use network::{Outlet, PASSED_IN, SendTo, address_of, count, is_up};
use outgoing::Outgoing;

/// Answers of one connection that are sent before others have their turn.
const ANSWERS_PER_TURN: usize = 64;
/// Time between two looks for connections whose queue pair no longer exists, and for programs that no longer run.
const SWEEP_NS: u64 = 1_000_000_000;
const SWEEP_PROGRAMS_NS: u64 = 100_000_000;

/// A connection to another machine.
#[derive(Debug)]
struct Connection {
    /// The queue pair has this number as long as it is connected.
    number: u64,
    place: Place,
    from: IpAddr,
    to: IpAddr,
    pkey: u16,
    outgoing: Outgoing,
    receiving: Receiving,
    /// The receive entry of the message that is arriving.
    entry: Option<Entry>,
}

/// The receiving side of a connection.
#[derive(Debug)]
enum Receiving {
    Reliable(Responder),
    Unreliable(Listener),
}

/// What the process has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Datagrams with a wrong checksum.
    pub wrong_checksum: u64,
    /// Datagrams that are no packet of a reliable connection.
    pub malformed: u64,
    /// Packets to queue pairs that are not connected to their sender.
    pub stray: u64,
}

/// The process that carries requests to other machines.
#[derive(Debug)]
pub struct Join<'f> {
    fabric: &'f Fabric,
    /// UDP port of all packets.
    port: u16,
    carrying: Carrying<'f>,
    issued: u32,
    connections: HashMap<Key, Connection>,
    /// Connections that may have something to send or to complete.
    touched: BTreeSet<Key>,
    sweep_at_ns: u64,
    sweep_programs_at_ns: u64,
    manager: Manager,
    seen: Seen,
    data: Vec<u8>,
    packet: Vec<u8>,
}

impl<'f> Join<'f> {
    /// Carries the requests of this device, with this UDP port. None if another process does so.
    #[must_use]
    pub fn new(fabric: &'f Fabric, port: u16) -> Option<Self> {
        let carrying = fabric.carry()?;
        Some(Self {
            fabric,
            port,
            manager: Manager::new(fabric, carrying.epoch, sys::now_ns()),
            carrying,
            issued: 0,
            connections: HashMap::new(),
            touched: BTreeSet::new(),
            sweep_at_ns: 0,
            sweep_programs_at_ns: 0,
            seen: Seen::default(),
            data: Vec::new(),
            packet: Vec::new(),
        })
    }

    /// The addresses at which packets for this machine arrive: those of its Ethernet ports.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        let functions = self.fabric.identities().iter();
        let own = functions.filter(|own| !own.is_remote);
        own.flat_map(|own| own.ports().map(move |port| (own, port)))
            .filter(|(own, port)| own.link(*port).is_ethernet())
            .flat_map(|(own, port)| own.addresses(port))
            .map(address_of)
    }

    /// What the process has seen.
    #[must_use]
    pub fn seen(&self) -> Seen {
        self.seen
    }

    /// Takes a datagram that has arrived at one of the addresses.
    pub fn receive(&mut self, now_ns: u64, (from, to): (SocketAddr, SocketAddr), datagram: &[u8]) {
        let ends = Ends {
            from,
            to,
            identification: 0,
        };
        let Some(packet) = ends.checked(datagram) else {
            self.seen.wrong_checksum += 1;
            return;
        };
        let Ok(packet) = Packet::decode(packet) else {
            self.seen.malformed += 1;
            return;
        };
        if self.deliver(now_ns, (from, to), &packet).is_none() {
            self.seen.stray += 1;
        }
    }

    fn deliver(
        &mut self,
        now_ns: u64,
        (from, to): (SocketAddr, SocketAddr),
        packet: &Packet<'_>,
    ) -> Option<()> {
        let place = self.fabric.port_of_roce(&gid_of(to.ip()))?;
        if self.fabric.is_remote(place.function) || !is_up(self.fabric, place) {
            return None;
        }
        if packet.head.queue == management::QUEUE {
            return self.manage(now_ns, (place, (to.ip(), from.ip())), packet);
        }
        let slot = packet.head.queue.checked_sub(QPN_BASE)?;
        let key = (place.function, slot);
        let locked = &mut lock(self.fabric, place.function);
        if let Body::Datagram { .. } = packet.head.body {
            return datagrams::arrive(locked, (place, slot), (from.ip(), to.ip()), packet);
        }
        let poster = self.connect(locked, key)?;
        let connection = self.connections.get_mut(&key)?;
        if connection.place != place || connection.to != from.ip() {
            return None;
        }
        let counters = self.fabric.counters(place.function);
        let counted = (connection.from, packet.data.len());
        count(self.fabric, place, counted, PASSED_IN);
        if !speaks(poster.qp.service, packet) {
            return None;
        }
        if !partition::are_same(connection.pkey, packet.head.pkey) {
            counters.count_port(place.port, PortCounter::BadPkey);
            return None;
        }
        notice::established(locked, poster.end(), poster.qpn);
        match packet.head.body {
            Body::ReadResponse { .. } | Body::Ack(_) | Body::AtomicAck { .. } => {
                let requester = connection.outgoing.requester.as_mut()?;
                let memory = &mut outgoing::Own {
                    locked,
                    side: poster.side(),
                };
                requester.receive(now_ns, &packet.head, packet.data, memory);
                network::count_of(counters, place.port, requester.take_counts());
            }
            Body::Datagram { .. } => return None,
            Body::Send { .. }
            | Body::Write { .. }
            | Body::ReadRequest { .. }
            | Body::Atomic { .. } => {
                let landing = &mut Landing {
                    locked,
                    peer: poster,
                    entry: &mut connection.entry,
                };
                let (head, data) = (&packet.head, packet.data);
                match &mut connection.receiving {
                    Receiving::Reliable(responder) => {
                        let before = (responder.repeated(), responder.missing());
                        responder.receive(head, data, landing);
                        let again = responder.repeated() - before.0;
                        counters.add_port(place.port, PortCounter::DuplicateRequest, again);
                        let missing = responder.missing() - before.1;
                        counters.add_port(place.port, PortCounter::OutOfSequence, missing);
                    }
                    Receiving::Unreliable(listener) => {
                        let before = listener.missing();
                        listener.receive(head, data, landing);
                        let missing = listener.missing() - before;
                        counters.add_port(place.port, PortCounter::OutOfSequence, missing);
                    }
                }
            }
        }
        self.touched.insert(key);
        Some(())
    }

    /// Takes a message of the connection manager.
    fn manage(
        &mut self,
        now_ns: u64,
        (place, way): (Place, (IpAddr, IpAddr)),
        packet: &Packet<'_>,
    ) -> Option<()> {
        let Body::Datagram { qkey, .. } = packet.head.body else {
            return None;
        };
        let fabric = self.fabric;
        let counters = fabric.counters(place.function);
        count(fabric, place, (way.1, packet.data.len()), PASSED_IN);
        if !partition::are_same(pkey_of(fabric, place), packet.head.pkey) {
            counters.count_port(place.port, PortCounter::BadPkey);
            return None;
        }
        if qkey != management::QKEY {
            counters.count_port(place.port, PortCounter::QkeyViolations);
            return None;
        }
        let Ok(message) = Datagram::decode(packet.data) else {
            self.seen.malformed += 1;
            return Some(());
        };
        let locked = &mut fabric.lock();
        let known = self.manager.arrive(locked, now_ns, (place, way), &message);
        known.then_some(())
    }

    /// Exchanges messages of the connection manager.
    fn manage_own(&mut self, now_ns: u64, send: &mut SendTo<'_>) {
        let is_due = self.manager.due_ns().is_some_and(|due| due <= now_ns);
        if self.fabric.is_carrier_told() || is_due {
            let locked = &mut self.fabric.lock();
            self.manager.attend(locked, now_ns);
            self.manager.expire(locked, now_ns);
        }
        let fabric = self.fabric;
        let mut outlet = Outlet::new(fabric, (self.port, &mut self.packet), send);
        let pkey = |place| pkey_of(fabric, place);
        self.manager.send(&mut outlet, pkey);
    }

    /// Takes new requests, repeats what is lost, and calls `send` for each packet: its source address, its destination and
    /// its bytes. Returns the time of the next call, if it depends on nothing else.
    pub fn work(&mut self, now_ns: u64, send: &mut SendTo<'_>) -> Option<u64> {
        self.manage_own(now_ns, send);
        for (function, _) in self.own_functions() {
            let touched = &mut self.touched;
            self.fabric.handed_over(function, |slot| {
                touched.insert((function, slot));
            });
        }
        for (key, connection) in &mut self.connections {
            if let Some(requester) = &mut connection.outgoing.requester
                && requester.deadline_ns().is_some_and(|due| due <= now_ns)
            {
                requester.expire(now_ns);
                let counters = self.fabric.counters(key.0);
                network::count_of(counters, connection.place.port, requester.take_counts());
                self.touched.insert(*key);
            }
        }
        for key in std::mem::take(&mut self.touched) {
            self.attend(now_ns, key, send);
        }
        if now_ns >= self.sweep_at_ns {
            self.sweep_at_ns = now_ns.saturating_add(SWEEP_NS);
            self.sweep();
        }
        if now_ns >= self.sweep_programs_at_ns && self.manager.is_busy() {
            // Other machines learn of the death of programs.
            self.sweep_programs_at_ns = now_ns.saturating_add(SWEEP_PROGRAMS_NS);
            self.fabric.lock().sweep();
            self.manage_own(now_ns, send);
        }
        if !self.touched.is_empty() {
            return Some(now_ns);
        }
        let requesters = self
            .connections
            .values()
            .filter_map(|one| one.outgoing.requester.as_ref());
        let repeated = requesters.filter_map(|own| own.deadline_ns());
        repeated.chain(self.manager.due_ns()).min()
    }

    fn own_functions(
        &self,
    ) -> impl Iterator<Item = (usize, &'f crate::fabric::Identity)> + use<'f> {
        let functions = self.fabric.identities().iter().enumerate();
        functions.filter(|(_, own)| !own.is_remote)
    }

    /// Sends and completes what a connection has.
    fn attend(&mut self, now_ns: u64, key: Key, send: &mut SendTo<'_>) {
        let (function, slot) = key;
        let locked = &mut lock(self.fabric, function);
        let qp = locked.peek(function).qps.get(slot);
        if qp.is_some_and(|qp| qp.service == service::UD) {
            let mut outlet = Outlet::new(self.fabric, (self.port, &mut self.packet), send);
            if datagrams::leave(locked, key, &mut self.data, &mut outlet) {
                self.touched.insert(key);
            }
            return;
        }
        // A queue pair that has refused a request is in the error state. Its answer is sent first.
        self.answer(locked, key, send);
        let Some(mut poster) = self.connect(locked, key) else {
            self.connections.remove(&key);
            abandon(locked, function, slot);
            return;
        };
        let Some(connection) = self.connections.get_mut(&key) else {
            return;
        };
        let mut outlet = Outlet::new(self.fabric, (self.port, &mut self.packet), send);
        loop {
            if !connection.outgoing.admit(locked, &poster) {
                break;
            }
            let Some(requester) = &mut connection.outgoing.requester else {
                return;
            };
            let memory = &mut outgoing::Own {
                locked,
                side: poster.side(),
            };
            while let Some(head) = requester.transmit(now_ns, memory, &mut self.data) {
                let packet = Packet {
                    head,
                    data: &self.data,
                };
                outlet.send(connection.place, (connection.from, connection.to), &packet);
            }
            if !connection.outgoing.complete(locked, &poster) {
                break;
            }
            // The completions have changed the queue pair.
            match running(locked, key) {
                Some(changed) => poster = changed,
                None => break,
            }
        }
        if running(locked, key).is_none() {
            self.connections.remove(&key);
        } else if connection
            .outgoing
            .requester
            .as_ref()
            .is_some_and(|own| !own.is_idle())
        {
            watch(locked, function, slot);
        } else if poster.qp.state == state::SQD {
            notice::drained(locked, function, poster.qpn);
        }
    }

    /// Sends the answers of a connection.
    fn answer(&mut self, locked: &mut Locked<'_>, key: Key, send: &mut SendTo<'_>) {
        let (function, slot) = key;
        let Some(connection) = self.connections.get_mut(&key) else {
            return;
        };
        let Some(qp) = locked.peek(function).qps.get(slot) else {
            return;
        };
        let landing = &mut Landing {
            peer: poster_of(function, slot, qp),
            locked,
            entry: &mut connection.entry,
        };
        let mut outlet = Outlet::new(self.fabric, (self.port, &mut self.packet), send);
        let Receiving::Reliable(responder) = &mut connection.receiving else {
            return;
        };
        for _ in 0..ANSWERS_PER_TURN {
            let Some(head) = responder.transmit(landing, &mut self.data) else {
                return;
            };
            let packet = Packet {
                head,
                data: &self.data,
            };
            outlet.send(connection.place, (connection.from, connection.to), &packet);
        }
        self.touched.insert(key);
    }

    /// The queue pair of a connection, which is made if it does not exist. None if the queue pair is not connected to another
    /// machine, or was so by another process.
    fn connect(&mut self, locked: &mut Locked<'_>, key: Key) -> Option<Poster> {
        let poster = running(locked, key)?;
        let qp = &poster.qp;
        if qp.carried != 0 {
            let known = self.connections.get(&key);
            return (known?.number == qp.carried).then_some(poster);
        }
        let place = poster.place();
        let own = self.fabric.gid_entry(place, qp.path.sgid_index)?;
        if own.kind != GidType::RoceV2 || !is_carried(self.fabric, qp) {
            return None;
        }
        let identity = self.fabric.identity(place.function)?;
        self.issued = self.issued.wrapping_add(1);
        let number = u64::from(self.carrying.epoch) << 32 | u64::from(self.issued);
        let pkey = identity.pkey(place.port, qp.path.pkey_index);
        let mtu = mtu_of(self.fabric, place, qp);
        let receiving = match qp.service {
            service::UC => Receiving::Unreliable(Listener::new(mtu)),
            other => Receiving::Reliable(Responder::new(responder::Settings {
                queue: qp.remote_qpn,
                pkey,
                mtu,
                first_psn: qp.path.rq_psn,
                is_extended: other == SERVICE_XRC_TARGET,
                reads: qp.path.max_dest_rd_atomic,
            })),
        };
        let connection = Connection {
            number,
            place,
            from: address_of(&own.gid),
            to: address_of(&qp.path.dgid),
            pkey,
            outgoing: Outgoing::new(qp.sq_done, (pkey, mtu)),
            receiving,
            entry: None,
        };
        self.connections.insert(key, connection);
        let qp = locked.function(key.0).qps.get_mut(key.1)?;
        qp.carried = number;
        running(locked, key)
    }

    /// Forgets connections whose queue pair is no longer connected.
    fn sweep(&mut self) {
        let fabric = self.fabric;
        self.connections.retain(|key, connection| {
            let locked = lock(fabric, key.0);
            let poster = running(&locked, *key);
            poster.is_some_and(|poster| poster.qp.carried == connection.number)
        });
    }
}

/// True for a packet that a queue pair of this service may get: of its service, and a request or an answer as its side
/// permits.
fn speaks(own: u8, packet: &Packet<'_>) -> bool {
    let is_request = packet.head.body.is_request();
    match packet.head.service {
        Service::Reliable => own == service::RC,
        Service::Unreliable => own == service::UC,
        Service::Extended { .. } if is_request => own == SERVICE_XRC_TARGET,
        Service::Extended { .. } => own == service::XRC,
        Service::Datagram => false,
    }
}

/// The partition of a port's messages of the connection manager.
fn pkey_of(fabric: &Fabric, place: Place) -> u16 {
    let identity = fabric.identity(place.function);
    identity.map_or(0, |own| own.pkey(place.port, 0))
}

/// Takes the locks for a request of a function: all of them while rules of faults or congestion control apply.
fn lock(fabric: &Fabric, function: usize) -> Locked<'_> {
    match fabric.has_faults() || fabric.has_control() {
        true => fabric.lock(),
        false => fabric.lock_function(function),
    }
}

/// Fails the oldest request of a queue pair that this process cannot carry: it was connected by a process that has died, or
/// not by RoCE v2.
fn abandon(locked: &mut Locked<'_>, function: usize, slot: u32) {
    let fabric = locked.fabric();
    let Some(poster) = running(locked, (function, slot)) else {
        return;
    };
    if is_carried(fabric, &poster.qp) {
        step::give_up_at_once(locked, &poster);
    }
}
