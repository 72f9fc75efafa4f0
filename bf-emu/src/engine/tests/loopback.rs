//! A queue pair that is its own peer. Each request and each receive entry has one completion. The
//! refused request completes before the requests that it flushes.

use super::*;

/// Bytes of each receive entry.
const CAPACITY: usize = 64;

/// A request on memory of a key: its opcode, its immediate value or key, and the segments after the
/// control segment.
struct Posted {
    opcode: u8,
    imm: u32,
    body: Vec<u8>,
}

fn posted(opcode: u8, imm: u32, segments: &[&[u8]]) -> Posted {
    Posted {
        opcode,
        imm,
        body: segments.concat(),
    }
}

fn remote(rkey: u32, address: u64) -> [u8; 16] {
    RemoteAddress { address, rkey }.to_bytes()
}

/// Posts a request and a NOP behind it with one doorbell, on a queue pair that is connected to
/// itself and has two receives. Returns each completion as its opcode, syndrome and entry, and the
/// state of the queue pair after them.
fn completions(
    change: impl FnOnce(&mut Qp),
    request: impl FnOnce(&World, u32, &[u8]) -> Posted,
) -> (Vec<(u8, u8, u16)>, u8) {
    let world = World::new();
    let bytes = vec![0u8; 4096];
    let key = world.region(HOST, &bytes, ALL_RIGHTS);
    let mut queue = world.queue(HOST);
    let qpn = queue.qpn;
    world.change(&queue, |qp| {
        qp.set_remote(Some(place(HOST)));
        qp.remote_qpn = qpn;
        change(qp);
    });
    queue.post_receive(key, &bytes[..CAPACITY]);
    queue.post_receive(key, &bytes[..CAPACITY]);
    let Posted { opcode, imm, body } = request(&world, key, &bytes);
    let ctrl = Ctrl {
        opcode,
        imm,
        ..Ctrl::default()
    };
    queue.lay(ctrl, &body);
    queue.lay(
        Ctrl {
            opcode: opcode::NOP,
            ..Ctrl::default()
        },
        &[],
    );
    queue.ring_doorbell();
    run(&world.fabric, HOST, qpn);
    let entry = |cqe: &Cqe| (cqe.opcode, cqe.syndrome, cqe.wqe_counter);
    let found = queue.completions().iter().map(entry).collect();
    (found, world.state(&queue))
}

/// The completions after a refused request of one block: the NOP and the receives from number
/// `taken` on.
fn flushed(taken: u16) -> Vec<(u8, u8, u16)> {
    let mut flushed = vec![(cqe_opcode::REQ_ERR, syndrome::WR_FLUSH_ERR, 1)];
    flushed.extend((taken..2).map(|entry| (cqe_opcode::RESP_ERR, syndrome::WR_FLUSH_ERR, entry)));
    flushed
}

