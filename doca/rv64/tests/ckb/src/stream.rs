//! A random stream: instructions of all groups, with registers and data to begin with.

use super::common::{CODE, DATA, addi, amo, branch, i, load, lui, r, store, words};

pub const DATA_BYTES: usize = 8192;

/// Instructions of a stream. The last one jumps to the first.
const COUNT: usize = 200;

/// Registers that hold an address in the data, and that no instruction changes: for compressed accesses relative to the stack and to
/// another register, and for the others. `POINTER` is set before each atomic operation.
const STACK: u32 = 2;
const LOW: u32 = 9;
const POINTER: u32 = 29;
const BASE: u32 = 31;

#[derive(Debug)]
pub struct Stream {
    pub code: Vec<u8>,
    pub registers: [u64; 32],
    pub data: Vec<u8>,
}

/// Where a jump goes.
#[derive(Debug, Clone, Copy)]
enum Item {
    Word(u32),
    Half(u16),
    /// `funct3` and sources.
    Branch(u32, u32, u32),
    Jal(u32),
    /// `auipc` to the first register and `jalr` with the second.
    Far(u32, u32),
}

impl Item {
    fn bytes(self) -> usize {
        match self {
            Self::Half(_) => 2,
            Self::Far(..) => 8,
            _ => 4,
        }
    }
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: u32) -> u32 {
        u32::try_from(self.next() % u64::from(end)).unwrap()
    }

    fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(u32::try_from(list.len()).unwrap()) as usize]
    }

    /// A register to read.
    fn source(&mut self) -> u32 {
        self.below(32)
    }

    /// A register to write.
    fn target(&mut self) -> u32 {
        loop {
            let register = self.below(32);
            if ![STACK, LOW, POINTER, BASE].contains(&register) {
                return register;
            }
        }
    }

    /// A register to write of those that three bits name, as three bits.
    fn low_target(&mut self) -> u32 {
        self.pick(&[0, 2, 3, 4, 5, 6, 7])
    }

    fn imm(&mut self) -> i32 {
        self.below(4096).cast_signed() - 2048
    }

    /// Often an edge.
    fn value(&mut self) -> u64 {
        let random = self.next();
        match random % 8 {
            0 => self.pick(&[
                0,
                1,
                u64::MAX,
                1 << 63,
                (1 << 63) - 1,
                0x8000_0000,
                0x7fff_ffff,
                0xffff_ffff,
            ]),
            1 => u64::from(self.below(64)),
            2 => self.next() >> 32,
            3 => (self.next().cast_signed() >> 40).cast_unsigned(),
            _ => self.next(),
        }
    }
}

impl Stream {
    pub fn new(seed: u64) -> Self {
        let mut random = Random(seed.wrapping_mul(0x2545_f491_4f6c_dd1d));
        let mut registers: [u64; 32] = std::array::from_fn(|_| random.value());
        registers[0] = 0;
        registers[STACK as usize] = DATA + 0x800;
        registers[LOW as usize] = DATA + 0xc00;
        registers[POINTER as usize] = DATA;
        registers[BASE as usize] = DATA + 0x1000;
        let data = (0..DATA_BYTES / 8)
            .flat_map(|_| random.value().to_le_bytes())
            .collect();
        let mut items = Vec::new();
        // Reservations compare sizes here and only addresses there, so a stream has one size.
        let log = 2 + random.below(2);
        while items.len() < COUNT {
            add(&mut items, &mut random, log);
        }
        let code = place(&items, &mut random);
        Self {
            code,
            registers,
            data,
        }
    }

    pub fn listing(&self) -> String {
        self.code
            .chunks(2)
            .map(|half| format!("{:02x}{:02x} ", half[1], half[0]))
            .collect()
    }
}

/// Adds an instruction, or two that belong together.
fn add(items: &mut Vec<Item>, random: &mut Random, log: u32) {
    let (rd, rs1, rs2, imm) = (
        random.target(),
        random.source(),
        random.source(),
        random.imm(),
    );
    let item = match random.below(16) {
        0..=4 => Item::Word(three(random, rd, rs1, rs2)),
        5..=7 => Item::Word(immediate(random, rd, rs1)),
        8 => Item::Word(load(random.below(7), rd, BASE, imm)),
        9 => Item::Word(store(random.below(4), rs2, BASE, imm)),
        10 => {
            let aligned = random.below(256).cast_signed() * 8 - 1024;
            items.push(Item::Word(addi(POINTER, BASE, aligned)));
            Item::Word(atomic(random, log, rd, rs2))
        }
        11 => Item::Branch(random.pick(&[0, 1, 4, 5, 6, 7]), rs1, rs2),
        12 if random.below(2) == 0 => Item::Jal(rd),
        12 => Item::Far(if rd == 0 { 1 } else { rd }, random.target()),
        13 => Item::Word(random.pick(&[
            lui(rd, random.0 as u32 & 0xf_ffff),
            (random.0 as u32) << 12 | rd << 7 | 0x17,
        ])),
        _ => Item::Half(compressed(random)),
    };
    items.push(item);
}

