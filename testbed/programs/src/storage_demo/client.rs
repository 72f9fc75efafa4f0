//! One initiator: carries out batches and verifies every byte. Batches come from standard input, one a line, so that the
//! device's counters can be read between them.

use super::done::{Done, note};
use super::memory::Pages;
use super::pattern::{self, Kind};
use super::torture::Shadow;
use anyhow::{Context as _, Result, bail};
use clap::Args;
use serde::{Deserialize, Serialize};
use std::io::{BufRead as _, Write as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use xgvmi_blk::client::{Io, Scheme, Spec, Volume};
use xgvmi_blk::remote::{Address, RemoteTarget};
use xgvmi_blk::{Disk, Target};

/// Seed of the random writes.
const SEED: u64 = 4;

/// A request.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Batch {
    /// Writes a range in requests of `request` bytes from one buffer, `depth` at once.
    Write(Span),
    /// Reads a range and compares it.
    Read(Span),
    /// `count` times a write and a read of `size` bytes, each on memory that was just mapped.
    Fresh {
        size: usize,
        count: u32,
        seed: u64,
        kind: Kind,
    },
    /// All acknowledged writes become durable.
    Flush,
    /// Gives the space of a range back.
    Trim { offset: u64, length: u64 },
    /// Random writes until one fails.
    Torture,
    /// Reads everything, and compares with the random writes.
    Check,
    /// Unmaps memory while the service reads or writes it.
    Unmap { size: usize, count: u32 },
}

/// A range, and the data in it.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Span {
    pub(crate) offset: u64,
    pub(crate) length: u64,
    pub(crate) request: usize,
    pub(crate) threads: usize,
    pub(crate) seed: u64,
    pub(crate) kind: Kind,
}

#[derive(Debug, Args)]
pub(crate) struct Client {
    /// Way to the memory, or `direct`: the whole pipeline in this process.
    scheme: String,
    /// The service, or with `direct` the three targets.
    #[arg(required = true)]
    addresses: Vec<String>,
    /// UCX of the scheme `stock`.
    #[arg(long, value_name = "FILE")]
    libucp: Option<PathBuf>,
}

impl Client {
    /// Connects, and carries out batches until standard input ends.
    pub(crate) fn run(&self) -> Result<()> {
        if self.scheme == "direct" {
            return serve(&(Arc::new(direct(&self.addresses)?) as Arc<dyn Disk>), None);
        }
        let volume = Volume::connect(&self.spec()?)?;
        serve(&(Arc::new(volume.clone()) as Arc<dyn Disk>), Some(&volume))
    }

    fn spec(&self) -> Result<Spec> {
        let (kind, copy_max) = match self.scheme.as_str() {
            "copy" => (Scheme::Copy, 0),
            "ksm" => (Scheme::Ksm, 0),
            "stock" => (Scheme::Stock, 0),
            "xgvmi" => (Scheme::Pool, 0),
            "announced" => (Scheme::Announced, 0),
            // As the library chooses by itself.
            "usual" => (Scheme::Announced, xgvmi_blk::client::COPY_MAX),
            // Both ways to the memory, and no second attempt.
            "torture" => (Scheme::Announced, 1024),
            other => bail!("no scheme {other}"),
        };
        let usual = Spec::new(&self.addresses[0]);
        Ok(Spec {
            scheme: kind,
            ucx: self.libucp.clone(),
            copy_max,
            reconnect: match self.scheme.as_str() {
                "torture" => Duration::from_millis(1),
                _ => usual.reconnect,
            },
            ..usual
        })
    }
}

/// Carries out batches until standard input ends.
fn serve(disk: &Arc<dyn Disk>, initiator: Option<&Volume>) -> Result<()> {
    say(&format!("connected to {}", disk.id()))?;
    let mut shadow = Shadow::new(disk, SEED);
    for line in std::io::stdin().lock().lines() {
        let batch: Batch = serde_json::from_str(&line?).context("a batch")?;
        let mut done = Done::default();
        match batch {
            Batch::Write(span) => write(disk, span, &mut done)?,
            Batch::Read(span) => read(disk, span, &mut done)?,
            Batch::Fresh {
                size,
                count,
                seed,
                kind,
            } => fresh(disk, (size, count), (seed, kind), &mut done)?,
            Batch::Torture => shadow.write(disk, &mut done),
            Batch::Check => shadow.check(disk, &mut done),
            Batch::Flush => note(disk.flush(), &mut done),
            Batch::Trim { offset, length } => note(disk.trim(offset, length), &mut done),
            Batch::Unmap { size, count } => {
                let volume = initiator.context("only with a service")?;
                unmap(volume, (size, count), &mut done)?;
            }
        }
        say(&serde_json::to_string(&done)?)?;
    }
    Ok(())
}

/// The whole pipeline in this process.
fn direct(targets: &[String]) -> Result<xgvmi_blk::Volume> {
    let owner = xgvmi_daemon::random()?.to_ne_bytes();
    let connect = |address: &String| -> Result<Arc<dyn Target>> {
        Ok(Arc::new(RemoteTarget::connect(&Address {
            address: address.trim_start_matches("tcp:").to_owned(),
            secret: None,
            limit: Duration::from_secs(10),
            longest: Duration::from_secs(60),
            patience: Duration::from_secs(60),
            owner,
            take_over: false,
            rdma: None,
        })?))
    };
    let targets: Result<Vec<_>> = targets.iter().map(connect).collect();
    Ok(xgvmi_blk::Volume::open(targets?)?)
}

