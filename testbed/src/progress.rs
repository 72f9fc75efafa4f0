//! Reports the current activity: one line on a terminal, otherwise a log line for each change.
//!
//! Set-up and build run concurrently, so the line has one part for each. Without [`Line`], a note is a log line.

use std::collections::BTreeMap;
use std::io::{IsTerminal as _, Write as _, stderr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Minimum interval between log lines of frequent notes without a terminal.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

static STATE: Mutex<Option<State>> = Mutex::new(None);

#[derive(Debug)]
struct State {
    on_terminal: bool,
    began: Instant,
    parts: BTreeMap<&'static str, String>,
    /// Time of the latest log line of each part.
    logged: BTreeMap<&'static str, Instant>,
}

fn state() -> MutexGuard<'static, Option<State>> {
    // A panic during a write of the line leaves no inconsistent state.
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The line. Dropping this value removes it.
#[derive(Debug)]
pub struct Line(());

impl Line {
    /// Shows the line.
    pub fn start() -> Self {
        *state() = Some(State {
            on_terminal: stderr().is_terminal(),
            began: Instant::now(),
            parts: BTreeMap::new(),
            logged: BTreeMap::new(),
        });
        Self(())
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if let Some(state) = state().take()
            && state.on_terminal
        {
            erase();
        }
    }
}

/// Reports a new activity of `part`.
pub fn note(part: &'static str, text: &str) {
    let mut state = state();
    match state.as_mut() {
        Some(state) if state.on_terminal => state.show(part, text),
        Some(state) => eprintln!("[{:>3} s] {part}: {text}", state.began.elapsed().as_secs()),
        None => eprintln!("{text}"),
    }
}

/// As [`note`], for frequent changes: without a terminal, only some of them are logged.
pub fn note_often(part: &'static str, text: &str) {
    let mut state = state();
    let Some(state) = state.as_mut() else {
        return;
    };
    if state.on_terminal {
        state.show(part, text);
    } else if state.is_due(part) {
        eprintln!("[{:>3} s] {part}: {text}", state.began.elapsed().as_secs());
    }
}

/// Reports the end of `part`.
pub fn done(part: &'static str) {
    let mut state = state();
    let Some(state) = state.as_mut() else {
        return;
    };
    if state.on_terminal {
        state.parts.remove(part);
        state.draw();
    } else {
        eprintln!("[{:>3} s] {part}: done", state.began.elapsed().as_secs());
    }
}

impl State {
    fn show(&mut self, part: &'static str, text: &str) {
        self.parts.insert(part, text.to_owned());
        self.draw();
    }

    fn draw(&self) {
        erase();
        // A failed write to the terminal is ignored.
        let _ = write!(stderr(), "{}", self.text());
    }

    fn text(&self) -> String {
        let parts = self.parts.iter();
        let parts: Vec<String> = parts
            .map(|(part, text)| format!("{part}: {text}"))
            .collect();
        let line = format!(
            "[{:>3} s] {}",
            self.began.elapsed().as_secs(),
            parts.join(" | ")
        );
        // A wrapped line cannot be erased.
        line.chars().take(100).collect()
    }

    fn is_due(&mut self, part: &'static str) -> bool {
        let now = Instant::now();
        let due = self
            .logged
            .get(part)
            .is_none_or(|last| now.duration_since(*last) >= LOG_INTERVAL);
        if due {
            self.logged.insert(part, now);
        }
        due
    }
}

fn erase() {
    // Return, erase the line.
    let _ = write!(stderr(), "\r\x1b[K");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_names_all_parts_and_does_not_wrap() {
        let mut state = State {
            on_terminal: true,
            began: Instant::now(),
            parts: BTreeMap::new(),
            logged: BTreeMap::new(),
        };
        state.parts.insert("build", "compiling clap (3)".to_owned());
        state
            .parts
            .insert("set-up", "fetching stock UCX".to_owned());
        let text = "[  0 s] build: compiling clap (3) | set-up: fetching stock UCX";
        assert_eq!(state.text(), text);
        state.parts.insert("build", "x".repeat(500));
        assert_eq!(state.text().chars().count(), 100);
    }

    #[test]
    fn frequent_notes_are_logged_now_and_then() {
        let mut state = State {
            on_terminal: false,
            began: Instant::now(),
            parts: BTreeMap::new(),
            logged: BTreeMap::new(),
        };
        assert!(state.is_due("build"));
        assert!(!state.is_due("build"));
        assert!(state.is_due("set-up"));
    }
}
