//! Parsers of files, for fuzz targets.

/// Reads a file of resources, and returns the number of a program's units.
#[must_use]
pub fn resources(key: &str, text: &[u8]) -> Option<usize> {
    crate::resources::parse(key, text)
        .ok()
        .map(|units| units.len())
}
