//! Values of options: complete numbers within limits.

use super::BadUsage;
use bench_report::parse_size;
use std::ffi::OsStr;

/// MPI counts bytes with an int, so no block is longer.
const SIZE_MAX: usize = i32::MAX as usize;

/// OSU's minimum memory limit. OSU replaces a smaller value by this one and prints a message.
const MEMORY_MIN: usize = 1 << 20;

/// Maximum number of percentiles in OSU, and OSU's default.
const PERCENTILES_MAX: usize = 5;
const PERCENTILES: [u8; 3] = [50, 90, 99];

/// A number without a sign or suffix.
pub(super) fn count(text: &str) -> Option<usize> {
    text.parse().ok().filter(|_| !text.starts_with('+'))
}

/// `MAX`, `MIN:MAX`, `MIN:` or `:MAX`, in bytes, with K, M or G if wanted.
pub(super) fn sizes(text: &str) -> Option<(Option<usize>, Option<usize>)> {
    let size = |text: &str| parse_size(text).ok().filter(|size| *size <= SIZE_MAX);
    match text.split_once(':') {
        None => Some((None, Some(size(text)?))),
        Some(("", "")) => None,
        Some((min, "")) => Some((Some(size(min)?), None)),
        Some(("", max)) => Some((None, Some(size(max)?))),
        Some((min, max)) => Some((Some(size(min)?), Some(size(max)?))),
    }
}

/// `-M`; too little is more, as with OSU.
pub(super) fn memory_limit(text: &str) -> Option<usize> {
    parse_size(text).ok().map(|limit| limit.max(MEMORY_MIN))
}

/// `-z` with its list, or without.
pub(super) fn percentiles(list: Option<&OsStr>) -> Result<Vec<u8>, BadUsage> {
    let Some(list) = list else {
        return Ok(PERCENTILES.to_vec());
    };
    let list = list.to_string_lossy();
    let bad = |what: &str| BadUsage(format!("{what} [-z {list}]"));
    let found = list
        .split(',')
        .map(|text| count(text).and_then(|number| u8::try_from(number).ok()))
        .map(|number| number.filter(|percent| (1..=100).contains(percent)))
        .collect::<Option<Vec<u8>>>()
        .ok_or_else(|| bad("Percentile range must be in between 1 and 100"))?;
    if found.len() > PERCENTILES_MAX {
        return Err(bad("There is room for five percentiles"));
    }
    Ok(found)
}
