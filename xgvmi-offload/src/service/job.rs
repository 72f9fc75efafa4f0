//! One job at one SP: its UCX objects, and what is done with them as the ledger says.

use super::greeting::Greetings;
use super::ledger::{Action, Incoming, Ledger, Offer, OfferKey, Part, Transfer};
use super::options::Credits;
use crate::control::Hello as Joining;
use crate::control::{Scheme, Table};
use crate::error::{OffloadError, Result};
use crate::library::Library;
use crate::wire::{
    Block, Collective, Delivered, DpuFin, DpuRts, Export, From, Greeting, HELLO_PADDING, Hello,
    HostArrive, HostFin, Kind, OfferedBlock, RtsPart,
};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::os::fd::RawFd;
use std::time::{Duration, Instant};
use ucx_sys::Ucp;
use xgvmi_ucp::{Context, Endpoint, ImportedMemory, Message, RemoteKey, Request, Worker};

/// The longest wait for operations of a failed job to end. UCX ends them itself once their connections are closed.
const SHUT_LIMIT: Duration = Duration::from_secs(2);

/// A job. Fields go in this order: operations before what they use, connections before their worker, that before its
/// context.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) size: u32,
    pub(super) scheme: Scheme,
    credits: Credits,
    direct_min: u64,
    library: Option<Library>,
    /// Reads under way.
    reads: Vec<(Request, Transfer)>,
    /// Messages under way.
    sends: Vec<Request>,
    /// Reads that wait for a credit.
    waiting: VecDeque<Transfer>,
    /// Of each offer to us, the sources' keys.
    keys: HashMap<OfferKey, Vec<(u32, RemoteKey)>>,
    greetings: Greetings,
    entered: HashMap<(Collective, u32), Entered>,
    ranks: BTreeMap<u32, Endpoint>,
    services: Vec<Endpoint>,
    /// Who has said hello over UCP.
    greeted: BTreeSet<(bool, u32)>,
    shared: Option<Shared>,
    worker: Worker,
    context: Context,
}

/// What is known once the table is there.
#[derive(Debug)]
struct Shared {
    me: u32,
    table: Table,
    ledger: Ledger,
}

/// The buffers with which a rank of ours is in a call.
#[derive(Debug)]
struct Entered {
    send: Option<Imported>,
    receive: Option<Imported>,
    /// Of the send buffer; empty when no block needs it.
    rkey: Vec<u8>,
}

/// A rank's buffer. What UCX has imported may be larger, and begin earlier.
#[derive(Debug)]
pub(super) struct Imported {
    pub(super) memory: ImportedMemory,
    pub(super) address: u64,
}

