//! Copies of shared objects whose references to their own functions are bound inside, as the linker's option
//! `-Bsymbolic-functions` binds them. Distributions build UCX in this way; the pinned wheels are built without it.
//!
//! A copy differs from its original in three places. The dynamic section carries `DF_SYMBOLIC`, so the loader searches
//! an object's own symbols first. On x86-64, a reference to an own function is also a relative relocation without a
//! name, and a call of an own function jumps there without a slot. Offsets and names are those of the ELF specification.

use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// Version of the copies' format, for the key of a cache part.
pub const FORMAT: &str = "bound inside 1";

/// Maximum size of an object. UCX's largest one has a few megabytes.
const BYTES_MAX: u64 = 64 << 20;

mod tag {
    pub(super) const NULL: u64 = 0;
    pub(super) const PLTRELSZ: u64 = 2;
    pub(super) const STRTAB: u64 = 5;
    pub(super) const SYMTAB: u64 = 6;
    pub(super) const RELA: u64 = 7;
    pub(super) const RELASZ: u64 = 8;
    pub(super) const SYMBOLIC: u64 = 16;
    pub(super) const JMPREL: u64 = 23;
    pub(super) const FLAGS: u64 = 30;
}

/// `DF_SYMBOLIC`.
const DF_SYMBOLIC: u64 = 2;

mod relocation {
    pub(super) const ADDRESS: u64 = 1;
    pub(super) const GLOB_DAT: u64 = 6;
    pub(super) const JUMP_SLOT: u64 = 7;
    pub(super) const RELATIVE: u64 = 8;
    pub(super) const BYTES: usize = 24;
}

/// `EM_X86_64`.
const X86_64: u64 = 62;

/// Copies the entries of `from` whose names start with one of `kept`, and binds UCX's libraries and modules inside.
///
/// # Errors
/// A file cannot be read or written, or a library of UCX is not an object that this module can change.
pub fn copy(from: &Path, to: &Path, kept: &[&str]) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("cannot make {}", to.display()))?;
    let entries = fs::read_dir(from).with_context(|| format!("cannot list {}", from.display()))?;
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let text = name.to_string_lossy();
        let (source, target) = (entry.path(), to.join(&name));
        if !kept
            .iter()
            .any(|start| start.trim_end_matches('/') == text || text.starts_with(start))
        {
            continue;
        }
        let kind = entry.file_type()?;
        if kind.is_symlink() {
            let link = fs::read_link(&source)?;
            std::os::unix::fs::symlink(&link, &target)
                .with_context(|| format!("cannot link {}", target.display()))?;
        } else if kind.is_dir() {
            copy(&source, &target, &[""])?;
        } else if is_of_ucx(name.as_bytes()) {
            ensure!(
                entry.metadata()?.len() <= BYTES_MAX,
                "{} has more than {BYTES_MAX} bytes",
                source.display()
            );
            let mut bytes =
                fs::read(&source).with_context(|| format!("cannot read {}", source.display()))?;
            bind(&mut bytes).with_context(|| format!("cannot bind {}", source.display()))?;
            fs::write(&target, bytes)
                .with_context(|| format!("cannot write {}", target.display()))?;
        } else {
            fs::copy(&source, &target)
                .with_context(|| format!("cannot write {}", target.display()))?;
        }
    }
    Ok(())
}

/// True for `libucp.so.0`, `libuct_ib_mlx5.so.0.0.0` and `libucs-1a2b.so.0`.
fn is_of_ucx(name: &[u8]) -> bool {
    let name = String::from_utf8_lossy(name);
    name.starts_with("libuc") && name.contains(".so")
}

/// Binds an object's references to its own functions inside it.
fn bind(bytes: &mut [u8]) -> Result<()> {
    let object = Object::read(bytes)?;
    object.set_flag(bytes)?;
    if object.machine == X86_64 {
        object.bind_functions(bytes)?;
    }
    Ok(())
}

