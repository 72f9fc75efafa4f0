//! A process: a program that has started, as an algorithm of the lab.

use crate::services::{Output, Services};
use pcc_dev::Query;
use pcc_dev::layout::{self, Block, Event, Model, Probe, RESPONSE_BYTES, event_type};
use pcc_lab::algorithm::{self, Context, Decision, EventType, Port};
use pcc_lab::{Algorithm, Failure};
use std::cell::{Ref, RefCell};
use std::rc::Rc;

/// Most bytes of a request, of a response, and of a probe.
pub(crate) const BUFFER_BYTES: usize = 4_096;

/// Entry points of the library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Entry {
    Port,
    Start,
    Event,
    SetParams,
    Mailbox,
    Query,
    NpPacket,
}

/// All entry points and their symbols. A program of a sender has no `__pcc_np_packet`.
pub(crate) const ENTRIES: [(Entry, &str); 7] = [
    (Entry::Port, "__pcc_port"),
    (Entry::Start, "__pcc_start"),
    (Entry::Event, "__pcc_event"),
    (Entry::SetParams, "__pcc_set_params"),
    (Entry::Mailbox, "__pcc_mailbox"),
    (Entry::Query, "__pcc_query"),
    (Entry::NpPacket, "__pcc_np_packet"),
];

/// Memory of the program that the process writes and reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Area {
    /// The block of an event.
    Block,
    /// A request, a probe's bytes, or values of parameters.
    Input,
    /// A response, or a probe's description.
    Output,
}

/// A program in memory.
pub(crate) trait Engine: std::fmt::Debug {
    /// Address of an area in the program's memory.
    fn address(&self, area: Area) -> u64;

    /// Copies to the start of an area.
    fn write(&mut self, area: Area, bytes: &[u8]);

    /// Copies from the start of an area.
    fn read(&self, area: Area, bytes: &mut [u8]);

    /// Copies from any memory of the program. False if there is none.
    fn peek(&self, address: u64, bytes: &mut [u8]) -> bool;

    /// Calls an entry point. Returns its result and the instructions that it took, 0 if they are not counted.
    fn call(
        &mut self,
        entry: Entry,
        arguments: &[u64],
        services: &mut Services,
    ) -> Result<(u64, u32), Failure>;
}

/// How a process runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Speed of its port at the start, in Gb/s.
    pub gbps: u32,
    /// RTT events have what the receiver's code has answered, in place of times: the probes are IFA.
    pub raw_probes: bool,
    /// Guess: most instructions of one event. A handler that needs more has failed.
    pub instructions_max: u64,
    /// Parameters of slot 0 that are set after the start: number and value.
    pub parameters: Vec<(u32, u32)>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            gbps: 200,
            raw_probes: false,
            instructions_max: 1_000_000,
            parameters: Vec::new(),
        }
    }
}

/// The library or the program has refused something. One line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refused(pub String);

impl From<Failure> for Refused {
    fn from(failure: Failure) -> Self {
        Self(failure.to_string())
    }
}

/// The answer to one event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// What the program has decided.
    pub results: layout::Results,
    /// The flow's context afterwards.
    pub context: Context,
    /// Instructions, 0 if they are not counted.
    pub instructions: u32,
}

#[derive(Debug)]
struct Inner {
    engine: Box<dyn Engine>,
    services: Services,
    model: Model,
    options: Options,
    disabled: u32,
    gbps: u32,
}

/// A process. Its copies are the same process, so that a caller may keep one while the lab runs another.
#[derive(Debug, Clone)]
pub struct Process {
    name: String,
    inner: Rc<RefCell<Inner>>,
}

impl Process {
    pub(crate) fn start(
        (name, model, is_np): (&str, Model, bool),
        engine: Box<dyn Engine>,
        options: &Options,
    ) -> Result<Self, Refused> {
        let mut inner = Inner {
            engine,
            services: Services::default(),
            model,
            options: options.clone(),
            disabled: 0,
            gbps: 0,
        };
        inner.set_port(options.gbps)?;
        // Code of a receiver has no start of its own.
        if !is_np {
            let (disabled, _) = inner.call(Entry::Start, &[])?;
            inner.disabled = u32::try_from(disabled).unwrap_or(u32::MAX);
        }
        let process = Self {
            name: name.to_owned(),
            inner: Rc::new(RefCell::new(inner)),
        };
        process.none_refused()?;
        for (number, value) in &options.parameters {
            process.set_parameters(0, *number, &[*value])?;
        }
        Ok(process)
    }

    /// Fails with the first refusal since the last call.
    fn none_refused(&self) -> Result<(), Refused> {
        let mut inner = self.inner.borrow_mut();
        let refused = std::mem::take(&mut inner.services.output.refused);
        match refused.into_iter().next() {
            Some(line) => Err(Refused(format!("{}: {line}", self.name))),
            None => Ok(()),
        }
    }

