//! State transitions of queue pairs, with the required and the optional attributes of each.
//!
//! Source: InfiniBand specification 11.2.5.2, as in the kernel (`verbs.c`, `qp_state_table`).
//! Dynamic connections follow the driver (`mlx5/qp.c`, `modify_dci_qp_is_ok`,
//! `mlx5_ib_modify_dct`).

use mlx5_prm::qp::{service, state};

use crate::fabric::objects::{SERVICE_DCT, SERVICE_XRC_TARGET};

/// Bits of the attribute mask (`enum ibv_qp_attr_mask`).
pub(super) mod mask {
    pub(in crate::commands::uverbs) const STATE: u32 = 1 << 0;
    pub(in crate::commands::uverbs) const CUR_STATE: u32 = 1 << 1;
    pub(in crate::commands::uverbs) const EN_SQD_ASYNC_NOTIFY: u32 = 1 << 2;
    pub(in crate::commands::uverbs) const ACCESS_FLAGS: u32 = 1 << 3;
    pub(in crate::commands::uverbs) const PKEY_INDEX: u32 = 1 << 4;
    pub(in crate::commands::uverbs) const PORT: u32 = 1 << 5;
    pub(in crate::commands::uverbs) const QKEY: u32 = 1 << 6;
    pub(in crate::commands::uverbs) const AV: u32 = 1 << 7;
    pub(in crate::commands::uverbs) const PATH_MTU: u32 = 1 << 8;
    pub(in crate::commands::uverbs) const TIMEOUT: u32 = 1 << 9;
    pub(in crate::commands::uverbs) const RETRY_CNT: u32 = 1 << 10;
    pub(in crate::commands::uverbs) const RNR_RETRY: u32 = 1 << 11;
    pub(in crate::commands::uverbs) const RQ_PSN: u32 = 1 << 12;
    pub(in crate::commands::uverbs) const MAX_QP_RD_ATOMIC: u32 = 1 << 13;
    pub(in crate::commands::uverbs) const ALT_PATH: u32 = 1 << 14;
    pub(in crate::commands::uverbs) const MIN_RNR_TIMER: u32 = 1 << 15;
    pub(in crate::commands::uverbs) const SQ_PSN: u32 = 1 << 16;
    pub(in crate::commands::uverbs) const MAX_DEST_RD_ATOMIC: u32 = 1 << 17;
    pub(in crate::commands::uverbs) const PATH_MIG_STATE: u32 = 1 << 18;
    pub(in crate::commands::uverbs) const DEST_QPN: u32 = 1 << 20;
}

/// The device's state for each state number of verbs.
pub(super) const STATES: [u8; 7] = [
    state::RST,
    state::INIT,
    state::RTR,
    state::RTS,
    state::SQD,
    state::SQER,
    state::ERR,
];

/// The attributes of a transition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Attributes {
    needed: u32,
    optional: u32,
}

impl Attributes {
    const fn new(needed: u32, optional: u32) -> Self {
        Self { needed, optional }
    }

    /// True if `given` contains all required attributes and no attribute outside the permitted
    /// ones.
    pub(super) fn met_by(self, given: u32) -> bool {
        self.needed & !given == 0 && given & !(self.needed | self.optional | mask::STATE) == 0
    }
}

/// The attributes in `given` that apply. One half of an extended reliable connection ignores the
/// attributes of the other half (`uverbs_cmd.c`, `modify_qp_mask`).
pub(super) fn relevant(service: u8, given: u32) -> u32 {
    use mask::{MAX_DEST_RD_ATOMIC, MAX_QP_RD_ATOMIC, MIN_RNR_TIMER, RETRY_CNT, RNR_RETRY};
    match service {
        service::XRC => given & !(MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER),
        SERVICE_XRC_TARGET => given & !(MAX_QP_RD_ATOMIC | RETRY_CNT | RNR_RETRY),
        _ => given,
    }
}

/// The required and the optional attributes of a transition; None if the transition does not exist.
pub(super) fn transition(service: u8, from: u8, to: u8) -> Option<Attributes> {
    if matches!(to, state::RST | state::ERR) && service != SERVICE_DCT {
        // The kernel has no transition from reset to error.
        let possible = (from, to) != (state::RST, state::ERR);
        return possible.then_some(Attributes::new(0, 0));
    }
    match service {
        SERVICE_DCT => of_target(from, to),
        service::DCI => of_initiator(from, to),
        service::UD => of_datagrams(from, to),
        _ => of_connection(service, from, to),
    }
}

