//! `osu_alltoallv` and `osu_ialltoallv`: OSU's benchmarks with temporary buffers, under any MPI.
//!
//! The programs do what OSU's do, option by option, and print what OSU's print. They add temporary buffers, which is
//! what a pool of keys is for, a second way to carry the collective out (by service processes on the DPUs), and files
//! with the results. docs/OSU.md is the user's page.
//!
//! From the outside in: [`run`] is a whole run, [`options`] its command line, [`measure`] one message size on one rank,
//! [`summary`] what all ranks saw of it, [`omb`] OSU's output, [`pages`] the manual, [`results`] the files, [`merge`] several runs. Beneath: [`backend`], [`offload`],
//! [`buffers`], [`layout`], [`datatype`], [`compute`], [`mpi`].

pub mod backend;
pub mod buffers;
pub mod compute;
pub mod datatype;
pub mod layout;
pub mod measure;
pub mod merge;
pub mod mpi;
pub mod offload;
pub mod omb;
pub mod options;
pub mod pages;
pub mod results;
pub mod run;
pub mod summary;
