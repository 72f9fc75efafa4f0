//! What moves messages and blocks for a job. UCX does so in a service process; a stand-in does so where only our own
//! code is to be measured.

use super::imported::Imported;
use crate::error::Result;
use crate::library::Library;
use crate::wire::{Export, Kind};
use std::fmt::Debug;
use xgvmi_ucp::{Context, Endpoint, RemoteKey, Request};

/// The operations of the data path. None of them blocks.
pub(super) trait Transport {
    /// A connection to a rank or to another SP.
    type Peer: Debug;
    /// A rank's imported buffer.
    type Memory: Debug;
    /// A key to a rank's memory that another SP has packed.
    type Key: Debug;
    /// An operation under way.
    type Operation: Debug;

    /// Sends a message.
    fn send(
        &self,
        to: &Self::Peer,
        kind: Kind,
        header: Vec<u8>,
        data: Vec<u8>,
    ) -> Result<Self::Operation>;

    /// Imports a rank's buffer.
    fn import(&self, export: &Export) -> Result<Self::Memory>;

    /// Makes the key that other SPs read a buffer with.
    fn pack(&self, memory: &Self::Memory) -> Result<Vec<u8>>;

    /// Gives an imported buffer back.
    fn unmap(&self, memory: Self::Memory) -> Result<()>;

    /// Takes a key that `from` has packed.
    fn unpack(&self, from: &Self::Peer, key: &[u8]) -> Result<Self::Key>;

    /// Reads `length` bytes at `address` of the key's memory to offset `to` of `into`.
    fn read(
        &self,
        key: &Self::Key,
        address: u64,
        into: &Self::Memory,
        to: u64,
        length: usize,
    ) -> Result<Self::Operation>;

    /// The process's alias lookups so far: hits and misses; `None` when nobody counts them.
    fn aliases(&self) -> Option<(u64, u64)>;

    /// Whether an operation has ended.
    fn has_ended(&self, operation: &Self::Operation) -> Result<bool>;
}

/// UCX.
#[derive(Debug)]
pub(super) struct Ucx {
    pub(super) context: Context,
    pub(super) library: Option<Library>,
}

impl Transport for Ucx {
    type Peer = Endpoint;
    type Memory = Imported;
    type Key = RemoteKey;
    type Operation = Request;

    fn send(&self, to: &Endpoint, kind: Kind, header: Vec<u8>, data: Vec<u8>) -> Result<Request> {
        Ok(to.send(kind as u16, header, data)?)
    }

    fn import(&self, export: &Export) -> Result<Imported> {
        Imported::new(&self.context, export)
    }

    fn pack(&self, memory: &Imported) -> Result<Vec<u8>> {
        Ok(memory.memory.pack_rkey()?.to_vec())
    }

    fn unmap(&self, memory: Imported) -> Result<()> {
        Ok(memory.memory.unmap()?)
    }

    fn unpack(&self, from: &Endpoint, key: &[u8]) -> Result<RemoteKey> {
        // SAFETY: the offering SP has proved the secret, if there is one, and sends what UCX packed, byte by byte; its
        // UCX is of our version.
        Ok(unsafe { RemoteKey::unpack(from, key) }?)
    }

    fn read(
        &self,
        key: &RemoteKey,
        address: u64,
        into: &Imported,
        to: u64,
        length: usize,
    ) -> Result<Request> {
        // Within the buffer, see check_blocks.
        let to = into.address.wrapping_add(to);
        Ok(Endpoint::get(key, address, &into.memory, to, length)?)
    }

    fn aliases(&self) -> Option<(u64, u64)> {
        let stats = self.library?.stats();
        Some((stats.alias_hits, stats.alias_misses))
    }

    fn has_ended(&self, operation: &Request) -> Result<bool> {
        Ok(operation.test()?)
    }
}
