//! Parsers of bytes from clients, files and images, for fuzz targets. Each accepts any bytes. It must neither panic nor
//! reserve more memory than the input length justifies.

use crate::block::{self, Kind};
use crate::crc32c::{crc32c, crc32c_append};
use crate::disk::Disk;
use crate::frames::{Answer, Hello, Request, Welcome};
use crate::geometry::{Geometry, Id, Role};
use crate::nbd::{self, Export, wire};
use crate::record::{self, Place};
use crate::sbc;
use crate::store::{Medium as _, MemoryMedium, NewTarget, Shape, Store, Target};
use crate::volume::Volume;
use std::io::{self, Read, Write};
use std::sync::Arc;

/// A block's stored bytes; the first byte is the form.
pub fn stored_block(bytes: &[u8]) {
    let Some((kind, bytes)) = bytes.split_first() else {
        return;
    };
    let Some(kind) = Kind::of(kind % 4) else {
        return;
    };
    let mut block = [0; 512];
    let (first, second) = bytes.split_at(bytes.len().div_ceil(2));
    let _ = block::decode(kind, &[first, second], &mut block);
}

/// A record of a half block. Behind an odd first byte, the record of any half of up to 255 stored bytes with a right
/// checksum, which a fuzzer cannot find.
pub fn half_record(bytes: &[u8]) {
    let place = Place {
        volume: Id([0; 16]),
        role: Role::FIRST,
        block: 0,
    };
    match bytes {
        [form, generation, kind, stored, data @ ..] if form % 2 == 1 => {
            let half = record::Half {
                generation: u64::from(*generation),
                kind: Kind::of(kind % 4).unwrap_or(Kind::Zero),
                stored: u32::from(*stored),
                data: data.to_vec().into(),
            };
            let parsed = record::parse(place, 0, &record::to_bytes(place, &half).into());
            let is_valid = *generation == 0 && half.fits(place.role);
            assert_eq!(parsed.ok(), is_valid.then_some(half));
        }
        _ => {
            let _ = record::parse(place, 0, &bytes.to_vec().into());
        }
    }
}

/// A message between an initiator and a service.
pub fn service(bytes: &[u8]) {
    let _ = Hello::parse(bytes);
    let _ = Welcome::parse(bytes);
    if let Ok(request) = Request::parse(bytes) {
        assert_eq!(request.to_bytes(), bytes, "it has one form");
    }
    let _ = Answer::parse(bytes);
}

/// The first bytes of a target: superblocks and index, behind which everything is zero. Behind an odd first byte, a
/// superblock and slots of the index with right checksums, which a fuzzer cannot find. A target that opens is then
/// written to.
pub fn target(bytes: &[u8]) {
    let medium = MemoryMedium::default();
    // Writes cannot fail: memory.
    match bytes {
        [form, bytes @ ..] if form % 2 == 1 => sealed(&medium, bytes),
        _ => {
            let _ = medium.write(0, bytes);
        }
    }
    let Ok(store) = Store::open("fuzz", Box::new(medium), Some(1 << 20)) else {
        return;
    };
    let Ok(held) = store.held() else { return };
    for held in held.iter().take(8) {
        let _ = store.fetch(held.block, held.generation);
        let _ = store.commit(held.block, held.generation);
    }
    let half = record::Half {
        generation: u64::MAX,
        kind: Kind::Raw,
        stored: 64,
        data: vec![7; 32].into(),
    };
    if store.prepare(0, &half, 0).is_ok() {
        assert!(store.fetch(0, half.generation).is_ok());
        assert!(store.commit(0, half.generation).is_ok());
    }
    let _ = store.flush();
}

/// Writes a superblock with these fields, and entries of groups in change behind it. See `store` for their layouts.
fn sealed(medium: &MemoryMedium, bytes: &[u8]) {
    const FIELDS: std::ops::Range<usize> = 12..144;
    let mut superblock = [0; 148];
    superblock[..8].copy_from_slice(b"XGVMIBLK");
    superblock[11] = 3;
    let (fields, slots) = bytes.split_at(bytes.len().min(FIELDS.len()));
    superblock[FIELDS][..fields.len()].copy_from_slice(fields);
    // At most 127 blocks, so that an input is executed in microseconds, and an index that fits them or not.
    for at in [24, 96, 104, 112] {
        superblock[at..at + 7].fill(0);
        superblock[at + 7] &= 127;
    }
    let crc = crc32c(&superblock[..144]);
    superblock[144..].copy_from_slice(&crc.to_be_bytes());
    let _ = medium.write(0, &superblock);
    let room = u64::from(superblock[103]);
    let slots_at = Shape {
        room,
        slots: u64::from(superblock[111]),
    }
    .slots_at();
    for (sector, fields) in (0..16_u64).zip(slots.chunks(8 * 3 * 17)) {
        let mut bytes = [0; 512];
        bytes[3] = sector.to_le_bytes()[0];
        let number = crc32c_append(crc32c(&sector.to_be_bytes()), &bytes[..4]);
        bytes[4..8].copy_from_slice(&number.to_be_bytes());
        for (nth, fields) in (0..24).zip(fields.chunks(17)) {
            let slot = &mut bytes[8 + nth * 21..][..21];
            slot[..fields.len()].copy_from_slice(fields);
            // Offsets and lengths near those of the data.
            slot[8..12].fill(0);
            slot[13] = 0;
            let block = sector * 8 + nth as u64 / 3;
            let crc = crc32c_append(crc32c(&block.to_be_bytes()), &slot[..17]);
            slot[17..].copy_from_slice(&crc.to_be_bytes());
        }
        let _ = medium.write(slots_at + sector * 512, &bytes);
    }
}

