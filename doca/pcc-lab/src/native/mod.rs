//! Algorithms of the lab itself, written from the papers: DCQCN, Swift, one like HPCC, and a constant rate.

mod constant;
mod dcqcn;
mod hpcc;
mod rules;
mod swift;

pub use constant::Constant;
pub use dcqcn::{Dcqcn, DcqcnParameters};
pub use hpcc::{Hpcc, HpccParameters};
pub use swift::{Swift, SwiftParameters};

use crate::algorithm::Algorithm;
use crate::units::RATE_MAX;
use serde::Deserialize;

/// Names of the algorithms of the lab.
pub const NAMES: [&str; 5] = ["none", "constant", "dcqcn", "swift", "hpcc"];

/// Parameters of all algorithms of the lab.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Parameters {
    /// Rate of `constant`, as a fraction of 1048576. Default: 0, the whole port.
    pub constant_rate: u32,
    /// Parameters of `dcqcn`.
    pub dcqcn: DcqcnParameters,
    /// Parameters of `swift`.
    pub swift: SwiftParameters,
    /// Parameters of `hpcc`.
    pub hpcc: HpccParameters,
}

/// The algorithm of this name, one of [`NAMES`].
#[must_use]
pub fn by_name(name: &str, parameters: &Parameters) -> Option<Box<dyn Algorithm>> {
    let constant = match parameters.constant_rate {
        0 => RATE_MAX,
        rate => rate,
    };
    Some(match name {
        "none" => Box::new(Constant(RATE_MAX)),
        "constant" => Box::new(Constant(constant)),
        "dcqcn" => Box::new(Dcqcn::new(parameters.dcqcn.clone())),
        "swift" => Box::new(Swift::new(parameters.swift.clone())),
        "hpcc" => Box::new(Hpcc::new(parameters.hpcc.clone())),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::rules::tests::{event, handle};
    use super::*;
    use crate::algorithm::{Context, Detail};

    #[test]
    fn each_name_has_an_algorithm_and_each_starts_and_stays_within_bounds() {
        assert!(by_name("cubic", &Parameters::default()).is_none());
        let mut random = fastrand::Rng::with_seed(11);
        for name in NAMES {
            let mut algorithm = by_name(name, &Parameters::default()).expect("a known name");
            let mut context = Context::default();
            for step in 0..2_000_u32 {
                let kinds = crate::algorithm::EVENT_TYPES;
                let mut event = event(kinds[random.usize(0..kinds.len())], step * 700);
                if let Detail::Rtt {
                    request_sent, raw, ..
                } = &mut event.detail
                {
                    *request_sent = event.timestamp.wrapping_sub(random.u32(..));
                    *raw = [random.u32(..), random.u32(..), random.u32(..)];
                }
                let decision = handle(algorithm.as_mut(), &mut context, &event);
                let rate = decision.rate.unwrap_or(RATE_MAX);
                assert!((1..=RATE_MAX).contains(&rate), "{name}: rate {rate}");
            }
        }
    }
}
