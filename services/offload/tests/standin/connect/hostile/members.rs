//! Frames of admitted ranks and services, and tables, that break the protocol.

use super::super::*;
use super::harness::*;
use crate::control::{PeerHello, ServiceAddress};
use std::net::TcpListener;
use xgvmi_daemon::FRAME_MAX;

// The frames of this file, as bytes, have it.
const _: () = assert!(
    crate::PROTOCOL == 0x11,
    "change the frames, and VERSION in tests/system/hostile.rs"
);

/// Rank 0 of two sends a frame after its admission.
fn said(served: &Served, job: JobId, frame: &Frame) -> Result<Link> {
    let mut member = served.admitted(job, 0, 2)?;
    member.tell(frame)?;
    Ok(member.rank.link)
}

/// The only rank of its job names services.
fn tabled(
    served: &Served,
    job: JobId,
    of: impl FnOnce(&ServiceAddress) -> (Vec<ServiceAddress>, Vec<u32>),
) -> Result<Link> {
    let mut member = served.admitted(job, 0, 2)?;
    let (services, service_of) = of(&member.welcome.service);
    let services: Vec<&ServiceAddress> = services.iter().collect();
    member.tell(&table(&services, &service_of))?;
    Ok(member.rank.link)
}

fn elsewhere(tcp: &str) -> ServiceAddress {
    ServiceAddress {
        unique: 7,
        tcp: tcp.to_owned(),
        worker: NOBODY.to_le_bytes().to_vec(),
    }
}

/// A table that makes the service call a third party, which sends these bytes and reads what comes.
pub(super) fn pointed(served: &Served, job: JobId, bytes: &'static [u8]) -> Result<Link> {
    let listener =
        TcpListener::bind("127.0.0.1:0").map_err(|error| OffloadError::io("bind", error))?;
    let address = listener
        .local_addr()
        .map_err(|error| OffloadError::io("bind", error))?;
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("called");
        // The service closes after the first words that it does not expect.
        let _ = stream.write_all(bytes);
        let _ = stream.read_to_end(&mut Vec::new());
    });
    tabled(served, job, |ours| {
        (
            vec![elsewhere(&address.to_string()), ours.clone()],
            vec![1, 0],
        )
    })
}

pub(super) const WRONG_FRAMES: &[Way] = &[
    (
        "welcome_of_a_rank",
        |s, job| {
            let member = s.admitted(job, 0, 2)?;
            let mut link = member.rank.link;
            link.send(&Frame::Welcome(member.welcome).to_bytes())
                .map_err(lost)?;
            Ok(link)
        },
        "WELCOME is not expected now",
    ),
    (
        "ready_of_a_rank",
        |s, job| said(s, job, &Frame::Ready),
        "READY is not expected now",
    ),
    (
        "beat_of_a_rank",
        |s, job| said(s, job, &Frame::Beat),
        "BEAT is not expected now",
    ),
    (
        "peer_of_a_rank",
        |s, job| {
            let token = Token([1; 16]);
            said(
                s,
                job,
                &Frame::Peer(PeerHello {
                    job,
                    index: 1,
                    token,
                }),
            )
        },
        "PEER is not expected now",
    ),
    (
        "peer_welcome_of_a_rank",
        |s, job| said(s, job, &Frame::PeerWelcome(Token([1; 16]))),
        "PEER_WELCOME is not expected now",
    ),
    (
        "flood_of_frames",
        |s, job| {
            let mut member = s.admitted(job, 0, 2)?;
            for _ in 0..5000 {
                // The service may have ended the connection.
                if member.tell(&Frame::More(vec![1])).is_err() {
                    break;
                }
            }
            Ok(member.rank.link)
        },
        "it floods its connection with frames",
    ),
    (
        "frame_of_33_mib",
        |s, job| {
            let mut member = s.admitted(job, 0, 2)?;
            let too_long = member.tell(&Frame::More(vec![0; FRAME_MAX]));
            assert!(too_long.is_err(), "this side sends none");
            member.tell(&Frame::More(vec![0; 17 << 20]))?;
            Ok(member.rank.link)
        },
        "MORE of 17825800 bytes is too long in one of its parts",
    ),
    (
        "the_same_rank_twice",
        |s, job| {
            std::mem::forget(s.admitted(job, 0, 2)?);
            Ok(s.knock(job, 0, 2)?.link)
        },
        "rank 0 is here already",
    ),
    (
        "another_size",
        |s, job| {
            std::mem::forget(s.admitted(job, 0, 2)?);
            let second = s.knock(job, 1, 3)?;
            Ok(second.link)
        },
        "of a job of 3 ranks, scheme stock; others said 2",
    ),
    (
        "goodbye_of_one_rank_and_a_hello_after_the_table",
        |s, job| {
            let mut members = s.ready(job, 2)?;
            let late = s.knock(job, 1, 2)?;
            members[0].tell(&Frame::Bye)?;
            std::mem::forget(members);
            Ok(late.link)
        },
        "rank 1 is here already",
    ),
    (
        "a_failed_job_again",
        |s, job| {
            let mut first = said(s, job, &Frame::Ready)?;
            assert!(reason(&mut first).contains("READY"));
            Ok(s.knock(job, 1, 2)?.link)
        },
        "READY is not expected now",
    ),
];

