//! `osu_alltoallv`: see the library.

use osu_mpi::options::Program;
use std::process::ExitCode;

fn main() -> ExitCode {
    osu_mpi::run::main(Program::Blocking)
}
