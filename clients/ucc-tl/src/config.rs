//! Registers the component's options with UCC: `UCC_TL_XGVMI_*` in the environment, in `ucc.conf`, and in `ucc_info
//! -caf`.

use crate::layout::OBJECT_BYTES;
use crate::ucc::{Ucc, read};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::offset_of;
use std::ptr::NonNull;
use ucx_sys::ucs::{self, Field, Link, Parser, Value};

/// UCS's entry of a list of options, which is embedded in UCC's interface structure.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct Entry(ucs::Entry);

/// The values that follow UCC's own part of the structure.
#[derive(Debug)]
#[repr(C)]
struct Values {
    services: *const c_char,
    config: *const c_char,
    node: *const c_char,
    secret_file: *const c_char,
    scheme: *const c_char,
    on_failure: *const c_char,
    fallback: *const c_char,
    score: c_uint,
    connect_limit: *const c_char,
    limit: *const c_char,
    wait: *const c_char,
}

/// The user's settings as text and numbers, before validation.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Raw {
    pub(crate) services: String,
    pub(crate) config: String,
    pub(crate) node: String,
    pub(crate) secret_file: String,
    pub(crate) scheme: String,
    pub(crate) on_failure: String,
    pub(crate) fallback: String,
    pub(crate) score: u32,
    pub(crate) connect_limit: String,
    pub(crate) limit: String,
    pub(crate) wait: String,
    /// UCC's own option TUNE.
    pub(crate) tune: String,
}

/// Offset of the component's values: `ucc_tl_lib_config_t` and `ucc_tl_context_config_t` have at most 48 bytes, and may
/// grow.
const OWN_AT: usize = OBJECT_BYTES / 2;

/// Name, default, documentation, offset and type of each option.
const OPTIONS: [(&CStr, &CStr, &CStr, usize, Value); 11] = [
    (
        c"SERVICES",
        c"",
        c"Service processes of this rank's node, as a list of ADDR:PORT. Ranks of the\n\
          node share them. Without this option and without CONFIG the component is off.",
        offset_of!(Values, services),
        Value::Text,
    ),
    (
        c"CONFIG",
        c"",
        c"A file in TOML that names the service processes of all nodes.",
        offset_of!(Values, config),
        Value::Text,
    ),
    (
        c"NODE",
        c"",
        c"This rank's node, by its name in the file. The default is the host name.",
        offset_of!(Values, node),
        Value::Text,
    ),
    (
        c"SECRET_FILE",
        c"",
        c"A file with the secret of the service processes.",
        offset_of!(Values, secret_file),
        Value::Text,
    ),
    (
        c"SCHEME",
        c"auto",
        c"How memory keys are made: xgvmi (the library's pool), stock (UCX's pool), ksm\n\
          (a key for each buffer). 'auto' is xgvmi if the library is in the process, and\n\
          stock otherwise. All ranks and service processes must use the same scheme.",
        offset_of!(Values, scheme),
        Value::Text,
    ),
    (
        c"ON_FAILURE",
        c"abort",
        c"What a rank does when a service process fails during one of its collectives.\n\
          abort: ends the process, as MPI does by default. error: this collective and\n\
          all later ones of the component fail. host: this collective fails, and later\n\
          ones are carried out by UCC's other components. MPI libraries repeat a\n\
          failed collective by other means on some ranks alone, so use abort with them.",
        offset_of!(Values, on_failure),
        Value::Text,
    ),
    (
        c"FALLBACK",
        c"host",
        c"What becomes of a team that cannot be offloaded, because a service process is\n\
          not there or refuses, or because options are invalid or differ between ranks.\n\
          host: UCC's other components carry out its collectives. error: its collectives\n\
          fail. abort: its processes end. MPI libraries answer an error of\n\
          UCC with their own algorithm, so use abort with them.",
        offset_of!(Values, fallback),
        Value::Text,
    ),
    (
        c"SCORE",
        c"100",
        c"The component's score; UCC's other transport layers have 10 to 40.",
        offset_of!(Values, score),
        Value::Uint,
    ),
    (
        c"CONNECT_LIMIT",
        c"30s",
        c"Time limit for connecting to the service processes, with its unit: us, ms, s or m.",
        offset_of!(Values, connect_limit),
        Value::Text,
    ),
    (
        c"LIMIT",
        c"0s",
        c"Time limit of an offloaded collective, without the time between two tests of it\n\
          that are far apart. 0s means none: a collective waits for its last rank as long as\n\
          the service processes are alive, and warnings say so.",
        offset_of!(Values, limit),
        Value::Text,
    ),
    (
        c"WAIT",
        c"spin",
        c"What a rank does while it waits for a collective. spin: looks again at once.\n\
          yield: gives the core to other processes of the machine. sleep: sleeps until\n\
          something happens, at most a millisecond at a time.",
        offset_of!(Values, wait),
        Value::Text,
    ),
];

