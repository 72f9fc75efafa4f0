//! The frame of `RDMA_VERBS_IOCTL`: copies the header and the attributes in, checks them, and
//! writes answers to the caller's addresses (`rdma_user_ioctl_cmds.h`, `struct
//! ib_uverbs_ioctl_hdr`).

use crate::bits::low32;
use crate::guard;
use crate::sys::Errno;

/// The only request number of the interface: `_IOWR(0x1b, 1, struct ib_uverbs_ioctl_hdr)`.
pub(crate) const RDMA_VERBS_IOCTL: u64 = 0xc018_1b01;

/// Largest number of attributes of a call. libibverbs and the providers send up to about twenty.
pub(crate) const ATTRS_MAX: usize = 48;
/// Largest input in bytes: the longest command mailbox with a page list.
pub(crate) const INPUT_BYTES_MAX: usize = 64 * 1024;

const HEADER_BYTES: usize = 24;
const ATTR_BYTES: usize = 16;
/// The call fails if the kernel does not know this attribute.
pub(super) const F_MANDATORY: u16 = 1;
/// The kernel has written the output.
const F_VALID_OUTPUT: u16 = 2;
/// Data of up to this many bytes is in the attribute itself.
const INLINE_BYTES: usize = 8;

/// `RDMA_DRIVER_MLX5` (`ib_user_ioctl_verbs.h`).
const DRIVER_MLX5: [u8; 4] = 1u32.to_ne_bytes();

/// An attribute of a call (`struct ib_uverbs_attr`).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Attr {
    pub(super) id: u16,
    pub(super) length: u16,
    pub(super) flags: u16,
    pub(super) reserved: u16,
    pub(super) data: u64,
    /// Address of the attribute in the caller.
    pub(super) at: u64,
}

impl Attr {
    /// True if the data is in the attribute itself.
    pub(super) fn is_inline(&self) -> bool {
        usize::from(self.length) <= INLINE_BYTES
    }
}

/// A call.
#[derive(Debug)]
pub(crate) struct Ioctl {
    /// Class of object.
    pub object: u16,
    /// Method of the class.
    pub method: u16,
    attrs: [Attr; ATTRS_MAX],
    count: usize,
}

impl Ioctl {
    /// Copies a call from the calling process.
    pub(crate) fn read(at: usize) -> Result<Self, Errno> {
        let mut header = [0; HEADER_BYTES];
        guard::read(at as u64, &mut header)?;
        let half = |index: usize| u16::from_ne_bytes([header[index], header[index + 1]]);
        let (length, object, method, count) = (half(0), half(2), half(4), usize::from(half(6)));
        let fits = usize::from(length) == HEADER_BYTES + count * ATTR_BYTES;
        if !fits || count > ATTRS_MAX {
            return Err(Errno(libc::EINVAL));
        }
        // struct ib_uverbs_ioctl_hdr: reserved1, driver_id, reserved2
        if header[8..16] != [0; 8] || header[20..24] != [0; 4] {
            return Err(Errno(libc::EPROTONOSUPPORT));
        }
        if header[16..20] != DRIVER_MLX5 {
            return Err(Errno(libc::EINVAL));
        }
        let mut ioctl = Self {
            object,
            method,
            attrs: [Attr::default(); ATTRS_MAX],
            count,
        };
        for (index, attr) in ioctl.attrs[..count].iter_mut().enumerate() {
            let mut bytes = [0; ATTR_BYTES];
            let at = at as u64 + (HEADER_BYTES + index * ATTR_BYTES) as u64;
            guard::read(at, &mut bytes)?;
            *attr = parse_attr(&bytes, at);
        }
        Ok(ioctl)
    }

    /// The attributes in the caller's order.
    pub(super) fn attrs(&self) -> &[Attr] {
        &self.attrs[..self.count]
    }

    fn attr(&self, id: u16) -> Option<&Attr> {
        self.attrs().iter().find(|attr| attr.id == id)
    }

    /// Flags. Only those in `allowed` are accepted. An absent attribute means no flags
    /// (`uverbs_get_flags32`).
    pub(crate) fn flags(&self, id: u16, allowed: u32) -> Result<u32, Errno> {
        let flags = match self.attr(id) {
            None => 0,
            Some(attr) if attr.length == 4 => u64::from(low32(attr.data)),
            Some(attr) => attr.data,
        };
        match u32::try_from(flags) {
            Ok(flags) if flags & !allowed == 0 => Ok(flags),
            _ => Err(Errno(libc::EINVAL)),
        }
    }

    /// A call with these attributes.
    #[cfg(test)]
    pub(super) fn of(object: u16, method: u16, attrs: &[Attr]) -> Self {
        let mut ioctl = Self {
            object,
            method,
            attrs: [Attr::default(); ATTRS_MAX],
            count: attrs.len(),
        };
        ioctl.attrs[..attrs.len()].copy_from_slice(attrs);
        ioctl
    }

    /// True if the call has the attribute.
    pub(crate) fn has(&self, id: u16) -> bool {
        self.attr(id).is_some()
    }

    /// A number, handle or file of up to eight bytes.
    pub(crate) fn number(&self, id: u16) -> Result<u64, Errno> {
        self.attr(id)
            .map(|attr| attr.data)
            .ok_or(Errno(libc::EINVAL))
    }

