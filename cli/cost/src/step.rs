//! The rows of the table: approaches and their steps, with the names of the published table.

use std::str::FromStr;

/// A way to give a DPU access to a buffer of its host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Approach {
    /// A direct key over a DEVX umem.
    Umem,
    /// A KSM key over a registration.
    Indirection,
    /// A key created for the buffer and bound by a work request.
    Umr,
    /// A key of the pool.
    UmrPoolHit,
}

/// One step, executed by the host or the DPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names of the rows say it all")]
pub enum Step {
    UmemRegistration,
    MkeyCreation,
    MkeyExport,
    MkeyDestroy,
    UmemDeregistration,
    MemoryRegistration,
    MemoryDeregistration,
    UmrMkeyCreation,
    UmrMkeyRegistration,
    UmrMkeyExport,
    UmrMkeyInvalidation,
    UmrMkeyDestroy,
    AliasCreation,
    AliasDestroy,
}

impl Approach {
    /// All approaches, in the order of the published table.
    pub const ALL: [Self; 4] = [Self::Umem, Self::Indirection, Self::Umr, Self::UmrPoolHit];

    /// The first column.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Umem => "umem",
            Self::Indirection => "indirection",
            Self::Umr => "umr",
            Self::UmrPoolHit => "umr_pool_hit",
        }
    }

    /// Its steps in their order.
    #[must_use]
    pub const fn steps(self) -> &'static [Step] {
        match self {
            Self::Umem => &[
                Step::UmemRegistration,
                Step::MkeyCreation,
                Step::MkeyExport,
                Step::AliasCreation,
                Step::AliasDestroy,
                Step::MkeyDestroy,
                Step::UmemDeregistration,
            ],
            Self::Indirection => &[
                Step::MemoryRegistration,
                Step::MkeyCreation,
                Step::MkeyExport,
                Step::AliasCreation,
                Step::AliasDestroy,
                Step::MkeyDestroy,
                Step::MemoryDeregistration,
            ],
            Self::Umr => &[
                Step::MemoryRegistration,
                Step::UmrMkeyCreation,
                Step::UmrMkeyRegistration,
                Step::UmrMkeyExport,
                Step::AliasCreation,
                Step::AliasDestroy,
                Step::UmrMkeyInvalidation,
                Step::UmrMkeyDestroy,
                Step::MemoryDeregistration,
            ],
            Self::UmrPoolHit => &[
                Step::MemoryRegistration,
                Step::UmrMkeyRegistration,
                Step::UmrMkeyInvalidation,
                Step::MemoryDeregistration,
            ],
        }
    }
}

impl FromStr for Approach {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|known| known.name() == text);
        known.ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("no approach '{text}'; there are {names}")
        })
    }
}

impl Step {
    /// The second column.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::UmemRegistration => "host_umem_registration",
            Self::MkeyCreation => "host_mkey_creation",
            Self::MkeyExport => "host_mkey_export",
            Self::MkeyDestroy => "host_mkey_destroy",
            Self::UmemDeregistration => "host_umem_deregistration",
            Self::MemoryRegistration => "host_memory_registration",
            Self::MemoryDeregistration => "host_memory_deregistration",
            Self::UmrMkeyCreation => "host_umr_mkey_creation",
            Self::UmrMkeyRegistration => "host_umr_mkey_registration",
            Self::UmrMkeyExport => "host_umr_mkey_export",
            Self::UmrMkeyInvalidation => "host_umr_mkey_invalidation",
            Self::UmrMkeyDestroy => "host_umr_mkey_destroy",
            Self::AliasCreation => "dpu_mkey_registration",
            Self::AliasDestroy => "dpu_mkey_deregistration",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::slides;

    /// The measurement covers exactly the rows of the published table.
    #[test]
    fn the_rows_are_those_of_the_slides() {
        let mut ours: Vec<(&str, &str)> = Approach::ALL
            .into_iter()
            .flat_map(|a| a.steps().iter().map(move |step| (a.name(), step.name())))
            .collect();
        let table = slides();
        let mut theirs: Vec<(&str, &str)> =
            table.iter().map(|row| (row.approach, row.step)).collect();
        ours.sort_unstable();
        theirs.sort_unstable();
        assert_eq!(ours, theirs);
    }
}
