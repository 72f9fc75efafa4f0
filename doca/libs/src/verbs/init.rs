//! Attributes of a new queue pair.

use super::Pd;
use crate::dpa::Completion;
use crate::error::{Code, Result, call, fail};
use crate::object::{Alone, Object, check_count, check_place, find, publish, withdraw};
use crate::umem::{Uar, Umem};
use std::sync::Arc;

/// Most requests of a queue.
const REQUESTS_MAX: u32 = 32_768;

/// `struct doca_verbs_qp_init_attr`.
#[derive(Debug)]
pub struct InitAttr(pub(super) Alone<Settings>);

/// What was set.
#[derive(Debug, Clone, Default)]
pub(super) struct Settings {
    pub(super) pd: Option<Arc<Pd>>,
    pub(super) rings: Option<(Arc<Umem>, u64)>,
    pub(super) records: Option<(Arc<Umem>, u64)>,
    pub(super) uar: Option<Arc<Uar>>,
    pub(super) completions: [Option<Arc<Completion>>; 2],
    pub(super) sends: u32,
    pub(super) receives: u32,
    pub(super) is_external: bool,
}

impl Object for InitAttr {
    const NAME: &'static str = "struct doca_verbs_qp_init_attr";
}

/// `doca_verbs_qp_init_attr_create`.
///
/// # Safety
/// `place` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_verbs_qp_init_attr_create(place: *mut *mut InitAttr) -> Code {
    call("doca_verbs_qp_init_attr_create", || {
        check_place(place)?;
        // SAFETY: checked above.
        unsafe { place.write(publish(&Arc::new(InitAttr(Alone::default())))) };
        Ok(())
    })
}

/// `doca_verbs_qp_init_attr_destroy`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_verbs_qp_init_attr_destroy(attr: *mut InitAttr) -> Code {
    call("doca_verbs_qp_init_attr_destroy", || {
        let attr = find(attr)?;
        let _alone = attr.0.enter()?;
        withdraw(&attr);
        Ok(())
    })
}

fn requests(count: u32) -> Result<u32> {
    check_count(count, REQUESTS_MAX, "requests of a queue")
}

fn one_element(count: u32) -> Result<()> {
    if count != 1 {
        fail!(
            NotSupported,
            "{count} elements: a request of this library has 1"
        );
    }
    Ok(())
}

macro_rules! setters {
    ($($function:ident($($value:ident: $of:ty),*) |$state:ident| $body:block)*) => {$(
        #[doc = concat!("`", stringify!($function), "`.")]
        #[unsafe(no_mangle)]
        pub extern "C" fn $function(attr: *mut InitAttr, $($value: $of),*) -> Code {
            call(stringify!($function), || {
                let attr = find(attr)?;
                #[allow(unused_mut, unused_variables, reason = "some only check")]
                let mut $state = attr.0.enter()?;
                $body
                Ok(())
            })
        }
    )*};
}

setters! {
    doca_verbs_qp_init_attr_set_external_datapath_en(is_external: u8) |state| {
        state.is_external = is_external != 0;
    }
    doca_verbs_qp_init_attr_set_external_umem(umem: *mut Umem, offset: u64) |state| {
        state.rings = Some((find(umem)?, offset));
    }
    doca_verbs_qp_init_attr_set_external_dbr_umem(umem: *mut Umem, offset: u64) |state| {
        state.records = Some((find(umem)?, offset));
    }
    doca_verbs_qp_init_attr_set_external_uar(uar: *mut Uar) |state| {
        state.uar = Some(find(uar)?);
    }
    doca_verbs_qp_init_attr_set_pd(pd: *mut Pd) |state| {
        state.pd = Some(find(pd)?);
    }
    doca_verbs_qp_init_attr_set_sq_wr(count: u32) |state| {
        state.sends = requests(count)?;
    }
    doca_verbs_qp_init_attr_set_rq_wr(count: u32) |state| {
        state.receives = requests(count)?;
    }
    doca_verbs_qp_init_attr_set_qp_type(kind: u32) |state| {
        if kind != 0 {
            fail!(NotSupported, "queue pairs of type {kind}: this library serves DOCA_VERBS_QP_TYPE_RC");
        }
    }
    doca_verbs_qp_init_attr_set_send_dpa_completion(completion: *mut Completion) |state| {
        state.completions[0] = Some(find(completion)?);
    }
    doca_verbs_qp_init_attr_set_receive_dpa_completion(completion: *mut Completion) |state| {
        state.completions[1] = Some(find(completion)?);
    }
    doca_verbs_qp_init_attr_set_send_max_sges(count: u32) |state| {
        one_element(count)?;
    }
    doca_verbs_qp_init_attr_set_receive_max_sges(count: u32) |state| {
        one_element(count)?;
    }
}
