//! The names of keys: which tag a new key gets.
//!
//! The adapter gives the index of a destroyed key out again. An importer that has an alias of the old
//! key must not take it for one of the new key, so the new one has another tag.

use std::collections::HashMap;

use crate::key::{Mkey, MkeyIndex, Tag};

/// Indices that are remembered. Beyond as many the tags of all later keys change instead.
const INDICES_MAX: usize = 1 << 16;

/// How often each index has been destroyed.
#[derive(Debug, Default)]
pub(crate) struct Names {
    destroyed: HashMap<MkeyIndex, u8>,
    /// What every index not in the table counts for.
    base: u8,
}

impl Names {
    /// The name of a key that was just created. The first key of an index has the tag itself, later
    /// ones lower tags; after 256 keys of one index they begin anew.
    pub(crate) fn of_new(&self, index: MkeyIndex, tag: Tag) -> Mkey {
        let times = self.destroyed.get(&index).copied().unwrap_or(self.base);
        Mkey::new(index, Tag::new(tag.get().wrapping_sub(times)))
    }

    /// Takes note of a key that is gone.
    pub(crate) fn destroyed(&mut self, index: MkeyIndex) {
        if self.destroyed.len() == INDICES_MAX && !self.destroyed.contains_key(&index) {
            let most = self
                .destroyed
                .values()
                .map(|times| times.wrapping_sub(self.base))
                .max();
            self.base = self.base.wrapping_add(most.unwrap_or(0));
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
        let mut names = Names::default();
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
        let mut names = Names::default();
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
