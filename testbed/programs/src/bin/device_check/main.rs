//! Checks the adapter of this machine for the features that the pool needs, and prints one line per
//! check.
//!
//! ```text
//! device_check HOST_DEVICE DPU_DEVICE [CHECK...]
//! ```
//!
//! Both devices are functions of one adapter that this process can open, such as the two functions
//! of a BlueField in separated-host mode. Prints `ok NAME` or `FAILED NAME: WHY` for each check,
//! and exits with 1 if any failed. With names of checks, only these run.
#![expect(clippy::print_stdout, reason = "a check says how it went")]

mod checks;
#[path = "../../../../../xgvmi-pool/examples/common/verbs.rs"]
#[expect(dead_code, reason = "the other example needs more of it")]
mod verbs;

use std::env;
use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;

use mlx5dv_sys::Mlx5Lib;
use verbs::Context;

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    let names: Vec<String> = env::args().skip(1).collect();
    let [host, dpu, wanted @ ..] = names.as_slice() else {
        println!("usage: device_check HOST_DEVICE DPU_DEVICE [CHECK...]");
        return ExitCode::from(2);
    };
    let known = |name: &&String| checks::ALL.iter().any(|check| check.name == **name);
    if let Some(name) = wanted.iter().find(|name| !known(name)) {
        println!("there is no check '{name}'");
        return ExitCode::from(2);
    }
    let is_wanted =
        |check: &&checks::Check| wanted.is_empty() || wanted.iter().any(|name| name == check.name);
    let chosen: Vec<&checks::Check> = checks::ALL.iter().filter(is_wanted).collect();
    match open(host, dpu) {
        Ok((host, dpu)) => {
            let failed = chosen
                .iter()
                .filter(|check| !passes(check, &host, &dpu))
                .count();
            println!("{} checks, {failed} failed", chosen.len());
            ExitCode::from(u8::from(failed != 0))
        }
        Err(error) => {
            println!("FAILED to open the devices: {error}");
            ExitCode::FAILURE
        }
    }
}

fn open(host: &str, dpu: &str) -> Outcome<(Context, Context)> {
    let lib = Arc::new(Mlx5Lib::open()?);
    Ok((
        Context::open(&lib, Some(host))?,
        Context::open(&lib, Some(dpu))?,
    ))
}

fn passes(check: &checks::Check, host: &Context, dpu: &Context) -> bool {
    match (check.run)(host, dpu) {
        Ok(()) => println!("ok {}", check.name),
        Err(error) => {
            println!("FAILED {}: {error}", check.name);
            return false;
        }
    }
    true
}
