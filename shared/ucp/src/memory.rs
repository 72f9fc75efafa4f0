//! Memory handles: this process's buffers, registered and exported, and other processes' buffers, imported.

use super::error::check;
use super::{Context, Result, UcpError};
use crate::buffer::Buffer;
use std::ops::Deref;
use std::rc::Rc;
use ucx_sys::{
    UCP_MEM_ATTR_FIELD_ADDRESS, UCP_MEM_ATTR_FIELD_LENGTH, UCP_MEM_MAP_PARAM_FIELD_ADDRESS,
    UCP_MEM_MAP_PARAM_FIELD_EXPORTED_MEMH_BUFFER, UCP_MEM_MAP_PARAM_FIELD_LENGTH,
    UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE, UCP_MEMH_PACK_FLAG_EXPORT,
    UCP_MEMH_PACK_PARAM_FIELD_FLAGS, UCS_MEMORY_TYPE_HOST, UCS_OK, Ucp, ucp_mem_attr_t, ucp_mem_h,
    ucp_mem_map_params_t, ucp_memh_buffer_release_params_t, ucp_memh_pack_params_t, ucs_status_t,
};

/// A registered range of this process's memory. It does not own the memory.
#[derive(Debug)]
pub struct MappedRange {
    memh: Memh,
    address: u64,
    length: usize,
}

impl MappedRange {
    /// Registers `length` bytes at `start` with all of the context's devices (`ucp_mem_map`).
    ///
    /// # Errors
    /// UCX's.
    ///
    /// # Safety
    /// The range is a mapping of this process and stays one as long as this value lives. While a peer may access it,
    /// nobody here holds a reference to bytes that the peer writes.
    pub unsafe fn new(context: &Context, start: *const u8, length: usize) -> Result<Self> {
        let params = ucp_mem_map_params_t {
            field_mask: u64::from(
                UCP_MEM_MAP_PARAM_FIELD_ADDRESS
                    | UCP_MEM_MAP_PARAM_FIELD_LENGTH
                    | UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE,
            ),
            address: start.cast_mut().cast(),
            length,
            memory_type: UCS_MEMORY_TYPE_HOST,
            ..Default::default()
        };
        // SAFETY: the three fields are valid and named in the mask, and the caller vouches for the range.
        let memh = unsafe { Memh::map(context, &params) }?;
        Ok(Self {
            memh,
            address: start.addr() as u64,
            length,
        })
    }

    /// Packs the handle for a process on another function of the same device (`ucp_memh_pack` with
    /// EXPORT). This step creates or binds a cross-GVMI key.
    ///
    /// # Errors
    /// UCX's error. `Unsupported operation` means that no device of the context exports memory.
    pub fn export(&self) -> Result<ExportedMemh> {
        let Memh { context, handle } = &self.memh;
        let params = ucp_memh_pack_params_t {
            field_mask: u64::from(UCP_MEMH_PACK_PARAM_FIELD_FLAGS),
            flags: u64::from(UCP_MEMH_PACK_FLAG_EXPORT),
        };
        let (mut buffer, mut length) = (std::ptr::null_mut(), 0);
        // SAFETY: the handle is mapped, the parameters are valid, and both results can be written.
        let status = unsafe {
            context.ucp().ucp_memh_pack(
                *handle,
                &raw const params,
                &raw mut buffer,
                &raw mut length,
            )
        };
        check(context.ucp(), "ucp_memh_pack", status, || {
            format!("{:#x}+{}, EXPORT", self.address, self.length)
        })?;
        Ok(ExportedMemh {
            context: context.clone(),
            buffer,
            length,
        })
    }

    /// First address, for the importer.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Length in bytes.
    #[must_use]
    pub fn length(&self) -> usize {
        self.length
    }

    /// Ends the registration (`ucp_mem_unmap`). UCX's registration cache keeps the key until the
    /// memory is unmapped.
    ///
    /// # Errors
    /// UCX's.
    pub fn unmap(self) -> Result<()> {
        self.memh.unmap()
    }
}

/// A registered buffer of this process. It owns the buffer, so nobody reads or unmaps it while a
/// device may write to it.
#[derive(Debug)]
pub struct MappedBuffer {
    range: MappedRange,
    buffer: Buffer,
}

impl MappedBuffer {
    /// Registers `buffer`, see [`MappedRange::new`].
    ///
    /// # Errors
    /// UCX's error. The buffer is dropped.
    pub fn new(context: &Context, buffer: Buffer) -> Result<Self> {
        // SAFETY: the range is a mapping of this process that lives longer than its registration: unmap() and the
        // order of the fields see to it. The buffer is not to be had while it is in here.
        let range = unsafe { MappedRange::new(context, buffer.as_ptr(), buffer.len()) }?;
        Ok(Self { range, buffer })
    }

    /// Exports it, see [`MappedRange::export`].
    ///
    /// # Errors
    /// UCX's.
    pub fn export(&self) -> Result<ExportedMemh> {
        self.range.export()
    }

