//! Texts from C formats.

use crate::context::Context;
use crate::refusal::Refusal;

/// Most bytes of a text.
const TEXT_MAX: usize = 4096;
/// Largest width and precision.
const WIDTH_MAX: usize = 512;

/// A conversion of a format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Spec {
    left: bool,
    zero: bool,
    plus: bool,
    space: bool,
    other: bool,
    width: usize,
    precision: Option<usize>,
    /// Bytes of the argument.
    bytes: u8,
}

impl Context<'_, '_> {
    /// The text of a C format, with the variable arguments from index `first` on.
    ///
    /// # Errors
    /// A text or an argument is not readable, or a conversion is not known.
    pub fn format(&mut self, format: u64, first: u8) -> Result<String, Refusal> {
        text(self, format, first)
    }
}

/// The text of the format at an address, with the variable arguments from index `first` on.
fn text(context: &mut Context<'_, '_>, address: u64, first: u8) -> Result<String, Refusal> {
    let format = context.text(address)?;
    let mut next = first;
    let mut argument = |context: &Context<'_, '_>| {
        let value = context.argument(next)?;
        next = next.saturating_add(1);
        Ok::<u64, Refusal>(value)
    };
    let mut text = String::new();
    let mut rest = format.chars().peekable();
    while let Some(c) = rest.next() {
        if text.len() > TEXT_MAX {
            return Err(Refusal(format!("a text of more than {TEXT_MAX} bytes")));
        }
        if c != '%' {
            text.push(c);
            continue;
        }
        let mut spec = Spec {
            bytes: 4,
            ..Spec::default()
        };
        while let Some(flag) = rest.next_if(|c| "-0+ #".contains(*c)) {
            match flag {
                '-' => spec.left = true,
                '0' => spec.zero = true,
                '+' => spec.plus = true,
                ' ' => spec.space = true,
                _ => spec.other = true,
            }
        }
        if rest.next_if_eq(&'*').is_some() {
            let width = low(argument(context)?).cast_signed();
            spec.left |= width < 0;
            spec.width = bounded(width.unsigned_abs());
        } else {
            spec.width = number(&mut rest);
        }
        if rest.next_if_eq(&'.').is_some() {
            spec.precision = if rest.next_if_eq(&'*').is_some() {
                let precision = low(argument(context)?).cast_signed();
                u32::try_from(precision).ok().map(bounded)
            } else {
                Some(number(&mut rest))
            };
        }
        while let Some(length) = rest.next_if(|c| "hlzjt".contains(*c)) {
            spec.bytes = match (length, spec.bytes) {
                ('h', 2) => 1,
                ('h', _) => 2,
                _ => 8,
            };
        }
        let Some(kind) = rest.next() else {
            return Err(Refusal("a format ends within a conversion".to_owned()));
        };
        if kind == '%' {
            text.push('%');
            continue;
        }
        let value = argument(context)?;
        let converted = match kind {
            's' => {
                let of = if value == 0 {
                    "(null)".to_owned()
                } else {
                    context.text(value)?
                };
                of.chars()
                    .take(spec.precision.unwrap_or(TEXT_MAX))
                    .collect()
            }
            'c' => char::from(value.to_le_bytes()[0]).to_string(),
            _ => spec.number(kind, value).ok_or_else(|| {
                Refusal(format!("the conversion %{kind} of a format is not known"))
            })?,
        };
        text.push_str(&spec.padded(converted));
    }
    Ok(text)
}

fn low(value: u64) -> u32 {
    u32::try_from(value & 0xffff_ffff).unwrap_or_default()
}

fn bounded(value: u32) -> usize {
    usize::try_from(value).unwrap_or(WIDTH_MAX).min(WIDTH_MAX)
}

fn number(rest: &mut std::iter::Peekable<std::str::Chars<'_>>) -> usize {
    let mut value = 0;
    while let Some(digit) = rest.next_if(char::is_ascii_digit) {
        value = (10 * value + digit.to_digit(10).unwrap_or_default() as usize).min(WIDTH_MAX);
    }
    value
}