impl Entry {
    /// The entry of the library's options. UCC's own table is sufficient.
    pub(crate) fn of_lib(ucc: &Ucc) -> Self {
        Self::new(ucc.lib_table)
    }

    /// The entry of the component's options; `None` if UCS's parsers are missing.
    pub(crate) fn of_context(ucc: &Ucc) -> Option<Self> {
        // SAFETY: the first entry of UCC's table is its table of base options; Ucc::check_tables has checked this.
        let base = unsafe { *ucc.context_table };
        let mut fields = vec![Field {
            parser: Parser {
                arg: ucc.context_table.cast(),
                ..base.parser
            },
            ..base
        }];
        for (name, default, doc, place, kind) in OPTIONS {
            let parser = Parser::of(kind, &|name| ucc.symbol(name))?;
            fields.push(Field::new([name, default, doc], OWN_AT + place, parser));
        }
        fields.push(Field::END);
        // UCC keeps a pointer to the table until the process ends.
        Some(Self::new(Vec::leak(fields).as_ptr()))
    }

    /// The entry of a context without options of the component.
    pub(crate) fn plain_context(ucc: &Ucc) -> Self {
        Self::new(ucc.context_table)
    }

    const fn new(table: *const Field) -> Self {
        Self(ucs::Entry {
            name: c"TL_XGVMI".as_ptr(),
            prefix: c"TL_XGVMI_".as_ptr(),
            table,
            size: OBJECT_BYTES,
            list: Link::UNLINKED,
            flags: 0,
        })
    }

    /// Adds the entry to UCC's list of options. The entry must not move afterwards.
    ///
    /// # Safety
    /// `entry` is in no list and is never freed. UCC is loading components, so no other thread changes the list now.
    pub(crate) unsafe fn register(entry: *mut Self, list: NonNull<c_void>) {
        // SAFETY: the caller upholds the contract.
        let link = unsafe { &raw mut (*entry).0.list };
        // SAFETY: the same; `list` is the head of UCC's list.
        unsafe { Link::append(link, list.cast()) };
    }
}

/// The values that UCC has read into a configuration of [`Entry::of_context`].
///
/// # Safety
/// `config` is such a configuration.
pub(crate) unsafe fn values(config: *const c_void) -> Raw {
    // SAFETY: the caller upholds the contract; the values follow UCC's part.
    let own = unsafe { config.cast::<u8>().add(OWN_AT) };
    // SAFETY: the same.
    let values: Values = unsafe { own.cast::<Values>().read_unaligned() };
    let text = |at: *const c_char| {
        if at.is_null() {
            return String::new();
        }
        // SAFETY: UCS has allocated a text for each option of this kind.
        let text = unsafe { CStr::from_ptr(at) };
        text.to_string_lossy().trim().to_owned()
    };
    Raw {
        services: text(values.services),
        config: text(values.config),
        node: text(values.node),
        secret_file: text(values.secret_file),
        scheme: text(values.scheme),
        on_failure: text(values.on_failure),
        fallback: text(values.fallback),
        score: values.score,
        connect_limit: text(values.connect_limit),
        limit: text(values.limit),
        wait: text(values.wait),
        // SAFETY: the caller upholds the contract.
        tune: Ucc::get().map_or_else(String::new, |ucc| unsafe { ucc.tune(config) }),
    }
}

/// The log level in a configuration of [`Entry::of_lib`].
///
/// # Safety
/// `config` is such a configuration.
pub(crate) unsafe fn log_level(config: *const c_void) -> c_int {
    // SAFETY: the caller upholds the contract, and Ucc::check_tables has checked the offset.
    unsafe { read(config, crate::ucc::LOG_LEVEL_AT) }
}
