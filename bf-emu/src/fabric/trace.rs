//! The trace: a ring of records in the device file. Every process writes it, and `bf-emu trace`
//! shows it. It is off by default, and a check then costs one load.
//!
//! The device's lock does not protect the ring, because calls are recorded outside of the lock. A
//! writer takes a number and the slot that belongs to it, marks the slot as incomplete, writes it,
//! and marks it with the number. A reader accepts a slot with the same mark before and after. A
//! writer that dies in between leaves one record that is never shown. A writer that sleeps for a
//! whole revolution of the ring, 65,536 records, can leave a mixed record. The trace is for
//! diagnosis and not for accounting.

mod place;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use mlx5_prm::cqe::{CQE_BYTES, Cqe};

use place::{Place, WORDS};

use crate::bits::size;
use crate::model::faults::Call;
use crate::sys;

/// Number of records in the ring: 4 MiB, some seconds of busy traffic.
pub const RECORDS_MAX: usize = 64 * 1024;
/// Bytes of a request that one record holds.
pub const ENTRY_BYTES: usize = 32;
const _: () = assert!(ENTRY_BYTES == (WORDS - 2) * 8);

/// The ring. All zeroes means empty and off.
#[derive(Debug)]
#[repr(C)]
pub struct Ring {
    on: AtomicU32,
    next: AtomicU64,
    places: [Place; RECORDS_MAX],
}

/// The event of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A call into the kernel ended.
    Call {
        /// Its name.
        call: Call,
        /// Its errno; 0 for success.
        errno: i32,
        /// Duration, including the profile's time.
        took_ns: u64,
    },
    /// A send doorbell was written.
    Doorbell {
        /// Number of the queue pair.
        qpn: u32,
    },
    /// A work request was executed or failed.
    Request {
        /// Number of the queue pair.
        qpn: u32,
        /// Its opcode, from [`mlx5_prm::wqe::opcode`].
        opcode: u8,
        /// Its number in the queue.
        index: u16,
        /// Its syndrome, from [`mlx5_prm::cqe::syndrome`]; 0 for success.
        syndrome: u8,
        /// Bytes moved.
        bytes: u64,
    },
    /// Bytes of a UMR request in the send queue. Precedes the record of the request itself.
    Entry {
        /// Number of the queue pair.
        qpn: u32,
        /// Its number in the queue.
        index: u16,
        /// Index of this part of [`ENTRY_BYTES`] bytes, from 0.
        part: u8,
        /// The bytes.
        bytes: [u8; ENTRY_BYTES],
    },
    /// Bytes of a device command's input. Precedes the record of the call.
    Mailbox {
        /// Opcode of the command.
        opcode: u16,
        /// Index of this part of [`ENTRY_BYTES`] bytes, from 0. The last part is padded with zeros.
        part: u8,
        /// The bytes.
        bytes: [u8; ENTRY_BYTES],
    },
    /// A completion was written.
    Completion {
        /// Number of the completion queue.
        cqn: u32,
        /// Number of the queue pair.
        qpn: u32,
        /// Its opcode, from [`mlx5_prm::cqe::opcode`].
        opcode: u8,
        /// Number of the completed entry.
        index: u16,
        /// Its syndrome; 0 for success.
        syndrome: u8,
        /// Its byte count.
        bytes: u32,
    },
}

/// A record of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its number, from 1.
    pub number: u64,
    /// Monotonic time of the machine, in nanoseconds.
    pub time_ns: u64,
    /// The process of the event.
    pub pid: i32,
    /// Index of the event's function.
    pub function: usize,
    /// The event.
    pub what: What,
}

const CALL: u8 = 1;
const DOORBELL: u8 = 2;
const REQUEST: u8 = 3;
const COMPLETION: u8 = 4;
const ENTRY: u8 = 5;
const MAILBOX: u8 = 6;

impl Ring {
    /// True if the trace is on.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed) != 0
    }

    /// Switches the trace on or off. Returns its previous state.
    pub fn turn(&self, on: bool) -> bool {
        self.on.swap(u32::from(on), Ordering::Relaxed) != 0
    }

    /// Writes a record, if the trace is on. Async-signal-safe.
    pub fn write(&self, function: usize, what: What) {
        if self.is_on() {
            self.put(sys::now_ns(), sys::pid(), function, what);
        }
    }

    /// Writes the record of a completion queue entry, if the trace is on. Async-signal-safe.
    pub(crate) fn completion(&self, function: usize, cqn: u32, entry: &[u8; CQE_BYTES]) {
        if !self.is_on() {
            return;
        }
        let cqe = Cqe::parse(entry);
        let what = What::Completion {
            cqn,
            qpn: cqe.qpn,
            opcode: cqe.opcode,
            index: cqe.wqe_counter,
            syndrome: if cqe.is_error() { cqe.syndrome } else { 0 },
            bytes: cqe.byte_count,
        };
        self.write(function, what);
    }

    fn put(&self, time_ns: u64, pid: i32, function: usize, what: What) {
        let number = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        let Some(place) = self.places.get(place_of(number)) else {
            return;
        };
        place.write(number, time_ns, encode(pid, function, what));
    }

    /// Number of the latest record; 0 if there is none.
    #[must_use]
    pub fn latest(&self) -> u64 {
        self.next.load(Ordering::Acquire)
    }

    /// The record with this number; None if it is overwritten or incomplete.
    #[must_use]
    pub fn read(&self, number: u64) -> Option<Record> {
        let place = self.places.get(place_of(number))?;
        let (time_ns, words) = place.read(number)?;
        let (pid, function, what) = decode(&words)?;
        Some(Record {
            number,
            time_ns,
            pid,
            function,
            what,
        })
    }

    /// The remaining records after number `after`, oldest first.
    pub fn since(&self, after: u64) -> impl Iterator<Item = Record> {
        let latest = self.latest();
        let oldest = latest.saturating_sub(RECORDS_MAX as u64) + 1;
        (after.saturating_add(1).max(oldest)..=latest).filter_map(|number| self.read(number))
    }
}

