//! The command `dpacc`, with the compilers that are installed.

mod archive;
mod common;
mod refusals;
mod samples;
