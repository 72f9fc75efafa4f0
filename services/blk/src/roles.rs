//! How the data of a volume is spread over its targets, and the part of each target.

use smallvec::SmallVec;
use std::fmt;
use std::str::FromStr;

/// Most targets of a volume.
pub const TARGETS_MAX: usize = DATA_MAX as usize + PARITY_MAX as usize;
const DATA_MAX: u8 = 8;
const PARITY_MAX: u8 = 3;

/// One value for each target of a volume.
pub type PerTarget<T> = SmallVec<[T; 3]>;

/// How many parts a block has: any `data` of them restore it, and `parity` may be lost.
///
/// With one part of data each target has the whole block: a mirror.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Layout {
    data: u8,
    parity: u8,
}

impl Layout {
    /// Two halves and their parity.
    pub const HALVES: Self = Self { data: 2, parity: 1 };

    /// The layout with these numbers of parts. None: a volume cannot have it.
    #[must_use]
    pub fn new(data: u8, parity: u8) -> Option<Self> {
        let most = if data == 1 { 2 } else { PARITY_MAX };
        let is_known = (1..=DATA_MAX).contains(&data) && (1..=most).contains(&parity);
        is_known.then_some(Self { data, parity })
    }

    /// Parts of data: as many targets hold all data.
    #[must_use]
    pub const fn needed(self) -> usize {
        self.data as usize
    }

    /// Targets that may be lost.
    #[must_use]
    pub const fn spare(self) -> usize {
        self.parity as usize
    }

    /// Targets of a volume.
    #[must_use]
    pub const fn targets(self) -> usize {
        self.needed() + self.spare()
    }

    /// True if each target has the whole block.
    #[must_use]
    pub const fn is_mirror(self) -> bool {
        self.data == 1
    }

    /// True if a target keeps a flushed generation until it is told that all have made a newer one durable. Of two halves and
    /// of copies the others tell: those that have the newer one, or those that do not, are enough.
    pub(crate) const fn keeps_flushed(self) -> bool {
        self.needed() > 2 || (self.needed() == 2 && self.spare() > 1)
    }

    /// The numbers of its parts, as on a medium.
    pub(crate) const fn numbers(self) -> [u8; 2] {
        [self.data, self.parity]
    }

    /// All roles, in the order of their numbers.
    pub fn roles(self) -> impl DoubleEndedIterator<Item = Role> + ExactSizeIterator + Clone {
        (0..self.data + self.parity).map(move |index| Role {
            index,
            layout: self,
        })
    }

    /// The role with number `index`.
    #[must_use]
    pub fn role(self, index: usize) -> Option<Role> {
        self.roles().nth(index)
    }

    /// The role with this name.
    #[must_use]
    pub fn role_named(self, name: &str) -> Option<Role> {
        self.roles().find(|role| role.to_string() == name)
    }

    /// The layout whose roles have these names.
    pub(crate) fn of_names<'a>(names: impl Iterator<Item = &'a str> + Clone) -> Option<Self> {
        let all =
            (1..=DATA_MAX).flat_map(|data| (1..=PARITY_MAX).map(move |parity| (data, parity)));
        let mut all = all.filter_map(|(data, parity)| Self::new(data, parity));
        all.find(|layout| {
            layout
                .roles()
                .map(|role| role.to_string())
                .eq(names.clone())
        })
    }

    /// A value for each role.
    pub fn map<T>(self, value: impl FnMut(Role) -> T) -> PerTarget<T> {
        self.roles().map(value).collect()
    }

    /// The roles that fulfil a condition, as a mask.
    pub(crate) fn mask(self, wanted: impl Fn(Role) -> bool) -> u16 {
        let roles = self.roles().filter(|role| wanted(*role));
        roles.fold(0, |mask, role| mask | role.bit())
    }

    /// True if so many targets do not restore a block.
    pub(crate) const fn is_short(self, targets: u16) -> bool {
        (targets.count_ones() as usize) < self.needed()
    }

    /// All roles as a mask.
    pub(crate) fn all(self) -> u16 {
        self.mask(|_| true)
    }
}

