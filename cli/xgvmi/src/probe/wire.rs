//! Messages between a probing host and the DPU that serves it: JSON lines of bounded length over TCP.
//!
//! The DPU first sends a [`Greeting`]. It then answers each [`Request`] with one [`Answer`].

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use xgvmi_pool::{AccessKey, Gvmi, Mkey, OwnerUuid, RemoteKey, VirtAddr};

use super::report::Found;

/// Version of these messages.
pub(super) const PROTOCOL: u32 = 2;
/// Maximum length of a line in bytes.
const LINE_MAX: u64 = 4096;
/// Maximum wait for the peer. The limit search takes longest: [`super::LIMIT_MAX`] creations of a millisecond each.
const PATIENCE: Duration = Duration::from_secs(120);

/// The DPU's first line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Greeting {
    pub(super) xgvmi_probe: u32,
    pub(super) device: String,
    pub(super) firmware: String,
    pub(super) link: String,
    pub(super) vhca_id: u64,
}

/// A key of the host, and its memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Exported {
    pub(super) gvmi: u16,
    pub(super) mkey: u32,
    /// Hexadecimal.
    pub(super) access: String,
    pub(super) address: u64,
    pub(super) bytes: u32,
}

impl Exported {
    pub(super) fn new(key: &RemoteKey, access: &AccessKey, address: VirtAddr, bytes: u32) -> Self {
        let digits = access.as_bytes().iter().map(|byte| format!("{byte:02x}"));
        Self {
            gvmi: key.gvmi.get(),
            mkey: key.mkey.raw(),
            access: digits.collect(),
            address: address.get(),
            bytes,
        }
    }

    pub(super) fn key(&self) -> RemoteKey {
        RemoteKey {
            gvmi: Gvmi::new(self.gvmi),
            mkey: Mkey::from_raw(self.mkey),
            owner: OwnerUuid::UNKNOWN,
        }
    }

    pub(super) fn access_key(&self) -> Result<AccessKey> {
        let mut bytes = [0; AccessKey::BYTES];
        ensure!(
            self.access.len() == 2 * bytes.len() && self.access.is_ascii(),
            "the access key must have {} hexadecimal digits",
            2 * bytes.len()
        );
        for (byte, digits) in bytes.iter_mut().zip(self.access.as_bytes().chunks(2)) {
            let digits = std::str::from_utf8(digits).context("access key")?;
            *byte = u8::from_str_radix(digits, 16).context("access key")?;
        }
        Ok(AccessKey::new(bytes))
    }
}

/// A request of the host to the DPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Request {
    /// Create an alias and keep it for [`Request::Read`]. A connection keeps one alias.
    Keep(Exported),
    /// Read memory through the kept alias.
    Read { address: u64, bytes: u32 },
    /// Destroy the kept alias.
    End,
    /// Create an alias and destroy it.
    Alias(Exported),
    /// Create aliases until the device refuses one, then destroy them.
    Limit { key: Exported, most: u32 },
}

/// The DPU's answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Answer {
    /// Answer to [`Request::Keep`].
    Kept { create_ns: u64 },
    /// Answer to [`Request::Read`]: BLAKE3 of the bytes, in hexadecimal; `None` if the read was refused.
    Read {
        digest: Option<String>,
        read_ns: u64,
    },
    /// Answer to [`Request::End`].
    Ended { destroy_ns: u64 },
    /// Answer to [`Request::Alias`].
    Alias { create_ns: u64, destroy_ns: u64 },
    /// Answer to [`Request::Limit`].
    Limit(Found),
    /// The request failed.
    Error(String),
}

/// JSON lines over a connection, with limits of length and time in both directions.
#[derive(Debug)]
pub(super) struct Line {
    reader: BufReader<TcpStream>,
}

impl Line {
    pub(super) fn new(stream: TcpStream) -> Result<Self> {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        Ok(Self {
            reader: BufReader::new(stream),
        })
    }

    pub(super) fn send(&mut self, message: &impl Serialize) -> Result<()> {
        let mut line = serde_json::to_string(message)?;
        line.push('\n');
        ensure!(
            line.len() as u64 <= LINE_MAX,
            "a message of {} bytes is above {LINE_MAX}",
            line.len()
        );
        let stream = self.reader.get_mut();
        stream
            .write_all(line.as_bytes())
            .context("sending to the other side")
    }

    /// The next message; `None` after the peer has closed the connection.
    pub(super) fn receive<T: DeserializeOwned>(&mut self) -> Result<Option<T>> {
        let mut line = Vec::new();
        let mut bounded = (&mut self.reader).take(LINE_MAX);
        bounded
            .read_until(b'\n', &mut line)
            .context("receiving from the other side")?;
        if line.is_empty() {
            return Ok(None);
        }
        if line.last() != Some(&b'\n') {
            bail!(
                "the other side sent {} bytes without an end of line",
                line.len()
            );
        }
        let message = serde_json::from_slice(&line);
        message
            .map(Some)
            .context("the other side's message is not understood")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn exported() -> Exported {
        let key = RemoteKey {
            gvmi: Gvmi::new(7),
            mkey: Mkey::from_raw(0x1234_56fb),
            owner: OwnerUuid::UNKNOWN,
        };
        Exported::new(
            &key,
            &AccessKey::new([0xa5; AccessKey::BYTES]),
            VirtAddr::new(0x7f00_0000_1000),
            65536,
        )
    }

    #[test]
    fn keys_survive_the_wire() {
        let text = serde_json::to_string(&Request::Keep(exported())).expect("JSON");
        let again: Request = serde_json::from_str(&text).expect("our own");
        let Request::Keep(again) = again else {
            panic!("{again:?}");
        };
        assert_eq!(again.key(), exported().key());
        let access = again.access_key().expect("64 digits");
        assert_eq!(access.as_bytes(), &[0xa5; AccessKey::BYTES]);
    }

    #[test]
    fn a_bad_access_key_is_refused() {
        for access in ["", "00", &"x".repeat(64), &"é".repeat(32), &"0".repeat(66)] {
            let bad = Exported {
                access: access.to_owned(),
                ..exported()
            };
            assert!(bad.access_key().is_err(), "{access}");
        }
    }

    /// Input of an untrusted peer: every field is checked, and no more than one line is buffered.
    #[test]
    fn strangers_are_refused() {
        let check = |bytes: &[u8], expect: &str| {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            let address = listener.local_addr().expect("its address");
            let mut stranger = TcpStream::connect(address).expect("a connection");
            let mut line = Line::new(listener.accept().expect("a peer").0).expect("a line");
            stranger.write_all(bytes).expect("sent");
            drop(stranger);
            let error = line.receive::<Request>().expect_err("refused");
            assert!(format!("{error:#}").contains(expect), "{error:#}");
        };
        check(b"GET / HTTP/1.1\r\n", "not understood");
        check(b"{\"read\":{}}\n", "not understood");
        check(&[b'x'; 5000], "4096 bytes without an end of line");
        check(b"{\"limit\":", "9 bytes without an end of line");
    }
}
