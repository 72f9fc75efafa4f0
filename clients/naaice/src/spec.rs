//! `NAA_SPEC`: the accelerators of a job.
//!
//! ```text
//! NAA_SPEC = ENTRY[,ENTRY...]        ENTRY = [SCHEME/]ADDRESS:[PORT]:FUNCTION:INPUTS
//! ```
//!
//! A job's resource manager, or the user, writes one entry per accelerator and function. ADDRESS is an IPv4 address, a
//! host name, or an IPv6 address in brackets. An empty PORT is 12345. INPUTS is the number of input regions of the
//! function. SCHEME `dpu` names an `xgvmi-naa` service on this host's DPU; `verbs` is the default.

use crate::error::{ArgumentError, NaaError, Result, SpecError};
use crate::wire::FUNCTION_MAX;
use std::sync::Mutex;

/// Port of an entry without one.
pub const DEFAULT_PORT: u16 = 12345;
/// Maximum number of entries.
pub const ENTRIES_MAX: usize = 1024;
/// The environment variable.
pub const VARIABLE: &str = "NAA_SPEC";

const FIELDS: [&str; 4] = ["address", "port", "function code", "number of inputs"];

/// How a session reaches its accelerator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// An RDMA connection. The host writes inputs, the accelerator writes outputs.
    Verbs,
    /// A service on the host's DPU, which reads and writes the host's memory through aliases of exported keys.
    Dpu,
}

/// One accelerator and function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Way to the accelerator.
    pub scheme: Scheme,
    /// Address without port, without brackets.
    pub address: String,
    /// TCP port.
    pub port: u16,
    /// Function code, 1 to 127.
    pub function: u8,
    /// Number of the function's input regions.
    pub inputs: u32,
}

impl Entry {
    /// Address and port, for messages.
    #[must_use]
    pub fn peer(&self) -> String {
        if self.address.contains(':') {
            format!("[{}]:{}", self.address, self.port)
        } else {
            format!("{}:{}", self.address, self.port)
        }
    }
}

/// Reads a specification.
///
/// # Errors
/// The first fault, with its entry, field and column. Nothing of a faulty specification is used.
pub fn parse(text: &str) -> std::result::Result<Vec<Entry>, SpecError> {
    let mut entries = Vec::new();
    let mut column = 1;
    for (index, chunk) in text.split(',').enumerate() {
        let place = Place {
            entry: index + 1,
            column,
        };
        if index == ENTRIES_MAX {
            return Err(place.fault(0, 0, format!("more than {ENTRIES_MAX} entries")));
        }
        entries.push(parse_entry(chunk, place)?);
        column += chunk.chars().count() + 1;
    }
    Ok(entries)
}

#[derive(Debug, Clone, Copy)]
struct Place {
    entry: usize,
    /// Column of the entry's first character.
    column: usize,
}

impl Place {
    /// A fault in field `field`, from 0, that begins `offset` characters after the entry.
    fn fault(self, field: usize, offset: usize, what: String) -> SpecError {
        SpecError {
            entry: self.entry,
            field: field + 1,
            name: FIELDS[field.min(FIELDS.len() - 1)],
            column: self.column + offset,
            what,
        }
    }
}

fn parse_entry(chunk: &str, place: Place) -> std::result::Result<Entry, SpecError> {
    // The colons of a bracketed address separate no fields.
    let after_address = chunk.rfind(']').map_or(0, |end| end + 1);
    let colon = chunk[after_address..]
        .find(':')
        .map(|at| after_address + at);
    let (address, rest) = match colon {
        Some(at) => (&chunk[..at], Some(&chunk[at + 1..])),
        None => (chunk, None),
    };
    let (scheme, address) = parse_address(address, place)?;
    let mut offset = chunk.chars().count() - rest.map_or(0, |rest| rest.chars().count());
    let mut numbers = [0_u32; 3];
    let mut fields = rest.map(|rest| rest.split(':')).into_iter().flatten();
    for (index, number) in numbers.iter_mut().enumerate() {
        let field = index + 1;
        let Some(word) = fields.next() else {
            let what = format!("missing; an entry is {}", FIELDS.join(":"));
            return Err(place.fault(field, offset, what));
        };
        let (least, most) = match field {
            1 => (1, u32::from(u16::MAX)),
            2 => (1, u32::from(FUNCTION_MAX)),
            _ => (0, 32),
        };
        *number = match (field, word) {
            (1, "") => u32::from(DEFAULT_PORT),
            _ => {
                parse_number(word, least, most).map_err(|what| place.fault(field, offset, what))?
            }
        };
        offset += word.chars().count() + 1;
    }
    if fields.next().is_some() {
        let what = format!("another field follows; an entry is {}", FIELDS.join(":"));
        return Err(place.fault(3, offset - 1, what));
    }
    let [port, function, inputs] = numbers;
    Ok(Entry {
        scheme,
        address,
        port: u16::try_from(port).expect("checked above"),
        function: u8::try_from(function).expect("checked above"),
        inputs,
    })
}

