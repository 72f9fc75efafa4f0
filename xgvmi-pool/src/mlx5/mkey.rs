//! Pooled keys: created free, modifiable by work requests, and opened to other functions.

use std::ptr::NonNull;

use mlx5_prm::mkey::{self, access_mode};
use mlx5_prm::{cmd, xgvmi};
use mlx5dv_sys::{Mlx5Lib, ibv_context, mlx5dv_devx_obj};

use super::command::{self, Mailbox};
use crate::device::MkeySpec;
use crate::error::DeviceError;
use crate::key::{AccessKey, MkeyIndex};

/// The size of a key's list is a multiple of four entries (libmlx5 aligns likewise).
const LIST_ALIGN: u32 = 4;
/// Offset of the key's context in the command.
const CONTEXT_AT: u32 = 0x10;
const _: () = assert!(CONTEXT_AT as usize == mkey::CREATE_CONTEXT_AT);

/// Creates a key that equals an indirect key of `mlx5dv_create_mkey`, except for its ordering. This
/// crate sends the command itself because `mlx5dv_create_mkey` does not return the adapter's status,
/// and makes no keys with relaxed ordering.
///
/// # Errors
/// If the kernel or the adapter refuses.
///
/// # Safety
/// `context` is a live DEVX context made by `lib`, and `pdn` a protection domain of it.
pub(super) unsafe fn create(
    lib: &Mlx5Lib,
    context: NonNull<ibv_context>,
    pdn: u32,
    (spec, is_relaxed): (&MkeySpec, bool),
) -> Result<(MkeyIndex, NonNull<mlx5dv_devx_obj>), DeviceError> {
    const CALL: &str = "CREATE_MKEY";
    let input = create_mailbox(pdn, (spec, is_relaxed));
    let object = || format!("a key of {} KLM entries", spec.klm_entries);
    // SAFETY: the caller's promise.
    let (made, answer): (_, [u8; cmd::HEADER_BYTES]) =
        unsafe { command::create(lib, context, CALL, object, &input) }?;
    let index = MkeyIndex::new(cmd::OBJECT_NUMBER.get32(&answer));
    let index = index.expect("the field has 24 bits");
    // SAFETY: the caller's promise.
    let allowed = unsafe { allow(lib, context, index, &spec.access_key) };
    match allowed {
        Ok(()) => Ok((index, made)),
        Err(error) => {
            // Report the error of `allow`. If the destruction fails too, the key ends with the
            // context.
            // SAFETY: just created.
            let _left = unsafe { command::destroy(lib, made, "DESTROY_MKEY", String::new) };
            Err(error)
        }
    }
}

/// The command. With relaxed ordering, PCI may reorder writes through the key. The masks of binds and
/// invalidations leave the ordering as it is.
pub(super) fn create_mailbox(
    pdn: u32,
    (spec, is_relaxed): (&MkeySpec, bool),
) -> Mailbox<{ mkey::CREATE_LIST_AT }> {
    let mut input = Mailbox::new(cmd::opcode::CREATE_MKEY);
    input.set(mkey::ACCESS_MODE_1_0.within(CONTEXT_AT), access_mode::KLMS);
    input.set(mkey::FREE.within(CONTEXT_AT), true);
    input.set(mkey::UMR_EN.within(CONTEXT_AT), true);
    input.set(mkey::LOCAL_READ.within(CONTEXT_AT), true);
    input.set(mkey::RELAXED_ORDERING_WRITE.within(CONTEXT_AT), is_relaxed);
    input.set(mkey::QPN.within(CONTEXT_AT), mkey::QPN_ANY);
    input.set(mkey::PD.within(CONTEXT_AT), pdn);
    let entries = spec.klm_entries.next_multiple_of(LIST_ALIGN);
    input.set(mkey::TRANSLATIONS_OCTWORDS.within(CONTEXT_AT), entries);
    input
}

/// Opens a key to functions that present the access key.
///
/// # Errors
/// If the kernel or the adapter refuses.
///
/// # Safety
/// `context` is a live DEVX context made by `lib`.
pub(super) unsafe fn allow(
    lib: &Mlx5Lib,
    context: NonNull<ibv_context>,
    index: MkeyIndex,
    access_key: &AccessKey,
) -> Result<(), DeviceError> {
    let mut input =
        Mailbox::<{ xgvmi::allow::IN_BYTES }>::new(cmd::opcode::ALLOW_OTHER_VHCA_ACCESS);
    input.set(xgvmi::allow::OBJECT_TYPE, xgvmi::OBJECT_TYPE_MKEY);
    input.set(xgvmi::allow::OBJECT_ID, index.get());
    input.put(xgvmi::allow::ACCESS_KEY_AT, access_key.as_bytes());
    let object = || format!("{index:?}");
    // SAFETY: the caller's promise.
    let _answer: [u8; cmd::HEADER_BYTES] =
        unsafe { command::run(lib, context, "ALLOW_OTHER_VHCA_ACCESS", object, &input) }?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The command that `mlx5dv_create_mkey` of rdma-core 44 sends for an indirect key of four
    /// entries (`providers/mlx5/verbs.c`, `_mlx5dv_create_mkey`).
    #[test]
    fn the_command_is_that_of_libmlx5() {
        let spec = MkeySpec {
            klm_entries: 3,
            access_key: AccessKey::UCX_COMPATIBLE,
        };
        let mut expect = [0u8; mkey::CREATE_LIST_AT];
        expect[..2].copy_from_slice(&[0x02, 0x00]);
        // free; umr_en, lr, KLM; qpn; pd.
        expect[0x10..0x18].copy_from_slice(&[0x40, 0, 0x80 | 0x04 | 0x02, 0, 0xff, 0xff, 0xff, 0]);
        expect[0x1d..0x20].copy_from_slice(&[0x00, 0x12, 0x34]);
        expect[0x44..0x48].copy_from_slice(&[0, 0, 0, 4]);
        let command = |is_relaxed| create_mailbox(0x1234, (&spec, is_relaxed));
        assert_eq!(command(false).as_bytes(), &expect);
        // relaxed_ordering_write, as UCX sets it in its KSM keys (`uct_ib_mlx5_devx_reg_ksm`).
        expect[0x11] |= 0x04;
        assert_eq!(command(true).as_bytes(), &expect);
    }
}
