//! Device side of DPA programs: C headers, library, numbers of device calls.
//!
//! Kernels include the headers, and the small library is linked to them.
//!
//! Code on the DPA reaches the device in three ways, and their numbers are here only: the headers and the library
//! are checked against these tables or made from them, and an interpreter of the code uses the same tables.
//!
//! - **Device calls** ([`calls`]). A function of the API is an `ecall` with its number in `t0`. The arguments are those
//!   of the C call: the first eight words in `a0` to `a7`, further words at `sp`. C extends an argument of 32 bits with its
//!   sign, so the device uses the lower half of such a word. The result is in `a0`. The device keeps all other registers.
//! - **Intrinsics** ([`intrinsics`]). Fences and fixed-point functions are instructions with the opcode custom-0, in the
//!   R format: the operation in `funct7`, operands in `rs1` and `rs2`, the result in `rd`.
//! - **Doorbells** ([`outbox`]). FlexIO programs that own queues store to the registers of a page.
//!
//! # Start of a thread
//!
//! The entry of a device program is [`ENTRY`]. The device starts a thread there with
//!
//! | register | contents |
//! |---|---|
//! | `a0` | address of the function to call |
//! | `a1`, `a2` | its arguments: the argument buffer and the kernel for an unpack function, the `uint64_t` of a thread's kernel |
//! | `sp` | end of the thread's stack, a multiple of 16 |
//! | `tp` | the thread's copy of the segment `PT_TLS` |
//!
//! The entry sets `gp`, calls the function, and ends the thread by the device call [`calls::THREAD_RETURN`], whose first
//! argument is the result of the function.
//!
//! # Memory
//!
//! The linker script places code, constants and variables in separate pages from [`IMAGE_BASE`], never writable and
//! executable at the same time. Constructors do not run.

pub mod calls;
pub mod intrinsics;
mod library;
pub mod objects;
pub mod outbox;

pub use library::{HEADERS, LINKER_SCRIPT, assembly};

/// Symbol of the entry of a device program.
pub const ENTRY: &str = "__dpa_thread_entry";

/// Address of the first byte of a device program.
pub const IMAGE_BASE: u64 = 0x1_0000;

/// Bytes of a page of a device program: segments with different rights share no page.
pub const PAGE: u64 = 0x1000;

/// Value of the macro `__dpa_global__`. A compiler then places one `nop` before the function, and writes its address to the
/// section [`MARKS`]. It ignores the attributes on types. Optimizations do not change that.
pub const KERNEL_MARK: &str = "__attribute__((used, patchable_function_entry(1, 1)))";

/// As [`KERNEL_MARK`], for `__dpa_rpc__`, with two `nop`.
pub const RPC_MARK: &str = "__attribute__((used, patchable_function_entry(2, 2)))";

/// Section of an object with the addresses of marked functions.
pub const MARKS: &str = "__patchable_function_entries";
