//! Memory of the DPA that the program uses.

use super::{Dpa, failed};
use crate::buf::Buf;
use crate::error::{Code, Result, call, fail};
use crate::object::{check_place, find};
use std::ffi::{c_int, c_void};

/// `doca_dpa_mem_alloc`.
///
/// # Safety
/// `address` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_dpa_mem_alloc(dpa: *mut Dpa, size: usize, address: *mut u64) -> Code {
    call("doca_dpa_mem_alloc", || {
        check_place(address)?;
        let allocated = Dpa::work(dpa, |core| core.allocate(size as u64))?;
        // SAFETY: checked above.
        unsafe { address.write(allocated) };
        Ok(())
    })
}

/// `doca_dpa_mem_free`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_dpa_mem_free(dpa: *mut Dpa, address: u64) -> Code {
    call("doca_dpa_mem_free", || {
        Dpa::work(dpa, |core| core.free(address))
    })
}

/// Bytes of the host.
///
/// # Safety
/// NULL, or memory of this size.
unsafe fn host<'a>(memory: *const c_void, size: usize) -> Result<&'a [u8]> {
    if memory.is_null() {
        fail!(InvalidValue, "the pointer to memory of the host is NULL");
    }
    // SAFETY: as the caller promises.
    Ok(unsafe { std::slice::from_raw_parts(memory.cast(), size) })
}

/// As [`host`], to write to.
///
/// # Safety
/// NULL, or memory of this size, which nobody else uses now.
unsafe fn host_mut<'a>(memory: *mut c_void, size: usize) -> Result<&'a mut [u8]> {
    if memory.is_null() {
        fail!(InvalidValue, "the pointer to memory of the host is NULL");
    }
    // SAFETY: as the caller promises.
    Ok(unsafe { std::slice::from_raw_parts_mut(memory.cast(), size) })
}

fn copy_in(dpa: *mut Dpa, to: u64, from: &[u8]) -> Result<()> {
    Dpa::work(dpa, |core| {
        core.check_range(to, from.len() as u64)?;
        core.process().copy_in(to, from).map_err(failed)
    })
}

fn copy_out(dpa: *mut Dpa, to: &mut [u8], from: u64) -> Result<()> {
    Dpa::work(dpa, |core| {
        core.check_range(from, to.len() as u64)?;
        core.process().copy_out(from, to).map_err(failed)
    })
}

/// `doca_dpa_h2d_memcpy`.
///
/// # Safety
/// `src` is NULL or has `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_dpa_h2d_memcpy(
    dpa: *mut Dpa,
    dst: u64,
    src: *const c_void,
    size: usize,
) -> Code {
    call("doca_dpa_h2d_memcpy", || {
        // SAFETY: as the caller promises.
        copy_in(dpa, dst, unsafe { host(src, size) }?)
    })
}

/// `doca_dpa_d2h_memcpy`.
///
/// # Safety
/// `dst` is NULL or has `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_dpa_d2h_memcpy(
    dpa: *mut Dpa,
    dst: *mut c_void,
    src: u64,
    size: usize,
) -> Code {
    call("doca_dpa_d2h_memcpy", || {
        // SAFETY: as the caller promises.
        copy_out(dpa, unsafe { host_mut(dst, size) }?, src)
    })
}

/// `doca_dpa_memset`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_dpa_memset(dpa: *mut Dpa, address: u64, value: c_int, size: usize) -> Code {
    call("doca_dpa_memset", || {
        Dpa::work(dpa, |core| {
            core.check_range(address, size as u64)?;
            // As memset: the lowest byte.
            let byte = value.to_le_bytes()[0];
            let filled = core.process().fill(address, byte, size as u64);
            filled.map_err(failed)
        })
    })
}

/// `doca_dpa_h2d_buf_memcpy`.
///
/// # Safety
/// The buffer's memory map is of mapped memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_dpa_h2d_buf_memcpy(
    dpa: *mut Dpa,
    dst: u64,
    src: *mut Buf,
    size: usize,
) -> Code {
    call("doca_dpa_h2d_buf_memcpy", || {
        let (data, length) = find(src)?.data()?;
        if size > length {
            fail!(
                InvalidValue,
                "{size} bytes from a buffer with {length} bytes of data"
            );
        }
        let data = std::ptr::with_exposed_provenance::<c_void>(data);
        // SAFETY: the buffer is inside the program's memory map.
        copy_in(dpa, dst, unsafe { host(data, size) }?)
    })
}

/// `doca_dpa_d2h_buf_memcpy`.
///
/// # Safety
/// The buffer's memory map is of mapped memory that nobody else uses now.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_dpa_d2h_buf_memcpy(
    dpa: *mut Dpa,
    dst: *mut Buf,
    src: u64,
    size: usize,
) -> Code {
    call("doca_dpa_d2h_buf_memcpy", || {
        let buffer = find(dst)?;
        let (data, room) = buffer.room()?;
        if size > room {
            fail!(
                InvalidValue,
                "{size} bytes to a buffer with place for {room} from its data on"
            );
        }
        let pointer = std::ptr::with_exposed_provenance_mut::<c_void>(data);
        // SAFETY: the buffer is inside the program's memory map.
        copy_out(dpa, unsafe { host_mut(pointer, size) }?, src)?;
        buffer.set_data(data, size)
    })
}
