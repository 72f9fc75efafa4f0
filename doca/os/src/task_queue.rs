//! State of a command queue: tasks, and the threads that execute them.

use rv64::HartId;
use std::collections::VecDeque;

/// Most tasks of a queue that have not begun.
pub const TASKS_MAX: usize = 1 << 16;

/// A function, and its argument.
pub(crate) type Task = (u64, u64);

/// A thread of a queue.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) hart: HartId,
    /// The rest of the batch that it has taken.
    pub(crate) batch: VecDeque<Task>,
}

/// A command queue.
#[derive(Debug)]
pub(crate) struct TaskQueue {
    pub(crate) workers: Vec<Worker>,
    /// Tasks that a thread takes at a time.
    pub(crate) batch: usize,
    pub(crate) tasks: VecDeque<Task>,
    /// Threads take tasks.
    pub(crate) runs: bool,
}

impl TaskQueue {
    /// The next task of an idle thread.
    pub(crate) fn next(&mut self, worker: usize) -> Option<Task> {
        let own = self.workers.get_mut(worker)?;
        if own.batch.is_empty() {
            let count = self.batch.min(self.tasks.len());
            own.batch.extend(self.tasks.drain(..count));
        }
        own.batch.pop_front()
    }
}
