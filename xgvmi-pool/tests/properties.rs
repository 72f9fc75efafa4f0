//! Pool and alias map against plain models, on a device with faults by seed.
//!
//! The pool:
//! 1. No two live exports have the same key.
//! 2. The key of a live export reaches its region, all of it and nothing else.
//! 3. After a release (in strict mode) or a flush (in the others) returned without error, the key
//!    reaches nothing until it is exported again.
//! 4. There are never more keys than the policy allows.
//! 5. A lost key is never leased.
//! 6. After closing, a device without faults has no objects.
//!
//! The alias map:
//! 7. An alias in use reaches the same memory as its remote key.
//! 8. The map creates an alias exactly when the model does not contain it: never created, evicted
//!    or stale.
//! 9. An eviction takes the least recently unpinned alias.
//! 10. The map never holds more aliases than the policy allows; all other aliases on the device are
//!     in use.

use std::collections::{BTreeMap, HashSet};
use std::sync::mpsc;
use std::time::Duration;

use proptest::prelude::*;
use xgvmi_pool::sim::{FaultRates, SimDevice, SimFabric};
use xgvmi_pool::{
    AliasError, AliasMap, AliasPolicy, AliasRef, Export, Gvmi, Invalidate, Lkey, Mkey, MkeyPool,
    Observer, OwnerUuid, PoolEvent, PoolPolicy, Region, RemoteKey, ReuseOrder, VirtAddr,
};

const HOST: Gvmi = Gvmi::new(1);
const DPU: Gvmi = Gvmi::new(2);

fn region_of(export: &Export<SimDevice>) -> Region {
    Region::new(export.addr(), export.len(), Lkey::from_raw(1)).expect("what was exported")
}

#[derive(Clone, Debug)]
enum PoolAction {
    Export { page: u64, pages: u64 },
    ExportMany { page: u64, count: usize },
    Flush,
    Shed,
    Upkeep,
    Release { which: prop::sample::Index },
    Drop { which: prop::sample::Index },
    LeaseAndReturn,
}

/// A few pages, or more than 8 GiB, which need a long key.
fn pages() -> impl Strategy<Value = u64> {
    prop_oneof![3 => 1..8_u64, 1 => (2_u64 << 20) + 1..8 << 20]
}

fn pool_action() -> impl Strategy<Value = PoolAction> {
    prop_oneof![
        4 => (0..64u64, pages()).prop_map(|(page, pages)| PoolAction::Export { page, pages }),
        3 => any::<prop::sample::Index>().prop_map(|which| PoolAction::Release { which }),
        1 => any::<prop::sample::Index>().prop_map(|which| PoolAction::Drop { which }),
        1 => Just(PoolAction::LeaseAndReturn),
        1 => (0..64u64, 0..6usize).prop_map(|(page, count)| PoolAction::ExportMany { page, count }),
        1 => Just(PoolAction::Flush),
        1 => Just(PoolAction::Shed),
        1 => Just(PoolAction::Upkeep),
    ]
}

fn faults() -> impl Strategy<Value = FaultRates> {
    let rate = || prop_oneof![2 => Just(0u16), 1 => 0..300u16];
    (rate(), rate(), rate(), rate(), rate()).prop_map(
        |(create, destroy, bind, invalidate, timeout)| FaultRates {
            create,
            destroy,
            bind,
            invalidate,
            timeout,
            ..FaultRates::default()
        },
    )
}

