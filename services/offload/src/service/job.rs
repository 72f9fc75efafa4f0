//! One job at one SP: owns its objects of the transport and carries out the ledger's actions.

use super::counters::{Moved, Queues};
use super::greeting::Greetings;
use super::mover::{Destination, Limits, Mover, Peers, check_token};
use super::transport::{Fabric, Sent, Worker as _};
use crate::control::{Hello as Joining, Keys, Table};
use crate::error::{OffloadError, Result};
use crate::scheme::Scheme;
use crate::token::Token;
use crate::wire::{From, Greeting, Hello, Kind};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::RawFd;
use std::sync::LazyLock;
use std::time::{Duration, Instant};
use xgvmi_ucp::{InboxLimits, Message};

/// Maximum time for the operations of a failed job to end. UCX ends them itself after their connections are closed.
const SHUT_LIMIT: Duration = Duration::from_secs(2);

/// Maximum number of UCX progress steps and messages of one job before the next job has its turn.
const PROGRESS_MAX: u32 = 256;
const MESSAGES_MAX: u32 = 256;

/// Number of calls that the ranks of a job enter before the next job has its turn. Each takes device calls.
const ENTRIES_MAX: u32 = 16;

/// Waiting bytes of a job beyond which no more is received. The messages of all ranks of a call may end together.
const INBOX_TURN: usize = 4 << 20;

/// Maximum number of SPs of a job: an SP has a TCP connection and an endpoint to each of the others.
const SERVICES_MAX: usize = 1 << 13;

/// Number of endpoints that a job creates before the next job has its turn. Each takes UCX a fraction of a millisecond.
const ENDPOINTS_AT_ONCE: usize = 4;

/// A job. The fields drop in this order: operations before the objects that they use, connections before their worker,
/// the worker before its context.
#[derive(Debug)]
pub(super) struct Job<F: Fabric> {
    pub(super) size: u32,
    pub(super) scheme: Scheme,
    limits: Limits,
    greetings: Greetings<F>,
    ranks: BTreeMap<u32, Peer<F::Peer>>,
    services: Vec<F::Peer>,
    /// Expected token of each SP's messages, and token of messages to it.
    from_services: BTreeMap<u32, Token>,
    to_services: BTreeMap<u32, Token>,
    /// Peers whose UCP hello has arrived.
    greeted: BTreeSet<(bool, u32)>,
    /// The table and this SP's index in it, while the endpoints of its SPs are created.
    joining: Option<(u32, Table)>,
    shared: Option<Shared<F>>,
    /// A call that a rank enters when the device has room.
    unentered: Option<Message>,
    worker: F::Worker,
    transport: F,
}

/// What a job has done in its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Progress {
    pub(super) happened: bool,
    /// Whether a message has come.
    pub(super) heard: bool,
    /// Number of calls that its ranks have entered.
    pub(super) entries: u32,
    /// An import has failed, and is tried once more in the next turn.
    pub(super) lacks_room: bool,
}

/// A rank that this SP serves.
#[derive(Debug)]
struct Peer<P> {
    endpoint: P,
    /// Expected token of the rank's messages.
    from: Token,
    /// Token of messages to the rank.
    to: Token,
}

/// State that depends on the table.
#[derive(Debug)]
struct Shared<F: Fabric> {
    me: u32,
    mover: Mover<F>,
    table: Table,
    /// Peers whose hello may be missing. Each look at them continues at the last one.
    awaited: Vec<(bool, u32)>,
}

impl<F: Fabric> Job<F> {
    /// Opens the transport for a job.
    pub(super) fn open(
        library: F::Library,
        hello: &Joining,
        limits: Limits,
        inbox: InboxLimits,
    ) -> Result<Self> {
        let (transport, worker) = F::open(library, hello.scheme, inbox)?;
        Ok(Self {
            size: hello.size,
            scheme: hello.scheme,
            limits,
            greetings: Greetings::new(),
            ranks: BTreeMap::new(),
            services: Vec::new(),
            from_services: BTreeMap::new(),
            to_services: BTreeMap::new(),
            greeted: BTreeSet::new(),
            joining: None,
            shared: None,
            unentered: None,
            worker,
            transport,
        })
    }

    /// The worker's address.
    pub(super) fn address(&self) -> Result<Vec<u8>> {
        self.worker.address()
    }

    /// The worker's event descriptor.
    pub(super) fn event_fd(&self) -> RawFd {
        self.worker.event_fd()
    }

    /// Number of UCP messages of peers that are not of this job. They were dropped.
    pub(super) fn strangers(&self) -> u64 {
        self.worker.strangers()
    }

    /// Requests a wake-up; returns false when there is work already.
    pub(super) fn arm(&self) -> Result<bool> {
        self.worker.arm()
    }

