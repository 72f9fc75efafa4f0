//! The checks. Each opens its own pool devices on the two contexts and leaves no objects.

use std::sync::Arc;
use std::time::Duration;

use xgvmi_pool::mlx5::{Mlx5Device, Mlx5Options};
use xgvmi_pool::{
    AccessKey, AliasDevice, AliasPolicy, DeviceError, DpuHooks, Export, HostHooks, Invalidate,
    Mkey, MkeyDevice, MkeySpec, OwnerUuid, PoolError, PoolPolicy, Region, RemoteKey, Span, Tag,
    UmrOp, VirtAddr,
};

use crate::Outcome;
use crate::verbs::{Context, Memory, Part, Reader};

/// One check.
pub(crate) struct Check {
    pub(crate) name: &'static str,
    pub(crate) run: fn(&Context, &Context) -> Outcome<()>,
}

macro_rules! checks {
    ($($name:ident,)*) => {
        /// All checks, in their order.
        pub(crate) const ALL: &[Check] = &[$(Check { name: stringify!($name), run: $name },)*];
    };
}

checks! {
    a_bound_key_is_read_through_its_alias_and_a_released_one_is_not,
    an_unaligned_region_is_read_to_its_last_byte_and_no_further,
    a_region_of_five_gigabytes_takes_one_key,
    memory_that_was_registered_in_pieces_takes_one_key,
    sixty_four_keys_are_bound_and_freed_together,
    a_key_is_freed_in_front_of_the_next_bind,
    a_queue_that_cannot_be_connected_fails_each_export_and_does_no_harm,
    a_bad_bind_ends_the_queue_and_the_next_one_finds_a_new_queue,
    the_requests_before_the_bad_one_are_done_and_those_behind_it_are_not,
    many_threads_share_the_queue,
    a_small_ring_is_gone_around_many_times,
    a_chain_longer_than_the_ring_is_refused,
    an_alias_of_a_destroyed_key_reaches_nothing,
    an_alias_reaches_what_its_key_is_bound_to_next,
    a_wrong_access_key_is_refused,
    a_forked_child_is_kept_away,
    a_closed_device_refuses_everything,
}

const OWNER: OwnerUuid = OwnerUuid::new(0x0123_4567_89ab_cdef);
const PAGE: usize = 4096;

/// Both sides, open.
struct Sides<'a> {
    host_context: &'a Context,
    dpu_context: &'a Context,
    host_device: Arc<Mlx5Device>,
    host: HostHooks<Mlx5Device>,
    dpu_device: Arc<Mlx5Device>,
    dpu: DpuHooks<Mlx5Device>,
}

impl<'a> Sides<'a> {
    fn open(host: &'a Context, dpu: &'a Context) -> Outcome<Self> {
        Self::open_with(host, dpu, PoolPolicy::default())
    }

    fn open_with(host: &'a Context, dpu: &'a Context, policy: PoolPolicy) -> Outcome<Self> {
        let host_device = host.pool_device(Mlx5Options::default())?;
        let dpu_device = dpu.pool_device(Mlx5Options::default())?;
        Ok(Self {
            host_context: host,
            dpu_context: dpu,
            host: HostHooks::open(Arc::clone(&host_device), policy)?,
            dpu: DpuHooks::open(Arc::clone(&dpu_device), AliasPolicy::default())?,
            host_device,
            dpu_device,
        })
    }

    fn memory(&self, len: usize, seed: u64) -> Outcome<Memory<'a>> {
        Memory::register(self.host_context, len, seed)
    }

    /// The DPU's read of `len` bytes at `addr` through its alias of the key.
    fn read(&self, key: RemoteKey, addr: VirtAddr, len: usize) -> Outcome<Option<Box<[u8]>>> {
        let memory = Memory::of(self.dpu_context, vec![0; len].into())?;
        let alias = self.dpu.attach(key)?;
        let reader = Reader::connect(self.dpu_context)?;
        match reader.read(&memory, alias.lkey(), addr)? {
            Ok(()) => Ok(Some(memory.bytes().into())),
            Err(_refused) => Ok(None),
        }
    }

    /// The DPU must read exactly the content of the host's memory.
    fn reads(&self, export: &Export<Mlx5Device>, memory: &Memory<'_>) -> Outcome<()> {
        let len = usize::try_from(export.len())?;
        let start = usize::try_from(export.addr().get() - memory.addr())?;
        let got = self.read(key(export), export.addr(), len)?;
        let right = got.as_deref() == Some(&memory.bytes()[start..start + len]);
        ensure(right, "the DPU reads what the host has written")
    }

    fn close(self) -> Outcome<()> {
        ensure(
            self.host.close() && self.dpu.close(),
            "keys and aliases are destroyed",
        )?;
        let closed = self.host_device.close() && self.dpu_device.close();
        ensure(closed, "nothing is left of the devices")
    }
}

