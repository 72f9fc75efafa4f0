//! Counters and numbers of objects: `bf-emu stats`.

use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

use crate::engine;
use crate::fabric::counters::{Command, PortCounter, Refusal, Work};
use crate::fabric::{Fabric, FabricError, Place};
use crate::model::address::Link;

/// A named list of counts, in the order of the report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts(Vec<(&'static str, u64)>);

impl Counts {
    /// The count with this name; None if it does not exist.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<u64> {
        self.0
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, count)| *count)
    }
}

impl FromIterator<(&'static str, u64)> for Counts {
    fn from_iter<T: IntoIterator<Item = (&'static str, u64)>>(counts: T) -> Self {
        Self(counts.into_iter().collect())
    }
}

impl Serialize for Counts {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().copied())
    }
}

/// Counters and objects of one function.
#[derive(Clone, Debug, Serialize)]
pub struct FunctionStats {
    /// Its name in the topology.
    pub name: String,
    /// gvmi.
    pub vhca_id: u16,
    /// Its ports, port 1 first.
    pub ports: Vec<PortStats>,
    /// Commands, by name.
    pub commands: Counts,
    /// Work requests, by opcode.
    pub wqes: Counts,
    /// Stores to its UAR pages that trapped: doorbells, arms, and stores of a BlueFlame copy that
    /// were not skipped.
    pub traps: u64,
    /// Stores to send doorbells.
    pub doorbells: u64,
    /// Completion queues armed.
    pub cq_arms: u64,
    /// Completion queue entries written.
    pub completions: u64,
    /// Events sent to applications.
    pub events: u64,
    /// How often a thread had to wait for the lock of the function's card, which the functions of a card share.
    pub lock_waits: u64,
    /// How many of these concerned a thread that takes the locks of all cards: a command, a request without a
    /// connection, and on one or two nodes each request. The others are requests over the same card.
    pub lock_waits_of_all: u64,
    /// Payload moved by its work requests, in bytes.
    pub bytes: u64,
    /// Time for which messages of its work requests occupied the link of the cost profile, in
    /// nanoseconds.
    pub link_ns: u64,
    /// Refusals, by reason.
    pub refusals: Counts,
    /// Number of live objects.
    pub objects: Counts,
    /// Largest number of live objects so far.
    pub objects_max: Counts,
}

/// A port of a function.
#[derive(Clone, Debug, Serialize)]
pub struct PortStats {
    /// Kind of its link.
    pub link: Link,
    /// Its LID; 0 on Ethernet.
    pub lid: u16,
    /// Its state: "ACTIVE", "DOWN" or "INIT".
    pub state: &'static str,
    /// Its counters, with the names of `hw_counters`.
    pub counters: Counts,
}

/// Counters and objects of the device.
#[derive(Clone, Debug, Serialize)]
pub struct Stats {
    /// Version of this report's schema.
    pub schema: u32,
    /// The device file.
    pub device: String,
    /// Name of the cost profile.
    pub profile: String,
    /// Number of repairs after a process died during a change.
    pub repairs: u64,
    /// Active fault rules.
    pub faults: Vec<FaultStats>,
    /// Its functions.
    pub functions: Vec<FunctionStats>,
}

/// An active fault rule.
#[derive(Clone, Debug, Serialize)]
pub struct FaultStats {
    /// Its number.
    pub id: u32,
    /// The process to which it applies; None for all.
    pub pid: Option<i32>,
    /// Text of the rule.
    pub rule: String,
    /// Number of matching events.
    pub seen: u64,
    /// Number of events to which it was applied.
    pub struck: u64,
}

/// Reads the counters of the device in directory `state`.
///
/// # Errors
/// No device exists, or it has another version.
pub fn collect(state: &Path) -> Result<Stats, FabricError> {
    let fabric = engine::open(state)?;
    // The objects of dead processes are released first.
    fabric.lock().sweep();
    let functions = (0..fabric.identities().len()).map(|index| function_stats(&fabric, index));
    Ok(Stats {
        schema: 1,
        device: fabric.path().display().to_string(),
        profile: fabric.profile_name().to_owned(),
        repairs: fabric.repairs(),
        faults: faults(&fabric),
        functions: functions.collect(),
    })
}

/// The active fault rules, by number.
#[must_use]
pub fn faults(fabric: &Fabric) -> Vec<FaultStats> {
    let names = fabric.names();
    let mut locked = fabric.lock();
    let rules: Vec<_> = locked
        .common()
        .faults
        .iter()
        .map(|(id, owner, armed)| (id, owner.process, *armed))
        .collect();
    rules
        .into_iter()
        .map(|(id, process, armed)| FaultStats {
            id,
            pid: locked.pid(process),
            rule: crate::model::faults::parse::text(&armed.rule, &names),
            seen: armed.seen,
            struck: armed.struck,
        })
        .collect()
}

