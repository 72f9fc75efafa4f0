//! Lines for the user, on standard error.

use std::fmt::Display;
use std::io::Write as _;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Writes a line. A standard error that is closed or full is no reason to stop: `eprintln!` would panic there, in a thread
/// that serves clients, or in the program that uses the C library.
pub(crate) fn say(text: impl Display) {
    // The line is for the user only. What it tells is also in the answer or in the status.
    let _ = writeln!(std::io::stderr(), "xgvmi-blk: {text}");
}

/// Time between two equal lines of [`Bounded`].
const AGAIN: Duration = Duration::from_secs(60);
/// Most different lines that it knows.
const KNOWN_MAX: usize = 16;

/// Lines that others can cause as often as they want: an equal one is written once per minute, with the number of those that were
/// not.
#[derive(Debug, Default)]
pub(crate) struct Bounded {
    known: Mutex<Vec<Known>>,
}

/// A line that was written.
#[derive(Debug)]
struct Known {
    text: String,
    at: Instant,
    /// Equal ones since then.
    left_out: u64,
}

impl Bounded {
    /// Writes a line, unless an equal one was written within a minute.
    pub(crate) fn say(&self, text: impl Display) {
        if let Some(line) = self.line(text.to_string(), Instant::now()) {
            say(line);
        }
    }

    /// The line to write now, if any.
    fn line(&self, text: String, now: Instant) -> Option<String> {
        // A panic cannot leave it half changed.
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let at = known.iter().position(|line| line.text == text);
        let before = match at {
            Some(at) if now.saturating_duration_since(known[at].at) < AGAIN => {
                known[at].left_out += 1;
                return None;
            }
            Some(at) => known.remove(at).left_out,
            None => 0,
        };
        if known.len() == KNOWN_MAX {
            // The oldest one.
            known.remove(0);
        }
        let line = match before {
            0 => text.clone(),
            more => format!("{text} ({more} equal lines were left out)"),
        };
        known.push(Known {
            text,
            at: now,
            left_out: 0,
        });
        Some(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    /// The name of the variable that tells the child what it is.
    const CHILD: &str = "XGVMI_BLK_TEST_SAYS";

    #[test]
    fn equal_lines_are_written_once_per_minute_with_their_number() {
        let bounded = Bounded::default();
        let begun = Instant::now();
        let line = |text: &str, seconds| {
            bounded.line(text.to_owned(), begun + Duration::from_secs(seconds))
        };
        assert_eq!(line("a", 0).unwrap(), "a");
        assert_eq!(line("b", 0).unwrap(), "b");
        assert!((1..60).all(|second| line("a", second).is_none()));
        assert_eq!(line("a", 60).unwrap(), "a (59 equal lines were left out)");
        assert_eq!(line("a", 61), None);
        // A peer that sends other bytes each time makes it forget, and not grow.
        for nth in 0..1000 {
            assert!(line(&format!("{nth}"), 62).is_some());
        }
        assert_eq!(bounded.known.lock().unwrap().len(), KNOWN_MAX);
        assert_eq!(line("a", 62).unwrap(), "a");
    }

    /// A reader of standard error that has ended, as after a restart of the machine's log service.
    #[test]
    fn a_lost_standard_error_does_not_end_the_thread() {
        if std::env::var_os(CHILD).is_some() {
            say("nobody reads this");
            return;
        }
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut child = Command::new(std::env::current_exe().unwrap());
        let name = "say::tests::a_lost_standard_error_does_not_end_the_thread";
        child.args(["--exact", name, "--nocapture"]).env(CHILD, "1");
        let done = child.stdout(Stdio::null()).stderr(writer).status();
        assert!(done.unwrap().success());
    }
}
