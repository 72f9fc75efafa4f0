//! The options of this library, as options of UCX: in the environment, in `ucx.conf` and in the
//! output of `ucx_info -c`. One table, [`OPTIONS`], says what there is.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::offset_of;
use std::ptr::{NonNull, null, null_mut};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::log;
use crate::original::Module;

/// What the names of the options start with in the environment.
pub(crate) const PREFIX: &str = "UCX_XGVMI_";
/// The part of it that belongs to this library.
const TABLE_PREFIX: &CStr = c"XGVMI_";
/// The part of it that belongs to UCX.
const ENV_PREFIX: &CStr = c"UCX_";

/// The options' values, in the types that UCX's parsers write.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Raw {
    enable: c_int,
    log_level: c_uint,
    pool_max: c_uint,
    alias_max: c_uint,
}

/// The options' values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    /// Whether anything is served.
    pub(crate) enable: bool,
    /// Keys that the pool of one memory domain has at most.
    pub(crate) pool_max: u32,
    /// Aliases that the map of one memory domain holds at most.
    pub(crate) alias_max: u32,
}

/// One option.
#[derive(Debug)]
struct Spec {
    name: &'static CStr,
    default: &'static CStr,
    doc: &'static CStr,
    offset: usize,
    kind: Kind,
}

/// How the value of an option is written.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// `y` or `n`.
    Bool,
    /// An unsigned integer.
    Uint,
    /// One of the words.
    Word(&'static Words),
}

/// Words that an option can have, closed by a null pointer as UCX wants it.
#[derive(Debug)]
struct Words([*const c_char; 14]);

// SAFETY: the pointers are to constants.
unsafe impl Sync for Words {}

/// UCX's names of its log levels, after one of our own for "as UCX".
static LOG_LEVELS: Words = Words([
    c"auto".as_ptr(),
    c"fatal".as_ptr(),
    c"error".as_ptr(),
    c"warn".as_ptr(),
    c"diag".as_ptr(),
    c"info".as_ptr(),
    c"debug".as_ptr(),
    c"trace".as_ptr(),
    c"req".as_ptr(),
    c"data".as_ptr(),
    c"async".as_ptr(),
    c"func".as_ptr(),
    c"poll".as_ptr(),
    null(),
]);

/// All options.
static OPTIONS: [Spec; 4] = [
    Spec {
        name: c"ENABLE",
        default: c"y",
        doc: c"Serve exported and imported memory keys from the pool and the alias map.\n\
               Otherwise everything is left to UCX.",
        offset: offset_of!(Raw, enable),
        kind: Kind::Bool,
    },
    Spec {
        name: c"POOL_MAX",
        default: c"4096",
        doc: c"Maximal number of memory keys in the pool of one memory domain. Exports beyond it\n\
               take UCX's own path.",
        offset: offset_of!(Raw, pool_max),
        kind: Kind::Uint,
    },
    Spec {
        name: c"ALIAS_MAX",
        default: c"65536",
        doc:
            c"Maximal number of aliases of imported memory keys in one memory domain. Beyond it,\n\
               the alias that was not used for the longest time gives way.",
        offset: offset_of!(Raw, alias_max),
        kind: Kind::Uint,
    },
    Spec {
        name: c"LOG_LEVEL",
        default: c"auto",
        doc: c"Log level of the pool and the alias map; \"auto\" is the one of UCX_LOG_LEVEL.",
        offset: offset_of!(Raw, log_level),
        kind: Kind::Word(&LOG_LEVELS),
    },
];

impl Raw {
    /// The values when UCX's parser is not there. A test compares them with [`OPTIONS`].
    const DEFAULT: Self = Self {
        enable: 1,
        log_level: 0,
        pool_max: 4096,
        alias_max: 65_536,
    };

    const fn options(self) -> Options {
        Options {
            enable: self.enable != 0,
            pool_max: self.pool_max,
            alias_max: self.alias_max,
        }
    }
}

static VALUES: OnceLock<Options> = OnceLock::new();

/// The options' values: those of the environment once [`load`] was called, else the defaults.
pub(crate) fn get() -> Options {
    VALUES.get().copied().unwrap_or(Raw::DEFAULT.options())
}

/// Shows the options to a UCX that the program itself is linked to and takes their values from it,
/// so that its tools list them and nobody warns of unused variables even where there is no device.
/// That UCX is initialised by now, because a preloaded library is initialised after the libraries
/// of the program.
pub(crate) fn announce() {
    read(&|name| {
        // SAFETY: the name ends in a zero byte.
        NonNull::new(unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) })
    });
}

