//! Marks and ages: the pool creates keys before they are needed and destroys idle keys.

use std::time::{Duration, Instant};

use xgvmi_pool::sim::{SimDevice, SimFabric};
use xgvmi_pool::{Gvmi, Lkey, MkeyPool, Observer, PoolEvent, PoolPolicy, Region, VirtAddr};

const HOST: Gvmi = Gvmi::new(1);

fn pool(fabric: &SimFabric, policy: PoolPolicy) -> MkeyPool<SimDevice> {
    MkeyPool::open(fabric.function(HOST), policy).expect("a good policy")
}

fn region() -> Region {
    Region::new(VirtAddr::new(0x1000), 0x1000, Lkey::from_raw(1)).expect("a region")
}

fn marks(low: u32, high: u32) -> PoolPolicy {
    // Without caches the number of free keys is exact.
    PoolPolicy {
        low,
        high,
        age: Duration::from_secs(3600),
        cache_keys: 0,
        ..PoolPolicy::default()
    }
}

#[test]
fn below_the_low_mark_keys_are_created_up_to_the_high_one() {
    let fabric = SimFabric::new();
    let pool = pool(&fabric, marks(4, 12));
    assert_eq!((pool.upkeep().created, pool.stats().keys), (12, 12));
    assert_eq!(pool.upkeep().created, 0, "enough");
    let exports: Vec<_> = (0..9).map(|_| pool.export(region())).collect();
    assert_eq!(pool.stats().misses, 0);
    assert_eq!(
        pool.upkeep().created,
        9,
        "three were free, twelve should be"
    );
    drop(exports);
    assert_eq!(pool.upkeep().created, 0);
}

#[test]
fn a_round_creates_no_more_than_sixty_four_keys() {
    let fabric = SimFabric::new();
    let pool = pool(&fabric, marks(200, 200));
    let rounds: Vec<_> = (0..5).map(|_| pool.upkeep().created).collect();
    assert_eq!(rounds, [64, 64, 64, 8, 0]);
}

#[test]
fn keys_that_are_not_needed_go_with_age_and_the_others_stay() {
    let fabric = SimFabric::new();
    let policy = PoolPolicy {
        prefill: 40,
        age: Duration::ZERO,
        ..marks(0, 8)
    };
    let pool = pool(&fabric, policy);
    // Ten of the keys are always in use. Of the thirty others eight may stay.
    let exports: Vec<_> = (0..10)
        .map(|_| pool.export(region()).expect("a key"))
        .collect();
    assert_eq!(pool.upkeep().destroyed, 22);
    assert_eq!((pool.stats().keys, pool.stats().aged), (18, 22));
    // They are free again, but were needed a moment ago: the minimum of free keys counts.
    drop(exports);
    let _one = pool.export(region()).expect("a key");
    assert_eq!(pool.upkeep().destroyed, 9);
    assert_eq!(pool.upkeep().destroyed, 0);
    assert_eq!(fabric.objects(HOST), 9);
}

#[test]
fn an_age_must_pass_before_a_key_goes() {
    let fabric = SimFabric::new();
    let pool = pool(
        &fabric,
        PoolPolicy {
            prefill: 40,
            ..marks(0, 8)
        },
    );
    assert_eq!(pool.upkeep().destroyed, 0);
    assert_eq!(pool.upkeep().destroyed, 0);
}

#[test]
fn the_keeper_fills_the_pool_without_being_asked() {
    let fabric = SimFabric::new();
    let pool = pool(
        &fabric,
        PoolPolicy {
            keeper: true,
            prefill: 8,
            ..marks(8, 16)
        },
    );
    let _export = pool.export(region()).expect("a key");
    let start = Instant::now();
    while pool.stats().keys < 17 {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "{:?}",
            pool.stats()
        );
        std::thread::yield_now();
    }
    assert!(pool.close());
    assert_eq!(fabric.objects(HOST), 0);
}

#[test]
fn the_keeper_does_not_keep_the_pool_alive() {
    let fabric = SimFabric::new();
    let pool = pool(
        &fabric,
        PoolPolicy {
            keeper: true,
            prefill: 8,
            ..marks(8, 16)
        },
    );
    drop(pool);
    let start = Instant::now();
    // It may be in the middle of a round.
    while fabric.objects(HOST) != 0 {
        assert!(start.elapsed() < Duration::from_secs(60));
        std::thread::yield_now();
    }
}

#[test]
fn a_full_device_is_told_to_the_observer_once() {
    let fabric = SimFabric::new();
    fabric.set_objects_max(2);
    let (tell, told) = std::sync::mpsc::channel();
    let observer = Observer::new(move |event| {
        let _gone = tell.send(event.clone());
    });
    let pool =
        MkeyPool::open_observed(fabric.function(HOST), PoolPolicy::default(), Some(observer))
            .expect("a good policy");
    let exports: Vec<_> = (0..5).map(|_| pool.export(region())).collect();
    assert_eq!(exports.iter().filter(|export| export.is_ok()).count(), 2);
    let events: Vec<_> = told.try_iter().collect();
    assert!(
        matches!(events[..], [PoolEvent::CapLowered { cap: 2, .. }]),
        "{events:?}"
    );
}
