//! Tests of the server with a client that writes every byte itself, also wrong ones.

use super::wire::{
    CHUNK_MAGIC, GREETING, OPTION_REPLY_MAGIC, SIMPLE_REPLY_MAGIC, errno, option, reply,
};
use super::*;
use crate::store::{MemoryMedium, NewTarget, Store, Target};
use crate::volume::Volume;
use crate::{Geometry, Id, Role};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

mod concurrent;
mod tls;

const SIZE: u64 = 1 << 20;
const FUA: u16 = 1;
const NO_HOLE: u16 = 2;
const REQ_ONE: u16 = 8;
const READ: u16 = 0;
const WRITE: u16 = 1;
const FLUSH: u16 = 3;
const TRIM: u16 = 4;
const ZEROES: u16 = 6;
const STATUS: u16 = 7;

pub(super) fn export() -> Export {
    let targets = Role::HALVES.map(|role| -> Arc<dyn Target> {
        let new = NewTarget {
            geometry: Geometry::of_size(4096, SIZE).unwrap(),
            role,
            volume: Id([3; 16]),
            complete: true,
        };
        Arc::new(Store::create("m", Box::new(MemoryMedium::default()), new, None).unwrap())
    });
    Export::new(Arc::new(Volume::open(targets.to_vec()).unwrap()), "vol")
}

/// A client of a server in a thread of this process.
struct Client<S = UnixStream> {
    stream: S,
    server: Option<std::thread::JoinHandle<io::Result<()>>>,
}

impl Client {
    /// A client that has read the greeting and sent its flags.
    fn connect(export: &Export, flags: u32) -> Self {
        let (stream, theirs) = UnixStream::pair().unwrap();
        let limit = Some(Duration::from_secs(20));
        for end in [&stream, &theirs] {
            end.set_read_timeout(limit).unwrap();
            end.set_write_timeout(limit).unwrap();
        }
        let export = export.clone();
        let server = std::thread::spawn(move || {
            server::serve_stream(&theirs.into(), &export.into(), None, &|| Ok(()))
        });
        let mut client = Self {
            stream,
            server: Some(server),
        };
        assert_eq!(client.take(16), GREETING);
        assert_eq!(client.take(2), [0, 3]);
        client.send(&flags.to_be_bytes());
        client
    }

    /// A client that has chosen the export, with structured replies and block status.
    fn ready(export: &Export) -> Self {
        let mut client = Self::connect(export, 3);
        assert_eq!(
            client.option(option::STRUCTURED_REPLY, &[])[0].0,
            reply::ACK
        );
        let query = [
            &name("vol")[..],
            &1u32.to_be_bytes(),
            &name("base:allocation"),
        ]
        .concat();
        let replies = client.option(option::SET_META_CONTEXT, &query);
        assert_eq!(replies[0].0, reply::META_CONTEXT);
        client.go();
        client
    }

    /// The error by which the server has ended the connection.
    fn ended(mut self) -> String {
        let _ = self.stream.shutdown(std::net::Shutdown::Write);
        let done = self.server.take().unwrap().join().unwrap();
        done.unwrap_err().to_string()
    }
}

impl<S: Read + Write> Client<S> {
    fn go(&mut self) {
        let replies = self.option(option::GO, &[name("vol"), vec![0, 0]].concat());
        assert_eq!(replies.last().unwrap().0, reply::ACK);
        assert_eq!(replies[0].1[2..10], SIZE.to_be_bytes());
    }

    fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    fn take(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.stream.read_exact(&mut bytes).unwrap();
        bytes
    }

    fn number(&mut self, length: usize) -> u64 {
        self.take(length)
            .iter()
            .fold(0, |value, byte| value << 8 | u64::from(*byte))
    }

