//! Ranks and SPs that were admitted to a job and then break the protocol. Each of them ends its own job with a reason, and
//! the job beside it goes on.

use super::*;
use crate::control::{PeerHello, ServiceAddress, Table};
use crate::reduction::Reduction;
use crate::service::options::ServiceOptions;
use crate::wire::{Block, Collective, DpuFin, Greeting, HostArrive, HostFin, HostReduce};
use std::net::TcpListener;
use std::thread::JoinHandle;
use xgvmi_daemon::FRAME_MAX;

/// Address of a mailbox that nobody reads.
const NOBODY: usize = 0;

/// A service in a thread. Dropping it ends the service and checks that it has not failed.
struct Served {
    mailboxes: &'static Mailboxes,
    address: String,
    thread: Option<JoinHandle<Result<()>>>,
    id: libc::pthread_t,
}

impl Served {
    fn start(vary: impl FnOnce(&mut ServiceOptions) + Send + 'static) -> Self {
        let mailboxes: &'static Mailboxes = Box::leak(Box::default());
        // Nobody's, for tables that lie.
        let (_, nobody) = add(mailboxes, None);
        assert_eq!(nobody, NOBODY);
        let (told, heard) = mpsc::channel();
        let thread = thread::spawn(move || {
            let args = ServiceArgs {
                listen: Some("127.0.0.1:0".to_owned()),
                ..ServiceArgs::default()
            };
            let mut options = args.options().expect("valid");
            vary(&mut options);
            let mut service = Sp::<Mail>::new(options, mailboxes)?;
            // SAFETY: the call has no preconditions.
            let id = unsafe { libc::pthread_self() };
            told.send((service.advertise.clone(), id)).expect("heard");
            service.run()
        });
        let (address, id) = heard.recv_timeout(LIMIT).expect("a service");
        Self {
            mailboxes,
            address,
            thread: Some(thread),
            id,
        }
    }

    /// Sends a signal to the service's thread.
    fn signal(&self, signal: libc::c_int) {
        // SAFETY: the thread has not been joined, and it blocks the signal: it reads it by a descriptor.
        assert_eq!(unsafe { libc::pthread_kill(self.id, signal) }, 0);
    }

    fn join(&mut self) {
        let thread = self.thread.take().expect("joined once");
        thread.join().expect("no panic").expect("no error");
    }

    fn knock(&self, job: JobId, rank: u32, size: u32) -> Result<Rank> {
        knock(self.mailboxes, &self.address, job, rank, size)
    }

    /// A rank that is admitted.
    fn admitted(&self, job: JobId, rank: u32, size: u32) -> Result<Member> {
        let mut rank = self.knock(job, rank, size)?;
        match answer(&mut rank.link)? {
            Frame::Welcome(welcome) => Ok(Member { rank, welcome }),
            frame => Err(failed(format!("the service answers {}", frame.name()))),
        }
    }

    /// All ranks of a job on this service alone, ready.
    fn ready(&self, job: JobId, size: u32) -> Result<Vec<Member>> {
        let members = (0..size).map(|rank| self.admitted(job, rank, size));
        let mut members = members.collect::<Result<Vec<Member>>>()?;
        let table = table(&[&members[0].welcome.service], &vec![0; size as usize]);
        members[0].tell(&table)?;
        for (rank, member) in (0..).zip(&members) {
            member.greet(self, From::Rank(rank), None)?;
        }
        for member in &mut members {
            member.await_ready()?;
        }
        Ok(members)
    }

