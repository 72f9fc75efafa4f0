//! Sessions with an accelerator: the typed, safe interface.

use crate::abi::code;
use crate::dpu;
use crate::endpoint::{CONNECT_LIMIT, Endpoint};
use crate::error::{NaaError, Result};
use crate::host::Target;
use crate::machine::State;
use crate::plan::{self, Param, Region};
use crate::spec::{self, Claim, Entry, Scheme};
use std::time::{Duration, Instant};

/// Environment variable: address of the local device for outgoing connections.
pub const LOCAL_IP: &str = "NAA_LOCAL_IP";

/// First and longest pause before another connection request to an accelerator that has too many.
const PAUSE_MIN: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// The end of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// Return code of the accelerator: 0, or a code of [`code`], or the kernel's own, 0x10 to 0x7f.
    pub code: u8,
    /// Bytes of the last output.
    pub bytes_received: u32,
}

impl Outcome {
    /// Whether the function has succeeded.
    #[must_use]
    pub const fn is_success(&self) -> bool {
        self.code == code::SUCCESS
    }
}

/// Describes a session before it is created: function and regions, in the order in which the kernel sees them.
#[derive(Debug)]
pub struct SessionBuilder {
    function: u32,
    inputs: Vec<(Box<[u8]>, Use)>,
    outputs: Vec<Box<[u8]>>,
    limit: Option<Duration>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    Input,
    Once,
    Both,
}

impl SessionBuilder {
    /// A region that each call sends.
    #[must_use]
    pub fn input(self, bytes: impl Into<Box<[u8]>>) -> Self {
        self.with(bytes.into(), Use::Input)
    }

    /// A region that the first call sends.
    #[must_use]
    pub fn input_once(self, bytes: impl Into<Box<[u8]>>) -> Self {
        self.with(bytes.into(), Use::Once)
    }

    /// A region that each call sends and receives.
    #[must_use]
    pub fn input_output(self, bytes: impl Into<Box<[u8]>>) -> Self {
        self.with(bytes.into(), Use::Both)
    }

    fn with(mut self, bytes: Box<[u8]>, of: Use) -> Self {
        self.inputs.push((bytes, of));
        self
    }

    /// A region that each call receives. Outputs follow all inputs.
    #[must_use]
    pub fn output(mut self, bytes: impl Into<Box<[u8]>>) -> Self {
        self.outputs.push(bytes.into());
        self
    }

    /// Time limit of each call. The default is an hour.
    #[must_use]
    pub fn call_limit(mut self, limit: Duration) -> Self {
        self.limit = Some(limit);
        self
    }

    /// Creates the session with an accelerator of `NAA_SPEC`.
    ///
    /// # Errors
    /// For invalid regions or a malformed `NAA_SPEC`, if no accelerator of it is free, if it cannot be reached within
    /// 10 s, refuses, or does not announce its regions within 30 s.
    pub fn create(self) -> Result<Session> {
        let entries = spec::from_env()?;
        self.create_from(&entries)
    }

    /// As [`SessionBuilder::create`], with these accelerators.
    ///
    /// # Errors
    /// As for [`SessionBuilder::create`].
    pub fn create_from(self, entries: &[Entry]) -> Result<Session> {
        let param = |bytes: &[u8], of: Use| Param {
            addr: bytes.as_ptr() as u64,
            size: bytes.len() as u64,
            single_send: of == Use::Once,
        };
        let inputs: Vec<Param> = self
            .inputs
            .iter()
            .map(|(bytes, of)| param(bytes, *of))
            .collect();
        let both = self.inputs.iter().filter(|(_, of)| *of == Use::Both);
        let outputs: Vec<Param> = both
            .map(|(bytes, of)| param(bytes, *of))
            .chain(self.outputs.iter().map(|bytes| param(bytes, Use::Input)))
            .collect();
        // SAFETY: the session owns the regions and frees them after the endpoint. It gives no reference to them while
        // a call runs.
        let mut endpoint = unsafe { create(self.function, &inputs, &outputs, entries) }?;
        if let Some(limit) = self.limit {
            endpoint.public.timeout = limit.as_secs_f64();
        }
        let buffers = self
            .inputs
            .into_iter()
            .map(|(bytes, _)| bytes)
            .chain(self.outputs);
        Ok(Session {
            endpoint,
            buffers: buffers.collect(),
        })
    }
}

/// A session with an accelerator: a connection, and regions that both sides know. One call at a time.
#[derive(Debug)]
pub struct Session {
    /// Ends before the buffers.
    endpoint: Box<Endpoint>,
    buffers: Vec<Box<[u8]>>,
}

