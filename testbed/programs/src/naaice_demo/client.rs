//! One host: carries out batches of one shots and of calls, and verifies every byte. Batches come from standard input,
//! so that the device's counters can be read between them.

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use naaice::abi::{NaaHandle, NaaParam, NaaStatus};
use naaice::capi::middleware::{naa_create, naa_finalize, naa_invoke, naa_wait};
use naaice::capi::naaice_last_error;
use naaice::server::Block;
use serde::{Deserialize, Serialize};
use std::ffi::CStr;
use std::io::{BufRead as _, Write as _};
use std::time::{Duration, Instant};

/// The third region is the sum of the first two, byte by byte.
const SUM: u32 = 2;

/// A request.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) enum Batch {
    /// Sessions of one call each, on fresh buffers.
    OneShots {
        /// Bytes of each region: two inputs and an output.
        size: usize,
        /// Number of sessions.
        count: u32,
    },
    /// Calls of one session.
    Calls {
        /// Bytes of each region.
        size: usize,
        /// Number of calls.
        count: u32,
    },
    /// Calls of one session alone, a computation of the same duration alone, and the computation during calls.
    Overlap {
        /// Bytes of each region.
        size: usize,
        /// Number of each.
        count: u32,
    },
}

/// The answer: times in nanoseconds, and verified bytes.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Done {
    /// Creation of each session.
    pub(crate) create_ns: Vec<u64>,
    /// Invoke and wait of each call.
    pub(crate) call_ns: Vec<u64>,
    /// End of each session.
    #[serde(default)]
    pub(crate) finalize_ns: Vec<u64>,
    /// Creation, call and end of each session.
    pub(crate) one_shot_ns: Vec<u64>,
    /// A computation alone.
    #[serde(default)]
    pub(crate) compute_ns: Vec<u64>,
    /// The computation during a call, until the end of both.
    #[serde(default)]
    pub(crate) both_ns: Vec<u64>,
    /// Bytes that were compared.
    pub(crate) verified: u64,
    /// Bytes that were wrong.
    pub(crate) wrong: u64,
}

impl Done {
    /// Adds the results of another batch.
    pub(crate) fn add(&mut self, other: Self) {
        self.create_ns.extend(other.create_ns);
        self.call_ns.extend(other.call_ns);
        self.finalize_ns.extend(other.finalize_ns);
        self.one_shot_ns.extend(other.one_shot_ns);
        self.compute_ns.extend(other.compute_ns);
        self.both_ns.extend(other.both_ns);
        self.verified += other.verified;
        self.wrong += other.wrong;
    }
}

#[derive(Debug, Args)]
pub(crate) struct Client {
    /// The original's server: its kernel for this function code adds 2 to each byte of its regions, which stay between the calls
    /// of a session.
    #[arg(long = "original")]
    is_original: bool,
}

impl Client {
    /// Reads batches, one a line, until standard input ends.
    pub(crate) fn run(&self) -> Result<()> {
        let mut round = 0;
        for line in std::io::stdin().lock().lines() {
            let batch: Batch = serde_json::from_str(&line?).context("a batch")?;
            let mut done = Done::default();
            match batch {
                Batch::OneShots { size, count } => {
                    for _ in 0..count {
                        round += 1;
                        one_shot(size, round, self.is_original, &mut done)?;
                    }
                }
                Batch::Calls { size, count } => calls(size, count, self.is_original, &mut done)?,
                Batch::Overlap { size, count } => {
                    overlap(size, count, self.is_original, &mut done)?
                }
            }
            let mut stdout = std::io::stdout();
            writeln!(stdout, "{}", serde_json::to_string(&done)?)?;
            stdout.flush()?;
        }
        Ok(())
    }
}

/// A region at the end of its pages, before a guard page.
struct Buffer {
    block: Block,
    size: usize,
}

impl Buffer {
    fn new(size: usize) -> Result<Self> {
        Ok(Self {
            block: Block::new(size, false).context("memory")?,
            size,
        })
    }

    fn addr(&self) -> *mut u8 {
        self.block
            .as_ptr()
            .wrapping_add(self.block.len() - self.size)
    }

    /// The bytes, between calls.
    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the range is inside the block; no call runs, so nobody else accesses it.
        std::hint::black_box(unsafe { std::slice::from_raw_parts_mut(self.addr(), self.size) })
    }

    fn param(&self) -> NaaParam {
        NaaParam {
            addr: self.addr().cast(),
            size: self.size,
            single_send: false,
        }
    }
}

fn create(regions: &[Buffer; 3]) -> Result<NaaHandle> {
    let mut handle = NaaHandle {
        function_code: 0,
        comm_ctx: std::ptr::null_mut(),
    };
    let [a, b, sum] = regions.each_ref().map(Buffer::param);
    let (mut inputs, mut output) = ([a, b], sum);
    // SAFETY: two inputs and an output; the buffers outlive the session.
    let created = unsafe {
        naa_create(
            SUM,
            inputs.as_mut_ptr(),
            2,
            &raw mut output,
            1,
            &raw mut handle,
        )
    };
    check(created)?;
    Ok(handle)
}

/// Fresh buffers: two inputs, and an output of zeroes.
fn buffers(size: usize, round: u64) -> Result<[Buffer; 3]> {
    let mut regions = [Buffer::new(size)?, Buffer::new(size)?, Buffer::new(size)?];
    fill(&mut regions, round);
    Ok(regions)
}

