//! Programs for the DPA.

use crate::error::{Error, Result};
use rv64::{Lines, Program};
use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};

/// Most functions of a program.
const FUNCTIONS_MAX: usize = 1 << 16;

/// Fills a buffer with the arguments in a C variable list.
pub type Pack = unsafe extern "C" fn(buffer: *mut c_void, list: *mut c_void);

/// A function of a program that the host calls or launches.
#[derive(Debug, Clone)]
pub struct Function {
    /// Its name in the program.
    pub name: String,
    /// Name of the function that reads its arguments from a buffer and calls it.
    pub unpack: String,
    /// Address of the host's function with the same name.
    pub stub: usize,
    /// Bytes of the buffer.
    pub argument_bytes: usize,
    /// Fills the buffer.
    pub pack: Option<Pack>,
}

/// A program for the DPA, and its functions.
#[derive(Debug)]
pub struct App {
    name: String,
    elf: Vec<u8>,
    program: Program,
    functions: Mutex<Vec<Function>>,
}

impl App {
    /// A program from an ELF file.
    ///
    /// # Errors
    /// The file is not a program for the DPA.
    pub fn new(name: &str, elf: &[u8]) -> Result<Self> {
        let program = Program::parse(elf)
            .map_err(|error| Error::failed(format!("the program {name}: {error}")))?;
        Ok(Self {
            name: name.to_owned(),
            elf: elf.to_vec(),
            program,
            functions: Mutex::default(),
        })
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The ELF file.
    #[must_use]
    pub fn elf(&self) -> &[u8] {
        &self.elf
    }

    /// Adds a function.
    ///
    /// # Errors
    /// The program does not have it, or its stub stands for another function.
    pub fn register(&self, function: Function) -> Result<()> {
        for name in [&function.name, &function.unpack] {
            self.symbol(name)?;
        }
        let mut functions = self
            .functions
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(other) = functions.iter().find(|other| other.stub == function.stub) {
            return Err(Error::failed(format!(
                "the host's functions of {} and {} are the same",
                other.name, function.name
            )));
        }
        if functions.len() >= FUNCTIONS_MAX {
            return Err(Error::failed(format!("{FUNCTIONS_MAX} functions exist")));
        }
        functions.push(function);
        Ok(())
    }

    /// The function of a host's stub.
    #[must_use]
    pub fn find(&self, stub: usize) -> Option<Function> {
        let functions = self
            .functions
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        functions.iter().find(|known| known.stub == stub).cloned()
    }

    /// Address of a function or variable on the DPA.
    ///
    /// # Errors
    /// The program does not have it.
    pub fn symbol(&self, name: &str) -> Result<u64> {
        self.program
            .symbol(name)
            .ok_or_else(|| Error::failed(format!("the program {} has no {name}", self.name)))
    }

    /// File and line of an instruction, if the program has them.
    #[must_use]
    pub fn line(&self, pc: u64) -> Option<(String, u32)> {
        let line = Lines::parse(&self.elf)?.at(pc)?;
        Some((line.file, line.line))
    }
}