/// An operation of two registers.
fn three(random: &mut Random, rd: u32, rs1: u32, rs2: u32) -> u32 {
    const OP: u32 = 0x33;
    const OP_32: u32 = 0x3b;
    let funct3 = random.below(8);
    let form = match random.below(4) {
        0 => (0, funct3, OP),
        1 => random.pick(&[
            (1, funct3, OP),
            (1, 0, OP_32),
            (1, 4, OP_32),
            (1, 5, OP_32),
            (1, 6, OP_32),
            (1, 7, OP_32),
        ]),
        2 => random.pick(&[
            (0x20, 0, OP),
            (0x20, 5, OP),
            (0, 0, OP_32),
            (0, 1, OP_32),
            (0, 5, OP_32),
            (0x20, 0, OP_32),
            (0x20, 5, OP_32),
        ]),
        _ => random.pick(&[
            (4, 0, OP_32),
            (0x10, 2, OP),
            (0x10, 4, OP),
            (0x10, 6, OP),
            (0x10, 2, OP_32),
            (0x10, 4, OP_32),
            (0x10, 6, OP_32),
            (0x20, 7, OP),
            (0x20, 6, OP),
            (0x20, 4, OP),
            (5, 4, OP),
            (5, 5, OP),
            (5, 6, OP),
            (5, 7, OP),
            (0x30, 1, OP),
            (0x30, 5, OP),
            (0x30, 1, OP_32),
            (0x30, 5, OP_32),
            (0x24, 1, OP),
            (0x24, 5, OP),
            (0x34, 1, OP),
            (0x14, 1, OP),
            (4, 4, OP_32),
        ]),
    };
    // zext.h has no second source.
    r(form, rd, rs1, if form == (4, 4, OP_32) { 0 } else { rs2 })
}

/// An operation of a register and an immediate.
fn immediate(random: &mut Random, rd: u32, rs1: u32) -> u32 {
    let (amount, word_amount) = (
        random.below(64).cast_signed(),
        random.below(32).cast_signed(),
    );
    let imm = random.imm();
    let (form, imm) = match random.below(3) {
        0 => ((random.pick(&[0, 2, 3, 4, 6, 7]), 0x13), imm),
        1 => random.pick(&[
            ((1, 0x13), amount),
            ((5, 0x13), amount),
            ((5, 0x13), 0x400 | amount),
            ((0, 0x1b), imm),
            ((1, 0x1b), word_amount),
            ((5, 0x1b), word_amount),
            ((5, 0x1b), 0x400 | word_amount),
        ]),
        _ => random.pick(&[
            ((1, 0x1b), 0x80 | amount),
            ((1, 0x13), 0x600),
            ((1, 0x13), 0x601),
            ((1, 0x13), 0x602),
            ((1, 0x13), 0x604),
            ((1, 0x13), 0x605),
            ((1, 0x1b), 0x600),
            ((1, 0x1b), 0x601),
            ((1, 0x1b), 0x602),
            ((5, 0x13), 0x600 | amount),
            ((5, 0x1b), 0x600 | word_amount),
            ((5, 0x13), 0x287),
            ((5, 0x13), 0x6b8),
            ((1, 0x13), 0x480 | amount),
            ((5, 0x13), 0x480 | amount),
            ((1, 0x13), 0x680 | amount),
            ((1, 0x13), 0x280 | amount),
        ]),
    };
    i(form, rd, rs1, imm)
}

fn atomic(random: &mut Random, log: u32, rd: u32, rs2: u32) -> u32 {
    match random.below(3) {
        0 => amo(2, log, rd, POINTER, 0),
        1 => amo(3, log, rd, POINTER, rs2),
        _ => {
            let function = random.pick(&[0, 1, 4, 8, 0xc, 0x10, 0x14, 0x18, 0x1c]);
            amo(function, 2 + random.below(2), rd, POINTER, rs2)
        }
    }
}

