//! Connects a new job. The client connects in a separate thread, because the connect waits for service processes. Its
//! exchanges with other ranks are forwarded through UCC's out-of-band allgather.

use super::{text_of, within};
use crate::job::Held;
use crate::oob::{Gather, Oob};
use std::error::Error;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};
use xgvmi_offload::{Client, ClientOptions, Exchange};

/// A connecting job.
pub(super) struct Connecting {
    pub(super) id: u128,
    requests: Receiver<FromThread>,
    answers: Sender<Vec<Vec<u8>>>,
    gather: Option<(Gather, Instant)>,
}

enum FromThread {
    Exchange(Vec<u8>),
    Done(Box<Result<Held, String>>),
}

impl Connecting {
    pub(super) fn start(id: u128, options: ClientOptions, rank: u32, size: u32) -> Self {
        let (to_here, requests) = channel();
        let (answers, from_here) = channel();
        let mut bridge = Bridge {
            requests: to_here.clone(),
            answers: from_here,
        };
        let thread = std::thread::Builder::new().name("xgvmi-connect".to_owned());
        let spawned = thread.spawn(move || {
            without_signals();
            let connected = Client::connect(&options, rank, size, &mut bridge);
            let done = connected.map(Held::new).map_err(|error| error.to_string());
            // If the team was cancelled, the send fails; dropping the client then closes the connection.
            let _ = bridge.requests.send(FromThread::Done(Box::new(done)));
        });
        if spawned.is_err() {
            // The other ranks wait for a first exchange, and interpret the empty one as a version mismatch.
            let _ = to_here.send(FromThread::Exchange(Vec::new()));
        }
        Self {
            id,
            requests,
            answers,
            gather: None,
        }
    }

    /// The client, after it has connected.
    pub(super) fn poll(&mut self, oob: Oob, limit: Duration) -> Result<Option<Held>, String> {
        loop {
            if let Some((gather, until)) = &mut self.gather {
                let Some(all) = within(gather, Some(*until))? else {
                    return Ok(None);
                };
                self.gather = None;
                // If the thread has ended, the next receive returns an error.
                let _ = self.answers.send(all);
            }
            match self.requests.try_recv() {
                Ok(FromThread::Exchange(mine)) => {
                    let gather = Gather::start(oob, mine).map_err(text_of)?;
                    // A rank that cannot reach its service reports this after its own limit.
                    self.gather = Some((gather, Instant::now() + limit * 2));
                }
                Ok(FromThread::Done(done)) => return done.map(Some),
                Err(TryRecvError::Empty) => return Ok(None),
                Err(TryRecvError::Disconnected) => {
                    return Err(
                        "the connecting thread could not be started or has ended".to_owned()
                    );
                }
            }
        }
    }
}

/// Forwards the connecting thread's exchanges to the other ranks.
struct Bridge {
    requests: Sender<FromThread>,
    answers: Receiver<Vec<Vec<u8>>>,
}

impl Exchange for Bridge {
    fn allgather(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, Box<dyn Error + Send + Sync>> {
        let sent = self.requests.send(FromThread::Exchange(mine.to_vec()));
        sent.map_err(|_| "the team was given up")?;
        Ok(self.answers.recv()?)
    }
}

/// Blocks signals in this thread; the program's own threads handle them. Fault signals stay unblocked because they are
/// delivered to the faulting thread.
fn without_signals() {
    const FAULTS: [libc::c_int; 5] = [
        libc::SIGSEGV,
        libc::SIGBUS,
        libc::SIGILL,
        libc::SIGFPE,
        libc::SIGTRAP,
    ];
    let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the set is writable and is initialized before it is read.
    unsafe { libc::sigfillset(set.as_mut_ptr()) };
    for fault in FAULTS {
        // SAFETY: an initialized set and a valid signal.
        unsafe { libc::sigdelset(set.as_mut_ptr(), fault) };
    }
    // SAFETY: changes only the calling thread's mask.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut()) };
}
