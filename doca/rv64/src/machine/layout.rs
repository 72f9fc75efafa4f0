//! Where the parts of a machine are in its address space.

use super::config::{Config, HARTS_MAX, HEAP_BYTES_MAX, MachineError, STACK_BYTES_MAX};
use crate::code::Decodes;
use crate::program::{Local, Program};
use crate::space::{Backing, PAGE, Range, Rights, Space};
use crate::trap::HartId;

/// Addresses must leave room for all parts behind them.
const ADDRESS_MAX: u64 = 1 << 62;

/// Each hart has: a guard page, thread-local storage, a guard page, and its stack. A last guard page follows.
#[derive(Debug)]
pub(super) struct Layout {
    pub(super) harts: u32,
    pub(super) stack_bytes: u64,
    /// The linker's `__global_pointer$`, or 0.
    pub(super) global: u64,
    local: Local,
    stacks: u64,
    heap: (u64, u64),
    /// Bytes of the arena before the heap.
    segment_bytes: u64,
}

impl Layout {
    pub(super) fn new(program: &Program, config: &Config) -> Result<Self, MachineError> {
        let check = |field, value: u64, least, most, multiple| {
            if value < least || value > most || !value.is_multiple_of(multiple) {
                return Err(MachineError::Config {
                    field,
                    value,
                    least,
                    most,
                    multiple,
                });
            }
            Ok(())
        };
        check("harts", config.harts.into(), 1, HARTS_MAX.into(), 1)?;
        check(
            "stack_bytes",
            config.stack_bytes,
            PAGE,
            STACK_BYTES_MAX,
            PAGE,
        )?;
        check("stacks", config.stacks, PAGE, ADDRESS_MAX, PAGE)?;
        check("heap_bytes", config.heap_bytes, 0, HEAP_BYTES_MAX, PAGE)?;
        check("heap", config.heap, PAGE, ADDRESS_MAX, PAGE)?;
        Ok(Self {
            harts: config.harts,
            stack_bytes: config.stack_bytes,
            global: program.symbol("__global_pointer$").unwrap_or_default(),
            local: program.local().clone(),
            stacks: config.stacks,
            heap: (config.heap, config.heap_bytes),
            // The limits of programs bound the sum.
            segment_bytes: program
                .segments()
                .iter()
                .map(|segment| segment.length.next_multiple_of(8))
                .sum(),
        })
    }

    fn local_bytes(&self) -> u64 {
        self.local.length.next_multiple_of(PAGE)
    }

    /// Distance between harts.
    fn stride(&self) -> u64 {
        2 * PAGE + self.local_bytes() + self.stack_bytes
    }

    fn first(&self, id: HartId) -> u64 {
        self.stacks + u64::from(id) * self.stride()
    }

    /// Thread-local storage of a hart. Without any, the address of a guard page.
    pub(super) fn local(&self, id: HartId) -> u64 {
        self.first(id) + PAGE
    }

    /// The end of a hart's stack.
    pub(super) fn stack_top(&self, id: HartId) -> u64 {
        self.first(id) + self.stride()
    }

    /// Memory with the program in it, and its executable ranges.
    pub(super) fn build(&self, program: &Program) -> Result<(Space, Decodes), MachineError> {
        let harts = u64::from(self.harts) * (self.local_bytes() + self.stack_bytes);
        let mut space = Space::new(size(self.segment_bytes + self.heap.1 + harts));
        let mut code = Decodes::default();
        let mut place = 0;
        for segment in program.segments() {
            let backing = Backing::Memory(size(place));
            let range = Range {
                start: segment.start,
                length: segment.length,
                rights: segment.rights,
                backing,
            };
            add(&mut space, "a segment", range)?;
            fill(&mut space, segment.start, &segment.data);
            if segment.rights.execute {
                code.add(segment.start, segment.length);
            }
            place += segment.length.next_multiple_of(8);
        }
        place += self.heap.1;
        for id in 0..self.harts {
            let mut at = self.first(id);
            for (what, length, has_memory) in [
                ("a guard page", PAGE, false),
                ("thread-local storage", self.local_bytes(), true),
                ("a guard page", PAGE, false),
                ("a stack", self.stack_bytes, true),
            ] {
                if length == 0 {
                    continue;
                }
                let range = if has_memory {
                    let backing = Backing::Memory(size(place));
                    place += length;
                    Range {
                        start: at,
                        length,
                        rights: Rights::READ_WRITE,
                        backing,
                    }
                } else {
                    guard(at)
                };
                add(&mut space, what, range)?;
                at += length;
            }
        }
        add(&mut space, "a guard page", guard(self.first(self.harts)))?;
        self.check_heap(&mut space)?;
        space.take_stale();
        Ok((space, code))
    }

    /// Bytes of the heap, and of the memory before it.
    pub(super) fn heap_place(&self) -> (u64, usize) {
        (self.heap.1, size(self.segment_bytes))
    }

    /// Nothing may be where allocations will be.
    fn check_heap(&self, space: &mut Space) -> Result<(), MachineError> {
        let (start, length) = self.heap;
        if length > 0 {
            add(
                space,
                "the heap",
                Range {
                    length,
                    ..guard(start)
                },
            )?;
            space.unmap(start);
        }
        Ok(())
    }

    /// A window may not be where allocations will be.
    pub(super) fn outside_heap(&self, start: u64, bytes: u64) -> Result<(), MachineError> {
        let (other, other_bytes) = self.heap;
        if start < other + other_bytes && start.saturating_add(bytes) > other {
            let what = "a window";
            return Err(MachineError::Overlap {
                what,
                start,
                bytes,
                other,
                other_bytes,
            });
        }
        Ok(())
    }

    /// Gives a hart new thread-local storage.
    pub(super) fn fill_local(&self, space: &mut Space, id: HartId) {
        let mut image = self.local.data.clone();
        image.resize(size(self.local.length), 0);
        fill(space, self.local(id), &image);
    }

    /// The range of an allocation of the heap.
    pub(super) fn heap_range(&self, start: u64, bytes: u64) -> Range {
        let backing = Backing::Memory(size(self.segment_bytes + (start - self.heap.0)));
        Range {
            start,
            length: bytes.next_multiple_of(8),
            rights: Rights::READ_WRITE,
            backing,
        }
    }
}

fn guard(start: u64) -> Range {
    Range {
        start,
        length: PAGE,
        rights: Rights::default(),
        backing: Backing::Guard,
    }
}

fn fill(space: &mut Space, start: u64, bytes: &[u8]) {
    // The range has just been added with at least this size.
    let done = space.poke(start, bytes);
    debug_assert!(done.is_ok() || bytes.is_empty(), "{done:?}");
}

/// Adds a range, or says which one is in its place.
pub(super) fn add(space: &mut Space, what: &'static str, range: Range) -> Result<(), MachineError> {
    let (start, bytes) = (range.start, range.length);
    space.map(range).map_err(|other| match other {
        Some((other, other_bytes)) => MachineError::Overlap {
            what,
            start,
            bytes,
            other,
            other_bytes,
        },
        None => MachineError::Range { what, start, bytes },
    })
}

/// A size in memory of this process. All sizes are bounded far below.
fn size(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}
