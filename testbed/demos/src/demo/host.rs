//! The two hosts: a fresh buffer, exported to their DPU, released at the end of the iteration.

use super::control::{Batch, Outcome, Place};
use super::session::Session;
use super::wire::{Header, Kind};
use anyhow::{Context as _, Result};
use std::time::Instant;
use xgvmi_ucp::MappedBuffer;
use xgvmi_ucp::buffer::Buffer;
use xgvmi_ucp::pattern::Pattern;

/// Host A: fills the buffer and measures the time.
///
/// An iteration's time runs from just before START is sent to host B until host A has unmapped its buffer from UCX
/// and from its address space *and* DONE has come, which host B sends when it has unmapped from UCX. So it is one
/// clock, and on it is all that either host or DPU does for the transfer: registration, export, import, keys, data,
/// completions, and the deregistration that UCX put off from the iteration before. Mapping, touching and filling
/// buffers beforehand and verifying them afterwards are not on it.
pub(super) fn send(session: &Session<'_>, batch: &Batch) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    for iteration in batch.first..batch.first + batch.count {
        let time_ns = send_one(session, batch, iteration)
            .with_context(|| format!("iteration {iteration}"))?;
        outcome.times_ns.push(time_ns);
    }
    Ok(outcome)
}

fn send_one(session: &Session<'_>, batch: &Batch, iteration: u64) -> Result<u64> {
    let mut buffer = Buffer::new(batch.size)?;
    pattern(batch, iteration).fill(buffer.as_mut_slice());
    session.expect(Kind::Ready, iteration)?;

    let start = Instant::now();
    let header = Header {
        iteration,
        ..Header::default()
    };
    session.send(Place::HostB, Kind::Start, header, Vec::new())?;
    let mapped = arrive(session, Place::DpuA, iteration, buffer)?;
    session.expect(Kind::HostFin, iteration)?;
    drop(mapped.unmap()?);
    session.expect(Kind::Done, iteration)?;
    Ok(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX))
}

/// Host B: offers an untouched buffer and verifies every received byte.
pub(super) fn receive(session: &Session<'_>, batch: &Batch) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    for iteration in batch.first..batch.first + batch.count {
        receive_one(session, batch, iteration, &mut outcome)
            .with_context(|| format!("iteration {iteration}"))?;
    }
    Ok(outcome)
}

fn receive_one(
    session: &Session<'_>,
    batch: &Batch,
    iteration: u64,
    outcome: &mut Outcome,
) -> Result<()> {
    let header = Header {
        iteration,
        ..Header::default()
    };
    let buffer = Buffer::new(batch.size)?;
    session.send(Place::HostA, Kind::Ready, header, Vec::new())?;

    session.expect(Kind::Start, iteration)?;
    let mapped = arrive(session, Place::DpuB, iteration, buffer)?;
    session.expect(Kind::HostFin, iteration)?;
    let buffer = mapped.unmap()?;
    session.send(Place::HostA, Kind::Done, header, Vec::new())?;

    outcome.verified_bytes += buffer.len() as u64;
    if let Some(wrong) = pattern(batch, iteration).check(buffer.as_slice()) {
        outcome.mismatches += wrong.bytes;
        outcome.first_wrong.get_or_insert((iteration, wrong.first));
    }
    Ok(())
}

/// Registers and exports a buffer, and informs the DPU.
fn arrive(
    session: &Session<'_>,
    dpu: Place,
    iteration: u64,
    buffer: Buffer,
) -> Result<MappedBuffer> {
    let length = buffer.len() as u64;
    let mapped = MappedBuffer::new(&session.context, buffer)?;
    let exported = mapped.export()?;
    let header = Header {
        iteration,
        address: mapped.address(),
        length,
    };
    session.send(dpu, Kind::HostArrive, header, exported.to_vec())?;
    Ok(mapped)
}

fn pattern(batch: &Batch, iteration: u64) -> Pattern {
    Pattern::new(&[batch.salt, batch.size as u64, iteration])
}
