//! ELF files and instructions for tests.
#![allow(dead_code, reason = "each test file uses a part")]

use rv64::{Config, Machine, Program};

pub(crate) const CODE: u64 = 0x10000;
pub(crate) const DATA: u64 = 0x20000;
pub(crate) const RET: u32 = 0x0000_8067;
pub(crate) const ECALL: u32 = 0x0000_0073;

pub(crate) const RA: u32 = 1;
pub(crate) const SP: u32 = 2;
pub(crate) const TP: u32 = 4;
pub(crate) const A0: u32 = 10;
pub(crate) const A1: u32 = 11;
pub(crate) const A2: u32 = 12;

/// A program header.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    pub(crate) kind: u32,
    pub(crate) start: u64,
    pub(crate) flags: u32,
    pub(crate) data: Vec<u8>,
    pub(crate) memory: u64,
    pub(crate) align: u64,
}

/// An ELF file to be.
#[derive(Debug, Clone)]
pub(crate) struct Elf {
    pub(crate) machine: u16,
    pub(crate) kind: u16,
    pub(crate) flags: u32,
    pub(crate) entry: u64,
    pub(crate) parts: Vec<Part>,
    /// Name, address, size, and whether it is global.
    pub(crate) symbols: Vec<(&'static str, u64, u64, bool)>,
    /// Bytes in a section of relocations.
    pub(crate) relocations: usize,
}

pub(crate) fn part(kind: u32, start: u64, flags: u32, data: &[u8], memory: u64) -> Part {
    let data = data.to_vec();
    Part {
        kind,
        start,
        flags,
        data,
        memory,
        align: 16,
    }
}

pub(crate) fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

impl Elf {
    /// Code at [`CODE`] and a page of data at [`DATA`].
    pub(crate) fn new(code: &[u32]) -> Self {
        let code = words(code);
        let length = code.len() as u64;
        Self {
            machine: 243,
            kind: 2,
            flags: 1,
            entry: CODE,
            parts: vec![part(1, CODE, 5, &code, length), part(1, DATA, 6, &[], 4096)],
            symbols: vec![("main", CODE, length, true)],
            relocations: 0,
        }
    }

    pub(crate) fn build(&self) -> Vec<u8> {
        let headers = 64 + 56 * self.parts.len();
        let (mut table, mut strings) = (vec![0; 24], vec![0]);
        for &(name, address, size, global) in &self.symbols {
            table.extend(u32::try_from(strings.len()).unwrap().to_le_bytes());
            table.extend([2 | u8::from(global) << 4, 0, 1, 0]);
            table.extend(address.to_le_bytes());
            table.extend(size.to_le_bytes());
            strings.extend(name.bytes());
            strings.push(0);
        }
        let names = b"\0.symtab\0.strtab\0.shstrtab\0.rela.text\0".to_vec();
        let relocations = vec![0; self.relocations];
        let mut body: Vec<u8> = Vec::new();
        let mut program = Vec::new();
        for part in &self.parts {
            program.extend(part.kind.to_le_bytes());
            program.extend(part.flags.to_le_bytes());
            let offset = (headers + body.len()) as u64;
            let sizes = [
                offset,
                part.start,
                part.start,
                part.data.len() as u64,
                part.memory,
                part.align,
            ];
            program.extend(sizes.iter().flat_map(|size| size.to_le_bytes()));
            body.extend(&part.data);
        }
        let mut sections = vec![0; 64];
        // Name, type, content, link and size of an entry.
        for (name, kind, content, link, entry) in [
            (1_u32, 2_u32, &table, 2_u32, 24_u64),
            (9, 3, &strings, 0, 0),
            (17, 3, &names, 0, 0),
            (27, 4, &relocations, 1, 24),
        ] {
            let offset = (headers + body.len()) as u64;
            body.extend(content);
            sections.extend(name.to_le_bytes());
            sections.extend(kind.to_le_bytes());
            for field in [0, 0, offset, content.len() as u64] {
                sections.extend(field.to_le_bytes());
            }
            sections.extend(link.to_le_bytes());
            sections.extend(1_u32.to_le_bytes());
            sections.extend(1_u64.to_le_bytes());
            sections.extend(entry.to_le_bytes());
        }
        let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
        file.extend(self.kind.to_le_bytes());
        file.extend(self.machine.to_le_bytes());
        file.extend(1_u32.to_le_bytes());
        for field in [self.entry, 64, (headers + body.len()) as u64] {
            file.extend(field.to_le_bytes());
        }
        file.extend(self.flags.to_le_bytes());
        for field in [64, 56, self.parts.len(), 64, 5, 3] {
            file.extend(u16::try_from(field).unwrap().to_le_bytes());
        }
        file.extend(program);
        file.extend(body);
        file.extend(sections);
        file
    }
}

/// Eight harts with small stacks and a heap of 64 KiB.
pub(crate) fn config() -> Config {
    Config {
        harts: 8,
        stack_bytes: 4096,
        heap_bytes: 1 << 16,
        ..Config::default()
    }
}

pub(crate) fn machine(code: &[u32]) -> Machine {
    let program = Program::parse(&Elf::new(code).build()).unwrap();
    Machine::new(&program, &config()).unwrap()
}

/// The form with three registers: (funct7, funct3, opcode).
pub(crate) fn r((funct7, funct3, opcode): (u32, u32, u32), rd: u32, rs1: u32, rs2: u32) -> u32 {
    funct7 << 25 | rs2 << 20 | rs1 << 15 | funct3 << 12 | rd << 7 | opcode
}

/// The form with an immediate: (funct3, opcode).
pub(crate) fn i((funct3, opcode): (u32, u32), rd: u32, rs1: u32, imm: i32) -> u32 {
    imm.cast_unsigned() << 20 | rs1 << 15 | funct3 << 12 | rd << 7 | opcode
}

/// A store of `1 << log` bytes.
pub(crate) fn store(log: u32, rs2: u32, rs1: u32, imm: i32) -> u32 {
    let imm = imm.cast_unsigned() & 0xfff;
    r((imm >> 5, log, 0x23), imm & 31, rs1, rs2)
}

/// A load; codes from 4 are unsigned.
pub(crate) fn load(code: u32, rd: u32, rs1: u32, imm: i32) -> u32 {
    i((code, 0x03), rd, rs1, imm)
}

pub(crate) fn addi(rd: u32, rs1: u32, imm: i32) -> u32 {
    i((0, 0x13), rd, rs1, imm)
}

/// A branch by a number of bytes.
pub(crate) fn branch(funct3: u32, rs1: u32, rs2: u32, imm: i32) -> u32 {
    let imm = imm.cast_unsigned();
    let high = (imm >> 12 & 1) << 6 | imm >> 5 & 63;
    let low = imm & 30 | imm >> 11 & 1;
    r((high, funct3, 0x63), low, rs1, rs2)
}

pub(crate) fn lui(rd: u32, imm: u32) -> u32 {
    imm << 12 | rd << 7 | 0x37
}

/// An atomic operation of `1 << log` bytes.
pub(crate) fn amo(function: u32, log: u32, rd: u32, rs1: u32, rs2: u32) -> u32 {
    r((function << 2, log, 0x2f), rd, rs1, rs2)
}
