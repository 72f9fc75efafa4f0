//! Devices: the list of them, and open ones.

use crate::error::{Code, Fault, Result, call, fail, value};
use crate::object::{Object, Users, check_place, find, publish, store, withdraw};
use mlx5dv_sys::{Mlx5Lib, ibv_context, ibv_device, ibv_mr, ibv_pd, mlx5dv_context_attr};
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int};
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// `struct doca_devinfo`: a device, by its name.
#[derive(Debug)]
pub struct DevInfo {
    name: String,
}

impl Object for DevInfo {
    const NAME: &'static str = "struct doca_devinfo";
}

/// `struct doca_dev`: an open device with a protection domain.
pub struct Dev {
    info: Arc<DevInfo>,
    lib: &'static Mlx5Lib,
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    /// Objects that use the device.
    pub(crate) users: Arc<Users>,
}

// SAFETY: objects of libibverbs may be used from any thread.
unsafe impl Send for Dev {}
// SAFETY: as above.
unsafe impl Sync for Dev {}

impl Object for Dev {
    const NAME: &'static str = "struct doca_dev";
}

impl fmt::Debug for Dev {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dev")
            .field("name", &self.info.name)
            .finish_non_exhaustive()
    }
}

/// The libraries, loaded once.
fn library() -> Result<&'static Mlx5Lib> {
    static LIBRARY: OnceLock<std::result::Result<Mlx5Lib, String>> = OnceLock::new();
    let library = LIBRARY.get_or_init(|| Mlx5Lib::open().map_err(|error| error.to_string()));
    library.as_ref().map_err(|error| {
        Fault::new(
            Code::Driver,
            format!("{error}; install libibverbs with its mlx5 provider"),
        )
    })
}

/// Calls a function with each mlx5 device.
fn each_device<T>(mut body: impl FnMut(*mut ibv_device, &str) -> Option<T>) -> Result<Option<T>> {
    let lib = library()?;
    let mut count: c_int = 0;
    // SAFETY: `count` is writable.
    let list = unsafe { lib.ibv_get_device_list(&raw mut count) };
    if list.is_null() {
        fail!(
            OperatingSystem,
            "cannot list RDMA devices: {}",
            std::io::Error::last_os_error()
        );
    }
    let mut found = None;
    for at in 0..usize::try_from(count).unwrap_or_default() {
        // SAFETY: the list has `count` devices, valid until it is freed.
        let device = unsafe { list.add(at).read() };
        // SAFETY: the device is valid.
        if !unsafe { lib.mlx5dv_is_supported(device) } {
            continue;
        }
        // SAFETY: the name is a string, valid as long as the device.
        let name = unsafe { CStr::from_ptr(lib.ibv_get_device_name(device)) };
        found = body(device, &name.to_string_lossy());
        if found.is_some() {
            break;
        }
    }
    // SAFETY: from ibv_get_device_list, freed once. Open devices stay.
    unsafe { lib.ibv_free_device_list(list) };
    Ok(found)
}

impl DevInfo {
    /// A copy, which lives longer than the program's list.
    pub(crate) fn copy(devinfo: *const Self) -> Result<Arc<Self>> {
        let name = find(devinfo)?.name.clone();
        Ok(Arc::new(Self { name }))
    }

    /// The device's folder in sysfs.
    fn sysfs(&self) -> PathBuf {
        PathBuf::from("/sys/class/infiniband").join(&self.name)
    }

    fn open(self: &Arc<Self>) -> Result<Dev> {
        let lib = library()?;
        let context = each_device(|device, name| {
            (name == self.name).then(|| {
                let mut attributes = mlx5dv_context_attr {
                    flags: mlx5dv_sys::MLX5DV_CONTEXT_FLAGS_DEVX,
                    ..Default::default()
                };
                // SAFETY: the device is in the list, and the attributes are initialized.
                unsafe { lib.mlx5dv_open_device(device, &raw mut attributes) }
            })
        })?;
        let Some(context) = context else {
            fail!(NotFound, "the device {} is gone", self.name);
        };
        if context.is_null() {
            fail!(
                Driver,
                "cannot open {} with DEVX: {}",
                self.name,
                std::io::Error::last_os_error()
            );
        }
        // SAFETY: the context is open.
        let pd = unsafe { lib.ibv_alloc_pd(context) };
        let dev = Dev {
            info: Arc::clone(self),
            lib,
            context,
            pd,
            users: Arc::default(),
        };
        if pd.is_null() {
            fail!(
                Driver,
                "no protection domain on {}: {}",
                self.name,
                std::io::Error::last_os_error()
            );
        }
        Ok(dev)
    }

