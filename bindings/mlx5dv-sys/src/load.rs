//! Loads libibverbs and libmlx5, and reports the cause of a failure.

use std::error::Error as _;
use std::ffi::c_void;
use std::fmt;
use std::ops::Deref;

use libloading::Library;

use crate::Functions;

/// The file that [`Mlx5Lib::open`] loads. rdma-core has kept this soname since 2013.
pub const SONAME: &str = "libmlx5.so.1";

/// Why the libraries are unusable.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The library or one of its dependencies was not found.
    #[error("cannot open {SONAME}: {cause}")]
    Open {
        /// The loader's error text.
        cause: String,
    },
    /// The library and its dependencies lack a function.
    #[error("libibverbs or libmlx5 is too old: {cause}")]
    Symbol {
        /// The loader's error text, which contains the function's name.
        cause: String,
    },
}

/// The functions of one copy of libibverbs and libmlx5. Dereferences to the table: `(lib.ibv_alloc_pd)(context)`, or as
/// a method, `lib.ibv_alloc_pd(context)`.
///
/// The libraries stay loaded until this value is dropped.
pub struct Mlx5Lib {
    functions: Functions,
}

impl Mlx5Lib {
    /// Opens the system's libraries: [`SONAME`], which depends on libibverbs.
    ///
    /// # Errors
    /// The library or one of its functions is missing.
    pub fn open() -> Result<Self, LoadError> {
        // SAFETY: the constructors of libmlx5 and libibverbs register the provider and read the environment; they have
        // no preconditions.
        let library = unsafe { Library::new(SONAME) }.map_err(|error| LoadError::Open {
            cause: cause_of(&error),
        })?;
        Self::resolve(library)
    }

    /// Uses the copy that the library behind `handle` depends on, for example UCX's own.
    ///
    /// # Errors
    /// One of the functions is missing. The handle is closed in this case too.
    ///
    /// # Safety
    /// `handle` is from `dlopen`, and its ownership passes to this call: dropping the table closes it.
    pub unsafe fn from_handle(handle: *mut c_void) -> Result<Self, LoadError> {
        // SAFETY: the caller upholds the contract.
        let library = unsafe { libloading::os::unix::Library::from_raw(handle) };
        Self::resolve(library.into())
    }

    fn resolve(library: Library) -> Result<Self, LoadError> {
        // SAFETY: the names are from verbs.h and mlx5dv.h, and the table has the types of these headers
        // (tests/layout.rs).
        match unsafe { Functions::from_library(library) } {
            Ok(functions) => Ok(Self { functions }),
            Err(error) => Err(LoadError::Symbol {
                cause: cause_of(&error),
            }),
        }
    }
}

impl Deref for Mlx5Lib {
    type Target = Functions;

    fn deref(&self) -> &Functions {
        &self.functions
    }
}

impl fmt::Debug for Mlx5Lib {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mlx5Lib").finish_non_exhaustive()
    }
}

/// The loader's error text, without libloading's prefix.
fn cause_of(error: &libloading::Error) -> String {
    error
        .source()
        .map_or_else(|| error.to_string(), ToString::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_without_the_functions_is_refused_by_name() {
        // SAFETY: a null name opens the program itself.
        let handle = unsafe { libc::dlopen(std::ptr::null(), libc::RTLD_LAZY) };
        assert!(!handle.is_null());
        // SAFETY: the handle belongs to this test.
        let error = unsafe { Mlx5Lib::from_handle(handle) }.expect_err("a test is no libmlx5");
        let message = error.to_string();
        assert!(message.contains("undefined symbol: ibv_"), "{message}");
    }
}
