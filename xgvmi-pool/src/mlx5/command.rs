//! DEVX commands: encoding of the input, and errors with the adapter's status.

use std::ffi::c_void;
use std::io;
use std::ptr::NonNull;

use mlx5_prm::{Field, cmd};
use mlx5dv_sys::{Mlx5Lib, ibv_context, mlx5dv_devx_obj};

use crate::error::DeviceError;

/// A command's input. Fields that were not set are zero.
#[derive(Debug)]
pub(super) struct Mailbox<const BYTES: usize>([u8; BYTES]);

impl<const BYTES: usize> Mailbox<BYTES> {
    pub(super) fn new(opcode: u16) -> Self {
        let mut mailbox = Self([0; BYTES]);
        mailbox.set(cmd::OPCODE, opcode);
        mailbox
    }

    /// Sets a field.
    ///
    /// # Panics
    /// If the field lies beyond the end of the mailbox, which depends on constants of the program
    /// alone.
    pub(super) fn set(&mut self, field: Field, value: impl Into<u64>) {
        assert!(
            field.set(&mut self.0, value.into()),
            "{field:?} lies outside of {BYTES} bytes"
        );
    }

    /// Writes bytes at an offset.
    pub(super) fn put(&mut self, at: usize, bytes: &[u8]) {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    #[cfg(test)]
    pub(super) fn as_bytes(&self) -> &[u8; BYTES] {
        &self.0
    }

    fn as_ptr(&self) -> *const c_void {
        self.0.as_ptr().cast()
    }
}

/// Executes a command that creates no object, and returns its answer.
///
/// # Errors
/// If the kernel or the adapter refuses it.
///
/// # Safety
/// `context` is a live DEVX context made by `lib`.
pub(super) unsafe fn run<const IN: usize, const OUT: usize>(
    lib: &Mlx5Lib,
    context: NonNull<ibv_context>,
    call: &'static str,
    object: impl FnOnce() -> String,
    input: &Mailbox<IN>,
) -> Result<[u8; OUT], DeviceError> {
    let mut output = [0u8; OUT];
    let out = output.as_mut_ptr().cast();
    // SAFETY: the context is live by the caller's promise; the mailboxes have the lengths given.
    let errno =
        unsafe { lib.mlx5dv_devx_general_cmd(context.as_ptr(), input.as_ptr(), IN, out, OUT) };
    match answer(&output, errno) {
        None => Ok(output),
        Some(refusal) => Err(refusal.into_error(call, object)),
    }
}

/// Executes a command that creates an object, and returns the object and the answer.
///
/// # Errors
/// If the kernel or the adapter refuses it. No object exists then.
///
/// # Safety
/// `context` is a live DEVX context made by `lib`.
pub(super) unsafe fn create<const IN: usize, const OUT: usize>(
    lib: &Mlx5Lib,
    context: NonNull<ibv_context>,
    call: &'static str,
    object: impl FnOnce() -> String,
    input: &Mailbox<IN>,
) -> Result<(NonNull<mlx5dv_devx_obj>, [u8; OUT]), DeviceError> {
    let mut output = [0u8; OUT];
    let out = output.as_mut_ptr().cast();
    // SAFETY: the context is live by the caller's promise; the mailboxes have the lengths given.
    let made =
        unsafe { lib.mlx5dv_devx_obj_create(context.as_ptr(), input.as_ptr(), IN, out, OUT) };
    match NonNull::new(made) {
        Some(made) => Ok((made, output)),
        None => {
            let errno = io::Error::last_os_error()
                .raw_os_error()
                .expect("it is an errno");
            let status = status_of(&output);
            Err(Refusal { status, errno }.into_error(call, object))
        }
    }
}

/// Destroys an object.
///
/// # Errors
/// If the kernel or the adapter refuses. The object and its handle then remain valid.
///
/// # Safety
/// `made` is an object that `lib` created and that was not destroyed.
pub(super) unsafe fn destroy(
    lib: &Mlx5Lib,
    made: NonNull<mlx5dv_devx_obj>,
    call: &'static str,
    object: impl FnOnce() -> String,
) -> Result<(), DeviceError> {
    // SAFETY: the caller's promise.
    let errno = unsafe { lib.mlx5dv_devx_obj_destroy(made.as_ptr()) };
    if errno == 0 {
        return Ok(());
    }
    Err(Refusal {
        status: (0, 0),
        errno,
    }
    .into_error(call, object))
}

/// Status and syndrome of an answer.
fn status_of(output: &[u8]) -> (u8, u32) {
    (cmd::STATUS.get8(output), cmd::SYNDROME.get32(output))
}

fn answer(output: &[u8], errno: i32) -> Option<Refusal> {
    let status = status_of(output);
    (errno != 0 || status.0 != cmd::status::OK).then_some(Refusal { status, errno })
}

struct Refusal {
    status: (u8, u32),
    errno: i32,
}

impl Refusal {
    fn into_error(self, call: &'static str, object: impl FnOnce() -> String) -> DeviceError {
        let Self {
            status: (status, syndrome),
            errno,
        } = self;
        if matches!(
            status,
            cmd::status::LIMITS_EXCEEDED | cmd::status::NO_RESOURCES
        ) {
            return DeviceError::LimitsExceeded { call, syndrome };
        }
        DeviceError::Refused {
            call,
            object: object(),
            status,
            syndrome,
            errno,
        }
    }
}
