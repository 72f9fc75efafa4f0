//! Plans of allreduces, reduces and reduce-scatters.

use super::{Collective, Refused};
use crate::bindings as b;
use crate::bindings::{ucc_coll_buffer_info_t, ucc_datatype_t};
use std::ptr::null_mut;
use xgvmi_offload::{Element, Operation, Reduction};

/// A rank's part of a reduction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reduce {
    /// Address of the elements; null in place.
    pub(crate) send: *mut u8,
    /// Null if the rank gets nothing.
    pub(crate) receive: *mut u8,
    /// Length of the elements in bytes, and of what the rank gets.
    pub(crate) length: usize,
    pub(crate) received: usize,
    pub(crate) reduction: Reduction,
    pub(crate) goal: Goal,
}

/// The members that get the result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Goal {
    All,
    Root(usize),
    /// Bytes for each.
    Each(Vec<usize>),
}

const TWO_BUFFERS: Refused = Refused("buffers of two lengths or datatypes");

impl Collective<'_> {
    /// The plan of a reduction; `None` for another collective.
    ///
    /// # Safety
    /// As for [`Plan::new`](super::Plan::new).
    pub(super) unsafe fn reduce(&self) -> Option<Result<Reduce, Refused>> {
        match self.args.coll_type {
            b::UCC_COLL_TYPE_ALLREDUCE => Some(self.allreduce()),
            b::UCC_COLL_TYPE_REDUCE => Some(self.reduce_to_root()),
            b::UCC_COLL_TYPE_REDUCE_SCATTER | b::UCC_COLL_TYPE_REDUCE_SCATTERV => {
                // SAFETY: the caller upholds the contract.
                Some(unsafe { self.reduce_scatter() })
            }
            _ => None,
        }
    }

    /// The buffers of a collective that has no array.
    fn infos(&self) -> (&ucc_coll_buffer_info_t, &ucc_coll_buffer_info_t) {
        // SAFETY: such a collective has these members; they are plain data.
        unsafe { (&self.args.src.info, &self.args.dst.info) }
    }

    fn allreduce(&self) -> Result<Reduce, Refused> {
        let (src, dst) = self.infos();
        let length = self.reader.bytes(dst)?;
        let send = if self.in_place {
            null_mut()
        } else {
            if self.reader.bytes(src)? != length || src.datatype != dst.datatype {
                return Err(TWO_BUFFERS);
            }
            src.buffer.cast()
        };
        Ok(Reduce {
            send,
            receive: dst.buffer.cast(),
            length,
            received: length,
            reduction: reduction(dst.datatype, self.args.op)?,
            goal: Goal::All,
        })
    }

    /// Only the root may be in place, and only it has the second buffer.
    fn reduce_to_root(&self) -> Result<Reduce, Refused> {
        let (src, dst) = self.infos();
        let is_in_place = self.in_place && self.is_root();
        let from = if is_in_place { dst } else { src };
        let length = self.reader.bytes(from)?;
        if self.is_root() && (self.reader.bytes(dst)? != length || dst.datatype != from.datatype) {
            return Err(TWO_BUFFERS);
        }
        let (receive, received) = match self.is_root() {
            true => (dst.buffer.cast(), length),
            false => (null_mut(), 0),
        };
        Ok(Reduce {
            send: if is_in_place {
                null_mut()
            } else {
                src.buffer.cast()
            },
            receive,
            length,
            received,
            reduction: reduction(from.datatype, self.args.op)?,
            goal: Goal::Root(self.root),
        })
    }

    /// # Safety
    /// As for [`Plan::new`](super::Plan::new).
    unsafe fn reduce_scatter(&self) -> Result<Reduce, Refused> {
        let (src, dst) = self.infos();
        let caller = &self.reader.caller;
        let is_even = self.args.coll_type == b::UCC_COLL_TYPE_REDUCE_SCATTER;
        if self.in_place && is_even {
            // UCC leaves the rank's part of the result where its part of the elements was.
            let all = self.reader.even(dst)?;
            if self.reader.bytes(dst)? != all.length {
                return Err(Refused("a part of the result for each member, and a rest"));
            }
            return Ok(Reduce {
                send: all.start,
                receive: all.start.wrapping_add(all.block(caller.rank).1),
                length: all.length,
                received: all.block(caller.rank).0,
                reduction: reduction(dst.datatype, self.args.op)?,
                goal: Goal::Each(all.blocks().map(|(count, _)| count).collect()),
            });
        }
        if self.in_place {
            return Err(Refused("a reduce-scatter of several lengths in place"));
        }
        let length = self.reader.bytes(src)?;
        let (counts, buffer, datatype) = if is_even {
            let each = self.reader.bytes(dst)?;
            (vec![each; caller.size], dst.buffer, dst.datatype)
        } else {
            // SAFETY: a reduce_scatterv has this member; it is plain data.
            let dst = unsafe { &self.args.dst.info_v };
            // SAFETY: the caller upholds the contract.
            let counts = unsafe { self.reader.counts(dst) }?;
            (counts, dst.buffer, dst.datatype)
        };
        let all = counts
            .iter()
            .try_fold(0_usize, |sum, count| sum.checked_add(*count));
        if all != Some(length) || datatype != src.datatype {
            return Err(TWO_BUFFERS);
        }
        Ok(Reduce {
            send: src.buffer.cast(),
            receive: buffer.cast(),
            length,
            received: counts[caller.rank],
            reduction: reduction(datatype, self.args.op)?,
            goal: Goal::Each(counts),
        })
    }
}

/// The reduction of a predefined datatype and an operation, if the service processes know it.
fn reduction(
    datatype: ucc_datatype_t,
    operation: b::ucc_reduction_op_t,
) -> Result<Reduction, Refused> {
    let predefined = |number: u32| u64::from(number) << 3;
    let element = [
        (0, Element::I8),
        (1, Element::I16),
        (2, Element::I32),
        (3, Element::I64),
        (5, Element::U8),
        (6, Element::U16),
        (7, Element::U32),
        (8, Element::U64),
        (10, Element::F16),
        (11, Element::F32),
        (12, Element::F64),
        (13, Element::BF16),
        (15, Element::C32),
        (16, Element::C64),
    ]
    .into_iter()
    .find(|(number, _)| predefined(*number) == datatype);
    let (_, element) = element.ok_or(Refused(
        "a reduction of a datatype that the services do not compute with",
    ))?;
    let operation = match operation {
        b::UCC_OP_SUM => Operation::Sum,
        b::UCC_OP_PROD => Operation::Product,
        b::UCC_OP_MAX => Operation::Max,
        b::UCC_OP_MIN => Operation::Min,
        b::UCC_OP_LAND => Operation::And,
        b::UCC_OP_LOR => Operation::Or,
        b::UCC_OP_LXOR => Operation::Xor,
        b::UCC_OP_BAND => Operation::BitAnd,
        b::UCC_OP_BOR => Operation::BitOr,
        b::UCC_OP_BXOR => Operation::BitXor,
        b::UCC_OP_AVG => Operation::Average,
        _ => return Err(Refused("a reduction that the services do not compute")),
    };
    Reduction::new(element, operation).ok_or(Refused("a reduction that its datatype does not have"))
}