    /// Connects to a rank whose messages will carry `from`.
    pub(super) fn admit(&mut self, rank: u32, keys: &Keys, from: Token) -> Result<()> {
        // First: if the device is full, the caller makes room and tries again.
        self.greetings
            .import(&self.transport, rank, &keys.greeting)?;
        let endpoint = self
            .worker
            .connect(&keys.address, &format!("rank {rank}"))?;
        let peer = Peer {
            endpoint,
            from,
            to: keys.token,
        };
        self.ranks.insert(rank, peer);
        self.worker.expect(from);
        Ok(())
    }

    /// Whether this SP serves the rank.
    pub(super) fn has_rank(&self, rank: u32) -> bool {
        self.ranks.contains_key(&rank)
    }

    /// Stores the table; returns this SP's index. [`Job::progress`] connects to all SPs in it.
    pub(super) fn set_table(&mut self, table: Table, unique: u64) -> Result<u32> {
        let me = check_table(&table, self.size, unique)?;
        if let Some(rank) = table
            .ranks_of(me)
            .find(|rank| !self.ranks.contains_key(rank))
        {
            return Err(failed(format!(
                "the table has rank {rank} at this SP, where it is not"
            )));
        }
        if let Some(rank) = self
            .ranks
            .keys()
            .find(|rank| table.service_of.get(**rank as usize) != Some(&me))
        {
            return Err(failed(format!(
                "the table has rank {rank} at another SP than this one"
            )));
        }
        self.joining = Some((me, table));
        Ok(me)
    }

    /// Connects to some SPs of the table, and begins the work of the job after the last one. Returns true if there were
    /// any.
    fn join(&mut self) -> Result<bool> {
        let Some((_, table)) = &self.joining else {
            return Ok(false);
        };
        let left = table.services.iter().enumerate().skip(self.services.len());
        for (index, service) in left.take(ENDPOINTS_AT_ONCE) {
            let name = format!("service {index} ({})", service.tcp);
            let endpoint = self.worker.connect_for_gets(&service.worker, &name)?;
            self.services.push(endpoint);
        }
        if self.services.len() == table.services.len()
            && let Some((me, table)) = self.joining.take()
        {
            self.begin(me, table)?;
        }
        Ok(true)
    }

    /// The endpoints of all SPs exist.
    fn begin(&mut self, me: u32, table: Table) -> Result<()> {
        let greeting = self.greetings.ours(&self.transport)?;
        self.greetings
            .offered(&self.transport, &self.services, me, greeting)?;
        self.greetings.begin(&self.transport, &self.services)?;
        let from_ranks = self.ranks.values().map(|peer| peer.from).collect();
        let ranks = self.ranks.values().map(|peer| Destination {
            peer: peer.endpoint.clone(),
            token: peer.to,
        });
        let ranks = ranks.collect();
        // An SP's blocks for its own ranks stay inside this process.
        let ours = Token([0; 16]);
        let services = (0..).zip(&self.services).map(|(index, endpoint)| {
            (index == me).then(|| Destination {
                peer: endpoint.clone(),
                token: ours,
            })
        });
        let services = services.collect();
        let peers = Peers {
            me,
            service_of: table.service_of.clone(),
            ranks,
            from_ranks,
            services,
        };
        let mut mover = Mover::new(peers, self.limits);
        for (index, token) in &self.from_services {
            mover.expect_service(*index, *token);
        }
        let ours = self.ranks.keys().map(|rank| (false, *rank));
        let others = (0..).take(table.services.len()).filter(|i| *i != me);
        let awaited = ours.chain(others.map(|index| (true, index))).collect();
        self.shared = Some(Shared {
            me,
            mover,
            table,
            awaited,
        });
        for index in self.to_services.keys().copied().collect::<Vec<_>>() {
            self.greet_service(index)?;
        }
        Ok(())
    }

    /// The messages of SP `index` will carry `token`.
    pub(super) fn expect_service(&mut self, index: u32, token: Token) {
        self.from_services.insert(index, token);
        self.worker.expect(token);
        if let Some(shared) = &mut self.shared {
            shared.mover.expect_service(index, token);
        }
    }

    /// Sends a UCP hello to the connected SP `index`, which expects `token` in our messages.
    pub(super) fn meet_service(&mut self, index: u32, token: Token) -> Result<()> {
        self.to_services.insert(index, token);
        if self.shared.is_some() {
            self.greet_service(index)?;
        }
        Ok(())
    }

    fn greet_service(&mut self, index: u32) -> Result<()> {
        let me = self.shared()?.me;
        let token = self.to_services.get(&index).copied();
        let (Some(endpoint), Some(token)) = (self.services.get(index as usize), token) else {
            return Err(failed(format!("there is no service {index}")));
        };
        let greeting = self.greetings.ours(&self.transport)?;
        let hello = say_hello(
            &self.transport,
            endpoint,
            token,
            From::Service(me),
            Some(greeting),
        )?;
        let service = Destination {
            peer: endpoint.clone(),
            token,
        };
        let shared = self.shared()?;
        shared.mover.set_service(index, service);
        shared.mover.keep(Sent::Started(hello));
        Ok(())
    }

