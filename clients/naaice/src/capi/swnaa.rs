//! `naaice_swnaa.h`: a software accelerator whose program contains the kernels.

use super::low_level::POLL_LIMIT;
use super::swnaa_steps::step;
use super::swnaa_wait::{announce, receive};
use super::{Address, call, endpoint_of, not_null, publish, session, take_back};
use crate::abi::{
    CONNECTIONS_MAX, CommContext, ConnectionManagement, MatchFunctionCode, ServerContext,
    WorkerArgs, code,
};
use crate::endpoint::{Ended, Endpoint, Role, wait_readable};
use crate::error::{ArgumentError, NaaError, Result};
use crate::kernels;
use crate::machine::{Naa, State};
use crate::server::{BACKLOG, MemoryLimit, accept_request};
use crate::verbs::{self, Event, EventChannel, EventKind, Id};
use rdmacm_sys::{rdma_cm_event, rdma_cm_id};
use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};
use std::sync::{Arc, OnceLock};

/// Environment variable: maximum number of bytes that a session's regions take.
const BYTES_MAX: &str = "NAAICE_SESSION_BYTES_MAX";
/// Its default: 16 GiB.
const BYTES_MAX_DEFAULT: u64 = 16 << 30;
/// Environment variable: maximum number of bytes that the regions of all sessions take. The default is half of the
/// machine's memory.
const ALL_BYTES_MAX: &str = "NAAICE_BYTES_MAX";

// The program defines `match_function_code`, if it is an accelerator. The weak reference makes the program's linker
// export it, and is null in programs without it.
#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".weak match_function_code",
    ".type naaice_program_kernels, @function",
    "naaice_program_kernels:",
    "mov rax, qword ptr [rip + match_function_code@GOTPCREL]",
    "ret",
    ".weak match_function_code_2",
    ".type naaice_program_kernels_2, @function",
    "naaice_program_kernels_2:",
    "mov rax, qword ptr [rip + match_function_code_2@GOTPCREL]",
    "ret",
);
#[cfg(target_arch = "aarch64")]
std::arch::global_asm!(
    ".weak match_function_code",
    ".type naaice_program_kernels, @function",
    "naaice_program_kernels:",
    "adrp x0, :got:match_function_code",
    "ldr x0, [x0, :got_lo12:match_function_code]",
    "ret",
    ".weak match_function_code_2",
    ".type naaice_program_kernels_2, @function",
    "naaice_program_kernels_2:",
    "adrp x0, :got:match_function_code_2",
    "ldr x0, [x0, :got_lo12:match_function_code_2]",
    "ret",
);

unsafe extern "C" {
    safe fn naaice_program_kernels() -> Option<MatchFunctionCode>;
    safe fn naaice_program_kernels_2() -> Option<MatchFunctionCode>;
}

/// A server, followed by what belongs to it.
#[repr(C)]
struct Server {
    public: ServerContext,
    /// Its program has interface 2.
    is_newer: bool,
}

/// A mutex of the C structure, locked.
struct Locked(*mut libc::pthread_mutex_t);

impl Locked {
    /// # Safety
    /// The structure is live, and its mutex is initialized.
    unsafe fn of(ctx: *mut ServerContext) -> Self {
        // SAFETY: the caller's promise.
        let mutex = unsafe { &raw mut (*ctx).lock };
        // SAFETY: as above.
        unsafe { libc::pthread_mutex_lock(mutex) };
        Self(mutex)
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // SAFETY: locked by this value.
        unsafe { libc::pthread_mutex_unlock(self.0) };
    }
}

fn allocate<T>() -> Result<NonNull<T>> {
    // SAFETY: any size may be requested. The C program frees it.
    let memory = unsafe { libc::calloc(1, size_of::<T>()) };
    NonNull::new(memory.cast()).ok_or_else(|| NaaError::last("calloc"))
}

/// `naaice_swnaa_init_master`: listens on a port of all addresses. Port 0 selects a free port.
///
/// # Safety
/// `ctx` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn naaice_swnaa_init_master(
    ctx: *mut *mut ServerContext,
    local_cm_port: u16,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { init_master(ctx, local_cm_port, false) }
}

