//! Completion queues of the DPA, and the queue pairs that report to them.

use super::thread::Thread;
use super::{Block, Core, Dpa, Receives, failed};
use crate::error::{Code, Fault, Result, call, fail};
use crate::object::{
    Alone, Lease, Object, Users, check_count, check_place, find, getters, publish, withdraw,
};
use dpa_dev::objects::{Kind, WORD, completion, element, queue};
use flexio::{Cq, CqAttr, CqTarget, Qp, QpAttr, Receive};
use std::sync::Arc;

/// Most elements of a completion queue.
const ELEMENTS_MAX: u32 = 65_536;
/// Entries of a queue beyond the program's, for completions that it does not see.
const SPARE: u32 = 16;
/// Bytes of an entry of a completion queue, and of a block of a send queue.
const BLOCK: u64 = 64;

/// `struct doca_dpa_completion`.
#[derive(Debug)]
pub struct Completion {
    dpa: Arc<Dpa>,
    elements: u32,
    state: Alone<State>,
    /// What reports to the queue.
    pub(crate) users: Arc<Users>,
    _lease: Lease,
}

#[derive(Debug, Default)]
struct State {
    thread: Option<Arc<Thread>>,
    live: Option<Live>,
}

/// A started queue.
#[derive(Debug)]
struct Live {
    // Destroyed before its memory.
    cq: Cq,
    handle: Block,
    queues: Block,
    /// Addresses of the attached queues; 0 for a free place.
    attached: Vec<u64>,
    _memory: [Block; 3],
    _thread: Option<Lease>,
}

impl Object for Completion {
    const NAME: &'static str = "struct doca_dpa_completion";
}

fn not_started() -> Fault {
    Fault::new(
        Code::BadState,
        "the completion queue is not started: call doca_dpa_completion_start first",
    )
}

impl Completion {
    /// The process of the queue.
    pub(crate) fn core(&self) -> Result<Arc<Core>> {
        self.dpa.core()
    }

    /// The handle of the started queue.
    pub(crate) fn handle(&self) -> Result<u64> {
        match &self.state.enter()?.live {
            Some(live) => Ok(live.handle.address()),
            None => Err(not_started()),
        }
    }

    fn number(&self) -> Result<u32> {
        match &self.state.enter()?.live {
            Some(live) => Ok(live.cq.number()),
            None => Err(not_started()),
        }
    }

    /// Adds a queue to those whose completions are known.
    fn attach(&self, queue: u64) -> Result<()> {
        let mut state = self.state.enter()?;
        let Some(live) = &mut state.live else {
            return Err(not_started());
        };
        let free = live.attached.iter().position(|place| *place == 0);
        let at = free.unwrap_or(live.attached.len());
        if at as u64 >= completion::QUEUES_MAX {
            fail!(
                Full,
                "{} queues report to this completion queue, the maximum",
                completion::QUEUES_MAX
            );
        }
        live.queues.set(at, queue)?;
        if free.is_none() {
            live.attached.push(queue);
            let count = live.attached.len() as u64;
            live.handle.set(completion::QUEUE_COUNT, count)?;
        } else {
            live.attached[at] = queue;
        }
        Ok(())
    }

    /// Removes a queue.
    fn detach(&self, queue: u64) {
        let Ok(mut state) = self.state.enter() else {
            return;
        };
        if let Some(live) = &mut state.live
            && let Some(at) = live.attached.iter().position(|place| *place == queue)
        {
            // A dead process has no device code that reads the list.
            let _ = live.queues.set(at, 0);
            live.attached[at] = 0;
        }
    }

