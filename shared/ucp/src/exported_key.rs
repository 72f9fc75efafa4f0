//! The device's key in a packed, exported memory handle.

/// The key of exported memory on its device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExportedKey {
    /// The exporter's mkey, of which an importer makes an alias.
    pub mkey: u32,
    /// Number of the exporter's function (`vhca_id`).
    pub function: u16,
}

/// Flag of a handle that is exported and not merely packed.
const EXPORTED: u16 = 1;
/// Bytes of a packed key: the mkey and the number of its function; from UCX 1.19 on also of its memory domain.
const KEY_BYTES: [usize; 2] = [6, 14];

impl ExportedKey {
    /// The key in the bytes of `ucp_memh_pack` with EXPORT; nothing if the format is another one, or if the handle has
    /// the keys of several devices.
    ///
    /// UCP's format is private to it: `ucp_memh_exported_pack` (`src/ucp/core/ucp_rkey.c` of v1.18 to v1.23). First a
    /// part with flags (2 bytes), the map of memory domains (8), the kind of memory, address, length, context and
    /// registration (8 each). Then a part for each domain, which begins with the size of the packed key and the key
    /// (`src/uct/ib/base/ib_md.h`). Numbers have the byte order of the machine.
    #[must_use]
    pub fn of(packed: &[u8]) -> Option<Self> {
        let (head, rest) = part(packed)?;
        let (flags, head) = head.split_first_chunk()?;
        let (domains, _) = head.split_first_chunk()?;
        if u16::from_ne_bytes(*flags) & EXPORTED == 0
            || u64::from_ne_bytes(*domains).count_ones() != 1
        {
            return None;
        }
        let (domain, _) = part(rest)?;
        let (&size, domain) = domain.split_first()?;
        let key = domain.get(..usize::from(size))?;
        if !KEY_BYTES.contains(&key.len()) {
            return None;
        }
        let (mkey, key) = key.split_first_chunk()?;
        let (function, _) = key.split_first_chunk()?;
        Some(Self {
            mkey: u32::from_ne_bytes(*mkey),
            function: u16::from_ne_bytes(*function),
        })
    }
}

/// A part without its size, and the bytes that follow it. The size includes neither itself nor, if it is zero, the two
/// bytes of a longer one.
fn part(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (&size, rest) = bytes.split_first()?;
    if size != 0 {
        return rest.split_at_checked(size.into());
    }
    let (size, rest) = rest.split_first_chunk()?;
    rest.split_at_checked(u16::from_ne_bytes(*size).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: ExportedKey = ExportedKey {
        mkey: 0x0012_34fb,
        function: 7,
    };

    /// A handle with a key of `key_bytes` bytes for each domain of the map.
    fn packed(flags: u16, domains: u64, key_bytes: u8) -> Vec<u8> {
        let mut head = Vec::new();
        head.extend(flags.to_ne_bytes());
        head.extend(domains.to_ne_bytes());
        head.push(0);
        head.extend([0x5a; 32]);
        let mut key = Vec::new();
        key.extend(KEY.mkey.to_ne_bytes());
        key.extend(KEY.function.to_ne_bytes());
        key.resize(key_bytes.into(), 9);
        let mut domain = vec![key_bytes];
        domain.extend(key);
        // The address of the device.
        domain.extend([8, 1, 2, 3, 4, 5, 6, 7, 8]);
        let mut bytes = vec![u8::try_from(head.len()).expect("a short part")];
        bytes.extend(head);
        for _ in 0..domains.count_ones() {
            // The longer form of a size.
            bytes.push(0);
            bytes.extend(u16::try_from(domain.len()).expect("short").to_ne_bytes());
            bytes.extend(&domain);
        }
        bytes
    }

    #[test]
    fn the_key_of_each_ucx_is_found() {
        for key_bytes in [6, 14] {
            assert_eq!(ExportedKey::of(&packed(1, 0b100, key_bytes)), Some(KEY));
        }
    }

    #[test]
    fn another_format_is_no_key() {
        for other in [
            packed(0, 1, 6),
            packed(1, 0, 6),
            packed(1, 0b11, 6),
            packed(1, 1, 7),
        ] {
            assert_eq!(ExportedKey::of(&other), None);
        }
    }

    #[test]
    fn a_handle_that_stops_short_is_no_key() {
        let whole = packed(1, 1, 6);
        for length in 0..whole.len() {
            // Only the part that follows the key may be absent, and its size says that it is there.
            assert_eq!(ExportedKey::of(&whole[..length]), None, "{length} bytes");
        }
    }
}
