//! A volume of four parts and two parities loses two targets, gets two new ones, and then loses two others.

use super::client::{Batch, Span};
use super::orchestrate::{MIB, Options, REQUEST, THREADS, carry_out};
use super::pattern::Kind;
use super::report::{LayoutRow, Report};
use anyhow::{Context as _, Result};
use serde_json::Value;
use std::path::PathBuf;
use testbed::port;

const LAYOUT: &str = "4+2";
const TARGETS: usize = 6;
/// Bytes that are written and verified: the part takes seconds.
const BYTES: u64 = 8 * MIB;
/// Targets that are killed and replaced: one of data, and one of parity. Then others are killed.
const LOST: [usize; 2] = [1, 5];
const OTHERS: [usize; 2] = [0, 4];

/// Writes, loses two targets, reads; replaces both, loses two others, reads.
pub(super) fn run(options: &Options<'_>, report: &mut Report) -> Result<()> {
    let file = |name: &str| options.memory.join(name);
    let files: Vec<PathBuf> = (0..TARGETS).map(|nth| file(&format!("p{nth}"))).collect();
    let mut words: Vec<String> = files
        .iter()
        .map(|file| file.display().to_string())
        .collect();
    words.extend(["--layout", LAYOUT, "--size", &BYTES.to_string()].map(str::to_owned));
    options.ours("create", &words)?;
    let mut targets = Vec::new();
    let mut names = Vec::new();
    for (nth, file) in files.iter().enumerate() {
        let port = port::free()?;
        targets.push(Some(options.target(nth, file, port)?));
        names.push(format!("tcp:127.0.0.1:{port}"));
    }
    let port = port::free()?;
    let (_service, status) = options.service(&names, port)?;
    let mut client = options.client(&["announced", &format!("127.0.0.1:{port}")])?;
    let span = Span {
        offset: 0,
        length: BYTES,
        request: REQUEST,
        threads: THREADS,
        seed: 5,
        kind: Kind::Mixed,
    };
    let mut verified = 0;
    let mut read = |client: &mut _| -> Result<()> {
        let done = carry_out(client, &Batch::Read(span))?;
        verified += done.verified;
        report.count(&done);
        Ok(())
    };
    carry_out(&mut client, &Batch::Write(span))?;
    carry_out(&mut client, &Batch::Flush)?;
    for nth in LOST {
        targets[nth] = None;
    }
    read(&mut client)?;
    let at_status = status.display().to_string();
    for nth in LOST {
        let shown = options.status(&status)?["volume"]["targets"][nth].clone();
        let role = shown["role"].as_str().context("the role of a target")?;
        let new = file(&format!("new{nth}"));
        let new_name = new.display().to_string();
        let words = [new_name.as_str(), "--like", &at_status, "--role", role];
        options.ours("create", words)?;
        let port = port::free()?;
        targets[nth] = Some(options.target(nth, &new, port)?);
        let address = format!("tcp:127.0.0.1:{port}");
        options.ours("ctl", ["--socket", &at_status, "replace", &address])?;
    }
    let is_complete = |target: &Value| target["absent"] == "" && target["complete"] == true;
    let full = options.until(&status, "the rebuild of both", |volume| {
        let targets = volume["targets"].as_array();
        targets.is_some_and(|targets| targets.iter().all(is_complete))
    })?;
    for nth in OTHERS {
        targets[nth] = None;
    }
    read(&mut client)?;
    report.layouts.push(LayoutRow {
        layout: LAYOUT,
        written: BYTES,
        killed: LOST.len() + OTHERS.len(),
        replaced: LOST.len(),
        rebuilt_halves: full["volume"]["repaired_halves"]
            .as_u64()
            .context("repaired halves")?,
        verified_bytes: verified,
    });
    Ok(())
}