    fn start(&self, thread: Option<&Arc<Thread>>) -> Result<Live> {
        let core = self.dpa.core()?;
        let entries = (self.elements + SPARE).next_power_of_two();
        let log_entries = entries.ilog2();
        let ring = Block::new(&core, BLOCK << log_entries)?;
        ring.write(0, &Cq::initial_ring(log_entries))?;
        let doorbell = Block::new(&core, 8)?;
        let elements = Block::new(&core, element::WORDS as u64 * WORD * u64::from(entries))?;
        let queues = Block::new(&core, completion::QUEUES_MAX * WORD)?;
        let target = match thread {
            Some(thread) => CqTarget::Thread(thread.number()?),
            None => CqTarget::None,
        };
        let attributes = CqAttr {
            log_entries,
            ring: ring.address(),
            doorbell: doorbell.address(),
            uar: core.uar(),
            target,
            overrun_ignore: false,
        };
        let cq = Cq::create(core.process(), &attributes).map_err(failed)?;
        if thread.is_some() {
            // The first completion activates the thread, without a request of device code.
            cq.arm(0).map_err(failed)?;
        }
        let words = [
            (completion::NUMBER, u64::from(cq.number())),
            (completion::LOG_ENTRIES, u64::from(log_entries)),
            (completion::RING, ring.address()),
            (completion::DOORBELL, doorbell.address()),
            (completion::UAR, u64::from(core.uar())),
            (completion::ELEMENTS, elements.address()),
            (completion::QUEUES, queues.address()),
        ];
        Ok(Live {
            handle: Block::object(&core, Kind::Completion, completion::WORDS, &words)?,
            cq,
            queues,
            attached: Vec::new(),
            _memory: [ring, doorbell, elements],
            _thread: thread.map(|thread| thread.users.lease(Completion::NAME)),
        })
    }
}

/// Sizes and numbers of a queue pair.
#[derive(Debug, Clone)]
pub(crate) struct Sizes {
    pub(crate) send: u32,
    pub(crate) receive: Option<u32>,
    /// Receive entries in place of its own.
    pub(crate) shared: Option<Arc<Receives>>,
    pub(crate) user_data: u32,
}

/// Memory that the program has for a queue pair: addresses, and bytes from there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    /// Receive entries of 16 bytes, and then blocks of 64 bytes.
    pub(crate) rings: (u64, u64),
    /// Doorbell records.
    pub(crate) records: (u64, u64),
}

impl Place {
    /// Refuses memory that is too small or not aligned.
    fn check(self, rings: u64) -> Result<()> {
        for (what, (address, bytes), needed, align) in [
            ("the rings", self.rings, rings, BLOCK),
            ("the doorbell records", self.records, 8, 8),
        ] {
            if bytes < needed || !address.is_multiple_of(align) {
                fail!(
                    InvalidValue,
                    "{what} need {needed} bytes at a multiple of {align}, and have {bytes} at {address:#x}"
                );
            }
        }
        Ok(())
    }
}

/// A queue pair that reports to a completion queue.
#[derive(Debug)]
pub(crate) struct Queue {
    // Destroyed before its memory.
    qp: Qp,
    object: Block,
    _memory: Vec<Block>,
    // Destroyed after the queue pair.
    _shared: Option<Arc<Receives>>,
    completion: Arc<Completion>,
}

impl Queue {
    /// A queue pair in memory of its own.
    pub(crate) fn new(completion: &Arc<Completion>, sizes: Sizes) -> Result<Self> {
        Self::at(completion, sizes, None)
    }

    /// A queue pair in the program's memory, or in memory of its own.
    pub(crate) fn at(
        completion: &Arc<Completion>,
        sizes: Sizes,
        place: Option<Place>,
    ) -> Result<Self> {
        let core = completion.core()?;
        let log_send = sizes.send.next_power_of_two().max(4).ilog2();
        let mut memory = Vec::new();
        let mut own = |bytes: u64| -> Result<u64> {
            let block = Block::new(&core, bytes)?;
            let address = block.address();
            memory.push(block);
            Ok(address)
        };
        let log_receive = sizes
            .receive
            .map(|entries| entries.next_power_of_two().ilog2());
        let receive = log_receive.map(|log_entries| Receive {
            log_entries,
            log_stride: queue::LOG_ENTRY,
        });
        let receive_bytes = log_receive.map_or(0, |log| 1_u64 << (log + queue::LOG_ENTRY));
        let (ring, doorbell) = match place {
            Some(place) => {
                place.check(receive_bytes + (BLOCK << log_send))?;
                (place.rings.0, place.records.0)
            }
            None => {
                let rings = receive_bytes.max(BLOCK) + (BLOCK << log_send);
                (own(rings)?, own(8)?)
            }
        };
        let marks = own(1 << log_send)?;
        let cq = completion.number()?;
        let attributes = QpAttr {
            ring,
            log_send,
            receive,
            shared: sizes.shared.as_ref().map(|shared| shared.number()),
            doorbell,
            send_cq: cq,
            recv_cq: cq,
            uar: core.uar(),
            ..QpAttr::default()
        };
        let qp = Qp::create(core.process(), &attributes).map_err(failed)?;
        let words = [
            (queue::NUMBER, u64::from(qp.number())),
            (queue::UAR, u64::from(core.uar())),
            (queue::DOORBELL, doorbell),
            (queue::SEND_RING, ring + qp.send_offset()),
            (queue::SEND_LOG, u64::from(log_send)),
            (queue::RECEIVE_RING, ring),
            (queue::RECEIVE_LOG, u64::from(log_receive.unwrap_or(0))),
            (queue::MARKS, marks),
            (queue::USER_DATA, u64::from(sizes.user_data)),
            (
                queue::SHARED,
                sizes.shared.as_ref().map_or(0, |shared| shared.address()),
            ),
        ];
        let object = Block::object(&core, Kind::Queue, queue::WORDS, &words)?;
        completion.attach(object.address())?;
        Ok(Self {
            qp,
            object,
            _memory: memory,
            _shared: sizes.shared,
            completion: Arc::clone(completion),
        })
    }

