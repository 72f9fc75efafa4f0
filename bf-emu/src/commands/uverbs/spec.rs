//! The form of a call: attributes of each method as the kernel declares them, and the kernel's
//! errors (`uverbs_ioctl.c`, `uverbs_process_attr`, `ib_uverbs_run_method`).
//!
//! The kernel ignores an unknown attribute unless the caller marks it as mandatory. A known
//! attribute occurs once and has its declared form. A mandatory attribute must be present.

use super::abi;
use super::ioctl::{Attr, F_MANDATORY, Ioctl};
use crate::commands::call::Call;
use crate::guard;
use crate::sys::Errno;

/// The form of an attribute's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// The number of an object or file, in the attribute itself.
    Object,
    /// Input bytes: the smallest and the largest length. If zeroes may follow, the largest length
    /// applies to the part before them.
    In(u16, u16, Zeroes),
    /// Output buffer: the smallest and the largest length.
    Out(u16, u16),
}

/// Permission for a structure to be longer than the known one, if the rest is zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Zeroes {
    /// The structure must not be longer.
    No,
    /// Zeroes may follow the structure.
    MayFollow,
}

/// An attribute of a method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Known {
    id: u16,
    form: Form,
    needed: bool,
}

/// Any length. The length field of an attribute has 16 bits.
const ANY: u16 = u16::MAX;

/// The handle of an object, or a file descriptor.
pub(super) const fn object(id: u16) -> Known {
    Known {
        id,
        form: Form::Object,
        needed: true,
    }
}

/// An input value of exactly `bytes` bytes.
pub(super) const fn value(id: u16, bytes: u16) -> Known {
    Known {
        id,
        form: Form::In(bytes, bytes, Zeroes::No),
        needed: true,
    }
}

/// A constant: eight bytes (`UVERBS_ATTR_CONST_IN`).
pub(super) const fn constant(id: u16) -> Known {
    value(id, 8)
}

/// Flags: four or eight bytes (`UVERBS_ATTR_FLAGS_IN`).
pub(super) const fn flags(id: u16) -> Known {
    Known {
        id,
        form: Form::In(4, 8, Zeroes::No),
        needed: true,
    }
}

/// Input of at least `least` bytes.
pub(super) const fn bytes(id: u16, least: u16) -> Known {
    Known {
        id,
        form: Form::In(least, ANY, Zeroes::No),
        needed: true,
    }
}

/// An input structure of `known` bytes. A newer structure may be longer if the rest is zero.
pub(super) const fn structure(id: u16, known: u16) -> Known {
    Known {
        id,
        form: Form::In(known, known, Zeroes::MayFollow),
        needed: true,
    }
}

/// Output buffer for a value of `bytes` bytes.
pub(super) const fn answer(id: u16, bytes: u16) -> Known {
    Known {
        id,
        form: Form::Out(bytes, bytes),
        needed: true,
    }
}

/// Output buffer of at least `least` bytes.
pub(super) const fn capacity(id: u16, least: u16) -> Known {
    Known {
        id,
        form: Form::Out(least, ANY),
        needed: true,
    }
}

impl Known {
    /// The same attribute, but not mandatory.
    pub(super) const fn optional(self) -> Self {
        Self {
            needed: false,
            ..self
        }
    }
}

