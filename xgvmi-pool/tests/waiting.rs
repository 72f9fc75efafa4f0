//! A full pool with waiting threads: their order, their success and their timeout.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use xgvmi_pool::sim::{FaultRates, SimDevice, SimFabric};
use xgvmi_pool::{Gvmi, Lkey, MkeyPool, OnFull, PoolError, PoolPolicy, Region, VirtAddr};

const HOST: Gvmi = Gvmi::new(1);
/// Longer than any test takes.
const LONG: Duration = Duration::from_secs(60);

fn pool(fabric: &SimFabric, mkeys_max: u32, limit: Duration) -> MkeyPool<SimDevice> {
    let policy = PoolPolicy {
        mkeys_max,
        on_full: OnFull::Wait(limit),
        ..PoolPolicy::default()
    };
    MkeyPool::open(fabric.function(HOST), policy).expect("a good policy")
}

fn region() -> Region {
    Region::new(VirtAddr::new(0x1000), 0x1000, Lkey::from_raw(1)).expect("a region")
}

fn until(what: impl Fn() -> bool) {
    let start = Instant::now();
    while !what() {
        assert!(start.elapsed() < LONG, "it does not come to pass");
        std::thread::yield_now();
    }
}

#[test]
fn those_who_wait_are_served_in_the_order_in_which_they_came() {
    const WAITERS: u64 = 4;
    let fabric = SimFabric::new();
    let pool = pool(&fabric, 1, LONG);
    let first = pool.export(region()).expect("a key");
    let served = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for number in 0..WAITERS {
            let (pool, served) = (&pool, &served);
            scope.spawn(move || {
                let export = pool.export(region()).expect("served in the end");
                served.lock().expect("no panic").push(number);
                export.release().expect("released");
            });
            // The next thread starts when this one waits.
            until(|| pool.stats().waits == number + 1);
        }
        first.release().expect("released");
    });
    assert_eq!(
        served.into_inner().expect("no panic"),
        (0..WAITERS).collect::<Vec<_>>()
    );
    assert_eq!(pool.stats().creates, 1);
}

#[test]
fn who_has_waited_too_long_is_told_so() {
    let fabric = SimFabric::new();
    let pool = pool(&fabric, 1, Duration::from_millis(1));
    let _export = pool.export(region()).expect("a key");
    let error = pool.export(region()).expect_err("nobody releases");
    assert!(
        matches!(
            error,
            PoolError::WaitedTooLong {
                mkeys_max: 1,
                refusal: None,
                ..
            }
        ),
        "{error}"
    );
    assert!(error.is_full());
    assert_eq!(pool.latencies().wait.count, 1);
}

/// A refusal of the device that lowered the cap is in the message.
#[test]
fn who_waits_for_a_full_device_is_told_so() {
    let fabric = SimFabric::new();
    fabric.set_objects_max(1);
    let pool = pool(&fabric, 2, Duration::from_millis(1));
    let _export = pool.export(region()).expect("a key");
    let error = pool.export(region()).expect_err("nobody releases");
    assert!(
        matches!(
            &error,
            PoolError::WaitedTooLong {
                mkeys_max: 1,
                refusal: Some(_),
                ..
            }
        ),
        "{error}"
    );
    assert!(error.to_string().contains("CREATE_MKEY"), "{error}");
}

/// No release can end the wait for a key of a pool that has none, so nobody waits.
#[test]
fn nobody_waits_for_a_pool_without_keys() {
    let fabric = SimFabric::new();
    fabric.set_objects_max(0);
    let pool = pool(&fabric, 1, Duration::MAX);
    for _ in 0..2 {
        let error = pool.export(region()).expect_err("no key");
        assert!(
            matches!(error, PoolError::DeviceFull { mkeys: 0, .. }),
            "{error}"
        );
    }
    assert_eq!(pool.stats().waits, 0);
}

#[test]
fn a_wait_without_end_is_a_day() {
    let fabric = SimFabric::new();
    let pool = pool(&fabric, 1, Duration::MAX);
    let first = pool.export(region()).expect("a key");
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| pool.export(region()).map(drop));
        until(|| pool.stats().waits == 1);
        first.release().expect("released");
        waiter.join().expect("no panic").expect("served");
    });
}

#[test]
fn a_key_that_is_destroyed_serves_a_waiter() {
    let fabric = SimFabric::new();
    let pool = pool(&fabric, 1, LONG);
    let first = pool.export(region()).expect("a key");
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| pool.export(region()).map(drop));
        until(|| pool.stats().waits == 1);
        // Invalidations fail only while the first key is released.
        fabric.set_faults(
            1,
            FaultRates {
                invalidate: 1000,
                ..FaultRates::default()
            },
        );
        first.release().expect("destroyed");
        fabric.set_faults(1, FaultRates::default());
        // Its own release may still meet the faults. The test only requires that it was served.
        waiter.join().expect("no panic").expect("served");
    });
    assert_eq!(fabric.bound(HOST), 0);
}

#[test]
fn closing_sends_those_away_who_wait() {
    let fabric = SimFabric::new();
    let pool = pool(&fabric, 1, LONG);
    let export = pool.export(region()).expect("a key");
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| pool.export(region()).map(drop));
        until(|| pool.stats().waits == 1);
        assert!(pool.close());
        assert_eq!(waiter.join().expect("no panic"), Err(PoolError::Closed));
    });
    drop(export);
}

#[test]
fn more_threads_than_keys_all_come_through() {
    let fabric = SimFabric::new();
    let pool = pool(&fabric, 3, LONG);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..200 {
                    let export = pool.export(region()).expect("served");
                    export.release().expect("released");
                }
            });
        }
    });
    let stats = pool.stats();
    assert_eq!((stats.binds, stats.refusals, stats.in_use), (1600, 0, 0));
    assert!(stats.in_use_max <= 3 && stats.keys <= 3);
}