    /// Rank 0 of a job whose other ranks belong to a service that the test plays, ready.
    fn ready_beside_impostor(&self, job: JobId, size: u32) -> Result<(Member, Member)> {
        let mut member = self.admitted(job, 0, size)?;
        let (mailbox, address) = add(self.mailboxes, None);
        let impostor = ServiceAddress {
            unique: 7,
            tcp: "127.0.0.1:9".to_owned(),
            worker: address.to_le_bytes().to_vec(),
        };
        let mut link = self.call()?;
        let token = Token([7; 16]);
        let hello = PeerHello {
            job,
            index: 1,
            token,
        };
        link.send(&Frame::Peer(hello).to_bytes()).map_err(lost)?;
        let Frame::PeerWelcome(accepted) = answer(&mut link)? else {
            return Err(failed("the service does not accept another service"));
        };
        let mut service_of = vec![1; size as usize];
        service_of[0] = 0;
        let services = [&member.welcome.service, &impostor];
        member.tell(&table(&services, &service_of))?;
        let impostor = Member {
            rank: Rank {
                link,
                token,
                mailbox,
            },
            welcome: Welcome {
                token: accepted,
                ..member.welcome.clone()
            },
        };
        member.greet(self, From::Rank(0), None)?;
        let greeting = Greeting {
            rkey: APART.to_le_bytes().to_vec(),
            address: APART,
        };
        impostor.greet(self, From::Service(1), Some(greeting))?;
        member.await_ready()?;
        Ok((member, impostor))
    }

    fn call(&self) -> Result<Link> {
        Link::connect(&self.address, LIMIT, FRAMES, None).map_err(lost)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if self.thread.is_some() && !thread::panicking() {
            self.signal(libc::SIGINT);
            self.join();
        }
    }
}

/// A rank or a service in a job.
struct Member {
    rank: Rank,
    welcome: Welcome,
}

impl Member {
    fn tell(&mut self, frame: &Frame) -> Result<()> {
        self.rank.link.send(&frame.to_bytes()).map_err(lost)
    }

    fn greet(&self, served: &Served, from: From, greeting: Option<Greeting>) -> Result<()> {
        let header = hello_header(self.welcome.token);
        let service = find(served.mailboxes, &self.welcome.service.worker)?;
        service.put(
            Kind::Hello,
            header,
            HelloMessage { from, greeting }.to_bytes(),
        );
        Ok(())
    }

    /// Sends a UCP message with this member's token.
    fn post(&self, served: &Served, kind: Kind, data: Vec<u8>) -> Result<()> {
        let service = find(served.mailboxes, &self.welcome.service.worker)?;
        service.put(kind, self.welcome.token.0.to_vec(), data);
        Ok(())
    }

    fn await_ready(&mut self) -> Result<()> {
        match answer(&mut self.rank.link)? {
            Frame::Ready => {}
            frame => return Err(failed(format!("the service answers {}", frame.name()))),
        }
        let hello = self.rank.mailbox.take();
        hello
            .map(drop)
            .ok_or_else(|| failed("ready without a hello"))
    }
}

/// A healthy job of two ranks.
struct Beside {
    members: Vec<Member>,
    rounds: u32,
}

impl Beside {
    fn start(served: &Served) -> Self {
        Self {
            members: served.ready(JobId(1), 2).expect("ready"),
            rounds: 0,
        }
    }

    /// One alltoallv of short blocks, with all bytes compared.
    fn round(&mut self, served: &Served) {
        let round = u8::try_from(self.rounds % 251).expect("small");
        for (rank, member) in (0..).zip(&self.members) {
            let mut message = arrival(rank, 2);
            message.collective.sequence = self.rounds;
            message.short = vec![round ^ u8::try_from(rank).expect("small"); 10];
            member
                .post(served, Kind::HostArrive, message.to_bytes())
                .expect("posted");
        }
        let end = Instant::now() + LIMIT;
        for member in &self.members {
            let message = loop {
                assert!(Instant::now() < end, "the healthy job stands still");
                if let Some(message) = member.rank.mailbox.take() {
                    break message;
                }
                thread::yield_now();
            };
            assert_eq!(Kind::from_id(message.id), Some(Kind::HostFin));
            let fin = HostFin::parse(&message.data).expect("well formed");
            assert_eq!(fin.collective.sequence, self.rounds);
            let mut bytes = vec![0; 10];
            for (block, data) in fin.short.iter().zip(fin.bytes.chunks(5)) {
                let at = usize::try_from(block.offset).expect("small");
                bytes[at..at + 5].copy_from_slice(data);
            }
            assert_eq!(bytes, [[round; 5], [round ^ 1; 5]].concat());
        }
        self.rounds += 1;
    }
}

fn table(services: &[&ServiceAddress], service_of: &[u32]) -> Frame {
    Frame::Table(Table {
        services: services.iter().copied().cloned().collect(),
        service_of: service_of.to_vec(),
    })
}