pub(super) const WRONG_TABLES: &[Way] = &[
    (
        "table_of_another_size",
        |s, job| tabled(s, job, |ours| (vec![ours.clone()], vec![0; 3])),
        "a table of 3 ranks in a job of 2",
    ),
    (
        "table_with_an_absent_rank",
        |s, job| tabled(s, job, |ours| (vec![ours.clone()], vec![0; 2])),
        "the table has rank 1 at this SP, where it is not",
    ),
    (
        "table_with_a_rank_elsewhere",
        |s, job| {
            tabled(s, job, |ours| {
                (vec![ours.clone(), elsewhere("h:1")], vec![1, 0])
            })
        },
        "the table has rank 1 at this SP",
    ),
    (
        "table_without_this_service",
        |s, job| tabled(s, job, |_| (vec![elsewhere("h:1")], vec![0; 2])),
        "this SP is not in the table",
    ),
    (
        "table_with_a_place_outside",
        |s, job| tabled(s, job, |ours| (vec![ours.clone()], vec![0, u32::MAX])),
        "the table names an SP that is not in it",
    ),
    (
        "table_with_services_of_no_rank",
        |s, job| {
            tabled(s, job, |ours| {
                (
                    vec![ours.clone(), elsewhere("h:1"), elsewhere("h:2")],
                    vec![0, 1],
                )
            })
        },
        "the table has service 2, and no rank of it",
    ),
    (
        "table_of_no_services",
        |s, job| tabled(s, job, |_| (Vec::new(), vec![0; 2])),
        "the table names an SP that is not in it",
    ),
    (
        "table_of_too_many_services",
        |s, job| {
            let size = 8193;
            let mut member = s.admitted(job, 0, size)?;
            let mut services = vec![elsewhere("h:1"); size as usize];
            services[0] = member.welcome.service.clone();
            let services: Vec<&ServiceAddress> = services.iter().collect();
            member.tell(&table(&services, &(0..size).collect::<Vec<u32>>()))?;
            Ok(member.rank.link)
        },
        "a table of 8193 services; the most of a job is 8192",
    ),
    (
        "table_without_a_worker",
        |s, job| {
            tabled(s, job, |ours| {
                let nobody = ServiceAddress {
                    worker: vec![9; 8],
                    ..elsewhere("h:1")
                };
                (vec![ours.clone(), nobody], vec![0, 1])
            })
        },
        "no such mailbox",
    ),
    (
        "second_table",
        |s, job| {
            let mut members = s.ready(job, 1)?;
            let mut member = members.remove(0);
            member.tell(&table(&[&member.welcome.service.clone()], &[0]))?;
            Ok(member.rank.link)
        },
        "a rank has sent a second table",
    ),
    (
        "table_that_points_at_a_closed_port",
        |s, job| {
            tabled(s, job, |ours| {
                (vec![elsewhere("127.0.0.1:9"), ours.clone()], vec![1, 0])
            })
        },
        "cannot reach service 0 (127.0.0.1:9)",
    ),
    (
        "table_that_points_at_a_name_of_nobody",
        |s, job| {
            tabled(s, job, |ours| {
                (vec![elsewhere("no port"), ours.clone()], vec![1, 0])
            })
        },
        "without a readable address",
    ),
    (
        "table_that_points_at_another_service_of_the_machine",
        |s, job| pointed(s, job, b"220 mail ESMTP\r\n"),
        "the peer is neither xgvmi-sp nor a client of it",
    ),
    (
        "third_party_with_a_long_frame",
        |s, job| pointed(s, job, b"xgsp\x11\0\0\0\0\0\0\x01\0"),
        "a frame of 16777216 bytes; the most is 4096",
    ),
    (
        "third_party_that_says_ready",
        |s, job| pointed(s, job, b"xgsp\x11\0\0\0\x02\0\0\0\0\x07"),
        "READY is not expected now",
    ),
    (
        "third_party_that_forges_a_log",
        |s, job| pointed(s, job, b"xgsp\x11\0\0\0\x0a\0\0\0\x04no\n\x1b[2Jxy"),
        "service 0 ",
    ),
    (
        "third_party_that_accepts_twice",
        |s, job| {
            const TWICE: &[u8] = b"xgsp\x11\0\0\0\x12\0\0\0\0\x060123456789abcdef\
                xgsp\x11\0\0\0\x12\0\0\0\0\x060123456789abcdef";
            pointed(s, job, TWICE)
        },
        "a second PEER_WELCOME",
    ),
    (
        "third_party_that_closes",
        |s, job| {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            let address = listener.local_addr().expect("bound").to_string();
            thread::spawn(move || drop(listener.accept()));
            tabled(s, job, |ours| {
                (vec![elsewhere(&address), ours.clone()], vec![1, 0])
            })
        },
        "has closed its connection without a goodbye",
    ),
];