    /// Kind of the function: 0 physical, 1 virtual, 2 subfunction.
    fn function_type(&self) -> u32 {
        let device = self.sysfs().join("device");
        if device.join("sfnum").exists() {
            2
        } else {
            u32::from(device.join("physfn").exists())
        }
    }

    /// Its PCI address, as sysfs names the device's folder.
    fn pci_address(&self) -> Result<String> {
        let folder = std::fs::canonicalize(self.sysfs().join("device")).ok();
        let name = folder
            .as_ref()
            .and_then(|path| path.file_name()?.to_str())
            .unwrap_or_default();
        let parts: Vec<usize> = name.split([':', '.']).map(str::len).collect();
        if parts != [4, 2, 2, 1] {
            fail!(
                NotFound,
                "the system states no PCI address of {}",
                self.name
            );
        }
        Ok(name.to_owned())
    }
}

impl Dev {
    /// Opens a device.
    pub(crate) fn open(info: &Arc<DevInfo>) -> Result<Arc<Self>> {
        Ok(Arc::new(info.open()?))
    }

    /// Gives the device and its description to the program.
    pub(crate) fn publish(self: &Arc<Self>) -> *mut Self {
        publish(&self.info);
        publish(self)
    }

    pub(crate) fn lib(&self) -> &'static Mlx5Lib {
        self.lib
    }

    pub(crate) fn context(&self) -> *mut ibv_context {
        self.context
    }

    pub(crate) fn pd(&self) -> *mut ibv_pd {
        self.pd
    }

    pub(crate) fn name(&self) -> &str {
        &self.info.name
    }

    /// Registers memory with its own addresses.
    ///
    /// # Safety
    /// The memory stays mapped as long as the registration lives.
    pub(crate) unsafe fn register(
        self: &Arc<Self>,
        address: usize,
        length: usize,
        access: u32,
    ) -> Result<Registration> {
        // SAFETY: the domain is open; the kernel checks the range.
        let mr = unsafe {
            self.lib.ibv_reg_mr_iova2(
                self.pd,
                std::ptr::with_exposed_provenance_mut(address),
                length,
                address as u64,
                access,
            )
        };
        if mr.is_null() {
            fail!(
                Driver,
                "{} cannot register {length} bytes at {address:#x}: {}; the memory must be mapped, and writable for \
                 rights to write",
                self.name(),
                std::io::Error::last_os_error()
            );
        }
        Ok(Registration {
            dev: Arc::clone(self),
            mr,
        })
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        // SAFETY: created in `open`, and no object of them is left: each holds the device.
        unsafe {
            if !self.pd.is_null() {
                self.lib.ibv_dealloc_pd(self.pd);
            }
            self.lib.ibv_close_device(self.context);
        }
    }
}

/// Registered memory.
pub(crate) struct Registration {
    dev: Arc<Dev>,
    mr: *mut ibv_mr,
}

// SAFETY: objects of libibverbs may be used from any thread.
unsafe impl Send for Registration {}
// SAFETY: as above.
unsafe impl Sync for Registration {}

impl Registration {
    /// The key of local accesses.
    pub(crate) fn lkey(&self) -> u32 {
        // SAFETY: live until the drop.
        unsafe { (*self.mr).lkey }
    }

    /// The key of accesses by the other node.
    pub(crate) fn rkey(&self) -> u32 {
        // SAFETY: live until the drop.
        unsafe { (*self.mr).rkey }
    }
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registration")
            .field("lkey", &self.lkey())
            .finish_non_exhaustive()
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // SAFETY: live, and released once.
        unsafe { self.dev.lib.ibv_dereg_mr(self.mr) };
    }
}

/// Lists that programs hold, by the address of their array.
static LISTS: Mutex<Option<HashMap<usize, List>>> = Mutex::new(None);

struct List {
    pointers: Box<[*mut DevInfo]>,
    devices: Vec<Arc<DevInfo>>,
}

// SAFETY: the pointers are identities of `devices`.
unsafe impl Send for List {}

