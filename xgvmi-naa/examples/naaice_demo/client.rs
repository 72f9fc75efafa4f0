//! One host: carries out batches of one shots and of calls, and verifies every byte. Batches come from standard input,
//! so that the device's counters can be read between them.

use anyhow::{Context as _, Result, ensure};
use naaice::abi::{NaaHandle, NaaParam, NaaStatus};
use naaice::capi::middleware::{naa_create, naa_finalize, naa_invoke, naa_wait};
use naaice::capi::naaice_last_error;
use naaice::server::Block;
use serde::{Deserialize, Serialize};
use std::ffi::CStr;
use std::io::{BufRead as _, Write as _};
use std::time::{Duration, Instant};

/// Adds 1 to each byte.
const ADD_ONE: u32 = 1;

/// A request.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) enum Batch {
    /// Sessions of one call each, on fresh buffers.
    OneShots {
        /// Bytes of the region, which is input and output.
        size: usize,
        /// Number of sessions.
        count: u32,
    },
    /// Calls of one session.
    Calls {
        /// Bytes of the region.
        size: usize,
        /// Number of calls.
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
    /// Creation, call and end of each session.
    pub(crate) one_shot_ns: Vec<u64>,
    /// Bytes that were compared.
    pub(crate) verified: u64,
    /// Bytes that were wrong.
    pub(crate) wrong: u64,
}

/// Reads batches, one a line, until standard input ends.
pub(crate) fn run() -> Result<()> {
    let mut round = 0;
    for line in std::io::stdin().lock().lines() {
        let batch: Batch = serde_json::from_str(&line?).context("a batch")?;
        let mut done = Done::default();
        match batch {
            Batch::OneShots { size, count } => {
                for _ in 0..count {
                    round += 1;
                    one_shot(size, round, &mut done)?;
                }
            }
            Batch::Calls { size, count } => calls(size, count, &mut done)?,
        }
        let mut stdout = std::io::stdout();
        writeln!(stdout, "{}", serde_json::to_string(&done)?)?;
        stdout.flush()?;
    }
    Ok(())
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

fn create(buffer: &Buffer) -> Result<NaaHandle> {
    let mut handle = NaaHandle {
        function_code: 0,
        comm_ctx: std::ptr::null_mut(),
    };
    let (mut input, mut output) = (buffer.param(), buffer.param());
    // SAFETY: one parameter each; the buffer outlives the session.
    let created = unsafe {
        naa_create(
            ADD_ONE,
            &raw mut input,
            1,
            &raw mut output,
            1,
            &raw mut handle,
        )
    };
    check(created)?;
    Ok(handle)
}

fn call(handle: &mut NaaHandle) -> Result<()> {
    let mut status = NaaStatus {
        state: 0,
        naa_error: 0,
        bytes_received: 0,
    };
    // SAFETY: the session is live, and nobody accesses its region.
    check(unsafe { naa_invoke(handle) })?;
    // SAFETY: as above.
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

fn one_shot(size: usize, round: u64, done: &mut Done) -> Result<()> {
    let mut buffer = Buffer::new(size)?;
    for (byte, at) in buffer.bytes().iter_mut().zip(0..) {
        *byte = pattern(round, at);
    }
    let began = Instant::now();
    let mut handle = create(&buffer)?;
    let created = began.elapsed();
    call(&mut handle)?;
    let called = began.elapsed();
    finalize(&mut handle)?;
    let ended = began.elapsed();
    done.create_ns.push(nanoseconds(created));
    done.call_ns.push(nanoseconds(called - created));
    done.one_shot_ns.push(nanoseconds(ended));
    let wrong = buffer
        .bytes()
        .iter()
        .zip(0..)
        .filter(|(byte, at)| **byte != pattern(round, *at).wrapping_add(1));
    done.wrong += wrong.count() as u64;
    done.verified += size as u64;
    Ok(())
}

fn calls(size: usize, count: u32, done: &mut Done) -> Result<()> {
    let mut buffer = Buffer::new(size)?;
    let mut handle = create(&buffer)?;
    for round in 1..=count {
        let began = Instant::now();
        call(&mut handle)?;
        done.call_ns.push(nanoseconds(began.elapsed()));
        let expect = round.to_le_bytes()[0];
        let wrong = buffer.bytes().iter().filter(|byte| **byte != expect);
        done.wrong += wrong.count() as u64;
        done.verified += size as u64;
    }
    finalize(&mut handle)
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
