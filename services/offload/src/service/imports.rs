//! The buffers of ranks that an SP has imported, and their keys. An import with a [`Name`] stays for later calls.
//!
//! The rank decides whether an import is still good: before each call it asks its UCX for the handle of the buffer, whose bytes
//! contain a number of the registration that UCX never uses twice. It names an import only if the bytes are the same. So an
//! import of memory that was unmapped stays here without being used, until its name is used again, the rank leaves, or the
//! device or the SP has no room.

use super::transport::Transport;
use crate::error::{OffloadError, Result};
use crate::wire::{ExportRef, Name, PackedKey};
use std::cell::OnceCell;
use std::rc::Rc;

/// Bytes of a kept import, about: its handle and key, and UCX's objects.
const IMPORT_BYTES: usize = 1 << 10;

/// An imported buffer, and the key with which other SPs read it.
#[derive(Debug)]
struct Import<T: Transport> {
    memory: T::Memory,
    key: OnceCell<T::Packed>,
}

/// A buffer of a call in an import, which other calls may use too.
#[derive(Debug)]
pub(super) struct Lent<T: Transport> {
    import: Rc<Import<T>>,
    /// Distance from the import's address to that of the buffer.
    shift: u64,
}

/// An import with a name.
#[derive(Debug)]
struct Kept<T: Transport> {
    generation: u32,
    /// The exported handle; empty before the first one.
    packed: Vec<u8>,
    /// `None` after the device had no room.
    import: Option<Rc<Import<T>>>,
}

/// The imports of a job at this SP.
#[derive(Debug)]
pub(super) struct Imports<T: Transport> {
    /// By local number of the rank and slot of the name.
    kept: Vec<Vec<Kept<T>>>,
    most: u32,
    /// Number of kept imports.
    count: usize,
    lacks_room: bool,
}

impl<T: Transport> Imports<T> {
    /// Keeps at most `most` imports of each rank.
    pub(super) fn new(most: u32) -> Self {
        Self {
            kept: Vec::new(),
            most,
            count: 0,
            lacks_room: false,
        }
    }

    /// The buffer that a local rank has exported.
    #[inline]
    pub(super) fn get(
        &mut self,
        transport: &T,
        local: usize,
        export: &ExportRef<'_>,
    ) -> Result<Lent<T>> {
        let import = match export.name {
            None => Rc::new(self.import(transport, *export)?),
            Some(name) => match self.known(local, name, export) {
                Some(import) => import,
                None => self.named(transport, local, name, *export)?,
            },
        };
        if !transport.holds(&import.memory, export.address, export.length) {
            return Err(failed(format!(
                "a rank names {} bytes at {:#x} of a buffer that it has exported elsewhere",
                export.length, export.address
            )));
        }
        let shift = export
            .address
            .wrapping_sub(transport.address(&import.memory));
        Ok(Lent { import, shift })
    }

    /// The import of a name that was announced in an earlier call.
    #[inline]
    fn known(&self, local: usize, name: Name, export: &ExportRef<'_>) -> Option<Rc<Import<T>>> {
        let slot = self.kept.get(local)?.get(name.slot as usize)?;
        let is_same = export.packed.is_empty() && slot.generation == name.generation;
        slot.import.as_ref().filter(|_| is_same).map(Rc::clone)
    }

    /// Any other import with a name.
    #[cold]
    fn named(
        &mut self,
        transport: &T,
        local: usize,
        name: Name,
        export: ExportRef<'_>,
    ) -> Result<Rc<Import<T>>> {
        let wrong = |what: &str| {
            failed(format!(
                "local rank {local} breaks the protocol: import {}, generation {}, {what}",
                name.slot, name.generation
            ))
        };
        if name.slot >= self.most {
            return Err(wrong("is beyond those that this service keeps"));
        }
        if self.kept.len() <= local {
            self.kept.resize_with(local + 1, Vec::new);
        }
        let (kept, at) = (&mut self.kept[local], name.slot as usize);
        if kept.len() <= at {
            kept.resize_with(at + 1, || Kept {
                generation: 0,
                packed: Vec::new(),
                import: None,
            });
        }
        let slot = &mut kept[at];
        let is_new = slot.packed.is_empty();
        if !is_new && slot.generation == name.generation {
            if !export.packed.is_empty() && export.packed != slot.packed {
                return Err(wrong("has another handle than before"));
            }
            if let Some(import) = &slot.import {
                return Ok(Rc::clone(import));
            }
        } else {
            let newer = name.generation.wrapping_sub(slot.generation).cast_signed() > 0;
            if export.packed.is_empty() || !(is_new || newer) {
                return Err(wrong("was not announced"));
            }
            slot.generation = name.generation;
            slot.packed.clear();
            slot.packed.extend_from_slice(export.packed);
            if let Some(old) = slot.import.take() {
                self.count -= 1;
                old.release(transport)?;
            }
        }
        let packed = std::mem::take(&mut self.kept[local][at].packed);
        let of_slot = ExportRef {
            packed: &packed,
            ..export
        };
        let imported = self.import(transport, of_slot);
        let slot = &mut self.kept[local][at];
        slot.packed = packed;
        let import = Rc::new(imported?);
        slot.import = Some(Rc::clone(&import));
        self.count += 1;
        Ok(import)
    }