/// A segment in the file.
#[derive(Debug, Clone, Copy)]
struct Segment {
    address: u64,
    offset: u64,
    length: u64,
    is_code: bool,
}

/// The parts of an object that this module changes.
#[derive(Debug)]
struct Object {
    machine: u64,
    segments: Vec<Segment>,
    /// File offsets of the dynamic section's entries, with tag and value, up to and with the first null entry.
    dynamic: Vec<(usize, u64, u64)>,
    /// True if a further null entry follows the first one.
    has_spare: bool,
}

impl Object {
    fn read(bytes: &[u8]) -> Result<Self> {
        ensure!(
            bytes.get(..6) == Some(b"\x7fELF\x02\x01"),
            "not a little-endian 64-bit ELF object"
        );
        let machine = number(bytes, 18, 2)?;
        let (table, size, count) = (
            number(bytes, 32, 8)?,
            number(bytes, 54, 2)?,
            number(bytes, 56, 2)?,
        );
        let (mut segments, mut section) = (Vec::new(), None);
        for at in 0..count {
            let header = place(table + at * size)?;
            let kind = number(bytes, header, 4)?;
            let flags = number(bytes, header + 4, 4)?;
            let segment = Segment {
                offset: number(bytes, header + 8, 8)?,
                address: number(bytes, header + 16, 8)?,
                length: number(bytes, header + 32, 8)?,
                is_code: flags & 1 != 0,
            };
            match kind {
                1 => segments.push(segment),
                2 => section = Some(segment),
                _ => {}
            }
        }
        let section = section.context("no dynamic section")?;
        let mut dynamic = Vec::new();
        let mut has_spare = false;
        for at in 0..section.length / 16 {
            let entry = place(section.offset + at * 16)?;
            let (tag, value) = (number(bytes, entry, 8)?, number(bytes, entry + 8, 8)?);
            dynamic.push((entry, tag, value));
            if tag == tag::NULL {
                has_spare =
                    (at + 2) * 16 <= section.length && number(bytes, entry + 16, 8)? == tag::NULL;
                break;
            }
        }
        Ok(Self {
            machine,
            segments,
            dynamic,
            has_spare,
        })
    }

    fn value(&self, wanted: u64) -> Option<u64> {
        let mut entries = self.dynamic.iter();
        entries.find_map(|&(_, tag, value)| (tag == wanted).then_some(value))
    }

    /// File offset of an address.
    fn offset(&self, address: u64) -> Result<usize> {
        let contains = |segment: &&Segment| {
            address
                .checked_sub(segment.address)
                .is_some_and(|at| at < segment.length)
        };
        let segment = self.segments.iter().find(contains);
        let segment = segment.with_context(|| format!("{address:#x} is in no segment"))?;
        place(address - segment.address + segment.offset)
    }

    /// Sets `DF_SYMBOLIC`, or adds `DT_SYMBOLIC`, which has the same meaning, in place of a spare entry.
    fn set_flag(&self, bytes: &mut [u8]) -> Result<()> {
        let mut entries = self.dynamic.iter();
        if let Some(&(entry, _, value)) = entries.find(|(_, tag, _)| *tag == tag::FLAGS) {
            return write(bytes, entry + 8, value | DF_SYMBOLIC, 8);
        }
        match self.dynamic.last() {
            Some(&(entry, tag::NULL, _)) if self.has_spare => write(bytes, entry, tag::SYMBOLIC, 8),
            _ => bail!("no DT_FLAGS and no spare entry in the dynamic section"),
        }
    }

