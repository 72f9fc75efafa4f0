//! A simulated adapter: functions with key tables, aliases between them, and faults by seed. It
//! follows the rules of an adapter on which the pool relies. It does not simulate timing.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::device::{Alias, AliasDevice, MkeyDevice, MkeyLimits, MkeySpec, UmrOp};
use crate::error::{ChainError, DeviceError, Rest};
use crate::key::{AccessKey, Gvmi, Lkey, Mkey, MkeyIndex, RemoteKey, Tag, VirtAddr};
use crate::region::Region;

/// Syndrome of a completion that reports a bad bind (PRM: `MW_BIND_ERR`).
const SYNDROME_BIND: u8 = 0x06;
/// Status of a command on an object that does not exist (PRM: `BAD_RES`).
const STATUS_BAD_RESOURCE: u8 = 0x05;
/// Status of a command that the device could not execute (PRM: `INT_ERR`).
const STATUS_INTERNAL: u8 = 0x01;

/// Probabilities, in units of one thousandth, that a valid call fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultRates {
    /// A key creation fails.
    pub create: u16,
    /// A key destruction fails.
    pub destroy: u16,
    /// A bind ends in an error completion; the requests behind it in the chain are flushed.
    pub bind: u16,
    /// An invalidation ends in an error completion.
    pub invalidate: u16,
    /// A chain has no completion in time. Each of its requests may have taken effect.
    pub timeout: u16,
    /// An alias creation fails.
    pub alias: u16,
}

/// Operations of the functions of a fabric, including failed calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SimCounts {
    /// Key creations.
    pub create_mkey: u64,
    /// Key destructions.
    pub destroy_mkey: u64,
    /// Chains of requests.
    pub chains: u64,
    /// Binds that took effect.
    pub binds: u64,
    /// Invalidations that took effect.
    pub invalidates: u64,
    /// Alias creations.
    pub create_alias: u64,
    /// Alias destructions.
    pub destroy_alias: u64,
}

/// The reason why an access failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreached {
    /// The function has no such key.
    #[error("no such key")]
    NoKey,
    /// The key is an alias of a destroyed key.
    #[error("the alias of a destroyed key")]
    Dangling,
    /// The key is free.
    #[error("the key is free")]
    Free,
    /// The key's region does not contain all of the bytes.
    #[error("outside of the key's region")]
    OutOfRange,
}

/// One adapter with any number of functions.
#[derive(Clone)]
pub struct SimFabric {
    world: Arc<Mutex<World>>,
}

/// One function of the adapter, with both sides.
pub struct SimDevice {
    fabric: SimFabric,
    gvmi: Gvmi,
}

struct World {
    functions: HashMap<Gvmi, BTreeMap<u32, Object>>,
    /// Maximum number of objects of one function.
    objects_max: usize,
    limits: MkeyLimits,
    rates: FaultRates,
    seed: u64,
    /// Distinguishes consecutive objects with the same index.
    serial: u64,
    counts: SimCounts,
}

enum Object {
    Key {
        serial: u64,
        tag: Tag,
        /// The bound regions; empty if the key is free.
        regions: Vec<Region>,
        spec: MkeySpec,
    },
    Alias {
        gvmi: Gvmi,
        index: MkeyIndex,
        serial: u64,
    },
}

impl SimFabric {
    /// An adapter without faults.
    #[must_use]
    pub fn new() -> Self {
        let world = World {
            functions: HashMap::new(),
            objects_max: 1 << 20,
            limits: MkeyLimits {
                klm_entries_max: 64,
                chain_ops_max: 256,
            },
            rates: FaultRates::default(),
            seed: 0,
            serial: 0,
            counts: SimCounts::default(),
        };
        Self {
            world: Arc::new(Mutex::new(world)),
        }
    }

