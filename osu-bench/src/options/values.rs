//! Values of options: complete numbers within limits. Each error is OSU's text for it.

use super::{Bounds, TempBuffers};
use crate::datatype::Datatype;
use bench_report::parse_size;

/// MPI counts bytes with an int, so no block is longer.
const SIZE_MAX: usize = i32::MAX as usize;

/// OSU's minimum memory limit. OSU replaces a smaller value by this one and prints a message.
const MEMORY_MIN: usize = 1 << 20;

/// Maximum number of percentiles in OSU.
const PERCENTILES_MAX: usize = 5;

/// Most validation warm-up calls that OSU allows.
const VALIDATION_WARM_UP_MAX: usize = 10;

/// Maximum number of iterations, warm-ups and test calls. Each time is kept in 8 bytes.
const COUNT_MAX: usize = 10_000_000;

/// A number without a sign or suffix, from `least` on.
pub(super) fn count(
    least: usize,
    what: &'static str,
) -> impl Fn(&str) -> Result<usize, String> + Clone + Send + Sync + 'static {
    move |text| {
        let number = text.parse().ok().filter(|_| !text.starts_with('+'));
        let number = number.filter(|number| (least..=COUNT_MAX).contains(number));
        number.ok_or_else(|| what.to_owned())
    }
}

/// `MAX`, `MIN:MAX`, `MIN:` or `:MAX`, in bytes, with K, M or G if wanted.
pub(super) fn sizes(text: &str) -> Result<Bounds, String> {
    let size = |text: &str, default| match text {
        "" => Some(default),
        text => parse_size(text).ok().filter(|size| *size <= SIZE_MAX),
    };
    let Bounds { min, max } = Bounds::default();
    let (first, last) = text.split_once(':').unwrap_or(("", text));
    let bounds = size(first, min).zip(size(last, max));
    let bounds = bounds.filter(|_| !(first.is_empty() && last.is_empty()));
    let (min, max) = bounds.ok_or("Invalid Message Size")?;
    Ok(Bounds { min, max })
}

/// `-M`; too little is more, as with OSU.
pub(super) fn memory_limit(text: &str) -> Result<usize, String> {
    let limit = parse_size(text).map_err(|_| "Invalid Memory Limit")?;
    Ok(limit.max(MEMORY_MIN))
}

pub(super) fn validation_warm_up(text: &str) -> Result<usize, String> {
    let calls = count(0, "Invalid Number of Validation Warmup Iterations")(text)?;
    if calls > VALIDATION_WARM_UP_MAX {
        return Err("Number of Validation Warmup Iterations must not be more than 10".to_owned());
    }
    Ok(calls)
}

/// `-c`: the parser passes "true" and "false" itself.
pub(super) fn no_value(text: &str) -> Result<bool, String> {
    text.parse()
        .map_err(|_| "Validation takes no value here".to_owned())
}

pub(super) fn datatypes(text: &str) -> Result<Vec<Datatype>, String> {
    Datatype::named(text).ok_or_else(|| {
        "Invalid datatype, there are MPI_CHAR, MPI_INT, MPI_FLOAT and all".to_owned()
    })
}

/// The list of `-z`; an empty text is no list.
pub(super) fn percentiles(text: &str) -> Result<Vec<u8>, String> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let found: Option<Vec<u8>> = text
        .split(',')
        .map(|text| text.parse().ok().filter(|_| !text.starts_with('+')))
        .map(|number| number.filter(|percent| (1..=100).contains(percent)))
        .collect();
    let found = found.ok_or("Percentile range must be in between 1 and 100")?;
    if found.len() > PERCENTILES_MAX {
        return Err("There is room for five percentiles".to_owned());
    }
    Ok(found)
}

pub(super) fn buffers(text: &str) -> Result<TempBuffers, String> {
    let bad = "Invalid kind of buffers, there are none, malloc, mmap and ring:N";
    text.parse().map_err(|()| bad.to_owned())
}

pub(super) fn pid(text: &str) -> Result<i32, String> {
    let pid = text.parse().ok().filter(|pid| *pid > 0);
    pid.ok_or_else(|| "Process ids above zero, with commas".to_owned())
}
