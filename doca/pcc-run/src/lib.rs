//! Runs users' congestion-control programs in the lab.
//!
//! They are unmodified C with the library of `pcc-dev`, and the lab is `pcc-lab`. A program is built in one of two ways from the same sources ([`Sources`]):
//!
//! - **for the host** ([`Build::Host`]): a shared object, which the lab calls. It is fast. Its mistakes are those of this process: a
//!   program that crashes ends the lab.
//! - **for the DPA** ([`Build::Dpa`]): RV64 for the interpreter of `rv64`, by `dpacc`. It counts the instructions of each event, and
//!   a crash or an endless loop ends only the process that has it.
//!
//! Both give the same answers to the same events. An [`Image`] is a built program, and [`Image::start`] makes a [`Process`] of it,
//! which is an [`Algorithm`](pcc_lab::Algorithm) of the lab.

mod build;
mod dpa;
mod host;
mod process;
mod services;

pub use build::{Build, BuildError, Image, Sources};
pub use pcc_dev::layout::Model;
pub use process::{Answer, Options, Process, Refused};
pub use services::Output;

/// Events that `threads` handlers sustain, each with this many millions of instructions per second.
#[must_use]
pub fn events_per_second(instructions_per_event: f64, threads: u64, mips: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    let instructions = (threads * mips) as f64 * 1e6;
    instructions / instructions_per_event.max(1.0)
}

#[cfg(test)]
mod tests {
    #[test]
    fn threads_sustain_their_instructions() {
        let events = super::events_per_second(1_000.0, 49, 1_800);
        assert!((events - 88.2e6).abs() < 1.0, "{events}");
    }
}
