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
    F16 = 10,
    /// The upper half of an `F32`.
    BF16 = 11,
    /// A complex number: two `F32`, its real and its imaginary part.
    C32 = 12,
    /// Two `F64`.
    C64 = 13,
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
    /// The sum, divided by the number of members.
    Average = 10,
}

/// An operation on elements of one type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Reduction {
    element: Element,
    operation: Operation,
}

impl Element {
    const ALL: [Self; 14] = [
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
        Self::F16,
        Self::BF16,
        Self::C32,
        Self::C64,
    ];

    /// Size in bytes.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::I8 | Self::U8 => 1,
            Self::I16 | Self::U16 | Self::F16 | Self::BF16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 | Self::C32 => 8,
            Self::C64 => 16,
        }
    }

    const fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F64 | Self::F16 | Self::BF16)
    }

    const fn is_complex(self) -> bool {
        matches!(self, Self::C32 | Self::C64)
    }
}

impl Operation {
    const ALL: [Self; 11] = [
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
        Self::Average,
    ];
}

impl Reduction {
    /// `None` for logical and bitwise operations on floating-point numbers, for averages of integers, and for all but sums,
    /// products and averages of complex numbers.
    #[must_use]
    pub const fn new(element: Element, operation: Operation) -> Option<Self> {
        let is_defined = match operation {
            Operation::Sum | Operation::Product => true,
            Operation::Max | Operation::Min => !element.is_complex(),
            Operation::Average => element.is_float() || element.is_complex(),
            _ => !element.is_float() && !element.is_complex(),
        };
        if is_defined {
            Some(Self { element, operation })
        } else {
            None
        }
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

    /// Reduces vectors of `length` bytes, one behind the other, to the first of them.
    pub(crate) fn fold_all(self, all: &mut [u8], length: usize) -> &mut [u8] {
        let (result, others) = all.split_at_mut(length.min(all.len()));
        for other in others.chunks_exact(length.max(1)) {
            self.fold(result, other);
        }
        result
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
                    Operation::Average => unreachable!("new() refuses it"),
                }
            };
        }
        macro_rules! floats {
            ($type:ty) => {
                match self.operation {
                    Operation::Sum | Operation::Average => each(into, from, |a: $type, b| a + b),
                    Operation::Product => each(into, from, |a: $type, b| a * b),
                    // A comparison with a NaN is false, as in MPI libraries.
                    Operation::Max => each(into, from, |a: $type, b| if a > b { a } else { b }),
                    Operation::Min => each(into, from, |a: $type, b| if a < b { a } else { b }),
                    _ => unreachable!("new() refuses them"),
                }
            };
        }
        macro_rules! complex {
            ($type:ty) => {
                match self.operation {
                    Operation::Product => each(into, from, <[$type; 2]>::times),
                    // Part by part.
                    _ => floats!($type),
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
            Element::F16 => self.fold_halves(into, from, f16_to_f32, f16_from_f32),
            Element::BF16 => self.fold_halves(into, from, bf16_to_f32, bf16_from_f32),
            Element::C32 => complex!(f32),
            Element::C64 => complex!(f64),
        }
    }

    /// Numbers of 16 bits are computed with 32 bits, and rounded after each operation.
    fn fold_halves(
        self,
        into: &mut [u8],
        from: &[u8],
        wide: impl Fn(u16) -> f32,
        narrow: impl Fn(f32) -> u16,
    ) {
        // One loop per operation: a choice inside it would take the numbers one by one.
        macro_rules! by {
            ($of:expr) => {
                each(into, from, |a: u16, b| narrow($of(wide(a), wide(b))))
            };
        }
        match self.operation {
            Operation::Sum | Operation::Average => by!(|a: f32, b: f32| a + b),
            Operation::Product => by!(|a: f32, b: f32| a * b),
            Operation::Max => by!(|a: f32, b: f32| if a > b { a } else { b }),
            Operation::Min => by!(|a: f32, b: f32| if a < b { a } else { b }),
            _ => unreachable!("new() refuses them"),
        }
    }

    /// The elements of `members` vectors have been folded: what is left to do.
    pub(crate) fn finish(self, result: &mut [u8], members: u32) {
        if self.operation != Operation::Average {
            return;
        }
        let by = f64::from(members);
        #[expect(
            clippy::cast_possible_truncation,
            reason = "rounded to the element's type"
        )]
        let single = |sum: f32| (f64::from(sum) / by) as f32;
        match self.element {
            Element::F32 | Element::C32 => all(result, single),
            Element::F64 | Element::C64 => all(result, |sum: f64| sum / by),
            Element::F16 => all(result, |sum| f16_from_f32(single(f16_to_f32(sum)))),
            Element::BF16 => all(result, |sum| bf16_from_f32(single(bf16_to_f32(sum)))),
            _ => unreachable!("new() refuses them"),
        }
    }
}

fn bf16_to_f32(half: u16) -> f32 {
    f32::from_bits(u32::from(half) << 16)
}