    /// Binds references and calls.
    fn bind_functions(&self, bytes: &mut [u8]) -> Result<()> {
        let mut slots = BTreeMap::new();
        let mut bound = Vec::new();
        let mut foreign = None;
        for (table, length) in [(tag::RELA, tag::RELASZ), (tag::JMPREL, tag::PLTRELSZ)] {
            let (Some(table), Some(length)) = (self.value(table), self.value(length)) else {
                continue;
            };
            let table = self.offset(table)?;
            for at in 0..place(length)? / relocation::BYTES {
                let entry = table + at * relocation::BYTES;
                let (target, info) = (number(bytes, entry, 8)?, number(bytes, entry + 8, 8)?);
                let (symbol, kind) = (info >> 32, info & 0xffff_ffff);
                let own = self.own_function(bytes, symbol)?;
                match (kind, own) {
                    (relocation::ADDRESS | relocation::GLOB_DAT, Some(function)) => {
                        let addend = number(bytes, entry + 16, 8)?;
                        write(bytes, entry + 8, relocation::RELATIVE, 8)?;
                        write(bytes, entry + 16, function.wrapping_add(addend), 8)?;
                    }
                    (relocation::JUMP_SLOT, Some(function)) => {
                        slots.insert(target, function);
                        bound.push(entry);
                    }
                    // Symbols of the C library: nothing looks for their slots.
                    (relocation::GLOB_DAT | relocation::JUMP_SLOT, None)
                        if !self.name(bytes, symbol)?.starts_with(b"uc") =>
                    {
                        foreign = Some(symbol << 32 | relocation::JUMP_SLOT);
                    }
                    _ => {}
                }
            }
        }
        self.bind_calls(bytes, &slots)?;
        // The slots are unused now. Their relocations must stay valid and must not name the function.
        for entry in bound {
            let foreign = foreign.context("no reference to another object")?;
            write(bytes, entry + 8, foreign, 8)?;
        }
        Ok(())
    }

    /// Changes each jump through a slot into a jump to the function.
    fn bind_calls(&self, bytes: &mut [u8], slots: &BTreeMap<u64, u64>) -> Result<()> {
        let mut found = std::collections::BTreeSet::new();
        for segment in self.segments.iter().filter(|segment| segment.is_code) {
            let (start, length) = (place(segment.offset)?, place(segment.length)?);
            for at in start..(start + length).saturating_sub(5) {
                if bytes.get(at..at + 2) != Some(&[0xff, 0x25]) {
                    continue;
                }
                let next = segment.address + (at - start + 6) as u64;
                let distance = signed(bytes, at + 2)?;
                let slot = next.wrapping_add_signed(distance);
                let Some(function) = slots.get(&slot) else {
                    continue;
                };
                // A near jump has one byte less than a jump through memory.
                let distance = function.wrapping_sub(next - 1) & u64::from(u32::MAX);
                bytes[at] = 0xe9;
                write(bytes, at + 1, distance, 4)?;
                bytes[at + 5] = 0x90;
                found.insert(slot);
            }
        }
        ensure!(
            found.len() == slots.len(),
            "{} of {} slots of own functions have no jump",
            slots.len() - found.len(),
            slots.len()
        );
        Ok(())
    }

    /// Address of a function that the object itself defines.
    fn own_function(&self, bytes: &[u8], symbol: u64) -> Result<Option<u64>> {
        const FUNCTION: u64 = 2;
        let entry = self.symbol(symbol)?;
        let kind = number(bytes, entry + 4, 1)? & 0xf;
        let section = number(bytes, entry + 6, 2)?;
        let address = number(bytes, entry + 8, 8)?;
        Ok((symbol != 0 && kind == FUNCTION && section != 0).then_some(address))
    }

    fn name<'a>(&self, bytes: &'a [u8], symbol: u64) -> Result<&'a [u8]> {
        let strings = self.value(tag::STRTAB).context("no strings")?;
        let name = number(bytes, self.symbol(symbol)?, 4)?;
        let start = self.offset(strings + name)?;
        let rest = bytes.get(start..).context("a name beyond the end")?;
        Ok(rest.split(|&byte| byte == 0).next().unwrap_or(rest))
    }

    fn symbol(&self, symbol: u64) -> Result<usize> {
        let table = self.value(tag::SYMTAB).context("no symbols")?;
        self.offset(table + symbol * 24)
    }
}

