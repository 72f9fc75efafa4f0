//! The service on a DPU: initiators on its host ask over TCP, and the service moves their data by DMA through aliases of
//! the host's keys.
//!
//! A thread per connection takes requests. A fixed number of workers carries them out, each with a registered buffer and
//! a queue of the adapter, so several requests of one connection are under way at once.

mod connection;
mod counters;
mod identities;
mod queue;
mod session;
mod shared;
mod worker;

pub use identities::{Access, IDENTITIES_MAX, Initiator, InitiatorStatus, Right};
pub use shared::{FindVolume, REQUESTS_MAX};

use crate::say::{Bounded, say};
use connection::Connections;
use counters::Counters;
use identities::Identities;
use queue::Queue;
use shared::Shared;
use std::io;
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use worker::Worker;
use xgvmi_daemon::options::{count, mebibytes};
use xgvmi_daemon::{Admission, Budget, accept_patiently};
use xgvmi_verbs::{Adapter, HostAliases, Transport};

/// Most initiators at once.
pub const CONNECTIONS_MAX: usize = 16;
/// Most connections that have not proved the secret and said hello.
const VISITORS_MAX: usize = 64;
/// Longest transfer of one request that an option may allow, in MiB.
const TRANSFER_MIB_MAX: u64 = 32;
/// Most workers.
const WORKERS_MAX: u64 = 64;
/// Bytes of frames of connections that have not said who they are.
const BUDGET: usize = 16 << 20;

/// How a service works.
#[derive(Debug, Clone, PartialEq, Eq, clap::Args)]
pub struct ServiceOptions {
    /// The RDMA device [default: the first one].
    #[arg(long, value_name = "NAME")]
    pub device: Option<String>,
    /// Requests that are carried out at once, 1 to 64.
    #[arg(long, value_name = "N", default_value = "4", value_parser = count(1..=WORKERS_MAX))]
    pub workers: usize,
    /// Longest transfer of one request in MiB, 1 to 32. Each worker has a buffer of this size.
    #[arg(long = "transfer-mib", value_name = "MIB", default_value = "4", value_parser = mebibytes(1..=TRANSFER_MIB_MAX))]
    pub transfer_max: usize,
    /// Move data by RDMA READ and WRITE instead of the adapter's DMA engine.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub rdma: Option<bool>,
    /// Also serve initiators with keys of stock UCX's own pool. Every process knows their access key, so each initiator
    /// may name the exported memory of programs with stock UCX: for comparisons.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub stock_keys: Option<bool>,
}

xgvmi_daemon::status! {
    /// Counters of a service.
    #[derive(Copy, Default)]
    pub struct ServiceStatus("xgvmi_blk_") {
        pub counter requests, "Requests.";
        pub counter failed as "failed_requests", "Requests that failed.";
        pub counter fetched_bytes, "Bytes from initiators' memory.";
        pub counter delivered_bytes, "Bytes to initiators' memory.";
        pub gauge initiators, "Initiators.";
        pub counter aliases_created, "Aliases that were created.";
        pub counter alias_hits, "Requests whose alias existed.";
    }
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
    /// Opens the device and starts the workers, of which there is one for each volume at least: one that waits for its targets
    /// keeps none of another. A request waits for targets at most for `wait`; initiators wait longer than
    /// that for an answer. `access` says who may connect.
    ///
    /// # Errors
    /// The device cannot be used; the text says why.
    pub fn new(
        volumes: Vec<(String, FindVolume)>,
        options: &ServiceOptions,
        wait: Duration,
        access: Access,
    ) -> io::Result<Self> {
        let failed = |error: &dyn std::fmt::Display| io::Error::other(error.to_string());
        let adapter = Adapter::open(options.device.as_deref()).map_err(|error| failed(&error))?;
        let aliases = HostAliases::open(&adapter).map_err(|error| failed(&error))?;
        let names: Vec<&str> = volumes.iter().map(|(name, _)| &**name).collect();
        let (identities, _) = Identities::default().replace(access, &names);
        let shared = Arc::new(Shared {
            // Initiators that keep to their limit never find it full.
            queue: Queue::new(
                CONNECTIONS_MAX * REQUESTS_MAX as usize,
                options.workers,
                volumes.len(),
            ),
            volumes,
            transfer_max: u32::try_from(options.transfer_max).unwrap_or(u32::MAX),
            rdma: options.rdma == Some(true),
            stock_keys: options.stock_keys == Some(true),
            wait_ms: u32::try_from(wait.as_millis()).unwrap_or(u32::MAX),
            identities: RwLock::new(Arc::new(identities)),
            budget: Budget::new(BUDGET),
            connections: Connections::default(),
            counters: Counters::default(),
            admission: Admission::new(VISITORS_MAX, CONNECTIONS_MAX),
            told: Bounded::default(),
            under_way: AtomicUsize::new(0),
            draining: AtomicBool::new(false),
            aliases,
            adapter,
        });
        let mut transport = Transport::Dma;
        for _ in 0..options.workers {
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
        let aliases = self.shared.aliases.stats();
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

    /// States of the initiators with names.
    #[must_use]
    pub fn initiators(&self) -> Vec<InitiatorStatus> {
        let (identities, names) = (self.shared.identities(), self.shared.names());
        identities.named().map(|one| one.status(&names)).collect()
    }

    /// New connections must prove one of these secrets. Open ones stay, but for those of names that are not there any more, or have
    /// another right to the volume: of these the requests that are carried out already end, and initiators that may repeat the
    /// rest learn their right when they connect again.
    pub fn set_access(&self, access: Access) {
        let gone = {
            let current = self.shared.identities.write();
            let mut current = current.unwrap_or_else(PoisonError::into_inner);
            let (next, gone) = current.replace(access, &self.shared.names());
            *current = Arc::new(next);
            gone
        };
        for (identity, of) in self.shared.connections.end_changed() {
            let (may, more) = match identity.right(of) {
                None => ("may not use", " any more"),
                Some(Right::Read) => ("may only read", ""),
                Some(Right::Write) => ("may write", ""),
            };
            let volume = match &*self.shared.volumes[of].0 {
                "" => "the volume".to_owned(),
                name => format!("volume {name}"),
            };
            say(format_args!(
                "initiator {} {may} {volume}{more}",
                identity.name
            ));
        }
        for identity in gone {
            self.shared.connections.end_of(&identity);
            say(format_args!(
                "initiator {} may not connect any more",
                identity.name
            ));
        }
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
            let started = self.shared.admission.arrive(&stream).and_then(|place| {
                let work = move || session::serve(&shared, stream, place);
                let thread = std::thread::Builder::new().name("initiator".to_owned());
                thread.spawn(work)
            });
            if let Err(error) = started {
                say(format_args!("an initiator was refused: {error}"));
            }
        }
    }
}
