//! What a process does for an earlier one that has died: it ends the connections whose other machine does not know of the
//! death. Their numbers stand in the identifiers, so a further process does the same until an answer has come.

use super::events::guid_of;
use super::{Conversation, Manager, Other, RETRIES, State, encoded, time_ns};
use crate::engine::join::network::address_of;
use crate::engine::wire::PSN_MASK;
use crate::engine::wire::management::{Answered, Message, Numbers, REJECT_DATA, Reject};
use crate::fabric::Fabric;
use crate::fabric::rdma_cm::{CmId, Exchange, reason};

/// Time between two requests to end a connection (core/cma.c, `CMA_CM_RESPONSE_TIMEOUT`): 4.3 s.
const INTERVAL_CODE: u8 = 20;

impl Manager {
    /// Ends what an identifier of an earlier process stands for. `own` is its state at the death.
    pub(super) fn inherit(&mut self, fabric: &Fabric, now_ns: u64, id: u32, own: &CmId) {
        let [number, other] = own.carried;
        let Some(place) = own.remote.place().filter(|_| number != 0) else {
            return;
        };
        let way = (
            address_of(&fabric.cm_gid(own.remote)),
            address_of(&fabric.cm_gid(own.local)),
        );
        let numbers = Numbers { own: number, other };
        if own.exchange == Exchange::RequestReceived {
            // This machine has asked, and the other one may be about to accept.
            let message = Message::Reject(Reject {
                numbers,
                answered: Answered::Other,
                reason: u16::try_from(reason::TIMEOUT).unwrap_or(0),
                guid: Some(guid_of(fabric, place)),
                data: [0; REJECT_DATA],
            });
            let transaction = self.transactions | u64::from(number);
            self.post((place, way), encoded(transaction, message));
            return;
        }
        if !own.must_be_told() {
            return;
        }
        let queue = own.here.qp_num & PSN_MASK;
        let ended = Conversation {
            id,
            place,
            way,
            state: State::DisconnectSent,
            transaction: self.transactions | u64::from(number),
            other: Other {
                number: other,
                guid: 0,
                queue,
            },
            service: 0,
            queue: own.there.qp_num & PSN_MASK,
            interval_ns: time_ns(INTERVAL_CODE),
            retries: RETRIES,
            unanswered: None,
            was_patient: false,
            due_ns: None,
        };
        self.insert_as(number, ended, None);
        self.ask(now_ns, number, Message::Disconnect { numbers, queue });
    }
}
