//! Models for loom: small programs of two or three threads. Loom runs them in every order of their
//! steps. The device is simulated, and one call of it is one step. It refuses to bind a key that is
//! not free, and a slot refuses a second owner. A model that runs to its end has kept both
//! promises.

use std::sync::Arc;
use std::time::Duration;

use loom::thread;

use crate::keeper::Wanted;
use crate::sim::{SimDevice, SimFabric};
use crate::sync::{AtomicUsize, Ordering};
use crate::{
    AliasError, AliasMap, AliasPolicy, Gvmi, Invalidate, Lkey, MkeyPool, OnFull, OwnerUuid,
    PoolError, PoolPolicy, Region, RemoteKey, VirtAddr,
};

const HOST: Gvmi = Gvmi::new(1);
const DPU: Gvmi = Gvmi::new(2);

/// No limit, because loom has no clock.
const FOREVER: Duration = Duration::from_secs(3600);

/// Runs a model. The number of preemptions is bounded, which still finds nearly all errors (loom's
/// own advice is two or three).
fn model(body: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.max_branches = 10_000;
    builder.check(body);
}

fn pool(fabric: &SimFabric, policy: PoolPolicy) -> MkeyPool<SimDevice> {
    MkeyPool::open(fabric.function(HOST), policy).expect("a good policy")
}

fn region(number: u64) -> Region {
    Region::new(VirtAddr::new((number + 1) << 12), 0x1000, Lkey::from_raw(1)).expect("a region")
}

/// Exports, checks that the key reaches the region, and releases.
fn use_once(pool: &MkeyPool<SimDevice>, fabric: &SimFabric, number: u64) -> Result<(), PoolError> {
    let export = pool.export(region(number))?;
    let key = Lkey::from_raw(export.mkey().raw());
    let reached = fabric.reach(HOST, key, region(number).addr(), 0x1000);
    assert_eq!(reached, Ok(region(number)));
    export.release().expect("released");
    Ok(())
}

#[test]
fn two_threads_never_hold_one_key() {
    model(|| {
        let fabric = SimFabric::new();
        let policy = PoolPolicy {
            mkeys_max: 2,
            prefill: 2,
            ..PoolPolicy::default()
        };
        let pool = pool(&fabric, policy);
        let other = {
            let pool = pool.clone();
            thread::spawn(move || drop(pool.lease().expect("two keys for two threads")))
        };
        let lease = pool.lease().expect("two keys for two threads");
        drop(lease.bind(region(0)).expect("a free key"));
        other.join().expect("no panic");
        assert_eq!(pool.levels().free, 2);
    });
}

#[test]
fn keys_in_caches_are_in_one_place() {
    model(|| {
        let fabric = SimFabric::new();
        // Large enough for caches of one key.
        let policy = PoolPolicy {
            mkeys_max: 1024,
            prefill: 2,
            cache_keys: 1,
            ..PoolPolicy::default()
        };
        let pool = pool(&fabric, policy);
        let other = {
            let pool = pool.clone();
            thread::spawn(move || {
                drop(pool.lease().expect("a key"));
                drop(pool.lease().expect("a key"));
            })
        };
        drop(pool.lease().expect("a key"));
        other.join().expect("no panic");
        let levels = pool.levels();
        assert_eq!(
            levels.free,
            u32::try_from(pool.stats().keys).expect("a few")
        );
    });
}

#[test]
fn whoever_waits_is_served() {
    model(|| {
        let fabric = SimFabric::new();
        let policy = PoolPolicy {
            mkeys_max: 1,
            on_full: OnFull::Wait(FOREVER),
            ..PoolPolicy::default()
        };
        let pool = pool(&fabric, policy);
        let other = {
            let (pool, fabric) = (pool.clone(), fabric.clone());
            thread::spawn(move || use_once(&pool, &fabric, 1).expect("served"))
        };
        use_once(&pool, &fabric, 0).expect("served");
        other.join().expect("no panic");
        assert_eq!((pool.levels().free, pool.stats().keys), (1, 1));
    });
}

#[test]
fn closing_lets_go_of_those_who_wait() {
    model(|| {
        let fabric = SimFabric::new();
        let policy = PoolPolicy {
            mkeys_max: 1,
            on_full: OnFull::Wait(FOREVER),
            ..PoolPolicy::default()
        };
        let pool = pool(&fabric, policy);
        let held = pool.export(region(0)).expect("a key");
        let other = {
            let pool = pool.clone();
            thread::spawn(move || pool.export(region(1)).map(drop))
        };
        assert!(pool.close());
        assert_eq!(other.join().expect("no panic"), Err(PoolError::Closed));
        drop(held);
        assert_eq!(fabric.objects(HOST), 0);
    });
}

