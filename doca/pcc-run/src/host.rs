//! A program as a shared object in this process.

use crate::process::{Area, BUFFER_BYTES, ENTRIES, Engine, Entry, Refused};
use crate::services::Services;
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use pcc_dev::layout::{BLOCK_BYTES, Block};
use pcc_lab::Failure;
use std::ffi::c_void;
use std::io::{self, Write as _};
use tempfile::TempPath;

/// An entry point with up to five arguments. C functions with fewer parameters ignore the rest, which registers carry.
type Function = unsafe extern "C" fn(u64, u64, u64, u64, u64) -> u64;
type Serve = unsafe extern "C" fn(*mut c_void, u64, *const u64) -> u64;
type Attach = unsafe extern "C" fn(*mut c_void, Serve);

/// A buffer that a program may write to.
#[derive(Debug)]
#[repr(C, align(16))]
struct Buffer([u8; BUFFER_BYTES]);

/// A shared object: its bytes. A file that is loaded twice has its variables once, so each process gets a file of its own.
#[derive(Debug)]
pub(crate) struct SharedObject(pub(crate) Vec<u8>);

impl SharedObject {
    fn file(&self) -> io::Result<TempPath> {
        let builder = tempfile::Builder::new()
            .prefix("pcc-")
            .suffix(".so")
            .tempfile();
        let mut file = builder?;
        file.write_all(&self.0)?;
        Ok(file.into_temp_path())
    }
}

#[derive(Debug)]
pub(crate) struct Host {
    entries: [Option<Function>; ENTRIES.len()],
    attach: Attach,
    block: Box<Block>,
    input: Box<Buffer>,
    output: Box<Buffer>,
    /// After its functions.
    _library: Library,
    /// Removed at the end.
    _file: TempPath,
}

impl Host {
    pub(crate) fn load(object: &SharedObject) -> Result<Self, Refused> {
        let cannot =
            |error: &dyn std::fmt::Display| Refused(format!("cannot load the program: {error}"));
        let file = object.file().map_err(|error| cannot(&error))?;
        // SAFETY: the user asks to run this program here. Its constructors run, as those of any library.
        let library = unsafe { Library::open(Some(file.as_os_str()), RTLD_NOW | RTLD_LOCAL) };
        let library = library.map_err(|error| cannot(&error))?;
        // SAFETY: the library of pcc-dev defines the function with this type.
        let attach = unsafe { library.get::<Attach>(b"__pcc_attach") };
        let attach = *attach.map_err(|error| cannot(&error))?;
        let entries = ENTRIES.map(|(_, name)| {
            // SAFETY: the library of pcc-dev defines the functions with integers of 64 bits, or not at all.
            let found = unsafe { library.get::<Function>(name.as_bytes()) };
            found.ok().map(|function| *function)
        });
        Ok(Self {
            entries,
            attach,
            block: Box::new(Block([0; BLOCK_BYTES])),
            input: Box::new(Buffer([0; BUFFER_BYTES])),
            output: Box::new(Buffer([0; BUFFER_BYTES])),
            _library: library,
            _file: file,
        })
    }

    fn area(&self, area: Area) -> &[u8] {
        match area {
            Area::Block => &self.block.0,
            Area::Input => &self.input.0,
            Area::Output => &self.output.0,
        }
    }

    fn area_mut(&mut self, area: Area) -> &mut [u8] {
        match area {
            Area::Block => &mut self.block.0,
            Area::Input => &mut self.input.0,
            Area::Output => &mut self.output.0,
        }
    }
}

impl Engine for Host {
    fn address(&self, area: Area) -> u64 {
        self.area(area).as_ptr().expose_provenance() as u64
    }

    fn write(&mut self, area: Area, bytes: &[u8]) {
        for (place, byte) in self.area_mut(area).iter_mut().zip(bytes) {
            *place = *byte;
        }
    }

    fn read(&self, area: Area, bytes: &mut [u8]) {
        for (place, byte) in bytes.iter_mut().zip(self.area(area)) {
            *place = *byte;
        }
    }

    fn peek(&self, address: u64, bytes: &mut [u8]) -> bool {
        copy(address, bytes)
    }

    fn call(
        &mut self,
        entry: Entry,
        arguments: &[u64],
        services: &mut Services,
    ) -> Result<(u64, u32), Failure> {
        let Some(function) = self.entries[entry as usize] else {
            return Err(Failure(format!(
                "the program has no {}",
                ENTRIES[entry as usize].1
            )));
        };
        let mut words = [0; 5];
        for (word, argument) in words.iter_mut().zip(arguments) {
            *word = *argument;
        }
        let [a, b, c, d, e] = words;
        let owner = std::ptr::from_mut(services).cast::<c_void>();
        // SAFETY: `owner` is valid until the program's function has returned, and nobody else uses it before. The areas have
        // the sizes that the library knows.
        let value = unsafe {
            (self.attach)(owner, serve);
            function(a, b, c, d, e)
        };
        Ok((value, 0))
    }
}

/// Copies memory of the program.
fn copy(address: u64, bytes: &mut [u8]) -> bool {
    let Some(address) = usize::try_from(address)
        .ok()
        .filter(|address| *address != 0)
    else {
        return false;
    };
    let from = std::ptr::with_exposed_provenance::<u8>(address);
    // SAFETY: the program has named this memory of its own. It may be wrong as any of its pointers; a program for the host is
    // trusted.
    unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) };
    true
}

/// A program asks for a service.
///
/// # Safety
/// `owner` is what `__pcc_attach` got, and `arguments` are four numbers.
unsafe extern "C" fn serve(owner: *mut c_void, number: u64, arguments: *const u64) -> u64 {
    // SAFETY: by the contract of this function.
    let (services, arguments) = unsafe {
        (
            &mut *owner.cast::<Services>(),
            *arguments.cast::<[u64; 4]>(),
        )
    };
    services.serve(number, arguments, &mut copy).unwrap_or(0)
}
