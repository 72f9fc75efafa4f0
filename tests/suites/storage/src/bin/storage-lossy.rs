//! The command `storage-lossy`: stands between an export and a target of `xgvmi-blk`, and skips, delays and repeats calls and
//! answers. A call that is delayed delays those behind it, as a busy disk does; an answer that is delayed is overtaken.

use anyhow::{Context as _, Result, bail};
use lexopt::prelude::*;
use std::collections::{BTreeMap, HashMap};
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

const HELP: &str = "\
Usage: storage-lossy --to HOST:PORT [OPTIONS]

Stands between an export and a target that has no secret. Each N means: about one of N calls; 0 means none.
  --listen HOST:PORT  where the export connects (default: any port of 127.0.0.1)
  --skip N            calls that the target does not get
  --mute N            calls whose answers get lost
  --delay N           calls, and answers, that come later
  --repeat N          calls that the target gets twice; one answer is passed on
  --longest MS        longest delay (default 20)
  --seed N            seed (default 1)";

/// Length of a frame's header, which ends with the length of the rest.
const HEADER: usize = 12;
/// Class of a frame with a call or an answer.
const DATA: u8 = 0;
/// Longest frame.
const FRAME_MAX: usize = 32 << 20;

#[derive(Debug, Clone, Default)]
struct Options {
    to: String,
    listen: String,
    skip: u64,
    mute: u64,
    delay: u64,
    repeat: u64,
    longest: u64,
    seed: u64,
}

/// What becomes of an answer.
#[derive(Debug, Clone, Copy)]
struct Expected {
    /// The number of the call for the export.
    call: u64,
    mute: bool,
    delay: Duration,
}

/// What was done on a connection.
#[derive(Debug, Default)]
struct Done {
    calls: u64,
    skipped: u64,
    muted: u64,
    delayed: u64,
    repeated: u64,
}

/// Calls without an answer, by their numbers for the target. Those without an entry are repeated ones.
type Calls = Arc<Mutex<HashMap<u64, Expected>>>;

fn options() -> Result<Option<Options>> {
    let mut options = Options {
        listen: "127.0.0.1:0".to_owned(),
        longest: 20,
        seed: 1,
        ..Options::default()
    };
    let mut words = lexopt::Parser::from_env();
    while let Some(word) = words.next()? {
        match word {
            Long("to") => options.to = words.value()?.string()?,
            Long("listen") => options.listen = words.value()?.string()?,
            Long("skip") => options.skip = words.value()?.parse()?,
            Long("mute") => options.mute = words.value()?.parse()?,
            Long("delay") => options.delay = words.value()?.parse()?,
            Long("repeat") => options.repeat = words.value()?.parse()?,
            Long("longest") => options.longest = words.value()?.parse()?,
            Long("seed") => options.seed = words.value()?.parse()?,
            Short('h') | Long("help") => return Ok(None),
            other => bail!("{}; try --help", other.unexpected()),
        }
    }
    if options.to.is_empty() {
        bail!("no target: give --to HOST:PORT");
    }
    Ok(Some(options))
}

fn tell(text: &str) -> Result<()> {
    writeln!(std::io::stdout(), "{text}").context("standard output")
}

/// The next frame as it is, with its class. None at the end.
fn frame(stream: &mut TcpStream) -> Option<(u8, Vec<u8>)> {
    let mut bytes = vec![0; HEADER];
    stream.read_exact(&mut bytes).ok()?;
    let length = u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]) as usize;
    if length == 0 || length > FRAME_MAX {
        return None;
    }
    bytes.resize(HEADER + length, 0);
    stream.read_exact(&mut bytes[HEADER..]).ok()?;
    Some((bytes[HEADER], bytes))
}

/// True once in `n` times.
fn one_of(random: &mut fastrand::Rng, n: u64) -> bool {
    n != 0 && random.u64(..n) == 0
}

