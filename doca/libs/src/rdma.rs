//! RDMA connections for the DPA.

use crate::ctx::{Ctx, DataPath};
use crate::description::BYTES;
use crate::dev::{Dev, DevInfo};
use crate::dpa::{Block, Completion, Core, Dpa, Queue, Receives, Sizes};
use crate::error::{Code, Fault, Result, call, fail, value};
use crate::mmap::{access, check_rights};
use crate::object::{
    Alone, Guard, Lease, Object, check_count, check_place, find, getters, publish, withdraw,
};
use crate::path::{self, End, Settings};
use crate::sync_event::bytes_of;
use dpa_dev::objects::{Kind, WORD, rdma};
use std::ffi::c_void;
use std::sync::{Arc, Weak};

/// Most elements of a queue, and without a setting.
const QUEUE_MAX: u32 = 32_768;
const QUEUE: u32 = 128;
/// Most connections.
const CONNECTIONS_MAX: u16 = 512;

/// `struct doca_rdma`.
#[derive(Debug)]
pub struct Rdma {
    dev: Arc<Dev>,
    ctx: Arc<Ctx>,
    state: Alone<State>,
    _lease: Lease,
}

impl Object for Rdma {
    const NAME: &'static str = "struct doca_rdma";
}

#[derive(Debug)]
struct State {
    rights: u32,
    settings: Settings,
    send: u32,
    receive: u32,
    connections: u16,
    dpa: Option<(Arc<Dpa>, Lease)>,
    completion: Option<(Arc<Completion>, Lease)>,
    live: Option<Live>,
}

/// A running context.
#[derive(Debug)]
struct Live {
    connections: Vec<Arc<Connection>>,
    /// Of several connections.
    receives: Option<Arc<Receives>>,
    list: Block,
    handle: Block,
    core: Arc<Core>,
}

/// `struct doca_rdma_connection`.
#[derive(Debug)]
pub struct Connection {
    id: u32,
    queue: Queue,
    details: Box<[u8; BYTES]>,
    is_connected: Alone<bool>,
}

impl Object for Connection {
    const NAME: &'static str = "struct doca_rdma_connection";
}

fn not_running() -> Fault {
    Fault::new(
        Code::BadState,
        "the RDMA context does not run: call doca_ctx_start first",
    )
}

impl Rdma {
    fn settings(&self) -> Result<Guard<'_, State>> {
        let state = self.state.enter()?;
        if state.live.is_some() {
            fail!(
                BadState,
                "the RDMA context runs: make its settings before doca_ctx_start"
            );
        }
        Ok(state)
    }
}

impl DataPath for Rdma {
    fn is_running(&self) -> Result<bool> {
        Ok(self.state.enter()?.live.is_some())
    }

    fn set_dpa(&self, dpa: Arc<Dpa>) -> Result<()> {
        let mut state = self.settings()?;
        if !Arc::ptr_eq(&dpa.dev, &self.dev) {
            fail!(
                InvalidValue,
                "the DPA context is of {}, and the RDMA object of {}",
                dpa.dev.name(),
                self.dev.name()
            );
        }
        let lease = dpa.users.lease(Rdma::NAME);
        state.dpa = Some((dpa, lease));
        Ok(())
    }

    fn start(&self) -> Result<()> {
        let mut state = self.settings()?;
        let Some((dpa, _)) = &state.dpa else {
            fail!(
                NotSupported,
                "a data path on the processor is not supported: call doca_ctx_set_datapath_on_dpa first"
            );
        };
        let core = dpa.core()?;
        let Some((completion, _)) = &state.completion else {
            fail!(
                BadConfig,
                "the RDMA object has no completion queue: call doca_rdma_dpa_completion_attach first"
            );
        };
        if !Arc::ptr_eq(&core, &completion.core()?) {
            fail!(
                BadConfig,
                "the completion queue belongs to another DPA context than the data path"
            );
        }
        let count = u64::from(state.connections);
        let list = Block::new(&core, count * WORD)?;
        let (key, scratch) = core.scratch();
        let receives = match count {
            1 => None,
            _ => Some(Receives::new(&core, state.receive)?),
        };
        let shared = receives.as_ref().map_or(0, |shared| shared.address());
        let words = [
            (rdma::SHARED, shared),
            (rdma::CONNECTIONS, list.address()),
            (rdma::COUNT, count),
            (rdma::SCRATCH_KEY, u64::from(key)),
            (rdma::SCRATCH, scratch),
            (rdma::COMPLETION, completion.handle()?),
        ];
        let handle = Block::object(&core, Kind::Rdma, rdma::WORDS, &words)?;
        state.live = Some(Live {
            connections: Vec::new(),
            receives,
            list,
            handle,
            core,
        });
        Ok(())
    }

