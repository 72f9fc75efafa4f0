//! Imports on a transport with room for some of them.

use super::*;
use crate::service::fakes::{Device, handle};
use std::cell::Cell;

/// The handle of 100 bytes of memory.
fn of(address: u64, mark: u8) -> Vec<u8> {
    handle(address, 100, mark)
}

fn export(packed: &[u8], address: u64, name: Option<(u32, u32)>) -> ExportRef<'_> {
    ExportRef {
        address,
        length: 10,
        packed,
        name: name.map(|(slot, generation)| Name { slot, generation }),
    }
}

fn refused(found: Result<Lent<Device>>, expect: &str) {
    let error = found.expect_err("refused").to_string();
    assert!(error.contains(expect), "{error}");
}

#[test]
fn a_named_import_is_made_once_and_a_nameless_one_for_its_call() {
    let device = Device::with_room(9);
    let mut imports = Imports::<Device>::new(2);
    let first = imports.get(&device, 1, &export(&of(50, 1), 60, Some((0, 1))));
    let first = first.expect("an import");
    assert_eq!(first.shift(), 10);
    first.pack(&device).expect("a key");
    // Another part of it, without the handle; the key is there.
    let second = imports.get(&device, 1, &export(&[], 90, Some((0, 1))));
    let second = second.expect("the same import");
    assert_eq!((second.shift(), second.key()), (40, &of(50, 1)[..]));
    // The handle comes twice if two calls start before one is complete.
    let again = imports.get(&device, 1, &export(&of(50, 1), 60, Some((0, 1))));
    for lent in [first, second, again.expect("the same import")] {
        lent.release(&device).expect("released");
    }
    assert_eq!((device.made(), device.live().len()), (1, 1));
    let once = imports.get(&device, 1, &export(&of(7, 1), 7, None));
    once.expect("an import").release(&device).expect("released");
    assert_eq!((device.made(), device.live().len()), (2, 1));
    imports.forget(&device, 1).expect("released");
    assert_eq!(device.live().len(), 0, "the rank has left");
}

#[test]
fn a_stale_import_is_never_used() {
    let device = Device::with_room(9);
    let mut imports = Imports::<Device>::new(2);
    let old = imports.get(&device, 0, &export(&of(50, 1), 50, Some((0, 1))));
    let old = old.expect("an import");
    // The memory was unmapped, and mapped again at the same address: UCX has another handle.
    let new = imports.get(&device, 0, &export(&of(50, 2), 50, Some((0, 2))));
    let new = new.expect("an import");
    assert_eq!((old.memory(), new.memory()), (&of(50, 1), &of(50, 2)));
    // A call that has the old one keeps it until its end.
    assert_eq!(device.live().len(), 2);
    old.release(&device).expect("released");
    new.release(&device).expect("released");
    assert_eq!(device.live(), [of(50, 2)]);
    // The old name, with its handle and without, and other names that were not announced.
    for packed in [&[][..], &of(50, 1), &of(50, 2)] {
        let found = imports.get(&device, 0, &export(packed, 50, Some((0, 1))));
        refused(found, "was not announced");
    }
    for (slot, generation) in [(0, 3), (1, 1)] {
        let found = imports.get(&device, 0, &export(&[], 50, Some((slot, generation))));
        refused(found, "was not announced");
    }
    // The name with another handle, another rank's name, a place outside, and a name beyond the limit.
    let found = imports.get(&device, 0, &export(&of(50, 3), 50, Some((0, 2))));
    refused(found, "another handle");
    let found = imports.get(&device, 1, &export(&[], 50, Some((0, 2))));
    refused(found, "was not announced");
    for address in [49, 141] {
        let found = imports.get(&device, 0, &export(&[], address, Some((0, 2))));
        refused(found, "exported elsewhere");
    }
    let found = imports.get(&device, 0, &export(&of(50, 2), 50, Some((2, 1))));
    refused(found, "beyond");
}

#[test]
fn idle_imports_leave_a_full_device_and_come_back() {
    let device = Device::with_room(3);
    let mut imports = Imports::<Device>::new(4);
    let mut get = |packed: &[u8], name| imports.get(&device, 0, &export(packed, 50, name));
    let idle = get(&of(50, 1), Some((0, 1))).expect("an import");
    idle.release(&device).expect("released");
    let used = get(&of(50, 2), Some((1, 1))).expect("an import");
    let more = get(&of(50, 3), Some((2, 1))).expect("an import");
    // The device is full, and one import is idle.
    let last = get(&of(50, 4), None).expect("room");
    assert_eq!(device.live(), [of(50, 2), of(50, 3), of(50, 4)]);
    refused(get(&[], Some((0, 1))), "the device is full");
    last.release(&device).expect("released");
    // Its name is still good.
    let back = get(&[], Some((0, 1))).expect("the import again");
    assert_eq!(*back.memory(), of(50, 1));
    assert_eq!(*used.memory(), of(50, 2));
    for lent in [back, used, more] {
        lent.release(&device).expect("released");
    }
    drop(imports);
    assert_eq!(device.made(), 5);
}

#[test]
fn keys_are_unpacked_once_and_bounded() {
    let mut keys = Keys::new();
    let unpacked = Cell::new(0);
    let mut get = |source: u32, packed: &[u8]| {
        let unpack = |packed: &[u8]| {
            unpacked.set(unpacked.get() + 1);
            Ok(packed[0])
        };
        let packed = PackedKey::whole(packed);
        *keys.get(source, packed, unpack).expect("a key")
    };
    for round in 0..3 {
        for source in [0, 5] {
            assert_eq!((get(source, &[1]), get(source, &[2])), (1, 2), "{round}");
        }
    }
    assert_eq!(unpacked.get(), 4);
    for packed in 0..100 {
        assert_eq!(get(5, &[packed]), packed);
    }
    assert_eq!(keys.of[5].len(), KEYS_OF_SOURCE);
    assert_eq!(keys.count, 2 + KEYS_OF_SOURCE);
}
