//! Units of the lab: picoseconds, port speeds, and rates as 20-bit fractions of a port's speed.

/// Picoseconds in a nanosecond.
pub const PS_PER_NS: u64 = 1_000;
/// Picoseconds in a microsecond.
pub const PS_PER_US: u64 = 1_000_000;

/// Bytes in a KiB.
pub(crate) const KIB: u64 = 1_024;
/// A time that never comes.
pub(crate) const NEVER: u64 = u64::MAX;

/// The rate that equals the speed of the port. Rates of algorithms are fractions of it.
pub const RATE_MAX: u32 = 1 << 20;

/// Time that a port of `mbps` Mb/s needs to transmit `bytes`, in picoseconds, rounded up.
#[must_use]
pub fn serialize_ps(bytes: u64, mbps: u64) -> u64 {
    (bytes * 8_000_000).div_ceil(mbps)
}

/// Distance of two packets of one flow, in picoseconds, from the start of the first one: the first has `bytes`, and the rate
/// is a fraction of `mbps`.
#[must_use]
pub fn interval_ps(bytes: u64, mbps: u64, rate: u32) -> u64 {
    let at_line_rate = serialize_ps(bytes, mbps);
    if rate >= RATE_MAX {
        return at_line_rate;
    }
    (at_line_rate << 20).div_ceil(u64::from(rate.max(1)))
}

/// The clock of a port as its events show it: nanoseconds, in 32 bits that wrap.
#[must_use]
#[expect(
    clippy::cast_possible_truncation,
    reason = "the clock wraps as the device's does"
)]
pub fn clock_ns(time_ps: u64) -> u32 {
    (time_ps / PS_PER_NS) as u32
}

/// A rate as a fraction of the port's speed, from Mb/s.
#[must_use]
pub fn rate_of_mbps(mbps: u64, port_mbps: u64) -> u32 {
    let rate = (mbps << 20) / port_mbps.max(1);
    u32::try_from(rate).unwrap_or(RATE_MAX).min(RATE_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_exact_at_the_usual_speeds() {
        // 1,250 bytes are 10,000 bits.
        let cases = [
            (10_000, 1_000_000),
            (25_000, 400_000),
            (100_000, 100_000),
            (200_000, 50_000),
            (400_000, 25_000),
            (1_600_000, 6_250),
        ];
        for (mbps, expect) in cases {
            assert_eq!(serialize_ps(1_250, mbps), expect, "{mbps} Mb/s");
        }
        assert_eq!(serialize_ps(1, 3), 2_666_667, "rounded up");
    }

    #[test]
    fn the_interval_is_the_inverse_of_the_rate() {
        assert_eq!(interval_ps(1_250, 200_000, RATE_MAX), 50_000);
        assert_eq!(interval_ps(1_250, 200_000, RATE_MAX / 2), 100_000);
        assert_eq!(interval_ps(1_250, 200_000, 1), 50_000 << 20);
        assert_eq!(
            interval_ps(1_250, 200_000, 0),
            50_000 << 20,
            "rate 0 is the lowest rate"
        );
        assert_eq!(
            interval_ps(1_250, 200_000, u32::MAX),
            50_000,
            "never above line rate"
        );
    }

    #[test]
    fn the_clock_wraps_at_32_bits_of_nanoseconds() {
        assert_eq!(clock_ns(1_999), 1);
        assert_eq!(clock_ns(((1 << 32) + 5) * PS_PER_NS), 5);
    }

    #[test]
    fn rates_are_fractions_of_the_port() {
        assert_eq!(rate_of_mbps(100_000, 200_000), RATE_MAX / 2);
        assert_eq!(rate_of_mbps(10_000, 200_000), 52_428, "5 %");
        assert_eq!(rate_of_mbps(400_000, 200_000), RATE_MAX);
    }
}
