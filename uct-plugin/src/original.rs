//! UCX's own operations. Calls that this library does not serve go there.
//!
//! A process may contain several copies of UCX. Each copy's module is an [`Object`]. The operations
//! table of the memory domain identifies it, so no call ever reaches another copy. An object is
//! looked up once; afterwards [`of`] takes no lock.

use std::ffi::{CStr, CString, c_void};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex};

use once_cell::race::OnceBox;
use xgvmi_pool::mlx5::Mlx5Lib;

use crate::abi::{
    MdCloseFn, MdHandle, MdHead, MdQueryFn, MemAttachFn, MemDeregFn, MemRegFn, MkeyPackFn, slot,
};
use crate::hot::hot;
use crate::module::{Module, file_of};
use crate::{forked, log};

/// SONAME of UCX's mlx5 module, equal for all file names and versions.
const MODULE_SONAME: &CStr = c"libuct_ib_mlx5.so.0";

/// Maximum number of remembered operations tables: one for InfiniBand and one for GGA in each of
/// eight copies of UCX. Further tables are looked up at every call.
const TABLES_MAX: usize = 16;

/// One loaded copy of UCX's mlx5 module.
///
/// The operations come first: every call reads this cache line only.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Object {
    originals: Originals,
    serves: bool,
    base: usize,
    /// Its name in the loader.
    path: CString,
    verbs: OnceBox<Option<Arc<Mlx5Lib>>>,
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
            match unsafe { Mlx5Lib::from_handle(module.handle()) } {
                Ok(lib) => Some(Arc::new(lib)),
                Err(error) => {
                    log::warning!("everything is left to UCX: {error}");
                    None
                }
            }
        };
        self.verbs.get_or_init(|| Box::new(find())).clone()
    }
}

impl Originals {
    /// The functions' addresses, in the order of [`slot::ALL`].
    pub(crate) fn addresses(&self) -> slot::Functions {
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

/// An operations table and the copy of UCX that it belongs to.
struct Table {
    ops: *const c_void,
    object: Option<&'static Object>,
}

// SAFETY: the pointers are only compared, never dereferenced.
unsafe impl Sync for Table {}

/// Marks an empty entry. No memory domain has its table at this address.
static NO_TABLE: Table = Table {
    ops: std::ptr::without_provenance(1),
    object: None,
};

/// The known tables, filled from the front. Entries are never removed.
static TABLES: [AtomicPtr<Table>; TABLES_MAX] =
    [const { AtomicPtr::new((&raw const NO_TABLE).cast_mut()) }; TABLES_MAX];

/// The known objects. Locked while a new one is checked, so that each is checked once.
static OBJECTS: Mutex<Vec<&'static Object>> = Mutex::new(Vec::new());

/// Decides whether this library serves a copy of UCX, and redirects the calls of that copy if so.
/// `None` if the copy's own functions are not UCX's: it is not used then.
pub(crate) trait Open: Fn(&Module, &Originals, &CStr) -> Option<bool> {}

impl<F: Fn(&Module, &Originals, &CStr) -> Option<bool>> Open for F {}

/// The copy of UCX that the memory domain belongs to. A new copy is decided on with `open`. `None`
/// if its functions cannot be found.
///
/// # Safety
/// `md` must be a memory domain of UCX's mlx5 module.
#[inline]
pub(crate) unsafe fn of(md: MdHandle, open: impl Open) -> Option<&'static Object> {
    // SAFETY: the first word of every memory domain is its operations table.
    let ops = unsafe { (*md.cast::<MdHead>()).ops };
    match first(ops) {
        Some(first) => Some(first),
        None => search(ops).or_else(|| look_up(ops, open)),
    }
}

/// Like [`of`], for a copy that was decided on before.
///
/// # Safety
/// As [`of`].
pub(crate) unsafe fn known(md: MdHandle) -> Option<&'static Object> {
    // SAFETY: the first word of every memory domain is its operations table.
    let ops = unsafe { (*md.cast::<MdHead>()).ops };
    search(ops).or_else(|| {
        let (base, _path) = file_of(ops)?;
        let objects = forked::lock(&OBJECTS)?;
        let object = objects.iter().copied().find(|object| object.base == base)?;
        remember(ops, object);
        Some(object)
    })
}