/// Rounds to the nearest number, and a tie to the even one.
///
/// All cases are computed, here and below, and one is chosen: so the loop needs no branch, and works on a vector of numbers at once.
fn bf16_from_f32(number: f32) -> u16 {
    let bits = number.to_bits();
    let rounded = upper(bits.wrapping_add(0x7fff + (bits >> 16 & 1)));
    // A quiet NaN: its payload may have been in the lower half.
    let quiet = upper(bits) | 0x40;
    if number.is_nan() { quiet } else { rounded }
}

fn upper(bits: u32) -> u16 {
    let [_, _, low, high] = bits.to_le_bytes();
    u16::from_le_bytes([low, high])
}

fn f16_to_f32(half: u16) -> f32 {
    let (sign, rest) = (u32::from(half & 0x8000) << 16, u32::from(half & 0x7fff));
    // The exponents of both formats count from 15 and 127.
    let normal = (rest << 13) + ((127 - 15) << 23);
    // An infinity or a NaN.
    let special = 0x7f80_0000 | (rest & 0x3ff) << 13;
    // A subnormal number counts units of 2^-24.
    let subnormal = (f32::from(half & 0x3ff) * (1.0 / 16_777_216.0)).to_bits();
    let finite = if rest < 0x400 { subnormal } else { normal };
    let bits = if rest < 0x7c00 { finite } else { special };
    f32::from_bits(sign | bits)
}

/// Rounds to the nearest number, and a tie to the even one.
fn f16_from_f32(number: f32) -> u16 {
    let bits = number.to_bits();
    let sign = upper(bits) & 0x8000;
    let rest = bits & 0x7fff_ffff;
    let rounded = rest + 0xfff + (rest >> 13 & 1);
    let normal = rounded.wrapping_sub((127 - 15) << 23) >> 13;
    // Below 2^-14: adding 0.5 leaves units of 2^-24 in the lowest bits, rounded by the processor.
    let subnormal = (f32::from_bits(rest) + 0.5)
        .to_bits()
        .wrapping_sub(0.5_f32.to_bits());
    let finite = if rest < 0x3880_0000 {
        subnormal
    } else {
        normal
    };
    // 65,520 is as far from 65,504, the largest number, as from what would be the next one.
    let or_infinity = if rest < 0x477f_f000 { finite } else { 0x7c00 };
    let half = if rest <= 0x7f80_0000 {
        or_infinity
    } else {
        0x7e00
    };
    let [low, high, ..] = half.to_le_bytes();
    sign | u16::from_le_bytes([low, high])
}

/// A complex number: its real and its imaginary part.
trait Complex {
    /// The product. One of an infinite factor is infinite, as C requires (Annex G.5.1), unless the other one is 0 or no number.
    fn times(self, other: Self) -> Self;
}

macro_rules! complex {
    ($($type:ty),*) => {
        $(impl Complex for [$type; 2] {
            #[inline]
            fn times(self, other: Self) -> Self {
                let product = |[a, b]: Self, [c, d]: Self| [a * c - b * d, a * d + b * c];
                let plain = product(self, other);
                if !(plain[0].is_nan() && plain[1].is_nan()) {
                    return plain;
                }
                let (left, right) = (self, other);
                let is_infinite = |of: Self| of.into_iter().any(<$type>::is_infinite);
                // An infinite number becomes one of the directions of its parts, and no number becomes 0 beside it.
                let direction = |part: $type| <$type>::from(part.is_infinite()).copysign(part);
                let number = |part: $type| if part.is_nan() { (0.0 as $type).copysign(part) } else { part };
                let terms = [left[0] * right[0], left[1] * right[1], left[0] * right[1], left[1] * right[0]];
                let (left, right) = match (is_infinite(left), is_infinite(right)) {
                    (true, true) => (left.map(direction), right.map(direction)),
                    (true, false) => (left.map(direction), right.map(number)),
                    (false, true) => (left.map(number), right.map(direction)),
                    // The parts are too large.
                    (false, false) if terms.into_iter().any(<$type>::is_infinite) => (left.map(number), right.map(number)),
                    _ => return plain,
                };
                product(left, right).map(|part| <$type>::INFINITY * part)
            }
        })*
    };
}

complex!(f32, f64);

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

macro_rules! pairs {
    ($($type:ty),*) => {
        $(impl Bytes<{ 2 * size_of::<$type>() }> for [$type; 2] {
            fn from_bytes(bytes: [u8; 2 * size_of::<$type>()]) -> Self {
                let parts = bytes.as_chunks::<{ size_of::<$type>() }>().0;
                [0, 1].map(|at| <$type>::from_ne_bytes(parts[at]))
            }

            fn to_bytes(self) -> [u8; 2 * size_of::<$type>()] {
                let mut bytes = [0; 2 * size_of::<$type>()];
                for (to, part) in bytes.as_chunks_mut::<{ size_of::<$type>() }>().0.iter_mut().zip(self) {
                    *to = part.to_ne_bytes();
                }
                bytes
            }
        })*
    };
}

pairs!(f32, f64);

