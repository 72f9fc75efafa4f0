//! Multicast datagrams: one message to every queue pair that is attached to a group.

use mlx5_prm::wqe::AddressVector;

use super::delivery::{deliver, dropped, queue_pair};
use super::message::Message;
use super::outcome::Fault;
use super::peer::Poster;
use crate::fabric::objects::Attachment;
use crate::fabric::{Locked, Place, QPN_BASE};
use crate::model::address::{GidType, Mac, is_ipv4};
use crate::model::multicast;

/// Sends a datagram to the queue pairs of a group. A queue pair that cannot accept it does not
/// receive it, and its function counts that.
pub(super) fn to_group(
    locked: &mut Locked<'_>,
    poster: &Poster,
    (message, length): (&Message, u16),
    to: &AddressVector,
) -> Result<(), Fault> {
    if !is_addressed(locked, poster, to) {
        dropped(locked, poster.function);
        return Ok(());
    }
    for function in 0..locked.fabric().identities().len() {
        let Some(group) = locked.peek(function).group(&to.dgid) else {
            continue;
        };
        let mut from = 0;
        while let Some((slot, known)) = next(locked, function, (group, from)) {
            from = slot + 1;
            let Some(place) = port_of(locked, function, &known) else {
                continue;
            };
            let qpn = known.qp + QPN_BASE;
            let own = (function, qpn) == (poster.function, poster.qpn);
            if own && poster.qp.no_loopback || !reaches(locked, poster.place(), place, to.dlid) {
                continue;
            }
            let delivered = match queue_pair(locked, poster, to, (place, qpn)) {
                Some(peer) => deliver(locked, poster, (message, length), to, &peer)?,
                None => false,
            };
            if !delivered {
                dropped(locked, function);
            }
        }
    }
    Ok(())
}

/// True if the address is that of a group, with a source that exists. On InfiniBand it has a
/// multicast LID and a global route, and on Ethernet the MAC of the group.
fn is_addressed(locked: &Locked<'_>, poster: &Poster, to: &AddressVector) -> bool {
    let fabric = locked.fabric();
    let Some(own) = fabric.gid_entry(poster.place(), to.sgid_index) else {
        return false;
    };
    let routed = match fabric.link_of(poster.place()).is_ethernet() {
        // An IP header has addresses of one family.
        true => {
            Mac(to.rmac) == multicast::mac(&to.dgid)
                && (own.kind != GidType::RoceV2 || is_ipv4(&own.gid) == is_ipv4(&to.dgid))
        }
        false => to.grh && multicast::LIDS.contains(&to.dlid),
    };
    routed && multicast::is_group(&to.dgid)
}

/// The next queue pair of a group. One that is attached twice, with different LIDs, counts once.
fn next(
    locked: &Locked<'_>,
    function: usize,
    (group, mut from): (u32, u32),
) -> Option<(u32, Attachment)> {
    let attachments = &locked.peek(function).attachments;
    loop {
        let slot = attachments.next(from, |_, known| known.group == group)?;
        let found = attachments.get(slot)?;
        let same = |known: &Attachment| (known.group, known.qp) == (group, found.qp);
        if attachments.next(0, |_, known| same(known)) == Some(slot) {
            return Some((slot, *found));
        }
        from = slot + 1;
    }
}

fn port_of(locked: &Locked<'_>, function: usize, known: &Attachment) -> Option<Place> {
    let qp = locked.peek(function).qps.get(known.qp)?;
    Some(Place {
        function,
        port: qp.port(),
    })
}

/// True if a multicast message reaches a port. An adapter returns its own port's messages. On
/// InfiniBand, switches forward a LID to the ports that have joined its group; on Ethernet they
/// forward a group to all ports.
fn reaches(locked: &mut Locked<'_>, from: Place, to: Place, lid: u16) -> bool {
    let fabric = locked.fabric();
    let ethernet = fabric.link_of(from).is_ethernet();
    fabric.connects(from, to)
        && ethernet == fabric.link_of(to).is_ethernet()
        && (ethernet || from == to || locked.cm_forwards(to, lid))
}
