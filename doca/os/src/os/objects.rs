//! Outboxes, windows and event handlers of a process.

use super::{Os, OsError};
use crate::kernel::OUTBOXES_MAX;
use crate::thread::Thread;
use crate::window::WINDOWS_MAX;
use mlx5_prm::dpa::{ThreadAttr, ThreadKind as Kind};
use rv64::{HartId, MachineError};

impl Os {
    /// Adds an outbox: its number, and the page of its doorbells.
    ///
    /// # Errors
    /// The process has all outboxes.
    pub fn add_outbox(&mut self, id: u32, uar: u32) -> Result<(), OsError> {
        self.alive()?;
        if self.kernel.outboxes.len() >= OUTBOXES_MAX {
            return Err(OsError::Full {
                what: "outboxes",
                most: OUTBOXES_MAX,
            });
        }
        self.kernel.outboxes.insert(id, uar);
        Ok(())
    }

    /// Removes an outbox.
    pub fn remove_outbox(&mut self, id: u32) {
        self.kernel.outboxes.remove(&id);
    }

    /// Adds a window object.
    ///
    /// # Errors
    /// The process has all windows.
    pub fn add_window(&mut self, id: u32) -> Result<(), OsError> {
        self.alive()?;
        if self.kernel.window_objects.len() >= WINDOWS_MAX {
            return Err(OsError::Full {
                what: "windows",
                most: WINDOWS_MAX,
            });
        }
        self.kernel.window_objects.insert(id);
        Ok(())
    }

    /// Removes a window object.
    pub fn remove_window(&mut self, id: u32) {
        self.kernel.window_objects.remove(&id);
    }

    /// Creates an event handler.
    ///
    /// # Errors
    /// All threads exist, or its function has no instruction.
    pub fn create_thread(&mut self, number: u32, attributes: ThreadAttr) -> Result<(), OsError> {
        self.alive()?;
        self.check_function(attributes.function)?;
        self.add(number, Kind::Handler, attributes).map(drop)
    }

    pub(super) fn check_function(&self, function: u64) -> Result<(), OsError> {
        let is_code = |segment: &rv64::Segment| {
            segment.rights.execute && function.wrapping_sub(segment.start) < segment.length
        };
        if function.is_multiple_of(2) && self.program.segments().iter().any(is_code) {
            return Ok(());
        }
        Err(MachineError::Function(function).into())
    }

    pub(super) fn handler(&mut self, number: u32) -> Result<(HartId, &mut Thread), OsError> {
        let missing = OsError::NoThread(number);
        let hart = self.kernel.hart_of(number);
        let Some(hart) = hart else {
            return Err(missing);
        };
        match self.kernel.thread_mut(hart) {
            Some(thread) if thread.view.kind == Kind::Handler => Ok((hart, thread)),
            _ => Err(missing),
        }
    }

    /// Ends an event handler, whatever it is doing.
    ///
    /// # Errors
    /// The process has no such event handler.
    pub fn destroy_thread(&mut self, number: u32) -> Result<(), OsError> {
        let (hart, _) = self.handler(number)?;
        self.kernel.activations.retain(|other| *other != hart);
        if let Some(place) = self.kernel.threads.get_mut(hart as usize) {
            *place = None;
        }
        Ok(self.machine.destroy_hart(hart)?)
    }

    /// Sets the local storage and the affinity of an event handler.
    ///
    /// # Errors
    /// The process has no such event handler, or has ended.
    pub fn set_thread(&mut self, number: u32, attributes: ThreadAttr) -> Result<(), OsError> {
        self.alive()?;
        self.check_function(attributes.function)?;
        let (_, thread) = self.handler(number)?;
        thread.attributes = attributes;
        thread.view.local_storage = attributes.local_storage;
        thread.view.argument = attributes.argument;
        Ok(())
    }

    /// Prepares an event handler: from now on events start it. An event that came before starts it now.
    ///
    /// # Errors
    /// The process has no such event handler, or has ended.
    pub fn prepare(&mut self, number: u32, argument: u64) -> Result<(), OsError> {
        self.alive()?;
        let (hart, thread) = self.handler(number)?;
        thread.is_prepared = true;
        thread.attributes.argument = argument;
        thread.view.argument = argument;
        if thread.is_pending && !self.kernel.activations.contains(&hart) {
            self.kernel.activations.push(hart);
        }
        Ok(())
    }

    /// An event of a thread.
    ///
    /// # Errors
    /// The process has no such event handler, or has ended.
    pub fn activate(&mut self, number: u32) -> Result<(), OsError> {
        self.alive()?;
        let (hart, _) = self.handler(number)?;
        if !self.kernel.activations.contains(&hart) {
            self.kernel.activations.push(hart);
        }
        Ok(())
    }
}