fn key(export: &Export<Mlx5Device>) -> RemoteKey {
    RemoteKey {
        gvmi: export.gvmi(),
        mkey: export.mkey(),
        owner: OWNER,
    }
}

fn whole(memory: &Memory<'_>) -> Outcome<Region> {
    part(memory, 0, memory.bytes().len())
}

fn part(memory: &Memory<'_>, start: usize, len: usize) -> Outcome<Region> {
    let addr = VirtAddr::new(memory.addr() + u64::try_from(start)?);
    Ok(Region::new(addr, u64::try_from(len)?, memory.lkey())?)
}

fn ensure(right: bool, what: &str) -> Outcome<()> {
    if right {
        Ok(())
    } else {
        Err(format!("not so: {what}").into())
    }
}

fn a_bound_key_is_read_through_its_alias_and_a_released_one_is_not(
    host: &Context,
    dpu: &Context,
) -> Outcome<()> {
    let sides = Sides::open(host, dpu)?;
    for round in 0..20 {
        let memory = sides.memory(16 * PAGE, round)?;
        let export = sides.host.export(whole(&memory)?)?;
        sides.reads(&export, &memory)?;
        let (key, addr) = (key(&export), export.addr());
        sides.host.release(export)?;
        ensure(
            sides.read(key, addr, 1)?.is_none(),
            "a released key reaches nothing",
        )?;
    }
    let (pool, aliases) = (sides.host.stats(), sides.dpu.stats());
    ensure(
        (pool.creates, aliases.creates) == (1, 1),
        "one key and one alias serve all rounds",
    )?;
    sides.close()
}

fn an_unaligned_region_is_read_to_its_last_byte_and_no_further(
    host: &Context,
    dpu: &Context,
) -> Outcome<()> {
    let sides = Sides::open(host, dpu)?;
    let memory = sides.memory(4 * PAGE, 1)?;
    for (start, len) in [(0, 1), (1, 1), (13, 2 * PAGE + 5), (4 * PAGE - 1, 1)] {
        let export = sides.host.export(part(&memory, start, len)?)?;
        sides.reads(&export, &memory)?;
        let addr = export.addr();
        let beyond = sides.read(key(&export), addr, len + 1)?;
        ensure(beyond.is_none(), "a byte beyond the end is out of reach")?;
        let before = sides.read(key(&export), VirtAddr::new(addr.get() - 1), 1)?;
        ensure(before.is_none(), "a byte before the start is out of reach")?;
        sides.host.release(export)?;
    }
    sides.close()
}

fn a_region_of_five_gigabytes_takes_one_key(host: &Context, dpu: &Context) -> Outcome<()> {
    const GIB: usize = 1 << 30;
    const LEN: usize = 5 * GIB + 123;
    let sides = Sides::open(host, dpu)?;
    // Pages without a write take no memory.
    let mut bytes = vec![0; LEN].into_boxed_slice();
    let places = [0, GIB - 4, 2 * GIB - 4, 3 * GIB + 77, 5 * GIB - 4, LEN - 8];
    for (number, place) in (1u8..).zip(places) {
        bytes[place..place + 8].copy_from_slice(&[number; 8]);
    }
    let memory = Memory::of(sides.host_context, bytes)?;
    let export = sides.host.export(whole(&memory)?)?;
    for (number, place) in (1u8..).zip(places) {
        let addr = VirtAddr::new(memory.addr() + u64::try_from(place)?);
        let got = sides.read(key(&export), addr, 8)?;
        ensure(
            got.as_deref() == Some(&[number; 8][..]),
            &format!("read at {place:#x}"),
        )?;
    }
    sides.host.release(export)?;
    ensure(sides.host.stats().creates == 1, "one key")?;
    sides.close()
}