/// `doca_devinfo_create_list`.
///
/// # Safety
/// The pointers are NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_devinfo_create_list(
    list: *mut *mut *mut DevInfo,
    count: *mut u32,
) -> Code {
    call("doca_devinfo_create_list", || {
        check_place(list)?;
        check_place(count)?;
        let mut devices = Vec::new();
        each_device(|_, name| {
            devices.push(Arc::new(DevInfo {
                name: name.to_owned(),
            }));
            None::<()>
        })?;
        // One more element, so that an empty list has an address of its own.
        let pointers: Box<[*mut DevInfo]> = devices
            .iter()
            .map(publish)
            .chain([std::ptr::null_mut()])
            .collect();
        let mut lists = LISTS.lock().unwrap_or_else(PoisonError::into_inner);
        let address = pointers.as_ptr().cast_mut();
        // SAFETY: checked above.
        unsafe {
            list.write(address);
            count.write(u32::try_from(devices.len()).unwrap_or_default());
        }
        lists
            .get_or_insert_default()
            .insert(address.addr(), List { pointers, devices });
        Ok(())
    })
}

/// `doca_devinfo_destroy_list`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_devinfo_destroy_list(list: *mut *mut DevInfo) -> Code {
    call("doca_devinfo_destroy_list", || {
        let mut lists = LISTS.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = lists.as_mut().and_then(|lists| lists.remove(&list.addr()));
        let Some(list) = taken else {
            fail!(InvalidValue, "{list:p} is no live list of devices");
        };
        for device in &list.devices {
            withdraw(device);
        }
        drop(list.pointers);
        Ok(())
    })
}

/// Writes a string with its NUL.
///
/// # Safety
/// `place` is NULL or has `size` bytes.
pub(crate) unsafe fn store_text(text: &str, place: *mut c_char, size: usize) -> Result<()> {
    check_place(place)?;
    if text.len() >= size {
        fail!(
            InvalidValue,
            "\"{text}\" needs {} bytes, and the place has {size}",
            text.len() + 1
        );
    }
    // SAFETY: as the caller promises, and there is room for text and NUL.
    unsafe {
        place.cast::<u8>().copy_from(text.as_ptr(), text.len());
        place.add(text.len()).write(0);
    }
    Ok(())
}

/// `doca_devinfo_get_ibdev_name`.
///
/// # Safety
/// `name` is NULL or has `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_devinfo_get_ibdev_name(
    devinfo: *const DevInfo,
    name: *mut c_char,
    size: u32,
) -> Code {
    call("doca_devinfo_get_ibdev_name", || {
        let info = find(devinfo)?;
        // SAFETY: as the caller promises.
        unsafe { store_text(&info.name, name, size as usize) }
    })
}

/// `doca_devinfo_get_iface_name`.
///
/// # Safety
/// `name` is NULL or has `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_devinfo_get_iface_name(
    devinfo: *const DevInfo,
    name: *mut c_char,
    size: u32,
) -> Code {
    call("doca_devinfo_get_iface_name", || {
        let info = find(devinfo)?;
        let folder = std::fs::read_dir(info.sysfs().join("device/net"));
        let mut names: Vec<String> = folder
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        let Some(first) = names.first() else {
            return Err(Fault::answer(
                Code::NotFound,
                format!("{} has no network interface", info.name),
            ));
        };
        // SAFETY: as the caller promises.
        unsafe { store_text(first, name, size as usize) }
    })
}

/// `doca_devinfo_get_pci_addr_str`.
///
/// # Safety
/// `address` is NULL or has `DOCA_DEVINFO_PCI_ADDR_SIZE` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_devinfo_get_pci_addr_str(
    devinfo: *const DevInfo,
    address: *mut c_char,
) -> Code {
    call("doca_devinfo_get_pci_addr_str", || {
        let text = find(devinfo)?.pci_address()?;
        // SAFETY: as the caller promises.
        unsafe { store_text(&text, address, 13) }
    })
}

/// `doca_devinfo_is_equal_pci_addr`.
///
/// # Safety
/// `address` is NULL or a string, `is_equal` NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_devinfo_is_equal_pci_addr(
    devinfo: *const DevInfo,
    address: *const c_char,
    is_equal: *mut u8,
) -> Code {
    call("doca_devinfo_is_equal_pci_addr", || {
        check_place(is_equal)?;
        let own = find(devinfo)?.pci_address()?;
        if address.is_null() {
            fail!(InvalidValue, "the address is NULL");
        }
        // SAFETY: a string by contract.
        let asked = unsafe { CStr::from_ptr(address) }
            .to_string_lossy()
            .to_lowercase();
        let without_domain = own.split_once(':').map_or("", |(_, rest)| rest);
        // SAFETY: as the caller promises.
        unsafe { store(is_equal, u8::from(asked == own || asked == without_domain)) }
    })
}

