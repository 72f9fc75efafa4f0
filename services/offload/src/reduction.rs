//! Reductions of vectors, element by element: sums, products, extremes, and logical and bitwise operations.
//!
//! The loops work on bytes of any alignment, and the compiler turns them into vector instructions.

/// Type of an element.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
#[allow(missing_docs, reason = "the names say all")]
pub enum Element {
    I8 = 0,
    I16 = 1,
    I32 = 2,
    I64 = 3,
    U8 = 4,
    U16 = 5,
    U32 = 6,
    U64 = 7,
    F32 = 8,
    F64 = 9,
}

/// An associative operation on two elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
#[allow(missing_docs, reason = "the names say all")]
pub enum Operation {
    /// Integers wrap.
    Sum = 0,
    /// Integers wrap.
    Product = 1,
    Max = 2,
    Min = 3,
    /// Logical operations: 0 is false, and the result is 0 or 1.
    And = 4,
    Or = 5,
    Xor = 6,
    BitAnd = 7,
    BitOr = 8,
    BitXor = 9,
}

/// An operation on elements of one type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Reduction {
    element: Element,
    operation: Operation,
}

impl Element {
    const ALL: [Self; 10] = [
        Self::I8,
        Self::I16,
        Self::I32,
        Self::I64,
        Self::U8,
        Self::U16,
        Self::U32,
        Self::U64,
        Self::F32,
        Self::F64,
    ];

    /// Size in bytes.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::I8 | Self::U8 => 1,
            Self::I16 | Self::U16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 => 8,
        }
    }

    const fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F64)
    }
}

impl Operation {
    const ALL: [Self; 10] = [
        Self::Sum,
        Self::Product,
        Self::Max,
        Self::Min,
        Self::And,
        Self::Or,
        Self::Xor,
        Self::BitAnd,
        Self::BitOr,
        Self::BitXor,
    ];

    const fn is_for_integers(self) -> bool {
        !matches!(self, Self::Sum | Self::Product | Self::Max | Self::Min)
    }
}

impl Reduction {
    /// `None` for logical and bitwise operations on floating-point numbers.
    #[must_use]
    pub const fn new(element: Element, operation: Operation) -> Option<Self> {
        if element.is_float() && operation.is_for_integers() {
            return None;
        }
        Some(Self { element, operation })
    }

    /// Size of an element in bytes.
    #[must_use]
    pub const fn element_size(self) -> usize {
        self.element.size()
    }

    /// The reduction as a message holds it.
    pub(crate) fn codes(self) -> (u32, u32) {
        (self.element as u32, self.operation as u32)
    }

    /// The reduction with these codes.
    pub(crate) fn from_codes(element: u32, operation: u32) -> Option<Self> {
        let element = Element::ALL.get(element as usize)?;
        let operation = Operation::ALL.get(operation as usize)?;
        Self::new(*element, *operation)
    }

    /// Replaces each element of `into` with the result of the operation on it and the element of `from`. Both have the
    /// same length, a multiple of the element's size.
    pub(crate) fn fold(self, into: &mut [u8], from: &[u8]) {
        assert_eq!(into.len(), from.len(), "vectors of one length");
        macro_rules! integers {
            ($type:ty) => {
                match self.operation {
                    Operation::Sum => each(into, from, <$type>::wrapping_add),
                    Operation::Product => each(into, from, <$type>::wrapping_mul),
                    Operation::Max => each(into, from, <$type as Ord>::max),
                    Operation::Min => each(into, from, <$type as Ord>::min),
                    Operation::And => each(into, from, |a: $type, b| (a != 0 && b != 0).into()),
                    Operation::Or => each(into, from, |a: $type, b| (a != 0 || b != 0).into()),
                    Operation::Xor => each(into, from, |a: $type, b| ((a != 0) != (b != 0)).into()),
                    Operation::BitAnd => each(into, from, |a: $type, b| a & b),
                    Operation::BitOr => each(into, from, |a: $type, b| a | b),
                    Operation::BitXor => each(into, from, |a: $type, b| a ^ b),
                }
            };
        }
        macro_rules! floats {
            ($type:ty) => {
                match self.operation {
                    Operation::Sum => each(into, from, |a: $type, b| a + b),
                    Operation::Product => each(into, from, |a: $type, b| a * b),
                    // A comparison with a NaN is false, as in MPI libraries.
                    Operation::Max => each(into, from, |a: $type, b| if a > b { a } else { b }),
                    Operation::Min => each(into, from, |a: $type, b| if a < b { a } else { b }),
                    _ => unreachable!("new() refuses them"),
                }
            };
        }
        match self.element {
            Element::I8 => integers!(i8),
            Element::I16 => integers!(i16),
            Element::I32 => integers!(i32),
            Element::I64 => integers!(i64),
            Element::U8 => integers!(u8),
            Element::U16 => integers!(u16),
            Element::U32 => integers!(u32),
            Element::U64 => integers!(u64),
            Element::F32 => floats!(f32),
            Element::F64 => floats!(f64),
        }
    }
}

