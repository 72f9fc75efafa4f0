//! The definition of a C function that an interposer hides.

use std::ffi::{CStr, c_void};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, Ordering};

/// The next definition of one function, looked up once.
pub(crate) struct Next {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl Next {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Next {
            name,
            address: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Its address; None if no other library defines it. Works before constructors run. Several
    /// threads may call it at once and get the same result.
    pub(crate) fn address(&self) -> Option<NonNull<c_void>> {
        let known = NonNull::new(self.address.load(Ordering::Acquire));
        known.or_else(|| {
            // SAFETY: the name is a C string; RTLD_NEXT is allowed in a shared object.
            let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
            self.address.store(found, Ordering::Release);
            NonNull::new(found)
        })
    }
}

/// The C library's own definition of `name`, independent of other libraries' definitions. For the
/// few functions that other libraries wrap in order to refuse calls, such as `sigaction` in UCX
/// 1.18 for the signals that UCX handles.
pub(crate) fn of_libc(name: &'static CStr) -> Option<NonNull<c_void>> {
    // SAFETY: the file name is a C string. NOLOAD returns only loaded libraries. The C library is
    // always loaded, so the handle need not be closed.
    let handle =
        unsafe { libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    let handle = NonNull::new(handle)?;
    // SAFETY: the handle is valid and the name is a C string.
    NonNull::new(unsafe { libc::dlsym(handle.as_ptr(), name.as_ptr()) })
}

/// `next!(fn close(c_int) -> c_int)` is the next definition of `close` as an `Option` of a function
/// pointer. The types must be those of the C declaration. `next!(extern "C-unwind" fn ...)` is for a
/// function in which a thread can be cancelled: cancellation unwinds the stack.
macro_rules! next {
    (fn $($rest:tt)*) => { $crate::next::next!(extern "C" fn $($rest)*) };
    (extern $abi:literal fn $name:ident($($argument:ty),* $(,)?) -> $result:ty) => {{
        static NEXT: $crate::next::Next = $crate::next::Next::new(
            match ::std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes())
            {
                Ok(name) => name,
                Err(_) => panic!("a name of a function has no NUL"),
            },
        );
        NEXT.address().map(|address| {
            // SAFETY: the address is that of the C function with this name, and the given types are
            // those of its declaration.
            unsafe {
                ::std::mem::transmute::<
                    ::std::ptr::NonNull<::std::ffi::c_void>,
                    unsafe extern $abi fn($($argument),*) -> $result,
                >(address)
            }
        })
    }};
}

/// Like [`next!`], but returns `$failed` with ENOSYS from the enclosing function if there is no
/// next definition.
macro_rules! next_or {
    ($failed:expr, $($function:tt)*) => {
        match $crate::next::next!($($function)*) {
            Some(next) => next,
            None => {
                $crate::call::set_errno(::bf_emu::sys::Errno(::libc::ENOSYS));
                return $failed;
            }
        }
    };
}

pub(crate) use {next, next_or};