    /// The function with this id. Each call returns a device over the same tables.
    #[must_use]
    pub fn function(&self, gvmi: Gvmi) -> Arc<SimDevice> {
        self.world().functions.entry(gvmi).or_default();
        Arc::new(SimDevice {
            fabric: self.clone(),
            gvmi,
        })
    }

    /// Sets the probabilities of faults for later calls. The same seed and the same calls give the
    /// same faults.
    pub fn set_faults(&self, seed: u64, rates: FaultRates) {
        let mut world = self.world();
        world.seed = seed;
        world.rates = rates;
    }

    /// Sets the maximum number of objects of one function.
    pub fn set_objects_max(&self, objects_max: usize) {
        self.world().objects_max = objects_max;
    }

    /// Sets the maximum weight of the requests in one chain.
    pub fn set_chain_ops_max(&self, chain_ops_max: u32) {
        self.world().limits.chain_ops_max = chain_ops_max;
    }

    /// Operations so far.
    #[must_use]
    pub fn counts(&self) -> SimCounts {
        self.world().counts
    }

    /// Present number of keys and aliases of a function.
    #[must_use]
    pub fn objects(&self, gvmi: Gvmi) -> usize {
        self.world().functions.get(&gvmi).map_or(0, BTreeMap::len)
    }

    /// Number of KLM entries of all keys of a function.
    #[must_use]
    pub fn klm_entries(&self, gvmi: Gvmi) -> u32 {
        let entries = |object: &Object| match object {
            Object::Key { spec, .. } => spec.klm_entries,
            Object::Alias { .. } => 0,
        };
        let functions = &self.world().functions;
        functions
            .get(&gvmi)
            .map_or(0, |objects| objects.values().map(entries).sum())
    }

    /// Number of bound keys of a function.
    #[must_use]
    pub fn bound(&self, gvmi: Gvmi) -> usize {
        let bound = |object: &&Object| {
            matches!(
                object,
                Object::Key { regions, .. } if !regions.is_empty()
            )
        };
        self.world()
            .functions
            .get(&gvmi)
            .map_or(0, |objects| objects.values().filter(bound).count())
    }

    /// Resets a function, as the death of its process does: all its keys and aliases are gone.
    pub fn reset(&self, gvmi: Gvmi) {
        self.world().functions.insert(gvmi, BTreeMap::new());
    }

