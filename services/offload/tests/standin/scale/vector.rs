//! Vectors of light ranks: services read them into memory of their own and reduce them there. A rank's own buffers do not exist: its
//! elements are computed when a service reads them, and every byte that a service writes to a rank is compared.

use super::*;
use crate::wire::{Export, Name};

/// Length of an element, which is a number of 64 bits.
const ELEMENT: u64 = 8;

/// Address of the send buffer of rank 0; memory of this process is below. A rank has 2 x 2^32 addresses.
const RANKS_FROM: u64 = 1 << 60;
const RANK_SHIFT: u32 = 33;
const BUFFER_SHIFT: u32 = 32;

/// Difference of neighbouring elements.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// A buffer of a rank, or memory of a service.
#[derive(Debug)]
pub(super) struct Area {
    pub(super) address: u64,
    /// Of a service's memory.
    length: Option<usize>,
}

impl Area {
    pub(super) fn of_rank(address: u64) -> Self {
        let length = None;
        Self { address, length }
    }

    pub(super) fn bytes(&mut self) -> Option<&mut [u8]> {
        self.length.map(|length| memory(self.address, length))
    }
}

/// Memory of a service. Each caller uses one slice at a time, or two of different memory.
fn memory<'a>(address: u64, length: usize) -> &'a mut [u8] {
    let start = usize::try_from(address).expect("an address");
    // SAFETY: memory of `Vectors::stage`, whose Area is in use; this program has one thread.
    unsafe { std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut(start), length) }
}

/// What a rank has got of its result: bytes, and the sum of the numbers of their elements.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Got {
    bytes: u64,
    elements: u64,
}

/// The vectors of a job.
#[derive(Debug)]
pub(super) struct Vectors {
    /// Length of a rank's vector.
    bytes: u64,
    /// Element 0 of the result, and the difference of its neighbouring elements.
    sum: [u64; 2],
    got: RefCell<Vec<Got>>,
    /// Bytes of each service and of all, and the most that there were.
    now: RefCell<Vec<usize>>,
    all: Cell<usize>,
    most: Cell<usize>,
    most_of_all: Cell<usize>,
}

impl Vectors {
    pub(super) fn new(plan: &Plan, services: u32) -> Self {
        let ranks = 0..plan.ranks;
        let first = ranks.fold(0, |sum: u64, rank| sum.wrapping_add(content(rank, 0)));
        let bytes = plan.pattern.vector();
        Self {
            bytes: bytes.unwrap_or(0),
            sum: [first, STEP.wrapping_mul(plan.ranks.into())],
            got: RefCell::new(match bytes {
                Some(_) => vec![Got::default(); plan.ranks as usize],
                None => Vec::new(),
            }),
            now: RefCell::new(vec![0; services as usize]),
            all: Cell::new(0),
            most: Cell::new(0),
            most_of_all: Cell::new(0),
        }
    }

    pub(super) fn stage(&self, service: u32, length: usize) -> Area {
        let bytes = Box::into_raw(vec![0_u8; length].into_boxed_slice());
        let now = &mut self.now.borrow_mut()[service as usize];
        *now += length;
        self.most.set(self.most.get().max(*now));
        self.all.set(self.all.get() + length);
        self.most_of_all
            .set(self.most_of_all.get().max(self.all.get()));
        Area {
            address: bytes.cast::<u8>().expose_provenance() as u64,
            length: Some(length),
        }
    }

    pub(super) fn unmap(&self, service: u32, mut area: Area) {
        let Some(bytes) = area.bytes() else {
            return;
        };
        self.now.borrow_mut()[service as usize] -= bytes.len();
        self.all.set(self.all.get() - bytes.len());
        // SAFETY: from Box::into_raw() in stage(), with this length; nothing else uses the memory.
        drop(unsafe { Box::from_raw(std::ptr::from_mut(bytes)) });
    }

    /// Most bytes of one service, and of all together.
    pub(super) fn staged(&self) -> (usize, usize) {
        (self.most.get(), self.most_of_all.get())
    }

    /// Reads from an address to another one.
    pub(super) fn read(&self, from: u64, to: u64, length: usize) {
        assert_eq!(length as u64 % ELEMENT, 0);
        let result = |element: u64| self.sum[0].wrapping_add(element.wrapping_mul(self.sum[1]));
        match (self.of_rank(from), self.of_rank(to)) {
            (None, None) => {
                assert!(to.abs_diff(from) >= length as u64, "two memories");
                memory(to, length).copy_from_slice(memory(from, length));
            }
            (Some((rank, 0, first)), None) => {
                let mut number = content(rank, 0).wrapping_add(first.wrapping_mul(STEP));
                for element in memory(to, length).chunks_exact_mut(8) {
                    element.copy_from_slice(&number.to_le_bytes());
                    number = number.wrapping_add(STEP);
                }
            }
            (from_rank, Some((rank, 1, first))) => {
                match from_rank {
                    None => {
                        let (mut number, mut wrong) = (result(first), 0);
                        for element in memory(from, length).chunks_exact(8) {
                            let found = element.first_chunk().copied().map(u64::from_le_bytes);
                            wrong |= found.unwrap_or(0) ^ number;
                            number = number.wrapping_add(self.sum[1]);
                        }
                        assert_eq!(wrong, 0, "rank {rank} from element {first}");
                    }
                    // A copy of what was compared there.
                    Some((other, 1, same)) if other != rank => assert_eq!(first, same),
                    Some(other) => panic!("a read from {other:?} to rank {rank}"),
                }
                let got = &mut self.got.borrow_mut()[rank as usize];
                let count = length as u64 / ELEMENT;
                got.bytes += length as u64;
                got.elements += first * count + count * (count - 1) / 2;
            }
            other => panic!("a read from and to {other:?}"),
        }
    }

    /// A rank's call is complete: it has got each element once.
    pub(super) fn is_complete(&self, rank: u32) {
        let count = self.bytes / ELEMENT;
        let expect = Got {
            bytes: self.bytes,
            elements: count * (count - 1) / 2,
        };
        let got = &mut self.got.borrow_mut()[rank as usize];
        assert_eq!(std::mem::take(got), expect, "rank {rank}");
    }

    /// Rank, buffer and element of an address; `None` in a service's memory.
    fn of_rank(&self, address: u64) -> Option<(u32, u64, u64)> {
        let at = address.checked_sub(RANKS_FROM)?;
        let rank = u32::try_from(at >> RANK_SHIFT).expect("a rank");
        let offset = at & ((1 << BUFFER_SHIFT) - 1);
        assert!(offset < self.bytes && offset.is_multiple_of(ELEMENT));
        Some((rank, at >> BUFFER_SHIFT & 1, offset / ELEMENT))
    }
}

fn address(rank: u32, slot: u32) -> u64 {
    RANKS_FROM | u64::from(rank) << RANK_SHIFT | u64::from(slot) << BUFFER_SHIFT
}

/// A rank's buffer: 0 for sending, 1 for receiving.
pub(super) fn buffer(rank: u32, slot: u32, length: u64) -> Export {
    Export {
        address: address(rank, slot),
        length,
        packed: vec![1; KEY_BYTES],
        name: Some(Name {
            slot,
            generation: 1,
        }),
    }
}

/// Makes of a message of rank 1 one of another rank.
pub(super) fn name(data: &mut [u8], rank: u32) {
    for slot in [0, 1] {
        let old = address(1, slot).to_le_bytes();
        let at = data.windows(old.len()).position(|part| part == old);
        let at = at.expect("the address of a buffer");
        data[at..at + old.len()].copy_from_slice(&address(rank, slot).to_le_bytes());
    }
}
