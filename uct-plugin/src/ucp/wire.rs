//! The head of an exported memory handle in UCP's format (`src/ucp/core/ucp_rkey.c:415` of v1.20.1,
//! the same from 1.18 on). It identifies the exporter and the export, and gives the size of the
//! handle.

use std::ffi::c_void;

/// Maximum number of memory domains with a key in an exported handle: it has a 64-bit map of them.
const KEYS_MAX: u32 = u64::BITS;

/// The fields of the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    /// First byte of the exporter's memory.
    pub(super) address: u64,
    /// Length in bytes.
    pub(super) length: u64,
    /// Number of the exporter's UCP context.
    pub(super) context: u64,
    /// Number of the registration there.
    pub(super) registration: u64,
    /// Bytes of the whole handle.
    pub(super) bytes: usize,
}

impl Head {
    /// Reads a handle that UCP has just parsed.
    ///
    /// # Safety
    /// `buffer` must hold a whole exported memory handle.
    pub(super) unsafe fn read(buffer: *const c_void) -> Self {
        let start = buffer.cast::<u8>();
        // SAFETY: by the contract.
        let (head_bytes, size_bytes) = unsafe { part(start) };
        // SAFETY: by the contract: flags, map of memory domains, and kind of memory follow.
        let fields = unsafe { start.add(size_bytes) };
        // SAFETY: as above, two bytes of flags.
        let domains = unsafe { fields.add(2) };
        // SAFETY: as above.
        let map = unsafe { domains.cast::<u64>().read_unaligned() };
        // SAFETY: as above, eight bytes of the map and one of the kind of memory; four words
        // follow.
        let numbers = unsafe { domains.add(9).cast::<[u64; 4]>().read_unaligned() };
        let mut bytes = head_bytes;
        for _ in 0..map.count_ones().min(KEYS_MAX) {
            // SAFETY: by the contract: one part for each memory domain of the map.
            bytes += unsafe { part(start.add(bytes)) }.0;
        }
        let [address, length, context, registration] = numbers;
        Self {
            address,
            length,
            context,
            registration,
            bytes,
        }
    }
}

/// Bytes of a part, including the size field, and bytes of the size field: one, or three if the
/// first byte is zero.
///
/// # Safety
/// A part must begin there.
unsafe fn part(start: *const u8) -> (usize, usize) {
    // SAFETY: by the contract.
    match unsafe { start.read() } {
        0 => {
            // SAFETY: by the contract, two bytes follow a zero.
            let size = unsafe { start.add(1).cast::<u16>().read_unaligned() };
            (3 + usize::from(size), 3)
        }
        size => (1 + usize::from(size), 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packed(is_long: bool) -> Vec<u8> {
        let mut fields = Vec::new();
        fields.extend(1_u16.to_ne_bytes());
        fields.extend(0b101_u64.to_ne_bytes());
        fields.push(0);
        for number in [0x1000_u64, 0x2000, 0xaaaa, 7] {
            fields.extend(number.to_ne_bytes());
        }
        let mut bytes = Vec::new();
        for part in [&fields, &vec![6; 18], &vec![9; 300]] {
            match u8::try_from(part.len()) {
                Ok(size) if !is_long => bytes.push(size),
                _ => {
                    bytes.push(0);
                    let size = u16::try_from(part.len()).expect("a short part");
                    bytes.extend(size.to_ne_bytes());
                }
            }
            bytes.extend(part);
        }
        bytes
    }

    #[test]
    fn a_head_is_read_with_either_form_of_its_size() {
        for is_long in [false, true] {
            let packed = packed(is_long);
            // SAFETY: it is a complete handle.
            let head = unsafe { Head::read(packed.as_ptr().cast()) };
            let expect = Head {
                address: 0x1000,
                length: 0x2000,
                context: 0xaaaa,
                registration: 7,
                bytes: packed.len(),
            };
            assert_eq!(head, expect, "long: {is_long}");
        }
    }
}
