//! The cost table: duration of each step in the life of a key, by memory size.

use bench_report::SLIDES;
use std::collections::BTreeMap;
use thiserror::Error;

/// Maximum size of a table file. The published one has 2 KiB.
pub(super) const FILE_BYTES_MAX: usize = 64 << 10;

/// Maximum duration of a step in nanoseconds. A minute indicates a wrong unit.
const STEP_NS_MAX: f64 = 60e9;

/// A row of the table: an approach and one of its steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cost {
    /// Host: `ibv_reg_mr`.
    RegMr,
    /// Host: `ibv_dereg_mr`.
    DeregMr,
    /// Host: registration of a DEVX umem.
    UmemReg,
    /// Host: deregistration of a DEVX umem.
    UmemDereg,
    /// Host: CREATE_MKEY of a KSM or umem key.
    CreateKsm,
    /// Host: its ALLOW_OTHER_VHCA_ACCESS.
    AllowKsm,
    /// Host: its DESTROY_MKEY.
    DestroyKsm,
    /// Host: CREATE_MKEY of a UMR key.
    CreateUmr,
    /// Host: its ALLOW_OTHER_VHCA_ACCESS.
    AllowUmr,
    /// Host: its DESTROY_MKEY.
    DestroyUmr,
    /// Host: one UMR work request that binds a key, until its completion.
    Bind,
    /// Host: one work request that invalidates a key, until its completion.
    Invalidate,
    /// DPU: creation of the alias of a KSM or umem key.
    AliasKsm,
    /// DPU: its destruction.
    UnaliasKsm,
    /// DPU: creation of the alias of a UMR key.
    AliasUmr,
    /// DPU: its destruction.
    UnaliasUmr,
}

impl Cost {
    /// All rows that the model uses.
    pub const ALL: [Self; 16] = [
        Self::RegMr,
        Self::DeregMr,
        Self::UmemReg,
        Self::UmemDereg,
        Self::CreateKsm,
        Self::AllowKsm,
        Self::DestroyKsm,
        Self::CreateUmr,
        Self::AllowUmr,
        Self::DestroyUmr,
        Self::Bind,
        Self::Invalidate,
        Self::AliasKsm,
        Self::UnaliasKsm,
        Self::AliasUmr,
        Self::UnaliasUmr,
    ];

    /// Approach and step, as in the table's first two columns.
    #[must_use]
    pub fn row(self) -> (&'static str, &'static str) {
        match self {
            Self::RegMr => ("indirection", "host_memory_registration"),
            Self::DeregMr => ("indirection", "host_memory_deregistration"),
            Self::UmemReg => ("umem", "host_umem_registration"),
            Self::UmemDereg => ("umem", "host_umem_deregistration"),
            Self::CreateKsm => ("indirection", "host_mkey_creation"),
            Self::AllowKsm => ("indirection", "host_mkey_export"),
            Self::DestroyKsm => ("indirection", "host_mkey_destroy"),
            Self::CreateUmr => ("umr", "host_umr_mkey_creation"),
            Self::AllowUmr => ("umr", "host_umr_mkey_export"),
            Self::DestroyUmr => ("umr", "host_umr_mkey_destroy"),
            Self::Bind => ("umr", "host_umr_mkey_registration"),
            Self::Invalidate => ("umr", "host_umr_mkey_invalidation"),
            Self::AliasKsm => ("indirection", "dpu_mkey_registration"),
            Self::UnaliasKsm => ("indirection", "dpu_mkey_deregistration"),
            Self::AliasUmr => ("umr", "dpu_mkey_registration"),
            Self::UnaliasUmr => ("umr", "dpu_mkey_deregistration"),
        }
    }

    /// Whether the step is a firmware command. Otherwise the kernel or a work request executes it.
    #[must_use]
    pub fn is_command(self) -> bool {
        !matches!(
            self,
            Self::RegMr
                | Self::DeregMr
                | Self::UmemReg
                | Self::UmemDereg
                | Self::Bind
                | Self::Invalidate
        )
    }
}

/// Reason why a table is invalid.
#[derive(Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum TableError {
    /// The file is too long.
    #[error("the cost table has {bytes} bytes; at most {FILE_BYTES_MAX} are read")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// The first line does not name the columns.
    #[error("the first line of the cost table is '{line}'; it must be approach,step,ns_SIZE,...")]
    Header {
        /// The line.
        line: String,
    },
    /// A line has too few or too many cells, or an invalid time.
    #[error(
        "line {number} of the cost table, '{line}', does not hold {columns} times in nanoseconds"
    )]
    Line {
        /// Line number, from 1.
        number: usize,
        /// Its text.
        line: String,
        /// Expected number of times.
        columns: usize,
    },
    /// A required row is missing.
    #[error("the cost table has no row {approach},{step}")]
    Missing {
        /// First cell.
        approach: &'static str,
        /// Second cell.
        step: &'static str,
    },
}

/// Times of all steps, in nanoseconds, at several sizes.
#[derive(Debug, Clone, PartialEq)]
pub struct CostTable {
    /// Ascending.
    sizes_bytes: Vec<f64>,
    rows: BTreeMap<Cost, Vec<f64>>,
}

impl CostTable {
    /// The published table.
    ///
    /// # Errors
    /// Only if the compiled-in file is wrong; a test reads it.
    pub fn slides() -> Result<Self, TableError> {
        Self::parse(SLIDES)
    }

