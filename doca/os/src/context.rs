//! A device call in progress: its arguments, memory of both kinds, and what the device does for it.

use crate::device::{Denied, Device, Message};
use crate::kernel::{Doorbell, Kernel};
pub(crate) use crate::refusal::Refusal;
use crate::thread::ThreadView;
use mlx5_prm::dpa::ThreadKind as Kind;
use rv64::{Atomic, Call, HartId};

/// Register of the stack pointer.
const SP: u8 = 2;
/// Most bytes of a text that a thread passes.
const TEXT_MAX: usize = 4096;
/// Most doorbells that wait for the end of a run.
const DOORBELLS_MAX: usize = 4096;

/// How the thread goes on after a device call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// With this result.
    Value(u64),
    /// With this result, after other threads that are ready.
    Yield(u64),
    /// With the same call, later. Other threads and commands of the host go on. A thread that has waited for longer than the
    /// process may ends with a fault.
    Again,
    /// Not at all: the next event activates the thread again. For event handlers.
    Reschedule,
    /// Not at all: no event activates the thread again. For event handlers.
    Finish,
}

/// A device call in progress.
pub struct Context<'a, 'c> {
    pub(crate) call: &'a mut Call<'c>,
    pub(crate) kernel: &'a mut Kernel,
    pub(crate) device: &'a mut dyn Device,
    pub(crate) hart: HartId,
}

impl std::fmt::Debug for Context<'_, '_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context")
            .field("hart", &self.hart)
            .finish_non_exhaustive()
    }
}

impl Context<'_, '_> {
    /// Argument `n`, from 0. The first eight are in registers, further ones on the stack.
    ///
    /// # Errors
    /// The stack is not readable there.
    pub fn argument(&self, n: u8) -> Result<u64, Refusal> {
        match n.checked_sub(8) {
            None => Ok(self.call.argument(n)),
            Some(further) => {
                let sp = self.kernel_register(SP);
                let mut word = [0; 8];
                let address = sp.wrapping_add(8 * u64::from(further));
                self.call.memory_ref().read(address, &mut word)?;
                Ok(u64::from_le_bytes(word))
            }
        }
    }

    fn kernel_register(&self, n: u8) -> u64 {
        self.call.register(n)
    }

    /// Reads memory of the process, or memory behind a window.
    ///
    /// # Errors
    /// It is not readable.
    pub fn read_bytes(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), Refusal> {
        match self.kernel.behind(address) {
            Some(behind) => {
                let (key, address) = behind?;
                Ok(self.device.read(key, address, bytes)?)
            }
            None => Ok(self.call.memory().read(address, bytes)?),
        }
    }

    /// Writes memory of the process, or memory behind a window.
    ///
    /// # Errors
    /// It is not writable.
    pub fn write_bytes(&mut self, address: u64, bytes: &[u8]) -> Result<(), Refusal> {
        match self.kernel.behind(address) {
            Some(behind) => {
                let (key, address) = behind?;
                Ok(self.device.write(key, address, bytes)?)
            }
            None => Ok(self.call.memory().write(address, bytes)?),
        }
    }

    /// Reads `N` bytes, as [`read_bytes`](Self::read_bytes).
    ///
    /// # Errors
    /// They are not readable.
    pub fn read<const N: usize>(&mut self, address: u64) -> Result<[u8; N], Refusal> {
        let mut bytes = [0; N];
        self.read_bytes(address, &mut bytes)?;
        Ok(bytes)
    }

    /// Reads a little-endian word of 32 bits.
    ///
    /// # Errors
    /// It is not readable.
    pub fn read_u32(&mut self, address: u64) -> Result<u32, Refusal> {
        Ok(u32::from_le_bytes(self.read(address)?))
    }

    /// Reads a little-endian word of 64 bits.
    ///
    /// # Errors
    /// It is not readable.
    pub fn read_u64(&mut self, address: u64) -> Result<u64, Refusal> {
        Ok(u64::from_le_bytes(self.read(address)?))
    }

    /// Writes a little-endian word of 32 bits.
    ///
    /// # Errors
    /// It is not writable.
    pub fn write_u32(&mut self, address: u64, value: u32) -> Result<(), Refusal> {
        self.write_bytes(address, &value.to_le_bytes())
    }

    /// Writes a little-endian word of 64 bits.
    ///
    /// # Errors
    /// It is not writable.
    pub fn write_u64(&mut self, address: u64, value: u64) -> Result<(), Refusal> {
        self.write_bytes(address, &value.to_le_bytes())
    }

    /// An atomic operation on 4 or 8 aligned bytes of either memory. Returns the old value.
    ///
    /// # Errors
    /// The address is not aligned, or the bytes are not writable.
    pub fn atomic(
        &mut self,
        address: u64,
        size: u8,
        operation: Atomic,
        operand: u64,
    ) -> Result<u64, Refusal> {
        check_atomic(address, size)?;
        if let Some(behind) = self.kernel.behind(address) {
            let (key, address) = behind?;
            return Ok(self.device.atomic(key, address, size, operation, operand)?);
        }
        let mut word = [0; 8];
        let bytes = &mut word[..usize::from(size)];
        self.call.memory().read(address, bytes)?;
        let old = u64::from_le_bytes(word);
        let new = operation.apply(old, operand, size).to_le_bytes();
        self.call
            .memory()
            .write(address, &new[..usize::from(size)])?;
        Ok(old)
    }

