//! `cargo xtask demo naaice`: the cost of a remote call on fresh buffers, by the way in which the accelerator reaches
//! them. `orchestrate` starts services and clients on an emulated cluster and writes the report; `client` is one host.

mod client;
mod orchestrate;
mod report;

use anyhow::{Result, bail};

pub(crate) fn run(mut arguments: Vec<String>) -> Result<()> {
    let rest = arguments.split_off(1.min(arguments.len()));
    match arguments.first().map(String::as_str) {
        Some("client") => client::run(rest.first().is_some_and(|word| word == "original")),
        Some("orchestrate") => orchestrate::run(rest),
        _ => bail!("run it with `cargo xtask demo naaice`"),
    }
}
