//! The service on a DPU: initiators on its host ask over TCP, and the service moves their data by DMA through aliases of
//! the host's keys.
//!
//! A thread per connection takes requests. A fixed number of workers carries them out, each with a registered buffer and
//! a queue of the adapter, so several requests of one connection are under way at once.

mod connection;
mod queue;
mod session;
mod shared;
mod worker;

pub use shared::REQUESTS_MAX;

use crate::say::say;
use crate::volume::Volume;
use connection::Connections;
use queue::Queue;
use shared::{Counters, Shared};
use std::io;
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use worker::Worker;
use xgvmi_daemon::{Admission, Budget, LinkError, Secret, accept_patiently};
use xgvmi_pool::{AliasPolicy, DpuHooks};
use xgvmi_verbs::{Adapter, Transport};

/// Most initiators at once.
pub const CONNECTIONS_MAX: usize = 16;
/// Most connections that have not proved the secret and said hello.
const VISITORS_MAX: usize = 64;
/// Longest transfer of one request that an option may allow.
pub const TRANSFER_MAX: u32 = 32 << 20;
/// Most workers.
pub const WORKERS_MAX: usize = 64;
/// Bytes of frames of connections that have not said who they are.
const BUDGET: usize = 16 << 20;

/// How a service works.
#[derive(Debug, Clone)]
pub struct ServiceOptions {
    /// RDMA device; `None` for the first one.
    pub device: Option<String>,
    /// Requests that are carried out at once.
    pub workers: usize,
    /// Longest transfer of one request in bytes. Each worker has a buffer of this size.
    pub transfer_max: u32,
    /// Move data by RDMA READ and WRITE also if the adapter has a DMA engine.
    pub rdma: bool,
    /// Serve initiators whose keys have the access key of stock UCX, which every process knows.
    pub stock_keys: bool,
    /// Longest time that a request waits for targets. Initiators wait longer than that for an answer.
    pub wait: Duration,
    /// Secrets, one of which initiators must prove. Without any, everyone is trusted.
    pub secrets: Vec<Secret>,
}

impl Default for ServiceOptions {
    fn default() -> Self {
        Self {
            device: None,
            workers: 4,
            transfer_max: 4 << 20,
            rdma: false,
            stock_keys: false,
            wait: Duration::ZERO,
            secrets: Vec::new(),
        }
    }
}

/// Counters of a service.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ServiceStatus {
    /// Requests.
    pub requests: u64,
    /// Requests that failed.
    pub failed: u64,
    /// Bytes that were fetched from initiators.
    pub fetched_bytes: u64,
    /// Bytes that were delivered to initiators.
    pub delivered_bytes: u64,
    /// Initiators now.
    pub initiators: u64,
    /// Aliases that were created.
    pub aliases_created: u64,
    /// Requests whose alias existed.
    pub alias_hits: u64,
}

/// A service with its device open.
pub struct Service {
    shared: Arc<Shared>,
    transport: Transport,
}

impl std::fmt::Debug for Service {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Service")
            .field("transport", &self.transport)
            .finish_non_exhaustive()
    }
}

impl Service {
    /// Opens the device and starts the workers.
    ///
    /// # Errors
    /// The device cannot be used; the text says why.
    pub fn new(volume: Arc<Volume>, options: &ServiceOptions) -> io::Result<Self> {
        let failed = |error: &dyn std::fmt::Display| io::Error::other(error.to_string());
        let adapter = Adapter::open(options.device.as_deref()).map_err(|error| failed(&error))?;
        let device = adapter.device();
        let hooks = DpuHooks::open(Arc::clone(&device), AliasPolicy::default())
            .map_err(|error| failed(&error))?;
        let workers = options.workers.clamp(1, WORKERS_MAX);
        let shared = Arc::new(Shared {
            volume,
            transfer_max: options.transfer_max.clamp(1 << 20, TRANSFER_MAX),
            rdma: options.rdma,
            stock_keys: options.stock_keys,
            wait_ms: u32::try_from(options.wait.as_millis()).unwrap_or(u32::MAX),
            secrets: RwLock::new(options.secrets.clone()),
            budget: Budget::new(BUDGET),
            // Initiators that keep to their limit never find it full.
            queue: Queue::new(CONNECTIONS_MAX * REQUESTS_MAX as usize),
            connections: Connections::default(),
            counters: Counters::default(),
            admission: Admission::new(VISITORS_MAX, CONNECTIONS_MAX),
            under_way: AtomicUsize::new(0),
            draining: AtomicBool::new(false),
            hooks,
            device,
            adapter,
        });
        let mut transport = Transport::Dma;
        for _ in 0..workers {
            let worker = Worker::new(&shared).map_err(|error| failed(&error))?;
            transport = worker.transport();
            let thread = std::thread::Builder::new().name("worker".to_owned());
            thread.spawn(move || worker.run())?;
        }
        Ok(Self { shared, transport })
    }

    /// How data moves, for people.
    #[must_use]
    pub fn transfer(&self) -> &'static str {
        match self.transport {
            Transport::Dma => "DMA",
            Transport::Rdma => "RDMA",
        }
    }

    /// Counters.
    #[must_use]
    pub fn status(&self) -> ServiceStatus {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.shared.counters;
        let aliases = self.shared.hooks.stats();
        ServiceStatus {
            requests: get(&counters.requests),
            failed: get(&counters.failed),
            fetched_bytes: get(&counters.fetched),
            delivered_bytes: get(&counters.delivered),
            initiators: self.shared.admission.admitted() as u64,
            aliases_created: aliases.creates,
            alias_hits: aliases.hits,
        }
    }

    /// New connections must prove one of these secrets. Open ones stay.
    pub fn set_secrets(&self, secrets: Vec<Secret>) {
        let current = self.shared.secrets.write();
        *current.unwrap_or_else(PoisonError::into_inner) = secrets;
    }

    /// Takes no further request. Those that have arrived are carried out and answered; initiators repeat all others at
    /// the next service.
    pub fn drain(&self) {
        self.shared.draining.store(true, Ordering::Release);
    }

    /// Requests that have arrived and have no answer.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.shared.under_way.load(Ordering::Acquire)
    }

    /// Serves initiators without end.
    ///
    /// # Errors
    /// The socket fails.
    pub fn serve(&self, listener: &TcpListener) -> io::Result<()> {
        loop {
            let tell = |error: &io::Error| say(format_args!("no initiator is accepted: {error}"));
            let (stream, _) = accept_patiently(|| listener.accept(), tell)?;
            if self.shared.is_draining() {
                continue;
            }
            let shared = Arc::clone(&self.shared);
            let started = self.shared.admission.arrive(&stream).and_then(|visitor| {
                let work = move || match session::serve(&shared, stream, visitor) {
                    Ok(()) | Err(LinkError::Closed) => {}
                    Err(error) => say(format_args!("an initiator is disconnected: {error}")),
                };
                let thread = std::thread::Builder::new().name("initiator".to_owned());
                thread.spawn(work)
            });
            if let Err(error) = started {
                say(format_args!("an initiator was refused: {error}"));
            }
        }
    }
}
