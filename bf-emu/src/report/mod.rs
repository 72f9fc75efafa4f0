//! Reports for the user: counters, live objects and recent operations.

pub mod dump;
pub mod flows;
pub mod stats;
pub mod trace;
