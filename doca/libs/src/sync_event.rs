//! Sync events. With a place on the CPU, the counter is in memory of this process; otherwise in that of the DPA.

use crate::description::{BYTES, Kind as Described, Memory};
use crate::dev::{Dev, Registration};
use crate::dpa::{Block, Core, Dpa, failed};
use crate::error::{Code, Fault, Result, call, fail};
use crate::object::{Alone, Lease, Object, check_place, find, publish, store, withdraw};
use dpa_dev::objects::{Kind, event, remote_event};
use flexio::{Mkey, Word};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

const ALL_RIGHTS: u32 = mlx5dv_sys::IBV_ACCESS_LOCAL_WRITE
    | mlx5dv_sys::IBV_ACCESS_REMOTE_READ
    | mlx5dv_sys::IBV_ACCESS_REMOTE_WRITE
    | mlx5dv_sys::IBV_ACCESS_REMOTE_ATOMIC;

/// How often a wait asks the DPA for lines and faults.
const ASK: Duration = Duration::from_millis(2);

/// `struct doca_sync_event`.
#[derive(Debug)]
pub struct Event {
    places: Alone<Places>,
    live: RwLock<Option<Arc<Live>>>,
}

impl Object for Event {
    const NAME: &'static str = "struct doca_sync_event";
}

/// Publishers and subscribers.
#[derive(Debug, Default)]
struct Places {
    cpu_publisher: Option<(Arc<Dev>, Lease)>,
    cpu_subscriber: Option<(Arc<Dev>, Lease)>,
    dpa_publisher: Option<(Arc<Dpa>, Lease)>,
    dpa_subscriber: Option<(Arc<Dpa>, Lease)>,
    is_remote: bool,
    export: Option<Box<[u8; BYTES]>>,
}

/// A started event.
#[derive(Debug)]
struct Live {
    counter: Counter,
    core: Option<Arc<Core>>,
    /// Rights of device code, of [`event::RIGHTS`].
    rights: u64,
    is_remote: bool,
    handle: Mutex<Option<Block>>,
    /// Upper bound of the value that launches so far can give; `None` if anyone else may change the event.
    promised: Mutex<Option<u64>>,
}

#[derive(Debug)]
enum Counter {
    /// In this process. The DPA's key, and the other node's key.
    Host {
        // Released before the memory.
        dpa: Option<Registration>,
        net: Option<Registration>,
        word: Box<Line>,
    },
    /// In the memory of the DPA, with a key for the other node.
    Dpa { key: Option<Mkey>, block: Block },
}

/// A counter on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Line(AtomicU64);

/// What a launch does to its event.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Launched {
    Set(u64),
    Add(u64),
}

fn not_started() -> Fault {
    Fault::new(
        Code::BadState,
        "the event is not started: call doca_sync_event_start first",
    )
}

impl Event {
    fn live(&self) -> Result<Arc<Live>> {
        let live = self.live.read().unwrap_or_else(PoisonError::into_inner);
        live.clone().ok_or_else(not_started)
    }

    fn is_live(&self, live: &Arc<Live>) -> bool {
        let current = self.live.read().unwrap_or_else(PoisonError::into_inner);
        current
            .as_ref()
            .is_some_and(|current| Arc::ptr_eq(current, live))
    }

    fn settings(&self) -> Result<crate::object::Guard<'_, Places>> {
        let places = self.places.enter()?;
        if self.live().is_ok() {
            fail!(
                BadState,
                "the event is started: add its locations before doca_sync_event_start"
            );
        }
        Ok(places)
    }

    /// The word that a launch waits for.
    pub(crate) fn wait_word(&self, core: &Arc<Core>, threshold: u64, kernel: &str) -> Result<Word> {
        let live = self.live()?;
        live.check_core(core, event::READS, "subscriber", "wait event")?;
        let promised = *live.promised.lock().unwrap_or_else(PoisonError::into_inner);
        if promised.is_some_and(|promised| promised <= threshold) {
            fail!(
                BadState,
                "the kernel {kernel} would wait for an event that no kernel launched before it raises above {threshold}: \
                 launch the publisher first"
            );
        }
        Ok(live.word())
    }

    /// The word that a launch changes.
    pub(crate) fn done_word(&self, core: &Arc<Core>) -> Result<Word> {
        let live = self.live()?;
        live.check_core(core, event::WRITES, "publisher", "completion event")?;
        Ok(live.word())
    }

    /// Takes note of a launch that will change the event.
    pub(crate) fn promise(&self, change: Launched) {
        let Ok(live) = self.live() else { return };
        let mut promised = live.promised.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bound) = promised.as_mut() {
            *bound = match change {
                Launched::Set(value) => value.max(*bound),
                Launched::Add(value) => bound.saturating_add(value),
            };
        }
    }
}

