//! The service: listens, starts a thread per connection, answers status requests, and ends on a signal.

use crate::counters::{Counters, add};
use crate::kernel::{self, KernelOptions, Stock};
use crate::options::ServiceOptions;
use crate::session;
use crate::shared::Shared;
use crate::slot::Slots;
use crate::verbs;
use anyhow::Context as _;
use naaice::dpu::frames::{FRAMES, SECRET_CONTEXT};
use naaice::server::{Listener, MemoryLimit};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use xgvmi_daemon::{Admission, Asked, Budget, Daemon, Link, Secrets};
use xgvmi_verbs::{Adapter, HostAliases};

/// Connections per session: a process keeps some without a session.
const LINKS_PER_SESSION: usize = 16;
/// Connections before their hello. One that is slow ends when a further one needs its place.
const STRANGERS_MAX: usize = 256;
/// Memory of the frames of all connections.
const BUFFER_BYTES: usize = 64 << 20;
/// Stack of a connection's thread.
const STACK: usize = 256 << 10;
/// Longest time without looking at everything.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// Time for connections to end after a signal.
const END_LIMIT: Duration = Duration::from_secs(5);

/// The service, before it runs.
#[derive(Debug)]
pub struct Service {
    shared: Arc<Shared>,
    listener: TcpListener,
    address: SocketAddr,
    verbs: Option<Listener>,
    secrets: Secrets,
    daemon: Daemon,
}

impl Service {
    /// Opens device, kernels and listeners.
    ///
    /// # Errors
    /// If one of them is not usable. The error names it.
    pub fn new(options: ServiceOptions) -> anyhow::Result<Self> {
        options.check()?;
        let secrets = Secrets::read(options.secret_file.clone(), SECRET_CONTEXT)?;
        let listener = xgvmi_daemon::listen(&options.listen)
            .with_context(|| format!("cannot listen on {}", options.listen))?;
        listener
            .set_nonblocking(true)
            .context("the listening socket")?;
        let address = listener.local_addr().context("the listening socket")?;
        let name = format!("xgvmi-naa-{}", address.port());
        // Before any thread: all inherit the mask.
        let daemon = Daemon::new(&name, options.status_socket.as_deref())?;
        let file = options.kernels.clone().unwrap_or_default();
        kernel::check(&file)?;
        let adapter = Adapter::open(options.device.as_deref())?;
        let aliases = HostAliases::open(&adapter)?;
        let memory = MemoryLimit::new(options.memory_bytes() as u64);
        let slots = Slots::new(
            Arc::clone(&adapter),
            (options.sessions, options.session_bytes),
            Arc::clone(&memory),
        );
        let counters = Counters::default();
        let kernels = KernelOptions {
            file,
            limit: options.kernel_limit,
            memory: options.kernel_bytes() as u64,
            started: Arc::clone(&counters.kernels_started),
        };
        let stock = Stock::new(options.sessions);
        let verbs_listen = options.verbs_listen.clone();
        let admission = Admission::new(STRANGERS_MAX, options.sessions * LINKS_PER_SESSION);
        let shared = Arc::new(Shared {
            options,
            kernels,
            stock,
            counters,
            slots,
            aliases,
            adapter,
            memory,
            admission,
            ending: AtomicBool::new(false),
            failure: Mutex::default(),
        });
        let verbs = verbs_listen
            .map(|address| {
                verbs::bind(&shared, &address)
                    .with_context(|| format!("cannot listen on {address} over RDMA"))
            })
            .transpose()?;
        Ok(Self {
            shared,
            listener,
            address,
            verbs,
            secrets,
            daemon,
        })
    }

    /// Where the DPU's host connects.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Port of the RDMA listener.
    #[must_use]
    pub fn verbs_port(&self) -> Option<u16> {
        self.verbs.as_ref().map(Listener::port)
    }

    /// Serves until SIGTERM or SIGINT.
    ///
    /// # Errors
    /// Errors of the system, and of the RDMA listener.
    pub fn run(mut self) -> anyhow::Result<()> {
        let listening = self.verbs.take().map(|listener| {
            let shared = Arc::clone(&self.shared);
            std::thread::spawn(move || verbs::serve(&shared, listener))
        });
        let budget = Budget::new(BUFFER_BYTES);
        loop {
            let fds = [self.listener.as_raw_fd()];
            let status = || self.shared.status();
            match self.daemon.wait(&fds, Some(LOOK_INTERVAL), status)? {
                Some(Asked::Stop | Asked::Drain) => break,
                Some(Asked::Reload) => self.shared.note(self.secrets.reload()),
                Some(Asked::Child) | None => {}
            }
            if self.shared.failure().is_some() {
                break;
            }
            self.secrets.expire(Instant::now());
            while let Ok((stream, from)) = self.listener.accept() {
                self.start(stream, from, &budget);
            }
        }
        let shared = Arc::clone(&self.shared);
        self.end(listening)?;
        match shared.failure() {
            Some(failure) => anyhow::bail!(failure),
            None => Ok(()),
        }
    }

    fn start(&self, stream: TcpStream, from: SocketAddr, budget: &Budget) {
        let shared = Arc::clone(&self.shared);
        let Ok(place) = shared.admission.arrive(&stream) else {
            return;
        };
        let Ok(link) = Link::called(stream, FRAMES, self.secrets.all(), budget) else {
            return;
        };
        add(&shared.counters.connections, 1);
        let thread = std::thread::Builder::new().stack_size(STACK);
        let spawned = thread.spawn(move || {
            if let Err(error) = session::serve(&shared, link, place) {
                shared.info(&format!("the connection of {from} has ended: {error}"));
            }
        });
        if let Err(error) = spawned {
            self.shared
                .error(&format!("no thread for the connection of {from}: {error}"));
        }
    }

    /// Waits for the threads, and destroys all aliases. The service answers status requests until the end: a client
    /// that waits when the socket is closed would get an error and no status.
    fn end(self, listening: Option<std::thread::JoinHandle<()>>) -> anyhow::Result<()> {
        self.shared.ending.store(true, Ordering::Release);
        let listens = || {
            listening
                .as_ref()
                .is_some_and(|thread| !thread.is_finished())
        };
        let status = || self.shared.status();
        self.daemon
            .wait_until(Duration::MAX, || !listens(), status)?;
        if let Some(listening) = listening {
            // A panic of the thread has been reported by its hook.
            let _ = listening.join();
        }
        let admission = &self.shared.admission;
        self.daemon
            .wait_until(END_LIMIT, || admission.count() == 0, status)?;
        anyhow::ensure!(self.shared.aliases.close(), "aliases remain on the device");
        Ok(())
    }
}
