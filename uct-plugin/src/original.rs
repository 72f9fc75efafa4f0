//! UCX's own operations. Calls that this library does not serve go there.
//!
//! A process may contain several copies of UCX. Each copy's module is an [`Object`]. The operations
//! table of the memory domain identifies it, so no call ever reaches another copy. An object is
//! looked up once; afterwards [`of`] takes no lock.

use std::ffi::{CStr, CString, c_void};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use xgvmi_pool::mlx5::Mlx5Lib;

use crate::abi::{
    MdCloseFn, MdHandle, MdHead, MdQueryFn, MemAttachFn, MemDeregFn, MemRegFn, MkeyPackFn, slot,
};
use crate::{entry_point, log};

/// SONAME of UCX's mlx5 module, equal for all file names and versions.
const MODULE_SONAME: &CStr = c"libuct_ib_mlx5.so.0";

/// Maximum number of remembered operations tables: one for InfiniBand and one for GGA in each of
/// eight copies of UCX. Further tables are looked up at every call.
const TABLES_MAX: usize = 16;

/// One loaded copy of UCX's mlx5 module.
#[derive(Debug)]
pub(crate) struct Object {
    base: usize,
    /// Its name in the loader.
    path: CString,
    originals: Originals,
    serves: bool,
    verbs: OnceLock<Option<Arc<Mlx5Lib>>>,
}

/// The module's own functions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Originals {
    pub(crate) md_close: MdCloseFn,
    pub(crate) md_query: MdQueryFn,
    pub(crate) mem_reg: MemRegFn,
    pub(crate) mem_dereg: MemDeregFn,
    pub(crate) mkey_pack: MkeyPackFn,
    pub(crate) mem_attach: MemAttachFn,
}

impl Object {
    /// UCX's own operations.
    pub(crate) fn originals(&self) -> &Originals {
        &self.originals
    }

    /// True if every call for the memory domains of this copy reaches this library and all checks
    /// passed. Otherwise calls are passed on and nothing is recorded.
    pub(crate) fn serves(&self) -> bool {
        self.serves
    }

    /// A symbol of this copy of UCX.
    pub(crate) fn symbol(&self, name: &CStr) -> Option<NonNull<c_void>> {
        Module::loaded(&self.path)?.symbol(name)
    }

    /// The libibverbs and libmlx5 of this copy of UCX, looked up at the first call.
    pub(crate) fn verbs(&self) -> Option<Arc<Mlx5Lib>> {
        let find = || {
            // The table keeps the libraries open through its own handle.
            let module = Module::loaded(&self.path)?;
            // SAFETY: the handle comes from dlopen, and nothing else keeps it.
            match unsafe { Mlx5Lib::from_handle(module.handle.as_ptr()) } {
                Ok(lib) => Some(Arc::new(lib)),
                Err(error) => {
                    log::warning!("everything is left to UCX: {error}");
                    None
                }
            }
        };
        self.verbs.get_or_init(find).clone()
    }
}

impl Originals {
    /// The functions' addresses, in the order of [`slot::ALL`].
    pub(crate) fn addresses(&self) -> [*mut c_void; 6] {
        [
            self.md_close as *mut c_void,
            self.md_query as *mut c_void,
            self.mem_reg as *mut c_void,
            self.mem_dereg as *mut c_void,
            self.mkey_pack as *mut c_void,
            self.mem_attach as *mut c_void,
        ]
    }
}

/// A loaded shared object. It is never closed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Module {
    handle: NonNull<c_void>,
}

// SAFETY: the handle is only passed to dlsym, which any thread may call.
unsafe impl Send for Module {}
// SAFETY: as above; nothing is ever written through the handle.
unsafe impl Sync for Module {}

impl Module {
    /// The loaded object of that file or SONAME. Never loads anything.
    pub(crate) fn loaded(name: &CStr) -> Option<Self> {
        let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD;
        // SAFETY: the name ends in a zero byte; with RTLD_NOLOAD no code of the object runs.
        let handle = unsafe { libc::dlopen(name.as_ptr(), flags) };
        NonNull::new(handle).map(|handle| Self { handle })
    }

    /// Address of a symbol of the object or of its dependencies.
    pub(crate) fn symbol(&self, name: &CStr) -> Option<NonNull<c_void>> {
        // SAFETY: the handle is open because it is never closed, and the name ends in a zero byte.
        NonNull::new(unsafe { libc::dlsym(self.handle.as_ptr(), name.as_ptr()) })
    }
}

/// An operations table and the copy of UCX that it belongs to.
struct Table {
    ops: *const c_void,
    /// The most frequent operation of the copy.
    mkey_pack: MkeyPackFn,
    object: Option<&'static Object>,
}

// SAFETY: the pointers are only compared, never dereferenced.
unsafe impl Sync for Table {}

/// Marks an empty entry. No memory domain has its table at this address.
static NO_TABLE: Table = Table {
    ops: std::ptr::without_provenance(1),
    mkey_pack: crate::uct_ib_mlx5_devx_mkey_pack,
    object: None,
};

/// The known tables, filled from the front. Entries are never removed.
static TABLES: [AtomicPtr<Table>; TABLES_MAX] =
    [const { AtomicPtr::new((&raw const NO_TABLE).cast_mut()) }; TABLES_MAX];

/// The known objects. Locked while a new one is checked, so that each is checked once.
static OBJECTS: Mutex<Vec<&'static Object>> = Mutex::new(Vec::new());

/// The copy of UCX that the memory domain belongs to. `None` if its functions cannot be found.
///
/// # Safety
/// `md` must be a memory domain of UCX's mlx5 module.
#[inline]
pub(crate) unsafe fn of(md: MdHandle) -> Option<&'static Object> {
    // SAFETY: the first word of every memory domain is its operations table.
    let ops = unsafe { (*md.cast::<MdHead>()).ops };
    // SAFETY: entries point to tables that are never freed and do not change.
    let first = unsafe { &*TABLES[0].load(Ordering::Acquire) };
    if first.ops == ops {
        return first.object;
    }
    search(ops)
}

