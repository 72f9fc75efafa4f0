//! A target in another process, as the volume uses it.

use super::line::{Rdma, VolumeEnd};
use super::parts::Parts;
use super::wire::{Answer, Call, PROTOCOL, STEPS_BYTES, STEPS_MAX};
use crate::error::{BlkError, Result};
use crate::geometry::Geometry;
use crate::layers::Layers;
use crate::pipe::{Broken, Pipe};
use crate::record::Half;
use crate::say::say;
use crate::store::{Begun, Changed, Identity, Mark, Part, Seating, Step, Target, Usage};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;
use xgvmi_daemon::{Link, Secret};

/// Why a connection is closed. It keeps the reason of the first time.
const FEWER: &str = "it answers fewer steps than were sent";

/// How to reach a target.
#[derive(Debug, Clone)]
pub struct Address {
    /// `host:port`.
    pub address: String,
    /// The secret of both sides. None on machines where everyone is trusted.
    pub secret: Option<Secret>,
    /// Longest wait for the answer to one call, if the volume can do without the target.
    pub limit: Duration,
    /// Longest wait if it cannot, and for a step that the volume needs to begin with.
    pub longest: Duration,
    /// The same while the target takes its place. One that comes back may be tried again on another connection.
    pub patience: Duration,
    /// Number of the process that owns the volume. Two openings never have the same one.
    pub owner: [u8; 16],
    /// Takes the target from an owner whose connection is open.
    pub take_over: bool,
    /// The device by which half blocks travel, if the target has one, too.
    pub rdma: Option<Rdma>,
}

/// Answers of a call with several steps.
#[derive(Debug)]
struct Untaken {
    answers: Vec<Option<Answer>>,
    /// Those that were not taken.
    left: usize,
}

/// A connection to a target, for several calls at once. After an error it is closed for good: a new one takes its place.
pub struct RemoteTarget {
    name: String,
    owner: [u8; 16],
    take_over: bool,
    /// The connection of another owner was open when this one was.
    is_owned: bool,
    /// Bytes for which it had space then.
    free: u64,
    pipe: Pipe,
    line: Option<VolumeEnd>,
    longest: Duration,
    patience: Duration,
    known: Mutex<(Identity, Usage)>,
    /// Answers of calls with several steps, as far as they were not taken.
    steps: Mutex<BTreeMap<u64, Untaken>>,
    seating: OnceLock<Weak<dyn Seating>>,
}

impl std::fmt::Debug for RemoteTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut debug = f.debug_struct("RemoteTarget");
        debug.field("name", &self.name).finish_non_exhaustive()
    }
}

impl RemoteTarget {
    /// Connects to a target.
    ///
    /// # Errors
    /// It does not answer within the limit, or refuses.
    pub fn connect(to: &Address) -> Result<Self> {
        let scheme = if to.rdma.is_some() { "rdma" } else { "tcp" };
        let name = format!("{scheme}:{}", to.address);
        let link = Link::connect(&to.address, to.limit, PROTOCOL, to.secret.as_ref());
        let link = link.map_err(|error| unreachable(&name, &error))?;
        let pipe = Pipe::new(link, to.limit).map_err(|error| unreachable(&name, &error))?;
        let hello = pipe.send(|_| Call::Hello.to_bytes());
        let hello = hello.and_then(|number| pipe.wait(number));
        let (identity, usage, free, is_owned) = match parse(&name, &pipe, hello)? {
            Answer::Hello(identity, usage, free, is_owned) => (*identity, usage, free, is_owned),
            other => return Err(refusal(&name, 0, 0, other)),
        };
        let line = match &to.rdma {
            Some(rdma) => join(&name, &pipe, rdma, to.limit)?,
            None => None,
        };
        Ok(Self {
            name,
            line,
            owner: to.owner,
            take_over: to.take_over,
            is_owned,
            free,
            pipe,
            longest: to.longest,
            patience: to.patience,
            known: Mutex::new((identity, usage)),
            steps: Mutex::default(),
            seating: OnceLock::new(),
        })
    }

    /// Calls the target.
    fn call(&self, call: &Call) -> Result<Answer> {
        let number = self.pipe.send(|_| call.to_bytes());
        self.answer(number.map_err(|error| unreachable(&self.name, &error))?)
    }

