//! Reports for the user: counters, live objects and recent operations.

pub mod dump;
pub mod stats;
pub mod trace;
