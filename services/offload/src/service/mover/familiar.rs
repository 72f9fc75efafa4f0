//! Offers that are like an earlier one of their SP: they differ in their call and number only, and are neither parsed nor checked
//! again.

use super::{Mover, failed, keys_of};
use crate::error::Result;
use crate::service::actions::{OfferId, OfferKey};
use crate::service::incoming::Source;
use crate::service::transport::Transport;
use crate::wire::{DpuRts, OFFER_REST, offer_start};
use std::rc::Rc;

/// Offers of an SP that are kept. Many programs use two buffers in turn.
const KEPT: usize = 2;

/// Maximum bytes of the kept offers of a job.
const BYTES_MAX: usize = 1 << 20;

/// The kept offers, by SP.
#[derive(Debug)]
pub(super) struct Familiar<K> {
    of: Vec<Service<K>>,
    bytes: usize,
}

#[derive(Debug)]
struct Service<K> {
    offers: Vec<Offer<K>>,
    /// The offer that the next one replaces.
    next: usize,
}

/// An offer of runs for the device.
#[derive(Debug)]
struct Offer<K> {
    /// The message after call and number.
    rest: Vec<u8>,
    sources: Vec<Source>,
    keys: Vec<Option<Rc<K>>>,
    blocks: usize,
}

impl<K> Offer<K> {
    fn bytes(&self) -> usize {
        let sources = self.sources.capacity() * size_of::<Source>();
        self.rest.capacity() + sources + self.keys.capacity() * size_of::<Option<Rc<K>>>()
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
    fn find(&self, from: u32, rest: &[u8]) -> Option<&Offer<K>> {
        let service = self.of.get(from as usize)?;
        service.offers.iter().find(|offer| offer.rest == rest)
    }

    /// Keeps an offer in place of an earlier one.
    fn keep(
        &mut self,
        from: u32,
        rest: &[u8],
        sources: &[Source],
        keys: &[Option<Rc<K>>],
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
                keys: Vec::new(),
                blocks: 0,
            });
        }
        let offer = &mut offers[*next];
        let before = offer.bytes();
        let needs = rest.len() + size_of_val(sources) + size_of_val(keys);
        if needs > before && self.bytes - before + needs > BYTES_MAX {
            return;
        }
        put(&mut offer.rest, rest);
        put(&mut offer.sources, sources);
        put(&mut offer.keys, keys);
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

impl<T: Transport> Mover<T> {
    /// Handles an offer that is like an earlier one of its SP. `header` is that of its own message. `None` if it is not, or must
    /// wait.
    #[inline]
    pub(super) fn familiar_offer(
        &mut self,
        data: &[u8],
        header: Option<&[u8]>,
    ) -> Result<Option<OfferKey>> {
        let Some((collective, key, rest)) = offer_start(data) else {
            return Ok(None);
        };
        let Some(offer) = self.familiar.find(key.0, rest) else {
            return Ok(None);
        };
        if let Some(header) = header {
            self.check_service(header, key.0)?;
        }
        if !(self.late.is_empty() && self.ledger.has_room(|| offer.blocks)) {
            return Ok(None);
        }
        let placed = self
            .ledger
            .offered_again(key, collective, &offer.sources, offer.blocks);
        let id = placed.map_err(|wrong| failed(wrong.to_string()))?;
        keys_of(&mut self.keys, id).extend_from_slice(&offer.keys);
        Ok(Some(key))
    }

    /// Keeps an offer that was handled, if it has runs for the device only.
    pub(super) fn keep_offer(&mut self, rts: &DpuRts<'_>, data: &[u8], offer: OfferId) {
        if rts.collective.step > 0 || rts.whole > 0 || !rts.short.is_empty() {
            return;
        }
        let (Some(rest), Some(keys)) = (data.get(OFFER_REST..), self.keys.get(offer)) else {
            return;
        };
        let sources = self.ledger.sources(offer);
        let is_read = |source: &Source| {
            let run = source.run.as_ref();
            run.is_some_and(|run| run.length >= self.limits.direct_min)
        };
        if sources.iter().all(is_read) {
            let blocks = rts.parts.iter().map(|part| part.blocks.len()).sum();
            self.familiar.keep(rts.from, rest, sources, keys, blocks);
        }
    }
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
                let keys = [Some(Rc::new(number))];
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
            familiar.keep(from, &[1; 2000], &[source(from)], &[None], 4);
            assert!(familiar.bytes() <= BYTES_MAX + 2000);
        }
        assert!(familiar.bytes() > BYTES_MAX / 4);
    }
}