/// Listens for a program with interface 1 or 2.
///
/// # Safety
/// As for [`naaice_swnaa_init_master`].
pub(super) unsafe fn init_master(
    ctx: *mut *mut ServerContext,
    local_cm_port: u16,
    is_newer: bool,
) -> c_int {
    call("naaice_swnaa_init_master", || {
        not_null(ctx, "ctx")?;
        let lib = verbs::lib()?;
        let any = verbs::resolve("0.0.0.0", local_cm_port, None)?;
        let channel = Arc::new(EventChannel::create(lib)?);
        let (id, _) = Id::listen(lib, &channel, &any, BACKLOG)?;
        drop(channel);
        let server = allocate::<Server>()?.as_ptr();
        let slots = allocate::<ConnectionManagement>()?.as_ptr();
        let master = allocate::<CommContext>()?.as_ptr();
        let (id, channel) = id.into_raw();
        // SAFETY: all three were just allocated and zeroed; the program owns them, and destroys identifier and channel
        // as the original's server does.
        unsafe {
            (*server).is_newer = is_newer;
            let server = server.cast::<ServerContext>();
            (*server).lock = libc::PTHREAD_MUTEX_INITIALIZER;
            (*server).con_mng = slots;
            (*server).master = master;
            for slot in 0..CONNECTIONS_MAX {
                (*slots).connections[slot] = u8::try_from(slot).expect("a small constant");
            }
            (*slots).top = c_int::try_from(CONNECTIONS_MAX).expect("a small constant");
            (*master).id = id;
            (*master).ev_channel = channel;
            ctx.write(server);
        }
        Ok(())
    })
}

/// A free slot, or `None`.
///
/// # Safety
/// The server is live.
unsafe fn take_slot(ctx: *mut ServerContext) -> Option<u8> {
    // SAFETY: the caller's promise.
    let _locked = unsafe { Locked::of(ctx) };
    // SAFETY: as above, and the slots are accessed under the lock.
    let slots = unsafe { &mut *(*ctx).con_mng };
    let top = usize::try_from(slots.top).ok()?.checked_sub(1)?;
    slots.top -= 1;
    slots.connections.get(top).copied()
}

/// # Safety
/// The server is live, and the slot was taken.
unsafe fn free_slot(ctx: *mut ServerContext, slot: u8) {
    // SAFETY: the caller's promise.
    let _locked = unsafe { Locked::of(ctx) };
    // SAFETY: as above, and the slots are accessed under the lock.
    let slots = unsafe { &mut *(*ctx).con_mng };
    let top = usize::try_from(slots.top).unwrap_or(0);
    if let Some(place) = slots.connections.get_mut(top) {
        *place = slot;
        slots.top += 1;
    }
    // SAFETY: as above.
    unsafe { (*ctx).worker[usize::from(slot)] = ptr::null_mut() };
}

/// Slot and end mark of the session with this identifier.
///
/// # Safety
/// The server is live.
unsafe fn find(ctx: *mut ServerContext, id: *mut rdma_cm_id) -> Option<(u8, Arc<Ended>)> {
    // SAFETY: the caller's promise.
    let _locked = unsafe { Locked::of(ctx) };
    for slot in 0..CONNECTIONS_MAX {
        // SAFETY: as above, and sessions leave the table under the lock before they are freed.
        let worker = unsafe { (*ctx).worker[slot] };
        if worker.is_null() {
            continue;
        }
        let Ok(Address(endpoint)) = endpoint_of(worker) else {
            continue;
        };
        // SAFETY: a session of the table is live; these two fields do not change after its creation.
        let (found, mark) = unsafe { ((*endpoint).public.id, Arc::clone(&(*endpoint).ended)) };
        if found == id {
            return u8::try_from(slot).ok().map(|slot| (slot, mark));
        }
    }
    None
}

/// `naaice_swnaa_poll_and_handle_connection_event`: handles a connection event, if one comes within 500 ms. Starts a
/// thread for each session.
///
/// # Safety
/// `ctx` is from `naaice_swnaa_init_master`; one thread calls this function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn naaice_swnaa_poll_and_handle_connection_event(
    ctx: *mut ServerContext,
) -> c_int {
    call("naaice_swnaa_poll_and_handle_connection_event", || {
        // SAFETY: the caller's promise.
        let Some(event) = (unsafe { next_event(ctx) })? else {
            return Ok(());
        };
        // SAFETY: the caller's promise.
        unsafe { handle_event(ctx, &event) }
    })
}