impl Live {
    fn word(&self) -> Word {
        match &self.counter {
            Counter::Host { dpa, word, .. } => Word::Key {
                key: dpa.as_ref().map_or(0, Registration::lkey),
                address: std::ptr::from_ref(&word.0).addr() as u64,
            },
            Counter::Dpa { block, .. } => Word::Dpa(block.address()),
        }
    }

    fn check_core(&self, core: &Arc<Core>, right: u64, role: &str, what: &str) -> Result<()> {
        let is_own = self.core.as_ref().is_some_and(|own| Arc::ptr_eq(own, core));
        if !is_own {
            fail!(
                NotPermitted,
                "the {what} belongs to another DPA context, or to none"
            );
        }
        if self.rights & right == 0 {
            fail!(
                NotPermitted,
                "the DPA is no {role} of the {what}: add the location before its start"
            );
        }
        Ok(())
    }

    /// The counter, for the CPU.
    fn counter(&self) -> Result<&AtomicU64> {
        match &self.counter {
            Counter::Host { word, .. } => Ok(&word.0),
            Counter::Dpa { .. } => fail!(
                NotPermitted,
                "the CPU is neither publisher nor subscriber of this event: add a location before its start"
            ),
        }
    }

    /// Lines and faults of the DPA that publishes the event.
    fn ask(&self) -> Result<()> {
        match &self.core {
            Some(core) => {
                core.drain();
                core.check()
            }
            None => Ok(()),
        }
    }
}

/// `doca_sync_event_create`.
///
/// # Safety
/// `event` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_sync_event_create(event: *mut *mut Event) -> Code {
    call("doca_sync_event_create", || {
        check_place(event)?;
        let created = Arc::new(Event {
            places: Alone::default(),
            live: RwLock::default(),
        });
        // SAFETY: checked above.
        unsafe { event.write(publish(&created)) };
        Ok(())
    })
}

/// `doca_sync_event_destroy`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_sync_event_destroy(event: *mut Event) -> Code {
    call("doca_sync_event_destroy", || {
        let event = find(event)?;
        let mut places = event.places.enter()?;
        *event.live.write().unwrap_or_else(PoisonError::into_inner) = None;
        *places = Places::default();
        withdraw(&event);
        Ok(())
    })
}

macro_rules! locations {
    ($($function:ident($of:ty) => $place:ident;)*) => {$(
        #[doc = concat!("`", stringify!($function), "`.")]
        #[unsafe(no_mangle)]
        pub extern "C" fn $function(event: *mut Event, of: *mut $of) -> Code {
            call(stringify!($function), || {
                let (event, of) = (find(event)?, find(of)?);
                let mut places = event.settings()?;
                if places.$place.is_some() {
                    fail!(AlreadyExist, "the event has this location already");
                }
                let lease = of.users.lease(Event::NAME);
                places.$place = Some((of, lease));
                Ok(())
            })
        }
    )*};
}

locations! {
    doca_sync_event_add_publisher_location_cpu(Dev) => cpu_publisher;
    doca_sync_event_add_subscriber_location_cpu(Dev) => cpu_subscriber;
    doca_sync_event_add_publisher_location_dpa(Dpa) => dpa_publisher;
    doca_sync_event_add_subscriber_location_dpa(Dpa) => dpa_subscriber;
}

