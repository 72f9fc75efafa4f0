//! Checks of single values in a topology file.

use std::collections::BTreeSet;
use std::path::Path;

use super::{NAME_MAX, TopologyError};

/// The values of one unique key so far, with the position of each.
pub(super) struct Unique<'a> {
    file: &'a Path,
    seen: Vec<(String, String)>,
}

impl<'a> Unique<'a> {
    pub(super) fn new(file: &'a Path) -> Self {
        Unique {
            file,
            seen: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, key: String, value: String) -> Result<(), TopologyError> {
        if let Some((_, first)) = self.seen.iter().find(|(seen, _)| *seen == value) {
            return Err(TopologyError::Duplicate {
                file: self.file.to_owned(),
                key,
                value,
                first: first.clone(),
            });
        }
        self.seen.push((value, key));
        Ok(())
    }
}

/// Allocates the smallest numbers from 1 that the file does not use itself.
pub(super) struct Numbers {
    taken: BTreeSet<i64>,
    next: i64,
}

impl Numbers {
    pub(super) fn new(taken: impl Iterator<Item = i64>) -> Self {
        Numbers {
            taken: taken.collect(),
            next: 1,
        }
    }

    pub(super) fn pick(&mut self, given: Option<i64>) -> i64 {
        given.unwrap_or_else(|| {
            while self.taken.contains(&self.next) {
                self.next += 1;
            }
            self.next += 1;
            self.next - 1
        })
    }
}

pub(super) fn value_error(
    file: &Path,
    key: impl Into<String>,
    value: impl ToString,
    allowed: impl Into<String>,
) -> TopologyError {
    TopologyError::Value {
        file: file.to_owned(),
        key: key.into(),
        value: value.to_string(),
        allowed: allowed.into(),
    }
}

pub(super) fn checked_name(file: &Path, key: String, name: &str) -> Result<String, TopologyError> {
    let fits = (1..=NAME_MAX).contains(&name.len());
    let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
    if fits && name.bytes().all(plain) {
        return Ok(name.to_owned());
    }
    let allowed = format!("1..={NAME_MAX} characters of a-z A-Z 0-9 _ -");
    Err(value_error(file, key, format!("{name:?}"), allowed))
}

pub(super) fn checked_number(
    file: &Path,
    key: String,
    value: i64,
    max: u16,
) -> Result<u16, TopologyError> {
    u16::try_from(value)
        .ok()
        .filter(|number| (1..=max).contains(number))
        .ok_or_else(|| value_error(file, key, value, format!("1..={max}")))
}

pub(super) fn checked_guid(file: &Path, key: String, text: &str) -> Result<u64, TopologyError> {
    guid_parse(text).filter(|guid| *guid != 0).ok_or_else(|| {
        let allowed = "four groups of four hexadecimal digits, \"02bf:0000:0000:0101\", not zero";
        value_error(file, key, format!("{text:?}"), allowed)
    })
}

pub(super) fn checked_bdf(file: &Path, key: String, text: &str) -> Result<String, TopologyError> {
    let pattern = b"hhhh:hh:hh.f";
    let fits = text.len() == pattern.len()
        && text.bytes().zip(pattern).all(|(byte, want)| match want {
            b'h' => matches!(byte, b'0'..=b'9' | b'a'..=b'f'),
            b'f' => matches!(byte, b'0'..=b'7'),
            separator => byte == *separator,
        });
    // A PCI bus has 32 devices. The slice is ASCII because it matched the pattern.
    if fits && u8::from_str_radix(&text[8..10], 16).is_ok_and(|device| device < 32) {
        return Ok(text.to_owned());
    }
    let allowed = "dddd:bb:dd.f in lower-case hexadecimal, \"bf00:03:00.0\"";
    Err(value_error(file, key, format!("{text:?}"), allowed))
}

fn guid_parse(text: &str) -> Option<u64> {
    let mut guid = 0;
    let mut groups = 0;
    for group in text.split(':') {
        groups += 1;
        if groups > 4 || group.len() != 4 || !group.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        guid = guid << 16 | u64::from(u16::from_str_radix(group, 16).ok()?);
    }
    (groups == 4).then_some(guid)
}
