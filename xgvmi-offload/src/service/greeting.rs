//! The greetings of a job: before the job starts, each SP reads one greeting from every SP, from a rank's memory to a
//! rank's memory.
//!
//! Every later block takes the same path. A broken path therefore shows before any rank has entered a call. UCX
//! performs set-up work at the first import of a rank's memory and at the first read over a connection; the greeting
//! moves that work from the first call to the job's set-up. The ranks keep the memory and its key while they are
//! connected.

use super::imported::Imported;
use crate::error::{OffloadError, Result};
use crate::wire::{Export, GREETING_BYTES, Greeting};
use std::collections::{BTreeMap, BTreeSet};
use xgvmi_ucp::{Context, Endpoint, RemoteKey, Request};

/// State of a job's greetings. The fields drop in this order: operations before the objects that they use.
#[derive(Debug, Default)]
pub(super) struct Greetings {
    /// Outstanding reads, with the index of the SP.
    reads: Vec<(u32, Request)>,
    /// SPs whose greeting has been read.
    read: BTreeSet<u32>,
    /// Offers that arrived before the endpoints of the SPs existed.
    early: Vec<(u32, Greeting)>,
    /// Greeting memory of each of this SP's ranks.
    memory: BTreeMap<u32, Imported>,
}

impl Greetings {
    /// Imports a rank's greeting memory.
    pub(super) fn import(&mut self, context: &Context, rank: u32, export: &Export) -> Result<()> {
        if export.length < 2 * GREETING_BYTES {
            return Err(failed(format!(
                "rank {rank} keeps {} bytes for greetings; {} are needed",
                export.length,
                2 * GREETING_BYTES
            )));
        }
        let memory = Imported::new(context, export.view())?;
        self.memory.insert(rank, memory);
        Ok(())
    }

    /// The memory that other SPs read: the first half of a rank's memory.
    pub(super) fn ours(&self) -> Result<Greeting> {
        let memory = self.memory.values().next();
        let memory = memory.ok_or_else(|| failed("a table before the first rank"))?;
        Ok(Greeting {
            rkey: memory.memory.pack_rkey()?.to_vec(),
            address: memory.address,
        })
    }

    /// Handles the greeting offer of SP `index`: reads it, or stores it until `services` are known.
    pub(super) fn offered(
        &mut self,
        services: &[Endpoint],
        index: u32,
        greeting: Greeting,
    ) -> Result<()> {
        if services.is_empty() {
            self.early.push((index, greeting));
            return Ok(());
        }
        let lost = |what: &str| failed(format!("the greeting of service {index} without {what}"));
        let endpoint = services.get(index as usize);
        let endpoint = endpoint.ok_or_else(|| lost("a place in the table"))?;
        let into = self.memory.values().next();
        let into = into.ok_or_else(|| lost("a rank to read it"))?;
        // SAFETY: the offering SP sends the bytes of UCX's packed key unchanged; its UCX version equals ours.
        let key = unsafe { RemoteKey::unpack(endpoint, &greeting.rkey) }?;
        let length = usize::try_from(GREETING_BYTES).map_err(|_| lost("a length that fits"))?;
        let to = into.address.wrapping_add(GREETING_BYTES);
        let read = Endpoint::get(&key, greeting.address, &into.memory, to, length)?;
        self.reads.push((index, read));
        Ok(())
    }

    /// `services` are known: reads the stored offers.
    pub(super) fn begin(&mut self, services: &[Endpoint]) -> Result<()> {
        for (index, greeting) in std::mem::take(&mut self.early) {
            self.offered(services, index, greeting)?;
        }
        Ok(())
    }

    /// Collects completed reads; returns true if there were any.
    pub(super) fn reap(&mut self) -> Result<bool> {
        let before = self.reads.len();
        let mut at = 0;
        while let Some((index, read)) = self.reads.get(at) {
            let ended = read.test().map_err(|error| {
                failed(format!("reading the greeting of service {index}: {error}"))
            })?;
            if ended {
                let (index, _) = self.reads.swap_remove(at);
                self.read.insert(index);
            } else {
                at += 1;
            }
        }
        Ok(self.reads.len() < before)
    }

    /// Whether the greetings of `services` SPs have been read.
    pub(super) fn are_read(&self, services: usize) -> bool {
        self.read.len() == services
    }

    /// Cancels outstanding reads; returns false while UCX still uses an object.
    pub(super) fn shut(&mut self) -> bool {
        self.reads
            .retain(|(_, read)| matches!(read.test(), Ok(false)));
        self.reads.is_empty()
    }
}

fn failed(reason: impl Into<String>) -> OffloadError {
    OffloadError::Failed(reason.into())
}