impl Job {
    /// Opens UCX for a job.
    pub(super) fn open(
        ucp: &'static Ucp,
        hello: &Joining,
        credits: Credits,
        direct_min: u64,
    ) -> Result<Self> {
        let context = Context::with_settings(ucp, "xgvmi-sp", settings(hello.scheme))?;
        let worker = context.worker(Kind::COUNT)?;
        Ok(Self {
            size: hello.size,
            scheme: hello.scheme,
            credits,
            direct_min,
            library: Library::find(),
            reads: Vec::new(),
            sends: Vec::new(),
            waiting: VecDeque::new(),
            keys: HashMap::new(),
            greetings: Greetings::default(),
            entered: HashMap::new(),
            ranks: BTreeMap::new(),
            services: Vec::new(),
            greeted: BTreeSet::new(),
            shared: None,
            worker,
            context,
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

    /// Connects to a rank that is to be served; answers how many of its announced keys have an alias now.
    pub(super) fn admit(&mut self, hello: &Joining) -> Result<u64> {
        // SAFETY: the rank sends what Worker::address gave it, byte by byte; its UCX is of our version.
        let endpoint = unsafe {
            self.worker
                .connect(&hello.address, &format!("rank {}", hello.rank))
        }?;
        self.ranks.insert(hello.rank, endpoint);
        let accepted = match self.library {
            Some(library) if !hello.announcement.is_empty() => library
                .accept(&hello.announcement)
                .map_err(|error| OffloadError::Failed(error.to_string()))?,
            _ => 0,
        };
        self.greetings
            .import(&self.context, hello.rank, &hello.greeting)?;
        Ok(accepted)
    }

    /// Whether a rank is served here.
    pub(super) fn has_rank(&self, rank: u32) -> bool {
        self.ranks.contains_key(&rank)
    }

    /// Takes the table and connects to all SPs in it; answers our place. A second one is ignored if it is the same.
    pub(super) fn set_table(&mut self, table: Table, unique: u64) -> Result<u32> {
        if let Some(shared) = &self.shared {
            return if shared.table == table {
                Ok(shared.me)
            } else {
                Err(failed("two ranks have sent different tables"))
            };
        }
        let me = check_table(&table, self.size, unique)?;
        for (index, service) in table.services.iter().enumerate() {
            let name = format!("service {index} ({})", service.tcp);
            // SAFETY: a table holds what SPs of our version of UCX said of their workers, byte by byte.
            let endpoint = unsafe { self.worker.connect_for_gets(&service.worker, &name) }?;
            self.services.push(endpoint);
        }
        let greeting = self.greetings.ours()?;
        for (index, endpoint) in self.services.iter().enumerate() {
            if index != me as usize {
                let hello = say_hello(endpoint, From::Service(me), Some(greeting.clone()))?;
                self.sends.push(hello);
            }
        }
        self.greetings.offered(&self.services, me, greeting)?;
        self.greetings.begin(&self.services)?;
        let ledger = Ledger::new(
            me,
            table.service_of.clone(),
            self.direct_min,
            self.credits.sends,
        );
        self.shared = Some(Shared { me, table, ledger });
        Ok(me)
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
        for endpoint in self.ranks.values() {
            self.sends
                .push(say_hello(endpoint, From::Service(me), None)?);
        }
        Ok(())
    }

    /// Moves everything forward; true when something happened.
    pub(super) fn progress(&mut self) -> Result<bool> {
        let mut busy = false;
        while self.worker.progress() {
            busy = true;
        }
        while let Some(message) = self.worker.take(|_| true)? {
            busy = true;
            self.receive(&message)?;
        }
        busy |= self.reap()? | self.greetings.reap()?;
        while self.act()? {
            busy = true;
        }
        Ok(busy)
    }

    /// To be called when there is nothing to do: what was kept back for more to go with it goes; true if there was
    /// anything.
    pub(super) fn settle(&mut self) -> Result<bool> {
        if let Some(shared) = &mut self.shared {
            shared.ledger.settle();
        }
        let mut busy = false;
        while self.act()? {
            busy = true;
        }
        Ok(busy)
    }

    /// Lets go of everything, operations under way included.
    pub(super) fn shut(mut self) {
        for endpoint in self.ranks.values().chain(&self.services) {
            endpoint.abandon();
        }
        let end = Instant::now() + SHUT_LIMIT;
        let ended = |request: &Request| !matches!(request.test(), Ok(false));
        while Instant::now() < end {
            while self.worker.progress() {}
            self.reads.retain(|(request, _)| !ended(request));
            self.sends.retain(|request| !ended(request));
            if self.greetings.shut() && self.reads.is_empty() && self.sends.is_empty() {
                break;
            }
        }
    }

    fn receive(&mut self, message: &Message) -> Result<()> {
        let peer = "a peer of the job";
        let bad = |error| OffloadError::message(peer, &error);
        match Kind::from_id(message.id) {
            Some(Kind::Hello) => {
                let hello = Hello::parse(&message.data).map_err(bad)?;
                match (hello.from, hello.greeting) {
                    (From::Rank(rank), _) => {
                        self.greeted.insert((false, rank));
                    }
                    (From::Service(index), greeting) => {
                        self.greeted.insert((true, index));
                        if let Some(greeting) = greeting {
                            self.greetings.offered(&self.services, index, greeting)?;
                        }
                    }
                }
                Ok(())
            }
            Some(Kind::HostArrive) => self.arrive(&HostArrive::parse(&message.data).map_err(bad)?),
            Some(Kind::DpuRts) => self.offered(DpuRts::parse(&message.data).map_err(bad)?),
            Some(Kind::DpuFin) => {
                let fin = DpuFin::parse(&message.data).map_err(bad)?;
                let ledger = &mut self.shared()?.ledger;
                ledger
                    .finished(fin.from, fin.offer)
                    .map_err(|wrong| failed(wrong.to_string()))
            }
            Some(Kind::HostFin) | None => Err(failed(format!(
                "an SP was sent a message of kind {}",
                message.id
            ))),
        }
    }

    /// A rank of ours enters a call: import its buffers and make the key that others read with.
    fn arrive(&mut self, arrive: &HostArrive) -> Result<()> {
        let (collective, rank) = (arrive.collective, arrive.rank);
        if !self.ranks.contains_key(&rank) {
            return Err(failed(format!("{collective}: rank {rank} is not ours")));
        }
        let direct_min = self.direct_min;
        check_blocks(
            arrive,
            &arrive.sends,
            arrive.send_memory.as_ref(),
            direct_min,
        )?;
        check_blocks(
            arrive,
            &arrive.receives,
            arrive.receive_memory.as_ref(),
            direct_min,
        )?;
        let send = self.import(arrive.send_memory.as_ref())?;
        let receive = self.import(arrive.receive_memory.as_ref())?;
        let rkey = match &send {
            Some(imported) => imported.memory.pack_rkey()?.to_vec(),
            None => Vec::new(),
        };
        let entered = Entered {
            send,
            receive,
            rkey,
        };
        self.entered.insert((collective, rank), entered);
        let ledger = &mut self.shared()?.ledger;
        ledger
            .arrive(
                collective,
                rank,
                &arrive.sends,
                &arrive.receives,
                &arrive.short,
            )
            .map_err(|wrong| failed(wrong.to_string()))
    }

    fn import(&self, export: Option<&Export>) -> Result<Option<Imported>> {
        export
            .map(|export| Imported::new(&self.context, export))
            .transpose()
    }

    /// Blocks are on offer to ranks of ours.
    fn offered(&mut self, rts: DpuRts) -> Result<()> {
        let offer = (rts.from, rts.offer);
        let mut keys = Vec::new();
        let mut blocks = Vec::new();
        for part in &rts.parts {
            if !part.rkey.is_empty() {
                let endpoint = self
                    .services
                    .get(rts.from as usize)
                    .ok_or_else(|| failed(format!("an offer of service {}", rts.from)))?;
                // SAFETY: the offering SP sends what UCX packed, byte by byte; its UCX is of our version.
                let remote = unsafe { RemoteKey::unpack(endpoint, &part.rkey) }?;
                keys.push((part.source, remote));
            }
            let mut short = &part.short[..];
            for block in &part.blocks {
                let mut data = Vec::new();
                if block.length < self.direct_min {
                    let split = usize::try_from(block.length)
                        .ok()
                        .and_then(|length| short.split_at_checked(length));
                    let (head, rest) = split.ok_or_else(|| failed("an offer lacks bytes"))?;
                    data.extend_from_slice(head);
                    short = rest;
                }
                let incoming = Incoming {
                    offer,
                    source: part.source,
                    address: block.address,
                    length: block.length,
                    data,
                };
                blocks.push((block.destination, incoming));
            }
        }
        if !keys.is_empty() {
            self.keys.insert(offer, keys);
        }
        let ledger = &mut self.shared()?.ledger;
        ledger
            .offered(offer, rts.collective, blocks)
            .map_err(|wrong| failed(wrong.to_string()))
    }

    /// Takes note of what has ended.
    fn reap(&mut self) -> Result<bool> {
        let mut done = false;
        let mut index = 0;
        while let Some((request, transfer)) = self.reads.get(index) {
            let transfer = *transfer;
            let ended = request.test().map_err(|error| {
                failed(format!(
                    "{}: reading {} bytes of rank {} for rank {}: {error}",
                    transfer.collective, transfer.length, transfer.source, transfer.destination
                ))
            })?;
            if ended {
                self.reads.swap_remove(index);
                self.shared()?.ledger.transferred(&transfer);
                done = true;
            } else {
                index += 1;
            }
        }
        let mut index = 0;
        while let Some(request) = self.sends.get(index) {
            if request.test()? {
                self.sends.swap_remove(index);
                done = true;
            } else {
                index += 1;
            }
        }
        Ok(done)
    }

    /// Does one thing that the ledger wants done, and starts reads; false when there is nothing.
    fn act(&mut self) -> Result<bool> {
        let mut acted = false;
        if let Some(shared) = &mut self.shared
            && let Some(action) = shared.ledger.next()
        {
            acted = true;
            match action {
                Action::Offer(offer) => self.offer(offer)?,
                Action::Transfer(transfer) => self.waiting.push_back(transfer),
                Action::Finish(key) => self.finish(key)?,
                Action::Complete {
                    collective,
                    rank,
                    short,
                } => self.complete(collective, rank, short)?,
            }
        }
        while self.reads.len() < self.credits.receives
            && let Some(transfer) = self.waiting.pop_front()
        {
            acted = true;
            let request = self.read(&transfer)?;
            self.reads.push((request, transfer));
        }
        // Reads that were over at once, as on a fast path, make room for others at once.
        Ok(acted | self.reap()?)
    }

    fn offer(&mut self, offer: Offer) -> Result<()> {
        let me = self.shared()?.me;
        let parts = offer
            .parts
            .into_iter()
            .map(|part| self.part(offer.collective, part));
        let rts = DpuRts {
            collective: offer.collective,
            from: me,
            offer: offer.id,
            parts: parts.collect::<Result<_>>()?,
        };
        if offer.to == me {
            self.offered(rts)
        } else {
            self.tell_service(offer.to, Kind::DpuRts, rts.to_bytes())
        }
    }

    /// One source's blocks, as its destinations' SP needs them.
    fn part(&self, collective: Collective, part: Part) -> Result<RtsPart> {
        let entered = self
            .entered
            .get(&(collective, part.source))
            .ok_or_else(|| failed("an offer of a rank that has not entered"))?;
        let base = entered.send.as_ref().map_or(0, |send| send.address);
        let direct = part.blocks.iter().any(|b| b.length >= self.direct_min);
        Ok(RtsPart {
            source: part.source,
            rkey: if direct {
                entered.rkey.clone()
            } else {
                Vec::new()
            },
            blocks: part
                .blocks
                .iter()
                .map(|block| OfferedBlock {
                    destination: block.peer,
                    // Within the buffer, see check_blocks; that of a short block is not used.
                    address: base.wrapping_add(block.offset),
                    length: block.length,
                })
                .collect(),
            short: part.short,
        })
    }

    fn read(&self, transfer: &Transfer) -> Result<Request> {
        let lost = |what: &str| failed(format!("{}: a read without {what}", transfer.collective));
        let keys = self.keys.get(&transfer.offer).into_iter().flatten();
        let (_, key) = keys
            .into_iter()
            .find(|(source, _)| *source == transfer.source)
            .ok_or_else(|| lost("its key"))?;
        let into = self
            .entered
            .get(&(transfer.collective, transfer.destination))
            .and_then(|entered| entered.receive.as_ref())
            .ok_or_else(|| lost("its destination"))?;
        let length = usize::try_from(transfer.length).map_err(|_| lost("a length that fits"))?;
        // Within the buffer, see check_blocks.
        let to = into.address.wrapping_add(transfer.to);
        Ok(Endpoint::get(key, transfer.from, &into.memory, to, length)?)
    }

    fn finish(&mut self, (from, offer): OfferKey) -> Result<()> {
        drop(self.keys.remove(&(from, offer)));
        let Shared { me, ledger, .. } = self.shared()?;
        let me = *me;
        if from == me {
            ledger
                .finished(from, offer)
                .map_err(|wrong| failed(wrong.to_string()))
        } else {
            let fin = DpuFin { from: me, offer };
            self.tell_service(from, Kind::DpuFin, fin.to_bytes())
        }
    }

    /// Gives a rank's buffers back, and only then tells it so.
    fn complete(&mut self, collective: Collective, rank: u32, short: Vec<Delivered>) -> Result<()> {
        if let Some(entered) = self.entered.remove(&(collective, rank)) {
            for imported in [entered.send, entered.receive].into_iter().flatten() {
                imported.memory.unmap()?;
            }
        }
        let fin = HostFin {
            collective,
            short,
            aliases: self.library.map(|library| {
                let stats = library.stats();
                (stats.alias_hits, stats.alias_misses)
            }),
        };
        let endpoint = self
            .ranks
            .get(&rank)
            .ok_or_else(|| failed(format!("rank {rank} is gone")))?;
        let request = endpoint.send(Kind::HostFin as u16, Vec::new(), fin.to_bytes())?;
        self.keep(request)
    }

    fn tell_service(&mut self, index: u32, kind: Kind, data: Vec<u8>) -> Result<()> {
        let endpoint = self
            .services
            .get(index as usize)
            .ok_or_else(|| failed(format!("there is no service {index}")))?;
        let request = endpoint.send(kind as u16, Vec::new(), data)?;
        self.keep(request)
    }

    /// Keeps a message until it has left.
    fn keep(&mut self, request: Request) -> Result<()> {
        if !request.test()? {
            self.sends.push(request);
        }
        Ok(())
    }

    fn shared(&mut self) -> Result<&mut Shared> {
        self.shared
            .as_mut()
            .ok_or_else(|| failed("a collective before the table of services"))
    }
}

impl Imported {
    pub(super) fn new(context: &Context, export: &Export) -> Result<Self> {
        // SAFETY: the rank sends what UCX packed, byte by byte; its UCX is of our version.
        let memory = unsafe { ImportedMemory::new(context, &export.packed) }?;
        let end = |start: u64, length: u64| start.checked_add(length);
        let inside = memory.address() <= export.address
            && end(export.address, export.length) <= end(memory.address(), memory.length() as u64);
        if !inside {
            return Err(failed(format!(
                "a rank has exported {memory} for its buffer {:#x}+{}",
                export.address, export.length
            )));
        }
        Ok(Self {
            memory,
            address: export.address,
        })
    }
}

/// Says hello over UCP, which opens the way.
fn say_hello(endpoint: &Endpoint, from: From, greeting: Option<Greeting>) -> Result<Request> {
    let data = Hello { from, greeting }.to_bytes();
    Ok(endpoint.send(Kind::Hello as u16, vec![0; HELLO_PADDING], data)?)
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

/// What makes a scheme, as far as UCX's settings do.
pub(crate) fn settings(scheme: Scheme) -> &'static [(&'static str, &'static str)] {
    match scheme {
        Scheme::Ksm => &[("IB_XGVMI_UMR_ENABLE", "n")],
        Scheme::Stock | Scheme::Xgvmi => &[],
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

/// A block that the device reads must lie in a buffer that was exported.
fn check_blocks(
    arrive: &HostArrive,
    blocks: &[Block],
    memory: Option<&Export>,
    direct_min: u64,
) -> Result<()> {
    let length = memory.map_or(0, |export| export.length);
    let outside = |block: &&Block| {
        block.length >= direct_min
            && block
                .offset
                .checked_add(block.length)
                .is_none_or(|end| end > length)
    };
    match blocks.iter().find(outside) {
        None => Ok(()),
        Some(block) => Err(failed(format!(
            "{}: rank {} names {} bytes at {} of a buffer of which {length} were exported",
            arrive.collective, arrive.rank, block.length, block.offset
        ))),
    }
}

pub(super) fn failed(reason: impl Into<String>) -> OffloadError {
    OffloadError::Failed(reason.into())
}
