//! The requests of one queue: several threads carry them out, and they end in their order.
//!
//! So the used ring always tells which requests were carried out: a front end that connects again repeats the others, as QEMU
//! does. A FLUSH begins when all requests before it were carried out, which is more than virtio asks for.

use super::request::LENGTH_MAX;
use super::shared::{Chain, Memory, Shared};
use crate::crew::{BYTES_MAX, Crew, REQUESTS_MAX};
use crate::say::say;
use std::collections::VecDeque;
use std::num::Wrapping;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use vhost_user_backend::{VringMutex, VringT as _};
use virtio_queue::QueueT as _;
use vm_memory::{GuestAddressSpace as _, GuestMemoryLoadGuard, GuestMemoryMmap};

// A single request of any length fits.
const _: () = assert!(LENGTH_MAX <= BYTES_MAX);

type Ring = VringMutex<Memory>;

/// A request that was taken from the queue.
struct Taken {
    head: u16,
    /// Bytes that were written to the guest, once it was carried out.
    written: Option<u32>,
}

/// A request that a thread shall carry out.
struct Begun {
    number: u64,
    chain: Chain,
    memory: GuestMemoryLoadGuard<GuestMemoryMmap>,
    bytes: usize,
}

struct State {
    /// The requests that have not ended, in their order.
    taken: VecDeque<Taken>,
    /// Number of the first of them.
    first: u64,
    crew: Crew,
    /// The queue may have requests that were not taken.
    kicked: bool,
    /// The device ends.
    ended: bool,
}

impl Default for State {
    fn default() -> Self {
        Self {
            taken: VecDeque::new(),
            first: 0,
            crew: Crew::new(REQUESTS_MAX),
            kicked: false,
            ended: false,
        }
    }
}

/// The threads of a queue.
#[derive(Default)]
pub(super) struct Lane {
    state: Mutex<State>,
    /// A kick, or the end.
    kick: Condvar,
    /// A request was carried out.
    progress: Condvar,
}

fn wait<'a>(condition: &Condvar, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
    condition
        .wait(state)
        .unwrap_or_else(PoisonError::into_inner)
}

impl Lane {
    fn state(&self) -> MutexGuard<'_, State> {
        // What is inside has no state that a panic could leave half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The queue may have requests. Carries them out itself only if there is no thread for them.
    pub(super) fn kick(self: &Arc<Self>, shared: &Arc<Shared>, ring: &Ring) {
        let mut state = self.state();
        state.kicked = true;
        if !self.call_another(&mut state, shared, ring) && state.crew.threads() == 0 {
            state.crew.join();
            self.work(state, shared, ring, false);
        }
    }

    /// Wakes or starts a thread for the queue. False if there is none.
    fn call_another(
        self: &Arc<Self>,
        state: &mut State,
        shared: &Arc<Shared>,
        ring: &Ring,
    ) -> bool {
        if state.ended {
            return false;
        }
        let start = || {
            let (lane, shared, ring) = (Arc::clone(self), Arc::clone(shared), ring.clone());
            let thread = std::thread::Builder::new().name("vhost".to_owned());
            let work = move || lane.work(lane.state(), &shared, &ring, true);
            thread.spawn(work).map(drop)
        };
        let wake = || self.kick.notify_one();
        state.crew.call(wake, start).unwrap_or_else(|error| {
            say(format_args!(
                "a queue of the virtual machine has {} threads, and another one cannot be started: {error}",
                state.crew.threads()
            ));
            false
        })
    }