/// Shows the options to this copy of UCX and takes their values from it, if no other copy was
/// first. A value that UCX cannot read costs UCX's own error line, and the default is used.
pub(crate) fn load(module: &Module) {
    if !read(&|name| module.symbol(name)) {
        log::info!("this UCX has no option parser, the options are not read");
    }
}

/// False if this UCX has no options.
fn read(symbol: &Symbols<'_>) -> bool {
    let Some(entry) = list(symbol) else {
        return false;
    };
    if let Listing::New(entry) = entry {
        // Each copy is asked, so that each knows that the variables are used.
        let raw = fill(symbol, entry).unwrap_or(Raw::DEFAULT);
        if VALUES.set(raw.options()).is_ok() {
            log::set_level(log_level(symbol, raw.log_level));
        }
    }
    true
}

/// The level that the option stands for.
fn log_level(symbol: &Symbols<'_>, word: c_uint) -> c_uint {
    match word.checked_sub(1) {
        Some(level) => level,
        // SAFETY: `ucs_global_opts` starts with the log component, and that with its level
        // (`src/ucs/config/global_opts.h:32`, `src/ucs/config/types.h:160`).
        None => symbol(c"ucs_global_opts").map_or(log::Level::Warn as c_uint, |opts| unsafe {
            opts.cast::<c_uint>().read()
        }),
    }
}

/// How a symbol of the UCX at hand is found.
type Symbols<'a> = dyn Fn(&CStr) -> Option<NonNull<c_void>> + 'a;

/// `ucs_list_link_t`.
#[repr(C)]
struct Link {
    prev: *mut Link,
    next: *mut Link,
}

/// `ucs_config_parser_t` (`src/ucs/config/parser.h:45`), the functions as addresses.
#[derive(Clone, Copy)]
#[repr(C)]
struct Parser {
    read: *const c_void,
    write: *const c_void,
    clone: *const c_void,
    release: *const c_void,
    help: *const c_void,
    doc: *const c_void,
    arg: *const c_void,
}

/// `ucs_config_field_t` (`src/ucs/config/parser.h:63`).
#[repr(C)]
struct Field {
    name: *const c_char,
    default: *const c_char,
    doc: *const c_char,
    offset: usize,
    parser: Parser,
}

/// `ucs_config_global_list_entry_t` (`src/ucs/config/parser.h:119`).
#[repr(C)]
struct Entry {
    name: *const c_char,
    prefix: *const c_char,
    table: *mut Field,
    size: usize,
    list: Link,
    flags: u8,
}

/// `ucs_config_parser_fill_opts` (`src/ucs/config/parser.h:452`).
type FillFn = unsafe extern "C" fn(*mut c_void, *mut Entry, *const c_char, c_int) -> i8;

/// Whether our entry has just been put into an option list.
enum Listing {
    New(NonNull<Entry>),
    Known,
}

/// Addresses of the option lists that have our entry.
static LISTED: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// Puts our entry into the option list of this UCX, unless it is there; `None` if there is no list.
fn list(symbol: &Symbols<'_>) -> Option<Listing> {
    let head = symbol(c"ucs_config_global_list")?.cast::<Link>();
    let mut listed = LISTED.lock().unwrap_or_else(PoisonError::into_inner);
    if listed.contains(&head.addr().get()) {
        return Some(Listing::Known);
    }
    let mut fields = Vec::with_capacity(OPTIONS.len() + 1);
    for option in &OPTIONS {
        fields.push(Field {
            name: option.name.as_ptr(),
            default: option.default.as_ptr(),
            doc: option.doc.as_ptr(),
            offset: option.offset,
            parser: parser(symbol, option.kind)?,
        });
    }
    fields.push(LAST_FIELD);
    // Neither is ever freed: UCX keeps the entry to the end of the process.
    let table = Vec::leak(fields).as_mut_ptr();
    let entry = Box::leak(Box::new(Entry {
        name: c"Cross-GVMI memory key pool".as_ptr(),
        prefix: TABLE_PREFIX.as_ptr(),
        table,
        size: size_of::<Raw>(),
        list: Link {
            prev: null_mut(),
            next: head.as_ptr(),
        },
        flags: 0,
    }));
    // SAFETY: the symbol is the head of a list that is initialised at load time. UCX changes the
    // list when it is loaded and unloaded, which is not now.
    unsafe { append(head, &mut entry.list) };
    listed.push(head.addr().get());
    Some(Listing::New(NonNull::from(entry)))
}

/// Puts the link at the end of the list.
///
/// # Safety
/// `head` must be the head of an intact list that nobody else changes meanwhile, and `link` must
/// live as long as the list.
unsafe fn append(head: NonNull<Link>, link: &mut Link) {
    let head = head.as_ptr();
    // SAFETY: by the contract, the head can be read.
    let last = unsafe { (*head).prev };
    link.prev = last;
    link.next = head;
    let link: *mut Link = link;
    // SAFETY: by the contract, the last element can be written.
    unsafe { (*last).next = link };
    // SAFETY: by the contract, the head can be written.
    unsafe { (*head).prev = link };
}