fn parse_address(text: &str, place: Place) -> std::result::Result<(Scheme, String), SpecError> {
    let (scheme, address, offset) = match text.split_once('/') {
        Some(("dpu", address)) => (Scheme::Dpu, address, 4),
        Some(("verbs", address)) => (Scheme::Verbs, address, 6),
        Some((other, _)) => {
            let what = format!("scheme '{other}'; there are dpu and verbs");
            return Err(place.fault(0, 0, what));
        }
        None => (Scheme::Verbs, text, 0),
    };
    let bare = match address.strip_prefix('[') {
        Some(inner) => inner.strip_suffix(']').ok_or_else(|| {
            place.fault(
                0,
                offset,
                format!("'{address}' has no closing bracket at its end"),
            )
        })?,
        None => address,
    };
    let bad = bare
        .chars()
        .find(|c| c.is_whitespace() || c.is_control() || "[]".contains(*c));
    match (bare, bad) {
        ("", _) => Err(place.fault(0, offset, "empty".to_owned())),
        (_, Some(bad)) => Err(place.fault(0, offset, format!("{bad:?} in an address"))),
        _ => Ok((scheme, bare.to_owned())),
    }
}

fn parse_number(word: &str, least: u32, most: u32) -> std::result::Result<u32, String> {
    let digits = !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
    let number = if digits { word.parse().ok() } else { None };
    number
        .filter(|number| (least..=most).contains(number))
        .ok_or_else(|| format!("'{word}'; a number from {least} to {most} is expected"))
}

/// Accelerators that sessions of this process use at the moment. An accelerator serves one session at a time.
static IN_USE: Mutex<Vec<Entry>> = Mutex::new(Vec::new());

/// An accelerator that belongs to one session. Dropping it frees the accelerator.
#[derive(Debug)]
pub struct Claim {
    entry: Entry,
}

impl Claim {
    /// Claims the first free accelerator for the function.
    ///
    /// # Errors
    /// If the specification has none for this function, if all are in use, or if the number of inputs differs.
    pub fn take(entries: &[Entry], function: u8, inputs: usize) -> Result<Self> {
        let none = |reason: &str| NaaError::NoAccelerator {
            function,
            reason: reason.to_owned(),
        };
        let mut in_use = IN_USE
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut of_function = entries
            .iter()
            .filter(|entry| entry.function == function)
            .peekable();
        if of_function.peek().is_none() {
            return Err(none("NAA_SPEC has no entry for it"));
        }
        // An entry that the text repeats may be used as often as it is there.
        let mut used = in_use.clone();
        let is_free = |entry: &&Entry| match used.iter().position(|other| other == *entry) {
            Some(at) => {
                used.swap_remove(at);
                false
            }
            None => true,
        };
        let free: Vec<&Entry> = of_function.filter(is_free).collect();
        let fitting = free.iter().find(|entry| entry.inputs as usize == inputs);
        let free = fitting.or(free.first()).copied();
        let entry =
            free.ok_or_else(|| none("each entry of NAA_SPEC is in use; finalize a session first"))?;
        if entry.inputs as usize != inputs {
            return Err(ArgumentError::Inputs {
                found: inputs,
                expected: entry.inputs,
                function,
                peer: entry.peer(),
            }
            .into());
        }
        in_use.push(entry.clone());
        Ok(Self {
            entry: entry.clone(),
        })
    }

    /// The accelerator.
    #[must_use]
    pub fn entry(&self) -> &Entry {
        &self.entry
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut in_use = IN_USE
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(at) = in_use.iter().position(|entry| *entry == self.entry) {
            in_use.swap_remove(at);
        }
    }
}

