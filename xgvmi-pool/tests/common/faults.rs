//! A list of device faults, and a program of exports, imports and releases that must keep its
//! promises under each of them. It runs on a simulated adapter and on a real one.

use fastrand::Rng;
use std::collections::HashSet;

use xgvmi_pool::{
    AliasDevice, DpuHooks, Export, HostHooks, Invalidate, Lkey, MkeyDevice, OwnerUuid, PoolError,
    PoolPolicy, Region, RemoteKey,
};

/// One kind of fault.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) name: &'static str,
    /// Fault rates for the device, in units of one thousandth.
    pub(crate) chances: Chances,
    /// Counters of the pool or of the alias map that must not be zero at the end. Of counters
    /// separated by a bar, at least one must not be zero.
    pub(crate) moved: &'static [&'static str],
}

/// Rates of the faults.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Chances {
    pub(crate) create: u16,
    pub(crate) destroy: u16,
    pub(crate) bind: u16,
    pub(crate) invalidate: u16,
    pub(crate) timeout: u16,
    pub(crate) alias: u16,
    /// Maximum number of keys of the device; zero: no limit.
    pub(crate) keys_max: usize,
}

const NONE: Chances = Chances {
    create: 0,
    destroy: 0,
    bind: 0,
    invalidate: 0,
    timeout: 0,
    alias: 0,
    keys_max: 0,
};

/// All faults.
pub(crate) const FAULTS: &[Fault] = &[
    Fault {
        name: "a key is not created",
        chances: Chances {
            create: 300,
            ..NONE
        },
        moved: &["create_failures"],
    },
    Fault {
        name: "a key may not be opened to others",
        chances: Chances {
            create: 300,
            ..NONE
        },
        moved: &["create_failures"],
    },
    Fault {
        name: "the device is full",
        chances: Chances {
            keys_max: 3,
            ..NONE
        },
        moved: &["cap_lowered", "refusals"],
    },
    Fault {
        name: "a bind ends in an error",
        chances: Chances { bind: 60, ..NONE },
        moved: &["bind_failures"],
    },
    Fault {
        name: "an invalidation ends in an error",
        chances: Chances {
            invalidate: 60,
            ..NONE
        },
        moved: &["invalidate_failures"],
    },
    Fault {
        name: "a completion never comes",
        chances: Chances {
            timeout: 20,
            ..NONE
        },
        moved: &["bind_failures|invalidate_failures"],
    },
    Fault {
        name: "a completion comes too late",
        chances: Chances {
            timeout: 20,
            ..NONE
        },
        moved: &["bind_failures|invalidate_failures"],
    },
    Fault {
        name: "the queue fails",
        chances: Chances {
            bind: 30,
            invalidate: 30,
            ..NONE
        },
        moved: &["bind_failures|invalidate_failures"],
    },
    Fault {
        name: "the queue fails and cannot be replaced at once",
        chances: Chances {
            bind: 200,
            invalidate: 200,
            ..NONE
        },
        moved: &["bind_failures"],
    },
    Fault {
        name: "a key can be neither invalidated nor destroyed",
        chances: Chances {
            invalidate: 600,
            destroy: 700,
            ..NONE
        },
        moved: &["invalidate_failures", "lost"],
    },
    Fault {
        name: "an alias is not created",
        chances: Chances { alias: 300, ..NONE },
        moved: &["create_failures"],
    },
    Fault {
        name: "a little of everything",
        chances: Chances {
            create: 10,
            bind: 10,
            invalidate: 10,
            timeout: 10,
            alias: 10,
            ..NONE
        },
        moved: &["binds"],
    },
];

/// The policy of the program: few keys, so reuse is frequent.
pub(crate) fn policy(invalidate: Invalidate) -> PoolPolicy {
    PoolPolicy {
        mkeys_max: 8,
        batch_ops: 4,
        invalidate,
        ..PoolPolicy::default()
    }
}

/// Both sides, and the exported memory.
pub(crate) trait Ground {
    type Device: MkeyDevice + AliasDevice;
    fn host(&self) -> &HostHooks<Self::Device>;
    fn dpu(&self) -> &DpuHooks<Self::Device>;
    /// Invalidation mode of the host's pool.
    fn invalidate(&self) -> Invalidate;
    /// A piece of memory. All pieces have different bytes.
    fn region(&self, place: usize) -> Region;
    /// The importer's result of a read of that memory with its own key.
    fn read(&self, key: Lkey, place: usize) -> Result<Seen, String>;
}

/// Result of an importer's read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// The bytes of the memory.
    Right,
    /// Other bytes.
    Wrong,
    /// No bytes: the adapter refuses.
    Nothing,
}

/// Pieces of memory.
pub(crate) const PLACES: usize = 16;

