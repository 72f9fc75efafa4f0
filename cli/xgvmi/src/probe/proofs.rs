//! Proves each form of bind on the device, as the library does before its first use, and reports the steps.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use xgvmi_pool::mlx5::steps::{Span, Steps};
use xgvmi_pool::mlx5::{Form, Function, Mlx5Device, Outcome, Proof as Proved, ProofStep};
use xgvmi_pool::{HostHooks, PoolPolicy, Region, VirtAddr};

use super::report::Proof;

/// Length of each of the two regions of a bind in list form.
const PART: usize = 4096;

/// Binds a key in each form. The first bind of a form runs its proof.
pub(super) fn run(function: &Function, device: &Arc<Mlx5Device>) -> Result<Vec<Proof>> {
    let mut bytes = vec![0; 2 * PART];
    let steps = Steps::new(function)?;
    let span = Span::of(&mut bytes);
    let start = span.addr();
    let memory = steps.register(span)?;
    let part = |at: usize| {
        let addr = VirtAddr::new(start.get() + at as u64);
        Region::new(addr, PART as u64, memory.lkey())
    };
    let regions = [part(0)?, part(PART)?];
    let hooks = HostHooks::open(Arc::clone(device), PoolPolicy::default())?;
    let mut proofs = Vec::new();
    for (form, regions) in [(Form::Stock, &regions[..1]), (Form::List, &regions[..])] {
        let refusal = match hooks.export(xgvmi_pool::Span::of(regions)?) {
            Ok(export) => {
                hooks.release(export).context("releasing a key")?;
                None
            }
            Err(error) => Some(error.to_string()),
        };
        // A form that fails its proof refuses the bind; the proof's own report contains the reason.
        let proved = device.proofs().into_iter().find(|proof| proof.form == form);
        proofs.push(match proved {
            Some(proof) => report(&proof),
            None => not_run(form, refusal),
        });
    }
    hooks.close();
    memory.end()?;
    Ok(proofs)
}

/// The report of a form whose proof did not run, such as without a queue pair or a key.
fn not_run(form: Form, refusal: Option<String>) -> Proof {
    Proof {
        form: form.to_string(),
        bound: false,
        read: false,
        beyond_refused: false,
        invalid_refused: false,
        us: 0.0,
        failure: Some(refusal.unwrap_or_else(|| "the proof did not run".to_owned())),
    }
}

fn report(proof: &Proved) -> Proof {
    let (passed, failure) = match &proof.outcome {
        Outcome::Failed(failure) => (failure.step.map_or(0, place), Some(failure.to_string())),
        _ => (place(ProofStep::Invalid) + 1, None),
    };
    let done = |step| place(step) < passed;
    Proof {
        form: proof.form.to_string(),
        bound: done(ProofStep::Bind),
        read: done(ProofStep::Read),
        beyond_refused: done(ProofStep::Beyond),
        invalid_refused: done(ProofStep::Invalid),
        us: proof.took.as_secs_f64() * 1e6,
        failure,
    }
}

/// Position of a step in its proof.
const fn place(step: ProofStep) -> usize {
    match step {
        ProofStep::Bind => 0,
        ProofStep::Read => 1,
        ProofStep::Beyond => 2,
        ProofStep::Invalidate => 3,
        // Steps of a later library version come last.
        _ => 4,
    }
}

/// Number of forms in a complete report.
pub(super) const FORMS: usize = Form::ALL.len();
