//! Types of functions from the debug information of a linked device program.

use crate::fault::{Fault, Place};
use crate::objects::Marked;
use crate::types::{Function, MAX_BUFFER, Member, Record, Role, Type};
use gimli::{
    AttributeValue, DebuggingInformationEntry, Dwarf, EndianSlice, LittleEndian, Unit, UnitOffset,
};
use object::{Object, ObjectSection, ObjectSymbol};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

type Slice<'a> = EndianSlice<'a, LittleEndian>;
type Entry<'a> = DebuggingInformationEntry<Slice<'a>>;

/// Deepest nesting of types. Real programs have a few levels.
const DEPTH: u32 = 64;

/// Most members of one record, with those of records inside it.
const MEMBERS: usize = 4096;

/// Reads the functions that are marked.
///
/// # Errors
/// A fault for each function whose arguments cannot be passed.
pub(crate) fn functions(program: &[u8], marked: &[Marked]) -> Result<Vec<Function>, Vec<Fault>> {
    let broken = |error: String| {
        vec![Fault::new(format!(
            "debug information of the linked program: {error}"
        ))]
    };
    let file = object::File::parse(program).map_err(|error| broken(error.to_string()))?;
    // Aliases share an address.
    let mut wanted: BTreeMap<u64, Vec<&Marked>> = BTreeMap::new();
    for symbol in file.symbols().filter(ObjectSymbol::is_global) {
        let name = symbol.name().unwrap_or_default();
        if let Some(one) = marked.iter().find(|one| one.name == name) {
            wanted.entry(symbol.address()).or_default().push(one);
        }
    }
    let load = |id: gimli::SectionId| -> Result<Slice<'_>, gimli::Error> {
        let section = file.section_by_name(id.name());
        let data = section
            .and_then(|section| section.data().ok())
            .unwrap_or_default();
        Ok(EndianSlice::new(data, LittleEndian))
    };
    let dwarf = Dwarf::load(load).map_err(|error| broken(error.to_string()))?;
    let mut found = BTreeMap::new();
    let mut faults = Vec::new();
    let mut units = dwarf.units();
    while let Some(header) = units.next().map_err(|error| broken(error.to_string()))? {
        let unit = dwarf
            .unit(header)
            .map_err(|error| broken(error.to_string()))?;
        let reader = Reader {
            dwarf: &dwarf,
            unit: &unit,
        };
        for (address, offset) in reader.bodies().map_err(|error| broken(error.to_string()))? {
            for one in wanted.get(&address).into_iter().flatten() {
                match reader.function(offset, one) {
                    Ok(function) => _ = found.insert(one.name.clone(), function),
                    Err(fault) => faults.push(fault),
                }
            }
        }
    }
    let refused = !faults.is_empty();
    for one in marked {
        // A function that is refused has debug information.
        if !found.contains_key(&one.name) && !refused {
            let what = format!(
                "{} '{}' has no debug information, from which its arguments are read; compile it with -g",
                one.role.word(),
                one.name
            );
            faults.push(Fault::in_file(&one.from, what));
        }
    }
    if !faults.is_empty() {
        return Err(faults);
    }
    // In the order of the sources.
    Ok(marked
        .iter()
        .filter_map(|one| found.remove(&one.name))
        .collect())
}

/// What is wrong with a type, and for what reason.
type Refused = String;

struct Reader<'a> {
    dwarf: &'a Dwarf<Slice<'a>>,
    unit: &'a Unit<Slice<'a>>,
}

impl<'a> Reader<'a> {
    /// Start address and entry of each function with code.
    fn bodies(&self) -> Result<Vec<(u64, UnitOffset)>, gimli::Error> {
        let mut entries = self.unit.entries();
        let mut found = Vec::new();
        while let Some(entry) = entries.next_dfs()? {
            if entry.tag() != gimli::DW_TAG_subprogram {
                continue;
            }
            let Some(value) = entry.attr_value(gimli::DW_AT_low_pc) else {
                continue;
            };
            if let Some(address) = self.dwarf.attr_address(self.unit, value)? {
                found.push((address, entry.offset()));
            }
        }
        Ok(found)
    }

