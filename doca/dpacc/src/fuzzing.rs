//! The parsers of files, for fuzz targets and for tests with damaged files.

use crate::types::Role;
use crate::{dwarf, generate, image, objects};
use std::path::Path;

/// Reads an object file or archive, and returns the number of functions that it marks.
#[must_use]
pub fn object(data: &[u8]) -> Option<usize> {
    let marked = objects::read(data, Path::new("fuzz.o")).ok()?;
    Some(marked.len())
}

/// Reads a file of attributes, and returns the bytes for the program.
#[must_use]
pub fn attributes(text: &str) -> Option<String> {
    crate::attributes::blob(text, Path::new("fuzz.yaml")).ok()
}

/// Checks a linked program, and reads the arguments of functions by their names. Returns the generated source if it has
/// them.
#[must_use]
pub fn program(data: &[u8], names: &[&str]) -> Option<String> {
    let _ = image::check(data);
    let marked: Vec<_> = names
        .iter()
        .map(|name| objects::Marked {
            name: (*name).to_owned(),
            role: Role::Kernel,
            from: "fuzz.c".into(),
        })
        .collect();
    let functions = dwarf::functions(data, &marked).ok()?;
    Some(generate::device(&functions) + &generate::stubs("fuzz", &functions))
}
