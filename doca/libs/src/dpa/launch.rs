//! Kernels and remote calls.

use super::{Core, Dpa, failed};
use crate::error::{Code, Result, call, fail};
use crate::object::find;
use crate::sync_event::{Event, Launched};
use flexio::{Done, DoneOperation, Function, Launch, Wait};
use std::ffi::c_void;
use std::sync::Arc;

/// Largest threshold and largest value of an event of a launch.
const VALUE_MAX: u64 = 254;

/// The packed arguments of a function.
///
/// # Safety
/// The list has the arguments of the function.
unsafe fn pack(function: &Function, list: *mut c_void) -> Vec<u8> {
    // Words, so that the buffer has their alignment.
    let mut words = vec![0_u64; function.argument_bytes.div_ceil(8)];
    if let Some(pack) = function.pack {
        // SAFETY: the buffer has the bytes that dpacc has registered, and the caller passes the arguments.
        unsafe { pack(words.as_mut_ptr().cast(), list) };
    }
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    bytes.truncate(function.argument_bytes);
    bytes
}

/// The named arguments of a launch.
struct Named {
    dpa: *const Dpa,
    wait: *const Event,
    threshold: u64,
    done: *const Event,
    value: u64,
    threads: u32,
    stub: usize,
}

impl Named {
    /// # Safety
    /// The pointers are those of `flexio::variadic` for seven named arguments.
    unsafe fn read(registers: *const u64, stack: *const u64) -> Self {
        // SAFETY: six registers, as the caller promises.
        let register = |at: usize| unsafe { registers.add(at).read() };
        let address = |word: u64| usize::try_from(word).unwrap_or_default();
        // The upper half of the register of an unsigned int is not defined.
        let threads = (register(5) & 0xffff_ffff) as u32;
        Self {
            dpa: std::ptr::with_exposed_provenance(address(register(0))),
            wait: std::ptr::with_exposed_provenance(address(register(1))),
            threshold: register(2),
            done: std::ptr::with_exposed_provenance(address(register(3))),
            value: register(4),
            threads,
            // SAFETY: the seventh argument is the first on the stack.
            stub: address(unsafe { stack.read() }),
        }
    }
}

/// # Safety
/// The list has the arguments of the kernel.
unsafe fn launch(named: &Named, operation: DoneOperation, list: *mut c_void) -> Result<()> {
    Dpa::work(named.dpa, |core| {
        // SAFETY: as the caller promises.
        unsafe { launch_on(core, named, operation, list) }
    })
}

/// # Safety
/// As [`launch`].
unsafe fn launch_on(
    core: &Arc<Core>,
    named: &Named,
    operation: DoneOperation,
    list: *mut c_void,
) -> Result<()> {
    let most = core.process().limits().units;
    if named.threads == 0 || named.threads > most {
        fail!(
            InvalidValue,
            "{} threads: a launch has 1 to {most}",
            named.threads
        );
    }
    for (what, value) in [
        ("wait threshold", named.threshold),
        ("value of the completion event", named.value),
    ] {
        if value > VALUE_MAX {
            fail!(
                InvalidValue,
                "{value} is above {VALUE_MAX}, the largest {what}"
            );
        }
    }
    let function = core.function(named.stub)?;
    let event = |pointer: *const Event| (!pointer.is_null()).then(|| find(pointer)).transpose();
    let (wait, done) = (event(named.wait)?, event(named.done)?);
    let wait_word = wait
        .as_ref()
        .map(|event| event.wait_word(core, named.threshold, &function.name))
        .transpose()?;
    let done_word = done
        .as_ref()
        .map(|event| event.done_word(core))
        .transpose()?;
    // SAFETY: as the caller promises.
    let arguments = unsafe { pack(&function, list) };
    let launched = core.process().launch(&Launch {
        function: &function,
        arguments: &arguments,
        threads: named.threads,
        wait: wait_word.map(|word| Wait {
            word,
            mask: u64::MAX,
            above: named.threshold,
        }),
        done: done_word.map(|word| Done {
            word,
            operation,
            value: named.value,
        }),
    });
    launched.map_err(|error| explained(core, error))?;
    if let Some(done) = done {
        done.promise(match operation {
            DoneOperation::Set => Launched::Set(named.value),
            DoneOperation::Add => Launched::Add(named.value),
        });
    }
    core.drain();
    Ok(())
}

/// The fault of the process, if a call fails because of one.
fn explained(core: &Core, error: flexio::Error) -> crate::error::Fault {
    let fault = failed(error);
    if fault.code == Code::DeviceFatalError {
        core.drain();
        return core.check().err().unwrap_or(fault);
    }
    fault
}

/// Body of `doca_dpa_kernel_launch_update_set`.
///
/// # Safety
/// From the entry, with the arguments of the header.
unsafe extern "C" fn launch_set(
    registers: *const u64,
    stack: *const u64,
    list: *mut c_void,
) -> Code {
    call("doca_dpa_kernel_launch_update_set", || {
        // SAFETY: as the caller promises.
        unsafe {
            let named = Named::read(registers, stack);
            launch(&named, DoneOperation::Set, list)
        }
    })
}

/// Body of `doca_dpa_kernel_launch_update_add`.
///
/// # Safety
/// From the entry, with the arguments of the header.
unsafe extern "C" fn launch_add(
    registers: *const u64,
    stack: *const u64,
    list: *mut c_void,
) -> Code {
    call("doca_dpa_kernel_launch_update_add", || {
        // SAFETY: as the caller promises.
        unsafe {
            let named = Named::read(registers, stack);
            launch(&named, DoneOperation::Add, list)
        }
    })
}

/// Body of `doca_dpa_rpc`.
///
/// # Safety
/// The arguments are those of the header.
unsafe extern "C" fn rpc(dpa: *mut Dpa, stub: usize, result: *mut u64, list: *mut c_void) -> Code {
    call("doca_dpa_rpc", || {
        Dpa::work(dpa, |core| {
            let function = core.function(stub)?;
            // SAFETY: as the caller promises.
            let arguments = unsafe { pack(&function, list) };
            let returned = core.process().call(&function, &arguments);
            core.drain();
            let returned = returned.map_err(|error| explained(core, error))?;
            if !result.is_null() {
                // SAFETY: as the caller promises.
                unsafe { result.write(returned) };
            }
            Ok(())
        })
    })
}

flexio::variadic! {
    /// `doca_dpa_kernel_launch_update_set`.
    doca_dpa_kernel_launch_update_set, 7, launch_set
}
flexio::variadic! {
    /// `doca_dpa_kernel_launch_update_add`.
    doca_dpa_kernel_launch_update_add, 7, launch_add
}
flexio::variadic! {
    /// `doca_dpa_rpc`.
    doca_dpa_rpc, 3, rpc
}
