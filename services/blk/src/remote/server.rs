//! Serves one target to the process that owns its volume.
//!
//! Any connection may ask for the identity. The connection that marks the target with an epoch owns it from then on.
//! Calls of earlier owners are refused: also those that were sent before, and arrive late. A new connection of the owner's
//! process ends the one before.
//!
//! Calls that wait for the disk have a thread of their connection (`syncs`). Their answers come later than those of calls
//! behind them.

use super::line::{End, Rdma, SLOT_BYTES, SLOTS, TargetEnd};
use super::parts::Parts;
use super::pieces::Line;
use super::syncs::Syncs;
use super::wire::{Answer, CALL_MAX, Call, PROTOCOL};
use crate::error::{BlkError, Result};
use crate::say::{Bounded, say};
use crate::store::{EPOCH_MAX, Identity, Mark, Step, Store, Target, Usage};
use bytes::Bytes;
use std::io;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::Duration;
use xgvmi_daemon::{
    Admission, Budget, Link, LinkError, Place, Secret, accept_patiently, poll, pollfd,
};

/// No connection has this number.
const NOBODY: usize = usize::MAX;
/// Most connections of peers that have proved the secret and said hello.
const CONNECTIONS_MAX: usize = 16;
/// Most connections of other peers.
const VISITORS_MAX: usize = 64;
/// Most connections by RDMA. Each has registered memory.
const JOINED_MAX: usize = 4;
/// Bytes of frames of unidentified connections.
const BUDGET: usize = 64 << 20;
/// A peer that does not prove the secret and say hello within this time loses its connection.
const GREETING: Duration = Duration::from_secs(10);
/// A connection waits this long for the next call before it looks again.
const IDLE: Duration = Duration::from_secs(3600);
/// Most bytes of answers that wait for that of a call which is there already.
const QUEUED: usize = 16 << 10;
/// Why a call of the owner's process is refused.
const LATE: &str = "another connection owns the target";
/// Openings of the volume that a target may miss. A larger step of its epoch is a mistake, and would use up the epochs.
const MISSED_MAX: u64 = 1 << 20;

/// The owner of a target.
#[derive(Debug, Default)]
struct Owner {
    /// Number of its connection; 0 for none.
    connection: usize,
    /// Number of its process.
    process: [u8; 16],
}

/// A connection.
struct Peer {
    number: usize,
    stream: TcpStream,
    /// Number of its process, once it has marked the target.
    process: OnceLock<[u8; 16]>,
}

/// Work of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// Open connections of peers that have said hello.
    pub connections: usize,
    /// Calls since the start.
    pub calls: u64,
    /// Calls that were refused or have failed.
    pub failed_calls: u64,
}

/// Serves one target to peers that prove one of its secrets.
#[derive(Debug)]
pub struct TargetServer {
    store: Store,
    /// Without any, everybody is served.
    secrets: RwLock<Vec<Secret>>,
    budget: Budget,
    /// Held during each call that needs it, but for those that wait for the disk: an owner's last call ends before the next
    /// owner's first one starts.
    owner: Mutex<Owner>,
    /// Held while the target is marked. Taken before `owner`.
    marking: Mutex<()>,
    /// The connection of the owner, as long as it is served. No call holds this lock.
    line: Mutex<Option<(usize, TcpStream)>>,
    admission: Arc<Admission>,
    /// Lines about peers.
    told: Bounded,
    calls: AtomicU64,
    failed_calls: AtomicU64,
    /// The device of connections by RDMA.
    rdma: Option<Rdma>,
    /// Connections by RDMA.
    joined: Arc<AtomicUsize>,
}

/// The RDMA connection of a peer. Its drop frees its place.
struct Joined {
    line: TargetEnd,
    count: Arc<AtomicUsize>,
}

impl Drop for Joined {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A call, and the slot for its answer.
type Taken = (Call, Option<u16>);

impl TargetServer {
    /// Serves `store`. Peers must prove one of the secrets unless there is none.
    #[must_use]
    pub fn new(store: Store, secrets: Vec<Secret>) -> Self {
        store.leave_syncs_to_owner();
        Self {
            store,
            secrets: RwLock::new(secrets),
            budget: Budget::new(BUDGET),
            owner: Mutex::default(),
            marking: Mutex::new(()),
            line: Mutex::default(),
            admission: Admission::new(VISITORS_MAX, CONNECTIONS_MAX),
            told: Bounded::default(),
            calls: AtomicU64::new(0),
            failed_calls: AtomicU64::new(0),
            rdma: None,
            joined: Arc::default(),
        }
    }

