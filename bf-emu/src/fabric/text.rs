//! Names in the shared file.

/// A name in a fixed array, truncated if it is too long.
pub(super) fn text_bytes<const N: usize>(text: &str) -> [u8; N] {
    let mut bytes = [0; N];
    for (to, from) in bytes.iter_mut().zip(text.bytes()) {
        *to = from;
    }
    bytes
}

/// The name in a fixed array.
pub(super) fn text(bytes: &[u8]) -> &str {
    let end = bytes
        .iter()
        .position(|&byte| byte == 0)
        .unwrap_or(bytes.len());
    std::str::from_utf8(&bytes[..end]).unwrap_or("?")
}
