//! Where the parts of a store are on its medium, and the index as a whole.

use super::index::{ENTRY, Entry, Slot};
use super::medium::Medium;
use super::space::{Extent, Space};
use super::superblock::{Identity, PAGE};
use crate::error::{BlkError, Result};
use crate::geometry::Geometry;
use crate::record::{self, HEADER, RECORD_MAX};
use std::io;

/// Offset of the index, behind both superblocks.
pub(super) const INDEX_AT: u64 = 2 * PAGE as u64;
/// Bytes of the index per call.
const INDEX_CHUNK: usize = 1 << 20;

/// An error if a medium cannot hold the index of a volume.
pub(super) fn check_size(name: &str, medium: &dyn Medium, geometry: Geometry) -> Result<()> {
    let (size, index) = (medium.size().unwrap_or(u64::MAX), data_start(geometry));
    if size >= index {
        return Ok(());
    }
    Err(BlkError::NotATarget {
        target: name.to_owned(),
        fault: format!(
            "it has {size} bytes, and the index of a volume with {geometry} takes {index}: give it more"
        ),
    })
}

/// Offset of the first record.
pub(super) fn data_start(geometry: Geometry) -> u64 {
    (INDEX_AT + geometry.blocks() * ENTRY as u64).next_multiple_of(PAGE as u64)
}

/// Writes the index of a volume without blocks.
pub(super) fn write_empty_index(medium: &dyn Medium, geometry: Geometry) -> io::Result<()> {
    let mut block = 0;
    while block < geometry.blocks() {
        let end = geometry.blocks().min(block + (INDEX_CHUNK / ENTRY) as u64);
        let bytes: Vec<u8> = (block..end)
            .flat_map(|block| Entry::default().to_bytes(block))
            .collect();
        medium.write(INDEX_AT + block * ENTRY as u64, &bytes)?;
        block = end;
    }
    Ok(())
}

/// Writes again what an opening cannot rely on: entries that say something beside the newest generation, or are damaged
/// beside it. A sync of the last process may have failed, and the next one then succeeds without what that one has left out.
pub(super) fn write_doubtful(
    medium: &dyn Medium,
    identity: Identity,
    index: &[Entry],
) -> io::Result<()> {
    for (block, entry) in (0..).zip(index) {
        let slots = entry.slots.iter().flatten().count();
        if slots > 1 || (entry.damaged && slots > 0) {
            write_again(medium, identity, block, entry, |_| true)?;
        }
    }
    Ok(())
}

/// Writes a block's entry again, and its records in those slots that are `wanted`. False if one of them cannot be read.
pub(super) fn write_again(
    medium: &dyn Medium,
    identity: Identity,
    block: u64,
    entry: &Entry,
    wanted: impl Fn(&Slot) -> bool,
) -> io::Result<bool> {
    let mut are_whole = true;
    for slot in entry.slots.iter().flatten().filter(|slot| wanted(slot)) {
        let Some(extent) = slot.extent() else {
            continue;
        };
        // Cannot be cut: the length was checked when the entry was read or made.
        let mut bytes = vec![0; usize::try_from(extent.length).unwrap_or(0)];
        let read = medium.read(extent.offset, &mut bytes);
        let parsed = record::parse(identity.place(block), slot.generation, &bytes);
        if read.is_ok() && parsed.is_ok() {
            medium.write(extent.offset, &bytes)?;
        } else {
            are_whole = false;
        }
    }
    medium.write(INDEX_AT + block * ENTRY as u64, &entry.to_bytes(block))?;
    Ok(are_whole)
}

/// Reads the index. Slots that point outside the data area are damaged.
pub(super) fn read_index(
    medium: &dyn Medium,
    geometry: Geometry,
    (start, end): (u64, u64),
) -> io::Result<Vec<Entry>> {
    let fits = |extent: Extent| {
        let last = extent.offset.checked_add(Space::rounded(extent.length));
        extent.offset >= start
            && last.is_some_and(|last| last <= end)
            && (HEADER as u64..=RECORD_MAX as u64).contains(&extent.length)
    };
    let blocks = usize::try_from(geometry.blocks()).map_err(|_| io::ErrorKind::OutOfMemory)?;
    let mut index = Vec::with_capacity(blocks);
    let mut chunk = vec![0; INDEX_CHUNK.min(blocks * ENTRY)];
    while index.len() < blocks {
        let count = (blocks - index.len()).min(INDEX_CHUNK / ENTRY);
        let at = INDEX_AT + (index.len() * ENTRY) as u64;
        let bytes = &mut chunk[..count * ENTRY];
        medium.read(at, bytes)?;
        for bytes in bytes.as_chunks::<ENTRY>().0 {
            index.push(Entry::parse(index.len() as u64, bytes, fits));
        }
    }
    Ok(index)
}
