//! Behaviour of the pool: reuse and creation of keys, and the handling of keys whose request
//! failed.

use std::sync::Arc;
use std::time::Duration;

use xgvmi_pool::sim::{FaultRates, SimCounts, SimDevice, SimFabric};
use xgvmi_pool::{
    Export, Gvmi, Lkey, MkeyDevice as _, MkeyPool, PoolError, PoolPolicy, Region, ReuseOrder, Span,
    Tag, UmrOp, VirtAddr,
};

const HOST: Gvmi = Gvmi::new(1);

fn pool(fabric: &SimFabric, policy: PoolPolicy) -> MkeyPool<SimDevice> {
    MkeyPool::open(fabric.function(HOST), policy).expect("a good policy")
}

fn region(number: u64) -> Region {
    Region::new(
        VirtAddr::new(0x10_0000 * (number + 1)),
        0x4000,
        Lkey::from_raw(0x4100),
    )
    .expect("a good region")
}

fn counts(create_mkey: u64, destroy_mkey: u64, binds: u64, invalidates: u64) -> SimCounts {
    SimCounts {
        create_mkey,
        destroy_mkey,
        binds,
        invalidates,
        chains: binds + invalidates,
        ..SimCounts::default()
    }
}

#[test]
fn a_key_is_created_once_and_bound_again_and_again() {
    let fabric = SimFabric::new();
    let pool = pool(&fabric, PoolPolicy::default());
    for number in 0..10 {
        let export = pool.export(region(number)).expect("a key");
        assert_eq!(export.mkey().tag(), Tag::UCX_POOLED);
        let lkey = Lkey::from_raw(export.mkey().raw());
        assert_eq!(
            fabric.reach(HOST, lkey, region(number).addr(), 0x4000),
            Ok(region(number))
        );
        export.release().expect("released");
        assert!(fabric.reach(HOST, lkey, region(number).addr(), 1).is_err());
    }
    assert_eq!(fabric.counts(), counts(1, 0, 10, 10));
    let stats = pool.stats();
    assert_eq!((stats.hits, stats.misses, stats.creates), (9, 1, 1));
}

#[test]
fn prefilled_keys_serve_the_first_exports() {
    let fabric = SimFabric::new();
    let pool = pool(
        &fabric,
        PoolPolicy {
            prefill: 8,
            ..PoolPolicy::default()
        },
    );
    assert_eq!(fabric.counts(), counts(8, 0, 0, 0));
    let exports: Vec<_> = (0..8).map(|number| pool.export(region(number))).collect();
    assert!(exports.iter().all(Result::is_ok));
    assert_eq!(fabric.counts(), counts(8, 0, 8, 0));
}

#[test]
fn a_key_that_was_just_released_rests_longest() {
    let fabric = SimFabric::new();
    let pool = pool(
        &fabric,
        PoolPolicy {
            prefill: 4,
            ..PoolPolicy::default()
        },
    );
    let export = |number| pool.export(region(number)).expect("a key");
    let first = export(0);
    let stale = first.mkey();
    first.release().expect("released");
    let others: Vec<_> = (1..4).map(export).collect();
    assert!(others.iter().all(|other| other.mkey() != stale));
    assert_eq!(export(4).mkey(), stale, "its turn has come");
}

#[test]
fn by_lifo_a_key_that_was_just_released_is_the_next() {
    let fabric = SimFabric::new();
    let pool = pool(
        &fabric,
        PoolPolicy {
            prefill: 64,
            order: ReuseOrder::Lifo,
            ..PoolPolicy::default()
        },
    );
    let export = |number| pool.export(region(number)).expect("a key");
    let held: Vec<_> = (0..20).map(export).collect();
    let released: Vec<_> = held
        .into_iter()
        .map(|export| {
            let mkey = export.mkey();
            export.release().expect("released");
            mkey
        })
        .collect();
    let again: Vec<_> = (0..20).map(export).collect();
    let again = again.iter().map(Export::mkey);
    assert!(
        again.eq(released.into_iter().rev()),
        "in a single thread it is exact"
    );
}

