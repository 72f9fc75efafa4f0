//! From what programs of this machine do to messages: the events of the identifiers that stand for other sides.

use super::addresses::packed;
use super::{Conversation, Manager, Other, RETRIES, State, Way, code_of, encoded};
use crate::engine::join::network::address_of;
use crate::engine::rdma_cm::{Route, datagrams, get, service_of};
use crate::engine::wire::PSN_MASK;
use crate::engine::wire::management::{
    Answered, FOUND_DATA, Found, Lookup, Message, Numbers, Path, REJECT_DATA, REPLY_DATA, Reply,
    Request, Transport,
};
use crate::fabric::rdma_cm::{CmId, Event, EventKind, Params, lookup, reason};
use crate::fabric::{Fabric, Locked, Place};
use crate::model::adapter::PKEY_DEFAULT;

/// Types of queue pairs (`enum ib_qp_type`).
const QP_RC: u8 = 2;
const QP_UC: u8 = 3;
/// 400 Gb/s (`enum ib_rate`).
const RATE: u8 = 21;
/// Acknowledgement timeout of the paths, and the adapter's delay before an acknowledgement: codes.
const ACK_TIMEOUT: u8 = 19;
const ACK_DELAY: u8 = 16;

/// The numbers of an identifier's adapter.
pub(super) fn guid_of(fabric: &Fabric, place: Place) -> u64 {
    let identity = fabric.identity(place.function);
    identity.map_or(0, |own| own.node_guid)
}

impl Manager {
    /// Turns the events that wait into messages.
    pub(in super::super) fn attend(&mut self, locked: &mut Locked<'_>, now_ns: u64) {
        let Some(file) = self.file else { return };
        while let Some(event) = locked.cm_take_carried(file) {
            match event.kind {
                EventKind::ConnectRequest => self.begin(locked, now_ns, event.id),
                _ => {
                    if let Some(number) = self.numbers.get(&event.id).copied() {
                        self.happened(locked, now_ns, number, &event);
                    }
                }
            }
        }
    }

    /// Sends the request of a program. `id` stands for the other side.
    fn begin(&mut self, locked: &mut Locked<'_>, now_ns: u64, id: u32) {
        let begun = self.try_begin(locked, now_ns, id);
        if begun.is_none() {
            // The program has given up, or there is no room. It waits until its time has come.
            locked.cm_remove_carried(id);
        }
    }

    fn try_begin(&mut self, locked: &mut Locked<'_>, now_ns: u64, id: u32) -> Option<()> {
        let fabric = locked.fabric();
        let own = locked.cm_peer(id)?;
        let own = *get(locked, own).ok()?;
        let place = own.local.place()?;
        let way: Way = (
            address_of(&fabric.cm_gid(own.local)),
            address_of(&fabric.cm_gid(own.remote)),
        );
        let route = Route::of(fabric, &own)?;
        if !self.has_room(way.1) {
            return None;
        }
        let is_lookup = datagrams(&own);
        let interval_ns = own.patience_ns / (u64::from(RETRIES) + 1);
        let number = self.insert(
            Conversation {
                id,
                place,
                way,
                state: match is_lookup {
                    true => State::LookupSent,
                    false => State::RequestSent,
                },
                transaction: 0,
                other: Other::default(),
                service: service_of(&own),
                queue: own.request.qp_num & PSN_MASK,
                interval_ns,
                retries: RETRIES,
                unanswered: None,
                was_patient: false,
                due_ns: None,
            },
            None,
        );
        let transaction = self.transactions | u64::from(number);
        if let Some(conversation) = self.conversations.get_mut(&number) {
            conversation.transaction = transaction;
        }
        self.note(locked, number);
        let message = match is_lookup {
            true => Message::Lookup(Lookup {
                number,
                pkey: PKEY_DEFAULT,
                service: service_of(&own),
                data: packed(&own, own.request.private()),
            }),
            false => {
                let code = code_of(interval_ns);
                Message::Request(request(fabric, &own, &route, (number, code)))
            }
        };
        self.ask(now_ns, number, message);
        Some(())
    }

    fn happened(&mut self, locked: &mut Locked<'_>, now_ns: u64, number: u32, event: &Event) {
        let Some(own) = self.conversations.get(&number) else {
            return;
        };
        let (state, other) = (own.state, own.other);
        let numbers = Numbers {
            own: number,
            other: other.number,
        };
        match (event.kind, state) {
            (EventKind::ConnectResponse, State::RequestReceived) => {
                self.reply(locked, now_ns, number, &event.param.connection());
            }
            (EventKind::Rejected, _) => self.rejected(locked, now_ns, number, event),
            (EventKind::Established, State::ReplyReceived) => {
                self.answered(number, State::Established);
                self.tell(number, Message::Ready(numbers));
            }
            (EventKind::Established, State::LookupReceived) => {
                self.found(locked, now_ns, number, (0, &event.param.datagrams()));
            }
            (EventKind::Unreachable, State::LookupReceived) => {
                let status = u8::try_from(event.status).unwrap_or(0).max(1);
                self.found(locked, now_ns, number, (status, &Params::default()));
            }
            (EventKind::Disconnected, State::Established | State::ReplySent) => {
                self.answered(number, State::DisconnectSent);
                let transaction = self.transactions | u64::from(number);
                if let Some(own) = self.conversations.get_mut(&number) {
                    own.transaction = transaction;
                }
                let queue = other.queue;
                self.ask(now_ns, number, Message::Disconnect { numbers, queue });
            }
            (EventKind::Disconnected, State::DisconnectReceived) => {
                self.tell(number, Message::Disconnected(numbers));
                self.end(locked, now_ns, number, None);
            }
            _ => {}
        }
    }

