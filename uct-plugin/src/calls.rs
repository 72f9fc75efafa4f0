//! The slots through which a loaded object calls functions of other objects. The loader fills them
//! by name. A new function in a slot redirects the calls of this object only.
//!
//! Parses the dynamic section according to `elf.h` and the ELF specification.

use std::ffi::{CStr, CString, c_int, c_void};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Maximum number of objects per search. A process never had more than a few of one name.
const OBJECTS_MAX: usize = 8;

/// Maximum number of relocations per object. The largest libucp has about three thousand.
const RELOCATIONS_MAX: usize = 1 << 20;

/// `DT_*` of the dynamic section.
mod tag {
    pub(crate) const NULL: isize = 0;
    pub(crate) const PLTRELSZ: isize = 2;
    pub(crate) const STRTAB: isize = 5;
    pub(crate) const SYMTAB: isize = 6;
    pub(crate) const RELA: isize = 7;
    pub(crate) const RELASZ: isize = 8;
    pub(crate) const STRSZ: isize = 10;
    pub(crate) const JMPREL: isize = 23;
}

/// Relocations that hold the address of a function: `R_*_GLOB_DAT` and `R_*_JUMP_SLOT`.
#[cfg(target_arch = "x86_64")]
const OF_FUNCTIONS: [u32; 2] = [6, 7];
#[cfg(target_arch = "aarch64")]
const OF_FUNCTIONS: [u32; 2] = [1025, 1026];
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const OF_FUNCTIONS: [u32; 0] = [];

/// `Elf64_Dyn`.
#[repr(C)]
struct Dyn {
    tag: isize,
    value: usize,
}

/// `Elf64_Sym`.
#[repr(C)]
struct Sym {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: usize,
    size: usize,
}

/// `Elf64_Rela`.
#[repr(C)]
struct Rela {
    offset: usize,
    info: u64,
    addend: isize,
}

/// A range of the address space, without its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    start: usize,
    end: usize,
}

impl Range {
    fn contains(self, address: usize) -> bool {
        (self.start..self.end).contains(&address)
    }

    /// The part that the loader protects: whole pages, the first of which may begin earlier. With the pages of the kernel,
    /// which may have 64 KiB, the rest stays writable.
    fn protected(self, page: usize) -> Self {
        Self {
            start: self.start & !(page - 1),
            end: self.end & !(page - 1),
        }
    }
}

/// A loaded object.
#[derive(Debug)]
pub(crate) struct Object {
    /// Load address.
    pub(crate) base: usize,
    /// Name in the loader.
    pub(crate) path: CString,
    dynamic: *const Dyn,
    /// Its segments, and whether they are writable.
    segments: Vec<(Range, bool)>,
    /// The range that the loader made read-only after filling it.
    read_only: Option<Range>,
}

/// The loaded objects of this name: `libucp` matches `libucp.so.0` and `libucp-1a2b.so.0`.
pub(crate) fn objects(name: &'static str) -> Vec<Object> {
    all(Wanted::Name(name))
}

/// The loaded object that contains the address.
pub(crate) fn object_at(address: *const c_void) -> Option<Object> {
    all(Wanted::Address(address.addr())).pop()
}

fn all(wanted: Wanted) -> Vec<Object> {
    let mut search = Search {
        wanted,
        found: Vec::new(),
    };
    // SAFETY: the callback gets the search's address and uses it only during this call.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut search).cast()) };
    search.found
}

/// The objects of a search.
#[derive(Clone, Copy)]
enum Wanted {
    Name(&'static str),
    Address(usize),
}

struct Search {
    wanted: Wanted,
    found: Vec<Object>,
}

/// One loaded object. The loader holds its lock, so nothing is opened here.
///
/// # Safety
/// Only `dl_iterate_phdr` may call it: `info` is valid during the call, and the last argument is the search that was passed on.
unsafe extern "C" fn visit(
    info: *mut libc::dl_phdr_info,
    _size: libc::size_t,
    search: *mut c_void,
) -> c_int {
    // SAFETY: it is the search of `objects`, and no other code uses it now.
    let search = unsafe { &mut *search.cast::<Search>() };
    // SAFETY: the loader gives a filled structure.
    let info = unsafe { &*info };
    if info.dlpi_name.is_null() || info.dlpi_phdr.is_null() {
        return 0;
    }
    // SAFETY: the name is a string of the loader.
    let path = unsafe { CStr::from_ptr(info.dlpi_name) };
    if let Wanted::Name(name) = search.wanted
        && !is_named(path, name)
    {
        return 0;
    }
    // SAFETY: the number of headers is the loader's.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    let Ok(base) = usize::try_from(info.dlpi_addr) else {
        return 0;
    };
    let mut object = Object {
        base,
        path: path.to_owned(),
        dynamic: std::ptr::null(),
        segments: Vec::new(),
        read_only: None,
    };
    for header in headers {
        let sizes = (header.p_vaddr.try_into(), header.p_memsz.try_into());
        let (Ok(offset), Ok(bytes)) = sizes else {
            continue;
        };
        let start = base.wrapping_add(offset);
        let end = start.wrapping_add(bytes);
        let range = Range { start, end };
        match header.p_type {
            libc::PT_DYNAMIC => object.dynamic = std::ptr::with_exposed_provenance(start),
            libc::PT_LOAD => {
                let is_writable = header.p_flags & libc::PF_W != 0;
                object.segments.push((range, is_writable));
            }
            libc::PT_GNU_RELRO => object.read_only = Some(range),
            _ => {}
        }
    }
    let is_wanted = match search.wanted {
        Wanted::Name(_) => true,
        Wanted::Address(address) => object.contains(address),
    };
    if is_wanted && !object.dynamic.is_null() {
        search.found.push(object);
    }
    c_int::from(search.found.len() == OBJECTS_MAX)
}

