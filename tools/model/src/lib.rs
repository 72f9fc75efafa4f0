//! Model of DPU-offloaded collectives with temporary buffers, for machines of any size.
//!
//! An alltoallv is simulated by events. Other collectives, beside those of stock UCC, are sums ([`beside_ucc`]).
//!
//! The inputs are a cost table ([`CostTable`], by default the published one), the link, the shape of the machine and a
//! [`Scheme`]. No constant is fitted: each unknown quantity is one of the [`Assumptions`], and the user can change it.
//! Start with [`predict`]. `docs/MODEL.md` describes the results and their uncertainty.
//!
//! ```
//! use scale_model::{Config, CostTable, Extent, Gain, Scheme, predict};
//!
//! let table = CostTable::slides()?;
//! let machine = |scheme| Config { nodes: 4, ppn: 4, sps: 2, ..Config::slides(16 << 10, scheme) };
//! let ksm = predict(&machine(Scheme::Ksm), &table, Extent::Full)?;
//! let pool = predict(&machine(Scheme::Stock), &table, Extent::Full)?;
//! assert!(Gain::of(pool.us, ksm.us).time_saved_percent > 0.0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod check;
mod command;
mod config;
mod costs;
mod engine;
mod events;
mod fabric;
mod fabrics;
mod keys;
mod limits;
mod messages;
mod plot;
mod predict;
mod report;
mod scheme;
mod software;
mod sweep;
#[cfg(test)]
mod tests;
mod ucc;

pub use command::{ModelArgs, run};
pub use config::{AliasRelease, Assumptions, Config, ConfigError, SendOrder, Software};
pub use costs::{Cost, CostTable, TableError};
pub use fabric::Control;
pub use fabrics::{FabricRow, bounded, fabrics, recorded};
pub use limits::{Limit, limits};
pub use predict::{Bottleneck, Extent, FabricError, Gain, Prediction, predict, predict_on};
pub use report::{Document, Row, Sensitivity, SensitivityAt, Shares};
pub use scheme::{Features, Scheme};
pub use software::{CostError, MeasuredCost, SoftwareCost};
pub use sweep::{Point, REPORTED, Variation, grid, points, sensitivity};
pub use ucc::{Beside, Crossing, beside_ucc};
