//! The two DPUs: import their host's buffer and transfer the data between the hosts.

use super::control::{Batch, Outcome, Place};
use super::session::Session;
use super::wire::{Header, Kind};
use anyhow::{Context as _, Result};
use xgvmi_ucp::{Get, ImportedMemory, RemoteKey};

/// DPU A: packs a remote key of host A's buffer for DPU B.
pub(super) fn offer(session: &Session<'_>, batch: &Batch) -> Result<Outcome> {
    for iteration in batch.first..batch.first + batch.count {
        offer_one(session, iteration).with_context(|| format!("iteration {iteration}"))?;
    }
    Ok(Outcome::default())
}

fn offer_one(session: &Session<'_>, iteration: u64) -> Result<()> {
    let (header, exported) = session.expect(Kind::HostArrive, iteration)?;
    let imported = import(session, &exported)?;
    let rkey = imported.pack_rkey()?.to_vec();
    session.send(Place::DpuB, Kind::DpuRts, header, rkey)?;

    session.expect(Kind::DpuFin, iteration)?;
    imported.unmap()?;
    session.send(Place::HostA, Kind::HostFin, header, Vec::new())
}

/// DPU B: reads from host A's memory directly into host B's memory.
pub(super) fn transfer(session: &Session<'_>, batch: &Batch) -> Result<Outcome> {
    for iteration in batch.first..batch.first + batch.count {
        transfer_one(session, iteration).with_context(|| format!("iteration {iteration}"))?;
    }
    Ok(Outcome::default())
}

fn transfer_one(session: &Session<'_>, iteration: u64) -> Result<()> {
    let (to, exported) = session.expect(Kind::HostArrive, iteration)?;
    let imported = import(session, &exported)?;
    let (from, packed) = session.expect(Kind::DpuRts, iteration)?;
    // SAFETY: DPU A sends what it packed, unchanged, over a reliable connection.
    let rkey = unsafe { RemoteKey::unpack(session.endpoint(Place::DpuA)?, &packed) }?;
    // The receiver's length applies. If the sender offers less, the read fails and does not overrun.
    let length = usize::try_from(to.length.min(from.length))?;
    let request = Get::start(&rkey, from.address, &imported, to.address, length)?;
    session.finish(request)?;

    drop(rkey);
    imported.unmap()?;
    let header = Header { iteration, ..to };
    session.send(Place::DpuA, Kind::DpuFin, header, Vec::new())?;
    session.send(Place::HostB, Kind::HostFin, header, Vec::new())
}

fn import(session: &Session<'_>, exported: &[u8]) -> Result<ImportedMemory> {
    // SAFETY: the host sends what it exported, unchanged, over a reliable connection; all processes of a run use one
    // UCX library.
    Ok(unsafe { ImportedMemory::new(&session.context, exported) }?)
}