fn is_named(path: &CStr, name: &str) -> bool {
    let path = path.to_bytes();
    let file = path.rsplit(|&byte| byte == b'/').next().unwrap_or(path);
    let rest = file.strip_prefix(name.as_bytes());
    rest.is_some_and(|rest| matches!(rest.first(), Some(b'.' | b'-')))
}

impl Object {
    /// True if the address is in the object.
    pub(crate) fn contains(&self, address: usize) -> bool {
        let mut segments = self.segments.iter();
        segments.any(|(range, _)| range.contains(address))
    }

    /// True if a read-only segment of the object contains the bytes.
    pub(crate) fn holds(&self, bytes: &[u8]) -> bool {
        let constant = |&&(_, is_writable): &&(Range, bool)| !is_writable;
        self.segments.iter().filter(constant).any(|(range, _)| {
            let start = std::ptr::with_exposed_provenance::<c_void>(range.start);
            let (length, wanted) = (range.end - range.start, bytes.as_ptr().cast());
            // SAFETY: the segment is mapped as long as the object is loaded, and does not change.
            !unsafe { libc::memmem(start, length, wanted, bytes.len()) }.is_null()
        })
    }

    /// The slot through which the object calls the function; `None` if it has none.
    pub(crate) fn slot(&self, function: &CStr) -> Option<Slot> {
        let strings = self.pointer(tag::STRTAB)?;
        let strings_length = self.number(tag::STRSZ)?;
        let symbols = std::ptr::with_exposed_provenance::<Sym>(self.pointer(tag::SYMTAB)?);
        let tables = [(tag::JMPREL, tag::PLTRELSZ), (tag::RELA, tag::RELASZ)];
        for (table, length) in tables {
            let (Some(table), Some(length)) = (self.pointer(table), self.number(length)) else {
                continue;
            };
            let table = std::ptr::with_exposed_provenance::<Rela>(table);
            let count = (length / size_of::<Rela>()).min(RELOCATIONS_MAX);
            for at in 0..count {
                // SAFETY: the loader has processed the same table of the same length.
                let relocation = unsafe { &*table.add(at) };
                let kind = (relocation.info & 0xffff_ffff) as u32;
                if !OF_FUNCTIONS.contains(&kind) {
                    continue;
                }
                let symbol = (relocation.info >> 32) as usize;
                // SAFETY: as above: a relocation's symbol is in the table.
                let name = unsafe { (*symbols.add(symbol)).name } as usize;
                let wanted = function.to_bytes_with_nul();
                if name.saturating_add(wanted.len()) > strings_length {
                    continue;
                }
                let found = std::ptr::with_exposed_provenance::<u8>(strings + name);
                // SAFETY: the bytes are within the object's strings.
                let found = unsafe { std::slice::from_raw_parts(found, wanted.len()) };
                if found == wanted {
                    let place = self.base.wrapping_add(relocation.offset);
                    return self.place(std::ptr::with_exposed_provenance_mut(place));
                }
            }
        }
        None
    }

    /// A word of the object's data that holds the address of a function. `None` if the word is in no
    /// writable segment, or not aligned: an atomic access would end the program on aarch64.
    pub(crate) fn place(&self, place: *mut *mut c_void) -> Option<Slot> {
        let address = place.addr();
        let mut segments = self.segments.iter();
        let is_data = segments.any(|&(range, is_writable)| is_writable && range.contains(address));
        let is_word = is_data && place.is_aligned();
        let place = NonNull::new(place).filter(|_| is_word)?;
        Some(Slot {
            place,
            is_read_only: self
                .read_only
                .is_some_and(|range| range.protected(page()).contains(address)),
        })
    }

