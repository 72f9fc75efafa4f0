//! Tables indexed by memory handle, separate from UCX's own structures, and the alias of an
//! imported handle.

use std::sync::{Mutex, MutexGuard};

use crossbeam_utils::CachePadded;
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use xgvmi_pool::{AliasPin, Lkey, RemoteKey};

use crate::abi::{MemHandle, MemhHead, memh_flags};
use crate::forked;

/// Shards of a table. A lock is held for one table operation, so a few shards avoid contention.
pub(crate) const SHARDS: usize = 16;

/// A memory handle that this library created for another function's key.
#[derive(Debug)]
pub(crate) struct Import {
    /// Address of the memory domain.
    pub(crate) md: usize,
    /// The alias, pinned as long as the memory handle exists. The domain unpins it.
    pub(crate) alias: AliasPin,
    /// The key that it is an alias of.
    pub(crate) remote: RemoteKey,
}

/// Our own memory handle. UCX reads its head only. The spare part is as long as UCX's own structure
/// in any version, so that any field that UCX may read exists and is zero.
#[repr(C, align(16))]
struct ImportedMemh {
    head: MemhHead,
    spare: [u8; SPARE_BYTES],
}

/// `uct_ib_mlx5_devx_mem_t` without registrations has 104 bytes at most (1.18.1).
const SPARE_BYTES: usize = 256 - size_of::<MemhHead>();

/// Imported memory of all served memory domains.
pub(crate) static IMPORTS: Table<Import> = Table::new();

/// A value per memory handle.
#[derive(Debug)]
pub(crate) struct Table<V> {
    shards: [CachePadded<Mutex<Shard<V>>>; SHARDS],
}

/// Addresses of handles with their values.
type Shard<V> = HashTable<(usize, V)>;

impl<V> Table<V> {
    const fn new() -> Self {
        Self {
            shards: [const { CachePadded::new(Mutex::new(HashTable::new())) }; SHARDS],
        }
    }

    /// Sets the value of a handle. Returns the previous value, which the caller drops without a
    /// lock, or, without memory or without the lock in a child, the new value.
    #[inline]
    pub(crate) fn insert(&self, memh: MemHandle, value: V) -> Result<Option<V>, V> {
        let (address, hash) = (memh.addr(), mix(memh.addr()));
        let Some(mut shard) = self.shard(hash) else {
            return Err(value);
        };
        if shard.try_reserve(1, |entry| mix(entry.0)).is_err() {
            return Err(value);
        }
        let before = match shard.entry(hash, |entry| entry.0 == address, |entry| mix(entry.0)) {
            Entry::Occupied(mut entry) => Some(std::mem::replace(&mut entry.get_mut().1, value)),
            Entry::Vacant(entry) => {
                entry.insert((address, value));
                None
            }
        };
        Ok(before)
    }

    /// Removes the value of the handle.
    pub(crate) fn remove(&self, memh: MemHandle) -> Option<V> {
        let (address, hash) = (memh.addr(), mix(memh.addr()));
        let mut shard = self.shard(hash)?;
        let entry = shard.find_entry(hash, |entry| entry.0 == address).ok()?;
        let ((_address, value), _place) = entry.remove();
        Some(value)
    }

    /// Reads or changes the value of the handle. `look` runs under a lock.
    pub(crate) fn with<R>(&self, memh: MemHandle, look: impl FnOnce(&mut V) -> R) -> Option<R> {
        let (address, hash) = (memh.addr(), mix(memh.addr()));
        let mut shard = self.shard(hash)?;
        let entry = shard.find_mut(hash, |entry| entry.0 == address)?;
        Some(look(&mut entry.1))
    }

    /// Removes all selected values and passes each with its handle's address to `each`, which runs
    /// without a lock. Works in small batches to use little memory.
    pub(crate) fn take(&self, chosen: impl Fn(&V) -> bool, mut each: impl FnMut(usize, V)) {
        const AT_ONCE: usize = 32;
        for shard in &self.shards {
            loop {
                let taken: Vec<_> = {
                    let Some(mut shard) = forked::lock(shard) else {
                        break;
                    };
                    let chosen = shard.extract_if(|entry| chosen(&entry.1));
                    chosen.take(AT_ONCE).collect()
                };
                if taken.is_empty() {
                    break;
                }
                for (address, value) in taken {
                    each(address, value);
                }
            }
        }
    }

