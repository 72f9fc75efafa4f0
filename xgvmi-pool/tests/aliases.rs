//! Behaviour of the alias map: lookup, creation and eviction.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use xgvmi_pool::sim::{FaultRates, SimDevice, SimFabric, Unreached};
use xgvmi_pool::{
    AccessKey, Alias, AliasDevice, AliasError, AliasMap, AliasPolicy, AnnounceError, DeviceError,
    DpuHooks, Gvmi, Lkey, Mkey, MkeyIndex, MkeyPool, OwnerUuid, PoolPolicy, Region, RemoteKey,
    Seal, VirtAddr,
};

const HOST: Gvmi = Gvmi::new(1);
const DPU: Gvmi = Gvmi::new(2);
const OWNER: OwnerUuid = OwnerUuid::new(0xaaaa);

fn map(fabric: &SimFabric, aliases_max: u32) -> AliasMap<SimDevice> {
    let policy = AliasPolicy {
        aliases_max,
        ..AliasPolicy::default()
    };
    AliasMap::open(fabric.function(DPU), policy).expect("a good policy")
}

/// Keys of the host for tests to alias.
fn exported(fabric: &SimFabric, count: u32) -> (MkeyPool<SimDevice>, Vec<RemoteKey>) {
    let pool = MkeyPool::open(fabric.function(HOST), PoolPolicy::default()).expect("a pool");
    let keys = (0..count)
        .map(|number| {
            let region = Region::new(VirtAddr::new(0x1000), 0x1000, Lkey::from_raw(number));
            let export = pool.export(region.expect("a region")).expect("a key");
            let key = RemoteKey {
                gvmi: HOST,
                mkey: export.mkey(),
                owner: OWNER,
            };
            // It stays bound until the end of the test.
            std::mem::forget(export);
            key
        })
        .collect();
    (pool, keys)
}

#[test]
fn an_alias_is_made_once_and_found_again() {
    let fabric = SimFabric::new();
    let (_pool, keys) = exported(&fabric, 3);
    let map = map(&fabric, 8);
    let first: Vec<_> = keys
        .iter()
        .map(|key| map.attach(*key).expect("an alias"))
        .collect();
    let lkeys: Vec<_> = first.iter().map(|alias| alias.lkey()).collect();
    drop(first);
    for (key, lkey) in keys.iter().zip(lkeys) {
        let again = map.attach(*key).expect("the same alias");
        assert_eq!((again.lkey(), again.remote()), (lkey, *key));
        assert!(
            fabric
                .reach(DPU, lkey, VirtAddr::new(0x1000), 0x1000)
                .is_ok()
        );
    }
    assert_eq!(fabric.counts().create_alias, 3);
    let stats = map.stats();
    assert_eq!((stats.hits, stats.misses, stats.creates), (3, 3, 3));
}

#[test]
fn a_full_device_gets_the_places_of_unused_aliases() {
    let fabric = SimFabric::new();
    let (_pool, keys) = exported(&fabric, 5);
    let map = map(&fabric, 8);
    let held = map.attach(keys[0]).expect("an alias");
    for key in &keys[1..3] {
        map.attach(*key).expect("an alias");
    }
    fabric.set_objects_max(3);
    // A prepared alias takes nobody's place.
    assert_eq!(map.prepare(&keys[3..4]).ready, 0);
    let more: Vec<_> = keys[3..].iter().map(|key| map.attach(*key)).collect();
    assert!(more.iter().all(Result::is_ok), "{more:?}");
    assert_eq!(map.stats().evictions, 2);
    // Only what is in use is left.
    let full = map.attach(keys[1]);
    assert!(matches!(full, Err(AliasError::Create { .. })), "{full:?}");
    assert_eq!(held.remote(), keys[0]);
}

