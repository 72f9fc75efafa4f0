//! The UCC that loaded this component: resolves its functions by name and checks its structures.

use crate::bindings::{ucc_coll_type_t, ucc_memory_type_t, ucc_status_t, ucc_thread_mode_t};
use crate::layout::Layout;
use crate::log;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::ptr::{NonNull, null_mut};
use std::sync::OnceLock;
use ucx_sys::ucs::{Field, LogDispatch};

type ClassInit2 = unsafe extern "C" fn(
    *mut c_void,
    *const c_void,
    *mut c_int,
    *const c_void,
    *const c_void,
) -> ucc_status_t;
type Cleanup = unsafe extern "C" fn(*mut c_void);
type InitFn = unsafe extern "C" fn(*mut c_void, *mut c_void, *mut *mut c_void) -> ucc_status_t;
type AddRange = unsafe extern "C" fn(
    *mut c_void,
    ucc_coll_type_t,
    ucc_memory_type_t,
    usize,
    usize,
    c_uint,
    InitFn,
    *mut c_void,
) -> ucc_status_t;

/// `ucc_coll_score_team_info_t`.
#[repr(C)]
struct TeamInfo {
    default_score: c_uint,
    size: u32,
    supported_colls: u64,
    supported_mem_types: *const ucc_memory_type_t,
    num_mem_types: c_int,
    init: InitFn,
    /// Finds an algorithm by its number or name.
    alg_fn: *const c_void,
}

type UpdateFromText =
    unsafe extern "C" fn(*const c_char, *const TeamInfo, *mut c_void, *mut c_void) -> ucc_status_t;

/// A class of UCC: its descriptor, constructor and destructor.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Class {
    descriptor: *const c_void,
    init: ClassInit2,
    cleanup: Cleanup,
}

/// UCC's functions and tables.
#[derive(Debug)]
pub(crate) struct Ucc {
    /// Major, minor and release, such as `1.9.0`.
    pub(crate) version: [u32; 3],
    /// `None` for an unknown version.
    pub(crate) layout: Option<Layout>,
    pub(crate) lib: Class,
    pub(crate) context: Class,
    pub(crate) team: Class,
    score_alloc: unsafe extern "C" fn(*mut *mut c_void) -> ucc_status_t,
    score_add_range: AddRange,
    score_update_from_str: UpdateFromText,
    task_construct: Cleanup,
    pub(crate) task_destruct: Cleanup,
    task_init: unsafe extern "C" fn(*mut c_void, *mut c_void, *mut c_void) -> ucc_status_t,
    queue_init: unsafe extern "C" fn(*mut *mut c_void, ucc_thread_mode_t, u32) -> ucc_status_t,
    queue_finalize: Cleanup,
    /// Size of each predefined datatype in bytes.
    pub(crate) datatype_bytes: &'static [usize; DATATYPES],
    pub(crate) lib_table: *const Field,
    pub(crate) context_table: *const Field,
    base_lib_table: *const Field,
    base_context_table: *const Field,
    pub(crate) option_list: Option<NonNull<c_void>>,
    handle: *mut c_void,
}

/// Number of predefined datatypes since UCC 1.2; later versions append new ones.
pub(crate) const DATATYPES: usize = crate::bindings::UCC_DT_PREDEFINED_LAST as usize;

// SAFETY: the fields are set once and then only read; the functions may be called from any thread, as UCC itself does.
unsafe impl Send for Ucc {}
// SAFETY: as above.
unsafe impl Sync for Ucc {}

static UCC: OnceLock<Option<Ucc>> = OnceLock::new();

/// Whether an option of a table has this name.
fn is_called(option: &Field, name: &CStr) -> bool {
    // SAFETY: names are constant texts; only the end of a table has null.
    !option.name.is_null() && unsafe { CStr::from_ptr(option.name) } == name
}

