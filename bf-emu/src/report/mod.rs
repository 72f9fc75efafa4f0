//! Reports for the user: counters, live objects, and what happened lately.

pub mod dump;
pub mod stats;
pub mod trace;