    /// Reads the function of an entry.
    fn function(&self, offset: UnitOffset, one: &Marked) -> Result<Function, Fault> {
        let read = self.signature(offset, one.role);
        let function = read.and_then(|parameters| {
            let function = Function {
                name: one.name.clone(),
                role: one.role,
                parameters,
            };
            let bytes = function.buffer();
            if bytes > MAX_BUFFER {
                return Err(format!(
                    "has {bytes} bytes of arguments, and the limit is {MAX_BUFFER}; pass a pointer"
                ));
            }
            Ok(function)
        });
        function.map_err(|what| Fault {
            place: Some(self.place(offset, &one.from)),
            what: format!("{} '{}' {what}", one.role.word(), one.name),
        })
    }

    /// Types of the parameters.
    fn signature(&self, offset: UnitOffset, role: Role) -> Result<Vec<Type>, Refused> {
        self.result(offset, role)?;
        let mut tree = self.unit.entries_tree(Some(offset)).map_err(unreadable)?;
        let root = tree.root().map_err(unreadable)?;
        let mut children = root.children();
        let mut parameters = Vec::new();
        while let Some(child) = children.next().map_err(unreadable)? {
            let entry = child.entry();
            match entry.tag() {
                gimli::DW_TAG_unspecified_parameters => {
                    return Err(
                        "has a variable list of arguments; give each a parameter".to_owned()
                    );
                }
                gimli::DW_TAG_formal_parameter => {
                    let at = parameters.len() + 1;
                    let refused = |what: Refused| {
                        format!("cannot be called by the host: argument {at} {what}")
                    };
                    let of = self.type_of(entry.offset()).map_err(refused)?;
                    let Some(of) = of else {
                        return Err(refused("has no type".to_owned()));
                    };
                    let of = self.read(of, DEPTH, &mut { MEMBERS }).map_err(refused)?;
                    if of.size() == 0 {
                        return Err(refused("has no bytes".to_owned()));
                    }
                    parameters.push(of);
                }
                _ => {}
            }
        }
        Ok(parameters)
    }

    /// Checks the type of the result.
    fn result(&self, offset: UnitOffset, role: Role) -> Result<(), Refused> {
        let result = match self.type_of(offset)? {
            Some(of) => Some(self.read(of, DEPTH, &mut { MEMBERS })?),
            None => None,
        };
        let u64_like = Type::Integer {
            signed: false,
            size: 8,
        };
        match (role, result) {
            (Role::Kernel, None) => Ok(()),
            (Role::Rpc, Some(of)) if of == u64_like => Ok(()),
            (Role::Kernel, Some(_)) => Err("returns a value; a kernel returns void".to_owned()),
            (Role::Rpc, _) => Err("does not return uint64_t, as each RPC does".to_owned()),
        }
    }

    /// The entry of an entry's type, directly or through the entry's origin. `None` is void.
    fn type_of(&self, offset: UnitOffset) -> Result<Option<UnitOffset>, Refused> {
        let mut at = offset;
        for _ in 0..DEPTH {
            let entry = self.entry(at)?;
            if let Some(of) = reference(self.unit, &entry, gimli::DW_AT_type) {
                return Ok(Some(of));
            }
            let origin = [gimli::DW_AT_abstract_origin, gimli::DW_AT_specification];
            let next = origin
                .iter()
                .find_map(|name| reference(self.unit, &entry, *name));
            match next {
                Some(next) => at = next,
                None => return Ok(None),
            }
        }
        Err("has a type that names itself".to_owned())
    }

