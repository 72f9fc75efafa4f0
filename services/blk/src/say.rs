//! Lines for the user, on standard error.

use std::fmt::Display;
use std::io::Write as _;

/// Writes a line. A standard error that is closed or full is no reason to stop: `eprintln!` would panic there, in a thread
/// that serves clients, or in the program that uses the C library.
pub(crate) fn say(text: impl Display) {
    // The line is for the user only. What it tells is also in the answer or in the status.
    let _ = writeln!(std::io::stderr(), "xgvmi-blk: {text}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    /// The name of the variable that tells the child what it is.
    const CHILD: &str = "XGVMI_BLK_TEST_SAYS";

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
