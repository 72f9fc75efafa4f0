//! Translates a collective's arguments to an alltoallv: each rank's blocks to and from each other rank. A reduction has
//! one vector per rank instead.
//!
//! A plan depends only on the caller's arguments. All ranks refuse the same collectives, because the reasons (flags,
//! datatypes, the collective itself) are equal at all ranks of a correct program.

use crate::bindings as b;
use crate::bindings::{
    ucc_coll_args_t, ucc_coll_buffer_info_t, ucc_coll_buffer_info_v_t, ucc_datatype_t,
};
use crate::ucc::DATATYPES;

mod reduce;

pub(crate) use reduce::{Goal, Reduce};

/// A rank's part of a collective.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Plan {
    Exchange(Exchange),
    Reduce(Reduce),
    Broadcast(Broadcast),
    Barrier,
}

/// A rank's part in a broadcast.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Broadcast {
    pub(crate) start: *mut u8,
    /// Length in bytes.
    pub(crate) length: usize,
    /// The team's rank that has the data.
    pub(crate) root: usize,
}

/// A rank's part of a collective that exchanges blocks, in bytes. Blocks are in the order of the team's ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Exchange {
    pub(crate) send: Side,
    pub(crate) receive: Side,
    pub(crate) way: Way,
}

/// Which blocks an exchange has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// Those of both sides.
    All,
    /// The blocks to send are those of the receive buffer, and `send` is empty.
    InPlace,
    /// All are for, or from, this rank of the team.
    Gather(usize),
    Scatter(usize),
}

/// One buffer and its blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Side {
    /// Address of the first block; null if there is none.
    pub(crate) start: *mut u8,
    /// Length in bytes up to the end of the last block.
    pub(crate) length: usize,
    /// Number of ranks of the team.
    size: usize,
    blocks: Blocks,
    /// A rank without a block.
    without: Option<usize>,
}

/// The blocks of a side. Even ones take no memory of their own: a persistent collective keeps its plan.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Blocks {
    None,
    /// A block for one rank, at the start.
    One {
        rank: usize,
        length: usize,
    },
    /// Blocks of equal length, the one of the next rank after `stride` bytes.
    Even {
        length: usize,
        stride: usize,
    },
    /// Length and displacement of each block.
    Listed(Vec<(usize, usize)>),
}

/// Why UCC's other components must execute a collective.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refused(pub(crate) &'static str);

/// The calling rank and its team, or the set of ranks that take part.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Caller<'a> {
    pub(crate) rank: usize,
    pub(crate) size: usize,
    pub(crate) datatype_bytes: &'a [usize; DATATYPES],
}

/// Whether the caller starts the collective several times.
pub(crate) fn is_persistent(args: &ucc_coll_args_t) -> bool {
    let has_flags = args.mask & u64::from(b::UCC_COLL_ARGS_FIELD_FLAGS) != 0;
    has_flags && args.flags & u64::from(b::UCC_COLL_ARGS_FLAG_PERSISTENT) != 0
}

/// Flags that request something other than a collective on buffers of this process.
const FOREIGN: u64 = (b::UCC_COLL_ARGS_FLAG_MEM_MAPPED_BUFFERS
    | b::UCC_COLL_ARGS_FLAG_SRC_MEMH_GLOBAL
    | b::UCC_COLL_ARGS_FLAG_DST_MEMH_GLOBAL) as u64;

impl Plan {
    /// # Errors
    /// [`Refused`] with the reason.
    ///
    /// # Safety
    /// The arguments are those of a valid collective of a team of this size: arrays of counts and displacements have an
    /// entry for each rank where the collective requires them.
    pub(crate) unsafe fn new(args: &ucc_coll_args_t, caller: Caller<'_>) -> Result<Self, Refused> {
        let collective = Collective::checked(args, caller)?;
        // SAFETY: the caller upholds the contract.
        if let Some(reduce) = unsafe { collective.reduce() } {
            return reduce.map(Self::Reduce);
        }
        if args.coll_type == b::UCC_COLL_TYPE_BCAST {
            return collective.broadcast().map(Self::Broadcast);
        }
        if args.coll_type == b::UCC_COLL_TYPE_BARRIER {
            return Ok(Self::Barrier);
        }
        // SAFETY: the caller upholds the contract.
        let (send, receive) = unsafe { collective.sides() }?;
        let way = match args.coll_type {
            b::UCC_COLL_TYPE_ALLTOALL | b::UCC_COLL_TYPE_ALLTOALLV if collective.in_place => {
                Way::InPlace
            }
            b::UCC_COLL_TYPE_GATHER | b::UCC_COLL_TYPE_GATHERV => Way::Gather(collective.root),
            b::UCC_COLL_TYPE_SCATTER | b::UCC_COLL_TYPE_SCATTERV => Way::Scatter(collective.root),
            _ => Way::All,
        };
        Ok(Self::Exchange(Exchange { send, receive, way }))
    }
}

