//! Limits of a call: regions, bytes of a region, function codes, time of a call.

use std::time::Duration;

/// Maximum number of regions of a session, internal ones included.
pub const REGIONS_MAX: usize = 32;

/// Maximum size of a region in bytes: sizes have 32 bits on the wire.
pub const REGION_BYTES_MAX: u64 = u32::MAX as u64;

/// Maximum function code: it has seven bits on the wire.
pub const FUNCTION_MAX: u8 = 127;

/// Default time limit of a call: an hour, as in the original.
pub const CALL_LIMIT: Duration = Duration::from_secs(3600);

/// Transport retries, a maximum of the protocol.
pub(crate) const RETRIES: u8 = 7;
