//! The part of doca_verbs with which a program lays out a queue pair in memory of the DPA, and connects it.

pub mod attr;
pub mod init;
pub mod qp;

use crate::dev::{Dev, DevInfo};
use crate::error::{Code, Result, call, fail};
use crate::object::{Alone, Lease, Object, Users, check_place, find, publish, withdraw};
use std::sync::Arc;

/// `struct doca_verbs_context`.
#[derive(Debug)]
pub struct Context {
    info: Arc<DevInfo>,
    users: Arc<Users>,
}

impl Object for Context {
    const NAME: &'static str = "struct doca_verbs_context";
}

/// `struct doca_verbs_pd`.
#[derive(Debug)]
pub struct Pd {
    dev: Arc<Dev>,
    users: Arc<Users>,
    _lease: Lease,
}

impl Object for Pd {
    const NAME: &'static str = "struct doca_verbs_pd";
}

/// `struct doca_verbs_gid`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Gid {
    /// Bytes in the order of packets.
    pub raw: [u8; 16],
}

/// `struct doca_verbs_ah_attr`.
#[derive(Debug)]
pub struct Address {
    state: Alone<Path>,
    _lease: Lease,
}

/// The path to another node.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Path {
    pub(crate) gid: Option<Gid>,
    pub(crate) gid_index: u8,
    pub(crate) hop_limit: u8,
}

impl Object for Address {
    const NAME: &'static str = "struct doca_verbs_ah_attr";
}

/// `DOCA_VERBS_ADDR_TYPE_IB_GRH`, the last type whose addresses are global.
const ADDRESS_TYPES: u32 = 2;

/// `doca_verbs_context_create`.
///
/// # Safety
/// `place` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_verbs_context_create(
    devinfo: *const DevInfo,
    flags: u32,
    place: *mut *mut Context,
) -> Code {
    call("doca_verbs_context_create", || {
        check_place(place)?;
        if flags != 0 {
            fail!(InvalidValue, "{flags:#x} are unknown flags of a context");
        }
        let created = Arc::new(Context {
            info: DevInfo::copy(devinfo)?,
            users: Arc::default(),
        });
        // SAFETY: checked above.
        unsafe { place.write(publish(&created)) };
        Ok(())
    })
}

/// `doca_verbs_context_destroy`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_verbs_context_destroy(context: *mut Context) -> Code {
    call("doca_verbs_context_destroy", || {
        let context = find(context)?;
        context.users.check_none()?;
        withdraw(&context);
        Ok(())
    })
}

/// `doca_verbs_pd_create`.
///
/// # Safety
/// `place` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_verbs_pd_create(context: *mut Context, place: *mut *mut Pd) -> Code {
    call("doca_verbs_pd_create", || {
        check_place(place)?;
        let context = find(context)?;
        let created = Arc::new(Pd {
            dev: Dev::open(&context.info)?,
            users: Arc::default(),
            _lease: context.users.lease(Pd::NAME),
        });
        // SAFETY: checked above.
        unsafe { place.write(publish(&created)) };
        Ok(())
    })
}

/// `doca_verbs_pd_destroy`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_verbs_pd_destroy(pd: *mut Pd) -> Code {
    call("doca_verbs_pd_destroy", || {
        let pd = find(pd)?;
        pd.users.check_none()?;
        withdraw(&pd);
        Ok(())
    })
}

/// `doca_verbs_pd_as_doca_dev`.
///
/// # Safety
/// `place` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_verbs_pd_as_doca_dev(pd: *mut Pd, place: *mut *mut Dev) -> Code {
    call("doca_verbs_pd_as_doca_dev", || {
        check_place(place)?;
        let pd = find(pd)?;
        // SAFETY: checked above.
        unsafe { place.write(pd.dev.publish()) };
        Ok(())
    })
}

/// `doca_verbs_ah_attr_create`.
///
/// # Safety
/// `place` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_verbs_ah_attr_create(
    context: *mut Context,
    place: *mut *mut Address,
) -> Code {
    call("doca_verbs_ah_attr_create", || {
        check_place(place)?;
        let created = Arc::new(Address {
            state: Alone::new(Path {
                hop_limit: 64,
                ..Path::default()
            }),
            _lease: find(context)?.users.lease(Address::NAME),
        });
        // SAFETY: checked above.
        unsafe { place.write(publish(&created)) };
        Ok(())
    })
}

/// `doca_verbs_ah_attr_destroy`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_verbs_ah_attr_destroy(address: *mut Address) -> Code {
    call("doca_verbs_ah_attr_destroy", || {
        let address = find(address)?;
        let _alone = address.state.enter()?;
        withdraw(&address);
        Ok(())
    })
}

/// `doca_verbs_ah_attr_set_addr_type`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_verbs_ah_attr_set_addr_type(address: *mut Address, kind: u32) -> Code {
    call("doca_verbs_ah_attr_set_addr_type", || {
        find(address)?;
        // All of them are a GID.
        if kind > ADDRESS_TYPES {
            fail!(
                NotSupported,
                "addresses of type {kind}: this library serves those with a GID, 0 to {ADDRESS_TYPES}"
            );
        }
        Ok(())
    })
}

/// `doca_verbs_ah_attr_set_gid`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_verbs_ah_attr_set_gid(address: *mut Address, gid: Gid) -> Code {
    call("doca_verbs_ah_attr_set_gid", || {
        find(address)?.state.enter()?.gid = Some(gid);
        Ok(())
    })
}

/// `doca_verbs_ah_attr_set_sgid_index`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_verbs_ah_attr_set_sgid_index(address: *mut Address, index: u8) -> Code {
    call("doca_verbs_ah_attr_set_sgid_index", || {
        find(address)?.state.enter()?.gid_index = index;
        Ok(())
    })
}

/// `doca_verbs_ah_attr_set_hop_limit`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_verbs_ah_attr_set_hop_limit(address: *mut Address, hops: u8) -> Code {
    call("doca_verbs_ah_attr_set_hop_limit", || {
        find(address)?.state.enter()?.hop_limit = hops;
        Ok(())
    })
}

impl Address {
    fn path(&self) -> Result<Path> {
        Ok(*self.state.enter()?)
    }
}
