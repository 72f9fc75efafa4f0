//! Transfers over stock UCX, measured with and without a pool of cross-GVMI keys.
//!
//! [`demo`] is the transfer of `xgvmi-demo`, and [`report`] its report. OSU's alltoallv benchmarks are in `osu-bench/mpi`.
//!
//! Nothing here knows whether a device is emulated: a launcher, given as a command line, starts the programs, and another
//! command prints the counters.

pub mod demo;
pub mod report;
