//! Finds and opens `libucp`, and describes the errors.

use crate::{UcpFunctions, ucp_config_t, ucp_context_h, ucp_params_t, ucs_status_t};
use libloading::Library;
use std::ffi::{CStr, OsStr};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::{env, fmt};

/// The file name for the loader if no path is given. UCX has kept this soname since 1.0.
pub const SONAME: &str = "libucp.so.0";

/// The oldest UCX that has all functions and protocols used here. `ucp_init` asks for its API version.
const OLDEST: (u32, u32) = (1, 18);

/// Reason why UCX cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The library, or one of its dependencies, was not found.
    #[error("cannot open {}: {}; LD_LIBRARY_PATH is {}", library.display(), cause, search_path())]
    Open {
        /// The requested file.
        library: PathBuf,
        /// The loader's message.
        cause: String,
    },
    /// The library is a UCX that is too old.
    #[error(
        "{} is UCX {found}, and UCX {}.{} or later is needed: install one, or name its libucp.so.0",
        library.display(),
        OLDEST.0,
        OLDEST.1
    )]
    TooOld {
        /// The opened file.
        library: PathBuf,
        /// Its version.
        found: String,
    },
    /// The library exists but lacks a function of the table.
    #[error("{} is no usable UCX: {}", library.display(), cause)]
    Symbol {
        /// The opened file.
        library: PathBuf,
        /// The loader's message, which names the symbol.
        cause: String,
    },
}

/// UCX's functions, resolved. Dereferences to the table: `ucp.ucp_worker_progress(worker)`.
///
/// The library stays open until the process ends. UCX rewrites entry points of libc (memory hooks)
/// and has its own threads, so unloading it is never safe. Hence the only form is `&'static Ucp`.
pub struct Ucp {
    functions: UcpFunctions,
}

impl Ucp {
    /// Opens UCX: `library`, or [`SONAME`] through the loader's search.
    ///
    /// UCS functions are resolved through the same handle. Its search covers the dependencies of
    /// `libucp`, so they always come from the `libucs` that this `libucp` uses.
    ///
    /// # Errors
    /// [`LoadError`], which names the file and the missing symbol.
    pub fn load(library: Option<&Path>) -> Result<&'static Self, LoadError> {
        let file = library.map_or(OsStr::new(SONAME), Path::as_os_str);
        // SAFETY: opening runs the library's constructors. UCX's constructors read the environment
        // and set up logging and memory hooks; they have no preconditions. The user is responsible
        // for a file that is not UCX, as with LD_PRELOAD.
        let opened = unsafe { Library::new(file) }.map_err(|error| LoadError::Open {
            library: file.into(),
            cause: cause_of(&error),
        })?;
        if let Some(found) = version_of(&opened)
            && is_too_old(&found)
        {
            return Err(LoadError::TooOld {
                library: file.into(),
                found,
            });
        }
        // SAFETY: the table's types are those of ucp.h (tests/layout.rs), and the names are UCX's
        // own.
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
        // SAFETY: the function has no arguments and no preconditions.
        let version = unsafe { self.functions.ucp_get_version_string() };
        // SAFETY: UCX returns a string constant and is never unloaded.
        unsafe { CStr::from_ptr(version) }
            .to_str()
            .unwrap_or("unknown")
    }

    /// UCX's text for a status.
    #[must_use]
    pub fn status_string(&self, status: ucs_status_t) -> &'static str {
        // SAFETY: any value is valid; unknown codes return a text as well.
        let text = unsafe { self.functions.ucs_status_string(status) };
        // SAFETY: known codes return string constants; an unknown code returns a static buffer of
        // UCS. Both are never freed.
        unsafe { CStr::from_ptr(text) }
            .to_str()
            .unwrap_or("unknown status")
    }

    /// `ucp_init`, an inline function of the header: passes the API version of these bindings.
    ///
    /// # Safety
    /// As for `ucp_init_version`: `params` points to a valid structure, `config` is null or comes
    /// from `ucp_config_read`, `context` is writable.
    pub unsafe fn ucp_init(
        &self,
        params: *const ucp_params_t,
        config: *const ucp_config_t,
        context: *mut ucp_context_h,
    ) -> ucs_status_t {
        // SAFETY: the caller's contract is the callee's.
        unsafe {
            self.functions
                .ucp_init_version(OLDEST.0, OLDEST.1, params, config, context)
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

/// The version that a library reports, if it is a UCX.
fn version_of(library: &Library) -> Option<String> {
    type Version = unsafe extern "C" fn() -> *const std::ffi::c_char;
    // SAFETY: every UCX has had this function with this type since 1.0, and no other library has the name.
    let version = unsafe { library.get::<Version>(b"ucp_get_version_string\0") }.ok()?;
    // SAFETY: the function takes nothing and may be called at any time.
    let text = unsafe { version() };
    // SAFETY: UCX returns a string constant of its own; the library is open.
    let text = unsafe { CStr::from_ptr(text) };
    Some(text.to_string_lossy().into_owned())
}

/// Whether a version such as `1.17.0` is older than [`OLDEST`]. An unreadable version is accepted.
fn is_too_old(version: &str) -> bool {
    let mut numbers = version.split('.').map(|part| part.parse::<u32>().ok());
    match (numbers.next().flatten(), numbers.next().flatten()) {
        (Some(major), Some(minor)) => (major, minor) < OLDEST,
        _ => false,
    }
}

/// libloading stores the loader's own message one level below.
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
    fn versions_before_the_oldest_are_refused() {
        for (version, expect) in [
            ("1.17.0", true),
            ("1.9.5", true),
            ("0.99.1", true),
            ("1.18.1", false),
            ("1.23.0", false),
            ("2.0.0", false),
            ("none", false),
        ] {
            assert_eq!(is_too_old(version), expect, "{version}");
        }
        let error = LoadError::TooOld {
            library: "libucp.so.0".into(),
            found: "1.12.0".to_owned(),
        };
        let expect = "libucp.so.0 is UCX 1.12.0, and UCX 1.18 or later is needed";
        assert!(error.to_string().starts_with(expect), "{error}");
    }

    #[test]
    fn a_library_that_is_not_ucx_is_named_with_the_missing_symbol() {
        check(
            "libc.so.6",
            &["libc.so.6 is no usable UCX", "ucs_status_string"],
        );
    }
}
