//! Contexts of programmable congestion control. Each is a process on the DPA; the first one of a card is active.

pub mod config;
pub mod mailbox;
pub mod resources;
mod running;
mod trace;
mod wait;

use self::config::{Application, Config};
use self::running::Running;
use crate::dev::{Dev, DevInfo, ask};
use crate::dpa::{failed, probe};
use crate::error::{Code, Fault, Result, call, fail};
use crate::object::{Alone, Lease, Object, check_place, find, publish, store, withdraw};
use flexio::{App, Role, Standing};
use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, PoisonError};

/// `doca_pcc_process_state_t`.
const ACTIVE: u32 = 0;
const STANDBY: u32 = 1;
const DEACTIVATED: u32 = 2;
const ERROR: u32 = 3;

/// `struct doca_pcc`.
#[derive(Debug)]
pub struct Pcc {
    dev: Arc<Dev>,
    role: Role,
    config: Alone<Config>,
    running: Mutex<Option<Arc<Running>>>,
    _lease: Lease,
}

impl Object for Pcc {
    const NAME: &'static str = "struct doca_pcc";
}

impl Pcc {
    /// The process of a context that has started.
    fn running(&self) -> Result<Arc<Running>> {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        match &*running {
            Some(running) => Ok(Arc::clone(running)),
            None => fail!(
                BadState,
                "the PCC context is not started: call doca_pcc_start first"
            ),
        }
    }

    /// The process, if the device has not replaced it.
    fn alive(&self) -> Result<Arc<Running>> {
        let running = self.running()?;
        match running.standing()? {
            (Standing::Deactivated | Standing::Failed, reason) => fail!(
                BadState,
                "the PCC process has ended: {reason}; destroy the context and create a new one"
            ),
            _ => Ok(running),
        }
    }

    /// Refuses a setting of a context that has started.
    fn check_new(&self) -> Result<()> {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if running.is_some() {
            fail!(
                BadState,
                "the PCC context has started: set this before doca_pcc_start"
            );
        }
        Ok(())
    }

    fn stop(&self) -> Option<Arc<Running>> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        running.take()
    }
}

/// A device that can be asked about congestion control: it has a DPA and an Ethernet port.
fn check(dev: &Arc<Dev>) -> Result<()> {
    probe::check(dev)?;
    if !running::is_ethernet(dev)? {
        return Err(Fault::answer(
            Code::NotSupported,
            format!(
                "{} has an InfiniBand port: congestion control needs Ethernet",
                dev.name()
            ),
        ));
    }
    Ok(())
}

/// `doca_devinfo_get_is_pcc_supported`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_devinfo_get_is_pcc_supported(devinfo: *const DevInfo) -> Code {
    call("doca_devinfo_get_is_pcc_supported", || ask(devinfo, check))
}

/// `doca_pcc_np_cap_is_supported`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_pcc_np_cap_is_supported(devinfo: *const DevInfo) -> Code {
    call("doca_pcc_np_cap_is_supported", || ask(devinfo, check))
}

/// `doca_devinfo_get_active_rate`: the speed of the port in Gb/s.
///
/// # Safety
/// `rate` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_devinfo_get_active_rate(
    devinfo: *const DevInfo,
    rate: *mut f64,
) -> Code {
    call("doca_devinfo_get_active_rate", || {
        let gbps = ask(devinfo, running::gbps)?;
        // SAFETY: as the caller promises.
        unsafe { store(rate, f64::from(gbps)) }
    })
}

/// Creates a context.
///
/// # Safety
/// `pcc` is NULL or writable.
unsafe fn create(name: &'static str, dev: *mut Dev, role: Role, pcc: *mut *mut Pcc) -> Code {
    call(name, || {
        check_place(pcc)?;
        let dev = find(dev)?;
        // Who creates a context has not asked, and needs the reason.
        check(&dev).map_err(|fault| Fault::new(fault.code, fault.text))?;
        let context = Arc::new(Pcc {
            _lease: dev.users.lease(Pcc::NAME),
            dev,
            role,
            config: Alone::default(),
            running: Mutex::default(),
        });
        // SAFETY: checked above.
        unsafe { pcc.write(publish(&context)) };
        Ok(())
    })
}

/// `doca_pcc_create`.
///
/// # Safety
/// `pcc` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_pcc_create(dev: *mut Dev, pcc: *mut *mut Pcc) -> Code {
    // SAFETY: as the caller promises.
    unsafe { create("doca_pcc_create", dev, Role::Reaction, pcc) }
}

/// `doca_pcc_np_create`.
///
/// # Safety
/// `pcc` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_pcc_np_create(dev: *mut Dev, pcc: *mut *mut Pcc) -> Code {
    // SAFETY: as the caller promises.
    unsafe { create("doca_pcc_np_create", dev, Role::Notification, pcc) }
}

