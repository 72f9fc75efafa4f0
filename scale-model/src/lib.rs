//! The scale model: how long a DPU-offloaded alltoallv with temporary buffers takes on a machine that is not here.
//!
//! A discrete-event simulation whose inputs are a cost table ([`CostTable`], the slides' by default), the link, the
//! shape of the machine, and a [`Scheme`]. No constant is fitted: what is not known is one of [`Assumptions`], each of
//! which can be changed. [`predict`] is the door; `docs/MODEL.md` tells what comes out and how far to believe it.

mod check;
mod command;
mod config;
mod costs;
mod engine;
mod plot;
mod predict;
mod report;
mod scheme;
mod sweep;
#[cfg(test)]
mod tests;

pub use command::{ModelArgs, run};
pub use config::{AliasRelease, Assumptions, Config, ConfigError, SendOrder, Software};
pub use costs::{Cost, CostTable, SLIDES, TableError};
pub use predict::{Bottleneck, Extent, Gain, Prediction, predict};
pub use report::{Document, Row, Sensitivity, SensitivityAt, Shares};
pub use scheme::{Features, Scheme};
pub use sweep::{Point, REPORTED, Variation, grid, points, sensitivity};
