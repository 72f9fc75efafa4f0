//! Offers that are like an earlier one of their SP: they differ in their call and number only, and are neither parsed nor checked
//! again.

use super::{Mover, failed, keys_of};
use crate::error::Result;
use crate::service::actions::{OfferId, OfferKey};
use crate::service::incoming::Source;
use crate::service::transport::Transport;
use crate::wire::{DpuRts, OFFER_REST, offer_start};
use std::rc::Rc;

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
        *keys_of(&mut self.keys, id) = Rc::clone(&offer.keys);
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