    /// Sends an option. Returns the replies, the last of which is an acknowledgement or an error.
    fn option(&mut self, option: u32, data: &[u8]) -> Vec<(u32, Vec<u8>)> {
        let length = u32::try_from(data.len()).unwrap();
        self.send(
            &[
                b"IHAVEOPT",
                &option.to_be_bytes()[..],
                &length.to_be_bytes(),
                data,
            ]
            .concat(),
        );
        let mut replies = Vec::new();
        loop {
            assert_eq!(self.number(8), OPTION_REPLY_MAGIC);
            assert_eq!(self.number(4), u64::from(option));
            let kind = u32::try_from(self.number(4)).unwrap();
            let length = usize::try_from(self.number(4)).unwrap();
            replies.push((kind, self.take(length)));
            if kind == reply::ACK || kind >> 31 == 1 {
                return replies;
            }
        }
    }

    fn post(&mut self, command: (u16, u16), offset: u64, length: u32, data: &[u8]) {
        self.post_as(77, command, (offset, length), data);
    }

    fn post_as(
        &mut self,
        cookie: u64,
        (command, flags): (u16, u16),
        (offset, length): (u64, u32),
        data: &[u8],
    ) {
        let bytes = [
            &0x2560_9513u32.to_be_bytes()[..],
            &flags.to_be_bytes(),
            &command.to_be_bytes(),
            &cookie.to_be_bytes(),
            &offset.to_be_bytes(),
            &length.to_be_bytes(),
            data,
        ];
        self.send(&bytes.concat());
    }

    /// Sends a request. Returns the chunks of the reply, or the error.
    fn request(
        &mut self,
        command: (u16, u16),
        offset: u64,
        length: u32,
        data: &[u8],
    ) -> Result<Vec<(u16, Vec<u8>)>, u32> {
        self.post(command, offset, length, data);
        let mut chunks = Vec::new();
        loop {
            assert_eq!(self.number(4), u64::from(CHUNK_MAGIC));
            let flags = self.number(2);
            let kind = u16::try_from(self.number(2)).unwrap();
            assert_eq!(self.number(8), 77);
            let length = usize::try_from(self.number(4)).unwrap();
            let data = self.take(length);
            if kind >> 15 == 1 {
                assert!(data.len() > 6, "an error has a text");
                return Err(u32::from_be_bytes(data[..4].try_into().unwrap()));
            }
            chunks.push((kind, data));
            if flags & 1 != 0 {
                return Ok(chunks);
            }
        }
    }

    /// The bytes of a read, from data and holes.
    fn read(&mut self, offset: u64, length: u32) -> Vec<u8> {
        let mut bytes = vec![0xaa; length as usize];
        for (kind, data) in self.request((READ, 0), offset, length, &[]).unwrap() {
            let at = usize::try_from(u64::from_be_bytes(data[..8].try_into().unwrap()) - offset)
                .unwrap();
            match kind {
                1 => bytes[at..at + data.len() - 8].copy_from_slice(&data[8..]),
                2 => {
                    let length = u32::from_be_bytes(data[8..12].try_into().unwrap()) as usize;
                    bytes[at..at + length].fill(0);
                }
                other => panic!("a chunk of kind {other}"),
            }
        }
        bytes
    }

    /// Leaves. The server must end without an error.
    fn leave(mut self) {
        self.post((2, 0), 0, 0, &[]);
        self.server.take().unwrap().join().unwrap().unwrap();
    }
}

fn name(text: &str) -> Vec<u8> {
    [
        &u32::try_from(text.len()).unwrap().to_be_bytes(),
        text.as_bytes(),
    ]
    .concat()
}

