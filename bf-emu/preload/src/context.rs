//! The saved state of an interrupted thread: access to its registers. The handler of SIGSEGV uses
//! it, so it does not allocate, lock or panic.

use std::ffi::c_int;
use std::mem;
use std::ptr;

use bf_emu::guard;
use bf_emu::trap::Registers;
use bf_emu::trap::copy::{self, Loaded, Thread};
use libc::ucontext_t;

/// Indices of the general registers in the saved context, in the order of their encoding.
const GENERAL: [c_int; 16] = [
    libc::REG_RAX,
    libc::REG_RCX,
    libc::REG_RDX,
    libc::REG_RBX,
    libc::REG_RSP,
    libc::REG_RBP,
    libc::REG_RSI,
    libc::REG_RDI,
    libc::REG_R8,
    libc::REG_R9,
    libc::REG_R10,
    libc::REG_R11,
    libc::REG_R12,
    libc::REG_R13,
    libc::REG_R14,
    libc::REG_R15,
];

/// The general registers and the instruction pointer.
pub(crate) fn registers(context: &ucontext_t) -> Registers {
    let value = |register| get(context, register);
    Registers {
        general: GENERAL.map(value),
        rip: value(libc::REG_RIP),
    }
}

/// The processor's flags.
pub(crate) fn flags(context: &ucontext_t) -> u64 {
    get(context, libc::REG_EFL)
}

/// Sets the general registers and the instruction pointer.
pub(crate) fn set_registers(context: &mut ucontext_t, registers: &Registers) {
    for (register, value) in GENERAL.into_iter().zip(registers.general) {
        set(context, register, value);
    }
    set(context, libc::REG_RIP, registers.rip);
}

/// Resumes the thread at another address.
pub(crate) fn go_on_at(context: &mut ucontext_t, rip: usize) {
    set(context, libc::REG_RIP, rip as u64);
}

/// Index of a register. The `REG_*` numbers are not negative.
fn place(register: c_int) -> usize {
    register.cast_unsigned() as usize
}

fn get(context: &ucontext_t, register: c_int) -> u64 {
    let saved = context.uc_mcontext.gregs.get(place(register));
    saved.map_or(0, |value| value.cast_unsigned())
}

fn set(context: &mut ucontext_t, register: c_int, value: u64) {
    if let Some(saved) = context.uc_mcontext.gregs.get_mut(place(register)) {
        *saved = value.cast_signed();
    }
}

/// The low eight bytes of a vector register.
pub(crate) fn low_half(context: &ucontext_t, register: u8) -> Option<u64> {
    let vectors = Vectors::of(context)?;
    let [a, b, ..] = vectors.get(usize::from(register))?.element;
    Some(u64::from(a) | u64::from(b) << 32)
}

/// The saved floating-point and vector state, and the bits of its components; None if it is not in
/// the XSAVE format.
pub(crate) fn saved_state(context: &ucontext_t) -> Option<(*const u8, u64)> {
    /// Alignment that XRSTOR requires.
    const ALIGNMENT: usize = 64;
    let vectors = Vectors::of(context).filter(|vectors| vectors.has_components())?;
    let aligned = vectors.at.addr().is_multiple_of(ALIGNMENT);
    aligned.then(|| (vectors.at.cast_const().cast(), vectors.word(COMPONENTS_AT)))
}

/// Advances a thread from `behind`, the address after the first store of a copy, to after its last
/// store within `rest`.
pub(crate) fn follow_copy(
    context: &mut ucontext_t,
    mut registers: Registers,
    behind: usize,
    rest: (usize, usize),
) {
    registers.rip = behind as u64;
    let vectors = Vectors::of(context);
    let mut thread = Thread {
        registers,
        flags: flags(context),
        vectors: [None; 16],
        upper_known: vectors.is_some_and(|vectors| vectors.upper_known()),
    };
    let read = |address: u64, bytes: &mut [u8]| guard::read(address, bytes).is_ok();
    if copy::follow(&mut thread, (rest.0 as u64, rest.1 as u64), read) == 0 {
        return;
    }
    set_registers(context, &thread.registers);
    set(context, libc::REG_EFL, thread.flags);
    if let Some(vectors) = vectors {
        for (register, loaded) in thread.vectors.into_iter().enumerate() {
            if let Some(loaded) = loaded {
                vectors.set(register, loaded);
            }
        }
    }
}

