//! Settings of a context before its start.

use super::Pcc;
use super::mailbox::Mailbox;
use super::trace::Formats;
use crate::error::{Code, Result, call, fail};
use crate::object::{find, store};
use flexio::{App, Probes, Role};
use std::ffi::{CStr, OsStr, c_char};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::sync::Arc;

/// Guess: fewest and most threads of a context. One of them serves the host.
const THREADS_MIN: u32 = 2;
const THREADS_MAX: u32 = 128;
/// Execution units of the device.
const UNITS: u32 = 254;
/// Formats of probes, by slot.
const FORMAT_SLOTS: u32 = 1;
/// Guess: hop limit of probes with IFA 2.0 without a setting.
const HOPS: u8 = 64;
/// Most bytes of the print buffer.
const PRINT_BYTES_MAX: usize = 64 << 20;

/// The program. Its debug form is its name.
#[derive(Clone)]
pub(super) struct Application(pub(super) Arc<App>);

impl std::fmt::Debug for Application {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0.name())
    }
}

/// Form of the probes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Format {
    #[default]
    Ccmad,
    Ifa1,
    Ifa2,
}

/// Settings of a context.
#[derive(Debug, Default)]
pub(super) struct Config {
    pub(super) app: Option<Application>,
    pub(super) threads: Vec<u32>,
    pub(super) format: Format,
    /// A program at the receiver answers management datagrams.
    pub(super) has_remote: bool,
    /// Hop limit of IFA 2.0; None: that of other packets.
    pub(super) hop_limit: Option<u8>,
    pub(super) print_bytes: Option<usize>,
    pub(super) core_file: Option<PathBuf>,
    pub(super) mailbox: Option<Mailbox>,
    pub(super) formats: Formats,
    pub(super) has_debug: bool,
}

impl Config {
    /// The probes of a sender.
    pub(super) fn probes(&self) -> Probes {
        match self.format {
            Format::Ccmad if !self.has_remote => Probes::Times,
            Format::Ccmad => Probes::Ccmad,
            Format::Ifa1 => Probes::Ifa1,
            Format::Ifa2 => Probes::Ifa2(self.hop_limit.unwrap_or(HOPS)),
        }
    }
}

/// Changes a setting of a context that has not started.
fn set(
    name: &'static str,
    pcc: *mut Pcc,
    change: impl FnOnce(&mut Config, Role) -> Result<()>,
) -> Code {
    call(name, || {
        let pcc = find(pcc)?;
        let mut config = pcc.config.enter()?;
        pcc.check_new()?;
        change(&mut config, pcc.role)
    })
}

/// `doca_pcc_get_min_num_threads`.
///
/// # Safety
/// `count` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_pcc_get_min_num_threads(pcc: *const Pcc, count: *mut u32) -> Code {
    call("doca_pcc_get_min_num_threads", || {
        find(pcc)?;
        // SAFETY: as the caller promises.
        unsafe { store(count, THREADS_MIN) }
    })
}

/// `doca_pcc_get_max_num_threads`.
///
/// # Safety
/// `count` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_pcc_get_max_num_threads(pcc: *const Pcc, count: *mut u32) -> Code {
    call("doca_pcc_get_max_num_threads", || {
        find(pcc)?;
        // SAFETY: as the caller promises.
        unsafe { store(count, THREADS_MAX) }
    })
}

/// `doca_pcc_set_thread_affinity`.
///
/// # Safety
/// `units` is NULL or has `count` elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_pcc_set_thread_affinity(
    pcc: *mut Pcc,
    count: u32,
    units: *const u32,
) -> Code {
    set("doca_pcc_set_thread_affinity", pcc, |config, _| {
        if !(THREADS_MIN..=THREADS_MAX).contains(&count) {
            fail!(
                InvalidValue,
                "{count} threads: a context has {THREADS_MIN} to {THREADS_MAX}"
            );
        }
        if units.is_null() {
            fail!(InvalidValue, "the list of execution units is NULL");
        }
        // SAFETY: checked, and `count` elements by contract.
        let units = unsafe { std::slice::from_raw_parts(units, count as usize) };
        for (at, unit) in units.iter().enumerate() {
            if *unit >= UNITS {
                fail!(
                    InvalidValue,
                    "execution unit {unit}: the last one is {}",
                    UNITS - 1
                );
            }
            if units[..at].contains(unit) {
                fail!(InvalidValue, "execution unit {unit} occurs twice");
            }
        }
        config.threads = units.to_vec();
        Ok(())
    })
}

fn format(name: &'static str, pcc: *mut Pcc, slot: u32, format: Format) -> Code {
    set(name, pcc, |config, _| {
        check_slot(slot)?;
        config.format = format;
        Ok(())
    })
}

fn check_slot(slot: u32) -> Result<()> {
    if slot >= FORMAT_SLOTS {
        fail!(
            InvalidValue,
            "probe format {slot}: the device has {FORMAT_SLOTS}, from 0"
        );
    }
    Ok(())
}

/// `doca_pcc_set_ccmad_probe_packet_format`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_pcc_set_ccmad_probe_packet_format(pcc: *mut Pcc, slot: u32) -> Code {
    let name = "doca_pcc_set_ccmad_probe_packet_format";
    format(name, pcc, slot, Format::Ccmad)
}

/// `doca_pcc_set_ifa1_probe_packet_format`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_pcc_set_ifa1_probe_packet_format(pcc: *mut Pcc, slot: u32) -> Code {
    format(
        "doca_pcc_set_ifa1_probe_packet_format",
        pcc,
        slot,
        Format::Ifa1,
    )
}