    /// What the program has said so far.
    #[must_use]
    pub fn output(&self) -> Ref<'_, Output> {
        Ref::map(self.inner.borrow(), |inner| &inner.services.output)
    }

    /// Handles one event of a flow: the lab's [`Algorithm::handle`] with all fields of the device.
    ///
    /// # Errors
    /// The process has crashed, or exceeded its instructions.
    pub fn event(
        &self,
        context: &Context,
        event: &Event,
        slot: u8,
        overload: bool,
    ) -> Result<Answer, Failure> {
        self.inner
            .borrow_mut()
            .event(context, event, slot, overload)
    }

    /// Sets parameters of a slot of port 0, from number `first`.
    ///
    /// # Errors
    /// The library or the program refuses a value.
    pub fn set_parameters(&self, slot: u32, first: u32, values: &[u32]) -> Result<(), Refused> {
        let mut bytes: Vec<u8> = values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect();
        bytes.truncate(BUFFER_BYTES);
        let mut inner = self.inner.borrow_mut();
        inner.engine.write(Area::Input, &bytes);
        let address = inner.engine.address(Area::Input);
        let arguments = [
            0,
            u64::from(slot),
            u64::from(first),
            bytes.len() as u64 / 4,
            address,
        ];
        let (status, _) = inner.call(Entry::SetParams, &arguments)?;
        drop(inner);
        self.status(status)
    }

    /// Sends a request to the program's mailbox, and returns its response.
    ///
    /// # Errors
    /// The program refuses the request, or has no mailbox.
    pub fn mailbox(&self, request: &[u8], response_max: usize) -> Result<Vec<u8>, Refused> {
        if request.len().max(response_max) > BUFFER_BYTES {
            return Err(Refused(format!(
                "a message has at most {BUFFER_BYTES} bytes"
            )));
        }
        let mut inner = self.inner.borrow_mut();
        inner.engine.write(Area::Input, request);
        let (from, to) = (
            inner.engine.address(Area::Input),
            inner.engine.address(Area::Output),
        );
        let arguments = [from, request.len() as u64, response_max as u64, to];
        let (result, _) = inner.call(Entry::Mailbox, &arguments)?;
        let bytes = usize::try_from(result >> 32).unwrap_or(0).min(BUFFER_BYTES);
        let mut response = vec![0; bytes];
        inner.engine.read(Area::Output, &mut response);
        drop(inner);
        self.status(result & 1)?;
        Ok(response)
    }

    /// A property of a slot of port 0, of a parameter or counter where it is one of these.
    ///
    /// # Errors
    /// The process has failed.
    pub fn query(&self, what: Query, slot: u32, number: u32) -> Result<u64, Failure> {
        let arguments = [
            u64::from(what as u16),
            0,
            u64::from(slot),
            u64::from(number),
        ];
        let result = self.inner.borrow_mut().call(Entry::Query, &arguments);
        result.map(|(value, _)| value)
    }

    /// A text that [`query`](Self::query) names by address and bytes.
    ///
    /// # Errors
    /// The process has failed, or the address is wrong.
    pub fn query_text(
        &self,
        (at, bytes): (Query, Query),
        slot: u32,
        number: u32,
    ) -> Result<String, Failure> {
        let (address, bytes) = (
            self.query(at, slot, number)?,
            self.query(bytes, slot, number)?,
        );
        let mut text = vec![0; usize::try_from(bytes).unwrap_or(0).min(BUFFER_BYTES)];
        if !self.inner.borrow().engine.peek(address, &mut text) {
            return Err(Failure(format!("no text at {address:#x}")));
        }
        let end = text
            .iter()
            .position(|byte| *byte == 0)
            .unwrap_or(text.len());
        Ok(String::from_utf8_lossy(&text[..end]).into_owned())
    }

    /// Lets the code of a receiver answer a probe, whose UDP header and payload begin at these offsets.
    ///
    /// # Errors
    /// The probe is too long, the program refuses it, or it has failed.
    pub fn probe(
        &self,
        packet: &[u8],
        l4: u32,
        payload: u32,
    ) -> Result<[u8; RESPONSE_BYTES], Refused> {
        let size = u32::try_from(packet.len()).unwrap_or(u32::MAX);
        if packet.len() > BUFFER_BYTES || l4 > size || payload > size {
            return Err(Refused(format!(
                "a probe of {size} bytes with parts at {l4} and {payload}"
            )));
        }
        let mut inner = self.inner.borrow_mut();
        inner.engine.write(Area::Input, packet);
        let probe = Probe::new(inner.engine.address(Area::Input), size, l4, payload, 0);
        inner.engine.write(Area::Output, &probe.0);
        let address = inner.engine.address(Area::Output);
        let (status, _) = inner.call(Entry::NpPacket, &[address])?;
        let mut answered = probe;
        inner.engine.read(Area::Output, &mut answered.0);
        drop(inner);
        self.status(status)?;
        Ok(answered.response())
    }

    /// The speed of the port that the program knows, in Gb/s.
    #[must_use]
    pub fn port_gbps(&self) -> u32 {
        self.inner.borrow().gbps
    }

    /// Sets the device's time for calls other than events.
    pub fn set_time_us(&self, time_us: u64) {
        self.inner.borrow_mut().services.time_us = time_us;
    }

    /// The refusal that the library has reported.
    fn status(&self, status: u64) -> Result<(), Refused> {
        if status == 0 {
            return Ok(());
        }
        self.none_refused()?;
        Err(Refused(format!("{}: the program has failed", self.name)))
    }
}

