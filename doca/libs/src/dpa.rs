//! Contexts of the DPA.

pub mod affinity;
pub mod async_ops;
pub mod completion;
mod core;
pub mod launch;
pub mod memory;
pub mod notification;
pub(crate) mod probe;
mod receives;
pub mod table;
pub mod thread;

pub(crate) use self::completion::{Completion, Place, Queue, Sizes};
pub(crate) use self::core::{Block, Core, failed};
pub(crate) use self::receives::Receives;

use crate::dev::{Dev, DevInfo, ask, store_text};
use crate::error::{Code, Fault, Result, call, fail};
use crate::object::{Alone, Lease, Object, Users, check_place, find, publish, store, withdraw};
use flexio::App;
use std::ffi::{c_char, c_void};
use std::sync::{Arc, Mutex, PoisonError};

/// `struct doca_dpa`.
#[derive(Debug)]
pub struct Dpa {
    pub(crate) dev: Arc<Dev>,
    config: Alone<Config>,
    /// The call that works on the process now.
    work: Alone<()>,
    core: Mutex<Option<Arc<Core>>>,
    /// Objects that belong to the context.
    pub(crate) users: Arc<Users>,
    _lease: Lease,
    /// The context that this one extends.
    _extends: Option<(Arc<Dpa>, Lease)>,
}

#[derive(Debug)]
struct Config {
    app: Option<Application>,
    log_level: u32,
}

/// A program, and the program's own pointer to it.
#[derive(Debug, Clone)]
struct Application {
    app: Arc<App>,
    pointer: usize,
}

impl Object for Dpa {
    const NAME: &'static str = "struct doca_dpa";
}

/// Level of lines of device code without a call: INFO.
const LOG_LEVEL: u32 = 50;

impl Dpa {
    /// The running process of a context.
    pub(crate) fn core(&self) -> Result<Arc<Core>> {
        let core = self.core.lock().unwrap_or_else(PoisonError::into_inner);
        match &*core {
            Some(core) => {
                core.alive()?;
                Ok(Arc::clone(core))
            }
            None => fail!(
                BadState,
                "the DPA context is not started: call doca_dpa_start first"
            ),
        }
    }

    /// Works on the running process of a context. A second thread is refused meanwhile.
    pub(crate) fn work<T>(
        dpa: *const Self,
        act: impl FnOnce(&Arc<Core>) -> Result<T>,
    ) -> Result<T> {
        let dpa = find(dpa)?;
        let _alone = dpa.work.enter()?;
        act(&dpa.core()?)
    }

    fn is_started(&self) -> bool {
        self.core
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .is_some()
    }
}

/// The program behind a pointer of C.
fn application(app: *mut c_void) -> Result<Application> {
    // SAFETY: NULL, or a program of dpacc's archive by contract.
    match unsafe { App::from_raw(app) } {
        Some(found) => Ok(Application {
            app: found,
            pointer: app.expose_provenance(),
        }),
        None => fail!(
            InvalidValue,
            "{app:p} is no program of the DPA: pass the variable that dpacc has named by --app-name, and link its \
             archive"
        ),
    }
}

/// `doca_dpa_cap_is_supported`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_dpa_cap_is_supported(devinfo: *const DevInfo) -> Code {
    call("doca_dpa_cap_is_supported", || ask(devinfo, probe::check))
}

/// `doca_dpa_create`.
///
/// # Safety
/// `dpa` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_dpa_create(dev: *mut Dev, dpa: *mut *mut Dpa) -> Code {
    call("doca_dpa_create", || {
        check_place(dpa)?;
        let dev = find(dev)?;
        let context = Arc::new(Dpa {
            _lease: dev.users.lease(Dpa::NAME),
            dev,
            config: Alone::new(Config {
                app: None,
                log_level: LOG_LEVEL,
            }),
            work: Alone::default(),
            core: Mutex::default(),
            users: Arc::default(),
            _extends: None,
        });
        // SAFETY: checked above.
        unsafe { dpa.write(publish(&context)) };
        Ok(())
    })
}

/// `doca_dpa_destroy`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_dpa_destroy(dpa: *mut Dpa) -> Code {
    call("doca_dpa_destroy", || {
        let dpa = find(dpa)?;
        let _alone = dpa.config.enter()?;
        dpa.users.check_none()?;
        let core = dpa
            .core
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(core) = core {
            core.drain();
        }
        withdraw(&dpa);
        Ok(())
    })
}

/// `doca_dpa_set_app`.
///
/// # Safety
/// `app` is a program of dpacc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_dpa_set_app(dpa: *mut Dpa, app: *mut c_void) -> Code {
    call("doca_dpa_set_app", || {
        let dpa = find(dpa)?;
        let mut config = dpa.config.enter()?;
        if dpa.is_started() {
            fail!(BadState, "the DPA context has started with its program");
        }
        config.app = Some(application(app)?);
        Ok(())
    })
}

/// `doca_dpa_get_app`.
///
/// # Safety
/// `app` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_dpa_get_app(dpa: *mut Dpa, app: *mut *mut c_void) -> Code {
    call("doca_dpa_get_app", || {
        let dpa = find(dpa)?;
        let config = dpa.config.enter()?;
        match &config.app {
            Some(of) => {
                let pointer = std::ptr::with_exposed_provenance_mut(of.pointer);
                // SAFETY: as the caller promises.
                unsafe { store(app, pointer) }
            }
            None => fail!(NotFound, "the DPA context has no program"),
        }
    })
}

