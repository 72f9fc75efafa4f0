//! Chains: the number of requests per doorbell, and the time at which a released key becomes
//! unreachable.

use std::time::{Duration, Instant};

use xgvmi_pool::sim::{FaultRates, SimDevice, SimFabric};
use xgvmi_pool::{
    Export, Gvmi, Invalidate, Lkey, MkeyPool, PoolError, PoolPolicy, Region, Span, VirtAddr,
};

const HOST: Gvmi = Gvmi::new(1);

fn pool(fabric: &SimFabric, invalidate: Invalidate) -> MkeyPool<SimDevice> {
    let policy = PoolPolicy {
        invalidate,
        prefill: 64,
        // The test counts chains, also on a slow machine.
        batch_time: Duration::from_secs(3600),
        ..PoolPolicy::default()
    };
    MkeyPool::open(fabric.function(HOST), policy).expect("a good policy")
}

fn regions(count: u64) -> Vec<Region> {
    let region = |number| Region::new(VirtAddr::new((number + 1) << 20), 0x4000, Lkey::from_raw(1));
    (0..count)
        .map(|number| region(number).expect("a region"))
        .collect()
}

fn export_all(pool: &MkeyPool<SimDevice>, count: u64) -> Vec<Export<SimDevice>> {
    let exports: Result<Vec<_>, _> = pool.export_many(&regions(count)).into_iter().collect();
    exports.expect("all of them")
}

fn release_all(exports: Vec<Export<SimDevice>>) {
    exports
        .into_iter()
        .for_each(|export| export.release().expect("released"));
}

fn reaches(fabric: &SimFabric, export: &Export<SimDevice>) -> bool {
    let key = Lkey::from_raw(export.mkey().raw());
    let reached = fabric.reach(HOST, key, export.addr(), export.len());
    reached.is_ok_and(|region| (region.addr(), region.len()) == (export.addr(), export.len()))
}

/// Doorbells of three rounds of 64 exports and 64 releases, the last round with a flush behind it.
#[track_caller]
fn check_doorbells(invalidate: Invalidate, expect: [u64; 3]) {
    let fabric = SimFabric::new();
    let pool = pool(&fabric, invalidate);
    let mut before = 0;
    for (round, expect) in expect.into_iter().enumerate() {
        let exports = export_all(&pool, 64);
        assert!(exports.iter().all(|export| reaches(&fabric, export)));
        release_all(exports);
        if round == 2 {
            pool.flush();
        }
        let chains = fabric.counts().chains;
        assert_eq!(chains - before, expect, "round {round}");
        before = chains;
    }
    assert_eq!(fabric.counts().create_mkey, 64, "and no key beyond the 64");
    assert_eq!((fabric.bound(HOST), pool.stats().pending), (0, 0));
}

#[test]
fn sixty_four_exports_and_releases_share_doorbells() {
    check_doorbells(Invalidate::Strict, [65, 65, 65]);
    check_doorbells(Invalidate::Batched, [2, 2, 2]);
}

#[test]
fn a_released_key_is_freed_in_front_of_the_next_bind() {
    let fabric = SimFabric::new();
    let pool = pool(&fabric, Invalidate::Chained);
    let region = regions(1)[0];
    let mut export = pool.export(region).expect("a key");
    for _ in 0..100 {
        export.release().expect("released");
        export = pool.export(region).expect("a key");
    }
    assert_eq!(
        fabric.counts().chains,
        101,
        "one doorbell for each release and export"
    );
    assert_eq!(
        (fabric.counts().binds, fabric.counts().invalidates),
        (101, 100)
    );
    assert!(reaches(&fabric, &export));
}

/// Whether the region is still reachable after the release, and after a flush.
#[track_caller]
fn check_reach(invalidate: Invalidate, after_release: bool) {
    let fabric = SimFabric::new();
    let pool = pool(&fabric, invalidate);
    let export = pool.export(regions(1)[0]).expect("a key");
    let (key, addr) = (Lkey::from_raw(export.mkey().raw()), export.addr());
    export.release().expect("released");
    assert_eq!(fabric.reach(HOST, key, addr, 1).is_ok(), after_release);
    pool.flush();
    assert!(fabric.reach(HOST, key, addr, 1).is_err());
}

