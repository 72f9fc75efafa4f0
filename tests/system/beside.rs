//! Slow, silent, dribbling and flooding peers beside a healthy job: they cost the job's rounds almost no processor time
//! of the service process, and they neither stop it nor leave anything behind.

use crate::harness::Case;
use crate::hostile::{JOB, VERSION, header, hello, status, ucx_version};
use crate::offload::{Farm, Process, succeed};
use crate::world::World;
use anyhow::{Context, Result, ensure};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

/// Maximum ratio of the service's processor time during a job beside these peers to the part of it that is not spent on
/// them. Both parts are from the same job, so other processes on the same cores delay both alike.
const RATIO_MAX: f64 = 1.2;

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
    let socket = |farm: &Farm<'_>| farm.testbed.path().join("status");
    let mut farm = Farm::new(world, "stock", 1)?;
    let mut command = farm.command("node0.dpu", "xgvmi-sp");
    command.args(["--listen", "127.0.0.1:0", "--status-socket"]);
    let mut service = Process::spawn(command.arg(socket(&farm)))?;
    service.hear(" listens on ")?;
    farm.services[0][0] = service;
    let address = farm.addresses(0)?;
    let ucx = ucx_version(&farm.services[0][0].said())?;
    let job = || -> Result<f64> {
        let before = Spent::of(&farm, &socket(&farm))?;
        succeed(farm.job(2, &ROUNDS, |_, _| ())?)?;
        let after = Spent::of(&farm, &socket(&farm))?;
        let all = after.all - before.all;
        Ok(all / (all - (after.on_callers - before.on_callers)))
    };
    // UCX's first use of the devices.
    job()?;
    let (alone, together) = (job()?, with_peers(&address, &ucx, &job)?);
    println!(
        "processor time of the service over that for the job: {alone:.3} alone, {together:.3} beside bad peers"
    );
    ensure!(
        together <= RATIO_MAX,
        "the service takes {together:.3} times the processor time for the job; the most is {RATIO_MAX}"
    );
    ensure!(
        together > alone,
        "bad peers cost the service nothing: {together:.3} beside them, {alone:.3} alone"
    );
    Ok(())
}

/// Processor time of a service's main thread in microseconds, as its status tells it.
struct Spent {
    all: f64,
    /// The part for connections of no job.
    on_callers: f64,
}

impl Spent {
    fn of(farm: &Farm<'_>, socket: &Path) -> Result<Self> {
        let status = status(farm, socket)?;
        let number = |name: &str| status[name].as_f64().with_context(|| name.to_owned());
        Ok(Self {
            all: number("processor_us")?,
            on_callers: number("callers_us")?,
        })
    }
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
