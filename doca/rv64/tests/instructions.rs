//! Single instructions at the edges of their operands.

mod common;

use common::{A0, A1, CODE, DATA, RET, addi, amo, branch, i, load, lui, machine, r, store};
use rv64::{Cause, Nothing, Refusal, Stop, Trap};

const MIN: u64 = i64::MIN.cast_unsigned();
const MAX: u64 = i64::MAX.cast_unsigned();
const MINUS: u64 = u64::MAX;
/// A word with a sign, and upper bits that do not count.
const DIRTY: u64 = 0xdead_beef_8000_0001;

/// The result in `a0` of code that gets `a0` and `a1`.
fn result(code: &[u32], a: u64, b: u64) -> u64 {
    match run(code, a, b) {
        Stop::Finished(_, value) => value,
        other => panic!("{code:x?} {a:#x} {b:#x}: {other:?}"),
    }
}

fn run(code: &[u32], a: u64, b: u64) -> Stop {
    let mut machine = machine(&[code, &[RET]].concat());
    let hart = machine.create_hart().unwrap();
    machine.start(hart, CODE, &[a, b]).unwrap();
    machine.run(&mut Nothing, 100)
}

fn trap(code: &[u32], a: u64, b: u64) -> (Cause, u64) {
    match run(code, a, b) {
        Stop::Trapped(Trap {
            cause, address, pc, ..
        }) => {
            assert_eq!(pc, CODE, "the first instruction");
            (cause, address)
        }
        other => panic!("{code:x?}: {other:?}"),
    }
}

fn check(name: &str, word: u32, cases: &[(u64, u64, u64)]) {
    for &(a, b, expect) in cases {
        let found = result(&[word], a, b);
        assert_eq!(found, expect, "{name} of {a:#x} and {b:#x}: {found:#x}");
    }
}

/// Operation of `a0` and `a1`.
fn op(funct7: u32, funct3: u32) -> u32 {
    r((funct7, funct3, 0x33), A0, A0, A1)
}

fn op_32(funct7: u32, funct3: u32) -> u32 {
    r((funct7, funct3, 0x3b), A0, A0, A1)
}

fn op_imm(funct3: u32, imm: i32) -> u32 {
    i((funct3, 0x13), A0, A0, imm)
}

fn op_imm_32(funct3: u32, imm: i32) -> u32 {
    i((funct3, 0x1b), A0, A0, imm)
}

#[test]
fn integers() {
    check("add", op(0, 0), &[(MAX, 1, MIN), (MINUS, 1, 0)]);
    check("sub", op(0x20, 0), &[(MIN, 1, MAX), (0, 1, MINUS)]);
    check("slt", op(0, 2), &[(MIN, MAX, 1), (1, MINUS, 0), (1, 1, 0)]);
    check("sltu", op(0, 3), &[(MIN, MAX, 0), (1, MINUS, 1)]);
    check("sll", op(0, 1), &[(1, 63, MIN), (1, 64, 1), (3, 127, MIN)]);
    check("srl", op(0, 5), &[(MIN, 63, 1), (MINUS, 64, MINUS)]);
    check("sra", op(0x20, 5), &[(MIN, 63, MINUS), (MAX, 62, 1)]);
    check(
        "addw",
        op_32(0, 0),
        &[
            (0x7fff_ffff, 1, 0xffff_ffff_8000_0000),
            (DIRTY, MINUS, 0xffff_ffff_8000_0000),
        ],
    );
    check(
        "subw",
        op_32(0x20, 0),
        &[(DIRTY, 1, 0xffff_ffff_8000_0000), (0, 1, MINUS)],
    );
    check(
        "sllw",
        op_32(0, 1),
        &[(1, 31, 0xffff_ffff_8000_0000), (1, 32, 1)],
    );
    check(
        "srlw",
        op_32(0, 5),
        &[(DIRTY, 31, 1), (DIRTY, 32, 0xffff_ffff_8000_0001)],
    );
    check("sraw", op_32(0x20, 5), &[(DIRTY, 31, MINUS)]);
    check(
        "addi",
        op_imm(0, -2048),
        &[(0, 0, (-2048_i64).cast_unsigned())],
    );
    check("slti", op_imm(2, -1), &[(MIN, 0, 1), (0, 0, 0)]);
    check("sltiu", op_imm(3, -1), &[(0, 0, 1), (MINUS, 0, 0)]);
    check("xori", op_imm(4, -1), &[(DIRTY, 0, !DIRTY)]);
    check(
        "ori",
        op_imm(6, -2048),
        &[(1, 0, (-2047_i64).cast_unsigned())],
    );
    check(
        "andi",
        op_imm(7, -2048),
        &[(MINUS, 0, (-2048_i64).cast_unsigned())],
    );
    check("slli", op_imm(1, 63), &[(3, 0, MIN)]);
    check("srli", op_imm(5, 63), &[(MIN, 0, 1)]);
    check("srai", op_imm(5, 0x43f), &[(MIN, 0, MINUS)]);
    check(
        "addiw",
        op_imm_32(0, -1),
        &[(0x8000_0000, 0, 0x7fff_ffff), (0, 0, MINUS)],
    );
    check(
        "slliw",
        op_imm_32(1, 31),
        &[(DIRTY, 0, 0xffff_ffff_8000_0000)],
    );
    check("srliw", op_imm_32(5, 31), &[(DIRTY, 0, 1)]);
    check("sraiw", op_imm_32(5, 0x41f), &[(DIRTY, 0, MINUS)]);
    check("lui", lui(A0, 0x80000), &[(0, 0, 0xffff_ffff_8000_0000)]);
    check(
        "auipc",
        0xfffff << 12 | A0 << 7 | 0x17,
        &[(0, 0, CODE - 0x1000)],
    );
}

