//! The command `dpa-app-attributes2blob`: attributes of a program, from the file that a programmer writes to the one that
//! `dpacc` takes.

use dpacc::Fault;
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    let done = match words.as_slice() {
        [from, to] => convert(Path::new(from), Path::new(to)),
        _ => {
            eprintln!("usage: dpa-app-attributes2blob ATTRIBUTES.yaml BLOB");
            return ExitCode::FAILURE;
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => {
            eprintln!("{fault}");
            ExitCode::FAILURE
        }
    }
}

fn convert(from: &Path, to: &Path) -> Result<(), Fault> {
    let text = std::fs::read_to_string(from)
        .map_err(|error| Fault::in_file(from, format!("cannot read: {error}")))?;
    let blob = dpacc::attributes(&text, from)?;
    std::fs::write(to, blob).map_err(|error| Fault::in_file(to, format!("cannot write: {error}")))
}
