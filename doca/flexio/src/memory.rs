//! Memory of the program that device commands name.

use crate::error::{Error, Result};
use crate::verbs::{Context, verbs};
use mlx5dv_sys::mlx5dv_devx_umem;
use std::io;

/// A page, so that the memory of a umem shares none with other memory.
#[repr(C, align(4096))]
#[derive(Clone)]
struct Page([u8; 4096]);

/// Pages of the program, known to the device.
pub(crate) struct Umem {
    pages: Vec<Page>,
    raw: *mut mlx5dv_devx_umem,
}

// SAFETY: verbs objects may be used from any thread; the pages belong to this value.
unsafe impl Send for Umem {}

impl std::fmt::Debug for Umem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Umem").finish_non_exhaustive()
    }
}

impl Umem {
    /// New pages for at least `bytes` bytes.
    ///
    /// # Safety
    /// The context is open, and stays so as long as the value.
    pub(crate) unsafe fn new(context: Context, bytes: usize) -> Result<Self> {
        let verbs = verbs()?;
        let mut pages = vec![Page([0; 4096]); bytes.div_ceil(4096).max(1)];
        let address = pages.as_mut_ptr().cast();
        // The device reads and writes it.
        let access = mlx5dv_sys::IBV_ACCESS_LOCAL_WRITE;
        // SAFETY: the caller's promise; the pages stay as long as the umem.
        let raw =
            unsafe { verbs.mlx5dv_devx_umem_reg(context.0, address, pages.len() * 4096, access) };
        if raw.is_null() {
            return Err(Error::failed(format!(
                "{bytes} bytes cannot be registered with the device: {}",
                io::Error::last_os_error()
            )));
        }
        Ok(Self { pages, raw })
    }

    /// Its number in commands.
    pub(crate) fn number(&self) -> u32 {
        // SAFETY: libmlx5 made it, and it stays as long as this value.
        unsafe { (*self.raw).umem_id }
    }

    /// Its bytes.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        let bytes = self.pages.len() * 4096;
        // SAFETY: pages are arrays of bytes without gaps. The device changes them only during commands of the owner, which
        // then has no slice.
        unsafe { std::slice::from_raw_parts_mut(self.pages.as_mut_ptr().cast(), bytes) }
    }
}

impl Drop for Umem {
    fn drop(&mut self) {
        if let Ok(verbs) = verbs() {
            // SAFETY: this value has made it, and no command uses it.
            unsafe { verbs.mlx5dv_devx_umem_dereg(self.raw) };
        }
    }
}