#[test]
fn products_and_quotients() {
    check("mul", op(1, 0), &[(MINUS, MINUS, 1), (MIN, 2, 0)]);
    check("mulh", op(1, 1), &[(MINUS, MINUS, 0), (MIN, MIN, 1 << 62)]);
    check("mulhsu", op(1, 2), &[(MINUS, MINUS, MINUS), (MAX, 2, 0)]);
    check("mulhu", op(1, 3), &[(MINUS, MINUS, MINUS - 1)]);
    check(
        "div",
        op(1, 4),
        &[(7, 0, MINUS), (MIN, MINUS, MIN), (MINUS - 6, 2, MINUS - 2)],
    );
    check("divu", op(1, 5), &[(7, 0, MINUS), (MIN, MINUS, 0)]);
    check(
        "rem",
        op(1, 6),
        &[(7, 0, 7), (MIN, MINUS, 0), (MINUS - 6, 2, MINUS)],
    );
    check("remu", op(1, 7), &[(7, 0, 7), (MIN, MINUS, MIN)]);
    check(
        "mulw",
        op_32(1, 0),
        &[(DIRTY, DIRTY, 1), (0x7fff_ffff, 2, MINUS - 1)],
    );
    check(
        "divw",
        op_32(1, 4),
        &[
            (DIRTY, 1 << 32, MINUS),
            (0x8000_0000, 0xffff_ffff, 0xffff_ffff_8000_0000),
        ],
    );
    check(
        "divuw",
        op_32(1, 5),
        &[(DIRTY, 1, 0xffff_ffff_8000_0001), (1, 1 << 32, MINUS)],
    );
    check(
        "remw",
        op_32(1, 6),
        &[
            (DIRTY, 1 << 32, 0xffff_ffff_8000_0001),
            (0x8000_0000, 0xffff_ffff, 0),
        ],
    );
    check(
        "remuw",
        op_32(1, 7),
        &[(DIRTY, 0, 0xffff_ffff_8000_0001), (7, 4, 3)],
    );
}

