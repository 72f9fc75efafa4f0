//! Compiled copies of stock libraries, byte by byte, and arbitrary bytes.

use proptest::prelude::*;

use super::*;

const CODE_AT: u64 = 0x40_0000;
const SOURCE_AT: u64 = 0x10_0000;
const RECORDS_AT: u64 = 0x20_0000;
/// A BlueFlame register.
const REGISTER_AT: u64 = 0x7000_0800;
const END: u64 = REGISTER_AT + 0x100;

const RAX: usize = 0;
const RCX: usize = 1;
const RDX: usize = 2;
const RBX: usize = 3;
const RBP: usize = 5;
const RDI: usize = 7;
const R12: usize = 12;
const R13: usize = 13;

/// libuct_ib_mlx5 of the 1.20.1 wheel, 1edc0: the loop of `uct_rc_mlx5_base_ep_put_short`.
const UCX_1_20: &[u8] = &[
    0x49, 0x39, 0xc5, // cmp %rax,%r13
    0x74, 0x4b, // je 1ee10
    0xf3, 0x0f, 0x6f, 0x45, 0x00, // movdqu 0x0(%rbp),%xmm0
    0x48, 0x83, 0xc5, 0x40, // add $0x40,%rbp
    0x49, 0x83, 0xc5, 0x40, // add $0x40,%r13
    0x41, 0x0f, 0x11, 0x45, 0xc0, // movups %xmm0,-0x40(%r13)
    0xf3, 0x0f, 0x6f, 0x45, 0xd0, // movdqu -0x30(%rbp),%xmm0
    0x41, 0x0f, 0x11, 0x45, 0xd0, // movups %xmm0,-0x30(%r13)
    0xf3, 0x0f, 0x6f, 0x45, 0xe0, // movdqu -0x20(%rbp),%xmm0
    0x41, 0x0f, 0x11, 0x45, 0xe0, // movups %xmm0,-0x20(%r13)
    0xf3, 0x0f, 0x6f, 0x45, 0xf0, // movdqu -0x10(%rbp),%xmm0
    0x41, 0x0f, 0x11, 0x45, 0xf0, // movups %xmm0,-0x10(%r13)
    0x48, 0x39, 0xd5, // cmp %rdx,%rbp
    0x75, 0xc6, // jne 1edc0
    0x48, 0x8b, 0xab, 0x98, 0x00, 0x00, 0x00, // mov 0x98(%rbx),%rbp
    0x49, 0x39, 0xc5, // cmp %rax,%r13
    0x75, 0xbf, // jne 1edc5
    0x66, 0x2e, 0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00, // cs nopw
];
/// Offsets after its first store, and after its last.
const UCX_1_20_AT: (u64, u64) = (0x17, 0x35);

/// libuct_ib_mlx5 of the 1.20.1 wheel, 1f5be: `uct_rc_mlx5_base_ep_put_bcopy`, one block.
const UCX_1_20_STRAIGHT: &[u8] = &[
    0xf3, 0x0f, 0x6f, 0x03, // movdqu (%rbx),%xmm0
    0x41, 0x0f, 0x11, 0x04, 0x24, // movups %xmm0,(%r12)
    0xf3, 0x0f, 0x6f, 0x43, 0x10, // movdqu 0x10(%rbx),%xmm0
    0x41, 0x0f, 0x11, 0x44, 0x24, 0x10, // movups %xmm0,0x10(%r12)
    0xf3, 0x0f, 0x6f, 0x43, 0x20, // movdqu 0x20(%rbx),%xmm0
    0x41, 0x0f, 0x11, 0x44, 0x24, 0x20, // movups %xmm0,0x20(%r12)
    0xf3, 0x0f, 0x6f, 0x43, 0x30, // movdqu 0x30(%rbx),%xmm0
    0x41, 0x0f, 0x11, 0x44, 0x24, 0x30, // movups %xmm0,0x30(%r12)
    0x4c, 0x39, 0x85, 0xa0, 0x00, 0x00, 0x00, // cmp %r8,0xa0(%rbp)
    0x74, 0x77, // je 1f668
];
const UCX_1_20_STRAIGHT_AT: (u64, u64) = (0x9, 0x2a);

