//! Threads: their attributes, and their counters.

use super::{AFFINITY, AFFINITY_ID, ARGUMENT, FUNCTION, LOCAL_STORAGE, Unknown, affinity, put};

/// The execution unit of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Affinity {
    /// Any.
    #[default]
    None,
    /// This one.
    Unit(u16),
    /// One of this group.
    Group(u16),
}

/// Attributes of a thread that events activate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct ThreadAttr {
    /// Address of its function, `void function(uint64_t)`.
    pub function: u64,
    /// Argument of the function.
    pub argument: u64,
    /// Address of its local storage on the DPA, or 0.
    pub local_storage: u64,
    /// Its execution unit.
    pub affinity: Affinity,
}

impl ThreadAttr {
    /// Writes the fields of a command that creates or changes a thread. False if the input is too short.
    #[must_use = "a field outside of the input is not written"]
    pub fn put(self, input: &mut [u8]) -> bool {
        let (kind, id) = match self.affinity {
            Affinity::None => (affinity::ANY, 0),
            Affinity::Unit(id) => (affinity::UNIT, id),
            Affinity::Group(id) => (affinity::GROUP, id),
        };
        put(
            input,
            &[
                (AFFINITY, kind.into()),
                (AFFINITY_ID, id.into()),
                (FUNCTION, self.function),
                (ARGUMENT, self.argument),
                (LOCAL_STORAGE, self.local_storage),
            ],
        )
    }

    /// Reads them.
    ///
    /// # Errors
    /// The kind of the affinity is unknown.
    pub fn parse(input: &[u8]) -> Result<Self, Unknown> {
        let id = AFFINITY_ID.get16(input);
        Ok(Self {
            function: FUNCTION.get(input),
            argument: ARGUMENT.get(input),
            local_storage: LOCAL_STORAGE.get(input),
            affinity: match AFFINITY.get8(input) {
                affinity::ANY => Affinity::None,
                affinity::UNIT => Affinity::Unit(id),
                affinity::GROUP => Affinity::Group(id),
                number => return Err(Unknown::new("affinity", number)),
            },
        })
    }
}

/// What a thread is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ThreadKind {
    /// It executes the remote calls.
    Call,
    /// It executes a rank of each launch.
    Launch,
    /// Events activate it.
    Handler,
    /// It executes the tasks of a command queue.
    Worker,
}

/// Counters of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ThreadCounters {
    /// Its number on the device.
    pub number: u32,
    /// What it is for.
    pub kind: ThreadKind,
    /// It executes a function now.
    pub runs: bool,
    /// Functions that it has begun.
    pub activations: u64,
    /// Instructions that it has executed. One takes a cycle of the model.
    pub instructions: u64,
}

impl ThreadCounters {
    /// Bytes in an answer.
    pub const BYTES: usize = 24;

    /// The bytes of an answer.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let [a, b, c, d] = self.number.to_be_bytes();
        let kind = match self.kind {
            ThreadKind::Call => 0,
            ThreadKind::Launch => 1,
            ThreadKind::Handler => 2,
            ThreadKind::Worker => 3,
        };
        let mut bytes = [0; Self::BYTES];
        bytes[..6].copy_from_slice(&[a, b, c, d, kind, self.runs.into()]);
        bytes[8..16].copy_from_slice(&self.activations.to_be_bytes());
        bytes[16..].copy_from_slice(&self.instructions.to_be_bytes());
        bytes
    }

    /// Reads them.
    ///
    /// # Errors
    /// The kind of the thread is unknown.
    pub fn parse(bytes: &[u8; Self::BYTES]) -> Result<Self, Unknown> {
        let [a, b, c, d, kind, runs, ..] = *bytes;
        let word = |at: usize| {
            let word = bytes.get(at..).and_then(<[u8]>::first_chunk);
            u64::from_be_bytes(*word.unwrap_or(&[0; 8]))
        };
        Ok(Self {
            number: u32::from_be_bytes([a, b, c, d]),
            kind: match kind {
                0 => ThreadKind::Call,
                1 => ThreadKind::Launch,
                2 => ThreadKind::Handler,
                3 => ThreadKind::Worker,
                number => return Err(Unknown::new("kind of threads", number)),
            },
            runs: runs != 0,
            activations: word(8),
            instructions: word(16),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dpa::CREATE_IN_BYTES;

    #[test]
    fn attributes_are_read_as_they_were_written() {
        let mut input = [0; CREATE_IN_BYTES];
        for affinity in [Affinity::None, Affinity::Unit(253), Affinity::Group(9)] {
            let attr = ThreadAttr {
                function: 0x40_0000,
                argument: u64::MAX,
                local_storage: 64,
                affinity,
            };
            assert!(attr.put(&mut input));
            assert_eq!(ThreadAttr::parse(&input), Ok(attr));
        }
        assert!(AFFINITY.set(&mut input, 3));
        assert_eq!(ThreadAttr::parse(&input), Err(Unknown::new("affinity", 3)));
    }

    #[test]
    fn counters_are_read_as_they_were_written() {
        let counters = ThreadCounters {
            number: 0x12_3456,
            kind: ThreadKind::Handler,
            runs: true,
            activations: 7,
            instructions: u64::MAX,
        };
        let mut bytes = counters.to_bytes();
        assert_eq!(ThreadCounters::parse(&bytes), Ok(counters));
        bytes[4] = 4;
        assert_eq!(
            ThreadCounters::parse(&bytes),
            Err(Unknown::new("kind of threads", 4))
        );
    }
}
