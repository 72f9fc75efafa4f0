//! Files that assign execution units to programs.

use crate::error::{Code, Result, call, fail};
use crate::object::{Object, check_place, find, publish, store, withdraw};
use std::ffi::{CStr, c_char};
use std::sync::Arc;

/// `struct doca_pcc_resources`.
#[derive(Debug)]
pub struct Resources(Vec<u32>);

impl Object for Resources {
    const NAME: &'static str = "struct doca_pcc_resources";
}

/// `doca_pcc_resources_create`.
///
/// # Safety
/// `key` is NULL or a string, `text` NULL or `length` bytes, `resources` NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_pcc_resources_create(
    key: *const c_char,
    text: *const c_char,
    length: usize,
    resources: *mut *mut Resources,
) -> Code {
    call("doca_pcc_resources_create", || {
        check_place(resources)?;
        if key.is_null() || text.is_null() {
            fail!(InvalidValue, "the key or the text of the file is NULL");
        }
        // SAFETY: checked, and valid by contract.
        let (key, text) = unsafe {
            (
                CStr::from_ptr(key).to_string_lossy(),
                std::slice::from_raw_parts(text.cast(), length),
            )
        };
        match flexio::units_of_resources(&key, text) {
            // SAFETY: checked above.
            Ok(units) => unsafe { resources.write(publish(&Arc::new(Resources(units)))) },
            Err(error) => fail!(InvalidValue, "{error}"),
        }
        Ok(())
    })
}

/// `doca_pcc_resources_destroy`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_pcc_resources_destroy(resources: *mut Resources) -> Code {
    call("doca_pcc_resources_destroy", || {
        withdraw(&find(resources)?);
        Ok(())
    })
}

/// `doca_pcc_resources_get_num_eus`.
///
/// # Safety
/// `count` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_pcc_resources_get_num_eus(
    resources: *const Resources,
    count: *mut u32,
) -> Code {
    call("doca_pcc_resources_get_num_eus", || {
        let found = find(resources)?;
        // SAFETY: as the caller promises.
        unsafe { store(count, u32::try_from(found.0.len()).unwrap_or(u32::MAX)) }
    })
}

/// `doca_pcc_resources_get_eus`.
///
/// # Safety
/// `units` is NULL or has `count` elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_pcc_resources_get_eus(
    resources: *const Resources,
    count: u32,
    units: *mut u32,
) -> Code {
    call("doca_pcc_resources_get_eus", || -> Result<()> {
        let found = find(resources)?;
        check_place(units)?;
        if (count as usize) < found.0.len() {
            fail!(
                InvalidValue,
                "{count} elements for {} execution units",
                found.0.len()
            );
        }
        // SAFETY: checked, and `count` elements by contract.
        unsafe { units.copy_from(found.0.as_ptr(), found.0.len()) };
        Ok(())
    })
}
