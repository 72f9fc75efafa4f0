//! Sizes in bytes, parsed and formatted with binary suffixes.

/// Parses `16384`, `16K`, `16KiB`, `1M`, `2G`.
///
/// # Errors
/// A message that describes the problem with the text.
pub fn parse_size(text: &str) -> Result<usize, String> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let factor = match &text[digits.len()..] {
        "" | "B" => 1,
        "K" | "k" | "KiB" => 1 << 10,
        "M" | "m" | "MiB" => 1 << 20,
        "G" | "g" | "GiB" => 1 << 30,
        other => {
            return Err(format!(
                "unknown suffix '{other}' of a size; try: K, M or G"
            ));
        }
    };
    digits
        .parse::<usize>()
        .ok()
        .and_then(|number| number.checked_mul(factor))
        .filter(|size| *size > 0)
        .ok_or_else(|| format!("'{text}' is no size; try: 16K"))
}

/// Formats as `16 KiB` if that is exact, otherwise in bytes.
#[must_use]
pub fn format_size(size: usize) -> String {
    for (shift, unit) in [(30, "GiB"), (20, "MiB"), (10, "KiB")] {
        if size != 0 && size.trailing_zeros() >= shift {
            return format!("{} {unit}", size >> shift);
        }
    }
    format!("{size} B")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        let check = |text: &str, expect: Option<usize>| {
            assert_eq!(parse_size(text).ok(), expect, "{text}");
        };
        check("16384", Some(16384));
        check("16K", Some(16384));
        check("256KiB", Some(256 << 10));
        check("1M", Some(1 << 20));
        check("2G", Some(2 << 30));
        check("0", None);
        check("", None);
        check("K", None);
        check("16Q", None);
        check("-1", None);
        check("99999999999999999999", None);
        check("18446744073709551615G", None);
    }

    #[test]
    fn sizes_are_written() {
        let check = |size: usize, expect: &str| assert_eq!(format_size(size), expect);
        check(0, "0 B");
        check(1000, "1000 B");
        check(16 << 10, "16 KiB");
        check(1536 << 10, "1536 KiB");
        check(16 << 20, "16 MiB");
        check(1 << 30, "1 GiB");
    }
}