    /// Result of an access of `len` bytes at `addr` with a key of the function `gvmi`: the region
    /// behind the key. If the key has several regions, the one that contains `addr`.
    ///
    /// # Errors
    /// If the adapter would end it in an error completion.
    pub fn reach(
        &self,
        gvmi: Gvmi,
        key: Lkey,
        addr: VirtAddr,
        len: u64,
    ) -> Result<Region, Unreached> {
        let world = self.world();
        let key = Mkey::from_raw(key.raw());
        let regions = match world.object(gvmi, key.index()).ok_or(Unreached::NoKey)? {
            // The tag of an alias is independent of the tag of its key.
            Object::Key { tag, .. } if *tag != key.tag() => return Err(Unreached::NoKey),
            Object::Key { regions, .. } => regions,
            Object::Alias {
                gvmi,
                index,
                serial,
            } => match world.object(*gvmi, *index) {
                Some(Object::Key {
                    regions,
                    serial: found,
                    ..
                }) if found == serial => regions,
                _ => return Err(Unreached::Dangling),
            },
        };
        let (Some(first), Some(last)) = (regions.first(), regions.last()) else {
            return Err(Unreached::Free);
        };
        // No overflow: a region ends within the address space.
        let end = last.addr().get() + last.len();
        let is_inside = addr
            .get()
            .checked_add(len)
            .is_some_and(|to| addr >= first.addr() && to <= end);
        // An access of no bytes at the end of the memory belongs to the last region.
        let holds = |region: &&Region| addr.get() < region.addr().get() + region.len();
        match regions.iter().find(holds).or(Some(last)) {
            Some(region) if is_inside => Ok(*region),
            _ => Err(Unreached::OutOfRange),
        }
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for SimFabric {
    fn default() -> Self {
        Self::new()
    }
}

impl World {
    fn object(&self, gvmi: Gvmi, index: MkeyIndex) -> Option<&Object> {
        self.functions.get(&gvmi)?.get(&index.get())
    }

    /// True with this probability, in units of one thousandth.
    fn chance(&mut self, per_mille: u16) -> bool {
        per_mille != 0 && self.random() % 1000 < u64::from(per_mille)
    }

    /// splitmix64.
    fn random(&mut self) -> u64 {
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.seed;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// Adds an object under the lowest free index, like an adapter: the index of the last destroyed
    /// object is the first to be reused.
    fn add(
        &mut self,
        call: &'static str,
        gvmi: Gvmi,
        object: Object,
    ) -> Result<MkeyIndex, DeviceError> {
        let objects_max = self.objects_max;
        let objects = self.functions.entry(gvmi).or_default();
        if objects.len() >= objects_max {
            return Err(DeviceError::LimitsExceeded {
                call,
                syndrome: 0x1_8af6,
            });
        }
        // Index 0 is not used: code easily mistakes a key of zero for no key.
        let free = (1..=MkeyIndex::MAX.get()).find(|index| !objects.contains_key(index));
        let Some(index) = free.and_then(MkeyIndex::new) else {
            return Err(DeviceError::LimitsExceeded {
                call,
                syndrome: 0x1_8af6,
            });
        };
        objects.insert(index.get(), object);
        Ok(index)
    }

    fn apply(&mut self, gvmi: Gvmi, op: &UmrOp<'_>) -> Result<(), DeviceError> {
        let object = self
            .functions
            .get_mut(&gvmi)
            .and_then(|objects| objects.get_mut(&op.mkey().index().get()));
        let Some(Object::Key {
            regions, tag, spec, ..
        }) = object
        else {
            return Err(bad_request(op));
        };
        match *op {
            UmrOp::Bind { mkey, span: new } => {
                if !regions.is_empty() || new.klm_entries() > u64::from(spec.klm_entries) {
                    return Err(bad_request(op));
                }
                regions.extend_from_slice(new.regions());
                *tag = mkey.tag();
                self.counts.binds += 1;
            }
            UmrOp::Invalidate { .. } => {
                regions.clear();
                self.counts.invalidates += 1;
            }
        }
        Ok(())
    }
}

impl MkeyDevice for SimDevice {
    type Quick = ();

    fn quick(&self) {}

    fn gvmi(&self) -> Gvmi {
        self.gvmi
    }

    fn limits(&self) -> MkeyLimits {
        self.fabric.world().limits
    }

    fn create_mkey(&self, spec: &MkeySpec) -> Result<MkeyIndex, DeviceError> {
        const CALL: &str = "CREATE_MKEY";
        let mut world = self.fabric.world();
        world.counts.create_mkey += 1;
        let rate = world.rates.create;
        if world.chance(rate) {
            return Err(refused(CALL, "key".to_owned(), STATUS_INTERNAL));
        }
        world.serial += 1;
        let serial = world.serial;
        let key = Object::Key {
            serial,
            tag: Tag::ZERO,
            regions: Vec::new(),
            spec: spec.clone(),
        };
        world.add(CALL, self.gvmi, key)
    }

    fn destroy_mkey(&self, mkey: MkeyIndex) -> Result<(), DeviceError> {
        const CALL: &str = "DESTROY_MKEY";
        let mut world = self.fabric.world();
        world.counts.destroy_mkey += 1;
        let rate = world.rates.destroy;
        if world.chance(rate) {
            return Err(refused(CALL, format!("{mkey:?}"), STATUS_INTERNAL));
        }
        match world
            .functions
            .get_mut(&self.gvmi)
            .and_then(|all| all.remove(&mkey.get()))
        {
            Some(_) => Ok(()),
            None => Err(refused(CALL, format!("{mkey:?}"), STATUS_BAD_RESOURCE)),
        }
    }

    fn run(&self, chain: &[UmrOp<'_>]) -> Result<(), ChainError> {
        let mut world = self.fabric.world();
        world.counts.chains += 1;
        let rates = world.rates;
        let weight: u32 = chain.iter().map(UmrOp::weight).sum();
        if weight > world.limits.chain_ops_max {
            let what = format!("a chain that weighs {weight}");
            let source = DeviceError::Unsupported { what };
            return Err(ChainError {
                done: 0,
                rest: Rest::NotDone,
                source,
            });
        }
        if world.chance(rates.timeout) {
            for op in chain {
                if world.chance(500) {
                    // A request that is also invalid counts as one that did not take effect.
                    let _wrong = world.apply(self.gvmi, op);
                }
            }
            let request = format!("a chain of {} requests", chain.len());
            let source = DeviceError::TimedOut {
                request,
                limit: Duration::ZERO,
            };
            return Err(ChainError {
                done: 0,
                rest: Rest::Unknown,
                source,
            });
        }
        for (done, op) in chain.iter().enumerate() {
            let rate = match op {
                UmrOp::Bind { .. } => rates.bind,
                UmrOp::Invalidate { .. } => rates.invalidate,
            };
            let result = if world.chance(rate) {
                Err(bad_request(op))
            } else {
                world.apply(self.gvmi, op)
            };
            if let Err(source) = result {
                return Err(ChainError {
                    done,
                    rest: Rest::NotDone,
                    source,
                });
            }
        }
        Ok(())
    }
}

impl AliasDevice for SimDevice {
    fn create_alias(&self, key: &RemoteKey, access: &AccessKey) -> Result<Alias, DeviceError> {
        const CALL: &str = "CREATE_GENERAL_OBJECT";
        let mut world = self.fabric.world();
        world.counts.create_alias += 1;
        let rate = world.rates.alias;
        if world.chance(rate) {
            return Err(refused(CALL, format!("{key:?}"), STATUS_INTERNAL));
        }
        let serial = match world.object(key.gvmi, key.mkey.index()) {
            Some(Object::Key { serial, spec, .. }) if spec.access_key == *access => *serial,
            _ => return Err(refused(CALL, format!("{key:?}"), STATUS_BAD_RESOURCE)),
        };
        let alias = Object::Alias {
            gvmi: key.gvmi,
            index: key.mkey.index(),
            serial,
        };
        let index = world.add(CALL, self.gvmi, alias)?;
        Ok(Alias {
            index,
            lkey: Lkey::from_raw(Mkey::new(index, Tag::ZERO).raw()),
        })
    }

    fn destroy_alias(&self, alias: MkeyIndex) -> Result<(), DeviceError> {
        let mut world = self.fabric.world();
        world.counts.destroy_alias += 1;
        match world
            .functions
            .get_mut(&self.gvmi)
            .and_then(|all| all.remove(&alias.get()))
        {
            Some(_) => Ok(()),
            None => Err(refused(
                "DESTROY_GENERAL_OBJECT",
                format!("{alias:?}"),
                STATUS_BAD_RESOURCE,
            )),
        }
    }
}

impl fmt::Debug for SimFabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimFabric").finish_non_exhaustive()
    }
}

impl fmt::Debug for SimDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimDevice")
            .field("gvmi", &self.gvmi)
            .finish_non_exhaustive()
    }
}

fn refused(call: &'static str, object: String, status: u8) -> DeviceError {
    DeviceError::Refused {
        call,
        object,
        status,
        syndrome: 0,
        errno: 0,
    }
}

fn bad_request(op: &UmrOp<'_>) -> DeviceError {
    DeviceError::Completion {
        request: format!("{op:?}"),
        syndrome: SYNDROME_BIND,
        vendor: 0,
    }
}
