//! Swift (Kumar et al., SIGCOMM 2020): a target delay, additive increase of a window below it, and a decrease in proportion to
//! the excess.
//!
//! The device limits rates and not windows. Each response sets the rate that the window has at the measured delay, so that a
//! longer queue slows the flow at once, as waiting acknowledgements slow a sender with a window.

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
    /// Most that a small window adds to the target (fs_range), in ns. Default: 125000, five times the target. With less, flows
    /// with few packets in flight differ by less than their probes measure.
    pub flow_scaling_ns: u32,
    /// Window in packets at which the whole range is added (fs_min_cwnd), in thousandths. Default: 100.
    pub scaling_window_min_milli: u32,
    /// Window in packets at which nothing is added (fs_max_cwnd). Default: 100.
    pub scaling_window_max: u32,
    /// Additive increase (ai), in thousandths of a packet per round trip. Default: 100. The paper has a packet; rates follow a
    /// probe late, and 128 flows that add a packet each would add half of the port's traffic.
    pub additive_milli: u32,
    /// Part of the excess by which the window falls (beta), in percent. Default: 80, as in the paper.
    pub beta_percent: u32,
    /// Largest decrease per round trip (max_mdf), in percent. Default: 50, as in the paper.
    pub decrease_max_percent: u32,
}

