//! `-T`: the MPI datatype of the elements. The transferred bytes do not depend on it.

use serde::{Deserialize, Serialize};

/// An MPI datatype. The numbers are those of the C file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[repr(i32)]
pub enum Datatype {
    /// One byte.
    #[default]
    #[serde(rename = "MPI_CHAR")]
    Char = 0,
    /// A C `int`.
    #[serde(rename = "MPI_INT")]
    Int = 1,
    /// A C `float`.
    #[serde(rename = "MPI_FLOAT")]
    Float = 2,
}

impl Datatype {
    /// In the order of `-T all`.
    pub const ALL: [Self; 3] = [Self::Char, Self::Int, Self::Float];

    /// MPI's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Char => "MPI_CHAR",
            Self::Int => "MPI_INT",
            Self::Float => "MPI_FLOAT",
        }
    }

    /// Bytes of an element.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::Char => 1,
            Self::Int => size_of::<std::ffi::c_int>(),
            Self::Float => size_of::<std::ffi::c_float>(),
        }
    }

    /// Parses an argument of `-T`, ignoring case like OSU.
    #[must_use]
    pub fn named(text: &str) -> Option<Vec<Self>> {
        if text.eq_ignore_ascii_case("all") {
            return Some(Self::ALL.to_vec());
        }
        let found = Self::ALL
            .into_iter()
            .find(|known| known.name().eq_ignore_ascii_case(text));
        found.map(|datatype| vec![datatype])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_mpis_in_any_case() {
        assert_eq!(Datatype::named("mpi_int"), Some(vec![Datatype::Int]));
        assert_eq!(Datatype::named("ALL"), Some(Datatype::ALL.to_vec()));
        for text in ["", "MPI_DOUBLE", "MPI_INT2", "int"] {
            assert_eq!(Datatype::named(text), None, "{text}");
        }
        for datatype in Datatype::ALL {
            let text = serde_json::to_string(&datatype).unwrap();
            assert_eq!(text, format!("\"{}\"", datatype.name()));
        }
    }
}