    /// The table and this SP's index in it; `None` before the table arrives.
    pub(super) fn table(&self) -> Option<(u32, &Table)> {
        let joining = self.joining.as_ref().map(|(me, table)| (*me, table));
        let shared = self.shared.as_ref();
        shared.map(|shared| (shared.me, &shared.table)).or(joining)
    }

    /// Whether all required ranks and SPs have sent their UCP hello and all greetings have been read.
    pub(super) fn is_connected(&mut self) -> bool {
        let Some(Shared { table, awaited, .. }) = &mut self.shared else {
            return false;
        };
        while let Some(peer) = awaited.last() {
            if !self.greeted.contains(peer) {
                return false;
            }
            awaited.pop();
        }
        self.greetings.are_read(table.services.len())
    }

    /// Sends a UCP hello to the ranks of this SP. The first completion then finds its connection open.
    pub(super) fn greet_ranks(&mut self) -> Result<()> {
        let me = self.shared()?.me;
        let hellos = self.ranks.values().map(|peer| {
            say_hello(
                &self.transport,
                &peer.endpoint,
                peer.to,
                From::Service(me),
                None,
            )
        });
        let hellos = hellos.collect::<Result<Vec<_>>>()?;
        let shared = self.shared()?;
        for hello in hellos {
            shared.mover.keep(Sent::Started(hello));
        }
        Ok(())
    }

