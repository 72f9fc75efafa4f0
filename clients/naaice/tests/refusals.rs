//! What the C interface refuses before it needs a device: the error names what, where, and what to do.

use naaice::abi::{NaaHandle, NaaParam, NaaStatus};
use naaice::capi::low_level::{
    naaice_disconnect_and_cleanup, naaice_do_data_transfer, naaice_set_immediate,
};
use naaice::capi::middleware::{naa_create, naa_finalize, naa_invoke, naa_test, naa_wait};
use naaice::capi::naaice_last_error;
use std::ffi::{CStr, c_uint};
use std::ptr;

fn last_error() -> String {
    // SAFETY: the text is valid until this thread's next call.
    unsafe { CStr::from_ptr(naaice_last_error()) }
        .to_string_lossy()
        .into_owned()
}

fn handle() -> NaaHandle {
    NaaHandle {
        function_code: 0,
        comm_ctx: ptr::null_mut(),
    }
}

#[track_caller]
fn refused(code: u32, inputs: &mut [NaaParam], outputs: &mut [NaaParam], expect: &str) {
    let mut handle = handle();
    let count = |params: &[NaaParam]| c_uint::try_from(params.len()).expect("a few");
    let (n_in, n_out) = (count(inputs), count(outputs));
    // SAFETY: the arrays have these lengths, and the handle is writable.
    let created = unsafe {
        naa_create(
            code,
            inputs.as_mut_ptr(),
            n_in,
            outputs.as_mut_ptr(),
            n_out,
            &raw mut handle,
        )
    };
    assert_eq!(created, -1);
    let error = last_error();
    assert!(
        error.starts_with(&format!("naa_create: {expect}")),
        "{error}"
    );
    assert!(
        handle.comm_ctx.is_null(),
        "a refused session has no context"
    );
}

fn param(addr: *mut u8, size: usize) -> NaaParam {
    NaaParam {
        addr: addr.cast(),
        size,
        single_send: false,
    }
}

/// One test: `NAA_SPEC` belongs to the whole process.
#[test]
fn what_cannot_be_a_session_is_refused() {
    let mut memory = vec![0_u8; 4096];
    let at = memory.as_mut_ptr();
    let mut good = [param(at, 64)];
    refused(0, &mut good, &mut [], "function code 0: codes are 1 to 127");
    refused(
        128,
        &mut good,
        &mut [],
        "function code 128: codes are 1 to 127",
    );
    refused(1, &mut [], &mut [], "no regions");
    refused(
        1,
        &mut [param(at, 0)],
        &mut [],
        "input 0: the size is 0 bytes",
    );
    refused(
        1,
        &mut [param(ptr::null_mut(), 8)],
        &mut [],
        "input 0: the address is NULL",
    );
    refused(
        1,
        &mut [param(at, 1 << 32)],
        &mut [],
        "input 0: 4294967296 bytes",
    );
    let overlapping = param(at.wrapping_add(32), 64);
    refused(
        1,
        &mut good,
        &mut [overlapping],
        "input 0 and output 0 overlap",
    );
    let mut many: Vec<NaaParam> = (0..33)
        .map(|n| param(at.wrapping_add(n * 64), 64))
        .collect();
    refused(1, &mut many, &mut [], "33 regions: the maximum is 32");

    // SAFETY: no other thread reads the environment: this is the only test of this process.
    unsafe { std::env::remove_var("NAA_SPEC") };
    refused(
        1,
        &mut good,
        &mut [],
        "NAA_SPEC: entry 1, field 1 (address), column 1: not set",
    );
    for (spec, expect) in [
        (
            "10.0.0.1:12345:1:1,10.0.0.2:port:1:1",
            "NAA_SPEC: entry 2, field 2 (port), column 29: 'port'",
        ),
        (
            "10.0.0.1::2:1",
            "no accelerator for function 1: NAA_SPEC has no entry for it",
        ),
        (
            "10.0.0.1::1:2",
            "1 inputs; NAA_SPEC says that function 1 of 10.0.0.1:12345 takes 2",
        ),
    ] {
        // SAFETY: as above.
        unsafe { std::env::set_var("NAA_SPEC", spec) };
        refused(1, &mut good, &mut [], expect);
    }

    let mut none = handle();
    let mut flag = false;
    let mut status = NaaStatus {
        state: 0,
        naa_error: 0,
        bytes_received: 0,
    };
    let no_session = "the pointer is NULL";
    // SAFETY: the handle has no session; all pointers are valid or null, which the functions check.
    unsafe {
        assert_eq!(naa_invoke(&raw mut none), -1);
        assert!(last_error().contains(no_session), "{}", last_error());
        assert_eq!(naa_test(&raw mut none, &raw mut flag, &raw mut status), -1);
        assert_eq!(naa_wait(&raw mut none, &raw mut status), -1);
        assert_eq!(naa_finalize(&raw mut none), -1);
        assert!(last_error().contains(no_session), "{}", last_error());
        assert_eq!(naa_finalize(ptr::null_mut()), -1);
        assert!(last_error().contains("handle is NULL"), "{}", last_error());
        assert_eq!(
            naa_test(&raw mut none, ptr::null_mut(), &raw mut status),
            -1
        );
        assert!(last_error().contains("flag is NULL"), "{}", last_error());
        assert_eq!(naaice_do_data_transfer(ptr::null_mut()), -1);
        let stranger = memory.as_mut_ptr().cast();
        assert_eq!(naaice_disconnect_and_cleanup(stranger), -1);
        assert!(last_error().contains("no live session"), "{}", last_error());
        assert_eq!(naaice_set_immediate(stranger, ptr::null()), -1);
    }
}
