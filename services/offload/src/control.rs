//! TCP frames between ranks and SPs: identities, the table of SPs, and failures.
//!
//! Messages of collectives do not use these connections. The first byte of a frame is its kind. Hellos are JSON, which
//! allows later versions to read them; all other frames are binary. The connection stays open. If it ends without
//! [`Frame::Bye`], the peer is considered dead.

use super::job_id::JobId;
use super::radix::Radix;
use super::scheme::Scheme;
use super::token::Token;
use super::wire::{Export, get_export, put_export};
use serde::{Deserialize, Serialize};
use xgvmi_daemon::codec::{BadMessage, Reader, Writer};
use xgvmi_daemon::{Protocol, printable};

/// Version of the frames, the active messages and their order. Each frame carries the version, so peers detect a
/// mismatch whatever else has changed.
pub const PROTOCOL: u32 = 17;

/// Format parameters of the frames.
pub(super) const FRAMES: Protocol = Protocol {
    magic: *b"xgsp",
    version: PROTOCOL,
    program: "xgvmi-sp",
};

/// Maximum number of ranks of a job: the table of all ranks is one frame.
pub const RANKS_MAX: u32 = super::wire::RANKS_MAX;

/// The longest worker address of UCX. On a machine with many devices it takes several kilobytes.
pub(super) const ADDRESS_MAX: usize = 64 << 10;

/// The longest announcement: a pool of 65,536 keys takes half a megabyte.
pub(super) const ANNOUNCEMENT_MAX: usize = 16 << 20;

/// The longest `host:port` of an SP. A host name has at most 253 bytes.
const TCP_ADDRESS_MAX: usize = 512;

/// The longest failure reason that a frame carries.
const REASON_MAX: usize = 2048;

/// A message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Frame {
    /// Rank to its SP: the first frame.
    Hello(Hello),
    /// Rank to its SP, sent with the hello: addresses and keys of the rank.
    Keys(Keys),
    /// SP to rank: the rank is admitted.
    Welcome(Welcome),
    /// Rank to its SP: all SPs of the job, and the ranks of each.
    Table(Table),
    /// SP to SP: the first frame.
    Peer(PeerHello),
    /// SP to the connecting SP.
    PeerWelcome(Token),
    /// Rank to its SP: all keys of the rank's pool, after the pool has grown.
    More(Vec<u8>),
    /// SP to its ranks: all of the job's SPs and all of this SP's ranks are reachable.
    Ready,
    /// Any peer to any peer: the job has failed. The connection closes.
    Abort(String),
    /// Rank to SP, SP to SP: the sender has finished without error.
    Bye,
    /// SP to its ranks and to other SPs: the sender is alive. A rank sends it back, and gets no further one before: the
    /// connection to a rank that reads nothing does not fill up.
    Beat,
}

/// A rank's request for admission.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Hello {
    pub(super) job: JobId,
    pub(super) rank: u32,
    pub(super) size: u32,
    pub(super) scheme: Scheme,
    pub(super) ucx_version: String,
}

/// Addresses and keys of a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Keys {
    /// Token for the SP's active messages to this rank.
    pub(super) token: Token,
    /// Address of the rank's UCP worker.
    pub(super) address: Vec<u8>,
    /// The keys of the rank's pool, as the library announces them; empty without the library.
    pub(super) announcement: Vec<u8>,
    /// The memory that the rank provides for greetings.
    pub(super) greeting: Export,
}

/// An SP's reply to an admitted rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Welcome {
    pub(super) service: ServiceAddress,
    /// Token for the rank's active messages to this SP.
    pub(super) token: Token,
    /// Blocks shorter than this travel in messages. The value is the same for all SPs of a job.
    pub(super) direct_min: u64,
    /// An SP that is silent for longer is considered dead. The value is the same for all SPs of a job.
    pub(super) silence_ms: u64,
    /// Number of announced keys that have an alias now.
    pub(super) accepted: u64,
    /// Bytes that the outstanding calls of a communicator may keep at this SP.
    pub(super) call_bytes: u64,
    /// Number of imports that this SP keeps for the rank between calls.
    pub(super) imports: u32,
    /// Radix of the trees. The value is the same for all SPs of a job.
    pub(super) radix: Radix,
}