fn of_target(from: u8, to: u8) -> Option<Attributes> {
    use mask::{ACCESS_FLAGS, AV, MIN_RNR_TIMER, PATH_MTU, PKEY_INDEX, PORT};
    Some(match (from, to) {
        (state::RST, state::INIT) => Attributes::new(PKEY_INDEX | PORT | ACCESS_FLAGS, 0),
        (state::INIT, state::RTR) => Attributes::new(AV | PATH_MTU | MIN_RNR_TIMER, 0),
        // A DCT is not connected, never sends, and leaves RTR only by its destruction.
        _ => return None,
    })
}

fn of_initiator(from: u8, to: u8) -> Option<Attributes> {
    use mask::{
        AV, MAX_QP_RD_ATOMIC, MIN_RNR_TIMER, PATH_MTU, PKEY_INDEX, PORT, RETRY_CNT, RNR_RETRY,
        SQ_PSN, TIMEOUT,
    };
    let timers = TIMEOUT | RETRY_CNT | RNR_RETRY | MAX_QP_RD_ATOMIC | SQ_PSN;
    Some(match (from, to) {
        (state::RST, state::INIT) => Attributes::new(PKEY_INDEX | PORT, 0),
        (state::INIT, state::INIT) => Attributes::new(0, PKEY_INDEX | PORT),
        (state::INIT, state::RTR) => Attributes::new(PATH_MTU, PKEY_INDEX | AV),
        (state::RTR, state::RTS) => Attributes::new(timers, MIN_RNR_TIMER),
        (state::RTS, state::RTS) => Attributes::new(0, MIN_RNR_TIMER),
        _ => return None,
    })
}

fn of_datagrams(from: u8, to: u8) -> Option<Attributes> {
    use mask::{CUR_STATE, EN_SQD_ASYNC_NOTIFY, PKEY_INDEX, PORT, QKEY, SQ_PSN};
    Some(match (from, to) {
        (state::RST, state::INIT) => Attributes::new(PKEY_INDEX | PORT | QKEY, 0),
        (state::INIT, state::INIT) => Attributes::new(0, PKEY_INDEX | PORT | QKEY),
        (state::INIT, state::RTR) | (state::SQD, state::SQD) => {
            Attributes::new(0, PKEY_INDEX | QKEY)
        }
        (state::RTR, state::RTS) => Attributes::new(SQ_PSN, CUR_STATE | QKEY),
        (state::RTS | state::SQD | state::SQER, state::RTS) => Attributes::new(0, CUR_STATE | QKEY),
        (state::RTS, state::SQD) => Attributes::new(0, EN_SQD_ASYNC_NOTIFY),
        _ => return None,
    })
}

