//! What several algorithms share: steps of a rate, times that wrap, and lost probes.

use crate::algorithm::{Detail, Event, EventType};

/// The lowest rate that an algorithm of the lab chooses by itself.
pub(super) const RATE_MIN: u32 = 64;

/// TX events after which a probe counts as lost if no response arrived, and is sent again.
pub(super) const PROBE_PATIENCE: u32 = 16;

/// A number of Mb/s as a fraction of the port's speed, at least 1.
pub(super) fn step(mbps: u32, port_mbps: u64) -> u32 {
    crate::units::rate_of_mbps(u64::from(mbps), port_mbps).max(1)
}

/// `value` times `factor`, which has 16 bits of fraction.
#[expect(clippy::cast_possible_truncation, reason = "limited to 32 bits")]
pub(super) fn scaled(value: u32, factor: u64) -> u32 {
    ((u64::from(value) * factor) >> 16).min(u64::from(u32::MAX)) as u32
}

/// Time since `then`, if it is in the past; the clock wraps.
pub(super) fn elapsed(now: u32, then: u32) -> u32 {
    let ns = now.wrapping_sub(then);
    if ns > u32::MAX / 2 { 0 } else { ns }
}

/// Counts TX events without a response in `missed`. True if the probe must be sent again.
pub(super) fn probe_is_lost(missed: &mut u32, event: &Event) -> bool {
    match event.kind {
        EventType::Rtt => *missed = 0,
        EventType::Tx => *missed += 1,
        _ => {}
    }
    let lost = *missed >= PROBE_PATIENCE;
    if lost {
        *missed = 0;
    }
    lost
}

/// Time in the network of the probe and its response, and the time in the receiver excluded.
pub(super) fn network_delay(event: &Event) -> Option<u32> {
    let Detail::Rtt {
        request_sent,
        request_received,
        response_sent,
        ..
    } = event.detail
    else {
        return None;
    };
    let total = elapsed(event.timestamp, request_sent);
    Some(total.saturating_sub(elapsed(response_sent, request_received)))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::algorithm::{Algorithm, Context, Decision, Port};

    pub(in crate::native) const PORT: Port = Port {
        slot: 0,
        overload: false,
        mbps: 200_000,
        mtu: 4096,
        time_ps: 0,
        sent_bytes: 0,
        received_bytes: 0,
    };

    pub(in crate::native) fn event(kind: EventType, timestamp: u32) -> Event {
        Event::of_one_packet(kind, timestamp)
    }

    pub(in crate::native) fn handle(
        algorithm: &mut dyn Algorithm,
        context: &mut Context,
        event: &Event,
    ) -> Decision {
        let decision = algorithm.handle(context, event, &PORT);
        decision.expect("the algorithms of the lab do not fail")
    }

    #[test]
    fn the_delay_excludes_the_receiver_and_survives_the_wrap() {
        let mut probe = event(EventType::Rtt, 500);
        probe.detail = Detail::Rtt {
            request_sent: u32::MAX - 499,
            request_received: u32::MAX - 99,
            response_sent: 100,
            raw: [0; 3],
        };
        assert_eq!(network_delay(&probe), Some(1_000 - 200));
        assert_eq!(network_delay(&event(EventType::Tx, 1)), None);
    }

    #[test]
    fn a_lost_probe_is_sent_again_after_its_patience() {
        let mut missed = 0;
        let tx = event(EventType::Tx, 0);
        let lost = (0..64).filter(|_| probe_is_lost(&mut missed, &tx)).count();
        assert_eq!(lost, 4);
        assert!(!probe_is_lost(&mut missed, &event(EventType::Rtt, 0)));
    }
}
