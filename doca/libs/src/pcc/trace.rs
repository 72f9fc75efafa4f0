//! Entries of the trace: device code names a format and five numbers, and the host makes a line of them.

use crate::error::{Result, fail};
use std::ffi::{CStr, CString, c_char};

/// Most formats.
const FORMATS_MAX: usize = 1_024;
/// Numbers of an entry.
const NUMBERS: usize = 5;
/// Most bytes of a line.
const LINE_BYTES: usize = 1_024;

/// The formats of a program.
#[derive(Debug, Default)]
pub(super) struct Formats(Vec<CString>);

impl Formats {
    /// Copies formats, and refuses conversions that read more than numbers.
    ///
    /// # Safety
    /// NULL, or strings up to a NULL.
    pub(super) unsafe fn read(formats: *const *const c_char) -> Result<Self> {
        if formats.is_null() {
            fail!(InvalidValue, "the list of formats is NULL");
        }
        let mut all = Vec::new();
        for at in 0.. {
            // SAFETY: the entries before were not NULL, so this one exists by contract.
            let format = unsafe { formats.add(at).read() };
            if format.is_null() {
                break;
            }
            if at == FORMATS_MAX {
                fail!(
                    InvalidValue,
                    "more than {FORMATS_MAX} formats, or no NULL at the end"
                );
            }
            // SAFETY: a string by contract.
            let format = unsafe { CStr::from_ptr(format) };
            if !is_numeric(format.to_bytes()) {
                fail!(
                    InvalidValue,
                    "format {at} of the trace, {format:?}: allowed are up to {NUMBERS} conversions of integers"
                );
            }
            all.push(format.to_owned());
        }
        Ok(Self(all))
    }

    /// The line of an entry: its format and its numbers in hexadecimal digits.
    pub(super) fn line(&self, entry: &str) -> String {
        let mut words = entry
            .split(' ')
            .map(|word| u64::from_str_radix(word, 16).unwrap_or_default());
        let number = words.next().unwrap_or_default();
        let [a, b, c, d, e] = std::array::from_fn(|_| words.next().unwrap_or_default());
        let format = usize::try_from(number).ok().and_then(|at| self.0.get(at));
        let Some(format) = format else {
            return format!("trace {number}: {a:#x} {b:#x} {c:#x} {d:#x} {e:#x}");
        };
        let mut line = vec![0_u8; LINE_BYTES];
        // SAFETY: the buffer has this size, and the format has at most five conversions, all of integers.
        unsafe {
            libc::snprintf(
                line.as_mut_ptr().cast(),
                line.len(),
                format.as_ptr(),
                a,
                b,
                c,
                d,
                e,
            )
        };
        let end = line.iter().position(|byte| *byte == 0);
        line.truncate(end.unwrap_or(LINE_BYTES));
        String::from_utf8_lossy(&line).trim_end().to_owned()
    }
}

/// True if a format of `printf` has only conversions of integers, and not too many.
fn is_numeric(format: &[u8]) -> bool {
    let mut rest = format.iter().copied();
    let mut count = 0;
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            continue;
        }
        let conversion = rest.find(|byte| !b"#0- +.123456789lhjzt".contains(byte));
        match conversion {
            Some(b'%') => {}
            Some(b'd' | b'i' | b'u' | b'x' | b'X' | b'o' | b'c') => count += 1,
            _ => return false,
        }
    }
    count <= NUMBERS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn formats(texts: &[&CStr]) -> Result<Formats> {
        let pointers = texts.iter().map(|text| text.as_ptr());
        let pointers: Vec<_> = pointers.chain([std::ptr::null()]).collect();
        // SAFETY: strings up to a NULL.
        unsafe { Formats::read(pointers.as_ptr()) }
    }

    #[test]
    fn an_entry_becomes_a_line() {
        let all = formats(&[c"first", c"rate = %#lx of %lu, 100 %%\n"]).expect("good");
        assert_eq!(all.line("1 ff a 0 0 0"), "rate = 0xff of 10, 100 %");
        assert_eq!(all.line("0 1 2 3 4 5"), "first");
        assert_eq!(all.line("7 1 2 3 4 5"), "trace 7: 0x1 0x2 0x3 0x4 0x5");
    }

    #[test]
    fn formats_that_read_memory_or_too_many_numbers_are_refused() {
        for bad in [c"%s", c"%p %n", c"%", c"%x %x %x %x %x %x", c"%*d", c"%f"] {
            let fault = formats(&[bad]).expect_err("bad");
            assert!(fault.text.contains("format 0 of the trace"), "{fault}");
        }
    }
}
