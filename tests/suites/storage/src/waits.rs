//! How often the threads of processes wait while a client works, also of those threads that end with it: an export has some for each
//! connection.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// Time between two looks: what a thread has waited behind the last look before its end is not counted.
const LOOKS: Duration = Duration::from_millis(20);

/// The threads of some processes.
#[derive(Debug)]
struct Threads<'a> {
    processes: &'a [u32],
    /// By thread: its waits at the last look, and those that do not count.
    seen: HashMap<u32, (u64, u64)>,
    /// Waits of threads whose numbers others have now.
    ended: u64,
}

impl<'a> Threads<'a> {
    /// What they have waited so far does not count.
    fn of(processes: &'a [u32]) -> Self {
        let mut threads = Self {
            processes,
            seen: HashMap::new(),
            ended: 0,
        };
        threads.look();
        for (last, before) in threads.seen.values_mut() {
            *before = *last;
        }
        threads
    }

    fn look(&mut self) {
        for process in self.processes {
            // A process may end meanwhile, as its threads.
            let tasks = fs::read_dir(format!("/proc/{process}/task"));
            for task in tasks.into_iter().flatten().flatten() {
                let number = task.file_name();
                let number = number.to_str().and_then(|number| number.parse().ok());
                let (Some(number), Some(waits)) = (number, waits_of(&task.path())) else {
                    continue;
                };
                let (last, before) = self.seen.entry(number).or_default();
                if waits < *last {
                    self.ended += *last - std::mem::take(before);
                }
                *last = waits;
            }
        }
    }

    fn waits(&self) -> u64 {
        let seen = self.seen.values().map(|(last, before)| last - before);
        self.ended + seen.sum::<u64>()
    }
}

/// Waits of a thread. None: it has ended.
fn waits_of(task: &Path) -> Option<u64> {
    let status = fs::read_to_string(task.join("status")).ok()?;
    let line = |line: &str| {
        let waits = line.strip_prefix("voluntary_ctxt_switches:")?;
        waits.trim().parse().ok()
    };
    status.lines().find_map(line)
}

/// Carries out `work`. Returns also how often the threads of each group of processes have waited meanwhile.
pub(super) fn during<T>(groups: [&[u32]; 2], work: impl FnOnce() -> T) -> (T, [u64; 2]) {
    let mut groups = groups.map(Threads::of);
    let (ends, ended) = channel::<()>();
    std::thread::scope(|scope| {
        let looks = scope.spawn(move || {
            loop {
                let is_over = ended.recv_timeout(LOOKS) != Err(RecvTimeoutError::Timeout);
                groups.iter_mut().for_each(Threads::look);
                if is_over {
                    return groups.map(|threads| threads.waits());
                }
            }
        });
        let done = work();
        drop(ends);
        let waits = looks.join();
        (
            done,
            waits.unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    /// Waits of a thread that has ended stay, and those before the first look do not count.
    #[test]
    fn threads_that_end_have_waited() {
        let own = [std::process::id()];
        let wait = |times: usize| {
            for _ in 0..times {
                std::thread::park_timeout(Duration::from_micros(1));
            }
        };
        wait(3000);
        let mut threads = Threads::of(&own);
        assert_eq!(threads.waits(), 0);
        let barrier = Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                wait(500);
                barrier.wait();
                barrier.wait();
            });
            barrier.wait();
            threads.look();
            barrier.wait();
        });
        threads.look();
        assert!(threads.waits() >= 500, "{}", threads.waits());
        let (done, waits) = during([&own, &[]], || wait(500));
        assert_eq!((done, waits[1]), ((), 0));
        assert!(waits[0] >= 500, "{waits:?}");
    }
}