    /// The buffer's first address, for the importer.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.range.address()
    }

    /// Ends the registration (see [`MappedRange::unmap`]) and returns the buffer.
    ///
    /// # Errors
    /// UCX's error. The buffer is dropped.
    pub fn unmap(self) -> Result<Buffer> {
        self.range.unmap()?;
        Ok(self.buffer)
    }
}

/// A packed, exported memory handle: bytes for the importer.
#[derive(Debug)]
pub struct ExportedMemh {
    context: Context,
    buffer: *mut std::ffi::c_void,
    length: usize,
}

impl Deref for ExportedMemh {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: UCX gave this buffer with this length; it is ours until released in drop and nobody writes to it.
        unsafe { std::slice::from_raw_parts(self.buffer.cast(), self.length) }
    }
}

impl Drop for ExportedMemh {
    fn drop(&mut self) {
        let params = ucp_memh_buffer_release_params_t::default();
        // SAFETY: the buffer came from ucp_memh_pack and is released once.
        unsafe {
            self.context
                .ucp()
                .ucp_memh_buffer_release(self.buffer, &raw const params);
        }
    }
}

/// Another process's buffer, used as if it were local. Its address is the exporter's, and only the
/// device may access it. Clones share the import.
///
/// A buffer of this process can take part in the same accesses, see [`ImportedMemory::own`].
#[derive(Debug, Clone)]
pub struct ImportedMemory {
    inner: Rc<Imported>,
}

#[derive(Debug)]
struct Imported {
    // The registration ends before its buffer.
    memh: Memh,
    address: u64,
    length: usize,
    /// The memory itself, if it is this process's.
    own: Option<Buffer>,
}

impl ImportedMemory {
    /// Imports an exported buffer (`ucp_mem_map` with an exported handle). This step creates or
    /// finds an alias.
    ///
    /// # Errors
    /// UCX's error. `Destination is unreachable` means that this process has no function on the
    /// exporter's device.
    ///
    /// # Safety
    /// `packed` holds the bytes of an [`ExportedMemh`] of the same version of UCX, unchanged: UCX reads them without
    /// knowing their length.
    pub unsafe fn new(context: &Context, packed: &[u8]) -> Result<Self> {
        let params = ucp_mem_map_params_t {
            field_mask: u64::from(UCP_MEM_MAP_PARAM_FIELD_EXPORTED_MEMH_BUFFER),
            exported_memh_buffer: packed.as_ptr().cast(),
            ..Default::default()
        };
        // SAFETY: the one field is named in the mask, and the caller vouches for the bytes behind it.
        let memh = unsafe { Memh::map(context, &params) }?;
        let (address, length) = memh.range()?;
        Ok(Self {
            inner: Rc::new(Imported {
                memh,
                address,
                length,
                own: None,
            }),
        })
    }

    /// Registers a buffer of this process, for accesses by the device like those to an import. The process itself
    /// accesses it with [`ImportedMemory::own_bytes`].
    ///
    /// # Errors
    /// UCX's error. The buffer is dropped.
    pub fn own(context: &Context, buffer: Buffer) -> Result<Self> {
        let MappedBuffer { range, buffer } = MappedBuffer::new(context, buffer)?;
        Ok(Self {
            inner: Rc::new(Imported {
                address: range.address,
                length: range.length,
                memh: range.memh,
                own: Some(buffer),
            }),
        })
    }

    /// The bytes of a buffer of this process; `None` for an import, and while a clone or an operation of this process
    /// uses the memory.
    #[must_use]
    pub fn own_bytes(&mut self) -> Option<&mut [u8]> {
        let inner = Rc::get_mut(&mut self.inner)?;
        inner.own.as_mut().map(Buffer::as_mut_slice)
    }

