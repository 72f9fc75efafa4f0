//! Slow, silent, dribbling and flooding peers beside a healthy job: they cost the job's rounds almost no processor time
//! of the service process, and they neither stop it nor leave anything behind.

use crate::harness::Case;
use crate::hostile::{JOB, VERSION, header, hello, ucx_version};
use crate::offload::{Farm, succeed};

use crate::world::World;
use anyhow::{Context, Result, ensure};
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

/// Maximum ratio of the service's processor time per job beside these peers to that of the job alone.
const RATIO_MAX: f64 = 1.2;

/// Most jobs of each kind, alternating. The least time of each kind counts: other processes on the same cores only add
/// time. The more jobs, the closer both are to the service's own work.
const JOBS_MAX: u32 = 15;
const JOBS_MIN: u32 = 3;

/// Refused callers in a tenth of a second that the service permits (`REFUSALS_MAX`), and those that it accepts before
/// it notices a refusal.
const REFUSALS: u64 = 8 + 1;

/// Interval between two bytes of a slow peer.
const BYTE: Duration = Duration::from_millis(20);

const ROUNDS: [&str; 6] = [
    "--rounds",
    "400",
    "--equal",
    "--block",
    "4096",
    "--world-only",
];

pub(crate) fn cases() -> Vec<Case> {
    vec![Case::new("offload_bad_peers_cost_others_nothing", beside)]
}

fn beside(world: &World) -> Result<()> {
    let farm = Farm::new(world, "stock", 1)?;
    let address = farm.addresses(0)?;
    let ucx = ucx_version(&farm.services[0][0].said())?;
    let id = farm.services[0][0].group.child.id();
    let job = || -> Result<f64> {
        let before = processor_ns(id)?;
        succeed(farm.job(2, &ROUNDS, |_, _| ())?)?;
        Ok(processor_ns(id)? - before)
    };
    // UCX's first use of the devices.
    job()?;
    let (mut alone, mut together) = (f64::INFINITY, f64::INFINITY);
    for jobs in 1..=JOBS_MAX {
        alone = alone.min(job()?);
        together = together.min(with_peers(&address, &ucx, &job)?);
        if jobs >= JOBS_MIN && together <= RATIO_MAX * alone {
            break;
        }
    }
    let ratio = together / alone;
    println!(
        "processor time of the service beside bad peers, over that of the job alone: {ratio:.3}"
    );
    ensure!(
        ratio <= RATIO_MAX,
        "the service takes {ratio:.3} times the processor time; the most is {RATIO_MAX}"
    );
    Ok(())
}

/// Processor time of a process's main thread in nanoseconds.
fn processor_ns(id: u32) -> Result<f64> {
    let text = fs::read_to_string(format!("/proc/{id}/task/{id}/schedstat"))?;
    let first = text.split_whitespace().next().context("schedstat")?;
    Ok(first.parse()?)
}

/// Runs a job while each kind of bad peer is at work.
fn with_peers(address: &str, ucx: &str, job: &dyn Fn() -> Result<f64>) -> Result<f64> {
    let (stop, floods) = (AtomicBool::new(false), AtomicU64::new(0));
    let quoted = format!("\"{ucx}\"");
    let greeting = hello(JOB, "0", "2", "\"stock\"", &quoted);
    // A frame of 32 MiB that a known rank promises.
    let promise = [&greeting[..], &header(VERSION, 32 << 20)].concat();
    let dribble = header(VERSION, 4000);
    let start = Instant::now();
    let result = thread::scope(|scope| -> Result<f64> {
        let silent: Vec<TcpStream> = (0..16)
            .map(|_| TcpStream::connect(address))
            .collect::<std::io::Result<_>>()?;
        for bytes in [&promise, &dribble, &greeting, &dribble] {
            scope.spawn(|| dribble_all(address, bytes, &stop));
        }
        scope.spawn(|| flood(address, &stop, &floods));
        let result = job();
        stop.store(true, Relaxed);
        drop(silent);
        result
    });
    let (refused, tenths) = (floods.load(Relaxed), start.elapsed().as_millis() / 100 + 1);
    let most = REFUSALS * u64::try_from(tenths)?;
    ensure!(refused > 0, "no caller of the flood was answered");
    ensure!(
        refused <= most,
        "{refused} callers were refused in {tenths} tenths of a second, not {most}"
    );
    result
}

/// Sends `bytes` one at a time, again and again.
fn dribble_all(address: &str, bytes: &[u8], stop: &AtomicBool) {
    while !stop.load(Relaxed) {
        let Ok(mut stream) = TcpStream::connect(address) else {
            return;
        };
        // The pause between two bytes: a read that ends early if the service ends the connection.
        let _ = stream.set_read_timeout(Some(BYTE));
        for byte in bytes.iter().chain(std::iter::repeat(&0)) {
            let refused = |found: std::io::Result<usize>| matches!(found, Ok(0));
            if stop.load(Relaxed)
                || stream.write_all(&[*byte]).is_err()
                || refused(stream.read(&mut [0; 256]))
            {
                break;
            }
        }
    }
}

/// Connects, says nonsense, and reads the refusal, as fast as it can.
fn flood(address: &str, stop: &AtomicBool, answered: &AtomicU64) {
    while !stop.load(Relaxed) {
        let Ok(mut stream) = TcpStream::connect(address) else {
            return;
        };
        let _ = stream.set_read_timeout(Some(Duration::from_secs(1)));
        let mut refusal = Vec::new();
        if stream.write_all(&[0; 64]).is_ok() && stream.read_to_end(&mut refusal).is_ok() {
            answered.fetch_add(1, Relaxed);
        }
    }
}
