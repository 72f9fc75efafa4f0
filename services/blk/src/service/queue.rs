//! Requests that wait for a worker.

use super::connection::Connection;
use crate::frames::Request;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// A request and the connection that its answer goes to.
pub(super) struct Job {
    pub(super) connection: Arc<Connection>,
    pub(super) request: Request,
}

/// A bounded queue.
pub(super) struct Queue {
    jobs: Mutex<VecDeque<Job>>,
    arrived: Condvar,
    max: usize,
}

impl Queue {
    pub(super) fn new(max: usize) -> Self {
        Self {
            jobs: Mutex::default(),
            arrived: Condvar::new(),
            max,
        }
    }

    /// Adds a request. Returns it if the queue is full.
    pub(super) fn push(&self, job: Job) -> Result<(), Job> {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        if jobs.len() >= self.max {
            return Err(job);
        }
        jobs.push_back(job);
        self.arrived.notify_one();
        Ok(())
    }

    /// Waits for a request. The service's threads live as long as its process.
    pub(super) fn pop(&self) -> Job {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match jobs.pop_front() {
                Some(job) => return job,
                None => {
                    jobs = self
                        .arrived
                        .wait(jobs)
                        .unwrap_or_else(PoisonError::into_inner)
                }
            }
        }
    }
}
