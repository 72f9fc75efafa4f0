//! Finding and opening `libucp`, and what is said when that fails.

use crate::{
    UCP_API_MAJOR, UCP_API_MINOR, UcpFunctions, ucp_config_t, ucp_context_h, ucp_params_t,
    ucs_status_t,
};
use libloading::Library;
use std::ffi::{CStr, OsStr};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::{env, fmt};

/// The file asked of the loader when no path is given. UCX has kept this soname since 1.0.
pub const SONAME: &str = "libucp.so.0";

/// Why no UCX could be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The library was not found, or one that it needs was not.
    #[error("cannot open {}: {}; LD_LIBRARY_PATH is {}", library.display(), cause, search_path())]
    Open {
        /// What was asked for.
        library: PathBuf,
        /// The loader's words.
        cause: String,
    },
    /// The library is there but is not a UCX that has the whole table.
    #[error("{} is no usable UCX: {}", library.display(), cause)]
    Symbol {
        /// What was opened.
        library: PathBuf,
        /// The loader's words, which name the symbol.
        cause: String,
    },
}

/// UCX's functions, resolved. Dereferences to the table: `ucp.ucp_worker_progress(worker)`.
///
/// The library stays open for the life of the process: UCX rewrites entry points of libc (its memory hooks) and has
/// threads of its own, so that unloading it is never safe. Hence there is only a `&'static Ucp`.
pub struct Ucp {
    functions: UcpFunctions,
}

impl Ucp {
    /// Opens UCX: `library` if given, else [`SONAME`] by the loader's search.
    ///
    /// UCS functions are looked up through the same handle, whose search covers the libraries that `libucp` itself
    /// was linked to: it is therefore always the `libucs` that this `libucp` uses.
    ///
    /// # Errors
    /// [`LoadError`], which names the file and what was missing in it.
    pub fn load(library: Option<&Path>) -> Result<&'static Self, LoadError> {
        let file = library.map_or(OsStr::new(SONAME), Path::as_os_str);
        // SAFETY: opening runs the library's constructors. UCX's read the environment and set up logging and memory
        // hooks; they ask nothing of the caller. A file that is not UCX is the user's to answer for, as with
        // LD_PRELOAD.
        let opened = unsafe { Library::new(file) }.map_err(|error| LoadError::Open {
            library: file.into(),
            cause: cause_of(&error),
        })?;
        // SAFETY: the table's types are those of ucp.h (tests/layout.rs), and the names are UCX's own.
        let functions =
            unsafe { UcpFunctions::from_library(opened) }.map_err(|error| LoadError::Symbol {
                library: file.into(),
                cause: cause_of(&error),
            })?;
        Ok(Box::leak(Box::new(Self { functions })))
    }

    /// UCX's version, such as `1.20.1`.
    #[must_use]
    pub fn version(&self) -> &'static str {
        // SAFETY: the function takes nothing and may be called at any time.
        let version = unsafe { self.functions.ucp_get_version_string() };
        // SAFETY: UCX answers with a string constant of its own, and is never unloaded.
        unsafe { CStr::from_ptr(version) }
            .to_str()
            .unwrap_or("unknown")
    }

    /// UCX's words for a status.
    #[must_use]
    pub fn status_string(&self, status: ucs_status_t) -> &'static str {
        // SAFETY: any value is allowed; unknown ones are answered with a text as well.
        let text = unsafe { self.functions.ucs_status_string(status) };
        // SAFETY: known codes give string constants; an unknown code gives a static buffer of UCS. Both outlive us.
        unsafe { CStr::from_ptr(text) }
            .to_str()
            .unwrap_or("unknown status")
    }

    /// `ucp_init`, which the header defines inline: the API version of these bindings goes along.
    ///
    /// # Safety
    /// As `ucp_init_version`: `params` points to a valid structure, `config` is null or from `ucp_config_read`,
    /// `context` can be written.
    pub unsafe fn ucp_init(
        &self,
        params: *const ucp_params_t,
        config: *const ucp_config_t,
        context: *mut ucp_context_h,
    ) -> ucs_status_t {
        // SAFETY: the caller's promise is the callee's.
        unsafe {
            self.functions
                .ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, params, config, context)
        }
    }
}

impl Deref for Ucp {
    type Target = UcpFunctions;

    fn deref(&self) -> &UcpFunctions {
        &self.functions
    }
}

impl fmt::Debug for Ucp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ucp")
            .field("version", &self.version())
            .finish_non_exhaustive()
    }
}

/// libloading keeps the loader's own words one level down.
fn cause_of(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

fn search_path() -> String {
    env::var("LD_LIBRARY_PATH").unwrap_or_else(|_| "not set".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(library: &str, expect: &[&str]) {
        let message = Ucp::load(Some(Path::new(library)))
            .map(|_| ())
            .unwrap_err()
            .to_string();
        for part in expect {
            assert!(message.contains(part), "{message:?} lacks {part:?}");
        }
    }

    #[test]
    fn a_missing_library_is_named() {
        check(
            "/nowhere/libucp.so.0",
            &["cannot open /nowhere/libucp.so.0", "No such file"],
        );
    }

    #[test]
    fn a_library_that_is_not_ucx_is_named_with_the_missing_symbol() {
        check(
            "libc.so.6",
            &["libc.so.6 is no usable UCX", "ucs_status_string"],
        );
    }
}