const LAST_FIELD: Field = Field {
    name: null(),
    default: null(),
    doc: null(),
    offset: 0,
    parser: Parser {
        read: null(),
        write: null(),
        clone: null(),
        release: null(),
        help: null(),
        doc: null(),
        arg: null(),
    },
};

/// UCX's parser for a kind of option (the `UCS_CONFIG_TYPE_*` of `src/ucs/config/parser.h:307`).
fn parser(symbol: &Symbols<'_>, kind: Kind) -> Option<Parser> {
    let symbol = |name| symbol(name).map(|address| address.as_ptr().cast_const());
    let (read, write, clone, help, arg) = match kind {
        Kind::Bool => (
            c"ucs_config_sscanf_bool",
            c"ucs_config_sprintf_bool",
            c"ucs_config_clone_int",
            c"ucs_config_help_generic",
            c"<y|n>".as_ptr().cast(),
        ),
        Kind::Uint => (
            c"ucs_config_sscanf_uint",
            c"ucs_config_sprintf_uint",
            c"ucs_config_clone_uint",
            c"ucs_config_help_generic",
            c"unsigned integer".as_ptr().cast(),
        ),
        Kind::Word(words) => (
            c"ucs_config_sscanf_enum",
            c"ucs_config_sprintf_enum",
            c"ucs_config_clone_uint",
            c"ucs_config_help_enum",
            words.0.as_ptr().cast(),
        ),
    };
    Some(Parser {
        read: symbol(read)?,
        write: symbol(write)?,
        clone: symbol(clone)?,
        release: symbol(c"ucs_config_release_nop")?,
        help: symbol(help)?,
        doc: symbol(c"ucs_config_doc_nop")?,
        arg,
    })
}

fn fill(symbol: &Symbols<'_>, entry: NonNull<Entry>) -> Option<Raw> {
    let fill = symbol(c"ucs_config_parser_fill_opts")?;
    // SAFETY: it was found under the name of ucs_config_parser_fill_opts, whose type this is.
    let fill = unsafe { std::mem::transmute::<*mut c_void, FillFn>(fill.as_ptr()) };
    let mut raw = Raw::DEFAULT;
    // With the last argument, a bad value is reported and the default takes its place.
    // SAFETY: the structure is the one that the table's offsets are of; the entry lives for ever.
    let status = unsafe {
        fill(
            (&raw mut raw).cast(),
            entry.as_ptr(),
            ENV_PREFIX.as_ptr(),
            1,
        )
    };
    (status == 0).then_some(raw)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_those_of_the_table() {
        let default = |name: &CStr| {
            let spec = OPTIONS
                .iter()
                .find(|spec| spec.name == name)
                .expect("an option");
            spec.default.to_str().expect("ASCII")
        };
        assert_eq!(Raw::DEFAULT.enable, c_int::from(default(c"ENABLE") == "y"));
        assert_eq!(Raw::DEFAULT.pool_max.to_string(), default(c"POOL_MAX"));
        assert_eq!(Raw::DEFAULT.alias_max.to_string(), default(c"ALIAS_MAX"));
        assert_eq!(default(c"LOG_LEVEL"), "auto");
        assert_eq!(Raw::DEFAULT.log_level, 0);
    }

    #[test]
    fn each_option_has_its_own_place() {
        let mut offsets: Vec<_> = OPTIONS.iter().map(|spec| spec.offset).collect();
        offsets.sort_unstable();
        offsets.dedup();
        assert_eq!(offsets.len(), OPTIONS.len());
        assert!(offsets.iter().all(|offset| offset + 4 <= size_of::<Raw>()));
    }

    #[test]
    fn an_entry_goes_to_the_end_of_the_list() {
        let mut head = Link {
            prev: null_mut(),
            next: null_mut(),
        };
        let at = NonNull::from(&mut head);
        head.prev = at.as_ptr();
        head.next = at.as_ptr();
        let mut first = Link {
            prev: null_mut(),
            next: null_mut(),
        };
        let mut second = Link {
            prev: null_mut(),
            next: null_mut(),
        };
        for link in [&mut first, &mut second] {
            // SAFETY: the list is this function's own and outlives its use.
            unsafe { append(at, link) };
        }
        let first: *mut Link = &raw mut first;
        let second: *mut Link = &raw mut second;
        assert_eq!((head.next, head.prev), (first, second));
        // SAFETY: both links are alive.
        let (next, prev) = unsafe { ((*first).next, (*second).prev) };
        assert_eq!((next, prev), (second, first));
    }
}
