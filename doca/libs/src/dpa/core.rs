//! A process of the DPA with what all objects of a context share.

use crate::dev::Dev;
use crate::error::{Code, Fault, Result, fail};
use crate::lines::{self, Level};
use dpa_dev::objects::{Kind, WORD, context};
use flexio::{App, Function, Mkey, Outbox, Process, Status};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The fault of a failed call of the device.
pub(crate) fn failed(error: flexio::Error) -> Fault {
    let code = match error.status {
        Status::Failed => Code::Driver,
        Status::Timeout => Code::TimeOut,
        Status::Fatal => Code::DeviceFatalError,
    };
    Fault::new(code, error.to_string())
}

/// A running process.
pub(crate) struct Core {
    // Destroyed in this order: the device after all that uses it.
    scratch: (u64, Mkey),
    outbox: Outbox,
    /// The program's own allocations, and their sizes.
    allocations: Mutex<BTreeMap<u64, u64>>,
    handle: u64,
    process: Process,
    is_dead: AtomicBool,
    log_level: AtomicU32,
    dev: Arc<Dev>,
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core")
            .field("process", &self.process)
            .finish_non_exhaustive()
    }
}

impl Core {
    /// Starts a program.
    pub(crate) fn start(dev: &Arc<Dev>, app: &Arc<App>, log_level: u32) -> Result<Self> {
        // SAFETY: the device stays open as long as this value, which drops the process first.
        let process = unsafe { Process::create(dev.context(), dev.pd(), app) }.map_err(failed)?;
        let outbox = Outbox::create(&process).map_err(failed)?;
        let scratch = process.allocate(WORD).map_err(failed)?;
        let key = process
            .mkey(scratch, WORD, mlx5dv_sys::IBV_ACCESS_LOCAL_WRITE)
            .map_err(failed)?;
        let handle = process
            .allocate(context::WORDS as u64 * WORD)
            .map_err(failed)?;
        process
            .copy_in(handle, &(Kind::Context as u64).to_le_bytes())
            .map_err(failed)?;
        Ok(Self {
            scratch: (scratch, key),
            outbox,
            allocations: Mutex::default(),
            handle,
            process,
            is_dead: AtomicBool::new(false),
            log_level: AtomicU32::new(log_level),
            dev: Arc::clone(dev),
        })
    }

    pub(crate) fn process(&self) -> &Process {
        &self.process
    }

    pub(crate) fn dev(&self) -> &Arc<Dev> {
        &self.dev
    }

    /// Handle of the context for device code.
    pub(crate) fn handle(&self) -> u64 {
        self.handle
    }

    /// Page of doorbells.
    pub(crate) fn uar(&self) -> u32 {
        self.outbox.uar()
    }

    /// Key and address of 8 bytes for results that nobody wants.
    pub(crate) fn scratch(&self) -> (u32, u64) {
        (self.scratch.1.key(), self.scratch.0)
    }

    pub(crate) fn set_log_level(&self, level: u32) {
        self.log_level.store(level, Ordering::Relaxed);
    }

    /// Refuses a process that was found dead.
    pub(crate) fn alive(&self) -> Result<()> {
        if self.is_dead.load(Ordering::Relaxed) {
            fail!(
                DeviceFatalError,
                "the DPA context has a fatal error: destroy it and create a new one"
            );
        }
        Ok(())
    }

    /// Asks the device for a fault of the process.
    pub(crate) fn check(&self) -> Result<()> {
        match self.process.fault().map_err(failed) {
            Ok(None) => Ok(()),
            Ok(Some(fault)) => {
                self.is_dead.store(true, Ordering::Relaxed);
                fail!(
                    DeviceFatalError,
                    "{fault}; destroy the DPA context and create a new one"
                )
            }
            Err(fault) => {
                if fault.code == Code::DeviceFatalError {
                    self.is_dead.store(true, Ordering::Relaxed);
                }
                Err(fault)
            }
        }
    }

