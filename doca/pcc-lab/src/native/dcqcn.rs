//! DCQCN (Zhu et al., SIGCOMM 2015): the reaction point, driven by CNP and TX events.
//!
//! The device has no timers for algorithms. Periods of the timers that have passed are made up for at the next event.

use super::rules::{elapsed, step};
use crate::algorithm::{Algorithm, Context, Decision, Detail, Event, EventType, Failure, Port};
use crate::units::RATE_MAX;
use serde::Deserialize;

/// Fraction bits of rates beyond those of the device.
const EXTRA: u32 = 8;
/// One, as a value of alpha.
const ALPHA_ONE: u32 = 1 << 24;
/// Most periods that one event makes up for.
const PERIODS_MAX: u32 = 1_000;

/// Parameters of [`Dcqcn`]. The names in brackets are the paper's.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DcqcnParameters {
    /// Gain of alpha is 2 to the power of minus this (g). Default: 8, as in the paper.
    pub gain_shift: u32,
    /// Period of the decay of alpha without CNPs, in us. Default: 5. With the paper's 55, alpha needs 14 ms to forget the
    /// congestion of the start.
    pub alpha_timer_us: u32,
    /// Period of the increase by time (T), in us. Default: 55, as in the paper.
    pub increase_timer_us: u32,
    /// Bytes between two increases (B), in KiB. Default: 10240, as in the paper.
    pub increase_kib: u32,
    /// Periods of fast recovery (F). Default: 5, as in the paper.
    pub fast_recovery: u32,
    /// Additive increase (R_AI), in Mb/s. The paper has 40 for ports of 40 Gb/s. Default: 200.
    pub additive_mbps: u32,
    /// Increase when both counters are beyond fast recovery, in Mb/s. Default: 1000.
    pub hyper_mbps: u32,
    /// Lowest rate, in Mb/s. The paper has none, and a long queue then cuts rates to nothing. Default: 500.
    pub minimum_mbps: u32,
    /// Shortest time between two decreases, in us. Default: 50, the paper's interval of CNPs.
    pub decrease_us: u32,
}

impl Default for DcqcnParameters {
    fn default() -> Self {
        Self {
            gain_shift: 8,
            alpha_timer_us: 5,
            increase_timer_us: 55,
            increase_kib: 10_240,
            fast_recovery: 5,
            additive_mbps: 200,
            hyper_mbps: 1_000,
            minimum_mbps: 500,
            decrease_us: 50,
        }
    }
}

/// State of a flow: the context, by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Flow {
    /// Current rate (R_C), with extra bits. 0: a new flow.
    current: u32,
    /// Target rate (R_T), with extra bits.
    target: u32,
    alpha: u32,
    alpha_at: u32,
    increase_at: u32,
    decrease_at: u32,
    /// Units of 32 bytes since the last increase by bytes.
    sent_32bytes: u32,
    /// Increases by time since the last decrease.
    by_time: u32,
    /// Increases by bytes since the last decrease.
    by_bytes: u32,
    /// A decrease has happened.
    was_cut: u32,
}

impl Flow {
    fn load(context: &Context) -> Self {
        let [
            current,
            target,
            alpha,
            alpha_at,
            increase_at,
            decrease_at,
            sent_32bytes,
            by_time,
            by_bytes,
            was_cut,
            ..,
        ] = *context;
        Self {
            current,
            target,
            alpha,
            alpha_at,
            increase_at,
            decrease_at,
            sent_32bytes,
            by_time,
            by_bytes,
            was_cut,
        }
    }

    fn store(self, context: &mut Context) {
        *context = [
            self.current,
            self.target,
            self.alpha,
            self.alpha_at,
            self.increase_at,
            self.decrease_at,
            self.sent_32bytes,
            self.by_time,
            self.by_bytes,
            self.was_cut,
            0,
            0,
        ];
    }

    fn new(now: u32) -> Self {
        Self {
            current: RATE_MAX << EXTRA,
            target: RATE_MAX << EXTRA,
            alpha: ALPHA_ONE,
            alpha_at: now,
            increase_at: now,
            ..Self::default()
        }
    }

