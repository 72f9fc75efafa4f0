//! Counters of ports in the tree: `infiniband/mlx5_INDEX/ports/PORT/hw_counters/NAME`, and `counters/NAME`.
//!
//! The tree consists of plain files, so a reader's process writes the present count into the file
//! before it reads.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::fabric::Fabric;
use crate::fabric::counters::{CounterDir, PortCounter};

/// A counter that a path names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Index of the function in the view.
    pub index: usize,
    /// Number of the port.
    pub port: u8,
    /// The counter.
    pub counter: PortCounter,
}

impl Asked {
    /// The counter of a path; None for another file.
    #[must_use]
    pub fn of(path: &[u8]) -> Option<Self> {
        let mut parts = path
            .rsplit(|byte| *byte == b'/')
            .filter(|part| !part.is_empty());
        let name = parts.next()?;
        let dir = parts.next()?;
        let mut dirs = CounterDir::ALL.into_iter();
        let dir = dirs.find(|known| known.name().as_bytes() == dir)?;
        let mut counters = PortCounter::ALL.iter().filter(|one| one.dir() == Some(dir));
        let counter = counters.find(|counter| counter.name().as_bytes() == name)?;
        let port = number(parts.next()?)?;
        if parts.next()? != b"ports" {
            return None;
        }
        let index = number(parts.next()?.strip_prefix(b"mlx5_")?)?;
        Some(Self {
            index,
            port,
            counter: *counter,
        })
    }

    /// Writes the count into the file at `path`. `functions` are those of the view.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn refresh(&self, fabric: &Fabric, functions: &[usize], path: &[u8]) -> io::Result<()> {
        let Some(function) = functions.get(self.index) else {
            return Ok(());
        };
        let path = Path::new(OsStr::from_bytes(path));
        let file: File = OpenOptions::new().write(true).open(path)?;
        // A count never falls, so that under the lock no text replaces a longer one.
        file.lock()?;
        let count = fabric.counters(*function).of_port(self.port, self.counter);
        file.write_all_at(format!("{count}\n").as_bytes(), 0)
    }
}

fn number<T: std::str::FromStr>(digits: &[u8]) -> Option<T> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine;
    use crate::model::profile::Profile;
    use crate::model::topology::Topology;

    #[test]
    fn paths() {
        let asked = Some(Asked {
            index: 1,
            port: 2,
            counter: PortCounter::RnrNakRetryErr,
        });
        for (path, expect) in [
            (
                "/s/class/infiniband/mlx5_1/ports/2/hw_counters/rnr_nak_retry_err",
                asked,
            ),
            (
                "/s/infiniband/mlx5_1//ports/2/hw_counters/rnr_nak_retry_err",
                asked,
            ),
            ("/s/infiniband/mlx5_1/ports/2/hw_counters/other", None),
            ("/s/infiniband/mlx5_1/ports/2/hw_counters/bad_pkey", None),
            (
                "/s/infiniband/mlx5_1/ports/2/counters/rnr_nak_retry_err",
                None,
            ),
            (
                "/s/infiniband/mlx5_0/ports/1/counters/port_xmit_data",
                Some(Asked {
                    index: 0,
                    port: 1,
                    counter: PortCounter::PortXmitData,
                }),
            ),
            ("/s/infiniband/mlx5_1/ports/2/hw_counters", None),
            (
                "/s/infiniband/mlx5_1/ports/x/hw_counters/out_of_buffer",
                None,
            ),
            (
                "/s/infiniband/mlx4_1/ports/1/hw_counters/out_of_buffer",
                None,
            ),
            ("hw_counters/out_of_buffer", None),
            ("", None),
        ] {
            assert_eq!(Asked::of(path.as_bytes()), expect, "{path}");
        }
    }

    #[test]
    fn a_file_has_the_present_count() {
        let dir = tempfile::tempdir().unwrap();
        let topology = Topology::with_nodes(1).unwrap();
        let fabric =
            engine::create(dir.path(), &topology, &Profile::load("none").unwrap()).unwrap();
        let path = dir.path().join("out_of_buffer");
        std::fs::write(&path, "0\n").unwrap();
        let asked = Asked {
            index: 0,
            port: 1,
            counter: PortCounter::OutOfBuffer,
        };
        for expect in 1..=11 {
            fabric.counters(1).count_port(1, PortCounter::OutOfBuffer);
            fabric
                .counters(1)
                .count_port(2, PortCounter::RnrNakRetryErr);
            let refreshed = asked.refresh(&fabric, &[1], path.as_os_str().as_bytes());
            refreshed.unwrap();
            assert_eq!(
                std::fs::read_to_string(&path).unwrap(),
                format!("{expect}\n")
            );
        }
    }
}
