//! libibverbs and libmlx5 of this program.

use crate::error::{Error, Result};
use mlx5dv_sys::{Mlx5Lib, ibv_context, ibv_pd, mlx5dv_obj, mlx5dv_pd};
use std::sync::OnceLock;

/// The libraries, loaded at the first use.
pub(crate) fn verbs() -> Result<&'static Mlx5Lib> {
    static LIBRARY: OnceLock<std::result::Result<Mlx5Lib, String>> = OnceLock::new();
    let library = LIBRARY.get_or_init(|| Mlx5Lib::open().map_err(|error| error.to_string()));
    library.as_ref().map_err(|text| Error::failed(text.clone()))
}

/// A context of the program. Its owner keeps it open as long as objects of this library use it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Context(pub(crate) *mut ibv_context);

// SAFETY: verbs objects may be used from any thread.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// A protection domain.
#[derive(Debug)]
pub(crate) struct Pd {
    pub(crate) raw: *mut ibv_pd,
    pub(crate) number: u32,
    is_own: bool,
}

// SAFETY: verbs objects may be used from any thread.
unsafe impl Send for Pd {}
// SAFETY: as above.
unsafe impl Sync for Pd {}

impl Pd {
    /// A protection domain of the program, or a new one if it is null.
    ///
    /// # Safety
    /// The context is open, and the domain belongs to it; both stay as long as this value.
    pub(crate) unsafe fn new(context: Context, pd: *mut ibv_pd) -> Result<Self> {
        let verbs = verbs()?;
        let is_own = pd.is_null();
        let raw = if is_own {
            // SAFETY: the context is open.
            unsafe { verbs.ibv_alloc_pd(context.0) }
        } else {
            pd
        };
        if raw.is_null() {
            return Err(Error::failed(format!(
                "no protection domain: {}",
                std::io::Error::last_os_error()
            )));
        }
        let mut out = mlx5dv_pd::default();
        let mut object = mlx5dv_obj::default();
        object.pd.in_ = raw;
        object.pd.out = &raw mut out;
        // SAFETY: the object has a domain and the place of its answer.
        let failed = unsafe { verbs.mlx5dv_init_obj(&raw mut object, MLX5DV_OBJ_PD) };
        let mut pd = Self {
            raw,
            number: 0,
            is_own,
        };
        if failed != 0 {
            return Err(Error::failed(
                "the protection domain is not of an mlx5 device",
            ));
        }
        pd.number = out.pdn;
        Ok(pd)
    }
}

/// `MLX5DV_OBJ_PD` of `mlx5dv.h`.
const MLX5DV_OBJ_PD: u64 = mlx5dv_sys::MLX5DV_OBJ_PD as u64;

impl Drop for Pd {
    fn drop(&mut self) {
        if let (true, Ok(verbs)) = (self.is_own, verbs()) {
            // SAFETY: this value has made it, and its users are gone.
            unsafe { verbs.ibv_dealloc_pd(self.raw) };
        }
    }
}
