//! The rules of a linked device program. Who loads a program can rely on them.

use crate::types::round_up;
use dpa_dev::PAGE;
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader};
use object::{LittleEndian, elf};

type Header = elf::FileHeader64<LittleEndian>;

/// Most bytes of memory of a program.
const MAX_MEMORY: u64 = 256 << 20;

/// A segment in memory.
#[derive(Debug, Clone, Copy)]
struct Segment {
    from: u64,
    to: u64,
    flags: u32,
}

/// Checks a program: for 64-bit RISC-V, linked statically, nothing writable and executable, no overlaps, the entry in
/// executable memory.
///
/// # Errors
/// The first rule that it breaks.
pub fn check(program: &[u8]) -> Result<(), String> {
    let broken = |error: object::Error| format!("the program is not an ELF file: {error}");
    let header = Header::parse(program).map_err(broken)?;
    let endian = header.endian().map_err(broken)?;
    if header.e_machine(endian) != elf::EM_RISCV {
        let machine = header.e_machine(endian).0;
        return Err(format!(
            "the program is for machine {machine} and not for RISC-V"
        ));
    }
    if header.e_type(endian) != elf::ET_EXEC {
        return Err("the program is not linked to fixed addresses".to_owned());
    }
    if header.e_flags(endian).0 & elf::EF_RISCV_FLOAT_ABI != elf::EF_RISCV_FLOAT_ABI_SOFT.0 {
        return Err(
            "the program uses floating-point registers, which the DPA does not have".to_owned(),
        );
    }
    relocations(header, program)?;
    let mut segments = Vec::new();
    for segment in header.program_headers(endian, program).map_err(broken)? {
        match segment.p_type(endian) {
            elf::PT_LOAD => segments.extend(load(segment, program)?),
            elf::PT_DYNAMIC | elf::PT_INTERP => {
                return Err("the program is linked dynamically".to_owned());
            }
            _ => {}
        }
    }
    segments.sort_by_key(|segment| segment.from);
    overlaps(&segments)?;
    let entry = header.e_entry(endian);
    let holds = |segment: &&Segment| segment.from <= entry && entry < segment.to;
    let executable = elf::PF_X.0;
    match segments.iter().find(holds) {
        Some(segment) if segment.flags & executable != 0 => Ok(()),
        _ => Err(format!("the entry {entry:#x} is outside executable memory")),
    }
}

/// No relocations are left.
fn relocations(header: &Header, program: &[u8]) -> Result<(), String> {
    let endian = LittleEndian;
    let broken = |error: object::Error| format!("the program has broken sections: {error}");
    for section in header.section_headers(endian, program).map_err(broken)? {
        let is_list = matches!(
            section.sh_type(endian),
            elf::SHT_RELA | elf::SHT_REL | elf::SHT_RELR
        );
        if is_list && section.sh_size(endian) > 0 {
            return Err(
                "the program has relocations left, which nothing applies on the DPA".to_owned(),
            );
        }
    }
    Ok(())
}

/// Checks a segment by itself. An empty one is absent.
fn load(
    segment: &elf::ProgramHeader64<LittleEndian>,
    program: &[u8],
) -> Result<Option<Segment>, String> {
    let endian = LittleEndian;
    let (from, size) = (segment.p_vaddr(endian), segment.p_memsz(endian));
    let flags = segment.p_flags(endian).0;
    if size == 0 {
        return Ok(None);
    }
    let (write, execute) = (elf::PF_W.0, elf::PF_X.0);
    if flags & write != 0 && flags & execute != 0 {
        return Err(format!(
            "the segment at {from:#x} is writable and executable"
        ));
    }
    if segment.p_filesz(endian) > size || segment.data(endian, program).is_err() {
        return Err(format!(
            "the segment at {from:#x} has more bytes than the file or its memory"
        ));
    }
    match from.checked_add(size) {
        Some(to) if from >= PAGE && size <= MAX_MEMORY => Ok(Some(Segment { from, to, flags })),
        _ => Err(format!(
            "the segment at {from:#x} with {size:#x} bytes is in the first page or larger than {MAX_MEMORY:#x} bytes"
        )),
    }
}

