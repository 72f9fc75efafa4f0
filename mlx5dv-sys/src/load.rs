//! Finding libibverbs and libmlx5, and what is said when that fails.

use std::error::Error as _;
use std::ffi::c_void;
use std::fmt;
use std::ops::Deref;

use libloading::Library;

use crate::Functions;

/// The file that [`Mlx5Lib::open`] asks the loader for. rdma-core has kept this soname since 2013.
pub const SONAME: &str = "libmlx5.so.1";

/// Why the libraries cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The library was not found, or one that it needs was not.
    #[error("cannot open {SONAME}: {cause}")]
    Open {
        /// The loader's words.
        cause: String,
    },
    /// A function is missing from the library and from all that it depends on.
    #[error("libibverbs or libmlx5 is too old: {cause}")]
    Symbol {
        /// The loader's words, which name the function.
        cause: String,
    },
}

/// The functions of one copy of libibverbs and libmlx5. Dereferences to the table:
/// `(lib.ibv_alloc_pd)(context)`, or as a method, `lib.ibv_alloc_pd(context)`.
///
/// Keeps the libraries loaded for as long as it lives.
pub struct Mlx5Lib {
    functions: Functions,
}

impl Mlx5Lib {
    /// The system's libraries: opens [`SONAME`], which brings libibverbs along.
    ///
    /// # Errors
    /// If the library or one of its functions is not there.
    pub fn open() -> Result<Self, LoadError> {
        // SAFETY: the constructors of libmlx5 and libibverbs register the provider and read the environment; they
        // ask nothing of the caller.
        let library = unsafe { Library::new(SONAME) }.map_err(|error| LoadError::Open {
            cause: cause_of(&error),
        })?;
        Self::resolve(library)
    }

    /// The copy that the library behind `handle` depends on, such as UCX's own.
    ///
    /// # Errors
    /// If one of the functions is not there. The handle is closed then, too.
    ///
    /// # Safety
    /// `handle` is one that `dlopen` gave and that the caller gives up: it is closed when the table is dropped.
    pub unsafe fn from_handle(handle: *mut c_void) -> Result<Self, LoadError> {
        // SAFETY: the caller's promise.
        let library = unsafe { libloading::os::unix::Library::from_raw(handle) };
        Self::resolve(library.into())
    }

    fn resolve(library: Library) -> Result<Self, LoadError> {
        // SAFETY: the names are those of verbs.h and mlx5dv.h, and the table's types are theirs (tests/layout.rs).
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

/// The loader's own words, without libloading's around them.
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
        // SAFETY: the handle is ours to give up.
        let error = unsafe { Mlx5Lib::from_handle(handle) }.expect_err("a test is no libmlx5");
        let message = error.to_string();
        assert!(message.contains("undefined symbol: ibv_"), "{message}");
    }
}
