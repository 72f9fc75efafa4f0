//! Stores of x86-64 to doorbell pages: executes the doorbell, and moves the thread behind the store. It
//! is part of the handler of SIGSEGV.

use std::ptr;
use std::slice;

use bf_emu::guard;
use bf_emu::process::{Process, Rung};
use bf_emu::trap::string::{self, Moves};
use bf_emu::trap::{self, INSTRUCTION_BYTES_MAX, Registers, Store, copy};
use libc::ucontext_t;

use crate::complaint::complain;
use crate::context;
pub(crate) use crate::context::go_on_at;

/// Smallest page of x86-64. An instruction is read across a page end only if necessary.
const PAGE_BYTES: usize = 4096;

/// Address of the thread's next instruction.
pub(crate) fn instruction(thread: &ucontext_t) -> Option<usize> {
    usize::try_from(context::registers(thread).rip).ok()
}

/// Executes the doorbell that the instruction at `rip` writes to `address`. False if it is no doorbell, or is written in an
/// unknown way.
pub(crate) fn serve(
    process: &Process,
    address: usize,
    rip: usize,
    thread: &mut ucontext_t,
) -> bool {
    let registers = context::registers(thread);
    let Some(store) = decode(rip, &registers) else {
        if let Some(moves) = decode_string(rip, &registers, thread) {
            return serve_string(process, address, &moves, registers, thread);
        }
        if process.doorbell(address, None).is_some() {
            let mut code = [0; INSTRUCTION_BYTES_MAX];
            let read = read_code(rip, &mut code);
            complain(read.map_or(&[], |()| &code));
        }
        return false;
    };
    let value = store.value.or_else(|| vector_value(rip, thread));
    let Some(rung) = process.doorbell(address, value) else {
        return false;
    };
    // Cannot overflow: an instruction does not extend beyond the end of memory.
    let behind = rip + usize::from(store.length);
    go_on_at(thread, behind);
    if let Rung::Send { end } = rung {
        // Cannot overflow: the store is within a page of this process.
        let rest = (address + usize::from(store.width), end);
        context::follow_copy(thread, registers, behind, rest);
    }
    true
}

/// Like [`serve`], for a string move. It is at most one doorbell, because it copies one request.
fn serve_string(
    process: &Process,
    address: usize,
    moves: &Moves,
    registers: Registers,
    thread: &mut ucontext_t,
) -> bool {
    let served = process.doorbell(address, moved_value(moves)).is_some();
    if served {
        let left_in_page = PAGE_BYTES - address % PAGE_BYTES;
        context::set_registers(thread, &moves.follow(registers, left_in_page as u64));
    }
    served
}

/// The first eight bytes of a string move. They identify the queue of a copied request.
fn moved_value(moves: &Moves) -> Option<u64> {
    let mut bytes = [0; 8];
    guard::read(moves.from, &mut bytes).ok()?;
    (moves.bytes >= 8).then_some(u64::from_le_bytes(bytes))
}

/// The string move at `rip`, the address of the faulting instruction.
fn decode_string(rip: usize, registers: &Registers, thread: &ucontext_t) -> Option<Moves> {
    let flags = context::flags(thread);
    with_code(rip, |bytes| string::decode(bytes, registers, flags))
}

/// The first eight bytes of a store from a vector register. They identify the queue of a BlueFlame
/// copy.
fn vector_value(rip: usize, thread: &ucontext_t) -> Option<u64> {
    let on_page = (PAGE_BYTES - rip % PAGE_BYTES).min(INSTRUCTION_BYTES_MAX);
    // SAFETY: the thread has fetched an instruction there, so the rest of its page is readable.
    let bytes = unsafe { slice::from_raw_parts(ptr::with_exposed_provenance(rip), on_page) };
    let register = copy::vector_source(bytes)?;
    context::low_half(thread, register)
}

/// The store at `rip`, the address of the faulting instruction.
fn decode(rip: usize, registers: &Registers) -> Option<Store> {
    with_code(rip, |bytes| trap::decode(bytes, registers))
}

/// The result of `decode` for the instruction at `rip`, the address of the faulting instruction.
fn with_code<T>(rip: usize, decode: impl Fn(&[u8]) -> Option<T>) -> Option<T> {
    let on_page = (PAGE_BYTES - rip % PAGE_BYTES).min(INSTRUCTION_BYTES_MAX);
    // SAFETY: the thread has fetched an instruction there, so the rest of its page is readable.
    let bytes = unsafe { slice::from_raw_parts(ptr::with_exposed_provenance(rip), on_page) };
    decode(bytes).or_else(|| {
        let mut bytes = [0; INSTRUCTION_BYTES_MAX];
        read_code(rip, &mut bytes)?;
        decode(&bytes)
    })
}

fn read_code(rip: usize, bytes: &mut [u8; INSTRUCTION_BYTES_MAX]) -> Option<()> {
    let to = bytes.as_mut_ptr().expose_provenance();
    // SAFETY: the target is a local array and not code. This handler, which is installed, catches a
    // missing page after `rip`.
    unsafe { guard::copy(to, rip, INSTRUCTION_BYTES_MAX) }.ok()
}