/// The borders of the pieces are at unaligned addresses, and the read crosses them.
fn memory_that_was_registered_in_pieces_takes_one_key(
    host: &Context,
    dpu: &Context,
) -> Outcome<()> {
    const BORDERS: [usize; 6] = [0, 5, PAGE + 1, 3 * PAGE, 3 * PAGE + 7, 8 * PAGE];
    let sides = Sides::open(host, dpu)?;
    let memory = sides.memory(9 * PAGE, 14)?;
    let pieces: Outcome<Vec<_>> = BORDERS
        .windows(2)
        .map(|ends| memory.register_part(ends[0]..ends[1]))
        .collect();
    let pieces = pieces?;
    let regions: Vec<_> = pieces.iter().map(Part::region).collect();
    let export = sides.host.export(Span::of(&regions)?)?;
    sides.reads(&export, &memory)?;
    for border in &BORDERS[1..5] {
        let addr = VirtAddr::new(memory.addr() + u64::try_from(border - 3)?);
        let got = sides.read(key(&export), addr, 9)?;
        let right = got.as_deref() == Some(&memory.bytes()[border - 3..border + 6]);
        ensure(right, &format!("read across the border at {border:#x}"))?;
    }
    let beyond = sides.read(key(&export), export.addr(), 8 * PAGE + 1)?;
    ensure(
        beyond.is_none(),
        "the byte behind the last piece is out of reach",
    )?;
    // The same key for fewer regions. Its old entries must not be accessible.
    let (long, middle) = (export.mkey(), VirtAddr::new(memory.addr() + 0x1000));
    sides.host.release(export)?;
    let again = sides.host.export(Span::of(&regions)?)?;
    ensure(again.mkey() == long, "one key for many pieces")?;
    sides.host.release(again)?;
    let export = sides.host.export(Span::of(&regions[..4])?)?;
    let mkey = export.mkey();
    sides.host.release(export)?;
    let export = sides.host.export(part(&memory, 0, PAGE)?)?;
    ensure(export.mkey() == mkey, "one key")?;
    sides.reads(&export, &memory)?;
    ensure(
        sides.read(key(&export), middle, 1)?.is_none(),
        "entries of before are out of reach",
    )?;
    sides.host.release(export)?;
    sides.close()
}

fn sixty_four_keys_are_bound_and_freed_together(host: &Context, dpu: &Context) -> Outcome<()> {
    let policy = PoolPolicy {
        invalidate: Invalidate::Batched,
        // The test counts chains, also on a slow machine.
        batch_time: Duration::from_secs(3600),
        ..PoolPolicy::default()
    };
    let sides = Sides::open_with(host, dpu, policy)?;
    let memory = sides.memory(64 * PAGE, 2)?;
    let regions: Outcome<Vec<_>> = (0..64)
        .map(|page| part(&memory, page * PAGE, PAGE))
        .collect();
    let before = sides.host.stats().chains;
    let exports: Result<Vec<_>, PoolError> =
        sides.host.export_many(&regions?).into_iter().collect();
    let exports = exports?;
    for export in exports.iter().step_by(9) {
        sides.reads(export, &memory)?;
    }
    let keys: Vec<_> = exports
        .iter()
        .map(|export| (key(export), export.addr()))
        .collect();
    for export in exports {
        sides.host.release(export)?;
    }
    ensure(
        sides.host.stats().chains - before == 2,
        "one doorbell for all of each kind",
    )?;
    for (key, addr) in keys.into_iter().step_by(9) {
        ensure(sides.read(key, addr, 1)?.is_none(), "all are free")?;
    }
    sides.close()
}

fn a_key_is_freed_in_front_of_the_next_bind(host: &Context, dpu: &Context) -> Outcome<()> {
    let policy = PoolPolicy {
        invalidate: Invalidate::Chained,
        // The test counts chains, also on a slow machine.
        batch_time: Duration::from_secs(3600),
        prefill: 2,
        ..PoolPolicy::default()
    };
    let sides = Sides::open_with(host, dpu, policy)?;
    let memory = sides.memory(2 * PAGE, 3)?;
    for page in [0, 1, 0, 1] {
        let export = sides.host.export(part(&memory, page * PAGE, PAGE)?)?;
        sides.reads(&export, &memory)?;
        sides.host.release(export)?;
    }
    ensure(sides.host.stats().chains == 4, "no doorbell for a release")?;
    sides.host.pool().flush();
    sides.close()
}

