//! Congestion control: processes that handle the events of a card, and what the card states about the active one.

use crate::error::{Error, Result};
use crate::object::{Input, Object};
use crate::process::{Process, body, low};
use crate::verbs::Context;
use mlx5_prm::cmd::{self, opcode};
use mlx5_prm::dpa::{self, congestion, modify, object, query};
use mlx5dv_sys::ibv_context;

/// Bytes of an answer with a text.
const ANSWER_BYTES: usize = dpa::BODY_AT + 4096;

/// Hop limit of packets.
const HOPS: u8 = 64;

/// What a process does for congestion control.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// It sets the rates of a sender's flows.
    Reaction,
    /// It answers probes at the receiver.
    Notification,
}

/// Probes of a sender, and what answers them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Probes {
    /// The receiver's device, with times.
    #[default]
    Times,
    /// The receiver's program, to management datagrams.
    Ccmad,
    /// The receiver's program, to IFA 1.0.
    Ifa1,
    /// The receiver's program, to IFA 2.0 with this hop limit.
    Ifa2(u8),
}

/// Where a process stands among those of its card.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Standing {
    /// It handles the events.
    Active,
    /// Another one does.
    Standby,
    /// It did not handle an event in time, and the device has replaced it.
    Deactivated,
    /// A fault has ended it.
    Failed,
    /// It is not attached.
    Detached,
}

impl Process {
    /// Attaches the process to the congestion control of its card. `unwanted` is a mask of kinds of events. A receiver sends no
    /// probes of its own.
    ///
    /// # Errors
    /// The program is not linked with the library for congestion control, the port is an InfiniBand port, or the card has
    /// such a process already and allows one.
    pub fn attach(&self, role: Role, unwanted: u32, probes: Probes) -> Result<()> {
        let role = match role {
            Role::Reaction => congestion::REACTION,
            Role::Notification => congestion::NOTIFICATION,
        };
        let (form, hops) = match probes {
            Probes::Times => (congestion::PROBE_TIMES, HOPS),
            Probes::Ccmad => (congestion::PROBE_CCMAD, HOPS),
            Probes::Ifa1 => (congestion::PROBE_IFA1, HOPS),
            Probes::Ifa2(hops) => (congestion::PROBE_IFA2, hops),
        };
        let input = self
            .change(modify::ATTACH)
            .with(dpa::ROLE, role.into())
            .with(dpa::DISABLED_EVENTS, unwanted.into())
            .with(dpa::PROBE_FORM, form.into())
            .with(dpa::PROBE_HOPS, hops.into());
        self.modify(&input)
    }

    /// Detaches the process. The next one takes over.
    ///
    /// # Errors
    /// The DPA is lost.
    pub fn detach(&self) -> Result<()> {
        self.modify(&self.change(modify::DETACH))
    }

    /// Where the process stands, and why it has failed.
    ///
    /// # Errors
    /// The DPA is lost.
    pub fn standing(&self) -> Result<(Standing, String)> {
        let output = self.ask(&self.question(query::CONGESTION), ANSWER_BYTES)?;
        let standing = match low(dpa::STATE.get(&output)).to_le_bytes()[0] {
            congestion::ACTIVE => Standing::Active,
            congestion::STANDBY => Standing::Standby,
            congestion::DEACTIVATED => Standing::Deactivated,
            congestion::ERROR => Standing::Failed,
            _ => Standing::Detached,
        };
        let reason = String::from_utf8_lossy(body(&output).unwrap_or_default());
        Ok((standing, reason.into_owned()))
    }
}

/// What a card states about its active program of congestion control.
#[derive(Debug)]
pub struct Telemetry {
    object: Object,
    id: u32,
}

impl Telemetry {
    /// Opens it.
    ///
    /// # Errors
    /// The device has no DPA.
    ///
    /// # Safety
    /// The context is open, and stays so as long as this value.
    pub unsafe fn create(context: *mut ibv_context) -> Result<Self> {
        if context.is_null() {
            return Err(Error::failed("telemetry needs a context"));
        }
        let input = Input::general(object::TELEMETRY);
        // SAFETY: the caller's promise.
        let created = unsafe { Object::create(Context(context), &input, dpa::CREATE_OUT_BYTES) };
        let (object, output) = created?;
        let id = low(cmd::GENERAL_OBJECT_ID.get(&output));
        Ok(Self { object, id })
    }

    fn ask(&self, operation: u16, what: u16, slot: u8, number: u32) -> Result<Vec<u8>> {
        let input = |operation: u16| {
            Input::new(opcode::QUERY_GENERAL_OBJECT, dpa::BODY_AT)
                .with(cmd::GENERAL_OBJECT_TYPE, object::TELEMETRY.into())
                .with(cmd::GENERAL_OBJECT_ID, self.id.into())
                .with(dpa::OPERATION, operation.into())
        };
        let question = input(operation)
            .with(dpa::TELEMETRY_WHAT, what.into())
            .with(dpa::TELEMETRY_SLOT, slot.into())
            .with(dpa::TELEMETRY_NUMBER, number.into());
        self.object.query(&question, ANSWER_BYTES).map_err(|error| {
            let reason = self.object.query(&input(query::REASON), ANSWER_BYTES).ok();
            match reason.as_deref().and_then(body) {
                Some(reason) if !reason.is_empty() => Error {
                    status: error.status,
                    ..Error::failed(String::from_utf8_lossy(reason).into_owned())
                },
                _ => error,
            }
        })
    }

    /// A number: a question of the device library, a slot, and a parameter or counter.
    ///
    /// # Errors
    /// No program is active, or the slot does not exist.
    pub fn value(&self, what: u16, slot: u8, number: u32) -> Result<u64> {
        let output = self.ask(query::VALUE, what, slot, number)?;
        Ok(dpa::RESULT.get(&output))
    }

    /// A text: the question for its address. The next one is that for its bytes.
    ///
    /// # Errors
    /// As [`value`](Self::value).
    pub fn text(&self, what: u16, slot: u8, number: u32) -> Result<String> {
        let output = self.ask(query::TEXT, what, slot, number)?;
        Ok(String::from_utf8_lossy(body(&output).unwrap_or_default()).into_owned())
    }

    /// Sets the counters of a slot to 0.
    ///
    /// # Errors
    /// As [`value`](Self::value).
    pub fn clear(&self, slot: u8) -> Result<()> {
        self.ask(query::CLEAR, 0, slot, 0).map(drop)
    }
}