proptest! {
    #[test]
    fn the_pool_keeps_its_promises(
        actions in prop::collection::vec(pool_action(), 1..120),
        mkeys_max in 3..12u32,
        invalidate in prop_oneof![
            Just(Invalidate::Strict),
            Just(Invalidate::Batched),
            Just(Invalidate::Chained),
        ],
        chain_ops_max in 1..8u32,
        order in prop_oneof![Just(ReuseOrder::Fifo), Just(ReuseOrder::Lifo)],
        seed: u64,
        rates in faults(),
    ) {
        let fabric = SimFabric::new();
        fabric.set_chain_ops_max(chain_ops_max);
        let policy = PoolPolicy {
            mkeys_max,
            invalidate,
            batch_ops: 4,
            low: 1,
            high: 3,
            age: Duration::ZERO,
            order,
            ..PoolPolicy::default()
        };
        let (tell, told) = mpsc::channel();
        let observer = Observer::new(move |event| {
            let _gone = tell.send(event.clone());
        });
        let pool = MkeyPool::open_observed(fabric.function(HOST), policy, Some(observer))
            .expect("a good policy");
        fabric.set_faults(seed, rates);
        let mut live: Vec<Export<_>> = Vec::new();
        let mut lost: HashSet<Mkey> = HashSet::new();
        let mut released: Vec<(Mkey, Region)> = Vec::new();
        for action in actions {
            match action {
                PoolAction::Export { page, pages } => {
                    let (addr, len) = (VirtAddr::new(page << 12), pages << 12);
                    let region = Region::new(addr, len, Lkey::from_raw(1)).expect("a region");
                    if let Ok(export) = pool.export(region) {
                        live.push(export);
                    }
                }
                PoolAction::ExportMany { page, count } => {
                    let region = |number: usize| {
                        let addr = VirtAddr::new((page + number as u64) << 12);
                        Region::new(addr, 0x1000, Lkey::from_raw(1)).expect("a region")
                    };
                    let regions: Vec<_> = (0..count).map(region).collect();
                    let results = pool.export_many(&regions);
                    prop_assert_eq!(results.len(), count);
                    for (result, region) in results.into_iter().zip(regions) {
                        if let Ok(export) = result {
                            prop_assert_eq!(region_of(&export), region);
                            live.push(export);
                        }
                    }
                }
                PoolAction::Flush => {
                    pool.flush();
                    lost.extend(lost_since(&told));
                    let out = released.drain(..).filter(|(mkey, _)| !lost.contains(mkey));
                    for (mkey, region) in out {
                        if live.iter().all(|export| export.mkey() != mkey) {
                            let lkey = Lkey::from_raw(mkey.raw());
                            prop_assert!(fabric.reach(HOST, lkey, region.addr(), 1).is_err());
                        }
                    }
                }
                PoolAction::Upkeep => {
                    pool.upkeep();
                }
                PoolAction::Shed => {
                    pool.shed(2);
                }
                PoolAction::Release { which } if !live.is_empty() => {
                    let export = live.swap_remove(which.index(live.len()));
                    let (mkey, region) = (export.mkey(), region_of(&export));
                    let result = export.release();
                    if result.is_ok() && invalidate == Invalidate::Strict {
                        let lkey = Lkey::from_raw(mkey.raw());
                        prop_assert!(fabric.reach(HOST, lkey, region.addr(), 1).is_err());
                    }
                    released.push((mkey, region));
                }
                PoolAction::Drop { which } if !live.is_empty() => {
                    let export = live.swap_remove(which.index(live.len()));
                    released.push((export.mkey(), region_of(&export)));
                }
                PoolAction::LeaseAndReturn => drop(pool.lease()),
                PoolAction::Release { .. } | PoolAction::Drop { .. } => {}
            }
            lost.extend(lost_since(&told));
            let keys: HashSet<Mkey> = live.iter().map(Export::mkey).collect();
            prop_assert_eq!(keys.len(), live.len());
            prop_assert!(keys.is_disjoint(&lost));
            prop_assert!(fabric.objects(HOST) <= mkeys_max as usize);
            for export in &live {
                let (lkey, region) = (Lkey::from_raw(export.mkey().raw()), region_of(export));
                let reach = |addr, len| fabric.reach(HOST, lkey, addr, len);
                prop_assert_eq!(reach(region.addr(), region.len()), Ok(region));
                prop_assert!(reach(region.addr(), region.len() + 1).is_err());
            }
        }
        fabric.set_faults(0, FaultRates::default());
        pool.close();
        prop_assert_eq!(fabric.objects(HOST), 0);
    }
}

fn lost_since(told: &mpsc::Receiver<PoolEvent>) -> impl Iterator<Item = Mkey> {
    told.try_iter().filter_map(|event| match event {
        PoolEvent::Lost { mkey, .. } => Some(mkey),
        _ => None,
    })
}

#[derive(Clone, Debug)]
enum AliasAction {
    Attach { key: usize },
    Detach { which: prop::sample::Index },
    Pin { which: prop::sample::Index },
    Restart { key: usize },
    Reap { owner: u64 },
}

const KEYS: usize = 8;

fn alias_action() -> impl Strategy<Value = AliasAction> {
    prop_oneof![
        6 => (0..KEYS).prop_map(|key| AliasAction::Attach { key }),
        5 => any::<prop::sample::Index>().prop_map(|which| AliasAction::Detach { which }),
        1 => any::<prop::sample::Index>().prop_map(|which| AliasAction::Pin { which }),
        1 => (0..KEYS).prop_map(|key| AliasAction::Restart { key }),
        1 => (0..4u64).prop_map(|owner| AliasAction::Reap { owner }),
    ]
}

/// Expected content of the map: owner and time of the last unpin for each key.
#[derive(Default)]
struct Model {
    entries: BTreeMap<usize, ModelEntry>,
    clock: u64,
}

#[derive(Clone, Copy)]
struct ModelEntry {
    owner: u64,
    pins: usize,
    used: u64,
}