    /// First address, in the exporter's address space.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.inner.address
    }

    /// Number of imported bytes. It may exceed the exporter's, because UCX merges and rounds
    /// regions.
    #[must_use]
    pub fn length(&self) -> usize {
        self.inner.length
    }

    /// Packs a remote key, with which a peer of this process can access the exporter's memory
    /// (`ucp_rkey_pack`).
    ///
    /// # Errors
    /// UCX's.
    pub fn pack_rkey(&self) -> Result<PackedRkey> {
        let Memh { context, handle } = &self.inner.memh;
        let (mut buffer, mut length) = (std::ptr::null_mut(), 0);
        // SAFETY: context and handle are alive and belong together, and both results can be written.
        let status = unsafe {
            context
                .ucp()
                .ucp_rkey_pack(context.handle(), *handle, &raw mut buffer, &raw mut length)
        };
        check(context.ucp(), "ucp_rkey_pack", status, || self.to_string())?;
        Ok(PackedRkey {
            context: context.clone(),
            buffer,
            length,
        })
    }

    /// Ends the import (`ucp_mem_unmap`). UCX's registration cache, or the plugin's alias map,
    /// keeps the alias.
    ///
    /// # Errors
    /// UCX's error. While a clone or an operation uses the import, the call does nothing and
    /// succeeds.
    pub fn unmap(self) -> Result<()> {
        Rc::into_inner(self.inner).map_or(Ok(()), |imported| imported.memh.unmap())
    }

    /// The handle, for `count` accesses to `length` bytes each: at the exporter's `address`, `stride` bytes behind it, and so on.
    ///
    /// # Errors
    /// [`UcpError::ImportedAccess`] if one of them is out of bounds or shorter than
    /// [`Context::access_min`].
    #[inline(always)]
    pub(super) fn access_run(
        &self,
        address: u64,
        stride: u64,
        length: usize,
        count: u32,
    ) -> Result<ucp_mem_h> {
        let Imported {
            memh,
            address: start,
            length: size,
            ..
        } = &*self.inner;
        // An address before the start is an offset beyond any size.
        let rest = (*size as u64).checked_sub(address.wrapping_sub(*start));
        let before_last = stride.checked_mul(u64::from(count.saturating_sub(1)));
        let all = before_last.and_then(|before| before.checked_add(length as u64));
        if length >= memh.context.access_min()
            && let (Some(rest), Some(all)) = (rest, all)
            && all <= rest
        {
            return Ok(memh.handle);
        }
        let last = before_last.map_or(u64::MAX, |before| address.wrapping_add(before));
        Err(self.outside(last, length))
    }

    #[inline]
    pub(super) fn ucp(&self) -> &'static Ucp {
        self.inner.memh.context.ucp()
    }

    #[cold]
    fn outside(&self, address: u64, length: usize) -> UcpError {
        UcpError::ImportedAccess {
            address,
            length,
            start: self.inner.address,
            size: self.inner.length,
            min: self.inner.memh.context.access_min(),
        }
    }
}

impl std::fmt::Display for ImportedMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "imported {:#x}+{}", self.address(), self.length())
    }
}

/// A packed remote key: bytes for a peer that accesses the memory.
#[derive(Debug)]
pub struct PackedRkey {
    context: Context,
    buffer: *mut std::ffi::c_void,
    length: usize,
}

impl Deref for PackedRkey {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: UCX gave this buffer with this length; it is ours until released in drop and nobody writes to it.
        unsafe { std::slice::from_raw_parts(self.buffer.cast(), self.length) }
    }
}

impl Drop for PackedRkey {
    fn drop(&mut self) {
        // SAFETY: the buffer came from ucp_rkey_pack and is released once.
        unsafe { self.context.ucp().ucp_rkey_buffer_release(self.buffer) };
    }
}

/// A memory handle, unmapped when dropped.
#[derive(Debug)]
struct Memh {
    context: Context,
    handle: ucp_mem_h,
}

impl Memh {
    /// # Safety
    /// The fields of `params` that its mask names satisfy `ucp_mem_map`. Memory that they refer to
    /// outlives the handle.
    unsafe fn map(context: &Context, params: &ucp_mem_map_params_t) -> Result<Self> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: the caller vouches for the parameters; the context is alive; `handle` can be written.
        let status = unsafe {
            context
                .ucp()
                .ucp_mem_map(context.handle(), params, &raw mut handle)
        };
        check(context.ucp(), "ucp_mem_map", status, || {
            if params.exported_memh_buffer.is_null() {
                format!("{:#x}+{}", params.address.addr(), params.length)
            } else {
                "exported handle".to_owned()
            }
        })?;
        Ok(Self {
            context: context.clone(),
            handle,
        })
    }

    /// Address and length of the handle's memory.
    fn range(&self) -> Result<(u64, usize)> {
        let mut attr = ucp_mem_attr_t {
            field_mask: u64::from(UCP_MEM_ATTR_FIELD_ADDRESS | UCP_MEM_ATTR_FIELD_LENGTH),
            ..Default::default()
        };
        let ucp = self.context.ucp();
        // SAFETY: the handle is mapped, and `attr` can be written.
        let status = unsafe { ucp.ucp_mem_query(self.handle, &raw mut attr) };
        check(ucp, "ucp_mem_query", status, || {
            "imported handle".to_owned()
        })?;
        Ok((attr.address.addr() as u64, attr.length))
    }

    fn unmap(mut self) -> Result<()> {
        let status = self.unmap_once();
        check(self.context.ucp(), "ucp_mem_unmap", status, String::new)
    }

    /// Unmaps the handle on the first call. The second call, from drop after [`Self::unmap`], does
    /// nothing.
    fn unmap_once(&mut self) -> ucs_status_t {
        let handle = std::mem::replace(&mut self.handle, std::ptr::null_mut());
        if handle.is_null() {
            return UCS_OK;
        }
        let context = &self.context;
        // SAFETY: context and handle are alive and belong together, and the handle was just taken away from `self`.
        unsafe { context.ucp().ucp_mem_unmap(context.handle(), handle) }
    }
}

impl Drop for Memh {
    fn drop(&mut self) {
        // Only after an error. UCX logs it.
        let _ = self.unmap_once();
    }
}
