//! The interface that UCC looks up by the component's name, and its functions for the library, contexts and teams.

use crate::bindings as b;
use crate::bindings::{ucc_context_params_t, ucc_status_t, ucc_team_params_t};
use crate::config::{self, Entry};
use crate::context::ContextState;
use crate::guard;
use crate::layout::{Layout, NEWEST, OBJECT_BYTES};
use crate::log;
use crate::object::{allocate, free, own};
use crate::oob::Oob;
use crate::places::Identity;
use crate::settings::{Fallback, Served, Settings};
use crate::task;
use crate::team::{Joined, TeamState};
use crate::ucc::{Tune, Ucc, read, write};
use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// `ucc_tl_iface_t` of any known version. UCC writes the component's number and handle to it.
#[repr(C, align(16))]
pub struct Interface(UnsafeCell<[u8; OBJECT_BYTES]>);

// SAFETY: only the component's constructor writes to it, before UCC knows its address; later only UCC does.
unsafe impl Sync for Interface {}

impl std::fmt::Debug for Interface {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Interface")
    }
}

/// UCC looks up this symbol: the name of the component's file without `lib` and `.so`.
#[unsafe(no_mangle)]
pub static ucc_tl_xgvmi: Interface = Interface(UnsafeCell::new([0; OBJECT_BYTES]));

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = construct;

/// False if a check of this UCC has failed. The component then refuses.
static USABLE: AtomicBool = AtomicBool::new(false);

/// Why the component refuses.
static REASON: OnceLock<&'static CStr> = OnceLock::new();

/// Why the component refuses the UCC of this process; empty if it does not refuse. `xgvmi doctor` calls this.
#[unsafe(no_mangle)]
pub extern "C" fn ucc_tl_xgvmi_status() -> *const c_char {
    REASON.get().copied().unwrap_or(c"").as_ptr()
}

/// The component's default score among components, which `ucc_info -s` shows. UCC requires it to differ from the scores of
/// others (at most 50), and does not use it.
const COMPONENT_SCORE: c_int = DEFAULT_SCORE.cast_signed();

/// Default of the option SCORE, and score of the collectives of a team whose options are invalid.
const DEFAULT_SCORE: u32 = 100;

type Status0 = unsafe extern "C" fn() -> ucc_status_t;

/// Fills in the interface while UCC loads the component.
extern "C" fn construct() {
    guard("the constructor", || {
        let ucc = match Ucc::find() {
            Ok(ucc) => ucc,
            Err(missing) => {
                // Another program than UCC, such as a test, loads the component, or UCC lacks a symbol.
                let _ = REASON.set(missing);
                return b::UCC_ERR_NOT_FOUND;
            }
        };
        let [major, minor, release] = ucc.version;
        let checked = match ucc.layout {
            None => Err(c"the component does not know this version"),
            Some(_) => ucc.check_tables(),
        };
        if let Err(reason) = checked {
            let _ = REASON.set(reason);
            log::warning!(
                "UCC {major}.{minor}.{release} is not used: {}; known are {}",
                reason.to_string_lossy(),
                Layout::known()
            );
        }
        USABLE.store(checked.is_ok(), Ordering::Release);
        fill(ucc, &ucc.layout.unwrap_or(NEWEST), checked.is_ok());
        b::UCC_OK
    });
}

