//! Places of threads.

use super::Dpa;
use crate::error::{Code, Fault, call, fail};
use crate::object::{Alone, Lease, Object, check_place, find, publish, store, withdraw};
use std::sync::Arc;

/// `struct doca_dpa_eu_affinity`.
#[derive(Debug)]
pub struct Affinity {
    dpa: Arc<Dpa>,
    pub(super) unit: Alone<Option<u16>>,
    _lease: Lease,
}

impl Object for Affinity {
    const NAME: &'static str = "struct doca_dpa_eu_affinity";
}

/// `doca_dpa_eu_affinity_create`.
///
/// # Safety
/// `affinity` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_dpa_eu_affinity_create(
    dpa: *mut Dpa,
    affinity: *mut *mut Affinity,
) -> Code {
    call("doca_dpa_eu_affinity_create", || {
        check_place(affinity)?;
        let dpa = find(dpa)?;
        let created = Arc::new(Affinity {
            _lease: dpa.users.lease(Affinity::NAME),
            dpa,
            unit: Alone::new(None),
        });
        // SAFETY: checked above.
        unsafe { affinity.write(publish(&created)) };
        Ok(())
    })
}

/// `doca_dpa_eu_affinity_destroy`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_dpa_eu_affinity_destroy(affinity: *mut Affinity) -> Code {
    call("doca_dpa_eu_affinity_destroy", || {
        let affinity = find(affinity)?;
        let _alone = affinity.unit.enter()?;
        withdraw(&affinity);
        Ok(())
    })
}

/// `doca_dpa_eu_affinity_set`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_dpa_eu_affinity_set(affinity: *mut Affinity, unit: u32) -> Code {
    call("doca_dpa_eu_affinity_set", || {
        let affinity = find(affinity)?;
        let mut place = affinity.unit.enter()?;
        let units = affinity.dpa.core()?.process().limits().units;
        match u16::try_from(unit) {
            Ok(known) if unit < units => *place = Some(known),
            _ => fail!(
                InvalidValue,
                "{unit} is no execution unit: they are 0 to {}",
                units.saturating_sub(1)
            ),
        }
        Ok(())
    })
}

/// `doca_dpa_eu_affinity_clear`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_dpa_eu_affinity_clear(affinity: *mut Affinity) -> Code {
    call("doca_dpa_eu_affinity_clear", || {
        *find(affinity)?.unit.enter()? = None;
        Ok(())
    })
}

/// `doca_dpa_eu_affinity_get`.
///
/// # Safety
/// `unit` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_dpa_eu_affinity_get(affinity: *mut Affinity, unit: *mut u32) -> Code {
    call("doca_dpa_eu_affinity_get", || {
        let set = *find(affinity)?.unit.enter()?;
        match set {
            // SAFETY: as the caller promises.
            Some(set) => unsafe { store(unit, u32::from(set)) },
            None => Err(Fault::answer(
                Code::NotFound,
                "the affinity has no execution unit",
            )),
        }
    })
}