/// libuct_ib_mlx5 of the 1.21.0 wheel, 1fac8: the loop of `uct_rc_mlx5_base_ep_put_zcopy`.
const UCX_1_21: &[u8] = &[
    0x48, 0x39, 0xc5, // cmp %rax,%rbp
    0x74, 0x41, // je 1fb0e
    0xc5, 0xfa, 0x6f, 0x3b, // vmovdqu (%rbx),%xmm7
    0x48, 0x83, 0xc3, 0x40, // add $0x40,%rbx
    0x48, 0x83, 0xc5, 0x40, // add $0x40,%rbp
    0xc5, 0xfa, 0x7f, 0x7d, 0xc0, // vmovdqu %xmm7,-0x40(%rbp)
    0xc5, 0xfa, 0x6f, 0x7b, 0xd0, // vmovdqu -0x30(%rbx),%xmm7
    0xc5, 0xfa, 0x7f, 0x7d, 0xd0, // vmovdqu %xmm7,-0x30(%rbp)
    0xc5, 0xfa, 0x6f, 0x7b, 0xe0, // vmovdqu -0x20(%rbx),%xmm7
    0xc5, 0xfa, 0x7f, 0x7d, 0xe0, // vmovdqu %xmm7,-0x20(%rbp)
    0xc5, 0xfa, 0x6f, 0x7b, 0xf0, // vmovdqu -0x10(%rbx),%xmm7
    0xc5, 0xfa, 0x7f, 0x7d, 0xf0, // vmovdqu %xmm7,-0x10(%rbp)
    0x48, 0x39, 0xd3, // cmp %rdx,%rbx
    0x75, 0xc7, // jne 1fac8
    0x49, 0x8b, 0x9c, 0x24, 0x98, 0x00, 0x00, 0x00, // mov 0x98(%r12),%rbx
    0x48, 0x39, 0xc5, // cmp %rax,%rbp
    0x75, 0xbf, // jne 1facd
    0x0f, 0xae, 0xf8, // sfence
];
const UCX_1_21_AT: (u64, u64) = (0x16, 0x34);

/// libuct_ib_mlx5 of the 1.23.0 wheel, 1fb3e: `uct_rc_mlx5_base_ep_atomic64_fetch`, up to two
/// blocks.
const UCX_1_23: &[u8] = &[
    0x41, 0x0f, 0x11, 0x04, 0x24, // movups %xmm0,(%r12)
    0xf3, 0x41, 0x0f, 0x6f, 0x45, 0xd0, // movdqu -0x30(%r13),%xmm0
    0x41, 0x0f, 0x11, 0x44, 0x24, 0x10, // movups %xmm0,0x10(%r12)
    0xf3, 0x41, 0x0f, 0x6f, 0x45, 0xe0, // movdqu -0x20(%r13),%xmm0
    0x41, 0x0f, 0x11, 0x44, 0x24, 0x20, // movups %xmm0,0x20(%r12)
    0xf3, 0x41, 0x0f, 0x6f, 0x45, 0xf0, // movdqu -0x10(%r13),%xmm0
    0x41, 0x0f, 0x11, 0x44, 0x24, 0x30, // movups %xmm0,0x30(%r12)
    0x4c, 0x39, 0xea, // cmp %r13,%rdx
    0x0f, 0x84, 0xf0, 0x02, 0x00, 0x00, // je 1fe60
    0x66, 0x83, 0xf8, 0x02, // cmp $0x2,%ax
    0x75, 0x3d, // jne 1fbb3
    0xf3, 0x41, 0x0f, 0x6f, 0x45, 0x00, // movdqu 0x0(%r13),%xmm0
    0x49, 0x83, 0xc5, 0x40, // add $0x40,%r13
    0x41, 0x0f, 0x11, 0x44, 0x24, 0x40, // movups %xmm0,0x40(%r12)
    0xf3, 0x41, 0x0f, 0x6f, 0x45, 0xd0, // movdqu -0x30(%r13),%xmm0
    0x41, 0x0f, 0x11, 0x44, 0x24, 0x50, // movups %xmm0,0x50(%r12)
    0xf3, 0x41, 0x0f, 0x6f, 0x45, 0xe0, // movdqu -0x20(%r13),%xmm0
    0x41, 0x0f, 0x11, 0x44, 0x24, 0x60, // movups %xmm0,0x60(%r12)
    0xf3, 0x41, 0x0f, 0x6f, 0x45, 0xf0, // movdqu -0x10(%r13),%xmm0
    0x41, 0x0f, 0x11, 0x44, 0x24, 0x70, // movups %xmm0,0x70(%r12)
    0x49, 0x39, 0xd5, // cmp %rdx,%r13
];