#[test]
fn a_look_makes_no_alias_and_pins_one_that_is_there() {
    let fabric = SimFabric::new();
    let (_pool, keys) = exported(&fabric, 1);
    let map = map(&fabric, 1);
    assert!(map.find(&keys[0]).is_none());
    assert_eq!(fabric.counts().create_alias, 0);
    assert_eq!(map.prepare(&keys).ready, 1);
    let found = map.find(&keys[0]).expect("it was prepared");
    assert_eq!(found.remote(), keys[0]);
    let other_owner = RemoteKey {
        owner: OwnerUuid::new(0xbbbb),
        ..keys[0]
    };
    assert!(map.find(&other_owner).is_none());
    assert_eq!(fabric.counts().create_alias, 1);
}

#[test]
fn a_key_that_is_not_there_gives_an_error_and_leaves_nothing() {
    let fabric = SimFabric::new();
    let map = map(&fabric, 8);
    let key = RemoteKey {
        gvmi: HOST,
        mkey: Mkey::from_raw(0x77fb),
        owner: OWNER,
    };
    for _ in 0..3 {
        assert!(matches!(map.attach(key), Err(AliasError::Create { .. })));
    }
    assert_eq!((map.len(), map.stats().create_failures), (0, 3));
}

#[test]
fn a_wrong_access_key_is_refused_by_the_device() {
    let fabric = SimFabric::new();
    let (_pool, keys) = exported(&fabric, 1);
    let policy = AliasPolicy {
        access_key: AccessKey::new([7; 32]),
        ..AliasPolicy::default()
    };
    let map = AliasMap::open(fabric.function(DPU), policy).expect("a good policy");
    assert!(matches!(
        map.attach(keys[0]),
        Err(AliasError::Create { .. })
    ));
}

/// Two exporters of one function, each with an access key of its own. One names the keys of the other one.
#[test]
fn an_exporter_reaches_only_the_keys_of_its_own_access_key() {
    let fabric = SimFabric::new();
    let [ours, theirs] = [1, 2].map(|byte| AccessKey::new([byte; 32]));
    let policy = PoolPolicy {
        access_key: ours.clone(),
        ..PoolPolicy::default()
    };
    let pool = MkeyPool::open(fabric.function(HOST), policy).expect("a pool");
    let region = Region::new(VirtAddr::new(0x1000), 0x1000, Lkey::from_raw(0));
    let export = pool.export(region.expect("a region")).expect("a key");
    let key = |owner| RemoteKey {
        gvmi: HOST,
        mkey: export.mkey(),
        owner,
    };
    let hooks = DpuHooks::open(fabric.function(DPU), AliasPolicy::default()).expect("hooks");
    let refused = || {
        let refused = hooks.attach_with(key(theirs.owner()), &theirs);
        assert!(matches!(refused, Err(AliasError::Create { .. })));
    };
    refused();
    let alias = hooks
        .attach_with(key(ours.owner()), &ours)
        .expect("an alias");
    // Also while the map has the alias.
    refused();
    assert!(
        fabric
            .reach(DPU, alias.lkey(), VirtAddr::new(0x1000), 1)
            .is_ok()
    );
    assert!(hooks.attach_with(key(ours.owner()), &ours).is_ok());
    // An announcement of another exporter's keys changes nothing, neither does one of them without the access key.
    let ours_announced = pool.announce(ours.owner(), 1).to_bytes(&Seal::OPEN);
    assert_eq!(
        hooks
            .receive_with(&ours_announced, &theirs)
            .expect_err("another owner"),
        AnnounceError::Owner {
            owner: ours.owner(),
            sender: theirs.owner(),
        }
    );
    let stolen = pool.announce(theirs.owner(), 1).to_bytes(&Seal::OPEN);
    let (_, prepared) = hooks.receive_with(&stolen, &theirs).expect("its own name");
    assert_eq!((prepared.ready, prepared.failed), (0, 1));
    let (_, prepared) = hooks
        .receive_with(&ours_announced, &ours)
        .expect("the first one");
    assert_eq!((prepared.ready, prepared.failed), (1, 0));
}

