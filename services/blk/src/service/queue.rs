//! Requests that wait for a worker.

use super::connection::Connection;
use crate::frames::Request;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// A request and the connection that its answer goes to.
pub(super) struct Job {
    pub(super) connection: Arc<Connection>,
    pub(super) request: Request,
}

/// A bounded queue. A worker is kept for each volume without a request under way: volumes whose requests wait for targets
/// delay no other one.
pub(super) struct Queue {
    state: Mutex<State>,
    arrived: Condvar,
    max: usize,
}

struct State {
    jobs: VecDeque<Job>,
    places: Places,
}

/// The workers.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Places {
    free: usize,
    /// Requests of each volume that are carried out.
    running: Vec<usize>,
}

impl Places {
    /// Takes a worker for a volume, if none is kept for another one.
    fn take(&mut self, of: usize) -> bool {
        let others = self.running.iter().enumerate();
        let kept = others.filter(|(at, running)| *at != of && **running == 0);
        let may = self.free > kept.count();
        if may {
            self.free -= 1;
            self.running[of] += 1;
        }
        may
    }

    fn leave(&mut self, of: usize) {
        self.free += 1;
        self.running[of] -= 1;
    }
}

impl Queue {
    /// For at most `max` requests, with at least as many workers as volumes.
    pub(super) fn new(max: usize, workers: usize, volumes: usize) -> Self {
        Self {
            state: Mutex::new(State {
                jobs: VecDeque::new(),
                places: Places {
                    free: workers.max(volumes),
                    running: vec![0; volumes],
                },
            }),
            arrived: Condvar::new(),
            max,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a request. Returns it if the queue is full.
    pub(super) fn push(&self, job: Job) -> Result<(), Job> {
        let mut state = self.state();
        if state.jobs.len() >= self.max {
            return Err(job);
        }
        state.jobs.push_back(job);
        self.arrived.notify_one();
        Ok(())
    }

    /// Waits for a request, whose end [`Queue::finish`] tells. The service's threads live as long as its process.
    pub(super) fn pop(&self) -> Job {
        let mut state = self.state();
        loop {
            let State { jobs, places } = &mut *state;
            let next = jobs.iter().position(|job| places.take(job.connection.of));
            if let Some(job) = next.and_then(|next| jobs.remove(next)) {
                return job;
            }
            let waited = self.arrived.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The request of a volume has its answer.
    pub(super) fn finish(&self, of: usize) {
        self.state().places.leave(of);
        // One that could not begin may begin now.
        self.arrived.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever the others do, a volume without a request under way finds a worker, and one alone has all but those kept.
    #[test]
    fn a_volume_never_takes_the_last_worker_of_another() {
        let mut places = Places {
            free: 5,
            running: vec![0; 3],
        };
        assert_eq!((0..9).filter(|_| places.take(1)).count(), 3);
        assert!(places.take(0) && !places.take(0) && places.take(2));
        assert_eq!(places.free, 0);
        places.leave(2);
        assert!(!places.take(0) && !places.take(1) && places.take(2));
        let mut random = fastrand::Rng::with_seed(33);
        let mut places = Places {
            free: 4,
            running: vec![0; 4],
        };
        for _ in 0..10_000 {
            let of = random.usize(..4);
            match places.running[of] {
                0 => assert!(places.take(of), "{places:?}"),
                _ if random.bool() => {
                    places.take(of);
                }
                _ => places.leave(of),
            }
        }
        let mut only = Places {
            free: 2,
            running: vec![0],
        };
        assert!(only.take(0) && only.take(0) && !only.take(0));
    }
}