    /// Waits for the answer to a call. Without a volume nobody needs the target longer than its limit.
    fn answer(&self, number: u64) -> Result<Answer> {
        let gives_up = |reason: &str, waited| match self.seating.get().and_then(Weak::upgrade) {
            Some(seating) => {
                seating.gives_up(self, reason)
                    || (waited >= self.patience && seating.is_arriving(self))
            }
            None => true,
        };
        let bytes = self.pipe.wait_longer(number, self.longest, gives_up);
        let Some(line) = &self.line else {
            return parse(&self.name, &self.pipe, bytes);
        };
        let received = bytes
            .map_err(|error| error.to_string())
            .and_then(|bytes| Answer::parse(&bytes).map_err(|error| error.to_string()));
        // An error closes the connection, if it did not.
        let answer = line.answer(number, received);
        answer.map_err(|reason| unreachable(&self.name, &self.pipe.shut(&reason)))
    }

    /// Sends a call without a block, and does not wait for its answer.
    fn begin_call(&self, call: &Call) -> Begun {
        match self.pipe.send(|_| call.to_bytes()) {
            Ok(call) => Begun::Sent {
                call,
                nth: 0,
                block: 0,
                generation: 0,
            },
            Err(error) => Begun::Ended(Err(unreachable(&self.name, &error))),
        }
    }

    /// Calls the target for an effect on `block`.
    fn done(&self, call: &Call, block: u64, generation: u64) -> Result<()> {
        let answer = self.call(call)?;
        self.outcome(answer, block, generation).map(drop)
    }

    /// The result of an answer to a step.
    fn outcome(&self, answer: Answer, block: u64, generation: u64) -> Result<Option<Half>> {
        match answer {
            Answer::Done(usage) => {
                self.known().1 = usage;
                Ok(None)
            }
            Answer::Half(half)
                if half.generation == generation && half.fits(self.known().0.role) =>
            {
                Ok(Some(half))
            }
            Answer::Half(_) => Err(unreachable(
                &self.name,
                &"it answers with another half block",
            )),
            other => Err(refusal(&self.name, block, generation, other)),
        }
    }

    /// The results of all steps of a call, in their order: without what is kept for those that are taken one at a time.
    fn all_steps(&self, call: u64, steps: &[(u64, u64)], results: &mut Vec<Result<Option<Half>>>) {
        let (answers, steps) = match self.answer(call) {
            Ok(Answer::All(count, usage)) if count == steps.len() => {
                self.known().1 = usage;
                results.extend(steps.iter().map(|_| Ok(None)));
                return;
            }
            Ok(Answer::All(count, usage)) => {
                let count = count.min(steps.len());
                (vec![Answer::Done(usage); count], steps)
            }
            Ok(Answer::Steps(answers)) => (answers, steps),
            Ok(other) => (vec![other], steps),
            // The connection is closed: the others have the same reason.
            Err(error) => {
                results.push(Err(error));
                (Vec::new(), &steps[1..])
            }
        };
        let mut answers = answers.into_iter();
        let mut known = None;
        for (block, generation) in steps {
            results.push(match answers.next() {
                Some(Answer::Done(usage)) => {
                    known = Some(usage);
                    Ok(None)
                }
                Some(answer) => self.outcome(answer, *block, *generation),
                None => Err(unreachable(&self.name, &self.pipe.shut(FEWER))),
            });
        }
        if let Some(usage) = known {
            self.known().1 = usage;
        }
    }

    /// The answer of a step of a call.
    fn step(&self, call: u64, nth: usize) -> Result<Answer> {
        let mut steps = self.steps();
        if !steps.contains_key(&call) {
            drop(steps);
            let answers = match self.answer(call)? {
                Answer::Steps(answers) => answers,
                Answer::All(count, usage) => vec![Answer::Done(usage); count],
                other => return Ok(other),
            };
            let untaken = Untaken {
                left: answers.len(),
                answers: answers.into_iter().map(Some).collect(),
            };
            steps = self.steps();
            steps.insert(call, untaken);
        }
        let untaken = steps.get_mut(&call);
        let taken = untaken.and_then(|untaken| {
            let taken = untaken.answers.get_mut(nth)?.take()?;
            untaken.left -= 1;
            Some((taken, untaken.left))
        });
        if let Some((_, 0)) = taken {
            steps.remove(&call);
        }
        drop(steps);
        taken
            .map(|(taken, _)| taken)
            .ok_or_else(|| unreachable(&self.name, &self.pipe.shut(FEWER)))
    }

