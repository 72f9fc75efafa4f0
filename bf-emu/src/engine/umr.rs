//! UMR work requests: changes of an mkey.

use mlx5_prm::mkey::{KLM_BYTES, Klm};
use mlx5_prm::umr::{UmrContext, UmrCtrl, flag, mask};
use mlx5_prm::wqe::Data;

use super::access::{Need, Side};
use super::list::{List, transfer};
use super::work;
use crate::fabric::Locked;
use crate::fabric::counters::Work;
use crate::fabric::klm::Run;
use crate::fabric::numbers::slot_of;
use crate::fabric::objects::{Mkey, MkeyKind, Qp};
use crate::model::profile::CostKind;

/// Reason why a UMR was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UmrError {
    /// The key does not exist, is of another domain, does not permit UMR, or is not in the required
    /// state.
    Key,
    /// The list does not fit the key, or its form is unknown.
    List,
    /// The poster may not read the memory of the list.
    Memory,
}

/// Result of a UMR, for counters and cost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Done {
    /// Bound or invalidated.
    pub work: Work,
    /// Its time on hardware.
    pub cost: CostKind,
    /// Bytes that the key covers after the UMR.
    pub bytes: u64,
}

/// Executes a UMR posted by queue pair `qpn`.
pub(crate) fn execute(
    locked: &mut Locked<'_>,
    function: usize,
    (qpn, qp): (u32, &Qp),
    mkey: u32,
    (ctrl, context): (UmrCtrl, UmrContext),
    list: &[u8],
) -> Result<Done, UmrError> {
    let slot = slot_of(mkey).ok_or(UmrError::Key)?;
    let key = locked.peek(function).mkeys.get(slot).ok_or(UmrError::Key)?;
    check(key, (qpn, qp), &ctrl)?;
    let (run, was_free) = (key.list, key.free);
    let change = Change::of(&ctrl, run.capacity())?;
    let end = match change {
        None => None,
        Some(change) => {
            let inline = ctrl.flags & flag::INLINE != 0;
            let side = Side {
                function,
                pd: qp.pd,
                qpn,
            };
            Some(set_list(locked, side, (list, inline), (run, change))?)
        }
    };
    let function = locked.function(function);
    let key = function.mkeys.get_mut(slot).ok_or(UmrError::Key)?;
    if let Some(end) = end.and_then(|end| u32::try_from(end).ok()) {
        // A change in the middle of a list keeps its end.
        key.entries = match change {
            Some(Change { first: 1.., .. }) => key.entries.max(end),
            _ => end,
        };
    }
    set_context(key, &ctrl, &context);
    let bytes = key.len;
    let frees = ctrl.mkey_mask & mask::FREE != 0 && context.free;
    if key.free && !was_free || frees {
        Ok(Done {
            work: Work::UmrInvalidate,
            cost: CostKind::UmrInvalidate,
            bytes,
        })
    } else {
        Ok(Done {
            work: Work::UmrBind,
            cost: CostKind::UmrBind,
            bytes,
        })
    }
}

/// Refuses a UMR that its key does not permit.
fn check(key: &Mkey, (qpn, qp): (u32, &Qp), ctrl: &UmrCtrl) -> Result<(), UmrError> {
    // The tag in the request is not compared: an invalidation resets it, and the next bind need not
    // know its previous value.
    let open = key.umr_enabled && key.pd == qp.pd && key.kind != MkeyKind::Alias;
    let wrong_state = ctrl.flags & flag::CHECK_FREE != 0 && !key.free;
    let of_another = ctrl.flags & flag::CHECK_QPN != 0
        && !key.free
        && key.qpn != mlx5_prm::mkey::QPN_ANY
        && key.qpn != qpn;
    if open && !wrong_state && !of_another {
        Ok(())
    } else {
        Err(UmrError::Key)
    }
}

