//! Refusals of scenarios: one line that says what, where and what to do. And the largest sizes of a scenario.

use thiserror::Error;

/// Why the lab does not run a scenario, in one line.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct Refusal(pub(crate) String);

/// Refuses with this line.
pub(crate) fn refuse<T>(line: String) -> Result<T, Refusal> {
    Err(Refusal(line))
}

/// Largest sizes of a scenario.
pub mod limits {
    use super::{Refusal, refuse};

    /// Hosts.
    pub const HOSTS_MAX: u32 = 1_024;
    /// Switches.
    pub const SWITCHES_MAX: u32 = 512;
    /// Links.
    pub const LINKS_MAX: u32 = 4_096;
    /// Ports of a switch in a fat tree.
    pub const FAT_TREE_MAX: u32 = 16;
    /// Trunks of a parking lot.
    pub const TRUNKS_MAX: u32 = 12;
    /// Links of one path.
    pub const HOPS_MAX: usize = 16;
    /// Flows.
    pub const FLOWS_MAX: u32 = 1 << 16;
    /// Speed of a link, in Gb/s.
    pub const GBPS_MAX: u64 = 1_600;
    /// Delay of a link: one millisecond.
    pub const DELAY_NS_MAX: u64 = 1_000_000;
    /// Length of a run: ten seconds.
    pub const DURATION_US_MAX: u64 = 10_000_000;
    /// Buffer of a switch: 1 GiB.
    pub const BUFFER_KIB_MAX: u64 = 1 << 20;
    /// Packets in flight.
    pub const PACKETS_MAX: u32 = 1 << 24;
    /// Records of the trace.
    pub const TRACE_MAX: u32 = 1 << 22;
    /// Samples of rates and queues.
    pub const SAMPLES_MAX: u32 = 100_000;
    /// Faults and losses.
    pub const FAULTS_MAX: usize = 1_024;
    /// Processes of a host.
    pub const PROCESSES_MAX: u32 = 8;
    /// Bytes of a packet on the wire.
    pub const WIRE_MAX: u64 = 16_000;
    /// Times of one step, in ns.
    pub const STEP_NS_MAX: u64 = 1_000_000_000;
    /// Bytes of one flow.
    pub const BYTES_MAX: u64 = 1 << 40;

    /// Refuses a size above its limit.
    ///
    /// # Errors
    /// It is above.
    pub fn at_most(what: &'static str, value: u64, limit: u64) -> Result<(), Refusal> {
        if value > limit {
            return refuse(format!("{what}: {value} is above the limit of {limit}"));
        }
        Ok(())
    }
}
