//! From messages of other machines to what happens to the programs of this machine.

use std::net::IpAddr;

use super::addresses::{Addresses, unpacked};
use super::{
    Conversation, DECISION_CODE, INTERVAL_CODES, Manager, Name, Other, RETRIES, State, Way,
    encoded, time_ns,
};
use crate::engine::rdma_cm::{REFUSAL_NS, Route, answer, deliver, get};
use crate::engine::wire::management::{
    Answered, Datagram, FOUND_DATA, Found, Lookup, Message, Numbers, REJECT_DATA, Reject, Reply,
    Request, Transport,
};
use crate::fabric::rdma_cm::{
    Awaits, CARRIER_UID, CmId, Exchange, Params, Port, Side, Stage, lookup, reason,
};
use crate::fabric::{Fabric, Locked, Place};
use crate::model::address::gid_of;
use crate::model::sockaddr::Family;
use crate::sys;

/// Types of queue pairs (`enum ib_qp_type`).
const QP_RC: u8 = 2;
const QP_UC: u8 = 3;
const QP_UD: u8 = 4;
/// Reasons of rejections (`enum ib_cm_rej_reason`).
const NO_RESOURCES: i32 = 3;
const INVALID_TRANSPORT: i32 = 9;
const STALE_CONNECTION: i32 = 10;

/// Where a message has arrived, and the way back.
type At = (Place, Way);

impl Manager {
    /// Takes a message. Returns false if it is for nobody.
    pub(in super::super) fn arrive(
        &mut self,
        locked: &mut Locked<'_>,
        now_ns: u64,
        at: At,
        datagram: &Datagram,
    ) -> bool {
        // What programs have done before it comes first.
        self.attend(locked, now_ns);
        let Datagram {
            transaction,
            message,
        } = datagram;
        let known = match message {
            Message::Request(request) => {
                self.requested(locked, now_ns, (at, *transaction), request);
                true
            }
            Message::Lookup(lookup) => {
                self.looked_up(locked, now_ns, (at, *transaction), lookup);
                true
            }
            Message::Reply(reply) => self.replied(locked, at, reply),
            Message::Found(found) => self.service_found(locked, now_ns, at, found),
            Message::Ready(numbers) => self.ready(locked, at, *numbers),
            Message::Wait {
                numbers,
                answered,
                timeout,
            } => self.must_wait(locked, now_ns, at, (*numbers, *answered, *timeout)),
            Message::Reject(reject) => self.refused(locked, now_ns, at, reject),
            Message::Disconnect { numbers, queue } => {
                self.disconnect(locked, now_ns, (at, *transaction), (*numbers, *queue))
            }
            Message::Disconnected(numbers) => self.disconnected(locked, now_ns, at, *numbers),
        };
        // The changes of identifiers are answered at once.
        self.attend(locked, now_ns);
        known
    }

    /// The exchange that a message names by this side's number.
    fn named(&self, (_, way): At, number: u32) -> Option<&Conversation> {
        let own = self.conversations.get(&number)?;
        (own.way.1 == way.1).then_some(own)
    }

    /// The same, if the other side's number is that of the exchange.
    fn matched(&self, at: At, numbers: Numbers) -> Option<&Conversation> {
        let own = self.named(at, numbers.other)?;
        (own.other.number == numbers.own).then_some(own)
    }

    /// The last answer to an exchange that has ended; `Some(None)` if a connection stood.
    fn remembered(&self, name: Name) -> Option<Option<Box<[u8; 256]>>> {
        let found = self.remembered.iter().rev().find(|one| one.name == name);
        found.map(|one| one.answer.clone())
    }

    /// Rejects a request without an exchange.
    fn turn_away(&mut self, (at, transaction): (At, u64), number: u32, reason: i32) {
        let message = Message::Reject(Reject {
            numbers: Numbers {
                own: 0,
                other: number,
            },
            answered: Answered::Request,
            reason: u16::try_from(reason).unwrap_or(0),
            guid: None,
            data: [0; REJECT_DATA],
        });
        self.post(at, encoded(transaction, message));
    }

