//! Whether a device has a DPA: no capability that is public says so, so a small program is started there.

use crate::dev::Dev;
use crate::error::{Code, Fault, Result};
use flexio::{App, Process};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// First address of the program.
const START: u64 = 0x1_0000;

/// A program of one instruction, `ebreak`, which never runs.
fn program() -> Vec<u8> {
    let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    // Executable file, RISC-V, version 1.
    file.extend([2, 0, 243, 0, 1, 0, 0, 0]);
    // Entry, program headers, no section headers.
    for word in [START, 64, 0] {
        file.extend(word.to_le_bytes());
    }
    file.extend([0; 4]);
    // Sizes: this header, a program header; one program header; a section header; no sections.
    for half in [64_u16, 56, 1, 64, 0, 0] {
        file.extend(half.to_le_bytes());
    }
    // To load, readable and executable.
    for half in [1_u32, 5] {
        file.extend(half.to_le_bytes());
    }
    for word in [0x1000, START, START, 4, 4, 0x1000] {
        file.extend(word.to_le_bytes());
    }
    file.resize(0x1000, 0);
    file.extend(0x0010_0073_u32.to_le_bytes());
    file
}

/// Refuses a device without a DPA.
pub(crate) fn check(dev: &Arc<Dev>) -> Result<()> {
    static KNOWN: Mutex<Option<HashMap<String, Option<String>>>> = Mutex::new(None);
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let answers = known.get_or_insert_default();
    if !answers.contains_key(dev.name()) {
        let started = App::new("probe", &program()).and_then(|app| {
            // SAFETY: the device stays open until the process, dropped here, has ended.
            unsafe { Process::create(dev.context(), dev.pd(), &Arc::new(app)) }
        });
        let answer = started.err().map(|error| error.to_string());
        answers.insert(dev.name().to_owned(), answer);
    }
    match answers.get(dev.name()) {
        Some(Some(reason)) => Err(Fault::answer(
            Code::NotSupported,
            format!("{} runs no programs of a DPA: {reason}", dev.name()),
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_one_that_a_dpa_loads() {
        App::new("probe", &program()).expect("a good program");
    }
}