/// Defect D1 of stock UCX: the second export after a failed connection uses the destroyed queue.
fn a_queue_that_cannot_be_connected_fails_each_export_and_does_no_harm(
    host: &Context,
    _dpu: &Context,
) -> Outcome<()> {
    let options = Mlx5Options {
        port: Some(200),
        ..Mlx5Options::default()
    };
    let device = host.pool_device(options)?;
    let hooks = HostHooks::open(Arc::clone(&device), PoolPolicy::default())?;
    let memory = Memory::register(host, PAGE, 13)?;
    for _ in 0..5 {
        let failed = hooks
            .export(whole(&memory)?)
            .err()
            .ok_or("over a port that is not there")?;
        ensure(
            matches!(failed, PoolError::Bind { .. }),
            "the bind fails, and says so",
        )?;
    }
    ensure(hooks.close() && device.close(), "nothing is left")
}

/// A key outside any pool.
fn lone_key(device: &Mlx5Device) -> Outcome<Mkey> {
    let spec = MkeySpec {
        klm_entries: 4,
        access_key: AccessKey::UCX_COMPATIBLE,
    };
    Ok(Mkey::new(device.create_mkey(&spec)?, Tag::UCX_POOLED))
}

/// The number of a destroyed key.
fn dead_key(device: &Mlx5Device) -> Outcome<Mkey> {
    let mkey = lone_key(device)?;
    device.destroy_mkey(mkey.index())?;
    Ok(mkey)
}

fn a_bad_bind_ends_the_queue_and_the_next_one_finds_a_new_queue(
    host: &Context,
    dpu: &Context,
) -> Outcome<()> {
    let sides = Sides::open(host, dpu)?;
    let memory = sides.memory(PAGE, 4)?;
    let device = &sides.host_device;
    let bind = UmrOp::Bind {
        mkey: lone_key(device)?,
        span: whole(&memory)?.into(),
    };
    let bad = UmrOp::Bind {
        mkey: dead_key(device)?,
        span: whole(&memory)?.into(),
    };
    for recoveries in 0..3 {
        ensure(
            device.recoveries() == recoveries,
            "a new queue for each that failed",
        )?;
        device.run(&[bind])?;
        let failed = device
            .run(&[bad])
            .err()
            .ok_or("a key was bound that is not there")?;
        let completed = matches!(failed.source, DeviceError::Completion { .. });
        ensure(failed.done == 0 && completed, "the adapter itself refuses")?;
        // The pool's keys continue to work.
        let export = sides.host.export(whole(&memory)?)?;
        sides.reads(&export, &memory)?;
        sides.host.release(export)?;
        device.run(&[UmrOp::Invalidate { mkey: bind.mkey() }])?;
    }
    device.destroy_mkey(bind.mkey().index())?;
    sides.close()
}

fn the_requests_before_the_bad_one_are_done_and_those_behind_it_are_not(
    host: &Context,
    dpu: &Context,
) -> Outcome<()> {
    let sides = Sides::open(host, dpu)?;
    let memory = sides.memory(PAGE, 5)?;
    let (device, region) = (&sides.host_device, whole(&memory)?);
    let keys: Outcome<Vec<_>> = (0..3).map(|_| lone_key(device)).collect();
    let keys = keys?;
    let bind = |mkey: Mkey| UmrOp::Bind {
        mkey,
        span: region.into(),
    };
    let dead = dead_key(device)?;
    let chain = [bind(keys[0]), bind(keys[1]), bind(dead), bind(keys[2])];
    let failed = device.run(&chain).err();
    let done = failed.map(|failed| failed.done);
    ensure(
        done == Some(2),
        &format!("two of four requests are done, not {done:?}"),
    )?;
    for (number, reached) in [true, true, false].into_iter().enumerate() {
        let key = RemoteKey {
            gvmi: device.gvmi(),
            mkey: keys[number],
            owner: OWNER,
        };
        let got = sides.read(key, region.addr(), 8)?;
        ensure(
            got.is_some() == reached,
            &format!("key {number} is bound: {reached}"),
        )?;
    }
    for key in keys {
        device.destroy_mkey(key.index())?;
    }
    sides.close()
}