#[test]
fn a_full_pool_says_so_and_serves_again_later() {
    let fabric = SimFabric::new();
    let pool = pool(
        &fabric,
        PoolPolicy {
            mkeys_max: 2,
            ..PoolPolicy::default()
        },
    );
    let first = pool.export(region(0)).expect("a key");
    let _second = pool.export(region(1)).expect("a key");
    let error = pool.export(region(2)).expect_err("both are in use");
    assert!(error.is_full(), "{error}");
    assert_eq!(pool.stats().refusals, 1);
    first.release().expect("released");
    assert!(pool.export(region(2)).is_ok());
}

#[test]
fn a_full_device_lowers_the_cap() {
    let fabric = SimFabric::new();
    fabric.set_objects_max(3);
    let pool = pool(&fabric, PoolPolicy::default());
    let exports: Vec<_> = (0..4).map(|number| pool.export(region(number))).collect();
    assert!(exports[..3].iter().all(Result::is_ok));
    let refusal = |result: &Result<_, PoolError>| match result {
        Err(PoolError::DeviceFull {
            mkeys: 3,
            retry_in,
            source,
        }) => (*retry_in, source.clone()),
        other => panic!("{other:?}"),
    };
    let (whole, refused) = refusal(&exports[3]);
    assert_eq!((pool.stats().cap, pool.stats().cap_lowered), (3, 1));
    // The next export does not call the device, and still reports its refusal.
    let (rest, again) = refusal(&pool.export(region(4)));
    assert_eq!(again, refused);
    assert!(
        rest <= whole && whole == Duration::from_secs(10),
        "{rest:?} of {whole:?}"
    );
    assert_eq!(fabric.counts().create_mkey, 4);
}

/// The message of a pool without a key names the command, its status and syndrome, and the time of the next try.
#[test]
fn a_device_without_a_single_key_is_named() {
    let fabric = SimFabric::new();
    fabric.set_objects_max(0);
    let pool = pool(&fabric, PoolPolicy::default());
    for _ in 0..2 {
        let error = pool.export(region(0)).expect_err("no key");
        assert!(error.is_full(), "{error}");
        let text = error.to_string();
        for part in ["CREATE_MKEY", "status 0x8", "syndrome 0x", "asks again in"] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(!text.contains("all 0 keys"), "{text}");
    }
    assert_eq!(fabric.counts().create_mkey, 1);
}

#[test]
fn a_region_that_is_too_long_takes_no_key() {
    let fabric = SimFabric::new();
    let pool = pool(
        &fabric,
        PoolPolicy {
            klm_entries: 2,
            ..PoolPolicy::default()
        },
    );
    let long = |len| Region::new(VirtAddr::new(0x1000), len, Lkey::from_raw(1)).expect("a region");
    let most = 2 * Region::KLM_BYTES_MAX;
    assert!(pool.export(long(most)).is_ok());
    let error = pool.export(long(most + 1)).expect_err("three entries");
    let expect = PoolError::RegionTooLong {
        len: most + 1,
        entries: 3,
        entries_max: 2,
    };
    assert_eq!(error, expect);
    assert_eq!(fabric.counts().create_mkey, 1);
}

#[test]
fn a_dropped_lease_and_a_dropped_export_come_back() {
    let fabric = SimFabric::new();
    let pool = pool(&fabric, PoolPolicy::default());
    drop(pool.lease().expect("a key"));
    drop(pool.lease().expect("a key").bind(region(0)).expect("bound"));
    assert_eq!(fabric.counts(), counts(1, 0, 1, 1));
    assert_eq!((fabric.bound(HOST), pool.levels().free), (0, 1));
}

/// Cost of a fault, and recovery of the pool after it.
#[track_caller]
fn check_fault(rates: FaultRates, released: bool, expect_lost: u32) {
    let fabric = SimFabric::new();
    let pool = pool(
        &fabric,
        PoolPolicy {
            mkeys_max: 4,
            ..PoolPolicy::default()
        },
    );
    let export = pool.export(region(0)).expect("a key");
    fabric.set_faults(7, rates);
    assert_eq!(export.release().is_ok(), released);
    fabric.set_faults(0, FaultRates::default());
    assert_eq!(pool.levels().lost, expect_lost);
    // Even if keys are lost, the rest of the pool works, and no key is leased twice.
    let exports: Vec<_> = (0..4 - u64::from(expect_lost))
        .map(|number| pool.export(region(number)).expect("a key"))
        .collect();
    assert_eq!(fabric.bound(HOST), exports.len() + expect_lost as usize);
}

const ALWAYS: u16 = 1000;

