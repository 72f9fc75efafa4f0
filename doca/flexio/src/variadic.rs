//! C functions with a variable list of arguments, which stable Rust can call and not define.

/// Defines a C function `$name(a, b, ..., ...)` with `$named` named arguments of one word each (1 to 5), which calls
/// `$target(a, b, ..., list)`. `list` is a `va_list` that lasts as long as the call.
///
/// With 6 or more named arguments it calls `$target(first, others, list)`: a pointer to the first six words, one to the others,
/// and the list.
#[macro_export]
macro_rules! variadic {
    ($(#[$attribute:meta])* $name:ident, $named:literal, $target:path) => {
        $(#[$attribute])*
        #[cfg(target_arch = "x86_64")]
        #[allow(unreachable_pub, reason = "C calls it by its name")]
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            std::arch::naked_asm!(
                // The area of saved registers, as the System V ABI lays it out: six words, and eight vectors if al is not 0.
                // Below it are the 24 bytes of the list.
                "sub rsp, 216",
                "mov [rsp + 32], rdi",
                "mov [rsp + 40], rsi",
                "mov [rsp + 48], rdx",
                "mov [rsp + 56], rcx",
                "mov [rsp + 64], r8",
                "mov [rsp + 72], r9",
                "test al, al",
                "je 2f",
                "movaps [rsp + 80], xmm0",
                "movaps [rsp + 96], xmm1",
                "movaps [rsp + 112], xmm2",
                "movaps [rsp + 128], xmm3",
                "movaps [rsp + 144], xmm4",
                "movaps [rsp + 160], xmm5",
                "movaps [rsp + 176], xmm6",
                "movaps [rsp + 192], xmm7",
                "2:",
                // gp_offset, fp_offset, overflow_arg_area, reg_save_area.
                "mov dword ptr [rsp], 8 * {named}",
                "mov dword ptr [rsp + 4], 48",
                "lea rax, [rsp + 224]",
                "mov [rsp + 8], rax",
                "lea rax, [rsp + 32]",
                "mov [rsp + 16], rax",
                // The list is the argument behind the named ones.
                ".if {named} == 1",
                "mov rsi, rsp",
                ".elseif {named} == 2",
                "mov rdx, rsp",
                ".elseif {named} == 3",
                "mov rcx, rsp",
                ".elseif {named} == 4",
                "mov r8, rsp",
                ".elseif {named} == 5",
                "mov r9, rsp",
                ".else",
                // Named words beyond the six in registers are at the start of the stack's part of the list.
                "mov dword ptr [rsp], 48",
                "lea rax, [rsp + 224 + 8 * ({named} - 6)]",
                "mov [rsp + 8], rax",
                "lea rdi, [rsp + 32]",
                "lea rsi, [rsp + 224]",
                "mov rdx, rsp",
                ".endif",
                "call {target}",
                "add rsp, 216",
                "ret",
                named = const $named,
                target = sym $target,
            )
        }
    };
}

#[cfg(test)]
mod tests {
    use std::ffi::c_void;

    /// `va_list` of x86-64.
    #[repr(C)]
    struct List {
        gp: u32,
        fp: u32,
        overflow: *const u64,
        saved: *const u8,
    }

    /// The next word of a list.
    unsafe fn next(list: *mut c_void) -> u64 {
        let list = list.cast::<List>();
        // SAFETY: the caller has a list with another word.
        unsafe {
            if (*list).gp < 48 {
                let at = (*list).saved.add((*list).gp as usize).cast::<u64>();
                (*list).gp += 8;
                *at
            } else {
                let at = (*list).overflow;
                (*list).overflow = at.add(1);
                *at
            }
        }
    }

    /// Digits of the named words and of six words of the list.
    unsafe extern "C" fn two(a: u64, b: u64, list: *mut c_void) -> u64 {
        // SAFETY: the test passes six words.
        (0..6).fold(10 * a + b, |sum, _| 10 * sum + unsafe { next(list) })
    }

    unsafe extern "C" fn eight(first: *const u64, others: *const u64, list: *mut c_void) -> u64 {
        // SAFETY: six words, two words, and a list of two.
        unsafe {
            let sum = (0..6).fold(0, |sum, at| 10 * sum + *first.add(at));
            let sum = 100 * sum + 10 * *others + *others.add(1);
            100 * sum + 10 * next(list) + next(list)
        }
    }

    crate::variadic!(flexio_test_two, 2, two);
    crate::variadic!(flexio_test_eight, 8, eight);

    #[test]
    fn the_list_has_the_words_behind_the_named_ones() {
        type Two = unsafe extern "C" fn(u64, u64, ...) -> u64;
        type Eight = unsafe extern "C" fn(u64, u64, u64, u64, u64, u64, u64, u64, ...) -> u64;
        // SAFETY: the functions take words of these numbers.
        let (two, eight) = unsafe {
            (
                std::mem::transmute::<unsafe extern "C" fn(), Two>(flexio_test_two),
                std::mem::transmute::<unsafe extern "C" fn(), Eight>(flexio_test_eight),
            )
        };
        // SAFETY: as they expect.
        let sums = unsafe {
            (
                two(1, 2, 3u64, 4u64, 5u64, 6u64, 7u64, 8u64),
                eight(1, 2, 3, 4, 5, 6, 7, 8, 9u64, 0u64),
            )
        };
        assert_eq!(sums, (12_345_678, 1_234_567_890));
    }
}