/// Collectives with a root.
const ROOTED: [b::ucc_coll_type_t; 6] = [
    b::UCC_COLL_TYPE_REDUCE,
    b::UCC_COLL_TYPE_BCAST,
    b::UCC_COLL_TYPE_GATHER,
    b::UCC_COLL_TYPE_GATHERV,
    b::UCC_COLL_TYPE_SCATTER,
    b::UCC_COLL_TYPE_SCATTERV,
];

/// A collective whose flags and root the component serves.
struct Collective<'a> {
    args: &'a ucc_coll_args_t,
    reader: Reader<'a>,
    in_place: bool,
    root: usize,
}

impl<'a> Collective<'a> {
    fn checked(args: &'a ucc_coll_args_t, caller: Caller<'a>) -> Result<Self, Refused> {
        let has_flags = args.mask & u64::from(b::UCC_COLL_ARGS_FIELD_FLAGS) != 0;
        let flags = if has_flags { args.flags } else { 0 };
        if flags & FOREIGN != 0 {
            return Err(Refused("memory handles of the caller"));
        }
        let root = usize::try_from(args.root).unwrap_or(usize::MAX);
        if ROOTED.contains(&args.coll_type) && root >= caller.size {
            return Err(Refused("a root outside the team"));
        }
        let wide = |flag| flags & u64::from(flag) != 0;
        let reader = Reader {
            caller,
            wide_counts: wide(b::UCC_COLL_ARGS_FLAG_COUNT_64BIT),
            wide_displacements: wide(b::UCC_COLL_ARGS_FLAG_DISPLACEMENTS_64BIT),
        };
        Ok(Self {
            args,
            reader,
            in_place: wide(b::UCC_COLL_ARGS_FLAG_IN_PLACE),
            root,
        })
    }

    /// The blocks to send and to receive.
    ///
    /// # Safety
    /// As for [`Plan::new`].
    unsafe fn sides(&self) -> Result<(Side, Side), Refused> {
        let (reader, in_place) = (&self.reader, self.in_place);
        let none = || reader.none();
        // SAFETY: which member of a union is valid depends on the collective alone; see the table at
        // ucc_coll_args_t in ucc.h. All members are plain data.
        let (src, dst, src_v, dst_v) = unsafe {
            (
                &self.args.src.info,
                &self.args.dst.info,
                &self.args.src.info_v,
                &self.args.dst.info_v,
            )
        };
        Ok(match self.args.coll_type {
            b::UCC_COLL_TYPE_ALLTOALL => {
                let receive = reader.even(dst)?;
                (if in_place { none() } else { reader.even(src)? }, receive)
            }
            b::UCC_COLL_TYPE_ALLTOALLV if in_place => {
                // SAFETY: the caller upholds the contract.
                let receive = unsafe { reader.listed(dst_v) }?;
                (none(), receive)
            }
            b::UCC_COLL_TYPE_ALLTOALLV => {
                // SAFETY: the caller upholds the contract.
                let send = unsafe { reader.listed(src_v) }?;
                // SAFETY: the same.
                let receive = unsafe { reader.listed(dst_v) }?;
                (send, receive)
            }
            b::UCC_COLL_TYPE_ALLGATHER => self.allgather(reader.even(dst)?)?,
            b::UCC_COLL_TYPE_ALLGATHERV => {
                // SAFETY: the caller upholds the contract.
                self.allgather(unsafe { reader.listed(dst_v) }?)?
            }
            // SAFETY: the caller upholds the contract.
            b::UCC_COLL_TYPE_GATHER | b::UCC_COLL_TYPE_GATHERV => unsafe { self.gather() }?,
            // SAFETY: the caller upholds the contract.
            b::UCC_COLL_TYPE_SCATTER | b::UCC_COLL_TYPE_SCATTERV => unsafe { self.scatter() }?,
            _ => return Err(Refused("a collective that the component does not know")),
        })
    }