#[test]
fn bit_manipulation() {
    check("add.uw", op_32(4, 0), &[(MINUS, 1, 1 << 32)]);
    check("sh1add", op(0x10, 2), &[(MIN, 5, 5), (3, 1, 7)]);
    check("sh2add", op(0x10, 4), &[(3, 1, 13)]);
    check("sh3add", op(0x10, 6), &[(3, 1, 25)]);
    check("sh1add.uw", op_32(0x10, 2), &[(MINUS, 1, 0x1_ffff_ffff)]);
    check("sh2add.uw", op_32(0x10, 4), &[(MINUS, 0, 0x3_ffff_fffc)]);
    check("sh3add.uw", op_32(0x10, 6), &[(MINUS, 0, 0x7_ffff_fff8)]);
    check("slli.uw", op_imm_32(1, 0x80 | 63), &[(DIRTY, 0, MIN)]);
    check("andn", op(0x20, 7), &[(MINUS, 1, MINUS - 1)]);
    check("orn", op(0x20, 6), &[(0, MAX, MIN)]);
    check("xnor", op(0x20, 4), &[(DIRTY, DIRTY, MINUS)]);
    check(
        "clz",
        op_imm(1, 0x600),
        &[(0, 0, 64), (1, 0, 63), (MINUS, 0, 0)],
    );
    check("ctz", op_imm(1, 0x601), &[(0, 0, 64), (MIN, 0, 63)]);
    check("cpop", op_imm(1, 0x602), &[(MINUS, 0, 64), (0, 0, 0)]);
    check(
        "clzw",
        op_imm_32(1, 0x600),
        &[(1 << 32, 0, 32), (DIRTY, 0, 0)],
    );
    check(
        "ctzw",
        op_imm_32(1, 0x601),
        &[(1 << 32, 0, 32), (0x8000_0000, 0, 31)],
    );
    check(
        "cpopw",
        op_imm_32(1, 0x602),
        &[(MINUS, 0, 32), (DIRTY, 0, 2)],
    );
    check("max", op(5, 6), &[(MIN, MAX, MAX), (MINUS, 0, 0)]);
    check("maxu", op(5, 7), &[(MINUS, 0, MINUS)]);
    check("min", op(5, 4), &[(MINUS, 0, MINUS)]);
    check("minu", op(5, 5), &[(MINUS, 0, 0)]);
    check(
        "sext.b",
        op_imm(1, 0x604),
        &[(0x180, 0, 0xffff_ffff_ffff_ff80), (0x7f, 0, 0x7f)],
    );
    check(
        "sext.h",
        op_imm(1, 0x605),
        &[(0x1_8000, 0, 0xffff_ffff_ffff_8000)],
    );
    check("zext.h", r((4, 4, 0x3b), A0, A0, 0), &[(MINUS, 0, 0xffff)]);
    check("rol", op(0x30, 1), &[(MIN, 1, 1), (MIN, 65, 1)]);
    check("ror", op(0x30, 5), &[(1, 1, MIN), (1, 64, 1)]);
    check("rori", op_imm(5, 0x600 | 63), &[(MIN, 0, 1)]);
    check(
        "rolw",
        op_32(0x30, 1),
        &[(DIRTY, 1, 3), (0x4000_0000, 1, 0xffff_ffff_8000_0000)],
    );
    check("rorw", op_32(0x30, 5), &[(DIRTY, 1, 0xffff_ffff_c000_0000)]);
    check("roriw", op_imm_32(5, 0x600 | 31), &[(DIRTY, 0, 3)]);
    check(
        "orc.b",
        op_imm(5, 0x287),
        &[(0x0100_8000_0000_ff01, 0, 0xff00_ff00_0000_ffff)],
    );
    check(
        "rev8",
        op_imm(5, 0x6b8),
        &[(0x0102_0304_0506_0708, 0, 0x0807_0605_0403_0201)],
    );
    check(
        "bclr",
        op(0x24, 1),
        &[(MINUS, 63, MAX), (MINUS, 64, MINUS - 1)],
    );
    check("bext", op(0x24, 5), &[(MIN, 63, 1), (MIN, 62, 0)]);
    check("binv", op(0x34, 1), &[(MIN, 63, 0), (0, 64, 1)]);
    check("bset", op(0x14, 1), &[(0, 127, MIN)]);
    check("bclri", op_imm(1, 0x480 | 63), &[(MINUS, 0, MAX)]);
    check("bexti", op_imm(5, 0x480 | 63), &[(MIN, 0, 1)]);
    check("binvi", op_imm(1, 0x680 | 63), &[(MIN, 0, 0)]);
    check("bseti", op_imm(1, 0x280 | 63), &[(0, 0, MIN)]);
}

