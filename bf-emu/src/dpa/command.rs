//! A command in progress: its input, its objects and its refusals.

use std::sync::Arc;

use dpa_os::{OsError, THREADS_MAX};
use mlx5_prm::Field;
use mlx5_prm::cmd::{self, status};
use mlx5_prm::dpa::Unknown;

use super::tables::{Dpa, Object, Runner, Session, What};
use crate::bits::low32;
use crate::fabric::numbers::slot_of_number;

/// A refused command: the status, and the reason in one line.
#[derive(Debug)]
pub(super) struct Refused(pub(super) u8, pub(super) String);

pub(super) type Result<T> = std::result::Result<T, Refused>;

impl From<OsError> for Refused {
    fn from(error: OsError) -> Self {
        let status = match &error {
            OsError::Dead(_) => status::BAD_SYS_STATE,
            OsError::Full { .. } | OsError::Width { .. } => status::LIMITS_EXCEEDED,
            OsError::NoThread(_) | OsError::NoQueue(_) => status::BAD_RESOURCE,
            OsError::Heap(rv64::HeapError::Full { .. } | rv64::HeapError::TooMany) => {
                status::NO_RESOURCES
            }
            OsError::Running(_) => status::RESOURCE_BUSY,
            _ => status::BAD_PARAM,
        };
        Self(status, error.to_string())
    }
}

impl From<Unknown> for Refused {
    fn from(unknown: Unknown) -> Self {
        Self(status::BAD_PARAM, unknown.to_string())
    }
}

pub(super) fn refused<T>(status: u8, text: impl Into<String>) -> Result<T> {
    Err(Refused(status, text.into()))
}

/// No thread of the device is left.
pub(super) fn no_thread<T>() -> Result<T> {
    let text = format!("all {THREADS_MAX} threads of the DPA are taken");
    refused(status::LIMITS_EXCEEDED, text)
}

/// The process has ended while the command waited.
pub(super) fn gone() -> Refused {
    let text = "the process of the DPA has been destroyed";
    Refused(status::BAD_SYS_STATE, text.to_owned())
}

pub(super) fn get(input: &[u8], field: Field) -> u32 {
    low32(field.get(input))
}

pub(super) fn get8(input: &[u8], field: Field) -> u8 {
    get(input, field).to_le_bytes()[0]
}

pub(super) fn get16(input: &[u8], field: Field) -> u16 {
    let [a, b, ..] = get(input, field).to_le_bytes();
    u16::from_le_bytes([a, b])
}

/// A command of a session.
#[derive(Clone, Copy)]
pub(super) struct Command<'a> {
    pub(super) runner: &'static Runner,
    pub(super) session: Session,
    pub(super) function: usize,
    pub(super) pid: i32,
    pub(super) input: &'a [u8],
    pub(super) capacity: usize,
    pub(super) options: u32,
}

impl Command<'_> {
    pub(super) fn object(&self, id: u32) -> Result<Object> {
        let tables = self.runner.tables();
        let object = tables.objects.get(&id);
        let object = object.filter(|object| object.session == self.session);
        match object {
            Some(object) => Ok(object.clone()),
            None => refused(status::BAD_RESOURCE, format!("no object {id}")),
        }
    }

    /// A process by its number.
    pub(super) fn process(&self, id: u32) -> Result<Arc<Dpa>> {
        match self.object(id)?.what {
            What::Process(dpa) => Ok(dpa),
            _ => refused(status::BAD_RESOURCE, format!("object {id} is no process")),
        }
    }

    /// Adds an object with a new number.
    pub(super) fn add(&self, what: What) -> Result<u32> {
        let mut tables = self.runner.tables();
        let Some(id) = tables.number() else {
            return refused(status::LIMITS_EXCEEDED, "all numbers of objects are taken");
        };
        let session = self.session;
        tables.objects.insert(id, Object { session, what });
        Ok(id)
    }

    /// The output of a command: fields and values, and bytes behind them.
    pub(super) fn output(&self, bytes: usize, fields: &[(Field, u64)], body: &[u8]) -> Vec<u8> {
        let mut output = vec![0; bytes];
        for (field, value) in fields {
            // The fields are in the output.
            let _ = field.set(&mut output, *value);
        }
        output.extend_from_slice(body);
        output.truncate(self.capacity);
        output
    }

    pub(super) fn header(&self) -> Vec<u8> {
        self.output(cmd::HEADER_BYTES, &[], &[])
    }

    /// Address in the program of `bytes` bytes of one of its umems.
    pub(super) fn in_umem(&self, number: u32, offset: u64, bytes: u64) -> Result<u64> {
        let locked = self.runner.process.fabric().lock();
        let umems = &locked.peek(self.function).umems;
        let umem = slot_of_number(number)
            .and_then(|slot| umems.owned(slot, self.session.1))
            .filter(|umem| umem.device_page == 0 && !umem.of_dpa);
        let Some(umem) = umem else {
            return refused(status::BAD_RESOURCE, format!("no umem {number:#x}"));
        };
        match offset.checked_add(bytes) {
            Some(end) if end <= umem.length => Ok(umem.address + offset),
            _ => refused(status::BAD_PARAM, "a range beyond the umem"),
        }
    }
}