/// Passes calls on.
fn pass_calls(
    options: &Options,
    (mut export, mut target): (TcpStream, TcpStream),
    calls: &Calls,
    random: &mut fastrand::Rng,
) -> Done {
    let mut done = Done::default();
    let mut number = 0;
    while let Some((class, bytes)) = frame(&mut export) {
        if class != DATA {
            if target.write_all(&bytes).is_err() {
                break;
            }
            continue;
        }
        let call = done.calls;
        done.calls += 1;
        if one_of(random, options.skip) {
            done.skipped += 1;
            continue;
        }
        let wait =
            |random: &mut fastrand::Rng| Duration::from_millis(random.u64(..=options.longest));
        if one_of(random, options.delay) {
            done.delayed += 1;
            std::thread::sleep(wait(random));
        }
        let mute = one_of(random, options.mute);
        let late = one_of(random, options.delay);
        let again = one_of(random, options.repeat);
        done.muted += u64::from(mute);
        done.delayed += u64::from(late);
        done.repeated += u64::from(again);
        let delay = if late { wait(random) } else { Duration::ZERO };
        let expected = Expected { call, mute, delay };
        calls
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(number, expected);
        number += 1 + u64::from(again);
        let sent = target.write_all(&bytes);
        let sent = sent.and_then(|()| {
            if again {
                target.write_all(&bytes)
            } else {
                Ok(())
            }
        });
        if sent.is_err() {
            break;
        }
    }
    for stream in [&export, &target] {
        // It may be closed.
        let _ = stream.shutdown(Shutdown::Both);
    }
    done
}

/// Gives answers the numbers that the export knows.
fn pass_answers(mut target: TcpStream, calls: &Calls, later: &Sender<(Instant, Vec<u8>)>) {
    while let Some((class, mut bytes)) = frame(&mut target) {
        let mut due = Instant::now();
        if class == DATA {
            let Some(number) = bytes.get_mut(HEADER + 1..HEADER + 9) else {
                return;
            };
            let mut word = [0; 8];
            word.copy_from_slice(number);
            let expected = calls
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .remove(&u64::from_le_bytes(word));
            let Some(expected) = expected.filter(|expected| !expected.mute) else {
                continue;
            };
            number.copy_from_slice(&expected.call.to_le_bytes());
            due += expected.delay;
        }
        if later.send((due, bytes)).is_err() {
            return;
        }
    }
}

/// Sends answers when they are due.
fn send_answers(mut export: TcpStream, answers: &Receiver<(Instant, Vec<u8>)>) {
    let mut waiting = BTreeMap::new();
    let mut order = 0_u64;
    loop {
        let now = Instant::now();
        while let Some(first) = waiting.first_entry()
            && first.key() <= &(now, u64::MAX)
        {
            let bytes: Vec<u8> = first.remove();
            if export.write_all(&bytes).is_err() {
                return;
            }
        }
        let left = waiting
            .first_key_value()
            .map(|((due, _), _)| due.saturating_duration_since(now));
        match answers.recv_timeout(left.unwrap_or(Duration::from_secs(3600))) {
            Ok((due, bytes)) => {
                waiting.insert((due, order), bytes);
                order += 1;
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                // The target has closed the connection.
                let _ = export.shutdown(Shutdown::Both);
                return;
            }
        }
    }
}

fn serve(options: &Options, export: TcpStream, seed: u64) -> Result<()> {
    let Ok(target) = TcpStream::connect(&options.to) else {
        // The export tries again.
        return Ok(());
    };
    for stream in [&export, &target] {
        stream.set_nodelay(true)?;
    }
    let calls = Calls::default();
    let (later, answers) = channel();
    let (from_target, to_export) = (target.try_clone()?, export.try_clone()?);
    let of_answers = Arc::clone(&calls);
    std::thread::spawn(move || pass_answers(from_target, &of_answers, &later));
    std::thread::spawn(move || send_answers(to_export, &answers));
    let mut random = fastrand::Rng::with_seed(seed);
    let done = pass_calls(options, (export, target), &calls, &mut random);
    tell(&format!(
        "{} calls, {} skipped, {} answers lost, {} delayed, {} repeated",
        done.calls, done.skipped, done.muted, done.delayed, done.repeated
    ))
}

fn main() -> Result<()> {
    let Some(options) = options()? else {
        return tell(HELP);
    };
    let listener = TcpListener::bind(&options.listen).with_context(|| options.listen.clone())?;
    tell(&format!("is lossy at tcp:{}", listener.local_addr()?))?;
    for seed in options.seed.. {
        let (stream, _) = listener.accept()?;
        let options = options.clone();
        std::thread::spawn(move || serve(&options, stream, seed));
    }
    Ok(())
}
