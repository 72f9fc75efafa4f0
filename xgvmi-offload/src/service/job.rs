//! One job at one SP: its UCX objects, and what is done with them as the ledger says.

use super::counters::{Moved, Queues};
use super::greeting::Greetings;
use super::mover::{Destination, Limits, Mover, Peers, check_token};
use super::transport::Ucx;
use crate::control::{Hello as Joining, Keys, Table};
use crate::error::{OffloadError, Result};
use crate::library::Library;
use crate::scheme::Scheme;
use crate::token::Token;
use crate::wire::{From, Greeting, Hello, Kind, hello_header};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::RawFd;
use std::sync::LazyLock;
use std::time::{Duration, Instant};
use ucx_sys::Ucp;
use xgvmi_ucp::{Context, Endpoint, Message, Request, Worker};

/// The longest wait for operations of a failed job to end. UCX ends them itself once their connections are closed.
const SHUT_LIMIT: Duration = Duration::from_secs(2);

/// Steps of UCX, and messages, of one job before the next job has its turn.
const PROGRESS_MAX: u32 = 256;
const MESSAGES_MAX: u32 = 256;

/// A job. Fields go in this order: operations before what they use, connections before their worker, that before its
/// context.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) size: u32,
    pub(super) scheme: Scheme,
    limits: Limits,
    greetings: Greetings,
    ranks: BTreeMap<u32, Peer>,
    services: Vec<Endpoint>,
    /// Of each SP, what its messages must bear, and what ours must.
    from_services: BTreeMap<u32, Token>,
    to_services: BTreeMap<u32, Token>,
    /// Peers that have said hello over UCP.
    greeted: BTreeSet<(bool, u32)>,
    shared: Option<Shared>,
    worker: Worker,
    transport: Ucx,
}

/// A rank of ours.
#[derive(Debug)]
struct Peer {
    endpoint: Endpoint,
    /// Its messages must bear this.
    from: Token,
    /// Messages to it must bear this.
    to: Token,
}

/// What is known once the table is there.
#[derive(Debug)]
struct Shared {
    me: u32,
    mover: Mover<Ucx>,
    table: Table,
}

impl Job {
    /// Opens UCX for a job.
    pub(super) fn open(ucp: &'static Ucp, hello: &Joining, limits: Limits) -> Result<Self> {
        let context = Context::with_settings(ucp, "xgvmi-sp", hello.scheme.settings())?;
        let worker = context.worker(Kind::COUNT)?;
        Ok(Self {
            size: hello.size,
            scheme: hello.scheme,
            limits,
            greetings: Greetings::default(),
            ranks: BTreeMap::new(),
            services: Vec::new(),
            from_services: BTreeMap::new(),
            to_services: BTreeMap::new(),
            greeted: BTreeSet::new(),
            shared: None,
            worker,
            transport: Ucx {
                context,
                library: Library::find(),
            },
        })
    }

    /// The worker's address.
    pub(super) fn address(&self) -> Result<Vec<u8>> {
        Ok(self.worker.address()?)
    }

    /// The worker's event descriptor.
    pub(super) fn event_fd(&self) -> RawFd {
        self.worker.event_fd()
    }

    /// Asks for a wake-up; false when there is something to do at once.
    pub(super) fn arm(&self) -> Result<bool> {
        Ok(self.worker.arm()?)
    }

    /// Connects to a rank whose messages will bear `from`; answers how many of its announced keys have an alias now.
    pub(super) fn admit(&mut self, rank: u32, keys: &Keys, from: Token) -> Result<u64> {
        // SAFETY: the rank has proved the secret, if there is one, and sends what Worker::address gave it, byte by byte;
        // its UCX is of our version.
        let endpoint = unsafe { self.worker.connect(&keys.address, &format!("rank {rank}")) }?;
        let peer = Peer {
            endpoint,
            from,
            to: keys.token,
        };
        self.ranks.insert(rank, peer);
        let accepted = match self.transport.library {
            Some(library) if !keys.announcement.is_empty() => library
                .accept(&keys.announcement)
                .map_err(|error| failed(error.to_string()))?,
            _ => 0,
        };
        self.greetings
            .import(&self.transport.context, rank, &keys.greeting)?;
        Ok(accepted)
    }

    /// Whether a rank is served here.
    pub(super) fn has_rank(&self, rank: u32) -> bool {
        self.ranks.contains_key(&rank)
    }