#[test]
fn the_alias_that_was_unpinned_longest_ago_is_put_out() {
    let fabric = SimFabric::new();
    let (_pool, keys) = exported(&fabric, 4);
    let map = map(&fabric, 3);
    let attach = |key: usize| map.attach(keys[key]).expect("an alias");
    let (zero, one, two) = (attach(0), attach(1), attach(2));
    drop(one);
    drop(zero);
    drop(two);
    drop(attach(3));
    assert_eq!(map.stats().evictions, 1);
    drop((attach(0), attach(2), attach(3)));
    assert_eq!((map.stats().hits, map.len()), (3, 3), "1 was put out");
    drop(attach(1));
    assert_eq!(map.stats().evictions, 2);
}

#[test]
fn a_pinned_alias_stays() {
    let fabric = SimFabric::new();
    let (_pool, keys) = exported(&fabric, 3);
    let map = map(&fabric, 2);
    let pinned = map.attach(keys[0]).expect("an alias");
    let clone = pinned.clone();
    drop(pinned);
    for _ in 0..4 {
        drop(map.attach(keys[1]).expect("an alias"));
        drop(map.attach(keys[2]).expect("an alias"));
    }
    assert!(
        fabric
            .reach(DPU, clone.lkey(), VirtAddr::new(0x1000), 1)
            .is_ok()
    );
    let other = map.attach(keys[1]).expect("an alias");
    let error = map.attach(keys[2]).expect_err("both are in use");
    assert!(
        matches!(error, AliasError::Full { aliases_max: 2 }),
        "{error}"
    );
    drop(other);
    assert!(map.attach(keys[2]).is_ok());
    assert!(fabric.objects(DPU) <= 2, "put out means destroyed");
}

#[test]
fn beyond_a_full_map_an_alias_lasts_as_long_as_its_use() {
    let fabric = SimFabric::new();
    let (_pool, keys) = exported(&fabric, 2);
    let map = map(&fabric, 1);
    let _pinned = map.attach(keys[0]).expect("an alias");
    assert!(map.attach(keys[1]).is_err(), "the map is full");
    let before = fabric.objects(DPU);
    let alone = map.pin_alone(keys[1]).expect("an alias");
    let (lkey, address) = (alone.lkey(), VirtAddr::new(0x1000));
    assert!(fabric.reach(DPU, lkey, address, 0x1000).is_ok());
    assert_eq!((map.len(), fabric.objects(DPU)), (1, before + 1));
    assert!(map.find(&keys[1]).is_none(), "no lookup finds it");
    map.unpin(alone);
    assert_eq!(fabric.objects(DPU), before);
}

#[test]
fn a_pin_ends_in_its_own_map_only_and_after_the_map_has_closed() {
    let fabric = SimFabric::new();
    let (_pool, keys) = exported(&fabric, 2);
    let (ours, theirs) = (map(&fabric, 1), map(&fabric, 1));
    let pin = ours.pin(keys[0]).expect("an alias");
    let other = theirs.pin(keys[0]).expect("an alias");
    ours.unpin(other);
    assert!(ours.pin(keys[1]).is_err(), "the alias is still pinned");
    ours.unpin(pin);
    let pin = ours.pin(keys[1]).expect("the alias was unpinned");
    assert!(ours.close());
    assert_eq!(fabric.objects(DPU), 1, "that of the other map");
    ours.unpin(pin);
    assert_eq!(fabric.counts().destroy_alias, 2, "each once");
}

