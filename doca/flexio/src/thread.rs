//! Threads of a process that events activate.

use crate::error::{Error, Result};
use crate::object::{Input, Object};
use crate::process::{Process, low};
use mlx5_prm::cmd::{self, opcode};
use mlx5_prm::dpa::{self, ThreadAttr, modify, object};
use std::sync::{Mutex, PoisonError};

/// An event handler: each event starts its function, after [`run`](Self::run).
#[derive(Debug)]
pub struct Thread {
    // Destroyed before the process.
    object: Object,
    number: u32,
    attributes: Mutex<ThreadAttr>,
    process: Process,
}

impl Thread {
    /// Creates a thread.
    ///
    /// # Errors
    /// All threads of the device are taken, or an attribute is not possible.
    pub fn create(process: &Process, attr: &ThreadAttr) -> Result<Self> {
        let input = Input::general(object::THREAD).with(dpa::PROCESS_ID, process.id().into());
        let input = input.filled(|bytes| attr.put(bytes));
        let (object, output) = process.create_object(&input, dpa::CREATE_OUT_BYTES)?;
        Ok(Self {
            object,
            number: low(cmd::GENERAL_OBJECT_ID.get(&output)),
            attributes: Mutex::new(*attr),
            process: process.clone(),
        })
    }

    /// Its number, for completion queues and for device code.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    fn change(&self, operation: u16, fill: impl FnOnce(Input) -> Input) -> Result<()> {
        let input = Input::new(opcode::MODIFY_GENERAL_OBJECT, dpa::BODY_AT)
            .with(cmd::GENERAL_OBJECT_TYPE, object::THREAD.into())
            .with(cmd::GENERAL_OBJECT_ID, self.number.into())
            .with(dpa::OPERATION, operation.into());
        let done = self.object.modify(&fill(input));
        done.map_err(|error: Error| self.process.explained(error))
    }

    /// From now on events start the function, with this argument. An event that came before starts it now.
    ///
    /// # Errors
    /// The process has ended.
    pub fn run(&self, argument: u64) -> Result<()> {
        self.change(modify::RUN, |input| input.with(dpa::ARGUMENT, argument))
    }

    /// An event of the thread.
    ///
    /// # Errors
    /// The process has ended.
    pub fn activate(&self) -> Result<()> {
        self.change(modify::ACTIVATE, |input| input)
    }

    /// Sets its local storage.
    ///
    /// # Errors
    /// The process has ended.
    pub fn set_local_storage(&self, address: u64) -> Result<()> {
        self.set(|attr| attr.local_storage = address)
    }

    /// Changes its attributes, from the next activation on.
    ///
    /// # Errors
    /// The process has ended, or an attribute is not possible.
    pub fn set(&self, change: impl FnOnce(&mut ThreadAttr)) -> Result<()> {
        let mut attributes = self
            .attributes
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let mut new = *attributes;
        change(&mut new);
        self.change(modify::SET, |input| input.filled(|bytes| new.put(bytes)))?;
        *attributes = new;
        Ok(())
    }
}