fn fill([a, b, _]: &mut [Buffer; 3], round: u64) {
    for (seed, region) in [(2 * round, a), (2 * round + 1, b)] {
        for (byte, at) in region.bytes().iter_mut().zip(0..) {
            *byte = pattern(seed, at);
        }
    }
}

/// Compares all regions with what the caller computes. `original` is the number of the call for the original's server.
fn verify([a, b, sum]: &mut [Buffer; 3], round: u64, original: Option<u64>, done: &mut Done) {
    let (a, b, sum) = (a.bytes(), b.bytes(), sum.bytes());
    for (((x, y), z), at) in a.iter().zip(&*b).zip(&*sum).zip(0..) {
        let expect = (pattern(2 * round, at), pattern(2 * round + 1, at));
        let result = match original {
            Some(call) => (2 * call).to_le_bytes()[0],
            None => expect.0.wrapping_add(expect.1),
        };
        let right = [*x == expect.0, *y == expect.1, *z == result];
        done.wrong += right.iter().filter(|right| !**right).count() as u64;
    }
    done.verified += 3 * a.len() as u64;
}

fn call(handle: &mut NaaHandle) -> Result<()> {
    invoke(handle)?;
    wait(handle)
}

fn invoke(handle: &mut NaaHandle) -> Result<()> {
    // SAFETY: the session is live, and nobody accesses its regions until the call has ended.
    check(unsafe { naa_invoke(handle) })
}

fn wait(handle: &mut NaaHandle) -> Result<()> {
    let mut status = NaaStatus {
        state: 0,
        naa_error: 0,
        bytes_received: 0,
    };
    // SAFETY: as in `invoke`.
    check(unsafe { naa_wait(handle, &raw mut status) })?;
    ensure!(
        status.naa_error == 0,
        "the function failed with code {:#x}",
        status.naa_error
    );
    Ok(())
}

fn finalize(handle: &mut NaaHandle) -> Result<()> {
    // SAFETY: the session is live.
    check(unsafe { naa_finalize(handle) })
}

fn one_shot(size: usize, round: u64, is_original: bool, done: &mut Done) -> Result<()> {
    let mut regions = buffers(size, round)?;
    let began = Instant::now();
    let mut handle = create(&regions)?;
    let created = began.elapsed();
    call(&mut handle)?;
    let called = began.elapsed();
    finalize(&mut handle)?;
    let ended = began.elapsed();
    done.create_ns.push(nanoseconds(created));
    done.call_ns.push(nanoseconds(called - created));
    done.finalize_ns.push(nanoseconds(ended - called));
    done.one_shot_ns.push(nanoseconds(ended));
    verify(&mut regions, round, is_original.then_some(1), done);
    Ok(())
}

fn calls(size: usize, count: u32, is_original: bool, done: &mut Done) -> Result<()> {
    let mut regions = buffers(size, 0)?;
    let mut handle = create(&regions)?;
    for round in 1..=u64::from(count) {
        fill(&mut regions, round);
        let began = Instant::now();
        call(&mut handle)?;
        done.call_ns.push(nanoseconds(began.elapsed()));
        verify(&mut regions, round, is_original.then_some(round), done);
    }
    finalize(&mut handle)
}

/// Calls and a computation, alone and together.
fn overlap(size: usize, count: u32, is_original: bool, done: &mut Done) -> Result<()> {
    let mut regions = buffers(size, 0)?;
    let mut handle = create(&regions)?;
    let mut calls = 0;
    let mut timed = |regions: &mut [Buffer; 3], steps: u64, done: &mut Done| -> Result<u64> {
        calls += 1;
        fill(regions, calls);
        let began = Instant::now();
        invoke(&mut handle)?;
        if steps > 0 {
            compute(steps);
        }
        wait(&mut handle)?;
        let time = nanoseconds(began.elapsed());
        verify(regions, calls, is_original.then_some(calls), done);
        Ok(time)
    };
    let mut alone = Vec::new();
    for _ in 0..count.max(5) {
        alone.push(timed(&mut regions, 0, done)?);
    }
    alone.sort_unstable();
    let steps = steps_of(alone[alone.len() / 2]);
    for _ in 0..count {
        let alone = timed(&mut regions, 0, done)?;
        done.call_ns.push(alone);
        let began = Instant::now();
        compute(steps);
        done.compute_ns.push(nanoseconds(began.elapsed()));
        let both = timed(&mut regions, steps, done)?;
        done.both_ns.push(both);
    }
    finalize(&mut handle)
}

/// A computation that uses no memory.
fn compute(steps: u64) {
    let mut value = std::hint::black_box(1_u64);
    for _ in 0..steps {
        value = std::hint::black_box(value.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(7));
    }
}

/// Steps of a computation that takes so long: the fastest of a few trials tells the speed.
fn steps_of(time_ns: u64) -> u64 {
    const TRIAL: u64 = 200_000;
    let trial = || {
        let began = Instant::now();
        compute(TRIAL);
        nanoseconds(began.elapsed()).max(1)
    };
    let fastest = (0..5).map(|_| trial()).min().unwrap_or(1);
    (time_ns * TRIAL / fastest).max(1)
}

fn pattern(round: u64, at: u64) -> u8 {
    let mixed = (round << 32 ^ at).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed.to_be_bytes()[0]
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn check(returned: i32) -> Result<()> {
    // SAFETY: the text is valid until this thread's next call.
    let text = unsafe { CStr::from_ptr(naaice_last_error()) };
    ensure!(returned == 0, "{}", text.to_string_lossy());
    Ok(())
}