/// A call with a block of five bytes to and from each of `size` ranks.
fn arrival(rank: u32, size: u32) -> HostArrive {
    let block = |peer: u32| Block {
        peer,
        offset: u64::from(peer) * 5,
        length: 5,
    };
    HostArrive {
        collective: Collective {
            communicator: 0,
            sequence: 0,
            step: 0,
        },
        rank,
        send_memory: None,
        receive_memory: None,
        sends: (0..size).map(block).collect(),
        receives: (0..size).map(block).collect(),
        short: vec![1; 5 * size as usize],
    }
}

fn export(length: u64) -> Option<Export> {
    Some(Export {
        address: 1 << 40,
        length,
        packed: vec![1; KEY_BYTES],
    })
}

/// The reason why the service ends a connection or its job.
fn reason(link: &mut Link) -> String {
    let end = Instant::now() + LIMIT;
    loop {
        assert!(Instant::now() < end, "the service says nothing");
        match link.wait(LIMIT) {
            Ok(Some(body)) => match Frame::parse(&body) {
                Ok(Frame::Abort(reason)) => return reason,
                Ok(_) => {}
                Err(bad) => panic!("{bad}"),
            },
            Ok(None) => panic!("the service says nothing"),
            Err(error) => return error.to_string(),
        }
    }
}

/// A way to break the protocol: its name, what the peer does, and what the service says to the returned connection.
type Way = (
    &'static str,
    fn(&Served, JobId) -> Result<Link>,
    &'static str,
);