fn of_connection(service: u8, from: u8, to: u8) -> Option<Attributes> {
    use mask::{
        ACCESS_FLAGS, ALT_PATH, AV, CUR_STATE, DEST_QPN, EN_SQD_ASYNC_NOTIFY, MAX_DEST_RD_ATOMIC,
        MAX_QP_RD_ATOMIC, MIN_RNR_TIMER, PATH_MIG_STATE, PATH_MTU, PKEY_INDEX, PORT, RETRY_CNT,
        RNR_RETRY, RQ_PSN, SQ_PSN, TIMEOUT,
    };
    // The two halves of a connection: requester and responder. An RC queue pair is both.
    let asks = matches!(service, service::RC | service::XRC);
    let answers = matches!(service, service::RC | SERVICE_XRC_TARGET);
    let when = |condition: bool, bits: u32| if condition { bits } else { 0 };
    let enter = PKEY_INDEX | PORT | ACCESS_FLAGS;
    let migrate = ALT_PATH | PATH_MIG_STATE;
    let rnr_timer = when(answers, MIN_RNR_TIMER);
    Some(match (from, to) {
        (state::RST, state::INIT) => Attributes::new(enter, 0),
        (state::INIT, state::INIT) => Attributes::new(0, enter),
        (state::INIT, state::RTR) => Attributes::new(
            AV | PATH_MTU | DEST_QPN | RQ_PSN | when(answers, MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER),
            ALT_PATH | ACCESS_FLAGS | PKEY_INDEX,
        ),
        (state::RTR, state::RTS) => Attributes::new(
            SQ_PSN
                | when(asks || answers, TIMEOUT)
                | when(asks, RETRY_CNT | RNR_RETRY | MAX_QP_RD_ATOMIC),
            CUR_STATE | ACCESS_FLAGS | migrate | rnr_timer,
        ),
        (state::RTS | state::SQD, state::RTS) => {
            Attributes::new(0, CUR_STATE | ACCESS_FLAGS | migrate | rnr_timer)
        }
        (state::SQER, state::RTS) if service == service::UC => {
            Attributes::new(0, CUR_STATE | ACCESS_FLAGS)
        }
        (state::RTS, state::SQD) => Attributes::new(0, EN_SQD_ASYNC_NOTIFY),
        (state::SQD, state::SQD) => Attributes::new(
            0,
            AV | ACCESS_FLAGS
                | PKEY_INDEX
                | migrate
                | rnr_timer
                | when(asks || answers, PORT | TIMEOUT)
                | when(asks, RETRY_CNT | RNR_RETRY | MAX_QP_RD_ATOMIC)
                | when(answers, MAX_DEST_RD_ATOMIC),
        ),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(service: u8, from: u8, to: u8, attributes: u32, expect: bool) {
        let possible = transition(service, from, to).is_some_and(|needs| needs.met_by(attributes));
        assert_eq!(possible, expect, "{service} {from} {to} {attributes:x}");
    }

    #[test]
    fn transitions() {
        let init = mask::PKEY_INDEX | mask::PORT | mask::ACCESS_FLAGS;
        check(service::RC, state::RST, state::INIT, init, true);
        check(service::RC, state::RST, state::INIT, mask::PORT, false);
        check(service::UD, state::RST, state::INIT, init, false);
        check(service::RC, state::RST, state::RTR, u32::MAX, false);
        check(service::UD, state::INIT, state::RTR, 0, true);
        check(service::RC, state::RTR, state::RTS, mask::SQ_PSN, false);
        check(service::UC, state::RTR, state::RTS, mask::SQ_PSN, true);
        for from in STATES {
            check(service::RC, from, state::RST, mask::STATE, true);
            check(service::RC, from, state::ERR, 0, from != state::RST);
        }
        check(service::RC, state::ERR, state::RTS, 0, false);
        check(service::DCI, state::INIT, state::RTR, mask::PATH_MTU, true);
        let timers = mask::TIMEOUT | mask::SQ_PSN;
        check(SERVICE_XRC_TARGET, state::RTR, state::RTS, timers, true);
        check(service::XRC, state::RTR, state::RTS, timers, false);
        let target = mask::AV | mask::PATH_MTU | mask::MIN_RNR_TIMER;
        check(SERVICE_DCT, state::INIT, state::RTR, target, true);
        check(SERVICE_DCT, state::INIT, state::RTR, mask::PATH_MTU, false);
        for to in STATES {
            check(SERVICE_DCT, state::RTR, to, 0, false);
        }
    }

    /// An attribute that the transition does not use is refused, as in the kernel.
    #[test]
    fn what_does_not_belong_is_refused() {
        let init = mask::PKEY_INDEX | mask::PORT | mask::ACCESS_FLAGS;
        check(
            service::RC,
            state::RST,
            state::INIT,
            init | mask::QKEY,
            false,
        );
        check(
            service::RC,
            state::RTS,
            state::RTS,
            mask::ACCESS_FLAGS,
            true,
        );
        check(service::RC, state::RTS, state::RTS, mask::DEST_QPN, false);
        check(
            service::UC,
            state::RTS,
            state::RTS,
            mask::MIN_RNR_TIMER,
            false,
        );
        check(
            service::RC,
            state::RTS,
            state::ERR,
            mask::ACCESS_FLAGS,
            false,
        );
        check(
            service::UD,
            state::RTS,
            state::RTS,
            mask::ACCESS_FLAGS,
            false,
        );
        check(service::RC, state::SQER, state::RTS, 0, false);
        assert_eq!(relevant(service::XRC, u32::MAX) & mask::MIN_RNR_TIMER, 0);
        assert_eq!(relevant(service::RC, u32::MAX), u32::MAX);
    }
}
