//! The result of a batch.

use serde::{Deserialize, Serialize};

/// What a client answers to a batch.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Done {
    /// Times of single writes and reads.
    pub(crate) write_ns: Vec<u64>,
    pub(crate) read_ns: Vec<u64>,
    /// Bytes that were compared, and those that were wrong.
    pub(crate) verified: u64,
    pub(crate) wrong: u64,
    /// Requests that failed, and the first reason.
    pub(crate) failed: u64,
    pub(crate) reason: String,
    /// Processor time of this process during the batch, without the time for patterns.
    pub(crate) processor_ns: u64,
}

/// Counts a request that has failed, and keeps the first reason.
pub(crate) fn note(result: xgvmi_blk::Result<()>, done: &mut Done) {
    if let Err(error) = result {
        if done.failed == 0 {
            done.reason = error.to_string();
        }
        done.failed += 1;
    }
}
