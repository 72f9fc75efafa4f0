//! The protocol of the two processes: lines of text.

use std::io::{self, BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

use xgvmi_pool::{Gvmi, Mkey, OwnerUuid, RemoteKey, VirtAddr};

/// An exported buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Announced {
    pub(crate) gvmi: Gvmi,
    pub(crate) mkey: Mkey,
    pub(crate) owner: OwnerUuid,
    pub(crate) addr: VirtAddr,
    pub(crate) bytes: u64,
    /// Seed of the buffer's content.
    pub(crate) seed: u64,
}

impl Announced {
    pub(crate) fn to_line(self) -> String {
        let Self {
            gvmi,
            mkey,
            owner,
            addr,
            bytes,
            seed,
        } = self;
        let (gvmi, mkey, owner, addr) = (gvmi.get(), mkey.raw(), owner.get(), addr.get());
        format!("{gvmi} {mkey} {owner} {addr} {bytes} {seed}")
    }

    pub(crate) fn parse(line: &str) -> io::Result<Self> {
        let numbers: Vec<u64> = line
            .split(' ')
            .map_while(|word| word.parse().ok())
            .collect();
        let bad = || io::Error::new(io::ErrorKind::InvalidData, format!("no export: {line:?}"));
        let [gvmi, mkey, owner, addr, bytes, seed] = numbers[..] else {
            return Err(bad());
        };
        Ok(Self {
            gvmi: Gvmi::new(u16::try_from(gvmi).map_err(|_| bad())?),
            mkey: Mkey::from_raw(u32::try_from(mkey).map_err(|_| bad())?),
            owner: OwnerUuid::new(owner),
            addr: VirtAddr::new(addr),
            bytes,
            seed,
        })
    }

    pub(crate) fn key(&self) -> RemoteKey {
        RemoteKey {
            gvmi: self.gvmi,
            mkey: self.mkey,
            owner: self.owner,
        }
    }
}

/// A connection to the other process.
pub(crate) struct Channel {
    reader: BufReader<TcpStream>,
}

impl Channel {
    pub(crate) fn new(stream: TcpStream, limit: Duration) -> io::Result<Self> {
        stream.set_read_timeout(Some(limit))?;
        stream.set_nodelay(true)?;
        Ok(Self {
            reader: BufReader::new(stream),
        })
    }

    pub(crate) fn send(&mut self, line: &str) -> io::Result<()> {
        self.reader
            .get_mut()
            .write_all(format!("{line}\n").as_bytes())
    }

    pub(crate) fn receive(&mut self) -> io::Result<String> {
        let mut line = String::new();
        if self.reader.read_line(&mut line)? == 0 {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the peer is gone",
            ));
        }
        Ok(line.trim_end().to_owned())
    }

    pub(crate) fn expect(&mut self, word: &str) -> io::Result<()> {
        let line = self.receive()?;
        if line == word {
            return Ok(());
        }
        let message = format!("expected {word:?}, the peer says {line:?}");
        Err(io::Error::new(io::ErrorKind::InvalidData, message))
    }
}