    /// Peers may also join by RDMA, over this device.
    ///
    /// # Errors
    /// It cannot be used; the text says why.
    pub fn with_rdma(mut self, rdma: Rdma) -> Result<Self> {
        let tried = End::open(&rdma, Duration::ZERO);
        tried.map_err(|reason| {
            self.refused(&format!("{reason}: serve without --rdma, or give --device"))
        })?;
        self.rdma = Some(rdma);
        Ok(self)
    }

    /// What the target is.
    #[must_use]
    pub fn identity(&self) -> Identity {
        self.store.identity()
    }

    /// Use of the target's space.
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.store.usage()
    }

    /// Connections and calls.
    #[must_use]
    pub fn load(&self) -> Load {
        Load {
            connections: self.admission.admitted(),
            calls: self.calls.load(Ordering::Relaxed),
            failed_calls: self.failed_calls.load(Ordering::Relaxed),
        }
    }

    /// New connections must prove one of these secrets. Open ones stay.
    pub fn set_secrets(&self, secrets: Vec<Secret>) {
        *self.secrets.write().unwrap_or_else(PoisonError::into_inner) = secrets;
    }

    /// Ends the calls of owners for good, and makes what they did durable.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn drain(&self) -> Result<()> {
        let mut owner = self.owner();
        owner.connection = NOBODY;
        // Held until the process ends: no other connection becomes the owner.
        let _kept = std::mem::ManuallyDrop::new(owner);
        self.store.flush()
    }

    fn owner(&self) -> MutexGuard<'_, Owner> {
        // A panic cannot leave the owner half changed.
        self.owner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn line(&self) -> MutexGuard<'_, Option<(usize, TcpStream)>> {
        // A panic cannot leave it half changed.
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if the owner's connection is open. The peer's end shows at once, also behind calls that were not read yet.
    fn is_owner_connected(&self) -> bool {
        self.line().as_ref().is_some_and(|(_, stream)| {
            let mut fds = [pollfd(stream.as_raw_fd(), libc::POLLRDHUP)];
            // A socket that cannot be asked counts as open.
            let asked = poll(&mut fds, Some(Duration::ZERO));
            let ended = libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR;
            asked.is_err() || fds[0].revents & ended == 0
        })
    }

    /// Accepts connections without end.
    ///
    /// # Errors
    /// The socket fails.
    pub fn run(self: &Arc<Self>, listener: &TcpListener) -> io::Result<()> {
        for number in 1.. {
            let tell = |error: &io::Error| say(format_args!("no connection is accepted: {error}"));
            let (stream, _) = accept_patiently(|| listener.accept(), tell)?;
            let server = Arc::clone(self);
            let started = self.admission.arrive(&stream).and_then(|place| {
                let work = move || match server.connection(stream, number, place) {
                    Ok(()) | Err(LinkError::Closed) => {}
                    Err(error) => server
                        .told
                        .say(format_args!("a connection is closed: {error}")),
                };
                std::thread::Builder::new()
                    .name("target".to_owned())
                    .spawn(work)
            });
            if let Err(error) = started {
                say(format_args!("a connection was refused: {error}"));
            }
        }
        Ok(())
    }

    /// Serves a connection until it ends. The peer learns why it is refused.
    fn connection(
        self: &Arc<Self>,
        stream: TcpStream,
        number: usize,
        place: Place,
    ) -> Result<(), LinkError> {
        let secrets = self
            .secrets
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let peer = Arc::new(Peer {
            number,
            stream: stream.try_clone()?,
            process: OnceLock::new(),
        });
        let mut link = Link::called(stream, PROTOCOL, &secrets, &self.budget)?;
        let ended = self.calls(&mut link, &peer, place);
        // A read by RDMA has an error of the other kind; one of the socket cannot be told.
        if let Err(error) = &ended
            && (error.is_violation()
                || matches!(error, LinkError::Io(other) if other.kind() == io::ErrorKind::Other))
        {
            link.refuse(&error.to_string());
        }
        let mut line = self.line();
        if line.as_ref().is_some_and(|(owner, _)| *owner == number) {
            *line = None;
        }
        ended
    }

    /// Answers the calls of one connection.
    fn calls(
        self: &Arc<Self>,
        link: &mut Link,
        peer: &Arc<Peer>,
        mut place: Place,
    ) -> Result<(), LinkError> {
        let parse = |bytes: &Bytes| {
            Call::parse(bytes).map_err(|_| LinkError::Malformed("a call that there is not"))
        };
        let Some(bytes) = link.wait(GREETING)? else {
            return Err(LinkError::Malformed("it does not say hello in time"));
        };
        let mut next = Some(parse(&bytes.into())?);
        // The first call: the peer has proved the secret.
        if let Err(full) = place.admit() {
            link.refuse(&full.to_string());
            self.told
                .say(format_args!("a connection was refused: {full}"));
            return Ok(());
        }
        link.set_frame_max(CALL_MAX);
        let mut syncs = Syncs::default();
        let mut joined = None;
        for number in 0.. {
            while next.is_none() {
                while let Some((numbers, answer)) = syncs.ended() {
                    for number in numbers {
                        self.send(link, number, &answer)?;
                    }
                }
                if syncs.is_due() {
                    let (server, peer) = (Arc::clone(self), Arc::clone(peer));
                    syncs.begin(move |call| server.answer(call, &peer))?;
                }
                if !syncs.is_full() {
                    next = link.take_shared()?.as_ref().map(parse).transpose()?;
                }
                if next.is_none() {
                    link.flush()?;
                    wait(link, &syncs)?;
                }
            }
            let Some(call) = next.take() else {
                continue;
            };
            if let Call::Join(theirs) = call {
                let answer = match self.join(&mut joined, *theirs) {
                    Ok(own) => Answer::Joined(own),
                    Err(reason) => Answer::Failed(reason),
                };
                self.send(link, number, &answer)?;
                continue;
            }
            let (call, slot) = pull(call, joined.as_ref())?;
            if self.waits_for_disk(&call, peer) {
                syncs.add(number, call);
                continue;
            }
            let answer = self.answer(&call, peer);
            match (slot, &mut joined) {
                (Some(slot), Some(Joined { line, .. })) => {
                    let message = line.message((number, slot), &answer);
                    self.count(&answer);
                    link.send(&message)?;
                }
                _ => self.send(link, number, &answer)?,
            }
            if self.store.wants_sync() {
                syncs.add_own();
            }
        }
        Ok(())
    }

    /// Joins a peer by RDMA. The second time it proves that the peer's memory is reached.
    fn join(&self, joined: &mut Option<Joined>, theirs: Line) -> Result<Line, String> {
        if let Some(there) = joined {
            let end = there.line.end();
            let proved = end.prove().map(|()| end.own());
            if proved.is_err() {
                *joined = None;
            }
            return proved;
        }
        let rdma = self.rdma.as_ref();
        let rdma = rdma.ok_or("the target serves without RDMA (--rdma)")?;
        let count = Arc::clone(&self.joined);
        let place = count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| {
            (count < JOINED_MAX).then_some(count + 1)
        });
        place.map_err(|_| format!("all {JOINED_MAX} places for RDMA are taken"))?;
        let line = TargetEnd::join(rdma, theirs).inspect_err(|_| {
            count.fetch_sub(1, Ordering::Relaxed);
        })?;
        let joined = joined.insert(Joined { line, count });
        Ok(joined.line.end().own())
    }

    fn count(&self, answer: &Answer) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.failed_calls
            .fetch_add(answer.is_error().into(), Ordering::Relaxed);
    }

    fn send(&self, link: &mut Link, call: u64, answer: &Answer) -> Result<(), LinkError> {
        self.count(answer);
        let parts = Parts::of_answer(answer, call);
        let all = parts.all();
        let length = link.unsent() + all.iter().map(|part| part.len()).sum::<usize>();
        if length > QUEUED {
            // A long answer is not copied.
            link.flush()?;
        } else if link.has_next() {
            // The next call is here already: its answer takes this one along.
            return link.queue_parts(&all);
        }
        link.send_parts(&all)
    }

    /// True for a call of the owner that waits for the disk.
    fn waits_for_disk(&self, call: &Call, peer: &Peer) -> bool {
        match call {
            Call::Flush => true,
            // That of another connection is waited for: what it sends next needs the mark.
            Call::Mark { .. } => self.owner().connection == peer.number,
            _ => false,
        }
    }

    /// Carries out a call.
    fn answer(&self, call: &Call, peer: &Peer) -> Answer {
        let done = match call {
            Call::Hello => {
                let owned = self.is_owner_connected();
                let free = self.store.free().unwrap_or(u64::MAX);
                let identity = Box::new(self.store.identity());
                return Answer::Hello(identity, self.store.usage(), free, owned);
            }
            Call::Held { from, to } => {
                let part = self.store.part(*from..*to);
                return match part {
                    Ok(part) => Answer::Held(part.held, part.next),
                    Err(error) => Answer::of_error(&error),
                };
            }
            Call::Changed { from } => {
                return match self.store.changed(*from) {
                    Ok(changed) => {
                        let ranges = changed.ranges.iter().map(|range| (range.start, range.end));
                        Answer::Changed(ranges.collect(), changed.next)
                    }
                    Err(error) => Answer::of_error(&error),
                };
            }
            Call::Steps(steps) => return self.steps(steps, peer),
            // They are taken apart before.
            Call::Join(_) | Call::Into(..) | Call::Pull(..) => {
                return Answer::of_error(&self.refused("no call of its own"));
            }
            Call::Grow { blocks } => self.owned(peer, |store| store.grow(*blocks)),
            Call::Layers => {
                return match self.store.layers() {
                    Ok(layers) => Answer::Layers(layers),
                    Err(error) => Answer::of_error(&error),
                };
            }
            Call::SetLayers(layers) => self.owned(peer, |store| store.set_layers(layers)),
            Call::Fetch { block, generation } => {
                // The next owner may begin during the fetch, which then counts as earlier. A connection that has not marked
                // the target yet looks at what it holds.
                let may = match peer.process.get() {
                    Some(_) => self.owned(peer, |_| Ok(())),
                    None => Ok(()),
                };
                return match may.and_then(|()| self.store.fetch(*block, *generation)) {
                    Ok(half) => Answer::Half(half),
                    Err(error) => Answer::of_error(&error),
                };
            }
            Call::Mark {
                epoch,
                mark,
                owner,
                take_over,
            } => self.mark((*epoch, **mark), (peer, *owner), *take_over),
            Call::Confirm => self.owned(peer, |_| Ok(())),
            Call::Release { generation } => self.owned(peer, |store| {
                store.finish(store.begin_release(*generation)).map(drop)
            }),
            Call::Prepare { block, keep, half } => self.owned(peer, |store| {
                if half.fits(store.identity().role) {
                    store.prepare(*block, half, *keep)
                } else {
                    Err(self.refused("the half block has a wrong length"))
                }
            }),
            Call::Commit { block, generation } => {
                self.owned(peer, |store| store.commit(*block, *generation))
            }
            // Without the lock: what an earlier owner makes durable harms nobody.
            Call::Flush => self
                .owned(peer, |_| Ok(()))
                .and_then(|()| self.store.flush()),
        };
        match done {
            Ok(()) => Answer::Done(self.store.usage()),
            Err(error) => Answer::of_error(&error),
        }
    }

    /// Carries out the steps of a call.
    fn steps<'a>(&self, calls: &'a [Call], peer: &Peer) -> Answer {
        let role = self.store.identity().role;
        let step = |call: &'a Call| match *call {
            Call::Prepare {
                block,
                keep,
                ref half,
            } if half.fits(role) => Some(Step::Prepare { block, half, keep }),
            Call::Commit { block, generation } => Some(Step::Commit { block, generation }),
            Call::Fetch { block, generation } => Some(Step::Fetch { block, generation }),
            _ => None,
        };
        let mut steps = Vec::with_capacity(calls.len());
        steps.extend(calls.iter().map_while(step));
        if steps.len() < calls.len() {
            return Answer::of_each(calls, &self.refused("a half block has a wrong length"));
        }
        let changes = |step: &Step<'_>| !matches!(step, Step::Fetch { .. });
        let done = if steps.iter().any(changes) {
            let mut ended = Vec::new();
            let done = self.owned(peer, |store| {
                ended = store.run(&steps);
                Ok(())
            });
            done.map(|()| ended)
        } else {
            // As a fetch alone.
            let may = match peer.process.get() {
                Some(_) => self.owned(peer, |_| Ok(())),
                None => Ok(()),
            };
            may.map(|()| self.store.run(&steps))
        };
        let usage = self.store.usage();
        match done {
            Ok(ended) if ended.iter().all(|ended| matches!(ended, Ok(None))) => {
                Answer::All(ended.len(), usage)
            }
            Ok(ended) => {
                let answers = ended.into_iter().map(|ended| match ended {
                    Ok(Some(half)) => Answer::Half(half),
                    Ok(None) => Answer::Done(usage),
                    Err(error) => Answer::of_error(&error),
                });
                Answer::Steps(answers.collect())
            }
            Err(error) => Answer::of_each(calls, &error),
        }
    }

    fn refused(&self, reason: &str) -> BlkError {
        BlkError::Refused {
            target: self.store.name().to_owned(),
            reason: reason.to_owned(),
        }
    }

    fn superseded(&self) -> BlkError {
        BlkError::Superseded {
            target: self.store.name().to_owned(),
        }
    }

    /// Makes a connection the owner, unless another process has opened the volume later, or has it open.
    fn mark(
        &self,
        (epoch, mark): (u64, Mark),
        (peer, process): (&Peer, [u8; 16]),
        take_over: bool,
    ) -> Result<()> {
        let marking = self.marking.lock();
        // The lock protects no data of its own.
        let _marking = marking.unwrap_or_else(PoisonError::into_inner);
        let mut owner = self.owner();
        let known = self.store.identity().epoch;
        let is_same = owner.connection == 0 || owner.process == process;
        if epoch < known || (epoch == known && !is_same) {
            return Err(self.superseded());
        }
        if is_same && peer.number < owner.connection {
            return Err(self.refused(LATE));
        }
        if !is_same && !take_over && self.is_owner_connected() {
            return Err(BlkError::Owned {
                target: self.store.name().to_owned(),
            });
        }
        // A new target has missed all openings.
        let is_absurd = epoch > EPOCH_MAX || (known != 0 && epoch - known > MISSED_MAX);
        if is_absurd {
            return Err(self.refused(&format!(
                "epoch {epoch} cannot follow epoch {known}: a volume has at most {EPOCH_MAX}, and a target may miss \
                 {MISSED_MAX} openings"
            )));
        }
        let stream = peer.stream.try_clone();
        let stream = stream.map_err(|error| BlkError::io(self.store.name(), error))?;
        if !is_same {
            // The other one stays the owner if this fails.
            self.store.mark(epoch, mark)?;
        }
        *owner = Owner {
            connection: peer.number,
            process,
        };
        drop(owner);
        // It marks with the same one each time.
        let _ = peer.process.set(process);
        let before = self.line().replace((peer.number, stream));
        if !is_same {
            // The other process learns from its next call that it is superseded.
            return Ok(());
        }
        if let Some((number, before)) = before
            && number != peer.number
        {
            // Its peer may have gone without a word. It may have closed it, too.
            let _ = before.shutdown(Shutdown::Both);
        }
        // What the owner sends meanwhile does not wait for the disk.
        self.store.mark(epoch, mark)
    }

    /// Runs a call of the owner.
    fn owned(&self, peer: &Peer, call: impl FnOnce(&Store) -> Result<()>) -> Result<()> {
        let owner = self.owner();
        if owner.connection == peer.number {
            return call(&self.store);
        }
        match peer.process.get() {
            Some(process) if *process == owner.process => Err(self.refused(LATE)),
            Some(_) => Err(self.superseded()),
            None => Err(self.refused("this connection does not own the target: mark it first")),
        }
    }
}

