//! Which forms of binds are proved on a device, and which failed.

use std::ffi::CStr;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mlx5dv_sys::{Mlx5Lib, ibv_context, ibv_device_attr};

use super::form::Form;
use super::proof::{self, Bench, NoProof, ProofStep};
use super::queues::Queues;
use super::record;
use crate::device::UmrOp;
use crate::error::{ChainError, DeviceError, Rest};
use crate::key::Mkey;
use crate::sync::{AtomicU32, Mutex, Ordering, lock};

/// Whether a form of binds is proved before it is used first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Prove {
    /// Once in each process for each device.
    #[default]
    Yes,
    /// Not at all.
    No,
    /// Once for each model and firmware of adapter, which a file below the user's cache directory
    /// (`$XDG_CACHE_HOME/xgvmi`, else `$HOME/.cache/xgvmi`) remembers. Where that directory cannot be
    /// trusted, by each process.
    Once,
}

/// What came of the proof of a form.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// The form works.
    Proved,
    /// The form worked before: on another context of this process, or with [`Prove::Once`] in
    /// another process, on an adapter of this model and firmware.
    Remembered,
    /// The form does not work here, and is not used.
    Failed(FormFailure),
}

/// A form that does not work.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FormFailure {
    /// The form.
    pub form: Form,
    /// What showed it; `None` if the proof could not be carried out at all.
    pub step: Option<ProofStep>,
    /// Syndrome of the completion, zero if there was none.
    pub syndrome: u8,
    /// What stood in the way of the proof.
    pub cause: Option<DeviceError>,
    /// Name of the device.
    pub device: String,
    /// Its firmware.
    pub firmware: String,
}

impl std::fmt::Display for FormFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            form,
            syndrome,
            device,
            firmware,
            ..
        } = self;
        write!(
            f,
            "{device}, firmware {firmware}: binds of the {form} form are not used: "
        )?;
        match (self.step, &self.cause) {
            (Some(step), _) => write!(f, "{step} (syndrome {syndrome:#x})"),
            (None, Some(cause)) => write!(f, "they cannot be proved: {cause}"),
            (None, None) => f.write_str("they cannot be proved"),
        }
    }
}

/// A proof that was carried out, or remembered.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Proof {
    /// The form.
    pub form: Form,
    /// What came of it.
    pub outcome: Outcome,
    /// How long it took, all attempts together.
    pub took: Duration,
}

/// How a device is told of a form that does not work.
pub type OnFailure = fn(&FormFailure);

/// Proofs in which something else came in between, before the form counts as one that does not work.
/// An error completion may be another request's doing, and a queue pair may not be had for a moment.
const ATTEMPTS_MAX: u32 = 3;

/// What came of the proofs of this process, by the name of the device: a second context of a device
/// proves nothing again, and uses no form that failed on the first.
static KNOWN: Mutex<Vec<(String, Form, Outcome)>> = Mutex::new(Vec::new());

/// What is known of a form. In a forked child the lock may be a thread's that is not there, so nobody
/// waits for it.
fn known(device: &str, form: Form) -> Option<Outcome> {
    let known = KNOWN.try_lock().ok()?;
    let found = known
        .iter()
        .find(|entry| entry.0 == device && entry.1 == form);
    found.map(|entry| entry.2.clone())
}

/// Two entries for each device of the machine, at most.
fn note(device: String, form: Form, outcome: Outcome) {
    if let Ok(mut known) = KNOWN.try_lock()
        && !known
            .iter()
            .any(|entry| entry.0 == device && entry.1 == form)
    {
        known.push((device, form, outcome));
    }
}

/// The forms of one device.
#[derive(Debug)]
pub(super) struct Proofs {
    mode: Prove,
    on_failure: Option<OnFailure>,
    /// Bits of the forms that may be used.
    usable: AtomicU32,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    done: Vec<Proof>,
    /// Attempts for each form so far, and the time that they took.
    attempts: [(u32, Duration); Form::ALL.len()],
}

impl Proofs {
    pub(super) fn new(mode: Prove, on_failure: Option<OnFailure>) -> Self {
        let all = Form::ALL.iter().fold(0, |bits, form| bits | form.bit());
        Self {
            mode,
            on_failure,
            usable: AtomicU32::new(match mode {
                Prove::No => all,
                Prove::Yes | Prove::Once => 0,
            }),
            state: Mutex::default(),
        }
    }

    /// What was proved so far.
    pub(super) fn done(&self) -> Vec<Proof> {
        lock(&self.state).done.clone()
    }

    /// True if the form may be used.
    pub(super) fn is_usable(&self, form: Form) -> bool {
        self.usable.load(Ordering::Acquire) & form.bit() != 0
    }