#[test]
fn requests_do_what_they_say() {
    let export = export();
    let mut client = Client::ready(&export);
    let bytes: Vec<u8> = (0..8192u32).map(|n| (n % 249) as u8).collect();
    client.request((WRITE, 0), 512, 8192, &bytes).unwrap();
    assert_eq!(client.read(512, 8192), bytes);
    let around = client.read(0, 16384);
    assert_eq!(
        (&around[512..8704], &around[..512]),
        (&bytes[..], &[0; 512][..])
    );
    // The hole behind is sent as a hole.
    let chunks = client.request((READ, 0), 0, 32768, &[]).unwrap();
    assert_eq!(
        chunks.iter().map(|chunk| chunk.0).collect::<Vec<_>>(),
        [1, 2]
    );
    let whole = client.request((READ, 4), 0, 32768, &[]).unwrap();
    assert_eq!(whole.len(), 1, "don't fragment");
    // 512 to 8704 is in three blocks. The first and the last are not whole.
    client.request((TRIM, 0), 512, 8192, &[]).unwrap();
    assert_eq!(client.read(512, 3584), bytes[..3584]);
    assert_eq!(client.read(4096, 4096), vec![0; 4096]);
    assert_eq!(client.read(8192, 512), bytes[7680..]);
    client.request((ZEROES, 0), 512, 8192, &[]).unwrap();
    assert_eq!(client.read(0, 16384), vec![0; 16384]);
    client.request((WRITE, FUA), 0, 512, &[7; 512]).unwrap();
    client.request((FLUSH, 0), 0, 0, &[]).unwrap();
    assert_eq!(export.volume().status().flushes, 2, "FUA is a flush");
    client.leave();
}

#[test]
fn zeros_are_sent_as_holes_of_whole_units_up_to_a_limit() {
    let export = export();
    let mut client = Client::ready(&export);
    let kinds = |chunks: &[(u16, Vec<u8>)]| chunks.iter().map(|chunk| chunk.0).collect::<Vec<_>>();
    // Zeros with space of their own, too.
    client.request((ZEROES, NO_HOLE), 0, 8192, &[]).unwrap();
    client.request((WRITE, 0), 8192, 512, &[7; 512]).unwrap();
    let chunks = client.request((READ, 0), 512, 12288, &[]).unwrap();
    assert_eq!(kinds(&chunks), [2, 1, 2]);
    let chunk = |offset: u64, rest: &[u8]| [&offset.to_be_bytes()[..], rest].concat();
    assert_eq!(chunks[0].1, chunk(512, &7680u32.to_be_bytes()));
    let data = [vec![7; 512], vec![0; 3584]].concat();
    assert_eq!(chunks[1].1, chunk(8192, &data));
    assert_eq!(chunks[2].1, chunk(12288, &512u32.to_be_bytes()));
    client.leave();
    // Every other unit has data.
    let mut bytes = vec![0; 2 * 1024 * 4096];
    for unit in bytes.chunks_exact_mut(8192) {
        unit[8191] = 1;
    }
    let request = wire::Request {
        flags: 0,
        command: wire::Command::Read,
        cookie: 77,
        offset: 0,
        // Cannot be cut: 8 MiB.
        length: u32::try_from(bytes.len()).unwrap(),
    };
    let mut reply = answer::Answer::default();
    transmit::send_data(&mut reply, &request, &bytes);
    let mut sent = Vec::new();
    reply.write(&mut sent, &bytes).unwrap();
    let (mut chunks, mut rest) = (0, &sent[..]);
    while let [header @ .., _] = &rest[..rest.len().min(21)] {
        let length = u32::from_be_bytes(header[16..20].try_into().unwrap());
        rest = &rest[20 + length as usize..];
        chunks += 1;
    }
    assert_eq!(chunks, 1025, "the last one has the rest");
    let holes = 512 * 4096;
    assert_eq!(sent.len(), bytes.len() - holes + 512 * 32 + 513 * 28);
}

#[test]
fn states_of_blocks_are_told() {
    let export = export();
    let mut client = Client::ready(&export);
    client.request((WRITE, 0), 4096, 4096, &[9; 4096]).unwrap();
    client.request((ZEROES, NO_HOLE), 12288, 4096, &[]).unwrap();
    let mut states = |flags, offset, length| -> Vec<u32> {
        let chunks = client
            .request((STATUS, flags), offset, length, &[])
            .unwrap();
        assert_eq!(chunks.len(), 1);
        let words = chunks[0].1.as_chunks::<4>().0.iter();
        words.map(|word| u32::from_be_bytes(*word)).collect()
    };
    let all = [1, 4096, 3, 4096, 0, 4096, 3, 4096, 0, 1_032_192, 3];
    assert_eq!(states(0, 0, 1 << 20), all);
    assert_eq!(states(REQ_ONE, 512, 1 << 19), [1, 3584, 3]);
    client.leave();
}