fn place_of(number: u64) -> usize {
    size(number % RECORDS_MAX as u64)
}

/// Encodes a record in words: a header of 64 bits, then the fields of the event.
fn encode(pid: i32, function: usize, what: What) -> [u64; WORDS] {
    let head = |kind: u8| {
        let function = function as u64 & 0xff_ffff;
        u64::from(pid.cast_unsigned()) << 32 | function << 8 | u64::from(kind)
    };
    match what {
        What::Call {
            call,
            errno,
            took_ns,
        } => {
            let errno = u64::from(errno.cast_unsigned());
            [head(CALL), call as u64, errno, took_ns, 0, 0]
        }
        What::Doorbell { qpn } => [head(DOORBELL), u64::from(qpn), 0, 0, 0, 0],
        What::Request {
            qpn,
            opcode,
            index,
            syndrome,
            bytes,
        } => {
            let short = u64::from(index) << 16 | u64::from(opcode) << 8 | u64::from(syndrome);
            [head(REQUEST), u64::from(qpn), short, bytes, 0, 0]
        }
        What::Entry {
            qpn,
            index,
            part,
            bytes,
        } => {
            let mut words = [0; WORDS];
            words[0] = head(ENTRY);
            words[1] = u64::from(part) << 48 | u64::from(index) << 32 | u64::from(qpn);
            for (word, bytes) in words[2..].iter_mut().zip(bytes.as_chunks().0) {
                *word = u64::from_le_bytes(*bytes);
            }
            words
        }
        What::Mailbox {
            opcode,
            part,
            bytes,
        } => {
            let mut words = [0; WORDS];
            words[0] = head(MAILBOX);
            words[1] = u64::from(part) << 48 | u64::from(opcode);
            for (word, bytes) in words[2..].iter_mut().zip(bytes.as_chunks().0) {
                *word = u64::from_le_bytes(*bytes);
            }
            words
        }
        What::Completion {
            cqn,
            qpn,
            opcode,
            index,
            syndrome,
            bytes,
        } => {
            let short = u64::from(index) << 16 | u64::from(opcode) << 8 | u64::from(syndrome);
            let bytes = u64::from(bytes);
            [
                head(COMPLETION),
                u64::from(qpn),
                short,
                bytes,
                u64::from(cqn),
                0,
            ]
        }
    }
}

