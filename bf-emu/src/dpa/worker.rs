//! The thread of the runner that executes one process of the DPA.

use std::collections::HashMap;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use dpa_os::{Os, Progress};

use super::core;
use super::device::Device;
use super::log::log;
use super::order::Log;
use crate::bits::low32;
use crate::sys;

/// Instructions between two looks at commands and events.
const SLICE: u64 = 200_000;
/// First and longest pause of a process that waits for a word.
const PAUSE_NS: std::ops::RangeInclusive<u64> = 20_000..=1_000_000;
/// Cookie of a wake-up that is no event. Threads and queues have larger numbers.
const WAKE: u64 = 0;
/// Bytes of an event.
const EVENT_BYTES: usize = 8;

/// What a command does on the process's thread.
type Job = Box<dyn FnOnce(&mut State) + Send>;

/// The end of a remote call: its result, or the reason of its failure.
pub(super) type Called = Result<u64, String>;

/// What the thread has.
pub(super) struct State {
    pub(super) os: Os,
    pub(super) device: Device,
    /// Remote calls that have not ended.
    calls: HashMap<u64, Sender<Called>>,
    next_call: u64,
    is_ended: bool,
    /// A fault writes a core file to the working directory of this program.
    core: Option<i32>,
    /// Where missing fences are reported.
    order: Log,
}

impl State {
    /// Writes a core file after a fault, if the program wants it.
    fn write_core(&mut self) {
        if self.os.fault().is_none() {
            return;
        }
        let Some(pid) = self.core.take() else { return };
        let file = format!("/proc/{pid}/cwd/dpa.{pid}.core");
        let written = core::write(&self.os, &file);
        let said = match written {
            Ok(()) => format!("core file dpa.{pid}.core in the directory of program {pid}"),
            Err(error) => format!("no core file of program {pid}: {error}"),
        };
        let fault = self.os.fault().map(ToString::to_string);
        log(&format!("{}; {said}", fault.unwrap_or_default()));
    }

    /// Begins a remote call. Its end comes to the receiver.
    pub(super) fn call(
        &mut self,
        functions: (u64, u64),
        arguments: Vec<u8>,
    ) -> Result<Receiver<Called>, dpa_os::OsError> {
        let ticket = self.next_call;
        self.os.call(ticket, functions, arguments)?;
        self.next_call += 1;
        let (sender, receiver) = channel();
        self.calls.insert(ticket, sender);
        Ok(receiver)
    }

    /// Calls a function and executes the process until its end.
    pub(super) fn complete(&mut self, functions: (u64, u64), arguments: Vec<u8>) -> Called {
        let receiver = self
            .call(functions, arguments)
            .map_err(|error| error.to_string())?;
        loop {
            let progress = self.turn();
            if let Ok(called) = receiver.try_recv() {
                return called;
            }
            if progress != Progress::Busy {
                return Err("a handler of congestion control waits for a word".to_owned());
            }
        }
    }

    /// Executes the process for a while, and passes on the results of calls that have ended.
    fn turn(&mut self) -> Progress {
        let progress = self.os.run(&mut self.device, sys::now_ns(), SLICE);
        self.write_core();
        self.order.write(&mut self.os);
        for finished in self.os.take_finished() {
            if let Some(sender) = self.calls.remove(&finished.ticket) {
                // The caller waits, or has ended.
                let _ = sender.send(finished.result);
            }
        }
        progress
    }
}

/// A process of the DPA, for the threads that carry out commands.
pub(super) struct Worker {
    /// None after the end of the thread.
    jobs: Mutex<Option<Vec<Job>>>,
    /// A command waits.
    has_jobs: AtomicBool,
    pub(super) pipe: Pipe,
}

/// The pipe of events.
#[derive(Debug)]
pub(super) struct Pipe {
    pub(super) read_fd: RawFd,
    pub(super) write_fd: RawFd,
}

impl Pipe {
    pub(super) fn new() -> sys::Result<Self> {
        let (read_fd, write_fd) = sys::pipe(false)?;
        let pipe = Self { read_fd, write_fd };
        sys::set_nonblocking(read_fd)?;
        sys::set_nonblocking(write_fd)?;
        Ok(pipe)
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        sys::close(self.read_fd);
        sys::close(self.write_fd);
    }
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker")
            .field("pipe", &self.pipe)
            .finish_non_exhaustive()
    }
}

/// The end of a process's thread, whose memory has ended before.
struct End<'a>(&'a Worker);

