//! Object files of device code: what they are for, and which functions they mark for the host.

use crate::fault::Fault;
use crate::options::is_identifier;
use crate::types::Role;
use dpa_dev::MARKS;
use object::read::archive::ArchiveFile;
use object::read::elf::{ElfFile64, ElfSymbol64};
use object::{Architecture, FileKind, LittleEndian, Object, ObjectSection, ObjectSymbol};
use object::{Relocation, RelocationTarget, SectionFlags, SymbolKind, elf};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Most functions that one object marks.
const MAX_MARKS: usize = 4096;

/// A function with `__dpa_global__` or `__dpa_rpc__`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Marked {
    /// Its symbol.
    pub(crate) name: String,
    /// Which of the two.
    pub(crate) role: Role,
    /// The source, object file or library that has it, as the user named it.
    pub(crate) from: PathBuf,
}

/// Reads an object file or archive, and returns what it marks. `from` is its name for the user.
///
/// # Errors
/// Each fault of each object.
pub(crate) fn read(data: &[u8], from: &Path) -> Result<Vec<Marked>, Vec<Fault>> {
    if !matches!(FileKind::parse(data), Ok(FileKind::Archive)) {
        return object(data, from, "");
    }
    let (mut marked, mut faults) = (Vec::new(), Vec::new());
    let broken =
        |error: object::Error| vec![Fault::in_file(from, format!("not an archive: {error}"))];
    let archive = ArchiveFile::parse(data).map_err(broken)?;
    for member in archive.members() {
        let member = member.map_err(broken)?;
        let name = String::from_utf8_lossy(member.name()).into_owned();
        let read = member
            .data(data)
            .map_err(broken)
            .and_then(|data| object(data, from, &format!("member {name} ")));
        match read {
            Ok(found) => marked.extend(found),
            Err(found) => faults.extend(found),
        }
    }
    if faults.is_empty() {
        Ok(marked)
    } else {
        Err(faults)
    }
}

/// Reads one object file.
fn object(data: &[u8], from: &Path, member: &str) -> Result<Vec<Marked>, Vec<Fault>> {
    let fault = |what: String| Fault::in_file(from, format!("{member}{what}"));
    let file = parse(data).map_err(|what| vec![fault(what)])?;
    let mut faults: Vec<Fault> = sections(&file).into_iter().map(fault).collect();
    let mut marked = Vec::new();
    // A compiler may write the section once for each function.
    for section in file
        .sections()
        .filter(|section| section.name() == Ok(MARKS))
    {
        for (_, relocation) in section.relocations() {
            match functions(&file, &relocation) {
                Ok(found) => marked.extend(found.into_iter().map(|(name, role)| Marked {
                    name,
                    role,
                    from: from.to_owned(),
                })),
                Err(what) => faults.push(fault(what)),
            }
            if marked.len() > MAX_MARKS || faults.len() > MAX_MARKS {
                return Err(vec![fault(format!(
                    "marks more than {MAX_MARKS} functions"
                ))]);
            }
        }
    }
    if faults.is_empty() {
        Ok(marked)
    } else {
        Err(faults)
    }
}

type Elf<'data> = ElfFile64<'data, LittleEndian>;
type Symbol<'data> = ElfSymbol64<'data, 'data, LittleEndian>;

/// Parses an object that the DPA can execute.
fn parse(data: &[u8]) -> Result<Elf<'_>, String> {
    let kind = FileKind::parse(data).map_err(|_| "not an object file of device code".to_owned())?;
    if !matches!(kind, FileKind::Elf64) {
        return Err("not a 64-bit ELF object".to_owned());
    }
    let machine =
        object::File::parse(data).map_err(|error| format!("not an object file: {error}"))?;
    if machine.architecture() != Architecture::Riscv64 {
        return Err(format!(
            "is an object for {:?} and not for 64-bit RISC-V",
            machine.architecture()
        ));
    }
    let file = Elf::parse(data).map_err(|error| format!("not an object file: {error}"))?;
    let float = file.elf_header().e_flags.get(LittleEndian).0 & elf::EF_RISCV_FLOAT_ABI;
    if float != elf::EF_RISCV_FLOAT_ABI_SOFT.0 {
        return Err(
            "is built for floating-point registers, which the DPA does not have; use -mabi=lp64"
                .to_owned(),
        );
    }
    if file.kind() != object::ObjectKind::Relocatable {
        return Err("is linked already; give the object files".to_owned());
    }
    Ok(file)
}