// SAFETY: the endpoint's pointers refer to what the session owns.
unsafe impl Send for Session {}

impl Session {
    /// Describes a session for a function code, 1 to 127.
    #[must_use]
    pub fn builder(function: u32) -> SessionBuilder {
        SessionBuilder {
            function,
            inputs: Vec::new(),
            outputs: Vec::new(),
            limit: None,
        }
    }

    /// Starts a call. Returns before the inputs are sent.
    ///
    /// # Errors
    /// If a call runs, or the session has failed.
    pub fn invoke(&mut self) -> Result<()> {
        invoke(&mut self.endpoint)
    }

    /// The end of the call, if it has ended. Never waits.
    ///
    /// # Errors
    /// If no call was started, or the session has failed.
    pub fn test(&mut self) -> Result<Option<Outcome>> {
        test(&mut self.endpoint)
    }

    /// Waits for the end of the call.
    ///
    /// # Errors
    /// As for [`Session::test`], and if the call exceeds its limit. A peer that has died is an error within seconds.
    pub fn wait(&mut self) -> Result<Outcome> {
        wait(&mut self.endpoint)
    }

    /// Whether a call runs.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        matches!(
            self.endpoint.state(),
            State::DataSending | State::Calculating | State::DataReceiving
        )
    }

    /// Whether the accelerator may write the regions: while a call runs, and after an error until the session ends.
    fn is_exposed(&self) -> bool {
        self.is_busy() || self.endpoint.state() == State::Error
    }

    /// The bytes of a region: inputs in their order, then outputs. `None` while a call runs,
    /// after an error, or for an unknown region. After an error [`Session::finalize`] returns them.
    #[must_use]
    pub fn region(&self, index: usize) -> Option<&[u8]> {
        let bytes = self.buffers.get(index).filter(|_| !self.is_exposed())?;
        // The accelerator may have written them: the compiler must not assume earlier contents.
        Some(std::hint::black_box(bytes))
    }

    /// As [`Session::region`], to change it before the next call.
    #[must_use]
    pub fn region_mut(&mut self, index: usize) -> Option<&mut [u8]> {
        if self.is_exposed() {
            return None;
        }
        self.buffers
            .get_mut(index)
            .map(|bytes| &mut **std::hint::black_box(bytes))
    }

    /// Ends the session and returns the regions.
    #[must_use]
    pub fn finalize(mut self) -> Vec<Box<[u8]>> {
        self.endpoint.close();
        std::mem::take(&mut self.buffers)
    }
}

/// Creates a session: claims an accelerator, connects, registers and announces the regions.
///
/// # Safety
/// The regions stay mapped until the endpoint is closed, and nobody holds a reference to them while a call runs.
pub(crate) unsafe fn create(
    function: u32,
    inputs: &[Param],
    outputs: &[Param],
    entries: &[Entry],
) -> Result<Box<Endpoint>> {
    let function = plan::check_function(function)?;
    let regions = plan::regions(inputs, outputs)?;
    let claim = Claim::take(entries, function, inputs.len())?;
    match claim.entry().scheme {
        // SAFETY: the caller's promise.
        Scheme::Verbs => unsafe { create_verbs(function, &regions, claim) },
        // SAFETY: the caller's promise.
        Scheme::Dpu => unsafe { dpu::create(function, &regions, claim) },
    }
}

/// # Safety
/// As for [`create`].
unsafe fn create_verbs(function: u8, regions: &[Region], claim: Claim) -> Result<Box<Endpoint>> {
    let local = std::env::var(LOCAL_IP)
        .ok()
        .filter(|local| !local.is_empty());
    let entry = claim.entry().clone();
    let target = Target {
        remote: &entry.address,
        port: entry.port,
        local: local.as_deref(),
    };
    let ranges: Vec<(u64, u64)> = regions
        .iter()
        .map(|region| (region.addr, u64::from(region.size)))
        .collect();
    let mut endpoint = connected(target, function, &ranges)?;
    endpoint.claim = Some(claim);
    for (index, region) in regions.iter().enumerate() {
        endpoint.regions[index].to_write = region.input;
        endpoint.regions[index].single_send = region.single_send;
        endpoint.peers[index].to_write = region.output;
    }
    let count = |of: fn(&Region) -> bool| {
        u8::try_from(regions.iter().filter(|region| of(region)).count()).expect("at most 32")
    };
    endpoint.public.no_input_mrs = count(|region| region.input);
    endpoint.public.no_output_mrs = count(|region| region.output);
    // SAFETY: the caller's promise.
    unsafe { endpoint.register_regions() }?;
    endpoint.announce()?;
    while endpoint.state() < State::Announced {
        let state = endpoint.state();
        endpoint.wait_past(state)?;
    }
    endpoint.check_alive()?;
    Ok(endpoint)
}

