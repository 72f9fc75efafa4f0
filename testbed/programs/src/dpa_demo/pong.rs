//! A ping-pong of two DPAs: a message of 8 bytes activates the handler that answers it. The host of each DPA does nothing
//! meanwhile.

use super::clock::{nanoseconds, spin};
use super::device::{Dpa, Flags, Queue};
use super::link::{End, Finished, Link, exchange};
use anyhow::{Context as _, Result, ensure};
use clap::Args;
use flexio::Mkey;
use mlx5dv_sys::{IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_WRITE};
use serde::{Deserialize, Serialize};
use std::io::{BufRead as _, Write as _};
use std::net::TcpListener;
use std::path::PathBuf;
use std::time::Instant;

#[derive(Debug, Args)]
pub(crate) struct Pong {
    /// Program of the DPA.
    #[arg(long, value_name = "FILE")]
    image: PathBuf,
    /// Port of the side that begins.
    #[arg(long)]
    port: u16,
    /// This is the side that answers.
    #[arg(long = "answers")]
    is_answer: bool,
}

/// A request: rounds of one measurement.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Batch {
    pub(super) rounds: u64,
}

/// The answer.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Done {
    /// Time of all rounds.
    pub(super) ns: u64,
    /// The word after the rounds and before them. Each of the two handlers adds 1.
    pub(super) after: u64,
    pub(super) before: u64,
}

/// The word of a side, behind a key of its DPA.
#[derive(Debug, Serialize, Deserialize)]
struct Place {
    end: End,
    word: u64,
    key: u32,
}

impl Pong {
    /// Reads batches, one a line, until standard input ends. The side that answers gets none.
    pub(crate) fn run(&self) -> Result<()> {
        let mut stdout = std::io::stdout();
        let mut say = |line: &str| -> Result<()> {
            writeln!(stdout, "{line}")?;
            Ok(stdout.flush()?)
        };
        let mut link = if self.is_answer {
            Link::connect(&format!("127.0.0.1:{}", self.port))?
        } else {
            let listener = TcpListener::bind(("127.0.0.1", self.port))?;
            say("listens")?;
            Link::accept(&listener)?
        };
        let dpa = Dpa::open(&self.image)?;
        let mut flags = Flags::new(&dpa, 1)?;
        let (word, key) = word(&dpa)?;
        let queues = Queue::array(&dpa, ("on_message", 1), &flags, &[0; 5])?;
        let queue = queues.first().context("a queue")?;
        queue.receive_all(queue.records()?)?;
        let own = Place {
            end: queue.end(),
            word,
            key: key.key(),
        };
        let other = exchange(&mut link, &own)?;
        queue.set_pong(&[word, key.key().into(), other.word, other.key.into(), 0])?;
        queue.connect(other.end)?;
        let Finished = exchange(&mut link, &Finished)?;
        say("connected")?;
        for line in std::io::stdin().lock().lines() {
            let batch: Batch = serde_json::from_str(&line?).context("a batch")?;
            let done = rounds(&dpa, &mut flags, (queue, word), batch)?;
            say(&serde_json::to_string(&done)?)?;
        }
        Ok(())
    }
}

/// A word of the DPA, with a key of it.
fn word(dpa: &Dpa) -> Result<(u64, Mkey)> {
    let word = dpa.zeroed(8)?;
    let access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
    let key = dpa.process.mkey(word, 8, access)?;
    Ok((word, key))
}

fn rounds(
    dpa: &Dpa,
    flags: &mut Flags,
    (queue, word): (&Queue, u64),
    batch: Batch,
) -> Result<Done> {
    ensure!(batch.rounds > 0, "no rounds");
    let read = || -> Result<u64> {
        let mut bytes = [0; 8];
        dpa.process.copy_out(word, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    };
    let before = read()?;
    let shown = flags.count(0)?;
    let began = Instant::now();
    dpa.call("begin_rounds", &[queue.address(), batch.rounds])?;
    spin("end of the rounds", || {
        Ok((flags.count(0)? != shown).then_some(()))
    })?;
    Ok(Done {
        ns: nanoseconds(began.elapsed()),
        after: read()?,
        before,
    })
}
