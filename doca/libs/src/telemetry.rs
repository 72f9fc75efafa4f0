//! Telemetry of congestion control: algorithms of the active program of a card, and their counters.

use crate::dev::{Dev, DevInfo, ask};
use crate::dpa::failed;
use crate::error::{Code, Fault, Result, call, fail};
use crate::object::{Alone, Lease, Object, check_place, find, publish, store, withdraw};
use flexio::Telemetry;
use pcc_dev::{Query, limits};
use std::ffi::c_char;
use std::sync::Arc;

/// Bytes of a text, with its end.
const TEXT_BYTES: u32 = limits::TEXT_BYTES;

/// `struct doca_telemetry_pcc`.
#[derive(Debug)]
pub struct Context {
    telemetry: Telemetry,
    is_started: Alone<bool>,
    _dev: Arc<Dev>,
    _lease: Lease,
}

impl Object for Context {
    const NAME: &'static str = "struct doca_telemetry_pcc";
}

impl Context {
    /// The index of the algorithm in a slot. Refuses an empty slot.
    fn populated(&self, slot: u8) -> Result<()> {
        if u32::from(slot) >= limits::CURRENT.slots {
            fail!(
                InvalidValue,
                "slot {slot}: the last one is {}",
                limits::CURRENT.slots - 1
            );
        }
        // Without a program, all slots are empty.
        let index = self.telemetry.value(Query::Algorithm as u16, slot, 0);
        match index {
            Ok(index) if index != u64::from(limits::INTERNAL) => Ok(()),
            Ok(_) => Err(Fault::answer(
                Code::BadState,
                format!("slot {slot} is empty"),
            )),
            Err(error) => Err(Fault::answer(Code::BadState, error.to_string())),
        }
    }

    fn value(&self, what: Query, slot: u8, number: u32) -> Result<u32> {
        self.populated(slot)?;
        let value = self.telemetry.value(what as u16, slot, number);
        Ok(u32::try_from(value.map_err(failed)? & 0xffff_ffff).unwrap_or_default())
    }

    /// Refuses counters of a context that is not started.
    fn started(&self) -> Result<()> {
        if !*self.is_started.enter()? {
            fail!(
                BadState,
                "the telemetry context is not started: call doca_telemetry_pcc_start first"
            );
        }
        Ok(())
    }
}

fn check(dev: &Arc<Dev>) -> Result<()> {
    // SAFETY: the device is open, and the value ends here.
    match unsafe { Telemetry::create(dev.context()) } {
        Ok(_) => Ok(()),
        Err(error) => Err(Fault::answer(
            Code::NotSupported,
            format!(
                "{} states nothing about congestion control: {error}",
                dev.name()
            ),
        )),
    }
}

/// `doca_telemetry_pcc_cap_is_supported`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_telemetry_pcc_cap_is_supported(devinfo: *const DevInfo) -> Code {
    call("doca_telemetry_pcc_cap_is_supported", || {
        ask(devinfo, check)
    })
}

/// `doca_telemetry_pcc_create`.
///
/// # Safety
/// `pcc` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_telemetry_pcc_create(dev: *mut Dev, pcc: *mut *mut Context) -> Code {
    call("doca_telemetry_pcc_create", || {
        check_place(pcc)?;
        let dev = find(dev)?;
        // SAFETY: the device stays open as long as the context.
        let telemetry = unsafe { Telemetry::create(dev.context()) }.map_err(failed)?;
        let context = Arc::new(Context {
            telemetry,
            is_started: Alone::default(),
            _lease: dev.users.lease(Context::NAME),
            _dev: dev,
        });
        // SAFETY: checked above.
        unsafe { pcc.write(publish(&context)) };
        Ok(())
    })
}

/// `doca_telemetry_pcc_destroy`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_telemetry_pcc_destroy(pcc: *mut Context) -> Code {
    call("doca_telemetry_pcc_destroy", || {
        let pcc = find(pcc)?;
        if *pcc.is_started.enter()? {
            fail!(
                BadState,
                "the telemetry context is started: call doca_telemetry_pcc_stop first"
            );
        }
        withdraw(&pcc);
        Ok(())
    })
}

fn switch(name: &'static str, pcc: *mut Context, on: bool) -> Code {
    call(name, || {
        let pcc = find(pcc)?;
        let mut is_started = pcc.is_started.enter()?;
        if *is_started == on {
            let word = if on { "started already" } else { "not started" };
            fail!(BadState, "the telemetry context is {word}");
        }
        *is_started = on;
        Ok(())
    })
}