/// libmlx5 1.24.44 of Debian 12, 4c928: `mlx5_bf_copy`.
const RDMA_CORE_44: &[u8] = &[
    0x39, 0xc7, // cmp %eax,%edi
    0x0f, 0x84, 0x21, 0xff, 0xff, 0xff, // je 4c851
    0x48, 0x89, 0xd5, // mov %rdx,%rbp
    0x48, 0x8b, 0x55, 0x00, // mov 0x0(%rbp),%rdx
    0x48, 0x89, 0xc1, // mov %rax,%rcx
    0x48, 0x83, 0xc0, 0x40, // add $0x40,%rax
    0x48, 0x89, 0x50, 0xc0, // mov %rdx,-0x40(%rax)
    0x48, 0x8b, 0x55, 0x08, // mov 0x8(%rbp),%rdx
    0x48, 0x89, 0x50, 0xc8, // mov %rdx,-0x38(%rax)
    0x48, 0x8b, 0x55, 0x10, // mov 0x10(%rbp),%rdx
    0x48, 0x89, 0x50, 0xd0, // mov %rdx,-0x30(%rax)
    0x48, 0x8b, 0x55, 0x18, // mov 0x18(%rbp),%rdx
    0x48, 0x89, 0x50, 0xd8, // mov %rdx,-0x28(%rax)
    0x48, 0x8b, 0x55, 0x20, // mov 0x20(%rbp),%rdx
    0x48, 0x89, 0x50, 0xe0, // mov %rdx,-0x20(%rax)
    0x48, 0x8b, 0x55, 0x28, // mov 0x28(%rbp),%rdx
    0x48, 0x89, 0x50, 0xe8, // mov %rdx,-0x18(%rax)
    0x48, 0x8b, 0x55, 0x30, // mov 0x30(%rbp),%rdx
    0x48, 0x89, 0x50, 0xf0, // mov %rdx,-0x10(%rax)
    0x48, 0x8d, 0x55, 0x40, // lea 0x40(%rbp),%rdx
    0x48, 0x8b, 0x75, 0x38, // mov 0x38(%rbp),%rsi
    0x48, 0x89, 0x71, 0x38, // mov %rsi,0x38(%rcx)
    0x48, 0x39, 0x93, 0x00, 0x03, 0x00, 0x00, // cmp %rdx,0x300(%rbx)
    0x75, 0xa1, // jne 4c928
];
const RDMA_CORE_44_AT: (u64, u64) = (0x1a, 0x56);

/// The memory of the thread: its code, a ring whose bytes are derived from their addresses, and a
/// library's record of its ring at `RECORDS_AT`: the start at 0x98, the end at 0xa0 and 0x300.
struct Memory<'a> {
    code: &'a [u8],
    ring_end: u64,
}

fn byte_of_ring(address: u64) -> u8 {
    u8::try_from(address * 7 % 251).unwrap()
}

