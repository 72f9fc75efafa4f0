//! Options: files, ranges, addresses.

use super::error::{DaemonError, Result};
use std::path::Path;

/// Environment variables in which launchers pass the number of a process on its node.
const LOCAL_RANKS: [&str; 4] = [
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
    "PMIX_LOCAL_RANK",
    "SLURM_LOCALID",
];

/// Reads an options file.
///
/// # Errors
/// Errors of the system; [`DaemonError::Options`] with the file and the line.
pub fn read_toml<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| DaemonError::io(format!("reading {}", path.display()), error))?;
    toml::from_str(&text)
        .map_err(|error| DaemonError::Options(format!("{}: {error}", path.display())))
}

/// Checks that a number is in its range.
///
/// # Errors
/// [`DaemonError::Options`] with the option and the range.
pub fn within<T: PartialOrd + std::fmt::Display + Copy>(
    name: &str,
    value: T,
    range: std::ops::RangeInclusive<T>,
) -> Result<T> {
    if range.contains(&value) {
        Ok(value)
    } else {
        Err(DaemonError::Options(format!(
            "{name} is {value}; it must be from {} to {}",
            range.start(),
            range.end()
        )))
    }
}

/// The number of this process on its node, as the launcher assigned it.
///
/// # Errors
/// [`DaemonError::Options`] without a launcher.
pub fn local_rank() -> Result<u16> {
    LOCAL_RANKS
        .iter()
        .find_map(|name| std::env::var(name).ok()?.parse().ok())
        .ok_or_else(|| {
            DaemonError::Options(format!(
                "port-by-local-rank: the launcher has set none of {}",
                LOCAL_RANKS.join(", ")
            ))
        })
}

/// Adds `by` to the port of `ADDR:PORT`. Port 0 stays 0: the system selects a free port for each process.
///
/// # Errors
/// [`DaemonError::Options`] if `address` is not `ADDR:PORT`, or if the port exceeds 65535.
pub fn shift_port(address: &str, by: u16) -> Result<String> {
    let (host, port) = port_of(address)?;
    if port == 0 {
        return Ok(address.to_owned());
    }
    let port = port.checked_add(by).ok_or_else(|| {
        DaemonError::Options(format!("'{address}' and {by} more: beyond port 65535"))
    })?;
    Ok(format!("{host}:{port}"))
}

/// Splits `ADDR:PORT`.
///
/// # Errors
/// [`DaemonError::Options`] if `address` has another form.
pub fn port_of(address: &str) -> Result<(&str, u16)> {
    address
        .rsplit_once(':')
        .and_then(|(host, port)| Some((host, port.parse().ok()?)))
        .ok_or_else(|| DaemonError::Options(format!("'{address}' is no ADDR:PORT")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_move_with_the_local_rank() {
        assert_eq!(shift_port("[::1]:7700", 3).expect("valid"), "[::1]:7703");
        assert_eq!(shift_port("h:0", 3).expect("valid"), "h:0");
        assert!(shift_port("h:65535", 1).is_err());
    }
}
