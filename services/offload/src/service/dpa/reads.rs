//! Reads of the DPA and of UCX.

use super::Dpa;
use super::block::{Block, Ends, Target};
use crate::error::OffloadError;
use std::rc::Rc;
use xgvmi_ucp::{Gets, ImportedMemory, RemoteKey, Taken, UcpError};
use xgvmi_verbs::Access;

type Ended = Result<(), Box<OffloadError>>;

/// A read: from a peer's memory into that of a rank.
#[derive(Debug)]
pub(in crate::service) struct Read<'a> {
    pub(in crate::service) key: &'a RemoteKey,
    pub(in crate::service) target: Option<Target>,
    pub(in crate::service) address: u64,
    pub(in crate::service) into: &'a ImportedMemory,
    pub(in crate::service) alias: Option<&'a Rc<Access>>,
    pub(in crate::service) to: u64,
    pub(in crate::service) length: usize,
    pub(in crate::service) tag: u64,
}

/// What UCX needs for a read of the DPA, if it must start again.
#[derive(Debug)]
struct Kept {
    key: RemoteKey,
    address: u64,
    into: ImportedMemory,
    to: u64,
    length: usize,
    tag: u64,
}

/// Reads under way.
#[derive(Debug, Default)]
pub(in crate::service) struct Reads {
    gets: Gets,
    kept: Vec<Option<Kept>>,
    free: Vec<u32>,
    ends: Rc<Ends>,
    /// Number of this value at the DPA.
    owner: Option<u32>,
}

impl Reads {
    /// Number of reads that were started and not taken.
    #[inline]
    pub(in crate::service) fn len(&self) -> usize {
        self.gets.len() + self.kept.len() - self.free.len()
    }

    /// Those of UCX.
    #[inline]
    pub(in crate::service) fn gets(&mut self) -> &mut Gets {
        &mut self.gets
    }

    /// Starts a read of UCX. False if it is complete.
    pub(in crate::service) fn start(&mut self, read: &Read<'_>) -> Result<bool, UcpError> {
        let Read { to, length, .. } = *read;
        self.gets
            .start(read.key, read.address, read.into, to, length, read.tag)
    }

    /// Starts a read of the DPA. False if it cannot access the memory, or has no room.
    pub(in crate::service) fn start_on(&mut self, dpa: &Dpa, read: &Read<'_>) -> bool {
        let (Some(target), Some(alias)) = (read.target, read.alias) else {
            return false;
        };
        let Ok(bytes) = u32::try_from(read.length) else {
            return false;
        };
        if !dpa.has_room(read.length) {
            return false;
        }
        let block = Block {
            to: read.to,
            from: read.address,
            to_key: alias.lkey().raw(),
            bytes,
            target,
        };
        let place = self.keep(read);
        let owner = *self.owner.get_or_insert_with(|| dpa.enter(&self.ends));
        dpa.put(&block, owner, place);
        true
    }

    fn keep(&mut self, read: &Read<'_>) -> u32 {
        let kept = Some(Kept {
            key: read.key.clone(),
            address: read.address,
            into: read.into.clone(),
            to: read.to,
            length: read.length,
            tag: read.tag,
        });
        match self.free.pop() {
            Some(place) => {
                self.kept[place as usize] = kept;
                place
            }
            None => {
                self.kept.push(kept);
                u32::try_from(self.kept.len() - 1).expect("as many as the ring has blocks")
            }
        }
    }

    /// Takes reads of a run that have ended, of the DPA one by one: a tag, their number, and the error of one that has failed.
    #[inline(always)]
    pub(in crate::service) fn take(&mut self, dpa: Option<&Dpa>) -> Option<(u64, u32, Ended)> {
        if let Some(dpa) = dpa
            && let Some((tag, ended)) = self.take_of(dpa)
        {
            return Some((tag, 1, ended));
        }
        let Taken {
            tag,
            count,
            outcome,
        } = self.gets.take()?;
        let ended = outcome.map_err(|error| Box::new((*error).into()));
        Some((tag, count, ended))
    }

    /// Takes a read of the DPA that has ended, or that UCX cannot start again.
    fn take_of(&mut self, dpa: &Dpa) -> Option<(u64, Ended)> {
        let ended = self.ends.borrow_mut().pop();
        if let Some(place) = ended {
            let kept = self.release(place)?;
            return Some((kept.tag, Ok(())));
        }
        match self.free.len() < self.kept.len() && dpa.is_lost.get() {
            true => self.start_again(),
            false => None,
        }
    }

    /// The place of a read is free.
    fn release(&mut self, place: u32) -> Option<Kept> {
        let kept = self.kept.get_mut(place as usize)?.take()?;
        self.free.push(place);
        Some(kept)
    }

    /// The DPA is lost: UCX starts its reads again. A read has no effect but its bytes, which are the same. Returns the first
    /// that is complete or cannot start.
    #[cold]
    fn start_again(&mut self) -> Option<(u64, Ended)> {
        let places = u32::try_from(self.kept.len()).expect("as many as the ring has blocks");
        for place in 0..places {
            let Some(kept) = self.release(place) else {
                continue;
            };
            let Kept {
                to, length, tag, ..
            } = kept;
            let started = self
                .gets
                .start(&kept.key, kept.address, &kept.into, to, length, tag);
            match started {
                Ok(true) => {}
                Ok(false) => return Some((tag, Ok(()))),
                Err(error) => return Some((tag, Err(Box::new(error.into())))),
            }
        }
        None
    }
}
