//! Faults of a user's program, in a compiler's form.

use std::fmt;
use std::path::{Path, PathBuf};

/// Where a fault is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The file, as the user named it.
    pub file: PathBuf,
    /// The line, if it is known.
    pub line: Option<u64>,
}

/// One fault, shown as `FILE:LINE: error: WHAT`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fault {
    /// Where it is; absent if it is in the command line.
    pub place: Option<Place>,
    /// What is wrong, and what would be right.
    pub what: String,
}

impl Fault {
    /// A fault of the command line, or of this machine.
    pub fn new(what: impl Into<String>) -> Self {
        Self {
            place: None,
            what: what.into(),
        }
    }

    /// A fault of a file.
    pub fn in_file(file: &Path, what: impl Into<String>) -> Self {
        Self {
            place: Some(Place {
                file: file.to_owned(),
                line: None,
            }),
            what: what.into(),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Some(Place {
                file,
                line: Some(line),
            }) => write!(out, "{}:{line}: ", file.display())?,
            Some(Place { file, line: None }) => write!(out, "{}: ", file.display())?,
            None => write!(out, "dpacc: ")?,
        }
        write!(out, "error: {}", self.what)
    }
}

impl std::error::Error for Fault {}

/// Why no archive was built.
#[derive(Debug)]
pub enum Failure {
    /// These faults.
    Faults(Vec<Fault>),
    /// A compiler or linker refused its input and has said why.
    Told,
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        Self::Faults(vec![fault])
    }
}

/// Result of a step.
pub type Result<T> = std::result::Result<T, Failure>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_has_a_compilers_form() {
        let mut fault = Fault::in_file(Path::new("a/k.c"), "no");
        assert_eq!(fault.to_string(), "a/k.c: error: no");
        if let Some(place) = &mut fault.place {
            place.line = Some(7);
        }
        assert_eq!(fault.to_string(), "a/k.c:7: error: no");
        assert_eq!(Fault::new("no").to_string(), "dpacc: error: no");
    }
}
