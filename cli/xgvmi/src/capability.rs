//! Queries each mlx5 device through the system's libmlx5: does its firmware support cross-GVMI
//! memory keys?

use std::ffi::CStr;
use std::fs;
use std::ptr::NonNull;

use mlx5_prm::cap::{self, general, general_2};
use mlx5_prm::{Field, cmd};
use mlx5dv_sys::{
    MLX5DV_CONTEXT_FLAGS_DEVX, Mlx5Lib, ibv_context, ibv_device, mlx5dv_context_attr,
};

/// A device with the result of the query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Device {
    pub(crate) name: String,
    pub(crate) firmware: String,
    pub(crate) answer: Result<Capability, String>,
}

/// Capabilities that the firmware reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Capability {
    pub(crate) vhca_id: u64,
    /// The device has a second capability page. The next two bits are on it.
    pub(crate) second_page: bool,
    /// The device supports aliases of another function's key.
    pub(crate) alias: bool,
    /// The device can allow other functions to use a key.
    pub(crate) allow: bool,
}

/// All mlx5 devices of the machine.
pub(crate) fn devices(lib: &Mlx5Lib) -> Vec<Device> {
    let mut count = 0;
    // SAFETY: `count` is writable.
    let list = unsafe { lib.ibv_get_device_list(&raw mut count) };
    if list.is_null() {
        return Vec::new();
    }
    let mut devices = Vec::new();
    for at in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the list has that many devices.
        let device = unsafe { list.add(at).read() };
        // SAFETY: the device is of the list, which is not freed yet.
        if unsafe { lib.mlx5dv_is_supported(device) } {
            // SAFETY: as above.
            devices.push(unsafe { ask(lib, device) });
        }
    }
    // SAFETY: we own the list, and nothing uses it any more.
    unsafe { lib.ibv_free_device_list(list) };
    devices
}

/// # Safety
/// `device` must be of a list that is not freed.
unsafe fn ask(lib: &Mlx5Lib, device: *mut ibv_device) -> Device {
    // SAFETY: by the contract of this function.
    let name = unsafe { lib.ibv_get_device_name(device) };
    // SAFETY: the device contains its name as a string.
    let name = unsafe { CStr::from_ptr(name) }
        .to_string_lossy()
        .into_owned();
    let firmware = fs::read_to_string(format!("/sys/class/infiniband/{name}/fw_ver"));
    let firmware = firmware.map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned());
    let mut attributes = mlx5dv_context_attr {
        flags: MLX5DV_CONTEXT_FLAGS_DEVX,
        comp_mask: 0,
    };
    // SAFETY: by the contract of this function; the attributes are complete.
    let context = unsafe { lib.mlx5dv_open_device(device, &raw mut attributes) };
    let answer = match NonNull::new(context) {
        None => Err(format!(
            "cannot be opened with DEVX: {}",
            std::io::Error::last_os_error()
        )),
        Some(context) => {
            // SAFETY: the context was just opened with DEVX.
            let answer = unsafe { query(lib, context) };
            // SAFETY: we own the context and have created nothing in it.
            unsafe { lib.ibv_close_device(context.as_ptr()) };
            answer
        }
    };
    Device {
        name,
        firmware,
        answer,
    }
}

/// # Safety
/// `context` must be an open DEVX context.
unsafe fn query(lib: &Mlx5Lib, context: NonNull<ibv_context>) -> Result<Capability, String> {
    // SAFETY: by the contract of this function.
    let first = unsafe { page(lib, context, cap::page::GENERAL) }?;
    if !general::HCA_CAP_2.is_set(&first) {
        return Ok(parse(&first, &[]));
    }
    // SAFETY: by the contract of this function.
    let second = unsafe { page(lib, context, cap::page::GENERAL_2) }?;
    Ok(parse(&first, &second))
}

/// The bits that UCX and the library need.
fn parse(first: &[u8], second: &[u8]) -> Capability {
    let objects = general_2::CROSS_VHCA_OBJECT_TO_OBJECT_SUPPORTED.get(second);
    let allowed = general_2::ALLOWED_OBJECT_FOR_OTHER_VHCA_ACCESS.get(second);
    Capability {
        vhca_id: general::VHCA_ID.get(first),
        second_page: general::HCA_CAP_2.is_set(first),
        alias: objects & u64::from(general_2::LOCAL_MKEY_TO_REMOTE_MKEY) != 0,
        allow: allowed & general_2::MKEY_OBJECT != 0,
    }
}

/// One page of the current capabilities.
///
/// # Safety
/// `context` must be an open DEVX context.
unsafe fn page(lib: &Mlx5Lib, context: NonNull<ibv_context>, page: u16) -> Result<Vec<u8>, String> {
    let mut input = [0_u8; cmd::HEADER_BYTES];
    let mut output = [0_u8; cmd::HEADER_BYTES + cap::PAGE_BYTES];
    // The page, with the current values instead of the maximum values.
    let fields: [(Field, u64); 2] = [
        (cmd::OPCODE, cmd::opcode::QUERY_HCA_CAP.into()),
        (cmd::OP_MOD, u64::from(page << 1 | 1)),
    ];
    for (field, value) in fields {
        assert!(field.set(&mut input, value), "the header has these fields");
    }
    // SAFETY: by the contract of this function; the mailboxes have the lengths given.
    let errno = unsafe {
        lib.mlx5dv_devx_general_cmd(
            context.as_ptr(),
            input.as_ptr().cast(),
            input.len(),
            output.as_mut_ptr().cast(),
            output.len(),
        )
    };
    let status = cmd::STATUS.get(&output);
    if errno != 0 || status != 0 {
        let syndrome = cmd::SYNDROME.get(&output);
        return Err(format!(
            "QUERY_HCA_CAP of page {page:#x}: errno {errno}, status {status:#x}, syndrome {syndrome:#x}"
        ));
    }
    Ok(output[cmd::HEADER_BYTES..].to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(second: &[(Field, u64)], expect: (bool, bool)) {
        let (mut first_page, mut second_page) = ([0; cap::PAGE_BYTES], [0; cap::PAGE_BYTES]);
        assert!(general::VHCA_ID.set(&mut first_page, 7));
        assert!(general::HCA_CAP_2.set(&mut first_page, 1));
        for (field, value) in second {
            assert!(field.set(&mut second_page, *value));
        }
        let found = parse(&first_page, &second_page);
        assert_eq!((found.vhca_id, found.second_page), (7, true));
        assert_eq!((found.alias, found.allow), expect);
    }

    #[test]
    fn both_bits_are_looked_at() {
        let alias = (general_2::CROSS_VHCA_OBJECT_TO_OBJECT_SUPPORTED, 0x100);
        let allow = (general_2::ALLOWED_OBJECT_FOR_OTHER_VHCA_ACCESS, 0x4);
        check(&[alias, allow], (true, true));
        check(&[alias], (true, false));
        check(&[allow], (false, true));
        check(
            &[
                (general_2::CROSS_VHCA_OBJECT_TO_OBJECT_SUPPORTED, 0xff),
                (general_2::ALLOWED_OBJECT_FOR_OTHER_VHCA_ACCESS, 0x3),
            ],
            (false, false),
        );
        assert!(!parse(&[0; cap::PAGE_BYTES], &[]).second_page);
    }
}
