//! Reads of the DPA and of UCX, under one range of numbers: those of the DPA are odd.

use super::Dpa;
use super::block::{Block, Ends, Target};
use crate::error::OffloadError;
use std::collections::BTreeMap;
use std::rc::Rc;
use xgvmi_ucp::{Gets, ImportedMemory, RemoteKey, UcpError};
use xgvmi_verbs::Access;

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
}

/// What UCX needs for a read of the DPA, if it must start again.
#[derive(Debug)]
struct Kept {
    key: RemoteKey,
    address: u64,
    into: ImportedMemory,
    to: u64,
    length: usize,
}

/// Reads under way, by number.
#[derive(Debug, Default)]
pub(in crate::service) struct Reads {
    gets: Gets,
    kept: Vec<Option<Kept>>,
    free: Vec<u32>,
    ends: Rc<Ends>,
    /// Number of this value at the DPA.
    owner: Option<u32>,
    /// Places of reads of the DPA that UCX has started again, by UCX's number.
    again: BTreeMap<u32, u32>,
}

impl Reads {
    /// Number of reads that were started and not taken.
    #[inline]
    pub(in crate::service) fn len(&self) -> usize {
        // A read that has started again has a place and is one of UCX's.
        self.gets.len() + self.kept.len() - self.free.len() - self.again.len()
    }

    /// Starts a read of UCX. Returns its number; `None` if it is complete.
    #[inline(always)]
    pub(in crate::service) fn start(
        &mut self,
        key: &RemoteKey,
        address: u64,
        into: &ImportedMemory,
        to: u64,
        length: usize,
    ) -> Result<Option<u32>, UcpError> {
        let started = self.gets.start(key, address, into, to, length)?;
        Ok(started.map(|number| 2 * number))
    }

    /// Starts a read of the DPA, if it can access the memory and has room.
    pub(in crate::service) fn start_on(&mut self, dpa: &Dpa, read: &Read<'_>) -> Option<u32> {
        let (target, alias) = (read.target?, read.alias?);
        let bytes = u32::try_from(read.length).ok()?;
        if !dpa.has_room(read.length) {
            return None;
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
        Some(2 * place + 1)
    }

    fn keep(&mut self, read: &Read<'_>) -> u32 {
        let kept = Some(Kept {
            key: read.key.clone(),
            address: read.address,
            into: read.into.clone(),
            to: read.to,
            length: read.length,
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

    /// Takes a read that has ended: its number, and its error if it has failed.
    #[inline(always)]
    pub(in crate::service) fn take(
        &mut self,
        dpa: Option<&Dpa>,
    ) -> Option<(u32, Result<(), Box<OffloadError>>)> {
        if let Some(dpa) = dpa {
            return self.take_beside(dpa);
        }
        let (number, ended) = self.gets.take()?;
        Some((2 * number, ended.map_err(|error| Box::new((*error).into()))))
    }

    /// Takes a read of the DPA or of UCX that has ended.
    fn take_beside(&mut self, dpa: &Dpa) -> Option<(u32, Result<(), Box<OffloadError>>)> {
        let ended = self.ends.borrow_mut().pop();
        if let Some(place) = ended {
            return Some(self.ended(place, Ok(())));
        }
        if self.free.len() + self.again.len() < self.kept.len()
            && dpa.is_lost.get()
            && let Some(failed) = self.start_again()
        {
            return Some(failed);
        }
        let (number, ended) = self.gets.take()?;
        let ended = ended.map_err(|error| Box::new((*error).into()));
        if let Some(place) = self.again.remove(&number) {
            return Some(self.ended(place, ended));
        }
        Some((2 * number, ended))
    }

    fn ended(
        &mut self,
        place: u32,
        ended: Result<(), Box<OffloadError>>,
    ) -> (u32, Result<(), Box<OffloadError>>) {
        self.kept[place as usize] = None;
        self.free.push(place);
        (2 * place + 1, ended)
    }

    /// The DPA is lost: UCX starts its reads again. A read has no effect but its bytes, which are the same. Returns the first
    /// that has ended or cannot start.
    #[cold]
    fn start_again(&mut self) -> Option<(u32, Result<(), Box<OffloadError>>)> {
        let open: Vec<u32> = (0..)
            .zip(&self.kept)
            .filter(|(place, kept)| {
                kept.is_some() && !self.again.values().any(|again| again == place)
            })
            .map(|(place, _)| place)
            .collect();
        for place in open {
            let Some(kept) = &self.kept[place as usize] else {
                continue;
            };
            let (address, length) = (kept.address, kept.length);
            let started = self
                .gets
                .start(&kept.key, address, &kept.into, kept.to, length);
            match started {
                Ok(Some(number)) => drop(self.again.insert(number, place)),
                Ok(None) => return Some(self.ended(place, Ok(()))),
                Err(error) => return Some(self.ended(place, Err(Box::new(error.into())))),
            }
        }
        None
    }
}
