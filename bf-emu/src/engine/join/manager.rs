//! The connection manager's side on other machines: what programs of this machine do with an identifier becomes a message
//! (`events`), and a message of another machine changes the identifier that stands for its side (`arrivals`).
//!
//! The rules are those of Linux `core/cm.c` and `core/cma.c`. A message that wants an answer is repeated until the answer
//! comes or its repetitions are used up. A message that comes again is answered again, and not executed again.

mod addresses;
mod arrivals;
mod events;
mod inheritance;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::IpAddr;

use super::network::Outlet;
use crate::engine::rdma_cm::{answer, deliver, get};
use crate::engine::wire::PSN_MASK;
use crate::engine::wire::management::{
    self, Answered, Datagram, MESSAGE_BYTES, Message, Numbers, REJECT_DATA, Reject, TIME_CODE_MAX,
};
use crate::engine::wire::packet::{Body, Head, Packet, Service};
use crate::fabric::rdma_cm::{Awaits, Exchange};
use crate::fabric::{Fabric, Locked, Place};
use crate::model::faults::mixed;

/// Largest number of connections and lookups with other machines, and with one address.
const CONVERSATIONS_MAX: usize = 8192;
const CONVERSATIONS_OF_ADDRESS_MAX: usize = 4096;
/// Largest number of messages that wait to be sent. Others are lost, as on a full link.
const LETTERS_MAX: usize = 16_384;
/// How often a message is repeated (core/cma.c, `CMA_MAX_CM_RETRIES`).
const RETRIES: u8 = 15;
/// The shortest and the longest time until a message is repeated: codes.
const INTERVAL_CODES: std::ops::RangeInclusive<u8> = 8..=24;
/// Time for which the other side shall wait while a program decides (core/cma.c, `CMA_CM_MRA_SETTING`): 69 s.
const DECISION_CODE: u8 = 24;
/// Time for which an ended exchange is remembered: a message of it may still be on its way, or be repeated.
const REMEMBERED_NS: u64 = 20_000_000_000;
/// Largest number of remembered exchanges. The oldest is forgotten first.
const REMEMBERED_MAX: usize = 4096;

/// Own address and the other side's.
type Way = (IpAddr, IpAddr);

/// State of an exchange of messages (core/cm.c).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    RequestSent,
    RequestReceived,
    ReplySent,
    ReplyReceived,
    Established,
    DisconnectSent,
    DisconnectReceived,
    LookupSent,
    LookupReceived,
}

/// The other side of an exchange.
#[derive(Clone, Copy, Debug, Default)]
struct Other {
    /// Its number of the exchange; 0 if it is not known.
    number: u32,
    /// Its adapter.
    guid: u64,
    /// Its queue pair.
    queue: u32,
}

/// A message that wants an answer.
#[derive(Debug)]
struct Unanswered {
    bytes: Box<[u8; MESSAGE_BYTES]>,
    /// Repetitions that are left.
    left: u8,
}

/// An exchange of messages with another machine.
#[derive(Debug)]
struct Conversation {
    /// The identifier that stands for the other side.
    id: u32,
    place: Place,
    way: Way,
    state: State,
    transaction: u64,
    other: Other,
    /// The service of a lookup.
    service: u64,
    /// Number of this side's queue pair.
    queue: u32,
    /// Time between repetitions, and their number.
    interval_ns: u64,
    retries: u8,
    unanswered: Option<Unanswered>,
    /// The other side has asked for patience.
    was_patient: bool,
    due_ns: Option<u64>,
}

impl Conversation {
    /// True if the other machine has begun the exchange.
    fn is_asked(&self) -> bool {
        matches!(
            self.state,
            State::RequestReceived | State::ReplySent | State::LookupReceived
        )
    }
}

/// What a message that begins an exchange names it by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Name {
    from: IpAddr,
    /// The adapter; None for a lookup.
    guid: Option<u64>,
    number: u32,
}