/// Addresses of an SP.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ServiceAddress {
    /// Unique per SP process. Ranks compare it to detect that they share an SP.
    pub(super) unique: u64,
    /// `host:port` where other SPs connect.
    pub(super) tcp: String,
    /// Address of the SP's UCP worker for this job.
    pub(super) worker: Vec<u8>,
}

/// All SPs of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Table {
    pub(super) services: Vec<ServiceAddress>,
    /// Index in `services` of each rank's SP.
    pub(super) service_of: Vec<u32>,
}

/// An SP of the same job that connects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PeerHello {
    pub(super) job: JobId,
    /// Index of the SP in the table.
    pub(super) index: u32,
    /// Token for the accepting SP's active messages to the connecting SP.
    pub(super) token: Token,
}

impl Table {
    /// The ranks of an SP.
    pub(super) fn ranks_of(&self, service: u32) -> impl Iterator<Item = u32> + '_ {
        (0..)
            .zip(&self.service_of)
            .filter(move |(_, of)| **of == service)
            .map(|(rank, _)| rank)
    }
}

impl Frame {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.u8(self.kind());
        match self {
            Self::Hello(hello) => json(&mut writer, hello),
            Self::Peer(peer) => json(&mut writer, peer),
            Self::Keys(keys) => {
                writer.raw(&keys.token.0);
                writer.blob(&keys.address).blob(&keys.announcement);
                put_export(&mut writer, &keys.greeting);
            }
            Self::Welcome(welcome) => {
                put_address(&mut writer, &welcome.service);
                writer.raw(&welcome.token.0).u64(welcome.direct_min);
                writer.u64(welcome.silence_ms).u64(welcome.accepted);
                writer.u64(welcome.call_bytes).u32(welcome.imports);
                writer.u32(welcome.radix.0);
            }
            Self::Table(table) => {
                writer.list(&table.services, put_address);
                writer.list(&table.service_of, |writer, of| {
                    writer.u32(*of);
                });
            }
            Self::PeerWelcome(token) => {
                writer.raw(&token.0);
            }
            Self::Abort(reason) => {
                // The reader replaces a truncated character.
                let end = reason.len().min(REASON_MAX);
                writer.blob(&reason.as_bytes()[..end]);
            }
            Self::More(announcement) => {
                writer.blob(announcement);
            }
            Self::Ready | Self::Bye | Self::Beat => {}
        }
        writer.finish()
    }

    pub(super) fn parse(bytes: &[u8]) -> Result<Self, BadMessage> {
        let unknown = Reader::new("frame", bytes);
        let Some((kind, body)) = bytes.split_first() else {
            return Err(unknown.fault("empty"));
        };
        let frame = match *kind {
            1 => Self::Hello(from_json("HELLO", body)?),
            2 => {
                let mut reader = Reader::new("KEYS", body);
                let keys = Keys {
                    token: Token(reader.raw()?),
                    address: worker_address(&mut reader)?,
                    announcement: limited(&mut reader, ANNOUNCEMENT_MAX)?,
                    greeting: match get_export(&mut reader)? {
                        // Only an import of a call can have a name.
                        export if export.name.is_none() => export.to_export(),
                        _ => return Err(reader.fault("with a name of its greeting")),
                    },
                };
                reader.end()?;
                Self::Keys(keys)
            }
            3 => {
                let mut reader = Reader::new("WELCOME", body);
                let welcome = Welcome {
                    service: get_address(&mut reader)?,
                    token: Token(reader.raw()?),
                    direct_min: reader.u64()?,
                    silence_ms: reader.u64()?,
                    accepted: reader.u64()?,
                    call_bytes: reader.u64()?,
                    imports: reader.u32()?,
                    radix: Radix(reader.u32()?),
                };
                reader.end()?;
                Self::Welcome(welcome)
            }
            4 => {
                let mut reader = Reader::new("TABLE", body);
                let table = Table {
                    services: reader.list(SERVICE_BYTES, get_address)?,
                    service_of: reader.list(4, Reader::u32)?,
                };
                reader.end()?;
                Self::Table(table)
            }
            5 => Self::Peer(from_json("PEER", body)?),
            6 => {
                let mut reader = Reader::new("PEER_WELCOME", body);
                let token = Token(reader.raw()?);
                reader.end()?;
                Self::PeerWelcome(token)
            }
            10 => {
                let mut reader = Reader::new("ABORT", body);
                let reason = limited(&mut reader, REASON_MAX)?;
                reader.end()?;
                // The reason appears in logs and on terminals.
                let reason = String::from_utf8_lossy(&reason);
                Self::Abort(printable(&reason, REASON_MAX))
            }
            11 => {
                let mut reader = Reader::new("MORE", body);
                let announcement = limited(&mut reader, ANNOUNCEMENT_MAX)?;
                reader.end()?;
                Self::More(announcement)
            }
            7..=9 if !body.is_empty() => return Err(unknown.fault("too long")),
            7 => Self::Ready,
            8 => Self::Bye,
            9 => Self::Beat,
            _ => return Err(unknown.fault("of an unknown kind")),
        };
        Ok(frame)
    }

    /// The name of the frame's kind.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Hello(_) => "HELLO",
            Self::Keys(_) => "KEYS",
            Self::Welcome(_) => "WELCOME",
            Self::Table(_) => "TABLE",
            Self::Peer(_) => "PEER",
            Self::PeerWelcome(_) => "PEER_WELCOME",
            Self::More(_) => "MORE",
            Self::Ready => "READY",
            Self::Abort(_) => "ABORT",
            Self::Bye => "BYE",
            Self::Beat => "BEAT",
        }
    }

    fn kind(&self) -> u8 {
        match self {
            Self::Hello(_) => 1,
            Self::Keys(_) => 2,
            Self::Welcome(_) => 3,
            Self::Table(_) => 4,
            Self::Peer(_) => 5,
            Self::PeerWelcome(_) => 6,
            Self::Ready => 7,
            Self::Bye => 8,
            Self::Beat => 9,
            Self::Abort(_) => 10,
            Self::More(_) => 11,
        }
    }
}

