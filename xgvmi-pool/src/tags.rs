//! Tags of new keys.
//!
//! The adapter reuses the index of a destroyed key. An importer with an alias of the old key must
//! not use it for the new key, so the new key gets another tag.

use std::collections::HashMap;

use crate::key::{Mkey, MkeyIndex, Tag};

/// Maximum number of indices in the table. Above it, the tags of all later keys change instead.
const INDICES_MAX: usize = 1 << 16;

/// Number of destructions per index.
#[derive(Debug, Default)]
pub(crate) struct Tags {
    destroyed: HashMap<MkeyIndex, u8>,
    /// The count of every index that is not in the table.
    base: u8,
}

impl Tags {
    /// The name of a new key. The first key of an index has the tag itself, later keys have lower
    /// tags. After 256 keys of one index the tags repeat.
    pub(crate) fn of_new(&self, index: MkeyIndex, tag: Tag) -> Mkey {
        let times = self.destroyed.get(&index).copied().unwrap_or(self.base);
        Mkey::new(index, Tag::new(tag.get().wrapping_sub(times)))
    }

    /// Records the destruction of a key.
    pub(crate) fn destroyed(&mut self, index: MkeyIndex) {
        if self.destroyed.len() == INDICES_MAX && !self.destroyed.contains_key(&index) {
            let most = self
                .destroyed
                .values()
                .map(|times| times.wrapping_sub(self.base))
                .max();
            let most = most.expect("the map is full");
            self.base = self.base.wrapping_add(most);
            self.destroyed.clear();
        }
        let times = self.destroyed.entry(index).or_insert(self.base);
        *times = times.wrapping_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(number: u32) -> MkeyIndex {
        MkeyIndex::new(number).expect("24 bits")
    }

    #[test]
    fn a_key_is_never_called_as_the_one_before_it_on_the_same_index() {
        let mut names = Tags::default();
        let first = names.of_new(index(5), Tag::UCX_POOLED);
        assert_eq!(first.tag(), Tag::UCX_POOLED);
        names.destroyed(index(5));
        let second = names.of_new(index(5), Tag::UCX_POOLED);
        assert_eq!(second, Mkey::new(index(5), Tag::new(250)));
        assert_eq!(
            names.of_new(index(6), Tag::UCX_POOLED).tag(),
            Tag::UCX_POOLED
        );
        (0..2).for_each(|_| names.destroyed(index(5)));
        assert_eq!(names.of_new(index(5), Tag::UCX_POOLED).tag(), Tag::new(248));
    }

    #[test]
    fn what_is_forgotten_changes_the_names_of_all() {
        let mut names = Tags::default();
        (0..3).for_each(|_| names.destroyed(index(0)));
        let last = names.of_new(index(0), Tag::UCX_POOLED);
        (0..=65_536).for_each(|number| names.destroyed(index(number)));
        assert!(names.destroyed.len() <= INDICES_MAX);
        assert_ne!(names.of_new(index(0), Tag::UCX_POOLED), last);
        assert_ne!(
            names.of_new(index(1), Tag::UCX_POOLED).tag(),
            Tag::UCX_POOLED
        );
    }
}
