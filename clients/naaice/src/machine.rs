//! The protocol's states, for host and accelerator. No I/O: completions go in, the next step comes out.

use crate::error::NaaError;
use crate::wire::Start;

/// State of a session. The values are those of the C interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(i32)]
pub enum State {
    /// Start.
    Init = 0,
    /// The address is resolved.
    Ready = 1,
    /// The connection is established.
    Connected = 2,
    /// The connection has ended in order.
    Disconnected = 3,
    /// The announcement is being sent.
    AnnouncementSending = 10,
    /// The peer's announcement is awaited.
    AnnouncementReceiving = 11,
    /// Both sides know each other's regions.
    Announced = 12,
    /// Data is being written to the peer.
    DataSending = 20,
    /// The function runs (accelerator only).
    Calculating = 21,
    /// Data of the peer is awaited.
    DataReceiving = 22,
    /// The call has ended.
    Finished = 30,
    /// The session has failed.
    Error = 40,
}

impl State {
    /// Name of the state in the C interface.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Init => "NAAICE_INIT",
            Self::Ready => "NAAICE_READY",
            Self::Connected => "NAAICE_CONNECTED",
            Self::Disconnected => "NAAICE_DISCONNECTED",
            Self::AnnouncementSending => "NAAICE_MRSP_SENDING",
            Self::AnnouncementReceiving => "NAAICE_MRSP_RECEIVING",
            Self::Announced => "NAAICE_MRSP_DONE",
            Self::DataSending => "NAAICE_DATA_SENDING",
            Self::Calculating => "NAAICE_CALCULATING",
            Self::DataReceiving => "NAAICE_DATA_RECEIVING",
            Self::Finished => "NAAICE_FINISHED",
            Self::Error => "NAAICE_ERROR",
        }
    }

    /// The state with this number.
    #[must_use]
    pub fn from_number(number: i32) -> Option<Self> {
        const ALL: [State; 12] = [
            State::Init,
            State::Ready,
            State::Connected,
            State::Disconnected,
            State::AnnouncementSending,
            State::AnnouncementReceiving,
            State::Announced,
            State::DataSending,
            State::Calculating,
            State::DataReceiving,
            State::Finished,
            State::Error,
        ];
        ALL.into_iter().find(|state| *state as i32 == number)
    }
}

/// A successful completion of a work request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Completion {
    /// A message was sent.
    Sent,
    /// A message was received.
    Received {
        /// Its length in bytes.
        bytes: u32,
    },
    /// A region was written to the peer.
    Written,
    /// The peer has written its last region.
    Started {
        /// The immediate value, in host byte order.
        immediate: u32,
        /// Length of the last region in bytes.
        bytes: u32,
    },
}

impl Completion {
    const fn name(self) -> &'static str {
        match self {
            Self::Sent => "a message was sent",
            Self::Received { .. } => "a message was received",
            Self::Written => "a write was completed",
            Self::Started { .. } => "a write with immediate value was received",
        }
    }

    fn unexpected(self, state: State) -> NaaError {
        NaaError::Protocol {
            what: self.name(),
            state: state.name(),
        }
    }
}

/// The next step of a host after a completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostStep {
    /// Wait for more completions.
    Wait,
    /// Read the accelerator's announcement of so many bytes.
    ReadAnnouncement(u32),
    /// The call has ended with this immediate value.
    Finish {
        /// The accelerator's immediate value, in host byte order.
        immediate: u32,
        /// Length of the last region in bytes.
        bytes: u32,
    },
}

/// A host's side of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Host {
    /// Current state.
    pub state: State,
    /// Writes of the current call without a completion.
    pub writes_left: u8,
    /// The accelerator's answer, if it arrived before the last write's completion: acknowledgements and the peer's
    /// writes take different ways.
    answer: Option<(u32, u32)>,
    /// The peer's announcement, if it arrived before the completion of the own one.
    early: Option<u32>,
}