    fn stop(&self) -> Result<()> {
        let mut state = self.state.enter()?;
        let Some(live) = state.live.take() else {
            return Err(not_running());
        };
        for connection in &live.connections {
            withdraw(connection);
        }
        Ok(())
    }
}

/// `doca_rdma_cap_task_send_is_supported`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_rdma_cap_task_send_is_supported(devinfo: *const DevInfo) -> Code {
    // Each mlx5 device can.
    call("doca_rdma_cap_task_send_is_supported", || {
        find(devinfo).map(drop)
    })
}

/// `doca_rdma_create`.
///
/// # Safety
/// `place` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_rdma_create(dev: *mut Dev, place: *mut *mut Rdma) -> Code {
    call("doca_rdma_create", || {
        check_place(place)?;
        let dev = find(dev)?;
        let created = Arc::new_cyclic(|own: &Weak<Rdma>| Rdma {
            _lease: dev.users.lease(Rdma::NAME),
            dev,
            ctx: Arc::new(Ctx::new(Weak::clone(own) as Weak<dyn DataPath>)),
            state: Alone::new(State {
                rights: 0,
                settings: Settings::default(),
                send: QUEUE,
                receive: QUEUE,
                connections: 1,
                dpa: None,
                completion: None,
                live: None,
            }),
        });
        publish(&created.ctx);
        // SAFETY: checked above.
        unsafe { place.write(publish(&created)) };
        Ok(())
    })
}

/// `doca_rdma_destroy`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_rdma_destroy(rdma: *mut Rdma) -> Code {
    call("doca_rdma_destroy", || {
        let rdma = find(rdma)?;
        let _idle = rdma.settings()?;
        withdraw(&rdma.ctx);
        withdraw(&rdma);
        Ok(())
    })
}

/// `doca_rdma_as_ctx`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_rdma_as_ctx(rdma: *mut Rdma) -> *mut Ctx {
    value("doca_rdma_as_ctx", || {
        Ok(Arc::as_ptr(&find(rdma)?.ctx).cast_mut())
    })
    .unwrap_or(std::ptr::null_mut())
}

macro_rules! setters {
    ($($function:ident($value:ident: $of:ty) |$state:ident| $body:block)*) => {$(
        #[doc = concat!("`", stringify!($function), "`.")]
        #[unsafe(no_mangle)]
        pub extern "C" fn $function(rdma: *mut Rdma, $value: $of) -> Code {
            call(stringify!($function), || {
                let rdma = find(rdma)?;
                let mut $state = rdma.settings()?;
                $body
                Ok(())
            })
        }
    )*};
}

fn queue_size(elements: u32) -> Result<u32> {
    check_count(elements, QUEUE_MAX, "elements of a queue")
}

setters! {
    doca_rdma_set_permissions(rights: u32) |state| {
        check_rights(rights)?;
        state.rights = rights;
    }
    doca_rdma_set_grh_enabled(is_enabled: u8) |state| {
        state.settings.has_global_header = is_enabled != 0;
    }
    doca_rdma_set_gid_index(index: u32) |state| {
        let Ok(index) = u8::try_from(index) else {
            fail!(InvalidValue, "{index} is no index of a table of 256 global addresses");
        };
        state.settings.gid_index = index;
    }
    doca_rdma_set_send_queue_size(elements: u32) |state| {
        state.send = queue_size(elements)?;
    }
    doca_rdma_set_recv_queue_size(elements: u32) |state| {
        state.receive = queue_size(elements)?;
    }
    doca_rdma_task_receive_set_dst_buf_list_len(buffers: u32) |state| {
        let _ = &mut state;
        if buffers != 1 {
            fail!(NotSupported, "{buffers} buffers: the DPA posts receive operations of one buffer");
        }
    }
    doca_rdma_set_max_num_connections(connections: u16) |state| {
        if connections == 0 || connections > CONNECTIONS_MAX {
            fail!(InvalidValue, "{connections} connections: allowed are 1 to {CONNECTIONS_MAX}");
        }
        state.connections = connections;
    }
}