/// `doca_pcc_set_ifa2_probe_packet_format`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_pcc_set_ifa2_probe_packet_format(pcc: *mut Pcc, slot: u32) -> Code {
    format(
        "doca_pcc_set_ifa2_probe_packet_format",
        pcc,
        slot,
        Format::Ifa2,
    )
}

/// `doca_pcc_cap_get_num_probe_format_slots`.
///
/// # Safety
/// `count` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_pcc_cap_get_num_probe_format_slots(
    devinfo: *const crate::dev::DevInfo,
    count: *mut u32,
) -> Code {
    call("doca_pcc_cap_get_num_probe_format_slots", || {
        find(devinfo)?;
        // SAFETY: as the caller promises.
        unsafe { store(count, FORMAT_SLOTS) }
    })
}

/// A property of probes: checked against the role and the form.
fn probe(
    name: &'static str,
    pcc: *mut Pcc,
    slot: u32,
    (role, needed): (Role, Format),
    change: impl FnOnce(&mut Config),
) -> Code {
    set(name, pcc, |config, own| {
        check_slot(slot)?;
        if own != role {
            fail!(InvalidValue, "this context has the other role (RP or NP)");
        }
        if config.format != needed {
            fail!(
                InvalidValue,
                "the probes of this context have the format {:?}; set {needed:?} first",
                config.format
            );
        }
        change(config);
        Ok(())
    })
}

/// `doca_pcc_rp_set_ccmad_remote_sw_handler`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_pcc_rp_set_ccmad_remote_sw_handler(
    pcc: *mut Pcc,
    slot: u32,
    remote: bool,
) -> Code {
    let kind = (Role::Reaction, Format::Ccmad);
    let name = "doca_pcc_rp_set_ccmad_remote_sw_handler";
    probe(name, pcc, slot, kind, |config| config.has_remote = remote)
}

/// `doca_pcc_rp_set_ifa2_gns`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_pcc_rp_set_ifa2_gns(pcc: *mut Pcc, slot: u32, _gns: u8) -> Code {
    let kind = (Role::Reaction, Format::Ifa2);
    probe("doca_pcc_rp_set_ifa2_gns", pcc, slot, kind, |_| {})
}

/// `doca_pcc_rp_set_ifa2_hop_limit`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_pcc_rp_set_ifa2_hop_limit(pcc: *mut Pcc, slot: u32, limit: u8) -> Code {
    let kind = (Role::Reaction, Format::Ifa2);
    let name = "doca_pcc_rp_set_ifa2_hop_limit";
    probe(name, pcc, slot, kind, |config| {
        config.hop_limit = Some(limit)
    })
}

/// `doca_pcc_np_set_ifa2_gns_ignore`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_pcc_np_set_ifa2_gns_ignore(
    pcc: *mut Pcc,
    slot: u32,
    _mask: u8,
    _value: u8,
) -> Code {
    let kind = (Role::Notification, Format::Ifa2);
    probe("doca_pcc_np_set_ifa2_gns_ignore", pcc, slot, kind, |_| {})
}

/// `doca_pcc_set_ifa1_probe_marker`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_pcc_set_ifa1_probe_marker(pcc: *mut Pcc, slot: u32, _marker: u64) -> Code {
    set("doca_pcc_set_ifa1_probe_marker", pcc, |config, _| {
        check_slot(slot)?;
        if config.format != Format::Ifa1 {
            fail!(InvalidValue, "the probes of this context are not IFA1");
        }
        Ok(())
    })
}

/// `doca_pcc_set_print_buffer_size`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_pcc_set_print_buffer_size(pcc: *mut Pcc, bytes: usize) -> Code {
    set("doca_pcc_set_print_buffer_size", pcc, |config, _| {
        if bytes == 0 || bytes > PRINT_BYTES_MAX {
            fail!(
                InvalidValue,
                "a print buffer of {bytes} bytes; allowed are 1 to {PRINT_BYTES_MAX}"
            );
        }
        config.print_bytes = Some(bytes);
        Ok(())
    })
}

/// `doca_pcc_set_dev_coredump_file`.
///
/// # Safety
/// `path` is NULL or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_pcc_set_dev_coredump_file(
    pcc: *mut Pcc,
    path: *const c_char,
) -> Code {
    set("doca_pcc_set_dev_coredump_file", pcc, |config, _| {
        if path.is_null() {
            fail!(InvalidValue, "the path of the core dump is NULL");
        }
        // SAFETY: a string by contract.
        let path = unsafe { CStr::from_ptr(path) }.to_bytes();
        config.core_file = Some(PathBuf::from(OsStr::from_bytes(path)));
        Ok(())
    })
}

/// `doca_pcc_set_trace_message`.
///
/// # Safety
/// `formats` is NULL, or strings up to a NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_pcc_set_trace_message(
    pcc: *mut Pcc,
    formats: *const *const c_char,
) -> Code {
    set("doca_pcc_set_trace_message", pcc, |config, _| {
        // SAFETY: as the caller promises.
        config.formats = unsafe { Formats::read(formats) }?;
        Ok(())
    })
}

/// `doca_pcc_set_mailbox`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_pcc_set_mailbox(pcc: *mut Pcc, request: u32, response: u32) -> Code {
    set("doca_pcc_set_mailbox", pcc, |config, _| {
        config.mailbox = Some(Mailbox::new(request, response)?);
        Ok(())
    })
}
