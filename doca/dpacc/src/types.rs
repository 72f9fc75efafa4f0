//! Types of arguments, and how they lie in the argument buffer.

/// A type that can be passed by value, with the same layout on the device and on the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Type {
    /// An integer or an enumeration.
    Integer {
        /// Whether it is signed.
        signed: bool,
        /// Its bytes: 1, 2, 4, 8 or 16.
        size: u64,
    },
    /// `_Bool`.
    Bool,
    /// `float` (4 bytes) or `double` (8 bytes).
    Float(u64),
    /// Any pointer.
    Pointer,
    /// A structure or union.
    Record(Record),
    /// An array, as a member of a record.
    Array {
        /// Type of the elements.
        of: Box<Type>,
        /// Number of elements.
        count: u64,
    },
}

/// A structure or union.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Whether all members begin at 0.
    pub is_union: bool,
    /// Its bytes.
    pub size: u64,
    /// Its alignment.
    pub align: u64,
    /// Members in the order of their offsets.
    pub members: Vec<Member>,
}

/// A member of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Offset of the first byte.
    pub offset: u64,
    /// Its type.
    pub of: Type,
}

impl Type {
    /// Bytes of a value.
    #[must_use]
    pub fn size(&self) -> u64 {
        match self {
            Self::Integer { size, .. } | Self::Float(size) => *size,
            Self::Bool => 1,
            Self::Pointer => 8,
            Self::Record(record) => record.size,
            Self::Array { of, count } => of.size().saturating_mul(*count),
        }
    }

    /// Alignment of a value.
    #[must_use]
    pub fn align(&self) -> u64 {
        match self {
            Self::Integer { size, .. } | Self::Float(size) => *size,
            Self::Bool => 1,
            Self::Pointer => 8,
            Self::Record(record) => record.align,
            Self::Array { of, .. } => of.align(),
        }
    }
}

impl Record {
    /// Whether C places the members so without attributes, except one for the alignment of the whole.
    #[must_use]
    pub fn is_natural(&self) -> bool {
        let mut end = 0;
        for member in &self.members {
            let from = if self.is_union { 0 } else { end };
            if member.offset != round_up(from, member.of.align()) {
                return false;
            }
            end = end.max(member.offset.saturating_add(member.of.size()));
        }
        self.align >= self.natural_align() && round_up(end, self.align) == self.size
    }

    /// The largest alignment of a member.
    #[must_use]
    pub fn natural_align(&self) -> u64 {
        let aligns = self.members.iter().map(|member| member.of.align());
        aligns.max().unwrap_or(1)
    }
}

/// The next multiple, or the largest number if there is none.
#[must_use]
pub fn round_up(value: u64, align: u64) -> u64 {
    let next = value.checked_next_multiple_of(align.max(1));
    next.unwrap_or(u64::MAX)
}

/// Whether a function runs as a kernel or answers a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// `__dpa_global__`.
    Kernel,
    /// `__dpa_rpc__`.
    Rpc,
}

impl Role {
    /// The word of messages.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Rpc => "RPC",
        }
    }
}

/// A function that the host can name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    /// Its name, which is also its symbol.
    pub name: String,
    /// What it is.
    pub role: Role,
    /// Types of its parameters.
    pub parameters: Vec<Type>,
}

/// Multiple of bytes at which each argument begins.
const SLOT: u64 = 8;

/// Most bytes of an argument buffer.
pub const MAX_BUFFER: u64 = 4096;

impl Function {
    /// Name of its unpack function on the device.
    #[must_use]
    pub fn unpack(&self) -> String {
        format!("__dpacc_unpack_{}", self.name)
    }

    /// Offsets of the arguments in the buffer.
    #[must_use]
    pub fn offsets(&self) -> Vec<u64> {
        let mut end = 0;
        let places = self.parameters.iter().map(|parameter| {
            let offset: u64 = end;
            end = round_up(offset.saturating_add(parameter.size()), SLOT);
            offset
        });
        places.collect()
    }

    /// Bytes of the buffer.
    #[must_use]
    pub fn buffer(&self) -> u64 {
        let sizes = self
            .parameters
            .iter()
            .map(|parameter| round_up(parameter.size(), SLOT));
        sizes.fold(0, u64::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INT: Type = Type::Integer {
        signed: true,
        size: 4,
    };
    const BYTE: Type = Type::Integer {
        signed: false,
        size: 1,
    };

    fn record(size: u64, align: u64, members: &[(u64, Type)]) -> Record {
        let members = members.iter().map(|(offset, of)| Member {
            offset: *offset,
            of: of.clone(),
        });
        Record {
            is_union: false,
            size,
            align,
            members: members.collect(),
        }
    }

    #[test]
    fn arguments_begin_at_multiples_of_eight() {
        let five = Type::Record(record(
            5,
            1,
            &[(
                0,
                Type::Array {
                    of: Box::new(BYTE),
                    count: 5,
                },
            )],
        ));
        let big = Type::Record(record(
            17,
            1,
            &[(
                0,
                Type::Array {
                    of: Box::new(BYTE),
                    count: 17,
                },
            )],
        ));
        let function = Function {
            name: "k".to_owned(),
            role: Role::Kernel,
            parameters: vec![INT, five, Type::Pointer, big, BYTE],
        };
        assert_eq!(function.offsets(), [0, 8, 16, 24, 48]);
        assert_eq!(function.buffer(), 56);
    }

    #[test]
    fn a_packed_record_is_not_natural() {
        assert!(record(8, 4, &[(0, BYTE), (4, INT)]).is_natural());
        assert!(record(16, 16, &[(0, BYTE), (4, INT)]).is_natural());
        assert!(!record(5, 1, &[(0, BYTE), (1, INT)]).is_natural());
        assert!(!record(12, 4, &[(0, BYTE), (8, INT)]).is_natural());
        assert!(!record(4, 2, &[(0, INT)]).is_natural());
    }
}
