//! Swift (Kumar et al., SIGCOMM 2020) as a control of rates: a target delay, additive increase below it, and a decrease in
//! proportion to the excess.
//!
//! The device limits rates and not windows. The window of the paper is rate times delay here.

use super::rules::{RATE_MIN, elapsed, network_delay, probe_is_lost, scaled};
use crate::algorithm::{Algorithm, Context, Decision, Event, EventType, Failure, Port};
use crate::units::RATE_MAX;
use serde::Deserialize;

/// One, with 16 bits of fraction.
const ONE: u64 = 1 << 16;

/// Parameters of [`Swift`]. The names in brackets are the paper's.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SwiftParameters {
    /// Target delay of a flow with a large window, in ns. Default: 25000, as measured on BlueField-3 by others.
    pub target_ns: u32,
    /// Most that a small window adds to the target (fs_range), in ns. Default: 25000.
    pub flow_scaling_ns: u32,
    /// Window in packets at which the whole range is added (fs_min_cwnd), in thousandths. Default: 100.
    pub scaling_window_min_milli: u32,
    /// Window in packets at which nothing is added (fs_max_cwnd). Default: 100.
    pub scaling_window_max: u32,
    /// Additive increase (ai), in thousandths of a packet per round trip. Default: 500.
    pub additive_milli: u32,
    /// Part of the excess by which the rate falls (beta), in percent. Default: 40. The paper has 80 for windows, which stop
    /// a sender by themselves while its packets wait; with rates, that empties the queue after each decrease.
    pub beta_percent: u32,
    /// Largest decrease per round trip (max_mdf), in percent. Default: 50, as in the paper.
    pub decrease_max_percent: u32,
}

impl Default for SwiftParameters {
    fn default() -> Self {
        Self {
            target_ns: 25_000,
            flow_scaling_ns: 25_000,
            scaling_window_min_milli: 100,
            scaling_window_max: 100,
            additive_milli: 500,
            beta_percent: 40,
            decrease_max_percent: 50,
        }
    }
}

// Words of the context.
/// Rate; 0: a new flow.
const RATE: usize = 0;
const DECREASED_AT: usize = 1;
const MISSED: usize = 2;
const RETRANSMITS: usize = 3;
/// The last delay.
const DELAY: usize = 4;

/// Swift, with one decrease per round trip.
#[derive(Debug)]
pub struct Swift {
    parameters: SwiftParameters,
}

impl Swift {
    /// An instance for one host.
    #[must_use]
    pub fn new(parameters: SwiftParameters) -> Self {
        Self { parameters }
    }

    /// The window in thousandths of a packet that this rate and delay amount to.
    fn window_milli(rate: u32, delay_ns: u32, port: &Port) -> u64 {
        // Mb/s times ns are thousandths of bits.
        let millibits = (((port.mbps * u64::from(delay_ns)) >> 10) * u64::from(rate)) >> 10;
        millibits / (u64::from(port.mtu) * 8).max(1)
    }

    /// The target grows as the window shrinks (equation of section 3.5): alpha / sqrt(window) + beta, within 0 and the range.
    fn target(&self, rate: u32, delay_ns: u32, port: &Port) -> u32 {
        let parameters = &self.parameters;
        // 2^16 over the root of the window in packets.
        let inverse_root = |milli: u64| (ONE * ONE * 1_000 / milli.max(1)).isqrt();
        let most = inverse_root(u64::from(parameters.scaling_window_min_milli));
        let least = inverse_root(u64::from(parameters.scaling_window_max) * 1_000);
        let now =
            inverse_root(Self::window_milli(rate, delay_ns, port)).clamp(least, most.max(least));
        let share = ((now - least) << 16) / (most.max(least + 1) - least);
        parameters.target_ns + scaled(parameters.flow_scaling_ns, share)
    }

    /// The additive increase of one round trip of `delay_ns`.
    fn increase(&self, delay_ns: u32, port: &Port) -> u32 {
        let bits = u64::from(port.mtu) * 8 * u64::from(self.parameters.additive_milli);
        let mbps_times_1000 = bits * 1_000 / u64::from(delay_ns.max(1));
        let rate = (mbps_times_1000 << 20) / (port.mbps * 1_000);
        u32::try_from(rate).unwrap_or(RATE_MAX).clamp(1, RATE_MAX)
    }

    /// The factor of a decrease, with 16 bits of fraction.
    fn factor(&self, delay_ns: u32, target_ns: u32) -> u64 {
        let excess = (u64::from(delay_ns - target_ns) << 16) / u64::from(delay_ns.max(1));
        let cut = excess * u64::from(self.parameters.beta_percent) / 100;
        let most = ONE * u64::from(self.parameters.decrease_max_percent.min(100)) / 100;
        ONE - cut.min(most)
    }