impl Ucc {
    /// The UCC of this process, after [`Ucc::find`] has found it.
    pub(crate) fn get() -> Option<&'static Self> {
        UCC.get().and_then(Option::as_ref)
    }

    /// Finds the UCC that is loading this component. `Err` names the missing symbol.
    pub(crate) fn find() -> Result<&'static Self, &'static CStr> {
        let mut missing = c"libucc.so.1 is not in this process";
        let found = UCC.get_or_init(|| Self::resolve().map_err(|name| missing = name).ok());
        found.as_ref().ok_or(missing)
    }

    fn resolve() -> Result<Self, &'static CStr> {
        // SAFETY: requests a library that is already loaded, by a constant name; the call runs no code of the library.
        // UCC may have local symbol scope, so its names are resolved through this handle, which stays open.
        let handle =
            unsafe { libc::dlopen(c"libucc.so.1".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        let handle = NonNull::new(handle).ok_or(c"libucc.so.1 is not in this process")?;
        let at = |name: &'static CStr| {
            let found = find_symbol(handle.as_ptr(), name);
            found.ok_or(name)
        };
        let class = |names: [&'static CStr; 3]| -> Result<Class, &'static CStr> {
            Ok(Class {
                descriptor: at(names[0])?.as_ptr(),
                // SAFETY: UCC's class constructors take the object, the class, a counter and the two arguments of each
                // of these three classes (UCC_CLASS_DECLARE in ucc_tl.h); all are pointers.
                init: unsafe { std::mem::transmute::<NonNull<c_void>, ClassInit2>(at(names[1])?) },
                // SAFETY: a class destructor takes the object.
                cleanup: unsafe { std::mem::transmute::<NonNull<c_void>, Cleanup>(at(names[2])?) },
            })
        };
        type Version = unsafe extern "C" fn(*mut c_uint, *mut c_uint, *mut c_uint);
        // SAFETY: the public function ucc_get_version has this type.
        let get_version =
            unsafe { std::mem::transmute::<NonNull<c_void>, Version>(at(c"ucc_get_version")?) };
        let mut version = [0; 3];
        let [major, minor, release] = &mut version;
        // SAFETY: three writable numbers.
        unsafe { get_version(major, minor, release) };
        let layout = Layout::of(version[0], version[1]);
        // SAFETY: UCC's constant table of at least this many sizes; DATATYPES is the number in the oldest known
        // version.
        let datatype_bytes = unsafe { at(c"ucc_dt_predefined_sizes")?.cast().as_ref() };
        // SAFETY: each function is resolved by name and has had its type in all known versions
        // (src/coll_score/ucc_coll_score.h, src/schedule/ucc_schedule.h, src/core/ucc_progress_queue.h). With an
        // unknown version, only the log function is called.
        let ucc = unsafe {
            Self {
                version,
                layout,
                lib: class([
                    c"ucc_tl_lib_t_class",
                    c"ucc_tl_lib_t_init",
                    c"ucc_tl_lib_t_cleanup",
                ])?,
                context: class([
                    c"ucc_tl_context_t_class",
                    c"ucc_tl_context_t_init",
                    c"ucc_tl_context_t_cleanup",
                ])?,
                team: class([
                    c"ucc_tl_team_t_class",
                    c"ucc_tl_team_t_init",
                    c"ucc_tl_team_t_cleanup",
                ])?,
                score_alloc: std::mem::transmute::<
                    NonNull<c_void>,
                    unsafe extern "C" fn(*mut *mut c_void) -> ucc_status_t,
                >(at(c"ucc_coll_score_alloc")?),
                score_add_range: std::mem::transmute::<NonNull<c_void>, AddRange>(at(
                    c"ucc_coll_score_add_range",
                )?),
                score_update_from_str: std::mem::transmute::<NonNull<c_void>, UpdateFromText>(at(
                    c"ucc_coll_score_update_from_str",
                )?),
                task_construct: std::mem::transmute::<NonNull<c_void>, Cleanup>(at(
                    c"ucc_coll_task_construct",
                )?),
                task_destruct: std::mem::transmute::<NonNull<c_void>, Cleanup>(at(
                    c"ucc_coll_task_destruct",
                )?),
                task_init: std::mem::transmute::<
                    NonNull<c_void>,
                    unsafe extern "C" fn(*mut c_void, *mut c_void, *mut c_void) -> ucc_status_t,
                >(at(c"ucc_coll_task_init")?),
                queue_init: std::mem::transmute::<
                    NonNull<c_void>,
                    unsafe extern "C" fn(*mut *mut c_void, ucc_thread_mode_t, u32) -> ucc_status_t,
                >(at(c"ucc_progress_queue_init")?),
                queue_finalize: std::mem::transmute::<NonNull<c_void>, Cleanup>(at(
                    c"ucc_progress_queue_finalize",
                )?),
                datatype_bytes,
                lib_table: at(c"ucc_tl_lib_config_table")?.as_ptr().cast(),
                context_table: at(c"ucc_tl_context_config_table")?.as_ptr().cast(),
                base_lib_table: at(c"ucc_base_lib_config_table")?.as_ptr().cast(),
                base_context_table: at(c"ucc_base_ctx_config_table")?.as_ptr().cast(),
                option_list: at(c"ucc_config_global_list").ok(),
                handle: handle.as_ptr(),
            }
        };
        if let Ok(found) = at(c"ucs_log_dispatch") {
            // SAFETY: the symbol is this function of UCS.
            log::set_dispatch(unsafe {
                std::mem::transmute::<NonNull<c_void>, LogDispatch>(found)
            });
        }
        Ok(ucc)
    }

    /// Resolves a symbol of libucc or of a library that it depends on, such as libucs.
    pub(crate) fn symbol(&self, name: &CStr) -> Option<NonNull<c_void>> {
        find_symbol(self.handle, name)
    }

    /// Checks UCC's tables: options have the layout of [`Field`], and datatypes have their known sizes.
    pub(crate) fn check_tables(&self) -> Result<(), &'static CStr> {
        let table_parser = self
            .symbol(c"ucs_config_sscanf_table")
            .ok_or(c"no parser of option tables")?;
        for (table, base) in [
            (self.lib_table, self.base_lib_table),
            (self.context_table, self.base_context_table),
        ] {
            // SAFETY: the table has one entry and a terminator (ucc_tl.c). Otherwise the entry would still be inside
            // UCC's data, where tables are adjacent.
            let first = unsafe { &*table };
            if first.parser.read != table_parser.as_ptr().cast_const()
                || first.parser.arg != base.cast()
                || first.offset != 0
            {
                return Err(c"its option tables are not as expected");
            }
        }
        // SAFETY: as above.
        let level = unsafe { &*self.base_lib_table };
        if level.offset != LOG_LEVEL_AT || !is_called(level, c"LOG_LEVEL") {
            return Err(c"its log level option is not as expected");
        }
        if *self.datatype_bytes != KNOWN_BYTES {
            return Err(c"its datatypes are not as expected");
        }
        Ok(())
    }

    /// The value of UCC's own option TUNE in a component's configuration; empty if it has none.
    ///
    /// # Safety
    /// UCC has filled in the configuration by a table that starts with that of its base options.
    pub(crate) unsafe fn tune(&self, config: *const c_void) -> String {
        let mut option = self.base_context_table;
        loop {
            // SAFETY: an entry of UCC's table, or its end.
            let field = unsafe { &*option };
            if field.name.is_null() {
                return String::new();
            }
            if is_called(field, c"TUNE") {
                // SAFETY: the caller upholds the contract: the option's value is a text at this offset.
                let text: *const c_char = unsafe { read(config, field.offset) };
                if text.is_null() {
                    return String::new();
                }
                // SAFETY: a text that UCC has allocated.
                return unsafe { CStr::from_ptr(text) }
                    .to_string_lossy()
                    .into_owned();
            }
            option = option.wrapping_add(1);
        }
    }

    /// Checks that the context's progress queue is at the offset of the layout: its functions must equal those of a
    /// queue that UCC creates on request.
    ///
    /// # Safety
    /// `context` is a complete `ucc_context_t`.
    pub(crate) unsafe fn check_queue(&self, layout: &Layout, context: *mut c_void) -> bool {
        // SAFETY: the field lies inside ucc_context_t in each known version.
        let queue: *const u8 = unsafe { read(context, layout.context_queue) };
        if queue.is_null() || !queue.addr().is_multiple_of(align_of::<usize>()) {
            return false;
        }
        // The type of UCC's queue depends on the context's thread mode and on an option.
        let modes = [
            crate::bindings::UCC_THREAD_SINGLE,
            crate::bindings::UCC_THREAD_MULTIPLE,
        ];
        modes
            .iter()
            .flat_map(|mode| [(*mode, 0), (*mode, 1)])
            .any(|(mode, lock_free)| {
                let mut other = null_mut();
                // SAFETY: any thread mode and either type; the queue is writable.
                if unsafe { (self.queue_init)(&raw mut other, mode, lock_free) } != 0 {
                    return false;
                }
                let same = layout.queue.iter().all(|at| {
                    // SAFETY: both are at least as long as a queue's table of functions if `queue` is a queue.
                    // Otherwise it is an aligned pointer from UCC's context with an arbitrary target; the version check
                    // makes this case as unlikely as possible.
                    unsafe {
                        read::<usize>(queue.cast_mut().cast(), *at) == read::<usize>(other, *at)
                    }
                });
                // SAFETY: created above, with no other user.
                unsafe { (self.queue_finalize)(other) };
                same
            })
    }

    /// Adds a task to the context's progress queue.
    ///
    /// # Safety
    /// `context` has passed [`Ucc::check_queue`]; the task is initialized and in no queue.
    pub(crate) unsafe fn enqueue(&self, layout: &Layout, context: *mut c_void, task: *mut c_void) {
        // SAFETY: checked when the team was made.
        let queue: *mut c_void = unsafe { read(context, layout.context_queue) };
        // SAFETY: the same; the function has this type in all versions.
        let enqueue: unsafe extern "C" fn(*mut c_void, *mut c_void) =
            unsafe { read(queue, layout.queue[0]) };
        // SAFETY: the caller upholds the contract.
        unsafe { enqueue(queue, task) };
    }

    /// Constructs a task in zeroed memory.
    ///
    /// # Safety
    /// `task` has [`crate::layout::OBJECT_BYTES`] zeroed bytes; `args` and `team` are UCC's arguments.
    pub(crate) unsafe fn make_task(
        &self,
        task: *mut c_void,
        args: *mut c_void,
        team: *mut c_void,
    ) -> ucc_status_t {
        // SAFETY: the caller upholds the contract.
        unsafe { (self.task_construct)(task) };
        // SAFETY: the same.
        unsafe { (self.task_init)(task, args, team) }
    }

    /// Creates a set of scores without a range.
    ///
    /// # Safety
    /// `to` is writable.
    pub(crate) unsafe fn make_scores(&self, to: *mut *mut c_void) -> ucc_status_t {
        // SAFETY: the caller upholds the contract.
        unsafe { (self.score_alloc)(to) }
    }

    /// Adds a served collective on host memory for messages of `first` to `last` bytes.
    ///
    /// # Safety
    /// `scores` is from [`Ucc::make_scores`], and `team` is their team.
    pub(crate) unsafe fn add_score(
        &self,
        scores: *mut c_void,
        (kind, first, last): (ucc_coll_type_t, usize, usize),
        score: u32,
        init: InitFn,
        team: *mut c_void,
    ) -> ucc_status_t {
        let host = crate::bindings::UCC_MEMORY_TYPE_HOST;
        // SAFETY: the caller upholds the contract.
        unsafe { (self.score_add_range)(scores, kind, host, first, last, score, init, team) }
    }
}