/// The function that executes a call.
pub(super) type Run = fn(&Call<'_>, &Ioctl) -> Result<(), Errno>;

/// A method of a class of objects.
pub(super) struct Method {
    pub(super) object: u16,
    pub(super) method: u16,
    pub(super) attrs: &'static [Known],
    /// The method also accepts data of the driver (`UVERBS_ATTR_UHW`).
    pub(super) driver_data: bool,
    pub(super) run: Run,
}

const DRIVER_DATA: [Known; 2] = [
    bytes(abi::UHW_IN, 0).optional(),
    capacity(abi::UHW_OUT, 0).optional(),
];

impl Method {
    fn known(&self) -> impl Iterator<Item = &Known> {
        let driver: &[Known] = if self.driver_data { &DRIVER_DATA } else { &[] };
        self.attrs.iter().chain(driver)
    }

    /// Checks a call against the attributes of the method.
    pub(super) fn check(&self, ioctl: &Ioctl) -> Result<(), Errno> {
        let attrs = ioctl.attrs();
        for (index, attr) in attrs.iter().enumerate() {
            let Some(known) = self.known().find(|known| known.id == attr.id) else {
                if attr.flags & F_MANDATORY != 0 {
                    return Err(Errno(libc::EPROTONOSUPPORT));
                }
                continue;
            };
            if attrs[..index].iter().any(|earlier| earlier.id == attr.id) {
                return Err(Errno(libc::EINVAL));
            }
            check_form(known.form, attr)?;
        }
        let missing =
            |known: &&Known| known.needed && !attrs.iter().any(|attr| attr.id == known.id);
        match self.known().find(missing) {
            Some(_) => Err(Errno(libc::EINVAL)),
            None => Ok(()),
        }
    }
}

fn check_form(form: Form, attr: &Attr) -> Result<(), Errno> {
    let fits = match form {
        Form::Object => attr.length == 0,
        Form::In(least, most, Zeroes::No) => (least..=most).contains(&attr.length),
        Form::In(least, most, Zeroes::MayFollow) => {
            if attr.length > most && !is_zero_behind(attr, usize::from(most))? {
                return Err(Errno(libc::EOPNOTSUPP));
            }
            attr.length >= least
        }
        Form::Out(least, most) => (least..=most).contains(&attr.length),
    };
    if fits && attr.reserved == 0 {
        Ok(())
    } else {
        Err(Errno(libc::EINVAL))
    }
}

/// True if all bytes of an input after the first `known` are zero.
fn is_zero_behind(attr: &Attr, known: usize) -> Result<bool, Errno> {
    const CHUNK: usize = 256;
    let length = usize::from(attr.length);
    if attr.is_inline() {
        let bytes = attr.data.to_ne_bytes();
        return Ok(bytes[known.min(length)..length]
            .iter()
            .all(|&byte| byte == 0));
    }
    let mut at = known;
    while at < length {
        let mut bytes = [0; CHUNK];
        let part = &mut bytes[..CHUNK.min(length - at)];
        guard::read(attr.data.wrapping_add(at as u64), part)?;
        if part.iter().any(|&byte| byte != 0) {
            return Ok(false);
        }
        at += part.len();
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OBJECT: u16 = 1;
    const VALUE: u16 = 2;
    const FLAGS: u16 = 3;
    const STRUCTURE: u16 = 4;
    const ANSWER: u16 = 5;

    const METHOD: Method = Method {
        object: 0,
        method: 0,
        attrs: &[
            object(OBJECT),
            value(VALUE, 4).optional(),
            flags(FLAGS).optional(),
            structure(STRUCTURE, 4).optional(),
            answer(ANSWER, 8).optional(),
        ],
        driver_data: true,
        run: |_, _| Ok(()),
    };

    fn attr(id: u16, length: u16, data: u64) -> Attr {
        Attr {
            id,
            length,
            flags: F_MANDATORY,
            data,
            ..Attr::default()
        }
    }

    #[track_caller]
    fn check(attrs: &[Attr], expect: Result<(), i32>) {
        let ioctl = Ioctl::of(0, 0, attrs);
        assert_eq!(METHOD.check(&ioctl), expect.map_err(Errno));
    }

    #[test]
    fn a_call_must_have_what_is_needed_once() {
        let handle = attr(OBJECT, 0, 7);
        check(&[handle], Ok(()));
        check(&[], Err(libc::EINVAL));
        check(&[handle, handle], Err(libc::EINVAL));
        check(&[handle, attr(abi::UHW_IN, 300, 0)], Ok(()));
    }

    #[test]
    fn what_is_not_known_is_passed_over_unless_the_caller_insists() {
        let (handle, unknown) = (attr(OBJECT, 0, 7), attr(0x77, 3, 0));
        check(&[handle, unknown], Err(libc::EPROTONOSUPPORT));
        let free = Attr {
            flags: 0,
            ..unknown
        };
        check(&[handle, free, free], Ok(()));
    }

    #[test]
    fn each_attribute_has_its_form() {
        let handle = attr(OBJECT, 0, 7);
        for (attr, expect) in [
            (attr(VALUE, 4, 0), Ok(())),
            (attr(VALUE, 3, 0), Err(libc::EINVAL)),
            (attr(VALUE, 8, 0), Err(libc::EINVAL)),
            (attr(FLAGS, 4, 0), Ok(())),
            (attr(FLAGS, 8, 0), Ok(())),
            (attr(FLAGS, 2, 0), Err(libc::EINVAL)),
            (attr(STRUCTURE, 2, 0), Err(libc::EINVAL)),
            (attr(STRUCTURE, 4, u64::MAX), Ok(())),
            (attr(STRUCTURE, 8, 0xffff_ffff), Ok(())),
            (attr(STRUCTURE, 8, 1 << 32), Err(libc::EOPNOTSUPP)),
            (attr(ANSWER, 8, 0), Ok(())),
            (attr(ANSWER, 16, 0), Err(libc::EINVAL)),
        ] {
            check(&[handle, attr], expect);
        }
        check(&[attr(OBJECT, 4, 7)], Err(libc::EINVAL));
        let reserved = Attr {
            reserved: 1,
            ..handle
        };
        check(&[reserved], Err(libc::EINVAL));
    }

    /// A longer structure is read in pieces up to its end, and no further.
    #[test]
    fn a_newer_structure_must_be_zero_where_it_is_newer() {
        let handle = attr(OBJECT, 0, 7);
        for (place, expect) in [
            (None, Ok(())),
            (Some(3), Ok(())),
            (Some(4), Err(libc::EOPNOTSUPP)),
            (Some(599), Err(libc::EOPNOTSUPP)),
            (Some(600), Ok(())),
        ] {
            let mut bytes = vec![0u8; 601];
            if let Some(place) = place {
                bytes[place] = 1;
            }
            let at = bytes.as_ptr().expose_provenance() as u64;
            check(&[handle, attr(STRUCTURE, 600, at)], expect);
        }
    }
}
