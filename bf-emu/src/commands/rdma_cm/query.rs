//! QUERY and QUERY_ROUTE: addresses, GIDs and paths of an identifier.

use super::caller::Caller;
use crate::engine::rdma_cm::{RECORD_BYTES, Route, service_id};
use crate::fabric::Fabric;
use crate::fabric::rdma_cm::{CmId, Port};
use crate::model::adapter::PKEY_DEFAULT;
use crate::model::sockaddr::{Family, SocketAddress};
use crate::sys::Errno;

/// Bytes of `struct rdma_ucm_query_addr_resp`, and without the index of the device.
const ADDRESSES_BYTES: usize = 280;
const ADDRESSES_BYTES_MIN: usize = 272;
/// Bytes of `struct rdma_ucm_query_route_resp`, and without the index of the device.
const ROUTE_BYTES: usize = 216;
const ROUTE_BYTES_MIN: usize = 208;
/// Bytes of the head of `struct rdma_ucm_query_path_resp`, and of each path in it.
const PATHS_BYTES: usize = 8;
const PATH_BYTES: usize = 8 + RECORD_BYTES;
/// `IB_PATH_GMP | IB_PATH_PRIMARY | IB_PATH_BIDIRECTIONAL` (`rdma/ib_user_sa.h`).
pub(super) const PATH_FLAGS: u32 = 1 | 1 << 1 | 1 << 3 | 1 << 5;
/// Options of QUERY.
const ADDRESSES: u32 = 0;
const PATHS: u32 = 1;
const GIDS: u32 = 2;

pub(super) fn query(caller: &Caller<'_>, response: u64, id: u32, option: u32) -> Result<(), Errno> {
    let known = *caller.id(&mut caller.lock(), id)?;
    let fabric = caller.process.fabric();
    match option {
        ADDRESSES => {
            caller.needs_room(ADDRESSES_BYTES_MIN)?;
            let bytes = addresses(fabric, &known, (known.source, known.target));
            cut(caller, response, &bytes)
        }
        GIDS => {
            caller.needs_room(ADDRESSES_BYTES_MIN)?;
            let bytes = addresses(fabric, &known, gids(fabric, &known));
            cut(caller, response, &bytes)
        }
        PATHS => {
            caller.needs_room(PATHS_BYTES)?;
            paths(caller, response, &known)
        }
        _ => Err(Errno(libc::ENOSYS)),
    }
}

/// An answer that may be cut to the caller's room.
fn cut(caller: &Caller<'_>, response: u64, bytes: &[u8]) -> Result<(), Errno> {
    let room = caller.room.min(bytes.len());
    caller.answer(response, bytes.get(..room).unwrap_or(bytes))
}

fn addresses(
    fabric: &Fabric,
    id: &CmId,
    (source, target): (SocketAddress, SocketAddress),
) -> [u8; ADDRESSES_BYTES] {
    let mut bytes = [0; ADDRESSES_BYTES];
    let mut put = |at: usize, value: &[u8]| {
        bytes[at..at + value.len()].copy_from_slice(value);
    };
    if let Some((guid, port)) = device(fabric, id.local) {
        put(0, &guid);
        put(8, &[port]);
        put(10, &PKEY_DEFAULT.to_be_bytes());
    }
    for (size_at, address_at, address) in [(12, 16, source), (14, 144, target)] {
        let address = address.as_slice();
        // An address has at most 48 bytes.
        let size = u16::try_from(address.len()).unwrap_or(0);
        put(size_at, &size.to_ne_bytes());
        put(address_at, address);
    }
    // Index of the device: unknown, as on a kernel without it. The GUID identifies the device.
    put(272, &u32::MAX.to_ne_bytes());
    bytes
}

/// GUID of the node and number of the port.
fn device(fabric: &Fabric, port: Port) -> Option<([u8; 8], u8)> {
    let place = port.place()?;
    let identity = fabric.identity(place.function)?;
    Some((identity.node_guid.to_be_bytes(), place.port))
}

/// The GIDs and services of both sides, as InfiniBand addresses.
fn gids(fabric: &Fabric, id: &CmId) -> (SocketAddress, SocketAddress) {
    let as_gid = |address: SocketAddress, port: Port| match address.family() {
        Some(Family::Ib) => address,
        _ => {
            let service = service_id(id.port_space, address.port());
            SocketAddress::of_gid(&fabric.cm_gid(port), service)
        }
    };
    (as_gid(id.source, id.local), as_gid(id.target, id.remote))
}

fn paths(caller: &Caller<'_>, response: u64, id: &CmId) -> Result<(), Errno> {
    let mut bytes = [0; PATHS_BYTES + PATH_BYTES];
    bytes[..4].copy_from_slice(&id.paths.to_ne_bytes());
    let route = Route::of(caller.process.fabric(), id).filter(|_| id.paths != 0);
    // The kernel wants room for one byte more than the path.
    let fits = caller.room > PATHS_BYTES + PATH_BYTES;
    match route.filter(|_| fits) {
        Some(route) => {
            bytes[8..12].copy_from_slice(&PATH_FLAGS.to_ne_bytes());
            bytes[16..].copy_from_slice(&route.record());
            caller.answer(response, &bytes)
        }
        None => caller.answer(response, &bytes[..PATHS_BYTES]),
    }
}

/// QUERY_ROUTE.
pub(super) fn route(caller: &Caller<'_>, response: u64, id: u32) -> Result<(), Errno> {
    caller.needs_room(ROUTE_BYTES_MIN)?;
    let known = *caller.id(&mut caller.lock(), id)?;
    let fabric = caller.process.fabric();
    let mut bytes = [0; ROUTE_BYTES];
    let mut put = |at: usize, value: &[u8]| {
        bytes[at..at + value.len()].copy_from_slice(value);
    };
    for (at, address) in [(144, known.source), (172, known.target)] {
        let address = address.as_slice();
        // A `struct sockaddr_in6` has no room for an InfiniBand address.
        put(at, address.get(..28).unwrap_or(address));
    }
    put(208, &u32::MAX.to_ne_bytes());
    if let Some((guid, port)) = device(fabric, known.local) {
        put(0, &guid);
        put(204, &[port]);
        put(200, &known.paths.to_ne_bytes());
        if let Some(route) = Route::of(fabric, &known) {
            put(8, &route.user_record());
        } else {
            put(24, &fabric.cm_gid(known.local));
            put(60, &PKEY_DEFAULT.to_be_bytes());
        }
    }
    cut(caller, response, &bytes)
}