#[test]
fn branches_compare_signed_and_unsigned() {
    // Over `a0 = 0`, to `a0 = 1` only if the branch is taken.
    let taken = |funct3, a, b| {
        let code = [
            branch(funct3, A0, A1, 12),
            addi(A0, 0, 0),
            RET,
            addi(A0, 0, 1),
        ];
        result(&code, a, b) == 1
    };
    for (name, funct3, expect) in [
        ("beq", 0, [true, false, false]),
        ("bne", 1, [false, true, true]),
        ("blt", 4, [false, true, false]),
        ("bge", 5, [true, false, true]),
        ("bltu", 6, [false, false, true]),
        ("bgeu", 7, [true, true, false]),
    ] {
        let found = [(3, 3), (MINUS, 1), (1, MINUS)].map(|(a, b)| taken(funct3, a, b));
        assert_eq!(found, expect, "{name}");
    }
}

#[test]
fn jumps_link_and_clear_bit_0() {
    // jal a0, +8; then the link is the result.
    assert_eq!(
        result(&[0x0080_0000 | A0 << 7 | 0x6f, 0, RET], 0, 0),
        CODE + 4
    );
    // jalr a0, 9(a0) with the address of the code: to `ret` at 8.
    assert_eq!(
        result(&[i((0, 0x67), A0, A0, 9), 0, RET], CODE, 0),
        CODE + 4
    );
    // A jump into nothing is a trap at its target.
    let stop = run(&[i((0, 0x67), 0, A0, 0)], 0x5000, 0);
    let Stop::Trapped(trap) = stop else {
        panic!("{stop:?}")
    };
    assert_eq!(
        (trap.pc, trap.address, trap.cause),
        (0x5000, 0x5000, Cause::Fetch(Refusal::Unmapped))
    );
    let stop = run(&[i((0, 0x67), 0, A0, 0)], DATA, 0);
    assert!(
        matches!(
            stop,
            Stop::Trapped(Trap {
                cause: Cause::Fetch(Refusal::Rights),
                ..
            })
        ),
        "{stop:?}"
    );
}

#[test]
fn loads_extend_and_may_be_misaligned() {
    let value = 0x8182_8384_8586_8788;
    for at in [DATA, DATA + 1, DATA + 4089] {
        let code = |load| [store(3, A1, A0, 0), load];
        for (name, funct3, expect) in [
            ("lb", 0, 0xffff_ffff_ffff_ff88),
            ("lh", 1, 0xffff_ffff_ffff_8788),
            ("lw", 2, 0xffff_ffff_8586_8788),
            ("ld", 3, value),
            ("lbu", 4, 0x88),
            ("lhu", 5, 0x8788),
            ("lwu", 6, 0x8586_8788),
        ] {
            let at = at.min(DATA + 4088);
            assert_eq!(
                result(&code(load(funct3, A0, A0, 0)), at, value),
                expect,
                "{name} at {at:#x}"
            );
        }
    }
    // Stores change only their bytes.
    let code = [
        store(3, A1, A0, 0),
        store(0, 0, A0, 1),
        store(1, 0, A0, 3),
        load(3, A0, A0, 0),
    ];
    assert_eq!(result(&code, DATA, MINUS), 0xffff_ff00_00ff_00ff);
    let code = [store(3, A1, A0, 0), store(2, 0, A0, 2), load(3, A0, A0, 0)];
    assert_eq!(result(&code, DATA, MINUS), 0xffff_0000_0000_ffff);
    // A load to x0 still traps.
    assert_eq!(
        trap(&[load(3, 0, A0, 0)], 0, 0),
        (Cause::Load(Refusal::Unmapped), 0)
    );
    assert_eq!(
        trap(&[store(3, 0, A0, 0)], DATA + 4089, 0),
        (Cause::Store(Refusal::Unmapped), DATA + 4096)
    );
    assert_eq!(
        trap(&[store(0, 0, A0, 0)], CODE, 0),
        (Cause::Store(Refusal::Rights), CODE)
    );
}

