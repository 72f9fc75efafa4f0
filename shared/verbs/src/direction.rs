//! Direction of transfers.

/// Direction of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the host's memory to that of the DPU.
    FromHost,
    /// From the DPU's memory to that of the host.
    ToHost,
}