/// A change of scores in UCC's own syntax.
#[derive(Debug)]
pub(crate) struct Tune<'a> {
    pub(crate) text: &'a str,
    /// The collectives that it may name, and the score of those that it gives none.
    pub(crate) kinds: u64,
    pub(crate) score: u32,
    /// Number of ranks of the team.
    pub(crate) size: u32,
}

impl Ucc {
    /// Changes scores. UCC prints an error for a text that it cannot parse, and leaves them as they are.
    ///
    /// # Safety
    /// As for [`Ucc::add_score`].
    pub(crate) unsafe fn tune_scores(
        &self,
        scores: *mut c_void,
        tune: &Tune<'_>,
        init: InitFn,
        team: *mut c_void,
    ) -> ucc_status_t {
        let host = [crate::bindings::UCC_MEMORY_TYPE_HOST];
        let info = TeamInfo {
            default_score: tune.score,
            size: tune.size,
            supported_colls: tune.kinds,
            supported_mem_types: host.as_ptr(),
            num_mem_types: 1,
            init,
            alg_fn: std::ptr::null(),
        };
        let Ok(text) = CString::new(tune.text) else {
            return crate::bindings::UCC_ERR_INVALID_PARAM;
        };
        // SAFETY: the caller upholds the contract; the structure and the text are valid through the call.
        unsafe { (self.score_update_from_str)(text.as_ptr(), &raw const info, team, scores) }
    }
}

