//! Loads librdmacm and libibverbs, and reports the cause of a failure.

use std::error::Error as _;
use std::fmt;
use std::ops::Deref;

use libloading::Library;

use crate::bindings::Functions;

/// The file that [`RdmaCmLib::open`] loads. rdma-core has kept this soname since 2010.
pub const SONAME: &str = "librdmacm.so.1";

/// Why the libraries are unusable.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The library or one of its dependencies was not found.
    #[error("cannot open {SONAME} (package librdmacm1): {cause}")]
    Open {
        /// The loader's error text.
        cause: String,
    },
    /// The library and its dependencies lack a function.
    #[error("librdmacm or libibverbs is too old: {cause}")]
    Symbol {
        /// The loader's error text, which contains the function's name.
        cause: String,
    },
}

/// The functions of librdmacm and libibverbs. Dereferences to the table: `lib.ibv_alloc_pd(context)`.
///
/// The libraries stay loaded until this value is dropped.
pub struct RdmaCmLib {
    functions: Functions,
}

impl RdmaCmLib {
    /// Opens the system's [`SONAME`], which depends on libibverbs.
    ///
    /// # Errors
    /// The library or one of its functions is missing.
    pub fn open() -> Result<Self, LoadError> {
        // SAFETY: the constructors of librdmacm and libibverbs have no preconditions.
        let library = unsafe { Library::new(SONAME) }.map_err(|error| LoadError::Open {
            cause: cause_of(&error),
        })?;
        // SAFETY: the names are from rdma_cma.h and verbs.h, and the table has the types of these headers
        // (tests/layout.rs).
        match unsafe { Functions::from_library(library) } {
            Ok(functions) => Ok(Self { functions }),
            Err(error) => Err(LoadError::Symbol {
                cause: cause_of(&error),
            }),
        }
    }
}

impl Deref for RdmaCmLib {
    type Target = Functions;

    fn deref(&self) -> &Functions {
        &self.functions
    }
}

impl fmt::Debug for RdmaCmLib {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RdmaCmLib").finish_non_exhaustive()
    }
}

/// The loader's error text, without libloading's prefix.
fn cause_of(error: &libloading::Error) -> String {
    error
        .source()
        .map_or_else(|| error.to_string(), ToString::to_string)
}
