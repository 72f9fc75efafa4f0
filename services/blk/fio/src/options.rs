//! The engine's options.

use crate::abi::{CATEGORY, Choice, GROUP, INTEGER, Job, STRING};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::offset_of;
use std::path::{Path, PathBuf};
use xgvmi_blk::client::{Scheme, Spec};
use xgvmi_blk::operate::initiator_secret;

/// Marks the values: a wrong offset of theirs in a job would not find it.
const MARK: u64 = 0x7867_766d_692d_6669;

/// Values of the options, which fio allocates, copies and stores.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Values {
    /// fio's.
    job: *mut c_void,
    mark: u64,
    scheme: *const Named,
    service: *const c_char,
    secret_file: *const c_char,
    identity: *const c_char,
    volume: *const c_char,
    device: *const c_char,
    ucx: *const c_char,
    copy_max: c_uint,
}

#[derive(Debug)]
struct Named {
    name: &'static CStr,
    scheme: Scheme,
}

static SCHEMES: [Named; 5] = [
    Named {
        name: c"copy",
        scheme: Scheme::Copy,
    },
    Named {
        name: c"ksm",
        scheme: Scheme::Ksm,
    },
    Named {
        name: c"stock",
        scheme: Scheme::Stock,
    },
    Named {
        name: c"xgvmi",
        scheme: Scheme::Pool,
    },
    Named {
        name: c"announced",
        scheme: Scheme::Announced,
    },
];

/// fio calls it for the default of `scheme` and for each value of it.
unsafe extern "C" fn store_scheme(values: *mut c_void, text: *const c_char) -> c_int {
    let values = values.cast::<Values>();
    if text.is_null() {
        crate::say("scheme: give copy, ksm, stock, xgvmi or announced");
        return 1;
    }
    // SAFETY: fio passes a string.
    let text = unsafe { CStr::from_ptr(text) };
    let Some(scheme) = SCHEMES.iter().find(|named| named.name == text) else {
        crate::say(&format!(
            "scheme={}: give copy, ksm, stock, xgvmi or announced",
            text.to_string_lossy()
        ));
        return 1;
    };
    // SAFETY: fio passes the values of a job, which are as large as the engine said.
    unsafe {
        (*values).mark = MARK;
        (*values).scheme = scheme;
    }
    0
}

/// The options, with an empty one at the end. They live until the process ends.
pub(crate) fn all() -> *mut Choice {
    let string = |name: &'static CStr, title: &'static CStr, help: &'static CStr, offset| {
        option(name, title, help, (STRING, offset))
    };
    let mut scheme = string(
        c"scheme",
        c"Access to fio's memory",
        c"How the service gets access to fio's memory: copy, ksm, stock, xgvmi or announced",
        0,
    );
    scheme.store = Some(store_scheme);
    scheme.default = c"announced".as_ptr();
    let mut copy_max = option(
        c"copy_max",
        c"Longest copied transfer",
        c"Transfers of at most this number of bytes are copied through memory that is registered once",
        (INTEGER, offset_of!(Values, copy_max)),
    );
    copy_max.default = c"16k".as_ptr();
    let options = vec![
        string(
            c"service",
            c"Service of the volume",
            c"HOST:PORT of xgvmi-blk service",
            offset_of!(Values, service),
        ),
        scheme,
        copy_max,
        string(
            c"secret_file",
            c"Secret of the service",
            c"File with the secret of the service and its initiators",
            offset_of!(Values, secret_file),
        ),
        string(
            c"identity",
            c"Name of the initiator",
            c"Name by which the service knows this host, with the secret of that name",
            offset_of!(Values, identity),
        ),
        string(
            c"volume",
            c"Volume of the service",
            c"Name of the volume, if the service has several",
            offset_of!(Values, volume),
        ),
        string(
            c"device",
            c"RDMA device",
            c"Name of the host's RDMA device; the first one by default",
            offset_of!(Values, device),
        ),
        string(
            c"ucx",
            c"UCX for scheme=stock",
            c"Path of UCX's libucp.so.0 for scheme=stock; the one that the loader finds by default",
            offset_of!(Values, ucx),
        ),
        Choice::empty(),
    ];
    Box::leak(options.into_boxed_slice()).as_mut_ptr()
}

fn option(
    name: &'static CStr,
    title: &'static CStr,
    help: &'static CStr,
    (kind, offset): (c_int, usize),
) -> Choice {
    let mut option = Choice::empty();
    option.name = name.as_ptr();
    option.title = title.as_ptr();
    option.help = help.as_ptr();
    option.kind = kind;
    // Cannot be cut: smaller than the structure.
    option.offset = c_uint::try_from(offset).unwrap_or(0);
    option.category = CATEGORY;
    option.group = GROUP;
    option
}

/// How a job reaches its volume.
///
/// # Safety
/// `job` comes from fio of the known version.
pub(crate) unsafe fn spec(job: *const Job) -> Result<Spec, String> {
    // SAFETY: the caller's promise.
    let values = unsafe { Job::options(job) }.cast::<Values>();
    if values.is_null() || !values.is_aligned() {
        return Err("this fio keeps options elsewhere than fio 3.33".to_owned());
    }
    // SAFETY: fio's copy of the values, which it leaves alone while a job runs.
    let values = unsafe { &*values };
    if values.mark != MARK || values.scheme.is_null() {
        return Err("this fio keeps options elsewhere than fio 3.33".to_owned());
    }
    let text = |text: *const c_char, name: &str| {
        if text.is_null() {
            return Ok(None);
        }
        // SAFETY: fio stores strings.
        let text = unsafe { CStr::from_ptr(text) }.to_str();
        text.map(Some).map_err(|_| format!("{name} is no UTF-8"))
    };
    let service = text(values.service, "service")?
        .ok_or("give the option service=HOST:PORT, the address of xgvmi-blk service")?;
    let secret = text(values.secret_file, "secret_file")?;
    let identity = text(values.identity, "identity")?;
    if identity.is_some() && secret.is_none() {
        return Err(
            "identity without secret_file: give the file with the secret of that name".to_owned(),
        );
    }
    let secret = secret.map(|path| initiator_secret(Path::new(path), identity));
    let secret = secret.transpose().map_err(|error| format!("{error:#}"))?;
    // SAFETY: points into `SCHEMES`; the library is never unloaded.
    let scheme = unsafe { &*values.scheme }.scheme;
    Ok(Spec {
        secret,
        volume: text(values.volume, "volume")?
            .unwrap_or_default()
            .to_owned(),
        device: text(values.device, "device")?.map(str::to_owned),
        scheme,
        ucx: text(values.ucx, "ucx")?.map(PathBuf::from),
        copy_max: values.copy_max as usize,
        requests_max: u32::MAX,
        ..Spec::new(service)
    })
}
