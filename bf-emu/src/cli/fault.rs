//! `bf-emu fault`: rules for what is to go wrong, in the device that is there.

use std::fs;

use anyhow::{Context, Result, bail};
use bf_emu::engine;
use bf_emu::fabric::Fabric;
use bf_emu::model::faults::{RULES_MAX, parse};
use bf_emu::report::stats;
use bf_emu::view::state::{StateDir, locate};
use clap::Subcommand;

use super::args::{FormArgs, StateArgs, print};
use super::show;

/// What to do with rules.
#[derive(Debug, Subcommand)]
pub(super) enum FaultCommand {
    /// Put rules in force for every process: `any command create_mkey nth 7 status LIMITS_EXCEEDED`
    Add {
        #[command(flatten)]
        state: StateArgs,
        /// The words of a rule, several rules with `;` between them, or @FILE
        #[arg(required = true, value_name = "RULE|@FILE")]
        words: Vec<String>,
    },
    /// List the rules in force, how many events each has seen and how many it struck
    List {
        #[command(flatten)]
        state: StateArgs,
        #[command(flatten)]
        form: FormArgs,
    },
    /// Take rules out of force: those of these numbers, or all
    Clear {
        #[command(flatten)]
        state: StateArgs,
        /// Numbers, as `bf-emu fault list` has them
        #[arg(value_name = "ID")]
        ids: Vec<u32>,
    },
}

/// Does what was asked for.
pub(super) fn act(command: &FaultCommand) -> Result<()> {
    match command {
        FaultCommand::Add { state, words } => add(state, words),
        FaultCommand::List { state, form } => list(state, form.json),
        FaultCommand::Clear { state, ids } => clear(state, ids),
    }
}

fn open(args: &StateArgs) -> Result<Fabric> {
    let state = StateDir::open(&locate(args.state.as_deref()))?;
    Ok(engine::open(state.path())?)
}

fn add(args: &StateArgs, words: &[String]) -> Result<()> {
    let text = match words {
        [word] if word.starts_with('@') => {
            let file = &word[1..];
            fs::read_to_string(file).with_context(|| format!("reading the rules in {file}"))?
        }
        words => words.join(" "),
    };
    let fabric = open(args)?;
    let rules = parse::parse(&text, &fabric.names())?;
    if rules.is_empty() {
        bail!("no rule in `{text}`");
    }
    if !fabric.lock().arm_faults(0, &rules) {
        bail!(
            "{} more rules do not fit: the device has {RULES_MAX} at most; take some out of force \
             with `bf-emu fault clear`",
            rules.len()
        );
    }
    Ok(())
}

fn list(args: &StateArgs, json: bool) -> Result<()> {
    let faults = stats::faults(&open(args)?);
    if json {
        return show::print_json(&faults);
    }
    let lines: String = faults.iter().map(|fault| format!("{fault}\n")).collect();
    print(&lines)
}

fn clear(args: &StateArgs, ids: &[u32]) -> Result<()> {
    let fabric = open(args)?;
    let there: Vec<u32> = stats::faults(&fabric)
        .iter()
        .map(|fault| fault.id)
        .collect();
    if let Some(id) = ids.iter().find(|id| !there.contains(id)) {
        bail!("no rule {id} is in force; those that are: {there:?}");
    }
    fabric
        .lock()
        .disarm_faults(|id| ids.is_empty() || ids.contains(&id));
    Ok(())
}