/// `doca_dpa_app_get_name`.
///
/// # Safety
/// `name` is NULL or has `*size` bytes; `size` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_dpa_app_get_name(
    app: *mut c_void,
    name: *mut c_char,
    size: *mut usize,
) -> Code {
    call("doca_dpa_app_get_name", || {
        check_place(size)?;
        let app = application(app)?.app;
        let needed = app.name().len() + 1;
        // SAFETY: checked, and valid by contract.
        let has = unsafe { size.replace(needed) };
        // SAFETY: as the caller promises.
        unsafe { store_text(app.name(), name, has) }
    })
}

/// `doca_dpa_start`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_dpa_start(dpa: *mut Dpa) -> Code {
    call("doca_dpa_start", || {
        let dpa = find(dpa)?;
        let config = dpa.config.enter()?;
        if dpa.is_started() {
            fail!(BadState, "the DPA context is started already");
        }
        let Some(of) = &config.app else {
            fail!(
                BadConfig,
                "the DPA context has no program: call doca_dpa_set_app first"
            );
        };
        let core = Core::start(&dpa.dev, &of.app, config.log_level)?;
        *dpa.core.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(core));
        Ok(())
    })
}

/// `doca_dpa_stop`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_dpa_stop(dpa: *mut Dpa) -> Code {
    call("doca_dpa_stop", || {
        let dpa = find(dpa)?;
        let _alone = dpa.config.enter()?;
        dpa.users.check_none()?;
        let core = dpa
            .core
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        match core {
            Some(core) => core.drain(),
            None => fail!(BadState, "the DPA context is not started"),
        }
        Ok(())
    })
}

/// `doca_dpa_set_log_level`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_dpa_set_log_level(dpa: *mut Dpa, level: u32) -> Code {
    call("doca_dpa_set_log_level", || {
        let dpa = find(dpa)?;
        let mut config = dpa.config.enter()?;
        if !(10..=60).contains(&level) || !level.is_multiple_of(10) {
            fail!(
                InvalidValue,
                "{level} is no level of device code; they are 10, 20, 30, 40, 50 and 60"
            );
        }
        config.log_level = level;
        if dpa.is_started() {
            dpa.core()?.set_log_level(level);
        }
        Ok(())
    })
}

/// Reads a number of a context.
///
/// # Safety
/// `place` is NULL or writable.
unsafe fn number<T>(
    name: &'static str,
    dpa: *const Dpa,
    place: *mut T,
    read: impl FnOnce(&Dpa) -> Result<T>,
) -> Code {
    call(name, || {
        check_place(place)?;
        let value = read(&*find(dpa)?)?;
        // SAFETY: as the caller promises.
        unsafe { store(place, value) }
    })
}

/// Execution units of a core.
const UNITS_PER_CORE: u32 = 16;
/// Seconds that a kernel may run: the watchdog of the device.
const RUN_SECONDS: u64 = 120;

macro_rules! numbers {
    ($($function:ident: $of:ty = |$dpa:ident| $value:expr;)*) => {$(
        #[doc = concat!("`", stringify!($function), "`.")]
        ///
        /// # Safety
        /// `value` is NULL or writable.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $function(dpa: *const Dpa, value: *mut $of) -> Code {
            // SAFETY: as the caller promises.
            unsafe { number(stringify!($function), dpa, value, |$dpa| $value) }
        }
    )*};
}

numbers! {
    doca_dpa_get_log_level: u32 = |dpa| Ok(dpa.config.enter()?.log_level);
    doca_dpa_get_max_threads_per_kernel: u32 = |dpa| Ok(dpa.core()?.process().limits().units);
    doca_dpa_get_kernel_max_run_time: u64 = |_dpa| Ok(RUN_SECONDS);
    doca_dpa_get_core_num: u32 = |dpa| Ok(dpa.core()?.process().limits().units.div_ceil(UNITS_PER_CORE));
    doca_dpa_get_num_eus_per_core: u32 = |_dpa| Ok(UNITS_PER_CORE);
    doca_dpa_get_total_num_eus_available: u32 = |dpa| Ok(dpa.core()?.process().limits().units);
    doca_dpa_get_dpa_handle: u64 = |dpa| Ok(dpa.core()?.handle());
}

/// `doca_dpa_peek_at_last_error`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_dpa_peek_at_last_error(dpa: *const Dpa) -> Code {
    call("doca_dpa_peek_at_last_error", || {
        let core = find(dpa)?.core()?;
        core.drain();
        core.check()
    })
}

/// `doca_dpa_device_extend`.
///
/// # Safety
/// `extended` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_dpa_device_extend(
    dpa: *mut Dpa,
    other: *mut Dev,
    extended: *mut *mut Dpa,
) -> Code {
    call("doca_dpa_device_extend", || {
        check_place(extended)?;
        let (dpa, other) = (find(dpa)?, find(other)?);
        let core = dpa.core()?;
        if !Arc::ptr_eq(&dpa.dev, &other) {
            return Err(Fault::new(
                Code::NotSupported,
                format!(
                    "{} and {} share no DPA: use the context's own device",
                    dpa.dev.name(),
                    other.name()
                ),
            ));
        }
        let lease = dpa.users.lease("extended struct doca_dpa");
        let context = Arc::new(Dpa {
            _lease: other.users.lease(Dpa::NAME),
            dev: other,
            config: Alone::new(Config {
                app: None,
                log_level: LOG_LEVEL,
            }),
            work: Alone::default(),
            core: Mutex::new(Some(core)),
            users: Arc::default(),
            _extends: Some((dpa, lease)),
        });
        // SAFETY: checked above.
        unsafe { extended.write(publish(&context)) };
        Ok(())
    })
}