/// An exchange that another machine has begun and that has ended.
#[derive(Debug)]
struct Remembered {
    name: Name,
    /// The last answer; None for a connection that stood.
    answer: Option<Box<[u8; MESSAGE_BYTES]>>,
    until_ns: u64,
}

/// A message to another machine.
#[derive(Debug)]
struct Letter {
    place: Place,
    way: Way,
    bytes: Box<[u8; MESSAGE_BYTES]>,
}

/// All exchanges with other machines.
#[derive(Debug)]
pub(super) struct Manager {
    /// The file of the identifiers that stand for other sides.
    file: Option<u32>,
    next_number: u32,
    /// Upper half of the numbers of own exchanges.
    transactions: u64,
    next_psn: u32,
    /// By own number.
    conversations: BTreeMap<u32, Conversation>,
    /// Own numbers by the identifier.
    numbers: HashMap<u32, u32>,
    /// Own numbers by name, of exchanges that another machine has begun.
    asked: HashMap<(IpAddr, Option<u64>, u32), u32>,
    due: BTreeSet<(u64, u32)>,
    remembered: VecDeque<Remembered>,
    letters: VecDeque<Letter>,
}

impl Manager {
    /// Ends the connections of an earlier process. No number of it is used again soon.
    pub(super) fn new(fabric: &Fabric, epoch: u32, now_ns: u64) -> Self {
        let locked = &mut fabric.lock();
        let left = locked.cm_left();
        let file = locked.cm_carry();
        let start = mixed(now_ns, epoch.into());
        let [a, b, c, d, rest @ ..] = start.to_be_bytes();
        let mut new = Self {
            file,
            next_number: u32::from_be_bytes([a, b, c, d]),
            transactions: u64::from(u32::from_be_bytes(rest)) << 32,
            next_psn: 0,
            conversations: BTreeMap::new(),
            numbers: HashMap::new(),
            asked: HashMap::new(),
            due: BTreeSet::new(),
            remembered: VecDeque::new(),
            letters: VecDeque::new(),
        };
        for (id, own) in &left {
            new.inherit(fabric, now_ns, *id, own);
        }
        new
    }

    /// Time of the next repetition.
    pub(super) fn due_ns(&self) -> Option<u64> {
        self.due.first().map(|(due, _)| *due)
    }

    /// True while it has an exchange.
    pub(super) fn is_busy(&self) -> bool {
        !self.conversations.is_empty()
    }

    /// Sends the messages that wait.
    pub(super) fn send(&mut self, outlet: &mut Outlet<'_>, pkey_of: impl Fn(Place) -> u16) {
        for letter in self.letters.drain(..) {
            self.next_psn = self.next_psn.wrapping_add(1) & PSN_MASK;
            let head = Head {
                service: Service::Datagram,
                body: Body::Datagram {
                    imm: None,
                    qkey: management::QKEY,
                    source: management::QUEUE,
                },
                queue: management::QUEUE,
                psn: self.next_psn,
                pkey: pkey_of(letter.place),
                solicited: false,
                ack: false,
            };
            let data = &letter.bytes[..];
            outlet.send(letter.place, letter.way, &Packet { head, data });
        }
    }

    fn post(&mut self, (place, way): (Place, Way), bytes: Box<[u8; MESSAGE_BYTES]>) {
        if self.letters.len() < LETTERS_MAX {
            self.letters.push_back(Letter { place, way, bytes });
        }
    }

    /// Sends a message of an exchange once.
    fn tell(&mut self, number: u32, message: Message) {
        let Some(own) = self.conversations.get(&number) else {
            return;
        };
        let bytes = encoded(own.transaction, message);
        self.post((own.place, own.way), bytes);
    }

    /// Sends a message of an exchange, and repeats it until [`Manager::answered`].
    fn ask(&mut self, now_ns: u64, number: u32, message: Message) {
        let Some(own) = self.conversations.get_mut(&number) else {
            return;
        };
        let bytes = encoded(own.transaction, message);
        own.was_patient = false;
        own.unanswered = Some(Unanswered {
            bytes: bytes.clone(),
            left: own.retries,
        });
        let (to, due_ns) = ((own.place, own.way), now_ns.saturating_add(own.interval_ns));
        self.post(to, bytes);
        self.set_due(number, Some(due_ns));
    }