    fn is_root(&self) -> bool {
        self.reader.caller.rank == self.root
    }

    fn broadcast(&self) -> Result<Broadcast, Refused> {
        // SAFETY: a broadcast has this member; it is plain data.
        let src = unsafe { &self.args.src.info };
        Ok(Broadcast {
            start: src.buffer.cast(),
            length: self.reader.bytes(src)?,
            root: self.root,
        })
    }

    fn allgather(&self, receive: Side) -> Result<(Side, Side), Refused> {
        if self.in_place {
            return Ok(self.reader.own_block_for_all(receive));
        }
        // SAFETY: an allgather(v) has this member; it is plain data.
        let src = unsafe { &self.args.src.info };
        Ok((self.reader.same_for_all(src)?, receive))
    }

    /// # Safety
    /// As for [`Plan::new`]; the collective is a gather or a gatherv.
    unsafe fn gather(&self) -> Result<(Side, Side), Refused> {
        // SAFETY: a gather has these members; they are plain data.
        let (src, dst, dst_v) = unsafe {
            (
                &self.args.src.info,
                &self.args.dst.info,
                &self.args.dst.info_v,
            )
        };
        let reader = &self.reader;
        let vector = self.args.coll_type == b::UCC_COLL_TYPE_GATHERV;
        let receive = match (self.is_root(), vector) {
            (false, _) => reader.none(),
            (true, false) => reader.even(dst)?,
            // SAFETY: the caller upholds the contract.
            (true, true) => unsafe { reader.listed(dst_v) }?,
        };
        Ok(if self.in_place && self.is_root() {
            // The root's own block is in place already.
            (reader.none(), receive.without(reader.caller.rank))
        } else {
            (reader.one(src, self.root)?, receive)
        })
    }

    /// # Safety
    /// As for [`Plan::new`]; the collective is a scatter or a scatterv.
    unsafe fn scatter(&self) -> Result<(Side, Side), Refused> {
        // SAFETY: a scatter has these members; they are plain data.
        let (src, dst, src_v) = unsafe {
            (
                &self.args.src.info,
                &self.args.dst.info,
                &self.args.src.info_v,
            )
        };
        let reader = &self.reader;
        let vector = self.args.coll_type == b::UCC_COLL_TYPE_SCATTERV;
        let send = match (self.is_root(), vector) {
            (false, _) => reader.none(),
            (true, false) => reader.even(src)?,
            // SAFETY: the caller upholds the contract.
            (true, true) => unsafe { reader.listed(src_v) }?,
        };
        Ok(if self.in_place && self.is_root() {
            (send.without(reader.caller.rank), reader.none())
        } else {
            (send, reader.one(dst, self.root)?)
        })
    }
}

/// Parses buffers as UCC describes them.
#[derive(Clone, Copy)]
struct Reader<'a> {
    caller: Caller<'a>,
    wide_counts: bool,
    wide_displacements: bool,
}

