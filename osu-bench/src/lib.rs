//! `osu_alltoallv` and `osu_ialltoallv`: OSU's benchmarks with temporary buffers, for any MPI.
//!
//! Options and output are OSU's. The programs add temporary buffers, a second backend (service processes on the DPUs
//! carry out the collective), and result files. `docs/OSU.md` is the user's manual.
//!
//! From the top down: [`run`] is a whole run, [`options`] the command line, [`measure`] one message size on one rank,
//! [`summary`] the combined result of all ranks, [`omb`] OSU's output, [`results`] the
//! result files, [`merge`] the combination of several runs. Below: [`backend`], [`offload`], [`buffers`], [`layout`],
//! [`datatype`], [`compute`], [`mpi`].
//!
//! ```
//! use osu_mpi::options::{Options, Program};
//!
//! let options = Options::new(Program::Blocking);
//! assert_eq!(options.sizes().next(), Some(1));
//! assert_eq!(options.rounds(16 << 10).iterations, 100);
//! ```

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
pub mod results;
pub mod run;
pub mod summary;