    fn answered(&mut self, number: u32, state: State) {
        if let Some(own) = self.conversations.get_mut(&number) {
            own.state = state;
            own.unanswered = None;
        }
        self.set_due(number, None);
    }

    fn set_due(&mut self, number: u32, due_ns: Option<u64>) {
        let Some(own) = self.conversations.get_mut(&number) else {
            return;
        };
        if let Some(before) = own.due_ns {
            self.due.remove(&(before, number));
        }
        own.due_ns = due_ns;
        if let Some(due) = due_ns {
            self.due.insert((due, number));
        }
    }

    /// True if another exchange with this address fits.
    fn has_room(&self, to: IpAddr) -> bool {
        let of_address = || {
            let same = |own: &&Conversation| own.way.1 == to;
            self.conversations.values().filter(same).count()
        };
        self.conversations.len() < CONVERSATIONS_OF_ADDRESS_MAX
            || self.conversations.len() < CONVERSATIONS_MAX
                && of_address() < CONVERSATIONS_OF_ADDRESS_MAX
    }

    /// Adds an exchange. Returns its number.
    fn insert(&mut self, conversation: Conversation, name: Option<Name>) -> u32 {
        // 0 means no number. There are fewer exchanges than numbers.
        while self.next_number == 0 || self.conversations.contains_key(&self.next_number) {
            self.next_number = self.next_number.wrapping_add(1);
        }
        let number = self.next_number;
        self.next_number = number.wrapping_add(1);
        self.insert_as(number, conversation, name);
        number
    }

    fn insert_as(&mut self, number: u32, conversation: Conversation, name: Option<Name>) {
        self.numbers.insert(conversation.id, number);
        if let Some(Name {
            from,
            guid,
            number: theirs,
        }) = name
        {
            self.asked.insert((from, guid, theirs), number);
        }
        self.conversations.insert(number, conversation);
    }

    /// Notes the numbers of an exchange where a later process finds them.
    fn note(&self, locked: &mut Locked<'_>, number: u32) {
        if let Some(own) = self.conversations.get(&number)
            && let Ok(known) = get(locked, own.id)
        {
            known.carried = [number, own.other.number];
        }
    }

    /// Ends an exchange. One that another machine has begun is remembered with its last answer.
    fn end(
        &mut self,
        locked: &mut Locked<'_>,
        now_ns: u64,
        number: u32,
        answer: Option<Box<[u8; MESSAGE_BYTES]>>,
    ) {
        self.set_due(number, None);
        let Some(own) = self.conversations.remove(&number) else {
            return;
        };
        self.numbers.remove(&own.id);
        locked.cm_remove_carried(own.id);
        let guid = match own.state {
            State::LookupReceived => None,
            _ => Some(own.other.guid),
        };
        let key = (own.way.1, guid, own.other.number);
        if self.asked.get(&key) != Some(&number) {
            return;
        }
        self.asked.remove(&key);
        while self.remembered.len() >= REMEMBERED_MAX
            || self
                .remembered
                .front()
                .is_some_and(|oldest| oldest.until_ns <= now_ns)
        {
            self.remembered.pop_front();
        }
        self.remembered.push_back(Remembered {
            name: Name {
                from: own.way.1,
                guid,
                number: own.other.number,
            },
            answer,
            until_ns: now_ns.saturating_add(REMEMBERED_NS),
        });
    }

