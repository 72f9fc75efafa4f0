//! One progress line on a terminal. Without a terminal it prints nothing.

use std::io::{IsTerminal as _, Write as _, stderr};

/// The line is on standard error, so that the table on standard output can be redirected.
#[derive(Debug)]
pub(super) struct Progress {
    on_terminal: bool,
}

impl Progress {
    pub(super) fn new() -> Self {
        Self {
            on_terminal: stderr().is_terminal(),
        }
    }

    /// Replaces the line.
    pub(super) fn show(&self, text: &str) {
        if self.on_terminal {
            // Return, erase the line, write. A closed terminal is no reason to stop.
            let _ = write!(stderr(), "\r\x1b[K{text}");
        }
    }

    /// Removes the line before other output.
    pub(super) fn clear(&self) {
        self.show("");
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}