impl Reader<'_> {
    /// Size of an element in bytes.
    fn element(
        &self,
        datatype: ucc_datatype_t,
        memory: b::ucc_memory_type_t,
    ) -> Result<usize, Refused> {
        if memory != b::UCC_MEMORY_TYPE_HOST {
            return Err(Refused(match memory {
                b::UCC_MEMORY_TYPE_CUDA => "memory of a GPU (cuda)",
                b::UCC_MEMORY_TYPE_CUDA_MANAGED => "memory of a GPU (cuda managed)",
                b::UCC_MEMORY_TYPE_ROCM => "memory of a GPU (rocm)",
                b::UCC_MEMORY_TYPE_ROCM_MANAGED => "memory of a GPU (rocm managed)",
                _ => "memory of a type that the component does not know",
            }));
        }
        // The low three bits are the class; predefined datatypes are class 0 (ucc.h).
        if datatype & 7 != u64::from(b::UCC_DATATYPE_PREDEFINED) {
            return Err(Refused("a generic datatype"));
        }
        let number = usize::try_from(datatype >> 3).unwrap_or(usize::MAX);
        let bytes = self.caller.datatype_bytes.get(number);
        bytes.copied().ok_or(Refused("a datatype of a newer UCC"))
    }

    fn bytes(&self, info: &ucc_coll_buffer_info_t) -> Result<usize, Refused> {
        let element = self.element(info.datatype, info.mem_type)?;
        usize::try_from(info.count)
            .ok()
            .and_then(|count| count.checked_mul(element))
            .ok_or(TOO_LONG)
    }

    fn none(&self) -> Side {
        self.side(std::ptr::null_mut(), 0, Blocks::None)
    }

    fn side(&self, start: *mut u8, length: usize, blocks: Blocks) -> Side {
        Side {
            start,
            length,
            size: self.caller.size,
            blocks,
            without: None,
        }
    }

    /// A buffer with one block per rank, all of equal length. The count covers all blocks.
    fn even(&self, info: &ucc_coll_buffer_info_t) -> Result<Side, Refused> {
        let size = self.caller.size;
        let element = self.element(info.datatype, info.mem_type)?;
        let elements = usize::try_from(info.count).map_err(|_| TOO_LONG)?;
        let block = (elements / size).checked_mul(element).ok_or(TOO_LONG)?;
        let length = block.checked_mul(size).ok_or(TOO_LONG)?;
        let blocks = Blocks::Even {
            length: block,
            stride: block,
        };
        Ok(self.side(info.buffer.cast(), length, blocks))
    }

    /// The same block for every rank.
    fn same_for_all(&self, info: &ucc_coll_buffer_info_t) -> Result<Side, Refused> {
        let length = self.bytes(info)?;
        let blocks = Blocks::Even { length, stride: 0 };
        Ok(self.side(info.buffer.cast(), length, blocks))
    }

    /// One block, to or from one rank.
    fn one(&self, info: &ucc_coll_buffer_info_t, other: usize) -> Result<Side, Refused> {
        let length = self.bytes(info)?;
        let blocks = Blocks::One {
            rank: other,
            length,
        };
        Ok(self.side(info.buffer.cast(), length, blocks))
    }

    /// Lengths of blocks with individual counts.
    ///
    /// # Safety
    /// The array has an entry for each rank, with the width that the flags specify.
    unsafe fn counts(&self, info: &ucc_coll_buffer_info_v_t) -> Result<Vec<usize>, Refused> {
        let element = self.element(info.datatype, info.mem_type)?;
        let counts = (0..self.caller.size).map(|rank| {
            // SAFETY: the caller upholds the contract.
            let count = unsafe { entry(info.counts.cast(), rank, self.wide_counts) };
            let count = usize::try_from(count).ok();
            count
                .and_then(|count| count.checked_mul(element))
                .ok_or(TOO_LONG)
        });
        counts.collect()
    }

    /// Blocks with individual counts and displacements.
    ///
    /// # Safety
    /// The arrays have an entry for each rank, with the widths that the flags specify.
    unsafe fn listed(&self, info: &ucc_coll_buffer_info_v_t) -> Result<Side, Refused> {
        let element = self.element(info.datatype, info.mem_type)?;
        let element = i64::try_from(element).map_err(|_| TOO_LONG)?;
        // SAFETY: the caller upholds the contract.
        let counts = unsafe { self.counts(info) }?;
        let mut places = Vec::with_capacity(counts.len());
        let (mut first, mut end) = (i64::MAX, i64::MIN);
        for (rank, count) in counts.iter().enumerate() {
            // SAFETY: the same.
            let displacement =
                unsafe { signed(info.displacements.cast(), rank, self.wide_displacements) };
            if *count == 0 {
                // The displacement of an empty block is ignored.
                places.push(None);
                continue;
            }
            let bytes = i64::try_from(*count).map_err(|_| TOO_LONG)?;
            let place = displacement.checked_mul(element).ok_or(TOO_LONG)?;
            places.push(Some(place));
            first = first.min(place);
            end = end.max(place.checked_add(bytes).ok_or(TOO_LONG)?);
        }
        // The side begins with its first block, which may lie before the buffer's address.
        let start: *mut u8 = info.buffer.cast();
        if first >= end {
            return Ok(self.side(start, 0, Blocks::None));
        }
        let distance = |place: i64| usize::try_from(place.checked_sub(first)?).ok();
        let length = distance(end).ok_or(TOO_LONG)?;
        let start = start.wrapping_offset(isize::try_from(first).map_err(|_| TOO_LONG)?);
        let blocks = counts.into_iter().zip(places).map(|(count, place)| {
            let place = place.map_or(Some(0), distance).ok_or(TOO_LONG)?;
            Ok((count, place))
        });
        let blocks = blocks.collect::<Result<Vec<_>, _>>()?;
        Ok(self.side(start, length, Blocks::of(blocks)))
    }

    /// An in-place allgather: the caller's block of the receive buffer goes to all other ranks.
    fn own_block_for_all(&self, receive: Side) -> (Side, Side) {
        let rank = self.caller.rank;
        let (length, displacement) = receive.block(rank);
        let start = receive.start.wrapping_add(displacement);
        let send = self.side(start, length, Blocks::Even { length, stride: 0 });
        (send.without(rank), receive.without(rank))
    }
}