    fn requested(
        &mut self,
        locked: &mut Locked<'_>,
        now_ns: u64,
        (at, transaction): (At, u64),
        request: &Request,
    ) {
        let (place, way) = at;
        let name = Name {
            from: way.1,
            guid: Some(request.guid),
            number: request.number,
        };
        if let Some(number) = self
            .asked
            .get(&(name.from, name.guid, name.number))
            .copied()
        {
            self.requested_again(locked, number);
            return;
        }
        match self.remembered(name) {
            Some(Some(answer)) => return self.post(at, answer),
            Some(None) => {
                return self.turn_away((at, transaction), request.number, STALE_CONNECTION);
            }
            None => {}
        }
        let other = Other {
            number: request.number,
            guid: request.guid,
            queue: request.queue,
        };
        if self.end_stale(locked, now_ns, at, other) {
            self.turn_away((at, transaction), request.number, STALE_CONNECTION);
            return;
        }
        let gids = (&request.path.sgid, &request.path.dgid);
        let qp_type = match request.transport {
            Transport::Reliable => Ok(QP_RC),
            Transport::Unreliable => Ok(QP_UC),
            Transport::Extended | Transport::Other(_) => Err(INVALID_TRANSPORT),
        };
        let asked = qp_type.and_then(|qp_type| {
            unpacked(&request.data, request.service, gids)
                .filter(|(addresses, _)| are_here(locked.fabric(), at, addresses))
                .map(|(addresses, private)| (qp_type, addresses, private))
                .ok_or(reason::CONSUMER)
        });
        let (qp_type, addresses, private) = match asked {
            Ok(asked) => asked,
            Err(reason) => return self.turn_away((at, transaction), request.number, reason),
        };
        let params = Params {
            qp_num: request.queue,
            srq: request.srq.into(),
            responder_resources: request.responder_resources,
            initiator_depth: request.initiator_depth,
            flow_control: request.flow_control.into(),
            retry_count: request.retry_count,
            rnr_retry_count: request.rnr_retry_count,
            ece: request.ece,
            ..with_private(private)
        };
        let new = CmId {
            here: Side {
                qp_num: request.queue,
                psn: request.psn,
            },
            responder_resources: params.responder_resources,
            initiator_depth: params.initiator_depth,
            retry_count: params.retry_count,
            rnr_retry_count: params.rnr_retry_count,
            exchange: Exchange::RequestSent,
            ..asking(
                locked.fabric(),
                (qp_type, request.service),
                &addresses,
                params,
            )
        };
        let code = request
            .local_timeout
            .clamp(*INTERVAL_CODES.start(), *INTERVAL_CODES.end());
        let conversation = Conversation {
            state: State::RequestReceived,
            transaction,
            other,
            interval_ns: time_ns(code),
            retries: request.message_retries,
            ..conversation((place, way), request.service)
        };
        let Some(number) = self.accept_request(locked, now_ns, name, (new, conversation)) else {
            self.turn_away((at, transaction), request.number, NO_RESOURCES);
            return;
        };
        self.agree_on_mtu(locked, number, request.mtu);
    }

    /// Adds an exchange that another machine has begun, and looks for its listener. None if there is no room.
    fn accept_request(
        &mut self,
        locked: &mut Locked<'_>,
        now_ns: u64,
        name: Name,
        (new, conversation): (CmId, Conversation),
    ) -> Option<u32> {
        if !self.has_room(name.from) {
            return None;
        }
        let id = locked.cm_insert_carried(new)?;
        let number = self.insert(Conversation { id, ..conversation }, Some(name));
        self.note(locked, number);
        self.set_due(number, Some(now_ns.saturating_add(REFUSAL_NS)));
        deliver(locked, id);
        if get(locked, id).is_ok_and(|own| own.awaits != Awaits::Delivery) {
            self.set_due(number, None);
        }
        Some(number)
    }

    /// The program's queue pair has packets of the size that the request names.
    fn agree_on_mtu(&self, locked: &mut Locked<'_>, number: u32, mtu: u8) {
        let fabric = locked.fabric();
        let Some(id) = self.conversations.get(&number).map(|own| own.id) else {
            return;
        };
        if let Some(peer) = locked.cm_peer(id)
            && let Ok(new) = get(locked, peer)
            && let Some(route) = Route::of(fabric, new)
            && route.mtu != mtu
        {
            new.path = Route { mtu, ..route }.words();
            new.has_path = true;
        }
    }

