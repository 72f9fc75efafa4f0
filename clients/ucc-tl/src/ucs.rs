//! UCS's structure of options, which UCC's tables consist of.

use std::ffi::{CStr, c_char, c_void};
use std::ptr::null;

/// `ucs_config_parser_t`, with the functions as addresses.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Parser {
    pub(crate) read: *const c_void,
    pub(crate) write: *const c_void,
    pub(crate) clone: *const c_void,
    pub(crate) release: *const c_void,
    pub(crate) help: *const c_void,
    pub(crate) doc: *const c_void,
    pub(crate) argument: *const c_void,
}

/// `ucs_config_field_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Field {
    pub(crate) name: *const c_char,
    pub(crate) default: *const c_char,
    pub(crate) doc: *const c_char,
    pub(crate) offset: usize,
    pub(crate) parser: Parser,
}

impl Field {
    /// Whether the option has this name.
    pub(crate) fn is_called(&self, name: &CStr) -> bool {
        // SAFETY: names are constant texts; only the end of a table has null.
        !self.name.is_null() && unsafe { CStr::from_ptr(self.name) } == name
    }

    /// The end of a table.
    pub(crate) const END: Self = Self {
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
            argument: null(),
        },
    };
}
