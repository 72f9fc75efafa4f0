//! Memory of the DPA, and its page of doorbells, for queues that programs lay out themselves.

use crate::dpa::Dpa;
use crate::error::{Code, call};
use crate::mmap::check_rights;
use crate::object::{Lease, Object, check_place, find, publish, withdraw};
use std::sync::Arc;

/// `struct doca_umem`.
#[derive(Debug)]
pub struct Umem {
    pub(crate) dpa: Arc<Dpa>,
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    _lease: Lease,
}

impl Object for Umem {
    const NAME: &'static str = "struct doca_umem";
}

/// `struct doca_uar`.
#[derive(Debug)]
pub struct Uar {
    pub(crate) dpa: Arc<Dpa>,
    _lease: Lease,
}

impl Object for Uar {
    const NAME: &'static str = "struct doca_uar";
}

/// `doca_umem_dpa_create`.
///
/// # Safety
/// `place` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_umem_dpa_create(
    dpa: *mut Dpa,
    address: u64,
    bytes: usize,
    rights: u32,
    place: *mut *mut Umem,
) -> Code {
    call("doca_umem_dpa_create", || {
        check_place(place)?;
        check_rights(rights)?;
        let (dpa, bytes) = (find(dpa)?, bytes as u64);
        dpa.core()?.check_range(address, bytes)?;
        let created = Arc::new(Umem {
            _lease: dpa.users.lease(Umem::NAME),
            dpa,
            address,
            bytes,
        });
        // SAFETY: checked above.
        unsafe { place.write(publish(&created)) };
        Ok(())
    })
}

/// `doca_umem_destroy`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_umem_destroy(umem: *mut Umem) -> Code {
    call("doca_umem_destroy", || {
        withdraw(&find(umem)?);
        Ok(())
    })
}

/// `doca_uar_dpa_create`.
///
/// # Safety
/// `place` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_uar_dpa_create(dpa: *mut Dpa, place: *mut *mut Uar) -> Code {
    call("doca_uar_dpa_create", || {
        check_place(place)?;
        let dpa = find(dpa)?;
        dpa.core()?;
        let created = Arc::new(Uar {
            _lease: dpa.users.lease(Uar::NAME),
            dpa,
        });
        // SAFETY: checked above.
        unsafe { place.write(publish(&created)) };
        Ok(())
    })
}

/// `doca_uar_destroy`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_uar_destroy(uar: *mut Uar) -> Code {
    call("doca_uar_destroy", || {
        withdraw(&find(uar)?);
        Ok(())
    })
}