impl Host {
    /// A session that has not begun.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            state: State::Init,
            writes_left: 0,
            answer: None,
            early: None,
        }
    }

    /// A call with so many writes begins.
    pub fn begin(&mut self, writes: u8) {
        *self = Self {
            state: State::DataSending,
            writes_left: writes,
            answer: None,
            early: None,
        };
    }

    /// Handles a completion.
    ///
    /// # Errors
    /// If the protocol does not allow it in this state.
    pub fn on(&mut self, completion: Completion) -> Result<HostStep, NaaError> {
        match (self.state, completion) {
            (State::AnnouncementSending, Completion::Sent) => {
                self.state = State::AnnouncementReceiving;
                Ok(self
                    .early
                    .take()
                    .map_or(HostStep::Wait, HostStep::ReadAnnouncement))
            }
            (State::AnnouncementSending, Completion::Received { bytes })
                if self.early.is_none() =>
            {
                self.early = Some(bytes);
                Ok(HostStep::Wait)
            }
            (State::AnnouncementReceiving, Completion::Received { bytes }) => {
                Ok(HostStep::ReadAnnouncement(bytes))
            }
            (State::DataSending, Completion::Written) if self.writes_left > 0 => {
                self.writes_left -= 1;
                if self.writes_left > 0 {
                    return Ok(HostStep::Wait);
                }
                self.state = State::DataReceiving;
                Ok(self.finish())
            }
            (State::DataSending, Completion::Started { immediate, bytes })
                if self.answer.is_none() =>
            {
                self.answer = Some((immediate, bytes));
                Ok(HostStep::Wait)
            }
            (State::DataReceiving, Completion::Started { immediate, bytes }) => {
                self.answer = Some((immediate, bytes));
                Ok(self.finish())
            }
            (state, completion) => Err(completion.unexpected(state)),
        }
    }

    /// Whether only the peer can change what the caller waits for: completions of own writes need no wake-up. An
    /// unsuccessful completion causes one in any case.
    #[must_use]
    pub const fn awaits_peer(&self) -> bool {
        match self.state {
            State::DataReceiving | State::AnnouncementReceiving => true,
            State::DataSending => self.answer.is_none(),
            _ => false,
        }
    }

    fn finish(&mut self) -> HostStep {
        match self.answer.take() {
            Some((immediate, bytes)) => {
                self.state = State::Finished;
                HostStep::Finish { immediate, bytes }
            }
            None => HostStep::Wait,
        }
    }
}

impl Default for Host {
    fn default() -> Self {
        Self::new()
    }
}

/// The next step of an accelerator after a completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NaaStep {
    /// Wait for more completions.
    Wait,
    /// Read the host's announcement of so many bytes.
    ReadAnnouncement(u32),
    /// Run the function.
    Run(Start),
    /// The host reports an error on its side.
    HostFailed,
}

/// An accelerator's side of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Naa {
    /// Current state.
    pub state: State,
    /// Writes of the current answer without a completion.
    pub writes_left: u8,
    /// Immediate value of a call that began before the completion of the previous step.
    next: Option<u32>,
}

impl Naa {
    /// A session that waits for the host's announcement.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            state: State::AnnouncementReceiving,
            writes_left: 0,
            next: None,
        }
    }

    /// The answer to a call, with so many writes, begins.
    pub fn begin(&mut self, writes: u8) {
        self.state = State::DataSending;
        self.writes_left = writes;
    }

    /// Handles a completion.
    ///
    /// # Errors
    /// If the protocol does not allow it in this state.
    pub fn on(&mut self, completion: Completion) -> Result<NaaStep, NaaError> {
        match (self.state, completion) {
            (State::AnnouncementReceiving, Completion::Received { bytes }) => {
                Ok(NaaStep::ReadAnnouncement(bytes))
            }
            (State::AnnouncementSending, Completion::Sent) => {
                self.state = State::DataReceiving;
                Ok(self.start())
            }
            (State::DataSending, Completion::Written) if self.writes_left > 0 => {
                self.writes_left -= 1;
                if self.writes_left > 0 {
                    return Ok(NaaStep::Wait);
                }
                self.state = State::DataReceiving;
                Ok(self.start())
            }
            (
                State::AnnouncementSending | State::DataSending | State::DataReceiving,
                Completion::Started { immediate, .. },
            ) if self.next.is_none() => {
                self.next = Some(immediate);
                Ok(match self.state {
                    State::DataReceiving => self.start(),
                    _ => NaaStep::Wait,
                })
            }
            (state, completion) => Err(completion.unexpected(state)),
        }
    }

    /// As [`Host::awaits_peer`].
    #[must_use]
    pub const fn awaits_peer(&self) -> bool {
        match self.state {
            State::DataReceiving => true,
            State::DataSending => self.next.is_none(),
            _ => false,
        }
    }

    fn start(&mut self) -> NaaStep {
        let Some(immediate) = self.next.take() else {
            return NaaStep::Wait;
        };
        match Start::from_immediate(immediate) {
            Some(start) => {
                self.state = State::Calculating;
                NaaStep::Run(start)
            }
            None => NaaStep::HostFailed,
        }
    }
}

impl Default for Naa {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::answer;