/// A file of an image, and a block of one.
pub fn image(bytes: &[u8]) {
    if let Ok(file) = sbc::parse(bytes) {
        let _ = sbc::decode([Some(file), None, Some(file)]);
    }
    let _ = sbc::decode_block(bytes, &mut [0; 512]);
}

/// A message between a volume and a target.
pub fn message(bytes: &[u8]) {
    crate::remote::any_bytes(bytes);
}

/// Data of the options of a handshake.
pub fn options(bytes: &[u8]) {
    let _ = wire::info_request(bytes);
    let _ = wire::meta_request(bytes);
}

/// A client's bytes, and nowhere for the replies.
#[derive(Clone)]
struct Client<'a>(&'a [u8]);

impl Read for Client<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.read(into)
    }
}

impl Write for Client<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A volume of 64 KiB in memory.
///
/// # Panics
/// Never: memory does not fail.
#[must_use]
pub fn disk() -> Arc<dyn Disk> {
    let targets = Role::HALVES.map(|role| -> Arc<dyn Target> {
        let new = NewTarget {
            geometry: Geometry::new(512, 128).expect("a valid size"),
            role,
            volume: Id([0; 16]),
            complete: true,
        };
        let medium = Box::new(MemoryMedium::default());
        Arc::new(Store::create("fuzz", medium, new, None).expect("memory"))
    });
    Arc::new(Volume::open(targets.to_vec()).expect("three targets"))
}

/// An export of such a volume.
#[must_use]
pub fn export() -> Export {
    Export::new(disk(), "")
}

/// All bytes of a client, from the handshake on. The first byte chooses between a whole connection and the requests of a
/// client that has already chosen the export.
pub fn connection(export: &Export, bytes: &[u8]) {
    let Some((form, bytes)) = bytes.split_first() else {
        return;
    };
    let ready = [
        &[0, 0, 0, 3][..],
        b"IHAVEOPT\0\0\0\x08\0\0\0\0",
        b"IHAVEOPT\0\0\0\x0a\0\0\0\x1b\0\0\0\0\0\0\0\x01\0\0\0\x0fbase:allocation",
        b"IHAVEOPT\0\0\0\x07\0\0\0\x06\0\0\0\0\0\0",
    ]
    .concat();
    let whole = if form % 2 == 0 {
        bytes.to_vec()
    } else {
        [&ready, bytes].concat()
    };
    let _ = nbd::serve(&mut Client(&whole), export);
}

/// A request of a virtual machine.
pub fn guest_request(disk: &Arc<dyn Disk>, bytes: &[u8]) {
    crate::vhost::any::request(disk.as_ref(), bytes);
}

/// Memory of a virtual machine, with its queue.
pub fn guest_memory(disk: &Arc<dyn Disk>, bytes: &[u8]) {
    crate::vhost::any::guest(disk, bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The prefix of a ready client is right: a request behind it is carried out.
    #[test]
    fn requests_reach_the_volume() {
        let export = export();
        let mut bytes = vec![1];
        bytes.extend(0x2560_9513u32.to_be_bytes());
        bytes.extend([0, 0, 0, 1]);
        bytes.extend([0; 16]);
        bytes.extend(512u32.to_be_bytes());
        bytes.extend([7; 512]);
        connection(&export, &bytes);
        assert_eq!(export.volume().status().written_bytes, 512);
    }

    /// A queue with one right request: the fuzzer begins with a guest that is served.
    #[test]
    fn a_guest_is_served() {
        let disk = disk();
        let descriptor = |at: u64, length: u32, flags: u16, next: u16| {
            let parts = [
                &at.to_le_bytes()[..],
                &length.to_le_bytes(),
                &flags.to_le_bytes(),
            ];
            [&parts.concat()[..], &next.to_le_bytes()].concat()
        };
        let mut bytes = descriptor(0x3000, 16, 1, 1);
        bytes.extend(descriptor(0x3010, 512, 1, 2));
        bytes.extend(descriptor(0x3210, 1, 2, 0));
        bytes.resize(256, 0);
        bytes.extend([0, 0, 1, 0]);
        bytes.resize(320, 0);
        bytes.extend([1, 0, 0, 0]);
        bytes.resize(320 + 16, 0);
        bytes.extend([7; 512]);
        assert_eq!(crate::vhost::any::guest(&disk, &bytes), 1);
        assert_eq!(disk.status().written_bytes, 512);
        guest_request(&disk, &[&[0, 0, 0][..], &bytes[320..]].concat());
        assert_eq!(disk.status().written_bytes, 1024);
    }

    /// A superblock with a right checksum whose records end within a unit: what was prepared there was not found again.
    #[test]
    fn a_target_whose_records_end_within_a_unit_is_not_written_to() {
        let mut fields = [0; 132];
        // 22 blocks of 4096 bytes, and one sector for groups in change: the others are in the settled index.
        for (at, value) in [(6, 16), (19, 22), (91, 22), (99, 1), (107, 1)] {
            fields[at] = value;
        }
        fields[114..116].copy_from_slice(&33153u16.to_be_bytes());
        target(&[&[1][..], &fields].concat());
    }

    proptest! {
        #[test]
        fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            stored_block(&bytes);
            half_record(&bytes);
            target(&bytes);
            service(&bytes);
            image(&bytes);
            options(&bytes);
            message(&bytes);
            connection(&export(), &bytes);
            guest_request(&disk(), &bytes);
            guest_memory(&disk(), &bytes);
        }
    }
}
