//! `xgvmi-blk ctl snapshot`, and the thread that gives the space of deleted snapshots back.

use crate::say::say;
use crate::volume::{Merge, Volume};
use anyhow::{Context as _, Result};
use clap::Subcommand;
use serde::{Deserialize, Serialize};
use std::sync::{Arc, Weak};
use std::thread::Builder;
use std::time::Duration;

/// Time before a step is repeated that has failed.
const PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Subcommand, Serialize, Deserialize)]
#[serde(tag = "snapshot", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Snapshot {
    /// Makes a snapshot, which NBD clients read as the export of this name.
    Create {
        /// Its name: letters, digits, '.', '_' and '-'.
        name: String,
        /// Also if a target is absent or lacks blocks.
        #[arg(long)]
        force: bool,
    },
    /// Shows the snapshots as JSON, the oldest first.
    List,
    /// Deletes a snapshot. Its space comes back while the volume serves.
    Delete {
        /// Its name.
        name: String,
    },
}

impl Snapshot {
    /// `of` is the name of the volume, if it has one.
    pub(super) fn carry_out(&self, volume: &Arc<Volume>, of: Option<&str>) -> Result<String> {
        match self {
            Self::Create { name, force } => {
                volume.create_snapshot(name, *force)?;
                say(format_args!("snapshot {name} was made"));
                let export = match of {
                    Some(volume) => format!("{volume}@{name}"),
                    None => name.clone(),
                };
                Ok(format!(
                    "snapshot {name} is durable; NBD clients read it as export '{export}'"
                ))
            }
            Self::List => Ok(serde_json::to_string_pretty(&volume.snapshots())?),
            Self::Delete { name } => {
                volume.delete_snapshot(name)?;
                say(format_args!("snapshot {name} was deleted"));
                merge_beside(volume)?;
                Ok(format!(
                    "snapshot {name} is deleted; its space comes back from here on"
                ))
            }
        }
    }
}

/// Gives the space of deleted snapshots back while the volume serves. Several such threads take turns.
pub(super) fn merge_beside(volume: &Arc<Volume>) -> Result<()> {
    if volume.snapshots().iter().all(|one| !one.name.is_empty()) {
        return Ok(());
    }
    let volume = Arc::downgrade(volume);
    let thread = Builder::new().name("merge".to_owned());
    thread
        .spawn(move || merge(&volume))
        .context("cannot start a thread")?;
    Ok(())
}

fn merge(volume: &Weak<Volume>) {
    let mut told = String::new();
    while let Some(volume) = volume.upgrade() {
        let fault = match volume.merge() {
            Ok(Merge::Done) => return,
            Ok(Merge::Going) => continue,
            Ok(Merge::Stuck(lost)) => format!("{lost} blocks cannot be read"),
            Err(error) => error.to_string(),
        };
        if fault != told {
            say(format_args!(
                "the space of a deleted snapshot does not come back yet: {fault}"
            ));
            told = fault;
        }
        drop(volume);
        std::thread::sleep(PAUSE);
    }
}