    fn number(&self, wanted: isize) -> Option<usize> {
        let mut entry = self.dynamic;
        loop {
            // SAFETY: an entry of the type null ends the section.
            match unsafe { ((*entry).tag, (*entry).value) } {
                (tag::NULL, _) => return None,
                (found, value) if found == wanted => return Some(value),
                _ => {}
            }
            // SAFETY: the entry was not the last one.
            entry = unsafe { entry.add(1) };
        }
    }

    /// The address in a dynamic entry: relative to the object, or already relocated.
    fn pointer(&self, wanted: isize) -> Option<usize> {
        let value = self.number(wanted)?;
        let address = match value < self.base {
            true => self.base + value,
            false => value,
        };
        self.contains(address).then_some(address)
    }
}

/// The location of a function's address in an object that calls the function.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    place: NonNull<*mut c_void>,
    is_read_only: bool,
}

impl Slot {
    /// The content: the function, or, before the first call, a stub of the object itself.
    pub(crate) fn get(self) -> *mut c_void {
        // SAFETY: the place is a word of the object's, aligned, which the loader writes as a whole.
        unsafe { AtomicPtr::from_ptr(self.place.as_ptr()) }.load(Ordering::Acquire)
    }

    /// Stores another function. False if the slot is not writable.
    pub(crate) fn set(self, function: *mut c_void) -> bool {
        let page_start = self.place.addr().get() & !(page() - 1);
        let page_start = std::ptr::with_exposed_provenance_mut::<c_void>(page_start);
        let protect = |protection| {
            // SAFETY: the page belongs to the object, and was readable and writable while the
            // loader filled it.
            unsafe { libc::mprotect(page_start, page(), protection) == 0 }
        };
        if self.is_read_only && !protect(libc::PROT_READ | libc::PROT_WRITE) {
            return false;
        }
        // SAFETY: as in `get`; a concurrent call uses either function.
        unsafe { AtomicPtr::from_ptr(self.place.as_ptr()) }.store(function, Ordering::Release);
        if self.is_read_only {
            // If it remains writable, this library still works.
            let _as_before = protect(libc::PROT_READ);
        }
        true
    }
}

fn page() -> usize {
    // SAFETY: sysconf has no preconditions.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).unwrap_or(4096)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_known_by_its_file_name() {
        for (path, expect) in [
            (c"/usr/lib/libucp.so.0", true),
            (c"libucp-e470a167.so.0.0.0", true),
            (c"/opt/libucp_extra.so", false),
            (c"/libucp.so.0/other.so", false),
            (c"", false),
        ] {
            assert_eq!(is_named(path, "libucp"), expect, "{path:?}");
        }
    }

    /// A slot behind the last whole page must not become read-only: other data of the page is written.
    #[test]
    fn the_loader_protects_whole_pages_of_any_size() {
        let (start, end) = (0x6_fb70, 0x8_1000);
        let range = Range { start, end };
        let expect = |start, end| Range { start, end };
        assert_eq!(range.protected(4096), expect(0x6_f000, 0x8_1000));
        assert_eq!(range.protected(64 << 10), expect(0x6_0000, 0x8_0000));
        assert!(!range.protected(64 << 10).contains(0x8_0ff8));
    }

    /// # Safety
    /// None.
    unsafe extern "C" fn seven() -> libc::pid_t {
        7
    }

    /// Every Rust program has this library, which calls the C library.
    #[test]
    fn a_call_is_led_elsewhere_and_back() {
        let objects = objects("libgcc_s");
        let object = objects.first().expect("the library that unwinds");
        let slot = object.slot(c"abort").expect("it can end the program");
        let before = slot.get();
        assert!(slot.set(seven as *mut c_void));
        assert_eq!(slot.get(), seven as *mut c_void);
        assert!(slot.set(before));
        assert_eq!(slot.get(), before);
        assert!(object.slot(c"no_such_function").is_none());
        assert!(object.contains(object.base) && !object.contains(0));
        let found = object_at(slot.get());
        assert!(found.is_some(), "the C library");
        let at = object_at(slot.place.as_ptr().cast()).expect("the library that unwinds");
        assert_eq!((at.base, &at.path), (object.base, &object.path));
        // Code is no place for the address of a function.
        let code = object.segments.iter().find(|(_, is_writable)| !is_writable);
        let (code, _) = code.expect("a segment with code");
        let code = std::ptr::with_exposed_provenance_mut(code.start);
        assert!(object.place(code).is_none());
        let odd = slot.place.as_ptr().wrapping_byte_add(1);
        assert!(object.place(odd).is_none());
        assert!(object.holds(b"_Unwind_Resume\0"));
        assert!(!object.holds(&[0xc7; 64]));
    }
}
