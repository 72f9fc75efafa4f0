//! What a search has found.

use crate::step::{Step, to_text};
use crate::world::{Setting, Violation};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Shortest sequences kept for each kind of violation.
const KEPT: usize = 200;

/// A sequence that broke a promise.
#[derive(Debug, Clone)]
pub struct Finding {
    /// What it started with.
    pub setting: Setting,
    /// The steps, the last of which broke it.
    pub steps: Vec<Step>,
    /// The details.
    pub detail: String,
    /// The seed, if it was random.
    pub seed: Option<u64>,
}

/// Counts and findings. Several threads add to it.
#[derive(Debug, Default)]
pub struct Report {
    sequences: AtomicU64,
    violations: AtomicU64,
    kinds: Mutex<BTreeMap<&'static str, Vec<Finding>>>,
}

impl Report {
    pub(crate) fn sequence(&self) {
        self.sequences.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn violation(
        &self,
        setting: Setting,
        steps: &[Step],
        violation: &Violation,
        seed: Option<u64>,
    ) {
        self.violations.fetch_add(1, Ordering::Relaxed);
        let mut kinds = self.kinds.lock().unwrap_or_else(PoisonError::into_inner);
        let findings = kinds.entry(violation.kind).or_default();
        let at = findings.partition_point(|finding| finding.steps.len() <= steps.len());
        if at < KEPT {
            let finding = Finding {
                setting,
                steps: steps.to_vec(),
                detail: violation.detail.clone(),
                seed,
            };
            findings.insert(at, finding);
            findings.truncate(KEPT);
        }
    }

    /// Sequences that were carried out.
    #[must_use]
    pub fn sequences(&self) -> u64 {
        self.sequences.load(Ordering::Relaxed)
    }

    /// Sequences that broke a promise.
    #[must_use]
    pub fn violations(&self) -> u64 {
        self.violations.load(Ordering::Relaxed)
    }

    /// The shortest findings of each kind.
    #[must_use]
    pub fn findings(&self) -> Vec<(&'static str, Finding)> {
        let kinds = self.kinds.lock().unwrap_or_else(PoisonError::into_inner);
        let all = kinds.iter();
        all.flat_map(|(kind, findings)| findings.iter().map(|finding| (*kind, finding.clone())))
            .collect()
    }
}

impl Finding {
    /// As one line: setting, steps, detail.
    #[must_use]
    pub fn to_line(&self) -> String {
        let Setting {
            blocks,
            block_len,
            layout,
            elsewhere,
            ..
        } = self.setting;
        let place = if elsewhere { "elsewhere" } else { "files" };
        let seed = self
            .seed
            .map_or(String::new(), |seed| format!(" (seed {seed})"));
        format!(
            "{layout}, {blocks} blocks of {block_len} bytes, {place}: {}{seed}: {}",
            to_text(&self.steps),
            self.detail
        )
    }
}
