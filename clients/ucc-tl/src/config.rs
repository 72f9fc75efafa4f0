//! Registers the component's options with UCC: `UCC_TL_XGVMI_*` in the environment, in `ucc.conf`, and in `ucc_info
//! -caf`.

use crate::layout::OBJECT_BYTES;
use crate::ucc::{Ucc, read};
use crate::ucs::{Field, Parser};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::offset_of;
use std::ptr::{NonNull, null_mut};

/// `ucs_config_global_list_entry_t`, which is embedded in UCC's interface structure.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Entry {
    name: *const c_char,
    prefix: *const c_char,
    table: *const Field,
    size: usize,
    list: Link,
    flags: u8,
}

/// `ucs_list_link_t`.
#[derive(Debug)]
#[repr(C)]
struct Link {
    prev: *mut Link,
    next: *mut Link,
}

/// The values that follow UCC's own part of the structure.
#[derive(Debug)]
#[repr(C)]
struct Values {
    services: *const c_char,
    config: *const c_char,
    node: *const c_char,
    secret_file: *const c_char,
    scheme: *const c_char,
    collectives: *const c_char,
    on_failure: *const c_char,
    fallback: *const c_char,
    score: c_uint,
    connect_limit: f64,
    limit: f64,
}

/// The user's settings as text and numbers, before validation.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Raw {
    pub(crate) services: String,
    pub(crate) config: String,
    pub(crate) node: String,
    pub(crate) secret_file: String,
    pub(crate) scheme: String,
    pub(crate) collectives: String,
    pub(crate) on_failure: String,
    pub(crate) fallback: String,
    pub(crate) score: u32,
    pub(crate) connect_limit_s: f64,
    pub(crate) limit_s: f64,
}

/// Offset of the component's values: `ucc_tl_lib_config_t` and `ucc_tl_context_config_t` have at most 48 bytes, and may
/// grow.
const OWN_AT: usize = OBJECT_BYTES / 2;

/// Type of an option.
#[derive(Clone, Copy)]
enum Kind {
    Text,
    Number,
    Time,
}