/// Connects. An accelerator to which many hosts connect at once may have no place for another request, but soon has one.
fn connected(target: Target<'_>, function: u8, ranges: &[(u64, u64)]) -> Result<Box<Endpoint>> {
    let began = Instant::now();
    let mut pause = PAUSE_MIN;
    loop {
        let mut endpoint = Endpoint::open_host(target, function, ranges, &[], 0)?;
        match endpoint.connect() {
            Ok(()) => return Ok(endpoint),
            Err(NaaError::Crowded { .. }) if began.elapsed() + pause < CONNECT_LIMIT => {
                drop(endpoint);
                std::thread::sleep(pause);
                pause = (2 * pause).min(PAUSE_MAX);
            }
            Err(error) => return Err(error),
        }
    }
}

/// See [`Session::invoke`].
pub(crate) fn invoke(endpoint: &mut Endpoint) -> Result<()> {
    match endpoint.remote {
        Some(_) => endpoint.begin_remote(),
        None => endpoint.begin_call(),
    }
}

/// See [`Session::test`].
pub(crate) fn test(endpoint: &mut Endpoint) -> Result<Option<Outcome>> {
    check_called(endpoint, "naa_test")?;
    if endpoint.state() < State::Finished {
        match endpoint.remote {
            Some(_) => endpoint.progress_remote(Duration::ZERO)?,
            None => endpoint.progress()?,
        }
    }
    endpoint.check_alive()?;
    Ok((endpoint.state() == State::Finished).then(|| outcome(endpoint)))
}

/// See [`Session::wait`].
pub(crate) fn wait(endpoint: &mut Endpoint) -> Result<Outcome> {
    check_called(endpoint, "naa_wait")?;
    while endpoint.state() < State::Finished {
        let state = endpoint.state();
        match endpoint.remote {
            Some(_) => endpoint.progress_remote(endpoint.call_limit())?,
            None => endpoint.wait_past(state)?,
        }
    }
    endpoint.check_alive()?;
    Ok(outcome(endpoint))
}

fn check_called(endpoint: &Endpoint, call: &'static str) -> Result<()> {
    endpoint.check_alive()?;
    match endpoint.state() {
        State::DataSending | State::DataReceiving | State::Calculating | State::Finished => Ok(()),
        state => Err(NaaError::State {
            call,
            state: state.name(),
            rule: "start a call first (naa_invoke)",
        }),
    }
}

fn outcome(endpoint: &Endpoint) -> Outcome {
    Outcome {
        code: endpoint.public.naa_returncode,
        bytes_received: endpoint.public.bytes_received,
    }
}

impl Endpoint {
    /// Starts a call of a session with a remote service.
    fn begin_remote(&mut self) -> Result<()> {
        self.check_alive()?;
        if !matches!(self.state(), State::Announced | State::Finished) {
            return Err(NaaError::State {
                call: "naa_invoke",
                state: self.state().name(),
                rule: "a call runs; wait until naa_test or naa_wait reports its end",
            });
        }
        let [_, a, b, c] = self.public.immediate;
        let Some(remote) = &mut self.remote else {
            return Ok(());
        };
        match remote.invoke(u32::from_le_bytes([0, a, b, c])) {
            Ok(()) => {
                self.public.no_rpc_calls = self.public.no_rpc_calls.wrapping_add(1);
                self.call_began = std::time::Instant::now();
                self.set_state(State::DataReceiving);
                Ok(())
            }
            Err(error) => Err(self.fail(error)),
        }
    }

    /// Waits for the answer of a remote service, at most for `limit`.
    fn progress_remote(&mut self, limit: Duration) -> Result<()> {
        let all = self.call_limit();
        let left = all.saturating_sub(self.call_began.elapsed());
        let Some(remote) = &mut self.remote else {
            return Ok(());
        };
        match remote.wait(limit.min(left)) {
            Ok(Some((code, bytes))) => {
                self.public.naa_returncode = code;
                self.answer = u32::from(code);
                self.public.bytes_received = bytes;
                self.set_state(State::Finished);
                Ok(())
            }
            Ok(None) if left.is_zero() => Err(self.fail(NaaError::Late {
                step: "the call",
                limit: all,
            })),
            Ok(None) => Ok(()),
            Err(error) => Err(self.fail(error)),
        }
    }
}
