//! UCX's option parser: adds our option table to a loaded UCX.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

use ucx_sys::ucs::{Entry, Field, Link, Parser, Value};

pub(crate) use ucx_sys::ucs::Symbols;

/// The part of the options' prefix that belongs to this library.
const TABLE_PREFIX: &CStr = c"XGVMI_";
/// The part of the prefix that belongs to UCX.
const ENV_PREFIX: &CStr = c"UCX_";

/// One option.
#[derive(Debug)]
pub(crate) struct Option {
    pub(crate) name: &'static CStr,
    pub(crate) default: &'static CStr,
    /// Description, in lines of at most 88 columns.
    pub(crate) doc: &'static CStr,
    /// Offset of its value in the structure.
    pub(crate) offset: usize,
    pub(crate) kind: Kind,
}

/// Type of an option and of its value.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// `y` or `n`; an `int`.
    Bool,
    /// An unsigned integer; an `unsigned`. UCX does not know the range.
    Uint { min: u32, max: u32 },
    /// A number with a unit; seconds in a `double`.
    Time,
    /// Bytes with a unit; a `size_t`.
    Bytes,
    /// Any text; a `char *` that UCX has allocated.
    String,
    /// One word of a list that ends with a null pointer; its index, in an `unsigned`.
    Word(&'static [*const c_char]),
}

impl Kind {
    fn value(self) -> Value {
        match self {
            Self::Bool => Value::Bool,
            Self::Uint { .. } => Value::Uint,
            Self::Time => Value::Time,
            Self::Bytes => Value::Bytes,
            Self::String => Value::Text,
            Self::Word(words) => Value::Word(words.as_ptr()),
        }
    }
}

// SAFETY: the words are pointers to constants.
unsafe impl Sync for Kind {}

/// Allowed words of an option, terminated by a null pointer for UCX.
#[derive(Debug)]
pub(crate) struct Words<const N: usize>(pub(crate) [*const c_char; N]);

// SAFETY: the words are pointers to constants.
unsafe impl<const N: usize> Sync for Words<N> {}

/// Whether our entry was just added to an option list.
#[derive(Debug)]
pub(crate) enum Listing {
    /// It was added.
    New(NonNull<Entry>),
    /// It was already there.
    Known,
}

/// `ucs_config_parser_fill_opts` (`src/ucs/config/parser.h:522`).
type FillFn = unsafe extern "C" fn(*mut c_void, *mut Entry, *const c_char, c_int) -> i8;

/// Addresses of the option lists with our entry; no process has so many copies of UCX. Without a lock, which a thread of the
/// parent could hold at a fork.
static LISTED: [AtomicUsize; 16] = [const { AtomicUsize::new(0) }; 16];

/// True for the first call with this list.
fn is_new(head: usize) -> bool {
    for place in &LISTED {
        match place.compare_exchange(0, head, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return true,
            Err(found) if found == head => return false,
            Err(_) => {}
        }
    }
    false
}

/// Adds the options to the list of this UCX, unless they are already there. `None` if it has no
/// list, or if a parser is missing.
pub(crate) fn list(
    symbol: &Symbols<'_>,
    options: &[Option],
    bytes: usize,
) -> std::option::Option<Listing> {
    let head = symbol(c"ucs_config_global_list")?.cast::<Link>();
    let mut fields = Vec::with_capacity(options.len() + 1);
    for option in options {
        fields.push(Field::new(
            [option.name, option.default, option.doc],
            option.offset,
            Parser::of(option.kind.value(), symbol)?,
        ));
    }
    fields.push(Field::END);
    if !is_new(head.addr().get()) {
        return Some(Listing::Known);
    }
    // Neither is ever freed: UCX keeps the entry until the process ends.
    let table = Vec::leak(fields).as_ptr();
    let entry = Box::leak(Box::new(Entry {
        name: c"Cross-GVMI memory key pool".as_ptr(),
        prefix: TABLE_PREFIX.as_ptr(),
        table,
        size: bytes,
        list: Link::UNLINKED,
        flags: 0,
    }));
    // SAFETY: the symbol is the head of a list that is initialised at load time. UCX changes the
    // list only when a library of UCX is loaded or unloaded, which does not happen now.
    unsafe { Link::append(&raw mut entry.list, head) };
    Some(Listing::New(NonNull::from(entry)))
}

/// Reads the options' values into the structure. For an invalid value UCX prints an error, and the
/// default applies. False if nothing could be read.
///
/// # Safety
/// `to` must be the structure of the options' offsets.
pub(crate) unsafe fn fill(symbol: &Symbols<'_>, entry: NonNull<Entry>, to: *mut c_void) -> bool {
    let Some(fill) = symbol(c"ucs_config_parser_fill_opts") else {
        return false;
    };
    // SAFETY: the symbol ucs_config_parser_fill_opts has this type.
    let fill = unsafe { std::mem::transmute::<*mut c_void, FillFn>(fill.as_ptr()) };
    // SAFETY: by the contract of this function; the entry is never freed.
    unsafe { fill(to, entry.as_ptr(), ENV_PREFIX.as_ptr(), 1) == 0 }
}

/// UCX's own log level.
pub(crate) fn log_level(symbol: &Symbols<'_>) -> std::option::Option<c_uint> {
    let opts = symbol(c"ucs_global_opts")?;
    // SAFETY: it starts with the log component, which starts with its level
    // (`src/ucs/config/global_opts.h:32`, `src/ucs/config/types.h:160`).
    Some(unsafe { opts.cast::<c_uint>().read() })
}
