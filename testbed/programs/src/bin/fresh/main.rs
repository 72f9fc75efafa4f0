//! Buffers that are made new for each transfer: their cost, and what the library's arena promises about them.
//!
//! ```text
//! fresh LIBUCP HOST_DEVICE DPU_DEVICE measure SIZE malloc|mmap ROUNDS [keep] -- COUNTERS...
//! fresh LIBUCP HOST_DEVICE DPU_DEVICE check CASE
//! ```
//!
//! Both devices are functions of one adapter, opened by this process. COUNTERS is a command that prints the device's
//! counters. `keep` tells glibc to keep freed memory mapped.
#![expect(clippy::print_stdout, reason = "a bench prints its results")]

mod cases;
mod measure;
mod memory;
mod sides;
mod stats;

use anyhow::{Result, bail};
use std::path::Path;
use ucx_sys::Ucp;

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (places, counters) = match words.iter().position(|word| word == "--") {
        Some(at) => (&words[..at], &words[at + 1..]),
        None => (&words[..], &words[words.len()..]),
    };
    let [library, host, dpu, job, rest @ ..] = places else {
        bail!("usage: fresh LIBUCP HOST_DEVICE DPU_DEVICE measure|check ...");
    };
    let devices = sides::Devices {
        ucp: Ucp::load(Some(Path::new(library)))?,
        host: host.clone(),
        dpu: dpu.clone(),
    };
    match (job.as_str(), rest) {
        ("measure", rest) => measure::run(&devices, rest, counters),
        ("check", [case]) => cases::run(&devices, case),
        _ => bail!("no job '{job} {}'", rest.join(" ")),
    }
}