/// Name, default, documentation, offset and type of each option.
const OPTIONS: [(&CStr, &CStr, &CStr, usize, Kind); 11] = [
    (
        c"SERVICES",
        c"",
        c"Service processes of this rank's node, as a list of ADDR:PORT. Ranks of the\n\
          node share them. Without this option and without CONFIG the component is off.",
        offset_of!(Values, services),
        Kind::Text,
    ),
    (
        c"CONFIG",
        c"",
        c"A file in TOML that names the service processes of all nodes.",
        offset_of!(Values, config),
        Kind::Text,
    ),
    (
        c"NODE",
        c"",
        c"This rank's node, by its name in the file. The default is the host name.",
        offset_of!(Values, node),
        Kind::Text,
    ),
    (
        c"SECRET_FILE",
        c"",
        c"A file with the secret of the service processes.",
        offset_of!(Values, secret_file),
        Kind::Text,
    ),
    (
        c"SCHEME",
        c"auto",
        c"How memory keys are made: xgvmi (the library's pool), stock (UCX's pool), ksm\n\
          (a key for each buffer). 'auto' is xgvmi if the library is in the process, and\n\
          stock otherwise. All ranks and service processes must use the same scheme.",
        offset_of!(Values, scheme),
        Kind::Text,
    ),
    (
        c"COLLS",
        c"auto",
        c"Collectives to serve, as a list of NAME or NAME:MIN-MAX with message sizes as\n\
          UCC counts them, such as 'alltoallv,alltoall:64K-inf'. Names: alltoall,\n\
          alltoallv, allgather, allgatherv, bcast, gather, gatherv, scatter, scatterv,\n\
          allreduce, barrier. 'all' means all but barrier, 'auto' the same from the\n\
          sizes on at which a call saves processor time. UCC knows no size of alltoallv,\n\
          gatherv and scatterv. Others go to UCC's other components.",
        offset_of!(Values, collectives),
        Kind::Text,
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
        Kind::Text,
    ),
    (
        c"FALLBACK",
        c"host",
        c"What becomes of a team that cannot be offloaded, because a service process is\n\
          not there or refuses, or because options are invalid or differ between ranks.\n\
          host: UCC's other components carry out its collectives. error: its collectives\n\
          of the list fail. abort: its processes end. MPI libraries answer an error of\n\
          UCC with their own algorithm, so use abort with them.",
        offset_of!(Values, fallback),
        Kind::Text,
    ),
    (
        c"SCORE",
        c"100",
        c"The component's score; UCC's other transport layers have 10 to 40.",
        offset_of!(Values, score),
        Kind::Number,
    ),
    (
        c"CONNECT_LIMIT",
        c"30s",
        c"Time limit for connecting to the service processes.",
        offset_of!(Values, connect_limit),
        Kind::Time,
    ),
    (
        c"LIMIT",
        c"0",
        c"Time limit of an offloaded collective, without the time between two tests of it\n\
          that are far apart. 0 means none: a collective waits for its last rank as long as\n\
          the service processes are alive, and warnings say so.",
        offset_of!(Values, limit),
        Kind::Time,
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
                argument: ucc.context_table.cast(),
                ..base.parser
            },
            ..base
        }];
        for (name, default, doc, place, kind) in OPTIONS {
            fields.push(Field {
                name: name.as_ptr(),
                default: default.as_ptr(),
                doc: doc.as_ptr(),
                offset: OWN_AT + place,
                parser: parser(ucc, kind)?,
            });
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
        Self {
            name: c"TL_XGVMI".as_ptr(),
            prefix: c"TL_XGVMI_".as_ptr(),
            table,
            size: OBJECT_BYTES,
            list: Link {
                prev: null_mut(),
                next: null_mut(),
            },
            flags: 0,
        }
    }

    /// Adds the entry to UCC's list of options. The entry must not move afterwards.
    ///
    /// # Safety
    /// `entry` is in no list and is never freed. UCC is loading components, so no other thread changes the list now.
    pub(crate) unsafe fn register(entry: *mut Self, list: NonNull<c_void>) {
        let head = list.cast::<Link>().as_ptr();
        // SAFETY: the caller upholds the contract.
        let link = unsafe { &raw mut (*entry).list };
        // SAFETY: the head of an intact list.
        let last = unsafe { (*head).prev };
        // SAFETY: the entry belongs to this component.
        unsafe {
            link.write(Link {
                prev: last,
                next: head,
            })
        };
        // SAFETY: the last element of an intact list; in an empty list this is the head.
        unsafe { (*last).next = link };
        // SAFETY: the head, as above.
        unsafe { (*head).prev = link };
    }
}

/// UCS's parser for a type of option (the `UCS_CONFIG_TYPE_*` of `ucs/config/parser.h`).
fn parser(ucc: &Ucc, kind: Kind) -> Option<Parser> {
    let (names, argument) = match kind {
        Kind::Text => (
            [
                c"ucs_config_sscanf_string",
                c"ucs_config_sprintf_string",
                c"ucs_config_clone_string",
                c"ucs_config_release_string",
            ],
            c"string",
        ),
        Kind::Number => (
            [
                c"ucs_config_sscanf_uint",
                c"ucs_config_sprintf_uint",
                c"ucs_config_clone_uint",
                c"ucs_config_release_nop",
            ],
            c"unsigned integer",
        ),
        Kind::Time => (
            [
                c"ucs_config_sscanf_time",
                c"ucs_config_sprintf_time",
                c"ucs_config_clone_double",
                c"ucs_config_release_nop",
            ],
            c"time value: <number>[m|s|ms|us|ns]",
        ),
    };
    let symbol = |name| ucc.symbol(name).map(|found| found.as_ptr().cast_const());
    Some(Parser {
        read: symbol(names[0])?,
        write: symbol(names[1])?,
        clone: symbol(names[2])?,
        release: symbol(names[3])?,
        help: symbol(c"ucs_config_help_generic")?,
        doc: symbol(c"ucs_config_doc_nop")?,
        argument: argument.as_ptr().cast(),
    })
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
        collectives: text(values.collectives),
        on_failure: text(values.on_failure),
        fallback: text(values.fallback),
        score: values.score,
        connect_limit_s: values.connect_limit,
        limit_s: values.limit,
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