/// `doca_rdma_dpa_completion_attach`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_rdma_dpa_completion_attach(
    rdma: *mut Rdma,
    completion: *mut Completion,
) -> Code {
    call("doca_rdma_dpa_completion_attach", || {
        let (rdma, completion) = (find(rdma)?, find(completion)?);
        let mut state = rdma.settings()?;
        let lease = completion.users.lease(Rdma::NAME);
        state.completion = Some((completion, lease));
        Ok(())
    })
}

fn export(rdma: &Rdma) -> Result<Arc<Connection>> {
    let mut state = rdma.state.enter()?;
    let (most, rights, settings) = (state.connections, state.rights, state.settings);
    let (send, receive) = (state.send, state.receive);
    let completion = state.completion.as_ref().map(|(of, _)| Arc::clone(of));
    let (Some(live), Some(completion)) = (&mut state.live, completion) else {
        return Err(not_running());
    };
    let id = live.connections.len();
    if id >= usize::from(most) {
        fail!(
            Full,
            "the RDMA object has {most} connections, the maximum of doca_rdma_set_max_num_connections"
        );
    }
    let shared = live.receives.clone();
    let sizes = Sizes {
        send,
        receive: shared.is_none().then_some(receive),
        shared,
        user_data: 0,
    };
    let queue = Queue::new(&completion, sizes)?;
    path::prepare(queue.qp(), access(rights))?;
    let end = End::of(live.core.dev(), queue.qp().number(), settings.gid_index)?;
    live.list.set(id, queue.address())?;
    let connection = Arc::new(Connection {
        id: u32::try_from(id).unwrap_or(u32::MAX),
        queue,
        details: Box::new(end.describe()),
        is_connected: Alone::default(),
    });
    live.connections.push(Arc::clone(&connection));
    Ok(connection)
}

/// `doca_rdma_export`.
///
/// # Safety
/// The places are NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_rdma_export(
    rdma: *mut Rdma,
    details: *mut *const c_void,
    length: *mut usize,
    connection: *mut *mut Connection,
) -> Code {
    call("doca_rdma_export", || {
        check_place(details)?;
        check_place(length)?;
        check_place(connection)?;
        let created = export(&*find(rdma)?)?;
        // SAFETY: checked above. The connection keeps the bytes.
        unsafe {
            details.write(created.details.as_ptr().cast());
            length.write(BYTES);
            connection.write(publish(&created));
        }
        Ok(())
    })
}

/// `doca_rdma_connect`.
///
/// # Safety
/// `details` is NULL or has `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_rdma_connect(
    rdma: *mut Rdma,
    details: *const c_void,
    length: usize,
    connection: *mut Connection,
) -> Code {
    call("doca_rdma_connect", || {
        let (rdma, connection) = (find(rdma)?, find(connection)?);
        // SAFETY: as the caller promises.
        let other = End::parse(unsafe { bytes_of(details.cast(), length) }?)?;
        let state = rdma.state.enter()?;
        let Some(live) = &state.live else {
            return Err(not_running());
        };
        if !live
            .connections
            .iter()
            .any(|own| Arc::ptr_eq(own, &connection))
        {
            fail!(
                InvalidValue,
                "the connection belongs to another RDMA object"
            );
        }
        let mut is_connected = connection.is_connected.enter()?;
        if *is_connected {
            fail!(BadState, "the connection is connected already");
        }
        path::connect(connection.queue.qp(), &rdma.dev, &other, state.settings)?;
        connection.queue.set_connected()?;
        *is_connected = true;
        Ok(())
    })
}

getters! {
    Connection;
    doca_rdma_connection_get_id: u32 = |connection| connection.id;
}

getters! {
    Rdma;
    doca_rdma_get_dpa_handle: u64 = |rdma| match &rdma.state.enter()?.live {
        Some(live) => live.handle.address(),
        None => return Err(not_running()),
    };
}