/// Like [`of`], for all tables.
#[inline(never)]
fn search(ops: *const c_void) -> Option<&'static Object> {
    for entry in &TABLES {
        // SAFETY: entries point to tables that are never freed and do not change.
        let table = unsafe { &*entry.load(Ordering::Acquire) };
        if table.ops == ops {
            return table.object;
        }
        if table.object.is_none() {
            break;
        }
    }
    look_up(ops)
}

/// UCX's own `mkey_pack` for the memory domain, if its table is the first known one. With one UCX
/// and one kind of memory domain this covers all calls.
///
/// # Safety
/// As [`of`].
#[inline]
pub(crate) unsafe fn mkey_pack_of_first_table(md: MdHandle) -> Option<MkeyPackFn> {
    // SAFETY: entries point to tables that are never freed and do not change.
    let table = unsafe { &*TABLES[0].load(Ordering::Acquire) };
    // SAFETY: the first word of every memory domain is its operations table.
    let ops = unsafe { (*md.cast::<MdHead>()).ops };
    (table.ops == ops).then_some(table.mkey_pack)
}

/// Checks a loaded copy of the module that is not known yet.
pub(crate) fn adopt(path: &CStr) -> Option<&'static Object> {
    let module = Module::loaded(path)?;
    let close = module.symbol(slot::MD_CLOSE.name)?;
    object_at(close.as_ptr())
}

#[cold]
fn look_up(ops: *const c_void) -> Option<&'static Object> {
    // A memory domain that is closed before it was opened has no table yet. The module's name then
    // decides, which is correct unless there are two copies.
    let object = if ops.is_null() {
        adopt(MODULE_SONAME)?
    } else {
        object_at(ops)?
    };
    if !ops.is_null() {
        remember(ops, object);
    }
    Some(object)
}

/// The object that contains the address.
fn object_at(address: *const c_void) -> Option<&'static Object> {
    let (base, path) = file_of(address)?;
    let mut objects = OBJECTS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(object) = objects.iter().copied().find(|object| object.base == base) {
        return Some(object);
    }
    // The path can fail if the program has changed its directory. The name is then the only
    // information, which is correct unless there are two copies.
    let (module, path) = match Module::loaded(&path) {
        Some(module) => (module, path),
        None => (Module::loaded(MODULE_SONAME)?, MODULE_SONAME.to_owned()),
    };
    let originals = originals_of(&module)?;
    let serves = entry_point::open(&module, &originals, &path);
    let object: &'static Object = Box::leak(Box::new(Object {
        base,
        path,
        originals,
        serves,
        verbs: OnceLock::new(),
    }));
    objects.push(object);
    Some(object)
}

fn remember(ops: *const c_void, object: &'static Object) {
    let mkey_pack = object.originals.mkey_pack;
    let table = Box::into_raw(Box::new(Table {
        ops,
        mkey_pack,
        object: Some(object),
    }));
    let none = (&raw const NO_TABLE).cast_mut();
    for entry in &TABLES {
        match entry.compare_exchange(none, table, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return,
            // SAFETY: entries point to tables that are never freed.
            Err(other) if unsafe { (*other).ops } == ops => break,
            Err(_) => {}
        }
    }
    // SAFETY: it came from Box::into_raw above and was not published.
    drop(unsafe { Box::from_raw(table) });
}

/// Base address and path of the loaded file that contains the address.
pub(crate) fn file_of(address: *const c_void) -> Option<(usize, CString)> {
    // SAFETY: an all-zero Dl_info is a valid one, its pointers are null.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: dladdr takes any address and fills `info`, which outlives the call.
    if unsafe { libc::dladdr(address, &raw mut info) } == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: dladdr succeeded, so the name is a string of the loader, which outlives the object.
    let path = unsafe { CStr::from_ptr(info.dli_fname) };
    Some((info.dli_fbase as usize, path.to_owned()))
}

fn originals_of(module: &Module) -> Option<Originals> {
    let symbol = |slot: slot::Slot| {
        let address = module.symbol(slot.name)?.as_ptr();
        // A module without such a function would lead to infinite recursion.
        (!entry_point::is_ours(address)).then_some(address)
    };
    let md_close = symbol(slot::MD_CLOSE)?;
    let md_query = symbol(slot::MD_QUERY)?;
    let mem_reg = symbol(slot::MEM_REG)?;
    let mem_dereg = symbol(slot::MEM_DEREG)?;
    let mkey_pack = symbol(slot::MKEY_PACK)?;
    let mem_attach = symbol(slot::MEM_ATTACH)?;
    Some(Originals {
        // SAFETY: UCX's function of that name has this type, see `abi`.
        md_close: unsafe { std::mem::transmute::<*mut c_void, MdCloseFn>(md_close) },
        // SAFETY: as above.
        md_query: unsafe { std::mem::transmute::<*mut c_void, MdQueryFn>(md_query) },
        // SAFETY: as above.
        mem_reg: unsafe { std::mem::transmute::<*mut c_void, MemRegFn>(mem_reg) },
        // SAFETY: as above.
        mem_dereg: unsafe { std::mem::transmute::<*mut c_void, MemDeregFn>(mem_dereg) },
        // SAFETY: as above.
        mkey_pack: unsafe { std::mem::transmute::<*mut c_void, MkeyPackFn>(mkey_pack) },
        // SAFETY: as above.
        mem_attach: unsafe { std::mem::transmute::<*mut c_void, MemAttachFn>(mem_attach) },
    })
}
