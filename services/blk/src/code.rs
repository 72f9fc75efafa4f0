//! The code of a block's parts: any `needed` of them restore each other one. Does no I/O.
//!
//! Bytes are elements of the field with 256 elements and the polynomial 0x11d. Part of data `j` is row `j` of the unit matrix;
//! parity `i` is row `i` of a Cauchy matrix, `1 / (i ^ j)` for rows from `needed` on: the matrix of ISA-L's
//! `gf_gen_cauchy1_matrix`. That of its `gf_gen_rs_matrix` cannot restore each loss with three parities. Two halves keep their
//! exclusive or, and of a mirror each row is 1.
//!
//! A product is a sum of doubled bytes: the loops have no tables, and compilers make vectors of them.

use crate::roles::{Layout, PerTarget, Role};

/// Most parts of data.
const MOST: usize = 8;

/// What is multiplied with each part of data.
type Row = [u8; MOST];

/// Bytes that are multiplied at once.
const STEP: usize = 64;

const fn double(byte: u8) -> u8 {
    (byte << 1) ^ if byte & 0x80 == 0 { 0 } else { 0x1d }
}

const fn product(one: u8, other: u8) -> u8 {
    let (mut sum, mut power, mut bit) = (0, one, 0);
    while bit < 8 {
        if other >> bit & 1 == 1 {
            sum ^= power;
        }
        power = double(power);
        bit += 1;
    }
    sum
}

/// The number whose product with this one is 1. That of 0 is 0.
const fn inverse(number: u8) -> u8 {
    // The 254th power.
    let (mut power, mut square, mut bit) = (1, number, 0);
    while bit < 7 {
        square = product(square, square);
        power = product(power, square);
        bit += 1;
    }
    power
}

/// How a part is made of the parts of data.
fn row(role: Role) -> Row {
    let layout = role.layout();
    let mut row = [0; MOST];
    for (column, factor) in row.iter_mut().enumerate().take(layout.needed()) {
        // Cannot be cut: both are small.
        let difference = u8::try_from(role.index() ^ column).unwrap_or(0);
        *factor = match () {
            () if layout.is_mirror() => 1,
            () if role.is_data() => u8::from(role.index() == column),
            () if layout == Layout::HALVES => 1,
            () => inverse(difference),
        };
    }
    row
}

/// Eight bytes, each doubled.
const fn double_all(word: u64) -> u64 {
    const HIGH: u64 = 0x8080_8080_8080_8080;
    let high = word & HIGH;
    // 0x1d for each byte whose highest bit was set.
    ((word & !HIGH) << 1) ^ ((high >> 7) * 0x1d)
}

/// Adds the product of `from` and a factor to the first bytes of `to`, which is as long at least.
fn add(to: &mut [u8], from: &[u8], factor: u8) {
    if factor == 1 {
        for (to, from) in to.iter_mut().zip(from) {
            *to ^= from;
        }
        return;
    }
    let masks: [u64; 8] = std::array::from_fn(|bit| u64::from(factor >> bit & 1).wrapping_neg());
    let mut steps = to.chunks_exact_mut(STEP).zip(from.chunks_exact(STEP));
    for (to, from) in &mut steps {
        let mut sums = [0; STEP / 8];
        let mut powers = [0; STEP / 8];
        for (power, bytes) in powers.iter_mut().zip(from.chunks_exact(8)) {
            *power = bytes
                .iter()
                .rev()
                .fold(0, |word, byte| word << 8 | u64::from(*byte));
        }
        for mask in masks {
            for (sum, power) in sums.iter_mut().zip(&mut powers) {
                *sum ^= *power & mask;
                *power = double_all(*power);
            }
        }
        for (to, sum) in to.chunks_exact_mut(8).zip(sums) {
            for (to, byte) in to.iter_mut().zip(sum.to_le_bytes()) {
                *to ^= byte;
            }
        }
    }
    let done = to.len().min(from.len()) / STEP * STEP;
    for (to, from) in to[done..].iter_mut().zip(&from[done..]) {
        *to ^= product(*from, factor);
    }
}

/// Adds the sum of parts, each with its factor, behind the bytes of `to`.
fn sum<'a>(parts: impl Iterator<Item = (&'a [u8], u8)>, length: usize, to: &mut Vec<u8>) {
    let start = to.len();
    for (part, factor) in parts.filter(|(_, factor)| *factor != 0) {
        if to.len() == start && factor == 1 {
            to.extend_from_slice(&part[..part.len().min(length)]);
            to.resize(start + length, 0);
            continue;
        }
        to.resize(start + length, 0);
        add(&mut to[start..], &part[..part.len().min(length)], factor);
    }
    to.resize(start + length, 0);
}

