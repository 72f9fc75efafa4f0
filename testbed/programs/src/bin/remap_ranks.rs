//! A rank whose buffers are unmapped and mapped again at the same addresses between its calls, and sometimes not: a service
//! that uses the import of a former mapping moves wrong bytes, or writes to memory that no call has.
//!
//! ```text
//! remap_ranks RANK SIZE NODE MEET SERVICES SCHEME ROUNDS
//! ```
//!
//! The calls are ordinary ones and starts of one persistent call in turn. Every byte of the calls and of the bystanders is
//! verified.

#[path = "../ranks/mod.rs"]
mod ranks;

use anyhow::{Context as _, Result, ensure};
use std::ptr::NonNull;
use xgvmi_offload::{Call, Client, CommunicatorId, Memory, Numbered, Side};

/// Length of a block: two pages and a part, for the device.
const BLOCK: usize = 9000;
/// The byte of memory that belongs to no call.
const BYSTANDER: u8 = 0xee;

/// Anonymous memory at a place that stays the same.
struct Mapping {
    start: NonNull<u8>,
    length: usize,
}

impl Mapping {
    /// Maps memory at an address of the system's choice.
    fn new(length: usize) -> Result<Self> {
        let start = map(None, length)?;
        Ok(Self { start, length })
    }

    /// Unmaps the memory and maps other memory there.
    fn again(&mut self) -> Result<()> {
        // SAFETY: the mapping is of this length, no call uses it, and no reference to its bytes exists.
        let status = unsafe { libc::munmap(self.start.as_ptr().cast(), self.length) };
        ensure!(status == 0, "munmap: {}", std::io::Error::last_os_error());
        let start = map(Some(self.start), self.length)?;
        ensure!(start == self.start, "the memory is elsewhere");
        Ok(())
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping has this length, and `self` is borrowed. No call is under way.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }
    }
}

/// Maps memory, at an address that is free.
fn map(at: Option<NonNull<u8>>, length: usize) -> Result<NonNull<u8>> {
    let (address, fixed) = match at {
        Some(at) => (at.as_ptr(), libc::MAP_FIXED_NOREPLACE),
        None => (std::ptr::null_mut(), 0),
    };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | fixed;
    // SAFETY: the call replaces no mapping.
    let start = unsafe {
        libc::mmap(
            address.cast(),
            length,
            libc::PROT_READ | libc::PROT_WRITE,
            flags,
            -1,
            0,
        )
    };
    if start == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error()).context("mmap");
    }
    NonNull::new(start.cast()).context("mmap at address 0")
}

/// Byte of a block.
fn pattern(round: u32, from: u32, to: u32) -> u8 {
    (round * 41 + from * 7 + to * 31).to_le_bytes()[0] | 1
}

/// A call and its verification.
fn call(
    client: &mut Client,
    (rank, size, round): (u32, u32, u32),
    numbered: Option<&mut Numbered>,
    [send, receive]: [&mut Mapping; 2],
) -> Result<()> {
    for (to, block) in (0..).zip(send.bytes().chunks_exact_mut(BLOCK)) {
        block.fill(pattern(round, rank, to));
    }
    let counts = vec![BLOCK; size as usize];
    let displacements: Vec<usize> = (0..size as usize).map(|at| at * BLOCK).collect();
    let side = |mapping: &Mapping| Side {
        memory: Memory::Temporary {
            start: mapping.start.as_ptr(),
            length: mapping.length,
        },
        counts: &counts,
        displacements: &displacements,
    };
    let start: Call<'_> = match numbered {
        Some(numbered) => numbered.into(),
        None => CommunicatorId::WORLD.into(),
    };
    // SAFETY: the mappings stay, and nothing uses them, until the call is complete.
    let request = unsafe { client.alltoallv(start, side(send), side(receive)) }?;
    client.wait(request)?;
    for (from, block) in (0..).zip(receive.bytes().chunks_exact(BLOCK)) {
        let expect = pattern(round, from, rank);
        let wrong = block.iter().filter(|byte| **byte != expect).count();
        ensure!(
            wrong == 0,
            "round {round}: {wrong} bytes of rank {from} are wrong"
        );
    }
    Ok(())
}

fn main() -> Result<()> {
    let mut job = ranks::Rank::connect("remap_ranks")?;
    let (rank, size, rounds) = (job.rank, job.size, job.rounds);
    let mut persistent = job.client.number(CommunicatorId::WORLD, true)?;
    let length = size as usize * BLOCK;
    let [mut a, mut b] = [Mapping::new(length)?, Mapping::new(length)?];
    let [mut c, mut d] = [Mapping::new(length)?, Mapping::new(length)?];
    for round in 0..rounds {
        let numbered = (round % 2 == 1).then_some(&mut persistent);
        match round % 8 {
            // New memory at the old places, for the same uses.
            1 | 2 => {
                a.again()?;
                b.again()?;
            }
            // The same, for the other uses.
            3 => std::mem::swap(&mut a, &mut b),
            // One of the two.
            4 => b.again()?,
            // The places belong to no call while another one is under way.
            5 | 6 => {
                for mapping in [&mut a, &mut b] {
                    mapping.again()?;
                    mapping.bytes().fill(BYSTANDER);
                }
                call(
                    &mut job.client,
                    (rank, size, round),
                    numbered,
                    [&mut c, &mut d],
                )?;
                for mapping in [&mut a, &mut b] {
                    let wrong = mapping.bytes().iter().any(|byte| *byte != BYSTANDER);
                    ensure!(
                        !wrong,
                        "round {round}: memory that no call uses has changed"
                    );
                }
                continue;
            }
            // The memory stays.
            _ => {}
        }
        call(
            &mut job.client,
            (rank, size, round),
            numbered,
            [&mut a, &mut b],
        )?;
    }
    job.end(u64::from(rounds) * length as u64)
}
