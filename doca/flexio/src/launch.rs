//! Launches of kernels with many threads.

use crate::app::Function;
use mlx5_prm::dpa::{Done, Wait};

/// A kernel to run. Launches of a process run in the order of the calls, one after the other.
#[derive(Debug, Clone, Copy)]
pub struct Launch<'a> {
    /// The kernel.
    pub function: &'a Function,
    /// Its packed arguments.
    pub arguments: &'a [u8],
    /// Threads, 1 to 254.
    pub threads: u32,
    /// It starts at once, after the launches before it, or when a word has a value.
    pub wait: Option<Wait>,
    /// What reports its end.
    pub done: Option<Done>,
}