    /// A request that is known: the program decides still, or the answer is on its way.
    fn requested_again(&mut self, locked: &mut Locked<'_>, number: u32) {
        let Some(own) = self.conversations.get(&number) else {
            return;
        };
        let (id, state) = (own.id, own.state);
        let numbers = Numbers {
            own: number,
            other: own.other.number,
        };
        if state == State::RequestReceived && locked.cm_peer(id).is_some() {
            let message = Message::Wait {
                numbers,
                answered: Answered::Request,
                timeout: DECISION_CODE,
            };
            self.tell(number, message);
        }
    }

    /// Ends a connection of which the other side no longer knows: its queue pair asks for another one. Returns whether there
    /// was one.
    fn end_stale(&mut self, locked: &mut Locked<'_>, now_ns: u64, at: At, other: Other) -> bool {
        let stale = self.conversations.iter().find(|(_, own)| {
            (own.other.guid, own.other.queue) == (other.guid, other.queue)
                && own.way.1 == at.1.1
                && matches!(own.state, State::Established | State::ReplySent)
        });
        let Some((number, id)) = stale.map(|(number, own)| (*number, own.id)) else {
            return false;
        };
        answer::peer_ended(locked, id);
        self.end(locked, now_ns, number, None);
        true
    }

    fn looked_up(
        &mut self,
        locked: &mut Locked<'_>,
        now_ns: u64,
        (at, transaction): (At, u64),
        asked: &Lookup,
    ) {
        let (place, way) = at;
        let name = Name {
            from: way.1,
            guid: None,
            number: asked.number,
        };
        if self.asked.contains_key(&(name.from, None, name.number)) {
            return;
        }
        if let Some(Some(answer)) = self.remembered(name) {
            return self.post(at, answer);
        }
        let gids = (&gid_of(way.1), &gid_of(way.0));
        let found = unpacked(&asked.data, asked.service, gids)
            .filter(|(addresses, _)| are_here(locked.fabric(), at, addresses));
        let added = found.and_then(|(addresses, private)| {
            let kind = (QP_UD, asked.service);
            let new = CmId {
                exchange: Exchange::LookupSent,
                ..asking(locked.fabric(), kind, &addresses, with_private(private))
            };
            let conversation = Conversation {
                state: State::LookupReceived,
                transaction,
                other: Other {
                    number: asked.number,
                    ..Other::default()
                },
                interval_ns: 0,
                retries: 0,
                ..conversation((place, way), asked.service)
            };
            self.accept_request(locked, now_ns, name, (new, conversation))
        });
        if added.is_none() {
            let message = Message::Found(Found {
                number: asked.number,
                status: u8::try_from(lookup::REJECTED).unwrap_or(2),
                queue: 0,
                service: asked.service,
                qkey: 0,
                data: [0; FOUND_DATA],
            });
            self.post(at, encoded(transaction, message));
        }
    }

    fn replied(&mut self, locked: &mut Locked<'_>, at: At, reply: &Reply) -> bool {
        let number = reply.numbers.other;
        let Some(own) = self.named(at, number) else {
            return false;
        };
        let (id, state) = (own.id, own.state);
        let numbers = Numbers {
            own: number,
            other: reply.numbers.own,
        };
        match state {
            State::RequestSent => {}
            State::Established if own.other.number == reply.numbers.own => {
                self.tell(number, Message::Ready(numbers));
                return true;
            }
            State::ReplyReceived if own.other.number == reply.numbers.own => {
                let message = Message::Wait {
                    numbers,
                    answered: Answered::Reply,
                    timeout: DECISION_CODE,
                };
                self.tell(number, message);
                return true;
            }
            _ => return true,
        }
        self.answered(number, State::ReplyReceived);
        if let Some(own) = self.conversations.get_mut(&number) {
            own.other = Other {
                number: reply.numbers.own,
                guid: reply.guid,
                queue: reply.queue,
            };
        }
        self.note(locked, number);
        if let Ok(known) = get(locked, id) {
            known.here.psn = reply.psn;
        }
        let params = Params {
            qp_num: reply.queue,
            srq: reply.srq.into(),
            responder_resources: reply.responder_resources,
            initiator_depth: reply.initiator_depth,
            flow_control: reply.flow_control.into(),
            rnr_retry_count: reply.rnr_retry_count,
            ece: reply.ece,
            ..with_private(&reply.data)
        };
        // If the program has given up, the identifier gets a rejection, which becomes a message.
        let _ = answer::accept(locked, id, CARRIER_UID, &params, u64::MAX);
        true
    }

