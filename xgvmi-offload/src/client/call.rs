//! One call, from its arguments to its completion.

use super::state::{Client, LIVE_MAX, Live, arguments};
use super::types::{CommunicatorId, Memory, Request, Side};
use crate::error::{OffloadError, Result};
use crate::reduction::Reduction;
use crate::wire::{Block, Collective, Export, HostArrive, HostFin, HostReduce, Kind};
use std::rc::Rc;
use std::time::Instant;
use xgvmi_ucp::MappedRange;
use xgvmi_ucp::buffer::Buffer;

impl Client {
    /// # Safety
    /// As for [`Client::alltoallv`]. `copy` is the send buffer if this client allocated it.
    pub(super) unsafe fn begin(
        &mut self,
        communicator: CommunicatorId,
        send: Side<'_>,
        receive: Side<'_>,
        copy: Option<Buffer>,
    ) -> Result<Request> {
        let (collective, members) = self.next_call(communicator)?;
        let sends = blocks("send", &members, &send)?;
        let receives = blocks("receive", &members, &receive)?;
        check_apart(&receives)?;
        let mut mapped = Vec::new();
        // SAFETY: the caller upholds the contract.
        let send_memory = unsafe { self.export(&send, &mut mapped) }?;
        // SAFETY: the same.
        let receive_memory = unsafe { self.export(&receive, &mut mapped) }?;
        // SAFETY: the caller upholds the contract; blocks() has checked that each block is inside the memory.
        let short = unsafe { self.short_blocks(&send) };
        let arrive = HostArrive {
            collective,
            rank: self.rank,
            send_memory,
            receive_memory,
            sends,
            receives,
            short,
        };
        let (start, length) = receive.memory.range();
        let live = Live {
            is_done: false,
            mapped,
            receive: start,
            receive_length: length,
            copy,
        };
        self.enter(collective, live, Kind::HostArrive, arrive.to_bytes())
    }

    /// # Safety
    /// As for [`Client::allreduce`].
    pub(super) unsafe fn begin_reduce(
        &mut self,
        communicator: CommunicatorId,
        send: Option<Memory<'_>>,
        receive: Memory<'_>,
        reduction: Reduction,
    ) -> Result<Request> {
        let (collective, members) = self.next_call(communicator)?;
        let (start, length) = receive.range();
        let (from, send_length) = send.as_ref().map_or((start, length), Memory::range);
        if send_length != length || !length.is_multiple_of(reduction.element_size()) {
            return Err(arguments(format!(
                "vectors of {send_length} and {length} bytes of elements of {} bytes",
                reduction.element_size()
            )));
        }
        let mut mapped = Vec::new();
        let (mut send_memory, mut receive_memory, mut short) = (None, None, Vec::new());
        if length >= self.direct_min {
            // SAFETY: the caller upholds the contract.
            receive_memory = Some(unsafe { self.export_memory(&receive, &mut mapped) }?);
            if let Some(send) = &send {
                // SAFETY: the same.
                send_memory = Some(unsafe { self.export_memory(send, &mut mapped) }?);
            }
        } else if length > 0 {
            // SAFETY: the caller guarantees `length` readable bytes, to which no thread writes during the call.
            short = unsafe { std::slice::from_raw_parts(from, length) }.to_vec();
        }
        let message = HostReduce {
            collective,
            rank: self.rank,
            reduction,
            length: length as u64,
            members: members.to_vec(),
            send_memory,
            receive_memory,
            short,
        };
        let live = Live {
            is_done: false,
            mapped,
            receive: start,
            receive_length: length,
            copy: None,
        };
        self.enter(collective, live, Kind::HostReduce, message.to_bytes())
    }

    /// The next call of a communicator, and its members.
    fn next_call(&self, communicator: CommunicatorId) -> Result<(Collective, Rc<[u32]>)> {
        self.check()?;
        if self.live.len() >= LIVE_MAX {
            return Err(arguments(format!(
                "{LIVE_MAX} calls under way are the most"
            )));
        }
        let group = self
            .communicators
            .get(&communicator.0)
            .ok_or_else(|| arguments(format!("there is no communicator {}", communicator.0)))?;
        let collective = Collective {
            communicator: communicator.0,
            sequence: group.next,
            step: 0,
        };
        Ok((collective, Rc::clone(&group.members)))
    }