    fn started(immediate: u32) -> Completion {
        Completion::Started {
            immediate,
            bytes: 64,
        }
    }

    #[test]
    fn a_host_announces_and_calls() {
        let mut host = Host::new();
        host.state = State::AnnouncementSending;
        assert_eq!(host.on(Completion::Sent).ok(), Some(HostStep::Wait));
        let received = Completion::Received { bytes: 20 };
        assert_eq!(host.on(received).ok(), Some(HostStep::ReadAnnouncement(20)));
        for _ in 0..2 {
            host.begin(2);
            assert_eq!(host.on(Completion::Written).ok(), Some(HostStep::Wait));
            assert_eq!(host.on(Completion::Written).ok(), Some(HostStep::Wait));
            assert_eq!(host.state, State::DataReceiving);
            let finish = HostStep::Finish {
                immediate: 0,
                bytes: 64,
            };
            assert_eq!(host.on(started(answer(0))).ok(), Some(finish));
            assert_eq!(host.state, State::Finished);
        }
    }

    #[test]
    fn completions_of_both_directions_may_come_in_any_order() {
        let mut host = Host::new();
        host.state = State::AnnouncementSending;
        assert_eq!(
            host.on(Completion::Received { bytes: 9 }).ok(),
            Some(HostStep::Wait)
        );
        assert_eq!(
            host.on(Completion::Sent).ok(),
            Some(HostStep::ReadAnnouncement(9))
        );
        host.begin(1);
        assert_eq!(host.on(started(answer(0x10))).ok(), Some(HostStep::Wait));
        let finish = HostStep::Finish {
            immediate: 0x1000,
            bytes: 64,
        };
        assert_eq!(host.on(Completion::Written).ok(), Some(finish));

        let mut naa = Naa::new();
        naa.state = State::AnnouncementSending;
        assert_eq!(naa.on(started(0x83)).ok(), Some(NaaStep::Wait));
        let start = Start {
            function: 3,
            user: 0,
        };
        assert_eq!(naa.on(Completion::Sent).ok(), Some(NaaStep::Run(start)));
        naa.begin(1);
        assert_eq!(naa.on(started(0x84)).ok(), Some(NaaStep::Wait));
        let start = Start {
            function: 4,
            user: 0,
        };
        assert_eq!(naa.on(Completion::Written).ok(), Some(NaaStep::Run(start)));
    }

    #[test]
    fn a_hosts_error_ends_no_function() {
        let mut naa = Naa::new();
        naa.state = State::DataReceiving;
        assert_eq!(naa.on(started(0)).ok(), Some(NaaStep::HostFailed));
    }

    /// Each completion in each state is either a step of the protocol or an error that names both.
    #[test]
    fn what_the_protocol_does_not_have_is_an_error() {
        let completions = [
            Completion::Sent,
            Completion::Received { bytes: 4 },
            Completion::Written,
            started(0x81),
        ];
        let states = (0..=40).filter_map(State::from_number);
        let (mut host_steps, mut naa_steps) = (0, 0);
        for state in states {
            for completion in completions {
                let mut host = Host {
                    state,
                    ..Host::new()
                };
                let mut naa = Naa {
                    state,
                    ..Naa::new()
                };
                match host.on(completion) {
                    Ok(_) => host_steps += 1,
                    Err(error) => assert!(error.to_string().ends_with(state.name()), "{error}"),
                }
                match naa.on(completion) {
                    Ok(_) => naa_steps += 1,
                    Err(error) => assert!(error.to_string().ends_with(state.name()), "{error}"),
                }
            }
        }
        // Without outstanding writes: two while sending, one while receiving the announcement, the answer in two states.
        assert_eq!(host_steps, 5);
        assert_eq!(naa_steps, 5);
    }

    /// A side that sleeps until the peer's next write must not do so when that write has arrived before the own ones
    /// completed.
    #[test]
    fn a_side_waits_for_its_own_writes_only_after_the_peers() {
        let mut host = Host::new();
        host.begin(1);
        assert!(host.awaits_peer());
        assert!(host.on(started(0)).is_ok());
        assert!(!host.awaits_peer());
        let mut naa = Naa::new();
        naa.begin(1);
        assert!(naa.awaits_peer());
        assert!(naa.on(started(0x81)).is_ok());
        assert!(!naa.awaits_peer());
    }

    #[test]
    fn two_answers_to_one_call_are_an_error() {
        let mut host = Host::new();
        host.begin(1);
        assert!(host.on(started(0)).is_ok());
        assert!(host.on(started(0)).is_err());
    }
}