    fn service_found(
        &mut self,
        locked: &mut Locked<'_>,
        now_ns: u64,
        at: At,
        found: &Found,
    ) -> bool {
        let own = self.named(at, found.number);
        let Some(id) = own
            .filter(|own| own.state == State::LookupSent)
            .map(|own| own.id)
        else {
            return false;
        };
        if found.status == 0 {
            let params = Params {
                qp_num: found.queue,
                qkey: found.qkey,
                ..with_private(&found.data)
            };
            let _ = answer::accept(locked, id, CARRIER_UID, &params, u64::MAX);
        } else if let Some(peer) = locked.cm_peer(id)
            && get(locked, peer).is_ok_and(|own| own.exchange == Exchange::LookupSent)
        {
            locked.cm_unreachable(peer, found.status.into());
        }
        self.end(locked, now_ns, found.number, None);
        true
    }

    fn ready(&mut self, locked: &mut Locked<'_>, at: At, numbers: Numbers) -> bool {
        let Some(own) = self.matched(at, numbers) else {
            return false;
        };
        let id = own.id;
        if own.state == State::ReplySent {
            self.answered(numbers.other, State::Established);
            let _ = answer::establish(locked, id);
        }
        true
    }

    fn must_wait(
        &mut self,
        locked: &mut Locked<'_>,
        now_ns: u64,
        at: At,
        (numbers, answered, timeout): (Numbers, Answered, u8),
    ) -> bool {
        let known = match answered {
            Answered::Request => self.named(at, numbers.other),
            _ => self.matched(at, numbers),
        };
        let Some(own) = known else { return false };
        let expected = match own.state {
            State::RequestSent => Answered::Request,
            State::ReplySent => Answered::Reply,
            _ => return true,
        };
        if answered != expected || own.was_patient {
            return true;
        }
        let id = own.id;
        let more_ns = time_ns(timeout.min(DECISION_CODE)).saturating_add(own.interval_ns);
        if let Some(own) = self.conversations.get_mut(&numbers.other) {
            own.was_patient = true;
        }
        self.set_due(numbers.other, Some(now_ns.saturating_add(more_ns)));
        if let Some(peer) = locked.cm_peer(id)
            && let Ok(program) = get(locked, peer)
            && program.awaits == Awaits::Answer
        {
            program.deadline_ns = program.deadline_ns.saturating_add(more_ns);
        }
        true
    }

    fn refused(&mut self, locked: &mut Locked<'_>, now_ns: u64, at: At, reject: &Reject) -> bool {
        let numbers = reject.numbers;
        let number = match (reject.guid, reject.answered) {
            // The requester has given up, and may not know this side's number.
            (Some(guid), _) if i32::from(reject.reason) == reason::TIMEOUT => {
                let key = (at.1.1, Some(guid), numbers.own);
                self.asked.get(&key).copied()
            }
            (_, Answered::Request) => self.named(at, numbers.other).map(|_| numbers.other),
            _ => self.matched(at, numbers).map(|_| numbers.other),
        };
        let Some(number) = number else { return false };
        let Some(own) = self.conversations.get(&number) else {
            return false;
        };
        let (id, state) = (own.id, own.state);
        let params = with_private(&reject.data);
        match state {
            State::RequestSent
            | State::RequestReceived
            | State::ReplySent
            | State::ReplyReceived => {
                let _ = answer::reject(locked, id, reject.reason.into(), &params);
            }
            State::Established => {
                if let Some(peer) = locked.cm_peer(id) {
                    locked.cm_rejected(peer, reject.reason.into(), &params);
                    locked.cm_rest(peer);
                }
            }
            State::DisconnectSent | State::DisconnectReceived => answer::peer_ended(locked, id),
            State::LookupSent | State::LookupReceived => return false,
        }
        self.end(locked, now_ns, number, None);
        true
    }