impl fmt::Display for FaultStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            id,
            rule,
            seen,
            struck,
            ..
        } = self;
        write!(f, "{id:>3}  struck {struck} of {seen}  {rule}")?;
        match self.pid {
            Some(pid) => write!(f, "  (process {pid})"),
            None => Ok(()),
        }
    }
}

fn function_stats(fabric: &Fabric, index: usize) -> FunctionStats {
    let counters = fabric.counters(index);
    let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let identity = &fabric.identities()[index];
    let counts = |names: &mut dyn Iterator<Item = &'static str>, counters: &[AtomicU64]| {
        Counts(
            names
                .zip(counters)
                .map(|(name, counter)| (name, load(counter)))
                .collect(),
        )
    };
    let (objects, objects_max) = {
        let locked = fabric.lock();
        let function = locked.peek(index);
        let tables = [
            ("pds", function.pds.live(), function.pds.live_max()),
            (
                "channels",
                function.channels.live(),
                function.channels.live_max(),
            ),
            ("cqs", function.cqs.live(), function.cqs.live_max()),
            ("srqs", function.srqs.live(), function.srqs.live_max()),
            ("qps", function.qps.live(), function.qps.live_max()),
            ("umems", function.umems.live(), function.umems.live_max()),
            ("mkeys", function.mkeys.live(), function.mkeys.live_max()),
        ];
        (
            Counts(
                tables
                    .iter()
                    .map(|(name, live, _)| (*name, u64::from(*live)))
                    .collect(),
            ),
            Counts(
                tables
                    .iter()
                    .map(|(name, _, max)| (*name, u64::from(*max)))
                    .collect(),
            ),
        )
    };
    let ports = identity.ports().map(|port| PortStats {
        link: identity.link(port),
        lid: identity.lid(port),
        state: fabric
            .port_state(Place {
                function: index,
                port,
            })
            .names()
            .0,
        counters: Counts(
            PortCounter::ALL
                .iter()
                .map(|counter| (counter.name(), counters.of_port(port, *counter)))
                .collect(),
        ),
    });
    let ports = ports.collect();
    FunctionStats {
        name: identity.name().to_owned(),
        vhca_id: identity.vhca_id,
        ports,
        commands: counts(
            &mut Command::ALL.iter().map(|c| c.name()),
            &counters.commands,
        ),
        wqes: counts(&mut Work::ALL.iter().map(|w| w.name()), &counters.works),
        traps: load(&counters.traps),
        doorbells: load(&counters.doorbells),
        cq_arms: load(&counters.arms),
        completions: load(&counters.completions),
        events: load(&counters.events),
        lock_waits: fabric.lock_waits(index),
        lock_waits_of_all: fabric.lock_waits_of_all(index),
        bytes: load(&counters.bytes),
        link_ns: load(&counters.link_ns),
        refusals: counts(
            &mut Refusal::ALL.iter().map(|r| r.name()),
            &counters.refusals,
        ),
        objects,
        objects_max,
    }
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "device {}  profile {}  repairs {}",
            self.device, self.profile, self.repairs
        )?;
        for fault in &self.faults {
            writeln!(f, "fault {fault}")?;
        }
        for function in &self.functions {
            let ports: Vec<_> = function
                .ports
                .iter()
                .map(|port| format!("lid {} {}", port.lid, port.state))
                .collect();
            writeln!(
                f,
                "{}  vhca {}  {}",
                function.name,
                function.vhca_id,
                ports.join(", ")
            )?;
            let line = |f: &mut fmt::Formatter<'_>, title: &str, counts: &Counts| {
                let shown: Vec<_> = counts
                    .0
                    .iter()
                    .filter(|(_, count)| *count != 0)
                    .map(|(name, count)| format!("{name} {count}"))
                    .collect();
                if shown.is_empty() {
                    return Ok(());
                }
                writeln!(f, "  {title:<10} {}", shown.join(", "))
            };
            line(f, "commands", &function.commands)?;
            line(f, "work", &function.wqes)?;
            line(f, "refused", &function.refusals)?;
            line(f, "objects", &function.objects)?;
            for (port, number) in function.ports.iter().zip(1..) {
                line(f, &format!("port {number}"), &port.counters)?;
            }
            writeln!(
                f,
                "  {:<10} traps {}, doorbells {}, arms {}, completions {}, events {}, payload {} bytes, lock waits {} ({} of all locks)",
                "traffic",
                function.traps,
                function.doorbells,
                function.cq_arms,
                function.completions,
                function.events,
                function.bytes,
                function.lock_waits,
                function.lock_waits_of_all
            )?;
            if function.link_ns != 0 {
                writeln!(f, "  {:<10} {} ns occupied", "link", function.link_ns)?;
            }
        }
        Ok(())
    }
}
