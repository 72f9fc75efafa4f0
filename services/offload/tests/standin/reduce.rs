//! The reduction of a window as a service does it, and a copy for comparison.

use crate::reduction::Reduction;
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Vectors that are reduced to the first of them.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// What is done with two elements.
    pub reduction: Reduction,
    /// Number of vectors.
    pub members: usize,
    /// Length of each in bytes, a multiple of the element's size.
    pub bytes: usize,
    /// How often.
    pub rounds: u32,
}

/// Reduces the vectors in each round. Returns the time of all rounds.
#[must_use]
pub fn run(plan: &Plan) -> Duration {
    // Ordinary numbers of each type: no exception slows the processor down.
    let pattern = [0x11, 0x3c, 0x22, 0x3d, 0x33, 0x3c, 0x44, 0x3d];
    let mut all: Vec<u8> = pattern
        .into_iter()
        .cycle()
        .take(plan.members * plan.bytes)
        .collect();
    let begin = Instant::now();
    for _ in 0..plan.rounds {
        black_box(plan.reduction.fold_all(black_box(&mut all), plan.bytes));
    }
    begin.elapsed()
}

/// Copies `bytes` bytes in each round. Returns the time of all rounds.
#[must_use]
pub fn copy(bytes: usize, rounds: u32) -> Duration {
    let from = vec![1_u8; bytes];
    let mut to = vec![0_u8; bytes];
    let begin = Instant::now();
    for _ in 0..rounds {
        black_box(&mut to).copy_from_slice(black_box(&from));
    }
    begin.elapsed()
}