/// `doca_telemetry_pcc_start`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_telemetry_pcc_start(pcc: *mut Context) -> Code {
    switch("doca_telemetry_pcc_start", pcc, true)
}

/// `doca_telemetry_pcc_stop`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_telemetry_pcc_stop(pcc: *mut Context) -> Code {
    switch("doca_telemetry_pcc_stop", pcc, false)
}

macro_rules! sizes {
    ($($cap:ident, $own:ident = $value:expr;)*) => {$(
        #[doc = concat!("`", stringify!($cap), "`.")]
        ///
        /// # Safety
        /// `value` is NULL or writable.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $cap(devinfo: *const DevInfo, value: *mut u32) -> Code {
            call(stringify!($cap), || {
                find(devinfo)?;
                // SAFETY: as the caller promises.
                unsafe { store(value, $value) }
            })
        }

        #[doc = concat!("`", stringify!($own), "`, of older versions.")]
        ///
        /// # Safety
        /// `value` is NULL or writable.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $own(pcc: *const Context, value: *mut u32) -> Code {
            call(stringify!($own), || {
                find(pcc)?;
                // SAFETY: as the caller promises.
                unsafe { store(value, $value) }
            })
        }
    )*};
}

sizes! {
    doca_telemetry_pcc_cap_get_max_algo_slots, doca_telemetry_pcc_get_max_algo_slots = limits::CURRENT.slots;
    doca_telemetry_pcc_cap_get_max_num_counters, doca_telemetry_pcc_get_max_num_counters = limits::CURRENT.counters;
    doca_telemetry_pcc_cap_get_max_algo_info_len, doca_telemetry_pcc_get_max_algo_info_len = TEXT_BYTES;
    doca_telemetry_pcc_cap_get_max_counter_info_len, doca_telemetry_pcc_get_max_counter_info_len = TEXT_BYTES;
}

macro_rules! values {
    ($($name:ident = |$pcc:ident, $slot:ident| $value:expr;)*) => {$(
        #[doc = concat!("`", stringify!($name), "`.")]
        ///
        /// # Safety
        /// `value` is NULL or writable.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(pcc: *mut Context, $slot: u8, value: *mut u32) -> Code {
            call(stringify!($name), || {
                check_place(value)?;
                let $pcc = find(pcc)?;
                let read = $value;
                // SAFETY: checked above.
                unsafe { store(value, read) }
            })
        }
    )*};
}

values! {
    doca_telemetry_pcc_get_algo_id = |pcc, slot| pcc.value(Query::Id, slot, 0)?;
    doca_telemetry_pcc_get_algo_minor_version = |pcc, slot| pcc.value(Query::Version, slot, 0)?;
    doca_telemetry_pcc_get_algo_major_version = |pcc, slot| {
        pcc.populated(slot)?;
        let version = pcc.telemetry.value(Query::Version as u16, slot, 0).map_err(failed)?;
        u32::try_from(version >> 32).unwrap_or_default()
    };
    doca_telemetry_pcc_get_num_counters = |pcc, slot| pcc.value(Query::Counters, slot, 0)?;
}

/// `doca_telemetry_pcc_get_algo_enable_status`.
///
/// # Safety
/// The pointers are NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_telemetry_pcc_get_algo_enable_status(
    pcc: *mut Context,
    slot: u8,
    algorithm: *mut u8,
    counters: *mut u8,
) -> Code {
    call("doca_telemetry_pcc_get_algo_enable_status", || {
        check_place(algorithm)?;
        check_place(counters)?;
        let pcc = find(pcc)?;
        let is_enabled = pcc.value(Query::Enabled, slot, 0)? != 0;
        let has_counters = pcc.value(Query::Counters, slot, 0)? != 0;
        // SAFETY: checked above.
        unsafe {
            algorithm.write(is_enabled.into());
            counters.write(has_counters.into());
        }
        Ok(())
    })
}

/// Writes a text of at most [`TEXT_BYTES`] with its end.
///
/// # Safety
/// `place` has that many bytes.
unsafe fn put(text: &str, place: *mut c_char) {
    let bytes = text.len().min(TEXT_BYTES as usize - 1);
    // SAFETY: as the caller promises.
    unsafe {
        place.cast::<u8>().copy_from(text.as_ptr(), bytes);
        place.add(bytes).write(0);
    }
}