/// A connection as service `index` of a job that exists.
fn peer(served: &Served, job: JobId, index: u32) -> Result<Link> {
    let mut link = served.call()?;
    let token = Token([1; 16]);
    link.send(&Frame::Peer(PeerHello { job, index, token }).to_bytes())
        .map_err(lost)?;
    Ok(link)
}

pub(super) const IMPOSTORS: &[Way] = &[
    (
        "peer_with_this_service's_own_index",
        |s, job| {
            std::mem::forget(s.ready(job, 1)?);
            peer(s, job, 0)
        },
        "service 0 does not call this one",
    ),
    (
        "peer_beyond_the_table",
        |s, job| {
            std::mem::forget(s.ready(job, 1)?);
            peer(s, job, 1)
        },
        "service 1 does not call this one",
    ),
    (
        "peer_beyond_the_ranks",
        |s, job| {
            std::mem::forget(s.admitted(job, 0, 2)?);
            peer(s, job, 2)
        },
        "service 2 does not call this one",
    ),
    (
        "peer_of_another_job",
        |s, job| {
            std::mem::forget(s.admitted(job, 0, 2)?);
            peer(s, JobId(job.0 << 64), 1)
        },
        "there is no job",
    ),
    (
        "peer_that_is_here",
        |s, job| {
            std::mem::forget(s.ready_beside_impostor(job, 2)?);
            peer(s, job, 1)
        },
        "service 1 is here already",
    ),
    (
        "hello_of_a_service",
        |s, job| {
            let (member, impostor) = s.ready_beside_impostor(job, 2)?;
            let mut link = impostor.rank.link;
            let table = table(&[&member.welcome.service], &[0, 0]);
            link.send(&table.to_bytes()).map_err(lost)?;
            std::mem::forget(member);
            Ok(link)
        },
        "TABLE is not expected now",
    ),
    (
        "service_accepts_where_it_has_called",
        |s, job| {
            let (member, impostor) = s.ready_beside_impostor(job, 2)?;
            let mut link = impostor.rank.link;
            link.send(&Frame::PeerWelcome(Token([2; 16])).to_bytes())
                .map_err(lost)?;
            std::mem::forget(member);
            Ok(link)
        },
        "a second PEER_WELCOME",
    ),
    (
        "long_frame_of_a_service",
        |s, job| {
            let (member, impostor) = s.ready_beside_impostor(job, 2)?;
            let mut link = impostor.rank.link;
            link.send(&[0; 5000]).map_err(lost)?;
            std::mem::forget(member);
            Ok(link)
        },
        "the most is 4096",
    ),
];