fn place(offset: u64) -> Result<usize> {
    usize::try_from(offset).context("an offset beyond the address space")
}

/// A little-endian number of up to eight bytes.
fn number(bytes: &[u8], at: usize, length: usize) -> Result<u64> {
    let found = bytes.get(at..at + length);
    let found = found.with_context(|| format!("the file ends before byte {at}"))?;
    let mut word = [0; 8];
    word[..length].copy_from_slice(found);
    Ok(u64::from_le_bytes(word))
}

/// A little-endian number of four bytes with a sign.
fn signed(bytes: &[u8], at: usize) -> Result<i64> {
    let found = bytes
        .get(at..at + 4)
        .and_then(|found| found.try_into().ok());
    let found = found.with_context(|| format!("the file ends before byte {at}"))?;
    Ok(i32::from_le_bytes(found).into())
}

fn write(bytes: &mut [u8], at: usize, value: u64, length: usize) -> Result<()> {
    let target = bytes.get_mut(at..at + length);
    let target = target.with_context(|| format!("the file ends before byte {at}"))?;
    target.copy_from_slice(&value.to_le_bytes()[..length]);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    const LIBRARY: &str = "\
int inner(void) { return 1; }
int (*table[])(void) = {inner};
int by_call(void) { return inner(); }
int by_table(void) { return table[0](); }
int by_address(void) { int (*volatile f)(void) = inner; return f(); }
";
    const PROGRAM: &str = "\
int by_call(void), by_table(void), by_address(void);
int inner(void) { return 2; }
int main(void) { return by_call() * 100 + by_table() * 10 + by_address(); }
";

    fn compile(dir: &Path, name: &str, source: &str, flags: &[&str]) {
        let file = dir.join(format!("source of {name}.c"));
        fs::write(&file, source).unwrap();
        let mut command = Command::new("cc");
        command
            .arg("-O2")
            .arg("-o")
            .arg(dir.join(name))
            .arg(&file)
            .args(flags);
        let output = command.output().unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }

    fn result(dir: &Path, libraries: &Path) -> Option<i32> {
        let mut command = Command::new(dir.join("program"));
        let status = command.env("LD_LIBRARY_PATH", libraries).status().unwrap();
        status.code()
    }

    #[test]
    fn a_copy_uses_its_own_functions() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let shared = [
            "-shared",
            "-fPIC",
            "-fno-inline",
            "-Wl,-soname,libuct.so",
            "-lc",
        ];
        let shared = [&shared[..], &["-fsemantic-interposition"]].concat();
        compile(dir, "libuct.so", LIBRARY, &shared);
        let library = dir.join("libuct.so").display().to_string();
        compile(dir, "program", PROGRAM, &[&library, "-rdynamic"]);
        let copies = dir.join("copies");
        copy(dir, &copies, &["libuct.so"]).unwrap();
        assert_eq!(result(dir, dir), Some(222));
        assert_eq!(result(dir, &copies), Some(111));
    }

    #[test]
    fn other_files_are_copied_or_refused() {
        let dir = tempfile::tempdir().unwrap();
        let from = dir.path().join("from");
        fs::create_dir_all(from.join("ucx")).unwrap();
        for (name, text) in [("libibverbs.so.1", "a"), ("notes", "b"), ("ucx/about", "c")] {
            fs::write(from.join(name), text).unwrap();
        }
        let to = dir.path().join("to");
        copy(&from, &to, &["libibverbs", "ucx/"]).unwrap();
        assert!(to.join("libibverbs.so.1").is_file() && to.join("ucx/about").is_file());
        assert!(!to.join("notes").exists());
        fs::write(from.join("libucs.so.0"), "no object").unwrap();
        let error = copy(&from, &dir.path().join("again"), &["libuc"]).unwrap_err();
        assert!(format!("{error:#}").contains("libucs.so.0"), "{error:#}");
        for length in 0..200 {
            let mut bytes = vec![0x7f; length];
            assert!(bind(&mut bytes).is_err());
        }
    }
}
