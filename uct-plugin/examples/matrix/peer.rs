//! One end of a pair: a process on a function, with or without the library, that does what it is
//! told by lines.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::Ucx;

/// How the library comes into a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Door {
    /// Not at all.
    Absent,
    /// Preloaded.
    Preload,
    /// As a plugin of UCX.
    Plugin,
    /// Both ways at once.
    Both,
    /// Found by a patched UCX, in its module directory.
    Module,
    /// By `dlopen`, once the process has a context and exported memory.
    Late,
}

impl Door {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::Preload => "preload",
            Self::Plugin => "plugin",
            Self::Both => "both",
            Self::Module => "module",
            Self::Late => "late",
        }
    }

    pub(crate) const fn needs_plugin_path(self) -> bool {
        matches!(self, Self::Plugin | Self::Both)
    }

    const fn preloads(self) -> bool {
        matches!(self, Self::Preload | Self::Both)
    }

    /// As [`Door::sign`], if it is in when UCX is initialised.
    const fn sign_at_start(self) -> Option<&'static str> {
        match self {
            Self::Late => None,
            _ => self.sign(),
        }
    }

    /// What the library says when it is in.
    const fn sign(self) -> Option<&'static str> {
        match self {
            Self::Absent => None,
            Self::Preload | Self::Both => Some("calls this library by name"),
            Self::Plugin | Self::Module | Self::Late => Some("calls this library through its"),
        }
    }
}

/// How processes are started.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    pub(crate) library: PathBuf,
    pub(crate) host: Vec<String>,
    pub(crate) dpu: Vec<String>,
    pub(crate) plugins: Option<PathBuf>,
    /// The UCX is patched, and finds the library in its module directory.
    pub(crate) finds_modules: bool,
    /// Defects that the UCX has no more.
    pub(crate) mended: Vec<String>,
    /// Commands in place of `host` or `dpu`, with what goes wrong there.
    pub(crate) failing: Vec<(String, Vec<String>)>,
    /// All copies of UCX that are there.
    pub(crate) others: Vec<Ucx>,
}

/// On which function a process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Host,
    Dpu,
}

/// Seconds after which a process that still runs is ended: a case takes one or two.
const LIMIT_SECONDS: &str = "60";

/// Preloads the library behind what the launcher preloads, and becomes the program.
const PRELOAD: &str =
    r#"LD_PRELOAD="${LD_PRELOAD:+$LD_PRELOAD:}$1"; export LD_PRELOAD; shift; exec "$@""#;

/// A process.
pub(crate) struct Peer {
    name: String,
    door: Door,
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    /// What it said beside its answers.
    log: Vec<String>,
}

impl Peer {
    /// How a process is started that does what `mode` says.
    pub(crate) fn command(
        launch: &Launch,
        ucx: &Ucx,
        side: Side,
        door: Door,
        variables: &[(&str, &str)],
        mode: &str,
    ) -> Result<Command, String> {
        let own = std::env::current_exe().map_err(|error| format!("own path: {error}"))?;
        let words = if side == Side::Host {
            &launch.host
        } else {
            &launch.dpu
        };
        let mut command = Command::new("timeout");
        command.arg(LIMIT_SECONDS).args(words).arg("env");
        for (name, value) in [
            // Loopback connections must go over the adapter, or the bytes would never be on it.
            ("UCX_TLS", "rc_x"),
            // Data of imported memory is not in this process: no protocol may copy it by the CPU.
            ("UCX_ZCOPY_THRESH", "0"),
            ("UCX_XGVMI_LOG_LEVEL", "debug"),
        ] {
            command.arg(format!("{name}={value}"));
        }
        if door.sign_at_start().is_none() {
            // The variables of a library that is not there are unused indeed.
            command.arg("UCX_WARN_UNUSED_ENV_VARS=n");
        }
        if let Some(dir) = &ucx.libraries {
            command.arg(format!("LD_LIBRARY_PATH={}", dir.display()));
        }
        if let (true, Some(dir)) = (door.needs_plugin_path(), &launch.plugins) {
            command.arg(format!("UCX_PLUGIN_PATH={}", dir.display()));
        }
        if let (Door::Module, Some(dir)) = (door, &launch.plugins) {
            command.arg(format!("UCX_MODULE_DIR={}", dir.display()));
        }
        for (name, value) in variables {
            command.arg(format!("{name}={value}"));
        }
        if door.preloads() {
            command
                .args(["sh", "-c", PRELOAD, "sh"])
                .arg(&launch.library);
        }
        command.arg(own).arg(mode).arg(&ucx.libucp);
        Ok(command)
    }

