//! Memory of a process for commands of the host.

use super::{Os, OsError};
use rv64::Config;

impl Os {
    /// Allocates memory of the heap, with the content that it had before, or 0.
    ///
    /// # Errors
    /// The heap is full, or the process has ended.
    pub fn allocate(&mut self, bytes: u64) -> Result<u64, OsError> {
        self.alive()?;
        Ok(self.machine.allocate(bytes)?)
    }

    /// Returns an allocation.
    ///
    /// # Errors
    /// No allocation begins there.
    pub fn free(&mut self, address: u64) -> Result<(), OsError> {
        Ok(self.machine.free(address)?)
    }

    /// The bytes must be in one allocation, or in a segment of the program.
    pub(super) fn check(&self, address: u64, bytes: u64) -> Result<(), OsError> {
        let memory = |what: String| OsError::Memory {
            address,
            bytes,
            what,
        };
        if bytes == 0 {
            return Ok(());
        }
        if let Some((start, length)) = self.machine.allocation(address) {
            let left = length - (address - start);
            if bytes > left {
                return Err(memory(format!(
                    "only {left} bytes of the allocation follow"
                )));
            }
            return Ok(());
        }
        let is_in = |segment: &rv64::Segment| {
            let offset = address.wrapping_sub(segment.start);
            offset < segment.length && bytes <= segment.length - offset
        };
        if self.program.segments().iter().any(is_in) {
            return Ok(());
        }
        Err(memory(
            "no allocation and no variable of the program".to_owned(),
        ))
    }

    /// Reads memory. A process with a fault can still be read.
    ///
    /// # Errors
    /// It is beyond an allocation.
    pub fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), OsError> {
        let count = bytes.len() as u64;
        self.check(address, count)?;
        let read = self.machine.memory().read(address, bytes);
        read.map_err(|fault| failed(address, count, fault))
    }

    /// Writes memory.
    ///
    /// # Errors
    /// It is beyond an allocation, or the program may not write there.
    pub fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), OsError> {
        self.alive()?;
        let count = bytes.len() as u64;
        self.check(address, count)?;
        let written = self.machine.memory_mut().write(address, bytes);
        written.map_err(|fault| failed(address, count, fault))
    }

    /// Fills memory with a byte.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn fill(&mut self, address: u64, byte: u8, bytes: u64) -> Result<(), OsError> {
        self.alive()?;
        self.check(address, bytes)?;
        let content = [byte; 4096];
        let mut done = 0;
        while done < bytes {
            let left = usize::try_from(bytes - done).unwrap_or(content.len());
            let part = &content[..left.min(content.len())];
            let written = self.machine.memory_mut().write(address + done, part);
            written.map_err(|fault| failed(address, bytes, fault))?;
            done += part.len() as u64;
        }
        Ok(())
    }

    /// Address in this process, first address in the process of the DPA, and bytes of the heap.
    #[must_use]
    pub fn heap(&self, config: &Config) -> (usize, u64, u64) {
        let (place, bytes) = self.machine.heap_place();
        (place, config.heap, bytes)
    }
}

fn failed(address: u64, bytes: u64, fault: rv64::Fault) -> OsError {
    OsError::Memory {
        address,
        bytes,
        what: fault.to_string(),
    }
}
