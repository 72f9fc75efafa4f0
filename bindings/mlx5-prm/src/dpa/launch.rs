//! What a launch waits for, and what reports its end.

use super::{
    DONE_ADDRESS, DONE_KEY, DONE_OPERATION, DONE_VALUE, DONE_WORD, Unknown, WAIT_ABOVE,
    WAIT_ADDRESS, WAIT_KEY, WAIT_MASK, WAIT_WORD, done, put, word,
};
use crate::Field;

/// A word of 64 bits at a multiple of 8, little-endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Word {
    /// In memory of the process.
    Dpa(u64),
    /// Behind a key of the process's protection domain.
    Key {
        /// The key.
        key: u32,
        /// Its address there.
        address: u64,
    },
}

/// A launch starts when the bits of the word in the mask are above a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Wait {
    /// The word.
    pub word: Word,
    /// The bits that count.
    pub mask: u64,
    /// The number.
    pub above: u64,
}

/// How a word changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DoneOperation {
    /// It gets the value.
    Set,
    /// The value is added.
    Add,
}

/// The change of a word after the return of all threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Done {
    /// The word.
    pub word: Word,
    /// The change.
    pub operation: DoneOperation,
    /// Its operand.
    pub value: u64,
}

/// The fields of a word: its place, its key, its address.
type Fields = (Field, Field, Field);

impl Word {
    const WAITS: Fields = (WAIT_WORD, WAIT_KEY, WAIT_ADDRESS);
    const REPORTS: Fields = (DONE_WORD, DONE_KEY, DONE_ADDRESS);

    fn put(self, input: &mut [u8], (place, key, address): Fields) -> bool {
        let (kind, number, at) = match self {
            Self::Dpa(address) => (word::DPA, 0, address),
            Self::Key { key, address } => (word::KEY, key, address),
        };
        put(
            input,
            &[(place, kind.into()), (key, number.into()), (address, at)],
        )
    }

    fn parse(input: &[u8], (place, key, address): Fields) -> Result<Option<Self>, Unknown> {
        let address = address.get(input);
        Ok(match place.get8(input) {
            word::NONE => None,
            word::DPA => Some(Self::Dpa(address)),
            word::KEY => Some(Self::Key {
                key: key.get32(input),
                address,
            }),
            number => return Err(Unknown::new("place of a word", number)),
        })
    }
}

impl Wait {
    /// Writes the fields of a launch. False if the input is too short.
    #[must_use = "a field outside of the input is not written"]
    pub fn put(self, input: &mut [u8]) -> bool {
        self.word.put(input, Word::WAITS)
            && put(input, &[(WAIT_MASK, self.mask), (WAIT_ABOVE, self.above)])
    }

    /// Reads the fields of a launch, which may wait for no word.
    ///
    /// # Errors
    /// The place of the word is unknown.
    pub fn parse(input: &[u8]) -> Result<Option<Self>, Unknown> {
        let word = Word::parse(input, Word::WAITS)?;
        Ok(word.map(|word| Self {
            word,
            mask: WAIT_MASK.get(input),
            above: WAIT_ABOVE.get(input),
        }))
    }
}

impl Done {
    /// Writes the fields of a launch. False if the input is too short.
    #[must_use = "a field outside of the input is not written"]
    pub fn put(self, input: &mut [u8]) -> bool {
        let operation = match self.operation {
            DoneOperation::Set => done::SET,
            DoneOperation::Add => done::ADD,
        };
        let fields = [(DONE_OPERATION, operation.into()), (DONE_VALUE, self.value)];
        self.word.put(input, Word::REPORTS) && put(input, &fields)
    }

    /// Reads the fields of a launch, whose end may change no word.
    ///
    /// # Errors
    /// The place or the change of the word is unknown.
    pub fn parse(input: &[u8]) -> Result<Option<Self>, Unknown> {
        let word = Word::parse(input, Word::REPORTS)?;
        let operation = match DONE_OPERATION.get8(input) {
            done::SET => DoneOperation::Set,
            done::ADD => DoneOperation::Add,
            number => return Err(Unknown::new("change of a word", number)),
        };
        Ok(word.map(|word| Self {
            word,
            operation,
            value: DONE_VALUE.get(input),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dpa::BODY_AT;

    #[test]
    fn a_launch_is_read_as_it_was_written() {
        let wait = Wait {
            word: Word::Dpa(0x1234_5678_9abc),
            mask: 0xff,
            above: 254,
        };
        let done = Done {
            word: Word::Key {
                key: 0x89ab_cdef,
                address: 0x7f00_0000_1008,
            },
            operation: DoneOperation::Add,
            value: u64::MAX,
        };
        let mut input = [0; BODY_AT];
        assert_eq!(
            (Wait::parse(&input), Done::parse(&input)),
            (Ok(None), Ok(None))
        );
        assert!(wait.put(&mut input) && done.put(&mut input));
        assert_eq!(Wait::parse(&input), Ok(Some(wait)));
        assert_eq!(Done::parse(&input), Ok(Some(done)));
        assert!(!done.put(&mut [0; 0x60]), "a short command");
    }

    #[test]
    fn unknown_numbers_are_refused() {
        let mut input = [0; BODY_AT];
        assert!(WAIT_WORD.set(&mut input, 3) && DONE_OPERATION.set(&mut input, 2));
        assert_eq!(Wait::parse(&input), Err(Unknown::new("place of a word", 3)));
        assert_eq!(
            Done::parse(&input),
            Err(Unknown::new("change of a word", 2))
        );
    }
}