impl Memory<'_> {
    fn read(&self, address: u64, bytes: &mut [u8]) -> bool {
        for (at, byte) in (address..).zip(bytes) {
            let word = |at: u64, base: u64, value: u64| {
                let index = usize::try_from(at - base).unwrap();
                value.to_le_bytes()[index]
            };
            *byte = match at {
                CODE_AT..0x50_0000 => {
                    let index = usize::try_from(at - CODE_AT).unwrap();
                    self.code.get(index).copied().unwrap_or(0xcc)
                }
                SOURCE_AT..RECORDS_AT => byte_of_ring(at),
                0x20_0098..0x20_00a0 => word(at, 0x20_0098, SOURCE_AT),
                0x20_00a0..0x20_00a8 => word(at, 0x20_00a0, self.ring_end),
                0x20_0300..0x20_0308 => word(at, 0x20_0300, self.ring_end),
                _ => return false,
            };
        }
        true
    }
}

fn thread(at: u64, registers: &[(usize, u64)]) -> Thread {
    let mut thread = Thread {
        registers: Registers {
            general: [0x5555_5555_5555_5555; 16],
            rip: CODE_AT + at,
        },
        flags: 0x202,
        vectors: [None; 16],
        upper_known: true,
    };
    for (register, value) in registers {
        thread.registers.general[*register] = *value;
    }
    thread
}

/// Interprets the code after its first store. Its copy of `blocks` blocks begins at `SOURCE_AT`.
/// Expects all other stores, and the thread after the last store with the loaded data.
#[track_caller]
fn check(
    (code, (from, last)): (&[u8], (u64, u64)),
    registers: &[(usize, u64)],
    (blocks, stores_of_block): (u64, u32),
    after: &[(usize, u64)],
) -> Thread {
    let memory = Memory {
        code,
        ring_end: SOURCE_AT + 0x1_0000,
    };
    let mut at = thread(from, registers);
    let first = 64 / u64::from(stores_of_block);
    let stores = follow(&mut at, (REGISTER_AT + first, END), |address, bytes| {
        memory.read(address, bytes)
    });
    assert_eq!(u64::from(stores), blocks * u64::from(stores_of_block) - 1);
    assert_eq!(at.registers.rip, CODE_AT + last);
    for (register, value) in after {
        assert_eq!(
            at.registers.general[*register], *value,
            "register {register}"
        );
    }
    at
}

fn loaded(blocks: u64, clears_upper: bool) -> Option<Loaded> {
    let at = SOURCE_AT + 64 * blocks - 16;
    let mut bytes = [0; 16];
    for (at, byte) in (at..).zip(&mut bytes) {
        *byte = byte_of_ring(at);
    }
    Some(Loaded {
        bytes,
        clears_upper,
    })
}

#[test]
fn the_loop_of_ucx_1_20() {
    for blocks in 1..=4 {
        let size = 64 * blocks;
        let at = check(
            (UCX_1_20, UCX_1_20_AT),
            &[
                (RBP, SOURCE_AT + 64),
                (R13, REGISTER_AT + 64),
                (RAX, REGISTER_AT + size),
                (RDX, SOURCE_AT + 0x1_0000),
                (RBX, RECORDS_AT),
            ],
            (blocks, 4),
            &[(RBP, SOURCE_AT + size), (R13, REGISTER_AT + size)],
        );
        assert_eq!(at.vectors[0], loaded(blocks, false));
        assert!(at.vectors[1..].iter().all(Option::is_none));
    }
}

/// The entry has two blocks. The first is the last block of the ring.
#[test]
fn the_loop_of_ucx_1_20_around_the_end_of_the_ring() {
    let end = SOURCE_AT + 0x1_0000;
    check(
        (UCX_1_20, UCX_1_20_AT),
        &[
            (RBP, end),
            (R13, REGISTER_AT + 64),
            (RAX, REGISTER_AT + 128),
            (RDX, end),
            (RBX, RECORDS_AT),
        ],
        (2, 4),
        &[(RBP, SOURCE_AT + 64), (R13, REGISTER_AT + 128)],
    );
}