/// `doca_telemetry_pcc_get_algo_info`.
///
/// # Safety
/// `text` is NULL or has the bytes of `doca_telemetry_pcc_cap_get_max_algo_info_len`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_telemetry_pcc_get_algo_info(
    pcc: *mut Context,
    slot: u8,
    text: *mut c_char,
) -> Code {
    call("doca_telemetry_pcc_get_algo_info", || {
        check_place(text)?;
        let pcc = find(pcc)?;
        pcc.populated(slot)?;
        let found = pcc
            .telemetry
            .text(Query::Text as u16, slot, 0)
            .map_err(failed)?;
        // SAFETY: as the caller promises.
        unsafe { put(&found, text) };
        Ok(())
    })
}

/// `doca_telemetry_pcc_get_counter_info`.
///
/// # Safety
/// `text` is NULL or has the bytes of `doca_telemetry_pcc_cap_get_max_counter_info_len`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_telemetry_pcc_get_counter_info(
    pcc: *mut Context,
    slot: u8,
    counter: u8,
    text: *mut c_char,
) -> Code {
    call("doca_telemetry_pcc_get_counter_info", || {
        check_place(text)?;
        let pcc = find(pcc)?;
        let count = pcc.value(Query::Counters, slot, 0)?;
        if u32::from(counter) >= count {
            fail!(
                InvalidValue,
                "counter {counter} of slot {slot}: it has {count}, from 0"
            );
        }
        let found = pcc
            .telemetry
            .text(Query::CounterText as u16, slot, counter.into());
        // SAFETY: as the caller promises.
        unsafe { put(&found.map_err(failed)?, text) };
        Ok(())
    })
}

/// Reads the counters of a slot.
///
/// # Safety
/// `count` is NULL or writable; `values` is NULL or has as many elements as a slot may have counters.
unsafe fn counters(pcc: &Context, slot: u8, count: *mut u32, values: *mut u32) -> Result<()> {
    check_place(count)?;
    pcc.started()?;
    let number = pcc
        .value(Query::Counters, slot, 0)?
        .min(limits::CURRENT.counters);
    for counter in 0..number {
        let value = pcc.value(Query::Counter, slot, counter)?;
        // SAFETY: within the elements that the caller promises.
        unsafe { values.add(counter as usize).write(value) };
    }
    // SAFETY: checked above.
    unsafe { store(count, number) }
}

/// `doca_telemetry_pcc_get_counters`.
///
/// # Safety
/// `count` is NULL or writable; `values` is NULL or has as many elements as a slot may have counters.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_telemetry_pcc_get_counters(
    pcc: *mut Context,
    slot: u8,
    count: *mut u32,
    values: *mut u32,
) -> Code {
    call("doca_telemetry_pcc_get_counters", || {
        check_place(values)?;
        let pcc = find(pcc)?;
        // SAFETY: as the caller promises.
        unsafe { counters(&pcc, slot, count, values) }
    })
}

/// `doca_telemetry_pcc_get_and_clear_counters`.
///
/// # Safety
/// As [`doca_telemetry_pcc_get_counters`]. Without values, the counters are only cleared.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_telemetry_pcc_get_and_clear_counters(
    pcc: *mut Context,
    slot: u8,
    count: *mut u32,
    values: *mut u32,
) -> Code {
    call("doca_telemetry_pcc_get_and_clear_counters", || {
        let pcc = find(pcc)?;
        if values.is_null() {
            pcc.started()?;
            pcc.populated(slot)?;
            // SAFETY: as the caller promises.
            unsafe { store(count, 0) }?;
        } else {
            // SAFETY: as the caller promises.
            unsafe { counters(&pcc, slot, count, values) }?;
        }
        pcc.telemetry.clear(slot).map_err(failed)
    })
}

/// `doca_telemetry_pcc_cap_rep_is_supported`: not supported.
#[unsafe(no_mangle)]
pub extern "C" fn doca_telemetry_pcc_cap_rep_is_supported(_rep: *const u8) -> Code {
    call("doca_telemetry_pcc_cap_rep_is_supported", no_representors)
}

/// `doca_telemetry_pcc_rep_create`: not supported.
#[unsafe(no_mangle)]
pub extern "C" fn doca_telemetry_pcc_rep_create(_rep: *mut u8, _pcc: *mut *mut Context) -> Code {
    call("doca_telemetry_pcc_rep_create", no_representors)
}

fn no_representors() -> Result<()> {
    fail!(
        NotSupported,
        "this library has no representors; open the function itself"
    )
}