/// Faults of the sections.
fn sections(file: &Elf<'_>) -> Vec<String> {
    let mut faults = Vec::new();
    for section in file.sections() {
        let SectionFlags::Elf { sh_flags, .. } = section.flags() else {
            continue;
        };
        let name = section.name().unwrap_or("?");
        let both = elf::SHF_WRITE.0 | elf::SHF_EXECINSTR.0;
        if sh_flags.0 & both == both {
            faults.push(format!("section {name} is writable and executable"));
        }
        if name.starts_with(".gnu.lto_") {
            faults.push(
                "holds no code but the compiler's own form for link-time optimization".to_owned(),
            );
            break;
        }
        let starts = [".init_array", ".ctors", ".preinit_array"];
        if starts.iter().any(|start| name.starts_with(start)) {
            faults.push(format!(
                "section {name}: constructors do not run on the DPA; let a kernel or RPC initialize"
            ));
        }
    }
    faults
}

/// Names and role of a marked function. One with aliases has several names.
fn functions(file: &Elf<'_>, relocation: &Relocation) -> Result<Vec<(String, Role)>, String> {
    let unknown = || "a mark of a kernel or RPC refers to no function".to_owned();
    let RelocationTarget::Symbol(index) = relocation.target() else {
        return Err(unknown());
    };
    let label = file.symbol_by_index(index).map_err(|_| unknown())?;
    let at = label.address().wrapping_add_signed(relocation.addend());
    let section = label
        .section_index()
        .and_then(|index| file.section_by_index(index).ok());
    let section = section.ok_or_else(unknown)?;
    let code = section.data().map_err(|_| unknown())?;
    let role = |symbol: &Symbol<'_>| {
        let distance = symbol
            .address()
            .checked_sub(at)
            .filter(|bytes| *bytes <= 8)?;
        let from = usize::try_from(at).ok()?;
        let bytes = code.get(from..from.checked_add(usize::try_from(distance).ok()?)?)?;
        match nops(bytes)? {
            1 => Some(Role::Kernel),
            2 => Some(Role::Rpc),
            _ => None,
        }
    };
    let in_section = |symbol: &Symbol<'_>| {
        symbol.kind() == SymbolKind::Text && symbol.section_index() == Some(section.index())
    };
    let found = file.symbols().filter(in_section);
    let found: Vec<_> = found
        .filter_map(|symbol| Some((role(&symbol)?, symbol)))
        .collect();
    let (role, first) = found.first().ok_or_else(unknown)?;
    let global = found.iter().filter(|(_, symbol)| symbol.is_global());
    let names: Vec<_> = global
        .map(|(role, symbol)| name(symbol, *role))
        .collect::<Result<_, _>>()?;
    if names.is_empty() {
        return Err(format!(
            "{} '{}' is static; the host finds functions by their symbols, so remove 'static'",
            role.word(),
            first.name().unwrap_or_default()
        ));
    }
    Ok(names)
}

/// Name and role of a function that is not static.
fn name(symbol: &Symbol<'_>, role: Role) -> Result<(String, Role), String> {
    let name = symbol.name().unwrap_or_default().to_owned();
    if symbol.elf_symbol().st_visibility() != elf::STV_DEFAULT {
        return Err(format!(
            "{} '{name}' is hidden; the host finds functions by their symbols, so remove its visibility",
            role.word()
        ));
    }
    if !is_identifier(&name) {
        return Err(format!(
            "'{name}': the name of a {} has letters, digits and '_' only, at most {} of them",
            role.word(),
            crate::options::MAX_NAME
        ));
    }
    Ok((name, role))
}

/// Number of instructions `nop`, compressed or not, of which the code consists; `None` if it has others.
fn nops(mut code: &[u8]) -> Option<usize> {
    let mut count = 0;
    while !code.is_empty() {
        code = code
            .strip_prefix(&[0x01, 0])
            .or_else(|| code.strip_prefix(&[0x13, 0, 0, 0]))?;
        count += 1;
    }
    Some(count)
}

/// Faults of functions that have the same name.
pub(crate) fn duplicates(marked: &[Marked]) -> Vec<Fault> {
    let mut seen: BTreeMap<&str, &Marked> = BTreeMap::new();
    let mut faults = Vec::new();
    for one in marked {
        let Some(first) = seen.insert(&one.name, one) else {
            continue;
        };
        faults.push(Fault::in_file(
            &one.from,
            format!(
                "{} '{}' has the name of a {} in {}",
                one.role.word(),
                one.name,
                first.role.word(),
                first.from.display()
            ),
        ));
    }
    faults
}