fn say(line: &str) -> Result<()> {
    let mut stdout = std::io::stdout();
    writeln!(stdout, "{line}")?;
    Ok(stdout.flush()?)
}

/// Processor time of this process.
fn processor() -> Duration {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the structure can be written.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut now) };
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(now.tv_nsec).unwrap_or(0))
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Calls `each` for the requests of a range, from several threads. Requests take turns among the threads.
fn in_threads(
    span: Span,
    done: &mut Done,
    each: impl Fn(u64, usize, &mut [u8], &mut Done) + Sync,
) -> Result<()> {
    let requests = span.length.div_ceil(span.request as u64);
    let parts = std::thread::scope(|scope| -> Result<Vec<Done>> {
        let mut threads = Vec::new();
        for thread in 0..span.threads as u64 {
            let each = &each;
            threads.push(scope.spawn(move || {
                let mut done = Done::default();
                let mut memory = vec![0; span.request];
                for number in (thread..requests).step_by(span.threads) {
                    let at = number * span.request as u64;
                    // Cannot be cut: not longer than a request.
                    let length = usize::try_from(span.length - at)
                        .map_or(span.request, |left| left.min(span.request));
                    each(span.offset + at, length, &mut memory[..length], &mut done);
                }
                done
            }));
        }
        let joined = threads.into_iter().map(|thread| thread.join());
        joined
            .map(|done| done.map_err(|_| anyhow::anyhow!("a thread has panicked")))
            .collect()
    })?;
    for part in parts {
        done.verified += part.verified;
        done.wrong += part.wrong;
        if done.failed == 0 {
            done.reason = part.reason;
        }
        done.failed += part.failed;
        done.processor_ns += part.processor_ns;
    }
    Ok(())
}

/// Processor time of this thread.
fn thread_time() -> Duration {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the structure can be written.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut now) };
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(now.tv_nsec).unwrap_or(0))
}

fn write(disk: &Arc<dyn Disk>, span: Span, done: &mut Done) -> Result<()> {
    let before = processor();
    in_threads(span, done, |offset, _, memory, done| {
        let began = thread_time();
        pattern::fill(memory, offset, span.seed, span.kind);
        done.processor_ns += nanoseconds(thread_time() - began);
        note(disk.write(offset, memory), done);
    })?;
    done.processor_ns = nanoseconds(processor() - before).saturating_sub(done.processor_ns);
    Ok(())
}

fn read(disk: &Arc<dyn Disk>, span: Span, done: &mut Done) -> Result<()> {
    let before = processor();
    in_threads(span, done, |offset, length, memory, done| {
        let result = disk.read(offset, memory);
        let is_right = result.is_ok();
        note(result, done);
        let began = thread_time();
        if is_right {
            done.wrong += pattern::wrong(memory, offset, span.seed, span.kind);
            done.verified += length as u64;
        }
        done.processor_ns += nanoseconds(thread_time() - began);
    })?;
    done.processor_ns = nanoseconds(processor() - before).saturating_sub(done.processor_ns);
    Ok(())
}

fn fresh(
    disk: &Arc<dyn Disk>,
    (size, count): (usize, u32),
    (seed, kind): (u64, Kind),
    done: &mut Done,
) -> Result<()> {
    let places = (disk.geometry().size() / size as u64).clamp(1, 8);
    for number in 0..u64::from(count) {
        let (offset, seed) = (number % places * size as u64, seed + number);
        let mut memory = Pages::new(size)?;
        pattern::fill(memory.bytes(), offset, seed, kind);
        let began = Instant::now();
        let written = disk.write(offset, memory.bytes());
        done.write_ns.push(nanoseconds(began.elapsed()));
        note(written, done);
        drop(memory);
        let mut memory = Pages::new(size)?;
        memory.bytes().fill(0xa5);
        let began = Instant::now();
        let result = disk.read(offset, memory.bytes());
        done.read_ns.push(nanoseconds(began.elapsed()));
        let is_right = result.is_ok();
        note(result, done);
        if is_right {
            done.wrong += pattern::wrong(memory.bytes(), offset, seed, kind);
            done.verified += size as u64;
        }
    }
    Ok(())
}

/// Unmaps the memory of transfers under way. Each either ends before or fails; afterwards the volume works.
fn unmap(volume: &Volume, (size, count): (usize, u32), done: &mut Done) -> Result<()> {
    for number in 0..count {
        let mut memory = Pages::new(size)?;
        memory.bytes().fill(1);
        let at = memory.bytes().as_mut_ptr();
        let io = if number % 2 == 0 {
            Io::Write {
                offset: 0,
                memory: at,
                length: size,
            }
        } else {
            Io::Read {
                offset: 0,
                memory: at,
                length: size,
            }
        };
        // SAFETY: breaks the promise on purpose. Nobody else uses the memory, and the adapter checks each access.
        let ticket = unsafe { volume.submit(io) }?.context("a free place")?;
        drop(memory);
        note(ticket.wait(), done);
    }
    Ok(())
}