/// Carries out each way in a job of its own beside a healthy one, all at once.
fn check(served: &Served, ways: &[Way]) {
    let mut beside = Beside::start(served);
    let begun: Vec<(&Way, Link)> = (100..)
        .zip(ways)
        .map(|(job, way)| {
            let (name, act, _) = way;
            let link = act(served, JobId(job)).unwrap_or_else(|error| panic!("{name}: {error}"));
            beside.round(served);
            (way, link)
        })
        .collect();
    for ((name, _, expect), mut link) in begun {
        let reason = reason(&mut link);
        assert!(reason.contains(expect), "{name}: {reason}");
        assert!(
            !reason.contains(|c: char| c.is_control()),
            "{name}: {reason:?}"
        );
        beside.round(served);
    }
}

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
fn pointed(served: &Served, job: JobId, bytes: &'static [u8]) -> Result<Link> {
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

const WRONG_FRAMES: &[Way] = &[
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

const WRONG_TABLES: &[Way] = &[
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
        |s, job| pointed(s, job, b"xgsp\x05\0\0\0\0\0\0\x01\0"),
        "a frame of 16777216 bytes; the most is 4096",
    ),
    (
        "third_party_that_says_ready",
        |s, job| pointed(s, job, b"xgsp\x05\0\0\0\x02\0\0\0\0\x07"),
        "READY is not expected now",
    ),
    (
        "third_party_that_forges_a_log",
        |s, job| pointed(s, job, b"xgsp\x05\0\0\0\x0a\0\0\0\x04no\n\x1b[2Jxy"),
        "service 0 ",
    ),
    (
        "third_party_that_accepts_twice",
        |s, job| {
            const TWICE: &[u8] = b"xgsp\x05\0\0\0\x12\0\0\0\0\x060123456789abcdef\
                xgsp\x05\0\0\0\x12\0\0\0\0\x060123456789abcdef";
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

const IMPOSTORS: &[Way] = &[
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

/// A rank that posts a message in a job of two ranks.
fn posted(served: &Served, job: JobId, kind: Kind, data: Vec<u8>) -> Result<Link> {
    let mut members = served.ready(job, 2)?;
    members[0].post(served, kind, data)?;
    let first = members.remove(0);
    // The other rank stays.
    std::mem::forget(members);
    Ok(first.rank.link)
}

/// Rank 0 of two enters a call.
fn entered(served: &Served, job: JobId, vary: impl FnOnce(&mut HostArrive)) -> Result<Link> {
    let mut message = arrival(0, 2);
    vary(&mut message);
    posted(served, job, Kind::HostArrive, message.to_bytes())
}

/// Rank 0 of two enters an allreduce.
fn reduced(served: &Served, job: JobId, vary: impl FnOnce(&mut HostReduce)) -> Result<Link> {
    let mut message = HostReduce {
        collective: arrival(0, 2).collective,
        rank: 0,
        reduction: Reduction::from_codes(2, 0).expect("a sum"),
        length: 4096,
        members: vec![0, 1],
        send_memory: None,
        receive_memory: export(4096),
        short: Vec::new(),
    };
    vary(&mut message);
    posted(served, job, Kind::HostReduce, message.to_bytes())
}

/// Service 1 of a job posts a message.
fn offered(served: &Served, job: JobId, kind: Kind, data: Vec<u8>) -> Result<Link> {
    let (member, impostor) = served.ready_beside_impostor(job, 3)?;
    impostor.post(served, kind, data)?;
    std::mem::forget(impostor);
    Ok(member.rank.link)
}

/// DPU_RTS of service 1: parts with source, blocks, and length of the key.
fn rts(parts: &[(u32, &[[u32; 3]], usize)], short: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 12];
    let mut put = |words: &[u64]| {
        for word in words {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
    };
    put(&[]);
    bytes.extend_from_slice(&1_u32.to_le_bytes());
    bytes.extend_from_slice(&5_u64.to_le_bytes());
    bytes.extend_from_slice(&(parts.len() as u64).to_le_bytes());
    for (source, blocks, key) in parts {
        bytes.extend_from_slice(&source.to_le_bytes());
        bytes.extend_from_slice(&(1_u64 << 40).to_le_bytes());
        bytes.extend_from_slice(&0_u32.to_le_bytes());
        bytes.extend_from_slice(&(blocks.len() as u64).to_le_bytes());
        for word in blocks.as_flattened() {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes.extend_from_slice(&(*key as u64).to_le_bytes());
        bytes.resize(bytes.len() + key, 0);
    }
    bytes.extend_from_slice(&(short.len() as u64).to_le_bytes());
    bytes.extend_from_slice(short);
    bytes
}

const WRONG_MESSAGES: &[Way] = &[
    (
        "token_of_another_rank",
        |s, job| entered(s, job, |message| message.rank = 1),
        "claims to come from rank 1, and does not bear its token",
    ),
    (
        "rank_that_is_not_there",
        |s, job| entered(s, job, |message| message.rank = u32::MAX),
        "claims to come from rank 4294967295",
    ),
    (
        "step_of_a_rank",
        |s, job| entered(s, job, |message| message.collective.step = 1),
        "a rank enters call 0 on communicator 0, step 1",
    ),
    (
        "more_blocks_than_ranks",
        |s, job| {
            entered(s, job, |message| {
                message.receives.resize(3, message.receives[0])
            })
        },
        "more blocks than the job has ranks",
    ),
    (
        "two_blocks_to_one_rank",
        |s, job| entered(s, job, |message| message.sends[1] = message.sends[0]),
        "it sends two blocks to one rank",
    ),
    (
        "two_blocks_from_one_rank",
        |s, job| entered(s, job, |message| message.receives[1] = message.receives[0]),
        "it expects two blocks from one rank",
    ),
    (
        "block_to_nobody",
        |s, job| entered(s, job, |message| message.sends[1].peer = 9),
        "it sends to a rank that is not there",
    ),
    (
        "short_bytes_are_missing",
        |s, job| entered(s, job, |message| message.short.truncate(9)),
        "bytes of a short block are missing",
    ),
    (
        "short_bytes_are_too_many",
        |s, job| entered(s, job, |message| message.short.push(0)),
        "there are more bytes than short blocks",
    ),
    (
        "block_outside_its_export",
        |s, job| {
            entered(s, job, |message| {
                message.receive_memory = export(4096);
                message.receives[1].offset = u64::MAX;
                message.receives[1].length = 4096;
            })
        },
        "of a buffer of which 4096 were exported",
    ),
    (
        "block_without_an_export",
        |s, job| entered(s, job, |message| message.sends[0].length = 1 << 40),
        "of a buffer of which 0 were exported",
    ),
    (
        "the_same_call_twice",
        |s, job| {
            let mut message = arrival(0, 2);
            message.receives.truncate(1);
            let mut members = s.ready(job, 2)?;
            for _ in 0..2 {
                members[0].post(s, Kind::HostArrive, message.to_bytes())?;
            }
            let first = members.remove(0);
            std::mem::forget(members);
            Ok(first.rank.link)
        },
        "it entered the call twice",
    ),
    (
        "host_fin_to_a_service",
        |s, job| posted(s, job, Kind::HostFin, vec![0; 64]),
        "an SP was sent a message of kind 4",
    ),
    (
        "dpu_fin_of_a_rank",
        |s, job| {
            posted(
                s,
                job,
                Kind::DpuFin,
                DpuFin { from: 0, offer: 0 }.to_bytes(),
            )
        },
        "claims to come from service 0, and does not bear its token",
    ),
    (
        "dpu_rts_of_a_rank",
        |s, job| posted(s, job, Kind::DpuRts, rts(&[(0, &[[0, 0, 0]], 0)], b"")),
        "claims to come from service 1",
    ),
    (
        "hello_of_another_rank",
        |s, job| {
            let hello = HelloMessage {
                from: From::Rank(1),
                greeting: None,
            };
            posted(s, job, Kind::Hello, hello.to_bytes())
        },
        "claims to come from rank 1",
    ),
    (
        "message_of_nothing",
        |s, job| posted(s, job, Kind::HostArrive, Vec::new()),
        "a HOST_ARRIVE of 0 bytes is too short",
    ),
    (
        "message_before_the_table",
        |s, job| {
            let member = s.admitted(job, 0, 2)?;
            member.post(s, Kind::HostArrive, arrival(0, 2).to_bytes())?;
            Ok(member.rank.link)
        },
        "a collective before the table of services",
    ),
    (
        "unknown_kind",
        |s, job| {
            let mut members = s.ready(job, 2)?;
            let service = find(s.mailboxes, &members[0].welcome.service.worker)?;
            let header = members[0].welcome.token.0.as_slice().into();
            service.queue().push_back(Message {
                id: 77,
                header,
                data: Vec::new(),
            });
            members[0].post(s, Kind::HostFin, Vec::new())?;
            let first = members.remove(0);
            std::mem::forget(members);
            Ok(first.rank.link)
        },
        "an SP was sent a message of kind 77",
    ),
    (
        "allreduce_of_others",
        |s, job| reduced(s, job, |message| message.members = vec![1]),
        "it is not a member",
    ),
    (
        "allreduce_of_too_many",
        |s, job| reduced(s, job, |message| message.members = vec![0; 100_000]),
        "it has more members than the job has ranks",
    ),
    (
        "allreduce_with_a_rank_that_is_not_there",
        |s, job| reduced(s, job, |message| message.members = vec![0, 9]),
        "it sends to a rank that is not there",
    ),
    (
        "allreduce_beyond_all_memory",
        |s, job| {
            reduced(s, job, |message| {
                message.length = 1 << 62;
                message.receive_memory = export(u64::MAX);
            })
        },
        "its vector is too long",
    ),
    (
        "allreduce_beyond_its_export",
        |s, job| reduced(s, job, |message| message.length = 8192),
        "its buffer is shorter than its vector",
    ),
    (
        "allreduce_with_a_part_of_an_element",
        |s, job| reduced(s, job, |message| message.length = 4097),
        "a part of an element",
    ),
    (
        "defect_of_the_service",
        |s, job| {
            entered(s, job, |message| {
                message.receive_memory = Some(Export {
                    packed: PANICS.to_vec(),
                    ..export(4096).expect("one")
                });
            })
        },
        "an internal error of the service",
    ),
];

const WRONG_OFFERS: &[Way] = &[
    (
        "offer_of_another's_rank",
        |s, job| offered(s, job, Kind::DpuRts, rts(&[(0, &[[0, 0, 0]], 0)], b"")),
        "service 1 offers blocks of rank 0, which is not its own",
    ),
    (
        "offer_for_another's_rank",
        |s, job| offered(s, job, Kind::DpuRts, rts(&[(1, &[[2, 0, 0]], 0)], b"")),
        "a block is for a rank of another service",
    ),
    (
        "offer_for_nobody",
        |s, job| {
            offered(
                s,
                job,
                Kind::DpuRts,
                rts(&[(1, &[[u32::MAX, 0, 0]], 0)], b""),
            )
        },
        "a block is for a rank of another service",
    ),
    (
        "offer_of_nothing",
        |s, job| offered(s, job, Kind::DpuRts, rts(&[], b"")),
        "nothing is on offer",
    ),
    (
        "offer_of_a_part_of_nothing",
        |s, job| offered(s, job, Kind::DpuRts, rts(&[(1, &[], 40)], b"")),
        "without blocks of one of its sources",
    ),
    (
        "offer_with_a_long_key",
        |s, job| {
            offered(
                s,
                job,
                Kind::DpuRts,
                rts(&[(1, &[[0, 0, 4096]], 4097)], b""),
            )
        },
        "too long in a packed key",
    ),
    (
        "offer_with_a_short_key",
        |s, job| offered(s, job, Kind::DpuRts, rts(&[(1, &[[0, 0, 4096]], 1)], b"")),
        "a short key",
    ),
    (
        "offer_without_its_short_bytes",
        |s, job| offered(s, job, Kind::DpuRts, rts(&[(1, &[[0, 0, 5]], 0)], b"abcd")),
        "are not as many as their lengths say",
    ),
    (
        "answer_to_no_offer",
        |s, job| {
            offered(
                s,
                job,
                Kind::DpuFin,
                DpuFin {
                    from: 1,
                    offer: u64::MAX,
                }
                .to_bytes(),
            )
        },
        "it was not on offer",
    ),
    (
        "answer_of_another_service",
        |s, job| {
            offered(
                s,
                job,
                Kind::DpuFin,
                DpuFin { from: 0, offer: 0 }.to_bytes(),
            )
        },
        "claims to come from service 0",
    ),
    (
        "arrival_at_a_service_from_a_service",
        |s, job| offered(s, job, Kind::HostArrive, arrival(0, 3).to_bytes()),
        "claims to come from rank 0",
    ),
    (
        "block_that_nobody_expects",
        |s, job| {
            let (member, impostor) = s.ready_beside_impostor(job, 3)?;
            let mut message = arrival(0, 3);
            message.receives.truncate(1);
            member.post(s, Kind::HostArrive, message.to_bytes())?;
            impostor.post(s, Kind::DpuRts, rts(&[(1, &[[0, 0, 0]], 0)], b""))?;
            std::mem::forget(impostor);
            Ok(member.rank.link)
        },
        "expects nothing from it",
    ),
    (
        "block_of_another_length",
        |s, job| {
            let (member, impostor) = s.ready_beside_impostor(job, 3)?;
            member.post(s, Kind::HostArrive, arrival(0, 3).to_bytes())?;
            impostor.post(s, Kind::DpuRts, rts(&[(1, &[[0, 0, 4]], 0)], b"abcd"))?;
            std::mem::forget(impostor);
            Ok(member.rank.link)
        },
        "rank 1 sends 4 bytes to rank 0, which expects 5",
    ),
    (
        "block_twice",
        |s, job| {
            let (member, impostor) = s.ready_beside_impostor(job, 3)?;
            member.post(s, Kind::HostArrive, arrival(0, 3).to_bytes())?;
            for _ in 0..2 {
                impostor.post(s, Kind::DpuRts, rts(&[(1, &[[0, 0, 5]], 0)], b"abcde"))?;
            }
            std::mem::forget(impostor);
            Ok(member.rank.link)
        },
        "the block was there already",
    ),
];

/// A member that makes the service keep more and more.
const HOARDS: &[Way] = &[
    (
        "calls_far_ahead",
        |s, job| {
            let size = 1 << 16;
            let (member, impostor) = s.ready_beside_impostor(job, size)?;
            let mut message = arrival(0, size);
            message.sends.iter_mut().for_each(|block| block.length = 0);
            message
                .receives
                .iter_mut()
                .for_each(|block| block.length = 0);
            message.short.clear();
            for call in 0..60 {
                message.collective.sequence = u32::MAX - call;
                message.collective.communicator = call;
                member.post(s, Kind::HostArrive, message.to_bytes())?;
            }
            std::mem::forget(impostor);
            Ok(member.rank.link)
        },
        "its calls keep ",
    ),
    (
        "offers_for_calls_that_nobody_enters",
        |s, job| {
            let (member, impostor) = s.ready_beside_impostor(job, 3)?;
            let mut message = rts(&[(1, &[[0, 0, 0]], 0)], b"");
            for call in 0..100_000_u32 {
                message[4..8].copy_from_slice(&call.to_le_bytes());
                impostor.post(s, Kind::DpuRts, message.clone())?;
            }
            std::mem::forget(impostor);
            Ok(member.rank.link)
        },
        "its calls keep ",
    ),
    (
        "allreduces_without_end",
        |s, job| {
            let (member, impostor) = s.ready_beside_impostor(job, 1 << 16)?;
            let mut message = HostReduce {
                collective: arrival(0, 2).collective,
                rank: 0,
                reduction: Reduction::from_codes(2, 0).expect("a sum"),
                length: 4,
                members: (0..1 << 16).collect(),
                send_memory: None,
                receive_memory: None,
                short: vec![1; 4],
            };
            for call in 0..400 {
                message.collective.sequence = call;
                member.post(s, Kind::HostReduce, message.to_bytes())?;
            }
            std::mem::forget(impostor);
            Ok(member.rank.link)
        },
        "its calls keep ",
    ),
];

fn served() -> Served {
    Served::start(|options| {
        options.call_bytes_max = 64 << 20;
        options.log = xgvmi_daemon::LogLevel::Info;
    })
}

#[test]
fn frames_that_a_member_does_not_send_end_its_job_alone() {
    check(&served(), WRONG_FRAMES);
}

#[test]
fn a_table_that_lies_ends_its_job_alone() {
    check(&served(), WRONG_TABLES);
}

#[test]
fn a_silent_third_party_ends_its_job_alone() {
    let served = Served::start(|options| options.setup_limit = Duration::from_secs(1));
    let silent: Way = (
        "third_party_that_is_silent",
        |s, job| pointed(s, job, b""),
        "not all are connected: ranks without a connection: [], services: [0]",
    );
    check(&served, &[silent]);
}

#[test]
fn services_that_are_none_are_refused() {
    check(&served(), IMPOSTORS);
}

#[test]
fn messages_that_a_rank_does_not_send_end_its_job_alone() {
    check(&served(), WRONG_MESSAGES);
}

#[test]
fn offers_that_a_service_does_not_make_end_their_job_alone() {
    check(&served(), WRONG_OFFERS);
}

#[test]
fn a_job_that_hoards_memory_ends_alone() {
    check(&served(), HOARDS);
}

#[test]
fn no_message_of_one_job_reaches_another() {
    let served = served();
    let mut beside = Beside::start(&served);
    let others = served.ready(JobId(2), 2).expect("ready");
    let (ours, theirs) = (&beside.members[0], &others[0]);
    // The worker of a job accepts the tokens of its own peers alone.
    for token in [theirs.welcome.token, theirs.rank.token, Token([0; 16])] {
        let service = find(served.mailboxes, &ours.welcome.service.worker).expect("there");
        let data = arrival(0, 2).to_bytes();
        service.put(Kind::HostArrive, token.0.to_vec(), data);
    }
    beside.round(&served);
    assert_ne!(ours_worker(&beside), theirs.welcome.service.worker);
}

fn ours_worker(beside: &Beside) -> Vec<u8> {
    beside.members[0].welcome.service.worker.clone()
}

/// SIGTERM while UCX is opened for a job: its ranks are admitted, and those of a new job are not.
#[test]
fn a_job_that_begins_survives_a_drain() {
    let mut served = served();
    let mut first = served.admitted(JobId(3), 0, 2).expect("admitted");
    served.signal(libc::SIGTERM);
    // The signal has been handled when a new job is refused.
    let end = Instant::now() + LIMIT;
    for job in 100.. {
        assert!(Instant::now() < end, "SIGTERM has no effect");
        if let Err(error) = served.admitted(JobId(job), 0, 2) {
            let error = error.to_string();
            assert!(error.contains("ends when its jobs are done"), "{error}");
            break;
        }
    }
    let mut second = served
        .admitted(JobId(3), 1, 2)
        .expect("of a job that has begun");
    for member in [&mut first, &mut second] {
        member.tell(&Frame::Bye).expect("told");
    }
    served.join();
}