    fn steps(&self) -> MutexGuard<'_, BTreeMap<u64, Untaken>> {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends steps by one call.
    fn send_steps(&self, steps: &[Step<'_>], begun: &mut Vec<Begun>) {
        let sent = match &self.line {
            Some(line) => line.send(&self.pipe, steps, self.identity().geometry.block_len() / 2),
            None => self.pipe.send_parts(&Parts::of_steps(steps, None).all()),
        };
        begun.extend(steps.iter().enumerate().map(|(nth, step)| match &sent {
            Ok(call) => {
                let (block, generation) = step.of();
                Begun::Sent {
                    call: *call,
                    nth,
                    block,
                    generation,
                }
            }
            Err(error) => Begun::Ended(Err(unreachable(&self.name, error))),
        }));
    }

    fn known(&self) -> MutexGuard<'_, (Identity, Usage)> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Joins a target by RDMA. Without it, frames do.
///
/// # Errors
/// The connection of frames has failed.
fn join(name: &str, pipe: &Pipe, rdma: &Rdma, limit: Duration) -> Result<Option<VolumeEnd>> {
    let call = |call: &Call| {
        let number = pipe.send(|_| call.to_bytes());
        let answer = parse(name, pipe, number.and_then(|number| pipe.wait(number)));
        answer.map_err(|error| error.to_string())
    };
    match VolumeEnd::join(rdma, limit, call) {
        Ok(line) => Ok(Some(line)),
        Err(reason) if pipe.is_closed() => Err(unreachable(name, &reason)),
        Err(reason) => {
            say(format_args!(
                "{name}: {reason}; its half blocks travel over TCP"
            ));
            Ok(None)
        }
    }
}

fn parse(name: &str, pipe: &Pipe, bytes: Result<Bytes, Broken>) -> Result<Answer> {
    let bytes = bytes.map_err(|error| unreachable(name, &error))?;
    Answer::parse(&bytes).map_err(|error| unreachable(name, &pipe.shut(&error.to_string())))
}

fn unreachable(name: &str, reason: &dyn std::fmt::Display) -> BlkError {
    BlkError::Unreachable {
        target: name.to_owned(),
        reason: reason.to_string(),
    }
}

/// The error of an answer that is not the result of the call.
fn refusal(name: &str, block: u64, generation: u64, answer: Answer) -> BlkError {
    let target = name.to_owned();
    match answer {
        Answer::Absent => BlkError::Absent {
            target,
            block,
            generation,
        },
        Answer::Corrupt(fault) => BlkError::Corrupt {
            target,
            block,
            fault,
        },
        Answer::Full {
            wanted,
            free,
            capacity,
        } => BlkError::Full {
            target,
            wanted,
            free,
            capacity,
        },
        Answer::Failed(reason) => BlkError::Refused { target, reason },
        Answer::Owned => BlkError::Owned { target },
        Answer::Superseded => BlkError::Superseded { target },
        Answer::Hello(..)
        | Answer::Held(..)
        | Answer::Changed(..)
        | Answer::Steps(_)
        | Answer::All(..)
        | Answer::Layers(_)
        | Answer::Joined(_)
        | Answer::Pull(_)
        | Answer::Half(_)
        | Answer::Done(_) => {
            unreachable(name, &"it answers another call than the one that was sent")
        }
    }
}

impl Target for RemoteTarget {
    fn name(&self) -> &str {
        &self.name
    }

    fn identity(&self) -> Identity {
        self.known().0
    }

    fn part(&self, blocks: Range<u64>) -> Result<Part> {
        let (from, to) = (blocks.start, blocks.end);
        match self.call(&Call::Held { from, to })? {
            Answer::Held(held, next)
                if next > from
                    && held.is_sorted_by_key(|held| held.block)
                    && held
                        .iter()
                        .all(|held| (from..next.min(to)).contains(&held.block)) =>
            {
                Ok(Part { held, next })
            }
            Answer::Held(..) => Err(unreachable(
                &self.name,
                &"it names other blocks than the ones that were asked for",
            )),
            other => Err(refusal(&self.name, 0, 0, other)),
        }
    }

    fn changed(&self, from: u64) -> Result<Changed> {
        match self.call(&Call::Changed { from })? {
            Answer::Changed(ranges, next)
                if next > from && ranges.iter().all(|(from, to)| from < to) =>
            {
                let ranges = ranges.into_iter().map(|(from, to)| from..to);
                Ok(Changed {
                    ranges: ranges.collect(),
                    next,
                })
            }
            Answer::Changed(..) => Err(unreachable(&self.name, &"it names no blocks")),
            other => Err(refusal(&self.name, 0, 0, other)),
        }
    }

    fn grow(&self, blocks: u64) -> Result<()> {
        let geometry = self.identity().geometry;
        if blocks <= geometry.blocks() {
            return Ok(());
        }
        self.done(&Call::Grow { blocks }, 0, 0)?;
        self.known().0.geometry = Geometry::new(geometry.block_size(), blocks)?;
        Ok(())
    }

    fn layers(&self) -> Result<Layers> {
        match self.call(&Call::Layers)? {
            Answer::Layers(layers) => Ok(layers),
            other => Err(refusal(&self.name, 0, 0, other)),
        }
    }

    fn set_layers(&self, layers: &Layers) -> Result<()> {
        self.done(&Call::SetLayers(layers.clone()), 0, 0)
    }

    fn prepare(&self, block: u64, half: &Half, keep: u64) -> Result<()> {
        self.finish(self.begin(Step::Prepare { block, half, keep }))
            .map(drop)
    }

    fn commit(&self, block: u64, generation: u64) -> Result<()> {
        self.done(&Call::Commit { block, generation }, block, generation)
    }

    fn fetch(&self, block: u64, generation: u64) -> Result<Half> {
        let half = self.finish(self.begin(Step::Fetch { block, generation }))?;
        half.ok_or_else(|| unreachable(&self.name, &"it answers a fetch without a half block"))
    }

    fn begin(&self, step: Step<'_>) -> Begun {
        let mut begun = Vec::with_capacity(1);
        self.send_steps(&[step], &mut begun);
        begun.pop().unwrap_or(Begun::Ended(Ok(None)))
    }

    fn begin_all(&self, steps: &[Step<'_>]) -> Vec<Begun> {
        let mut begun = Vec::with_capacity(steps.len());
        // A fetch brings as much.
        let identity = self.identity();
        let fetched = identity.geometry.block_len() / identity.role.layout().needed();
        let mut rest = steps;
        while !rest.is_empty() {
            let mut bytes = 0;
            let fit = rest.iter().take(STEPS_MAX).take_while(|step| {
                bytes += step.bytes(fetched);
                bytes <= STEPS_BYTES
            });
            let (now, later) = rest.split_at(fit.count().max(1));
            self.send_steps(now, &mut begun);
            rest = later;
        }
        begun
    }

    fn is_elsewhere(&self) -> bool {
        true
    }

    fn is_owned(&self) -> bool {
        self.is_owned && !self.take_over
    }

    fn begin_confirm(&self) -> Begun {
        self.begin_call(&Call::Confirm)
    }

    fn begin_release(&self, generation: u64) -> Begun {
        self.begin_call(&Call::Release { generation })
    }

    fn finish(&self, begun: Begun) -> Result<Option<Half>> {
        match begun {
            Begun::Ended(result) => result,
            Begun::Sent {
                call,
                nth,
                block,
                generation,
            } => {
                let answer = self.step(call, nth)?;
                self.outcome(answer, block, generation)
            }
        }
    }

    fn finish_all(&self, begun: Vec<Begun>) -> Vec<Result<Option<Half>>> {
        let mut results = Vec::with_capacity(begun.len());
        let mut begun = begun.into_iter().peekable();
        let mut steps: Vec<(u64, u64)> = Vec::with_capacity(begun.len());
        while let Some(first) = begun.next() {
            let Begun::Sent {
                call,
                nth: 0,
                block,
                generation,
            } = first
            else {
                results.push(self.finish(first));
                continue;
            };
            steps.clear();
            steps.push((block, generation));
            let is_next =
                |next: &Begun| matches!(next, Begun::Sent { call: of, .. } if *of == call);
            while let Some(next) = begun.next_if(is_next) {
                if let Begun::Sent {
                    block, generation, ..
                } = next
                {
                    steps.push((block, generation));
                }
            }
            self.all_steps(call, &steps, &mut results);
        }
        results
    }

    fn flush(&self) -> Result<()> {
        self.done(&Call::Flush, 0, 0)
    }

    fn mark(&self, epoch: u64, mark: Mark) -> Result<()> {
        let owner = self.owner;
        let call = Call::Mark {
            epoch,
            mark: Box::new(mark),
            owner,
            take_over: self.take_over,
        };
        let number = self.pipe.send(|_| call.to_bytes());
        let number = number.map_err(|error| unreachable(&self.name, &error))?;
        // It writes the superblock through to the disk, which may be busy with what was written before. A target that
        // could not do that in time would never be taken back.
        let seating = self.seating.get().and_then(Weak::upgrade);
        let longest = match seating.is_some_and(|seating| !seating.is_arriving(self)) {
            true => self.longest,
            false => self.patience,
        };
        let bytes = self.pipe.wait_longer(number, longest, |_, _| false);
        let answer = parse(&self.name, &self.pipe, bytes)?;
        self.outcome(answer, 0, 0)?;
        self.known().0.marked(epoch, mark);
        Ok(())
    }

    fn usage(&self) -> Usage {
        self.known().1
    }

    fn free(&self) -> Option<u64> {
        Some(self.free)
    }

    fn seated(&self, seating: Weak<dyn Seating>) {
        // A target belongs to one volume.
        let _ = self.seating.set(seating);
    }
}