#[test]
fn only_the_strict_mode_ends_access_at_once() {
    check_reach(Invalidate::Strict, false);
    check_reach(Invalidate::Batched, true);
    check_reach(Invalidate::Chained, true);
}

#[test]
fn a_key_that_waits_for_its_invalidation_is_not_handed_out() {
    for invalidate in [Invalidate::Batched, Invalidate::Chained] {
        let fabric = SimFabric::new();
        let policy = PoolPolicy {
            invalidate,
            mkeys_max: 4,
            ..PoolPolicy::default()
        };
        let pool = MkeyPool::open(fabric.function(HOST), policy).expect("a good policy");
        let mut exports = export_all(&pool, 4);
        // All four are released but none is free: the pool frees them before it reports an error.
        for _ in 0..10 {
            release_all(exports);
            exports = export_all(&pool, 4);
            assert!(exports.iter().all(|export| reaches(&fabric, export)));
        }
        assert_eq!(fabric.counts().create_mkey, 4);
    }
}

#[test]
fn no_more_keys_wait_than_the_policy_says() {
    let fabric = SimFabric::new();
    let policy = PoolPolicy {
        invalidate: Invalidate::Batched,
        batch_ops: 8,
        ..PoolPolicy::default()
    };
    let pool = MkeyPool::open(fabric.function(HOST), policy).expect("a good policy");
    for export in export_all(&pool, 30) {
        export.release().expect("released");
        assert!(pool.stats().pending < 8);
    }
    assert_eq!((pool.stats().pending, pool.stats().invalidates), (6, 24));
}

#[test]
fn a_chain_is_no_longer_than_the_device_takes() {
    let fabric = SimFabric::new();
    fabric.set_chain_ops_max(10);
    let pool = pool(&fabric, Invalidate::Strict);
    let exports = export_all(&pool, 64);
    assert_eq!(fabric.counts().chains, 7);
    release_all(exports);

    // A region of ten entries has twice the weight of one of up to four.
    let len = 10 * Region::KLM_BYTES_MAX;
    let long = Region::new(VirtAddr::new(1 << 40), len, Lkey::from_raw(1)).expect("a region");
    let before = fabric.counts().chains;
    let results = pool.export_many(&[long; 10]);
    assert!(results.iter().all(Result::is_ok));
    assert_eq!(fabric.counts().chains - before, 2);
}

#[test]
fn memory_of_several_registrations_takes_one_key_and_one_request() {
    let fabric = SimFabric::new();
    let pool = pool(&fabric, Invalidate::Strict);
    let part = |addr, lkey| Region::new(VirtAddr::new(addr), 0x1000, Lkey::from_raw(lkey));
    let parts = [0, 1, 2]
        .map(|number| part(0x10_0000 + 0x1000 * u64::from(number), 7 + number).expect("a region"));
    let export = pool
        .export(Span::of(&parts).expect("no gap"))
        .expect("a key");
    assert_eq!((export.addr(), export.len()), (parts[0].addr(), 0x3000));
    let key = Lkey::from_raw(export.mkey().raw());
    for part in &parts {
        assert_eq!(fabric.reach(HOST, key, part.addr(), 1), Ok(*part));
    }
    assert!(fabric.reach(HOST, key, parts[0].addr(), 0x3000).is_ok());
    assert!(fabric.reach(HOST, key, parts[0].addr(), 0x3001).is_err());
    assert_eq!(fabric.counts().chains, 1);
    export.release().expect("released");
    assert!(fabric.reach(HOST, key, parts[1].addr(), 1).is_err());

    // As many pieces as a key has entries, and one more.
    let many: Vec<_> = (0..17)
        .map(|number| part(0x10_0000 + 0x1000 * number, 7).expect("a region"))
        .collect();
    let export = |parts| pool.export(Span::of(parts).expect("no gap"));
    assert!(export(&many[..16]).is_ok());
    assert!(matches!(
        export(&many),
        Err(PoolError::RegionTooLong {
            entries: 17,
            entries_max: 16,
            ..
        })
    ));
}