/// `doca_sync_event_add_publisher_location_remote_net`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_sync_event_add_publisher_location_remote_net(event: *mut Event) -> Code {
    call("doca_sync_event_add_publisher_location_remote_net", || {
        let event = find(event)?;
        let mut places = event.settings()?;
        if places.is_remote {
            fail!(AlreadyExist, "the event has this location already");
        }
        places.is_remote = true;
        Ok(())
    })
}

fn start(places: &Places) -> Result<Live> {
    let dpas = [&places.dpa_publisher, &places.dpa_subscriber];
    let has_publisher =
        places.cpu_publisher.is_some() || places.dpa_publisher.is_some() || places.is_remote;
    if !has_publisher {
        fail!(BadConfig, "the event has no publisher: add its location");
    }
    if places.cpu_subscriber.is_none() && places.dpa_subscriber.is_none() {
        fail!(BadConfig, "the event has no subscriber: add its location");
    }
    let mut core: Option<Arc<Core>> = None;
    for (dpa, _) in dpas.into_iter().flatten() {
        let own = dpa.core()?;
        if core.as_ref().is_some_and(|core| !Arc::ptr_eq(core, &own)) {
            fail!(
                BadConfig,
                "publisher and subscriber are DPA contexts of different processes"
            );
        }
        core = Some(own);
    }
    let cpu = places
        .cpu_subscriber
        .as_ref()
        .or(places.cpu_publisher.as_ref());
    let counter = match (cpu, &core) {
        (Some((dev, _)), core) => {
            let word = Box::<Line>::default();
            let address = std::ptr::from_ref(&word.0).expose_provenance();
            let register = |dev: &Arc<Dev>| {
                // SAFETY: the counter lives as long as its registrations.
                unsafe { dev.register(address, 8, ALL_RIGHTS) }
            };
            let dpa = core.as_ref().map(|core| register(core.dev())).transpose()?;
            let net = places.is_remote.then(|| register(dev)).transpose()?;
            Counter::Host { dpa, net, word }
        }
        (None, Some(core)) => {
            let block = Block::new(core, 8)?;
            let key = if places.is_remote {
                let key = core.process().mkey(block.address(), 8, ALL_RIGHTS);
                Some(key.map_err(failed)?)
            } else {
                None
            };
            Counter::Dpa { key, block }
        }
        (None, None) => fail!(BadConfig, "the event has no place for its counter"),
    };
    let right = |place: &Option<_>, right: u64| if place.is_some() { right } else { 0 };
    let is_for_launches = cpu.is_none() && !places.is_remote;
    Ok(Live {
        counter,
        core,
        rights: right(&places.dpa_subscriber, event::READS)
            | right(&places.dpa_publisher, event::WRITES),
        is_remote: places.is_remote,
        handle: Mutex::default(),
        promised: Mutex::new(is_for_launches.then_some(0)),
    })
}

/// `doca_sync_event_start`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_sync_event_start(event: *mut Event) -> Code {
    call("doca_sync_event_start", || {
        let event = find(event)?;
        let places = event.settings()?;
        let live = start(&places)?;
        *event.live.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(live));
        Ok(())
    })
}

/// `doca_sync_event_stop`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_sync_event_stop(event: *mut Event) -> Code {
    call("doca_sync_event_stop", || {
        let event = find(event)?;
        let mut places = event.places.enter()?;
        let mut live = event.live.write().unwrap_or_else(PoisonError::into_inner);
        if live.take().is_none() {
            return Err(not_started());
        }
        places.export = None;
        Ok(())
    })
}

/// `doca_sync_event_get`.
///
/// # Safety
/// `value` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_sync_event_get(event: *const Event, value: *mut u64) -> Code {
    call("doca_sync_event_get", || {
        let live = find(event)?.live()?;
        let counter = live.counter()?;
        // SAFETY: as the caller promises.
        unsafe { store(value, counter.load(Ordering::Acquire)) }
    })
}

