//! The key work of a call: which steps a rank and its service process take in each scheme.

use super::config::{AliasRelease, Config};
use super::costs::{Cost, CostTable};
use super::scheme::{Features, Scheme};

/// Buffers per rank and call: what it sends from and what it receives into.
const BUFFERS: usize = 2;

/// One step that a process waits for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Step {
    /// Duration in nanoseconds.
    pub(super) ns: f64,
    /// Whether firmware executes it.
    pub(super) command: bool,
}

/// All key work of one call.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct KeyWork {
    /// By the rank, before it contacts its SP.
    pub(super) export: Vec<Step>,
    /// By the SP, after the rank's message.
    pub(super) import: Vec<Step>,
    /// By the SP, before it tells the rank that the call is complete.
    pub(super) unimport_before: Vec<Step>,
    /// By the SP, after that message.
    pub(super) unimport_after: Vec<Step>,
    /// By the rank, at the end.
    pub(super) release: Vec<Step>,
}

impl KeyWork {
    /// Of the first call in a new job, or of any later one.
    pub(super) fn of(config: &Config, table: &CostTable, first: bool) -> Self {
        use Cost as C;
        let bytes = config.buffer_bytes();
        let assumptions = &config.assumptions;
        let scheme = match config.scheme {
            Scheme::Stock if bytes > assumptions.stock_bytes_max => Scheme::Ksm,
            Scheme::Xgvmi(_) if bytes > assumptions.xgvmi_bytes_max => Scheme::Ksm,
            scheme => scheme,
        };
        let both = |costs: &[Cost]| -> Vec<Step> {
            std::iter::repeat_n(costs, BUFFERS)
                .flatten()
                .map(|cost| Step {
                    ns: table.ns(*cost, bytes),
                    command: cost.is_command(),
                })
                .collect()
        };
        let once = |cost: Cost| Step {
            ns: table.ns(cost, bytes),
            command: cost.is_command(),
        };
        let umem = |step: Cost| -> Vec<Step> {
            if assumptions.indirection_registers_umem {
                both(&[step])
            } else {
                Vec::new()
            }
        };
        let mut work = match scheme {
            Scheme::Free => Self::new(Vec::new(), Vec::new(), Vec::new(), Vec::new()),
            Scheme::Umem => Self::new(
                both(&[C::UmemReg, C::CreateKsm, C::AllowKsm]),
                both(&[C::AliasKsm]),
                both(&[C::UnaliasKsm]),
                both(&[C::DestroyKsm, C::UmemDereg]),
            ),
            Scheme::Ksm => Self::new(
                [
                    umem(C::UmemReg),
                    both(&[C::RegMr, C::CreateKsm, C::AllowKsm]),
                ]
                .concat(),
                both(&[C::AliasKsm]),
                both(&[C::UnaliasKsm]),
                [both(&[C::DestroyKsm, C::DeregMr]), umem(C::UmemDereg)].concat(),
            ),
            Scheme::Umr => Self::new(
                both(&[C::RegMr, C::CreateUmr, C::Bind, C::AllowUmr]),
                both(&[C::AliasUmr]),
                both(&[C::UnaliasUmr]),
                both(&[C::Invalidate, C::DestroyUmr, C::DeregMr]),
            ),
            Scheme::Stock => Self::pooled(Features::NONE, first, both, once),
            Scheme::Xgvmi(features) => Self::pooled(features, first, both, once),
        };
        work.place_unimport(assumptions.alias_release, first);
        work
    }

    /// Time that a rank spends on its keys, in nanoseconds, if its commands never wait.
    pub(super) fn host_ns(&self) -> f64 {
        let steps = self.export.iter().chain(&self.release);
        steps.map(|step| step.ns).sum()
    }

    fn new(
        export: Vec<Step>,
        import: Vec<Step>,
        unimport_after: Vec<Step>,
        release: Vec<Step>,
    ) -> Self {
        Self {
            export,
            import,
            unimport_before: Vec::new(),
            unimport_after,
            release,
        }
    }

