//! Core files: registers and memory of a process as an ELF file for debuggers.

use rv64::{Hart, Rights};

/// Bytes of the ELF header, of a program header, and of the registers of a thread (`struct elf_prstatus`).
pub(crate) const HEADER_BYTES: u16 = 64;
pub(crate) const SEGMENT_BYTES: u16 = 56;
const STATUS_BYTES: u16 = 376;
/// Name of the notes, with its zero byte and padding.
const NAME: [u8; 8] = *b"CORE\0\0\0\0";
/// `NT_PRSTATUS`.
const STATUS: u32 = 1;
/// Offsets in the registers of a thread: signal, number, program counter and the registers from `x1` on.
const SIGNAL_AT: usize = 12;
const NUMBER_AT: usize = 32;
const REGISTERS_AT: usize = 112;
/// A fault, and no signal.
pub(crate) const SIGSEGV: u16 = 11;
/// `ET_CORE`, `EM_RISCV`, and flags of code with compressed instructions.
const KIND: u16 = 4;
const MACHINE: u16 = 243;
const FLAGS: u32 = 1;
/// Most ranges of memory: a file has 65,534 program headers.
pub(crate) const RANGES_MAX: usize = 65_000;

/// A core file: a head, and ranges of memory behind it.
#[derive(Debug, Clone)]
pub struct CoreFile {
    pub(crate) head: Vec<u8>,
    /// First address and bytes.
    pub(crate) ranges: Vec<(u64, u64)>,
}

impl CoreFile {
    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let memory: u64 = self.ranges.iter().map(|(_, bytes)| bytes).sum();
        self.head.len() as u64 + memory
    }
}

/// Registers of a thread.
pub(crate) fn note(hart: &Hart, number: u32, signal: u16) -> Vec<u8> {
    let mut status = [0; STATUS_BYTES as usize];
    status[SIGNAL_AT..SIGNAL_AT + 2].copy_from_slice(&signal.to_le_bytes());
    status[NUMBER_AT..NUMBER_AT + 4].copy_from_slice(&number.to_le_bytes());
    let registers = [hart.pc()].into_iter().chain((1..32).map(|n| hart.x(n)));
    let places = status[REGISTERS_AT..].as_chunks_mut::<8>().0;
    for (place, value) in places.iter_mut().zip(registers) {
        *place = value.to_le_bytes();
    }
    let mut note = Vec::new();
    for word in [5, u32::from(STATUS_BYTES), STATUS] {
        note.extend_from_slice(&word.to_le_bytes());
    }
    note.extend_from_slice(&NAME);
    note.extend_from_slice(&status);
    note
}

/// A program header: type, rights, offset, address, bytes.
pub(crate) fn segment(kind: u32, rights: Rights, [offset, address, bytes]: [u64; 3]) -> Vec<u8> {
    let flag = |has: bool, bit: u32| if has { bit } else { 0 };
    let flags = flag(rights.execute, 1) | flag(rights.write, 2) | flag(rights.read, 4);
    let mut header = Vec::new();
    header.extend_from_slice(&kind.to_le_bytes());
    header.extend_from_slice(&flags.to_le_bytes());
    // The physical address is the same.
    for word in [offset, address, address, bytes, bytes, 1] {
        header.extend_from_slice(&word.to_le_bytes());
    }
    header
}

pub(crate) fn file_header(segments: u16) -> Vec<u8> {
    let mut header = vec![0x7f, b'E', b'L', b'F', 2, 1, 1];
    header.resize(16, 0);
    for half in [KIND, MACHINE] {
        header.extend_from_slice(&half.to_le_bytes());
    }
    header.extend_from_slice(&1u32.to_le_bytes());
    // No entry, program headers behind this one, no sections.
    for word in [0, u64::from(HEADER_BYTES), 0] {
        header.extend_from_slice(&word.to_le_bytes());
    }
    header.extend_from_slice(&FLAGS.to_le_bytes());
    for half in [HEADER_BYTES, SEGMENT_BYTES, segments, 64, 0, 0] {
        header.extend_from_slice(&half.to_le_bytes());
    }
    header
}
