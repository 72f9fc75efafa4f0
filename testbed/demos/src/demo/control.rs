//! The control channel between the orchestrator and each process: JSON, one message per line, over a socket
//! that is the process's standard input.
//!
//! An inherited socket needs no address, closes with either side, and passes through any launcher that
//! preserves standard input. It carries no data, and no traffic while a batch runs.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Maximum length of a line. Worker addresses need a few hundred bytes, the times of a batch some ten thousand.
const LINE_MAX: usize = 4 << 20;

/// One of the four processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// The host with the data.
    HostA,
    /// The DPU of host A.
    DpuA,
    /// The DPU that posts the RDMA READ.
    DpuB,
    /// The host that receives the data.
    HostB,
}

impl Place {
    /// All four, in the order of the control path.
    pub const ALL: [Self; 4] = [Self::HostA, Self::DpuA, Self::DpuB, Self::HostB];

    /// The role at a side.
    #[must_use]
    pub const fn new(role: Role, side: Side) -> Self {
        match (role, side) {
            (Role::Host, Side::A) => Self::HostA,
            (Role::Dpu, Side::A) => Self::DpuA,
            (Role::Dpu, Side::B) => Self::DpuB,
            (Role::Host, Side::B) => Self::HostB,
        }
    }

    /// Host or DPU.
    #[must_use]
    pub const fn role(self) -> Role {
        match self {
            Self::HostA | Self::HostB => Role::Host,
            Self::DpuA | Self::DpuB => Role::Dpu,
        }
    }

    /// Side of the transfer: one of the two nodes.
    #[must_use]
    pub const fn side(self) -> Side {
        match self {
            Self::HostA | Self::DpuA => Side::A,
            Self::HostB | Self::DpuB => Side::B,
        }
    }

    /// Peers over UCP.
    #[must_use]
    pub const fn peers(self) -> &'static [Self] {
        match self {
            Self::HostA => &[Self::DpuA, Self::HostB],
            Self::DpuA => &[Self::HostA, Self::DpuB],
            Self::DpuB => &[Self::HostB, Self::DpuA],
            Self::HostB => &[Self::DpuB, Self::HostA],
        }
    }

    /// As in log messages: `host A`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::HostA => "host A",
            Self::DpuA => "DPU A",
            Self::DpuB => "DPU B",
            Self::HostB => "host B",
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Kind of process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Role {
    /// Owns a buffer and exports it.
    Host,
    /// Imports its host's buffer and moves data.
    Dpu,
}

/// Side of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Side {
    /// The sending node.
    A,
    /// The receiving node.
    B,
}

/// Message from orchestrator to process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Command {
    /// Create a UCX context and a worker, and answer with the address.
    Open,
    /// Connect to these workers and wait for the hello message of each.
    Connect(BTreeMap<Place, Vec<u8>>),
    /// Run iterations. All except host A answer `Ready` first; all answer `Ran` at the end.
    Run(Batch),
    /// Release connections, worker and context.
    Close,
}

/// Some iterations of one size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Batch {
    /// Number of the first iteration. Numbers are unique in a run of a scheme.
    pub(super) first: u64,
    /// Number of iterations.
    pub(super) count: u64,
    /// Bytes per transfer.
    pub(super) size: usize,
    /// Makes the data of each scheme unique.
    pub(super) salt: u64,
}

/// Message from process to orchestrator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Reply {
    /// The context exists.
    Opened {
        address: Vec<u8>,
        ucx_version: String,
    },
    /// All peers have sent hello.
    Connected,
    /// The process waits for the first message of the batch.
    Ready,
    /// The batch is complete.
    Ran(Outcome),
    /// All objects are released.
    Closed,
    /// An error. The process ends.
    Failed(String),
}

/// Result of a batch at one process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Outcome {
    /// Host A: each iteration's time in nanoseconds.
    pub(super) times_ns: Vec<u64>,
    /// Host B: number of compared bytes.
    pub(super) verified_bytes: u64,
    /// Host B: number of wrong bytes.
    pub(super) mismatches: u64,
    /// Host B: the first iteration with a wrong byte, and that byte's offset.
    pub(super) first_wrong: Option<(u64, usize)>,
}

/// One end of the channel.
#[derive(Debug)]
pub(super) struct Channel {
    stream: UnixStream,
    pending: Vec<u8>,
}

impl Channel {
    pub(super) fn new(stream: UnixStream) -> Self {
        Self {
            stream,
            pending: Vec::new(),
        }
    }

    /// Sends a message.
    pub(super) fn send(&mut self, message: &impl Serialize) -> io::Result<()> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        self.stream.write_all(&line)
    }

    /// Blocks until a message arrives; `None` when the other side has closed.
    pub(super) fn receive<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        loop {
            if let Some(message) = self.buffered()? {
                return Ok(Some(message));
            }
            if !self.fill()? {
                return Ok(None);
            }
        }
    }

    /// Returns a message that has already been read.
    pub(super) fn buffered<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        let Some(end) = self.pending.iter().position(|byte| *byte == b'\n') else {
            return Ok(None);
        };
        let message = serde_json::from_slice(&self.pending[..end])?;
        self.pending.drain(..=end);
        Ok(Some(message))
    }

    /// Reads once, blocking; false when the other side has closed.
    pub(super) fn fill(&mut self) -> io::Result<bool> {
        if self.pending.len() > LINE_MAX {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("a control message of more than {LINE_MAX} bytes"),
            ));
        }
        let mut chunk = [0; 16 << 10];
        loop {
            match self.stream.read(&mut chunk) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(false),
                Err(error) => return Err(error),
                Ok(count) => {
                    self.pending.extend_from_slice(&chunk[..count]);
                    return Ok(count > 0);
                }
            }
        }
    }

    /// Limits every send, so that a stopped process cannot block its orchestrator.
    pub(super) fn set_write_limit(&self, limit: Duration) -> io::Result<()> {
        self.stream.set_write_timeout(Some(limit))
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Channel, Channel) {
        let (left, right) = UnixStream::pair().expect("a socket pair");
        (Channel::new(left), Channel::new(right))
    }

    #[test]
    fn messages_arrive_whole_and_in_order() {
        let (mut left, mut right) = pair();
        let sent = [
            Command::Open,
            Command::Connect([(Place::DpuA, vec![0, 255]), (Place::HostB, vec![])].into()),
            Command::Run(Batch {
                first: u64::MAX,
                count: 3,
                size: 16 << 20,
                salt: 1,
            }),
            Command::Close,
        ];
        for command in &sent {
            left.send(command).expect("sent");
        }
        drop(left);
        for command in &sent {
            let received = right.receive::<Command>().expect("received");
            assert_eq!(received.as_ref(), Some(command));
        }
        assert_eq!(right.receive::<Command>().expect("closed"), None);
    }

    #[test]
    fn a_line_that_is_no_message_is_an_error() {
        let (left, mut right) = pair();
        let mut raw = left.stream;
        raw.write_all(b"{\"nonsense\":1}\n").expect("sent");
        assert!(right.receive::<Reply>().is_err());
    }

    #[test]
    fn peers_are_mutual() {
        for place in Place::ALL {
            assert_eq!(Place::new(place.role(), place.side()), place);
            for peer in place.peers() {
                assert!(peer.peers().contains(&place), "{place} and {peer}");
            }
        }
    }
}