#[test]
fn what_fails_in_a_batch_fails_alone_or_with_those_behind_it() {
    let fabric = SimFabric::new();
    let pool = pool(&fabric, Invalidate::Strict);
    let mut wanted = regions(8);
    wanted[3] = Region::new(VirtAddr::new(0x1000), 1 << 40, Lkey::from_raw(1)).expect("a region");
    let results = pool.export_many(&wanted);
    for (number, result) in results.iter().enumerate() {
        match result {
            Ok(export) => assert!(number != 3 && export.addr() == wanted[number].addr()),
            Err(error) => {
                assert!(number == 3 && matches!(error, PoolError::RegionTooLong { .. }));
            }
        }
    }
    drop(results);

    fabric.set_faults(
        5,
        FaultRates {
            bind: 300,
            ..FaultRates::default()
        },
    );
    let results = pool.export_many(&regions(8));
    fabric.set_faults(0, FaultRates::default());
    let bound = results.iter().take_while(|result| result.is_ok()).count();
    assert!(
        (1..8).contains(&bound),
        "the seed makes a request in the middle fail"
    );
    assert!(
        results[bound..]
            .iter()
            .all(|result| matches!(result, Err(PoolError::Bind { .. })))
    );
    assert_eq!(fabric.bound(HOST), bound);
    drop(results);
    assert_eq!(fabric.bound(HOST), 0);
    assert_eq!(export_all(&pool, 64).len(), 64, "no key was lost");
    assert_eq!(fabric.counts().create_mkey, 64);
}

/// In the modes that defer invalidation, the first released key waits no longer than the limit.
#[track_caller]
fn check_time(invalidate: Invalidate) {
    let fabric = SimFabric::new();
    let policy = PoolPolicy {
        invalidate,
        prefill: 8,
        batch_time: Duration::ZERO,
        ..PoolPolicy::default()
    };
    let pool = MkeyPool::open(fabric.function(HOST), policy).expect("a pool");
    let export = |number: usize| pool.export(regions(4)[number]).expect("a key");
    let (first, second) = (export(1), export(2));
    first.release().expect("released");
    // A release is the next call, and the limit is zero.
    assert_eq!(pool.stats().pending, 0, "{invalidate:?}");
    drop(second);

    let patient = PoolPolicy {
        invalidate,
        prefill: 8,
        batch_time: Duration::from_secs(3600),
        ..PoolPolicy::default()
    };
    let pool = MkeyPool::open(fabric.function(HOST), patient).expect("a pool");
    drop(pool.export(regions(4)[3]).expect("a key"));
    pool.upkeep();
    assert_eq!(pool.stats().pending, 1, "{invalidate:?}");
}

#[test]
fn a_released_key_waits_no_longer_than_the_policy_says() {
    check_time(Invalidate::Batched);
    check_time(Invalidate::Chained);
}

#[test]
fn the_keeper_ends_the_wait_where_nobody_calls() {
    let fabric = SimFabric::new();
    let policy = PoolPolicy {
        invalidate: Invalidate::Batched,
        prefill: 8,
        keeper: true,
        batch_time: Duration::from_millis(5),
        ..PoolPolicy::default()
    };
    let pool = MkeyPool::open(fabric.function(HOST), policy).expect("a pool");
    drop(pool.export(regions(4)[1]).expect("a key"));
    let limit = Instant::now() + Duration::from_secs(60);
    while fabric.bound(HOST) > 0 {
        assert!(Instant::now() < limit, "nobody invalidates");
        std::thread::yield_now();
    }
    assert_eq!(pool.stats().pending, 0);
}
