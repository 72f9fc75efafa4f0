//! Each fault of the list on a simulated adapter, with many seeds and in each mode of invalidation.
//! The program `device_faults` of the testbed runs the same list on libmlx5.

#[path = "common/faults.rs"]
mod faults;

use faults::{FAULTS, Fault, Ground, PLACES, Seen};
use xgvmi_pool::sim::{FaultRates, SimDevice, SimFabric};
use xgvmi_pool::{AliasPolicy, DpuHooks, Gvmi, HostHooks, Invalidate, Lkey, Region, VirtAddr};

const HOST: Gvmi = Gvmi::new(1);
const DPU: Gvmi = Gvmi::new(2);
const ROUNDS: u32 = 400;
const SEEDS: u64 = 16;

struct Simulated {
    fabric: SimFabric,
    host: HostHooks<SimDevice>,
    dpu: DpuHooks<SimDevice>,
    invalidate: Invalidate,
}

impl Simulated {
    fn new(invalidate: Invalidate) -> Self {
        let fabric = SimFabric::new();
        let host = HostHooks::open(fabric.function(HOST), faults::policy(invalidate));
        let dpu = DpuHooks::open(fabric.function(DPU), AliasPolicy::default());
        Self {
            host: host.expect("a pool"),
            dpu: dpu.expect("a map"),
            fabric,
            invalidate,
        }
    }
}

impl Ground for Simulated {
    type Device = SimDevice;

    fn host(&self) -> &HostHooks<SimDevice> {
        &self.host
    }

    fn dpu(&self) -> &DpuHooks<SimDevice> {
        &self.dpu
    }

    fn invalidate(&self) -> Invalidate {
        self.invalidate
    }

    fn region(&self, place: usize) -> Region {
        assert!(place < PLACES);
        let addr = VirtAddr::new((place as u64 + 1) << 12);
        Region::new(addr, 0x1000, Lkey::from_raw(7)).expect("a region")
    }

    fn read(&self, key: Lkey, place: usize) -> Result<Seen, String> {
        let wanted = self.region(place);
        match self.fabric.reach(DPU, key, wanted.addr(), wanted.len()) {
            Ok(region) if region == wanted => Ok(Seen::Right),
            Ok(_) => Ok(Seen::Wrong),
            Err(_) => Ok(Seen::Nothing),
        }
    }
}

#[track_caller]
fn check(fault: &Fault, invalidate: Invalidate, seed: u64) {
    let ground = Simulated::new(invalidate);
    let chances = fault.chances;
    if chances.keys_max > 0 {
        ground.fabric.set_objects_max(chances.keys_max);
    }
    ground.fabric.set_faults(
        seed,
        FaultRates {
            create: chances.create,
            destroy: chances.destroy,
            bind: chances.bind,
            invalidate: chances.invalidate,
            timeout: chances.timeout,
            alias: chances.alias,
        },
    );
    let shown = || format!("{}, {invalidate:?}, seed {seed}", fault.name);
    if let Err(broken) = faults::run(&ground, seed, ROUNDS) {
        panic!("{}: {broken}", shown());
    }
    if let Err(quiet) = faults::check_moved(&ground, fault) {
        panic!("{}: {quiet}", shown());
    }
    ground.fabric.set_faults(0, FaultRates::default());
    assert!(ground.host.close() && ground.dpu.close(), "{}", shown());
    let left = (ground.fabric.objects(HOST), ground.fabric.objects(DPU));
    assert_eq!(left, (0, 0), "{}", shown());
}

#[test]
fn promises_are_kept_whatever_fails() {
    for fault in FAULTS {
        for invalidate in [Invalidate::Strict, Invalidate::Batched, Invalidate::Chained] {
            (1..=SEEDS).for_each(|seed| check(fault, invalidate, seed));
        }
    }
}

#[test]
fn each_fault_has_a_name_of_its_own() {
    let names: std::collections::HashSet<_> = FAULTS.iter().map(|fault| fault.name).collect();
    assert_eq!(names.len(), FAULTS.len());
}