/// The specification of the environment.
///
/// # Errors
/// If the variable is not set, is not UTF-8, or is malformed.
pub fn from_env() -> Result<Vec<Entry>> {
    let absent = |what: &str| SpecError {
        entry: 1,
        field: 1,
        name: FIELDS[0],
        column: 1,
        what: what.to_owned(),
    };
    let text = std::env::var(VARIABLE).map_err(|error| match error {
        std::env::VarError::NotPresent => {
            absent("not set; write ADDRESS:PORT:FUNCTION:INPUTS for each accelerator")
        }
        std::env::VarError::NotUnicode(_) => absent("not UTF-8"),
    })?;
    Ok(parse(&text)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(scheme: Scheme, address: &str, port: u16, function: u8, inputs: u32) -> Entry {
        Entry {
            scheme,
            address: address.to_owned(),
            port,
            function,
            inputs,
        }
    }

    #[test]
    fn entries_are_read() {
        let check =
            |text, expect: &[Entry]| assert_eq!(parse(text).as_deref(), Ok(expect), "{text}");
        let verbs =
            |address, port, function, inputs| entry(Scheme::Verbs, address, port, function, inputs);
        check("10.3.10.42:12345:3:1", &[verbs("10.3.10.42", 12345, 3, 1)]);
        check("naa1::127:32", &[verbs("naa1", 12345, 127, 32)]);
        check(
            "a:1:1:0,b:65535:2:4",
            &[verbs("a", 1, 1, 0), verbs("b", 65535, 2, 4)],
        );
        check("[fe80::1]::1:1", &[verbs("fe80::1", 12345, 1, 1)]);
        check(
            "dpu/localhost:7800:1:2",
            &[entry(Scheme::Dpu, "localhost", 7800, 1, 2)],
        );
        check("verbs/h:1:1:2", &[verbs("h", 1, 1, 2)]);
    }

    #[test]
    fn a_fault_has_its_position() {
        let check = |text: &str, expect: &str| {
            let error = parse(text).expect_err(text).to_string();
            assert_eq!(error, expect, "{text}");
        };
        check("", "entry 1, field 1 (address), column 1: empty");
        check(
            "a:1:1:0,,b::1:1",
            "entry 2, field 1 (address), column 9: empty",
        );
        check(
            "a:1:1:0,b:x:1:1",
            "entry 2, field 2 (port), column 11: 'x'; a number from 1 to 65535 is expected",
        );
        check(
            "a:0:1:1",
            "entry 1, field 2 (port), column 3: '0'; a number from 1 to 65535 is expected",
        );
        check(
            "a::0:1",
            "entry 1, field 3 (function code), column 4: '0'; a number from 1 to 127 is expected",
        );
        check(
            "a::128:1",
            "entry 1, field 3 (function code), column 4: '128'; a number from 1 to 127 is expected",
        );
        check(
            "a::1:-1",
            "entry 1, field 4 (number of inputs), column 6: '-1'; a number from 0 to 32 is expected",
        );
        check(
            "a:1:1",
            "entry 1, field 4 (number of inputs), column 7: missing; an entry is address:port:function code:number of \
             inputs",
        );
        check(
            "a",
            "entry 1, field 2 (port), column 2: missing; an entry is address:port:function code:number of inputs",
        );
        check(
            "a:1:1:1:1",
            "entry 1, field 4 (number of inputs), column 8: another field follows; an entry is address:port:function \
             code:number of inputs",
        );
        check(
            "gpu/a:1:1:1",
            "entry 1, field 1 (address), column 1: scheme 'gpu'; there are dpu and verbs",
        );
        check("dpu/:1:1:1", "entry 1, field 1 (address), column 5: empty");
        check(
            "[::1:1:1:1",
            "entry 1, field 1 (address), column 1: '[' has no closing bracket at its end",
        );
        check(
            "a b:1:1:1",
            "entry 1, field 1 (address), column 1: ' ' in an address",
        );
    }

    #[test]
    fn an_accelerator_serves_one_session_and_then_the_next() {
        let entries = parse("claim-test:1:9:2,claim-test:2:9:2").expect("it is well-formed");
        let first = Claim::take(&entries, 9, 2).expect("two are free");
        let second = Claim::take(&entries, 9, 2).expect("one is free");
        assert_eq!((first.entry().port, second.entry().port), (1, 2));
        let error = Claim::take(&entries, 9, 2)
            .expect_err("none is free")
            .to_string();
        assert!(error.contains("in use"), "{error}");
        drop(first);
        assert_eq!(
            Claim::take(&entries, 9, 2)
                .expect("free again")
                .entry()
                .port,
            1
        );
        let error = Claim::take(&entries, 8, 2)
            .expect_err("no entry")
            .to_string();
        assert!(error.contains("has no entry"), "{error}");
    }

    #[test]
    fn a_wrong_number_of_inputs_is_named() {
        let entries = parse("count-test:1:9:2").expect("it is well-formed");
        let error = Claim::take(&entries, 9, 3)
            .expect_err("wrong count")
            .to_string();
        assert_eq!(
            error,
            "3 inputs; NAA_SPEC says that function 9 of count-test:1 takes 2"
        );
    }
}