/// Searches the known tables.
#[inline(never)]
fn search(ops: *const c_void) -> Option<&'static Object> {
    for entry in &TABLES {
        // SAFETY: entries point to tables that are never freed and do not change.
        let table = unsafe { &*entry.load(Ordering::Acquire) };
        if table.ops == ops || table.object.is_none() {
            return table.object;
        }
    }
    None
}

/// UCX's own `mkey_pack` for the memory domain, if its table is the first known one. With one UCX
/// and one kind of memory domain this covers all calls.
///
/// # Safety
/// As [`of`].
#[inline]
pub(crate) unsafe fn mkey_pack_of_first_table(md: MdHandle) -> Option<MkeyPackFn> {
    // SAFETY: the first word of every memory domain is its operations table.
    let ops = unsafe { (*md.cast::<MdHead>()).ops };
    first(ops).map(|object| object.originals.mkey_pack)
}

/// The object of the first known table, if this is it.
#[inline(always)]
fn first(ops: *const c_void) -> Option<&'static Object> {
    let known = hot().ops.load(Ordering::Acquire).cast_const();
    if known != ops || known.is_null() {
        return None;
    }
    let object = hot().object.load(Ordering::Relaxed).cast::<Object>();
    // SAFETY: `remember` stored an object before the table. Objects are never freed.
    unsafe { object.as_ref() }
}

/// Checks a loaded copy of the module that is not known yet.
pub(crate) fn adopt(path: &CStr, open: impl Open) -> Option<&'static Object> {
    let module = Module::loaded(path)?;
    let close = module.symbol(slot::MD_CLOSE.name)?;
    object_at(close.as_ptr(), open)
}

/// True if a loaded copy of the module was checked.
pub(crate) fn is_any_known() -> bool {
    forked::lock(&OBJECTS).is_some_and(|objects| !objects.is_empty())
}

#[cold]
fn look_up(ops: *const c_void, open: impl Open) -> Option<&'static Object> {
    let _is_watching = forked::watch_forks();
    // A memory domain that is closed before it was opened has no table yet. The module's name then
    // decides, which is correct unless there are two copies.
    let object = if ops.is_null() {
        adopt(MODULE_SONAME, open)?
    } else {
        object_at(ops, open)?
    };
    if !ops.is_null() {
        remember(ops, object);
    }
    Some(object)
}

/// The object that contains the address.
fn object_at(address: *const c_void, open: impl Open) -> Option<&'static Object> {
    let (base, path) = file_of(address)?;
    let mut objects = forked::lock(&OBJECTS)?;
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
    let serves = open(&module, &originals, &path)?;
    let object: &'static Object = Box::leak(Box::new(Object {
        base,
        path,
        originals,
        serves,
        verbs: OnceBox::new(),
    }));
    objects.push(object);
    Some(object)
}

fn remember(ops: *const c_void, object: &'static Object) {
    let table = Box::into_raw(Box::new(Table {
        ops,
        object: Some(object),
    }));
    let none = (&raw const NO_TABLE).cast_mut();
    for (number, entry) in TABLES.iter().enumerate() {
        match entry.compare_exchange(none, table, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                // One thread fills the first entry, once.
                if number == 0 {
                    let object = std::ptr::from_ref(object).cast_mut();
                    hot().object.store(object.cast(), Ordering::Relaxed);
                    hot().ops.store(ops.cast_mut(), Ordering::Release);
                }
                return;
            }
            // SAFETY: entries point to tables that are never freed.
            Err(other) if unsafe { (*other).ops } == ops => break,
            Err(_) => {}
        }
    }
    // SAFETY: it came from Box::into_raw above and was not published.
    drop(unsafe { Box::from_raw(table) });
}

fn originals_of(module: &Module) -> Option<Originals> {
    let symbol = |slot: slot::Slot| Some(module.symbol(slot.name)?.as_ptr());
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