    fn pooled(
        features: Features,
        first: bool,
        both: impl Fn(&[Cost]) -> Vec<Step>,
        once: impl Fn(Cost) -> Step,
    ) -> Self {
        use Cost as C;
        let creates = first && !features.announce;
        let mut export = both(&[C::RegMr]);
        let mut import = Vec::new();
        if creates {
            export.extend(both(&[C::CreateUmr, C::AllowUmr]));
            import.extend(both(&[C::AliasUmr]));
        }
        let mut release = both(&[C::DeregMr]);
        if features.batch {
            export.push(once(C::Bind));
        } else {
            export.extend(both(&[C::Bind]));
        }
        if !features.chain {
            if features.batch {
                release.push(once(C::Invalidate));
            } else {
                release.extend(both(&[C::Invalidate]));
            }
        }
        Self::new(export, import, Vec::new(), release)
    }

    /// Places the alias destruction as assumed.
    fn place_unimport(&mut self, when: AliasRelease, first: bool) {
        let steps = std::mem::take(&mut self.unimport_after);
        match when {
            AliasRelease::AfterDone => self.unimport_after = steps,
            AliasRelease::BeforeDone => self.unimport_before = steps,
            AliasRelease::AtNextImport if first => {}
            AliasRelease::AtNextImport => self.import.splice(0..0, steps).for_each(drop),
            AliasRelease::Never => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(steps: &[Step]) -> f64 {
        steps.iter().map(|step| step.ns).sum()
    }

    /// Nanoseconds of one call's key work at 16 KiB buffers: two ranks with blocks of 8 KiB.
    fn totals(scheme: Scheme, first: bool) -> (f64, f64) {
        let mut config = Config::slides(8 << 10, scheme);
        (config.nodes, config.ppn) = (2, 1);
        let work = KeyWork::of(&config, &CostTable::slides().expect("table"), first);
        (
            sum(&work.export) + sum(&work.release),
            sum(&work.import) + sum(&work.unimport_before) + sum(&work.unimport_after),
        )
    }

    #[test]
    fn totals_are_twice_the_slides_columns() {
        let check = |scheme, host: f64, dpu: f64| {
            assert_eq!(totals(scheme, false), (2.0 * host, 2.0 * dpu), "{scheme}");
        };
        check(Scheme::Umem, 630_068.0, 325_693.0);
        check(Scheme::Ksm, 409_257.0, 325_693.0);
        check(Scheme::Umr, 527_198.0, 327_969.0);
        check(Scheme::Stock, 20_350.0, 0.0);
        check(Scheme::Xgvmi(Features::NONE), 20_350.0, 0.0);
        check(Scheme::Free, 0.0, 0.0);
    }

    #[test]
    fn features_take_away_what_they_say() {
        let all = Scheme::Xgvmi(Features::ALL);
        let plain = Scheme::Xgvmi(Features::NONE);
        // One bind in place of two; no invalidation is waited for.
        assert_eq!(
            totals(plain, false).0 - totals(all, false).0,
            1022.0 + 2.0 * 973.0
        );
        assert_eq!(totals(all, true), totals(all, false));
        let (host, dpu) = totals(plain, true);
        assert_eq!(host - totals(plain, false).0, 2.0 * (217_703.0 + 138_253.0));
        assert_eq!(dpu, 2.0 * 177_270.0);
    }

    #[test]
    fn a_buffer_too_long_for_the_pool_gets_a_key_of_its_own() {
        let table = CostTable::slides().expect("table");
        let falls_back = |nodes, scheme| {
            let mut config = Config::slides(1 << 20, scheme);
            config.nodes = nodes;
            let work = KeyWork::of(&config, &table, false);
            config.scheme = Scheme::Ksm;
            work == KeyWork::of(&config, &table, false)
        };
        let xgvmi = Scheme::Xgvmi(Features::ALL);
        // Buffers of 2, 2.03, 31.97 and 32 GiB.
        assert!(!falls_back(64, Scheme::Stock));
        assert!(falls_back(65, Scheme::Stock));
        assert!(!falls_back(1023, xgvmi));
        assert!(falls_back(1024, xgvmi));
    }
}