    /// Sends a call to the SP.
    fn enter(
        &mut self,
        collective: Collective,
        live: Live,
        kind: Kind,
        data: Vec<u8>,
    ) -> Result<Request> {
        self.live.insert(collective, live);
        if let Some(group) = self.communicators.get_mut(&collective.communicator) {
            group.next = group.next.wrapping_add(1);
        }
        let token = self.to_service.0.to_vec();
        match self.endpoint.send(kind as u16, token, data) {
            Ok(request) => self.sends.push(request),
            Err(error) => return Err(self.fail(error.to_string(), true)),
        }
        self.progress()?;
        Ok(Request { collective })
    }

    /// Registers the memory of one side if one of its blocks is long enough for a device read.
    ///
    /// # Safety
    /// As for [`Client::alltoallv`].
    pub(super) unsafe fn export(
        &mut self,
        side: &Side<'_>,
        mapped: &mut Vec<MappedRange>,
    ) -> Result<Option<Export>> {
        if side.counts.iter().all(|count| *count < self.direct_min) {
            return Ok(None);
        }
        // SAFETY: the caller upholds the contract.
        unsafe { self.export_memory(&side.memory, mapped) }.map(Some)
    }

    /// Registers and exports memory that is not registered.
    ///
    /// # Safety
    /// As for [`Client::alltoallv`].
    unsafe fn export_memory(
        &mut self,
        memory: &Memory<'_>,
        mapped: &mut Vec<MappedRange>,
    ) -> Result<Export> {
        let (start, length) = memory.range();
        let packed = match memory {
            Memory::Registered(registered) => registered.packed.clone(),
            Memory::Temporary { .. } => {
                // SAFETY: the caller upholds the contract.
                let (range, packed) = unsafe { self.map(start, length) }?;
                mapped.push(range);
                packed
            }
        };
        Ok(Export {
            address: start.addr() as u64,
            length: length as u64,
            packed,
        })
    }

    /// # Safety
    /// As for [`MappedRange::new`].
    pub(super) unsafe fn map(
        &mut self,
        start: *mut u8,
        length: usize,
    ) -> Result<(MappedRange, Vec<u8>)> {
        let begin = Instant::now();
        // SAFETY: the caller upholds the contract.
        let range = unsafe { MappedRange::new(&self.context, start, length) }?;
        let packed = range.export()?.to_vec();
        self.numbers.registration += begin.elapsed();
        self.numbers.registrations += 1;
        Ok((range, packed))
    }

    /// # Safety
    /// Each block of `side` is inside its memory, and that memory is readable.
    pub(super) unsafe fn short_blocks(&self, side: &Side<'_>) -> Vec<u8> {
        let (start, _) = side.memory.range();
        let mut short = Vec::new();
        for (count, displacement) in side.counts.iter().zip(side.displacements) {
            if *count > 0 && *count < self.direct_min {
                // SAFETY: the block is inside the memory, see above.
                let block = unsafe { start.add(*displacement) };
                // SAFETY: the block is readable, and no thread writes to it during the call.
                short.extend_from_slice(unsafe { std::slice::from_raw_parts(block, *count) });
            }
        }
        short
    }

    /// Makes progress, and completes the calls whose completion has arrived.
    pub(super) fn progress(&mut self) -> Result<()> {
        self.worker.progress_until_idle();
        loop {
            let message = match self.worker.take(|_| true) {
                Ok(Some(message)) => message,
                Ok(None) => break,
                Err(error) => return Err(self.fail(error.to_string(), true)),
            };
            let fin = match Kind::from_id(message.id) {
                Some(Kind::HostFin) if message.header.starts_with(&self.from_service.0) => {
                    HostFin::parse(&message.data)
                }
                // Not from the SP: another process may know the address of this worker.
                _ => continue,
            };
            let ended = match fin {
                Ok(fin) => self.finish(fin),
                Err(bad) => Err(OffloadError::message(&self.service, &bad)),
            };
            if let Err(error) = ended {
                return Err(self.fail(error.to_string(), true));
            }
        }
        let mut index = 0;
        while let Some(request) = self.sends.get(index) {
            match request.test() {
                Ok(true) => drop(self.sends.swap_remove(index)),
                Ok(false) => index += 1,
                Err(error) => {
                    self.sends.swap_remove(index);
                    return Err(self.fail(error.to_string(), true));
                }
            }
        }
        Ok(())
    }

