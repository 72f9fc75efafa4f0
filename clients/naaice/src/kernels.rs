//! Kernels of an accelerator: a shared object that exports `match_function_code`, as the original's kernels do.

use crate::abi::{
    CommContext, CommContext2, Kernel, MatchFunctionCode, MrInternal, MrLocal, MrPeer, code,
};
use crate::error::{NaaError, Result};
use crate::machine::State;
use crate::wire::flag;
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use std::path::Path;
use std::ptr;

/// The exported function.
const NAME: &[u8] = b"match_function_code\0";

/// The exported function of kernels with interface 2.
const NEWER_NAME: &[u8] = b"match_function_code_2\0";

/// A loaded shared object. It stays loaded: a kernel may have started threads.
#[derive(Debug)]
pub struct Kernels {
    find: MatchFunctionCode,
    /// The kernels expect [`CommContext2`].
    is_newer: bool,
}

impl Kernels {
    /// Loads the shared object.
    ///
    /// # Errors
    /// If it cannot be loaded, or does not export `match_function_code`.
    pub fn open(path: &Path) -> Result<Self> {
        let wrong = |reason: String| NaaError::Kernels {
            path: path.display().to_string(),
            reason,
        };
        // SAFETY: the operator names the file; its constructors are part of the kernels, which this process runs
        // anyway.
        let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }
            .map_err(|error| wrong(cause(&error)))?;
        // SAFETY: the name has this type in the documented interface.
        let newer = unsafe { library.get::<MatchFunctionCode>(NEWER_NAME) }.map(|symbol| *symbol);
        let is_newer = newer.is_ok();
        // SAFETY: as above.
        let find = newer
            .or_else(|_| unsafe { library.get(NAME) }.map(|symbol| *symbol))
            .map_err(|error| {
                wrong(format!(
                    "{}; export int match_function_code(uint8_t, void (**)(struct naaice_communication_context *))",
                    cause(&error)
                ))
            })?;
        std::mem::forget(library);
        Ok(Self { find, is_newer })
    }

    /// The kernel of a function code.
    #[must_use]
    pub fn find(&self, function: u8) -> Option<Kernel> {
        // SAFETY: the function of the open shared object, with the documented contract.
        unsafe { find(self.find, function) }
    }
}

/// Asks `match_function_code` for a kernel.
///
/// # Safety
/// The function has the documented contract.
pub(crate) unsafe fn find(ask: MatchFunctionCode, function: u8) -> Option<Kernel> {
    let mut kernel = None;
    // SAFETY: the caller's promise, and the result can be written.
    let answer = unsafe { ask(function, &raw mut kernel) };
    kernel.filter(|_| answer == 0)
}

/// Runs a kernel in this thread. Returns the code that the caller receives.
///
/// # Safety
/// The kernel has the documented contract, and the context's regions are mapped.
pub unsafe fn run(kernel: Option<Kernel>, context: &mut CommContext) -> u8 {
    let Some(kernel) = kernel else {
        return code::UNKNOWN_FUNCTION;
    };
    context.naa_returncode = code::SUCCESS;
    // SAFETY: the caller's promise.
    unsafe { kernel(context) };
    code::of_kernel(context.naa_returncode)
}

/// As [`run`], for a kernel with interface 2.
///
/// # Safety
/// As for [`run`].
pub(crate) unsafe fn run_newer(kernel: Option<Kernel>, context: &mut CommContext2) -> u8 {
    let Some(kernel) = kernel else {
        return code::UNKNOWN_FUNCTION;
    };
    context.response_user_immediate = 0;
    // SAFETY: the caller's promise.
    unsafe { kernel(ptr::from_mut(context).cast()) };
    code::of_kernel(u8::try_from(context.response_user_immediate).unwrap_or(u8::MAX))
}

/// A region of a call, as a kernel sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelRegion {
    /// First byte in this process.
    pub addr: *mut u8,
    /// Size in bytes.
    pub size: usize,
    /// See [`flag`].
    pub flags: u8,
}

/// Runs the kernel of a function on regions of this process, without a connection.
///
/// # Safety
/// The kernels have the documented contract. The regions are mapped, and nobody else accesses them during the call.
#[must_use]
pub unsafe fn run_on(kernels: &Kernels, function: u8, user: u32, regions: &[KernelRegion]) -> u8 {
    let mut local = Vec::with_capacity(regions.len());
    let mut peers = Vec::with_capacity(regions.len());
    let mut internal = Vec::new();
    for region in regions {
        if region.flags & flag::INTERNAL != 0 {
            internal.push(MrInternal {
                addr: region.addr as u64,
                size: region.size,
            });
            continue;
        }
        let is = |wanted: u8| region.flags & wanted != 0;
        local.push(MrLocal {
            ibv: std::ptr::null_mut(),
            addr: region.addr.cast(),
            size: region.size,
            to_write: is(flag::OUTPUT),
            single_send: is(flag::SINGLE_SEND),
        });
        peers.push(MrPeer {
            addr: 0,
            rkey: 0,
            size: region.size,
            to_write: is(flag::INPUT),
            single_send: is(flag::SINGLE_SEND),
        });
    }
    let count = |n: usize| u8::try_from(n).unwrap_or(u8::MAX);
    let mut context = CommContext::unconnected();
    context.state = State::Calculating as i32;
    context.fncode = function;
    context.immediate = user.to_le_bytes();
    context.no_rpc_calls = 1;
    context.no_local_mrs = count(local.len());
    context.no_peer_mrs = count(peers.len());
    context.no_internal_mrs = count(internal.len());
    context.no_input_mrs = count(peers.iter().filter(|peer| peer.to_write).count());
    context.no_output_mrs = count(local.iter().filter(|region| region.to_write).count());
    context.mr_local_data = local.as_mut_ptr();
    context.mr_peer_data = peers.as_mut_ptr();
    context.mr_internal = internal.as_mut_ptr();
    let kernel = kernels.find(function);
    // SAFETY: the caller's promise; the arrays live until the end of this function.
    unsafe {
        match kernels.is_newer {
            true => run_newer(kernel, &mut CommContext2::of(&context, 0)),
            false => run(kernel, &mut context),
        }
    }
}

fn cause(error: &libloading::Error) -> String {
    use std::error::Error as _;
    error
        .source()
        .map_or_else(|| error.to_string(), ToString::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_no_shared_object_is_refused_by_name() {
        let error = Kernels::open(Path::new("/etc/hostname-that-is-absent")).expect_err("absent");
        let text = error.to_string();
        assert!(
            text.starts_with("kernels of /etc/hostname-that-is-absent: "),
            "{text}"
        );
    }
}