#[test]
fn a_key_that_cannot_be_invalidated_is_destroyed() {
    check_fault(
        FaultRates {
            invalidate: ALWAYS,
            ..FaultRates::default()
        },
        true,
        0,
    );
    check_fault(
        FaultRates {
            timeout: ALWAYS,
            ..FaultRates::default()
        },
        true,
        0,
    );
}

#[test]
fn a_key_that_can_be_neither_invalidated_nor_destroyed_is_never_handed_out() {
    let rates = FaultRates {
        invalidate: ALWAYS,
        destroy: ALWAYS,
        ..FaultRates::default()
    };
    check_fault(rates, false, 1);
}

#[test]
fn a_failed_bind_costs_one_export_and_no_key() {
    let fabric = SimFabric::new();
    let pool = pool(
        &fabric,
        PoolPolicy {
            prefill: 1,
            ..PoolPolicy::default()
        },
    );
    fabric.set_faults(
        1,
        FaultRates {
            bind: ALWAYS,
            ..FaultRates::default()
        },
    );
    assert!(matches!(
        pool.export(region(0)),
        Err(PoolError::Bind { .. })
    ));
    fabric.set_faults(0, FaultRates::default());
    assert!(pool.export(region(0)).is_ok());
    assert_eq!(fabric.counts().create_mkey, 1);
}

#[test]
fn closing_takes_the_keys_of_live_exports_too() {
    let fabric = SimFabric::new();
    let pool = pool(
        &fabric,
        PoolPolicy {
            prefill: 3,
            ..PoolPolicy::default()
        },
    );
    let export = pool.export(region(0)).expect("a key");
    assert!(pool.close());
    assert_eq!(fabric.objects(HOST), 0);
    export.release().expect("nothing is left to release");
    assert_eq!(pool.export(region(1)).err(), Some(PoolError::Closed));
    assert_eq!(pool.lease().err(), Some(PoolError::Closed));
    assert!(pool.close(), "once more does no harm");
}

#[test]
fn the_last_handle_closes_the_pool() {
    let fabric = SimFabric::new();
    let first = pool(
        &fabric,
        PoolPolicy {
            prefill: 3,
            ..PoolPolicy::default()
        },
    );
    let second = first.clone();
    let export = first.export(region(0)).expect("a key");
    drop(first);
    drop(second);
    assert_eq!(fabric.objects(HOST), 3, "an export is a handle");
    drop(export);
    assert_eq!(fabric.objects(HOST), 0);
}

#[test]
fn a_policy_out_of_range_is_refused_by_name() {
    let fabric = SimFabric::new();
    let check = |policy: PoolPolicy, expect: &str| {
        let error = MkeyPool::open(fabric.function(HOST), policy).expect_err("a bad policy");
        assert_eq!(error.to_string(), expect);
    };
    let default = PoolPolicy::default;
    check(
        PoolPolicy {
            mkeys_max: 0,
            ..default()
        },
        "policy: mkeys_max is 0, allowed are 1 to 1048576",
    );
    check(
        PoolPolicy {
            mkeys_max: 4,
            prefill: 5,
            ..default()
        },
        "policy: prefill is 5, allowed are 0 to 4",
    );
    check(
        PoolPolicy {
            klm_entries: 0,
            ..default()
        },
        "policy: klm_entries is 0, allowed are 1 to 65536",
    );
}

#[test]
fn threads_share_the_pool() {
    let fabric = SimFabric::new();
    let policy = PoolPolicy {
        mkeys_max: 8,
        ..PoolPolicy::default()
    };
    let pool = Arc::new(pool(&fabric, policy));
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (pool, fabric) = (Arc::clone(&pool), fabric.clone());
            scope.spawn(move || {
                for round in 0..500 {
                    let mine = region(thread * 1000 + round);
                    let export = pool.export(mine).expect("eight keys for four threads");
                    let lkey = Lkey::from_raw(export.mkey().raw());
                    assert_eq!(fabric.reach(HOST, lkey, mine.addr(), mine.len()), Ok(mine));
                    export.release().expect("released");
                }
            });
        }
    });
    assert_eq!(fabric.bound(HOST), 0);
    assert!(fabric.counts().create_mkey <= 8);
    assert_eq!((pool.stats().binds, pool.stats().invalidates), (2000, 2000));
}

