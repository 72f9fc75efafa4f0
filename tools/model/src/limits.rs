//! Block sizes up to which the service process, and not the link, limits a call.

use super::config::{Config, ConfigError};
use super::engine::Engine;
use super::scheme::{Features, Scheme};
use super::software::SoftwareCost;
use serde::Serialize;
use xgvmi_offload::figures::DIRECT_LENGTH;

/// Largest size that is tried, in bytes.
const SIZE_MAX: u64 = 128 << 10;

/// Numbers of nodes, and factors by which the SP's cores are slower than the hosts'.
pub(super) const NODES: [u32; 4] = [2, 8, 32, 128];
pub(super) const SLOWER: [f64; 2] = [1.0, 4.0];
/// Numbers of SPs per node.
const SPS: [u32; 2] = [1, 4];

/// Sizes up to `most`, from the shortest block that an SP reads.
pub(super) fn sizes(most: u64) -> impl Iterator<Item = u64> {
    std::iter::successors(Some(DIRECT_LENGTH), |size| size.checked_mul(2))
        .take_while(move |size| *size <= most)
}

/// One machine.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Limit {
    /// Nodes.
    pub nodes: u32,
    /// Ranks per node.
    pub ppn: u32,
    /// SPs per node.
    pub sps: u32,
    /// Source of the SP's computing time.
    pub software: &'static str,
    /// The SP's cores are slower by this factor.
    pub slower: f64,
    /// Largest block in bytes for which an SP computes longer than the port sends; 0 without one.
    pub size: u64,
}

/// The limits for UCX's estimates and, if given, for a measured cost and for that of an earlier version, whose code took
/// `earlier` times as long.
///
/// # Errors
/// When a number of `base` is out of range.
pub fn limits(
    base: &Config,
    measured: SoftwareCost,
    earlier: Option<f64>,
) -> Result<Vec<Limit>, ConfigError> {
    let mut sources = vec![SoftwareCost::Ucx];
    if let SoftwareCost::Measured(cost) = measured {
        sources.extend(earlier.map(|factor| SoftwareCost::Earlier(cost.times(factor))));
        sources.push(measured);
    }
    let mut limits = Vec::new();
    for software in sources {
        for slower in SLOWER {
            for (sps, nodes) in SPS.iter().flat_map(|sps| NODES.map(|nodes| (*sps, nodes))) {
                let mut config = Config {
                    nodes,
                    sps,
                    scheme: Scheme::Xgvmi(Features::ALL),
                    ..base.clone()
                };
                config.assumptions.software = software;
                config.assumptions.software_factor = slower;
                limits.push(Limit {
                    nodes,
                    ppn: config.ppn,
                    sps,
                    software: software.name(),
                    slower,
                    size: largest(&config)?,
                });
            }
        }
    }
    Ok(limits)
}

/// The largest size at which the SP is the limit. The SP's share falls as blocks become longer.
fn largest(base: &Config) -> Result<u64, ConfigError> {
    let mut found = 0;
    for block_bytes in sizes(SIZE_MAX) {
        let config = Config {
            block_bytes,
            ..base.clone()
        };
        config.check()?;
        let (messages_ps, port_ps) = Engine::new(&config, config.nodes, 1).messages_and_port_ps();
        if messages_ps <= port_ps {
            break;
        }
        found = block_bytes;
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::software::MeasuredCost;

    #[test]
    fn slower_code_is_the_limit_for_longer_blocks() {
        let base = Config {
            ppn: 8,
            ..Config::slides(4096, Scheme::Ksm)
        };
        let cost = MeasuredCost {
            us_per_block: 0.1,
            us_per_message: 0.2,
        };
        let size = |limits: &[Limit], software: &str| {
            let mut found = limits.iter().filter(|limit| limit.software == software);
            found.next().map(|limit| limit.size)
        };
        let measured = SoftwareCost::Measured(cost);
        let all = limits(&base, measured, Some(20.0)).expect("in range");
        assert!(size(&all, "earlier version") > size(&all, "measured"));
        let all = limits(&base, measured, None).expect("in range");
        assert_eq!(size(&all, "earlier version"), None);
    }

    #[test]
    fn slower_cores_and_fewer_services_are_the_limit_for_longer_blocks() {
        let base = Config {
            nodes: 4,
            ppn: 8,
            ..Config::slides(4096, Scheme::Ksm)
        };
        let size = |sps, slower| {
            let mut config = Config {
                sps,
                scheme: Scheme::Xgvmi(Features::ALL),
                ..base.clone()
            };
            config.assumptions.software_factor = slower;
            largest(&config).expect("in range")
        };
        assert!(size(1, 4.0) > size(1, 1.0));
        assert!(size(1, 4.0) > size(4, 4.0));
    }
}
