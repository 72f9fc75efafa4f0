//! What the device counts, and how it is shown.
//!
//! Counters are exact: one is added where the thing happens, by whoever makes it happen. They are
//! what tests and benchmarks rely on where times are noisy.

use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

use crate::fabric::{Fabric, FabricError, Place};

/// Defines an enum of countable things and their names in reports.
macro_rules! countable {
    ($(#[$meta:meta])* $vis:vis enum $name:ident { $($(#[$vmeta:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        $vis enum $name { $($(#[$vmeta])* $variant,)* }

        impl $name {
            /// Every one, in order.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// Its name in reports.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }
        }
    };
}

pub(crate) use countable;

countable! {
    /// Commands to the device: DEVX commands and the verbs that a kernel turns into commands.
    #[expect(missing_docs, reason = "the names say it all")]
    pub enum Command {
        QueryHcaCap = "query_hca_cap",
        CreateMkey = "create_mkey",
        DestroyMkey = "destroy_mkey",
        AllowOtherVhcaAccess = "allow_other_vhca_access",
        CreateAlias = "create_alias",
        DestroyAlias = "destroy_alias",
        CreateCq = "create_cq",
        DestroyCq = "destroy_cq",
        ResizeCq = "resize_cq",
        ModifyCq = "modify_cq",
        CreateQp = "create_qp",
        DestroyQp = "destroy_qp",
        ModifyQp = "modify_qp",
        QueryQp = "query_qp",
        CreateSrq = "create_srq",
        DestroySrq = "destroy_srq",
        RegMr = "reg_mr",
        DeregMr = "dereg_mr",
        ReregMr = "rereg_mr",
        AllocMw = "alloc_mw",
        DeallocMw = "dealloc_mw",
        AllocPd = "alloc_pd",
        DeallocPd = "dealloc_pd",
        UmemReg = "umem_reg",
        UmemDereg = "umem_dereg",
        AllocUar = "alloc_uar",
        QueryPort = "query_port",
        QueryDevice = "query_device",
        OpenContext = "open_context",
        Other = "other",
    }
}

countable! {
    /// Work requests executed, by opcode.
    #[expect(missing_docs, reason = "the names say it all")]
    pub enum Work {
        Nop = "nop",
        Send = "send",
        SendInvalidate = "send_invalidate",
        RdmaWrite = "rdma_write",
        RdmaRead = "rdma_read",
        Atomic = "atomic",
        UmrBind = "umr_bind",
        UmrInvalidate = "umr_invalidate",
        Receive = "receive",
        Flushed = "flushed",
    }
}

countable! {
    /// Requests that were refused.
    #[expect(missing_docs, reason = "the names say it all")]
    pub enum Refusal {
        UnknownIoctl = "unknown_ioctl",
        BadIoctl = "bad_ioctl",
        UnknownCommand = "unknown_command",
        UnknownWork = "unknown_work",
        BadCommand = "bad_command",
        TableFull = "table_full",
        LocalLength = "local_length",
        LocalOperation = "local_operation",
        LocalProtection = "local_protection",
        LocalAccess = "local_access",
        WindowBind = "window_bind",
        RemoteInvalidRequest = "remote_invalid_request",
        RemoteAccess = "remote_access",
        RemoteOperation = "remote_operation",
        RetryExceeded = "retry_exceeded",
        ReceiverNotReady = "receiver_not_ready",
        Dropped = "dropped",
        CqOverrun = "cq_overrun",
        Injected = "injected",
    }
}

/// The counters of one function, in shared memory. All zeroes at first.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Counters {
    commands: [AtomicU64; Command::ALL.len()],
    works: [AtomicU64; Work::ALL.len()],
    refusals: [AtomicU64; Refusal::ALL.len()],
    traps: AtomicU64,
    doorbells: AtomicU64,
    arms: AtomicU64,
    completions: AtomicU64,
    events: AtomicU64,
    bytes: AtomicU64,
    link_ns: AtomicU64,
}

fn add(counter: &AtomicU64, amount: u64) {
    // Relaxed: a counter says how often, not in what order.
    counter.fetch_add(amount, Ordering::Relaxed);
}

impl Counters {
    /// Counts a command.
    pub fn command(&self, command: Command) {
        add(&self.commands[command as usize], 1);
    }

    /// Counts an executed work request.
    pub fn work(&self, work: Work) {
        add(&self.works[work as usize], 1);
    }

    /// Counts a refusal.
    pub fn refuse(&self, refusal: Refusal) {
        add(&self.refusals[refusal as usize], 1);
    }

    /// Counts a store that trapped.
    pub fn trap(&self) {
        add(&self.traps, 1);
    }