    /// Equation 1 of the paper: the target becomes the current rate, which falls by alpha / 2; alpha rises.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a fraction of a 32-bit number"
    )]
    fn decrease(&mut self, gain_shift: u32, now: u32, minimum: u32) {
        self.target = self.current;
        let cut = (u64::from(self.current) * u64::from(self.alpha)) >> 25;
        self.current = (self.current - cut as u32).max(minimum << EXTRA);
        self.alpha = self.alpha - (self.alpha >> gain_shift) + (ALPHA_ONE >> gain_shift);
        self.alpha_at = now;
        self.increase_at = now;
        self.decrease_at = now;
        self.sent_32bytes = 0;
        self.by_time = 0;
        self.by_bytes = 0;
        self.was_cut = 1;
    }

    /// Equation 2: without a CNP, alpha decays.
    fn decay(&mut self, gain_shift: u32) {
        self.alpha -= self.alpha >> gain_shift;
    }

    /// Equations 3 and 4: fast recovery, additive or hyper increase of the target, and half the way to it.
    fn increase(&mut self, parameters: &DcqcnParameters, mbps: u64) {
        let (most, least) = (
            self.by_time.max(self.by_bytes),
            self.by_time.min(self.by_bytes),
        );
        if least > parameters.fast_recovery {
            self.target += step(parameters.hyper_mbps, mbps) << EXTRA;
        } else if most > parameters.fast_recovery {
            self.target += step(parameters.additive_mbps, mbps) << EXTRA;
        }
        self.target = self.target.min(RATE_MAX << EXTRA);
        self.current = u32::midpoint(self.current, self.target);
    }
}

/// The reaction point of DCQCN.
#[derive(Debug)]
pub struct Dcqcn {
    parameters: DcqcnParameters,
}

impl Dcqcn {
    /// An instance for one host.
    #[must_use]
    pub fn new(parameters: DcqcnParameters) -> Self {
        Self { parameters }
    }

    /// Makes up for the periods that have ended since the last event.
    fn pass_time(&self, flow: &mut Flow, now: u32, mbps: u64) {
        let period = self.parameters.alpha_timer_us.saturating_mul(1_000).max(1);
        for _ in 0..(elapsed(now, flow.alpha_at) / period).min(PERIODS_MAX) {
            flow.decay(self.parameters.gain_shift);
            flow.alpha_at = flow.alpha_at.wrapping_add(period);
        }
        let period = self
            .parameters
            .increase_timer_us
            .saturating_mul(1_000)
            .max(1);
        for _ in 0..(elapsed(now, flow.increase_at) / period).min(PERIODS_MAX) {
            flow.increase_at = flow.increase_at.wrapping_add(period);
            flow.by_time += 1;
            flow.increase(&self.parameters, mbps);
        }
    }
}

impl Algorithm for Dcqcn {
    fn name(&self) -> &str {
        "dcqcn"
    }

    fn disabled_events(&self) -> u32 {
        EventType::Ack.mask() | EventType::Rtt.mask()
    }

    fn handle(
        &mut self,
        context: &mut Context,
        event: &Event,
        port: &Port,
    ) -> Result<Decision, Failure> {
        let now = event.timestamp;
        let mut flow = Flow::load(context);
        if flow.current == 0 {
            flow = Flow::new(now);
        }
        self.pass_time(&mut flow, now, port.mbps);
        match event.detail {
            Detail::Tx { sent_32bytes, .. } => {
                flow.sent_32bytes = flow.sent_32bytes.saturating_add(u32::from(sent_32bytes));
                let limit = self.parameters.increase_kib.saturating_mul(32).max(1);
                while flow.sent_32bytes >= limit {
                    flow.sent_32bytes -= limit;
                    flow.by_bytes += 1;
                    flow.increase(&self.parameters, port.mbps);
                }
            }
            Detail::Ack { .. } if event.kind == EventType::Cnp => {
                let pause = self.parameters.decrease_us.saturating_mul(1_000);
                if flow.was_cut == 0 || elapsed(now, flow.decrease_at) >= pause {
                    let minimum = step(self.parameters.minimum_mbps, port.mbps);
                    flow.decrease(self.parameters.gain_shift, now, minimum);
                }
            }
            Detail::Ack { .. } | Detail::Rtt { .. } => {}
        }
        flow.store(context);
        Ok(Decision::rate(flow.current >> EXTRA))
    }
}

#[cfg(test)]
mod tests {
    use super::super::rules::tests::{PORT, event, handle};
    use super::*;

    fn us(us: u32) -> u32 {
        us * 1_000
    }

    /// The periods of the paper.
    fn paper() -> DcqcnParameters {
        DcqcnParameters {
            alpha_timer_us: 55,
            ..DcqcnParameters::default()
        }
    }