#[track_caller]
fn check_deferred(invalidate: Invalidate) {
    model(move || {
        let fabric = SimFabric::new();
        let policy = PoolPolicy {
            mkeys_max: 2,
            invalidate,
            // A model has no clock.
            batch_time: FOREVER,
            batch_ops: 2,
            ..PoolPolicy::default()
        };
        let pool = pool(&fabric, policy);
        let other = {
            let (pool, fabric) = (pool.clone(), fabric.clone());
            thread::spawn(move || use_once(&pool, &fabric, 1))
        };
        let mine = use_once(&pool, &fabric, 0).and_then(|()| use_once(&pool, &fabric, 2));
        pool.flush();
        // `Full` is a correct result while the other thread has both keys in use.
        for result in [mine, other.join().expect("no panic")] {
            assert!(
                matches!(result, Ok(()) | Err(PoolError::Full { .. })),
                "{result:?}"
            );
        }
        pool.flush();
        assert_eq!((fabric.bound(HOST), pool.stats().lost), (0, 0));
    });
}

#[test]
fn a_batched_key_is_not_handed_out_before_it_is_free() {
    check_deferred(Invalidate::Batched);
}

#[test]
fn a_chained_key_is_not_handed_out_before_it_is_free() {
    check_deferred(Invalidate::Chained);
}

#[test]
fn closing_and_releasing_do_not_meet() {
    model(|| {
        let fabric = SimFabric::new();
        let pool = pool(
            &fabric,
            PoolPolicy {
                mkeys_max: 1,
                ..PoolPolicy::default()
            },
        );
        let export = pool.export(region(0)).expect("a key");
        let other = thread::spawn(move || export.release().expect("free or gone"));
        assert!(pool.close());
        other.join().expect("no panic");
        assert_eq!(fabric.objects(HOST), 0);
        assert_eq!(fabric.counts().destroy_mkey, 1);
    });
}

/// A pool with one cache of one key: a thread that finds the cache free binds and
/// invalidates under its claim, and the other thread takes the path through the gate.
fn with_one_cache(fabric: &SimFabric) -> MkeyPool<SimDevice> {
    let policy = PoolPolicy {
        mkeys_max: 8,
        prefill: 2,
        caches: 1,
        cache_keys: 1,
        ..PoolPolicy::default()
    };
    pool(fabric, policy)
}

#[test]
fn two_threads_bind_with_one_cache() {
    model(|| {
        let fabric = SimFabric::new();
        let pool = with_one_cache(&fabric);
        let other = {
            let (pool, fabric) = (pool.clone(), fabric.clone());
            thread::spawn(move || use_once(&pool, &fabric, 1).expect("a key"))
        };
        use_once(&pool, &fabric, 0).expect("a key");
        other.join().expect("no panic");
        let stats = pool.stats();
        assert_eq!((stats.binds, stats.invalidates, stats.in_use), (2, 2, 0));
        assert_eq!(
            (fabric.bound(HOST), u64::from(pool.levels().free)),
            (0, stats.keys)
        );
    });
}

#[test]
fn closing_waits_for_a_bind_in_a_cache() {
    model(|| {
        let fabric = SimFabric::new();
        let pool = with_one_cache(&fabric);
        let other = {
            let pool = pool.clone();
            thread::spawn(move || pool.export(region(1)).map(drop))
        };
        assert!(pool.close());
        let result = other.join().expect("no panic");
        assert!(
            matches!(result, Ok(()) | Err(PoolError::Closed)),
            "{result:?}"
        );
        assert_eq!(fabric.objects(HOST), 0);
    });
}

#[test]
fn closing_waits_for_an_invalidation_in_a_cache() {
    model(|| {
        let fabric = SimFabric::new();
        let pool = with_one_cache(&fabric);
        let export = pool.export(region(0)).expect("a key");
        let keys = pool.stats().keys;
        let other = thread::spawn(move || export.release().expect("free or gone"));
        assert!(pool.close());
        other.join().expect("no panic");
        assert_eq!(fabric.objects(HOST), 0);
        assert_eq!(fabric.counts().destroy_mkey, keys);
    });
}

/// An alias map for bound keys of the host.
fn aliases(
    fabric: &SimFabric,
    keys: u64,
    aliases_max: u32,
) -> (Arc<AliasMap<SimDevice>>, Vec<RemoteKey>) {
    let pool = pool(
        fabric,
        PoolPolicy {
            mkeys_max: 4,
            ..PoolPolicy::default()
        },
    );
    let keys = (0..keys)
        .map(|number| {
            let export = pool.export(region(number)).expect("a key");
            let key = RemoteKey {
                gvmi: HOST,
                mkey: export.mkey(),
                owner: OwnerUuid::new(1),
            };
            std::mem::forget(export);
            key
        })
        .collect();
    let policy = AliasPolicy {
        aliases_max,
        create_wait: FOREVER,
        ..AliasPolicy::default()
    };
    (
        Arc::new(AliasMap::open(fabric.function(DPU), policy).expect("a good policy")),
        keys,
    )
}

/// Attaches, checks that the alias reaches the region, and detaches.
fn attach_once(
    map: &AliasMap<SimDevice>,
    fabric: &SimFabric,
    key: RemoteKey,
    number: u64,
) -> Result<(), AliasError> {
    let alias = map.attach(key)?;
    let reached = fabric.reach(DPU, alias.lkey(), region(number).addr(), 1);
    assert_eq!(reached, Ok(region(number)));
    Ok(())
}

