//! One line that says what is going on, on a terminal; nothing anywhere else.

use std::io::{IsTerminal as _, Write as _, stderr};

/// The line. It is on standard error, so that the table on standard output can be kept.
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
            // Return, erase the line, write. A terminal that is gone is no reason to stop.
            let _ = write!(stderr(), "\r\x1b[K{text}");
        }
    }

    /// Removes the line, before something else is printed.
    pub(super) fn clear(&self) {
        self.show("");
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}