    /// The first bind of the chain whose form is not known to work.
    #[inline]
    pub(super) fn missing(&self, chain: &[UmrOp<'_>]) -> Option<(Form, Mkey)> {
        let usable = self.usable.load(Ordering::Acquire);
        chain.iter().find_map(|op| match op {
            UmrOp::Bind { mkey, span } => {
                let form = Form::of(span);
                (usable & form.bit() == 0).then_some((form, *mkey))
            }
            UmrOp::Invalidate { .. } => None,
        })
    }

    /// Proves a form with a key that is free, unless that was done meanwhile.
    ///
    /// # Errors
    /// If the form does not work, or that could not be found out. Then the key may be in any state if
    /// [`Rest::Unknown`] says so.
    #[cold]
    pub(super) fn prove(
        &self,
        queues: &Queues,
        (form, key): (Form, Mkey),
    ) -> Result<(), ChainError> {
        // Held over the proof, which is bounded: whoever comes second shall not bind before it.
        let mut state = lock(&self.state);
        if self.usable.load(Ordering::Relaxed) & form.bit() != 0 {
            return Ok(());
        }
        let recipe = queues.recipe();
        let identity = Identity::lazy(&recipe.lib, recipe.context);
        match known(&identity.name(), form) {
            Some(Outcome::Failed(failure)) => {
                let error = not_used(&failure, Rest::NotDone);
                state.finish(form, Outcome::Failed(failure));
                return Err(error);
            }
            Some(_) => {
                state.finish(form, Outcome::Remembered);
                self.usable.fetch_or(form.bit(), Ordering::Release);
                return Ok(());
            }
            None => {}
        }
        if self.mode == Prove::Once && record::is_there(&identity, form) {
            state.finish(form, Outcome::Remembered);
            note(identity.name(), form, Outcome::Remembered);
            self.usable.fetch_or(form.bit(), Ordering::Release);
            return Ok(());
        }
        let start = Instant::now();
        let proved = attempt(queues, form, key);
        let (attempts, took) = &mut state.attempts[form.place()];
        *attempts += 1;
        *took += start.elapsed();
        let may_try_again = *attempts < ATTEMPTS_MAX;
        let failure = |step, syndrome, cause| FormFailure {
            form,
            step,
            syndrome,
            cause,
            device: identity.name(),
            firmware: identity.firmware(),
        };
        let failure = match proved {
            Ok(()) => {
                state.finish(form, Outcome::Proved);
                note(identity.name(), form, Outcome::Proved);
                if self.mode == Prove::Once {
                    record::keep(&identity, form);
                }
                self.usable.fetch_or(form.bit(), Ordering::Release);
                return Ok(());
            }
            Err(NoProof::Failed { step, syndrome }) => failure(Some(step), syndrome, None),
            Err(NoProof::Inconclusive(source)) if may_try_again => {
                let rest = Rest::Unknown;
                return Err(ChainError {
                    done: 0,
                    rest,
                    source,
                });
            }
            Err(NoProof::Inconclusive(source)) => failure(None, 0, Some(source)),
        };
        let error = not_used(&failure, Rest::Unknown);
        if let Some(tell) = self.on_failure {
            tell(&failure);
        }
        let outcome = Outcome::Failed(failure);
        state.finish(form, outcome.clone());
        note(identity.name(), form, outcome);
        Err(error)
    }
}

impl State {
    fn finish(&mut self, form: Form, outcome: Outcome) {
        if self.done.iter().any(|proof| proof.form == form) {
            return;
        }
        let (_, took) = self.attempts[form.place()];
        self.done.push(Proof {
            form,
            outcome,
            took,
        });
    }
}

fn not_used(failure: &FormFailure, rest: Rest) -> ChainError {
    ChainError {
        done: 0,
        rest,
        source: DeviceError::Unsupported {
            what: failure.to_string(),
        },
    }
}

fn attempt(queues: &Queues, form: Form, key: Mkey) -> Result<(), NoProof> {
    let queue = queues.get()?;
    let bench = Bench {
        recipe: queues.recipe(),
        queue: &queue,
    };
    proof::prove(bench, form, key)
}

/// Which adapter it is, asked for when it is needed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Identity<'d> {
    lib: &'d Arc<Mlx5Lib>,
    context: NonNull<ibv_context>,
}

impl<'d> Identity<'d> {
    /// The adapter of a context that is live as long as the library is borrowed.
    pub(super) fn lazy(lib: &'d Arc<Mlx5Lib>, context: NonNull<ibv_context>) -> Self {
        Self { lib, context }
    }

    /// Name of the device, such as `mlx5_0`.
    pub(super) fn name(&self) -> String {
        // SAFETY: a live context names its device, which is there as long as the context.
        let name = unsafe {
            self.lib
                .ibv_get_device_name((*self.context.as_ptr()).device)
        };
        if name.is_null() {
            return "?".to_owned();
        }
        // SAFETY: a device's name is a string.
        let name = unsafe { CStr::from_ptr(name) };
        name.to_string_lossy().into_owned()
    }

    /// Version of the firmware; "?" if the device does not tell.
    pub(super) fn firmware(&self) -> String {
        self.attributes()
            .map_or_else(|| "?".to_owned(), |attr| firmware(&attr))
    }

    /// Model, revision and firmware in a form that a file name takes.
    pub(super) fn model(&self) -> Option<String> {
        let attr = self.attributes()?;
        let keep = |c: char| match c.is_ascii_alphanumeric() || c == '.' {
            true => c,
            false => '_',
        };
        let firmware: String = firmware(&attr).chars().map(keep).collect();
        let (part, revision) = (attr.vendor_part_id, attr.hw_ver);
        Some(format!("{part:x}-{revision:x}-{firmware}"))
    }

    fn attributes(&self) -> Option<ibv_device_attr> {
        let mut attr = ibv_device_attr::default();
        // SAFETY: the context is live, and the attributes are of the type asked for.
        let failed = unsafe {
            self.lib
                .ibv_query_device(self.context.as_ptr(), &raw mut attr)
        };
        (failed == 0).then_some(attr)
    }
}

fn firmware(attr: &ibv_device_attr) -> String {
    let bytes = attr.fw_ver.map(c_char_byte);
    let end = bytes.iter().position(|&byte| byte == 0);
    let bytes = &bytes[..end.unwrap_or(bytes.len())];
    String::from_utf8_lossy(bytes).into_owned()
}

/// The bits of a C character, which is signed on some processors.
fn c_char_byte(c: std::ffi::c_char) -> u8 {
    let [byte] = c.to_ne_bytes();
    byte
}
