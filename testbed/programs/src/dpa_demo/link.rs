//! Messages between the processes of the demo: lines of JSON on TCP.

use anyhow::{Context as _, Result, ensure};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};

/// A connection.
#[derive(Debug)]
pub(super) struct Link {
    reader: BufReader<TcpStream>,
    writer: TcpStream,
}

impl Link {
    fn new(stream: TcpStream) -> Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self {
            writer: stream.try_clone()?,
            reader: BufReader::new(stream),
        })
    }

    pub(super) fn connect(address: &str) -> Result<Self> {
        let stream = TcpStream::connect(address).with_context(|| address.to_owned())?;
        Self::new(stream)
    }

    pub(super) fn accept(listener: &TcpListener) -> Result<Self> {
        Self::new(listener.accept()?.0)
    }

    pub(super) fn send(&mut self, message: &impl Serialize) -> Result<()> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        Ok(self.writer.write_all(&line)?)
    }

    /// The next message, or `None` after the end of the other process.
    pub(super) fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>> {
        let mut line = String::new();
        if self.reader.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        let message = serde_json::from_str(&line);
        Ok(Some(message.with_context(|| format!("a message: {line}"))?))
    }

    pub(super) fn receive<T: DeserializeOwned>(&mut self) -> Result<T> {
        self.next()?.context("the other process has ended")
    }
}

/// First message of a rank to its agent.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Hello {
    pub(super) rank: usize,
    pub(super) gvmi: u16,
    pub(super) access_key: Vec<u8>,
    /// The pool's keys, whose aliases the agent creates in advance.
    pub(super) announcement: Vec<u8>,
}

/// A call of a rank: its buffers, of one block for each rank.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Post {
    pub(super) is_pooled: bool,
    pub(super) block: u64,
    pub(super) send: Exported,
    pub(super) receive: Exported,
}

/// Memory of a host, with the key that an agent makes an alias of.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Exported {
    pub(super) address: u64,
    pub(super) mkey: u32,
}

/// Memory of a host behind an alias of the sender's function, for the other agent.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Readable {
    pub(super) address: u64,
    pub(super) key: u32,
}

/// Where a queue pair is.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct End {
    pub(super) qpn: u32,
    pub(super) lid: u16,
    pub(super) mtu: u8,
}

/// The end of a step.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Finished;

/// Sends an own message and receives that of the other agent, of which one listens and one connects.
pub(super) fn exchange<T: Serialize + DeserializeOwned>(link: &mut Link, own: &T) -> Result<T> {
    link.send(own)?;
    link.receive()
}

/// Two links to the two ranks of a node, by the order of their ranks.
pub(super) fn in_order(mut pairs: Vec<(Hello, Link)>) -> Result<Vec<(Hello, Link)>> {
    pairs.sort_by_key(|(hello, _)| hello.rank);
    ensure!(
        pairs.windows(2).all(|two| two[0].0.rank < two[1].0.rank),
        "two ranks have the same number"
    );
    Ok(pairs)
}
