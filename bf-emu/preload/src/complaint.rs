//! The message about a doorbell that cannot be executed. The signal handler uses it, so it does not allocate.

use bf_emu::sys;

/// Longest instruction of the supported processors, in bytes.
const CODE_BYTES_MAX: usize = 15;

/// Logs the bytes of a doorbell instruction that cannot be skipped.
pub(crate) fn complain(code: &[u8]) {
    const TEXT: &[u8] = b"bf-emu: a doorbell store by an instruction that cannot be skipped:";
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut line = [b' '; TEXT.len() + 3 * CODE_BYTES_MAX + 1];
    let (text, hex) = line.split_at_mut(TEXT.len());
    text.copy_from_slice(TEXT);
    for (place, byte) in hex.chunks_exact_mut(3).zip(code) {
        if let [_, high, low] = place {
            *high = DIGITS[usize::from(byte >> 4)];
            *low = DIGITS[usize::from(byte & 15)];
        }
    }
    if let Some(last) = line.last_mut() {
        *last = b'\n';
    }
    let _ = sys::write(libc::STDERR_FILENO, &line);
}
