//! Packet-level simulator of RoCE congestion control: hosts, switches and algorithms, in picoseconds, by seed.
//!
//! An algorithm is an [`Algorithm`]: it gets events (CNP, TX, ACK, NACK, RTT) and returns rates and probes, as user code on a
//! BlueField does. A [`Scenario`] describes the network, and a [`Lab`] runs it:
//!
//! ```
//! let text = r#"
//! duration_us = 200
//! topology = { shape = "star", hosts = 3, gbps = 200, delay_ns = 1000 }
//! algorithm = { name = "swift" }
//! [[traffic]]
//! kind = "incast"
//! to = 0
//! flows = 2
//! bytes = 1000000
//! "#;
//! let scenario = pcc_lab::Scenario::from_toml(text)?;
//! let report = pcc_lab::Lab::new(&scenario)?.run();
//! assert_eq!(report.unaccounted, 0);
//! assert!(report.per_flow.iter().all(|flow| flow.is_done));
//! # Ok::<(), pcc_lab::Refusal>(())
//! ```
//!
//! The library has no I/O, no clock and no threads. All memory is bounded by the scenario's limits, and the loop allocates
//! nothing once its queues have grown. Properties of the device that no document states are in [`Guesses`].
#![forbid(unsafe_code)]

pub mod algorithm;
mod calendar;
mod check;
mod counts;
mod histogram;
pub mod native;
mod pacer;
mod packet;
mod port;
mod refusal;
pub mod report;
mod routes;
pub mod scenario;
mod scheduler;
mod sim;
mod trace;
pub mod units;

pub use algorithm::{Algorithm, Context, Decision, Detail, Event, EventType, Failure};
pub use check::check;
pub use refusal::{Refusal, limits};
pub use report::Report;
pub use scenario::{Guesses, Scenario};
pub use sim::{Arrival, Lab, Place};
pub use trace::{Record, RecordKind, Trace};
pub use units::RATE_MAX;