impl Default for SwiftParameters {
    fn default() -> Self {
        Self {
            target_ns: 25_000,
            flow_scaling_ns: 125_000,
            scaling_window_min_milli: 100,
            scaling_window_max: 100,
            additive_milli: 100,
            beta_percent: 80,
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
/// The last delay; 0 before the first one.
const DELAY: usize = 4;
/// The window in packets, with 16 bits of fraction.
const WINDOW: usize = 5;
/// Time of the last increase.
const INCREASED_AT: usize = 6;

/// Most round trips that one increase stands for.
const ROUNDS_MAX: u32 = 16;

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

    /// The window with which a flow has this rate at this delay.
    fn window(rate: u32, delay_ns: u32, port: &Port) -> u32 {
        // Mb/s times ns are thousandths of bits.
        let millibits = (((port.mbps * u64::from(delay_ns)) >> 10) * u64::from(rate)) >> 10;
        let window = (millibits << 16) / (u64::from(port.mtu) * 8_000).max(1);
        u32::try_from(window).unwrap_or(u32::MAX)
    }

    /// The rate of this window at this delay.
    fn rate(window: u32, delay_ns: u32, port: &Port) -> u32 {
        let millibits = (u64::from(window) * u64::from(port.mtu) * 8_000) >> 16;
        let mbps_by_1024 = (millibits << 10) / u64::from(delay_ns.max(1));
        u32::try_from((mbps_by_1024 << 10) / port.mbps.max(1)).unwrap_or(u32::MAX)
    }

    /// The target grows as the window shrinks (equation of section 3.5): alpha / sqrt(window) + beta, within 0 and the range.
    fn target(&self, window: u32) -> u32 {
        let parameters = &self.parameters;
        // 2^16 over the root of the window in packets.
        let inverse_root = |window: u64| ((1_u64 << 48) / window.max(1)).isqrt();
        let most = inverse_root((u64::from(parameters.scaling_window_min_milli) << 16) / 1_000);
        let least = inverse_root(u64::from(parameters.scaling_window_max) << 16);
        let now = inverse_root(u64::from(window)).clamp(least, most.max(least));
        let share = ((now - least) << 16) / (most.max(least + 1) - least);
        parameters.target_ns + scaled(parameters.flow_scaling_ns, share)
    }

    /// The additive increase of the window after a time, in which round trips took `delay_ns`. A flow with few packets has few
    /// probes, and would fall behind if each response counted alike.
    fn increase(&self, elapsed_ns: u32, delay_ns: u32) -> u32 {
        let delay_ns = delay_ns.max(1);
        let elapsed_ns = elapsed_ns
            .min(delay_ns.saturating_mul(ROUNDS_MAX))
            .max(delay_ns);
        let one = (u64::from(self.parameters.additive_milli) << 16) / 1_000;
        u32::try_from(one * u64::from(elapsed_ns) / u64::from(delay_ns)).unwrap_or(u32::MAX)
    }

    /// The factor of a decrease, with 16 bits of fraction.
    fn factor(&self, delay_ns: u32, target_ns: u32) -> u64 {
        let excess = (u64::from(delay_ns - target_ns) << 16) / u64::from(delay_ns.max(1));
        let cut = excess * u64::from(self.parameters.beta_percent) / 100;
        let most = ONE * u64::from(self.parameters.decrease_max_percent.min(100)) / 100;
        ONE - cut.min(most)
    }

    /// The window after a response or a NACK. Returns the rate.
    fn new_rate(&self, context: &mut Context, event: &Event, port: &Port) -> u32 {
        let now = event.timestamp;
        let Some(delay) = network_delay(event) else {
            // A gap: the largest decrease, once per round trip.
            if elapsed(now, context[DECREASED_AT]) >= context[DELAY].max(1) {
                context[DECREASED_AT] = now;
                context[RETRANSMITS] += 1;
                let factor = self.factor(u32::MAX, 0);
                context[WINDOW] = scaled(context[WINDOW], factor);
                return scaled(context[RATE], factor);
            }
            return context[RATE];
        };
        if context[DELAY] == 0 {
            context[WINDOW] = Self::window(context[RATE], delay, port);
            context[INCREASED_AT] = now.wrapping_sub(delay);
        }
        context[DELAY] = delay;
        let window = context[WINDOW];
        let target = self.target(window);
        if delay < target {
            let more = self.increase(elapsed(now, context[INCREASED_AT]), delay);
            // No more than the port carries in this time.
            let most = Self::window(RATE_MAX, delay, port);
            context[WINDOW] = window.saturating_add(more).min(most.max(1));
        } else if elapsed(now, context[DECREASED_AT]) >= delay {
            context[DECREASED_AT] = now;
            context[WINDOW] = scaled(window, self.factor(delay, target)).max(1);
        }
        context[INCREASED_AT] = now;
        Self::rate(context[WINDOW], delay, port)
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

    /// The rate of a window in packets with 16 bits of fraction, at 200 Gb/s.
    fn rate_of(window: u64, delay_ns: u64) -> u32 {
        let millibits = (window * 4_096 * 8_000) >> 16;
        u32::try_from((((millibits << 10) / delay_ns) << 10) / 200_000).expect("a rate")
    }

    #[test]
    fn below_the_target_the_window_rises_by_a_part_of_a_packet_per_round_trip() {
        let mut swift = Swift::new(SwiftParameters::default());
        let mut context = started(&mut swift, RATE_MAX / 2);
        // Half of 200 Gb/s for 10 us are 30.5 packets. A tenth of one is 6553 of 2^16.
        let decision = handle(&mut swift, &mut context, &rtt(2_000_000, 10_000));
        let window = u64::from(Swift::window(RATE_MAX / 2, 10_000, &PORT));
        assert_eq!(window * 10 / 65_536, 305);
        let expect = Decision::rate(rate_of(window + 6_553, 10_000)).and_probe();
        assert_eq!(decision, expect);
        // The next response comes after three round trips and counts for all of them, as the same window.
        let decision = handle(&mut swift, &mut context, &rtt(2_060_000, 20_000));
        assert_eq!(
            decision.rate,
            Some(rate_of(window + 6_553 + 3 * 6_553, 20_000))
        );
    }

    #[test]
    fn above_the_target_it_falls_by_beta_times_the_excess_once_per_round_trip() {
        let mut swift = Swift::new(SwiftParameters {
            flow_scaling_ns: 0,
            ..SwiftParameters::default()
        });
        let mut context = started(&mut swift, RATE_MAX);
        // Delay 40, target 25: excess 15/40, times 0.8 is 0.3.
        let decision = handle(&mut swift, &mut context, &rtt(2_000_000, 40_000));
        let window = Swift::window(RATE_MAX, 40_000, &PORT);
        let cut = scaled(window, ONE - ONE * 3 / 10);
        assert_eq!(decision.rate, Some(rate_of(cut.into(), 40_000)));
        let again = handle(&mut swift, &mut context, &rtt(2_039_999, 40_000));
        assert_eq!(again.rate, decision.rate, "within the round trip");
        let later = handle(&mut swift, &mut context, &rtt(2_040_000, 40_000));
        assert!(later.rate < decision.rate);
    }

    #[test]
    fn a_longer_queue_slows_the_flow_before_its_window_falls() {
        let mut swift = Swift::new(SwiftParameters::default());
        let mut context = started(&mut swift, RATE_MAX / 2);
        let short = handle(&mut swift, &mut context, &rtt(2_000_000, 12_000));
        let long = handle(&mut swift, &mut context, &rtt(2_001_000, 24_000));
        let [short, long] = [short, long].map(|decision| decision.rate.expect("a rate"));
        assert!(
            (short * 49 / 100..short * 52 / 100).contains(&long),
            "{short} {long}"
        );
    }

    #[test]
    fn the_largest_decrease_is_a_half() {
        let mut swift = Swift::new(SwiftParameters::default());
        let mut context = started(&mut swift, RATE_MAX);
        let decision = handle(&mut swift, &mut context, &rtt(9_000_000, 2_000_000));
        let half = Swift::window(RATE_MAX, 2_000_000, &PORT) / 2;
        let rate = rate_of(half.into(), 2_000_000);
        assert_eq!(decision.rate, Some(rate));
        let nack = event(EventType::Nack, 19_000_000);
        assert_eq!(handle(&mut swift, &mut context, &nack).rate, Some(rate / 2));
    }

    #[test]
    fn the_target_grows_as_the_window_shrinks() {
        let swift = Swift::new(SwiftParameters::default());
        // 200 Gb/s for 25 us are 152.6 packets: nothing is added.
        let whole = Swift::window(RATE_MAX, 25_000, &PORT);
        assert_eq!((whole >> 16, swift.target(whole)), (152, 25_000));
        // A quarter of the rate is 38 packets. 1/sqrt is 0.162 of a range from 0.1 to 3.16: 2 % of 125 us.
        let target = swift.target(whole / 4);
        assert!((27_400..27_700).contains(&target), "{target}");
        // A window below 0.1 packets has the whole range.
        assert_eq!(swift.target(whole / 4_096), 150_000);
    }
}