/// Sets entries of a key's translation list, from the request itself or from memory. Returns the
/// index after the last entry.
fn set_list(
    locked: &mut Locked<'_>,
    side: Side,
    (list, inline): (&[u8], bool),
    (run, change): (Run, Change),
) -> Result<usize, UmrError> {
    if !inline {
        read_list(locked, side, list, (run, change))?;
        return Ok(change.first + change.entries);
    }
    // The list is padded to its granularity. Entries beyond the given bytes are not set.
    let mut end = change.first;
    for klm in work::klms(list).take(change.entries) {
        set(locked, side.function, run, end, klm)?;
        end += 1;
    }
    Ok(end)
}

/// Sets the fields of a key's context that the mask selects.
fn set_context(key: &mut Mkey, ctrl: &UmrCtrl, context: &UmrContext) {
    let wants = |bit: u64| ctrl.mkey_mask & bit != 0;
    if wants(mask::LEN) {
        key.len = context.len;
    }
    if wants(mask::START_ADDR) {
        key.start = context.start_addr;
    }
    if wants(mask::MKEY) {
        key.variant = context.variant;
    }
    if wants(mask::QPN) {
        key.qpn = context.qpn;
    }
    let rights = [
        (mask::LOCAL_WRITE, mlx5_prm::umr::access::LOCAL_WRITE),
        (mask::REMOTE_READ, mlx5_prm::umr::access::REMOTE_READ),
        (mask::REMOTE_WRITE, mlx5_prm::umr::access::REMOTE_WRITE),
        (mask::ATOMIC, mlx5_prm::umr::access::ATOMIC),
    ];
    for (bit, right) in rights {
        if wants(bit) {
            key.access = key.access & !right | context.access & right;
        }
    }
    if wants(mask::FREE) {
        key.free = context.free;
    }
}

/// The part of a key's list that a request changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Change {
    first: usize,
    entries: usize,
}

impl Change {
    /// None if the request does not change the list.
    fn of(ctrl: &UmrCtrl, capacity: usize) -> Result<Option<Self>, UmrError> {
        let entries = usize::from(ctrl.klm_octowords);
        let first = match ctrl.flags & flag::TRANSLATION_OFFSET {
            // Without the flag the field is the size of a signature context. The device has no
            // signatures.
            0 if ctrl.translation_offset != 0 => return Err(UmrError::List),
            0 => 0,
            _ => usize::from(ctrl.translation_offset),
        };
        if entries == 0 {
            return Ok(None);
        }
        // Cannot overflow: both come from fields of 16 bits.
        if first + entries > capacity {
            return Err(UmrError::List);
        }
        Ok(Some(Self { first, entries }))
    }
}

fn set(
    locked: &mut Locked<'_>,
    function: usize,
    run: Run,
    index: usize,
    klm: Klm,
) -> Result<(), UmrError> {
    // Cannot fail: the capacity was checked before.
    if locked.function(function).klms.set(run, index, klm) {
        Ok(())
    } else {
        Err(UmrError::List)
    }
}

/// Reads the list that the pointer segment in `pointer` names (`mlx5dv.h`, `struct
/// mlx5_wqe_umr_pointer_seg`: a data segment whose length is ignored).
fn read_list(
    locked: &mut Locked<'_>,
    side: Side,
    pointer: &[u8],
    (run, change): (Run, Change),
) -> Result<(), UmrError> {
    /// Entries read in one step.
    const CHUNK: usize = 32;
    let Some(Data::Memory { lkey, address, .. }) = pointer.first_chunk().map(Data::parse) else {
        return Err(UmrError::List);
    };
    let mut done = 0;
    while done < change.entries {
        let entries = (change.entries - done).min(CHUNK);
        let mut bytes = [0; CHUNK * KLM_BYTES];
        let part = bytes.get_mut(..entries * KLM_BYTES).ok_or(UmrError::List)?;
        let length = part.len() as u64;
        let at = address
            .checked_add((done * KLM_BYTES) as u64)
            .ok_or(UmrError::Memory)?;
        let from = List::of_key(side, Need::LocalRead, lkey, at, length);
        let to = List::of_bytes(side, part);
        transfer(locked, &from, (&to, 0), length).map_err(|_| UmrError::Memory)?;
        for (index, klm) in work::klms(&bytes).take(entries).enumerate() {
            set(locked, side.function, run, change.first + done + index, klm)?;
        }
        done += entries;
    }
    Ok(())
}
