//! Common parts of all service processes on a DPU.
//!
//! The shell ([`Daemon`]: signals, status socket, readiness), options ([`options`]), numbers of a status
//! ([`status!`](crate::status!)), frames over TCP ([`Link`]), a secret that authenticates them ([`Secret`]), limits
//! ([`Budget`]), and several processes under one daemon ([`supervise`]).
//!
//! The crate does not know the contents of the frames.
//!
//! ```
//! use xgvmi_daemon::codec::{Reader, Writer};
//!
//! let mut writer = Writer::with_capacity(16);
//! writer.u32(7).blob(b"payload");
//! let bytes = writer.finish();
//!
//! // A reader refuses lengths that the message does not contain.
//! let mut reader = Reader::new("example", &bytes);
//! assert_eq!((reader.u32()?, reader.blob()?), (7, &b"payload"[..]));
//! reader.end()?;
//! # Ok::<(), xgvmi_daemon::codec::BadMessage>(())
//! ```

mod admission;
mod background;
pub mod budget;
pub mod codec;
pub mod config;
mod control;
mod counters;
mod daemon;
mod dialer;
mod error;
mod histogram;
mod link;
mod listener;
mod log;
mod memory;
mod metrics;
pub mod options;
mod poll;
mod poller;
mod processor;
mod random;
mod ready;
mod secret;
mod secrets;
mod signal;
pub mod status;
mod text;
mod workers;

pub use admission::{Admission, NoPlace, Place};
pub use background::Background;
pub use budget::{Budget, Payer};
pub use control::{ControlSocket, control, control_path};
pub use counters::{Lines, Number, Row};
pub use daemon::Daemon;
pub use dialer::{Dialed, Dialer, Group};
pub use error::{DaemonError, Result};
pub use histogram::Histogram;
pub use link::{
    FRAME_MAX, Link, LinkError, NO_SECRET, Protocol, STRANGER_FRAME_MAX, keep_alive, reach,
    reach_within,
};
pub use listener::{accept_patiently, listen};
pub use log::LogLevel;
pub use memory::release_free_memory;
pub use metrics::Metrics;
pub use poll::{poll, pollfd};
pub use poller::Poller;
pub use processor::thread_time;
pub use random::{random, random_bytes};
pub use ready::{print, ready};
pub use secret::{Secret, read_private};
pub use secrets::Secrets;
pub use signal::{Asked, Signals};
pub use text::printable;
pub use workers::supervise;