fn many_threads_share_the_queue(host: &Context, dpu: &Context) -> Outcome<()> {
    const ROUNDS: u64 = 300;
    let sides = Sides::open(host, dpu)?;
    let memory = sides.memory(8 * PAGE, 6)?;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4usize)
            .map(|thread| {
                let (hooks, region) = (&sides.host, part(&memory, thread * PAGE, PAGE));
                let region = region.map_err(|error| error.to_string());
                scope.spawn(move || -> Result<(), String> {
                    let region = region?;
                    for _ in 0..ROUNDS {
                        let export = hooks.export(region).map_err(|e| e.to_string())?;
                        export.release().map_err(|e| e.to_string())?;
                    }
                    Ok(())
                })
            })
            .collect();
        threads
            .into_iter()
            .try_for_each(|thread| match thread.join() {
                Ok(result) => result,
                Err(_) => Err("a thread panicked".to_owned()),
            })
    })?;
    let stats = sides.host.stats();
    ensure(
        stats.binds == 4 * ROUNDS && stats.recoveries == 0,
        "every bind took effect",
    )?;
    let export = sides.host.export(part(&memory, 7 * PAGE, PAGE)?)?;
    sides.reads(&export, &memory)?;
    drop(export);
    sides.close()
}

fn a_small_ring_is_gone_around_many_times(host: &Context, _dpu: &Context) -> Outcome<()> {
    let options = Mlx5Options {
        sq_wqebbs: 64,
        ..Mlx5Options::default()
    };
    let device = host.pool_device(options)?;
    let hooks = HostHooks::open(Arc::clone(&device), PoolPolicy::default())?;
    let memory = Memory::register(host, PAGE, 7)?;
    // Five building blocks per round, past the adapter's 16-bit counter.
    for _ in 0..14_000 {
        hooks.export(whole(&memory)?)?.release()?;
    }
    ensure(device.recoveries() == 0, "without an error")?;
    ensure(hooks.close() && device.close(), "nothing is left")
}

fn a_chain_longer_than_the_ring_is_refused(host: &Context, _dpu: &Context) -> Outcome<()> {
    let options = Mlx5Options {
        sq_wqebbs: 64,
        ..Mlx5Options::default()
    };
    let device = host.pool_device(options)?;
    let mkey = lone_key(&device)?;
    let most = usize::try_from(device.limits().chain_ops_max)?;
    device.run(&vec![UmrOp::Invalidate { mkey }; most])?;
    let failed = device.run(&vec![UmrOp::Invalidate { mkey }; 1000]).err();
    let refused = failed.is_some_and(|failed| {
        failed.done == 0 && matches!(failed.source, DeviceError::Unsupported { .. })
    });
    ensure(refused, "a thousand requests do not fit")?;
    ensure(device.recoveries() == 0, "and do the queue no harm")?;
    device.run(&[UmrOp::Invalidate { mkey }])?;
    device.destroy_mkey(mkey.index())?;
    ensure(device.close(), "nothing is left")
}

fn an_alias_of_a_destroyed_key_reaches_nothing(host: &Context, dpu: &Context) -> Outcome<()> {
    let sides = Sides::open(host, dpu)?;
    let memory = sides.memory(PAGE, 8)?;
    let device = &sides.host_device;
    let (mkey, region) = (lone_key(device)?, whole(&memory)?);
    device.run(&[UmrOp::Bind {
        mkey,
        span: region.into(),
    }])?;
    let key = RemoteKey {
        gvmi: device.gvmi(),
        mkey,
        owner: OWNER,
    };
    ensure(
        sides.read(key, region.addr(), 8)?.is_some(),
        "the key is there",
    )?;
    device.destroy_mkey(mkey.index())?;
    ensure(
        sides.read(key, region.addr(), 8)?.is_none(),
        "the key is gone",
    )?;
    sides.close()
}