    fn new_rate(&self, context: &mut Context, event: &Event, port: &Port) -> u32 {
        let (now, rate) = (event.timestamp, context[RATE]);
        let Some(delay) = network_delay(event) else {
            // A gap: the largest decrease, once per round trip.
            if elapsed(now, context[DECREASED_AT]) < context[DELAY].max(1) {
                return rate;
            }
            context[DECREASED_AT] = now;
            context[RETRANSMITS] += 1;
            return scaled(rate, self.factor(u32::MAX, 0));
        };
        context[DELAY] = delay;
        let target = self.target(rate, delay, port);
        if delay < target {
            return rate.saturating_add(self.increase(delay, port));
        }
        if elapsed(now, context[DECREASED_AT]) < delay {
            return rate;
        }
        context[DECREASED_AT] = now;
        scaled(rate, self.factor(delay, target))
    }
}

impl Algorithm for Swift {
    fn name(&self) -> &str {
        "swift"
    }

    fn disabled_events(&self) -> u32 {
        EventType::Ack.mask() | EventType::Cnp.mask()
    }

    fn handle(
        &mut self,
        context: &mut Context,
        event: &Event,
        port: &Port,
    ) -> Result<Decision, Failure> {
        if context[RATE] == 0 {
            context[RATE] = RATE_MAX;
            // A decrease is allowed at once.
            context[DECREASED_AT] = event.timestamp.wrapping_sub(u32::MAX / 4);
            return Ok(Decision::rate(RATE_MAX).and_probe());
        }
        let lost = probe_is_lost(&mut context[MISSED], event);
        if event.kind == EventType::Tx {
            return Ok(Decision {
                probe: lost,
                ..Decision::default()
            });
        }
        context[RATE] = self
            .new_rate(context, event, port)
            .clamp(RATE_MIN, RATE_MAX);
        Ok(Decision {
            rate: Some(context[RATE]),
            probe: event.kind == EventType::Rtt,
            ..Decision::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::rules::tests::{PORT, event, handle};
    use super::*;
    use crate::algorithm::Detail;

    fn rtt(now: u32, delay: u32) -> Event {
        let mut event = event(EventType::Rtt, now);
        event.detail = Detail::Rtt {
            request_sent: now - delay,
            request_received: 0,
            response_sent: 0,
            raw: [0; 3],
        };
        event
    }

    fn started(swift: &mut Swift, rate: u32) -> Context {
        let mut context = Context::default();
        let first = handle(swift, &mut context, &event(EventType::Tx, 1_000_000));
        assert_eq!(first, Decision::rate(RATE_MAX).and_probe());
        context[RATE] = rate;
        context
    }

    #[test]
    fn below_the_target_the_rate_rises_by_one_packet_per_round_trip() {
        let mut swift = Swift::new(SwiftParameters::default());
        let mut context = started(&mut swift, RATE_MAX / 2);
        // Half of 4096 bytes in 10 us are 1638.4 Mb/s, which is 8589.9 of 2^20 at 200 Gb/s.
        let decision = handle(&mut swift, &mut context, &rtt(2_000_000, 10_000));
        assert_eq!(decision, Decision::rate(RATE_MAX / 2 + 8_589).and_probe());
    }

    #[test]
    fn above_the_target_it_falls_by_beta_times_the_excess_once_per_round_trip() {
        let mut swift = Swift::new(SwiftParameters {
            flow_scaling_ns: 0,
            beta_percent: 80,
            ..SwiftParameters::default()
        });
        let mut context = started(&mut swift, RATE_MAX);
        // Delay 40, target 25: excess 15/40, times 0.8 is 0.3.
        let decision = handle(&mut swift, &mut context, &rtt(2_000_000, 40_000));
        assert_eq!(decision.rate, Some(scaled(RATE_MAX, ONE - ONE * 3 / 10)));
        let again = handle(&mut swift, &mut context, &rtt(2_039_999, 40_000));
        assert_eq!(again.rate, decision.rate, "within the round trip");
        let later = handle(&mut swift, &mut context, &rtt(2_040_000, 40_000));
        assert!(later.rate < decision.rate);
    }

    #[test]
    fn the_largest_decrease_is_a_half() {
        let mut swift = Swift::new(SwiftParameters {
            beta_percent: 80,
            ..SwiftParameters::default()
        });
        let mut context = started(&mut swift, RATE_MAX);
        let decision = handle(&mut swift, &mut context, &rtt(9_000_000, 2_000_000));
        assert_eq!(decision.rate, Some(RATE_MAX / 2));
        let nack = event(EventType::Nack, 19_000_000);
        assert_eq!(
            handle(&mut swift, &mut context, &nack).rate,
            Some(RATE_MAX / 4)
        );
    }

    #[test]
    fn the_target_grows_as_the_window_shrinks() {
        let swift = Swift::new(SwiftParameters::default());
        // 200 Gb/s for 25 us are 152.6 packets: nothing is added.
        assert_eq!(swift.target(RATE_MAX, 25_000, &PORT), 25_000);
        // A quarter of the rate is 38 packets. 1/sqrt is 0.162 of a range from 0.1 to 3.16: 2 %.
        let target = swift.target(RATE_MAX / 4, 25_000, &PORT);
        assert!((25_480..25_540).contains(&target), "{target}");
        // A window below 0.1 packets has the whole range.
        assert_eq!(swift.target(RATE_MAX / 4096, 25_000, &PORT), 50_000);
    }
}
