//! Maps addresses to owners by the rules of the command line and the program's memory map.

use anyhow::{Result, ensure};
use std::collections::BTreeSet;

/// Maximum number of owners: one bit of a `u32` each, including `other`.
pub(crate) const OWNERS_MAX: usize = 16;

/// Number of an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner(pub(crate) usize);

/// Classification of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Code or data of an owner's object.
    Of(Owner),
    /// Code that is counted for its caller.
    Through,
    /// The stack of the first thread.
    Stack,
}

/// Names and patterns of owners, in the order of the command line.
#[derive(Debug)]
pub(crate) struct Rules {
    names: Vec<String>,
    /// Number of the owner, and a pattern in its objects' paths.
    patterns: Vec<(usize, String)>,
    through: Vec<String>,
    /// Name of the owner whose instructions are counted per address.
    addresses: String,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            names: vec!["other".to_owned()],
            patterns: Vec::new(),
            through: Vec::new(),
            addresses: String::new(),
        }
    }
}

impl Rules {
    pub(crate) fn add(&mut self, name: &str, pattern: &str) -> Result<()> {
        let known = self.names.iter().position(|known| known == name);
        let number = known.unwrap_or(self.names.len());
        if known.is_none() {
            ensure!(number < OWNERS_MAX, "more than {OWNERS_MAX} owners");
            self.names.push(name.to_owned());
        }
        self.patterns.push((number, pattern.to_owned()));
        Ok(())
    }

    pub(crate) fn add_through(&mut self, pattern: &str) {
        self.through.push(pattern.to_owned());
    }

    pub(crate) fn set_addresses(&mut self, name: &str) {
        name.clone_into(&mut self.addresses);
    }

    pub(crate) fn wants_addresses(&self, owner: Owner) -> bool {
        self.names[owner.0] == self.addresses
    }

    /// Names of the owners by their numbers.
    pub(crate) fn names(&self) -> &[String] {
        &self.names
    }

    fn kind_of(&self, path: &str) -> Kind {
        if path == "[stack]" {
            return Kind::Stack;
        }
        let is_in = |pattern: &&String| path.contains(pattern.as_str());
        if let Some((owner, _)) = self.patterns.iter().find(|(_, pattern)| is_in(&pattern)) {
            return Kind::Of(Owner(*owner));
        }
        match self.through.iter().any(|pattern| is_in(&pattern)) {
            true => Kind::Through,
            false => Kind::Of(Owner(0)),
        }
    }
}

/// The program's mappings in ascending order of address.
#[derive(Debug, Default)]
pub(crate) struct Map {
    /// First address, end address (exclusive), classification.
    ranges: Vec<(u64, u64, Kind)>,
    /// Path and first address of each object.
    bases: Vec<(String, u64)>,
}

impl Map {
    /// Parses the format of `/proc/PID/maps`.
    pub(crate) fn parse(text: &str, rules: &Rules) -> Self {
        let mut map = Self::default();
        let mut seen = BTreeSet::new();
        for line in text.lines() {
            // Address range, permissions, offset, device, inode, path.
            let mut words = line.split_whitespace();
            let Some((start, end)) = words.next().and_then(|range| range.split_once('-')) else {
                continue;
            };
            let number = |text: &str| u64::from_str_radix(text, 16);
            let (Ok(start), Ok(end)) = (number(start), number(end)) else {
                continue;
            };
            let path = words.nth(4).unwrap_or_default();
            map.ranges.push((start, end, rules.kind_of(path)));
            if path.starts_with('/') && seen.insert(path) {
                map.bases.push((path.to_owned(), start));
            }
        }
        map
    }

    /// Classification of an address; `None` if it is not mapped.
    pub(crate) fn kind(&self, address: u64) -> Option<Kind> {
        let behind = self.ranges.partition_point(|range| range.0 <= address);
        let (_, end, kind) = *self.ranges.get(behind.checked_sub(1)?)?;
        (address < end).then_some(kind)
    }

    /// Formats the address as path and offset.
    pub(crate) fn name(&self, address: u64) -> String {
        let below = self.bases.iter().filter(|(_, base)| *base <= address);
        match below.max_by_key(|(_, base)| *base) {
            Some((path, base)) => format!("{path}+{:#x}", address - base),
            None => format!("{address:#x}"),
        }
    }

    /// First address of the object whose path contains the pattern.
    pub(crate) fn base(&self, pattern: &str) -> Option<u64> {
        let mut bases = self.bases.iter();
        bases
            .find(|(path, _)| path.contains(pattern))
            .map(|(_, base)| *base)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_belongs_to_the_first_rule_that_names_its_object() {
        let mut rules = Rules::default();
        rules.add("ours", "libours.so").expect("room");
        rules.add("ucx", "/libuc").expect("room");
        rules.add("ucx", "/ucx/").expect("room");
        rules.add_through("libc.so");
        let text = "1000-2000 r-xp 00000000 00:00 1 /lib/ucx/libours.so\n\
                    2000-3000 r-xp 00000000 00:00 2 /lib/libucp.so.0\n\
                    4000-5000 r-xp 00000000 00:00 3 /lib/libc.so.6\n\
                    5000-6000 rw-p 00000000 00:00 0\n\
                    7000-8000 rw-p 00000000 00:00 0 [stack]\n";
        let map = Map::parse(text, &rules);
        assert_eq!(rules.names(), ["other", "ours", "ucx"]);
        for (address, expect) in [
            (0xfff, None),
            (0x1000, Some(Kind::Of(Owner(1)))),
            (0x2fff, Some(Kind::Of(Owner(2)))),
            (0x3000, None),
            (0x4800, Some(Kind::Through)),
            (0x5000, Some(Kind::Of(Owner(0)))),
            (0x7fff, Some(Kind::Stack)),
            (0x8000, None),
        ] {
            assert_eq!(map.kind(address), expect, "{address:#x}");
        }
        assert_eq!(map.base("libc.so"), Some(0x4000));
        assert_eq!(map.base("libm.so"), None);
    }
}
