//! Defects of stock UCX's own pool and alias table, each as a test that stock UCX would fail. The
//! numbers refer to a review of UCX 1.18 to 1.23. The tests of the work queue are beside the work
//! queue. Defects of UCX's upper layers are outside the pool's scope.

use std::time::Duration;

use xgvmi_pool::sim::{FaultRates, SimDevice, SimFabric};
use xgvmi_pool::{
    AliasMap, AliasPolicy, Export, Gvmi, Lkey, MkeyPool, OwnerUuid, PoolError, PoolPolicy, Region,
    RemoteKey, VirtAddr,
};

const HOST: Gvmi = Gvmi::new(1);
const DPU: Gvmi = Gvmi::new(2);
const ALWAYS: u16 = 1000;

fn pool(fabric: &SimFabric) -> MkeyPool<SimDevice> {
    MkeyPool::open(fabric.function(HOST), PoolPolicy::default()).expect("a good policy")
}

fn region(number: u64) -> Region {
    Region::new(VirtAddr::new((number + 1) << 20), 0x4000, Lkey::from_raw(1)).expect("a region")
}

fn key(export: &Export<SimDevice>, owner: u64) -> RemoteKey {
    RemoteKey {
        gvmi: HOST,
        mkey: export.mkey(),
        owner: OwnerUuid::new(owner),
    }
}

fn with_faults<R>(fabric: &SimFabric, rates: FaultRates, work: impl FnOnce() -> R) -> R {
    fabric.set_faults(1, rates);
    let result = work();
    fabric.set_faults(1, FaultRates::default());
    result
}

/// In stock UCX a failed bind has no fallback. Here the caller gets an error and can use its other
/// path.
#[test]
fn d3_a_failed_bind_is_an_answer() {
    let fabric = SimFabric::new();
    let pool = pool(&fabric);
    let rates = FaultRates {
        bind: ALWAYS,
        ..FaultRates::default()
    };
    let failed = with_faults(&fabric, rates, || pool.export(region(0)));
    assert!(matches!(failed, Err(PoolError::Bind { .. })));
    assert_eq!((fabric.bound(HOST), pool.stats().in_use), (0, 0));
}

/// In stock UCX, after one error completion every later export of the process fails.
#[test]
fn d4_an_error_ends_with_the_request_that_had_it() {
    let fabric = SimFabric::new();
    let pool = pool(&fabric);
    let rates = FaultRates {
        bind: ALWAYS,
        ..FaultRates::default()
    };
    assert!(with_faults(&fabric, rates, || pool.export(region(0))).is_err());
    for number in 0..10 {
        pool.export(region(number))
            .expect("as before")
            .release()
            .expect("released");
    }
}

/// In stock UCX, after a timeout a key is published before it is bound.
#[test]
fn d5_a_key_is_not_handed_out_before_it_is_known_to_be_bound() {
    for seed in 0..64 {
        let fabric = SimFabric::new();
        let pool = pool(&fabric);
        fabric.set_faults(
            seed,
            FaultRates {
                timeout: 500,
                ..FaultRates::default()
            },
        );
        for number in 0..20 {
            if let Ok(export) = pool.export(region(number)) {
                let (key, addr) = (Lkey::from_raw(export.mkey().raw()), region(number).addr());
                assert!(fabric.reach(HOST, key, addr, 0x4000).is_ok(), "seed {seed}");
            }
        }
    }
}

/// In stock UCX, a failed invalidation leaks the key, and the memory behind it stays pinned.
#[test]
fn d6_a_failed_invalidation_leaks_nothing() {
    let fabric = SimFabric::new();
    let pool = pool(&fabric);
    for number in 0..50 {
        let export = pool.export(region(number)).expect("a key");
        let rates = FaultRates {
            invalidate: ALWAYS,
            ..FaultRates::default()
        };
        with_faults(&fabric, rates, || export.release()).expect("dead, one way or the other");
        assert_eq!((fabric.bound(HOST), fabric.objects(HOST)), (0, 0));
    }
    assert_eq!(pool.stats().keys, 0);
}

