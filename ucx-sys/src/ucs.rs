//! UCS's option tables and log, for libraries that a UCX or a UCC has loaded.
//!
//! [`Parser`], [`Field`] and [`Entry`] have the layouts of `ucs/config/parser.h` with functions as addresses, because a table
//! names parsers of the loaded UCS. The layouts are compared with the generated ones when the crate is compiled.

use crate::{ucs_config_field_t, ucs_config_global_list_entry_t, ucs_config_parser_t};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::{offset_of, size_of};
use std::ptr::{NonNull, null, null_mut};

/// Looks up a symbol of the loaded UCS.
pub type Symbols<'a> = dyn Fn(&CStr) -> Option<NonNull<c_void>> + 'a;

/// `ucs_config_parser_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "the names are UCS's")]
pub struct Parser {
    pub read: *const c_void,
    pub write: *const c_void,
    pub clone: *const c_void,
    pub release: *const c_void,
    pub help: *const c_void,
    pub doc: *const c_void,
    pub arg: *const c_void,
}

/// Type of an option's value.
#[derive(Clone, Copy, Debug)]
pub enum Value {
    /// `y` or `n`; an `int`.
    Bool,
    /// An unsigned integer; an `unsigned`.
    Uint,
    /// A number with a unit; seconds in a `double`.
    Time,
    /// Bytes with a unit; a `size_t`.
    Bytes,
    /// Any text; a `char *` that UCS has allocated.
    Text,
    /// One word of a list that ends with a null pointer; its index, in an `unsigned`.
    Word(*const *const c_char),
}

impl Parser {
    /// UCS's parser of a value (the `UCS_CONFIG_TYPE_*` of `ucs/config/parser.h`); `None` if this UCS lacks one of its functions.
    pub fn of(value: Value, symbol: &Symbols<'_>) -> Option<Self> {
        let (read, write, clone, arg) = match value {
            Value::Bool => (
                c"ucs_config_sscanf_bool",
                c"ucs_config_sprintf_bool",
                c"ucs_config_clone_int",
                c"<y|n>".as_ptr().cast(),
            ),
            Value::Uint => (
                c"ucs_config_sscanf_uint",
                c"ucs_config_sprintf_uint",
                c"ucs_config_clone_uint",
                c"unsigned integer".as_ptr().cast(),
            ),
            Value::Time => (
                c"ucs_config_sscanf_time",
                c"ucs_config_sprintf_time",
                c"ucs_config_clone_double",
                c"time value: <number>[m|s|ms|us|ns]".as_ptr().cast(),
            ),
            Value::Bytes => (
                c"ucs_config_sscanf_memunits",
                c"ucs_config_sprintf_memunits",
                c"ucs_config_clone_ulong",
                c"memory units: <number>[b|kb|mb|gb]".as_ptr().cast(),
            ),
            Value::Text => (
                c"ucs_config_sscanf_string",
                c"ucs_config_sprintf_string",
                c"ucs_config_clone_string",
                c"string".as_ptr().cast(),
            ),
            Value::Word(words) => (
                c"ucs_config_sscanf_enum",
                c"ucs_config_sprintf_enum",
                c"ucs_config_clone_uint",
                words.cast(),
            ),
        };
        let help = match value {
            Value::Word(_) => c"ucs_config_help_enum",
            _ => c"ucs_config_help_generic",
        };
        let release = match value {
            Value::Text => c"ucs_config_release_string",
            _ => c"ucs_config_release_nop",
        };
        let symbol = |name| symbol(name).map(|address| address.as_ptr().cast_const());
        Some(Self {
            read: symbol(read)?,
            write: symbol(write)?,
            clone: symbol(clone)?,
            release: symbol(release)?,
            help: symbol(help)?,
            doc: symbol(c"ucs_config_doc_nop")?,
            arg,
        })
    }
}

/// `ucs_config_field_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "the names are UCS's")]
pub struct Field {
    pub name: *const c_char,
    pub default: *const c_char,
    pub doc: *const c_char,
    pub offset: usize,
    pub parser: Parser,
}