    /// Runs a process to its end: its lines, and whether it succeeded.
    pub(crate) fn output(mut command: Command) -> Result<(Vec<String>, bool), String> {
        command.stdin(Stdio::null()).stderr(Stdio::inherit());
        let output = command.output();
        let output = output.map_err(|error| format!("{command:?}: {error}"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let lines = text.lines().map(str::to_owned).collect();
        Ok((lines, output.status.success()))
    }

    pub(crate) fn start(
        launch: &Launch,
        ucx: &Ucx,
        side: Side,
        door: Door,
        variables: &[(&str, &str)],
    ) -> Result<Self, String> {
        let mut command = Self::command(launch, ucx, side, door, variables, "agent")?;
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit());
        let mut child = command
            .spawn()
            .map_err(|error| format!("{command:?}: {error}"))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("a process without pipes".to_owned());
        };
        let name = format!("{side:?} with UCX {}, library {}", ucx.version, door.name());
        let output = BufReader::new(output);
        let mut peer = Self {
            name,
            door,
            child,
            input,
            output,
            log: Vec::new(),
        };
        peer.answer("start")?;
        Ok(peer)
    }

    /// Has one thing done; the answer's words, if it was.
    pub(crate) fn ask(&mut self, request: &str) -> Result<String, String> {
        let sent = writeln!(self.input, "{request}").and_then(|()| self.input.flush());
        sent.map_err(|error| format!("{}: {request}: {error}", self.name))?;
        self.answer(request)
    }

    /// Lets it end, and gives what it has logged, whatever that is.
    pub(crate) fn log(mut self) -> Result<Vec<String>, String> {
        self.ask("quit")?;
        let status = self.child.wait().map_err(|error| error.to_string())?;
        match status.success() {
            true => Ok(std::mem::take(&mut self.log)),
            false => Err(format!("{}: {status}", self.name)),
        }
    }

    /// Lets it end, and checks that the library was in it if it should.
    pub(crate) fn end(mut self) -> Result<(), String> {
        self.ask("quit")?;
        let status = self.child.wait().map_err(|error| error.to_string())?;
        if !status.success() {
            return Err(format!("{}: {status}", self.name));
        }
        let has = |part: &str| self.log.iter().any(|line| line.contains(part));
        let trouble = self.log.iter().find(|line| {
            ["XGVMI WARN", "XGVMI ERROR", "unused environment"]
                .iter()
                .any(|word| line.contains(word))
        });
        match (self.door.sign(), trouble) {
            (_, Some(line)) => Err(format!("{}: {line}", self.name)),
            (Some(sign), None) if !has(sign) => Err(format!("{}: no line '{sign}'", self.name)),
            (Some(_), None) if !has("pool: ") && !has("alias map: ") => {
                Err(format!("{}: the library served nothing", self.name))
            }
            (None, None) if has("XGVMI DEBUG") => Err(format!("{}: it is there", self.name)),
            _ => Ok(()),
        }
    }

    fn answer(&mut self, request: &str) -> Result<String, String> {
        let mut line = String::new();
        loop {
            line.clear();
            let read = self.output.read_line(&mut line);
            if !read.is_ok_and(|bytes| bytes > 0) {
                let last = self
                    .log
                    .iter()
                    .rev()
                    .take(3)
                    .rev()
                    .cloned()
                    .collect::<Vec<_>>();
                return Err(format!("{}: {request}: it died, {last:?}", self.name));
            }
            let line = line.trim_end();
            if let Some(answer) = line.strip_prefix("> ok") {
                return Ok(answer.trim_start().to_owned());
            }
            if let Some(error) = line.strip_prefix("> error ") {
                return Err(format!("{}: {request}: {error}", self.name));
            }
            self.log.push(line.to_owned());
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // After `end` it is gone already; otherwise there is nothing to be done about a failure.
        let _killed = self.child.kill();
        let _reaped = self.child.wait();
    }
}
