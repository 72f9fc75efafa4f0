//! The UCX objects of one process for one size: context, worker, and a connection to each peer.

use super::control::{Place, Role};
use super::wire::{Header, Kind};
use anyhow::{Context as _, Result, bail};
use std::collections::BTreeMap;
use std::time::Duration;
use ucx_sys::Ucp;
use xgvmi_ucp::{Context, Endpoint, Waiter, Worker};

/// The order of the fields is the order of drops: connections before their worker, the worker before its
/// context.
#[derive(Debug)]
pub(super) struct Session<'a> {
    place: Place,
    endpoints: BTreeMap<Place, Endpoint>,
    worker: Worker,
    pub(super) context: Context,
    pub(super) waiter: &'a Waiter,
    /// Time limit for a message or an operation.
    limit: Duration,
}

impl<'a> Session<'a> {
    pub(super) fn open(
        ucp: &'static Ucp,
        place: Place,
        (waiter, limit): (&'a Waiter, Duration),
    ) -> Result<Self> {
        let context = Context::new(ucp, place.name())?;
        let worker = context.worker(Kind::COUNT)?;
        Ok(Self {
            place,
            endpoints: BTreeMap::new(),
            worker,
            context,
            waiter,
            limit,
        })
    }

    pub(super) fn address(&self) -> Result<Vec<u8>> {
        Ok(self.worker.address()?)
    }

    /// Connects to all peers and waits for the hello message of each. After that every connection works.
    pub(super) fn connect(&mut self, addresses: &BTreeMap<Place, Vec<u8>>) -> Result<()> {
        for peer in self.place.peers() {
            let address = addresses
                .get(peer)
                .with_context(|| format!("no address of {peer}"))?;
            let between_dpus = self.place.role() == Role::Dpu && peer.role() == Role::Dpu;
            let endpoint = if between_dpus {
                // SAFETY: the orchestrator passes on what Worker::address gave it, byte by byte, over a channel that
                // nobody else can write to.
                unsafe { self.worker.connect_for_gets(address, peer.name()) }
            } else {
                // SAFETY: as above.
                unsafe { self.worker.connect(address, peer.name()) }
            };
            let endpoint = endpoint.with_context(|| format!("connecting to {peer}"))?;
            self.endpoints.insert(*peer, endpoint);
        }
        for peer in self.place.peers() {
            self.send(*peer, Kind::Hello, Header::default(), Vec::new())?;
        }
        for _ in self.place.peers() {
            self.expect(Kind::Hello, 0)?;
        }
        Ok(())
    }

    /// Sends a message and waits until it is sent.
    pub(super) fn send(&self, to: Place, kind: Kind, header: Header, data: Vec<u8>) -> Result<()> {
        let endpoint = self
            .endpoints
            .get(&to)
            .with_context(|| format!("{} to {to}: not connected", kind.name()))?;
        endpoint
            .send(kind as u16, header.to_bytes(), data)
            .and_then(|request| request.wait(self.waiter, self.limit))
            .with_context(|| format!("sending {} to {to}", kind.name()))
    }

    /// Waits for a message of this kind. It must belong to this iteration.
    pub(super) fn expect(&self, kind: Kind, iteration: u64) -> Result<(Header, Vec<u8>)> {
        let take = || self.worker.take(|message| message.id == kind as u16);
        let message = self
            .waiter
            .until(&self.worker, self.limit, kind.name(), take)?;
        let header = Header::parse(kind, &message)?;
        if header.iteration != iteration {
            bail!(
                "{} of iteration {} where {iteration} was due",
                kind.name(),
                header.iteration
            );
        }
        Ok((header, message.data))
    }

    /// The connection to a peer.
    pub(super) fn endpoint(&self, peer: Place) -> Result<&Endpoint> {
        self.endpoints
            .get(&peer)
            .with_context(|| format!("no connection to {peer}"))
    }

    /// Waits for a get.
    pub(super) fn finish(&self, request: xgvmi_ucp::Get) -> Result<()> {
        Ok(request.wait(self.waiter, self.limit)?)
    }

    /// Closes the connections. Worker and context are dropped with the session. When the orchestrator requests
    /// this, every process has received all its messages, so no operation is outstanding.
    pub(super) fn close(self) -> Result<()> {
        // The peer is no longer needed.
        let limit = self.limit / 10;
        for (peer, endpoint) in &self.endpoints {
            endpoint
                .close(self.waiter, limit)
                .with_context(|| format!("closing the connection to {peer}"))?;
        }
        Ok(())
    }
}
