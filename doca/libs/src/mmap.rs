//! Memory maps.

use crate::description::{BYTES, Kind as Described, Memory};
use crate::dev::{Dev, Registration};
use crate::dpa::{Core, Dpa, failed};
use crate::error::{Code, Fault, Result, call, fail};
use crate::object::{
    Alone, Guard, Lease, Object, Users, check_place, find, publish, store, withdraw,
};
use crate::sync_event::bytes_of;
use flexio::Mkey;
use std::ffi::c_void;
use std::sync::Arc;

/// Most devices of a map.
const DEVICES_MAX: usize = 8;
/// All rights of `enum doca_access_flag`.
const RIGHTS: u32 = 0x7f;

/// `struct doca_mmap`.
#[derive(Debug, Default)]
pub struct Mmap {
    state: Alone<State>,
    /// Buffers of the map.
    pub(crate) users: Arc<Users>,
}

impl Object for Mmap {
    const NAME: &'static str = "struct doca_mmap";
}

#[derive(Debug, Default)]
struct State {
    range: Option<Range>,
    rights: u32,
    devices: Vec<(Arc<Dev>, Lease)>,
    live: Option<Live>,
    export: Option<Box<[u8; BYTES]>>,
}

#[derive(Debug, Clone)]
enum Range {
    Host {
        address: usize,
        length: usize,
    },
    Dpa {
        dpa: Arc<Dpa>,
        address: u64,
        length: u64,
    },
    Remote(Memory),
}

impl Range {
    fn bounds(&self) -> (u64, u64) {
        match self {
            Range::Host { address, length } => (*address as u64, *length as u64),
            Range::Dpa {
                address, length, ..
            } => (*address, *length),
            Range::Remote(memory) => (memory.address, memory.length),
        }
    }
}

/// Keys of a started map.
#[derive(Debug)]
enum Live {
    Host(Vec<(Arc<Dev>, Registration)>),
    Dpa {
        core: Arc<Core>,
        key: Mkey,
        _lease: Lease,
    },
    Remote(u32),
}

impl Live {
    /// Key of the DPA, and key of the other node.
    fn keys(&self, dev: &Arc<Dev>) -> Result<(u32, u32)> {
        let found = match self {
            Live::Host(registrations) => registrations
                .iter()
                .find(|(of, _)| Arc::ptr_eq(of, dev))
                .map(|(_, key)| (key.lkey(), key.rkey())),
            Live::Dpa { core, key, .. } => {
                Arc::ptr_eq(core.dev(), dev).then(|| (key.key(), key.key()))
            }
            Live::Remote(rkey) => Some((*rkey, *rkey)),
        };
        found.ok_or_else(|| {
            Fault::new(
                Code::NotPermitted,
                format!(
                    "{} is no device of the memory map: call doca_mmap_add_dev before its start",
                    dev.name()
                ),
            )
        })
    }
}

fn not_started() -> Fault {
    Fault::new(
        Code::BadState,
        "the memory map is not started: call doca_mmap_start first",
    )
}

/// Rights of libibverbs.
pub(crate) fn access(rights: u32) -> u32 {
    let mut access = 0;
    // To let the other node write, the memory must be writable for the own device too.
    if rights & (1 << 0 | 1 << 2 | 1 << 3) != 0 {
        access |= mlx5dv_sys::IBV_ACCESS_LOCAL_WRITE;
    }
    for (right, of) in [
        (1 << 1, mlx5dv_sys::IBV_ACCESS_REMOTE_READ),
        (1 << 2, mlx5dv_sys::IBV_ACCESS_REMOTE_WRITE),
        (1 << 3, mlx5dv_sys::IBV_ACCESS_REMOTE_ATOMIC),
    ] {
        if rights & right != 0 {
            access |= of;
        }
    }
    access
}

pub(crate) fn check_rights(rights: u32) -> Result<()> {
    if rights & !RIGHTS != 0 {
        fail!(
            InvalidValue,
            "{rights:#x} has rights that do not exist; all are {RIGHTS:#x}"
        );
    }
    Ok(())
}

impl Mmap {
    fn settings(&self) -> Result<Guard<'_, State>> {
        let state = self.state.enter()?;
        if state.live.is_some() {
            fail!(
                BadState,
                "the memory map is started: make its settings before doca_mmap_start"
            );
        }
        Ok(state)
    }

    /// Refuses a range that is not inside the started map.
    pub(crate) fn check_inside(&self, address: u64, length: u64) -> Result<()> {
        let state = self.state.enter()?;
        let (Some(range), Some(_)) = (&state.range, &state.live) else {
            return Err(not_started());
        };
        let (start, size) = range.bounds();
        let offset = address.checked_sub(start);
        if !offset.is_some_and(|offset| offset <= size && length <= size - offset) {
            fail!(
                InvalidValue,
                "{length} bytes at {address:#x} are not inside the memory map, which has {size} bytes at {start:#x}"
            );
        }
        Ok(())
    }

    /// Start and bytes.
    pub(crate) fn bounds(&self) -> Result<(u64, u64)> {
        match &self.state.enter()?.range {
            Some(range) => Ok(range.bounds()),
            None => fail!(
                BadConfig,
                "the memory map has no range: call doca_mmap_set_memrange first"
            ),
        }
    }

    /// Key of the started map for device code.
    pub(crate) fn key(&self, dev: &Arc<Dev>) -> Result<u32> {
        match &self.state.enter()?.live {
            Some(live) => Ok(live.keys(dev)?.0),
            None => Err(not_started()),
        }
    }
}