    /// Imports a buffer. If that fails, the device may be full: imports that no call uses leave it first.
    fn import(&mut self, transport: &T, export: ExportRef<'_>) -> Result<Import<T>> {
        let memory = match transport.import(export) {
            Err(_) if self.drop_idle(transport)? => transport.import(export),
            done => done,
        };
        self.lacks_room |= memory.is_err();
        Ok(Import {
            memory: memory?,
            key: OnceCell::new(),
        })
    }

    /// Whether an import has failed since the last question.
    pub(super) fn lacks_room(&mut self) -> bool {
        std::mem::take(&mut self.lacks_room)
    }

    /// Bytes of the kept imports, about.
    pub(super) fn bytes(&self) -> usize {
        self.count * IMPORT_BYTES
    }

    /// Releases the imports that no call uses. Their names stay valid. Returns whether there were any.
    pub(super) fn drop_idle(&mut self, transport: &T) -> Result<bool> {
        let mut any = false;
        for slot in self.kept.iter_mut().flatten() {
            let is_idle = |import: &mut Rc<Import<T>>| Rc::strong_count(import) == 1;
            if let Some(import) = slot.import.take_if(is_idle) {
                self.count -= 1;
                import.release(transport)?;
                any = true;
            }
        }
        Ok(any)
    }

    /// A local rank has left the job.
    pub(super) fn forget(&mut self, transport: &T, local: usize) -> Result<()> {
        let kept = self.kept.get_mut(local).map(std::mem::take);
        for import in kept.into_iter().flatten().filter_map(|slot| slot.import) {
            self.count -= 1;
            import.release(transport)?;
        }
        Ok(())
    }
}

/// Releases an import with its last user.
trait Release<T> {
    fn release(self, transport: &T) -> Result<()>;
}

impl<T: Transport> Release<T> for Rc<Import<T>> {
    fn release(self, transport: &T) -> Result<()> {
        match Rc::into_inner(self) {
            Some(import) => transport.unmap(import.memory),
            None => Ok(()),
        }
    }
}

impl<T: Transport> Lent<T> {
    /// The memory of the import.
    #[inline]
    pub(super) fn memory(&self) -> &T::Memory {
        &self.import.memory
    }

    /// Offset of the buffer in that memory.
    #[inline]
    pub(super) fn shift(&self) -> u64 {
        self.shift
    }

    /// Packs the key with which other SPs read the buffer, unless a call has done so.
    #[inline]
    pub(super) fn pack(&self, transport: &T) -> Result<()> {
        if self.import.key.get().is_none() {
            let packed = transport.pack(&self.import.memory)?;
            let _ = self.import.key.set(packed);
        }
        Ok(())
    }

    /// The key; empty before [`Lent::pack`].
    pub(super) fn key(&self) -> &[u8] {
        self.import.key.get().map_or(&[], AsRef::as_ref)
    }

    /// The call has no more use for the buffer.
    pub(super) fn release(self, transport: &T) -> Result<()> {
        self.import.release(transport)
    }
}

impl<T: Transport> Clone for Lent<T> {
    fn clone(&self) -> Self {
        Self {
            import: Rc::clone(&self.import),
            shift: self.shift,
        }
    }
}

/// Number of keys of a source that are kept, and of all sources of a job.
const KEYS_OF_SOURCE: usize = 4;
const KEYS_MAX: usize = 1 << 14;

type Known<K> = (Box<[u8]>, Rc<K>);

/// Keys of other ranks' memory. A key follows from its bytes and its SP alone, so it serves all offers with these bytes.
#[derive(Debug)]
pub(super) struct Keys<K> {
    /// By rank: the bytes, and the key.
    of: Vec<Vec<Known<K>>>,
    /// The place of the next key of a source that has as many as it may have.
    next: usize,
    count: usize,
}

impl<K> Keys<K> {
    pub(super) fn new() -> Self {
        Self {
            of: Vec::new(),
            next: 0,
            count: 0,
        }
    }

    /// The key of `source` with these bytes, which `unpack` makes if it is new.
    #[inline]
    pub(super) fn get(
        &mut self,
        source: u32,
        packed: PackedKey<'_>,
        unpack: impl FnOnce(&[u8]) -> Result<K>,
    ) -> Result<Rc<K>> {
        if let Some(known) = self.of.get(source as usize) {
            for (bytes, key) in known {
                if packed.is(bytes) {
                    return Ok(Rc::clone(key));
                }
            }
        }
        let mut memory = Vec::new();
        let packed = packed.bytes(&mut memory);
        let key = Rc::new(unpack(packed)?);
        self.keep(source as usize, packed, &key);
        Ok(key)
    }

    #[cold]
    fn keep(&mut self, source: usize, packed: &[u8], key: &Rc<K>) {
        if self.of.len() <= source {
            self.of.resize_with(source + 1, Vec::new);
        }
        let of = &mut self.of[source];
        let new = (packed.into(), Rc::clone(key));
        if of.len() == KEYS_OF_SOURCE {
            self.next = (self.next + 1) % KEYS_OF_SOURCE;
            of[self.next] = new;
        } else if self.count < KEYS_MAX {
            of.push(new);
            self.count += 1;
        }
    }
}

fn failed(reason: impl Into<String>) -> OffloadError {
    OffloadError::Failed(reason.into())
}

#[cfg(test)]
mod tests;
