//! Buffers, and their inventories.

use crate::error::{Code, Fault, Result, call, fail};
use crate::mmap::Mmap;
use crate::object::{
    Alone, Lease, Object, Users, check_place, find, getters, publish, store, withdraw,
};
use std::ffi::c_void;
use std::sync::Arc;

/// Most buffers of an inventory.
const ELEMENTS_MAX: usize = 1 << 20;

/// `struct doca_buf_inventory`.
#[derive(Debug)]
pub struct Inventory {
    elements: u32,
    state: Alone<State>,
    users: Arc<Users>,
}

#[derive(Debug, Default)]
struct State {
    is_started: bool,
    out: u32,
}

impl Object for Inventory {
    const NAME: &'static str = "struct doca_buf_inventory";
}

/// `struct doca_buf`.
#[derive(Debug)]
pub struct Buf {
    head: usize,
    length: usize,
    data: Alone<Data>,
    inventory: Arc<Inventory>,
    _mmap: Lease,
    _inventory: Lease,
}

#[derive(Debug)]
struct Data {
    start: usize,
    length: usize,
    references: u16,
}

impl Object for Buf {
    const NAME: &'static str = "struct doca_buf";
}

impl Buf {
    /// Start and bytes of the data.
    pub(crate) fn data(&self) -> Result<(usize, usize)> {
        let data = self.data.enter()?;
        Ok((data.start, data.length))
    }

    /// Start of the data, and bytes from there to the end of the buffer.
    pub(crate) fn room(&self) -> Result<(usize, usize)> {
        let data = self.data.enter()?;
        Ok((data.start, self.head + self.length - data.start))
    }

    pub(crate) fn set_data(&self, start: usize, length: usize) -> Result<()> {
        let offset = start.checked_sub(self.head);
        if !offset.is_some_and(|offset| offset <= self.length && length <= self.length - offset) {
            fail!(
                InvalidValue,
                "{length} bytes at {start:#x} are not inside the buffer, which has {} bytes at {:#x}",
                self.length,
                self.head
            );
        }
        let mut data = self.data.enter()?;
        (data.start, data.length) = (start, length);
        Ok(())
    }
}

/// `doca_buf_inventory_create`.
///
/// # Safety
/// `inventory` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_buf_inventory_create(
    elements: usize,
    inventory: *mut *mut Inventory,
) -> Code {
    call("doca_buf_inventory_create", || {
        check_place(inventory)?;
        let elements = match u32::try_from(elements) {
            Ok(count) if count > 0 && elements <= ELEMENTS_MAX => count,
            _ => fail!(
                InvalidValue,
                "{elements} buffers: an inventory has 1 to {ELEMENTS_MAX}"
            ),
        };
        let created = Arc::new(Inventory {
            elements,
            state: Alone::default(),
            users: Arc::default(),
        });
        // SAFETY: checked above.
        unsafe { inventory.write(publish(&created)) };
        Ok(())
    })
}

/// `doca_buf_inventory_destroy`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_buf_inventory_destroy(inventory: *mut Inventory) -> Code {
    call("doca_buf_inventory_destroy", || {
        let inventory = find(inventory)?;
        let _alone = inventory.state.enter()?;
        inventory.users.check_none()?;
        withdraw(&inventory);
        Ok(())
    })
}

fn set_started(inventory: *mut Inventory, is_started: bool) -> Result<()> {
    let inventory = find(inventory)?;
    let mut state = inventory.state.enter()?;
    if state.is_started == is_started {
        let word = if is_started { "started" } else { "stopped" };
        fail!(BadState, "the inventory is {word} already");
    }
    if !is_started {
        inventory.users.check_none()?;
    }
    state.is_started = is_started;
    Ok(())
}

/// `doca_buf_inventory_start`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_buf_inventory_start(inventory: *mut Inventory) -> Code {
    call("doca_buf_inventory_start", || set_started(inventory, true))
}

/// `doca_buf_inventory_stop`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_buf_inventory_stop(inventory: *mut Inventory) -> Code {
    call("doca_buf_inventory_stop", || set_started(inventory, false))
}

/// `doca_buf_inventory_get_num_elements`.
///
/// # Safety
/// `count` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_buf_inventory_get_num_elements(
    inventory: *const Inventory,
    count: *mut u32,
) -> Code {
    call("doca_buf_inventory_get_num_elements", || {
        let elements = find(inventory)?.elements;
        // SAFETY: as the caller promises.
        unsafe { store(count, elements) }
    })
}

/// `doca_buf_inventory_get_num_free_elements`.
///
/// # Safety
/// `count` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_buf_inventory_get_num_free_elements(
    inventory: *const Inventory,
    count: *mut u32,
) -> Code {
    call("doca_buf_inventory_get_num_free_elements", || {
        let inventory = find(inventory)?;
        let free = inventory.elements - inventory.state.enter()?.out;
        // SAFETY: as the caller promises.
        unsafe { store(count, free) }
    })
}