/// Minimum size of a service's address on the wire.
const SERVICE_BYTES: usize = 24;

pub(super) fn put_address(writer: &mut Writer, service: &ServiceAddress) {
    writer.u64(service.unique).blob(service.tcp.as_bytes());
    writer.blob(&service.worker);
}

pub(super) fn get_address(reader: &mut Reader<'_>) -> Result<ServiceAddress, BadMessage> {
    let unique = reader.u64()?;
    let tcp = String::from_utf8(limited(reader, TCP_ADDRESS_MAX)?).ok();
    let tcp = tcp.filter(|tcp| is_tcp_address(tcp));
    Ok(ServiceAddress {
        unique,
        tcp: tcp.ok_or_else(|| reader.fault("without a readable address"))?,
        worker: worker_address(reader)?,
    })
}

/// Whether a text can be `host:port`. It appears in logs, so it has no spaces or control characters.
pub(super) fn is_tcp_address(text: &str) -> bool {
    (1..=TCP_ADDRESS_MAX).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Address of a UCP worker. UCX reads it without its length, so at least it is not empty.
fn worker_address(reader: &mut Reader<'_>) -> Result<Vec<u8>, BadMessage> {
    let address = limited(reader, ADDRESS_MAX)?;
    if address.is_empty() {
        return Err(reader.fault("without the address of a worker"));
    }
    Ok(address)
}

fn limited(reader: &mut Reader<'_>, max: usize) -> Result<Vec<u8>, BadMessage> {
    let bytes = reader.blob()?;
    if bytes.len() > max {
        return Err(reader.fault("too long in one of its parts"));
    }
    Ok(bytes.to_vec())
}

fn json<T: Serialize>(writer: &mut Writer, value: &T) {
    // The structure contains only strings and numbers; JSON represents both.
    let text = serde_json::to_vec(value).expect("plain data");
    writer.raw(&text);
}

fn from_json<T: serde::de::DeserializeOwned>(
    message: &'static str,
    body: &[u8],
) -> Result<T, BadMessage> {
    serde_json::from_slice(body)
        .map_err(|_| Reader::new(message, body).fault("not as it should be"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames() -> Vec<Frame> {
        let service = ServiceAddress {
            unique: 7,
            tcp: "dpu0:7700".to_owned(),
            worker: vec![1; 300],
        };
        let greeting = Export {
            address: 0x7f00_0000_0000,
            length: 8192,
            packed: vec![3; 60],
            name: None,
        };
        vec![
            Frame::Hello(Hello {
                job: JobId(u128::MAX),
                rank: 3,
                size: 8,
                scheme: Scheme::Xgvmi,
                ucx_version: "1.20.1".to_owned(),
            }),
            Frame::Keys(Keys {
                token: Token([9; 16]),
                address: vec![2; 500],
                announcement: vec![5; 10_000],
                greeting,
            }),
            Frame::Welcome(Welcome {
                service: service.clone(),
                token: Token([1; 16]),
                direct_min: 512,
                silence_ms: 20_000,
                accepted: 4,
                call_bytes: 1 << 25,
                imports: 16,
                radix: Radix(8),
            }),
            Frame::Table(Table {
                services: vec![service.clone(), service],
                service_of: vec![0, 1, 0, 1],
            }),
            Frame::Peer(PeerHello {
                job: JobId(1),
                index: 2,
                token: Token([4; 16]),
            }),
            Frame::PeerWelcome(Token([8; 16])),
            Frame::Ready,
            Frame::Abort("why".to_owned()),
            Frame::Bye,
            Frame::Beat,
        ]
    }

    #[test]
    fn frames_survive_the_wire_and_no_other_length_does() {
        for frame in frames() {
            let bytes = frame.to_bytes();
            assert_eq!(Frame::parse(&bytes), Ok(frame.clone()));
            for length in 0..bytes.len() {
                assert!(
                    Frame::parse(&bytes[..length]).is_err(),
                    "{} of {length}",
                    frame.name()
                );
            }
            let longer = [&bytes[..], b"x"].concat();
            assert!(Frame::parse(&longer).is_err(), "{}", frame.name());
        }
        for kind in [0, 11, 255] {
            assert!(Frame::parse(&[kind]).is_err(), "{kind}");
        }
    }

    #[test]
    fn a_hello_fits_into_the_frame_of_a_stranger() {
        let bytes = frames()[0].to_bytes();
        assert!(
            bytes.len() < xgvmi_daemon::STRANGER_FRAME_MAX / 4,
            "{}",
            bytes.len()
        );
    }

    #[test]
    fn reasons_are_short_and_show_nothing_strange() {
        let long = Frame::Abort("é\u{1b}[31m".repeat(10_000));
        let Ok(Frame::Abort(reason)) = Frame::parse(&long.to_bytes()) else {
            panic!("not an abort")
        };
        assert!(reason.len() <= REASON_MAX + 3 && !reason.contains('\u{1b}'));
    }

    #[test]
    fn an_address_in_a_table_forges_no_log() {
        let table = |tcp: &str, worker: &[u8]| {
            let service = ServiceAddress {
                unique: 1,
                tcp: tcp.to_owned(),
                worker: worker.to_vec(),
            };
            let table = Table {
                services: vec![service],
                service_of: vec![0],
            };
            Frame::parse(&Frame::Table(table).to_bytes())
        };
        assert!(table("[fe80::1%tmfifo]:7700", b"w").is_ok());
        for tcp in [
            "",
            "dpu0:1\nxgvmi-sp dpu0:7700: job 0: done",
            "dpu0 :1",
            "größe:1",
        ] {
            let error = table(tcp, b"w").unwrap_err().to_string();
            assert!(error.contains("without a readable address"), "{error}");
        }
        let error = table("dpu0:7700", b"").unwrap_err().to_string();
        assert!(error.contains("without the address of a worker"), "{error}");
    }

    #[test]
    fn the_parts_of_keys_are_limited() {
        for (address, announcement) in [(ADDRESS_MAX + 1, 0), (1, ANNOUNCEMENT_MAX + 1)] {
            let Frame::Keys(keys) = frames().remove(1) else {
                panic!("not keys")
            };
            let keys = Frame::Keys(Keys {
                address: vec![0; address],
                announcement: vec![0; announcement],
                ..keys
            });
            assert!(Frame::parse(&keys.to_bytes()).is_err());
        }
    }
}
