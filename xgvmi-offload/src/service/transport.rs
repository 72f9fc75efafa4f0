//! Moves messages and blocks for a job. A service process uses UCX; measurements of this project's own code use a
//! stand-in.

use super::imported::Imported;
use crate::error::Result;
use crate::library::Library;
use crate::token::Token;
use crate::wire::{ExportRef, Kind};
use std::fmt::Debug;
use xgvmi_ucp::{Context, Endpoint, RemoteKey, Request};

/// The operations of the data path. None of them blocks.
pub(super) trait Transport {
    /// A connection to a rank or to another SP.
    type Peer: Debug;
    /// An imported buffer of a rank, or memory of this process.
    type Memory: Debug;
    /// A key to a rank's memory, packed by another SP.
    type Key: Debug;
    /// A packed key to an imported buffer.
    type Packed: AsRef<[u8]> + Default + Debug;
    /// An outstanding operation.
    type Operation: Debug;

    /// Sends a message with the token that its receiver expects.
    fn send(
        &self,
        to: &Self::Peer,
        kind: Kind,
        token: Token,
        data: Vec<u8>,
    ) -> Result<Self::Operation>;

    /// Imports a rank's buffer.
    fn import(&self, export: ExportRef<'_>) -> Result<Self::Memory>;

    /// Address of a buffer in the address space of its rank.
    fn address(&self, memory: &Self::Memory) -> u64;

    /// Packs the key with which other SPs read a buffer.
    fn pack(&self, memory: &Self::Memory) -> Result<Self::Packed>;

    /// Allocates memory of this process that can take the place of an imported buffer.
    fn stage(&self, length: usize) -> Result<Self::Memory>;

    /// The bytes of memory of this process; `None` for an imported buffer, and while an operation uses the memory.
    fn bytes<'a>(&self, memory: &'a mut Self::Memory) -> Option<&'a mut [u8]>;

    /// Releases an imported buffer.
    fn unmap(&self, memory: Self::Memory) -> Result<()>;

    /// Unpacks a key that `from` has packed.
    fn unpack(&self, from: &Self::Peer, key: &[u8]) -> Result<Self::Key>;

    /// Reads `length` bytes at `address` of the key's memory into `into` at offset `to`.
    fn read(
        &self,
        key: &Self::Key,
        address: u64,
        into: &Self::Memory,
        to: u64,
        length: usize,
    ) -> Result<Self::Operation>;

    /// The process's alias lookups so far, hits and misses; `None` without the library's counters.
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
    type Packed = Vec<u8>;
    type Operation = Request;

    fn send(&self, to: &Endpoint, kind: Kind, token: Token, data: Vec<u8>) -> Result<Request> {
        Ok(to.send(kind as u16, token.0.to_vec(), data)?)
    }

    fn import(&self, export: ExportRef<'_>) -> Result<Imported> {
        Imported::new(&self.context, export)
    }

    fn address(&self, memory: &Imported) -> u64 {
        memory.address
    }

    fn pack(&self, memory: &Imported) -> Result<Vec<u8>> {
        Ok(memory.memory.pack_rkey()?.to_vec())
    }

    fn stage(&self, length: usize) -> Result<Imported> {
        Imported::stage(&self.context, length)
    }

    fn bytes<'a>(&self, memory: &'a mut Imported) -> Option<&'a mut [u8]> {
        memory.memory.own_bytes()
    }

    fn unmap(&self, memory: Imported) -> Result<()> {
        Ok(memory.memory.unmap()?)
    }

    fn unpack(&self, from: &Endpoint, key: &[u8]) -> Result<RemoteKey> {
        // SAFETY: the offering SP has authenticated itself if a secret is set. It sends the bytes of UCX's packed key
        // unchanged, and its UCX version equals ours.
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
        // The destination is inside the buffer, see check_blocks.
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
