//! Gathers and scatters of a job at one SP, if its members have many SPs: offers travel along a tree of the SPs.
//!
//! In a gather, an SP sends its offers to the SP above it, with those of the SPs below, when all its members have entered and
//! all SPs below have sent theirs. In a scatter, the root's SP divides its offers among some SPs, and each of these divides
//! those that are not its own. The offers are unchanged: the blocks are read from the ranks that have them, and do not travel
//! along the tree. An answer to a message says that all its offers are delivered, and takes the way back.

use super::{Mover, failed};
use crate::error::{OffloadError, Result};
use crate::service::actions::OfferKey;
use crate::service::ledger::Ledger;
use crate::service::relays::{Scatter, Seat, neighbours, subtrees};
use crate::service::spacing::place_of;
use crate::service::transport::Transport;
use crate::wire::{
    Arrival, Blocks, Collective, DpuRelay, DpuRelayed, DpuRts, Kind, RouteRef, RtsPart, offer_head,
};

impl<T: Transport> Mover<T> {
    /// A rank enters a call with a route.
    #[cold]
    pub(super) fn enter_route(&mut self, arrive: &Arrival<'_>) -> Result<()> {
        let collective = arrive.collective;
        match arrive.route {
            RouteRef::Direct => return Ok(()),
            RouteRef::Scatter => {
                let scatter = Scatter {
                    root: arrive.rank,
                    offers: Vec::new(),
                };
                if self.relays.scatters.insert(collective, scatter).is_some() {
                    return Err(failed(format!("{collective} has two roots")));
                }
            }
            RouteRef::Gather { root, members } => {
                let seat = self.seat(arrive.rank, root, members).map_err(|what| {
                    let rank = arrive.rank;
                    failed(format!(
                        "rank {rank} breaks the protocol in {collective}: {what}"
                    ))
                })?;
                let Some(seat) = seat else {
                    return Ok(());
                };
                let gather = self.relays.gather(collective);
                gather.entered += 1;
                let is_other = gather.seat.as_ref().is_some_and(|known| *known != seat);
                if is_other || gather.below.iter().any(|(of, _)| !seat.below.contains(of)) {
                    return Err(failed(format!("the members of {collective} disagree")));
                }
                gather.seat = Some(seat);
                self.relays.wake(collective);
            }
        }
        self.ledger.send_at_once(collective);
        Ok(())
    }