/// Eight threads on more keys than the map holds, while another thread restarts exporters. A pinned alias reaches its
/// memory, and every lookup is counted.
#[test]
fn threads_pin_and_evict_and_reap_without_a_wrong_alias() {
    const THREADS: u64 = 8;
    const ROUNDS: u64 = 4000;
    const KEYS: u32 = 96;
    let fabric = SimFabric::new();
    let pool = MkeyPool::open(fabric.function(HOST), PoolPolicy::default()).expect("a pool");
    let exports: Vec<_> = (0..u64::from(KEYS))
        .map(|number| {
            let region = Region::new(VirtAddr::new((number + 1) << 12), 0x1000, Lkey::from_raw(1));
            pool.export(region.expect("a region")).expect("a key")
        })
        .collect();
    let map = map(&fabric, KEYS - 16);
    let owner = AtomicU64::new(1);
    let served = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (map, fabric, exports, owner, served) = (&map, &fabric, &exports, &owner, &served);
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(thread);
                for round in 0..ROUNDS {
                    let number = random.usize(..exports.len());
                    if thread == 0 && round % 64 == 0 {
                        let before = owner.fetch_add(1, Ordering::Relaxed);
                        map.reap_owner(OwnerUuid::new(before));
                    }
                    let key = RemoteKey {
                        gvmi: HOST,
                        mkey: exports[number].mkey(),
                        owner: OwnerUuid::new(owner.load(Ordering::Relaxed)),
                    };
                    let pin = map.pin(key).expect("there is always an unpinned alias");
                    served.fetch_add(1, Ordering::Relaxed);
                    let address = VirtAddr::new((number as u64 + 1) << 12);
                    let reached = fabric.reach(DPU, pin.lkey(), address, 0x1000);
                    assert_eq!(reached.map(|region| region.addr()), Ok(address));
                    map.unpin(pin);
                }
            });
        }
    });
    let stats = map.stats();
    // A joined lookup whose alias was another owner's looks again.
    assert!(stats.hits + stats.misses + stats.joins >= served.into_inner());
    assert!(stats.hits + stats.misses <= THREADS * ROUNDS);
    assert_eq!(stats.creates - stats.destroys, map.len() as u64);
    assert_eq!(fabric.objects(DPU), map.len());
    assert!(map.close());
    assert_eq!(fabric.objects(DPU), 0);
}

/// Keys of UCX 1.18 do not name their owner. An importer may know the owner from another source.
#[test]
fn an_alias_of_unknown_owner_becomes_that_of_the_first_who_asks() {
    let fabric = SimFabric::new();
    let (_pool, keys) = exported(&fabric, 1);
    let map = map(&fabric, 8);
    let of = |owner| RemoteKey { owner, ..keys[0] };
    let unknown = of(OwnerUuid::UNKNOWN);
    assert_eq!(map.prepare(&[unknown]).ready, 1);
    let first = map.attach(of(OWNER)).expect("the alias that is there");
    assert_eq!((first.remote(), map.stats().creates), (of(OWNER), 1));
    // A second announcement of the key finds the same alias.
    assert_eq!(map.prepare(&[unknown]).ready, 1);
    assert!(map.find(&of(OWNER)).is_some());
    let other = map.attach(of(OwnerUuid::new(0xbbbb))).expect("a new alias");
    assert_ne!(other.lkey(), first.lkey());
    assert_eq!((map.stats().stale, map.stats().creates), (1, 2));
}

/// Two memory domains of one importer share a map in UCX: one imports with the exporter's number, the other without.
#[test]
fn imports_with_and_without_an_owner_share_an_alias() {
    let fabric = SimFabric::new();
    let (_pool, keys) = exported(&fabric, 1);
    let map = map(&fabric, 8);
    let of = |owner| RemoteKey { owner, ..keys[0] };
    let named = map.attach(of(OWNER)).expect("an alias");
    let before = fabric.counts();
    for _ in 0..10 {
        let unnamed = map.attach(of(OwnerUuid::UNKNOWN)).expect("the same alias");
        assert_eq!(unnamed.lkey(), named.lkey());
        assert_eq!(
            map.attach(of(OWNER)).expect("the same alias").lkey(),
            named.lkey()
        );
    }
    assert_eq!(fabric.counts(), before);
    assert_eq!(map.stats().stale, 0);
}

/// The exporter of a key without an owner may have ended, so its alias may not serve a later owner.
#[test]
fn an_imported_alias_of_unknown_owner_is_replaced_by_that_of_an_owner() {
    let fabric = SimFabric::new();
    let (_pool, keys) = exported(&fabric, 1);
    let map = map(&fabric, 8);
    let of = |owner| RemoteKey { owner, ..keys[0] };
    let unnamed = map.attach(of(OwnerUuid::UNKNOWN)).expect("an alias");
    let named = map.attach(of(OWNER)).expect("a new alias");
    assert_ne!(unnamed.lkey(), named.lkey());
    assert_eq!((map.stats().stale, map.stats().creates), (1, 2));
}