/// Offset of the log component in `ucc_base_lib_config_t`. Its first field is the level.
pub(crate) const LOG_LEVEL_AT: usize = 8;

/// Sizes of UCC's predefined datatypes in bytes, in the order of their numbers (`ucc.h`): signed and unsigned integers
/// of 8 to 128 bits, floating-point numbers of 16, 32 and 64 bits, bfloat16, float128, and complex numbers of 32, 64
/// and 128 bits.
const KNOWN_BYTES: [usize; DATATYPES] = [1, 2, 4, 8, 16, 1, 2, 4, 8, 16, 2, 4, 8, 2, 16, 8, 16, 32];

impl Class {
    /// Runs the constructor of a base object with its two arguments.
    ///
    /// # Safety
    /// `object` has [`crate::layout::OBJECT_BYTES`] zeroed bytes, and the arguments are those of the class.
    pub(crate) unsafe fn construct(
        &self,
        object: *mut c_void,
        first: *const c_void,
        second: *const c_void,
    ) -> ucc_status_t {
        let mut count: c_int = 1;
        // SAFETY: the caller upholds the contract.
        unsafe { (self.init)(object, self.descriptor, &raw mut count, first, second) }
    }

    /// Runs the destructor.
    ///
    /// # Safety
    /// `object` was constructed, and is destroyed once.
    pub(crate) unsafe fn destruct(&self, object: *mut c_void) {
        // SAFETY: the caller upholds the contract.
        unsafe { (self.cleanup)(object) };
    }
}

fn find_symbol(handle: *mut c_void, name: &CStr) -> Option<NonNull<c_void>> {
    // SAFETY: an open library and a text that ends with a NUL; the lookup runs no code.
    NonNull::new(unsafe { libc::dlsym(handle, name.as_ptr()) })
}

/// Reads a field of a structure of UCC.
///
/// # Safety
/// The structure has a field of this type at this offset.
pub(crate) unsafe fn read<T: Copy>(of: *const c_void, at: usize) -> T {
    // SAFETY: the caller upholds the contract.
    let field = unsafe { of.cast::<u8>().add(at) };
    // SAFETY: the caller upholds the contract; an unaligned read needs no alignment.
    unsafe { field.cast::<T>().read_unaligned() }
}

/// Writes a field of a structure of UCC.
///
/// # Safety
/// The structure has a field of this type at this offset, and has no other user now.
pub(crate) unsafe fn write<T>(of: *mut c_void, at: usize, value: T) {
    // SAFETY: the caller upholds the contract.
    let field = unsafe { of.cast::<u8>().add(at) };
    // SAFETY: the same.
    unsafe { field.cast::<T>().write_unaligned(value) };
}
