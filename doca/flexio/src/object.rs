//! Device objects of DEVX, and their commands.

use crate::error::{Error, Result};
use crate::verbs::{Context, verbs};
use mlx5_prm::Field;
use mlx5_prm::cmd::{self, opcode, status};
use mlx5_prm::dpa;
use mlx5dv_sys::mlx5dv_devx_obj;
use std::io;

/// A command's input.
#[derive(Debug, Clone)]
pub(crate) struct Input {
    pub(crate) bytes: Vec<u8>,
}

impl Input {
    /// A command of `bytes` bytes.
    pub(crate) fn new(opcode: u16, bytes: usize) -> Self {
        let input = Self {
            bytes: vec![0; bytes],
        };
        input.with(cmd::OPCODE, opcode.into())
    }

    /// The creation of a general object.
    pub(crate) fn general(object_type: u16) -> Self {
        Self::new(opcode::CREATE_GENERAL_OBJECT, dpa::CREATE_IN_BYTES)
            .with(cmd::GENERAL_OBJECT_TYPE, object_type.into())
    }

    /// Sets a field. A value beyond it is the library's error.
    pub(crate) fn with(mut self, field: Field, value: u64) -> Self {
        let set = field.set(&mut self.bytes, value);
        debug_assert!(set, "{field:?} = {value:#x}");
        self
    }

    /// Fills fields. Values beyond the input are the library's error.
    pub(crate) fn filled(mut self, fill: impl FnOnce(&mut [u8]) -> bool) -> Self {
        let filled = fill(&mut self.bytes);
        debug_assert!(filled, "{} bytes", self.bytes.len());
        self
    }

    /// Appends bytes.
    pub(crate) fn and(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend_from_slice(bytes);
        self
    }
}

/// A device object. It is destroyed at the end.
#[derive(Debug)]
pub(crate) struct Object {
    raw: *mut mlx5dv_devx_obj,
}

// SAFETY: verbs objects may be used from any thread.
unsafe impl Send for Object {}
// SAFETY: as above.
unsafe impl Sync for Object {}

impl Object {
    /// Creates an object by a command. Returns the command's output too.
    ///
    /// # Safety
    /// The context is open, and stays so as long as the object.
    pub(crate) unsafe fn create(
        context: Context,
        input: &Input,
        output_bytes: usize,
    ) -> Result<(Self, Vec<u8>)> {
        let verbs = verbs()?;
        let mut output = vec![0; output_bytes];
        // SAFETY: the caller's promise, and two slices with their lengths.
        let raw = unsafe {
            verbs.mlx5dv_devx_obj_create(
                context.0,
                input.bytes.as_ptr().cast(),
                input.bytes.len(),
                output.as_mut_ptr().cast(),
                output.len(),
            )
        };
        if raw.is_null() {
            return Err(refusal(&io::Error::last_os_error(), &output));
        }
        Ok((Self { raw }, output))
    }

    /// A command that changes the object.
    pub(crate) fn modify(&self, input: &Input) -> Result<()> {
        let verbs = verbs()?;
        let mut output = [0; cmd::HEADER_BYTES];
        // SAFETY: an object of this value, and two slices with their lengths.
        let failed = unsafe {
            verbs.mlx5dv_devx_obj_modify(
                self.raw,
                input.bytes.as_ptr().cast(),
                input.bytes.len(),
                output.as_mut_ptr().cast(),
                output.len(),
            )
        };
        result(failed, &output)
    }

    /// A command that asks about the object.
    pub(crate) fn query(&self, input: &Input, output_bytes: usize) -> Result<Vec<u8>> {
        let verbs = verbs()?;
        let mut output = vec![0; output_bytes];
        // SAFETY: as above.
        let failed = unsafe {
            verbs.mlx5dv_devx_obj_query(
                self.raw,
                input.bytes.as_ptr().cast(),
                input.bytes.len(),
                output.as_mut_ptr().cast(),
                output.len(),
            )
        };
        result(failed, &output).map(|()| output)
    }
}

impl Object {
    /// Destroys the object. After a refusal it stays.
    pub(crate) fn destroy(&mut self) -> Result<()> {
        if self.raw.is_null() {
            return Ok(());
        }
        // SAFETY: an object of this value, which forgets it below.
        let failed = unsafe { verbs()?.mlx5dv_devx_obj_destroy(self.raw) };
        result(failed, &[])?;
        self.raw = std::ptr::null_mut();
        Ok(())
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        // What the device refuses ends with the context.
        let _ = self.destroy();
    }
}

/// libmlx5 returns the error number, or -1 with it in `errno`.
fn result(failed: i32, output: &[u8]) -> Result<()> {
    match failed {
        0 => Ok(()),
        errno if errno > 0 => Err(refusal(&io::Error::from_raw_os_error(errno), output)),
        errno if errno < -1 => Err(refusal(&io::Error::from_raw_os_error(-errno), output)),
        _ => Err(refusal(&io::Error::last_os_error(), output)),
    }
}

/// The error of a refused command.
fn refusal(error: &io::Error, output: &[u8]) -> Error {
    let status = output.first().copied().unwrap_or_default();
    match (status, error.raw_os_error()) {
        (0, Some(libc::EIO)) => {
            Error::fatal("the DPA is lost: what executes its programs has ended")
        }
        (0, _) => Error::failed(format!("the device refuses the command: {error}")),
        (status::BAD_SYS_STATE, _) => Error::fatal("the process on the DPA has ended"),
        (status, _) => Error::failed(format!(
            "the device refuses the command with status {status:#x} ({})",
            name(status)
        )),
    }
}

fn name(status: u8) -> &'static str {
    match status {
        status::BAD_OP => "no such command",
        status::BAD_PARAM => "bad parameter",
        status::BAD_RESOURCE => "no such object",
        status::RESOURCE_BUSY => "busy",
        status::LIMITS_EXCEEDED => "limit exceeded",
        status::BAD_RES_STATE => "wrong state of an object",
        status::NO_RESOURCES => "no resources",
        _ => "error",
    }
}
