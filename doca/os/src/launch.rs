//! Launches of kernels: what they wait for, and what reports their end.

use mlx5_prm::dpa::{Done, Wait};

/// Most launches of a process that have not finished.
pub const LAUNCHES_MAX: usize = 4096;

/// A kernel to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    /// Address of the unpack function.
    pub unpack: u64,
    /// Address of the kernel.
    pub function: u64,
    /// The packed arguments.
    pub arguments: Vec<u8>,
    /// Threads.
    pub threads: u32,
    /// It starts at once, after the launches before it, or when a word has a value.
    pub wait: Option<Wait>,
    /// What reports its end.
    pub done: Option<Done>,
}

/// The launch that runs.
#[derive(Debug)]
pub(crate) struct Running {
    /// Threads that have not returned.
    pub(crate) left: u32,
    /// Address of the arguments; 0 without any.
    pub(crate) buffer: u64,
    pub(crate) done: Option<Done>,
}