#[test]
fn a_preparation_ends_after_a_few_failures() {
    let fabric = SimFabric::new();
    let (_pool, keys) = exported(&fabric, 100);
    let map = map(&fabric, 128);
    let rates = FaultRates {
        alias: 1000,
        ..FaultRates::default()
    };
    fabric.set_faults(1, rates);
    let prepared = map.prepare(&keys);
    let threads = AliasPolicy::default().threads as usize;
    assert_eq!(prepared.ready, 0);
    assert!(
        (16..16 + threads).contains(&prepared.failed),
        "{prepared:?}"
    );
    assert_eq!(prepared.failed + prepared.left_out, 100);
}

/// Defects D7 and D8 of stock UCX: an exporter dies, and its successor gets the same key number.
#[test]
fn the_alias_of_a_dead_owner_is_replaced_and_lives_while_in_use() {
    let fabric = SimFabric::new();
    let (_old, keys) = exported(&fabric, 1);
    let map = map(&fabric, 8);
    let stale = map.attach(keys[0]).expect("an alias");

    fabric.reset(HOST);
    let (_new, successors) = exported(&fabric, 1);
    let successor = RemoteKey {
        owner: OwnerUuid::new(0xbbbb),
        ..successors[0]
    };
    assert_eq!(
        successor.map_key(),
        keys[0].map_key(),
        "the number came back"
    );

    let fresh = map.attach(successor).expect("an alias");
    assert_ne!(fresh.lkey(), stale.lkey());
    assert!(
        fabric
            .reach(DPU, fresh.lkey(), VirtAddr::new(0x1000), 1)
            .is_ok()
    );
    let reached = fabric.reach(DPU, stale.lkey(), VirtAddr::new(0x1000), 1);
    assert_eq!(
        reached,
        Err(Unreached::Dangling),
        "the alias is there, its key is not"
    );
    assert_eq!(
        (fabric.objects(DPU), map.len(), map.stats().stale),
        (2, 1, 1)
    );
    drop(stale);
    assert_eq!(fabric.objects(DPU), 1, "destroyed with its last use");
}

/// The same exporter destroys a key, and the adapter reuses its index.
#[test]
fn a_new_key_of_an_old_index_has_another_name() {
    let fabric = SimFabric::new();
    let (pool, keys) = exported(&fabric, 1);
    let map = map(&fabric, 8);
    drop(map.attach(keys[0]).expect("an alias"));

    let region = Region::new(VirtAddr::new(0x2000), 0x1000, Lkey::from_raw(7)).expect("a region");
    let doomed = pool.export(region).expect("a key");
    let old = RemoteKey {
        mkey: doomed.mkey(),
        ..keys[0]
    };
    drop(map.attach(old).expect("an alias"));
    fabric.set_faults(
        1,
        FaultRates {
            invalidate: 1000,
            ..FaultRates::default()
        },
    );
    doomed.release().expect("destroyed");
    fabric.set_faults(1, FaultRates::default());

    let export = pool.export(region).expect("a key");
    let new = RemoteKey {
        mkey: export.mkey(),
        ..keys[0]
    };
    assert_eq!(
        new.mkey.index(),
        old.mkey.index(),
        "the adapter gave the index out again"
    );
    assert_ne!(new.map_key(), old.map_key());
    let alias = map.attach(new).expect("an alias");
    assert_eq!(
        fabric.reach(DPU, alias.lkey(), region.addr(), region.len()),
        Ok(region)
    );
}