/// Adds the part of a role, from all parts of data, behind the bytes of `to`. Shorter ones are continued with zeros.
pub(crate) fn append(role: Role, data: &[&[u8]], length: usize, to: &mut Vec<u8>) {
    sum(data.iter().copied().zip(row(role)), length, to);
}

/// As [`append`], alone.
pub(crate) fn part(role: Role, data: &[&[u8]], length: usize) -> Vec<u8> {
    let mut part = Vec::new();
    append(role, data, length, &mut part);
    part
}

/// The part of a role from `needed` others. None: these do not restore it.
pub(crate) fn restored(role: Role, others: &[(Role, &[u8])], length: usize) -> Option<Vec<u8>> {
    let needed = role.layout().needed();
    if others.len() != needed {
        return None;
    }
    let mut rows: PerTarget<Row> = others.iter().map(|(other, _)| row(*other)).collect();
    let inverted = inverted(&mut rows, needed)?;
    let wanted = row(role);
    let factor = |nth: usize| {
        let products = (0..needed).map(|column| product(wanted[column], inverted[column][nth]));
        products.fold(0, |sum, product| sum ^ product)
    };
    let parts = others.iter().map(|(_, part)| *part);
    let mut part = Vec::new();
    sum(parts.zip((0..needed).map(factor)), length, &mut part);
    Some(part)
}

/// The inverse of a square matrix, by elimination.
fn inverted(rows: &mut [Row], needed: usize) -> Option<PerTarget<Row>> {
    let mut inverse_of: PerTarget<Row> = (0..needed)
        .map(|nth| std::array::from_fn(|column| u8::from(column == nth)))
        .collect();
    for column in 0..needed {
        let pivot = (column..needed).find(|nth| rows[*nth][column] != 0)?;
        rows.swap(column, pivot);
        inverse_of.swap(column, pivot);
        let factor = inverse(rows[column][column]);
        for row in [&mut rows[column], &mut inverse_of[column]] {
            row.iter_mut()
                .for_each(|number| *number = product(*number, factor));
        }
        for nth in (0..needed).filter(|nth| *nth != column) {
            let factor = rows[nth][column];
            for all in [&mut *rows, &mut inverse_of[..]] {
                let source = all[column];
                for (to, from) in all[nth].iter_mut().zip(source) {
                    *to ^= product(from, factor);
                }
            }
        }
    }
    Some(inverse_of)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layouts() -> impl Iterator<Item = Layout> {
        let all = (1..=8).flat_map(|data| (1..=3).map(move |parity| (data, parity)));
        all.filter_map(|(data, parity)| Layout::new(data, parity))
    }

    fn noise(length: usize, mut state: u64) -> Vec<u8> {
        let byte = |_| {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            state.to_be_bytes()[0]
        };
        (0..length).map(byte).collect()
    }

    #[test]
    fn products_are_those_of_the_field() {
        assert_eq!(product(0x80, 2), 0x1d);
        for one in 1..=255 {
            assert_eq!(product(one, inverse(one)), 1, "{one}");
            let from: Vec<u8> = (0..=255).cycle().take(STEP * 4 + 9).collect();
            let mut to = vec![0x5a; from.len()];
            add(&mut to, &from, one);
            for (to, from) in to.iter().zip(from) {
                assert_eq!(*to, product(from, one) ^ 0x5a);
            }
        }
    }

    /// Each loss of as many parts as there are parities is restored, in each layout.
    #[test]
    fn each_loss_is_restored() {
        for layout in layouts() {
            for length in [1, 63, 200] {
                let data: Vec<Vec<u8>> = (0..layout.needed())
                    .map(|nth| noise(length, nth as u64 + 1))
                    .collect();
                let data: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
                let parts = layout.map(|role| part(role, &data, length));
                for left in 0..1u16 << layout.targets() {
                    if left.count_ones() as usize != layout.needed() {
                        continue;
                    }
                    let there = layout.roles().filter(|role| left & role.bit() != 0);
                    let there = there.map(|role| (role, &parts[role.index()][..]));
                    let there: Vec<(Role, &[u8])> = there.collect();
                    for role in layout.roles() {
                        let back = restored(role, &there, length).unwrap();
                        assert!(back == parts[role.index()], "{layout} {left:b} {role}");
                    }
                }
            }
        }
    }

    #[test]
    fn too_few_parts_restore_nothing() {
        let one: &[u8] = &[1, 2];
        assert_eq!(restored(Role::PARITY, &[(Role::FIRST, one)], 2), None);
        let same = [(Role::FIRST, one), (Role::FIRST, one)];
        assert_eq!(restored(Role::SECOND, &same, 2), None);
    }
}
