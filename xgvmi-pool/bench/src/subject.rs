//! The measured objects: a pool for leases, and a map for alias lookups.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use xgvmi_pool::sim::{SimDevice, SimFabric};
use xgvmi_pool::{
    AccessKey, Alias, AliasDevice, AliasMap, AliasPolicy, AliasRef, DeviceError, Gvmi, Lkey, Mkey,
    MkeyIndex, MkeyPool, OwnerUuid, PoolPolicy, RemoteKey, Tag,
};

/// Keys of the lease benches: more than the caches hold, and no more than a rank uses.
pub const POOL_KEYS: u32 = 256;
/// Keys of the alias bench: about the number of a DPU in the slides' job of 32 nodes with 32 ranks.
const ALIAS_KEYS: u32 = 20_000;
/// Number of exporting functions.
const FUNCTIONS: u16 = 4;
/// The exporter of the keys.
const OWNER: OwnerUuid = OwnerUuid::new(1);

/// A pool with all its keys.
pub fn pool() -> MkeyPool<SimDevice> {
    let policy = PoolPolicy {
        prefill: POOL_KEYS,
        ..PoolPolicy::default()
    };
    MkeyPool::open(SimFabric::new().function(Gvmi::new(1)), policy).expect("a good policy")
}

/// Leases and returns a key, `rounds` times.
pub fn lease(pool: &MkeyPool<SimDevice>, rounds: u64) {
    for _ in 0..rounds {
        drop(black_box(pool.lease().expect("a free key")));
    }
}

/// Keys like those of exporters: consecutive indices, one tag, a few functions. Their order does
/// not follow their order in memory.
pub fn keys() -> Vec<RemoteKey> {
    let per_function = ALIAS_KEYS / u32::from(FUNCTIONS);
    let mut keys: Vec<_> = (1..=FUNCTIONS)
        .flat_map(|gvmi| (0..per_function).map(move |number| (gvmi, 0x1000 + number)))
        .filter_map(|(gvmi, index)| {
            let mkey = Mkey::new(MkeyIndex::new(index)?, Tag::UCX_POOLED);
            Some(RemoteKey {
                gvmi: Gvmi::new(gvmi),
                mkey,
                owner: OWNER,
            })
        })
        .collect();
    fastrand::Rng::with_seed(1).shuffle(&mut keys);
    keys
}

/// A device that can alias every key.
#[derive(Debug, Default)]
pub struct Anything(AtomicU32);

impl AliasDevice for Anything {
    fn create_alias(&self, _key: &RemoteKey, _access: &AccessKey) -> Result<Alias, DeviceError> {
        let number = self.0.fetch_add(1, Ordering::Relaxed);
        let index = MkeyIndex::new(number).unwrap_or(MkeyIndex::MAX);
        let lkey = Lkey::from_raw(Mkey::new(index, Tag::ZERO).raw());
        Ok(Alias { index, lkey })
    }

    fn destroy_alias(&self, _alias: MkeyIndex) -> Result<(), DeviceError> {
        Ok(())
    }
}

/// A map with the aliases of all keys.
pub fn map(keys: &[RemoteKey]) -> AliasMap<Anything> {
    let map = AliasMap::open(Arc::new(Anything::default()), AliasPolicy::default())
        .expect("a good policy");
    for key in keys {
        drop(map.attach(*key).expect("an alias"));
    }
    map
}

/// Pins and unpins an alias, `rounds` times, with one key after the other.
pub fn attach(map: &AliasMap<Anything>, keys: &[RemoteKey], rounds: u64) {
    let rounds = usize::try_from(rounds).unwrap_or(0);
    for key in keys.iter().cycle().take(rounds) {
        map.unpin(black_box(map.pin(*key).expect("an alias")));
    }
}

/// A map of the default size with every alias in use.
#[derive(Debug)]
pub struct Full {
    map: AliasMap<Anything>,
    _pins: Vec<AliasRef<Anything>>,
    missing: RemoteKey,
}

impl Full {
    /// Fills the map.
    pub fn filled() -> Self {
        let policy = AliasPolicy::default();
        let key = |number| RemoteKey {
            gvmi: Gvmi::new(1),
            mkey: Mkey::new(MkeyIndex::new(number).expect("24 bits"), Tag::UCX_POOLED),
            owner: OWNER,
        };
        let aliases = policy.aliases_max;
        let map = AliasMap::open(Arc::new(Anything::default()), policy).expect("a good policy");
        let pins = (0..aliases).map(|number| map.attach(key(number)).expect("an alias"));
        Self {
            _pins: pins.collect(),
            missing: key(aliases),
            map,
        }
    }

    /// Misses `rounds` times.
    pub fn miss(&self, rounds: u64) {
        for _ in 0..rounds {
            let refused = black_box(self.map.attach(self.missing));
            assert!(refused.is_err(), "everything is in use");
        }
    }
}
