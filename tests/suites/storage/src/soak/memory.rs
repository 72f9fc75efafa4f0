//! Memory of processes over their lives: after a warm-up it stays.

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;

/// Samples of a life that count as warm-up, and those that its begin and its end have after it.
const WARM: usize = 6;
const SPAN: usize = 6;
/// Samples of a life that is judged.
const JUDGED: usize = WARM + 3 * SPAN;
/// What a process may have more at its end than after its warm-up: allocators keep what a burst has needed.
const MORE_KIB: u64 = 4096;
const MORE_SHARE: u64 = 8;

/// What the lives of one kind of process have shown, in KiB.
#[derive(Debug, Default)]
struct Kind {
    process: u32,
    samples: Vec<u64>,
    lives: u64,
    longest: usize,
    first: u64,
    last: u64,
    most: u64,
    growth: u64,
}

#[derive(Debug, Default)]
pub(super) struct Memory {
    kinds: BTreeMap<String, Kind>,
}

impl Kind {
    /// The most of the samples after the warm-up, and the most of the last ones.
    fn ends(&self) -> Option<(u64, u64)> {
        let most = |samples: &[u64]| samples.iter().copied().max().unwrap_or_default();
        let length = self.samples.len();
        (length >= JUDGED).then(|| {
            let first = most(&self.samples[WARM..WARM + SPAN]);
            (first, most(&self.samples[length - SPAN..]))
        })
    }

    /// The life has ended, or the report is due.
    fn judge(&mut self) {
        if let Some((first, last)) = self.ends() {
            self.lives += 1;
            if self.first == 0 {
                self.first = first;
            }
            self.last = last;
            self.growth = self.growth.max(last.saturating_sub(first));
            self.longest = self.longest.max(self.samples.len());
        }
        self.samples.clear();
    }

    fn is_flat(&self) -> bool {
        let may = MORE_KIB + self.first / MORE_SHARE;
        self.growth <= may && self.last <= self.first + may
    }
}

impl Memory {
    /// Takes a sample of a process.
    pub(super) fn sample(&mut self, kind: &str, process: u32) -> Result<()> {
        let path = format!("/proc/{process}/status");
        let text = fs::read_to_string(&path).with_context(|| path.clone())?;
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let size = line.and_then(|line| line.split_whitespace().next());
        let size: u64 = size.context("no VmRSS")?.parse()?;
        let kind = self.kinds.entry(kind.to_owned()).or_default();
        if kind.process != process {
            kind.judge();
            kind.process = process;
        }
        kind.samples.push(size);
        kind.most = kind.most.max(size);
        Ok(())
    }

    /// All lives have ended.
    pub(super) fn end(&mut self) {
        self.kinds.values_mut().for_each(Kind::judge);
    }

    pub(super) fn is_flat(&self) -> bool {
        self.kinds.values().all(Kind::is_flat)
    }

    /// Kinds of processes of which no life was long enough.
    pub(super) fn unjudged(&self) -> Vec<&str> {
        let short = self.kinds.iter().filter(|(_, kind)| kind.lives == 0);
        short.map(|(name, _)| name.as_str()).collect()
    }

    pub(super) fn report(&self) -> Value {
        let kinds = self.kinds.iter().map(|(name, kind)| {
            json!({
                "process": name,
                "judged_lives": kind.lives,
                "longest_life_samples": kind.longest,
                "first_kib": kind.first,
                "last_kib": kind.last,
                "most_kib": kind.most,
                "most_growth_kib": kind.growth,
            })
        });
        kinds.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{JUDGED, Kind, MORE_KIB};

    #[test]
    fn growth_in_a_life_and_from_life_to_life_is_noticed() {
        let life = |kind: &mut Kind, from: u64, step: u64| {
            let samples = 0..u64::try_from(JUDGED).unwrap();
            kind.samples = samples.map(|at| from + at * step).collect();
            kind.judge();
        };
        let mut kind = Kind::default();
        life(&mut kind, 10_000, 1);
        assert!(kind.is_flat());
        life(&mut kind, 10_000, 1000);
        assert!(!kind.is_flat(), "grows by {}", kind.growth);
        let mut kind = Kind::default();
        life(&mut kind, 10_000, 0);
        life(&mut kind, 12_000 + MORE_KIB, 0);
        assert!(!kind.is_flat(), "begins higher");
        kind.samples = vec![1 << 40; JUDGED - 1];
        let lives = kind.lives;
        kind.judge();
        assert_eq!(kind.lives, lives, "too short");
    }
}
