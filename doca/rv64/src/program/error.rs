//! Bounds of programs, and what is wrong with a file.

/// The header of a file.
pub(super) type Header = object::elf::FileHeader64<object::LittleEndian>;

/// Bounds of a program. The defaults are the values in parentheses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Limits {
    /// Bytes of the file (64 MiB).
    pub file_bytes: usize,
    /// Segments that are loaded (16).
    pub segments: usize,
    /// Bytes of all segments in memory (64 MiB).
    pub memory_bytes: u64,
    /// Bytes of executable segments (16 MiB). Decoded code takes four times as much.
    pub code_bytes: u64,
    /// Bytes of thread-local storage for each hart (64 KiB).
    pub local_bytes: u64,
    /// Entries of the table of symbols (65,536).
    pub symbols: usize,
    /// Whether a segment may be writable and executable (no).
    pub writable_code: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            file_bytes: 64 << 20,
            segments: 16,
            memory_bytes: 64 << 20,
            code_bytes: 16 << 20,
            local_bytes: 64 << 10,
            symbols: 1 << 16,
            writable_code: false,
        }
    }
}

/// Why a file is no program. Each message says what is wrong and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// A bound of [`Limits`] is exceeded.
    #[error("{what}: {found}, the limit is {limit}")]
    Limit {
        /// What is too large.
        what: &'static str,
        /// Its size.
        found: u64,
        /// The bound.
        limit: u64,
    },
    /// The file is damaged, or no ELF file of 64 bits in little-endian order.
    #[error("{part}: {what}")]
    Format {
        /// Part of the file.
        part: &'static str,
        /// What is wrong.
        what: String,
    },
    /// Another processor.
    #[error("file header: machine {0}, RISC-V is 243; build with a compiler for riscv64")]
    Machine(u16),
    /// An object file, a shared library or a core dump.
    #[error(
        "file header: type {0}, an executable is 2 (or 3 at a fixed address); link the program"
    )]
    Kind(u16),
    /// Code for floating-point registers or for half of the registers.
    #[error(
        "file header: flags {0:#x} demand another calling convention; build with -march=rv64imac -mabi=lp64"
    )]
    Convention(u32),
    /// The program needs a dynamic linker.
    #[error("{0}: the program needs a dynamic linker; link it with -static")]
    Dynamic(&'static str),
    /// Relocations are left.
    #[error(
        "{place}: {bytes} bytes of relocations are left; link the program at a fixed address with -static -no-pie"
    )]
    Relocations {
        /// Name of the section, or of the entry in the dynamic table.
        place: String,
        /// Their size.
        bytes: u64,
    },
    /// A segment cannot be loaded.
    #[error("segment {index} at {start:#x}: {fault}")]
    Segment {
        /// Number of its program header, starting at 0.
        index: usize,
        /// Its address.
        start: u64,
        /// What is wrong.
        fault: SegmentFault,
    },
    /// The program begins outside its code.
    #[error("entry {0:#x} is in no executable segment")]
    Entry(u64),
}

/// What is wrong with a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum SegmentFault {
    /// Writable and executable.
    #[error("writable and executable; link with -z separate-code, without -N")]
    WritableCode,
    /// It has an address in common with another segment.
    #[error("overlaps the segment at {0:#x}")]
    Overlap(u64),
    /// The bytes in the file are not all there, or more than those in memory.
    #[error("{in_file} bytes from byte {offset} of the file for {in_memory} bytes of memory")]
    Bytes {
        /// Bytes in the file.
        in_file: u64,
        /// Their place.
        offset: u64,
        /// Bytes in memory.
        in_memory: u64,
    },
    /// The first page stays empty, so that null pointers trap.
    #[error("in the first page, which is kept free; link with -Ttext-segment=0x10000")]
    NullPage,
    /// The address space ends before it, or at its end.
    #[error("{0} bytes do not fit into the address space")]
    Wraps(u64),
    /// Instructions are at even addresses.
    #[error("executable at an odd address")]
    Odd,
    /// The alignment of thread-local storage is no power of two, or above a page.
    #[error("alignment {0} of thread-local storage is no power of two up to 4096")]
    Alignment(u64),
}

/// An error of the format in a part of the file.
pub(super) fn format(part: &'static str) -> impl Fn(object::read::Error) -> LoadError {
    move |error| LoadError::Format {
        part,
        what: error.to_string(),
    }
}

/// Checks a bound.
pub(super) fn within(what: &'static str, found: u64, limit: u64) -> Result<(), LoadError> {
    if found > limit {
        return Err(LoadError::Limit { what, found, limit });
    }
    Ok(())
}