#[test]
fn what_a_request_must_not_be_is_refused_and_the_next_one_is_served() {
    let export = export();
    let mut client = Client::ready(&export);
    let end = SIZE;
    for (command, offset, length, expect) in [
        ((READ, 0), 0, 0, errno::EINVAL),
        ((READ, 0), 1, 512, errno::EINVAL),
        ((READ, 0), 0, 511, errno::EINVAL),
        ((READ, 0), end, 512, errno::EINVAL),
        ((READ, 0), u64::MAX - 511, 512, errno::EINVAL),
        ((READ, 0), 0, (32 << 20) + 512, errno::EOVERFLOW),
        ((READ, 0x80), 0, 512, errno::EINVAL),
        ((TRIM, 0), end - 512, 1024, errno::ENOSPC),
        ((TRIM, NO_HOLE), 0, 512, errno::EINVAL),
        ((ZEROES, 0), end, 512, errno::ENOSPC),
        ((ZEROES, 0), 0, u32::MAX - 511, errno::ENOSPC),
        ((STATUS, 0), end - 512, 1024, errno::EINVAL),
        ((STATUS, 0), 0, 0, errno::EINVAL),
        ((FLUSH, 0), 512, 512, errno::EINVAL),
        ((99, 0), 0, 512, errno::EINVAL),
    ] {
        let refused = client.request(command, offset, length, &[]).unwrap_err();
        assert_eq!(refused, expect, "{command:?} {offset} {length}");
    }
    for (offset, length, expect) in [(end - 512, 1024, errno::ENOSPC), (3, 512, errno::EINVAL)] {
        let data = vec![1; length as usize];
        let refused = client
            .request((WRITE, 0), offset, length, &data)
            .unwrap_err();
        assert_eq!(refused, expect);
    }
    let long = (32 << 20) + 512;
    let data = vec![1; long as usize];
    let (mut writer, length) = (client.stream.try_clone().unwrap(), long);
    // The server reads and drops the data before it answers.
    let sent = std::thread::spawn(move || {
        let mut header = 0x2560_9513u32.to_be_bytes().to_vec();
        header.extend([0, 0, 0, 1]);
        header.extend(77u64.to_be_bytes());
        header.extend(0u64.to_be_bytes());
        header.extend(u32::to_be_bytes(length));
        writer
            .write_all(&header)
            .and_then(|()| writer.write_all(&data))
    });
    assert_eq!(client.number(4), u64::from(CHUNK_MAGIC));
    sent.join().unwrap().unwrap();
    client.take(12);
    let rest = usize::try_from(client.number(4)).unwrap();
    assert_eq!(client.take(rest)[..4], errno::EOVERFLOW.to_be_bytes());
    assert_eq!(client.read(0, 512), vec![0; 512]);
    assert_eq!(export.volume().status().written_bytes, 0);
    client.leave();
}

#[test]
fn a_read_only_export_refuses_what_changes_the_volume() {
    let export = export().read_only(true);
    let mut client = Client::connect(&export, 3);
    client.option(option::STRUCTURED_REPLY, &[]);
    let told = client.option(option::GO, &[name("vol"), vec![0, 0]].concat());
    assert_eq!(told[0].1[11] & 2, 2, "its flag");
    for (command, data) in [(WRITE, &[7; 512][..]), (TRIM, &[]), (ZEROES, &[])] {
        let refused = client.request((command, FUA), 0, 512, data);
        assert_eq!(refused.unwrap_err(), errno::EPERM);
    }
    client.request((FLUSH, 0), 0, 0, &[]).unwrap();
    assert_eq!(client.read(0, 512), [0; 512]);
    client.leave();
}

