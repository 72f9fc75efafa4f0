//! A program of the host for tests: runs functions of a DPA program in the way that a scenario describes, and prints results.
//!
//! `dpa_probe IMAGE SCENARIO`, on the first device of the program's view.

mod scenarios;

use flexio::{App, Function, Process};
use mlx5dv_sys::{Mlx5Lib, ibv_context};
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;

/// The host's side of a test.
pub(crate) struct Probe {
    pub(crate) verbs: Mlx5Lib,
    pub(crate) context: *mut ibv_context,
    pub(crate) app: Arc<App>,
}

/// Prints a line at once, because a test may wait for it.
pub(crate) fn say(text: impl std::fmt::Display) {
    let mut out = io::stdout().lock();
    // A test that does not read has ended.
    let _ = writeln!(out, "{text}").and_then(|()| out.flush());
}

impl Probe {
    fn open(image: &str) -> Result<Self, Box<dyn std::error::Error>> {
        let verbs = Mlx5Lib::open()?;
        let mut count = 0;
        // SAFETY: the place of a number.
        let list = unsafe { verbs.ibv_get_device_list(&raw mut count) };
        if list.is_null() || count == 0 {
            return Err("no device".into());
        }
        let mut attr = mlx5dv_sys::mlx5dv_context_attr {
            flags: mlx5dv_sys::MLX5DV_CONTEXT_FLAGS_DEVX,
            ..Default::default()
        };
        // SAFETY: the first entry of the list, and attributes.
        let context = unsafe { verbs.mlx5dv_open_device(*list, &raw mut attr) };
        // SAFETY: the list is freed once.
        unsafe { verbs.ibv_free_device_list(list) };
        if context.is_null() {
            return Err(format!(
                "the device cannot be opened: {}",
                io::Error::last_os_error()
            )
            .into());
        }
        let app = App::new("probe", &std::fs::read(image)?)?;
        Ok(Self {
            verbs,
            context,
            app: Arc::new(app),
        })
    }

    /// A process; 0 instructions for the device's own limit.
    pub(crate) fn process(&self, instructions: u64) -> flexio::Result<Process> {
        // SAFETY: the context stays open as long as the program.
        unsafe {
            Process::create_limited(self.context, std::ptr::null_mut(), &self.app, instructions)
        }
    }
}

/// A function of the program with words as arguments. Its unpack function has the prefix `unpack_`.
pub(crate) fn function(name: &str, words: usize) -> Function {
    Function {
        name: name.to_owned(),
        unpack: format!("unpack_{words}"),
        stub: 0,
        argument_bytes: 8 * words,
        pack: None,
    }
}

/// Packed words.
pub(crate) fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Calls a function with words.
pub(crate) fn call(process: &Process, name: &str, arguments: &[u64]) -> flexio::Result<u64> {
    process.call(&function(name, arguments.len()), &words(arguments))
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, image, scenario] = &arguments[..] else {
        say("usage: dpa_probe IMAGE SCENARIO");
        return ExitCode::from(2);
    };
    let done = Probe::open(image).and_then(|probe| scenarios::run(&probe, scenario));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(format_args!("error: {error}"));
            ExitCode::FAILURE
        }
    }
}