    pub(crate) fn qp(&self) -> &Qp {
        &self.qp
    }

    pub(crate) fn address(&self) -> u64 {
        self.object.address()
    }

    /// Lets device code post.
    pub(crate) fn set_connected(&self) -> Result<()> {
        self.object.set(queue::CONNECTED, 1)
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.completion.detach(self.object.address());
    }
}

/// `doca_dpa_completion_create`.
///
/// # Safety
/// `place` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_dpa_completion_create(
    dpa: *mut Dpa,
    elements: u32,
    place: *mut *mut Completion,
) -> Code {
    call("doca_dpa_completion_create", || {
        check_place(place)?;
        let dpa = find(dpa)?;
        dpa.core()?;
        check_count(elements, ELEMENTS_MAX, "elements of a completion queue")?;
        let created = Arc::new(Completion {
            _lease: dpa.users.lease(Completion::NAME),
            dpa,
            elements,
            state: Alone::default(),
            users: Arc::default(),
        });
        // SAFETY: checked above.
        unsafe { place.write(publish(&created)) };
        Ok(())
    })
}

/// `doca_dpa_completion_destroy`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_dpa_completion_destroy(completion: *mut Completion) -> Code {
    call("doca_dpa_completion_destroy", || {
        let completion = find(completion)?;
        let mut state = completion.state.enter()?;
        completion.users.check_none()?;
        state.live = None;
        withdraw(&completion);
        Ok(())
    })
}

getters! {
    Completion;
    doca_dpa_completion_get_queue_size: u32 = |completion| completion.elements;
    doca_dpa_completion_get_thread: *const Thread = |completion| {
        let state = completion.state.enter()?;
        state.thread.as_ref().map_or(std::ptr::null(), Arc::as_ptr)
    };
    doca_dpa_completion_get_dpa_handle: u64 = |completion| completion.handle()?;
}

/// `doca_dpa_completion_set_thread`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_dpa_completion_set_thread(
    completion: *mut Completion,
    thread: *mut Thread,
) -> Code {
    call("doca_dpa_completion_set_thread", || {
        let (completion, thread) = (find(completion)?, find(thread)?);
        let mut state = completion.state.enter()?;
        if state.live.is_some() {
            fail!(BadState, "the completion queue is started with its thread");
        }
        if !Arc::ptr_eq(&completion.dpa.core()?, &thread.dpa.core()?) {
            fail!(NotPermitted, "the thread belongs to another DPA context");
        }
        state.thread = Some(thread);
        Ok(())
    })
}

/// `doca_dpa_completion_start`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_dpa_completion_start(completion: *mut Completion) -> Code {
    call("doca_dpa_completion_start", || {
        let completion = find(completion)?;
        let mut state = completion.state.enter()?;
        if state.live.is_some() {
            fail!(BadState, "the completion queue is started already");
        }
        state.live = Some(completion.start(state.thread.as_ref())?);
        Ok(())
    })
}

/// `doca_dpa_completion_stop`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_dpa_completion_stop(completion: *mut Completion) -> Code {
    call("doca_dpa_completion_stop", || {
        let completion = find(completion)?;
        let mut state = completion.state.enter()?;
        completion.users.check_none()?;
        match state.live.take() {
            Some(_) => Ok(()),
            None => Err(not_started()),
        }
    })
}