fn all<T: Bytes<N>, const N: usize>(of: &mut [u8], change: impl Fn(T) -> T) {
    for element in of.as_chunks_mut::<N>().0 {
        *element = change(T::from_bytes(*element)).to_bytes();
    }
}

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
    fn each_operation_on_complex_numbers() {
        use Element::{C32, C64};
        use Operation::{Product, Sum};
        check(C32, Sum, [[1.0_f32, 2.0], [0.5, -3.0], [1.5, -1.0]]);
        check(C64, Sum, [[1.0_f64, 2.0], [0.5, -3.0], [1.5, -1.0]]);
        check(C32, Product, [[1.0_f32, 2.0], [3.0, 4.0], [-5.0, 10.0]]);
        check(C64, Product, [[0.0_f64, 1.0], [0.0, 1.0], [-1.0, 0.0]]);
        const MORE: f64 = f64::INFINITY;
        check(C64, Product, [[MORE, f64::NAN], [1.0, 1.0], [MORE, MORE]]);
        check(C64, Product, [[2.0, 1.0], [f64::NAN, -MORE], [MORE, -MORE]]);
        check(C64, Product, [[MORE, MORE], [MORE, 0.0], [MORE, MORE]]);
        let [real, imaginary] = [f64::MAX, f64::NAN].times([2.0, 2.0]);
        assert!(real.is_infinite() && imaginary.is_infinite());
        let none = [f64::NAN, 1.0].times([1.0, f64::NAN]);
        assert!(none.into_iter().all(f64::is_nan));
    }

    #[test]
    fn codes_name_their_reductions() {
        for element in Element::ALL {
            for operation in Operation::ALL {
                let made = Reduction::new(element, operation);
                let codes = (element as u32, operation as u32);
                assert_eq!(Reduction::from_codes(codes.0, codes.1), made);
                use Operation::{Average, Max, Min, Product, Sum};
                let refused = match (element.is_float(), element.is_complex()) {
                    (true, _) => ![Sum, Product, Max, Min, Average].contains(&operation),
                    (_, true) => ![Sum, Product, Average].contains(&operation),
                    _ => operation == Average,
                };
                assert_eq!(made.map(Reduction::codes), (!refused).then_some(codes));
            }
        }
        assert_eq!(Reduction::from_codes(14, 0), None);
        assert_eq!(Reduction::from_codes(0, 11), None);
    }

    #[test]
    fn averages_are_divided_once() {
        fn average<T: Bytes<N>, const N: usize>(element: Element, of: [T; 3], expect: T) {
            let average = reduction(element, Operation::Average);
            let [first, rest @ ..] = of.map(T::to_bytes);
            let mut result = first;
            for other in rest {
                average.fold(&mut result, &other);
            }
            average.finish(&mut result, 3);
            assert_eq!(result, expect.to_bytes(), "{element:?}");
        }
        average(Element::F32, [1.0_f32, 2.0, 6.0], 3.0);
        average(Element::F64, [1.0_f64, 2.0, 7.0], 10.0 / 3.0);
        let both = |[real, imaginary]: [f32; 2]| [real, imaginary];
        average(
            Element::C32,
            [[1.0, 3.0], [2.0, 3.0], [6.0, 0.0]].map(both),
            [3.0, 2.0],
        );
        let half = f16_from_f32;
        average(Element::F16, [half(1.0), half(2.0), half(6.0)], half(3.0));
        let brain = bf16_from_f32;
        average(
            Element::BF16,
            [brain(1.0), brain(2.0), brain(6.0)],
            brain(3.0),
        );
    }

    /// Each number of 16 bits survives, and what lies between two of them is rounded to the nearer one.
    #[test]
    fn halves_are_rounded_to_the_nearest() {
        type Kind = (fn(u16) -> f32, fn(f32) -> u16, u16);
        let kinds: [Kind; 2] = [
            (f16_to_f32, f16_from_f32, 0x7c00),
            (bf16_to_f32, bf16_from_f32, 0x7f80),
        ];
        for (wide, narrow, infinity) in kinds {
            for half in 0..infinity {
                let (low, high) = (wide(half), wide(half + 1));
                for sign in [0, 0x8000] {
                    assert_eq!(narrow(wide(half | sign)), half | sign);
                }
                if half + 1 == infinity {
                    continue;
                }
                let middle = f64::midpoint(low.into(), high.into());
                #[expect(clippy::cast_possible_truncation, reason = "a half has fewer bits")]
                let middle = middle as f32;
                assert!(low < middle && middle < high, "{half:#x}");
                assert_eq!(narrow(middle), half + half % 2, "{half:#x}");
                assert_eq!(narrow(middle.next_down()), half, "{half:#x}");
                assert_eq!(narrow(middle.next_up()), half + 1, "{half:#x}");
            }
            assert_eq!(narrow(f32::INFINITY), infinity);
            assert!(wide(infinity).is_infinite());
            assert!(wide(narrow(f32::NAN)).is_nan() && narrow(f32::NAN) > infinity);
        }
        assert_eq!(
            (f16_from_f32(65519.0), f16_from_f32(65520.0)),
            (0x7bff, 0x7c00)
        );
        assert_eq!((f16_from_f32(1.0), bf16_from_f32(1.0)), (0x3c00, 0x3f80));
    }
}
