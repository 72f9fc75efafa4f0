//! Core files: registers and memory of a process as an ELF file for debuggers.

use super::Os;
use rv64::{Hart, Rights};

/// Bytes of the ELF header, of a program header, and of the registers of a thread (`struct elf_prstatus`).
const HEADER_BYTES: u16 = 64;
const SEGMENT_BYTES: u16 = 56;
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
const SIGSEGV: u16 = 11;
/// `ET_CORE`, `EM_RISCV`, and flags of code with compressed instructions.
const KIND: u16 = 4;
const MACHINE: u16 = 243;
const FLAGS: u32 = 1;
/// Most ranges of memory: a file has 65,534 program headers.
const RANGES_MAX: usize = 65_000;

/// A core file: a head, and ranges of memory behind it.
#[derive(Debug, Clone)]
pub struct CoreFile {
    head: Vec<u8>,
    /// First address and bytes.
    ranges: Vec<(u64, u64)>,
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
fn note(hart: &Hart, number: u32, signal: u16) -> Vec<u8> {
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
fn segment(kind: u32, rights: Rights, [offset, address, bytes]: [u64; 3]) -> Vec<u8> {
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

fn file_header(segments: u16) -> Vec<u8> {
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

impl Os {
    /// The process's state as a core file: all threads, that of a fault first, the program and its memory. Memory behind windows is
    /// left out. [`read_core`](Self::read_core) gives its bytes.
    #[must_use]
    pub fn core_file(&self) -> CoreFile {
        let fault = self.kernel.fault.as_ref().map(|fault| fault.thread);
        let threads = self.kernel.threads.iter().zip(0..);
        let mut harts: Vec<(&Hart, u32)> = threads
            .filter_map(|(thread, hart)| {
                let number = thread.as_ref()?.view.number;
                Some((self.machine.hart(hart)?, number))
            })
            .collect();
        // A debugger selects the first thread.
        harts.sort_by_key(|(_, number)| Some(*number) != fault);
        let mut notes = Vec::new();
        for (hart, number) in &harts {
            let signal = if Some(*number) == fault { SIGSEGV } else { 0 };
            notes.extend(note(hart, *number, signal));
        }
        // Of the stacks and thread-local storage, only those of threads.
        let (first, _) = self.machine.stack(0);
        let (last, bytes) = self.machine.stack(rv64::HARTS_MAX - 1);
        let stacks = first.saturating_sub(1 << 20)..last + bytes;
        let of_thread = |start: u64| {
            let mut own = harts.iter();
            own.any(|(hart, _)| self.machine.has_range(hart.id(), start))
        };
        let mut ranges: Vec<(u64, u64, Rights)> = self
            .machine
            .memory()
            .memory_ranges()
            .filter(|(start, ..)| !stacks.contains(start) || of_thread(*start))
            .collect();
        ranges.truncate(RANGES_MAX);
        let count = u16::try_from(ranges.len() + 1).unwrap_or(u16::MAX);
        let mut head = file_header(count);
        let mut offset = u64::from(HEADER_BYTES) + u64::from(SEGMENT_BYTES) * u64::from(count);
        let length = notes.len() as u64;
        head.extend(segment(4, Rights::default(), [offset, 0, length]));
        offset += length;
        for (start, bytes, rights) in &ranges {
            head.extend(segment(1, *rights, [offset, *start, *bytes]));
            offset += bytes;
        }
        head.extend(notes);
        let ranges = ranges.iter().map(|(start, bytes, _)| (*start, *bytes));
        CoreFile {
            head,
            ranges: ranges.collect(),
        }
    }

    /// Bytes of a core file from an offset on. Returns how many there are, which is less than the buffer only at the end.
    pub fn read_core(&self, core: &CoreFile, offset: u64, buffer: &mut [u8]) -> usize {
        let mut done = 0;
        let skipped = usize::try_from(offset).unwrap_or(usize::MAX);
        let head = core.head.get(skipped..).unwrap_or_default();
        let count = head.len().min(buffer.len());
        buffer[..count].copy_from_slice(&head[..count]);
        done += count;
        let mut skip = offset.saturating_sub(core.head.len() as u64);
        for (start, bytes) in &core.ranges {
            if done == buffer.len() {
                break;
            }
            if skip >= *bytes {
                skip -= bytes;
                continue;
            }
            let left = usize::try_from(bytes - skip).unwrap_or(usize::MAX);
            let part = left.min(buffer.len() - done);
            let place = &mut buffer[done..done + part];
            // Memory that has been returned since is 0.
            if self.machine.memory().peek(start + skip, place).is_err() {
                place.fill(0);
            }
            done += part;
            skip = 0;
        }
        done
    }
}