    fn entry(&self, offset: UnitOffset) -> Result<Entry<'a>, Refused> {
        self.unit.entry(offset).map_err(unreadable)
    }

    /// Reads a type. `members` is the number of members that may still follow.
    fn read(&self, offset: UnitOffset, depth: u32, members: &mut usize) -> Result<Type, Refused> {
        let Some(depth) = depth.checked_sub(1) else {
            return Err("has a type that is nested too deep".to_owned());
        };
        let entry = self.entry(offset)?;
        match entry.tag() {
            gimli::DW_TAG_typedef
            | gimli::DW_TAG_const_type
            | gimli::DW_TAG_volatile_type
            | gimli::DW_TAG_restrict_type
            | gimli::DW_TAG_atomic_type => match self.type_of(offset)? {
                Some(of) => aligned(self.read(of, depth, members)?, &entry),
                None => Err("is of type void".to_owned()),
            },
            gimli::DW_TAG_pointer_type => Ok(Type::Pointer),
            gimli::DW_TAG_base_type => self.base(&entry),
            gimli::DW_TAG_enumeration_type => self.enumeration(&entry, depth, members),
            gimli::DW_TAG_structure_type | gimli::DW_TAG_union_type => {
                self.record(&entry, depth, members)
            }
            gimli::DW_TAG_array_type => self.array(&entry, depth, members),
            _ => Err(format!(
                "has a type of a kind that is not supported ({})",
                entry.tag()
            )),
        }
    }

    /// An arithmetic type.
    fn base(&self, entry: &Entry<'a>) -> Result<Type, Refused> {
        let size = unsigned(entry, gimli::DW_AT_byte_size).unwrap_or_default();
        let encoding = match entry.attr_value(gimli::DW_AT_encoding) {
            Some(AttributeValue::Encoding(encoding)) => encoding,
            _ => gimli::DwAte(0),
        };
        let integer = |signed| match size {
            1 | 2 | 4 | 8 | 16 => Some(Type::Integer { signed, size }),
            _ => None,
        };
        let of = match encoding {
            gimli::DW_ATE_boolean if size == 1 => Some(Type::Bool),
            gimli::DW_ATE_signed | gimli::DW_ATE_signed_char => integer(true),
            gimli::DW_ATE_unsigned | gimli::DW_ATE_unsigned_char | gimli::DW_ATE_UTF => {
                integer(false)
            }
            gimli::DW_ATE_float if size == 4 || size == 8 => Some(Type::Float(size)),
            _ => None,
        };
        of.ok_or_else(|| {
            let name = self.name(entry).unwrap_or_default();
            format!("is of type '{name}', which host and DPA represent differently")
        })
    }

    /// An enumeration is the integer below it.
    fn enumeration(
        &self,
        entry: &Entry<'a>,
        depth: u32,
        members: &mut usize,
    ) -> Result<Type, Refused> {
        if let Some(of) = self.type_of(entry.offset())? {
            return self.read(of, depth, members);
        }
        match unsigned(entry, gimli::DW_AT_byte_size) {
            Some(size @ (1 | 2 | 4 | 8)) => Ok(Type::Integer {
                signed: false,
                size,
            }),
            _ => Err("is an enumeration without a size".to_owned()),
        }
    }

    fn record(&self, entry: &Entry<'a>, depth: u32, left: &mut usize) -> Result<Type, Refused> {
        let is_union = entry.tag() == gimli::DW_TAG_union_type;
        let Some(size) = unsigned(entry, gimli::DW_AT_byte_size) else {
            return Err("is of a structure that is declared only".to_owned());
        };
        let mut tree = self
            .unit
            .entries_tree(Some(entry.offset()))
            .map_err(unreadable)?;
        let mut children = tree.root().map_err(unreadable)?.children();
        let (mut members, mut bits, mut align) = (Vec::new(), Vec::new(), 1);
        // An alignment above that of the member's type.
        let asked = |member: &Entry<'a>| unsigned(member, gimli::DW_AT_alignment).unwrap_or(1);
        while let Some(child) = children.next().map_err(unreadable)? {
            let member = child.entry();
            if member.tag() != gimli::DW_TAG_member {
                continue;
            }
            *left = left
                .checked_sub(1)
                .ok_or("is of a structure with too many members")?;
            let Some(of) = self.type_of(member.offset())? else {
                return Err("has a member without a type".to_owned());
            };
            let of = self.read(of, depth, left)?;
            align = align.max(asked(member));
            let offset = unsigned(member, gimli::DW_AT_data_member_location).unwrap_or_default();
            if let Some(width) = unsigned(member, gimli::DW_AT_bit_size) {
                align = align.max(of.align());
                bits.extend(covered(member, offset, &of, width));
                continue;
            }
            if offset.checked_add(of.size()).is_none_or(|end| end > size) {
                return Err("has a member beyond the end of its structure".to_owned());
            }
            members.push(Member { offset, of });
        }
        members.extend(bit_fields(bits, size)?);
        members.sort_by_key(|member| member.offset);
        let mut record = Record {
            is_union,
            size,
            align: 1,
            members,
        };
        let explicit = unsigned(entry, gimli::DW_AT_alignment);
        record.align = explicit.unwrap_or_else(|| align.max(record.natural_align()));
        if explicit.is_none() && !record.is_natural() && size % record.align != 0 {
            record.align = 1;
        }
        if !record.align.is_power_of_two() || record.align > 64 {
            return Err("is of a structure with an alignment above 64".to_owned());
        }
        Ok(Type::Record(record))
    }

    fn array(&self, entry: &Entry<'a>, depth: u32, members: &mut usize) -> Result<Type, Refused> {
        if entry.attr_value(gimli::DW_AT_GNU_vector).is_some() {
            return Err("is a vector, which host and DPA pass differently".to_owned());
        }
        let Some(of) = self.type_of(entry.offset())? else {
            return Err("is an array without a type".to_owned());
        };
        let mut of = self.read(of, depth, members)?;
        let mut tree = self
            .unit
            .entries_tree(Some(entry.offset()))
            .map_err(unreadable)?;
        let mut children = tree.root().map_err(unreadable)?.children();
        let mut counts = Vec::new();
        while let Some(child) = children.next().map_err(unreadable)? {
            let range = child.entry();
            if range.tag() != gimli::DW_TAG_subrange_type {
                continue;
            }
            let last = unsigned(range, gimli::DW_AT_upper_bound);
            let count = unsigned(range, gimli::DW_AT_count).or_else(|| last?.checked_add(1));
            counts.push(count.ok_or("has an array whose length is open")?);
        }
        // The first dimension is the outermost.
        for count in counts.into_iter().rev() {
            of = Type::Array {
                of: Box::new(of),
                count,
            };
        }
        Ok(of)
    }

    fn name(&self, entry: &Entry<'a>) -> Option<String> {
        let value = entry.attr_value(gimli::DW_AT_name)?;
        let text = self.dwarf.attr_string(self.unit, value).ok()?;
        Some(text.to_string_lossy().into_owned())
    }

    /// File and line of a function's declaration.
    fn place(&self, offset: UnitOffset, from: &Path) -> Place {
        let mut place = Place {
            file: from.to_owned(),
            line: None,
        };
        let mut at = Some(offset);
        for _ in 0..DEPTH {
            let Some(entry) = at.and_then(|at| self.unit.entry(at).ok()) else {
                break;
            };
            if let Some(line) = unsigned(&entry, gimli::DW_AT_decl_line) {
                place.line = Some(line);
                if let Some(file) = self.file(&entry) {
                    place.file = file;
                }
                break;
            }
            at = reference(self.unit, &entry, gimli::DW_AT_abstract_origin);
        }
        place
    }

    /// The file of a declaration.
    fn file(&self, entry: &Entry<'a>) -> Option<PathBuf> {
        let index = unsigned_value(entry.attr_value(gimli::DW_AT_decl_file)?)?;
        let header = self.unit.line_program.as_ref()?.header();
        let file = header.file(index)?;
        let text = |value| {
            let text = self.dwarf.attr_string(self.unit, value).ok()?;
            Some(PathBuf::from(text.to_string_lossy().into_owned()))
        };
        let name = text(file.path_name())?;
        // Directory 0 is that of the compiler's run, to which the names on its command line are relative.
        if file.directory_index() == 0 || name.is_absolute() {
            return Some(name);
        }
        Some(text(file.directory(header)?)?.join(name))
    }
}