/// Writes the interface in the layout of this UCC. If the component is not usable, UCC finds only a name and functions
/// that refuse.
fn fill(ucc: &Ucc, layout: &Layout, usable: bool) {
    let to: *mut c_void = ucc_tl_xgvmi.0.get().cast();
    let at = layout.iface;
    // SAFETY: the interface has at least the size of every version, the fields are inside it, and UCC does not know it
    // yet.
    unsafe {
        write(to, at.name, c"xgvmi".as_ptr());
        write(to, at.score, COMPONENT_SCORE);
        write(to, at.lib_config, Entry::of_lib(ucc));
        write(to, at.lib, lib_init as unsafe extern "C" fn(_, _, _) -> _);
        write(to, at.lib + 8, lib_finalize as unsafe extern "C" fn(_));
        write(
            to,
            at.lib + 16,
            lib_attributes as unsafe extern "C" fn(_, _) -> _,
        );
        write(
            to,
            at.lib + 24,
            lib_properties as unsafe extern "C" fn(_) -> _,
        );
        write(
            to,
            at.context,
            context_create as unsafe extern "C" fn(_, _, _) -> _,
        );
        write(
            to,
            at.context + 16,
            context_destroy as unsafe extern "C" fn(_),
        );
        write(
            to,
            at.context + 24,
            context_attributes as unsafe extern "C" fn(_, _) -> _,
        );
        // mem_map, mem_unmap and memh_pack must not be null.
        for place in [32, 40, 48] {
            write(to, at.context + place, refuse as Status0);
        }
        write(
            to,
            at.team,
            team_create_post as unsafe extern "C" fn(_, _, _) -> _,
        );
        write(
            to,
            at.team + 8,
            team_create_test as unsafe extern "C" fn(_) -> _,
        );
        write(
            to,
            at.team + 16,
            team_destroy as unsafe extern "C" fn(_) -> _,
        );
        write(
            to,
            at.team + 24,
            team_scores as unsafe extern "C" fn(_, _) -> _,
        );
        write(
            to,
            at.collective,
            task::init as unsafe extern "C" fn(_, _, _) -> _,
        );
    }
    let context_entry = if usable { Entry::of_context(ucc) } else { None };
    // SAFETY: as above. Without options of its own the component uses UCC's, and is never enabled.
    unsafe {
        write(
            to,
            at.context_config,
            context_entry.unwrap_or_else(|| Entry::plain_context(ucc)),
        )
    };
    if let (true, Some(list)) = (usable, ucc.option_list) {
        for place in [at.lib_config, at.context_config] {
            let entry = to.cast::<u8>().wrapping_add(place).cast::<Entry>();
            // SAFETY: written above, in no list yet, and the component is never unmapped.
            unsafe { Entry::register(entry, list) };
        }
    }
}

unsafe extern "C" fn refuse() -> ucc_status_t {
    b::UCC_ERR_NOT_SUPPORTED
}

/// `ucc_base_lib_iface_t.init`.
unsafe extern "C" fn lib_init(
    _params: *const c_void,
    config: *const c_void,
    to: *mut *mut c_void,
) -> ucc_status_t {
    guard("the library's initialisation", || {
        let Some(ucc) = Ucc::get().filter(|_| USABLE.load(Ordering::Acquire)) else {
            return b::UCC_ERR_NOT_SUPPORTED;
        };
        // SAFETY: UCC has filled in the configuration according to the interface's entry.
        log::set_level(unsafe { config::log_level(config) });
        let lib = allocate(());
        let interface: *const c_void = ucc_tl_xgvmi.0.get().cast();
        // SAFETY: newly allocated memory; the arguments are those of ucc_tl_lib_t.
        let status = unsafe { ucc.lib.construct(lib, interface, config) };
        if status == b::UCC_OK {
            // SAFETY: UCC's pointer for the result.
            unsafe { to.write(lib) };
        } else {
            // SAFETY: allocated above.
            unsafe { free::<()>(lib) };
        }
        status
    })
}

unsafe extern "C" fn lib_finalize(lib: *mut c_void) {
    guard("the library's end", || {
        if let Some(ucc) = Ucc::get() {
            // SAFETY: constructed in lib_init(), destroyed once.
            unsafe { ucc.lib.destruct(lib) };
        }
        // SAFETY: allocated in lib_init().
        unsafe { free::<()>(lib) };
        b::UCC_OK
    });
}

/// `ucc_base_lib_attr_t`.
#[repr(C)]
struct LibAttributes {
    mask: u64,
    public: b::ucc_lib_attr_t,
    min_team_size: u32,
    max_team_size: u32,
    flags: u64,
}

/// `ucc_base_lib_properties_t`.
#[repr(C)]
struct LibProperties {
    min_team_size: u32,
    max_team_size: u32,
    default_team_size: u32,
}

/// Maximum team size of a service job.
const TEAM_SIZE_MAX: u32 = xgvmi_offload::RANKS_MAX;

