//! Subjects and peers of the pool's benchmarks.
//!
//! A subject is an object of ours over a simulated device. Its peer does the same work in C.
#![expect(clippy::print_stdout, reason = "the peers say why they are missing")]

pub mod peer;
pub mod subject;