/// `doca_mmap_create`.
///
/// # Safety
/// `mmap` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_mmap_create(mmap: *mut *mut Mmap) -> Code {
    call("doca_mmap_create", || {
        check_place(mmap)?;
        // SAFETY: checked above.
        unsafe { mmap.write(publish(&Arc::<Mmap>::default())) };
        Ok(())
    })
}

/// `doca_mmap_destroy`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_mmap_destroy(mmap: *mut Mmap) -> Code {
    call("doca_mmap_destroy", || {
        let mmap = find(mmap)?;
        let mut state = mmap.state.enter()?;
        mmap.users.check_none()?;
        *state = State::default();
        withdraw(&mmap);
        Ok(())
    })
}

/// `doca_mmap_add_dev`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_mmap_add_dev(mmap: *mut Mmap, dev: *mut Dev) -> Code {
    call("doca_mmap_add_dev", || {
        let (mmap, dev) = (find(mmap)?, find(dev)?);
        let mut state = mmap.settings()?;
        if state.devices.iter().any(|(of, _)| Arc::ptr_eq(of, &dev)) {
            fail!(
                AlreadyExist,
                "{} is a device of the map already",
                dev.name()
            );
        }
        if state.devices.len() >= DEVICES_MAX {
            fail!(
                Full,
                "the memory map has {DEVICES_MAX} devices, the maximum"
            );
        }
        let lease = dev.users.lease(Mmap::NAME);
        state.devices.push((dev, lease));
        Ok(())
    })
}

fn set_range(mmap: *mut Mmap, range: Range) -> Result<()> {
    let (address, length) = range.bounds();
    if address == 0 || length == 0 || address.checked_add(length).is_none() {
        fail!(
            InvalidValue,
            "{length} bytes at {address:#x} are no range of memory"
        );
    }
    find(mmap)?.settings()?.range = Some(range);
    Ok(())
}

/// `doca_mmap_set_memrange`.
///
/// # Safety
/// The memory stays mapped while the map is started.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_mmap_set_memrange(
    mmap: *mut Mmap,
    address: *mut c_void,
    length: usize,
) -> Code {
    call("doca_mmap_set_memrange", || {
        let address = address.expose_provenance();
        set_range(mmap, Range::Host { address, length })
    })
}

/// `doca_mmap_set_dpa_memrange`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_mmap_set_dpa_memrange(
    mmap: *mut Mmap,
    dpa: *mut Dpa,
    address: u64,
    length: usize,
) -> Code {
    call("doca_mmap_set_dpa_memrange", || {
        let dpa = find(dpa)?;
        let length = length as u64;
        dpa.core()?.check_range(address, length)?;
        set_range(
            mmap,
            Range::Dpa {
                dpa,
                address,
                length,
            },
        )
    })
}

/// `doca_mmap_set_permissions`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_mmap_set_permissions(mmap: *mut Mmap, rights: u32) -> Code {
    call("doca_mmap_set_permissions", || {
        check_rights(rights)?;
        find(mmap)?.settings()?.rights = rights;
        Ok(())
    })
}

fn start(state: &State) -> Result<Live> {
    match &state.range {
        None => fail!(
            BadConfig,
            "the memory map has no range: call doca_mmap_set_memrange first"
        ),
        Some(Range::Remote(memory)) => Ok(Live::Remote(memory.rkey)),
        Some(Range::Dpa {
            dpa,
            address,
            length,
        }) => {
            let core = dpa.core()?;
            core.check_range(*address, *length)?;
            let key = core
                .process()
                .mkey(*address, *length, access(state.rights))
                .map_err(failed)?;
            Ok(Live::Dpa {
                _lease: dpa.users.lease(Mmap::NAME),
                core,
                key,
            })
        }
        Some(Range::Host { address, length }) => {
            if state.devices.is_empty() {
                fail!(
                    BadConfig,
                    "the memory map has no device: call doca_mmap_add_dev first"
                );
            }
            let mut registrations = Vec::new();
            for (dev, _) in &state.devices {
                // SAFETY: the program keeps the memory mapped while the map is started.
                let key = unsafe { dev.register(*address, *length, access(state.rights)) }?;
                registrations.push((Arc::clone(dev), key));
            }
            Ok(Live::Host(registrations))
        }
    }
}