/// The saved floating-point and vector state in the XSAVE format: a legacy region of 512 bytes, a
/// header, and the components (`asm/sigcontext.h`, `struct _xstate`; Intel SDM volume 1, 13.4).
#[derive(Clone, Copy)]
struct Vectors {
    at: *mut libc::_libc_fpstate,
}

/// Offset and value of the mark for components after the legacy region (`FP_XSTATE_MAGIC1`).
const MAGIC: (usize, u32) = (464, 0x4650_5853);
/// Offset of the total size in bytes.
const SIZE_AT: usize = 468;
/// Offset of the bits of saved components (`struct _fpx_sw_bytes`, `xfeatures`).
const COMPONENTS_AT: usize = 472;
/// Offset of the bits of components that are not in their initial state.
const IN_USE_AT: usize = 512;
/// Bit and offset of the upper halves of ymm0 ... ymm15, 16 bytes each.
const AVX: (u64, usize) = (1 << 2, 576);
const AVX_BYTES: usize = 256;
/// Bit of the upper halves of zmm0 ... zmm15. Their offset differs between processors.
const ZMM_HIGH: u64 = 1 << 6;

impl Vectors {
    fn of(context: &ucontext_t) -> Option<Self> {
        let at = context.uc_mcontext.fpregs;
        (!at.is_null()).then_some(Self { at })
    }

    fn get(self, register: usize) -> Option<libc::_libc_xmmreg> {
        // SAFETY: the kernel's pointer into the frame of the running handler, which contains the
        // whole legacy region.
        let legacy = unsafe { &*self.at };
        legacy._xmm.get(register).copied()
    }

    /// Reads a word of the state. The legacy region always exists, the part after it only with the
    /// mark.
    fn word<T: Copy>(self, at: usize) -> T {
        // SAFETY: callers pass offsets within the existing region. Any bytes are a valid number.
        unsafe { ptr::read_unaligned(self.at.wrapping_byte_add(at).cast()) }
    }

    fn has_components(self) -> bool {
        let size: u32 = self.word(SIZE_AT);
        self.word::<u32>(MAGIC.0) == MAGIC.1 && size as usize >= AVX.1 + AVX_BYTES
    }

    /// True if the upper parts of vector registers (above 16 bytes) can be cleared.
    fn upper_known(self) -> bool {
        self.has_components() && self.word::<u64>(IN_USE_AT) & ZMM_HIGH == 0
    }

    fn set(self, register: usize, loaded: Loaded) {
        let Some(xmm) = register
            .checked_mul(16)
            .filter(|offset| *offset < AVX_BYTES)
        else {
            return;
        };
        let xmm_at = mem::offset_of!(libc::_libc_fpstate, _xmm) + xmm;
        // SAFETY: one of the sixteen registers of the legacy region. The kernel loads it when the
        // handler returns, and no other code reads it.
        unsafe { ptr::write_unaligned(self.at.wrapping_byte_add(xmm_at).cast(), loaded.bytes) };
        // An upper half in its initial state is zero already.
        let clears = loaded.clears_upper && self.has_components();
        if clears && self.word::<u64>(IN_USE_AT) & AVX.0 != 0 {
            let high = self.at.wrapping_byte_add(AVX.1 + xmm).cast::<[u8; 16]>();
            // SAFETY: as above, in the component whose presence was checked.
            unsafe { ptr::write_unaligned(high, [0; 16]) };
        }
    }
}