#[test]
fn two_misses_on_one_key_make_one_alias() {
    model(|| {
        let fabric = SimFabric::new();
        let (map, keys) = aliases(&fabric, 1, 4);
        let other = {
            let (map, fabric, key) = (Arc::clone(&map), fabric.clone(), keys[0]);
            thread::spawn(move || attach_once(&map, &fabric, key, 0))
        };
        attach_once(&map, &fabric, keys[0], 0).expect("an alias");
        other.join().expect("no panic").expect("an alias");
        assert_eq!((fabric.counts().create_alias, map.len()), (1, 1));
    });
}

#[test]
fn an_alias_in_use_is_not_put_out() {
    model(|| {
        let fabric = SimFabric::new();
        let (map, keys) = aliases(&fabric, 2, 1);
        let other = {
            let (map, fabric, key) = (Arc::clone(&map), fabric.clone(), keys[1]);
            thread::spawn(move || attach_once(&map, &fabric, key, 1))
        };
        let mine = attach_once(&map, &fabric, keys[0], 0);
        for result in [mine, other.join().expect("no panic")] {
            assert!(
                matches!(result, Ok(()) | Err(AliasError::Full { .. })),
                "{result:?}"
            );
        }
        assert_eq!(
            map.len(),
            fabric.objects(DPU),
            "what is out of the map is destroyed"
        );
    });
}

/// One thread finds an alias without a lock while another one evicts it.
#[test]
fn a_hit_meets_an_eviction() {
    model(|| {
        let fabric = SimFabric::new();
        let (map, keys) = aliases(&fabric, 2, 1);
        attach_once(&map, &fabric, keys[0], 0).expect("an alias");
        let other = {
            let (map, fabric, key) = (Arc::clone(&map), fabric.clone(), keys[1]);
            thread::spawn(move || attach_once(&map, &fabric, key, 1))
        };
        if let Some(alias) = map.find(&keys[0]) {
            let reached = fabric.reach(DPU, alias.lkey(), region(0).addr(), 1);
            assert_eq!(reached, Ok(region(0)));
        }
        let result = other.join().expect("no panic");
        assert!(
            matches!(result, Ok(()) | Err(AliasError::Full { .. })),
            "{result:?}"
        );
        assert_eq!(map.len(), fabric.objects(DPU));
        let stats = map.stats();
        assert!(stats.hits <= 1 && stats.creates - stats.destroys == 1);
    });
}

#[test]
fn reaping_meets_attaching() {
    model(|| {
        let fabric = SimFabric::new();
        let (map, keys) = aliases(&fabric, 1, 4);
        let other = {
            let (map, fabric, key) = (Arc::clone(&map), fabric.clone(), keys[0]);
            thread::spawn(move || attach_once(&map, &fabric, key, 0))
        };
        map.reap_owner(OwnerUuid::new(1));
        other.join().expect("no panic").expect("an alias");
        map.reap_owner(OwnerUuid::new(1));
        assert_eq!((map.len(), fabric.objects(DPU)), (0, 0));
    });
}

/// The map is full at the claim and empty at the eviction.
#[test]
fn reaping_gives_a_full_map_space() {
    model(|| {
        let fabric = SimFabric::new();
        let (map, keys) = aliases(&fabric, 2, 1);
        attach_once(&map, &fabric, keys[0], 0).expect("an alias");
        let other = {
            let (map, fabric, key) = (Arc::clone(&map), fabric.clone(), keys[1]);
            thread::spawn(move || attach_once(&map, &fabric, key, 1))
        };
        map.reap_owner(OwnerUuid::new(1));
        other.join().expect("no panic").expect("an alias");
        assert_eq!(map.len(), fabric.objects(DPU));
    });
}

#[test]
fn closing_meets_attaching() {
    model(|| {
        let fabric = SimFabric::new();
        let (map, keys) = aliases(&fabric, 1, 4);
        let other = {
            let (map, key) = (Arc::clone(&map), keys[0]);
            thread::spawn(move || map.attach(key).map(drop))
        };
        assert!(map.close());
        let result = other.join().expect("no panic");
        assert!(
            matches!(result, Ok(()) | Err(AliasError::Closed)),
            "{result:?}"
        );
        assert_eq!(fabric.objects(DPU), 0);
    });
}

/// A thread changes the pool and asks for a round while the keeper takes an earlier request.
#[test]
fn a_request_for_a_round_is_not_lost() {
    model(|| {
        let wanted = Arc::new(Wanted::default());
        let change = Arc::new(AtomicUsize::new(0));
        assert!(wanted.ask());
        let other = {
            let (wanted, change) = (Arc::clone(&wanted), Arc::clone(&change));
            thread::spawn(move || {
                change.store(1, Ordering::Relaxed);
                let _sleeps = wanted.ask();
            })
        };
        wanted.take();
        let seen = change.load(Ordering::Relaxed);
        other.join().expect("no panic");
        assert!(
            seen == 1 || wanted.is_set(),
            "the keeper does not see the change"
        );
    });
}