/// Takes the steps of a call from the peer's memory, or from the call, and its slot.
fn pull(call: Call, joined: Option<&Joined>) -> Result<Taken, LinkError> {
    const NO_SLOT: &str = "a slot or a memory that there is not";
    let has = |slot: u16| joined.is_some() && slot < SLOTS;
    match call {
        Call::Into(slot, steps) if has(slot) => Ok((Call::Steps(steps), Some(slot))),
        Call::Pull(slot, piece)
            if slot.is_none_or(has) && (1..=SLOT_BYTES).contains(&(piece.length as usize)) =>
        {
            let joined = joined.ok_or(LinkError::Malformed(NO_SLOT))?;
            let copied = |bytes: &[u8]| Call::parse(&Bytes::copy_from_slice(bytes));
            let read = joined.line.end().read(piece, copied);
            match read.map_err(io::Error::other)? {
                Ok(call @ Call::Steps(_)) => Ok((call, slot)),
                _ => Err(LinkError::Malformed("a memory without steps")),
            }
        }
        Call::Into(..) | Call::Pull(..) => Err(LinkError::Malformed(NO_SLOT)),
        call => Ok((call, None)),
    }
}

/// Waits until something has arrived, a sync has ended, or unsent bytes can be sent.
fn wait(link: &Link, syncs: &Syncs) -> io::Result<()> {
    let mut fds = Vec::with_capacity(2);
    let of_link = link.pollfd();
    fds.push(match syncs.is_full() {
        // Nothing is taken.
        true => pollfd(of_link.fd, of_link.events & !libc::POLLIN),
        false => of_link,
    });
    fds.extend(syncs.fd().map(|fd| pollfd(fd, libc::POLLIN)));
    poll(&mut fds, Some(IDLE))
}