#[test]
fn a_dead_owner_is_reaped() {
    let fabric = SimFabric::new();
    let (_pool, keys) = exported(&fabric, 4);
    let map = map(&fabric, 8);
    let others = OwnerUuid::new(0xcccc);
    let pinned = map.attach(keys[0]).expect("an alias");
    drop(map.attach(keys[1]).expect("an alias"));
    drop(
        map.attach(RemoteKey {
            owner: others,
            ..keys[2]
        })
        .expect("an alias"),
    );
    assert_eq!(map.reap_owner(OWNER), 2);
    assert_eq!(
        (map.len(), fabric.objects(DPU)),
        (1, 2),
        "one of another owner, one in use"
    );
    drop(pinned);
    assert_eq!(fabric.objects(DPU), 1);
    assert_eq!(map.reap_owner(OWNER), 0);
}

#[test]
fn what_nobody_has_used_for_long_is_put_out() {
    let fabric = SimFabric::new();
    let (_pool, keys) = exported(&fabric, 3);
    let policy = AliasPolicy {
        ttl: Some(Duration::ZERO),
        ..AliasPolicy::default()
    };
    let map = AliasMap::open(fabric.function(DPU), policy).expect("a good policy");
    let pinned = map.attach(keys[0]).expect("an alias");
    keys[1..].iter().for_each(|key| {
        drop(map.attach(*key).expect("an alias"));
    });
    assert_eq!(map.upkeep(), 2);
    assert_eq!((map.len(), map.stats().expired), (1, 2));
    assert_eq!(fabric.objects(DPU), 1, "the one in use stays");
    drop(pinned);
    assert_eq!((map.upkeep(), map.upkeep()), (1, 0));
    assert_eq!(fabric.objects(DPU), 0);
    assert!(map.attach(keys[0]).is_ok(), "and it comes back when needed");
}

#[test]
fn a_round_of_upkeep_is_short_and_an_alias_rests_before_it_goes() {
    let fabric = SimFabric::new();
    let (_pool, keys) = exported(&fabric, 100);
    for (ttl, expect) in [
        (Some(Duration::ZERO), [64, 36]),
        (Some(Duration::from_secs(3600)), [0, 0]),
        (None, [0, 0]),
    ] {
        let policy = AliasPolicy {
            ttl,
            ..AliasPolicy::default()
        };
        let map = AliasMap::open(fabric.function(DPU), policy).expect("a good policy");
        keys.iter()
            .for_each(|key| drop(map.attach(*key).expect("an alias")));
        assert_eq!([map.upkeep(), map.upkeep()], expect, "{ttl:?}");
    }
}

#[test]
fn the_keeper_puts_out_what_rests_and_ends_with_the_map() {
    let fabric = SimFabric::new();
    let (_pool, keys) = exported(&fabric, 3);
    let policy = AliasPolicy {
        ttl: Some(Duration::from_millis(4)),
        keeper: true,
        ..AliasPolicy::default()
    };
    let map = AliasMap::open(fabric.function(DPU), policy).expect("a good policy");
    for key in &keys {
        drop(map.attach(*key).expect("an alias"));
    }
    let start = Instant::now();
    while map.stats().expired < 3 {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "{:?}",
            map.stats()
        );
        std::thread::yield_now();
    }
    assert!(map.is_empty() && map.close());
    assert_eq!(fabric.objects(DPU), 0);
}

#[test]
fn closing_takes_aliases_in_use_too() {
    let fabric = SimFabric::new();
    let (_pool, keys) = exported(&fabric, 2);
    let map = map(&fabric, 8);
    let pinned = map.attach(keys[0]).expect("an alias");
    drop(map.attach(keys[1]).expect("an alias"));
    assert!(map.close());
    assert_eq!((fabric.objects(DPU), map.len()), (0, 0));
    drop(pinned);
    assert_eq!(fabric.counts().destroy_alias, 2, "each once");
    assert!(matches!(map.attach(keys[0]), Err(AliasError::Closed)));
    assert!(map.close(), "once more does no harm");
}

/// A device whose commands last as long as the test requires.
#[derive(Debug)]
struct Slow {
    entered: Barrier,
    leave: Barrier,
    made: AtomicU64,
    fails: bool,
}