impl Drop for End<'_> {
    fn drop(&mut self) {
        let jobs = self.0.jobs.lock();
        let left = jobs.unwrap_or_else(PoisonError::into_inner).take();
        drop(left);
    }
}

impl Worker {
    /// Starts the thread of a process.
    pub(super) fn start(
        pipe: Pipe,
        os: Os,
        device: Device,
        core: Option<i32>,
        order: Log,
    ) -> std::io::Result<Arc<Self>> {
        let worker = Arc::new(Self {
            jobs: Mutex::new(Some(Vec::new())),
            has_jobs: AtomicBool::new(false),
            pipe,
        });
        let own = Arc::clone(&worker);
        let state = State {
            os,
            device,
            calls: HashMap::new(),
            next_call: 1,
            is_ended: false,
            core,
            order,
        };
        std::thread::Builder::new()
            .name("dpa".to_owned())
            .spawn(move || {
                // The askers learn of the end in each case, so that none waits for a thread that is gone.
                let _end = End(&own);
                own.run(state);
            })?;
        Ok(worker)
    }

    /// Does something on the process's thread and returns the result; `None` if the process has ended.
    pub(super) fn ask<T: Send + 'static>(
        &self,
        act: impl FnOnce(&mut State) -> T + Send + 'static,
    ) -> Option<T> {
        let (sender, receiver) = channel();
        self.post(Box::new(move |state| {
            // The asker waits, or has ended.
            let _ = sender.send(act(state));
        }));
        receiver.recv().ok()
    }

    fn post(&self, job: Job) {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        // The asker learns from the dropped job that the thread has ended.
        let Some(waiting) = jobs.as_mut() else { return };
        waiting.push(job);
        self.has_jobs.store(true, Ordering::Release);
        drop(jobs);
        // A full pipe wakes the thread too.
        let _ = sys::write(self.pipe.write_fd, &WAKE.to_ne_bytes());
    }

    /// Ends the thread, and with it the memory of the process.
    pub(super) fn end(&self) {
        self.ask(|state| state.is_ended = true);
        // The answer comes before the end: the second question is answered by nobody.
        while self.ask(|_| ()).is_some() {}
    }

    fn take(&self) -> Vec<Job> {
        if !self.has_jobs.swap(false, Ordering::AcqRel) {
            return Vec::new();
        }
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        jobs.as_mut().map(std::mem::take).unwrap_or_default()
    }

    fn run(&self, mut state: State) {
        let mut pause_ns = *PAUSE_NS.start();
        while !state.is_ended {
            // A command is in the list before its wake-up is in the pipe, so the pipe comes first.
            self.events(&mut state);
            for job in self.take() {
                job(&mut state);
            }
            if state.is_ended {
                break;
            }
            let before = state.os.machine().retired();
            match state.turn() {
                Progress::Busy => pause_ns = *PAUSE_NS.start(),
                Progress::Waiting => {
                    // A call that only asks again executes nothing.
                    if state.os.machine().retired() != before {
                        pause_ns = *PAUSE_NS.start();
                    }
                    self.sleep(Some(pause_ns));
                    pause_ns = (2 * pause_ns).min(*PAUSE_NS.end());
                }
                Progress::Idle => {
                    pause_ns = *PAUSE_NS.start();
                    self.sleep(None);
                }
            }
        }
    }

    /// Activates the threads of the events that have come.
    fn events(&self, state: &mut State) {
        let mut bytes = [0; 512 * EVENT_BYTES];
        while let Ok(count) = sys::read(self.pipe.read_fd, &mut bytes) {
            for event in bytes[..count].as_chunks::<EVENT_BYTES>().0 {
                let cookie = u64::from_ne_bytes(*event);
                if cookie != WAKE {
                    // A thread, or an event queue and the completion queue. It may have been destroyed since.
                    let (target, cqn) = (low32(cookie), low32(cookie >> 32));
                    let _ = state.os.event(target, cqn);
                }
            }
            if count < bytes.len() {
                break;
            }
        }
    }

    /// Sleeps until an event or a command comes, or for a time.
    fn sleep(&self, pause_ns: Option<u64>) {
        let mut poll = libc::pollfd {
            fd: self.pipe.read_fd,
            events: libc::POLLIN,
            revents: 0,
        };
        let time = pause_ns.map(|ns| libc::timespec {
            tv_sec: 0,
            tv_nsec: i64::try_from(ns).unwrap_or(1_000_000),
        });
        let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: one entry, a time or null, and no mask of signals.
        unsafe { libc::ppoll(&raw mut poll, 1, time, std::ptr::null()) };
    }
}