/// The type, with the alignment that a typedef has in addition.
fn aligned(of: Type, entry: &Entry<'_>) -> Result<Type, Refused> {
    match (unsigned(entry, gimli::DW_AT_alignment), of) {
        (Some(align), Type::Record(record)) if align > record.align && align.is_power_of_two() => {
            if record.size % align != 0 {
                return Err(format!(
                    "is of a type with {} bytes and an alignment of {align}",
                    record.size
                ));
            }
            Ok(Type::Record(Record { align, ..record }))
        }
        // Up to 8 it changes nothing about how C passes the value.
        (Some(align), of) if align > of.align().max(8) => Err(format!(
            "is of a type with {} bytes and an alignment of {align}",
            of.size()
        )),
        (_, of) => Ok(of),
    }
}

/// Bytes that a bit-field covers, from and to.
fn covered(member: &Entry<'_>, offset: u64, of: &Type, width: u64) -> Option<(u64, u64)> {
    let from = match unsigned(member, gimli::DW_AT_data_bit_offset) {
        Some(from) => from,
        // Before version 5: bits from the most significant one of the storage unit.
        None => {
            let high = unsigned(member, gimli::DW_AT_bit_offset)?;
            let unit = of.size().checked_mul(8)?;
            offset
                .checked_mul(8)?
                .checked_add(unit.checked_sub(high.checked_add(width)?)?)?
        }
    };
    Some((from / 8, from.checked_add(width)?.div_ceil(8)))
}

