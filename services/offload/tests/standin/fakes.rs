//! A device with room for some imports, and a job's messages, for tests.

use super::transport::{Ended, Fabric, Range, Sent, Transport, Worker};
use crate::error::{OffloadError, Result};
use crate::scheme::Scheme;
use crate::token::Token;
use crate::wire::{ExportRef, Kind};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::rc::Rc;
use xgvmi_ucp::{InboxLimits, Message};

/// Counts imports and the ends of calls. Clones are the same device.
#[derive(Debug, Default, Clone)]
pub(super) struct Device(Rc<State>);

#[derive(Debug, Default)]
struct State {
    /// Number of imports for which there is room, if it is limited.
    room: Option<usize>,
    live: RefCell<Vec<Vec<u8>>>,
    made: Cell<u32>,
    completions: Cell<u32>,
}

/// Messages on the network, and those that have arrived.
#[derive(Debug, Default, Clone)]
pub(super) struct Flood {
    pub(super) coming: Rc<RefCell<VecDeque<Message>>>,
    waiting: Rc<RefCell<VecDeque<Message>>>,
    /// The most bytes that have waited.
    pub(super) most: Rc<Cell<usize>>,
}

thread_local! {
    /// What [`Fabric::open`] returns in this thread.
    pub(super) static PARTS: RefCell<(Device, Flood)> = RefCell::default();
}

/// The handle of memory.
pub(super) fn handle(address: u64, length: u64, mark: u8) -> Vec<u8> {
    let words = [address.to_le_bytes(), length.to_le_bytes()];
    [words.as_flattened(), &[mark]].concat()
}

/// Address and length of the memory of a handle.
fn range(handle: &[u8]) -> (u64, u64) {
    let (words, _) = handle.as_chunks();
    (u64::from_le_bytes(words[0]), u64::from_le_bytes(words[1]))
}

fn failed(reason: &str) -> OffloadError {
    OffloadError::Failed(reason.to_owned())
}

impl Device {
    pub(super) fn with_room(imports: usize) -> Self {
        Self(Rc::new(State {
            room: Some(imports),
            ..State::default()
        }))
    }

    /// The handles of the imports in use.
    pub(super) fn live(&self) -> Vec<Vec<u8>> {
        self.0.live.borrow().clone()
    }

    /// Number of imports so far, and of ended calls.
    pub(super) fn made(&self) -> u32 {
        self.0.made.get()
    }

    pub(super) fn completions(&self) -> u32 {
        self.0.completions.get()
    }
}

impl Transport for Device {
    type Peer = ();
    type Memory = Vec<u8>;
    type Key = ();
    type Packed = Vec<u8>;
    type Operation = ();
    type Reads = ();

    fn send(&self, (): &(), kind: Kind, _: Token, data: Vec<u8>) -> Result<Sent<()>> {
        let ends = u32::from(kind == Kind::HostFin);
        self.0.completions.set(self.completions() + ends);
        Ok(Sent::AtOnce(data))
    }

    fn import(&self, export: ExportRef<'_>) -> Result<Vec<u8>> {
        let mut live = self.0.live.borrow_mut();
        if self.0.room == Some(live.len()) {
            return Err(failed("the device is full"));
        }
        self.0.made.set(self.made() + 1);
        live.push(export.packed.to_vec());
        Ok(export.packed.to_vec())
    }

    fn address(&self, memory: &Vec<u8>) -> u64 {
        range(memory).0
    }

    fn holds(&self, memory: &Vec<u8>, address: u64, length: u64) -> bool {
        let (start, most) = range(memory);
        start <= address && address + length <= start + most
    }

    fn pack(&self, memory: &Vec<u8>) -> Result<Vec<u8>> {
        Ok(memory.clone())
    }

    fn stage(&self, _: usize) -> Result<Vec<u8>> {
        Err(failed("there are no bytes"))
    }

    fn bytes<'a>(&self, _: &'a mut Vec<u8>) -> Option<&'a mut [u8]> {
        None
    }

    fn unmap(&self, memory: Vec<u8>) -> Result<()> {
        let mut live = self.0.live.borrow_mut();
        let at = live.iter().position(|of| *of == memory);
        live.remove(at.expect("an import is released once"));
        Ok(())
    }

    fn unpack(&self, (): &(), _: &[u8]) -> Result<()> {
        Ok(())
    }

    fn read(&self, (): &mut (), _: Range<'_, Self>, _: u64) -> Result<bool> {
        Ok(false)
    }

    fn reads_len((): &()) -> usize {
        0
    }

    fn next_read(&self, (): &mut ()) -> Option<(u64, Ended)> {
        None
    }

    fn aliases(&self) -> Option<(u64, u64)> {
        None
    }

    fn has_ended(&self, (): &()) -> Result<bool> {
        Ok(true)
    }
}

// SAFETY: the job of a test does not leave its thread.
unsafe impl Fabric for Device {
    type Library = ();
    type Worker = Flood;

    fn version((): ()) -> &'static str {
        "none"
    }

    fn open((): (), _: Scheme, _: InboxLimits) -> Result<(Self, Flood)> {
        Ok(PARTS.with_borrow(Clone::clone))
    }

    fn greet(&self, (): &(), _: Token, _: Vec<u8>) -> Result<()> {
        Ok(())
    }

    fn abandon((): &()) {}
}

impl Worker for Flood {
    type Peer = ();

    fn address(&self) -> Result<Vec<u8>> {
        Ok(vec![1])
    }

    fn event_fd(&self) -> RawFd {
        -1
    }

    fn arm(&self) -> Result<bool> {
        Ok(true)
    }

    fn expect(&self, _: Token) {}

    fn strangers(&self) -> u64 {
        0
    }

    fn connect(&self, _: &[u8], _: &str) -> Result<()> {
        Ok(())
    }

    fn connect_for_gets(&self, _: &[u8], _: &str) -> Result<()> {
        Ok(())
    }

    /// One message ends.
    fn settle(&self, _: std::time::Duration) {}

    fn progress(&self, steps: u32, waiting: usize) -> bool {
        let bytes = || -> usize { self.waiting.borrow().iter().map(|m| m.data.len()).sum() };
        let mut happened = false;
        for _ in 0..steps {
            if bytes() > waiting {
                break;
            }
            let Some(message) = self.coming.borrow_mut().pop_front() else {
                break;
            };
            self.waiting.borrow_mut().push_back(message);
            self.most.set(self.most.get().max(bytes()));
            happened = true;
        }
        happened
    }

    fn take(&self) -> Result<Option<Message>> {
        Ok(self.waiting.borrow_mut().pop_front())
    }
}