/// # Safety
/// `ctx` is null or a live server.
unsafe fn next_event(ctx: *mut ServerContext) -> Result<Option<Event>> {
    not_null(ctx, "ctx")?;
    // SAFETY: the caller's promise.
    let channel = unsafe { (*(*ctx).master).ev_channel };
    let Some(channel) = NonNull::new(channel) else {
        return Err(ArgumentError::NullPointer("ctx->master->ev_channel").into());
    };
    // SAFETY: the channel is live; the program destroys it.
    let channel = unsafe { EventChannel::borrowed(verbs::lib()?, channel) };
    if let Some(event) = channel.next()? {
        return Ok(Some(event));
    }
    wait_readable(&[channel.fd()], POLL_LIMIT)?;
    channel.next()
}

/// # Safety
/// `ctx` is a live server.
unsafe fn handle_event(ctx: *mut ServerContext, event: &Event) -> Result<()> {
    match &event.kind {
        // SAFETY: the caller's promise; the identifier of a request belongs to its receiver.
        EventKind::ConnectRequest => unsafe { request(ctx, event.id) },
        // SAFETY: the caller's promise.
        EventKind::Established => match unsafe { find(ctx, event.id) } {
            // SAFETY: the caller's promise.
            Some((slot, _)) => unsafe { start(ctx, slot) },
            None => Ok(()),
        },
        EventKind::AddressResolved | EventKind::RouteResolved | EventKind::Closed => Ok(()),
        EventKind::Rejected(_)
        | EventKind::Crowded
        | EventKind::Disconnected
        | EventKind::DeviceRemoved
        | EventKind::Failed => {
            // SAFETY: the caller's promise.
            let Some((slot, mark)) = (unsafe { find(ctx, event.id) }) else {
                return Ok(());
            };
            mark.set(State::Finished);
            // SAFETY: the caller's promise.
            if unsafe { (*ctx).worker_threads[usize::from(slot)] } == 0 {
                // The connection failed before its session had a thread.
                // SAFETY: the caller's promise; no thread uses the session.
                unsafe { end(ctx, slot) };
            }
            Ok(())
        }
    }
}

