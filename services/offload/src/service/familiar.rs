//! Offers that other SPs have made before, with their sources and keys.

use super::incoming::Source;
use std::rc::Rc;

/// Keys of an offer's sources in their order, shared by the reads with them.
pub(super) type KeyList<K> = Rc<Vec<Option<Rc<K>>>>;

/// Offers of an SP that are kept. Many programs use two buffers in turn.
const KEPT: usize = 2;

/// Maximum bytes of the kept offers of a job.
const BYTES_MAX: usize = 1 << 20;

/// The kept offers, by SP.
#[derive(Debug)]
pub(super) struct Familiar<K> {
    pub(super) of: Vec<Service<K>>,
    pub(super) bytes: usize,
}

#[derive(Debug)]
pub(super) struct Service<K> {
    pub(super) offers: Vec<Offer<K>>,
    /// The offer that the next one replaces.
    pub(super) next: usize,
}

/// An offer of runs for the device.
#[derive(Debug)]
pub(super) struct Offer<K> {
    /// The message after call and number.
    pub(super) rest: Vec<u8>,
    pub(super) sources: Vec<Source>,
    pub(super) keys: KeyList<K>,
    pub(super) blocks: usize,
}

impl<K> Offer<K> {
    fn bytes(&self) -> usize {
        let sources = self.sources.capacity() * size_of::<Source>();
        self.rest.capacity() + sources + size_of_val(&self.keys[..])
    }
}

impl<K> Familiar<K> {
    pub(super) fn new() -> Self {
        Self {
            of: Vec::new(),
            bytes: 0,
        }
    }

    /// Bytes of the kept offers.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Releases them.
    pub(super) fn clear(&mut self) {
        *self = Self::new();
    }

    #[inline]
    pub(super) fn find(&self, from: u32, rest: &[u8]) -> Option<&Offer<K>> {
        let service = self.of.get(from as usize)?;
        service.offers.iter().find(|offer| offer.rest == rest)
    }

    /// Keeps an offer in place of an earlier one.
    pub(super) fn keep(
        &mut self,
        from: u32,
        rest: &[u8],
        sources: &[Source],
        keys: &KeyList<K>,
        blocks: usize,
    ) {
        let from = from as usize;
        if self.of.len() <= from {
            self.of.resize_with(from + 1, || Service {
                offers: Vec::new(),
                next: 0,
            });
        }
        let Service { offers, next } = &mut self.of[from];
        *next = (*next + 1) % KEPT;
        if offers.len() < KEPT {
            *next = offers.len();
            offers.push(Offer {
                rest: Vec::new(),
                sources: Vec::new(),
                keys: KeyList::default(),
                blocks: 0,
            });
        }
        let offer = &mut offers[*next];
        let before = offer.bytes();
        let needs = rest.len() + size_of_val(sources) + size_of_val(&keys[..]);
        if needs > before && self.bytes - before + needs > BYTES_MAX {
            return;
        }
        put(&mut offer.rest, rest);
        put(&mut offer.sources, sources);
        offer.keys = Rc::clone(keys);
        offer.blocks = blocks;
        self.bytes = self.bytes - before + offer.bytes();
    }
}

/// Replaces what a vector holds, without memory in reserve.
fn put<V: Clone>(vector: &mut Vec<V>, by: &[V]) {
    vector.clear();
    vector.reserve_exact(by.len());
    vector.extend_from_slice(by);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::runs::Run;

    fn source(rank: u32) -> Source {
        Source {
            rank,
            base: 0,
            shared: 0,
            run: Some(Run {
                peer: 0,
                step: 1,
                count: 4,
                offset: 0,
                stride: 4096,
                length: 4096,
            }),
            short_at: 0,
            like: 1,
            apart: 1,
        }
    }

    #[test]
    fn the_last_two_offers_of_each_service_are_kept() {
        let mut familiar = Familiar::new();
        for number in 0..4 {
            for from in [0, 7] {
                let keys = Rc::new(vec![Some(Rc::new(number))]);
                familiar.keep(from, &[number; 40], &[source(number.into())], &keys, 4);
            }
            assert_eq!(familiar.find(0, &[number; 39]).map(|of| of.blocks), None);
        }
        for from in [0, 7] {
            let found = |number: u8| familiar.find(from, &[number; 40]).is_some();
            assert_eq!([0, 1, 2, 3].map(found), [false, false, true, true]);
            let offer = familiar.find(from, &[3; 40]).expect("kept");
            let keys: Vec<u8> = offer.keys.iter().flatten().map(|key| **key).collect();
            assert_eq!((offer.sources[0].rank, keys), (3, vec![3]));
        }
        assert!(familiar.find(3, &[3; 40]).is_none() && familiar.bytes() > 160);
        familiar.clear();
        assert_eq!(
            (familiar.bytes(), familiar.find(0, &[3; 40]).is_some()),
            (0, false)
        );
    }

    #[test]
    fn the_kept_offers_are_bounded() {
        let mut familiar = Familiar::<u8>::new();
        for from in 0..2000 {
            familiar.keep(from, &[1; 2000], &[source(from)], &Rc::new(vec![None]), 4);
            assert!(familiar.bytes() <= BYTES_MAX + 2000);
        }
        assert!(familiar.bytes() > BYTES_MAX / 4);
    }
}
