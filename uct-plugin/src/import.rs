//! `mem_attach`: returns a memory handle for another function's key from the alias map.

use std::ffi::c_void;

use xgvmi_pool::{AliasError, AliasPin, Gvmi, Mkey, OwnerUuid, RemoteKey, Tag};

use crate::abi::{MdHandle, MemAttachParams, MemHandle, UcsStatus};
use crate::check::KeyForm;
use crate::counter_file::Event;
use crate::first::First;

use crate::md::Md;
use crate::memh::{self, IMPORTS, Import};
use crate::original::Object;
use crate::{allocator, log, owner, panic, serve, ucp};

/// The exporter of a key that does not name it.
const UNKNOWN: OwnerUuid = OwnerUuid::UNKNOWN;

/// Attaches to an exported key through the alias map. `None` if UCX's own operation must do it.
///
/// # Safety
/// The arguments must be those of `mem_attach` on a memory domain of the object.
pub(crate) unsafe fn attach(
    object: &'static Object,
    md: MdHandle,
    mkey_buffer: *const c_void,
    params: *const MemAttachParams,
    memh_p: *mut MemHandle,
) -> Option<UcsStatus> {
    // SAFETY: by the contract of this function.
    let served = unsafe { serve::get(object, md) }?;
    // SAFETY: by the contract of this function.
    let remote = unsafe { read_key(mkey_buffer, params) };
    let alias = match allocator::is_short() {
        true => None,
        false => alias_of(served, remote, mkey_buffer),
    };
    let Some(alias) = alias else {
        served.count(Event::ImportLeft);
        return None;
    };
    panic::here("an alias is pinned");
    let memh = memh::new(alias.lkey());
    let import = Import {
        md: md.addr(),
        alias,
        remote,
    };
    match IMPORTS.insert(memh, import) {
        // The memory was free until now, so the table has no older entry.
        Ok(_none) => {}
        Err(import) => {
            served.unpin(import.alias);
            // SAFETY: it was just allocated and is not shared.
            unsafe { memh::free(memh) };
            served.count(Event::ImportLeft);
            return None;
        }
    }
    served.count(Event::Import);
    served.expire_aliases();
    warn_of_copies();
    // SAFETY: UCX passes the target for the handle.
    unsafe { memh_p.write(memh) };
    Some(UcsStatus::OK)
}

/// The alias of a key that its exporter keeps. `None` if UCX's own operation must create one.
fn alias_of(served: &Md, remote: RemoteKey, mkey_buffer: *const c_void) -> Option<AliasPin> {
    if remote.mkey.tag() == Tag::UCX_POOLED || owner::has_pool(remote.owner) {
        let map = served.dpu()?;
        // UCP knows the exporter if the key does not name it.
        let owner = match remote.owner {
            UNKNOWN => ucp::exporter_of(mkey_buffer).unwrap_or(UNKNOWN),
            known => known,
        };
        let key = RemoteKey { owner, ..remote };
        let attached = match map.pin(key) {
            // All cached aliases are in use. UCX's own operation would keep this alias until the
            // context ends. An alias outside the map ends with its import.
            Err(AliasError::Full { .. }) => map.aliases().pin_alone(key),
            attached => attached,
        };
        return match attached {
            Ok(alias) => Some(alias),
            Err(error) => {
                log::diag!("import left to UCX: {error}");
                None
            }
        };
    }
    // The exporter of any other key destroys it after use. A cached alias of it would then refer to
    // no key or to another key. Before UCX 1.19 a key of this library can also have another tag, if
    // an earlier key of its pool had the same index, and carries no number of its exporter. The map
    // contains an alias of the key if its exporter announced it.
    if remote.owner == UNKNOWN {
        return None;
    }
    served.alias_there(&remote)
}

/// Reports once how UCP handles small transfers, because nothing else reports it and the library
/// cannot change it.
fn warn_of_copies() {
    static ONCE: First = First::new();
    if ONCE.is_this() {
        log::diag!(
            "memory is imported: UCP copies small transfers from it by the CPU, which has other \
             memory there, or none; move at least 16 KiB at a time or use active messages"
        );
    }
}

/// Reads an exported key in either form.
///
/// # Safety
/// The arguments must be those of `mem_attach`.
unsafe fn read_key(mkey_buffer: *const c_void, params: *const MemAttachParams) -> RemoteKey {
    let buffer = mkey_buffer.cast::<u8>();
    let mut bytes = [0_u8; 14];
    // SAFETY: an exported key has at least the bytes of the shorter form.
    unsafe {
        bytes
            .as_mut_ptr()
            .copy_from_nonoverlapping(buffer, KeyForm::Short.bytes())
    };
    // SAFETY: UCX gives parameters.
    let field_mask = unsafe { (*params).field_mask };
    // As in UCX: a caller that does not pass the key's length passes no exporter either.
    let is_long = field_mask & MemAttachParams::FIELD_MKEY_SIZE != 0 && {
        // SAFETY: the mask says that the field exists.
        let size = unsafe { (*params).mkey_size };
        size >= KeyForm::Long.bytes()
    };
    if is_long {
        // SAFETY: the caller says that the key has at least the length of this form.
        unsafe {
            bytes
                .as_mut_ptr()
                .copy_from_nonoverlapping(buffer, KeyForm::Long.bytes())
        };
    }
    let [m0, m1, m2, m3, g0, g1, owner @ ..] = bytes;
    RemoteKey {
        mkey: Mkey::from_raw(u32::from_ne_bytes([m0, m1, m2, m3])),
        gvmi: Gvmi::new(u16::from_ne_bytes([g0, g1])),
        owner: OwnerUuid::new(u64::from_ne_bytes(owner)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: [u8; 14] = [0xfb, 0x56, 0x34, 0x12, 0xcd, 0xab, 1, 0, 0, 0, 0, 0, 0, 2];

    #[track_caller]
    fn check(field_mask: u64, mkey_size: usize, expect_owner: u64) {
        let params = MemAttachParams {
            field_mask,
            flags: 0,
            mkey_size,
        };
        // SAFETY: the key is in the longer form.
        let remote = unsafe { read_key(KEY.as_ptr().cast(), &raw const params) };
        assert_eq!(remote.mkey.raw(), 0x1234_56fb);
        assert_eq!(remote.gvmi.get(), 0xabcd);
        assert_eq!(remote.owner.get(), expect_owner);
    }

    #[test]
    fn the_owner_is_read_only_if_it_is_there() {
        check(MemAttachParams::FIELD_MKEY_SIZE, 14, 0x0200_0000_0000_0001);
        check(MemAttachParams::FIELD_MKEY_SIZE, 20, 0x0200_0000_0000_0001);
        check(MemAttachParams::FIELD_MKEY_SIZE, 6, 0);
        check(MemAttachParams::FIELD_MKEY_SIZE, 13, 0);
        check(0, 14, 0);
    }
}