/// A number as bytes.
trait Bytes<const N: usize> {
    fn from_bytes(bytes: [u8; N]) -> Self;
    fn to_bytes(self) -> [u8; N];
}

macro_rules! bytes {
    ($($type:ty),*) => {
        $(impl Bytes<{ size_of::<$type>() }> for $type {
            fn from_bytes(bytes: [u8; size_of::<$type>()]) -> Self {
                Self::from_ne_bytes(bytes)
            }

            fn to_bytes(self) -> [u8; size_of::<$type>()] {
                self.to_ne_bytes()
            }
        })*
    };
}

bytes!(i8, i16, i32, i64, u8, u16, u32, u64, f32, f64);

fn each<T: Bytes<N>, const N: usize>(into: &mut [u8], from: &[u8], of: impl Fn(T, T) -> T) {
    let (into, _) = into.as_chunks_mut::<N>();
    let (from, _) = from.as_chunks::<N>();
    for (into, from) in into.iter_mut().zip(from) {
        *into = of(T::from_bytes(*into), T::from_bytes(*from)).to_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reduction(element: Element, operation: Operation) -> Reduction {
        Reduction::new(element, operation).expect("defined")
    }

    #[track_caller]
    fn check<T: Bytes<N> + Copy, const N: usize>(
        element: Element,
        operation: Operation,
        [a, b, expect]: [T; 3],
    ) {
        // A vector that is longer than a vector register, at an odd address.
        let repeat = |of: T| of.to_bytes().repeat(19);
        let mut into = [&[7], &repeat(a)[..]].concat();
        reduction(element, operation).fold(&mut into[1..], &repeat(b));
        assert_eq!(into[1..], repeat(expect), "{element:?} {operation:?}");
    }

    #[test]
    fn each_operation() {
        use Element::{F32, F64, I8, I32, I64, U8, U16, U32, U64};
        use Operation::{And, BitAnd, BitOr, BitXor, Max, Min, Or, Product, Sum, Xor};
        check(I32, Sum, [i32::MAX, 1, i32::MIN]);
        check(U8, Sum, [200_u8, 100, 44]);
        check(I64, Product, [-3_i64, 5, -15]);
        check(U16, Product, [300_u16, 300, 24464]);
        check(I8, Max, [-1_i8, 1, 1]);
        check(U8, Max, [0xff_u8, 1, 0xff]);
        check(I32, Min, [-1, 1, -1]);
        check(U64, Min, [u64::MAX, 1, 1]);
        check(U32, And, [4_u32, 2, 1]);
        check(U32, And, [4_u32, 0, 0]);
        check(I64, Or, [0_i64, -9, 1]);
        check(I64, Xor, [3_i64, 5, 0]);
        check(I64, Xor, [3_i64, 0, 1]);
        check(U32, BitAnd, [6_u32, 3, 2]);
        check(U32, BitOr, [6_u32, 3, 7]);
        check(U32, BitXor, [6_u32, 3, 5]);
        check(F32, Sum, [0.5_f32, 0.25, 0.75]);
        check(F64, Product, [-2.0_f64, 3.0, -6.0]);
        check(F64, Max, [-2.0_f64, 3.0, 3.0]);
        check(F32, Min, [-2.0_f32, 3.0, -2.0]);
    }

    #[test]
    fn codes_name_their_reductions() {
        for element in Element::ALL {
            for operation in Operation::ALL {
                let made = Reduction::new(element, operation);
                let codes = (element as u32, operation as u32);
                assert_eq!(Reduction::from_codes(codes.0, codes.1), made);
                let refused = element.is_float() && operation.is_for_integers();
                assert_eq!(made.map(Reduction::codes), (!refused).then_some(codes));
            }
        }
        assert_eq!(Reduction::from_codes(10, 0), None);
        assert_eq!(Reduction::from_codes(0, 10), None);
    }
}