impl Default for Layout {
    fn default() -> Self {
        Self::HALVES
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_mirror() {
            true => write!(f, "mirror-{}", self.targets()),
            false => write!(f, "{}+{}", self.data, self.parity),
        }
    }
}

impl FromStr for Layout {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers = match text.strip_prefix("mirror-") {
            Some(copies) => copies
                .parse::<u8>()
                .map(|copies| (1, copies.wrapping_sub(1))),
            None => {
                let (data, parity) = text.split_once('+').unwrap_or((text, "0"));
                data.parse()
                    .and_then(|data| Ok((data, parity.parse::<u8>()?)))
            }
        };
        let layout = numbers
            .ok()
            .and_then(|(data, parity)| Self::new(data, parity));
        layout.filter(|layout| layout.to_string() == text).ok_or_else(|| {
            format!(
                "layout {text}: give 2+1, mirror-2, mirror-3, or K+M with K from 2 to {DATA_MAX} and M from 1 to {PARITY_MAX}"
            )
        })
    }
}

/// The part of each block that a target holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Role {
    index: u8,
    layout: Layout,
}

impl Role {
    /// First half of the stored bytes.
    pub const FIRST: Self = Self::of_halves(0);
    /// Second half of the stored bytes.
    pub const SECOND: Self = Self::of_halves(1);
    /// Parity of both halves.
    pub const PARITY: Self = Self::of_halves(2);
    /// The roles of two halves and their parity.
    pub const HALVES: [Self; 3] = [Self::FIRST, Self::SECOND, Self::PARITY];

    const fn of_halves(index: u8) -> Self {
        Self {
            index,
            layout: Layout::HALVES,
        }
    }

    /// Number of the role, from 0.
    #[must_use]
    pub const fn index(self) -> usize {
        self.index as usize
    }

    /// Number of the role on a medium.
    pub(crate) const fn number(self) -> u8 {
        self.index
    }

    /// The role's bit in a mask of targets.
    #[must_use]
    pub const fn bit(self) -> u16 {
        1 << self.index
    }

    /// The layout of its volume.
    #[must_use]
    pub const fn layout(self) -> Layout {
        self.layout
    }

    /// True if its part has bytes of the block itself. Of a mirror all have.
    #[must_use]
    pub const fn is_data(self) -> bool {
        self.index < self.layout.data
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Layout { data, .. } = self.layout;
        match self.index {
            _ if self.layout.is_mirror() => write!(f, "copy_{}", self.index + 1),
            index if index < data => write!(f, "data_{}", index + 1),
            _ if self.layout == Layout::HALVES => f.write_str("data_p"),
            index => write!(f, "parity_{}", index - data + 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_and_roles_have_names() {
        for (text, names) in [
            ("2+1", "data_1 data_2 data_p"),
            ("mirror-2", "copy_1 copy_2"),
            ("mirror-3", "copy_1 copy_2 copy_3"),
            ("3+2", "data_1 data_2 data_3 parity_1 parity_2"),
        ] {
            let layout: Layout = text.parse().unwrap();
            assert_eq!(layout.to_string(), text);
            let all: Vec<String> = layout.roles().map(|role| role.to_string()).collect();
            assert_eq!(all.join(" "), names);
            assert_eq!(Layout::of_names(names.split(' ')), Some(layout));
            for role in layout.roles() {
                assert_eq!(layout.role_named(&role.to_string()), Some(role));
                assert_eq!(layout.role(role.index()), Some(role));
            }
        }
        assert_eq!("8+3".parse::<Layout>().unwrap().targets(), TARGETS_MAX);
        for text in [
            "", "2", "1+1", "1+2", "9+1", "2+0", "2+4", "02+1", "mirror-1", "mirror-4", "mirror-0",
            "2+1+1", "+1",
        ] {
            let error = text.parse::<Layout>().unwrap_err();
            assert!(error.contains("give 2+1, mirror-2"), "{text}: {error}");
        }
    }
}
