//! The service: listens, starts a thread per connection, answers status requests, and ends on a signal.

use crate::counters::{Counters, add};
use crate::kernel::{self, KernelOptions, Stock};
use crate::links::Links;
use crate::options::ServiceOptions;
use crate::session;
use crate::shared::{Owners, Shared};
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
use xgvmi_daemon::status::{StatusSocket, default_path};
use xgvmi_daemon::{Asked, Budget, Link, Secret, Signals, poll, pollfd};
use xgvmi_pool::{AliasPolicy, DpuHooks};
use xgvmi_verbs::Adapter;

/// Connections per session: a process keeps some without a session.
const LINKS_PER_SESSION: usize = 16;
/// Memory of the frames of all connections.
const BUFFER_BYTES: usize = 64 << 20;
/// Stack of a connection's thread.
const STACK: usize = 256 << 10;
/// Longest time without looking at everything.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// Time in which the previous secret is accepted too, after a new one was read.
const OLD_SECRET_LIMIT: Duration = Duration::from_secs(300);
/// Time for connections to end after a signal.
const END_LIMIT: Duration = Duration::from_secs(5);
/// Interval at which the end of the service looks for the end of its threads.
const END_INTERVAL: Duration = Duration::from_millis(20);

/// The service, before it runs.
#[derive(Debug)]
pub struct Service {
    shared: Arc<Shared>,
    listener: TcpListener,
    address: SocketAddr,
    verbs: Option<Listener>,
    /// The current one, and the previous one for a limited time.
    secrets: Vec<Secret>,
    old_secret_until: Instant,
    status: Option<StatusSocket>,
    signals: Signals,
}

impl Service {
    /// Opens device, kernels and listeners.
    ///
    /// # Errors
    /// If one of them is not usable. The error names it.
    pub fn new(options: ServiceOptions) -> anyhow::Result<Self> {
        // Before any thread: all inherit the mask.
        let signals = Signals::new().context("signals")?;
        kernel::check(&options.kernels)?;
        let secrets = match &options.secret_file {
            Some(file) => vec![Secret::read(file, SECRET_CONTEXT)?],
            None => Vec::new(),
        };
        let adapter = Adapter::open(options.device.as_deref())?;
        let hooks = DpuHooks::open(adapter.device(), AliasPolicy::default())?;
        let memory = MemoryLimit::new(options.memory_max);
        let slots = Slots::new(
            Arc::clone(&adapter),
            (options.sessions_max, options.session_bytes_max),
            Arc::clone(&memory),
        );
        let listener = xgvmi_daemon::listen(&options.listen)
            .with_context(|| format!("cannot listen on {}", options.listen))?;
        listener
            .set_nonblocking(true)
            .context("the listening socket")?;
        let address = listener.local_addr().context("the listening socket")?;
        let socket = options
            .status_socket
            .clone()
            .or_else(|| default_path(&format!("xgvmi-naa-{}", address.port())));
        let status = socket.map(|path| StatusSocket::bind(&path)).transpose()?;
        let counters = Counters::default();
        let kernels = KernelOptions {
            file: options.kernels.clone(),
            limit: options.kernel_limit,
            memory: options.kernel_memory,
            started: Arc::clone(&counters.kernels_started),
        };
        let stock = Stock::new(options.sessions_max);
        let verbs_listen = options.verbs_listen.clone();
        let links = Links::new(options.sessions_max * LINKS_PER_SESSION);
        let shared = Arc::new(Shared {
            options,
            kernels,
            stock,
            counters,
            owners: Owners::default(),
            slots,
            hooks,
            adapter,
            memory,
            links,
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
            old_secret_until: Instant::now(),
            status,
            signals,
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
            let mut fds = vec![
                pollfd(self.signals.fd(), libc::POLLIN),
                pollfd(self.listener.as_raw_fd(), libc::POLLIN),
            ];
            fds.extend(self.status.as_ref().map(|s| pollfd(s.fd(), libc::POLLIN)));
            poll(&mut fds, Some(LOOK_INTERVAL)).context("poll")?;
            match self.signals.take() {
                Some(Asked::Stop | Asked::Drain) => break,
                Some(Asked::Reload) => self.reload(),
                Some(Asked::Child) | None => {}
            }
            if self.shared.failure().is_some() {
                break;
            }
            if Instant::now() > self.old_secret_until {
                self.secrets.truncate(1);
            }
            if let Some(status) = &self.status {
                status.answer(|| self.shared.status());
            }
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

    /// Reads the secret again. Existing connections keep the secret that they have proved.
    fn reload(&mut self) {
        let Some(path) = &self.shared.options.secret_file else {
            return self.shared.info("SIGHUP: no effect without --secret-file");
        };
        match Secret::read(path, SECRET_CONTEXT) {
            Ok(secret) if self.secrets.first() == Some(&secret) => self.shared.info(&format!(
                "SIGHUP: the secret in {} has not changed",
                path.display()
            )),
            Ok(secret) => {
                self.secrets.insert(0, secret);
                self.secrets.truncate(2);
                self.old_secret_until = Instant::now() + OLD_SECRET_LIMIT;
                self.shared.info(&format!(
                    "SIGHUP: a new secret from {}; the old one is accepted for another {} s",
                    path.display(),
                    OLD_SECRET_LIMIT.as_secs()
                ));
            }
            Err(error) => self
                .shared
                .error(&format!("SIGHUP: the secret is unchanged: {error}")),
        }
    }

    fn start(&self, stream: TcpStream, from: SocketAddr, budget: &Budget) {
        let shared = Arc::clone(&self.shared);
        let Ok(second) = stream.try_clone() else {
            return;
        };
        let Ok(link) = Link::called(stream, FRAMES, &self.secrets, budget) else {
            return;
        };
        add(&shared.counters.connections, 1);
        let thread = std::thread::Builder::new().stack_size(STACK);
        let spawned = thread.spawn(move || {
            let entry = shared.links.admit(second);
            if let Err(error) = session::serve(&shared, link, entry) {
                shared.info(&format!("the connection of {from} has ended: {error}"));
            }
        });
        if let Err(error) = spawned {
            self.shared
                .error(&format!("no thread for the connection of {from}: {error}"));
        }
    }

    /// Answers status requests of the next moment.
    fn answer_status(&self, moment: Duration) -> anyhow::Result<()> {
        let mut fds = Vec::new();
        fds.extend(self.status.as_ref().map(|s| pollfd(s.fd(), libc::POLLIN)));
        poll(&mut fds, Some(moment)).context("poll")?;
        if let Some(status) = &self.status {
            status.answer(|| self.shared.status());
        }
        Ok(())
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
        while listens() {
            self.answer_status(END_INTERVAL)?;
        }
        if let Some(listening) = listening {
            // A panic of the thread has been reported by its hook.
            let _ = listening.join();
        }
        let began = Instant::now();
        while self.shared.links.count() > 0 && began.elapsed() < END_LIMIT {
            self.answer_status(END_INTERVAL)?;
        }
        self.answer_status(Duration::ZERO)?;
        anyhow::ensure!(self.shared.hooks.close(), "aliases remain on the device");
        Ok(())
    }
}