    /// Completes a call: copies the short blocks into the receive buffer and releases the registrations.
    pub(super) fn finish(&mut self, fin: HostFin) -> Result<()> {
        let wrong = |what| OffloadError::Failed(format!("{}: {what}", fin.collective));
        let live = self
            .live
            .get_mut(&fin.collective)
            .filter(|live| !live.is_done)
            .ok_or_else(|| wrong("completed by the service, but not under way"))?;
        let mut bytes = &fin.bytes[..];
        for block in &fin.short {
            let place = usize::try_from(block.offset)
                .ok()
                .zip(usize::try_from(block.length).ok());
            let place = place.filter(|(at, length)| {
                at.checked_add(*length)
                    .is_some_and(|end| end <= live.receive_length)
            });
            let Some((at, length)) = place else {
                return Err(wrong("a block outside the receive buffer"));
            };
            let (data, rest) = bytes
                .split_at_checked(length)
                .ok_or_else(|| wrong("a block without its bytes"))?;
            bytes = rest;
            // SAFETY: the offset is inside the buffer, which belongs to the call until now.
            let to = unsafe { live.receive.add(at) };
            // SAFETY: both sides hold `length` bytes; a message never lies in the receive buffer.
            unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), to, length) };
        }
        let start = Instant::now();
        for range in live.mapped.drain(..) {
            range.unmap()?;
        }
        live.copy = None;
        live.is_done = true;
        self.numbers.deregistration += start.elapsed();
        self.numbers.calls += 1;
        self.numbers.aliases = fin.aliases;
        Ok(())
    }
}

/// Blocks of one side, each checked to lie inside its memory.
fn blocks(side: &str, members: &[u32], of: &Side<'_>) -> Result<Vec<Block>> {
    let (_, length) = of.memory.range();
    if of.counts.len() != members.len() || of.displacements.len() != members.len() {
        return Err(arguments(format!(
            "{} {side} counts and {} displacements for {} members",
            of.counts.len(),
            of.displacements.len(),
            members.len()
        )));
    }
    members
        .iter()
        .zip(of.counts.iter().zip(of.displacements))
        .map(|(peer, (count, displacement))| {
            let inside = displacement.checked_add(*count).is_some_and(|end| end <= length);
            if *count > 0 && !inside {
                return Err(arguments(format!(
                    "the {side} block of rank {peer}, {count} bytes at {displacement}, is not in a buffer of {length} \
                     bytes"
                )));
            }
            Ok(Block {
                peer: *peer,
                offset: *displacement as u64,
                length: *count as u64,
            })
        })
        .collect()
}

/// Receive blocks must not overlap: the result would depend on the order of delivery.
fn check_apart(blocks: &[Block]) -> Result<()> {
    let filled = || blocks.iter().filter(|block| block.length > 0);
    let apart = |a: &Block, b: &Block| a.offset + a.length <= b.offset;
    // Most programs pass them in ascending order.
    if filled().zip(filled().skip(1)).all(|(a, b)| apart(a, b)) {
        return Ok(());
    }
    let mut sorted: Vec<&Block> = filled().collect();
    sorted.sort_unstable_by_key(|block| block.offset);
    match sorted.windows(2).find(|pair| !apart(pair[0], pair[1])) {
        None => Ok(()),
        Some(pair) => Err(arguments(format!(
            "the receive blocks of ranks {} and {} overlap",
            pair[0].peer, pair[1].peer
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the checks on blocks (count, displacement) of a buffer of 100 bytes and compares the result.
    fn check(sides: &[(usize, usize)], expect: Option<&str>) {
        let (counts, displacements): (Vec<_>, Vec<_>) = sides.iter().copied().unzip();
        let side = Side {
            memory: Memory::Temporary {
                start: std::ptr::null_mut(),
                length: 100,
            },
            counts: &counts,
            displacements: &displacements,
        };
        let answer = blocks("receive", &[5, 6, 7], &side).and_then(|blocks| check_apart(&blocks));
        match (answer, expect) {
            (Ok(()), None) => {}
            (Err(error), Some(expect)) => {
                let error = error.to_string();
                assert!(error.contains(expect), "{error}");
            }
            (answer, expect) => panic!("{sides:?}: {answer:?}, expected {expect:?}"),
        }
    }

    #[test]
    fn blocks_lie_in_the_buffer_and_apart() {
        check(&[(10, 0), (10, 10), (80, 20)], None);
        check(&[(10, 90), (0, usize::MAX), (10, 0)], None);
        check(&[(10, 50), (10, 0), (10, 40)], None);
        check(&[(10, 0), (10, 9), (0, 0)], Some("ranks 5 and 6 overlap"));
        check(&[(50, 50), (1, 0), (10, 41)], Some("ranks 7 and 5 overlap"));
        check(
            &[(10, 91), (0, 0), (0, 0)],
            Some("receive block of rank 5, 10 bytes at 91"),
        );
        check(
            &[(0, 0), (1, usize::MAX), (0, 0)],
            Some("is not in a buffer of 100 bytes"),
        );
        check(
            &[(0, 0), (0, 0)],
            Some("2 receive counts and 2 displacements for 3 members"),
        );
    }
}