    #[inline]
    fn shard(&self, hash: u64) -> Option<MutexGuard<'_, Shard<V>>> {
        forked::lock(&self.shards[shard_of(hash)])
    }
}

/// True for a memory handle of our own.
///
/// # Safety
/// `memh` must be a live memory handle.
pub(crate) unsafe fn is_ours(memh: MemHandle) -> bool {
    // SAFETY: every memory handle starts with these fields.
    let flags = unsafe { (*memh.cast::<MemhHead>()).flags };
    if flags & memh_flags::IMPORTED == 0 {
        return false;
    }
    let (address, hash) = (memh.addr(), mix(memh.addr()));
    match IMPORTS.shard(hash) {
        Some(shard) => shard.find(hash, |entry| entry.0 == address).is_some(),
        // In a child whose parent held the lock. UCX must not free a handle of this library, so every
        // handle counts as one.
        None => true,
    }
}

/// Allocates a memory handle of our own, for an imported key.
pub(crate) fn new(lkey: Lkey) -> MemHandle {
    let key = lkey.raw();
    let memh = Box::into_raw(Box::new(ImportedMemh {
        head: MemhHead {
            lkey: key,
            rkey: key,
            flags: memh_flags::IMPORTED,
        },
        spare: [0; SPARE_BYTES],
    }));
    // The address is exposed because the table stores only its number.
    let _address = memh.expose_provenance();
    memh.cast()
}

/// Frees a memory handle of our own.
///
/// # Safety
/// It must come from [`new`] and must not be used any more.
pub(crate) unsafe fn free(memh: MemHandle) {
    // SAFETY: by the contract, it came from Box::into_raw in `new`.
    drop(unsafe { Box::from_raw(memh.cast::<ImportedMemh>()) });
}

/// The shard of an address. The tables use the highest and the lowest bits of the hash, so the
/// shard comes from the bits in between.
#[inline]
pub(crate) const fn shard_of(hash: u64) -> usize {
    let [_, _, _, _, _, at, ..] = hash.to_le_bytes();
    at as usize % SHARDS
}

/// Hashes addresses, whose lowest bits are always zero and whose highest bits are always equal. A
/// multiplication by the golden ratio spreads differences to higher bits, and the shift brings them
/// down.
#[inline]
pub(crate) const fn mix(address: usize) -> u64 {
    let product = (address as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    product ^ (product >> 32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr::without_provenance_mut;

    #[test]
    fn a_table_keeps_one_value_for_each_handle() {
        let table = Table::new();
        let memh = |at: usize| without_provenance_mut(0x7f00_0000_0000 + 64 * at);
        for at in 0..1000 {
            assert_eq!(table.insert(memh(at), at), Ok(None));
        }
        assert_eq!(table.insert(memh(7), 70), Ok(Some(7)));
        assert_eq!(
            table.with(memh(7), |value| std::mem::replace(value, 71)),
            Some(70)
        );
        assert_eq!(table.with(memh(1000), |value| *value), None);
        assert_eq!(table.remove(memh(7)), Some(71));
        assert_eq!(table.remove(memh(7)), None);
        let taken = |chosen: fn(&usize) -> bool| {
            let mut taken = Vec::new();
            table.take(chosen, |address, value| taken.push((address, value)));
            taken.sort_unstable();
            taken
        };
        let odd = taken(|value| value % 2 == 1);
        assert_eq!(odd.len(), 499);
        assert_eq!(odd[0], (memh(1).addr(), 1));
        assert_eq!(taken(|_| true).len(), 500);
        assert!(taken(|_| true).is_empty());
    }

    #[test]
    fn neighbours_go_to_different_shards() {
        let mut load = [0; SHARDS];
        for at in 0..1024 {
            load[shard_of(mix(0x7f00_0000_0000 + 256 * at))] += 1;
        }
        // 64 on average.
        assert!(
            load.iter().all(|count| (16..256).contains(count)),
            "{load:?}"
        );
    }
}
