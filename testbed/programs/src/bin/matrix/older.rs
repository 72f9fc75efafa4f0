//! A UCX before 1.18, which has no functions for exported memory: a program behaves the same with
//! the library and without.

use std::ffi::{CStr, CString, c_char, c_uint, c_void};
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::ptr::{null, null_mut};

use ucx_sys::{
    UCP_FEATURE_RMA, UCP_MEM_MAP_PARAM_FIELD_ADDRESS, UCP_MEM_MAP_PARAM_FIELD_LENGTH,
    UCP_PARAM_FIELD_FEATURES, ucp_context_h, ucp_mem_h, ucp_mem_map_params_t, ucp_params_t,
    ucs_status_t,
};

use crate::cases::{Case, Outcome};
use crate::memory::Pages;
use crate::peer::{EntryPoint, Launch, Peer, Side};
use crate::{Ucx, say};

/// The API of the oldest tested UCX. UCX warns if a program requests a newer one.
const API: (c_uint, c_uint) = (1, 10);

/// Registered memory, so each memory-domain operation that the library knows is called.
const BYTES: usize = 65_536;

pub(crate) const CASES: &[Case] = &[Case {
    name: "a UCX before 1.18 is left alone",
    entry_points: &[EntryPoint::Preload],
    fits: |ucx| !ucx.is_known(),
    failing: None,
    run: left_alone,
}];

fn left_alone(launch: &Launch, ucx: &Ucx, entry_point: EntryPoint) -> Outcome {
    let said = |entry_point| -> Result<(Vec<String>, Vec<String>), String> {
        // Debian builds it for any adapter, and not for this one in particular.
        let variables = [("UCX_TLS", "rc")];
        let command = Peer::command(launch, ucx, Side::Host, entry_point, &variables, "older")?;
        let (output, is_success) = Peer::output(command)?;
        if !is_success {
            return Err(format!("library {}: {output:?}", entry_point.name()));
        }
        Ok(output.into_iter().partition(|line| line.starts_with("> ")))
    };
    let ((plain, _), (with, log)) = (said(EntryPoint::Absent)?, said(entry_point)?);
    let loaded = |is| format!("> the library is loaded: {is}");
    let is_as_it_should_be = plain.len() > 4
        && plain.contains(&loaded(false))
        && with.contains(&loaded(true))
        && plain
            .iter()
            .filter(|line| !line.contains("loaded"))
            .eq(with.iter().filter(|line| !line.contains("loaded")));
    if !is_as_it_should_be {
        return Err(format!("{with:?} instead of {plain:?}"));
    }
    // It has none of the replaced operations, or the library refuses it with one line.
    let lines: Vec<_> = log.iter().filter(|line| line.contains("XGVMI")).collect();
    match lines.len() {
        0 | 1 => Ok(()),
        _ => Err(format!("{lines:?}")),
    }
}

/// The program.
pub(crate) fn main(libucp: Option<PathBuf>) -> ExitCode {
    let done = libucp
        .ok_or_else(|| "no libucp".to_owned())
        .and_then(|libucp| work(&libucp.to_string_lossy()));
    // UCX writes its log through the C library's buffers.
    // SAFETY: a null stream means all streams.
    unsafe { libc::fflush(null_mut()) };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&mut io::stdout(), &format!("> error {error}"));
            ExitCode::FAILURE
        }
    }
}

type VersionFn = unsafe extern "C" fn() -> *const c_char;
type InitFn = unsafe extern "C" fn(
    c_uint,
    c_uint,
    *const ucp_params_t,
    *const c_void,
    *mut ucp_context_h,
) -> ucs_status_t;
type MapFn = unsafe extern "C" fn(
    ucp_context_h,
    *const ucp_mem_map_params_t,
    *mut ucp_mem_h,
) -> ucs_status_t;
type PackFn =
    unsafe extern "C" fn(ucp_context_h, ucp_mem_h, *mut *mut c_void, *mut usize) -> ucs_status_t;
type ReleaseFn = unsafe extern "C" fn(*mut c_void);
type UnmapFn = unsafe extern "C" fn(ucp_context_h, ucp_mem_h) -> ucs_status_t;
type CleanupFn = unsafe extern "C" fn(ucp_context_h);

