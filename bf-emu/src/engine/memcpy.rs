//! Copies by the DMA engine (`mlx5dv_wr_memcpy`): from one local key to another, without a peer.

use mlx5_prm::wqe::{Data, MmoMetadata, OCTOWORD_BYTES, mmo};

use super::access::Need;
use super::arrival::{Alone, arrive};
use super::list::List;
use super::outcome::{Fault, LOCAL_LENGTH, LOCAL_OPERATION, LOCAL_PROTECTION, Outcome};
use super::peer::Poster;
use crate::fabric::Locked;

/// Longest copy in bytes, as the device advertises it. Zero in a segment means this length.
pub(crate) const LENGTH_MAX: u64 = 1 << 31;

/// Copies the source of an entry to its destination. `segments` holds both, in this order.
///
/// The opaque buffer must be writable. A copy writes nothing to it: the public sources do not
/// describe its contents for this operation.
pub(super) fn execute(
    locked: &mut Locked<'_>,
    poster: &Poster,
    metadata: &MmoMetadata,
    segments: &[u8],
) -> Result<Outcome, Fault> {
    if locked.fabric().profile().is_dma_mmo_qp() && !poster.qp.copies {
        return Err(LOCAL_OPERATION);
    }
    let ([source, destination], []) = segments.as_chunks::<OCTOWORD_BYTES>() else {
        return Err(LOCAL_OPERATION);
    };
    let from = list(poster, Need::LocalRead, source)?;
    let to = list(poster, Need::LocalWrite, destination)?;
    if from.length() != to.length() {
        return Err(LOCAL_LENGTH);
    }
    let bytes = u32::try_from(from.length()).map_err(|_| LOCAL_LENGTH)?;
    let opaque = List::of_key(
        poster.side(),
        Need::LocalWrite,
        metadata.opaque_lkey,
        metadata.opaque_address,
        mmo::DMA_OPAQUE_BYTES,
    );
    opaque
        .check(locked, mmo::DMA_OPAQUE_BYTES)
        .map_err(|_| LOCAL_PROTECTION)?;
    // Both keys are the poster's own, so each failure is a local one. An alias of a process that no
    // longer exists is no exception: its memory went with its key.
    let data = (bytes.into(), Alone::Never);
    arrive(locked, poster.which(), &from, (&to, 0), data).map_err(|_| LOCAL_PROTECTION)?;
    Ok(Outcome::of(bytes))
}

/// The range of one segment. A copy has no inline data.
fn list(poster: &Poster, need: Need, segment: &[u8; OCTOWORD_BYTES]) -> Result<List, Fault> {
    match Data::parse(segment) {
        Data::Memory {
            length,
            lkey,
            address,
        } => {
            let length = match length {
                0 => LENGTH_MAX,
                length => u64::from(length),
            };
            Ok(List::of_key(poster.side(), need, lkey, address, length))
        }
        Data::Inline { .. } => Err(LOCAL_OPERATION),
    }
}
