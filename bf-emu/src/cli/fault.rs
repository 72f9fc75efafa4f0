//! `bf-emu fault`: adds, lists and removes the fault rules of a running fabric.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use bf_emu::engine;
use bf_emu::fabric::Fabric;
use bf_emu::model::faults::{RULES_MAX, parse};
use bf_emu::report::stats;
use bf_emu::view::state::{StateDir, locate};
use clap::{Args, Subcommand};

use super::args::{FormArgs, print};
use super::show;

/// `bf-emu fault`.
#[derive(Args, Debug)]
pub(super) struct FaultArgs {
    /// The fabric's directory [default: $BFEMU_STATE, else /dev/shm/bf-emu-<uid>]
    #[arg(long, value_name = "DIR", global = true)]
    state: Option<PathBuf>,
    #[command(subcommand)]
    command: FaultCommand,
}

/// Subcommands of `bf-emu fault`.
#[derive(Debug, Subcommand)]
enum FaultCommand {
    /// Activate rules for every process: `any command create_mkey nth 7 status LIMITS_EXCEEDED`
    Add {
        /// A rule, several rules separated by `;`, or @FILE
        #[arg(required = true, value_name = "RULE|@FILE")]
        words: Vec<String>,
    },
    /// List the active rules, each with its numbers of matching events and of injected faults
    List {
        #[command(flatten)]
        form: FormArgs,
    },
    /// Remove the rules with these numbers, or all
    Clear {
        /// Numbers from `bf-emu fault list`
        #[arg(value_name = "ID")]
        ids: Vec<u32>,
    },
}

/// Executes the command.
pub(super) fn act(args: &FaultArgs) -> Result<()> {
    let state = StateDir::open(&locate(args.state.as_deref()))?;
    let fabric = engine::open(state.path())?;
    match &args.command {
        FaultCommand::Add { words } => add(&fabric, words),
        FaultCommand::List { form } => list(&fabric, form.json),
        FaultCommand::Clear { ids } => clear(&fabric, ids),
    }
}

fn add(fabric: &Fabric, words: &[String]) -> Result<()> {
    let text = match words {
        [word] if word.starts_with('@') => {
            let file = &word[1..];
            fs::read_to_string(file).with_context(|| format!("reading the rules in {file}"))?
        }
        words => words.join(" "),
    };
    let rules = parse::parse(&text, &fabric.names())?;
    if rules.is_empty() {
        bail!("no rule in `{text}`");
    }
    if !fabric.lock().arm_faults(0, &rules) {
        bail!(
            "{} more rules do not fit: a device has at most {RULES_MAX}; remove some with \
             `bf-emu fault clear`",
            rules.len()
        );
    }
    Ok(())
}

fn list(fabric: &Fabric, json: bool) -> Result<()> {
    let faults = stats::faults(fabric);
    if json {
        return show::print_json(&faults);
    }
    let lines: String = faults.iter().map(|fault| format!("{fault}\n")).collect();
    print(&lines)
}

fn clear(fabric: &Fabric, ids: &[u32]) -> Result<()> {
    let there: Vec<u32> = stats::faults(fabric).iter().map(|fault| fault.id).collect();
    if let Some(id) = ids.iter().find(|id| !there.contains(id)) {
        bail!("no rule {id} is active; active rules: {there:?}");
    }
    fabric
        .lock()
        .disarm_faults(|id| ids.is_empty() || ids.contains(&id));
    Ok(())
}
