//! Short paths below `/proc`, built without allocation, for the signal handler.

/// A path.
#[derive(Debug)]
pub(crate) struct PathBuffer {
    bytes: [u8; 40],
    used: usize,
}

impl PathBuffer {
    /// An empty path.
    pub(crate) fn new() -> Self {
        Self {
            bytes: [0; 40],
            used: 0,
        }
    }

    /// Appends text.
    pub(crate) fn text(&mut self, text: &str) -> &mut Self {
        for byte in text.bytes() {
            // Two numbers of at most ten digits and ten letters always fit, with the final NUL.
            if self.used + 1 < self.bytes.len() {
                self.bytes[self.used] = byte;
                self.used += 1;
            }
        }
        self
    }

    /// Appends a non-negative number.
    pub(crate) fn number(&mut self, number: i32) -> &mut Self {
        let mut digits = [0u8; 10];
        let mut left = number.unsigned_abs();
        let mut first = digits.len();
        loop {
            first -= 1;
            let [digit, ..] = (left % 10).to_le_bytes();
            digits[first] = b'0' + digit;
            left /= 10;
            if left == 0 || first == 0 {
                break;
            }
        }
        self.text(std::str::from_utf8(&digits[first..]).unwrap_or(""))
    }

    /// The path as a C string.
    pub(crate) fn as_cstr(&self) -> &std::ffi::CStr {
        std::ffi::CStr::from_bytes_until_nul(&self.bytes).unwrap_or(c"")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_made_without_allocation() {
        for (pid, fd, expect) in [
            (1, 0, c"/proc/1/fd/0"),
            (i32::MAX, i32::MAX, c"/proc/2147483647/fd/2147483647"),
        ] {
            let mut path = PathBuffer::new();
            path.text("/proc/").number(pid).text("/fd/").number(fd);
            assert_eq!(path.as_cstr(), expect);
        }
    }
}
