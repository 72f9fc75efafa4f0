//! Command queues: the host adds tasks, and the threads of the queue execute them.

use super::{Os, OsError};
use crate::kernel::TASK_QUEUES_MAX;
use crate::task_queue::{TASKS_MAX, Task, TaskQueue, Worker};
use mlx5_prm::dpa::{ThreadAttr, ThreadKind as Kind};
use rv64::HartId;
use std::collections::VecDeque;

impl Os {
    fn tasks(&mut self, id: u32) -> Result<&mut TaskQueue, OsError> {
        self.alive()?;
        let queue = self.tasks.get_mut(&id);
        queue.ok_or(OsError::NoQueue(id))
    }

    /// Adds a command queue with threads of these numbers. Each takes up to `batch` tasks at a time, if `runs`, or later.
    ///
    /// # Errors
    /// All threads or queues exist.
    pub fn add_task_queue(
        &mut self,
        id: u32,
        threads: &[u32],
        batch: usize,
        runs: bool,
    ) -> Result<(), OsError> {
        self.alive()?;
        if self.tasks.len() >= TASK_QUEUES_MAX {
            return Err(OsError::Full {
                what: "command queues",
                most: TASK_QUEUES_MAX,
            });
        }
        let mut workers = Vec::new();
        for number in threads {
            match self.add(*number, Kind::Worker, ThreadAttr::default()) {
                Ok(hart) => workers.push(Worker {
                    hart,
                    batch: VecDeque::new(),
                }),
                Err(error) => {
                    self.end_workers(workers);
                    return Err(error);
                }
            }
        }
        let queue = TaskQueue {
            workers,
            batch: batch.max(1),
            tasks: VecDeque::new(),
            runs,
        };
        self.tasks.insert(id, queue);
        Ok(())
    }

    /// Removes a command queue and its threads, whatever they are doing.
    pub fn remove_task_queue(&mut self, id: u32) {
        if let Some(queue) = self.tasks.remove(&id) {
            self.end_workers(queue.workers);
        }
    }

    fn end_workers(&mut self, workers: Vec<Worker>) {
        for worker in workers {
            if let Some(place) = self.kernel.threads.get_mut(worker.hart as usize) {
                *place = None;
            }
            let destroyed = self.machine.destroy_hart(worker.hart);
            debug_assert!(destroyed.is_ok(), "{destroyed:?}");
        }
    }

    /// Adds a task: a function with one argument.
    ///
    /// # Errors
    /// The queue does not exist or is full, or no function is there.
    pub fn add_task(&mut self, id: u32, function: u64, argument: u64) -> Result<(), OsError> {
        self.check_function(function)?;
        let queue = self.tasks(id)?;
        if queue.tasks.len() >= TASKS_MAX {
            return Err(OsError::Full {
                what: "tasks in a command queue",
                most: TASKS_MAX,
            });
        }
        queue.tasks.push_back((function, argument));
        Ok(())
    }

    /// From now on the queue's threads take tasks.
    ///
    /// # Errors
    /// The queue does not exist.
    pub fn run_task_queue(&mut self, id: u32) -> Result<(), OsError> {
        self.tasks(id)?.runs = true;
        Ok(())
    }

    /// True if all tasks of a queue have ended.
    ///
    /// # Errors
    /// The queue does not exist, or the process has ended.
    pub fn has_no_tasks(&mut self, id: u32) -> Result<bool, OsError> {
        let queue = self.tasks(id)?;
        let is_idle = |worker: &Worker| worker.batch.is_empty();
        let waits = !queue.tasks.is_empty() || !queue.workers.iter().all(is_idle);
        let harts: Vec<HartId> = queue.workers.iter().map(|worker| worker.hart).collect();
        let runs = |hart: HartId| {
            let thread = self.kernel.thread(hart);
            thread.is_some_and(|thread| thread.is_running)
        };
        Ok(!waits && !harts.into_iter().any(runs))
    }

    /// Tasks that idle threads can begin now, with the threads.
    fn ready_tasks(&mut self) -> Vec<(HartId, Task)> {
        let mut ready = Vec::new();
        for queue in self.tasks.values_mut().filter(|queue| queue.runs) {
            for at in 0..queue.workers.len() {
                let hart = queue.workers[at].hart;
                let thread = self.kernel.thread(hart);
                if thread.is_some_and(|thread| !thread.is_running)
                    && let Some(task) = queue.next(at)
                {
                    ready.push((hart, task));
                }
            }
        }
        ready
    }

    pub(super) fn begin_tasks(&mut self) {
        if self.tasks.is_empty() {
            return;
        }
        for (hart, (function, argument)) in self.ready_tasks() {
            self.start(hart, [function, argument, 0]);
        }
    }

    /// True if an idle thread has a task to begin.
    pub(super) fn has_ready_tasks(&self) -> bool {
        self.tasks.values().any(|queue| {
            let has_task = |worker: &Worker| !worker.batch.is_empty() || !queue.tasks.is_empty();
            let is_idle = |worker: &Worker| {
                let thread = self.kernel.thread(worker.hart);
                thread.is_some_and(|thread| !thread.is_running)
            };
            let mut workers = queue.workers.iter();
            queue.runs && workers.any(|worker| is_idle(worker) && has_task(worker))
        })
    }
}