    /// Parses `approach,step,ns_16KiB,ns_1MiB,...` and one line per step, in the units of the column titles.
    ///
    /// # Errors
    /// Names the wrong or missing line. Rows that the model does not use are ignored.
    pub fn parse(text: &str) -> Result<Self, TableError> {
        if text.len() > FILE_BYTES_MAX {
            return Err(TableError::TooLong { bytes: text.len() });
        }
        let mut lines = text.lines().enumerate();
        let (_, header) = lines.next().unwrap_or((0, ""));
        let sizes_bytes = sizes(header).ok_or_else(|| TableError::Header {
            line: header.to_owned(),
        })?;
        let mut found = BTreeMap::new();
        for (at, line) in lines.filter(|(_, line)| !line.trim().is_empty()) {
            let mut cells = line.split(',').map(str::trim);
            let key = (
                cells.next().unwrap_or_default(),
                cells.next().unwrap_or_default(),
            );
            let times: Option<Vec<f64>> = cells
                .map(|cell| {
                    cell.parse()
                        .ok()
                        .filter(|ns| (0.0..=STEP_NS_MAX).contains(ns))
                })
                .collect();
            let times = times
                .filter(|times| times.len() == sizes_bytes.len())
                .ok_or_else(|| TableError::Line {
                    number: at + 1,
                    line: line.to_owned(),
                    columns: sizes_bytes.len(),
                })?;
            found.insert(key, times);
        }
        let mut rows = BTreeMap::new();
        for cost in Cost::ALL {
            let (approach, step) = cost.row();
            let times = found
                .get(&(approach, step))
                .ok_or(TableError::Missing { approach, step })?;
            rows.insert(cost, times.clone());
        }
        Ok(Self { sizes_bytes, rows })
    }

    /// A table in which each step takes the same time at all sizes.
    #[must_use]
    pub fn flat(ns: impl Fn(Cost) -> f64) -> Self {
        Self {
            sizes_bytes: vec![1.0],
            rows: Cost::ALL.map(|cost| (cost, vec![ns(cost)])).into(),
        }
    }

    /// The same table with one step's times multiplied, for the sensitivity study.
    #[must_use]
    pub fn scaled(mut self, factor: f64, which: impl Fn(Cost) -> bool) -> Self {
        for (cost, times) in &mut self.rows {
            if which(*cost) {
                times.iter_mut().for_each(|ns| *ns *= factor);
            }
        }
        self
    }

    /// Nanoseconds of a step for `bytes` of memory: linear between the table's sizes, the first column's time below
    /// them, and the last two columns' slope above them.
    #[must_use]
    pub fn ns(&self, cost: Cost, bytes: u64) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "a size in a cost formula")]
        let bytes = bytes as f64;
        let times = &self.rows[&cost];
        let last = self.sizes_bytes.len() - 1;
        if last == 0 || bytes <= self.sizes_bytes[0] {
            return times[0];
        }
        let right = (1..last)
            .find(|at| bytes <= self.sizes_bytes[*at])
            .unwrap_or(last);
        let left = right - 1;
        let share =
            (bytes - self.sizes_bytes[left]) / (self.sizes_bytes[right] - self.sizes_bytes[left]);
        // Some rows decrease from one column to the next. Extrapolation must not give a negative time.
        (times[left] + share * (times[right] - times[left])).max(0.0)
    }
}

/// The sizes in the titles `ns_16KiB`, ..., if they are valid and ascend.
fn sizes(header: &str) -> Option<Vec<f64>> {
    let mut cells = header.split(',').map(str::trim);
    if (cells.next(), cells.next()) != (Some("approach"), Some("step")) {
        return None;
    }
    let sizes: Option<Vec<f64>> = cells
        .map(|title| {
            let size = bench_report::parse_size(title.strip_prefix("ns_")?).ok()?;
            #[expect(clippy::cast_precision_loss, reason = "a size in a cost formula")]
            Some(size as f64)
        })
        .collect();
    sizes.filter(|sizes| !sizes.is_empty() && sizes.is_sorted_by(|a, b| a < b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slides_are_read_and_interpolated() {
        let table = CostTable::slides().expect("the committed file");
        let check = |cost, bytes: u64, expect: f64| {
            let ns = table.ns(cost, bytes);
            assert!((ns - expect).abs() <= 0.5, "{cost:?} at {bytes}: {ns}");
        };
        check(Cost::RegMr, 16 << 10, 10_125.0);
        check(Cost::RegMr, 1 << 10, 10_125.0);
        check(Cost::RegMr, 1 << 20, 22_296.0);
        check(Cost::RegMr, 16 << 20, 72_227.0);
        check(Cost::RegMr, 1 << 30, 5_823_605.0);
        // One additional GiB at the slope of the last two columns.
        check(Cost::RegMr, 2 << 30, 11_787_976.0);
        check(Cost::AllowKsm, 16 << 20, 102_567.0);
        check(Cost::AliasKsm, 16 << 20, 176_207.0);
        check(Cost::UnaliasUmr, 64 << 20, 149_765.0);
    }

    #[test]
    fn a_wrong_table_is_refused_with_its_line() {
        let check = |text: &str, expect: &str| {
            let error = CostTable::parse(text).expect_err(text).to_string();
            assert!(error.contains(expect), "{error}");
        };
        let header = "approach,step,ns_16KiB,ns_1MiB\n";
        check("", "first line");
        check("approach,step,16KiB\n", "first line");
        check("approach,step,ns_1MiB,ns_16KiB\n", "first line");
        check(&format!("{header}umem,x,1\n"), "line 2");
        check(&format!("{header}umem,x,1,-1\n"), "line 2");
        check(&format!("{header}umem,x,1,1e99\n"), "line 2");
        check(&format!("{header}umem,x,1,2\n"), "no row");
        check(&"x".repeat(FILE_BYTES_MAX + 1), "bytes");
    }
}