    /// Makes progress.
    pub(super) fn progress(&mut self) -> Result<Progress> {
        // The limits leave time for other jobs when one job floods its SP. Waiting messages are handled before others are
        // received: they never wait for later ones.
        let mut busy = self.worker.progress(PROGRESS_MAX, INBOX_TURN);
        let may_have_ended = busy;
        let mut heard = false;
        let mut entries = 0;
        for _ in 0..MESSAGES_MAX {
            if entries >= ENTRIES_MAX {
                break;
            }
            let is_last_try = self.unentered.is_some();
            let message = match is_last_try {
                true => self.unentered.take(),
                false => self.worker.take()?,
            };
            let Some(message) = message else {
                break;
            };
            (busy, heard) = (true, true);
            let kind = Kind::from_id(message.id);
            entries += u32::from(matches!(
                kind,
                Some(Kind::HostArrive | Kind::HostReduce | Kind::HostTree)
            ));
            match self.receive(&message) {
                Ok(()) => self.worker.reuse(message),
                Err(_) if self.lacks_room() && !is_last_try => {
                    self.unentered = Some(message);
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        busy |= self.join()?;
        busy |= self.greetings.reap(&self.transport)?;
        let mut lacks_room = self.unentered.is_some();
        if let Some(shared) = &mut self.shared {
            shared.mover.ask_again(&self.transport)?;
            // Operations end inside the worker's progress.
            if may_have_ended {
                busy |= shared.mover.reap(&self.transport)?;
            }
            busy |= shared.mover.act(&self.transport)?;
            lacks_room |= shared.mover.window_lacks_room();
        }
        self.transport.post();
        Ok(Progress {
            happened: busy || lacks_room,
            heard,
            entries,
            lacks_room,
        })
    }

    fn lacks_room(&mut self) -> bool {
        let shared = self.shared.as_mut();
        shared.is_some_and(|shared| shared.mover.lacks_room())
    }

    /// Call this when there is no other work: sends data that was held back for aggregation. Returns true if there was
    /// any.
    pub(super) fn settle(&mut self) -> Result<bool> {
        match &mut self.shared {
            Some(shared) => shared.mover.settle(&self.transport),
            None => Ok(false),
        }
    }

    /// A rank has left: releases the imports of its buffers.
    pub(super) fn forget(&mut self, rank: u32) -> Result<()> {
        match &mut self.shared {
            Some(shared) => shared.mover.forget(&self.transport, rank),
            None => Ok(()),
        }
    }

    /// Counters since the job's start.
    pub(super) fn moved(&self) -> &Moved {
        static NOTHING: LazyLock<Moved> = LazyLock::new(Moved::default);
        let shared = self.shared.as_ref();
        shared.map_or(&NOTHING, |shared| shared.mover.moved())
    }

    /// Bytes that messages of the job's ranks and SPs have made this SP keep, about.
    pub(super) fn bytes(&self) -> usize {
        self.shared
            .as_ref()
            .map_or(0, |shared| shared.mover.bytes())
    }

    /// Bytes of memory that no call of the job uses, for later allreduces.
    pub(super) fn free_bytes(&self) -> usize {
        self.shared
            .as_ref()
            .map_or(0, |shared| shared.mover.free_bytes())
    }

    /// Returns this memory to the system.
    pub(super) fn drop_free(&mut self) -> Result<()> {
        match &mut self.shared {
            Some(shared) => shared.mover.drop_free(&self.transport),
            None => Ok(()),
        }
    }

    /// Queue lengths.
    pub(super) fn queues(&self) -> Queues {
        let shared = self.shared.as_ref();
        shared
            .map(|shared| shared.mover.queues())
            .unwrap_or_default()
    }

    /// Releases everything and cancels outstanding operations. `done` says that the job has not failed: its last
    /// messages, which tell other SPs that their copies are complete, arrive first. UCX reports a send as complete when
    /// it is posted, and a closed connection loses what is on its way.
    pub(super) fn shut(mut self, done: bool) {
        if done {
            self.worker.settle(SHUT_LIMIT);
        }
        let ranks = self.ranks.values().map(|peer| &peer.endpoint);
        for endpoint in ranks.chain(&self.services) {
            F::abandon(endpoint);
        }
        let end = Instant::now() + SHUT_LIMIT;
        while Instant::now() < end {
            self.worker.progress(PROGRESS_MAX, usize::MAX);
            let moved = self.shared.as_mut();
            let is_over = moved.is_none_or(|shared| shared.mover.shut(&self.transport));
            if self.greetings.shut(&self.transport) && is_over {
                break;
            }
        }
    }

    fn receive(&mut self, message: &Message) -> Result<()> {
        match Kind::from_id(message.id) {
            Some(Kind::Hello) => {
                let hello = Hello::parse(&message.data)
                    .map_err(|error| OffloadError::message("a peer of the job", &error))?;
                match (hello.from, hello.greeting) {
                    (From::Rank(rank), _) => {
                        let expect = self.ranks.get(&rank).map(|peer| peer.from);
                        check_token(&message.header, expect, "rank", rank)?;
                        self.greeted.insert((false, rank));
                    }
                    (From::Service(index), greeting) => {
                        let expect = self.from_services.get(&index).copied();
                        check_token(&message.header, expect, "service", index)?;
                        if !self.greeted.insert((true, index)) {
                            return Err(failed(format!("service {index} says hello twice")));
                        }
                        if let Some(greeting) = greeting {
                            let services = match self.shared {
                                Some(_) => &self.services[..],
                                None => &[],
                            };
                            self.greetings
                                .offered(&self.transport, services, index, greeting)?;
                        }
                    }
                }
                Ok(())
            }
            Some(kind) => {
                let (transport, shared) = self.moving()?;
                shared
                    .mover
                    .receive(transport, kind, &message.header, &message.data)
            }
            None => Err(failed(format!(
                "an SP was sent a message of kind {}",
                message.id
            ))),
        }
    }

    fn shared(&mut self) -> Result<&mut Shared<F>> {
        self.shared
            .as_mut()
            .ok_or_else(|| failed("a collective before the table of services"))
    }

    /// The data path and its transport.
    fn moving(&mut self) -> Result<(&F, &mut Shared<F>)> {
        let shared = self
            .shared
            .as_mut()
            .ok_or_else(|| failed("a collective before the table of services"))?;
        Ok((&self.transport, shared))
    }
}

/// Sends a UCP hello, which opens the connection.
fn say_hello<F: Fabric>(
    transport: &F,
    endpoint: &F::Peer,
    token: Token,
    from: From,
    greeting: Option<Greeting>,
) -> Result<F::Operation> {
    let data = Hello { from, greeting }.to_bytes();
    transport.greet(endpoint, token, data)
}

fn check_table(table: &Table, size: u32, unique: u64) -> Result<u32> {
    if table.service_of.len() != size as usize {
        return Err(failed(format!(
            "a table of {} ranks in a job of {size}",
            table.service_of.len()
        )));
    }
    let count = table.services.len();
    if count > SERVICES_MAX {
        return Err(failed(format!(
            "a table of {count} services; the most of a job is {SERVICES_MAX}"
        )));
    }
    let mut named = vec![false; count];
    for of in &table.service_of {
        if let Some(named) = named.get_mut(*of as usize) {
            *named = true;
        }
    }
    if let Some(idle) = named.iter().position(|named| !named) {
        return Err(failed(format!(
            "the table has service {idle}, and no rank of it"
        )));
    }
    if table.service_of.iter().any(|of| *of as usize >= count) {
        return Err(failed("the table names an SP that is not in it"));
    }
    (0..)
        .zip(&table.services)
        .find(|(_, service)| service.unique == unique)
        .map(|(index, _)| index)
        .ok_or_else(|| failed("this SP is not in the table"))
}

fn failed(reason: impl Into<String>) -> OffloadError {
    OffloadError::Failed(reason.into())
}

#[cfg(test)]
mod tests;
