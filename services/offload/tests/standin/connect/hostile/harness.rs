//! A service in a thread, members of its jobs, and a job beside them that compares every byte.

use super::super::*;
use crate::control::{PeerHello, ServiceAddress, Table};
use crate::reduction::Reduction;
use crate::service::options::ServiceOptions;
use crate::wire::{Block, Collective, Greeting, HostArrive, HostFin, HostReduce, Route, Target};
use std::thread::JoinHandle;

/// Address of a mailbox that nobody reads.
pub(super) const NOBODY: usize = 0;

/// What a service has at its end.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Kept {
    pub(super) jobs: usize,
    pub(super) connections: usize,
    /// Bytes of UCP messages and frames.
    pub(super) buffered: usize,
}

/// A service in a thread. Dropping it ends the service and checks that it has not failed.
pub(super) struct Served {
    pub(super) mailboxes: &'static Mailboxes,
    pub(super) address: String,
    pub(super) thread: Option<JoinHandle<Result<Kept>>>,
    pub(super) id: libc::pthread_t,
}

impl Served {
    pub(super) fn start(vary: impl FnOnce(&mut ServiceOptions) + Send + 'static) -> Self {
        let mailboxes: &'static Mailboxes = Box::leak(Box::default());
        // Nobody's, for tables that lie.
        let (_, nobody) = add(mailboxes, None);
        assert_eq!(nobody, NOBODY);
        let (told, heard) = mpsc::channel();
        let thread = thread::spawn(move || {
            let mut options = ServiceOptions {
                listen: "127.0.0.1:0".to_owned(),
                ..ServiceOptions::default()
            };
            vary(&mut options);
            let mut service = Sp::<Mail>::new(options, mailboxes)?;
            // SAFETY: the call has no preconditions.
            let id = unsafe { libc::pthread_self() };
            told.send((service.advertise.clone(), id)).expect("heard");
            service.run()?;
            Ok(Kept {
                jobs: service.jobs.len() + service.opening.len() + service.dialing.len(),
                connections: service.connections.iter_mut().count(),
                buffered: service.connections.buffered(),
            })
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
    pub(super) fn signal(&self, signal: libc::c_int) {
        // SAFETY: the thread has not been joined, and it blocks the signal: it reads it by a descriptor.
        assert_eq!(unsafe { libc::pthread_kill(self.id, signal) }, 0);
    }

    pub(super) fn join(&mut self) -> Kept {
        let thread = self.thread.take().expect("joined once");
        thread.join().expect("no panic").expect("no error")
    }

    pub(super) fn knock(&self, job: JobId, rank: u32, size: u32) -> Result<Rank> {
        knock(self.mailboxes, &self.address, job, rank, size)
    }

    /// A rank that is admitted.
    pub(super) fn admitted(&self, job: JobId, rank: u32, size: u32) -> Result<Member> {
        let mut rank = self.knock(job, rank, size)?;
        match answer(&mut rank.link)? {
            Frame::Welcome(welcome) => Ok(Member { rank, welcome }),
            frame => Err(failed(format!("the service answers {}", frame.name()))),
        }
    }

    /// All ranks of a job on this service alone, ready.
    pub(super) fn ready(&self, job: JobId, size: u32) -> Result<Vec<Member>> {
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
    pub(super) fn ready_beside_impostor(&self, job: JobId, size: u32) -> Result<(Member, Member)> {
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

    pub(super) fn call(&self) -> Result<Link> {
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
pub(super) struct Member {
    pub(super) rank: Rank,
    pub(super) welcome: Welcome,
}

impl Member {
    pub(super) fn tell(&mut self, frame: &Frame) -> Result<()> {
        self.rank.link.send(&frame.to_bytes()).map_err(lost)
    }

    pub(super) fn greet(
        &self,
        served: &Served,
        from: From,
        greeting: Option<Greeting>,
    ) -> Result<()> {
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
    pub(super) fn post(&self, served: &Served, kind: Kind, data: Vec<u8>) -> Result<()> {
        let service = find(served.mailboxes, &self.welcome.service.worker)?;
        service.put(kind, self.welcome.token.0.to_vec(), data);
        Ok(())
    }

    /// The next frame, whatever it is.
    pub(super) fn wait(&mut self, limit: Duration) -> Option<Frame> {
        let body = self.rank.link.wait(limit).expect("connected")?;
        Some(Frame::parse(&body).expect("well formed"))
    }

    pub(super) fn await_ready(&mut self) -> Result<()> {
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
pub(super) struct Beside {
    pub(super) members: Vec<Member>,
    pub(super) rounds: u32,
}

impl Beside {
    pub(super) fn start(served: &Served) -> Self {
        Self {
            members: served.ready(JobId(1), 2).expect("ready"),
            rounds: 0,
        }
    }

    /// One alltoallv of short blocks, with all bytes compared.
    pub(super) fn round(&mut self, served: &Served) {
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
            let offsets = fin.short.iter().flat_map(|blocks| blocks.offsets());
            for (offset, data) in offsets.zip(fin.bytes.chunks(5)) {
                let at = usize::try_from(offset).expect("small");
                bytes[at..at + 5].copy_from_slice(data);
            }
            assert_eq!(bytes, [[round; 5], [round ^ 1; 5]].concat());
        }
        self.rounds += 1;
    }
}

pub(super) fn table(services: &[&ServiceAddress], service_of: &[u32]) -> Frame {
    Frame::Table(Table {
        services: services.iter().copied().cloned().collect(),
        service_of: service_of.to_vec(),
    })
}

/// A call with a block of five bytes to and from each of `size` ranks.
pub(super) fn arrival(rank: u32, size: u32) -> HostArrive {
    let block = |peer: u32| Block {
        peer,
        offset: u64::from(peer) * 5,
        length: 5,
    };
    HostArrive {
        collective: Collective {
            communicator: 0,
            sequence: 0,
            start: 0,
            step: 0,
        },
        rank,
        together: size,
        send_memory: None,
        receive_memory: None,
        sends: (0..size).map(block).collect(),
        receives: (0..size).map(block).collect(),
        short: vec![1; 5 * size as usize],
        route: Route::Direct,
    }
}

/// The part of a rank in an allreduce of 1 MiB.
pub(super) fn sum(rank: u32, size: u32, turn: u32) -> HostReduce {
    const LENGTH: u64 = 1 << 20;
    HostReduce {
        whole: 0,
        collective: Collective {
            sequence: turn,
            ..arrival(0, 2).collective
        },
        rank,
        reduction: Reduction::from_codes(2, 0).expect("a sum"),
        turn: Some(turn),
        open: 0,
        length: LENGTH,
        members: (0..size).collect(),
        target: Target::All,
        send_memory: None,
        receive_memory: export(LENGTH),
        short: Vec::new(),
    }
}

/// An allreduce of all members, until it is complete.
pub(super) fn allreduce(served: &Served, members: &[Member], turn: u32) {
    let size = u32::try_from(members.len()).expect("few");
    for (rank, member) in (0..size).zip(members) {
        let message = sum(rank, size, turn);
        let posted = member.post(served, Kind::HostReduce, message.to_bytes());
        posted.expect("posted");
    }
    let end = Instant::now() + LIMIT;
    for member in members {
        while member.rank.mailbox.take().is_none() {
            assert!(Instant::now() < end, "an allreduce stands still");
            thread::yield_now();
        }
    }
}

pub(super) fn export(length: u64) -> Option<Export> {
    Some(Export {
        address: 1 << 40,
        length,
        packed: vec![1; KEY_BYTES],
        name: None,
    })
}

/// The reason why the service ends a connection or its job.
pub(super) fn reason(link: &mut Link) -> String {
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
pub(super) type Way = (
    &'static str,
    fn(&Served, JobId) -> Result<Link>,
    &'static str,
);

/// Carries out each way in a job of its own beside a healthy one, all at once.
pub(super) fn check(served: &Served, ways: &[Way]) {
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