#[test]
fn atomics_are_aligned_and_return_the_old_value() {
    for (name, function, old, operand, new) in [
        ("amoadd", 0x00, MAX, 1, MIN),
        ("amoswap", 0x01, MAX, 1, 1),
        ("amoxor", 0x04, 6, 3, 5),
        ("amoor", 0x08, 6, 3, 7),
        ("amoand", 0x0c, 6, 3, 2),
        ("amomin", 0x10, MINUS, 3, MINUS),
        ("amomax", 0x14, MINUS, 3, 3),
        ("amominu", 0x18, MINUS, 3, 3),
        ("amomaxu", 0x1c, MINUS, 3, MINUS),
    ] {
        let swap = amo(function, 3, A1, A0, A1);
        // The old value is stored first; the results are the old and the new value.
        let before = [lui(12, 0x20), store(3, A0, 12, 0), addi(A0, 12, 0)];
        let old_value = [&before[..], &[swap, addi(A0, A1, 0)]].concat();
        let new_value = [&before[..], &[swap, load(3, A0, A0, 0)]].concat();
        assert_eq!(result(&old_value, old, operand), old, "{name}");
        assert_eq!(result(&new_value, old, operand), new, "{name}");
    }
    // A word extends its sign, and leaves the bytes behind it.
    let code = [lui(12, 0x20), store(3, A0, 12, 0), amo(0, 2, A0, 12, A1)];
    assert_eq!(result(&code, DIRTY, 1), 0xffff_ffff_8000_0001);
    let code = [
        lui(12, 0x20),
        store(3, A0, 12, 0),
        amo(0, 2, A0, 12, A1),
        load(3, A0, 12, 0),
    ];
    assert_eq!(result(&code, MINUS, 1), 0xffff_ffff_0000_0000);
    for (function, log, at) in [(0, 3, 4), (2, 3, 4), (3, 3, 1), (0, 2, 2), (2, 2, 2)] {
        let rs2 = if function == 2 { 0 } else { A1 };
        let found = trap(&[amo(function, log, A1, A0, rs2)], DATA + at, 0);
        assert_eq!(found, (Cause::Misaligned, DATA + at), "{function} {log}");
    }
    assert_eq!(
        trap(&[amo(0, 3, A1, A0, A1)], CODE, 0),
        (Cause::Atomic(Refusal::Rights), CODE)
    );
}

#[test]
fn counters_are_read_only() {
    let read = |csr| i((2, 0x73), A0, 0, csr);
    assert_eq!(
        result(&[0x13, 0x13, read(0xc02u16.cast_signed().into())], 0, 0),
        2
    );
    assert_eq!(result(&[0x13, read(0xc00)], 0, 0), 1);
    assert_eq!(
        result(&[0x13, read(0xc01)], 9, 0),
        0,
        "a tick has 1,800 cycles"
    );
    for (word, why) in [
        (i((1, 0x73), A0, A1, 0xc00), "csrrw"),
        (i((2, 0x73), A0, A1, 0xc00), "csrrs with a source"),
        (i((7, 0x73), A0, 1, 0xc00), "csrrci with a source"),
        (i((5, 0x73), A0, 0, 0xc00), "csrrwi of 0"),
        (read(0x300), "mstatus"),
        (read(0xf14), "mhartid"),
    ] {
        assert_eq!(trap(&[word], 0, 0), (Cause::Illegal(word), CODE), "{why}");
    }
}

#[test]
fn fences_and_hints_do_nothing() {
    for word in [
        0x0ff0_000f,
        0x8330_000f,
        0x0100_000f,
        0x0000_100f,
        0x0000_6013,
        0x0000_1037,
    ] {
        assert_eq!(result(&[word], 7, 0), 7, "{word:#x}");
    }
}

#[test]
fn illegal_instructions_have_their_word() {
    for word in [0x0000_0000, 0xffff_ffff, 0x3020_0073, 0x0005_3507] {
        let expect = if word == 0 { 0 } else { word };
        assert_eq!(trap(&[word], 0, 0), (Cause::Illegal(expect), CODE));
    }
    assert_eq!(
        trap(&[0x0001_8002], 0, 0),
        (Cause::Illegal(0x8002), CODE),
        "c.jr of x0"
    );
    assert_eq!(trap(&[0x0010_0073], 0, 0), (Cause::Breakpoint, CODE));
    // An instruction of 32 bits whose second half is behind the end of the code.
    let stop = run(&[], 0, 0);
    assert!(matches!(stop, Stop::Finished(..)), "{stop:?}");
}