    /// Rejects a connection, and ends its exchange.
    fn reject(
        &mut self,
        locked: &mut Locked<'_>,
        now_ns: u64,
        number: u32,
        reject: (Answered, u16, Option<u64>, [u8; REJECT_DATA]),
    ) {
        let Some(own) = self.conversations.get(&number) else {
            return;
        };
        let (answered, reason, guid, data) = reject;
        let numbers = Numbers {
            own: match own.state {
                // The other side has never seen it.
                State::RequestReceived => 0,
                _ => number,
            },
            other: own.other.number,
        };
        let message = Message::Reject(Reject {
            numbers,
            answered,
            reason,
            guid,
            data,
        });
        let bytes = encoded(own.transaction, message);
        let answer = own.is_asked().then(|| bytes.clone());
        self.post((own.place, own.way), bytes);
        self.end(locked, now_ns, number, answer);
    }

    /// Repeats messages, and gives up those that were repeated often enough.
    pub(super) fn expire(&mut self, locked: &mut Locked<'_>, now_ns: u64) {
        while let Some((due, number)) = self.due.first().copied() {
            if due > now_ns {
                return;
            }
            self.set_due(number, None);
            self.overdue(locked, now_ns, number);
        }
    }

    fn overdue(&mut self, locked: &mut Locked<'_>, now_ns: u64, number: u32) {
        let Some(own) = self.conversations.get_mut(&number) else {
            return;
        };
        let Some(unanswered) = &mut own.unanswered else {
            self.refuse_late(locked, now_ns, number);
            return;
        };
        let (id, state) = (own.id, own.state);
        let peer = locked.cm_peer(id);
        let exchange = peer.and_then(|peer| get(locked, peer).ok().map(|own| own.exchange));
        let is_wanted = match state {
            State::RequestSent => exchange == Some(Exchange::RequestSent),
            State::LookupSent => exchange == Some(Exchange::LookupSent),
            State::ReplySent => exchange == Some(Exchange::ReplySent),
            _ => true,
        };
        if is_wanted && unanswered.left > 0 {
            unanswered.left -= 1;
            let bytes = unanswered.bytes.clone();
            let to = (own.place, own.way);
            let due_ns = now_ns.saturating_add(own.interval_ns);
            self.post(to, bytes);
            self.set_due(number, Some(due_ns));
            return;
        }
        if state == State::ReplySent && exchange == Some(Exchange::Established) {
            // The program has seen data, and needs no confirmation.
            if let Ok(known) = get(locked, id) {
                known.exchange = Exchange::Established;
            }
            self.answered(number, State::Established);
            return;
        }
        match (state, peer) {
            (State::DisconnectSent, _) => answer::peer_ended(locked, id),
            (_, Some(peer)) if is_wanted => locked.cm_unreachable(peer, -libc::ETIMEDOUT),
            _ => {}
        }
        self.end(locked, now_ns, number, None);
    }

    /// Refuses a request whose listener has not come.
    fn refuse_late(&mut self, locked: &mut Locked<'_>, now_ns: u64, number: u32) {
        let Some(own) = self.conversations.get(&number) else {
            return;
        };
        let id = own.id;
        if let Ok(known) = get(locked, id)
            && known.awaits == Awaits::Delivery
        {
            known.refused_at_ns = 0;
            deliver(locked, id);
        }
        self.attend(locked, now_ns);
    }
}

fn encoded(transaction: u64, message: Message) -> Box<[u8; MESSAGE_BYTES]> {
    let datagram = Datagram {
        transaction,
        message,
    };
    Box::new(datagram.encode())
}

/// The time of a code.
fn time_ns(code: u8) -> u64 {
    4096 << code.min(TIME_CODE_MAX)
}

/// The lowest code of a time that is at least this long, within the limits of repetitions.
fn code_of(time_ns_wanted: u64) -> u8 {
    let mut codes = INTERVAL_CODES;
    let found = codes.find(|code| time_ns(*code) >= time_ns_wanted);
    found.unwrap_or(*INTERVAL_CODES.end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_of_times() {
        assert_eq!(time_ns(20), 4_294_967_296);
        assert_eq!(code_of(69_000_000_000 / 16), 21);
        assert_eq!(code_of(time_ns(20)), 20);
        assert_eq!((code_of(0), code_of(u64::MAX)), (8, 24));
    }
}