type Request = fn(&World, u32, &[u8]) -> Posted;
/// Name, change of the queue pair, request, syndrome.
type Case = (&'static str, fn(&mut Qp), Request, u8);

/// A queue pair with all rights, and one that grants none.
const ANY: fn(&mut Qp) = |_| {};
const DEAF: fn(&mut Qp) = |qp| qp.access = 0;

fn refused_writes_and_reads() -> Vec<Case> {
    vec![
        (
            "write, bad key",
            ANY,
            |_, key, bytes| {
                posted(
                    opcode::RDMA_WRITE,
                    0,
                    &[&remote(key ^ 1, address(bytes)), &segment(key, &bytes[..8])],
                )
            },
            syndrome::REMOTE_ACCESS_ERR,
        ),
        (
            "write, out of range",
            ANY,
            |_, key, bytes| {
                posted(
                    opcode::RDMA_WRITE,
                    0,
                    &[&remote(key, address(bytes) - 1), &segment(key, &bytes[..8])],
                )
            },
            syndrome::REMOTE_ACCESS_ERR,
        ),
        (
            "write, not granted",
            DEAF,
            |_, key, bytes| {
                posted(
                    opcode::RDMA_WRITE,
                    0,
                    &[&remote(key, address(bytes)), &segment(key, &bytes[..8])],
                )
            },
            syndrome::REMOTE_INVAL_REQ_ERR,
        ),
        (
            "write, bad local key",
            ANY,
            |_, key, bytes| {
                posted(
                    opcode::RDMA_WRITE,
                    0,
                    &[&remote(key, address(bytes)), &segment(key ^ 1, &bytes[..8])],
                )
            },
            syndrome::LOCAL_PROT_ERR,
        ),
        (
            "read, bad key",
            ANY,
            |_, key, bytes| {
                posted(
                    opcode::RDMA_READ,
                    0,
                    &[&remote(key ^ 1, address(bytes)), &segment(key, &bytes[..8])],
                )
            },
            syndrome::REMOTE_ACCESS_ERR,
        ),
        (
            "read, not granted",
            DEAF,
            |_, key, bytes| {
                posted(
                    opcode::RDMA_READ,
                    0,
                    &[&remote(key, address(bytes)), &segment(key, &bytes[..8])],
                )
            },
            syndrome::REMOTE_INVAL_REQ_ERR,
        ),
        (
            "read, bad local key",
            ANY,
            |_, key, bytes| {
                posted(
                    opcode::RDMA_READ,
                    0,
                    &[&remote(key, address(bytes)), &segment(key ^ 1, &bytes[..8])],
                )
            },
            syndrome::LOCAL_PROT_ERR,
        ),
    ]
}

fn refused_atomics() -> Vec<Case> {
    vec![
        (
            "atomic, bad key",
            ANY,
            |_, key, bytes| {
                posted(
                    opcode::ATOMIC_FA,
                    0,
                    &[
                        &remote(key ^ 1, address(bytes)),
                        &[0; 16],
                        &segment(key, &bytes[..8]),
                    ],
                )
            },
            syndrome::REMOTE_ACCESS_ERR,
        ),
        (
            "atomic, not granted",
            DEAF,
            |_, key, bytes| {
                posted(
                    opcode::ATOMIC_FA,
                    0,
                    &[
                        &remote(key, address(bytes)),
                        &[0; 16],
                        &segment(key, &bytes[..8]),
                    ],
                )
            },
            syndrome::REMOTE_INVAL_REQ_ERR,
        ),
        (
            "atomic, not aligned",
            ANY,
            |_, key, bytes| {
                posted(
                    opcode::ATOMIC_FA,
                    0,
                    &[
                        &remote(key, address(bytes) + 4),
                        &[0; 16],
                        &segment(key, &bytes[..8]),
                    ],
                )
            },
            syndrome::REMOTE_INVAL_REQ_ERR,
        ),
    ]
}

fn refused_messages() -> Vec<Case> {
    vec![
        (
            "send, bad local key",
            ANY,
            |_, key, bytes| posted(opcode::SEND, 0, &[&segment(key ^ 1, &bytes[..8])]),
            syndrome::LOCAL_PROT_ERR,
        ),
        (
            "send, a key that cannot be taken away",
            ANY,
            |_, key, bytes| posted(opcode::SEND_INVAL, key, &[&segment(key, &bytes[..8])]),
            syndrome::REMOTE_ACCESS_ERR,
        ),
        (
            "an unknown opcode",
            ANY,
            |_, _, _| posted(0x3e, 0, &[]),
            syndrome::LOCAL_QP_OP_ERR,
        ),
    ]
}

#[test]
fn a_refused_request_completes_once_and_first() {
    let mut cases = refused_writes_and_reads();
    cases.extend(refused_atomics());
    cases.extend(refused_messages());
    for (name, change, request, syndrome) in cases {
        let (found, state) = completions(change, request);
        let mut expect = vec![(cqe_opcode::REQ_ERR, syndrome, 0)];
        expect.extend(flushed(0));
        assert_eq!((found, state), (expect, state::ERR), "{name}");
    }
}

/// The receive entry fails first, then the request.
#[test]
fn a_refused_message_completes_its_receive_and_itself_once() {
    let long: Request =
        |_, key, bytes| posted(opcode::SEND, 0, &[&segment(key, &bytes[..CAPACITY + 1])]);
    let fits: Request =
        |_, key, bytes| posted(opcode::SEND, 0, &[&segment(key, &bytes[..CAPACITY])]);
    for (service, request, receive, send) in [
        (
            service::RC,
            long,
            syndrome::LOCAL_LENGTH_ERR,
            syndrome::REMOTE_INVAL_REQ_ERR,
        ),
        // A message that the service may lose is not an error of its sender.
        (service::UC, long, syndrome::LOCAL_LENGTH_ERR, 0),
    ] {
        let (found, state) = completions(|qp| qp.service = service, request);
        let opcode = if send == 0 {
            cqe_opcode::REQ
        } else {
            cqe_opcode::REQ_ERR
        };
        let mut expect = vec![(cqe_opcode::RESP_ERR, receive, 0), (opcode, send, 0)];
        expect.extend(flushed(1));
        assert_eq!((found, state), (expect, state::ERR), "{service}");
    }
    let (found, state) = completions(|_| {}, fits);
    let expect = vec![
        (cqe_opcode::RESP_SEND, 0, 0),
        (cqe_opcode::REQ, 0, 0),
        (cqe_opcode::REQ, 0, 1),
    ];
    assert_eq!((found, state), (expect, state::RTS));
}