#[test]
fn the_straight_copies_of_ucx() {
    let at = check(
        (UCX_1_20_STRAIGHT, UCX_1_20_STRAIGHT_AT),
        &[(RBX, SOURCE_AT), (R12, REGISTER_AT), (RBP, 0)],
        (1, 4),
        &[],
    );
    assert_eq!(at.vectors[0], loaded(1, false));
    for (blocks, last) in [(1, 0x29), (2, 0x6c)] {
        check(
            (UCX_1_23, (5, last)),
            &[
                (R13, SOURCE_AT + 64),
                (R12, REGISTER_AT),
                (RDX, SOURCE_AT + 0x1_0000),
                (RAX, 0x5555_0000 + blocks),
            ],
            (blocks, 4),
            &[(R13, SOURCE_AT + 64 * blocks)],
        );
    }
}

#[test]
fn the_loop_of_ucx_1_21() {
    for blocks in 1..=4 {
        let size = 64 * blocks;
        let at = check(
            (UCX_1_21, UCX_1_21_AT),
            &[
                (RBX, SOURCE_AT + 64),
                (RBP, REGISTER_AT + 64),
                (RAX, REGISTER_AT + size),
                (RDX, SOURCE_AT + 0x1_0000),
            ],
            (blocks, 4),
            &[(RBX, SOURCE_AT + size), (RBP, REGISTER_AT + size)],
        );
        assert_eq!(at.vectors[7], loaded(blocks, true));
    }
}

#[test]
fn vex_loads_need_the_upper_parts() {
    let memory = Memory {
        code: UCX_1_21,
        ring_end: 0,
    };
    let mut at = thread(
        UCX_1_21_AT.0,
        &[(RBX, SOURCE_AT + 64), (RBP, REGISTER_AT + 64)],
    );
    at.upper_known = false;
    let before = at;
    let read = |address: u64, bytes: &mut [u8]| memory.read(address, bytes);
    assert_eq!(follow(&mut at, (REGISTER_AT + 16, END), read), 0);
    assert_eq!(at, before);
}

#[test]
fn the_loop_of_rdma_core() {
    for blocks in 1..=4 {
        let size = 64 * blocks;
        check(
            (RDMA_CORE_44, RDMA_CORE_44_AT),
            &[
                (RBP, SOURCE_AT),
                (RAX, REGISTER_AT + 64),
                (RCX, REGISTER_AT),
                (RDI, (REGISTER_AT + size) & 0xffff_ffff),
                (RBX, RECORDS_AT),
            ],
            (blocks, 8),
            &[(RDX, SOURCE_AT + size), (RAX, REGISTER_AT + size)],
        );
    }
}

#[test]
fn the_first_stores_source_is_known() {
    for (code, register) in [
        (&UCX_1_20[0x12..], Some(0)),
        (&UCX_1_21[0x11..], Some(7)),
        // vmovups %xmm12,(%rdi); movaps %xmm9,(%rax); mov %rdx,-0x40(%rax); vmovdqu %ymm0,(%rax)
        (&[0xc5, 0x78, 0x11, 0x27][..], Some(12)),
        (&[0x44, 0x0f, 0x29, 0x08], Some(9)),
        (&RDMA_CORE_44[0x16..], None),
        (&[0xc5, 0xfe, 0x7f, 0x00], None),
    ] {
        assert_eq!(vector_source(code), register, "{code:02x?}");
    }
}