/// No two segments share a page. They are sorted.
fn overlaps(segments: &[Segment]) -> Result<(), String> {
    for pair in segments.windows(2) {
        let [first, second] = pair else { continue };
        if first.to > second.from {
            return Err(format!(
                "the segments at {:#x} and {:#x} overlap",
                first.from, second.from
            ));
        }
        if round_up(first.to, PAGE) > second.from && first.flags != second.flags {
            return Err(format!(
                "the segments at {:#x} and {:#x} have different rights in one page",
                first.from, second.from
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PT_LOAD: u32 = 1;
    const R: u32 = 4;
    const RW: u32 = 6;
    const RX: u32 = 5;

    /// A program of segments: kind, flags, address, bytes. The entry is 0x10000.
    fn program(segments: &[(u32, u32, u64, u64)]) -> Vec<u8> {
        let mut file = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0];
        file.resize(16, 0);
        file.extend(2_u16.to_le_bytes());
        file.extend(243_u16.to_le_bytes());
        file.extend(1_u32.to_le_bytes());
        for word in [0x10000_u64, 64, 0] {
            file.extend(word.to_le_bytes());
        }
        file.extend(1_u32.to_le_bytes());
        let count = u16::try_from(segments.len()).expect("few segments");
        for half in [64, 56, count, 64, 0, 0] {
            file.extend(half.to_le_bytes());
        }
        for (kind, flags, address, bytes) in segments {
            file.extend(kind.to_le_bytes());
            file.extend(flags.to_le_bytes());
            for word in [0, *address, *address, 0, *bytes, 0x1000] {
                file.extend(word.to_le_bytes());
            }
        }
        file
    }

    #[track_caller]
    fn refused(program: &[u8], expect: &str) {
        let fault = check(program).expect_err("a fault");
        assert!(fault.contains(expect), "{fault}");
    }

    const GOOD: [(u32, u32, u64, u64); 3] = [
        (PT_LOAD, RX, 0x10000, 0x1234),
        (PT_LOAD, R, 0x12000, 8),
        (PT_LOAD, RW, 0x13000, 0x5000),
    ];

    #[test]
    fn a_program_that_keeps_the_rules_passes() {
        assert_eq!(check(&program(&GOOD)), Ok(()));
        let empty = (PT_LOAD, 7, 0x10000, 0);
        assert_eq!(check(&program(&[GOOD[0], empty])), Ok(()));
    }

    #[test]
    fn each_broken_rule_is_named() {
        refused(b"MZ", "not an ELF file");
        refused(
            &program(&[(PT_LOAD, 7, 0x10000, 8)]),
            "writable and executable",
        );
        refused(&program(&[GOOD[0], (PT_LOAD, RW, 0x11000, 8)]), "overlap");
        refused(
            &program(&[GOOD[0], (PT_LOAD, RW, 0x11800, 8)]),
            "different rights in one page",
        );
        refused(&program(&[GOOD[1]]), "the entry 0x10000 is outside");
        refused(
            &program(&[(PT_LOAD, R, 0x10000, 8)]),
            "the entry 0x10000 is outside",
        );
        refused(&program(&[(PT_LOAD, RX, 0, 0x20000)]), "first page");
        refused(&program(&[(PT_LOAD, RX, 0x10000, u64::MAX)]), "larger than");
        refused(
            &program(&[GOOD[0], (2, R, 0x12000, 8)]),
            "linked dynamically",
        );
        refused(
            &program(&[GOOD[0], (3, R, 0x12000, 8)]),
            "linked dynamically",
        );
        let patched = |at: usize, value: u8| {
            let mut file = program(&GOOD);
            file[at] = value;
            file
        };
        refused(&patched(18, 62), "for machine 62");
        refused(&patched(16, 3), "not linked to fixed addresses");
        refused(&patched(48, 5), "floating-point registers");
        // More bytes in the file than in memory.
        refused(&patched(64 + 32, 0xff), "more bytes than");
    }

    #[test]
    fn relocations_left_are_found() {
        let mut file = program(&GOOD);
        let at = file.len() as u64;
        file[40..48].copy_from_slice(&at.to_le_bytes());
        file[58..60].copy_from_slice(&64_u16.to_le_bytes());
        file[60..62].copy_from_slice(&2_u16.to_le_bytes());
        file.resize(file.len() + 64, 0);
        let mut section = [0_u8; 64];
        section[4] = 4;
        section[32] = 24;
        file.extend(section);
        refused(&file, "relocations left");
    }
}