/// `doca_sync_event_update_add`.
///
/// # Safety
/// `before` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_sync_event_update_add(
    event: *mut Event,
    value: u64,
    before: *mut u64,
) -> Code {
    call("doca_sync_event_update_add", || {
        let live = find(event)?.live()?;
        let counter = live.counter()?;
        let old = counter.fetch_add(value, Ordering::AcqRel);
        if !before.is_null() {
            // SAFETY: as the caller promises.
            unsafe { before.write(old) };
        }
        Ok(())
    })
}

/// `doca_sync_event_update_set`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_sync_event_update_set(event: *mut Event, value: u64) -> Code {
    call("doca_sync_event_update_set", || {
        let live = find(event)?.live()?;
        let counter = live.counter()?;
        counter.store(value, Ordering::Release);
        Ok(())
    })
}

fn wait(event: *const Event, mask: u64, yields: bool, is_it: impl Fn(u64) -> bool) -> Result<()> {
    let event = find(event)?;
    let live = event.live()?;
    let counter = live.counter()?;
    let mut asked = Instant::now();
    loop {
        if is_it(counter.load(Ordering::Acquire) & mask) {
            break;
        }
        if asked.elapsed() >= ASK {
            if !event.is_live(&live) {
                fail!(BadState, "the event has stopped during the wait");
            }
            live.ask()?;
            asked = Instant::now();
        }
        if yields {
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }
    // What device code has said before it changed the event.
    if let Some(core) = &live.core {
        core.drain();
    }
    Ok(())
}

/// `doca_sync_event_wait_gt`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_sync_event_wait_gt(event: *const Event, value: u64, mask: u64) -> Code {
    call("doca_sync_event_wait_gt", || {
        wait(event, mask, false, |now| now > value)
    })
}

/// `doca_sync_event_wait_gt_yield`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_sync_event_wait_gt_yield(
    event: *const Event,
    value: u64,
    mask: u64,
) -> Code {
    call("doca_sync_event_wait_gt_yield", || {
        wait(event, mask, true, |now| now > value)
    })
}

/// `doca_sync_event_wait_neq`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_sync_event_wait_neq(event: *const Event, value: u64, mask: u64) -> Code {
    call("doca_sync_event_wait_neq", || {
        wait(event, mask, false, |now| now != value)
    })
}

/// `doca_sync_event_get_dpa_handle`.
///
/// # Safety
/// `handle` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_sync_event_get_dpa_handle(
    event: *mut Event,
    dpa: *mut Dpa,
    handle: *mut u64,
) -> Code {
    call("doca_sync_event_get_dpa_handle", || {
        let (live, core) = (find(event)?.live()?, find(dpa)?.core()?);
        let is_own = live
            .core
            .as_ref()
            .is_some_and(|own| Arc::ptr_eq(own, &core));
        if !is_own {
            fail!(
                NotPermitted,
                "the event has no location on this DPA context: add it before doca_sync_event_start"
            );
        }
        let mut block = live.handle.lock().unwrap_or_else(PoisonError::into_inner);
        if block.is_none() {
            let (key, address) = match live.word() {
                Word::Key { key, address } => (key, address),
                Word::Dpa(address) => (0, address),
            };
            let words = [
                (event::KEY, u64::from(key)),
                (event::ADDRESS, address),
                // Public programs raise events in kernels of a DPA that only subscribes, so a location gives both rights.
                (event::RIGHTS, event::READS | event::WRITES),
            ];
            *block = Some(Block::object(&core, Kind::Event, event::WORDS, &words)?);
        }
        // From now on kernels may change the event too.
        *live.promised.lock().unwrap_or_else(PoisonError::into_inner) = None;
        let address = block.as_ref().map_or(0, Block::address);
        // SAFETY: as the caller promises.
        unsafe { store(handle, address) }
    })
}