    /// A program has accepted a request.
    fn reply(&mut self, locked: &mut Locked<'_>, now_ns: u64, number: u32, params: &Params) {
        let fabric = locked.fabric();
        let Some(own) = self.conversations.get_mut(&number) else {
            return;
        };
        own.queue = params.qp_num & PSN_MASK;
        let Ok(known) = get(locked, own.id) else {
            return;
        };
        let message = Message::Reply(Reply {
            numbers: Numbers {
                own: number,
                other: own.other.number,
            },
            guid: guid_of(fabric, own.place),
            queue: own.queue,
            psn: known.there.psn & PSN_MASK,
            // The event has the numbers as the other side sees them.
            responder_resources: params.initiator_depth,
            initiator_depth: params.responder_resources,
            ack_delay: ACK_DELAY,
            flow_control: params.flow_control != 0,
            rnr_retry_count: params.rnr_retry_count,
            srq: params.srq != 0,
            ece: params.ece,
            data: first::<REPLY_DATA>(&params.data),
        });
        own.state = State::ReplySent;
        self.ask(now_ns, number, message);
    }

    /// A program has refused, has given up or has ended.
    fn rejected(&mut self, locked: &mut Locked<'_>, now_ns: u64, number: u32, event: &Event) {
        let fabric = locked.fabric();
        let Some(own) = self.conversations.get(&number) else {
            return;
        };
        if own.state == State::LookupReceived || own.state == State::LookupSent {
            let status = u8::try_from(lookup::REJECTED).unwrap_or(2);
            self.found(locked, now_ns, number, (status, &Params::default()));
            return;
        }
        let answered = match own.state {
            State::RequestReceived => Answered::Request,
            State::ReplyReceived => Answered::Reply,
            _ => Answered::Other,
        };
        let guid = (event.status == reason::TIMEOUT).then(|| guid_of(fabric, own.place));
        let data = first::<REJECT_DATA>(&event.param.connection().data);
        let reason = u16::try_from(event.status).unwrap_or(28);
        self.reject(locked, now_ns, number, (answered, reason, guid, data));
    }

    /// Answers a lookup, and ends its exchange.
    fn found(
        &mut self,
        locked: &mut Locked<'_>,
        now_ns: u64,
        number: u32,
        (status, params): (u8, &Params),
    ) {
        let Some(own) = self.conversations.get(&number) else {
            return;
        };
        if own.state != State::LookupReceived {
            self.end(locked, now_ns, number, None);
            return;
        }
        let message = Message::Found(Found {
            number: own.other.number,
            status,
            queue: params.qp_num & PSN_MASK,
            service: own.service,
            qkey: params.qkey,
            data: first::<FOUND_DATA>(&params.data),
        });
        let bytes = encoded(own.transaction, message);
        self.post((own.place, own.way), bytes.clone());
        self.end(locked, now_ns, number, Some(bytes));
    }
}

/// The first bytes of private data.
fn first<const N: usize>(data: &[u8]) -> [u8; N] {
    data.first_chunk().copied().unwrap_or([0; N])
}

/// The request of an identifier (core/cma.c, `cma_connect_ib`).
fn request(fabric: &Fabric, own: &CmId, route: &Route, (number, code): (u32, u8)) -> Request {
    let params = &own.request;
    Request {
        number,
        service: service_of(own),
        guid: own.local.place().map_or(0, |place| guid_of(fabric, place)),
        queue: params.qp_num & PSN_MASK,
        psn: own.here.psn & PSN_MASK,
        responder_resources: params.responder_resources,
        initiator_depth: params.initiator_depth,
        remote_timeout: code,
        local_timeout: code,
        message_retries: RETRIES,
        transport: match own.qp_type {
            QP_RC => Transport::Reliable,
            QP_UC => Transport::Unreliable,
            _ => Transport::Extended,
        },
        flow_control: params.flow_control != 0,
        retry_count: params.retry_count,
        rnr_retry_count: params.rnr_retry_count,
        srq: params.srq != 0,
        pkey: PKEY_DEFAULT,
        mtu: route.mtu,
        path: Path {
            sgid: route.sgid,
            dgid: route.dgid,
            rate: RATE,
            traffic_class: route.traffic_class,
            hop_limit: route.hop_limit,
            sl: route.sl,
            ack_timeout: ACK_TIMEOUT,
        },
        ece: params.ece,
        data: packed(own, params.private()),
    }
}