impl Spec {
    /// A number without padding; `None` for an unknown conversion.
    fn number(self, kind: char, value: u64) -> Option<String> {
        let unused = 64 - 8 * u32::from(self.bytes);
        let unsigned = value << unused >> unused;
        let signed = (value << unused).cast_signed() >> unused;
        let digits = |digits: String| match self.precision {
            Some(least) => format!("{digits:0>least$}"),
            None => digits,
        };
        let sign = |is_negative: bool| match (is_negative, self.plus, self.space) {
            (true, ..) => "-",
            (_, true, _) => "+",
            (.., true) => " ",
            _ => "",
        };
        Some(match kind {
            'd' | 'i' => format!(
                "{}{}",
                sign(signed < 0),
                digits(signed.unsigned_abs().to_string())
            ),
            'u' => digits(unsigned.to_string()),
            'x' | 'X' | 'o' | 'b' => {
                let (prefix, text) = match kind {
                    'x' => ("0x", format!("{unsigned:x}")),
                    'X' => ("0X", format!("{unsigned:X}")),
                    'o' => ("0", format!("{unsigned:o}")),
                    _ => ("0b", format!("{unsigned:b}")),
                };
                let prefix = if self.other && unsigned != 0 {
                    prefix
                } else {
                    ""
                };
                format!("{prefix}{}", digits(text))
            }
            'p' => format!("{value:#x}"),
            'f' | 'F' | 'g' | 'e' => {
                let value = f64::from_bits(value);
                let precision = self.precision.unwrap_or(6);
                let text = match kind {
                    'e' => format!("{:.precision$e}", value.abs()),
                    'g' => format!("{}", value.abs()),
                    _ => format!("{:.precision$}", value.abs()),
                };
                format!("{}{text}", sign(value.is_sign_negative()))
            }
            _ => return None,
        })
    }

    fn padded(self, text: String) -> String {
        let width = self.width;
        if self.left {
            return format!("{text:<width$}");
        }
        let is_number = text.starts_with(|c: char| c.is_ascii_digit() || "+- ".contains(c));
        if !self.zero || self.precision.is_some() || !is_number {
            return format!("{text:>width$}");
        }
        let at = text.find(|c: char| c.is_ascii_hexdigit()).unwrap_or(0);
        let at = if text[at..].starts_with("0x") || text[at..].starts_with("0X") {
            at + 2
        } else {
            at
        };
        let (before, digits) = text.split_at(at);
        let left = width.saturating_sub(before.len());
        format!("{before}{digits:0>left$}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(spec: Spec, kind: char, value: u64, expect: &str) {
        let text = spec.number(kind, value).expect("a conversion");
        assert_eq!(spec.padded(text), expect, "{spec:?} {kind}");
    }

    #[test]
    fn numbers_are_those_of_c() {
        let spec = |width, bytes| Spec {
            width,
            bytes,
            ..Spec::default()
        };
        let minus = u64::MAX - 41;
        check(spec(0, 4), 'd', minus, "-42");
        check(spec(6, 1), 'u', minus, "   214");
        check(
            Spec {
                zero: true,
                ..spec(6, 4)
            },
            'd',
            minus,
            "-00042",
        );
        check(
            Spec {
                other: true,
                zero: true,
                ..spec(8, 4)
            },
            'x',
            0xab,
            "0x0000ab",
        );
        check(
            Spec {
                left: true,
                ..spec(4, 8)
            },
            'o',
            8,
            "10  ",
        );
        check(
            Spec {
                precision: Some(3),
                ..spec(5, 4)
            },
            'd',
            7,
            "  007",
        );
        check(
            Spec {
                plus: true,
                ..spec(0, 8)
            },
            'i',
            5,
            "+5",
        );
        check(
            Spec {
                precision: Some(2),
                ..spec(0, 8)
            },
            'f',
            (-1.5f64).to_bits(),
            "-1.50",
        );
        check(spec(0, 8), 'p', 0x1000, "0x1000");
        assert_eq!(spec(0, 4).number('n', 1), None);
    }
}