const TOO_LONG: Refused = Refused("more bytes than the address space has");

impl Side {
    /// The side without the block of `rank`.
    fn without(mut self, rank: usize) -> Self {
        self.without = Some(rank);
        self
    }

    /// Length and displacement of the block of a rank.
    fn block(&self, rank: usize) -> (usize, usize) {
        let block = match &self.blocks {
            Blocks::One { rank: of, length } if *of == rank => (*length, 0),
            Blocks::None | Blocks::One { .. } => (0, 0),
            Blocks::Even { length, stride } => (*length, rank * stride),
            Blocks::Listed(blocks) => blocks[rank],
        };
        match self.without {
            Some(without) if without == rank => (0, block.1),
            _ => block,
        }
    }

    /// Length and displacement of each rank's block.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        (0..self.size).map(|rank| self.block(rank))
    }
}

impl Blocks {
    /// The blocks of all ranks.
    fn of(listed: Vec<(usize, usize)>) -> Self {
        let (first, second) = (listed.first(), listed.get(1));
        if let Some(&(length, 0)) = first {
            let stride = second.map_or(0, |(_, place)| *place);
            let mut even = listed.iter().enumerate();
            // A rank's place in the buffer is checked, so the products do not overflow.
            if even.all(|(rank, block)| Some(*block) == Some(length).zip(rank.checked_mul(stride)))
            {
                return Self::Even { length, stride };
            }
        }
        Self::Listed(listed)
    }
}

/// Reads an entry of an array of 32-bit or 64-bit numbers; 0 if there is no array.
///
/// # Safety
/// The array has the entry.
unsafe fn entry(array: *const u8, index: usize, wide: bool) -> u64 {
    if array.is_null() {
        return 0;
    }
    if wide {
        // SAFETY: the caller upholds the contract.
        let at = unsafe { array.add(index * 8) };
        // SAFETY: the same.
        unsafe { at.cast::<u64>().read_unaligned() }
    } else {
        // SAFETY: the caller upholds the contract.
        let at = unsafe { array.add(index * 4) };
        // SAFETY: the same.
        unsafe { at.cast::<u32>().read_unaligned() }.into()
    }
}

/// As [`entry`], for displacements: those of MPI are signed, and UCC passes their bits on.
///
/// # Safety
/// The array has the entry.
unsafe fn signed(array: *const u8, index: usize, wide: bool) -> i64 {
    // SAFETY: the caller upholds the contract.
    let bits = unsafe { entry(array, index, wide) };
    match u32::try_from(bits) {
        Ok(bits) if !wide => bits.cast_signed().into(),
        _ => bits.cast_signed(),
    }
}

#[cfg(test)]
mod tests;