impl Inner {
    fn call(&mut self, entry: Entry, arguments: &[u64]) -> Result<(u64, u32), Failure> {
        self.engine.call(entry, arguments, &mut self.services)
    }

    fn set_port(&mut self, gbps: u32) -> Result<(), Failure> {
        self.gbps = gbps;
        self.call(Entry::Port, &[0, u64::from(gbps), 1]).map(|_| ())
    }

    fn event(
        &mut self,
        context: &Context,
        event: &Event,
        slot: u8,
        overload: bool,
    ) -> Result<Answer, Failure> {
        let block = Block::new(context, &event.encode(self.model), slot, overload);
        self.engine.write(Area::Block, &block.0);
        let address = self.engine.address(Area::Block);
        let (_, instructions) = self.call(Entry::Event, &[address])?;
        let mut block = block;
        self.engine.read(Area::Block, &mut block.0);
        Ok(Answer {
            results: block.results(),
            context: block.context(),
            instructions,
        })
    }

    fn handle(
        &mut self,
        context: &mut Context,
        event: &algorithm::Event,
        port: &Port,
    ) -> Result<Decision, Failure> {
        let gbps = u32::try_from(port.mbps / 1_000).unwrap_or(u32::MAX);
        self.services.time_us = port.time_ps / 1_000_000;
        self.services.sent_bytes = port.sent_bytes;
        self.services.received_bytes = port.received_bytes;
        self.services.priority = None;
        if gbps != self.gbps {
            self.set_port(gbps)?;
        }
        let answer = self.event(context, &self.of_lab(event), port.slot, port.overload)?;
        *context = answer.context;
        Ok(Decision {
            rate: Some(answer.results.rate),
            probe: answer.results.probe != 0,
            probe_priority: self.services.priority,
            instructions: answer.instructions,
        })
    }

    /// The device's form of an event of the lab.
    fn of_lab(&self, event: &algorithm::Event) -> Event {
        let detail = match event.detail {
            algorithm::Detail::Tx {
                first_timestamp,
                sent_32bytes,
                sent_packets,
            } => layout::Detail::Tx {
                first_timestamp,
                sent_32bytes,
                sent_packets,
            },
            algorithm::Detail::Ack {
                first_timestamp,
                first_sn,
                coalesced,
            } => layout::Detail::Ack {
                first_timestamp,
                first_sn,
                coalesced,
            },
            algorithm::Detail::Rtt { raw, .. } if self.options.raw_probes => {
                let mut bytes = [0; RESPONSE_BYTES];
                for (place, word) in bytes.chunks_exact_mut(4).zip(raw) {
                    place.copy_from_slice(&word.to_le_bytes());
                }
                layout::Detail::Raw(bytes)
            }
            algorithm::Detail::Rtt {
                request_sent,
                request_received,
                response_sent,
                ..
            } => layout::Detail::Rtt {
                request_sent,
                request_received,
                response_sent,
                received: (0, 0),
            },
        };
        Event {
            kind: match event.kind {
                EventType::Cnp => event_type::CNP,
                EventType::Tx => event_type::TX,
                EventType::Ack => event_type::ACK,
                EventType::Nack => event_type::NACK,
                EventType::Rtt => event_type::RTT,
            },
            subtype: event.subtype,
            port: 0,
            plane: 0,
            flags: event.flags,
            flow_tag: event.flow_tag,
            qpn: event.flow_tag,
            hop_limit: 64,
            sn: event.sn,
            timestamp: event.timestamp,
            detail,
        }
    }
}

impl Algorithm for Process {
    fn name(&self) -> &str {
        &self.name
    }

    fn disabled_events(&self) -> u32 {
        self.inner.borrow().disabled
    }

    fn handle(
        &mut self,
        context: &mut Context,
        event: &algorithm::Event,
        port: &Port,
    ) -> Result<Decision, Failure> {
        self.inner.borrow_mut().handle(context, event, port)
    }
}
