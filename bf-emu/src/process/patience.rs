//! Time limit of the connection manager, from the environment.

/// Environment variable for the time in milliseconds that the other side of a connection has for
/// each answer.
pub const ENV_CM_TIMEOUT: &str = "BFEMU_CM_TIMEOUT_MS";

/// The default of [`ENV_CM_TIMEOUT`]: 16 transmissions, each 2^20 * 4.096 us apart (core/cma.c,
/// `CMA_CM_RESPONSE_TIMEOUT` and `CMA_MAX_CM_RETRIES`).
const PATIENCE_NS: u64 = 16 * (4_096 << 20);

/// The value of [`ENV_CM_TIMEOUT`].
pub(super) fn own_patience() -> Result<u64, Box<dyn std::error::Error>> {
    match std::env::var(ENV_CM_TIMEOUT) {
        Err(std::env::VarError::NotPresent) => Ok(PATIENCE_NS),
        Err(error) => Err(format!("{ENV_CM_TIMEOUT}: {error}").into()),
        Ok(text) => match text.parse::<u32>() {
            Ok(milliseconds @ 1..) => Ok(u64::from(milliseconds) * 1_000_000),
            _ => Err(format!(
                "{ENV_CM_TIMEOUT} is `{text}`; allowed are milliseconds, 1..={}",
                u32::MAX
            )
            .into()),
        },
    }
}
