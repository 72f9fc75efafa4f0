//! Storage through a DPU on emulated nodes; `cargo xtask demo storage` and the system tests run it.

mod client;
mod done;
mod memory;
mod orchestrate;
mod pattern;
mod plot;
mod report;
mod torture;

use anyhow::{Result, bail};

pub(crate) fn run(arguments: &[String]) -> Result<()> {
    match arguments.split_first() {
        Some((word, rest)) if word == "client" => client::run(rest),
        Some((word, rest)) if word == "orchestrate" => orchestrate::run(rest),
        Some((word, rest)) if word == "plot" => plot::run(rest),
        _ => bail!("run cargo xtask demo storage"),
    }
}
