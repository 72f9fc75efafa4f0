//! The adapter capabilities that this crate needs.

use std::ptr::NonNull;

use mlx5_prm::cap::{self, general, general_2, umr_fence};
use mlx5_prm::wqe::flag;
use mlx5_prm::{Field, cmd};
use mlx5dv_sys::{IBV_ACCESS_RELAXED_ORDERING, Mlx5Lib, ibv_access_flags, ibv_context};

use super::{command, wqe};
use crate::error::DeviceError;
use crate::key::Gvmi;

/// Capabilities of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Caps {
    pub(super) gvmi: Gvmi,
    pub(super) ports: u8,
    /// Maximum number of entries of a translation list, and of one work request.
    pub(super) klm_entries_max: u32,
    /// Fence of a request behind a UMR, of [`flag::FENCE_MASK`].
    pub(super) umr_fence: u8,
    /// The firmware refuses keys and registrations without relaxed ordering of PCI.
    pub(super) is_relaxed_only: bool,
}

impl Caps {
    /// Access flags that the firmware needs in each registration.
    pub(super) const fn access(&self) -> ibv_access_flags {
        match self.is_relaxed_only {
            true => IBV_ACCESS_RELAXED_ORDERING,
            false => 0,
        }
    }
}

/// Bytes of an answer: header and one page.
const ANSWER_BYTES: usize = cmd::HEADER_BYTES + cap::PAGE_BYTES;

/// Queries the capabilities. Queries support of cross-function keys only if it is not known.
///
/// # Errors
/// If the function does not answer, or does not support cross-function keys.
///
/// # Safety
/// `context` is a live DEVX context made by `lib`.
pub(super) unsafe fn query(
    lib: &Mlx5Lib,
    context: NonNull<ibv_context>,
    is_known_to_cross: bool,
) -> Result<Caps, DeviceError> {
    // SAFETY: the caller's promise.
    let page = unsafe { page(lib, context, cap::page::GENERAL) }?;
    if is_known_to_cross {
        return Ok(parse(&page));
    }
    if !general::HCA_CAP_2.is_set(&page) {
        return Err(unsupported(
            "keys across functions (no second capability page)",
        ));
    }
    // SAFETY: the caller's promise.
    let page_2 = unsafe { self::page(lib, context, cap::page::GENERAL_2) }?;
    check_crossing(&page_2)?;
    Ok(parse(&page))
}

/// Checks for support of cross-function keys in the second page. Stock UCX checks the same bits.
fn check_crossing(page_2: &[u8]) -> Result<(), DeviceError> {
    let objects = general_2::CROSS_VHCA_OBJECT_TO_OBJECT_SUPPORTED.get(page_2);
    if objects & u64::from(general_2::LOCAL_MKEY_TO_REMOTE_MKEY) == 0 {
        return Err(unsupported("aliases of another function's key"));
    }
    if general_2::ALLOWED_OBJECT_FOR_OTHER_VHCA_ACCESS.get(page_2) & general_2::MKEY_OBJECT == 0 {
        return Err(unsupported("opening a key to other functions"));
    }
    Ok(())
}

/// Parses the first page.
fn parse(page: &[u8]) -> Caps {
    let list = 1u32
        .checked_shl(number(general::LOG_MAX_KLM_LIST_SIZE, page))
        .unwrap_or(u32::MAX);
    let gvmi = general::VHCA_ID.get16(page);
    let ports = general::NUM_PORTS.get8(page);
    Caps {
        gvmi: Gvmi::new(gvmi),
        ports: ports.max(1),
        klm_entries_max: list.min(request_entries(number(general::MAX_WQE_SZ_SQ, page))),
        umr_fence: fence(number(general::UMR_FENCE, page)),
        is_relaxed_only: general::MKC_ORDER_WRITE_AFTER_WRITE_RO_ONLY.is_set(page),
    }
}

/// The fence for the adapter's capability. An adapter that needs none still gets the small one,
/// because libmlx5 always writes it without a check (`fm_cache`).
fn fence(capability: u32) -> u8 {
    match capability == u32::from(umr_fence::STRONG) {
        true => flag::FENCE_STRONG_ORDERING,
        false => flag::FENCE_INITIATOR_SMALL,
    }
}

