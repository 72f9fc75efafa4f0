//! A time in an option: a number with its unit.

use serde::{Deserialize, Deserializer};
use std::str::FromStr;
use std::time::Duration;

/// A time: `200ms`, `5s`, `2m`. A number alone is refused, because readers take it for seconds and programs for
/// milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Period(pub Duration);

/// Units, and milliseconds of each.
const UNITS: [(&str, u64); 3] = [("ms", 1), ("s", 1000), ("m", 60_000)];

impl FromStr for Period {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at(digits);
        if unit.is_empty() && digits > 0 {
            return Err(format!(
                "{text} has no unit: give {text}ms for milliseconds, or {text}s for seconds"
            ));
        }
        let factor = UNITS.into_iter().find(|(name, _)| *name == unit);
        let (Some((_, factor)), Ok(number)) = (factor, number.parse::<u64>()) else {
            return Err("give a time with its unit, such as 200ms, 5s or 2m".to_owned());
        };
        let ms = number.checked_mul(factor);
        ms.map(|ms| Self(Duration::from_millis(ms)))
            .ok_or_else(|| "the time is too long".to_owned())
    }
}

impl<'de> Deserialize<'de> for Period {
    /// A text with a unit. A number is refused with the text that it should be.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Form {
            Number(u64),
            Text(String),
        }
        let text = match Form::deserialize(deserializer)? {
            Form::Number(number) => number.to_string(),
            Form::Text(text) => text,
        };
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_has_a_unit() {
        for (text, ms) in [
            ("0s", 0),
            ("200ms", 200),
            ("5s", 5000),
            ("2m", 120_000),
            ("18446744073709551615ms", u64::MAX),
        ] {
            let period: Period = text.parse().unwrap();
            assert_eq!(period.0, Duration::from_millis(ms), "{text}");
        }
        for (text, expect) in [
            (
                "5000",
                "5000 has no unit: give 5000ms for milliseconds, or 5000s",
            ),
            ("0", "0 has no unit"),
            ("", "with its unit"),
            ("s", "with its unit"),
            ("-5s", "with its unit"),
            ("5 s", "with its unit"),
            ("5h", "with its unit"),
            ("1.5s", "with its unit"),
            ("99999999999999999999s", "with its unit"),
            ("18446744073709551615s", "too long"),
        ] {
            let error = text.parse::<Period>().unwrap_err();
            assert!(error.contains(expect), "{text}: {error}");
        }
    }
}