/// # Safety
/// `ctx` is a live server; the identifier has no other owner.
unsafe fn request(ctx: *mut ServerContext, id: *mut rdma_cm_id) -> Result<()> {
    let Some(id) = NonNull::new(id) else {
        return Ok(());
    };
    // SAFETY: the caller's promise; the program destroys the channel after its sessions.
    let id = unsafe { Id::adopt(verbs::lib()?, id, None) };
    // SAFETY: the caller's promise.
    let Some(slot) = (unsafe { take_slot(ctx) }) else {
        let text = format!(
            "all {CONNECTIONS_MAX} sessions of this accelerator are in use; try again later"
        );
        id.reject(&text)?;
        return Err(NaaError::NoAccelerator {
            function: 0,
            reason: format!("refused a host: {text}"),
        });
    };
    match accept_request(id, "the host".to_owned(), bytes_max(), memory()) {
        Ok(mut endpoint) => {
            endpoint.public.connection_id = slot;
            // SAFETY: the caller's promise: the server is from `init_master`.
            if unsafe { (*ctx.cast::<Server>()).is_newer } {
                endpoint.use_newer();
            }
            let worker = publish(endpoint);
            // SAFETY: the caller's promise.
            let _locked = unsafe { Locked::of(ctx) };
            // SAFETY: as above, under the lock.
            unsafe {
                (*ctx).worker[usize::from(slot)] = worker;
                (*ctx).worker_threads[usize::from(slot)] = 0;
            }
            Ok(())
        }
        Err(error) => {
            // SAFETY: the caller's promise.
            unsafe { free_slot(ctx, slot) };
            Err(error)
        }
    }
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

fn bytes_max() -> u64 {
    number(BYTES_MAX).unwrap_or(BYTES_MAX_DEFAULT)
}

/// The limit of all sessions of this process.
fn memory() -> Arc<MemoryLimit> {
    static MEMORY: OnceLock<Arc<MemoryLimit>> = OnceLock::new();
    let limit = MEMORY.get_or_init(|| {
        MemoryLimit::new(number(ALL_BYTES_MAX).unwrap_or_else(MemoryLimit::half_of_machine))
    });
    Arc::clone(limit)
}

/// Starts the session's thread.
///
/// # Safety
/// `ctx` is a live server, and the slot has a session.
unsafe fn start(ctx: *mut ServerContext, slot: u8) -> Result<()> {
    let arguments = allocate::<WorkerArgs>()?.as_ptr();
    // SAFETY: just allocated.
    unsafe {
        arguments.write(WorkerArgs {
            ctx,
            worker_id: slot,
        });
    }
    let entry = worker_procedure as unsafe extern "C" fn(*mut c_void) -> *mut c_void;
    // SAFETY: a C function of this type is one that never unwinds.
    let entry: extern "C" fn(*mut c_void) -> *mut c_void = unsafe { std::mem::transmute(entry) };
    // SAFETY: the caller's promise; the thread's number is written before anyone reads it: by this thread only.
    let created = unsafe {
        (*ctx).total_connections_lifetime = (*ctx).total_connections_lifetime.wrapping_add(1);
        let thread = &raw mut (*ctx).worker_threads[usize::from(slot)];
        libc::pthread_create(thread, ptr::null(), entry, arguments.cast())
    };
    if created == 0 {
        return Ok(());
    }
    // SAFETY: allocated above; no thread has it.
    unsafe { libc::free(arguments.cast()) };
    // SAFETY: the caller's promise; no thread uses the session.
    unsafe { end(ctx, slot) };
    Err(NaaError::Call {
        call: "pthread_create",
        source: std::io::Error::from_raw_os_error(created),
    })
}

/// Ends a session and frees its slot.
///
/// # Safety
/// `ctx` is a live server; only this thread uses the session.
unsafe fn end(ctx: *mut ServerContext, slot: u8) {
    // SAFETY: the caller's promise.
    let worker = unsafe { (*ctx).worker[usize::from(slot)] };
    let endpoint = take_back(worker);
    // The slot is free before the memory, so that the table never names a freed session; the next session of the slot
    // needs nothing of this one.
    // SAFETY: the caller's promise.
    unsafe { free_slot(ctx, slot) };
    drop(endpoint);
}

/// `worker_procedure`: serves a session until the host ends it. `args` is a `struct worker_args` from malloc.
///
/// # Safety
/// `args` describes a session of a live server, which no other thread serves.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn worker_procedure(args: *mut c_void) -> *mut c_void {
    if args.is_null() {
        return ptr::null_mut();
    }
    // SAFETY: the caller's promise.
    let WorkerArgs { ctx, worker_id } = unsafe { args.cast::<WorkerArgs>().read() };
    // SAFETY: allocated by malloc, and not used again.
    unsafe { libc::free(args) };
    // SAFETY: nobody joins the thread, as in the original.
    unsafe { libc::pthread_detach(libc::pthread_self()) };
    call("worker_procedure", || {
        // SAFETY: the caller's promise: only this thread serves the session.
        let mut endpoint = unsafe { session((*ctx).worker[usize::from(worker_id)]) }?;
        announce(&mut endpoint)?;
        loop {
            receive(&mut endpoint)?;
            if endpoint.state() != State::Calculating {
                return Ok(());
            }
            let code = run(&mut endpoint);
            endpoint.answer(code)?;
        }
    });
    // SAFETY: the caller's promise.
    unsafe { end(ctx, worker_id) };
    ptr::null_mut()
}

/// Runs the program's kernel for the session's function code.
fn run(endpoint: &mut Endpoint) -> u8 {
    let ask = match endpoint.is_newer() {
        true => naaice_program_kernels_2(),
        false => naaice_program_kernels(),
    };
    let Some(ask) = ask else {
        return code::UNKNOWN_FUNCTION;
    };
    // SAFETY: the program's function has the documented contract.
    let kernel = unsafe { kernels::find(ask, endpoint.public.fncode) };
    // SAFETY: the regions are mapped until the session ends.
    unsafe { endpoint.run_kernel(kernel) }
}

/// `naaice_swnaa_init_worker`: a session without connection, in this slot.
///
/// # Safety
/// `ctx` refers to a live server.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn naaice_swnaa_init_worker(
    ctx: *mut *mut ServerContext,
    worker_id: u8,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { init_worker(ctx, worker_id, false) }
}

