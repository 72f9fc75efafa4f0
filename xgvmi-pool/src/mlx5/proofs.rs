//! The proofs of forms of binds on a device, with their outcomes.

use std::mem::ManuallyDrop;
use std::time::{Duration, Instant};

use super::form::Form;
use super::identity::Identity;
use super::proof::{self, Bench, Kit, NoProof, ProofStep};
use super::queues::Queues;
use super::record;
use crate::device::UmrOp;
use crate::error::{ChainError, DeviceError, Rest};
use crate::key::Mkey;
use crate::sync::{AtomicU32, Mutex, Ordering, lock};

/// Whether the device proves a form of binds before its first use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Prove {
    /// Once per process and device.
    #[default]
    Yes,
    /// Never.
    No,
    /// Once per model and firmware of an adapter. A file in the user's cache directory
    /// (`$XDG_CACHE_HOME/xgvmi`, else `$HOME/.cache/xgvmi`) records it. Without a trusted
    /// directory, once per process.
    Once,
}

/// Outcome of the proof of a form.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// The form works.
    Proved,
    /// An earlier proof succeeded: on another context of this process, or with [`Prove::Once`] in
    /// another process, on an adapter of the same model and firmware.
    Remembered,
    /// The form does not work here. The device does not use it.
    Failed(FormFailure),
}

/// A form that does not work.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FormFailure {
    /// The form.
    pub form: Form,
    /// The failed step; `None` if the proof could not run.
    pub step: Option<ProofStep>,
    /// Syndrome of the completion, zero if there was none.
    pub syndrome: u8,
    /// The error that prevented the proof.
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

/// A finished or recorded proof.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Proof {
    /// The form.
    pub form: Form,
    /// Its outcome.
    pub outcome: Outcome,
    /// Total time of all attempts.
    pub took: Duration,
}

/// A callback for forms that do not work.
pub type OnFailure = fn(&FormFailure);

/// Number of inconclusive proofs after which a form counts as not working. Another request may
/// cause an error completion, and the kernel may temporarily refuse a queue pair.
const ATTEMPTS_MAX: u32 = 3;

/// Outcomes of this process by device name. A second context of a device repeats no proof, and uses
/// no form that failed on the first.
static KNOWN: Mutex<Vec<(String, Form, Outcome)>> = Mutex::new(Vec::new());

/// The recorded outcome of a form. In a forked child, a thread that no longer exists may hold the
/// lock, so this does not wait for it.
fn known(device: &str, form: Form) -> Option<Outcome> {
    let known = KNOWN.try_lock().ok()?;
    let found = known
        .iter()
        .find(|entry| entry.0 == device && entry.1 == form);
    found.map(|entry| entry.2.clone())
}

/// Records an outcome: at most two entries per device of the machine.
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
    /// Apart from the bits, which every bind reads.
    state: Box<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    done: Vec<Proof>,
    /// Attempts and their total time, for each form.
    attempts: [(u32, Duration); Form::ALL.len()],
    /// Objects of the last proof. `close` ends them. In a forked child they belong to the parent,
    /// so the drop leaves them alone.
    kit: ManuallyDrop<Option<Kit>>,
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
            state: Box::default(),
        }
    }

    /// The proofs so far.
    pub(super) fn done(&self) -> Vec<Proof> {
        lock(&self.state).done.clone()
    }

    /// Ends the objects of the proofs. The device runs no proof afterwards.
    pub(super) fn close(&self) {
        if let Some(kit) = lock(&self.state).kit.take() {
            kit.end();
        }
    }

    /// True if the form may be used.
    #[inline]
    pub(super) fn is_usable(&self, form: Form) -> bool {
        self.usable.load(Ordering::Acquire) & form.bit() != 0
    }

    /// The first bind of the chain whose form is not proved.
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

    /// Proves a form with a free key, unless another thread proved it meanwhile.
    ///
    /// # Errors
    /// If the form does not work, or the proof was inconclusive. The key may then be in any state
    /// if the error contains [`Rest::Unknown`].
    #[cold]
    pub(super) fn prove(
        &self,
        queues: &Queues,
        (form, key): (Form, Mkey),
    ) -> Result<(), ChainError> {
        // Held during the proof, which has a time limit: a second thread must not bind before its
        // end.
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
        let proved = attempt(queues, &mut state.kit, form, key);
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
            Err(NoProof::Inconclusive(source))
                if may_try_again && !matches!(source, DeviceError::Unsupported { .. }) =>
            {
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

fn attempt(queues: &Queues, kit: &mut Option<Kit>, form: Form, key: Mkey) -> Result<(), NoProof> {
    let queue = queues.get()?;
    let bench = Bench {
        recipe: queues.recipe(),
        queue: &queue,
    };
    proof::prove(bench, kit, form, key)
}
