//! `dpacc`: compiler driver of DPA programs, with stock compilers for RISC-V.
//!
//! # Contract with the host library and the device
//!
//! The archive has one member with
//!
//! - the device program, an ELF file, in the section `.dpa_obj`. [`image::check`] states what holds for it: fixed
//!   addresses, no relocations, no segment both writable and executable, no shared page of segments with different
//!   rights, the entry in executable memory. The section `.dpa_attributes` of the program has the bytes of
//!   `-dpa-proc-attr`.
//! - `struct flexio_app *APP`, with the name of `-app-name`.
//! - one function for each kernel and RPC, with its name. Only its address matters; a call of it ends the program with a
//!   message.
//! - a constructor. It calls `flexio_app_create(&attributes, &APP)`, where the attributes are `{ const char *app_name;
//!   void *app_ptr; size_t app_bsize; char *app_sig_sec_name; }` and the last is `NULL`. Then it calls
//!   `flexio_func_pup_register(APP, name, unpack name, stub, bytes of the argument buffer, pack)` for each function, in
//!   the order of the sources. All return 0 for success. A destructor calls `flexio_app_destroy(APP)`.
//!
//! **Argument buffer.** The arguments in their order, each at the next multiple of 8, with the size, byte order and inner
//! layout of its type on the device, which are those of the host. The bytes between are 0. The buffer's size is the sum of
//! all sizes, each rounded up to 8; without arguments it is 0. It is at most [`types::MAX_BUFFER`] bytes.
//! `pack(buffer, va_list)` fills a buffer from the arguments that a C caller has passed in a variable list. The buffer
//! may have any alignment on the host, and is at a multiple of 8 on the device.
//!
//! **Unpack function.** `uint64_t __dpacc_unpack_NAME(void *buffer, void *function)` in the device program reads the
//! arguments from the buffer and calls the function, whose address the loader has from the symbol `NAME`. It returns what
//! an RPC returns, and 0 for a kernel. The device starts it as `dpa_dev` describes: entry of the program, `a0` the unpack
//! function, `a1` the buffer, `a2` the function.
//!
//! **Types.** Integers, enumerations, `_Bool`, `float`, `double`, pointers, and structures and unions of these by value.
//! They are read from the debug information of the linked program. A kernel returns `void`, an RPC returns `uint64_t`.
//! Object files of gcc, which this driver has not compiled, do not state an alignment of 16 for a structure of 16 bytes; such
//! a structure must not be an argument there.
//!
//! **Marks.** `__dpa_global__` and `__dpa_rpc__` are attributes that compilers ignore on types, and for which they list
//! the marked functions in a section of the object file (`dpa_dev::KERNEL_MARK`). The linker script drops that section.
//!
//! **Congestion control.** With `-ldoca_pcc_dev` or `-ldoca_pcc_np_dev` the program contains that library, whose entry points
//! are RPCs. The crate `pcc-dev` describes them.
//!
//! # With `-keep-dir`
//!
//! The directory then has, for each source `F.c`, `F.dpa.host.c`, `F.stub.inc` and `F.dpa.dev.o`, and for the program
//! `APP.meta.c`, `device_exec.stub.inc`, `APP.unpack.c` and `APP.elf`. The C files need no other header than the host's own;
//! the macros `__DPA_OBJ_STUB_FILE__` and `__DPA_EXEC_STUB_FILE__` may name the included files.

mod attributes;
mod build;
mod dwarf;
mod fault;
#[doc(hidden)]
pub mod fuzzing;
mod generate;
pub mod image;
mod objects;
mod options;
mod tools;
pub mod types;

pub use attributes::blob as attributes;
pub use build::build;
pub use fault::{Failure, Fault, Place, Result};
pub use options::{Cpu, HELP, Options, Point, Request, parse};
