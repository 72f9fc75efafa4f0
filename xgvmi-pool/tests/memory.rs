//! Process memory of the pool and the map, counted at the allocator: its size, and that it does not
//! grow.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use xgvmi_pool::sim::{FaultRates, SimFabric};
use xgvmi_pool::{
    AccessKey, Alias, AliasDevice, AliasMap, AliasPolicy, ChainError, DeviceError, Gvmi,
    Invalidate, Lkey, Mkey, MkeyDevice, MkeyIndex, MkeyLimits, MkeyPool, MkeySpec, OwnerUuid,
    PoolPolicy, Region, RemoteKey, Tag, UmrOp, VirtAddr,
};

/// The system's allocator with a count of the allocated bytes.
struct Counting;

static IN_USE: AtomicUsize = AtomicUsize::new(0);

// SAFETY: passes every call to the system's allocator, and only counts.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        IN_USE.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// One test at a time: the allocator counts for all of them.
static TURN: Mutex<()> = Mutex::new(());

fn alone() -> impl Drop {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn in_use() -> usize {
    IN_USE.load(Ordering::Relaxed)
}

/// A device that allocates no memory.
#[derive(Debug, Default)]
struct Weightless(AtomicU32);

impl Weightless {
    fn next(&self) -> MkeyIndex {
        MkeyIndex::new(self.0.fetch_add(1, Ordering::Relaxed)).expect("fewer than 2^24")
    }
}

impl MkeyDevice for Weightless {
    type Quick = ();

    fn quick(&self) {}

    fn gvmi(&self) -> Gvmi {
        Gvmi::new(1)
    }

    fn limits(&self) -> MkeyLimits {
        MkeyLimits {
            klm_entries_max: 16,
            chain_ops_max: 256,
        }
    }

    fn create_mkey(&self, _: &MkeySpec) -> Result<MkeyIndex, DeviceError> {
        Ok(self.next())
    }

    fn destroy_mkey(&self, _: MkeyIndex) -> Result<(), DeviceError> {
        Ok(())
    }

    fn run(&self, _: &[UmrOp<'_>]) -> Result<(), ChainError> {
        Ok(())
    }
}

impl AliasDevice for Weightless {
    fn create_alias(&self, _: &RemoteKey, _: &AccessKey) -> Result<Alias, DeviceError> {
        let index = self.next();
        Ok(Alias {
            index,
            lkey: Lkey::from_raw(Mkey::new(index, Tag::ZERO).raw()),
        })
    }

    fn destroy_alias(&self, _: MkeyIndex) -> Result<(), DeviceError> {
        Ok(())
    }
}

#[test]
fn four_thousand_keys_and_sixty_five_thousand_aliases_take_sixteen_mebibytes_at_most() {
    const KEYS: u32 = 4096;
    const ALIASES: u32 = 65_536;
    let _alone = alone();
    let before = in_use();
    let policy = PoolPolicy {
        mkeys_max: KEYS,
        prefill: KEYS,
        ..PoolPolicy::default()
    };
    let pool = MkeyPool::open(Arc::new(Weightless::default()), policy).expect("a good policy");
    let policy = AliasPolicy {
        aliases_max: ALIASES,
        ..AliasPolicy::default()
    };
    let map = AliasMap::open(Arc::new(Weightless::default()), policy).expect("a good policy");
    for number in 0..ALIASES {
        let mkey = Mkey::new(MkeyIndex::new(number).expect("24 bits"), Tag::UCX_POOLED);
        let key = RemoteKey {
            gvmi: Gvmi::new(2),
            mkey,
            owner: OwnerUuid::new(1),
        };
        drop(map.attach(key).expect("an alias"));
    }
    assert_eq!(
        (pool.stats().keys, map.stats().aliases),
        (KEYS.into(), ALIASES.into())
    );
    let taken = in_use() - before;
    assert!(taken <= 16 << 20, "{taken} bytes");
}

/// Many exports and releases on a device with occasional faults. Prints the seed on a failure.
#[track_caller]
fn check_endurance(invalidate: Invalidate, seed: u64) {
    const ROUNDS: u64 = 250_000;
    const WARM_UP: u64 = 20_000;
    let fabric = SimFabric::new();
    let policy = PoolPolicy {
        mkeys_max: 64,
        invalidate,
        ..PoolPolicy::default()
    };
    let pool = MkeyPool::open(fabric.function(Gvmi::new(1)), policy).expect("a good policy");
    fabric.set_faults(
        seed,
        FaultRates {
            create: 10,
            bind: 10,
            invalidate: 10,
            timeout: 10,
            ..FaultRates::default()
        },
    );
    let mut live = Vec::with_capacity(16);
    let (mut exports, mut warm) = (0u64, 0);
    for round in 0..ROUNDS {
        let addr = VirtAddr::new((round % 1000 + 1) << 12);
        let region = Region::new(addr, 0x1000, Lkey::from_raw(1)).expect("a region");
        if let Ok(export) = pool.export(region) {
            exports += 1;
            live.push(export);
        }
        if live.len() == 16 {
            for export in live.drain(..) {
                export.release().expect("destroying never fails here");
            }
        }
        if round == WARM_UP {
            warm = in_use();
        }
    }
    let grown = in_use().saturating_sub(warm);
    assert!(
        grown < 64 << 10,
        "{grown} bytes more after {ROUNDS} rounds, seed {seed}"
    );
    drop(live);
    pool.flush();
    let stats = pool.stats();
    assert!(exports > ROUNDS / 10 * 9, "{exports} exports, seed {seed}");
    assert_eq!(
        (stats.lost, stats.in_use, fabric.bound(Gvmi::new(1))),
        (0, 0, 0),
        "seed {seed}"
    );
    assert!(
        stats.keys <= 64 && fabric.objects(Gvmi::new(1)) <= 64,
        "seed {seed}"
    );
    fabric.set_faults(0, FaultRates::default());
    assert!(pool.close());
    assert_eq!(fabric.objects(Gvmi::new(1)), 0, "seed {seed}");
}

/// A million exports in total, with a fault rate of one in a hundred of each kind.
#[test]
fn a_million_exports_leave_no_trace() {
    let _alone = alone();
    check_endurance(Invalidate::Strict, 1);
    check_endurance(Invalidate::Strict, 2);
    check_endurance(Invalidate::Batched, 3);
    check_endurance(Invalidate::Chained, 4);
}