    /// Writes the lines that device code has logged.
    pub(crate) fn drain(&self) {
        let Ok(messages) = self.process.messages(None) else {
            return;
        };
        let most = self.log_level.load(Ordering::Relaxed);
        for message in messages {
            let level = match message.level {
                20 => Level::Crit,
                30 => Level::Error,
                40 => Level::Warning,
                60 => Level::Debug,
                _ => Level::Info,
            };
            if level as u32 <= most {
                lines::device(level, &message.text);
            }
        }
    }

    /// The function of a stub.
    pub(crate) fn function(&self, stub: usize) -> Result<Function> {
        match self.process.app().find(stub) {
            Some(function) => Ok(function),
            None => fail!(
                NotFound,
                "{stub:#x} is no kernel or RPC of the program {}: pass the address of a function that it marks with \
                 __dpa_global__ or __dpa_rpc__",
                self.process.app().name()
            ),
        }
    }

    /// Allocates memory for the program.
    pub(crate) fn allocate(&self, bytes: u64) -> Result<u64> {
        if bytes == 0 {
            fail!(InvalidValue, "an allocation has at least 1 byte");
        }
        let address = self.process.allocate(bytes).map_err(|error| {
            let fault = failed(error);
            let code = match fault.code {
                Code::Driver => Code::NoMemory,
                other => other,
            };
            Fault::new(code, format!("no {bytes} bytes of DPA memory: {fault}"))
        })?;
        self.allocations
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(address, bytes);
        Ok(address)
    }

    /// Frees an allocation of the program.
    pub(crate) fn free(&self, address: u64) -> Result<()> {
        let mut allocations = self
            .allocations
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if allocations.remove(&address).is_none() {
            fail!(
                InvalidValue,
                "no allocation of this context begins at {address:#x}: it was freed, or belongs to another context"
            );
        }
        self.process.free(address).map_err(failed)
    }

    /// Refuses a range that is not inside one allocation of the program.
    pub(crate) fn check_range(&self, address: u64, bytes: u64) -> Result<()> {
        let allocations = self
            .allocations
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let Some((start, size)) = allocations.range(..=address).next_back() else {
            fail!(
                InvalidValue,
                "{address:#x} is in no allocation of this context"
            );
        };
        let left = size.checked_sub(address - start).unwrap_or_default();
        if left == 0 {
            fail!(
                InvalidValue,
                "{address:#x} is in no allocation of this context"
            );
        }
        if bytes > left {
            fail!(
                InvalidValue,
                "{bytes} bytes at {address:#x} are beyond the allocation, which has {left} from there"
            );
        }
        Ok(())
    }
}

/// Memory of the DPA for an object of the library.
#[derive(Debug)]
pub(crate) struct Block {
    core: Arc<Core>,
    address: u64,
}

impl Block {
    /// Bytes, first 0.
    pub(crate) fn new(core: &Arc<Core>, bytes: u64) -> Result<Self> {
        let address = core.process.allocate(bytes.max(WORD)).map_err(failed)?;
        let block = Self {
            core: Arc::clone(core),
            address,
        };
        core.process
            .fill(address, 0, bytes.max(WORD))
            .map_err(failed)?;
        Ok(block)
    }

    /// An object of device calls, with its words.
    pub(crate) fn object(
        core: &Arc<Core>,
        kind: Kind,
        words: usize,
        values: &[(usize, u64)],
    ) -> Result<Self> {
        let block = Self::new(core, words as u64 * WORD)?;
        let mut bytes = vec![0; words * 8];
        for (index, value) in values.iter().copied().chain([(0, kind as u64)]) {
            bytes[index * 8..][..8].copy_from_slice(&value.to_le_bytes());
        }
        block.write(0, &bytes)?;
        Ok(block)
    }

    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let at = self.address + offset;
        self.core.process.copy_in(at, bytes).map_err(failed)
    }

    pub(crate) fn set(&self, index: usize, value: u64) -> Result<()> {
        self.write(index as u64 * WORD, &value.to_le_bytes())
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // The kind is cleared first, so that device code with the old handle gets a fault. A dead process refuses both.
        let _ = self.write(0, &[0; 8]);
        let _ = self.core.process.free(self.address);
    }
}
