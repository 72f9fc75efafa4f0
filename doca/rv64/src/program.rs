//! Programs: static ELF files for RV64, read and checked.

mod error;
mod symbols;

use crate::space::{PAGE, Rights};
use error::{Header, format, within};
pub use error::{Limits, LoadError, SegmentFault};
use object::LittleEndian as Little;
use object::elf::{self, ProgramHeader64};
use object::read::elf::{Dyn as _, FileHeader as _, ProgramHeader as _, SectionHeader as _};
use symbols::Symbols;

type Segments<'a> = &'a [ProgramHeader64<Little>];

/// A part of a program in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// First address.
    pub start: u64,
    /// Bytes in memory. Those behind [`data`](Self::data) are 0.
    pub length: u64,
    /// What the program may do there.
    pub rights: Rights,
    /// Its bytes in the file.
    pub data: Vec<u8>,
}

/// Thread-local storage of each hart. Its first byte is at `tp`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Local {
    pub(crate) length: u64,
    pub(crate) data: Vec<u8>,
}

/// A program that can be loaded into any number of machines.
#[derive(Debug, Clone)]
pub struct Program {
    entry: u64,
    segments: Vec<Segment>,
    local: Local,
    symbols: Symbols,
}

impl Program {
    /// Reads an ELF file with the default [`Limits`].
    ///
    /// # Errors
    /// See [`LoadError`].
    pub fn parse(file: &[u8]) -> Result<Self, LoadError> {
        Self::parse_with(file, &Limits::default())
    }

    /// Reads an ELF file.
    ///
    /// # Errors
    /// See [`LoadError`].
    pub fn parse_with(file: &[u8], limits: &Limits) -> Result<Self, LoadError> {
        within(
            "bytes of the file",
            file.len() as u64,
            limits.file_bytes as u64,
        )?;
        let header = Header::parse(file).map_err(format("file header"))?;
        let little = header.endian().map_err(format("file header"))?;
        check_header(header, little)?;
        let headers = header
            .program_headers(little, file)
            .map_err(format("program headers"))?;
        check_static(headers, little, file)?;
        check_sections(header, little, file)?;
        let segments = load(headers, little, file, limits)?;
        let local = local(headers, little, file, limits)?;
        let entry = header.e_entry(little);
        let is_code = |segment: &&Segment| {
            segment.rights.execute && entry.wrapping_sub(segment.start) < segment.length
        };
        if entry % 2 != 0 || !segments.iter().any(|segment| is_code(&segment)) {
            return Err(LoadError::Entry(entry));
        }
        let symbols = Symbols::read(header, little, file, limits)?;
        Ok(Self {
            entry,
            segments,
            local,
            symbols,
        })
    }

    /// Address of the first instruction.
    #[must_use]
    pub fn entry(&self) -> u64 {
        self.entry
    }

    /// The segments, in the order of their addresses.
    #[must_use]
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Bytes of thread-local storage for each hart.
    #[must_use]
    pub fn local_bytes(&self) -> u64 {
        self.local.length
    }

    pub(crate) fn local(&self) -> &Local {
        &self.local
    }

    /// Address of a function, an object or a mark of the linker. Of symbols with the same name, a global one counts, or else the
    /// first. `None` for unknown names, and for thread-local ones.
    #[must_use]
    pub fn symbol(&self, name: &str) -> Option<u64> {
        self.symbols.address(name)
    }

    /// The function or object at an address: its name, and the distance from its start. `None` if no symbol is before the
    /// address in its segment, or if the address is behind the symbol's end.
    #[must_use]
    pub fn symbol_at(&self, address: u64) -> Option<(&str, u64)> {
        let segment = self
            .segments
            .iter()
            .find(|segment| address.wrapping_sub(segment.start) < segment.length)?;
        self.symbols
            .at(address)
            .filter(|(_, distance)| address - distance >= segment.start)
    }
}

fn check_header(header: &Header, little: Little) -> Result<(), LoadError> {
    let machine = header.e_machine(little);
    if machine != elf::EM_RISCV {
        return Err(LoadError::Machine(machine.0));
    }
    let kind = header.e_type(little);
    if kind != elf::ET_EXEC && kind != elf::ET_DYN {
        return Err(LoadError::Kind(kind.0));
    }
    // Compressed code and the strong memory model need nothing.
    let flags = header.e_flags(little).0;
    if flags & !(elf::EF_RISCV_RVC.0 | elf::EF_RISCV_TSO.0) != 0 {
        return Err(LoadError::Convention(flags));
    }
    Ok(())
}

/// No interpreter, no libraries, and no relocations that only the dynamic table names.
fn check_static(headers: Segments<'_>, little: Little, file: &[u8]) -> Result<(), LoadError> {
    for header in headers {
        if header.p_type(little) == elf::PT_INTERP {
            return Err(LoadError::Dynamic("program header of an interpreter"));
        }
        let entries = header
            .dynamic(little, file)
            .map_err(format("dynamic table"))?;
        for entry in entries.unwrap_or_default() {
            let bytes = entry.d_val(little);
            let name = match entry.d_tag(little) {
                elf::DT_NULL => break,
                elf::DT_NEEDED => return Err(LoadError::Dynamic("a library in the dynamic table")),
                elf::DT_RELASZ => "DT_RELASZ",
                elf::DT_RELSZ => "DT_RELSZ",
                elf::DT_RELRSZ => "DT_RELRSZ",
                elf::DT_PLTRELSZ => "DT_PLTRELSZ",
                _ => continue,
            };
            if bytes != 0 {
                return Err(LoadError::Relocations {
                    place: name.to_owned(),
                    bytes,
                });
            }
        }
    }
    Ok(())
}