/// A buffer that returns to its address gets its previous key.
#[test]
fn by_affinity_an_address_gets_its_key_back() {
    let fabric = SimFabric::new();
    let policy = PoolPolicy {
        prefill: 16,
        order: ReuseOrder::Affinity,
        ..PoolPolicy::default()
    };
    let pool = MkeyPool::open(fabric.function(HOST), policy).expect("a pool");
    let region = |place: u64| {
        let addr = VirtAddr::new(0x7000_0000 + (place << 16));
        Region::new(addr, 0x4000, Lkey::from_raw(7)).expect("a region")
    };
    let keys = || -> Vec<_> {
        let exports: Vec<_> = (0..8)
            .map(|place| pool.export(region(place)).expect("a key"))
            .collect();
        exports.iter().map(xgvmi_pool::Export::mkey).collect()
    };
    let first = keys();
    for _ in 0..10 {
        assert_eq!(keys(), first);
    }
    // A key in use stays with its owner.
    let held = pool.export(region(3)).expect("a key");
    let other = pool.export(region(3)).expect("another");
    assert_ne!(held.mkey(), other.mkey());
    // The other keys keep their order.
    let fresh = pool.export(region(100)).expect("a key");
    assert!(!first.contains(&fresh.mkey()));
    drop((held, other, fresh));
    let stats = pool.stats();
    assert_eq!((stats.keys, stats.in_use), (16, 0));
    assert_eq!(stats.hits, stats.returns);
}

#[test]
fn a_device_that_refuses_every_key_gets_few_commands() {
    let fabric = SimFabric::new();
    let pool = pool(&fabric, PoolPolicy::default());
    let refuse = |create| {
        let rates = FaultRates {
            create,
            ..FaultRates::default()
        };
        fabric.set_faults(1, rates);
    };
    // A single failure may be transient: the next export tries again.
    refuse(1000);
    assert!(pool.export(region(0)).is_err());
    refuse(0);
    pool.export(region(0))
        .expect("a key")
        .release()
        .expect("released");
    let before = fabric.counts().create_mkey;
    refuse(1000);
    let first = pool.export(region(0)).expect("the key that is there");
    for number in 1..=1000 {
        let error = pool.export(region(number)).expect_err("no key");
        assert!(matches!(error, PoolError::Create(_)), "{error}");
    }
    // Two at once; then one after 0.1, 0.3, 0.7, 1.5 s and so on, which a busy machine may reach.
    let commands = fabric.counts().create_mkey - before;
    assert!((2..=8).contains(&commands), "{commands} commands");
    first.release().expect("released");
}

/// A proof binds a leased key itself. If it cannot take the binding back, the key must not be free.
#[test]
fn a_leased_key_that_may_be_bound_is_invalidated_or_destroyed() {
    let fabric = SimFabric::new();
    let pool = pool(&fabric, PoolPolicy::default());
    let device = fabric.function(HOST);
    for (invalidate, destroyed) in [(0, 0), (1000, 1)] {
        let lease = pool.lease().expect("a key");
        let mkey = lease.mkey().expect("a key");
        let bind = UmrOp::Bind {
            mkey,
            span: region(0).into(),
        };
        device.run(&[bind]).expect("bound");
        assert_eq!(fabric.bound(HOST), 1);
        let rates = FaultRates {
            invalidate,
            ..FaultRates::default()
        };
        fabric.set_faults(1, rates);
        lease.return_unsure().expect("invalidated or destroyed");
        fabric.set_faults(1, FaultRates::default());
        assert_eq!(fabric.bound(HOST), 0);
        assert_eq!(fabric.counts().destroy_mkey, destroyed);
        let export = pool.export(region(1)).expect("a key");
        let lkey = Lkey::from_raw(export.mkey().raw());
        assert!(fabric.reach(HOST, lkey, region(0).addr(), 1).is_err());
        export.release().expect("released");
    }
}

/// Memory of one registration that needs this many entries.
fn entries(entries: u64) -> Region {
    let len = entries * Region::KLM_BYTES_MAX;
    Region::new(VirtAddr::new(0x1000), len, Lkey::from_raw(0x4100)).expect("a good region")
}

