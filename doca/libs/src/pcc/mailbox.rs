//! The mailbox: a request of the host, which the program on the DPA answers.

use super::Pcc;
use crate::error::{Code, Result, call, fail};
use crate::object::{check_place, find};
use std::cell::UnsafeCell;
use std::ffi::c_void;

/// Most bytes of a request, and of a response.
pub(super) const BYTES_MAX: u32 = 64 << 10;

/// Memory that the program writes and reads between two calls.
#[derive(Debug)]
struct Buffer(Box<[UnsafeCell<u8>]>);

impl Buffer {
    fn new(bytes: u32) -> Self {
        Self((0..bytes).map(|_| UnsafeCell::new(0)).collect())
    }

    fn pointer(&self) -> *mut u8 {
        self.0.as_ptr().cast_mut().cast()
    }
}

/// The buffers of a mailbox.
#[derive(Debug)]
pub(super) struct Mailbox {
    request: Buffer,
    response: Buffer,
}

impl Mailbox {
    pub(super) fn new(request: u32, response: u32) -> Result<Self> {
        if request == 0 || request.max(response) > BYTES_MAX {
            fail!(
                InvalidValue,
                "a mailbox for requests of {request} bytes and responses of {response}: the first is 1 to {BYTES_MAX}, the \
                 second at most that"
            );
        }
        Ok(Self {
            request: Buffer::new(request),
            response: Buffer::new(response),
        })
    }

    pub(super) fn sizes(&self) -> (usize, usize) {
        (self.request.0.len(), self.response.0.len())
    }

    /// The first bytes of the request.
    fn taken(&self, bytes: usize) -> Vec<u8> {
        let mut request = vec![0; bytes];
        // SAFETY: the buffer has at least so many bytes, as the caller has checked. The program does not write it during a
        // call of the library.
        unsafe {
            request
                .as_mut_ptr()
                .copy_from(self.request.pointer(), bytes)
        };
        request
    }

    fn put(&self, response: &[u8]) {
        let bytes = response.len().min(self.response.0.len());
        // SAFETY: inside the buffer. The program does not use it during a call of the library.
        unsafe { self.response.pointer().copy_from(response.as_ptr(), bytes) };
    }
}

fn none<T>() -> Result<T> {
    fail!(
        BadState,
        "the PCC context has no mailbox: call doca_pcc_set_mailbox before the start"
    )
}

fn buffer(
    name: &'static str,
    pcc: *mut Pcc,
    place: *mut *mut c_void,
    which: fn(&Mailbox) -> &Buffer,
) -> Code {
    call(name, || {
        check_place(place)?;
        let pcc = find(pcc)?;
        let config = pcc.config.enter()?;
        let Some(mailbox) = &config.mailbox else {
            return none();
        };
        // SAFETY: checked above, and writable by contract.
        unsafe { place.write(which(mailbox).pointer().cast()) };
        Ok(())
    })
}

/// `doca_pcc_mailbox_get_request_buffer`.
///
/// # Safety
/// `place` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_pcc_mailbox_get_request_buffer(
    pcc: *mut Pcc,
    place: *mut *mut c_void,
) -> Code {
    let name = "doca_pcc_mailbox_get_request_buffer";
    buffer(name, pcc, place, |mailbox| &mailbox.request)
}

/// `doca_pcc_mailbox_get_response_buffer`.
///
/// # Safety
/// `place` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_pcc_mailbox_get_response_buffer(
    pcc: *mut Pcc,
    place: *mut *mut c_void,
) -> Code {
    let name = "doca_pcc_mailbox_get_response_buffer";
    buffer(name, pcc, place, |mailbox| &mailbox.response)
}

/// `doca_pcc_mailbox_send`.
///
/// # Safety
/// The pointers are NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_pcc_mailbox_send(
    pcc: *mut Pcc,
    request_size: u32,
    response_size: *mut u32,
    status: *mut u32,
) -> Code {
    call("doca_pcc_mailbox_send", || {
        check_place(response_size)?;
        check_place(status)?;
        let pcc = find(pcc)?;
        let config = pcc.config.enter()?;
        let running = pcc.alive()?;
        let Some(mailbox) = &config.mailbox else {
            return none();
        };
        let (most, response_most) = mailbox.sizes();
        if request_size == 0 || request_size as usize > most {
            fail!(
                InvalidValue,
                "a request of {request_size} bytes: the mailbox has 1 to {most}"
            );
        }
        let request = mailbox.taken(request_size as usize);
        let (code, response) = running.send(&config, &request, response_most)?;
        mailbox.put(&response);
        // SAFETY: checked above, and writable by contract.
        unsafe {
            response_size.write(u32::try_from(response.len()).unwrap_or_default());
            status.write(code);
        }
        Ok(())
    })
}
