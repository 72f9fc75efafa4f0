//! Messages between two ranks through the service processes.

use crate::harness::Case;
use crate::offload::{Farm, succeed};
use crate::world::World;
use anyhow::{Context as _, Result, ensure};

pub(crate) fn cases() -> Vec<Case> {
    vec![Case::new("offload_messages", messages)]
}

/// Messages between all pairs of ranks beside collectives, in all schemes. Some are longer or shorter than their receives.
fn messages(world: &World) -> Result<()> {
    for (scheme, per_node, services) in [("stock", 2, 1), ("ksm", 1, 1), ("xgvmi", 3, 2)] {
        let farm = Farm::new(world, scheme, services)?;
        let options = ["--messages", "--rounds", "6"];
        let verified = succeed(farm.job(per_node, &options, |_, _| ())?)
            .with_context(|| format!("scheme {scheme}"))?;
        ensure!(verified > 0, "no byte was moved");
    }
    Ok(())
}
