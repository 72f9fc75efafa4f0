//! Stores of AArch64 to doorbell pages: executes the doorbell, and moves the thread behind the store. It
//! is part of the handler of SIGSEGV.
//!
//! A BlueFlame copy traps once for each of its stores. Only the first one is a doorbell.

use std::mem::offset_of;
use std::ptr;

use bf_emu::process::Process;
use bf_emu::trap::aarch64::{self, INSTRUCTION_BYTES, Registers};
use libc::{mcontext_t, ucontext_t};

use crate::complaint::complain;

/// Address of the thread's next instruction.
pub(crate) fn instruction(thread: &ucontext_t) -> Option<usize> {
    usize::try_from(thread.uc_mcontext.pc).ok()
}

/// Resumes the thread at another address.
pub(crate) fn go_on_at(thread: &mut ucontext_t, at: usize) {
    thread.uc_mcontext.pc = at as u64;
}

/// Executes the doorbell that the instruction at `at` writes to `address`. False if it is no doorbell, or is written in an
/// unknown way.
pub(crate) fn serve(process: &Process, address: usize, at: usize, thread: &mut ucontext_t) -> bool {
    // SAFETY: the thread has fetched this instruction. Instructions are aligned words.
    let code = unsafe { ptr::with_exposed_provenance::<u32>(at).read() };
    let known = aarch64::decode(code, &registers(thread)).filter(|store| {
        // The processor may report any byte of the store.
        (address as u64).wrapping_sub(store.address) < u64::from(store.width)
    });
    let Some(store) = known else {
        if process.doorbell(address, None).is_some() {
            complain(&code.to_le_bytes());
        }
        return false;
    };
    let Ok(first) = usize::try_from(store.address) else {
        return false;
    };
    if process.doorbell(first, store.value).is_none() {
        return false;
    }
    let context = &mut thread.uc_mcontext;
    if let Some((register, value)) = store.changed {
        match context.regs.get_mut(register) {
            Some(saved) => *saved = value,
            None => context.sp = value,
        }
    }
    go_on_at(thread, at + INSTRUCTION_BYTES);
    true
}

fn registers(thread: &ucontext_t) -> Registers {
    let context = &thread.uc_mcontext;
    let mut general = [0; 32];
    for (register, saved) in general.iter_mut().zip(&context.regs) {
        *register = *saved;
    }
    if let Some(last) = general.last_mut() {
        *last = context.sp;
    }
    Registers {
        general,
        vectors: vectors(context),
    }
}

/// The kernel's records of further state, after the general registers (`asm/sigcontext.h`): each begins with its kind and its
/// size.
const RECORDS_AT: usize = (offset_of!(mcontext_t, pstate) + 8).next_multiple_of(16);
const RECORDS_BYTES: usize = 4096;
/// Kind of the record of vector registers (`FPSIMD_MAGIC`), and their offset within it.
const VECTORS: (u32, usize) = (0x4650_8001, 16);

/// The vector registers v0 ... v31.
fn vectors(context: &mcontext_t) -> Option<[[u8; 16]; 32]> {
    let start = ptr::from_ref(context)
        .cast::<u8>()
        .wrapping_byte_add(RECORDS_AT);
    let mut at = 0_usize;
    while at + VECTORS.1 + size_of::<[[u8; 16]; 32]>() <= RECORDS_BYTES {
        let record = start.wrapping_byte_add(at);
        // SAFETY: the kernel's context of the running handler contains all bytes of this area.
        let [kind, size] = unsafe { record.cast::<[u32; 2]>().read_unaligned() };
        if kind == VECTORS.0 {
            // SAFETY: as above; the condition of the loop bounds it.
            return Some(unsafe {
                record
                    .wrapping_byte_add(VECTORS.1)
                    .cast::<[[u8; 16]; 32]>()
                    .read_unaligned()
            });
        }
        if kind == 0 || size == 0 {
            return None;
        }
        at += size as usize;
    }
    None
}