unsafe extern "C" fn lib_attributes(_lib: *const c_void, to: *mut c_void) -> ucc_status_t {
    const MIN_TEAM_SIZE: u64 = 1;
    const MAX_TEAM_SIZE: u64 = 2;
    // SAFETY: UCC's structure. All known versions have this layout (ucc_base_iface.h).
    let to = unsafe { &mut *to.cast::<LibAttributes>() };
    // The job's lock serializes calls from several threads.
    to.public.thread_mode = b::UCC_THREAD_MULTIPLE;
    to.public.coll_types = u64::from(
        b::UCC_COLL_TYPE_ALLTOALL
            | b::UCC_COLL_TYPE_ALLTOALLV
            | b::UCC_COLL_TYPE_ALLGATHER
            | b::UCC_COLL_TYPE_ALLGATHERV
            | b::UCC_COLL_TYPE_BCAST
            | b::UCC_COLL_TYPE_GATHER
            | b::UCC_COLL_TYPE_GATHERV
            | b::UCC_COLL_TYPE_SCATTER
            | b::UCC_COLL_TYPE_SCATTERV
            | b::UCC_COLL_TYPE_ALLREDUCE
            | b::UCC_COLL_TYPE_REDUCE
            | b::UCC_COLL_TYPE_REDUCE_SCATTER
            | b::UCC_COLL_TYPE_REDUCE_SCATTERV
            | b::UCC_COLL_TYPE_BARRIER,
    );
    to.flags = 0;
    if to.mask & MIN_TEAM_SIZE != 0 {
        to.min_team_size = 2;
    }
    if to.mask & MAX_TEAM_SIZE != 0 {
        to.max_team_size = TEAM_SIZE_MAX;
    }
    b::UCC_OK
}

unsafe extern "C" fn lib_properties(to: *mut c_void) -> ucc_status_t {
    // SAFETY: UCC's structure, as above.
    let to = unsafe { &mut *to.cast::<LibProperties>() };
    *to = LibProperties {
        min_team_size: 2,
        max_team_size: TEAM_SIZE_MAX,
        default_team_size: 2,
    };
    b::UCC_OK
}

/// The part of `ucc_base_context_params_t` that follows the public parameters.
#[repr(C)]
#[derive(Clone, Copy)]
struct ContextParams {
    estimated_ranks: c_int,
    estimated_ranks_per_node: c_int,
    node_local_id: c_int,
    thread_mode: b::ucc_thread_mode_t,
    prefix: *const c_void,
    context: *mut c_void,
}

/// An option of earlier versions.
const COLLS: &str = "UCC_TL_XGVMI_COLLS";

/// Refuses it: without it the component would serve other collectives than the user has chosen.
fn gone(value: Option<std::ffi::OsString>) -> Result<(), String> {
    let Some(value) = value else { return Ok(()) };
    Err(format!(
        "{COLLS}={} is an option of earlier versions: use UCC_TL_XGVMI_TUNE with scores in UCC's syntax, such as inf for all, or \
         alltoallv:0#bcast:0-64k:inf",
        value.display()
    ))
}

