//! An algorithm like HPCC (Li et al., SIGCOMM 2019): probes carry the utilisation of the busiest link, and the rate follows it.
//!
//! The device hands twelve bytes of a response to the algorithm, too few for the records of all links. As in PINT (Ben Basat et
//! al., SIGCOMM 2020), the switches keep the average of their links' utilisation, and the probe carries the largest.

use super::rules::{RATE_MIN, probe_is_lost, step};
use crate::algorithm::{Algorithm, Context, Decision, Detail, Event, EventType, Failure, Port};
use crate::units::RATE_MAX;
use serde::Deserialize;

/// Parameters of [`Hpcc`]. The names in brackets are the paper's.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HpccParameters {
    /// Target utilisation (eta), in percent. Default: 95, as in the paper.
    pub target_percent: u32,
    /// Most additive increases in sequence (maxStage). Default: 5, as in the paper.
    pub stages: u32,
    /// Additive increase (W_AI), in Mb/s. Default: 200.
    pub additive_mbps: u32,
}

impl Default for HpccParameters {
    fn default() -> Self {
        Self {
            target_percent: 95,
            stages: 5,
            additive_mbps: 200,
        }
    }
}

// Words of the context.
/// Rate; 0: a new flow.
const RATE: usize = 0;
const STAGE: usize = 1;
const MISSED: usize = 2;

/// HPCC with one update of the rate per round trip.
#[derive(Debug)]
pub struct Hpcc {
    parameters: HpccParameters,
}

impl Hpcc {
    /// An instance for one host.
    #[must_use]
    pub fn new(parameters: HpccParameters) -> Self {
        Self { parameters }
    }

    /// Algorithm 1 of the paper: multiplicative if the link is above its target or after some increases, else additive.
    fn new_rate(&self, context: &mut Context, utilisation: u32, port: &Port) -> u32 {
        let target = (u64::from(self.parameters.target_percent) << 16) / 100;
        let additive = u64::from(step(self.parameters.additive_mbps, port.mbps));
        let (rate, seen) = (u64::from(context[RATE]), u64::from(utilisation.max(1)));
        let new = if seen >= target || context[STAGE] >= self.parameters.stages {
            context[STAGE] = 0;
            rate * target / seen + additive
        } else {
            context[STAGE] += 1;
            rate + additive
        };
        u32::try_from(new)
            .unwrap_or(RATE_MAX)
            .clamp(RATE_MIN, RATE_MAX)
    }
}

impl Algorithm for Hpcc {
    fn name(&self) -> &str {
        "hpcc"
    }

    fn disabled_events(&self) -> u32 {
        EventType::Ack.mask() | EventType::Cnp.mask() | EventType::Nack.mask()
    }

    fn handle(
        &mut self,
        context: &mut Context,
        event: &Event,
        port: &Port,
    ) -> Result<Decision, Failure> {
        if context[RATE] == 0 {
            context[RATE] = RATE_MAX;
            return Ok(Decision::rate(RATE_MAX).and_probe());
        }
        let lost = probe_is_lost(&mut context[MISSED], event);
        let Detail::Rtt { raw, .. } = event.detail else {
            return Ok(Decision {
                probe: lost,
                ..Decision::default()
            });
        };
        context[RATE] = self.new_rate(context, raw[0], port);
        Ok(Decision::rate(context[RATE]).and_probe())
    }
}

#[cfg(test)]
mod tests {
    use super::super::rules::tests::{PORT, event, handle};
    use super::*;

    fn response(utilisation_percent: u32) -> Event {
        let mut event = event(EventType::Rtt, 1_000);
        if let Detail::Rtt { raw, .. } = &mut event.detail {
            raw[0] = (utilisation_percent << 16) / 100;
        }
        event
    }

    #[test]
    fn above_the_target_the_rate_is_divided_by_the_excess() {
        let mut hpcc = Hpcc::new(HpccParameters::default());
        let mut context = Context::default();
        let first = handle(&mut hpcc, &mut context, &event(EventType::Tx, 0));
        assert_eq!(first, Decision::rate(RATE_MAX).and_probe());
        let rate = handle(&mut hpcc, &mut context, &response(190)).rate;
        let expect = RATE_MAX / 2 + step(200, PORT.mbps);
        assert!(
            rate.is_some_and(|rate| rate.abs_diff(expect) < 16),
            "{rate:?}, {expect}"
        );
    }

    #[test]
    fn below_it_there_are_five_additive_steps_and_then_a_multiplicative_one() {
        let mut hpcc = Hpcc::new(HpccParameters::default());
        let mut context = Context::default();
        handle(&mut hpcc, &mut context, &event(EventType::Tx, 0));
        context[RATE] = RATE_MAX / 8;
        let additive = step(200, PORT.mbps);
        for number in 1..=5 {
            let rate = handle(&mut hpcc, &mut context, &response(50)).rate;
            assert_eq!(rate, Some(RATE_MAX / 8 + number * additive));
        }
        let rate = handle(&mut hpcc, &mut context, &response(50))
            .rate
            .unwrap_or(0);
        let expect = (RATE_MAX / 8 + 5 * additive) * 19 / 10 + additive;
        assert!(rate.abs_diff(expect) < 16, "{rate}, {expect}");
    }
}