fn work(libucp: &str) -> Result<(), String> {
    let tell = |line: String| say(&mut io::stdout(), &format!("> {line}"));
    let name = CString::new(libucp).map_err(|error| error.to_string())?;
    // SAFETY: it is a UCX, whose constructors have no preconditions.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL) };
    if handle.is_null() {
        return Err(format!("cannot open {libucp}"));
    }
    let find = |name: &CStr| {
        // SAFETY: the handle is open, and the name ends in a zero byte.
        let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
        match found.is_null() {
            true => Err(format!("no {name:?}")),
            false => Ok(found),
        }
    };
    let (version, init) = (find(c"ucp_get_version_string")?, find(c"ucp_init_version")?);
    let (map, pack) = (find(c"ucp_mem_map")?, find(c"ucp_rkey_pack")?);
    let (release, unmap) = (find(c"ucp_rkey_buffer_release")?, find(c"ucp_mem_unmap")?);
    let cleanup = find(c"ucp_cleanup")?;
    // SAFETY: UCX's function of that name has this type, in all versions since 1.0.
    let version = unsafe { std::mem::transmute::<*mut c_void, VersionFn>(version) };
    // SAFETY: as above.
    let init = unsafe { std::mem::transmute::<*mut c_void, InitFn>(init) };
    // SAFETY: as above.
    let map = unsafe { std::mem::transmute::<*mut c_void, MapFn>(map) };
    // SAFETY: as above.
    let pack = unsafe { std::mem::transmute::<*mut c_void, PackFn>(pack) };
    // SAFETY: as above.
    let release = unsafe { std::mem::transmute::<*mut c_void, ReleaseFn>(release) };
    // SAFETY: as above.
    let unmap = unsafe { std::mem::transmute::<*mut c_void, UnmapFn>(unmap) };
    // SAFETY: as above.
    let cleanup = unsafe { std::mem::transmute::<*mut c_void, CleanupFn>(cleanup) };
    let check = |what: &str, status: ucs_status_t| match status {
        0 => Ok(()),
        status => Err(format!("{what}: {status}")),
    };
    // SAFETY: the function has no arguments and returns a constant.
    let version = unsafe { CStr::from_ptr(version()) };
    tell(format!("version {}", version.to_string_lossy()));
    let params = ucp_params_t {
        field_mask: UCP_PARAM_FIELD_FEATURES.into(),
        features: UCP_FEATURE_RMA.into(),
        ..Default::default()
    };
    let mut context = null_mut();
    // SAFETY: the mask selects the set fields; without a configuration, UCX reads its own.
    let status = unsafe { init(API.0, API.1, &raw const params, null(), &raw mut context) };
    check("ucp_init", status)?;
    let maps = std::fs::read_to_string("/proc/self/maps").map_err(|error| error.to_string())?;
    let is_loaded = maps.contains("libuct_ib_mlx5_xgvmi");
    tell(format!("the library is loaded: {is_loaded}"));
    for round in 0..3 {
        let pages = Pages::map_at(null_mut(), BYTES).map_err(|error| error.to_string())?;
        let params = ucp_mem_map_params_t {
            field_mask: (UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH).into(),
            address: pages.address(),
            length: BYTES,
            ..Default::default()
        };
        let mut memh = null_mut();
        // SAFETY: the context is open, and the memory exists.
        check("ucp_mem_map", unsafe {
            map(context, &raw const params, &raw mut memh)
        })?;
        let (mut key, mut bytes) = (null_mut(), 0);
        // SAFETY: the handle was just created.
        check("ucp_rkey_pack", unsafe {
            pack(context, memh, &raw mut key, &raw mut bytes)
        })?;
        // SAFETY: the key was just packed.
        unsafe { release(key) };
        // SAFETY: the handle is no longer in use.
        check("ucp_mem_unmap", unsafe { unmap(context, memh) })?;
        tell(format!("round {round}, a key of {bytes} bytes"));
    }
    // SAFETY: it has no objects.
    unsafe { cleanup(context) };
    tell("the end".to_owned());
    io::stdout().flush().map_err(|error| error.to_string())
}