/// `doca_mmap_start`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_mmap_start(mmap: *mut Mmap) -> Code {
    call("doca_mmap_start", || {
        let mmap = find(mmap)?;
        let mut state = mmap.settings()?;
        let live = start(&state)?;
        state.live = Some(live);
        Ok(())
    })
}

/// `doca_mmap_stop`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_mmap_stop(mmap: *mut Mmap) -> Code {
    call("doca_mmap_stop", || {
        let mmap = find(mmap)?;
        let mut state = mmap.state.enter()?;
        mmap.users.check_none()?;
        if state.live.take().is_none() {
            return Err(not_started());
        }
        state.export = None;
        Ok(())
    })
}

/// `doca_mmap_get_memrange`.
///
/// # Safety
/// The places are NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_mmap_get_memrange(
    mmap: *const Mmap,
    address: *mut *mut c_void,
    length: *mut usize,
) -> Code {
    call("doca_mmap_get_memrange", || {
        let (start, bytes) = find(mmap)?.bounds()?;
        let start = usize::try_from(start).unwrap_or_default();
        // SAFETY: as the caller promises.
        unsafe {
            store(address, std::ptr::with_exposed_provenance_mut(start))?;
            store(length, usize::try_from(bytes).unwrap_or_default())
        }
    })
}

/// `doca_mmap_export_rdma`.
///
/// # Safety
/// The places are NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_mmap_export_rdma(
    mmap: *mut Mmap,
    dev: *const Dev,
    export_data: *mut *const c_void,
    length: *mut usize,
) -> Code {
    call("doca_mmap_export_rdma", || {
        check_place(export_data)?;
        check_place(length)?;
        let (mmap, dev) = (find(mmap)?, find(dev)?);
        let mut state = mmap.state.enter()?;
        let (Some(range), Some(live)) = (&state.range, &state.live) else {
            return Err(not_started());
        };
        if matches!(live, Live::Remote(_)) {
            fail!(
                NotPermitted,
                "the memory map is one of the other node, which alone exports it"
            );
        }
        let (address, bytes) = range.bounds();
        let memory = Memory {
            address,
            length: bytes,
            rkey: live.keys(&dev)?.1,
            rights: state.rights,
        };
        let bytes = state
            .export
            .insert(Box::new(memory.describe(Described::Memory)));
        // SAFETY: checked above. The map keeps the bytes until it stops.
        unsafe {
            export_data.write(bytes.as_ptr().cast());
            length.write(BYTES);
        }
        Ok(())
    })
}

/// `doca_mmap_export_pci`: not supported.
#[unsafe(no_mangle)]
pub extern "C" fn doca_mmap_export_pci(
    mmap: *mut Mmap,
    dev: *const Dev,
    _export_data: *mut *const c_void,
    _length: *mut usize,
) -> Code {
    call("doca_mmap_export_pci", || {
        find(mmap)?;
        find(dev)?;
        fail!(
            NotSupported,
            "this library exports no memory to a DPU; use the pooled keys of xgvmi"
        )
    })
}

/// `doca_mmap_create_from_export`.
///
/// # Safety
/// `export_data` is NULL or has `length` bytes; `mmap` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_mmap_create_from_export(
    _user_data: *const c_void,
    export_data: *const c_void,
    length: usize,
    dev: *mut Dev,
    mmap: *mut *mut Mmap,
) -> Code {
    call("doca_mmap_create_from_export", || {
        check_place(mmap)?;
        let dev = find(dev)?;
        // SAFETY: as the caller promises.
        let bytes = unsafe { bytes_of(export_data.cast(), length) }?;
        let memory = Memory::parse(Described::Memory, bytes)?;
        let lease = dev.users.lease(Mmap::NAME);
        let created = Arc::new(Mmap {
            state: Alone::new(State {
                range: Some(Range::Remote(memory)),
                rights: memory.rights,
                devices: vec![(dev, lease)],
                live: Some(Live::Remote(memory.rkey)),
                export: None,
            }),
            users: Arc::default(),
        });
        // SAFETY: checked above.
        unsafe { mmap.write(publish(&created)) };
        Ok(())
    })
}

/// `doca_mmap_dev_get_dpa_handle`.
///
/// # Safety
/// `handle` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_mmap_dev_get_dpa_handle(
    mmap: *mut Mmap,
    dev: *mut Dev,
    handle: *mut u32,
) -> Code {
    call("doca_mmap_dev_get_dpa_handle", || {
        let key = find(mmap)?.key(&find(dev)?)?;
        // SAFETY: as the caller promises.
        unsafe { store(handle, key) }
    })
}
