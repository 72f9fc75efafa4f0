//! The regions of a session, from the caller's parameters. Checks everything that needs no device.

use crate::error::ArgumentError;
use crate::wire::{FUNCTION_MAX, REGION_BYTES_MAX, REGIONS_MAX, flag};

/// A parameter of a function: memory of the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Param {
    /// First address.
    pub addr: u64,
    /// Size in bytes.
    pub size: u64,
    /// The accelerator receives the region with the first call only.
    pub single_send: bool,
}

/// A region of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    /// First address.
    pub addr: u64,
    /// Size in bytes.
    pub size: u32,
    /// The session writes it to the accelerator.
    pub input: bool,
    /// The accelerator writes it back.
    pub output: bool,
    /// It is an input of the first call only.
    pub single_send: bool,
}

impl Region {
    /// The flags of the announcement.
    #[must_use]
    pub const fn flags(&self) -> u8 {
        let mut flags = 0;
        if self.single_send {
            flags |= flag::SINGLE_SEND;
        }
        if self.input {
            flags |= flag::INPUT;
        }
        if self.output {
            flags |= flag::OUTPUT;
        }
        flags
    }
}

/// Checks a function code.
///
/// # Errors
/// If it is 0 or above 127.
pub fn check_function(code: u32) -> Result<u8, ArgumentError> {
    u8::try_from(code)
        .ok()
        .filter(|code| (1..=FUNCTION_MAX).contains(code))
        .ok_or(ArgumentError::Function(code))
}

/// The regions of inputs and outputs: inputs first, then outputs that are no inputs, both in the caller's order.
///
/// # Errors
/// If there are no regions or too many, if one has no address, no bytes, too many bytes, or exceeds the address space,
/// and if two overlap. An output with address and size of an input is the same region.
pub fn regions(inputs: &[Param], outputs: &[Param]) -> Result<Vec<Region>, ArgumentError> {
    let mut regions: Vec<(String, Region)> = Vec::new();
    let all = inputs.len().saturating_add(outputs.len());
    if all == 0 {
        return Err(ArgumentError::NoRegions);
    }
    // Before any comparison of pairs: a caller's wrong count must not cost a long time.
    if inputs.len() > REGIONS_MAX || outputs.len() > REGIONS_MAX {
        return Err(ArgumentError::TooManyRegions(all));
    }
    for (index, param) in inputs.iter().enumerate() {
        let name = format!("input {index}");
        let size = check(param, &name)?;
        regions.push((
            name,
            Region {
                addr: param.addr,
                size,
                input: true,
                output: false,
                single_send: param.single_send,
            },
        ));
    }
    for (index, param) in outputs.iter().enumerate() {
        let name = format!("output {index}");
        let size = check(param, &name)?;
        let same = regions
            .iter_mut()
            .find(|(_, region)| (region.addr, region.size) == (param.addr, size) && !region.output);
        match same {
            Some((_, region)) => {
                region.output = true;
                region.single_send |= param.single_send;
            }
            None => regions.push((
                name,
                Region {
                    addr: param.addr,
                    size,
                    // As in the original library, an output that is sent once is an input of the first call.
                    input: param.single_send,
                    output: true,
                    single_send: param.single_send,
                },
            )),
        }
    }
    if regions.len() > REGIONS_MAX {
        return Err(ArgumentError::TooManyRegions(regions.len()));
    }
    check_overlaps(&regions)?;
    Ok(regions.into_iter().map(|(_, region)| region).collect())
}

fn check(param: &Param, name: &str) -> Result<u32, ArgumentError> {
    let Param { addr, size, .. } = *param;
    if addr == 0 {
        return Err(ArgumentError::Null(name.to_owned()));
    }
    if size == 0 {
        return Err(ArgumentError::Empty(name.to_owned()));
    }
    if addr.checked_add(size).is_none() {
        return Err(ArgumentError::Range(name.to_owned()));
    }
    u32::try_from(size).map_err(|_| ArgumentError::TooLarge {
        name: name.to_owned(),
        size: size.max(REGION_BYTES_MAX + 1),
    })
}

fn check_overlaps(regions: &[(String, Region)]) -> Result<(), ArgumentError> {
    let mut order: Vec<&(String, Region)> = regions.iter().collect();
    order.sort_by_key(|(_, region)| region.addr);
    for pair in order.windows(2) {
        let [(first, a), (second, b)] = pair else {
            continue;
        };
        // Cannot overflow: the range was checked.
        if a.addr + u64::from(a.size) > b.addr {
            return Err(ArgumentError::Overlap {
                first: first.clone(),
                second: second.clone(),
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn param(addr: u64, size: u64) -> Param {
        Param {
            addr,
            size,
            single_send: false,
        }
    }

    #[test]
    fn a_region_that_is_input_and_output_is_one() {
        let once = Param {
            single_send: true,
            ..param(0x3000, 1)
        };
        let found = regions(
            &[param(0x1000, 8), param(0x2000, 8), once],
            &[param(0x1000, 8), param(0x4000, 4)],
        )
        .expect("they are valid");
        let flags: Vec<_> = found
            .iter()
            .map(|region| (region.addr, region.flags()))
            .collect();
        assert_eq!(
            flags,
            [
                (0x1000, flag::INPUT | flag::OUTPUT),
                (0x2000, flag::INPUT),
                (0x3000, flag::INPUT | flag::SINGLE_SEND),
                (0x4000, flag::OUTPUT),
            ]
        );
    }

    #[test]
    fn what_cannot_be_a_region_is_refused_by_name() {
        let check = |inputs: &[Param], outputs: &[Param], expect: &str| {
            let error = regions(inputs, outputs).expect_err(expect).to_string();
            assert!(error.starts_with(expect), "{error}");
        };
        check(&[], &[], "no regions");
        check(&[param(0, 8)], &[], "input 0: the address is NULL");
        check(
            &[param(8, 8)],
            &[param(64, 0)],
            "output 0: the size is 0 bytes",
        );
        check(&[param(8, 1 << 32)], &[], "input 0: 4294967296 bytes");
        check(&[param(u64::MAX - 4, 8)], &[], "input 0: address plus size");
        check(
            &[param(8, 8), param(12, 8)],
            &[],
            "input 0 and input 1 overlap",
        );
        check(
            &[param(8, 8)],
            &[param(8, 4)],
            "input 0 and output 0 overlap",
        );
        check(
            &[param(8, 8), param(8, 8)],
            &[],
            "input 0 and input 1 overlap",
        );
        check(
            &[],
            &[param(8, 8), param(8, 8)],
            "output 0 and output 1 overlap",
        );
        let many: Vec<Param> = (1..=33).map(|n| param(n * 0x1000, 1)).collect();
        check(&many, &[], "33 regions");
        check(&many[..20], &many[20..], "33 regions");
        assert!(regions(&many[..32], &many[..32]).is_ok());
    }

    #[test]
    fn function_codes_have_seven_bits() {
        for code in [0, 128, 256, u32::MAX] {
            assert_eq!(check_function(code), Err(ArgumentError::Function(code)));
        }
        assert_eq!((check_function(1), check_function(127)), (Ok(1), Ok(127)));
    }
}