impl Model {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Whether the map must create the alias; `None` if the map is full.
    fn attach(&mut self, key: usize, owner: u64, max: usize) -> Option<bool> {
        let has_space = self.entries.len() < max;
        match self.entries.get_mut(&key) {
            Some(entry) if entry.owner == owner => {
                entry.pins += 1;
                return Some(false);
            }
            Some(_) => {}
            None if has_space => {}
            None => {
                let unpinned = self.entries.iter().filter(|(_, entry)| entry.pins == 0);
                let oldest = *unpinned.min_by_key(|(_, entry)| entry.used)?.0;
                self.entries.remove(&oldest);
            }
        }
        let used = self.tick();
        self.entries.insert(
            key,
            ModelEntry {
                owner,
                pins: 1,
                used,
            },
        );
        Some(true)
    }

    fn detach(&mut self, key: usize, owner: u64) {
        let used = self.tick();
        if let Some(entry) = self.entries.get_mut(&key)
            && entry.owner == owner
            && entry.pins > 0
        {
            entry.pins -= 1;
            entry.used = used;
        }
    }
}

proptest! {
    #[test]
    fn the_alias_map_keeps_its_promises(
        actions in prop::collection::vec(alias_action(), 1..160),
        aliases_max in 1..6usize,
    ) {
        let fabric = SimFabric::new();
        let pool = MkeyPool::open(fabric.function(HOST), PoolPolicy::default()).expect("a pool");
        let exports: Vec<_> = (0..KEYS as u64)
            .map(|number| {
                let addr = VirtAddr::new((number + 1) << 12);
                let region = Region::new(addr, 0x1000, Lkey::from_raw(1)).expect("a region");
                pool.export(region).expect("a key")
            })
            .collect();
        // Owners of the keys. A restarted exporter is a new owner of the same key.
        let mut owners = [1u64; KEYS];
        let mut next_owner = 2u64;
        let policy = AliasPolicy {
            aliases_max: u32::try_from(aliases_max).expect("small"),
            ..AliasPolicy::default()
        };
        let map = AliasMap::open(fabric.function(DPU), policy).expect("a good policy");
        let mut model = Model::default();
        // Generations distinguish pins of the present entry from pins of a removed entry.
        let mut pins: Vec<(usize, u64, u64, AliasRef<_>)> = Vec::new();
        let mut generation = [0u64; KEYS];
        for action in actions {
            match action {
                AliasAction::Attach { key } => {
                    let remote = RemoteKey {
                        gvmi: HOST,
                        mkey: exports[key].mkey(),
                        owner: OwnerUuid::new(owners[key]),
                    };
                    let before = map.stats().creates;
                    let got = map.attach(remote);
                    let expect = model.attach(key, owners[key], aliases_max);
                    match expect {
                        None => {
                            let full = matches!(got, Err(AliasError::Full { .. }));
                            prop_assert!(full, "the model says full, the map {:?}", got);
                        }
                        Some(made) => {
                            let alias = got.expect("there is room");
                            prop_assert_eq!(map.stats().creates - before, u64::from(made));
                            generation[key] += u64::from(made);
                            pins.push((key, owners[key], generation[key], alias));
                        }
                    }
                }
                AliasAction::Detach { which } if !pins.is_empty() => {
                    let (key, owner, born, alias) = pins.swap_remove(which.index(pins.len()));
                    drop(alias);
                    if born == generation[key] {
                        model.detach(key, owner);
                    } else {
                        model.tick();
                    }
                }
                AliasAction::Pin { which } if !pins.is_empty() => {
                    let (key, owner, born, alias) = pins[which.index(pins.len())].clone();
                    if born == generation[key]
                        && let Some(entry) = model.entries.get_mut(&key)
                    {
                        entry.pins += 1;
                    }
                    pins.push((key, owner, born, alias));
                }
                AliasAction::Restart { key } => {
                    owners[key] = next_owner;
                    next_owner += 1;
                }
                AliasAction::Reap { owner } => {
                    let before = model.entries.len();
                    for (key, entry) in &model.entries {
                        if entry.owner == owner {
                            generation[*key] += 1;
                        }
                    }
                    model.entries.retain(|_, entry| entry.owner != owner);
                    let reaped = map.reap_owner(OwnerUuid::new(owner));
                    prop_assert_eq!(reaped, before - model.entries.len());
                }
                AliasAction::Detach { .. } | AliasAction::Pin { .. } => {}
            }
            prop_assert_eq!(map.len(), model.entries.len());
            for (key, _, _, alias) in &pins {
                let region = region_of(&exports[*key]);
                let reached = fabric.reach(DPU, alias.lkey(), region.addr(), region.len());
                prop_assert_eq!(reached, Ok(region));
            }
            let in_use: HashSet<Lkey> = pins.iter().map(|pin| pin.3.lkey()).collect();
            prop_assert!(fabric.objects(DPU) <= map.len() + in_use.len());
        }
        drop(pins);
        prop_assert_eq!(fabric.objects(DPU), map.len(), "nothing is left behind");
    }
}