    fn disconnect(
        &mut self,
        locked: &mut Locked<'_>,
        now_ns: u64,
        (at, transaction): (At, u64),
        (numbers, queue): (Numbers, u32),
    ) -> bool {
        let swapped = Numbers {
            own: numbers.other,
            other: numbers.own,
        };
        let Some(own) = self.matched(at, numbers) else {
            // It has ended already, and the answer was lost.
            self.post(at, encoded(transaction, Message::Disconnected(swapped)));
            return true;
        };
        let (id, state, number) = (own.id, own.state, numbers.other);
        if own.queue != queue {
            return false;
        }
        match state {
            State::Established | State::ReplySent => {
                if state == State::ReplySent {
                    // The confirmation was lost.
                    let both = [Some(id), locked.cm_peer(id)];
                    for known in both.into_iter().flatten() {
                        if let Ok(known) = get(locked, known) {
                            known.exchange = Exchange::Established;
                            known.awaits = Awaits::Nothing;
                        }
                    }
                }
                self.answered(number, State::DisconnectReceived);
                if let Some(own) = self.conversations.get_mut(&number) {
                    own.transaction = transaction;
                }
                let _ = answer::disconnect(locked, id, u64::MAX);
            }
            State::DisconnectSent => {
                // Both have asked at the same time.
                self.post(at, encoded(transaction, Message::Disconnected(swapped)));
                answer::peer_ended(locked, id);
                self.end(locked, now_ns, number, None);
            }
            State::ReplyReceived => {
                // The process that has accepted for the other side is gone, and the program has not read the reply.
                let _ = answer::reject(locked, id, STALE_CONNECTION, &Params::default());
                self.post(at, encoded(transaction, Message::Disconnected(swapped)));
                self.end(locked, now_ns, number, None);
            }
            _ => {}
        }
        true
    }

    fn disconnected(
        &mut self,
        locked: &mut Locked<'_>,
        now_ns: u64,
        at: At,
        numbers: Numbers,
    ) -> bool {
        let Some(own) = self.matched(at, numbers) else {
            return false;
        };
        let id = own.id;
        if own.state == State::DisconnectSent {
            answer::peer_ended(locked, id);
            self.end(locked, now_ns, numbers.other, None);
        }
        true
    }
}

fn with_private(private: &[u8]) -> Params {
    let mut params = Params::default();
    for (to, from) in params.data.iter_mut().zip(private) {
        *to = *from;
    }
    params.data_len = u8::try_from(private.len()).unwrap_or(0);
    params
}

fn conversation((place, way): At, service: u64) -> Conversation {
    Conversation {
        id: 0,
        place,
        way,
        state: State::RequestReceived,
        transaction: 0,
        other: Other::default(),
        service,
        queue: 0,
        interval_ns: 0,
        retries: RETRIES,
        unanswered: None,
        was_patient: false,
        due_ns: None,
    }
}

/// True if a request has come to the port that it names, from the port of another machine that it names.
fn are_here(fabric: &Fabric, (place, way): At, addresses: &Addresses) -> bool {
    let at = |address| fabric.cm_port(address).and_then(Port::place);
    let from: Option<Place> = at(&addresses.source);
    let sender = |from: IpAddr| fabric.port_of_roce(&gid_of(from));
    at(&addresses.target) == Some(place)
        && from.is_some_and(|from| fabric.is_remote(from.function))
        && from == sender(way.1)
}

/// The identifier of a requester on another machine.
fn asking(
    fabric: &Fabric,
    (qp_type, service): (u8, u64),
    addresses: &Addresses,
    request: Params,
) -> CmId {
    let [.., space_high, space_low, _, _] = service.to_be_bytes();
    let port = |address| fabric.cm_port(address).unwrap_or_default();
    let is_port = service >> 32 == 0 || addresses.target.family() == Some(Family::Ib);
    CmId {
        // A service that is no port of a port space has no listener.
        port_space: match is_port {
            true => u16::from_be_bytes([space_high, space_low]),
            false => 0,
        },
        qp_type,
        stage: Stage::Connect,
        awaits: Awaits::Delivery,
        deadline_ns: u64::MAX,
        refused_at_ns: sys::now_ns().saturating_add(REFUSAL_NS),
        source: addresses.source,
        target: addresses.target,
        local: port(&addresses.source),
        remote: port(&addresses.target),
        request,
        ..CmId::default()
    }
}
