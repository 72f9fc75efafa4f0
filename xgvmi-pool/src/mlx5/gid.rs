//! Addresses of a port: candidate entries of its GID table and their order.

use std::ffi::c_int;
use std::ptr::NonNull;

use mlx5dv_sys::{IBV_GID_TYPE_ROCE_V2, Mlx5Lib, ibv_context, ibv_gid, ibv_gid_entry};

/// Maximum number of entries to read, over all ports of a device. A port of mlx5 has 256.
const ENTRIES_MAX: usize = 1024;

/// The entry at an index of the table, or `None` if it is empty.
///
/// # Safety
/// `context` is a live context made by `lib`.
pub(super) unsafe fn at(
    lib: &Mlx5Lib,
    context: NonNull<ibv_context>,
    port: u8,
    index: u8,
) -> Option<(u8, ibv_gid)> {
    let mut gid = ibv_gid::default();
    // SAFETY: the context is live by the caller's promise.
    let failed =
        unsafe { lib.ibv_query_gid(context.as_ptr(), port, c_int::from(index), &raw mut gid) };
    // The second half of an address in use is never zero. That of an unused entry is zero.
    (failed == 0 && bytes(&gid)[8..] != [0; 8]).then_some((index, gid))
}

/// All entries of an Ethernet port, in the order of `UCX_IB_GID_INDEX=auto`: RoCE v2 before v1,
/// IPv4 before IPv6, then by index (UCX 1.20, `uct_ib_device_select_gid`).
///
/// # Safety
/// `context` is a live context made by `lib`.
pub(super) unsafe fn in_order_of_ucx(
    lib: &Mlx5Lib,
    context: NonNull<ibv_context>,
    port: u8,
) -> Vec<(u8, ibv_gid)> {
    let mut entries = vec![ibv_gid_entry::default(); ENTRIES_MAX];
    let (out, size) = (entries.as_mut_ptr(), size_of::<ibv_gid_entry>());
    // SAFETY: the context is live by the caller's promise; the buffer has space for this number of
    // entries.
    let found = unsafe { lib._ibv_query_gid_table(context.as_ptr(), out, ENTRIES_MAX, 0, size) };
    let Ok(found) = usize::try_from(found) else {
        // Stock UCX uses the first entry for its own queue pair of this kind.
        // SAFETY: the caller's
        // promise.
        return unsafe { at(lib, context, port, 0) }.into_iter().collect();
    };
    entries.truncate(found);
    sorted(port, &entries)
}

fn sorted(port: u8, entries: &[ibv_gid_entry]) -> Vec<(u8, ibv_gid)> {
    let mut ours: Vec<_> = entries
        .iter()
        .filter(|entry| entry.port_num == u32::from(port))
        .filter_map(|entry| {
            let index = u8::try_from(entry.gid_index).ok()?;
            let is_v2 = entry.gid_type == IBV_GID_TYPE_ROCE_V2;
            let is_v4 = bytes(&entry.gid).starts_with(&V4_MAPPED);
            Some((!is_v2, !is_v4, index, entry.gid))
        })
        .collect();
    ours.sort_by_key(|&(old, long, index, _)| (old, long, index));
    ours.into_iter()
        .map(|(_, _, index, gid)| (index, gid))
        .collect()
}

/// Prefix of an IPv4 address in IPv6 form.
const V4_MAPPED: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];

pub(super) fn bytes(gid: &ibv_gid) -> [u8; 16] {
    // SAFETY: all fields of the union are sixteen plain bytes.
    unsafe { gid.raw }
}

#[cfg(test)]
mod tests {
    use mlx5dv_sys::IBV_GID_TYPE_ROCE_V1;

    use super::*;

    fn entry(port: u32, index: u32, gid_type: u32, raw: [u8; 16]) -> ibv_gid_entry {
        ibv_gid_entry {
            gid: ibv_gid { raw },
            gid_index: index,
            port_num: port,
            gid_type,
            ndev_ifindex: 7,
        }
    }

    #[test]
    fn entries_come_in_the_order_of_ucx() {
        let link_local = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0xff, 0xfe, 0, 0, 1];
        let v4 = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1];
        // The kernel's order in a table: link-local first, then each address, in each type.
        let (v1, v2) = (IBV_GID_TYPE_ROCE_V1, IBV_GID_TYPE_ROCE_V2);
        let table = [
            entry(1, 0, v1, link_local),
            entry(1, 1, v2, link_local),
            entry(1, 2, v1, v4),
            entry(1, 3, v2, v4),
            entry(2, 0, v2, v4),
        ];
        let order = |port| {
            let sorted = sorted(port, &table);
            sorted.iter().map(|&(index, _)| index).collect::<Vec<_>>()
        };
        assert_eq!(order(1), [3, 1, 2, 0]);
        assert_eq!(order(2), [0]);
        assert_eq!(order(3), []);
    }
}
