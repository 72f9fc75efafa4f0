//! Source lines of addresses, from a program's DWARF.

use addr2line::Context;
use gimli::{EndianArcSlice, LittleEndian};
use object::read::elf::{FileHeader as _, SectionHeader as _};
use std::sync::Arc;

type Reader = EndianArcSlice<LittleEndian>;
type Header = object::elf::FileHeader64<object::LittleEndian>;

/// A place in the source.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Line {
    /// Path, as the compiler wrote it.
    pub file: String,
    /// Line, starting at 1. 0 if the compiler names none.
    pub line: u32,
}

/// The table of lines of a program.
pub struct Lines {
    context: Context<Reader>,
}

impl std::fmt::Debug for Lines {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lines").finish_non_exhaustive()
    }
}

impl Lines {
    /// Reads the table of the ELF file that [`Program::parse`](crate::Program::parse) accepted. `None` if it is damaged. A
    /// program without one has no lines.
    #[must_use]
    pub fn parse(file: &[u8]) -> Option<Self> {
        let header = Header::parse(file).ok()?;
        let little = header.endian().ok()?;
        let sections = header.sections(little, file).ok()?;
        let section = |id: gimli::SectionId| -> Result<Reader, gimli::Error> {
            let found = sections.section_by_name(little, id.name().as_bytes());
            // A compressed section would have to be expanded without a bound.
            let plain = found.filter(|(_, section)| {
                section.sh_flags(little).0 & object::elf::SHF_COMPRESSED.0 == 0
            });
            let data = plain.and_then(|(_, section)| section.data(little, file).ok());
            Ok(EndianArcSlice::new(
                Arc::from(data.unwrap_or_default()),
                LittleEndian,
            ))
        };
        let dwarf = gimli::Dwarf::load(section).ok()?;
        let context = Context::from_dwarf(dwarf).ok()?;
        Some(Self { context })
    }

    /// The source line of an instruction.
    #[must_use]
    pub fn at(&self, address: u64) -> Option<Line> {
        let location = self.context.find_location(address).ok()??;
        Some(Line {
            file: location.file?.to_owned(),
            line: location.line.unwrap_or_default(),
        })
    }
}
