//! Symbols of a program by name and by address.

use super::error::{Header, Limits, LoadError, format, within};
use object::LittleEndian as Little;
use object::elf;
use object::read::elf::{FileHeader as _, Sym as _};
use std::collections::HashMap;

/// Names, and what the addresses belong to.
#[derive(Debug, Clone, Default)]
pub(super) struct Symbols {
    addresses: HashMap<String, u64>,
    /// Functions, objects and marks without a type: start, size and name, sorted.
    places: Vec<(u64, u64, String)>,
}

impl Symbols {
    pub(super) fn read(
        header: &Header,
        little: Little,
        file: &[u8],
        limits: &Limits,
    ) -> Result<Self, LoadError> {
        let sections = header
            .sections(little, file)
            .map_err(format("section headers"))?;
        let table = sections
            .symbols(little, file, elf::SHT_SYMTAB)
            .map_err(format("symbols"))?;
        within("symbols", table.len() as u64, limits.symbols as u64)?;
        let mut symbols = Self::default();
        let mut globals = HashMap::new();
        for symbol in table.iter() {
            let kind = symbol.st_type();
            if ![elf::STT_NOTYPE, elf::STT_FUNC, elf::STT_OBJECT].contains(&kind)
                || symbol.is_undefined(little)
            {
                continue;
            }
            let name = symbol
                .name(little, table.strings())
                .map_err(format("symbols"))?;
            // Mapping symbols ($x, $d) and labels of the assembler name nothing.
            let Some(name) = std::str::from_utf8(name)
                .ok()
                .filter(|name| !name.is_empty() && !name.starts_with(['$', '.']))
            else {
                continue;
            };
            let address = symbol.st_value(little);
            if symbol.st_bind() == elf::STB_LOCAL {
                symbols.addresses.entry(name.to_owned()).or_insert(address);
            } else {
                globals.insert(name.to_owned(), address);
            }
            symbols
                .places
                .push((address, symbol.st_size(little), name.to_owned()));
        }
        symbols.addresses.extend(globals);
        symbols.places.sort();
        Ok(symbols)
    }

    pub(super) fn address(&self, name: &str) -> Option<u64> {
        self.addresses.get(name).copied()
    }

    /// The symbol that contains an address, or else the nearest one before it that has no size.
    pub(super) fn at(&self, address: u64) -> Option<(&str, u64)> {
        let end = self
            .places
            .partition_point(|(start, _, _)| *start <= address);
        let (start, size, name) = self.places.get(end.checked_sub(1)?)?;
        let distance = address - start;
        (*size == 0 || distance < *size).then_some((name.as_str(), distance))
    }
}