fn take(
    inventory: *mut Inventory,
    mmap: *mut Mmap,
    (address, length): (usize, usize),
    has_data: bool,
    place: *mut *mut Buf,
) -> Result<()> {
    check_place(place)?;
    let (inventory, mmap) = (find(inventory)?, find(mmap)?);
    let mut state = inventory.state.enter()?;
    if !state.is_started {
        fail!(
            BadState,
            "the inventory is not started: call doca_buf_inventory_start first"
        );
    }
    mmap.check_inside(address as u64, length as u64)?;
    if state.out == inventory.elements {
        return Err(Fault::new(
            Code::NoMemory,
            format!(
                "all {} buffers of the inventory are out: give one back by doca_buf_dec_refcount",
                inventory.elements
            ),
        ));
    }
    state.out += 1;
    let buffer = Arc::new(Buf {
        head: address,
        length,
        data: Alone::new(Data {
            start: address,
            length: if has_data { length } else { 0 },
            references: 1,
        }),
        _mmap: mmap.users.lease(Buf::NAME),
        _inventory: inventory.users.lease(Buf::NAME),
        inventory: Arc::clone(&inventory),
    });
    // SAFETY: checked above.
    unsafe { place.write(publish(&buffer)) };
    Ok(())
}

/// `doca_buf_inventory_buf_get_by_addr`.
///
/// # Safety
/// `buf` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_buf_inventory_buf_get_by_addr(
    inventory: *mut Inventory,
    mmap: *mut Mmap,
    address: *mut c_void,
    length: usize,
    buf: *mut *mut Buf,
) -> Code {
    call("doca_buf_inventory_buf_get_by_addr", || {
        let range = (address.expose_provenance(), length);
        take(inventory, mmap, range, false, buf)
    })
}

/// `doca_buf_inventory_buf_get_by_data`.
///
/// # Safety
/// `buf` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_buf_inventory_buf_get_by_data(
    inventory: *mut Inventory,
    mmap: *mut Mmap,
    data: *mut c_void,
    length: usize,
    buf: *mut *mut Buf,
) -> Code {
    call("doca_buf_inventory_buf_get_by_data", || {
        let range = (data.expose_provenance(), length);
        take(inventory, mmap, range, true, buf)
    })
}

/// Changes the number of references, and returns the one before.
///
/// # Safety
/// `count` is NULL or writable.
unsafe fn references(
    name: &'static str,
    buf: *mut Buf,
    count: *mut u16,
    change: impl FnOnce(u16) -> Option<u16>,
) -> Code {
    call(name, || {
        let buffer = find(buf)?;
        let mut data = buffer.data.enter()?;
        let before = data.references;
        let Some(after) = change(before) else {
            fail!(Full, "the buffer has {before} references, the maximum");
        };
        if after == 0 {
            buffer.inventory.state.enter()?.out -= 1;
            withdraw(&buffer);
        }
        data.references = after;
        if !count.is_null() {
            // SAFETY: as the caller promises.
            unsafe { count.write(before) };
        }
        Ok(())
    })
}

/// `doca_buf_inc_refcount`.
///
/// # Safety
/// `count` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_buf_inc_refcount(buf: *mut Buf, count: *mut u16) -> Code {
    // SAFETY: as the caller promises.
    unsafe {
        references("doca_buf_inc_refcount", buf, count, |now| {
            now.checked_add(1)
        })
    }
}

/// `doca_buf_dec_refcount`.
///
/// # Safety
/// `count` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_buf_dec_refcount(buf: *mut Buf, count: *mut u16) -> Code {
    // SAFETY: as the caller promises.
    unsafe {
        references("doca_buf_dec_refcount", buf, count, |now| {
            now.checked_sub(1)
        })
    }
}

/// `doca_buf_get_refcount`.
///
/// # Safety
/// `count` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_buf_get_refcount(buf: *mut Buf, count: *mut u16) -> Code {
    // SAFETY: as the caller promises.
    unsafe { references("doca_buf_get_refcount", buf, count, Some) }
}

getters! {
    Buf;
    doca_buf_get_head: *mut c_void = |buffer| std::ptr::with_exposed_provenance_mut(buffer.head);
    doca_buf_get_len: usize = |buffer| buffer.length;
    doca_buf_get_data: *mut c_void = |buffer| std::ptr::with_exposed_provenance_mut(buffer.data()?.0);
    doca_buf_get_data_len: usize = |buffer| buffer.data()?.1;
}

/// `doca_buf_set_data`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_buf_set_data(buf: *mut Buf, data: *mut c_void, length: usize) -> Code {
    call("doca_buf_set_data", || {
        find(buf)?.set_data(data.expose_provenance(), length)
    })
}

/// `doca_buf_reset_data_len`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_buf_reset_data_len(buf: *mut Buf) -> Code {
    call("doca_buf_reset_data_len", || {
        find(buf)?.data.enter()?.length = 0;
        Ok(())
    })
}
