//! UMR work requests: changes of an mkey.

use mlx5_prm::umr::{UmrContext, UmrCtrl, flag, mask};

use super::access::slot_of;
use super::work;
use crate::fabric::Locked;
use crate::fabric::objects::{MkeyKind, Qp};
use crate::profile::CostKind;
use crate::stats::Work;

/// Why a UMR was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UmrError {
    /// The key is not there, not of this domain, not open to UMR, or not in the state asked for.
    Key,
    /// The list does not fit the key, or its form is not known.
    List,
}

/// What a UMR did, for counters and cost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Done {
    /// Bound or invalidated.
    pub work: Work,
    /// Its time on hardware.
    pub cost: CostKind,
    /// Bytes that the key covers now.
    pub bytes: u64,
}

/// Carries out a UMR posted by queue pair `qpn`.
pub(crate) fn execute(
    locked: &mut Locked<'_>,
    function: usize,
    (qpn, qp): (u32, &Qp),
    mkey: u32,
    (ctrl, context): (UmrCtrl, UmrContext),
    list: &[u8],
) -> Result<Done, UmrError> {
    let function = locked.function(function);
    let slot = slot_of(mkey).ok_or(UmrError::Key)?;
    let key = function.mkeys.get(slot).ok_or(UmrError::Key)?;
    // The tag in the request is not compared: an invalidation resets it, and whoever binds next
    // need not know what it was.
    if !key.umr_enabled || key.pd != qp.pd || key.kind == MkeyKind::Alias {
        return Err(UmrError::Key);
    }
    if ctrl.flags & flag::CHECK_FREE != 0 && !key.free {
        return Err(UmrError::Key);
    }
    let any = mlx5_prm::mkey::QPN_ANY;
    if ctrl.flags & flag::CHECK_QPN != 0 && !key.free && key.qpn != any && key.qpn != qpn {
        return Err(UmrError::Key);
    }
    let wants = |bit: u64| ctrl.mkey_mask & bit != 0;

    let octowords = usize::from(ctrl.klm_octowords);
    let entries = if octowords == 0 {
        None
    } else {
        if ctrl.flags & flag::INLINE == 0 || ctrl.translation_offset != 0 {
            return Err(UmrError::List);
        }
        // The list is padded to its granularity; entries beyond the bytes given are not set.
        let given = work::klms(list).take(octowords).count();
        if octowords > key.list.capacity() {
            return Err(UmrError::List);
        }
        Some(given)
    };

    let (run, was_free) = (key.list, key.free);
    if let Some(given) = entries {
        for (index, klm) in work::klms(list).take(given).enumerate() {
            // Cannot fail: the capacity was checked above.
            if !function.klms.set(run, index, klm) {
                return Err(UmrError::List);
            }
        }
    }
    let key = function.mkeys.get_mut(slot).ok_or(UmrError::Key)?;
    if let Some(given) = entries {
        key.entries = u32::try_from(given).unwrap_or(0);
    }
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
    let bytes = key.len;
    if key.free && !was_free || wants(mask::FREE) && context.free {
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
