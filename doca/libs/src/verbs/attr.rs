//! Attributes of a state change.

use super::{Address, Path};
use crate::error::{Code, call, fail};
use crate::object::{Alone, Object, check_place, find, publish, withdraw};
use std::sync::Arc;

/// `struct doca_verbs_qp_attr`.
#[derive(Debug)]
pub struct Attr(pub(super) Alone<Settings>);

/// What was set.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Settings {
    pub(super) state: u32,
    pub(super) path: Path,
    pub(super) access: u32,
    pub(super) port: u8,
    pub(super) peer: u32,
    pub(super) receive_psn: u32,
    pub(super) send_psn: u32,
    pub(super) mtu: u8,
    pub(super) rnr_timer: u8,
    pub(super) timeout: u8,
    pub(super) retries: u8,
    pub(super) rnr_retries: u8,
}

impl Object for Attr {
    const NAME: &'static str = "struct doca_verbs_qp_attr";
}

/// Largest values of the fields.
const PSN_MAX: u32 = 0x00ff_ffff;
const CODE_MAX: u8 = 31;
const RETRIES_MAX: u8 = 7;
/// `DOCA_MTU_SIZE_4K_BYTES`.
const MTU_MAX: u32 = 4;

/// `doca_verbs_qp_attr_create`.
///
/// # Safety
/// `place` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_verbs_qp_attr_create(place: *mut *mut Attr) -> Code {
    call("doca_verbs_qp_attr_create", || {
        check_place(place)?;
        // SAFETY: checked above.
        unsafe { place.write(publish(&Arc::new(Attr(Alone::default())))) };
        Ok(())
    })
}

/// `doca_verbs_qp_attr_destroy`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_verbs_qp_attr_destroy(attr: *mut Attr) -> Code {
    call("doca_verbs_qp_attr_destroy", || {
        let attr = find(attr)?;
        let _alone = attr.0.enter()?;
        withdraw(&attr);
        Ok(())
    })
}

fn within<T: PartialOrd + std::fmt::Display>(value: T, most: T) -> crate::error::Result<T> {
    if value > most {
        fail!(InvalidValue, "{value} is above the maximum {most}");
    }
    Ok(value)
}

fn right(access: &mut u32, bit: u32, is_allowed: i32) {
    match is_allowed {
        0 => *access &= !bit,
        _ => *access |= bit,
    }
}

macro_rules! setters {
    ($($function:ident($value:ident: $of:ty) |$state:ident| $body:block)*) => {$(
        #[doc = concat!("`", stringify!($function), "`.")]
        #[unsafe(no_mangle)]
        pub extern "C" fn $function(attr: *mut Attr, $value: $of) -> Code {
            call(stringify!($function), || {
                let attr = find(attr)?;
                let mut $state = attr.0.enter()?;
                $body
                Ok(())
            })
        }
    )*};
}

setters! {
    doca_verbs_qp_attr_set_next_state(value: u32) |state| {
        state.state = value;
    }
    doca_verbs_qp_attr_set_allow_remote_write(value: i32) |state| {
        right(&mut state.access, mlx5dv_sys::IBV_ACCESS_REMOTE_WRITE, value);
    }
    doca_verbs_qp_attr_set_allow_remote_read(value: i32) |state| {
        right(&mut state.access, mlx5dv_sys::IBV_ACCESS_REMOTE_READ, value);
    }
    doca_verbs_qp_attr_set_port_num(value: u16) |state| {
        match u8::try_from(value) {
            Ok(port @ 1..) => state.port = port,
            _ => fail!(InvalidValue, "no port {value}: ports begin with 1"),
        }
    }
    doca_verbs_qp_attr_set_rq_psn(value: u32) |state| {
        state.receive_psn = within(value, PSN_MAX)?;
    }
    doca_verbs_qp_attr_set_sq_psn(value: u32) |state| {
        state.send_psn = within(value, PSN_MAX)?;
    }
    doca_verbs_qp_attr_set_dest_qp_num(value: u32) |state| {
        state.peer = within(value, PSN_MAX)?;
    }
    doca_verbs_qp_attr_set_min_rnr_timer(value: u16) |state| {
        state.rnr_timer = within(u8::try_from(value).unwrap_or(u8::MAX), CODE_MAX)?;
    }
    doca_verbs_qp_attr_set_ack_timeout(value: u16) |state| {
        state.timeout = within(u8::try_from(value).unwrap_or(u8::MAX), CODE_MAX)?;
    }
    doca_verbs_qp_attr_set_retry_cnt(value: u16) |state| {
        state.retries = within(u8::try_from(value).unwrap_or(u8::MAX), RETRIES_MAX)?;
    }
    doca_verbs_qp_attr_set_rnr_retry(value: u16) |state| {
        state.rnr_retries = within(u8::try_from(value).unwrap_or(u8::MAX), RETRIES_MAX)?;
    }
    doca_verbs_qp_attr_set_path_mtu(value: u32) |state| {
        // The device counts from 1.
        state.mtu = within(value, MTU_MAX)?.to_le_bytes()[0] + 1;
    }
    doca_verbs_qp_attr_set_ah_attr(value: *mut Address) |state| {
        state.path = find(value)?.path()?;
    }
}
