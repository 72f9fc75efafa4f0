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
        // # Safety: that of the target, in the documentation above.
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

        $(#[$attribute])*
        #[cfg(target_arch = "aarch64")]
        #[allow(unreachable_pub, reason = "C calls it by its name")]
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        // # Safety: that of the target, in the documentation above.
        pub unsafe extern "C" fn $name() {
            std::arch::naked_asm!(
                // The frame: the caller's frame, the list (AAPCS64, appendix B), eight vectors, and eight words, which
                // end where the caller's words of the stack begin.
                "sub sp, sp, 240",
                "stp x29, x30, [sp]",
                "mov x29, sp",
                "stp q0, q1, [sp, 48]",
                "stp q2, q3, [sp, 80]",
                "stp q4, q5, [sp, 112]",
                "stp q6, q7, [sp, 144]",
                "stp x0, x1, [sp, 176]",
                "stp x2, x3, [sp, 192]",
                "stp x4, x5, [sp, 208]",
                "stp x6, x7, [sp, 224]",
                // stack, gr_top, vr_top, gr_offs, vr_offs. Offsets count up to 0.
                "add x10, sp, 240",
                ".if {named} > 8",
                "add x9, x10, 8 * ({named} - 8)",
                "mov w11, 0",
                ".else",
                "mov x9, x10",
                "mov w11, -8 * (8 - {named})",
                ".endif",
                "stp x9, x10, [sp, 16]",
                "add x9, sp, 176",
                "str x9, [sp, 32]",
                "mov w12, -128",
                "stp w11, w12, [sp, 40]",
                // A call passes a list by its address.
                ".if {named} == 1",
                "add x1, sp, 16",
                ".elseif {named} == 2",
                "add x2, sp, 16",
                ".elseif {named} == 3",
                "add x3, sp, 16",
                ".elseif {named} == 4",
                "add x4, sp, 16",
                ".elseif {named} == 5",
                "add x5, sp, 16",
                ".else",
                "add x0, sp, 176",
                "add x1, sp, 224",
                "add x2, sp, 16",
                ".endif",
                "bl {target}",
                "ldp x29, x30, [sp]",
                "add sp, sp, 240",
                "ret",
                named = const $named,
                target = sym $target,
            )
        }
    };
}

#[cfg(test)]
mod tests {
    use std::ffi::{CStr, c_char, c_int, c_void};

    // The C library reads the lists, as C functions do.
    unsafe extern "C" {
        fn vsnprintf(
            to: *mut c_char,
            size: usize,
            format: *const c_char,
            list: *mut c_void,
        ) -> c_int;
    }

    /// Enough for the words and vectors of all registers and some of the stack.
    const FORMAT: &CStr = c"%ld %.1f %ld %.1f %ld %.1f %ld %.1f %ld %.1f %ld %.1f %ld %.1f %ld %.1f %ld %.1f %ld %.1f";
    const TEXT: &str = "1 0.5 2 1.5 3 2.5 4 3.5 5 4.5 6 5.5 7 6.5 8 7.5 9 8.5 10 9.5";

    /// Appends the text that [`FORMAT`] makes of a list.
    ///
    /// # Safety
    /// The list has what the format names.
    unsafe fn print(to: &mut String, list: *mut c_void) {
        let mut text = [0_u8; 200];
        // SAFETY: a buffer of this size; the caller has the list.
        unsafe { vsnprintf(text.as_mut_ptr().cast(), text.len(), FORMAT.as_ptr(), list) };
        let text = CStr::from_bytes_until_nul(&text).unwrap();
        to.push_str(text.to_str().unwrap());
    }

    /// # Safety
    /// The list has what the format names.
    unsafe extern "C" fn one(to: &mut String, list: *mut c_void) {
        // SAFETY: by contract.
        unsafe { print(to, list) };
    }

    /// # Safety
    /// The list has what the format names.
    unsafe extern "C" fn five(to: &mut String, a: u64, b: u64, c: u64, d: u64, list: *mut c_void) {
        to.push_str(&format!("{a} {b} {c} {d} : "));
        // SAFETY: by contract.
        unsafe { print(to, list) };
    }

    /// The first of eight or nine words is the place of the text.
    ///
    /// # Safety
    /// The pointers are to six words and to `OTHERS`.
    unsafe extern "C" fn many<const OTHERS: usize>(
        first: *const u64,
        others: *const [u64; OTHERS],
        list: *mut c_void,
    ) {
        // SAFETY: the first word is the pointer that the test passes.
        let to = unsafe { &mut **first.cast::<*mut String>() };
        // SAFETY: six words.
        let first = unsafe { first.cast::<[u64; 6]>().read() };
        // SAFETY: by contract.
        let others = unsafe { others.read() };
        for word in first[1..].iter().chain(&others) {
            to.push_str(&format!("{word} "));
        }
        to.push_str(": ");
        // SAFETY: by contract.
        unsafe { print(to, list) };
    }

    crate::variadic!(flexio_test_one, 1, one);
    crate::variadic!(flexio_test_five, 5, five);
    crate::variadic!(flexio_test_seven, 7, many::<1>);
    crate::variadic!(flexio_test_eight, 8, many::<2>);
    crate::variadic!(flexio_test_ten, 10, many::<4>);

    /// Calls a variadic function with named words and the list of [`FORMAT`].
    macro_rules! called {
        ($function:ident($($word:literal)*)) => {{
            type Function = unsafe extern "C" fn(*mut String $(, called!(type $word))*, ...);
            let mut text = String::new();
            // SAFETY: a C function with these named words.
            let function = unsafe { std::mem::transmute::<unsafe extern "C" fn(), Function>($function) };
            // SAFETY: the words and the list are those that the target reads.
            unsafe {
                function(
                    &raw mut text $(, $word)*,
                    1_i64, 0.5, 2_i64, 1.5, 3_i64, 2.5, 4_i64, 3.5, 5_i64, 4.5,
                    6_i64, 5.5, 7_i64, 6.5, 8_i64, 7.5, 9_i64, 8.5, 10_i64, 9.5,
                );
            }
            text
        }};
        (type $word:literal) => { u64 };
    }

    #[test]
    fn the_list_has_the_words_and_numbers_behind_the_named_ones() {
        assert_eq!(called!(flexio_test_one()), TEXT);
        let five = called!(flexio_test_five(21 22 23 24));
        assert_eq!(five, format!("21 22 23 24 : {TEXT}"));
        let seven = called!(flexio_test_seven(21 22 23 24 25 26));
        assert_eq!(seven, format!("21 22 23 24 25 26 : {TEXT}"));
        let eight = called!(flexio_test_eight(21 22 23 24 25 26 27));
        assert_eq!(eight, format!("21 22 23 24 25 26 27 : {TEXT}"));
        let ten = called!(flexio_test_ten(21 22 23 24 25 26 27 28 29));
        assert_eq!(ten, format!("21 22 23 24 25 26 27 28 29 : {TEXT}"));
    }
}