    /// Takes the table and connects to all SPs in it; answers our place.
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
        for (index, service) in table.services.iter().enumerate() {
            let name = format!("service {index} ({})", service.tcp);
            // SAFETY: a table comes from a rank that has proved the secret, if there is one, and holds what SPs of our
            // version of UCX said of their workers, byte by byte.
            let endpoint = unsafe { self.worker.connect_for_gets(&service.worker, &name) }?;
            self.services.push(endpoint);
        }
        let greeting = self.greetings.ours()?;
        self.greetings.offered(&self.services, me, greeting)?;
        self.greetings.begin(&self.services)?;
        let mut from_ranks = vec![None; self.size as usize];
        let ranks = self.ranks.iter().map(|(rank, peer)| {
            from_ranks[*rank as usize] = Some(peer.from);
            Destination {
                peer: peer.endpoint.clone(),
                token: peer.to,
            }
        });
        let ranks = ranks.collect();
        // An SP's blocks for its own ranks go no further than this process.
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
        self.shared = Some(Shared { me, mover, table });
        for index in self.to_services.keys().copied().collect::<Vec<_>>() {
            self.greet_service(index)?;
        }
        Ok(me)
    }

    /// The messages of SP `index` will bear `token`.
    pub(super) fn expect_service(&mut self, index: u32, token: Token) {
        self.from_services.insert(index, token);
        if let Some(shared) = &mut self.shared {
            shared.mover.expect_service(index, token);
        }
    }

    /// SP `index` is connected, and expects `token` in our messages: says hello to it over UCP.
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
        let greeting = self.greetings.ours()?;
        let hello = say_hello(endpoint, token, From::Service(me), Some(greeting))?;
        let service = Destination {
            peer: endpoint.clone(),
            token,
        };
        let (transport, shared) = self.moving()?;
        shared.mover.set_service(index, service);
        shared.mover.keep(transport, hello)
    }

    /// The table and our place in it, once it is there.
    pub(super) fn table(&self) -> Option<(u32, &Table)> {
        self.shared
            .as_ref()
            .map(|shared| (shared.me, &shared.table))
    }

    /// Whether all ranks and SPs that we need have said hello over UCP, and the greetings are read.
    pub(super) fn is_connected(&self) -> bool {
        let Some((me, table)) = self.table() else {
            return false;
        };
        let ours = table.ranks_of(me).map(|rank| (false, rank));
        let others = (0..).take(table.services.len()).filter(|i| *i != me);
        ours.chain(others.map(|index| (true, index)))
            .all(|peer| self.greeted.contains(&peer))
            && self.greetings.are_read(table.services.len())
    }

    /// Says hello to our ranks over UCP, so that the first completion finds its way open.
    pub(super) fn greet_ranks(&mut self) -> Result<()> {
        let me = self.shared()?.me;
        let hellos = self
            .ranks
            .values()
            .map(|peer| say_hello(&peer.endpoint, peer.to, From::Service(me), None));
        let hellos = hellos.collect::<Result<Vec<_>>>()?;
        let (transport, shared) = self.moving()?;
        for hello in hellos {
            shared.mover.keep(transport, hello)?;
        }
        Ok(())
    }

    /// Moves everything forward; true when something happened.
    pub(super) fn progress(&mut self) -> Result<bool> {
        let mut busy = false;
        // Limits, so that a job that floods its SP leaves time for the others.
        for _ in 0..PROGRESS_MAX {
            if !self.worker.progress() {
                break;
            }
            busy = true;
        }
        for _ in 0..MESSAGES_MAX {
            let Some(message) = self.worker.take(|_| true)? else {
                break;
            };
            busy = true;
            self.receive(&message)?;
        }
        busy |= self.greetings.reap()?;
        if let Some(shared) = &mut self.shared {
            busy |= shared.mover.act(&self.transport)?;
        }
        Ok(busy)
    }

    /// To be called when there is nothing to do: sends what was kept back for more to go with it; true if there was
    /// anything.
    pub(super) fn settle(&mut self) -> Result<bool> {
        match &mut self.shared {
            Some(shared) => shared.mover.settle(&self.transport),
            None => Ok(false),
        }
    }

    /// Numbers since the job's start.
    pub(super) fn moved(&self) -> &Moved {
        static NOTHING: LazyLock<Moved> = LazyLock::new(Moved::default);
        let shared = self.shared.as_ref();
        shared.map_or(&NOTHING, |shared| shared.mover.moved())
    }

    /// Lengths of its queues.
    pub(super) fn queues(&self) -> Queues {
        let shared = self.shared.as_ref();
        shared
            .map(|shared| shared.mover.queues())
            .unwrap_or_default()
    }

    /// Gives up everything, operations under way included.
    pub(super) fn shut(mut self) {
        let ranks = self.ranks.values().map(|peer| &peer.endpoint);
        for endpoint in ranks.chain(&self.services) {
            endpoint.abandon();
        }
        let end = Instant::now() + SHUT_LIMIT;
        while Instant::now() < end {
            while self.worker.progress() {}
            let moved = self.shared.as_mut();
            let is_over = moved.is_none_or(|shared| shared.mover.shut(&self.transport));
            if self.greetings.shut() && is_over {
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
                            self.greetings.offered(&self.services, index, greeting)?;
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

    fn shared(&mut self) -> Result<&mut Shared> {
        self.shared
            .as_mut()
            .ok_or_else(|| failed("a collective before the table of services"))
    }

    /// The data path and what it moves with.
    fn moving(&mut self) -> Result<(&Ucx, &mut Shared)> {
        let shared = self
            .shared
            .as_mut()
            .ok_or_else(|| failed("a collective before the table of services"))?;
        Ok((&self.transport, shared))
    }
}

/// Says hello over UCP, which opens the way.
fn say_hello(
    endpoint: &Endpoint,
    token: Token,
    from: From,
    greeting: Option<Greeting>,
) -> Result<Request> {
    let data = Hello { from, greeting }.to_bytes();
    Ok(endpoint.send(Kind::Hello as u16, hello_header(token), data)?)
}

impl Table {
    /// The ranks that an SP serves.
    pub(super) fn ranks_of(&self, service: u32) -> impl Iterator<Item = u32> + '_ {
        (0..)
            .zip(&self.service_of)
            .filter(move |(_, of)| **of == service)
            .map(|(rank, _)| rank)
    }
}

fn check_table(table: &Table, size: u32, unique: u64) -> Result<u32> {
    if table.service_of.len() != size as usize {
        return Err(failed(format!(
            "a table of {} ranks in a job of {size}",
            table.service_of.len()
        )));
    }
    let count = table.services.len();
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
