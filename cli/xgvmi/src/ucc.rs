//! Finds UCC and this project's component, and checks whether the component accepts that UCC.

use std::ffi::{CStr, CString, c_char, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// The component's file.
const COMPONENT: &str = "libucc_tl_xgvmi.so";

/// State of UCC on this machine.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ucc {
    /// The loader does not find UCC; contains the loader's error text.
    Absent(String),
    /// UCC without the component.
    Alone {
        version: String,
        /// Directory in which UCC looks for components.
        modules: PathBuf,
    },
    /// UCC with the component, which refuses this UCC for the given reason.
    Refused { version: String, reason: String },
    /// UCC with the component, which serves if it is configured.
    Ready { version: String, configured: bool },
}

/// Queries the loader and the component. Opens no connection.
pub(crate) fn look() -> Ucc {
    let handle = match open(Path::new("libucc.so.1")) {
        Ok(handle) => handle,
        Err(error) => return Ucc::Absent(error),
    };
    let Some(text_of) = symbol(handle, c"ucc_get_version_string") else {
        return Ucc::Absent("libucc.so.1 has no ucc_get_version_string".to_owned());
    };
    let version = answer(text_of);
    let modules = directory_of(text_of).join("ucc");
    let file = modules.join(COMPONENT);
    if !file.exists() {
        return Ucc::Alone { version, modules };
    }
    let reason = match open(&file) {
        Err(error) => error,
        Ok(component) => match symbol(component, c"ucc_tl_xgvmi_status") {
            Some(status) => answer(status),
            None => format!("{} is another library", file.display()),
        },
    };
    if !reason.is_empty() {
        return Ucc::Refused { version, reason };
    }
    let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let configured = set("UCC_TL_XGVMI_SERVICES") || set("UCC_TL_XGVMI_CONFIG");
    Ucc::Ready {
        version,
        configured,
    }
}

impl std::fmt::Display for Ucc {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Absent(error) => write!(f, "none: {error}"),
            Self::Alone { version, modules } => {
                write!(f, "{version}, {COMPONENT} is not in {}", modules.display())
            }
            Self::Refused { version, reason } => {
                write!(f, "{version}, {COMPONENT} is not used: {reason}")
            }
            Self::Ready {
                version,
                configured: true,
            } => write!(f, "{version}, {COMPONENT} is configured"),
            Self::Ready { version, .. } => write!(f, "{version}, {COMPONENT} is not configured"),
        }
    }
}

/// Opens a library for the life of the process.
pub(crate) fn open(file: &Path) -> Result<*mut c_void, String> {
    let name = CString::new(file.as_os_str().as_bytes()).map_err(|error| error.to_string())?;
    // SAFETY: the constructors of UCC read the environment; the component's constructor inspects UCC; libnaaice has
    // none. All are safe to run.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY) };
    if !handle.is_null() {
        return Ok(handle);
    }
    // SAFETY: returns the text of the preceding error.
    let error = unsafe { libc::dlerror() };
    if error.is_null() {
        return Err(format!("cannot open {}", file.display()));
    }
    // SAFETY: the loader's text is valid until its next error.
    Err(unsafe { CStr::from_ptr(error) }
        .to_string_lossy()
        .into_owned())
}

/// A function without parameters that returns a text.
type Text = unsafe extern "C" fn() -> *const c_char;

fn symbol(handle: *mut c_void, name: &CStr) -> Option<Text> {
    // SAFETY: an open library and a text; the lookup runs no code.
    let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
    // SAFETY: both functions have no parameters and return a constant text.
    (!found.is_null()).then(|| unsafe { std::mem::transmute::<*mut c_void, Text>(found) })
}

fn answer(of: Text) -> String {
    // SAFETY: the function has no parameters and may be called at any time.
    let text = unsafe { of() };
    if text.is_null() {
        return String::new();
    }
    // SAFETY: a constant text of a library that stays open.
    unsafe { CStr::from_ptr(text) }
        .to_string_lossy()
        .into_owned()
}

/// Directory of the function's library, from the path by which the loader found it.
fn directory_of(function: Text) -> PathBuf {
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: the address of a function in an open library, and a writable result.
    let found = unsafe { libc::dladdr(function as *const c_void, info.as_mut_ptr()) };
    // SAFETY: zeroed, which is valid, or filled in by dladdr.
    let info = unsafe { info.assume_init() };
    if found == 0 || info.dli_fname.is_null() {
        return PathBuf::new();
    }
    // SAFETY: the loader's text for an open library.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    let path = Path::new(std::ffi::OsStr::from_bytes(name.to_bytes()));
    path.parent().map(Path::to_owned).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_state_says_what_it_is() {
        let version = || "1.9.0".to_owned();
        let check = |ucc: Ucc, expect: &str| assert_eq!(ucc.to_string(), expect);
        check(Ucc::Absent("why".to_owned()), "none: why");
        let modules = "/usr/lib/ucc".into();
        let alone = Ucc::Alone {
            version: version(),
            modules,
        };
        check(alone, "1.9.0, libucc_tl_xgvmi.so is not in /usr/lib/ucc");
        for (configured, expect) in [(true, "is configured"), (false, "is not configured")] {
            let ready = Ucc::Ready {
                version: version(),
                configured,
            };
            check(ready, &format!("1.9.0, libucc_tl_xgvmi.so {expect}"));
        }
        let reason = "its datatypes are not as expected".to_owned();
        let refused = Ucc::Refused {
            version: version(),
            reason: reason.clone(),
        };
        check(
            refused,
            &format!("1.9.0, libucc_tl_xgvmi.so is not used: {reason}"),
        );
    }

    #[test]
    fn a_library_that_is_not_there_is_named() {
        let error = open(Path::new("/nowhere/libucc.so.1")).expect_err("absent");
        assert!(error.contains("/nowhere/libucc.so.1"), "{error}");
        let libc = open(Path::new("libc.so.6")).expect("libc");
        assert!(symbol(libc, c"ucc_get_version_string").is_none());
    }
}
