//! The RDMA connection beside a connection of frames: calls and answers with many half blocks do not travel in frames. The
//! sender leaves them in a slot of its memory, which it has registered once, and names the slot in a short frame; the
//! receiver reads it. So no side writes the memory of the other one, bytes are there when the read completes, and the
//! checksum in the authenticated frame proves that they are the ones that were meant.
//!
//! A volume's slot belongs to one call until its answer. A call that fetches names a slot of the target for its answer,
//! which is free again when the volume has read it. Without a free slot, a call or an answer travels in its frame. Each
//! connection has a protection domain of its own: a peer reaches its own slots only.

use super::parts::Parts;
use super::pieces::{Line, Piece};
use super::wire::{Answer, Call};
use crate::crc32c::{crc32c, crc32c_append};
use crate::pipe::{Broken, Pipe};
use crate::record::RECORD_MAX;
use crate::store::Step;
use bytes::Bytes;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use xgvmi_verbs::{Adapter, Reads, Shown, Slot};

/// Slots of each side.
pub(super) const SLOTS: u16 = 16;
/// Bytes of a slot: the longest call or answer, with its numbers.
pub(super) const SLOT_BYTES: usize = RECORD_MAX.next_multiple_of(4096) + (28 << 10);
/// What is shorter travels in its frame: a read by RDMA costs more than a copy of it.
const FRAME_BYTES: usize = 8 << 10;
/// Longest time of a read.
const READ: Duration = Duration::from_secs(5);

/// Which RDMA device is used.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rdma {
    /// Its name; `None` for the first one.
    pub device: Option<String>,
}

/// One end of an RDMA connection. The fields end in their order: the queue pair before the memory that it reaches.
#[derive(Debug)]
pub(super) struct End {
    reads: Mutex<Reads>,
    shown: Shown,
    own: Line,
    theirs: Option<Line>,
    limit: Duration,
}

impl End {
    /// Opens the device, and registers the slots. A read takes `limit` at most.
    ///
    /// # Errors
    /// The text says why it cannot be used.
    pub(super) fn open(rdma: &Rdma, limit: Duration) -> Result<Self, String> {
        let text = |error: &dyn std::fmt::Display| format!("no RDMA device: {error}");
        let adapter = Adapter::open(rdma.device.as_deref()).map_err(|error| text(&error))?;
        let reads = Reads::create(&adapter, SLOT_BYTES).map_err(|error| text(&error))?;
        let shown = Shown::new(&adapter, (SLOTS.into(), SLOT_BYTES));
        let shown = shown.map_err(|error| text(&error))?;
        let own = Line {
            endpoint: reads.endpoint().map_err(|error| text(&error))?,
            key: shown.key(),
            address: shown.address(),
            token: xgvmi_daemon::random_bytes().map_err(|error| text(&error))?,
        };
        // Until the first message in this slot.
        let is_there = shown.take().is_some_and(|mut slot| slot.push(&own.token));
        debug_assert!(is_there);
        Ok(Self {
            reads: Mutex::new(reads),
            shown,
            own,
            theirs: None,
            limit: limit.min(READ),
        })
    }

    /// This end, for the peer.
    pub(super) fn own(&self) -> Line {
        self.own
    }

    /// Connects to the peer's end.
    pub(super) fn connect(&mut self, theirs: Line) -> Result<(), String> {
        let connected = self.reads().connect(&theirs.endpoint);
        self.theirs = Some(theirs);
        connected.map_err(|error| format!("no RDMA connection: {error}"))
    }

    /// Proves that the peer's memory is reached. No message was there before.
    pub(super) fn prove(&self) -> Result<(), String> {
        let theirs = self.theirs.ok_or("no RDMA connection")?;
        let piece = Piece {
            address: theirs.address,
            length: 16,
            crc: crc32c(&theirs.token),
        };
        match self.read(piece, |bytes| bytes == theirs.token)? {
            true => Ok(()),
            false => Err("another memory than the peer's is reached by RDMA".to_owned()),
        }
    }

    /// Reads a message of the peer.
    ///
    /// # Errors
    /// The memory cannot be read, or has other bytes. The connection is of no use any more.
    pub(super) fn read<T>(
        &self,
        piece: Piece,
        parse: impl FnOnce(&[u8]) -> T,
    ) -> Result<T, String> {
        let theirs = self.theirs.ok_or("no RDMA connection")?;
        let (from, length) = ((theirs.key, piece.address), piece.length as usize);
        let mut reads = self.reads();
        let bytes = reads.read(from, length, self.limit);
        let bytes = bytes.map_err(|error| format!("a read by RDMA of {length} bytes: {error}"))?;
        match crc32c(bytes) == piece.crc {
            true => Ok(parse(bytes)),
            false => Err(format!(
                "a read by RDMA of {length} bytes: the checksum is wrong"
            )),
        }
    }

    /// A free slot.
    pub(super) fn take(&self) -> Option<Slot> {
        self.shown.take()
    }

