//! Aliases: general objects of this function that refer to another function's keys.

use std::ptr::NonNull;

use mlx5_prm::cmd;
use mlx5_prm::xgvmi::{self, alias};
use mlx5dv_sys::{Mlx5Lib, ibv_context, mlx5dv_devx_obj};

use super::command::{self, Mailbox};
use crate::device::Alias;
use crate::error::DeviceError;
use crate::key::{AccessKey, Lkey, Mkey, MkeyIndex, RemoteKey, Tag};

/// Creates an alias.
///
/// # Errors
/// If the kernel or the adapter refuses, or the alias is in the error state after its creation.
///
/// # Safety
/// `context` is a live DEVX context made by `lib`, and `pdn` a protection domain of it.
pub(super) unsafe fn create(
    lib: &Mlx5Lib,
    context: NonNull<ibv_context>,
    pdn: u32,
    key: &RemoteKey,
    access_key: &AccessKey,
) -> Result<(Alias, NonNull<mlx5dv_devx_obj>), DeviceError> {
    const CALL: &str = "CREATE_GENERAL_OBJECT";
    let object = || format!("an alias of {:?} of {:?}", key.mkey, key.gvmi);
    let input = create_mailbox(pdn, key, access_key);
    // SAFETY: the caller's promise.
    let (made, answer): (_, [u8; alias::IN_BYTES]) =
        unsafe { command::create(lib, context, CALL, object, &input) }?;
    match parse(&answer) {
        Ok(alias) => Ok((alias, made)),
        Err(status) => {
            // SAFETY: just created.
            let _left = unsafe { command::destroy(lib, made, "DESTROY_GENERAL_OBJECT", object) };
            Err(DeviceError::Refused {
                call: CALL,
                object: object(),
                status: cmd::status::OK,
                syndrome: status,
                errno: 0,
            })
        }
    }
}

fn create_mailbox(
    pdn: u32,
    key: &RemoteKey,
    access_key: &AccessKey,
) -> Mailbox<{ alias::IN_BYTES }> {
    let mut input = Mailbox::new(cmd::opcode::CREATE_GENERAL_OBJECT);
    input.set(cmd::GENERAL_OBJECT_TYPE, xgvmi::OBJECT_TYPE_MKEY);
    input.set(cmd::GENERAL_OBJECT_ALIAS, true);
    input.set(alias::VHCA_ID, key.gvmi.get());
    input.set(alias::OBJECT_ID, key.mkey.index().get());
    input.set(alias::METADATA_1, pdn);
    input.put(alias::ACCESS_KEY_AT, access_key.as_bytes());
    input
}

/// The new alias, or its status if that is an error.
fn parse(answer: &[u8]) -> Result<Alias, u32> {
    let status = alias::STATUS.get32(answer);
    if status != u32::from(alias::status::READY) {
        return Err(status);
    }
    let id = cmd::GENERAL_OBJECT_ID.get32(answer);
    let index = MkeyIndex::new(id).ok_or(id)?;
    // The alias has no tag, as in stock UCX.
    Ok(Alias {
        index,
        lkey: Lkey::from_raw(Mkey::new(index, Tag::ZERO).raw()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::{Gvmi, OwnerUuid};

    /// The command of stock UCX (`ib_mlx5dv_md.c`, `uct_ib_mlx5_devx_mem_attach`).
    #[test]
    fn the_command_is_that_of_ucx() {
        let key = RemoteKey {
            gvmi: Gvmi::new(0x0102),
            mkey: Mkey::from_raw(0x1234_56fb),
            owner: OwnerUuid::UNKNOWN,
        };
        let mut expect = [0u8; alias::IN_BYTES];
        expect[..8].copy_from_slice(&[0x0a, 0, 0, 0, 0, 0, 0xff, 0x01]);
        expect[12] = 0x80;
        expect[16..24].copy_from_slice(&[1, 2, 0, 0, 0, 0x12, 0x34, 0x56]);
        expect[32..49].copy_from_slice(b"uct_ib_mkey_token");
        expect[64..68].copy_from_slice(&[0, 0, 0, 9]);
        assert_eq!(
            create_mailbox(9, &key, &AccessKey::UCX_COMPATIBLE).as_bytes(),
            &expect
        );
    }

    #[test]
    fn an_alias_in_error_is_none() {
        let mut answer = [0u8; alias::IN_BYTES];
        answer[8..12].copy_from_slice(&[0, 0x12, 0x34, 0x56]);
        let index = MkeyIndex::new(0x12_3456).expect("24 bits");
        assert_eq!(
            parse(&answer),
            Ok(Alias {
                index,
                lkey: Lkey::from_raw(0x1234_5600)
            })
        );
        answer[8] = 1;
        assert_eq!(parse(&answer), Err(0x0112_3456), "no mkey index");
        answer[8] = 0;
        assert!(alias::STATUS.set(&mut answer, 1));
        assert_eq!(parse(&answer), Err(1));
    }
}
