//! Arrays of buffers for the DPA.

use crate::dpa::{Block, Dpa};
use crate::error::{Code, Result, call, fail};
use crate::mmap::Mmap;
use crate::object::{Alone, Guard, Lease, Object, check_place, find, publish, store, withdraw};
use std::sync::Arc;

/// Most buffers of an array.
const ELEMENTS_MAX: usize = 65_536;
/// Bytes of a `struct doca_dpa_dev_buf`, and of a `struct doca_dpa_dev_buf_arr`.
const BUFFER: usize = 32;
const ARRAY: usize = 64;

/// `struct doca_buf_arr`.
#[derive(Debug)]
pub struct BufArray {
    elements: usize,
    state: Alone<State>,
}

impl Object for BufArray {
    const NAME: &'static str = "struct doca_buf_arr";
}

#[derive(Debug, Default)]
struct State {
    params: Option<Params>,
    target: Option<(Arc<Dpa>, Lease)>,
    /// The array, and its buffers.
    live: Option<(Block, Block)>,
}

#[derive(Debug)]
struct Params {
    mmap: Arc<Mmap>,
    size: u64,
    first: u64,
    _lease: Lease,
}

impl BufArray {
    fn settings(&self) -> Result<Guard<'_, State>> {
        let state = self.state.enter()?;
        if state.live.is_some() {
            fail!(
                BadState,
                "the array is started: make its settings before doca_buf_arr_start"
            );
        }
        Ok(state)
    }
}

/// `doca_buf_arr_create`.
///
/// # Safety
/// `array` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_buf_arr_create(elements: usize, array: *mut *mut BufArray) -> Code {
    call("doca_buf_arr_create", || {
        check_place(array)?;
        if elements == 0 || elements > ELEMENTS_MAX {
            fail!(
                InvalidValue,
                "{elements} buffers: an array has 1 to {ELEMENTS_MAX}"
            );
        }
        let created = Arc::new(BufArray {
            elements,
            state: Alone::default(),
        });
        // SAFETY: checked above.
        unsafe { array.write(publish(&created)) };
        Ok(())
    })
}

/// `doca_buf_arr_destroy`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_buf_arr_destroy(array: *mut BufArray) -> Code {
    call("doca_buf_arr_destroy", || {
        let array = find(array)?;
        *array.state.enter()? = State::default();
        withdraw(&array);
        Ok(())
    })
}

/// `doca_buf_arr_set_params`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_buf_arr_set_params(
    array: *mut BufArray,
    mmap: *mut Mmap,
    element_size: usize,
    offset: u64,
) -> Code {
    call("doca_buf_arr_set_params", || {
        let (array, mmap) = (find(array)?, find(mmap)?);
        let mut state = array.settings()?;
        let size = element_size as u64;
        let total = size.checked_mul(array.elements as u64);
        let first = mmap.bounds()?.0.checked_add(offset);
        let (Some(total), Some(first)) = (total, first) else {
            fail!(
                InvalidValue,
                "{} buffers of {size} bytes from {offset} are beyond all addresses",
                array.elements
            );
        };
        mmap.check_inside(first, total)?;
        state.params = Some(Params {
            _lease: mmap.users.lease(BufArray::NAME),
            mmap,
            size,
            first,
        });
        Ok(())
    })
}

/// `doca_buf_arr_set_target_dpa`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_buf_arr_set_target_dpa(array: *mut BufArray, dpa: *mut Dpa) -> Code {
    call("doca_buf_arr_set_target_dpa", || {
        let (array, dpa) = (find(array)?, find(dpa)?);
        let mut state = array.settings()?;
        let lease = dpa.users.lease(BufArray::NAME);
        state.target = Some((dpa, lease));
        Ok(())
    })
}

/// The buffers, as device code reads them.
fn encode(elements: usize, key: u32, first: u64, size: u64) -> Vec<u8> {
    let mut bytes = vec![0; elements * BUFFER];
    for (at, buffer) in bytes.as_chunks_mut::<BUFFER>().0.iter_mut().enumerate() {
        let address = first + at as u64 * size;
        buffer[..8].copy_from_slice(&address.to_le_bytes());
        buffer[8..16].copy_from_slice(&size.to_le_bytes());
        buffer[16..20].copy_from_slice(&key.to_le_bytes());
    }
    bytes
}

/// `doca_buf_arr_start`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_buf_arr_start(array: *mut BufArray) -> Code {
    call("doca_buf_arr_start", || {
        let array = find(array)?;
        let mut state = array.settings()?;
        let Some(params) = &state.params else {
            fail!(
                BadConfig,
                "the array has no memory map: call doca_buf_arr_set_params first"
            );
        };
        let Some((dpa, _)) = &state.target else {
            fail!(
                BadConfig,
                "the array has no target: call doca_buf_arr_set_target_dpa first"
            );
        };
        let core = dpa.core()?;
        let key = params.mmap.key(core.dev())?;
        let bytes = encode(array.elements, key, params.first, params.size);
        let buffers = Block::new(&core, bytes.len() as u64)?;
        buffers.write(0, &bytes)?;
        let handle = Block::new(&core, ARRAY as u64)?;
        handle.write(0, &buffers.address().to_le_bytes())?;
        state.live = Some((handle, buffers));
        Ok(())
    })
}

/// `doca_buf_arr_stop`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_buf_arr_stop(array: *mut BufArray) -> Code {
    call("doca_buf_arr_stop", || {
        if find(array)?.state.enter()?.live.take().is_none() {
            fail!(BadState, "the array is not started");
        }
        Ok(())
    })
}

/// `doca_buf_arr_get_dpa_handle`.
///
/// # Safety
/// `handle` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_buf_arr_get_dpa_handle(
    array: *const BufArray,
    handle: *mut u64,
) -> Code {
    call("doca_buf_arr_get_dpa_handle", || {
        let array = find(array)?;
        let address = match &array.state.enter()?.live {
            Some((block, _)) => block.address(),
            None => fail!(
                BadState,
                "the array is not started: call doca_buf_arr_start first"
            ),
        };
        // SAFETY: as the caller promises.
        unsafe { store(handle, address) }
    })
}