    /// The place of this SP in the tree of a gather; `None` if its offers go straight to the root's SP.
    fn seat(
        &mut self,
        rank: u32,
        root: u32,
        members: Blocks<'_>,
    ) -> std::result::Result<Option<Seat>, &'static str> {
        const NO_MEMBER: &str = "it is not a member";
        let services = self.ledger.members(members)?;
        let place_of = |service| place_of(&services, service);
        let top = self.ledger.service_of(root);
        let top = top.filter(|_| Ledger::has_member(members, root));
        let top = top.and_then(place_of).ok_or("its root is not a member")?;
        if !Ledger::has_member(members, rank) {
            return Err(NO_MEMBER);
        }
        let ours = place_of(self.me).ok_or(NO_MEMBER)?;
        let count = services.len();
        if ours == top || count <= self.limits.radix.of_relay() + 1 {
            return Ok(None);
        }
        let service = |place: usize| services[(place + top) % count].service;
        let (above, below) = neighbours(
            count,
            (ours + count - top) % count,
            self.limits.radix.of_relay(),
        );
        Ok(Some(Seat {
            root: service(0),
            above: service(above),
            below: below.into_iter().map(service).collect(),
            members: services[ours].count,
        }))
    }

    /// Keeps an offer to another SP if it travels along a tree.
    #[cold]
    pub(super) fn route(&mut self, to: u32, message: Vec<u8>) -> Option<Vec<u8>> {
        let Some((collective, _)) = offer_head(&message) else {
            return Some(message);
        };
        if let Some(scatter) = self.relays.scatters.get_mut(&collective) {
            let bytes = message.len();
            scatter.offers.push((to, message));
            self.relays.hold(bytes);
        } else if let Some(gather) = self.relays.gathers.get_mut(&collective)
            && gather.seat.as_ref().is_some_and(|seat| seat.root == to)
        {
            let bytes = message.len();
            gather.own.push(message);
            self.relays.hold(bytes);
        } else {
            return Some(message);
        }
        self.relays.wake(collective);
        None
    }

    /// Sends what is complete.
    #[cold]
    pub(super) fn relay(&mut self, transport: &T) -> Result<()> {
        while let Some(collective) = self.relays.awake.pop() {
            if let Some(Scatter { offers, .. }) = self.relays.scatters.remove(&collective) {
                self.relays.let_go(offers.iter().map(|(_, offer)| offer));
                self.spread(transport, collective, offers)?;
            } else if let Some((gather, seat)) = self.relays.complete(collective) {
                let own = gather.own.iter().filter_map(|offer| offer_head(offer));
                let own = own.map(|(_, offer)| (seat.root, offer)).collect();
                let offers = gather.own.iter().chain(&gather.passed);
                let message = DpuRelay {
                    collective,
                    from: self.me,
                    id: self.relays.send(seat.above, own, gather.below, None),
                    root: Some(seat.root),
                    offers: offers.map(|offer| (seat.root, &offer[..])).collect(),
                };
                self.tell_service(transport, seat.above, Kind::DpuRelay, message.to_bytes())?;
            }
        }
        while let Some((to, id)) = self.relays.answers.pop() {
            let answer = DpuRelayed { from: self.me, id };
            let data = answer.to_bytes_in(self.ledger.memory());
            self.tell_service(transport, to, Kind::DpuRelayed, data)?;
        }
        Ok(())
    }

    /// Sends the offers of a scatter of this SP's rank.
    fn spread(
        &mut self,
        transport: &T,
        collective: Collective,
        mut offers: Vec<(u32, Vec<u8>)>,
    ) -> Result<()> {
        let me = self.me;
        offers.sort_by_key(|(to, _)| (*to < me, *to));
        let groups = offers.chunk_by(|a, b| a.0 == b.0).count();
        if groups <= self.limits.radix.of_relay() {
            for (to, message) in offers {
                self.tell_service(transport, to, Kind::DpuRts, message)?;
            }
            return Ok(());
        }
        let offers: Vec<(u32, &[u8])> = offers.iter().map(|(to, of)| (*to, &of[..])).collect();
        self.divide(transport, collective, &offers, None)
    }

    /// Sends offers to several SPs, which pass them on.
    fn divide(
        &mut self,
        transport: &T,
        collective: Collective,
        offers: &[(u32, &[u8])],
        part_of: Option<usize>,
    ) -> Result<()> {
        let of_services: Vec<_> = offers.chunk_by(|a, b| a.0 == b.0).collect();
        for tree in subtrees(0..of_services.len(), self.limits.radix.of_relay()) {
            let offers = of_services[tree].concat();
            let to = offers[0].0;
            let own = match part_of {
                Some(_) => Vec::new(),
                None => keys(&offers),
            };
            let message = DpuRelay {
                collective,
                from: self.me,
                id: self.relays.send(to, own, Vec::new(), part_of),
                root: None,
                offers,
            };
            self.tell_service(transport, to, Kind::DpuRelay, message.to_bytes())?;
        }
        Ok(())
    }

    /// Offers have come along a tree.
    pub(super) fn relayed(&mut self, transport: &T, relay: &DpuRelay<'_>) -> Result<()> {
        let (collective, key) = (relay.collective, (relay.from, relay.id));
        let wrong = |what: &str| {
            let from = relay.from;
            failed(format!(
                "service {from} breaks the protocol in {collective}: {what}"
            ))
        };
        match relay.root {
            Some(root) if root != self.me => {
                let gather = self.relays.gather(collective);
                let seat = gather.seat.as_ref();
                let is_below = |seat: &Seat| seat.below.contains(&relay.from);
                let is_second = gather.below.iter().any(|(of, _)| *of == relay.from);
                if is_second || seat.is_some_and(|seat| !is_below(seat)) {
                    return Err(wrong("it sends offers of a gather that it does not have"));
                }
                gather.below.push(key);
                let offers = relay.offers.iter().map(|(_, offer)| offer.to_vec());
                gather.passed.extend(offers);
                for (_, offer) in &relay.offers {
                    self.relays.hold(offer.len());
                }
                self.relays.wake(collective);
                Ok(())
            }
            Some(_) if relay.offers.is_empty() => {
                self.relays.answers.push(key);
                Ok(())
            }
            Some(_) => {
                let came = self.relays.come(key, relay.offers.len());
                self.take_relayed(transport, came, &relay.offers)
            }
            None => {
                let ours = relay.offers.iter().take_while(|(to, _)| *to == self.me);
                let (own, others) = relay.offers.split_at(ours.count());
                if own.is_empty() || others.iter().any(|(to, _)| *to == self.me) {
                    return Err(wrong("it sends offers that are not for this service"));
                }
                let trees = others.chunk_by(|a, b| a.0 == b.0).count();
                let left = own.len() + subtrees(0..trees, self.limits.radix.of_relay()).count();
                let came = self.relays.come(key, left);
                // The others first: their SPs are further away.
                self.divide(transport, collective, others, Some(came))?;
                self.take_relayed(transport, came, own)
            }
        }
    }

    /// Handles offers for this SP that have come in a message.
    fn take_relayed(&mut self, transport: &T, came: usize, offers: &[(u32, &[u8])]) -> Result<()> {
        for (_, offer) in offers {
            let key = self.offer_came(transport, offer, None)?;
            if key.0 == self.me || !self.relays.awaits(key, came) {
                return Err(failed(format!(
                    "offer {} of service {} comes twice",
                    key.1, key.0
                )));
            }
        }
        Ok(())
    }

    /// Handles an offer of another SP. `header` is that of its own message.
    #[inline]
    pub(super) fn offer_came(
        &mut self,
        transport: &T,
        data: &[u8],
        header: Option<&[u8]>,
    ) -> Result<OfferKey> {
        if let Some(key) = self.familiar_offer(data, header)? {
            return Ok(key);
        }
        let parts = super::emptied(std::mem::take(&mut self.parts));
        let mut rts = DpuRts::parse_into(data, parts)
            .map_err(|error| OffloadError::message("a peer of the job", &error))?;
        if let Some(header) = header {
            self.check_service(header, rts.from)?;
        }
        // An SP offers only blocks of its own ranks.
        let is_foreign =
            |part: &&RtsPart<'_>| self.ledger.service_of(part.source) != Some(rts.from);
        if let Some(part) = rts.parts.iter().find(is_foreign) {
            return Err(failed(format!(
                "service {} offers blocks of rank {}, which is not its own",
                rts.from, part.source
            )));
        }
        let key = (rts.from, rts.offer);
        if self.has_room(&rts) {
            self.offered(transport, &mut rts, data)?;
        } else {
            self.late.push(data.to_vec());
        }
        self.parts = super::emptied(rts.parts);
        Ok(key)
    }

    /// All offers of a message are delivered.
    pub(super) fn relay_answered(&mut self, answer: DpuRelayed) -> Result<()> {
        let sent = self.relays.answered(answer.from, answer.id);
        let sent = sent.ok_or_else(|| {
            failed(format!(
                "service {} answers a message {} that it did not get",
                answer.from, answer.id
            ))
        })?;
        for (to, offer) in sent.offers {
            self.finished(to, offer)?;
        }
        self.relays.answers.extend(sent.below);
        if let Some(message) = sent.part_of {
            self.relays.part_ended(message);
        }
        Ok(())
    }
}

/// The SPs that get these offers, and the offers' numbers.
fn keys(offers: &[(u32, &[u8])]) -> Vec<OfferKey> {
    let keys = offers
        .iter()
        .map(|(to, offer)| Some((*to, offer_head(offer)?.1)));
    keys.flatten().collect()
}