/// `ucc_base_context_iface_t.create`.
unsafe extern "C" fn context_create(
    params: *const c_void,
    config: *const c_void,
    to: *mut *mut c_void,
) -> ucc_status_t {
    guard("the creation of a context", || {
        let Some(ucc) = Ucc::get().filter(|_| USABLE.load(Ordering::Acquire)) else {
            return b::UCC_ERR_NOT_SUPPORTED;
        };
        // SAFETY: UCC has filled in the configuration according to the interface's entry.
        let raw = unsafe { config::values(config) };
        if !Settings::wanted(&raw) {
            log::debug!("off: neither UCC_TL_XGVMI_SERVICES nor UCC_TL_XGVMI_CONFIG is set");
            return b::UCC_ERR_NOT_SUPPORTED;
        }
        // SAFETY: UCC's parameters start with the public part.
        let params: ContextParams = unsafe { read(params, size_of::<ucc_context_params_t>()) };
        let tune = std::env::var("UCC_TL_UCP_TUNE").unwrap_or_default();
        // Errors are reported when a team is created. All ranks then learn of them.
        let state = Arc::new(ContextState {
            core: params.context,
            settings: gone(std::env::var_os(COLLS)).and_then(|()| Settings::new(&raw, &tune)),
            fallback: Fallback::new(&raw).unwrap_or(Fallback::Host),
            jobs: Mutex::default(),
            is_shared: params.thread_mode == b::UCC_THREAD_MULTIPLE,
        });
        let context = allocate(state);
        // SAFETY: newly allocated memory; the arguments are those of ucc_tl_context_t.
        let status = unsafe { ucc.context.construct(context, config, params.context) };
        // SAFETY: UCC's part of the object; the core context is its first field.
        let core: *mut c_void = unsafe { read(context, 0) };
        if status != b::UCC_OK || core != params.context {
            if status == b::UCC_OK {
                log::warning!("UCC's contexts are not as expected: nothing is offloaded");
            }
            // SAFETY: allocated above.
            unsafe { free::<Arc<ContextState>>(context) };
            return b::UCC_ERR_NOT_SUPPORTED;
        }
        // SAFETY: UCC's pointer for the result.
        unsafe { to.write(context) };
        b::UCC_OK
    })
}

unsafe extern "C" fn context_destroy(context: *mut c_void) {
    guard("the end of a context", || {
        {
            // SAFETY: from context_create().
            let state: &Arc<ContextState> = unsafe { own(context) };
            for job in state.jobs() {
                job.close();
            }
        }
        if let Some(ucc) = Ucc::get() {
            // SAFETY: constructed in context_create(), destroyed once.
            unsafe { ucc.context.destruct(context) };
        }
        // SAFETY: allocated in context_create().
        unsafe { free::<Arc<ContextState>>(context) };
        b::UCC_OK
    });
}

/// `ucc_base_ctx_attr_t`.
#[repr(C)]
struct ContextAttributes {
    public: b::ucc_context_attr_t,
    topology: u32,
}

unsafe extern "C" fn context_attributes(_context: *const c_void, to: *mut c_void) -> ucc_status_t {
    // SAFETY: UCC's structure. All known versions have this layout (ucc_base_iface.h).
    let to = unsafe { &mut *to.cast::<ContextAttributes>() };
    // No address, no work buffer, no topology.
    let mask = to.public.mask;
    to.public = b::ucc_context_attr_t {
        mask,
        ..Default::default()
    };
    to.topology = 0;
    b::UCC_OK
}

/// `ucc_base_team_iface_t.create_post`.
unsafe extern "C" fn team_create_post(
    context: *mut c_void,
    params: *const c_void,
    to: *mut *mut c_void,
) -> ucc_status_t {
    guard("the creation of a team", || {
        let Some((ucc, layout)) = Ucc::get().and_then(|ucc| Some((ucc, ucc.layout?))) else {
            return b::UCC_ERR_NOT_SUPPORTED;
        };
        // SAFETY: from context_create().
        let state: &Arc<ContextState> = unsafe { own(context) };
        let at = layout.team;
        // UCC's team starts with the context, followed by a copy of the parameters.
        let (rank, size, id, public): (u32, u32, u16, ucc_team_params_t) = {
            let within = |place: usize| place - at.params_mask;
            // SAFETY: fields of ucc_base_team_params_t, which starts with the public parameters; the functions are checked
            // below.
            unsafe {
                (
                    read(params, within(at.rank)),
                    read(params, within(at.size)),
                    read(params, within(at.id)),
                    read(params, 0),
                )
            }
        };
        // SAFETY: UCC creates this team.
        let identity = unsafe { Identity::of(&public, id, size) };
        let job = identity.as_ref().and_then(|team| state.job_of(team));
        if job.is_none() && !state.may_introduce_here() {
            log::info!("a team that another thread than the main one creates is not offloaded");
            return b::UCC_ERR_NOT_SUPPORTED;
        }
        // SAFETY: UCC creates teams only on complete contexts.
        if !unsafe { ucc.check_queue(&layout, state.core()) } {
            log::warning!("UCC's progress queue is not as expected: nothing is offloaded");
            return b::UCC_ERR_NOT_SUPPORTED;
        }
        let oob = (public.mask & u64::from(b::UCC_TEAM_PARAM_FIELD_OOB) != 0)
            .then(|| Oob::new(public.oob, rank, size))
            .flatten();
        let team = match (job, identity) {
            (Some((job, members)), Some(identity)) => {
                let communicator = job.join(&identity, &members);
                let joined = Joined { job, communicator };
                TeamState::within(Arc::clone(state), [rank, size], oob, joined)
            }
            (_, identity) => TeamState::new(Arc::clone(state), [rank, size], oob, identity),
        };
        let team = allocate(team);
        // SAFETY: newly allocated memory; the arguments are those of ucc_tl_team_t.
        let status = unsafe { ucc.team.construct(team, context, params) };
        // SAFETY: fields of the base team that UCC has just filled in.
        let (found_context, found_rank): (*mut c_void, u32) =
            unsafe { (read(team, at.context), read(team, at.rank)) };
        if status != b::UCC_OK || found_context != context || found_rank != rank {
            if status == b::UCC_OK {
                log::warning!("UCC's teams are not as expected: nothing is offloaded");
            }
            // SAFETY: allocated above.
            unsafe { free::<TeamState>(team) };
            return b::UCC_ERR_NOT_SUPPORTED;
        }
        // SAFETY: UCC's pointer for the result.
        unsafe { to.write(team) };
        b::UCC_OK
    })
}