/// A store elsewhere, another kind of doorbell, an unknown instruction, or an inaccessible page
/// ends the interpretation. The stores before it stay skipped.
#[test]
fn what_ends_it() {
    let read = |code: &'static [u8]| {
        move |address: u64, bytes: &mut [u8]| Memory { code, ring_end: 0 }.read(address, bytes)
    };
    // mov %rax,(%r12); mov %rax,0x8(%r12)
    let two: &[u8] = &[0x49, 0x89, 0x04, 0x24, 0x49, 0x89, 0x44, 0x24, 0x08];
    for (target, flags, expect) in [
        (REGISTER_AT + 8, 0, 2),
        // Start of the register, and the next register: both are doorbells.
        (REGISTER_AT, 0, 0),
        (REGISTER_AT + 0xf8, 0, 1),
        (SOURCE_AT, 0, 0),
        (u64::MAX - 3, 0, 0),
        // The thread is single-stepped.
        (REGISTER_AT + 8, TRAP, 0),
    ] {
        let mut at = thread(0, &[(R12, target)]);
        at.flags |= flags;
        let stores = follow(&mut at, (REGISTER_AT + 8, END), read(two));
        assert_eq!(stores, expect, "{target:#x}");
        let rip = [0, 4, 9][usize::try_from(expect).unwrap()];
        assert_eq!(at.registers.rip, CODE_AT + rip);
    }
    for code in [
        // sfence; push %rax; call; ret; rep movsq; mov %fs:0x28,%rax; lock add; mov %ax,(%r12);
        // vmovdqu (%rbx),%ymm0; movdqa from an unaligned address; mov from an unmapped address
        &[0x0f, 0xae, 0xf8][..],
        &[0x50],
        &[0xe8, 0, 0, 0, 0],
        &[0xc3],
        &[0xf3, 0x48, 0xa5],
        &[0x64, 0x48, 0x8b, 0x04, 0x25, 0x28, 0, 0, 0],
        &[0xf0, 0x48, 0x01, 0x03],
        &[0x66, 0x41, 0x89, 0x04, 0x24],
        &[0xc5, 0xfe, 0x6f, 0x03],
        &[0x66, 0x0f, 0x6f, 0x43, 0x01],
        &[0x49, 0x8b, 0x04, 0x24],
    ] {
        let mut code = code.to_vec();
        code.extend(two);
        let memory = Memory {
            code: &code,
            ring_end: 0,
        };
        let mut at = thread(0, &[(R12, REGISTER_AT + 8), (RBX, SOURCE_AT)]);
        let stores = follow(&mut at, (REGISTER_AT + 8, END), |address, bytes| {
            memory.read(address, bytes)
        });
        assert_eq!(stores, 0, "{code:02x?}");
    }
}

/// The interpretation of a loop without stores ends.
#[test]
fn a_loop_ends() {
    // A jmp to itself.
    let memory = Memory {
        code: &[0xeb, 0xfe],
        ring_end: 0,
    };
    let mut at = thread(0, &[]);
    let read = |address: u64, bytes: &mut [u8]| memory.read(address, bytes);
    assert_eq!(follow(&mut at, (REGISTER_AT, END), read), 0);
}

#[test]
fn conditions() {
    for (a, b) in [
        (1u64, 1u64),
        (1, 2),
        (2, 1),
        (u64::MAX, 1),
        (1, u64::MAX),
        (1 << 63, 1),
    ] {
        let (_, flags) = compute(Arithmetic::Compare, a, b, 8);
        let signed = (a.cast_signed(), b.cast_signed());
        for (code, expect) in [
            (2, a < b),
            (3, a >= b),
            (4, a == b),
            (5, a != b),
            (6, a <= b),
            (7, a > b),
            (12, signed.0 < signed.1),
            (13, signed.0 >= signed.1),
            (14, signed.0 <= signed.1),
            (15, signed.0 > signed.1),
        ] {
            assert_eq!(holds(code, flags), expect, "{code} after {a} and {b}");
        }
    }
}

/// The processor's own result and flags of an addition or a comparison.
#[cfg(target_arch = "x86_64")]
fn processor(what: Arithmetic, a: u64, b: u64, width: u8) -> (u64, u64) {
    let mut result = a;
    let flags: u64;
    macro_rules! run {
        ($instruction:literal) => {
            // SAFETY: arithmetic of two registers. The flags are read through the stack.
            unsafe {
                std::arch::asm!($instruction, "pushfq", "pop {f}",
                    a = inout(reg) result, b = in(reg) b, f = out(reg) flags)
            }
        };
    }
    match (what, width) {
        (Arithmetic::Add, 8) => run!("add {a:r}, {b:r}"),
        (Arithmetic::Add, _) => run!("add {a:e}, {b:e}"),
        (Arithmetic::Subtract, 8) => run!("sub {a:r}, {b:r}"),
        (Arithmetic::Subtract, _) => run!("sub {a:e}, {b:e}"),
        (Arithmetic::Compare, 8) => run!("cmp {a:r}, {b:r}"),
        (Arithmetic::Compare, 4) => run!("cmp {a:e}, {b:e}"),
        (Arithmetic::Compare, _) => run!("cmp {a:x}, {b:x}"),
    }
    (result, flags & ARITHMETIC)
}