    /// Counts a doorbell of a send queue.
    pub fn doorbell(&self) {
        add(&self.doorbells, 1);
    }

    /// Doorbells of send queues so far.
    #[must_use]
    pub fn doorbells(&self) -> u64 {
        self.doorbells.load(Ordering::Relaxed)
    }

    /// Counts a completion queue armed.
    pub fn arm(&self) {
        add(&self.arms, 1);
    }

    /// Counts a completion queue entry.
    pub fn completion(&self) {
        add(&self.completions, 1);
    }

    /// Events told so far.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.events.load(Ordering::Relaxed)
    }

    /// Reads executed so far.
    #[must_use]
    pub fn reads(&self) -> u64 {
        self.works[Work::RdmaRead as usize].load(Ordering::Relaxed)
    }

    /// Counts an event told to an application.
    pub fn event(&self) {
        add(&self.events, 1);
    }

    /// Counts time for which a message occupied the link.
    pub fn link(&self, nanos: u64) {
        add(&self.link_ns, nanos);
    }

    /// Counts payload moved by the function's work requests.
    pub fn payload(&self, bytes: u64) {
        add(&self.bytes, bytes);
    }
}

/// A named list of counts, in the order of the report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts(Vec<(&'static str, u64)>);

impl Counts {
    /// The count of this name; None if there is no such counter.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<u64> {
        self.0
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, count)| *count)
    }
}

impl Serialize for Counts {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().copied())
    }
}

/// What one function did and has.
#[derive(Clone, Debug, Serialize)]
pub struct FunctionStats {
    /// Its name in the topology.
    pub name: String,
    /// gvmi.
    pub vhca_id: u16,
    /// Its ports, the first of them port 1.
    pub ports: Vec<PortStats>,
    /// Commands, by name.
    pub commands: Counts,
    /// Work requests, by opcode.
    pub wqes: Counts,
    /// Stores to its UAR pages that trapped: doorbells, arms, and what of a BlueFlame copy could not
    /// be stepped over.
    pub traps: u64,
    /// Stores to send doorbells.
    pub doorbells: u64,
    /// Completion queues armed.
    pub cq_arms: u64,
    /// Completion queue entries written.
    pub completions: u64,
    /// Events told to applications.
    pub events: u64,
    /// Payload moved by its work requests, in bytes.
    pub bytes: u64,
    /// Time for which messages of its work requests occupied the link of the cost profile, in
    /// nanoseconds.
    pub link_ns: u64,
    /// Refusals, by reason.
    pub refusals: Counts,
    /// Objects that live now.
    pub objects: Counts,
    /// Most objects that ever lived at once.
    pub objects_max: Counts,
}

/// A port of a function.
#[derive(Clone, Debug, Serialize)]
pub struct PortStats {
    /// Its LID.
    pub lid: u16,
    /// What it is in: "ACTIVE", "DOWN" or "INIT".
    pub state: &'static str,
}

/// What the device did and has.
#[derive(Clone, Debug, Serialize)]
pub struct Stats {
    /// Version of this report's form.
    pub schema: u32,
    /// The device file.
    pub device: String,
    /// Name of the cost profile.
    pub profile: String,
    /// Processes that died in the middle of a change, each repaired.
    pub repairs: u64,
    /// Faults on purpose that are in force.
    pub faults: Vec<FaultStats>,
    /// Its functions.
    pub functions: Vec<FunctionStats>,
}

/// A fault on purpose.
#[derive(Clone, Debug, Serialize)]
pub struct FaultStats {
    /// Its number.
    pub id: u32,
    /// The process for which it holds; none if it holds for all.
    pub pid: Option<i32>,
    /// As it is written.
    pub rule: String,
    /// Events that it spoke of.
    pub seen: u64,
    /// Events that it struck.
    pub struck: u64,
}

/// Reads the counters of the device in directory `state`.
///
/// # Errors
/// There is no device, or it is of another version.
pub fn collect(state: &Path) -> Result<Stats, FabricError> {
    let fabric = Fabric::open(state)?;
    // What the dead have left is not there any more, though nobody came across it yet.
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

/// The faults on purpose that are in force, by number.
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
        lid: identity.lid(port),
        state: fabric
            .port_state(Place {
                function: index,
                port,
            })
            .names()
            .0,
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
            writeln!(
                f,
                "  {:<10} traps {}, doorbells {}, arms {}, completions {}, events {}, payload {} bytes",
                "traffic",
                function.traps,
                function.doorbells,
                function.cq_arms,
                function.completions,
                function.events,
                function.bytes
            )?;
            if function.link_ns != 0 {
                writeln!(f, "  {:<10} {} ns occupied", "link", function.link_ns)?;
            }
        }
        Ok(())
    }
}