/// A compressed instruction that is no jump and no hint.
fn compressed(random: &mut Random) -> u16 {
    let rd = loop {
        let rd = random.target();
        if rd != 0 {
            break rd;
        }
    };
    let (low, low_source) = (random.low_target(), random.below(8));
    let base = LOW - 8;
    let rs2 = 1 + random.below(31);
    let imm6 = 1 + random.below(63);
    let split6 = (imm6 >> 5) << 12 | (imm6 & 31) << 2;
    let five = random.below(8) << 10 | random.below(4) << 5;
    let half = match random.below(22) {
        // addi4spn, lw, ld, sw, sd
        0 => (1 + random.below(255)) << 5 | low << 2,
        1 => 0b010 << 13 | five | base << 7 | low << 2,
        2 => 0b011 << 13 | five | base << 7 | low << 2,
        3 => 0b110 << 13 | five | base << 7 | low_source << 2,
        4 => 0b111 << 13 | five | base << 7 | low_source << 2,
        // addi, addiw, li, lui
        5 => split6 | rd << 7 | 1,
        6 => 0b001 << 13 | split6 | rd << 7 | 1,
        7 => 0b010 << 13 | split6 | rd << 7 | 1,
        8 => 0b011 << 13 | split6 | rd << 7 | 1,
        // srli, srai, andi
        9 => 0b100 << 13 | split6 | low << 7 | 1,
        10 => 0b100 << 13 | 1 << 10 | split6 | low << 7 | 1,
        11 => 0b100 << 13 | 2 << 10 | split6 | low << 7 | 1,
        // sub, xor, or, and, subw, addw
        12 => 0b100 << 13 | 3 << 10 | low << 7 | random.below(4) << 5 | low_source << 2 | 1,
        13 => {
            0b100 << 13 | 1 << 12 | 3 << 10 | low << 7 | random.below(2) << 5 | low_source << 2 | 1
        }
        // slli, lwsp, ldsp, mv, add, swsp, sdsp
        14 => split6 | rd << 7 | 2,
        15 => 0b010 << 13 | split6 | rd << 7 | 2,
        16 => 0b011 << 13 | split6 | rd << 7 | 2,
        17 => 0b100 << 13 | rd << 7 | rs2 << 2 | 2,
        18 => 0b100 << 13 | 1 << 12 | rd << 7 | rs2 << 2 | 2,
        19 => 0b110 << 13 | random.below(64) << 7 | rs2 << 2 | 2,
        20 => 0b111 << 13 | random.below(64) << 7 | rs2 << 2 | 2,
        // nop
        _ => 1,
    };
    u16::try_from(half).unwrap()
}

/// Gives each jump a target, and writes the code.
fn place(items: &[Item], random: &mut Random) -> Vec<u8> {
    let starts: Vec<usize> = items
        .iter()
        .scan(0, |end, item| {
            let start = *end;
            *end += item.bytes();
            Some(start)
        })
        .collect();
    let mut code = Vec::new();
    let distance =
        |here: usize, to: usize| i32::try_from(to).unwrap() - i32::try_from(here).unwrap();
    for (at, (item, &start)) in items.iter().zip(&starts).enumerate() {
        // Most jumps go forward, so that a stream does not end in a small loop.
        let near = &starts[(at + 1).min(starts.len() - 1)..(at + 20).min(starts.len())];
        let to = match random.below(8) {
            0 => random.pick(&starts),
            _ => random.pick(near),
        };
        let offset = distance(start, to);
        let bytes = match *item {
            Item::Word(word) => words(&[word]),
            Item::Half(half) => half.to_le_bytes().to_vec(),
            Item::Branch(funct3, rs1, rs2) => words(&[branch(funct3, rs1, rs2, offset)]),
            Item::Jal(rd) => words(&[jal(rd, offset)]),
            Item::Far(base, rd) => words(&[base << 7 | 0x17, i((0, 0x67), rd, base, offset)]),
        };
        code.extend(bytes);
    }
    let end = code.len();
    code.extend(words(&[jal(0, distance(end, 0))]));
    assert!(CODE + (code.len() as u64) < DATA);
    code
}

fn jal(rd: u32, offset: i32) -> u32 {
    let imm = offset.cast_unsigned();
    (imm >> 20 & 1) << 31
        | (imm >> 1 & 0x3ff) << 21
        | (imm >> 11 & 1) << 20
        | (imm >> 12 & 0xff) << 12
        | rd << 7
        | 0x6f
}