#[test]
fn options_are_answered_or_refused() {
    let export = export();
    let mut client = Client::connect(&export, 3);
    let listed = client.option(option::LIST, &[]);
    assert_eq!(listed[0], (reply::SERVER, name("vol")));
    assert_eq!(client.option(option::LIST, &[1])[0].0, reply::ERR_INVALID);
    assert_eq!(client.option(99, &[])[0].0, reply::ERR_UNSUP);
    assert_eq!(client.option(4711, &[0; 100])[0].0, reply::ERR_UNSUP);
    assert_eq!(client.option(option::GO, &[0; 3])[0].0, reply::ERR_INVALID);
    assert_eq!(
        client.option(option::GO, &[name("other"), vec![0, 0]].concat())[0].0,
        reply::ERR_UNKNOWN
    );
    let query = [&name("")[..], &1u32.to_be_bytes(), &name("base:allocation")].concat();
    let early = client.option(option::SET_META_CONTEXT, &query);
    assert_eq!(early[0].0, reply::ERR_INVALID, "before structured replies");
    client.option(option::STRUCTURED_REPLY, &[]);
    let all = [&name("")[..], &0u32.to_be_bytes()].concat();
    assert_eq!(client.option(option::LIST_META_CONTEXT, &all).len(), 2);
    assert_eq!(client.option(option::SET_META_CONTEXT, &all).len(), 1);
    let unknown = [
        &name("")[..],
        &1u32.to_be_bytes(),
        &name("qemu:dirty-bitmap:x"),
    ]
    .concat();
    assert_eq!(client.option(option::SET_META_CONTEXT, &unknown).len(), 1);
    let info = [&name("")[..], &[0, 2, 0, 1, 0, 2]].concat();
    let kinds: Vec<_> = client
        .option(option::INFO, &info)
        .iter()
        .map(|reply| reply.1.get(1).copied())
        .collect();
    assert_eq!(kinds, [Some(0), Some(3), Some(1), Some(2), None]);
    client.go();
    // The contexts were not chosen.
    assert_eq!(client.request((STATUS, 0), 0, 512, &[]), Err(errno::EINVAL));
    client.leave();
}

#[test]
fn a_client_without_structured_replies_is_served() {
    let export = export();
    let mut client = Client::connect(&export, 1);
    client.send(
        &[
            b"IHAVEOPT",
            &option::EXPORT_NAME.to_be_bytes()[..],
            &3u32.to_be_bytes(),
            b"vol",
        ]
        .concat(),
    );
    assert_eq!(client.number(8), SIZE);
    assert_eq!(client.take(126)[2..], [0; 124], "zeros for old clients");
    client.post((READ, 0), 0, 512, &[]);
    assert_eq!(
        (client.number(4), client.number(4)),
        (u64::from(SIMPLE_REPLY_MAGIC), 0)
    );
    assert_eq!(client.number(8), 77);
    assert_eq!(client.take(512), [0; 512]);
    client.post((READ, 0), 1, 512, &[]);
    assert_eq!(
        (client.number(4), client.number(4)),
        (u64::from(SIMPLE_REPLY_MAGIC), u64::from(errno::EINVAL))
    );
    assert_eq!(client.number(8), 77);
    client.leave();
}

#[test]
fn bytes_that_break_the_protocol_end_the_connection() {
    let export = export();
    for flags in [0, 2, 4, u32::MAX] {
        let client = Client::connect(&export, flags);
        assert!(client.ended().contains("handshake flags"));
    }
    let mut client = Client::connect(&export, 3);
    client.send(b"IHAVEOPX\0\0\0\x07\0\0\0\0");
    assert!(client.ended().contains("magic"));
    let mut client = Client::connect(&export, 3);
    let replies = {
        client.send(
            &[
                b"IHAVEOPT",
                &option::GO.to_be_bytes()[..],
                &u32::MAX.to_be_bytes(),
            ]
            .concat(),
        );
        client.take(20)
    };
    assert_eq!(replies[12..16], reply::ERR_TOO_BIG.to_be_bytes());
    assert!(client.ended().contains("65536"));
    let mut client = Client::ready(&export);
    client.send(&[0x25; 28]);
    assert!(client.ended().contains("magic"));
    let mut client = Client::ready(&export);
    client.post((WRITE, 0), 0, u32::MAX, &[]);
    assert!(client.ended().contains("64 MiB"));
    let mut client = Client::ready(&export);
    client.post((WRITE, 0), 0, 512, &[1; 511]);
    client.ended();
    assert_eq!(export.volume().status().written_bytes, 0);
}