/// `doca_pcc_destroy`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_pcc_destroy(pcc: *mut Pcc) -> Code {
    call("doca_pcc_destroy", || {
        let pcc = find(pcc)?;
        let config = pcc.config.enter()?;
        if let Some(running) = pcc.stop() {
            running.drain(&config);
        }
        withdraw(&pcc);
        Ok(())
    })
}

/// `doca_pcc_set_app`.
///
/// # Safety
/// `app` is a program of dpacc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_pcc_set_app(pcc: *mut Pcc, app: *mut c_void) -> Code {
    call("doca_pcc_set_app", || {
        let pcc = find(pcc)?;
        let mut config = pcc.config.enter()?;
        pcc.check_new()?;
        // SAFETY: NULL, or a program of dpacc's archive by contract.
        match unsafe { App::from_raw(app) } {
            Some(app) => config.app = Some(Application(app)),
            None => fail!(
                InvalidValue,
                "{app:p} is no program of the DPA: pass the variable that dpacc has named by --app-name, and link its \
                 archive"
            ),
        }
        Ok(())
    })
}

/// `doca_pcc_start`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_pcc_start(pcc: *mut Pcc) -> Code {
    call("doca_pcc_start", || {
        let pcc = find(pcc)?;
        let config = pcc.config.enter()?;
        if pcc.running().is_ok() {
            pcc.alive()?;
            fail!(BadState, "the PCC context is started already");
        }
        let mut running = pcc.running.lock().unwrap_or_else(PoisonError::into_inner);
        let started = Running::start(&pcc.dev, pcc.role, &config)?;
        *running = Some(Arc::new(started));
        Ok(())
    })
}

/// `doca_pcc_stop`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_pcc_stop(pcc: *mut Pcc) -> Code {
    call("doca_pcc_stop", || {
        let pcc = find(pcc)?;
        let config = pcc.config.enter()?;
        let Some(running) = pcc.stop() else {
            fail!(BadState, "the PCC context is not started");
        };
        running.drain(&config);
        running.process().detach().map_err(failed)
    })
}

/// `doca_pcc_get_process_state`.
///
/// # Safety
/// `state` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_pcc_get_process_state(pcc: *const Pcc, state: *mut u32) -> Code {
    call("doca_pcc_get_process_state", || {
        check_place(state)?;
        let pcc = find(pcc)?;
        let config = pcc.config.enter()?;
        let found = pcc.running()?.observe(&config)?;
        // SAFETY: checked above.
        unsafe { store(state, found) }
    })
}

/// `doca_pcc_wait`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_pcc_wait(pcc: *mut Pcc, seconds: c_int) -> Code {
    call("doca_pcc_wait", || {
        let pcc = find(pcc)?;
        let running = pcc.running()?;
        wait::change(seconds, || {
            let config = pcc.config.enter()?;
            running.observe(&config)
        })
    })
}

/// `doca_pcc_enable_debug`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_pcc_enable_debug(pcc: *mut Pcc, enable: bool) -> Code {
    call("doca_pcc_enable_debug", || {
        let pcc = find(pcc)?;
        pcc.config.enter()?.has_debug = enable;
        Ok(())
    })
}

/// `doca_pcc_dump_debug`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_pcc_dump_debug(pcc: *mut Pcc) -> Code {
    call("doca_pcc_dump_debug", || {
        let pcc = find(pcc)?;
        let config = pcc.config.enter()?;
        if !config.has_debug {
            fail!(
                BadState,
                "debugging is off: call doca_pcc_enable_debug first"
            );
        }
        pcc.running()?.dump()
    })
}

/// `doca_pcc_set_algo_params_ext`: new values of parameters of a slot, from number `first` on.
///
/// # Safety
/// `values` is NULL or has `count` elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_pcc_set_algo_params_ext(
    pcc: *mut Pcc,
    slot: u32,
    first: u32,
    count: u32,
    values: *const u32,
) -> Code {
    call("doca_pcc_set_algo_params_ext", || {
        let pcc = find(pcc)?;
        let config = pcc.config.enter()?;
        let running = pcc.alive()?;
        if values.is_null() || count == 0 || count > pcc_dev::limits::CURRENT.parameters {
            fail!(
                InvalidValue,
                "{count} values at {values:p}: there are 1 to {} parameters",
                pcc_dev::limits::CURRENT.parameters
            );
        }
        // SAFETY: checked, and `count` elements by contract.
        let values = unsafe { std::slice::from_raw_parts(values, count as usize) };
        running.set_parameters(&config, (slot, first), values)
    })
}
