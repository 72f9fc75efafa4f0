//! Command queues: functions of the DPA that several threads execute, without a wait of the host.

use crate::app::Function;
use crate::error::Result;
use crate::object::{Input, Object};
use crate::process::{Process, low};
use mlx5_prm::cmd::{self, opcode};
use mlx5_prm::dpa::{self, modify, object, query};

/// Attributes of a command queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CommandQueueAttr {
    /// Its threads, 1 to 254.
    pub workers: u16,
    /// Tasks that a thread takes at a time, at least 1.
    pub batch: u32,
    /// Threads take tasks from the start.
    pub runs: bool,
}

/// A command queue. Its threads are threads of the device.
#[derive(Debug)]
pub struct CommandQueue {
    object: Object,
    number: u32,
    process: Process,
}

impl CommandQueue {
    /// Creates a command queue.
    ///
    /// # Errors
    /// All threads of the device are taken, or a number is not possible.
    pub fn create(process: &Process, attr: &CommandQueueAttr) -> Result<Self> {
        let input = Input::general(object::COMMAND_QUEUE)
            .with(dpa::PROCESS_ID, process.id().into())
            .with(dpa::WORKERS, attr.workers.into())
            .with(dpa::BATCH, attr.batch.into())
            .with(dpa::RUNS, attr.runs.into());
        let (object, output) = process.create_object(&input, dpa::CREATE_OUT_BYTES)?;
        Ok(Self {
            object,
            number: low(cmd::GENERAL_OBJECT_ID.get(&output)),
            process: process.clone(),
        })
    }

    /// The process.
    #[must_use]
    pub fn process(&self) -> &Process {
        &self.process
    }

    fn command(&self, opcode: u16, operation: u16) -> Input {
        Input::new(opcode, dpa::BODY_AT)
            .with(cmd::GENERAL_OBJECT_TYPE, object::COMMAND_QUEUE.into())
            .with(cmd::GENERAL_OBJECT_ID, self.number.into())
            .with(dpa::OPERATION, operation.into())
    }

    fn change(&self, input: &Input) -> Result<()> {
        let done = self.object.modify(input);
        done.map_err(|error| self.process.explained(error))
    }

    /// Adds a task: a function with one argument of 8 bytes.
    ///
    /// # Errors
    /// 65,536 tasks wait, or the process has ended.
    pub fn add(&self, function: &Function, argument: u64) -> Result<()> {
        let input = self
            .command(opcode::MODIFY_GENERAL_OBJECT, modify::TASK)
            .with(dpa::FUNCTION, self.process.symbol(&function.name)?)
            .with(dpa::ARGUMENT, argument);
        self.change(&input)
    }

    /// Lets the threads take tasks.
    ///
    /// # Errors
    /// The process has ended.
    pub fn run(&self) -> Result<()> {
        self.change(&self.command(opcode::MODIFY_GENERAL_OBJECT, modify::START))
    }

    /// True if all tasks have ended.
    ///
    /// # Errors
    /// The process has ended.
    pub fn is_empty(&self) -> Result<bool> {
        let input = self.command(opcode::QUERY_GENERAL_OBJECT, query::EMPTY);
        let output = self.object.query(&input, dpa::BODY_AT);
        let output = output.map_err(|error| self.process.explained(error))?;
        Ok(dpa::RESULT.get(&output) != 0)
    }
}