/// In stock UCX, a restarted exporter that reuses a key number gets the dead exporter's alias.
#[test]
fn d7_a_successor_is_not_served_by_a_dead_alias() {
    let fabric = SimFabric::new();
    let map = AliasMap::open(fabric.function(DPU), AliasPolicy::default()).expect("a good policy");
    let mut numbers = Vec::new();
    for owner in 1..4 {
        let pool = pool(&fabric);
        let export = pool.export(region(owner)).expect("a key");
        numbers.push(export.mkey());
        let alias = map.attach(key(&export, owner)).expect("an alias");
        let reached = fabric.reach(DPU, alias.lkey(), region(owner).addr(), 0x4000);
        assert_eq!(reached, Ok(region(owner)));
        drop(alias);
        fabric.reset(HOST);
        std::mem::forget((export, pool));
    }
    assert!(
        numbers.iter().all(|number| *number == numbers[0]),
        "the number came back"
    );
    assert_eq!((map.stats().stale, map.len()), (2, 1));
}

/// In stock UCX, aliases live until the end of the process, and a stale one is destroyed while in
/// use.
#[test]
fn d8_aliases_are_bounded_and_live_while_they_are_used() {
    let fabric = SimFabric::new();
    let pool = pool(&fabric);
    let policy = AliasPolicy {
        aliases_max: 16,
        ..AliasPolicy::default()
    };
    let map = AliasMap::open(fabric.function(DPU), policy).expect("a good policy");
    let first = pool.export(region(0)).expect("a key");
    let used = map.attach(key(&first, 1)).expect("an alias");
    let exports: Vec<_> = (1..100).map(|number| pool.export(region(number))).collect();
    for export in exports.iter().flatten() {
        drop(map.attach(key(export, 1)).expect("an alias"));
        assert!(fabric.objects(DPU) <= 16);
    }
    // The same key of another owner: stale, and still in use.
    drop(map.attach(key(&first, 2)).expect("an alias"));
    assert!(fabric.reach(DPU, used.lkey(), region(0).addr(), 1).is_ok());
}

/// In stock UCX, the pool only grows, starts empty, and binds the last released key first.
#[test]
fn d9_the_pool_is_bounded_and_filled_ahead_and_lets_keys_rest() {
    let fabric = SimFabric::new();
    let policy = PoolPolicy {
        mkeys_max: 8,
        prefill: 8,
        high: 2,
        age: Duration::ZERO,
        ..PoolPolicy::default()
    };
    let pool = MkeyPool::open(fabric.function(HOST), policy).expect("a good policy");
    assert_eq!(fabric.counts().create_mkey, 8);
    let exports: Vec<_> = (0..8).map(|number| pool.export(region(number))).collect();
    assert!(pool.export(region(8)).is_err_and(|error| error.is_full()));
    let last = exports
        .last()
        .and_then(|export| export.as_ref().ok())
        .map(Export::mkey);
    drop(exports);
    let next = pool.export(region(9)).expect("a key");
    assert_ne!(Some(next.mkey()), last);
    drop(next);
    assert_eq!(
        pool.upkeep().destroyed,
        0,
        "all of them were needed a moment ago"
    );
    assert_eq!(
        pool.upkeep().destroyed,
        6,
        "six of eight are idle beyond the high mark"
    );
}

/// In stock UCX, list, table and queue are not thread-safe.
#[test]
fn d10_threads_do_not_harm_each_other() {
    let fabric = SimFabric::new();
    let pool = pool(&fabric);
    let map = AliasMap::open(fabric.function(DPU), AliasPolicy::default()).expect("a good policy");
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (pool, map, fabric) = (&pool, &map, &fabric);
            scope.spawn(move || {
                for round in 0..200 {
                    let mine = region(thread * 1000 + round);
                    let export = pool.export(mine).expect("a key");
                    let alias = map.attach(key(&export, 1)).expect("an alias");
                    let reached = fabric.reach(DPU, alias.lkey(), mine.addr(), mine.len());
                    assert_eq!(reached, Ok(mine));
                    export.release().expect("released");
                }
            });
        }
    });
    let stats = (pool.stats().binds, pool.stats().in_use, map.stats().creates);
    assert_eq!((stats.0, stats.1), (800, 0));
    assert_eq!(stats.2, pool.stats().creates, "one alias for each key");
}