    /// Carries out requests until the device ends, or, if it does not `stay`, the queue is empty.
    fn work<'a>(
        self: &'a Arc<Self>,
        mut state: MutexGuard<'a, State>,
        shared: &Arc<Shared>,
        ring: &Ring,
        stay: bool,
    ) {
        loop {
            if let Some(begun) = self.begin(&mut state, shared, ring) {
                // The longest one fits if it is alone, so the first one always begins.
                while begun.number != state.first && !state.crew.has_room(begun.bytes) {
                    state = wait(&self.progress, state);
                }
                state.crew.take(begun.bytes);
                drop(state);
                let earlier = || self.wait_for_earlier(begun.number);
                let written = shared.request(begun.chain, &begun.memory, &earlier);
                state = self.state();
                state.crew.give(begun.bytes);
                Self::end_request(&mut state, shared, ring, (begun.number, written));
                self.progress.notify_all();
                continue;
            }
            if state.ended || !stay {
                state.crew.leave();
                return;
            }
            state.crew.rest();
            state = wait(&self.kick, state);
            state.crew.rise();
        }
    }

    /// Carries out at most `limit` requests, one after another, in this thread.
    pub(super) fn work_alone(self: &Arc<Self>, shared: &Arc<Shared>, ring: &Ring, limit: u64) {
        let mut state = self.state();
        state.kicked = true;
        state.crew = Crew::new(0);
        while state.first < limit
            && let Some(begun) = self.begin(&mut state, shared, ring)
        {
            let written = shared.request(begun.chain, &begun.memory, &|| {});
            Self::end_request(&mut state, shared, ring, (begun.number, written));
        }
    }

    /// Takes the next request from the queue.
    fn begin(
        self: &Arc<Self>,
        state: &mut State,
        shared: &Arc<Shared>,
        ring: &Ring,
    ) -> Option<Begun> {
        let mut looked = false;
        while state.kicked && !state.ended && !shared.is_stopped() {
            // Without notifications while there is work; a failure only costs some.
            let _ = ring.disable_notification();
            let memory = shared.memory.memory();
            let chain = ring
                .get_mut()
                .get_queue_mut()
                .pop_descriptor_chain(memory.clone());
            if let Some(chain) = chain {
                let number = state.first + state.taken.len() as u64;
                state.taken.push_back(Taken {
                    head: chain.head_index(),
                    written: None,
                });
                if has_more(ring, &memory) {
                    self.call_another(state, shared, ring);
                }
                let lengths = chain.clone().map(|descriptor| descriptor.len() as usize);
                let bytes = lengths.fold(0, usize::saturating_add).min(BYTES_MAX);
                return Some(Begun {
                    number,
                    chain,
                    memory,
                    bytes,
                });
            }
            // Requests may have arrived before notifications were on again. A ring whose index is wrong always looks so.
            let more = ring.enable_notification().unwrap_or(false);
            state.kicked = more && !looked;
            looked = true;
        }
        None
    }

    /// Gives back all requests at the front that were carried out.
    fn end_request(state: &mut State, shared: &Shared, ring: &Ring, (number, written): (u64, u32)) {
        let place = usize::try_from(number - state.first).ok();
        if let Some(taken) = place.and_then(|place| state.taken.get_mut(place)) {
            taken.written = Some(written);
        }
        let mut some = false;
        while let Some(Taken {
            head,
            written: Some(written),
        }) = state.taken.front()
        {
            some |= ring.add_used(*head, *written).is_ok();
            state.taken.pop_front();
            state.first += 1;
        }
        let event_idx = shared.event_idx.load(Ordering::Relaxed);
        if some && (!event_idx || ring.needs_notification().unwrap_or(true)) {
            // The front end may be gone.
            let _ = ring.signal_used_queue();
        }
    }

    /// Waits until all requests before this one were carried out.
    fn wait_for_earlier(&self, number: u64) {
        let mut state = self.state();
        while state.first != number {
            state = wait(&self.progress, state);
        }
    }

    /// Waits until all requests that were taken have ended.
    pub(super) fn settle(&self) {
        let mut state = self.state();
        while !state.taken.is_empty() {
            state = wait(&self.progress, state);
        }
    }

    /// Ends the threads, each after its request.
    pub(super) fn end(&self) {
        self.state().ended = true;
        self.kick.notify_all();
    }
}

/// True if the queue seems to have another request.
fn has_more(ring: &Ring, memory: &GuestMemoryMmap) -> bool {
    let state = ring.get_ref();
    let queue = state.get_queue();
    let available = queue.avail_idx(memory, Ordering::Acquire);
    available.is_ok_and(|index| index != Wrapping(queue.next_avail()))
}
