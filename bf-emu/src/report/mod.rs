//! Reports for the user: counters and live objects.

pub mod dump;
pub mod stats;
