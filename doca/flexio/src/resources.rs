//! Files that assign execution units to programs.
//!
//! A file has one line for each program: its key, a colon, and execution units or ranges of them, such as `my_app: 3, 8-11`. Empty
//! lines and those that begin with `#` are skipped.

use crate::capi::guard;
use crate::error::{Error, Result};
use std::ffi::{CStr, c_char};
use std::str;

/// Most bytes of a file.
const FILE_MAX: usize = 1 << 20;
/// Execution units of a device.
const UNITS: u32 = 256;

/// `struct flexio_resource`: the units of one program.
#[derive(Debug)]
pub(crate) struct Resource {
    units: Vec<u32>,
}

/// Reads the units of a program from such a file.
///
/// # Errors
/// A line is wrong, or none has the key.
pub fn parse(key: &str, text: &[u8]) -> Result<Vec<u32>> {
    let text = str::from_utf8(text)
        .map_err(|_| Error::failed("the file of resources is no text in UTF-8"))?;
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let Some((name, list)) = line.split_once(':') else {
            return Err(Error::failed(format!(
                "line {number} of the file of resources has no \":\" after the key"
            )));
        };
        if name.trim() == key {
            return units(list).map_err(|what| {
                Error::failed(format!("line {number} of the file of resources: {what}"))
            });
        }
    }
    Err(Error::failed(format!(
        "the file of resources has no line for \"{key}\""
    )))
}

fn units(list: &str) -> std::result::Result<Vec<u32>, String> {
    let mut units = Vec::new();
    for part in list.split(',').map(str::trim) {
        let number = |text: &str| text.trim().parse::<u32>().ok().filter(|unit| *unit < UNITS);
        let range = match part.split_once('-') {
            Some((first, last)) => number(first).zip(number(last)),
            None => number(part).zip(number(part)),
        };
        match range {
            Some((first, last)) if first <= last => units.extend(first..=last),
            _ => {
                return Err(format!(
                    "\"{part}\" is no unit below {UNITS}, and no range of them"
                ));
            }
        }
    }
    units.sort_unstable();
    let count = units.len();
    units.dedup();
    if units.len() != count {
        return Err("a unit occurs twice".to_owned());
    }
    Ok(units)
}

/// `flexio_resources_create`.
///
/// # Safety
/// `key` is NULL or a string, `text` NULL or `length` bytes, `resource` NULL or writable.
#[unsafe(no_mangle)]
unsafe extern "C" fn flexio_resources_create(
    key: *const c_char,
    text: *const c_char,
    length: usize,
    resource: *mut *mut Resource,
) -> u32 {
    guard("flexio_resources_create", || {
        if key.is_null() || text.is_null() || resource.is_null() || length > FILE_MAX {
            return Err(Error::failed(format!(
                "a pointer is NULL, or the file has more than {FILE_MAX} bytes"
            )));
        }
        // SAFETY: checked, and valid by contract.
        let (key, text) = unsafe {
            (
                CStr::from_ptr(key).to_string_lossy(),
                std::slice::from_raw_parts(text.cast(), length),
            )
        };
        let units = parse(&key, text)?;
        // SAFETY: checked above.
        unsafe { resource.write(Box::into_raw(Box::new(Resource { units }))) };
        Ok(())
    })
}

/// `flexio_resources_destroy`.
///
/// # Safety
/// NULL, or from [`flexio_resources_create`] and not destroyed before.
#[unsafe(no_mangle)]
unsafe extern "C" fn flexio_resources_destroy(resource: *mut Resource) -> u32 {
    if !resource.is_null() {
        // SAFETY: as the caller promises.
        drop(unsafe { Box::from_raw(resource) });
    }
    0
}

/// `flexio_resources_get_eus_num`.
///
/// # Safety
/// NULL, or a live resource.
#[unsafe(no_mangle)]
unsafe extern "C" fn flexio_resources_get_eus_num(resource: *const Resource) -> u32 {
    // SAFETY: as the caller promises.
    let resource = unsafe { resource.as_ref() };
    resource.map_or(0, |of| u32::try_from(of.units.len()).unwrap_or(UNITS))
}

/// `flexio_resources_get_eus`: the units, in ascending order, valid as long as the resource.
///
/// # Safety
/// NULL, or a live resource.
#[unsafe(no_mangle)]
unsafe extern "C" fn flexio_resources_get_eus(resource: *mut Resource) -> *mut u32 {
    // SAFETY: as the caller promises.
    let resource = unsafe { resource.as_mut() };
    resource.map_or(std::ptr::null_mut(), |of| of.units.as_mut_ptr())
}

/// `flexio_resources_get_eugs_num`: the file has no groups.
#[unsafe(no_mangle)]
extern "C" fn flexio_resources_get_eugs_num(_resource: *const Resource) -> u32 {
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_and_ranges_are_read() {
        let file = b"# units\nother: 1\n\n my_app : 8-11, 3\n";
        assert_eq!(parse("my_app", file).expect("good"), [3, 8, 9, 10, 11]);
    }

    /// A short form of the fuzz target.
    #[test]
    fn any_text_is_read_or_refused() {
        const TEXT: &[u8] = b"ab:,-0189 \n#\xff";
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            usize::try_from(state >> 33).expect("31 bits") % below
        };
        let mut good = 0;
        for _ in 0..20_000 {
            let file: Vec<u8> = (0..next(24)).map(|_| TEXT[next(TEXT.len())]).collect();
            if let Ok(units) = parse("a", &[b"a:", &file[..]].concat()) {
                good += 1;
                assert!(units.is_sorted() && units.iter().all(|unit| *unit < UNITS));
            }
        }
        assert!(good > 100, "{good}");
    }

    #[test]
    fn bad_files_are_refused_with_the_line() {
        for (file, said) in [
            (&b"a: 1"[..], "no line for \"my_app\""),
            (b"x\n", "line 1 of the file of resources has no \":\""),
            (
                b"\nmy_app: 256",
                "line 2 of the file of resources: \"256\" is no unit",
            ),
            (b"my_app: 5-3", "\"5-3\" is no unit"),
            (b"my_app: 1, 1", "a unit occurs twice"),
            (b"my_app: 1,,2", "\"\" is no unit"),
            (b"\xff", "no text in UTF-8"),
        ] {
            let error = parse("my_app", file).expect_err("bad");
            assert!(error.to_string().contains(said), "{error}");
        }
    }
}