/// `doca_sync_event_export_to_remote_net`.
///
/// # Safety
/// The places are NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_sync_event_export_to_remote_net(
    event: *mut Event,
    export_data: *mut *const u8,
    length: *mut usize,
) -> Code {
    call("doca_sync_event_export_to_remote_net", || {
        check_place(export_data)?;
        check_place(length)?;
        let event = find(event)?;
        let mut places = event.places.enter()?;
        let live = event.live()?;
        if !live.is_remote {
            fail!(
                NotPermitted,
                "the other node is no publisher of this event: add the location before its start"
            );
        }
        let (rkey, address) = match &live.counter {
            Counter::Host { net, word, .. } => (
                net.as_ref().map_or(0, Registration::rkey),
                std::ptr::from_ref(&word.0).addr() as u64,
            ),
            Counter::Dpa { key, block } => (key.as_ref().map_or(0, Mkey::key), block.address()),
        };
        let memory = Memory {
            address,
            length: 8,
            rkey,
            rights: 0,
        };
        let bytes = places
            .export
            .insert(Box::new(memory.describe(Described::Event)));
        // SAFETY: checked above. The event keeps the bytes until it stops.
        unsafe {
            export_data.write(bytes.as_ptr());
            length.write(BYTES);
        }
        Ok(())
    })
}

/// `struct doca_sync_event_remote_net`: an event of the other node.
#[derive(Debug)]
pub struct RemoteEvent {
    memory: Memory,
    handles: Alone<Vec<(Arc<Core>, Block)>>,
    _lease: Lease,
}

impl Object for RemoteEvent {
    const NAME: &'static str = "struct doca_sync_event_remote_net";
}

/// `doca_sync_event_remote_net_create_from_export`.
///
/// # Safety
/// `export_data` is NULL or has `length` bytes; `event` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_sync_event_remote_net_create_from_export(
    dev: *mut Dev,
    export_data: *const u8,
    length: usize,
    event: *mut *mut RemoteEvent,
) -> Code {
    call("doca_sync_event_remote_net_create_from_export", || {
        check_place(event)?;
        let dev = find(dev)?;
        // SAFETY: as the caller promises.
        let bytes = unsafe { bytes_of(export_data, length) }?;
        let memory = Memory::parse(Described::Event, bytes)?;
        if memory.length != 8 || memory.address % 8 != 0 {
            fail!(InvalidValue, "the description is not that of an event");
        }
        let created = Arc::new(RemoteEvent {
            memory,
            handles: Alone::default(),
            _lease: dev.users.lease(RemoteEvent::NAME),
        });
        // SAFETY: checked above.
        unsafe { event.write(publish(&created)) };
        Ok(())
    })
}

/// Bytes that a program passes.
///
/// # Safety
/// NULL, or this many bytes.
pub(crate) unsafe fn bytes_of<'a>(data: *const u8, length: usize) -> Result<&'a [u8]> {
    if data.is_null() {
        fail!(InvalidValue, "the pointer to the description is NULL");
    }
    // SAFETY: as the caller promises.
    Ok(unsafe { std::slice::from_raw_parts(data, length) })
}

/// `doca_sync_event_remote_net_destroy`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_sync_event_remote_net_destroy(event: *mut RemoteEvent) -> Code {
    call("doca_sync_event_remote_net_destroy", || {
        let event = find(event)?;
        event.handles.enter()?.clear();
        withdraw(&event);
        Ok(())
    })
}

/// `doca_sync_event_remote_net_get_dpa_handle`.
///
/// # Safety
/// `handle` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_sync_event_remote_net_get_dpa_handle(
    event: *mut RemoteEvent,
    dpa: *mut Dpa,
    handle: *mut u64,
) -> Code {
    call("doca_sync_event_remote_net_get_dpa_handle", || {
        let (event, core) = (find(event)?, find(dpa)?.core()?);
        let mut handles = event.handles.enter()?;
        let known = handles.iter().find(|(of, _)| Arc::ptr_eq(of, &core));
        let address = match known {
            Some((_, block)) => block.address(),
            None => {
                let words = [
                    (remote_event::KEY, u64::from(event.memory.rkey)),
                    (remote_event::ADDRESS, event.memory.address),
                ];
                let block = Block::object(&core, Kind::RemoteEvent, remote_event::WORDS, &words)?;
                let address = block.address();
                handles.push((core, block));
                address
            }
        };
        // SAFETY: as the caller promises.
        unsafe { store(handle, address) }
    })
}
