//! Programs of another processor in functions of an emulated cluster, under a user-mode emulator.

use crate::cluster::Cluster;
use anyhow::{Context as _, Result};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;

/// Name of the device emulator's library.
const PRELOAD: &str = "libbfemu_preload.so";

/// Another processor: its emulator, libraries and programs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Foreign {
    /// Its name, such as `aarch64`.
    pub architecture: String,
    /// The user-mode emulator.
    pub emulator: PathBuf,
    /// The root of its system's libraries.
    pub libraries: PathBuf,
    /// Directory of the project's programs and libraries for it.
    pub programs: PathBuf,
    /// Its `libucp`.
    pub ucx: PathBuf,
}

impl Foreign {
    /// The command that runs one of its programs in a function. The program's name is that of a file beside the project's
    /// programs, or the path of another program.
    pub fn command(&self, cluster: &Cluster, function: &str, program: impl AsRef<Path>) -> Command {
        let mut command = cluster.command(function, &self.emulator);
        command.arg(self.programs.join(program));
        // Libraries that are loaded before others are those of the same name for this processor.
        let variables = command.get_envs();
        let preloaded = variables
            .filter(|(name, _)| *name == "LD_PRELOAD")
            .find_map(|(_, value)| value.map(|list| self.translated(list)));
        if let Some(list) = preloaded {
            command.env("LD_PRELOAD", list);
        }
        command.envs(self.environment());
        command
    }

    /// The paths of a list that colons separate, each beside this processor's programs.
    fn translated(&self, list: &OsStr) -> OsString {
        let list = list.to_string_lossy();
        let own = |path: &str| {
            let name = Path::new(path).file_name().unwrap_or_default();
            self.programs.join(name).display().to_string()
        };
        let paths: Vec<String> = list.split(':').map(own).collect();
        paths.join(":").into()
    }

    /// Variables of its programs.
    #[must_use]
    pub fn environment(&self) -> [(&'static str, PathBuf); 4] {
        let triplet = format!("{}-linux-gnu", self.architecture);
        let system = self.libraries.join("usr/lib").join(triplet);
        let ucx = self.ucx.parent().unwrap_or(&self.ucx);
        [
            ("BFEMU_PRELOAD", self.programs.join(PRELOAD)),
            ("QEMU_LD_PREFIX", self.libraries.clone()),
            // libibverbs searches a directory of this machine otherwise.
            ("IBV_DRIVERS", system.join("libibverbs/libmlx5")),
            ("LD_LIBRARY_PATH", ucx.to_owned()),
        ]
    }
}

/// The five fields, which colons separate: no library path may contain one.
impl FromStr for Foreign {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let fields: [&str; 5] = text
            .split(':')
            .collect::<Vec<_>>()
            .try_into()
            .ok()
            .with_context(|| {
                format!("'{text}' is not PROCESSOR:EMULATOR:LIBRARIES:PROGRAMS:LIBUCP")
            })?;
        let [architecture, emulator, libraries, programs, ucx] = fields;
        Ok(Self {
            architecture: architecture.to_owned(),
            emulator: emulator.into(),
            libraries: libraries.into(),
            programs: programs.into(),
            ucx: ucx.into(),
        })
    }
}

impl std::fmt::Display for Foreign {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            architecture,
            emulator,
            libraries,
            programs,
            ucx,
        } = self;
        let [emulator, libraries, programs, ucx] =
            [emulator, libraries, programs, ucx].map(|path| path.display());
        write!(f, "{architecture}:{emulator}:{libraries}:{programs}:{ucx}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_foreign_program_gets_libraries_of_its_processor() {
        let text = "aarch64:/q/qemu:/root:/bin:/ucx/libucp.so.0";
        let foreign: Foreign = text.parse().unwrap();
        assert_eq!(foreign.to_string(), text);
        let cluster = Cluster::at("emulator", "place/state", 1)
            .envs([("LD_PRELOAD".to_owned(), "/here/a.so:/there/b.so".to_owned())]);
        let command = foreign.command(&cluster, "node0.dpu", "service");
        let shown = crate::process::shown(&command);
        assert!(
            shown.ends_with("--as node0.dpu -- /q/qemu /bin/service"),
            "{shown}"
        );
        let value = |name: &str| {
            let found = command.get_envs().find(|(other, _)| *other == name);
            found.and_then(|(_, value)| value?.to_str())
        };
        assert_eq!(value("LD_PRELOAD"), Some("/bin/a.so:/bin/b.so"));
        assert_eq!(value("BFEMU_PRELOAD"), Some("/bin/libbfemu_preload.so"));
        assert_eq!(value("LD_LIBRARY_PATH"), Some("/ucx"));
        assert_eq!(value("QEMU_LD_PREFIX"), Some("/root"));
        let other = foreign.command(&cluster, "node0.dpu", "/usr/bin/tool");
        assert!(crate::process::shown(&other).ends_with("/q/qemu /usr/bin/tool"));
        let error = "aarch64:/q/qemu".parse::<Foreign>().unwrap_err();
        assert!(error.to_string().contains("PROCESSOR:EMULATOR"), "{error}");
    }
}
