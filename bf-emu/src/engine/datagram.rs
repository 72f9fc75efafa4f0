//! Datagrams: messages to any listening queue pair, preceded by their header.

use mlx5_prm::wqe::AddressVector;

use super::delivery::{deliver, dropped, is_ethernet, packet_length, queue_pair};
use super::message::Message;
use super::multicast::to_group;
use super::outcome::{Fault, LOCAL_OPERATION, Outcome};
use super::peer::{Poster, destination};
use crate::fabric::Locked;
use crate::model::multicast;

/// Sends a datagram. A datagram that its receiver cannot accept is dropped and counted.
pub(super) fn datagram(
    locked: &mut Locked<'_>,
    poster: &Poster,
    message: &Message,
    to: &AddressVector,
) -> Result<Outcome, Fault> {
    let length = packet_length(locked, poster, &message.list)?;
    if is_ethernet(locked, poster) && !to.extended {
        // A datagram without a global route has no address here.
        return Err(LOCAL_OPERATION);
    }
    if to.dqp == multicast::QPN {
        to_group(locked, poster, (message, length), to)?;
        return Ok(Outcome::of(length.into()));
    }
    let delivered = match listener(locked, poster, to) {
        Some(peer) => deliver(locked, poster, (message, length), to, &peer)?,
        None => false,
    };
    if !delivered {
        dropped(locked, poster.function);
    }
    Ok(Outcome::of(length.into()))
}

/// The queue pair that an address vector names, if it accepts datagrams with the poster's key.
fn listener(locked: &Locked<'_>, poster: &Poster, to: &AddressVector) -> Option<Poster> {
    let (fabric, from) = (locked.fabric(), poster.place());
    let place = destination(fabric, from, to).filter(|to| fabric.connects(from, *to))?;
    queue_pair(locked, poster, to, (place, to.dqp))
}