    /// Reads memory behind a key.
    ///
    /// # Errors
    /// The device denies it.
    pub fn key_read(&mut self, key: u32, address: u64, bytes: &mut [u8]) -> Result<(), Denied> {
        self.device.read(key, address, bytes)
    }

    /// Writes memory behind a key.
    ///
    /// # Errors
    /// The device denies it.
    pub fn key_write(&mut self, key: u32, address: u64, bytes: &[u8]) -> Result<(), Denied> {
        self.device.write(key, address, bytes)
    }

    /// An atomic operation on 4 or 8 aligned bytes behind a key. Returns the old value.
    ///
    /// # Errors
    /// The device denies it, or the address is not aligned.
    pub fn key_atomic(
        &mut self,
        (key, address): (u32, u64),
        size: u8,
        operation: Atomic,
        operand: u64,
    ) -> Result<u64, Refusal> {
        check_atomic(address, size)?;
        Ok(self.device.atomic(key, address, size, operation, operand)?)
    }

    /// Base of the window onto all memory behind a key: a pointer is the base and the key's address. The key need not exist; each
    /// access is checked.
    ///
    /// # Errors
    /// The process has all windows.
    pub fn window(&mut self, key: u32) -> Result<u64, Refusal> {
        self.kernel.window(key)
    }

    /// Rings a send queue. It is executed before the next instruction of the thread. A queue that the process does not have on
    /// this page becomes a fault.
    ///
    /// # Errors
    /// Too many doorbells wait.
    pub fn ring_send(&mut self, uar: u32, qpn: u32, index: u16) -> Result<(), Refusal> {
        self.ordered();
        self.kernel
            .ring(self.hart, Doorbell::Send { uar, qpn, index })
    }

    /// Arms a completion queue, as [`ring_send`](Self::ring_send).
    ///
    /// # Errors
    /// Too many doorbells wait.
    pub fn arm(&mut self, uar: u32, cqn: u32, consumer: u32) -> Result<(), Refusal> {
        self.ordered();
        self.kernel
            .ring(self.hart, Doorbell::Arm { uar, cqn, consumer })
    }

    /// The functions of the library order the thread's stores before a doorbell.
    fn ordered(&mut self) {
        if let Some(order) = &mut self.kernel.order {
            order.fence(self.hart, false, true);
        }
    }

    /// Reads a text up to its zero byte. Bytes that are no UTF-8 are replaced.
    ///
    /// # Errors
    /// It is not readable, or longer than 4,096 bytes.
    pub fn text(&mut self, address: u64) -> Result<String, Refusal> {
        let mut bytes = Vec::new();
        for at in 0..TEXT_MAX as u64 {
            let [byte] = self.read(address.wrapping_add(at))?;
            if byte == 0 {
                return Ok(String::from_utf8_lossy(&bytes).into_owned());
            }
            bytes.push(byte);
        }
        Err(Refusal(format!(
            "the text at {address:#x} has more than {TEXT_MAX} bytes"
        )))
    }

    /// A counter of a port, by the number that congestion control gives it.
    pub fn port_counter(&mut self, number: u64) -> u64 {
        self.device.port_counter(number)
    }

    /// The device's time in microseconds.
    #[must_use]
    pub fn now_us(&self) -> u64 {
        self.kernel.now_ns / 1_000
    }

    /// Sends a line to the host.
    pub fn message(&mut self, stream: i32, level: u8, text: String) {
        let thread = self.thread().number;
        self.device.message(Message {
            thread,
            stream,
            level,
            text,
        });
    }

    /// Activates an event handler of the process by its number.
    ///
    /// # Errors
    /// The process has no such event handler.
    pub fn activate(&mut self, number: u32) -> Result<(), Refusal> {
        let is_handler = |thread: &crate::thread::Thread| thread.view.kind == Kind::Handler;
        let hart = self.kernel.hart_of(number).filter(|hart| {
            let thread = self.kernel.thread(*hart);
            thread.is_some_and(is_handler)
        });
        let Some(hart) = hart else {
            return Err(Refusal(format!(
                "the process has no event handler {number}"
            )));
        };
        if !self.kernel.activations.contains(&hart) {
            self.kernel.activations.push(hart);
        }
        Ok(())
    }

    /// The calling thread.
    #[must_use]
    pub fn thread(&self) -> ThreadView {
        match self.kernel.thread(self.hart) {
            Some(thread) => thread.view,
            // Each hart that runs has a thread.
            None => ThreadView {
                number: 0,
                kind: Kind::Call,
                rank: 0,
                count: 1,
                argument: 0,
                local_storage: 0,
            },
        }
    }
}

impl Kernel {
    /// Keeps a doorbell for the end of the run.
    pub(crate) fn ring(&mut self, hart: HartId, doorbell: Doorbell) -> Result<(), Refusal> {
        if self.doorbells.len() >= DOORBELLS_MAX {
            return Err(Refusal(format!("{DOORBELLS_MAX} doorbells wait")));
        }
        self.doorbells.push((hart, doorbell));
        Ok(())
    }
}

fn check_atomic(address: u64, size: u8) -> Result<(), Refusal> {
    let fits = matches!(size, 4 | 8) && address.is_multiple_of(size.into());
    fits.then_some(()).ok_or_else(|| {
        Refusal(format!(
            "an atomic operation of {size} bytes at {address:#x}: not 4 or 8 aligned bytes"
        ))
    })
}
