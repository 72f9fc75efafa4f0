//! Hash tables.

use super::{Block, Dpa};
use crate::error::{Code, call};
use crate::object::{Lease, Object, check_count, check_place, find, getters, publish, withdraw};
use dpa_dev::objects::{Kind, WORD, table};
use std::sync::Arc;

/// Most entries.
const ENTRIES_MAX: u32 = 1 << 20;

/// `struct doca_dpa_hash_table`.
#[derive(Debug)]
pub struct Table {
    handle: Block,
    _slots: Block,
    _lease: Lease,
    _dpa: Arc<Dpa>,
}

impl Object for Table {
    const NAME: &'static str = "struct doca_dpa_hash_table";
}

/// `doca_dpa_hash_table_create`.
///
/// # Safety
/// `table` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_dpa_hash_table_create(
    dpa: *mut Dpa,
    entries: u32,
    table: *mut *mut Table,
) -> Code {
    call("doca_dpa_hash_table_create", || {
        check_place(table)?;
        let dpa = find(dpa)?;
        let core = dpa.core()?;
        check_count(entries, ENTRIES_MAX, "entries of a hash table")?;
        // At most half of the slots are used, so a search is short.
        let count = u64::from(entries.next_power_of_two()) * 2;
        let slots = Block::new(&core, count * 2 * WORD)?;
        let words = [
            (table::SLOTS, slots.address()),
            (table::COUNT, count),
            (table::ENTRIES, u64::from(entries)),
        ];
        let handle = Block::object(&core, Kind::Table, table::WORDS, &words)?;
        let created = Arc::new(Table {
            handle,
            _slots: slots,
            _lease: dpa.users.lease(Table::NAME),
            _dpa: dpa,
        });
        // SAFETY: checked above.
        unsafe { table.write(publish(&created)) };
        Ok(())
    })
}

/// `doca_dpa_hash_table_destroy`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_dpa_hash_table_destroy(table: *mut Table) -> Code {
    call("doca_dpa_hash_table_destroy", || {
        withdraw(&find(table)?);
        Ok(())
    })
}

getters! {
    Table;
    doca_dpa_hash_table_get_dpa_handle: u64 = |table| table.handle.address();
}