    /// Like [`Ioctl::number`], truncated to 32 bits as in the kernel.
    pub(crate) fn number32(&self, id: u16) -> Result<u32, Errno> {
        self.number(id).map(low32)
    }

    /// A file descriptor.
    pub(crate) fn file(&self, id: u16) -> Result<i32, Errno> {
        let [a, b, c, d, ..] = self.number(id)?.to_ne_bytes();
        Ok(i32::from_ne_bytes([a, b, c, d]))
    }

    /// Input data. If it is shorter than `least` bytes, the missing bytes are zero.
    pub(crate) fn input(&self, id: u16, least: usize) -> Result<Vec<u8>, Errno> {
        let attr = self.attr(id).ok_or(Errno(libc::EINVAL))?;
        let length = usize::from(attr.length);
        if length > INPUT_BYTES_MAX {
            return Err(Errno(libc::EINVAL));
        }
        let mut bytes = vec![0; length.max(least)];
        if attr.is_inline() {
            bytes[..length].copy_from_slice(&attr.data.to_ne_bytes()[..length]);
        } else {
            guard::read(attr.data, &mut bytes[..length])?;
        }
        Ok(bytes)
    }

    /// Bytes of the caller's output buffer; 0 if it has none.
    pub(crate) fn capacity(&self, id: u16) -> usize {
        self.attr(id).map_or(0, |attr| usize::from(attr.length))
    }

    /// Writes an answer into the caller's buffer. A longer answer is cut; the rest of a longer
    /// buffer is zeroed.
    pub(crate) fn answer(&self, id: u16, bytes: &[u8]) -> Result<(), Errno> {
        let Some(attr) = self.attr(id) else {
            return Ok(());
        };
        let capacity = usize::from(attr.length);
        let taken = bytes.len().min(capacity);
        // SAFETY: the caller named this memory for output.
        unsafe { guard::write(attr.data, &bytes[..taken]) }?;
        if capacity > taken {
            let zeroes = vec![0; capacity - taken];
            // SAFETY: as above.
            unsafe { guard::write(attr.data.wrapping_add(taken as u64), &zeroes) }?;
        }
        let flags = attr.flags | F_VALID_OUTPUT;
        // SAFETY: the attribute itself belongs to the caller, for the answer.
        unsafe { guard::write(attr.at + 4, &flags.to_ne_bytes()) }
    }

    /// Answers with a handle or a file descriptor, in the attribute itself.
    pub(crate) fn answer_handle(&self, id: u16, handle: u64) -> Result<(), Errno> {
        let attr = self.attr(id).ok_or(Errno(libc::EINVAL))?;
        // SAFETY: as above.
        unsafe { guard::write(attr.at + 8, &handle.to_ne_bytes()) }
    }
}

fn parse_attr(bytes: &[u8; ATTR_BYTES], at: u64) -> Attr {
    let [
        id0,
        id1,
        len0,
        len1,
        flags0,
        flags1,
        more0,
        more1,
        data @ ..,
    ] = *bytes;
    Attr {
        id: u16::from_ne_bytes([id0, id1]),
        length: u16::from_ne_bytes([len0, len1]),
        flags: u16::from_ne_bytes([flags0, flags1]),
        reserved: u16::from_ne_bytes([more0, more1]),
        data: u64::from_ne_bytes(data),
        at,
    }
}

/// A structure of the kernel's interface, read by field offset. The byte order is native. Bytes
/// beyond its end are zero.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fields<'a>(pub &'a [u8]);

impl Fields<'_> {
    fn array<const N: usize>(self, at: usize) -> [u8; N] {
        let mut array = [0; N];
        for (to, from) in array.iter_mut().zip(self.0.iter().skip(at)) {
            *to = *from;
        }
        array
    }

    pub(crate) fn u8(self, at: usize) -> u8 {
        self.array::<1>(at)[0]
    }

    pub(crate) fn u16(self, at: usize) -> u16 {
        u16::from_ne_bytes(self.array(at))
    }

    pub(crate) fn u32(self, at: usize) -> u32 {
        u32::from_ne_bytes(self.array(at))
    }

    pub(crate) fn u64(self, at: usize) -> u64 {
        u64::from_ne_bytes(self.array(at))
    }

    pub(crate) fn bytes16(self, at: usize) -> [u8; 16] {
        self.array(at)
    }
}

/// An answer of the kernel's interface, written by field offset.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    bytes: Vec<u8>,
}

impl Answer {
    pub(crate) fn new(length: usize) -> Self {
        Self {
            bytes: vec![0; length],
        }
    }

    pub(crate) fn put(&mut self, at: usize, value: &[u8]) -> &mut Self {
        if let Some(target) = self.bytes.get_mut(at..at + value.len()) {
            target.copy_from_slice(value);
        }
        self
    }

    pub(crate) fn u8(&mut self, at: usize, value: u8) -> &mut Self {
        self.put(at, &[value])
    }

    pub(crate) fn u16(&mut self, at: usize, value: u16) -> &mut Self {
        self.put(at, &value.to_ne_bytes())
    }

    pub(crate) fn u32(&mut self, at: usize, value: u32) -> &mut Self {
        self.put(at, &value.to_ne_bytes())
    }

    pub(crate) fn u64(&mut self, at: usize, value: u64) -> &mut Self {
        self.put(at, &value.to_ne_bytes())
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.bytes
    }
}