/// No section with relocations.
fn check_sections(header: &Header, little: Little, file: &[u8]) -> Result<(), LoadError> {
    let sections = header
        .sections(little, file)
        .map_err(format("section headers"))?;
    for section in sections.iter() {
        let bytes = section.sh_size(little);
        let kind = section.sh_type(little);
        let relocates = [elf::SHT_RELA, elf::SHT_REL, elf::SHT_RELR, elf::SHT_CREL].contains(&kind);
        if relocates && bytes != 0 {
            let name = sections.section_name(little, section).unwrap_or_default();
            let place = format!("section {}", String::from_utf8_lossy(name));
            return Err(LoadError::Relocations { place, bytes });
        }
    }
    Ok(())
}

/// The segments to load, sorted and checked.
fn load(
    headers: Segments<'_>,
    little: Little,
    file: &[u8],
    limits: &Limits,
) -> Result<Vec<Segment>, LoadError> {
    let (mut segments, mut memory, mut code) = (Vec::new(), 0_u64, 0_u64);
    for (index, header) in headers.iter().enumerate() {
        let (start, length) = (header.p_vaddr(little), header.p_memsz(little));
        if header.p_type(little) != elf::PT_LOAD || length == 0 {
            continue;
        }
        let refuse = |fault| LoadError::Segment {
            index,
            start,
            fault,
        };
        within(
            "segments",
            segments.len() as u64 + 1,
            limits.segments as u64,
        )?;
        let data = bytes(header, little, file).map_err(refuse)?;
        if start
            .checked_add(length)
            .is_none_or(|end| end > crate::exec::RETURN)
        {
            return Err(refuse(SegmentFault::Wraps(length)));
        }
        if start < PAGE {
            return Err(refuse(SegmentFault::NullPage));
        }
        let flags = header.p_flags(little).0;
        let has = |flag: elf::ProgramFlags| flags & flag.0 != 0;
        let rights = Rights::new(has(elf::PF_R), has(elf::PF_W), has(elf::PF_X));
        if rights.write && rights.execute && !limits.writable_code {
            return Err(refuse(SegmentFault::WritableCode));
        }
        if rights.execute && start % 2 != 0 {
            return Err(refuse(SegmentFault::Odd));
        }
        memory = memory.saturating_add(length);
        within("bytes of all segments", memory, limits.memory_bytes)?;
        if rights.execute {
            code = code.saturating_add(length);
            within("bytes of executable segments", code, limits.code_bytes)?;
        }
        segments.push((
            index,
            Segment {
                start,
                length,
                rights,
                data: data.to_vec(),
            },
        ));
    }
    segments.sort_by_key(|(_, segment)| segment.start);
    for pair in segments.windows(2) {
        let ((_, low), (index, high)) = (&pair[0], &pair[1]);
        if low.start + low.length > high.start {
            let fault = SegmentFault::Overlap(low.start);
            return Err(LoadError::Segment {
                index: *index,
                start: high.start,
                fault,
            });
        }
    }
    Ok(segments.into_iter().map(|(_, segment)| segment).collect())
}

/// The bytes of a segment in the file.
fn bytes<'a>(
    header: &ProgramHeader64<Little>,
    little: Little,
    file: &'a [u8],
) -> Result<&'a [u8], SegmentFault> {
    let (offset, in_file) = header.file_range(little);
    let in_memory = header.p_memsz(little);
    let fault = SegmentFault::Bytes {
        in_file,
        offset,
        in_memory,
    };
    let data = header.data(little, file).map_err(|()| fault)?;
    if in_file > in_memory {
        Err(fault)
    } else {
        Ok(data)
    }
}

/// Thread-local storage.
fn local(
    headers: Segments<'_>,
    little: Little,
    file: &[u8],
    limits: &Limits,
) -> Result<Local, LoadError> {
    let is_local =
        |(_, header): &(usize, &ProgramHeader64<Little>)| header.p_type(little) == elf::PT_TLS;
    let Some((index, header)) = headers.iter().enumerate().find(is_local) else {
        return Ok(Local::default());
    };
    let start = header.p_vaddr(little);
    let refuse = |fault| LoadError::Segment {
        index,
        start,
        fault,
    };
    let (length, align) = (header.p_memsz(little), header.p_align(little));
    within("bytes of thread-local storage", length, limits.local_bytes)?;
    if align > PAGE || (align != 0 && !align.is_power_of_two()) {
        return Err(refuse(SegmentFault::Alignment(align)));
    }
    let data = bytes(header, little, file).map_err(refuse)?.to_vec();
    Ok(Local { length, data })
}