    #[test]
    fn the_first_cnp_halves_the_rate_and_the_second_counts_after_its_pause() {
        let mut dcqcn = Dcqcn::new(paper());
        let mut context = Context::default();
        let mut rate = |kind, at| handle(&mut dcqcn, &mut context, &event(kind, at)).rate;
        assert_eq!(
            rate(EventType::Tx, us(1)),
            Some(RATE_MAX),
            "starts at line rate"
        );
        assert_eq!(
            rate(EventType::Cnp, us(2)),
            Some(RATE_MAX / 2),
            "alpha is 1"
        );
        assert_eq!(
            rate(EventType::Cnp, us(51)),
            Some(RATE_MAX / 2),
            "within 50 us"
        );
        // Alpha stays 1 - (1 - 1) / 256 = 1: the second cut halves again.
        assert_eq!(rate(EventType::Cnp, us(52)), Some(RATE_MAX / 4));
        assert_eq!(
            rate(EventType::Nack, us(53)),
            Some(RATE_MAX / 4),
            "only a CNP cuts"
        );
    }

    #[test]
    fn cuts_end_at_the_lowest_rate() {
        let mut dcqcn = Dcqcn::new(paper());
        let mut context = Context::default();
        let mut rate = None;
        for period in 0..20 {
            rate = handle(
                &mut dcqcn,
                &mut context,
                &event(EventType::Cnp, us(50 * period)),
            )
            .rate;
        }
        assert_eq!(rate, Some(step(500, PORT.mbps)));
    }

    #[test]
    fn alpha_follows_equations_1_and_2() {
        let mut flow = Flow::new(0);
        flow.decay(8);
        assert_eq!(flow.alpha, ALPHA_ONE / 256 * 255);
        let before = flow.current;
        flow.decrease(8, 0, 1);
        // R_C (1 - alpha / 2) with alpha 255/256, then alpha (1 - g) + g.
        assert_eq!(flow.current, before / 512 * (512 - 255));
        assert_eq!(flow.target, before);
        let alpha = ALPHA_ONE / 256 * 255;
        assert_eq!(flow.alpha, alpha - alpha / 256 + ALPHA_ONE / 256);
    }

    #[test]
    fn fast_recovery_halves_the_distance_five_times_and_then_the_target_rises() {
        let parameters = paper();
        let mut dcqcn = Dcqcn::new(parameters.clone());
        let mut context = Context::default();
        handle(&mut dcqcn, &mut context, &event(EventType::Tx, 0));
        handle(&mut dcqcn, &mut context, &event(EventType::Cnp, 0));
        handle(&mut dcqcn, &mut context, &event(EventType::Cnp, us(50)));
        let target = RATE_MAX / 2;
        let mut expect = RATE_MAX / 4;
        for period in 1..=5 {
            expect = u32::midpoint(expect, target);
            let tx = event(EventType::Tx, us(50 + 55 * period));
            let rate = handle(&mut dcqcn, &mut context, &tx).rate;
            assert_eq!(rate, Some(expect), "period {period}");
        }
        let tx = event(EventType::Tx, us(50 + 55 * 6));
        handle(&mut dcqcn, &mut context, &tx);
        let flow = Flow::load(&context);
        let additive = step(parameters.additive_mbps, PORT.mbps) << EXTRA;
        assert_eq!(flow.target, (target << EXTRA) + additive);
    }

    #[test]
    fn bytes_increase_the_rate_too_and_both_together_are_hyper() {
        let parameters = DcqcnParameters {
            increase_kib: 1,
            ..paper()
        };
        let mut dcqcn = Dcqcn::new(parameters.clone());
        let mut context = Context::default();
        handle(&mut dcqcn, &mut context, &event(EventType::Tx, 0));
        handle(&mut dcqcn, &mut context, &event(EventType::Cnp, 0));
        handle(&mut dcqcn, &mut context, &event(EventType::Cnp, us(50)));
        let mut tx = event(EventType::Tx, us(51));
        tx.detail = Detail::Tx {
            first_timestamp: 0,
            sent_32bytes: 32 * 6,
            sent_packets: 2,
        };
        handle(&mut dcqcn, &mut context, &tx);
        let flow = Flow::load(&context);
        assert_eq!((flow.by_bytes, flow.by_time), (6, 0));
        let additive = step(parameters.additive_mbps, PORT.mbps) << EXTRA;
        assert_eq!(flow.target, ((RATE_MAX / 2) << EXTRA) + additive);

        let later = event(EventType::Tx, us(50 + 55 * 6));
        handle(&mut dcqcn, &mut context, &later);
        let hyper = step(parameters.hyper_mbps, PORT.mbps) << EXTRA;
        // Periods 1 to 5 have by_time at or below F: additive by the bytes. The sixth is beyond F in both.
        let expect = ((RATE_MAX / 2) << EXTRA) + 6 * additive + hyper;
        assert_eq!(Flow::load(&context).target, expect);
    }
}