/// Bytes in place of bit-fields: they are passed alike.
fn bit_fields(mut bits: Vec<(u64, u64)>, size: u64) -> Result<Vec<Member>, Refused> {
    bits.sort_unstable();
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for (from, to) in bits {
        if to > size {
            return Err("has a bit-field beyond the end of its structure".to_owned());
        }
        match ranges.last_mut() {
            Some(last) if from <= last.1 => last.1 = last.1.max(to),
            _ => ranges.push((from, to)),
        }
    }
    let byte = Type::Integer {
        signed: false,
        size: 1,
    };
    let member = |(from, to)| Member {
        offset: from,
        of: Type::Array {
            of: Box::new(byte.clone()),
            count: to - from,
        },
    };
    Ok(ranges.into_iter().map(member).collect())
}

fn unreadable(error: gimli::Error) -> Refused {
    format!("has debug information that cannot be read: {error}")
}

/// A number of an entry.
fn unsigned(entry: &Entry<'_>, name: gimli::DwAt) -> Option<u64> {
    unsigned_value(entry.attr_value(name)?)
}

fn unsigned_value(value: AttributeValue<Slice<'_>>) -> Option<u64> {
    match value {
        AttributeValue::FileIndex(index) => Some(index),
        value => value
            .udata_value()
            .or_else(|| u64::try_from(value.sdata_value()?).ok()),
    }
}

/// An entry of the same unit to which an attribute refers.
fn reference(unit: &Unit<Slice<'_>>, entry: &Entry<'_>, name: gimli::DwAt) -> Option<UnitOffset> {
    match entry.attr_value(name)? {
        AttributeValue::UnitRef(offset) => Some(offset),
        AttributeValue::DebugInfoRef(offset) => offset.to_unit_offset(&unit.header),
        _ => None,
    }
}