const OWNER: OwnerUuid = OwnerUuid::new(0x0fa1);

/// An export and its memory.
type Live<D> = (Export<D>, usize);

/// Executes `rounds` random operations by seed.
///
/// # Errors
/// If a promise is broken. The error names the round.
pub(crate) fn run<G: Ground>(ground: &G, seed: u64, rounds: u32) -> Result<(), String> {
    let mut random = Rng::with_seed(seed);
    let mut live: Vec<Live<G::Device>> = Vec::new();
    for round in 0..rounds {
        let told = |what: String| format!("round {round}: {what}");
        match random.usize(..8) {
            0..=3 => export_one(ground, &mut live, &mut random).map_err(told)?,
            4..=5 if !live.is_empty() => {
                let which = random.usize(..live.len());
                release_one(ground, live.swap_remove(which)).map_err(told)?;
            }
            6 => export_some(ground, &mut live, &mut random),
            _ => {
                ground.host().pool().flush();
            }
        }
        let keys: HashSet<_> = live.iter().map(|(export, _)| export.mkey()).collect();
        if keys.len() != live.len() {
            return Err(told("one key stands for two regions".to_owned()));
        }
    }
    for (export, place) in live {
        check_seen(ground, &export, place, Seen::Right)?;
        release_one(ground, (export, place))?;
    }
    ground.host().pool().flush();
    let stats = ground.host().stats();
    if (stats.in_use, stats.pending) != (0, 0) {
        return Err(format!("keys are left over: {stats:?}"));
    }
    Ok(())
}

fn export_one<G: Ground>(
    ground: &G,
    live: &mut Vec<Live<G::Device>>,
    random: &mut Rng,
) -> Result<(), String> {
    let place = random.usize(..PLACES);
    match ground.host().export(ground.region(place)) {
        Ok(export) => {
            check_seen(ground, &export, place, Seen::Right)?;
            live.push((export, place));
            Ok(())
        }
        Err(error) => expected(&error),
    }
}

fn export_some<G: Ground>(ground: &G, live: &mut Vec<Live<G::Device>>, random: &mut Rng) {
    let places: Vec<_> = (0..3).map(|_| random.usize(..PLACES)).collect();
    let regions: Vec<_> = places.iter().map(|place| ground.region(*place)).collect();
    let exports = ground.host().export_many(&regions).into_iter().zip(places);
    live.extend(exports.filter_map(|(export, place)| Some((export.ok()?, place))));
}

fn release_one<G: Ground>(ground: &G, live: Live<G::Device>) -> Result<(), String> {
    let (export, place) = live;
    let key = key(&export);
    let is_gone = ground.host().release(export).is_ok();
    if !is_gone || ground.invalidate() != Invalidate::Strict {
        return Ok(());
    }
    match ground.dpu().attach(key) {
        // Released memory is unreachable until its key is bound again.
        Ok(alias) => match ground.read(alias.lkey(), place)? {
            Seen::Nothing => Ok(()),
            seen => Err(format!("{seen:?} bytes through a released key")),
        },
        // The key was destroyed, or the fault concerns aliases.
        Err(_) => Ok(()),
    }
}

fn check_seen<G: Ground>(
    ground: &G,
    export: &Export<G::Device>,
    place: usize,
    expect: Seen,
) -> Result<(), String> {
    let Ok(alias) = ground.dpu().attach(key(export)) else {
        return Ok(());
    };
    let seen = ground.read(alias.lkey(), place)?;
    if seen == expect {
        Ok(())
    } else {
        Err(format!("{seen:?} bytes through {:?}", export.mkey()))
    }
}

/// Permitted errors of an export on a failing device.
fn expected(error: &PoolError) -> Result<(), String> {
    match error {
        full if full.is_full() => Ok(()),
        PoolError::Create(_) | PoolError::Bind { .. } => Ok(()),
        other => Err(format!("an export failed for another reason: {other}")),
    }
}

fn key<D: MkeyDevice>(export: &Export<D>) -> RemoteKey {
    RemoteKey {
        gvmi: export.gvmi(),
        mkey: export.mkey(),
        owner: OWNER,
    }
}

/// Checks the counters of a fault.
///
/// # Errors
/// If a required counter is zero.
pub(crate) fn check_moved<G: Ground>(ground: &G, fault: &Fault) -> Result<(), String> {
    let (pool, aliases) = (ground.host().stats(), ground.dpu().stats());
    for name in fault.moved {
        let counts = pool.each().chain(aliases.each());
        let sum: u64 = counts
            .filter(|(counter, _)| name.split('|').any(|name| name == *counter))
            .map(|(_, n)| n)
            .sum();
        if sum == 0 {
            return Err(format!("{name} is zero: {pool:?} {aliases:?}"));
        }
    }
    Ok(())
}