#[cfg(target_arch = "x86_64")]
fn edge() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        (0..64u32, -2..3i64).prop_map(|(bit, off)| (1u64 << bit).wrapping_add_signed(off)),
    ]
}

proptest! {
    /// The interpreter's arithmetic equals the processor's.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn arithmetic_is_the_processors(
        what in prop_oneof![Just(Arithmetic::Add), Just(Arithmetic::Subtract), Just(Arithmetic::Compare)],
        a in edge(),
        b in edge(),
        width in prop_oneof![Just(8u8), Just(4), Just(2)],
    ) {
        prop_assume!(width != 2 || what == Arithmetic::Compare);
        let (result, flags) = compute(what, a & mask(width), b & mask(width), width);
        let (wanted, wanted_flags) = processor(what, a, b, width);
        prop_assert_eq!(flags, wanted_flags);
        if what != Arithmetic::Compare {
            prop_assert_eq!(result, wanted);
        }
        for code in 0..16 {
            prop_assert_eq!(holds(code, flags), !holds(code ^ 1, flags));
        }
    }

    /// Arbitrary code, registers and memory: the interpreted stores are in the range, the thread is
    /// unchanged if there are none, and no panic occurs.
    #[test]
    fn any_code(
        code in proptest::collection::vec(any::<u8>(), 0..64),
        general in any::<[u64; 16]>(),
        flags in any::<u64>(),
        near in proptest::collection::vec((0..16usize, 0..0x200u64), 0..8),
        known in any::<bool>(),
    ) {
        let mut at = thread(0, &[]);
        at.registers.general = general;
        for (register, offset) in near {
            at.registers.general[register] = REGISTER_AT + offset;
        }
        at.flags = flags;
        at.upper_known = known;
        let before = at;
        let memory = Memory { code: &code, ring_end: 0 };
        let stores = follow(&mut at, (REGISTER_AT + 8, END), |address, bytes| memory.read(address, bytes));
        prop_assert!(stores as usize <= INSTRUCTIONS_MAX);
        if stores == 0 {
            prop_assert_eq!(at, before);
        }
        prop_assert_eq!(at.flags & !ARITHMETIC, before.flags & !ARITHMETIC);
    }

    /// If the interpretation of UCX's copy is interrupted at any point, traps continue it: the
    /// stores of both parts make up the whole copy.
    #[test]
    fn in_pieces(cut in 0..INSTRUCTIONS_MAX as u64, blocks in 1..=4u64) {
        let registers = [
            (RBP, SOURCE_AT + 64),
            (R13, REGISTER_AT + 64),
            (RAX, REGISTER_AT + 64 * blocks),
            (RDX, SOURCE_AT + 0x1_0000),
            (RBX, RECORDS_AT),
        ];
        let memory = Memory { code: UCX_1_20, ring_end: 0 };
        let mut whole = thread(UCX_1_20_AT.0, &registers);
        let all = follow(&mut whole, (REGISTER_AT + 16, END), |address, bytes| memory.read(address, bytes));
        let mut at = thread(UCX_1_20_AT.0, &registers);
        let mut reads = 0;
        // A read of memory that fails once in the middle.
        let some = follow(&mut at, (REGISTER_AT + 16, END), |address, bytes| {
            reads += 1;
            reads != cut && memory.read(address, bytes)
        });
        let rest = follow(&mut at, (REGISTER_AT + 16, END), |address, bytes| memory.read(address, bytes));
        prop_assert_eq!(some + rest, all);
        prop_assert_eq!(at, whole);
    }
}