fn an_alias_reaches_what_its_key_is_bound_to_next(host: &Context, dpu: &Context) -> Outcome<()> {
    let sides = Sides::open(host, dpu)?;
    let memory = sides.memory(2 * PAGE, 9)?;
    let first = sides.host.export(part(&memory, 0, PAGE)?)?;
    let stale = (key(&first), first.addr());
    sides.reads(&first, &memory)?;
    sides.host.release(first)?;
    let second = sides.host.export(part(&memory, PAGE, PAGE)?)?;
    ensure(key(&second) == stale.0, "the only key of the pool")?;
    sides.reads(&second, &memory)?;
    let old_place = sides.read(stale.0, stale.1, 8)?;
    ensure(
        old_place.is_none(),
        "the old place is out of reach through it",
    )?;
    drop(second);
    sides.close()
}

fn a_wrong_access_key_is_refused(host: &Context, dpu: &Context) -> Outcome<()> {
    let secret = AccessKey::new([0x5a; AccessKey::BYTES]);
    let policy = PoolPolicy {
        access_key: secret.clone(),
        ..PoolPolicy::default()
    };
    let sides = Sides::open_with(host, dpu, policy)?;
    let memory = sides.memory(PAGE, 10)?;
    let export = sides.host.export(whole(&memory)?)?;
    ensure(
        sides.dpu.attach(key(&export)).is_err(),
        "the known key does not open it",
    )?;
    let alias = sides.dpu_device.create_alias(&key(&export), &secret)?;
    let reader = Reader::connect(dpu)?;
    let into = Memory::of(dpu, vec![0; PAGE].into())?;
    let read = reader.read(&into, alias.lkey, export.addr())?;
    ensure(
        read.is_ok() && into.bytes() == memory.bytes(),
        "the secret one does",
    )?;
    sides.dpu_device.destroy_alias(alias.index)?;
    drop(export);
    sides.close()
}

fn a_forked_child_is_kept_away(host: &Context, dpu: &Context) -> Outcome<()> {
    let sides = Sides::open(host, dpu)?;
    let memory = sides.memory(PAGE, 11)?;
    let export = sides.host.export(whole(&memory)?)?;
    let region = whole(&memory)?;
    let device = &sides.host_device;
    // SAFETY: the child calls only pool and device, which refuse before any action, and exits.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let forked = |error: &DeviceError| matches!(error, DeviceError::Forked { .. });
        let bind = UmrOp::Bind {
            mkey: export.mkey(),
            span: region.into(),
        };
        let run = device
            .run(&[bind])
            .is_err_and(|failed| forked(&failed.source));
        let destroyed = device.destroy_mkey(export.mkey().index());
        let exported = sides.host.export(region).err() == Some(PoolError::Forked);
        let released = sides.host.release(export).is_ok() && sides.host.close();
        let device_kept = run && destroyed.is_err_and(|error| forked(&error));
        let kept_away = device_kept && exported && released && device.close();
        // SAFETY: ends the child at once, without running any code of the parent.
        unsafe { libc::_exit(i32::from(!kept_away)) };
    }
    let mut status = 0;
    // SAFETY: waits for the child that was just created.
    let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
    ensure(waited == pid && status == 0, "the child was refused")?;
    sides.reads(&export, &memory)?;
    sides.host.release(export)?;
    sides.close()
}

fn a_closed_device_refuses_everything(host: &Context, dpu: &Context) -> Outcome<()> {
    let sides = Sides::open(host, dpu)?;
    let memory = sides.memory(PAGE, 12)?;
    let region = whole(&memory)?;
    let export = sides.host.export(region)?;
    let key = key(&export);
    let _alias = sides.dpu.attach(key)?;
    let (host_device, dpu_device) = (
        Arc::clone(&sides.host_device),
        Arc::clone(&sides.dpu_device),
    );
    sides.close()?;
    // The remaining objects may be dropped at any later time.
    drop(export);
    let closed = DeviceError::Closed;
    let bind = host_device.run(&[UmrOp::Bind {
        mkey: key.mkey,
        span: region.into(),
    }]);
    ensure(bind.is_err_and(|failed| failed.source == closed), "no bind")?;
    let spec = MkeySpec {
        klm_entries: 1,
        access_key: AccessKey::UCX_COMPATIBLE,
    };
    ensure(
        host_device.create_mkey(&spec) == Err(closed.clone()),
        "no key",
    )?;
    let alias = dpu_device.create_alias(&key, &AccessKey::UCX_COMPATIBLE);
    ensure(alias == Err(closed), "no alias")?;
    ensure(
        host_device.close() && dpu_device.close(),
        "once more does no harm",
    )
}