    fn reads(&self) -> MutexGuard<'_, Reads> {
        // A read that panicked has marked nothing as good.
        self.reads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Fills a slot with the parts of a message. `None` if it is too long.
fn fill(slot: &mut Slot, parts: &Parts<'_>) -> Option<Piece> {
    slot.clear();
    let (mut fits, mut crc) = (true, 0);
    for part in parts.all() {
        fits = fits && slot.push(part);
        crc = crc32c_append(crc, part);
    }
    fits.then(|| Piece {
        address: slot.address(),
        // A slot is shorter.
        length: u32::try_from(slot.len()).unwrap_or(u32::MAX),
        crc,
    })
}

/// The target's end.
#[derive(Debug)]
pub(super) struct TargetEnd {
    end: End,
    /// By their numbers.
    slots: Vec<Slot>,
}

impl TargetEnd {
    /// The end of a connection whose peer has this one.
    pub(super) fn join(rdma: &Rdma, theirs: Line) -> Result<Self, String> {
        let mut end = End::open(rdma, READ)?;
        end.connect(theirs)?;
        let slots = std::iter::from_fn(|| end.take()).collect();
        Ok(Self { end, slots })
    }

    pub(super) fn end(&self) -> &End {
        &self.end
    }

    /// The message of an answer. A long one goes to the slot that its call names.
    pub(super) fn message(&mut self, (number, slot): (u64, u16), answer: &Answer) -> Vec<u8> {
        let slot = self.slots.get_mut(usize::from(slot));
        let slot = slot.filter(|_| answer.length() > FRAME_BYTES);
        let piece = slot.and_then(|slot| fill(slot, &Parts::of_answer(answer, number)));
        match piece {
            Some(piece) => Answer::Pull(piece).to_bytes(number),
            None => answer.to_bytes(number),
        }
    }
}

/// What a call holds until its answer.
#[derive(Debug)]
struct Open {
    /// Has its steps, if they are not in the frame.
    _steps: Option<Slot>,
    /// The target's slot for its answer.
    answer: Option<u16>,
}

/// The volume's end.
#[derive(Debug)]
pub(super) struct VolumeEnd {
    end: End,
    /// Slots of the target that no call has named.
    free: Mutex<Vec<u16>>,
    open: Mutex<HashMap<u64, Open>>,
}

impl VolumeEnd {
    /// Joins a target, to which `call` sends calls.
    ///
    /// # Errors
    /// The reason why frames must do. The connection of frames may have failed, too.
    pub(super) fn join(
        rdma: &Rdma,
        limit: Duration,
        call: impl Fn(&Call) -> Result<Answer, String>,
    ) -> Result<Self, String> {
        let mut end = End::open(rdma, limit)?;
        let join = Call::Join(Box::new(end.own()));
        let joined = |answer| match answer {
            Answer::Joined(line) => Ok(line),
            Answer::Failed(reason) => Err(reason),
            _ => Err("it answers another call".to_owned()),
        };
        end.connect(joined(call(&join)?)?)?;
        end.prove()?;
        // The target proves its way, too.
        joined(call(&join)?)?;
        Ok(Self {
            end,
            free: Mutex::new((0..SLOTS).rev().collect()),
            open: Mutex::default(),
        })
    }

    /// Sends steps by one call. The answers to fetches have up to `fetched` bytes each.
    pub(super) fn send(
        &self,
        pipe: &Pipe,
        steps: &[Step<'_>],
        fetched: usize,
    ) -> Result<u64, Broken> {
        let (mut to, mut back) = (0, 0);
        for step in steps {
            match step {
                Step::Prepare { half, .. } => to += half.data.len(),
                Step::Fetch { .. } => back += fetched,
                Step::Commit { .. } => {}
            }
        }
        let mut slot = (to > FRAME_BYTES).then(|| self.end.take()).flatten();
        let piece = slot
            .as_mut()
            .and_then(|slot| fill(slot, &Parts::of_steps(steps, None)));
        let answer = (back > FRAME_BYTES).then(|| self.free().pop()).flatten();
        let sent = match piece {
            Some(piece) => pipe.send(|_| Call::Pull(answer, piece).to_bytes()),
            None => pipe.send_parts(&Parts::of_steps(steps, answer).all()),
        };
        let open = Open {
            _steps: slot,
            answer,
        };
        match sent {
            Ok(number) if open.answer.is_some() || piece.is_some() => {
                self.open().insert(number, open);
                Ok(number)
            }
            sent => sent,
        }
    }

    /// The answer to a call, of which `received` has come as a frame. Frees what the call held.
    ///
    /// # Errors
    /// The connection is of no use any more.
    pub(super) fn answer(
        &self,
        call: u64,
        received: Result<Answer, String>,
    ) -> Result<Answer, String> {
        let open = self.open().remove(&call);
        let slot = open.and_then(|open| open.answer);
        let answer = match (received?, slot) {
            (Answer::Pull(piece), Some(slot)) => self.read(piece, slot)?,
            (Answer::Pull(_), None) => {
                return Err("it answers by a slot that the call does not name".to_owned());
            }
            (answer, _) => answer,
        };
        // After an error there are no more calls.
        self.free().extend(slot);
        Ok(answer)
    }

    fn read(&self, piece: Piece, slot: u16) -> Result<Answer, String> {
        let first = self.end.theirs.map_or(0, |line| line.address);
        let at = u64::from(slot) * SLOT_BYTES as u64;
        if piece.address != first.wrapping_add(at) {
            return Err("it answers by another slot than the call names".to_owned());
        }
        let parsed = self
            .end
            .read(piece, |bytes| Answer::parse(&Bytes::copy_from_slice(bytes)))?;
        match parsed.map_err(|error| error.to_string())? {
            Answer::Pull(_) => Err("an answer in a slot names a slot".to_owned()),
            answer => Ok(answer),
        }
    }

    fn free(&self) -> MutexGuard<'_, Vec<u16>> {
        // No holder panics between changes that belong together.
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self) -> MutexGuard<'_, HashMap<u64, Open>> {
        // As above.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
