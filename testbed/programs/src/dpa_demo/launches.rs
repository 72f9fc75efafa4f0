//! Launches of a kernel: the first one of a width, a repeated one, and one that waits for the one before. Batches come from
//! standard input, so that the device's counters can be read between them.

use super::clock::{nanoseconds, spin};
use super::device::{Dpa, Flags, bytes, function};
use anyhow::{Context as _, Result, ensure};
use clap::Args;
use flexio::{Done as DoneWord, DoneOperation, Launch, Wait, Word};
use serde::{Deserialize, Serialize};
use std::io::{BufRead as _, Write as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;
use xgvmi_verbs::Adapter;

/// Threads of each launch.
pub(super) const WIDTH: u32 = 16;
/// Kernels of a chain.
pub(super) const CHAINED: u64 = 32;
/// Flags of this process: the event that a chain waits for, ended kernels of chains, and other ended kernels.
const EVENT: usize = 0;
const CHAIN: usize = 1;
const SINGLE: usize = 2;

#[derive(Debug, Args)]
pub(crate) struct Launches {
    /// Program of the DPA.
    #[arg(long, value_name = "FILE")]
    image: PathBuf,
}

/// How a kernel is launched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Kind {
    /// As the first one of its process.
    Cold,
    /// With the width of the launch before.
    Repeated,
    /// With the event that the kernel before raises.
    Chained,
}

/// A request.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Batch {
    pub(super) kind: Kind,
    pub(super) count: u32,
}

/// The answer.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Done {
    /// From the call of a launch to its completion event. Of a chain: from the host's event to the last completion event, divided
    /// by its kernels.
    pub(super) ns: Vec<u64>,
    /// Threads of the process on the device, the thread of its remote calls included.
    pub(super) threads: usize,
    /// Threads that have run the kernel.
    pub(super) ran: u64,
}

/// A process with its flags and the word that its kernels count in.
struct Place {
    flags: Flags,
    counter: u64,
    launched: [u64; 3],
    dpa: Dpa,
}

impl Launches {
    /// Reads batches, one a line, until standard input ends.
    pub(crate) fn run(&self) -> Result<()> {
        let adapter = Adapter::open(None)?;
        let mut stdout = std::io::stdout();
        writeln!(stdout, "ready")?;
        stdout.flush()?;
        let mut place: Option<Place> = None;
        for line in std::io::stdin().lock().lines() {
            let batch: Batch = serde_json::from_str(&line?).context("a batch")?;
            let mut done = Done::default();
            for _ in 0..batch.count {
                if batch.kind == Kind::Cold {
                    // One process at a time: 256 threads are all.
                    drop(place.take());
                    place = Some(Place::new(Arc::clone(&adapter), &self.image)?);
                }
                let place = place.as_mut().context("the first batch is a cold one")?;
                done.ns.push(match batch.kind {
                    Kind::Cold | Kind::Repeated => place.once()?,
                    Kind::Chained => place.chain()?,
                });
            }
            let place = place.as_ref().context("an empty batch")?;
            done.threads = place.dpa.process.counters()?.len();
            done.ran = place.ran()?;
            writeln!(stdout, "{}", serde_json::to_string(&done)?)?;
            stdout.flush()?;
        }
        Ok(())
    }
}

impl Place {
    fn new(adapter: Arc<Adapter>, image: &std::path::Path) -> Result<Self> {
        let dpa = Dpa::on(adapter, image)?;
        Ok(Self {
            flags: Flags::new(&dpa, 3)?,
            counter: dpa.zeroed(8)?,
            launched: [0; 3],
            dpa,
        })
    }

    fn ran(&self) -> Result<u64> {
        let mut word = [0; 8];
        self.dpa.process.copy_out(self.counter, &mut word)?;
        Ok(u64::from_le_bytes(word))
    }

    /// Launches the kernel, which raises a flag at its end.
    fn launch(&mut self, wait: Option<Wait>, flag: usize) -> Result<()> {
        self.launched[flag] += 1;
        self.dpa.launch(&Launch {
            function: &function("empty", 1),
            arguments: &bytes(&[self.counter]),
            threads: WIDTH,
            wait,
            done: Some(DoneWord {
                word: self.flags.word(flag)?,
                operation: DoneOperation::Add,
                value: 1,
            }),
        })
    }

    fn spin(&mut self, flag: usize) -> Result<()> {
        let wanted = self.launched[flag];
        spin("completion of a launch", || {
            Ok((self.flags.get(flag)? == wanted).then_some(()))
        })
    }

    fn once(&mut self) -> Result<u64> {
        let began = Instant::now();
        self.launch(None, SINGLE)?;
        self.spin(SINGLE)?;
        Ok(nanoseconds(began.elapsed()))
    }

    fn wait(word: Word, above: u64) -> Option<Wait> {
        Some(Wait {
            word,
            mask: u64::MAX,
            above,
        })
    }

    /// Each kernel waits for the event of the one before, and the first one for the host. Returns the time of one.
    fn chain(&mut self) -> Result<u64> {
        let chains = self.flags.get(EVENT)?;
        let ended = self.launched[CHAIN];
        let (event, chain) = (self.flags.word(EVENT)?, self.flags.word(CHAIN)?);
        self.launch(Self::wait(event, chains), CHAIN)?;
        for before in 0..CHAINED - 1 {
            self.launch(Self::wait(chain, ended + before), CHAIN)?;
        }
        ensure!(
            self.flags.get(CHAIN)? == ended,
            "a kernel has not waited for its event"
        );
        let began = Instant::now();
        self.flags.set(EVENT, chains + 1)?;
        self.spin(CHAIN)?;
        Ok(nanoseconds(began.elapsed()) / CHAINED)
    }
}
