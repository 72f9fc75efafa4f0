//! UCX's option parser: adds our option table to a loaded UCX.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::{NonNull, null, null_mut};
use std::sync::{Mutex, PoisonError};

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

// SAFETY: the words are pointers to constants.
unsafe impl Sync for Kind {}

/// Allowed words of an option, terminated by a null pointer for UCX.
#[derive(Debug)]
pub(crate) struct Words<const N: usize>(pub(crate) [*const c_char; N]);

// SAFETY: the words are pointers to constants.
unsafe impl<const N: usize> Sync for Words<N> {}

/// Looks up a symbol of the loaded UCX.
pub(crate) type Symbols<'a> = dyn Fn(&CStr) -> std::option::Option<NonNull<c_void>> + 'a;

/// Whether our entry was just added to an option list.
#[derive(Debug)]
pub(crate) enum Listing {
    /// It was added.
    New(NonNull<Entry>),
    /// It was already there.
    Known,
}

/// `ucs_list_link_t`.
#[derive(Debug)]
#[repr(C)]
struct Link {
    prev: *mut Link,
    next: *mut Link,
}

/// `ucs_config_parser_t` (`src/ucs/config/parser.h:45`), the functions as addresses.
#[derive(Clone, Copy, Debug)]
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
#[derive(Debug)]
#[repr(C)]
struct Field {
    name: *const c_char,
    default: *const c_char,
    doc: *const c_char,
    offset: usize,
    parser: Parser,
}

/// `ucs_config_global_list_entry_t` (`src/ucs/config/parser.h:119`).
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Entry {
    name: *const c_char,
    prefix: *const c_char,
    table: *mut Field,
    size: usize,
    list: Link,
    flags: u8,
}

/// `ucs_config_parser_fill_opts` (`src/ucs/config/parser.h:522`).
type FillFn = unsafe extern "C" fn(*mut c_void, *mut Entry, *const c_char, c_int) -> i8;

/// Addresses of the option lists with our entry.
static LISTED: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// Adds the options to the list of this UCX, unless they are already there. `None` if it has no
/// list, or if a parser is missing.
pub(crate) fn list(
    symbol: &Symbols<'_>,
    options: &[Option],
    bytes: usize,
) -> std::option::Option<Listing> {
    let head = symbol(c"ucs_config_global_list")?.cast::<Link>();
    let mut listed = LISTED.lock().unwrap_or_else(PoisonError::into_inner);
    if listed.contains(&head.addr().get()) {
        return Some(Listing::Known);
    }
    let mut fields = Vec::with_capacity(options.len() + 1);
    for option in options {
        fields.push(Field {
            name: option.name.as_ptr(),
            default: option.default.as_ptr(),
            doc: option.doc.as_ptr(),
            offset: option.offset,
            parser: parser(symbol, option.kind)?,
        });
    }
    fields.push(LAST_FIELD);
    // Neither is ever freed: UCX keeps the entry until the process ends.
    let table = Vec::leak(fields).as_mut_ptr();
    let entry = Box::leak(Box::new(Entry {
        name: c"Cross-GVMI memory key pool".as_ptr(),
        prefix: TABLE_PREFIX.as_ptr(),
        table,
        size: bytes,
        list: Link {
            prev: null_mut(),
            next: head.as_ptr(),
        },
        flags: 0,
    }));
    // SAFETY: the symbol is the head of a list that is initialised at load time. UCX changes the
    // list only when a library of UCX is loaded or unloaded, which does not happen now.
    unsafe { append(head, &mut entry.list) };
    listed.push(head.addr().get());
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

/// Appends the link to the list.
///
/// # Safety
/// `head` must be the head of an intact list that no other code changes meanwhile, and `link` must
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
fn parser(symbol: &Symbols<'_>, kind: Kind) -> std::option::Option<Parser> {
    let symbol = |name| symbol(name).map(|address| address.as_ptr().cast_const());
    let (read, write, clone, arg) = match kind {
        Kind::Bool => (
            c"ucs_config_sscanf_bool",
            c"ucs_config_sprintf_bool",
            c"ucs_config_clone_int",
            c"<y|n>".as_ptr().cast(),
        ),
        Kind::Uint { .. } => (
            c"ucs_config_sscanf_uint",
            c"ucs_config_sprintf_uint",
            c"ucs_config_clone_uint",
            c"unsigned integer".as_ptr().cast(),
        ),
        Kind::Time => (
            c"ucs_config_sscanf_time",
            c"ucs_config_sprintf_time",
            c"ucs_config_clone_double",
            c"time value: <number>[m|s|ms|us|ns]".as_ptr().cast(),
        ),
        Kind::Bytes => (
            c"ucs_config_sscanf_memunits",
            c"ucs_config_sprintf_memunits",
            c"ucs_config_clone_ulong",
            c"memory units: <number>[b|kb|mb|gb]".as_ptr().cast(),
        ),
        Kind::String => (
            c"ucs_config_sscanf_string",
            c"ucs_config_sprintf_string",
            c"ucs_config_clone_string",
            c"string".as_ptr().cast(),
        ),
        Kind::Word(words) => (
            c"ucs_config_sscanf_enum",
            c"ucs_config_sprintf_enum",
            c"ucs_config_clone_uint",
            words.as_ptr().cast(),
        ),
    };
    let help = match kind {
        Kind::Word(_) => c"ucs_config_help_enum",
        _ => c"ucs_config_help_generic",
    };
    let release = match kind {
        Kind::String => c"ucs_config_release_string",
        _ => c"ucs_config_release_nop",
    };
    Some(Parser {
        read: symbol(read)?,
        write: symbol(write)?,
        clone: symbol(clone)?,
        release: symbol(release)?,
        help: symbol(help)?,
        doc: symbol(c"ucs_config_doc_nop")?,
        arg,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

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