/// # Safety
/// As for [`naaice_swnaa_init_worker`].
pub(super) unsafe fn init_worker(
    ctx: *mut *mut ServerContext,
    worker_id: u8,
    is_newer: bool,
) -> c_int {
    call("naaice_swnaa_init_worker", || {
        not_null(ctx, "ctx")?;
        // SAFETY: the caller's promise.
        let server = unsafe { *ctx };
        not_null(server, "*ctx")?;
        let index = usize::from(worker_id);
        if index >= CONNECTIONS_MAX {
            return Err(ArgumentError::Index {
                index,
                count: CONNECTIONS_MAX,
            }
            .into());
        }
        let mut endpoint = Endpoint::new(Role::Naa(Naa::new()), "the host".to_owned());
        endpoint.public.connection_id = worker_id;
        if is_newer {
            endpoint.use_newer();
        }
        // SAFETY: the caller's promise.
        unsafe { (*server).worker[index] = publish(endpoint) };
        Ok(())
    })
}

/// `naaice_swnaa_init_communication_context`: a session without connection.
///
/// # Safety
/// `comm_ctx` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn naaice_swnaa_init_communication_context(
    comm_ctx: *mut *mut CommContext,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { init_session(comm_ctx, false) }
}

/// # Safety
/// As for [`naaice_swnaa_init_communication_context`].
pub(super) unsafe fn init_session(comm_ctx: *mut *mut CommContext, is_newer: bool) -> c_int {
    call("naaice_swnaa_init_communication_context", || {
        not_null(comm_ctx, "comm_ctx")?;
        let mut endpoint = Endpoint::new(Role::Naa(Naa::new()), "the host".to_owned());
        if is_newer {
            endpoint.use_newer();
        }
        // SAFETY: the caller's promise.
        unsafe { comm_ctx.write(publish(endpoint)) };
        Ok(())
    })
}

/// `naaice_swnaa_setup_connection`: handles events until the first session is established.
///
/// # Safety
/// `ctx` is from `naaice_swnaa_init_master`; one thread handles its events.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn naaice_swnaa_setup_connection(ctx: *mut ServerContext) -> c_int {
    call("naaice_swnaa_setup_connection", || {
        loop {
            // SAFETY: the caller's promise.
            let Some(event) = (unsafe { next_event(ctx) })? else {
                continue;
            };
            let established = event.kind == EventKind::Established;
            // SAFETY: the caller's promise.
            unsafe { handle_event(ctx, &event) }?;
            if established {
                return Ok(());
            }
        }
    })
}

/// Handles an event that the program has taken.
///
/// # Safety
/// `ctx` is a live server; `ev` is readable.
unsafe fn handle_taken(
    name: &'static str,
    ctx: *mut ServerContext,
    ev: *const rdma_cm_event,
) -> c_int {
    call(name, || {
        not_null(ctx, "ctx")?;
        not_null(ev, "ev")?;
        // SAFETY: the caller's promise.
        let mut copy = unsafe { ptr::read(ev) };
        copy.param.conn.private_data = ptr::null();
        // SAFETY: the copy has no private data.
        let event = unsafe { Event::copy(verbs::lib()?, &copy) };
        // SAFETY: the caller's promise.
        unsafe { handle_event(ctx, &event) }
    })
}

/// `naaice_swnaa_handle_connection_requests`: accepts or refuses a host.
///
/// # Safety
/// `ctx` is a live server; `ev` is a readable event of the server.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn naaice_swnaa_handle_connection_requests(
    ctx: *mut ServerContext,
    ev: *mut rdma_cm_event,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { handle_taken("naaice_swnaa_handle_connection_requests", ctx, ev) }
}

/// `naaice_swnaa_handle_connection_established`: notes the connection.
///
/// # Safety
/// No other thread uses the session.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn naaice_swnaa_handle_connection_established(
    comm_ctx: *mut CommContext,
    _ev: *mut rdma_cm_event,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        step(
            "naaice_swnaa_handle_connection_established",
            comm_ctx,
            |_| Ok(()),
        )
    }
}

/// `naaice_swnaa_handle_error`: marks the end of a session. Its thread ends it.
///
/// # Safety
/// The session is live; `ev` is readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn naaice_swnaa_handle_error(
    comm_ctx: *mut CommContext,
    ev: *mut rdma_cm_event,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        step("naaice_swnaa_handle_error", comm_ctx, |endpoint| {
            not_null(ev, "ev")?;
            if (*ev).id == endpoint.public.id {
                endpoint.ended.set(State::Finished);
            }
            Ok(())
        })
    }
}