unsafe extern "C" fn team_create_test(team: *mut c_void) -> ucc_status_t {
    guard("the making of a team", || {
        // SAFETY: from team_create_post().
        let state: &TeamState = unsafe { own(team) };
        if state.step() {
            b::UCC_OK
        } else {
            b::UCC_INPROGRESS
        }
    })
}

unsafe extern "C" fn team_destroy(team: *mut c_void) -> ucc_status_t {
    guard("the end of a team", || {
        if let Some(ucc) = Ucc::get() {
            // SAFETY: constructed in team_create_post(), destroyed once.
            unsafe { ucc.team.destruct(team) };
        }
        // SAFETY: allocated in team_create_post().
        unsafe { free::<TeamState>(team) };
        b::UCC_OK
    })
}

/// Scores of the team: none unless all its ranks are in one job, or its collectives have to fail.
unsafe extern "C" fn team_scores(team: *mut c_void, to: *mut *mut c_void) -> ucc_status_t {
    guard("the scores of a team", || {
        let Some(ucc) = Ucc::get() else {
            return b::UCC_ERR_NOT_SUPPORTED;
        };
        // SAFETY: UCC's pointer for the result.
        let status = unsafe { ucc.make_scores(to) };
        if status != b::UCC_OK {
            return status;
        }
        // SAFETY: from team_create_post().
        let state: &TeamState = unsafe { own(team) };
        if state.joined().is_none() && !state.must_fail() {
            return b::UCC_OK;
        }
        let (served, score) = match state.context().settings() {
            Ok(settings) => (settings.served.clone(), settings.score),
            Err(_) => (Settings::default_collectives(), DEFAULT_SCORE),
        };
        for Served { kind, first, end } in &served {
            // SAFETY: created above.
            let scores = unsafe { to.read() };
            // SAFETY: created above; the initialization function belongs to this component.
            let status =
                unsafe { ucc.add_score(scores, (*kind, *first, *end), score, task::init, team) };
            if status != b::UCC_OK {
                return status;
            }
        }
        let Ok(settings) = state.context().settings() else {
            return b::UCC_OK;
        };
        if !settings.tune.is_empty() {
            let tune = Tune {
                text: &settings.tune,
                kinds: settings.kinds,
                score,
                size: state.size,
            };
            // SAFETY: as above. UCC's other components go on with a wrong text as well.
            let status = unsafe { ucc.tune_scores(to.read(), &tune, task::init, team) };
            if status < 0 && ![b::UCC_ERR_INVALID_PARAM, b::UCC_ERR_NOT_SUPPORTED].contains(&status)
            {
                return status;
            }
        }
        b::UCC_OK
    })
}
