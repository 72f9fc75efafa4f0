//! Atomic operations on memory, and the arithmetic of the masked ones.

use mlx5_prm::umr::access;
use mlx5_prm::wqe::RemoteAddress;

use super::access::{Need, resolve};
use super::agree::check_reads;
use super::event::Event;
use super::list::{List, transfer};
use super::message::arrived;
use super::outcome::{
    LOCAL_LENGTH, LOCAL_PROTECTION, NO_ANSWER, Outcome, REMOTE_ACCESS, REMOTE_INVALID,
};
use super::overtake::{Behind, First};
use super::peer::{Poster, peer, permits};
use super::refused::Refused;
use super::scatter::Scattered;
use super::traffic::{self, Kind};
use super::work::{Atomic, AtomicKind};
use crate::fabric::Locked;
use crate::fabric::counters::PortCounter;
use crate::memory::{MemoryError, Space};

/// Executes an atomic operation. The previous value goes to `list`, or into the completion if up to
/// `limit` bytes may be there.
pub(super) fn execute(
    locked: &mut Locked<'_>,
    poster: &Poster,
    (list, limit): (&List, u8),
    remote: RemoteAddress,
    atomic: Atomic,
    behind: &mut Behind,
) -> Result<Outcome, Refused> {
    let bytes = u64::from(atomic.bytes);
    if list.length() != bytes {
        return Err(LOCAL_LENGTH.into());
    }
    let peer = peer(locked, poster)?;
    if !permits(&peer, access::ATOMIC) || !remote.address.is_multiple_of(bytes) {
        return Err(Refused::by(&peer, Event::QpRequestError, REMOTE_INVALID));
    }
    check_reads(locked, (poster, &peer))?;
    arrived(locked, &peer, PortCounter::RxAtomicRequests);
    let (key, at) = (remote.rkey, remote.address);
    let piece = resolve(locked, peer.side(), key, at, bytes, Need::RemoteAtomic)
        .ok()
        .filter(|piece| piece.length == bytes);
    let changed = piece
        .ok_or(MemoryError::Fault)
        .and_then(|piece| change(piece.space, piece.address, atomic));
    let before = match changed {
        Ok(before) => before,
        Err(MemoryError::Gone) => return Err(NO_ANSWER.into()),
        Err(MemoryError::Fault) => {
            return Err(Refused::by(&peer, Event::QpAccessError, REMOTE_ACCESS));
        }
    };
    traffic::count(locked, (poster, &peer), Kind::Atomic, bytes);
    // The word has changed; its previous value is on its way.
    behind.pass(locked, First::Atomic);
    // Memory receives a word of eight bytes in host order. A word of four bytes is always in wire
    // order: no setting applies to it (`atomic_req_8B_endianness_mode`). A completion holds every
    // word in wire order, as UCX reads it (`uct_rc_mlx5_common_atomic64_le_handler`).
    let in_completion = Scattered::fits(limit, bytes);
    let wire = before.to_be_bytes();
    let host = before.to_ne_bytes();
    let answer: &[u8] = match (atomic.bytes, in_completion) {
        (4, _) => &wire[4..],
        (_, true) => &wire,
        (_, false) => &host,
    };
    let from = List::of_bytes(poster.side(), answer);
    let moved = if in_completion {
        Scattered::take(locked, &from, (limit, bytes))
    } else {
        transfer(locked, &from, (list, 0), bytes).map(|()| Scattered::NONE)
    };
    Ok(Outcome {
        scattered: moved.map_err(|_| LOCAL_PROTECTION)?,
        ..Outcome::of(u32::from(atomic.bytes))
    })
}

/// Reads a word, writes its new value, and returns the previous value. The word is in host order.
/// The change is atomic with respect to other atomics, because all of them hold the device's lock.
pub(super) fn change(space: Space, address: u64, atomic: Atomic) -> Result<u64, MemoryError> {
    if atomic.bytes == 4 {
        let mut word = [0; 4];
        space.read(address, &mut word)?;
        let before = u64::from(u32::from_ne_bytes(word));
        let [.., a, b, c, d] = atomic.kind.after(before).to_be_bytes();
        space.write(address, &u32::from_be_bytes([a, b, c, d]).to_ne_bytes())?;
        return Ok(before);
    }
    let mut word = [0; 8];
    space.read(address, &mut word)?;
    let before = u64::from_ne_bytes(word);
    space.write(address, &atomic.kind.after(before).to_ne_bytes())?;
    Ok(before)
}

impl AtomicKind {
    /// The new value of a word. A word of four bytes is in the lower half.
    fn after(self, before: u64) -> u64 {
        match self {
            Self::CompareSwap { compare, swap } => Self::MaskedCompareSwap {
                compare,
                compare_mask: u64::MAX,
                swap,
                swap_mask: u64::MAX,
            }
            .after(before),
            Self::FetchAdd { add } => before.wrapping_add(add),
            Self::MaskedCompareSwap {
                compare,
                compare_mask,
                swap,
                swap_mask,
            } => {
                if (before ^ compare) & compare_mask == 0 {
                    before & !swap_mask | swap & swap_mask
                } else {
                    before
                }
            }
            Self::MaskedFetchAdd { add, boundary } => add_in_fields(before, add, boundary),
        }
    }
}

/// Adds the fields of two words. A set bit of `boundary` is the highest bit of a field; no carry
/// leaves it.
fn add_in_fields(a: u64, b: u64, boundary: u64) -> u64 {
    // The boundary bits are added without their carry. The other bits cannot carry across a
    // boundary.
    let low = !boundary;
    ((a & low).wrapping_add(b & low)) ^ ((a ^ b) & boundary)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The definition: bit by bit.
    fn model(a: u64, b: u64, boundary: u64) -> u64 {
        let mut sum = 0;
        let mut carry = 0;
        for bit in 0..64 {
            let here = (a >> bit & 1) + (b >> bit & 1) + carry;
            sum |= (here & 1) << bit;
            carry = if boundary >> bit & 1 == 1 {
                0
            } else {
                here >> 1
            };
        }
        sum
    }

    #[test]
    fn masked_operations() {
        let masked = |compare, compare_mask, swap, swap_mask| AtomicKind::MaskedCompareSwap {
            compare,
            compare_mask,
            swap,
            swap_mask,
        };
        for (kind, before, after) in [
            (masked(0, 0, 0xf0, 0xf0), 0x0f, 0xff),
            (masked(0x0f, 0xff, 0, u64::MAX), 0x10f, 0),
            (masked(0x0e, 0xff, 0, u64::MAX), 0x10f, 0x10f),
            (AtomicKind::FetchAdd { add: 2 }, u64::MAX, 1),
        ] {
            assert_eq!(kind.after(before), after, "{kind:?}");
        }
        let fields = |boundary, add| AtomicKind::MaskedFetchAdd { add, boundary };
        assert_eq!(fields(0, 1).after(0xff), 0x100);
        assert_eq!(fields(0x80, 1).after(0xff), 0);
        // With a boundary at every bit the addition is an exclusive or.
        assert_eq!(fields(u64::MAX, 0b0110).after(0b0011), 0b0101);
    }

    proptest! {
        #[test]
        fn fields_are_added_as_defined(a: u64, b: u64, boundary: u64) {
            prop_assert_eq!(add_in_fields(a, b, boundary), model(a, b, boundary));
        }
    }
}