fn decode(words: &[u64; WORDS]) -> Option<(i32, usize, What)> {
    let [head, first, second, third, fourth, _] = *words;
    let [kind, ..] = head.to_le_bytes();
    let pid = i32::try_from(head >> 32).ok()?;
    let function = usize::try_from(head >> 8 & 0xff_ffff).ok()?;
    let [syndrome, opcode, index_low, index_high, ..] = second.to_le_bytes();
    let index = u16::from_le_bytes([index_low, index_high]);
    let qpn = u32::try_from(first).ok();
    let what = match kind {
        CALL => What::Call {
            call: *Call::ALL.get(usize::try_from(first).ok()?)?,
            errno: i32::try_from(second).ok()?,
            took_ns: third,
        },
        DOORBELL => What::Doorbell { qpn: qpn? },
        REQUEST => What::Request {
            qpn: qpn?,
            opcode,
            index,
            syndrome,
            bytes: third,
        },
        ENTRY => {
            let [a, b, c, d, index_low, index_high, part, _] = first.to_le_bytes();
            let mut bytes = [0; ENTRY_BYTES];
            for (to, word) in bytes.as_chunks_mut().0.iter_mut().zip(&words[2..]) {
                *to = word.to_le_bytes();
            }
            What::Entry {
                qpn: u32::from_le_bytes([a, b, c, d]),
                index: u16::from_le_bytes([index_low, index_high]),
                part,
                bytes,
            }
        }
        MAILBOX => {
            let [low, high, _, _, _, _, part, _] = first.to_le_bytes();
            let mut bytes = [0; ENTRY_BYTES];
            for (to, word) in bytes.as_chunks_mut().0.iter_mut().zip(&words[2..]) {
                *to = word.to_le_bytes();
            }
            What::Mailbox {
                opcode: u16::from_le_bytes([low, high]),
                part,
                bytes,
            }
        }
        COMPLETION => What::Completion {
            cqn: u32::try_from(fourth).ok()?,
            qpn: qpn?,
            opcode,
            index,
            syndrome,
            bytes: u32::try_from(third).ok()?,
        },
        _ => return None,
    };
    Some((pid, function, what))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ring() -> Box<Ring> {
        // SAFETY: all zeroes is an empty ring, which is too large for the stack.
        unsafe { crate::fabric::zeroed() }
    }

    const DOORBELL: What = What::Doorbell { qpn: 0x48 };

    #[test]
    fn nothing_is_kept_until_it_is_asked_for() {
        let ring = ring();
        ring.write(0, DOORBELL);
        assert_eq!(ring.latest(), 0);
        assert!(!ring.turn(true));
        ring.write(2, DOORBELL);
        assert!(ring.turn(false));
        ring.write(0, DOORBELL);
        let records: Vec<_> = ring.since(0).collect();
        assert_eq!(records.len(), 1);
        let record = records[0];
        assert_eq!(
            (record.number, record.function, record.what),
            (1, 2, DOORBELL)
        );
        assert_eq!(record.pid, sys::pid());
    }

    #[test]
    fn the_latest_are_kept() {
        let ring = ring();
        let count = RECORDS_MAX as u64 + 10;
        for time in 1..=count {
            ring.put(time, 1, 0, DOORBELL);
        }
        let mut times = ring.since(0).map(|record| record.time_ns);
        assert_eq!(times.next(), Some(11));
        assert_eq!(times.count(), RECORDS_MAX - 1);
        assert_eq!(ring.since(count - 2).count(), 2);
        assert_eq!(ring.since(count).count(), 0);
        assert_eq!(ring.read(10), None);
    }

    #[test]
    fn writers_side_by_side_mix_no_records() {
        let ring = ring();
        std::thread::scope(|scope| {
            for writer in 1..=3u32 {
                let ring = &ring;
                scope.spawn(move || {
                    for _ in 0..5000 {
                        let pid = i32::try_from(writer).unwrap();
                        ring.put(u64::from(writer), pid, 0, What::Doorbell { qpn: writer });
                    }
                });
            }
            let mut after = 0;
            while after < 15_000 {
                for record in ring.since(after) {
                    let writer = u32::try_from(record.pid).unwrap();
                    assert_eq!(record.time_ns, u64::from(writer));
                    assert_eq!(record.what, What::Doorbell { qpn: writer });
                }
                after = ring.latest();
            }
        });
        assert_eq!(ring.since(0).count(), 15_000);
    }

    fn any_what() -> impl Strategy<Value = What> {
        let call = (0..Call::ALL.len(), 0..4096i32, any::<u64>());
        let call = call.prop_map(|(index, errno, took_ns)| What::Call {
            call: Call::ALL[index],
            errno,
            took_ns,
        });
        let request = any::<(u32, u8, u16, u8, u64)>();
        let request = request.prop_map(|(qpn, opcode, index, syndrome, bytes)| What::Request {
            qpn,
            opcode,
            index,
            syndrome,
            bytes,
        });
        let completion = any::<(u32, u32, u8, u16, u8, u32)>();
        let completion =
            completion.prop_map(
                |(cqn, qpn, opcode, index, syndrome, bytes)| What::Completion {
                    cqn,
                    qpn,
                    opcode,
                    index,
                    syndrome,
                    bytes,
                },
            );
        let doorbell = any::<u32>().prop_map(|qpn| What::Doorbell { qpn });
        let entry = (
            any::<u32>(),
            any::<u16>(),
            any::<u8>(),
            any::<[u8; ENTRY_BYTES]>(),
        )
            .prop_map(|(qpn, index, part, bytes)| What::Entry {
                qpn,
                index,
                part,
                bytes,
            });
        let mailbox = (any::<u16>(), any::<u8>(), any::<[u8; ENTRY_BYTES]>()).prop_map(
            |(opcode, part, bytes)| What::Mailbox {
                opcode,
                part,
                bytes,
            },
        );
        prop_oneof![call, request, completion, doorbell, entry, mailbox]
    }

    // Properties: a record is read back unchanged; arbitrary words in a slot cause no panic of the
    // reader.
    proptest! {
        #[test]
        fn a_record_is_read_as_it_was_written(
            what in any_what(), pid in 0..i32::MAX, function in 0usize..64,
        ) {
            prop_assert_eq!(decode(&encode(pid, function, what)), Some((pid, function, what)));
        }

        #[test]
        fn any_words_are_answered(words in any::<[u64; WORDS]>()) {
            let _ = decode(&words);
        }
    }
}