/// `doca_devinfo_get_pci_func_type`.
///
/// # Safety
/// `place` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_devinfo_get_pci_func_type(
    devinfo: *const DevInfo,
    place: *mut u32,
) -> Code {
    call("doca_devinfo_get_pci_func_type", || {
        let info = find(devinfo)?;
        // SAFETY: as the caller promises.
        unsafe { store(place, info.function_type()) }
    })
}

/// `doca_devinfo_get_sf_index`.
///
/// # Safety
/// `index` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_devinfo_get_sf_index(
    devinfo: *const DevInfo,
    index: *mut u32,
) -> Code {
    call("doca_devinfo_get_sf_index", || {
        let info = find(devinfo)?;
        let text = std::fs::read_to_string(info.sysfs().join("device/sfnum"));
        match text.ok().and_then(|text| text.trim().parse().ok()) {
            // SAFETY: as the caller promises.
            Some(number) => unsafe { store(index, number) },
            None => Err(Fault::answer(
                Code::NotSupported,
                format!("{} is no subfunction", info.name),
            )),
        }
    })
}

/// `doca_devinfo_rep_cap_is_filter_net_supported`.
///
/// # Safety
/// `is_supported` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_devinfo_rep_cap_is_filter_net_supported(
    devinfo: *const DevInfo,
    is_supported: *mut u8,
) -> Code {
    call("doca_devinfo_rep_cap_is_filter_net_supported", || {
        find(devinfo)?;
        // SAFETY: as the caller promises.
        unsafe { store(is_supported, 0) }
    })
}

/// `doca_dev_open`.
///
/// # Safety
/// `dev` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_dev_open(devinfo: *const DevInfo, dev: *mut *mut Dev) -> Code {
    call("doca_dev_open", || {
        check_place(dev)?;
        let open = Dev::open(&DevInfo::copy(devinfo)?)?;
        // SAFETY: checked above.
        unsafe { dev.write(open.publish()) };
        Ok(())
    })
}

/// `doca_dev_close`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_dev_close(dev: *mut Dev) -> Code {
    call("doca_dev_close", || {
        let dev = find(dev)?;
        dev.users.check_none()?;
        withdraw(&dev.info);
        withdraw(&dev);
        Ok(())
    })
}

/// `doca_dev_as_devinfo`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_dev_as_devinfo(dev: *const Dev) -> *const DevInfo {
    value("doca_dev_as_devinfo", || Ok(Arc::as_ptr(&find(dev)?.info))).unwrap_or(std::ptr::null())
}

/// Opens a device for a question about it.
pub(crate) fn ask<T>(
    devinfo: *const DevInfo,
    question: impl FnOnce(&Arc<Dev>) -> Result<T>,
) -> Result<T> {
    question(&Arc::new(find(devinfo)?.open()?))
}

/// `doca_rdma_bridge_get_dev_pd`.
///
/// # Safety
/// `pd` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_rdma_bridge_get_dev_pd(
    dev: *const Dev,
    pd: *mut *mut ibv_pd,
) -> Code {
    call("doca_rdma_bridge_get_dev_pd", || {
        let dev = find(dev)?;
        // SAFETY: as the caller promises.
        unsafe { store(pd, dev.pd) }
    })
}

macro_rules! no_representors {
    ($($name:ident($($argument:ident: $of:ty),*);)*) => {$(
        #[doc = concat!("`", stringify!($name), "`: not supported.")]
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($($argument: $of),*) -> Code {
            call(stringify!($name), || {
                $(let _ = $argument;)*
                fail!(
                    NotSupported,
                    "this library has no representors; open the function itself in its own process"
                )
            })
        }
    )*};
}

no_representors! {
    doca_devinfo_rep_create_list(dev: *mut Dev, filter: c_int, list: *mut *mut u8, count: *mut u32);
    doca_devinfo_rep_destroy_list(list: *mut *mut u8);
    doca_devinfo_rep_get_vuid(rep: *const u8, vuid: *mut c_char, size: u32);
    doca_devinfo_rep_is_equal_pci_addr(rep: *const u8, address: *const c_char, is_equal: *mut u8);
    doca_dev_rep_open(rep: *mut u8, dev: *mut *mut u8);
    doca_dev_rep_close(dev: *mut u8);
}