impl Field {
    /// The end of a table.
    pub const END: Self = Self {
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

    /// An option.
    #[must_use]
    pub const fn new(
        [name, default, doc]: [&'static CStr; 3],
        offset: usize,
        parser: Parser,
    ) -> Self {
        Self {
            name: name.as_ptr(),
            default: default.as_ptr(),
            doc: doc.as_ptr(),
            offset,
            parser,
        }
    }
}

/// `ucs_list_link_t`.
#[derive(Debug)]
#[repr(C)]
pub struct Link {
    prev: *mut Link,
    next: *mut Link,
}

impl Link {
    /// Outside any list.
    pub const UNLINKED: Self = Self {
        prev: null_mut(),
        next: null_mut(),
    };

    /// Appends the link to a list.
    ///
    /// # Safety
    /// `head` must be the head of an intact list that no other code changes meanwhile. `link` must be writable and live, without
    /// a move, as long as the list.
    pub unsafe fn append(link: *mut Self, head: NonNull<Self>) {
        let head = head.as_ptr();
        // SAFETY: by the contract, the head can be read.
        let last = unsafe { (*head).prev };
        let value = Self {
            prev: last,
            next: head,
        };
        // SAFETY: by the contract, the link can be written.
        unsafe { link.write(value) };
        // SAFETY: by the contract, the last element can be written; in an empty list it is the head.
        unsafe { (*last).next = link };
        // SAFETY: by the contract, the head can be written.
        unsafe { (*head).prev = link };
    }
}

/// `ucs_config_global_list_entry_t`.
#[derive(Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "the names are UCS's")]
pub struct Entry {
    pub name: *const c_char,
    pub prefix: *const c_char,
    pub table: *const Field,
    pub size: usize,
    pub list: Link,
    pub flags: u8,
}

/// `ucs_log_component_config_t` (`ucs/config/types.h`).
#[derive(Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "the names are UCS's")]
pub struct LogComponent {
    pub level: c_int,
    pub name: [u8; 16],
    pub file_filter: *const c_char,
}

/// `ucs_log_dispatch` (`ucs/debug/log_def.h`).
pub type LogDispatch = unsafe extern "C" fn(
    *const c_char,
    c_uint,
    *const c_char,
    c_uint,
    *mut LogComponent,
    *const c_char,
    ...
);

/// Compares layouts with the generated ones.
macro_rules! same {
    ($($ours:ident $theirs:ident { $($field:ident $their:ident),* })*) => {$(
        const _: () = assert!(size_of::<$ours>() == size_of::<$theirs>());
        $(const _: () = assert!(offset_of!($ours, $field) == offset_of!($theirs, $their));)*
    )*};
}
same! {
    Parser ucs_config_parser_t {
        read read, write write, clone clone, release release, help help, doc doc, arg arg
    }
    Field ucs_config_field_t { name name, default dfl_value, doc doc, offset offset, parser parser }
    Entry ucs_config_global_list_entry_t {
        name name, prefix prefix, table table, size size, list list, flags flags
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_goes_to_the_end_of_the_list() {
        let mut head = Link::UNLINKED;
        let at = NonNull::from(&mut head);
        head.prev = at.as_ptr();
        head.next = at.as_ptr();
        let (mut first, mut second) = (Link::UNLINKED, Link::UNLINKED);
        let (first, second) = (&raw mut first, &raw mut second);
        for link in [first, second] {
            // SAFETY: the list is this function's own, and its links outlive its use.
            unsafe { Link::append(link, at) };
        }
        assert_eq!((head.next, head.prev), (first, second));
        // SAFETY: both links are alive.
        let (next, prev) = unsafe { ((*first).next, (*second).prev) };
        assert_eq!((next, prev), (second, first));
    }

    #[test]
    fn a_parser_needs_all_its_functions() {
        let known = |name: &CStr| {
            let is_absent = name == c"ucs_config_sprintf_time";
            (!is_absent).then_some(NonNull::dangling())
        };
        assert!(Parser::of(Value::Text, &known).is_some());
        assert!(Parser::of(Value::Time, &known).is_none());
    }
}