/// Maximum number of entries in one work request of at most `wqe_bytes` bytes. If the adapter does
/// not report a maximum length, the length field of the request sets the limit.
fn request_entries(wqe_bytes: u32) -> u32 {
    match usize::try_from(wqe_bytes) {
        Ok(0) | Err(_) => wqe::KLM_ENTRIES_MAX,
        Ok(bytes) => {
            let entries = wqe::klm_entries_in(bytes).min(wqe::KLM_ENTRIES_MAX as usize);
            u32::try_from(entries).expect("the minimum of two").max(1)
        }
    }
}

fn number(field: Field, page: &[u8]) -> u32 {
    field.get32(page)
}

fn unsupported(what: &str) -> DeviceError {
    DeviceError::Unsupported {
        what: what.to_owned(),
    }
}

/// One page of current capabilities.
///
/// # Safety
/// `context` is a live DEVX context made by `lib`.
unsafe fn page(
    lib: &Mlx5Lib,
    context: NonNull<ibv_context>,
    page: u16,
) -> Result<Vec<u8>, DeviceError> {
    let mut input = command::Mailbox::<{ cmd::HEADER_BYTES }>::new(cmd::opcode::QUERY_HCA_CAP);
    // The page, with the modifier for current instead of maximum capabilities.
    input.set(cmd::OP_MOD, page << 1 | 1);
    let object = || format!("capability page {page:#x}");
    // SAFETY: the caller's promise.
    let answer: [u8; ANSWER_BYTES] =
        unsafe { command::run(lib, context, "QUERY_HCA_CAP", object, &input) }?;
    Ok(answer[cmd::HEADER_BYTES..].to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(set: &[(Field, u64)], set_2: &[(Field, u64)]) -> (Vec<u8>, Vec<u8>) {
        let page = |fields: &[(Field, u64)]| {
            let mut page = vec![0; cap::PAGE_BYTES];
            for (field, value) in fields {
                assert!(field.set(&mut page, *value));
            }
            page
        };
        (page(set), page(set_2))
    }

    const CROSS: (Field, u64) = (general_2::CROSS_VHCA_OBJECT_TO_OBJECT_SUPPORTED, 0x100);
    const ALLOW: (Field, u64) = (general_2::ALLOWED_OBJECT_FOR_OTHER_VHCA_ACCESS, 0x4);

    #[track_caller]
    fn check(log_list: u64, wqe_bytes: u64, expect: u32) {
        let set = [
            (general::VHCA_ID, 7),
            (general::NUM_PORTS, 2),
            (general::LOG_MAX_KLM_LIST_SIZE, log_list),
            (general::MAX_WQE_SZ_SQ, wqe_bytes),
        ];
        let (page, page_2) = pages(&set, &[CROSS, ALLOW]);
        check_crossing(&page_2).expect("it can");
        let caps = parse(&page);
        assert_eq!(
            caps,
            Caps {
                gvmi: Gvmi::new(7),
                ports: 2,
                klm_entries_max: expect,
                umr_fence: flag::FENCE_STRONG_ORDERING,
                is_relaxed_only: false,
            }
        );
    }

    #[test]
    fn firmware_with_relaxed_ordering_only_is_recognised() {
        for expect in [false, true] {
            let set = [(
                general::MKC_ORDER_WRITE_AFTER_WRITE_RO_ONLY,
                u64::from(expect),
            )];
            let (page, _) = pages(&set, &[]);
            assert_eq!(parse(&page).is_relaxed_only, expect);
        }
    }

    #[test]
    fn the_fence_is_the_one_that_the_adapter_needs() {
        for (capability, expect) in [
            (umr_fence::STRONG, flag::FENCE_STRONG_ORDERING),
            (umr_fence::SMALL, flag::FENCE_INITIATOR_SMALL),
            (umr_fence::NONE, flag::FENCE_INITIATOR_SMALL),
        ] {
            let (page, _) = pages(&[(general::UMR_FENCE, u64::from(capability))], &[]);
            assert_eq!(parse(&page).umr_fence, expect);
        }
    }

    #[test]
    fn entries_are_bounded_by_list_and_request() {
        check(16, 1024, 52);
        check(16, 512, 24);
        check(3, 1024, 8);
        check(16, 0, 52);
        check(0, 0, 1);
        check(63, 64, 1);
    }

    #[test]
    fn a_function_that_cannot_cross_is_refused() {
        for set_2 in [&[CROSS][..], &[ALLOW], &[]] {
            let (_, page_2) = pages(&[], set_2);
            let error = check_crossing(&page_2).expect_err("it cannot");
            assert!(matches!(error, DeviceError::Unsupported { .. }), "{error}");
        }
    }
}