impl AliasDevice for Slow {
    fn create_alias(&self, _: &RemoteKey, _: &AccessKey) -> Result<Alias, DeviceError> {
        self.entered.wait();
        self.leave.wait();
        self.made.fetch_add(1, Ordering::Relaxed);
        if self.fails {
            return Err(DeviceError::Closed);
        }
        let index = MkeyIndex::new(1).expect("24 bits");
        Ok(Alias {
            index,
            lkey: Lkey::from_raw(0x100),
        })
    }

    fn destroy_alias(&self, _: MkeyIndex) -> Result<(), DeviceError> {
        Ok(())
    }
}

/// Threads that attach the same key while one of them creates its alias.
#[track_caller]
fn check_single_flight(fails: bool) {
    const JOINERS: u64 = 3;
    let device = Arc::new(Slow {
        entered: Barrier::new(2),
        leave: Barrier::new(2),
        made: AtomicU64::new(0),
        fails,
    });
    let map = AliasMap::open(Arc::clone(&device), AliasPolicy::default()).expect("a good policy");
    let key = RemoteKey {
        gvmi: HOST,
        mkey: Mkey::from_raw(0x77fb),
        owner: OWNER,
    };
    let attach = || map.attach(key).map(|alias| alias.lkey()).ok();
    std::thread::scope(|scope| {
        let leader = scope.spawn(attach);
        device.entered.wait();
        let joiners: Vec<_> = (0..JOINERS).map(|_| scope.spawn(attach)).collect();
        // A joining thread increments the counter before it waits.
        while map.stats().joins < JOINERS {
            std::thread::yield_now();
        }
        device.leave.wait();
        let expect = (!fails).then_some(Lkey::from_raw(0x100));
        for thread in joiners.into_iter().chain([leader]) {
            assert_eq!(thread.join().expect("no panic"), expect);
        }
    });
    assert_eq!(device.made.load(Ordering::Relaxed), 1);
    assert_eq!(map.len(), usize::from(!fails));
}

#[test]
fn threads_that_miss_on_the_same_key_make_one_alias() {
    check_single_flight(false);
    check_single_flight(true);
}

#[test]
fn a_failed_attempt_does_not_spoil_the_next() {
    let fabric = SimFabric::new();
    let (_pool, keys) = exported(&fabric, 1);
    let map = map(&fabric, 1);
    fabric.set_faults(
        3,
        FaultRates {
            alias: 1000,
            ..FaultRates::default()
        },
    );
    assert!(map.attach(keys[0]).is_err());
    fabric.set_faults(3, FaultRates::default());
    assert!(map.attach(keys[0]).is_ok());
}

/// A full map of pinned aliases is not searched at every miss, and an unpinned alias is found.
#[test]
fn a_full_map_of_pinned_aliases_is_not_searched_again_and_again() {
    const ALIASES: u32 = 1000;
    let fabric = SimFabric::new();
    let (_pool, exported) = exported(&fabric, 2 * ALIASES);
    let map = map(&fabric, ALIASES);
    let (pinned, others) = exported.split_at(ALIASES as usize);
    let mut pins: Vec<_> = pinned
        .iter()
        .map(|key| map.attach(*key).expect("an alias"))
        .collect();
    for key in others {
        let error = map.attach(*key).expect_err("everything is pinned");
        assert!(matches!(error, AliasError::Full { .. }), "{error}");
    }
    assert!(map.stats().searches <= 2, "{:?}", map.stats());
    // One alias at a time is unpinned.
    for (key, place) in others.iter().zip(0..100) {
        drop(pins.swap_remove(place));
        pins.push(map.attach(*key).expect("the place that came free"));
        assert!(map.attach(others[999]).is_err(), "and no other");
    }
    assert!(map.stats().searches <= 4, "{:?}", map.stats());
    // All aliases are unpinned: the map evicts the oldest first.
    drop(pins);
    for key in &others[100..] {
        drop(map.attach(*key).expect("a place"));
    }
    assert_eq!(map.len(), ALIASES as usize);
}