#[test]
fn a_key_has_four_entries_unless_the_memory_needs_more() {
    let fabric = SimFabric::new();
    let pool = pool(&fabric, PoolPolicy::default());
    let exports: Vec<_> = (0..100).map(|number| pool.export(region(number))).collect();
    let four = pool.export(entries(4)).expect("a key");
    // UCX registers 4 GiB of a program at an odd page like this.
    let part = |addr, len, lkey| {
        Region::new(VirtAddr::new(addr), len, Lkey::from_raw(lkey)).expect("a good region")
    };
    let parts = [
        part(0x7001_1000, 0xffe_f000, 1),
        part(0x8000_0000, 1 << 31, 2),
        part(0x1_0000_0000, 0x7001_2000, 3),
    ];
    let odd = pool.export(Span::of(&parts).expect("no gap"));
    assert_eq!(fabric.klm_entries(HOST), 102 * 4);
    let five = pool.export(entries(5)).expect("a long key");
    let key = five.mkey();
    assert_eq!(fabric.klm_entries(HOST), 102 * 4 + 16);
    let lkey = Lkey::from_raw(key.raw());
    assert_eq!(
        fabric.reach(HOST, lkey, entries(5).addr(), entries(5).len()),
        Ok(entries(5))
    );
    drop((exports, four, odd, five));
    assert_eq!((fabric.bound(HOST), pool.levels().free), (0, 103));
    // The long key again, by each way to a key.
    assert_eq!(pool.export(entries(16)).expect("a long key").mkey(), key);
    let leased = pool.lease().expect("a key").bind(entries(6));
    assert_eq!(leased.expect("a long key").mkey(), key);
    let both = pool.export_many(&[entries(7), region(0)]);
    let keys: Vec<_> = both.iter().flatten().map(Export::mkey).collect();
    assert_eq!((keys.len(), keys[0]), (2, key));
    drop(both);
    assert_eq!(fabric.counts().create_mkey, 103);
    let stats = pool.stats();
    assert_eq!((stats.in_use, stats.hits, stats.returns), (0, 5, 108));
}

#[test]
fn a_quarter_of_the_keys_may_be_long_and_free_ones_of_either_kind_make_room() {
    let fabric = SimFabric::new();
    let policy = PoolPolicy {
        mkeys_max: 8,
        prefill: 8,
        ..PoolPolicy::default()
    };
    let pool = pool(&fabric, policy);
    let long: Vec<_> = (0..2).map(|_| pool.export(entries(5))).collect();
    assert!(long.iter().all(Result::is_ok));
    let error = pool.export(entries(5)).expect_err("the third long key");
    assert_eq!(error, PoolError::LongKeysInUse { keys_max: 2 });
    assert!(error.is_full());
    assert_eq!(fabric.klm_entries(HOST), 6 * 4 + 2 * 16);
    drop(long);
    // The last two exports get the long keys.
    let exports: Vec<_> = (0..8).map(|number| pool.export(region(number))).collect();
    assert!(exports.iter().all(Result::is_ok));
    assert!(pool.export(region(8)).is_err_and(|error| error.is_full()));
    drop(exports);
    assert!(pool.export(entries(5)).is_ok());
    assert_eq!(fabric.counts().create_mkey, 10);
    assert!(pool.close());
    assert_eq!(fabric.objects(HOST), 0);
}

#[test]
fn free_keys_go_when_others_need_their_entries() {
    let fabric = SimFabric::new();
    let policy = PoolPolicy {
        prefill: 30,
        ..PoolPolicy::default()
    };
    let pool = pool(&fabric, policy);
    drop(pool.export(entries(5)).expect("a long key"));
    let exports: Vec<_> = (0..10).map(|number| pool.export(region(number))).collect();
    // Some of the free keys are in a cache.
    assert_eq!((pool.shed(3), fabric.objects(HOST)), (3, 28));
    assert_eq!((pool.shed(64), fabric.objects(HOST)), (18, 10));
    assert_eq!(fabric.bound(HOST), 10);
    drop(exports);
    assert!(pool.export(entries(5)).is_ok());
    assert_eq!(pool.stats().keys, 11);
}

#[test]
fn an_idle_long_key_ages() {
    let fabric = SimFabric::new();
    let policy = PoolPolicy {
        age: Duration::ZERO,
        ..PoolPolicy::default()
    };
    let pool = pool(&fabric, policy);
    drop(pool.export(entries(5)).expect("a long key"));
    let destroyed = (0..3).map(|_| pool.upkeep().destroyed);
    assert_eq!((destroyed.sum::<u32>(), fabric.objects(HOST)), (1, 0));
}
