//! How to reach a volume behind a service.

use std::path::PathBuf;
use std::time::Duration;
use xgvmi_daemon::Secret;

/// Transfers of at most this number of bytes are copied by default.
pub const COPY_MAX: usize = 16 << 10;

/// How the service gets access to the caller's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    /// Not at all: data is copied through memory that is registered once, whatever its size.
    Copy,
    /// A key of its own for each transfer, and an alias of it. For comparison.
    Ksm,
    /// A key of a pool for each transfer. The first use of each key creates its alias.
    Pool,
    /// A key of UCX's own pool for each transfer; UCX is loaded for it. For comparison.
    Stock,
    /// As `Pool`; the connection announces the pool's keys, so that their aliases exist before the first transfer.
    Announced,
}

/// How to reach a volume.
#[derive(Debug, Clone)]
pub struct Spec {
    /// The service's `host:port`.
    pub service: String,
    /// The secret of both sides. None on machines where everyone is trusted.
    pub secret: Option<Secret>,
    /// The volume's name, if the service has several; otherwise empty.
    pub volume: String,
    /// RDMA device of the host; `None` for the first one.
    pub device: Option<String>,
    /// How the service gets access to memory.
    pub scheme: Scheme,
    /// UCX's `libucp.so.0` for [`Scheme::Stock`]; `None` for the one that the loader finds.
    pub ucx: Option<PathBuf>,
    /// Transfers of at most this number of bytes are copied through memory that is registered once.
    pub copy_max: usize,
    /// Most requests under way. The service may allow fewer.
    pub requests_max: u32,
    /// Longest wait for an answer, beyond the time that a request may wait for targets at the service. A service that takes
    /// longer counts as gone.
    pub limit: Duration,
    /// A call that meets a lost connection tries to connect again for this time, and repeats its request.
    pub reconnect: Duration,
}

impl Spec {
    /// The defaults for a service.
    #[must_use]
    pub fn new(service: &str) -> Self {
        Self {
            service: service.to_owned(),
            secret: None,
            volume: String::new(),
            device: None,
            scheme: Scheme::Announced,
            ucx: None,
            copy_max: COPY_MAX,
            requests_max: 16,
            limit: Duration::from_secs(30),
            reconnect: Duration::from_secs(10),
        }
    }
}
