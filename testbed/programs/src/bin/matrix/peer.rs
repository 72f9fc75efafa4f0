//! One end of a pair: a process on a function, with or without the library, that executes requests.
//! A request is a line of text.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::rc::Rc;

use testbed::foreign::Foreign;

use crate::Ucx;

/// The way of loading the library into a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EntryPoint {
    /// The library is not loaded.
    Absent,
    /// As a preload.
    Preload,
    /// As a plugin of UCX.
    Plugin,
    /// Both ways at once.
    Both,
    /// A patched UCX finds it in its module directory.
    Module,
    /// By `dlopen`, after the process has a context and exported memory.
    Late,
}

impl EntryPoint {
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

    /// Like [`EntryPoint::sign`], if the library is loaded when UCX is initialised.
    const fn sign_at_start(self, is_bound_inside: bool) -> Option<&'static str> {
        match self {
            Self::Late => None,
            _ => self.sign(is_bound_inside),
        }
    }

    /// Part of the library's log line in a process that uses it.
    const fn sign(self, is_bound_inside: bool) -> Option<&'static str> {
        match self {
            Self::Absent => None,
            Self::Preload | Self::Both if !is_bound_inside => Some("calls this library by name"),
            Self::Preload | Self::Both | Self::Plugin | Self::Module | Self::Late => {
                Some("calls this library through its")
            }
        }
    }
}

/// Parameters of the processes.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    pub(crate) library: PathBuf,
    pub(crate) host: Vec<String>,
    pub(crate) dpu: Vec<String>,
    /// The DPU's processor, if it is another one: with its own UCX, library, program and plugins.
    pub(crate) foreign: Option<Foreign>,
    pub(crate) plugins: Option<PathBuf>,
    /// The UCX is patched, and finds the library in its module directory.
    pub(crate) finds_modules: bool,
    /// UCX's references to its own functions are bound inside.
    pub(crate) is_bound_inside: bool,
    /// Defects that this UCX no longer has.
    pub(crate) mended: Vec<String>,
    /// Commands for `host` or `dpu` with an injected fault.
    pub(crate) failing: Vec<(String, Vec<String>)>,
    /// All installed copies of UCX.
    pub(crate) others: Vec<Ucx>,
    pub(crate) figures: Figures,
}

impl Launch {
    /// The same processes on another adapter, by the prefix of its commands.
    pub(crate) fn on(&self, adapter: &str) -> Result<Self, String> {
        let words = |part: &str| {
            let name = format!("{adapter}-{part}");
            let found = self.failing.iter().find(|(has, _)| *has == name);
            let words = found.map(|(_, words)| words.clone());
            words.ok_or_else(|| format!("no command {name}"))
        };
        Ok(Self {
            host: words("host")?,
            dpu: words("dpu")?,
            failing: vec![("counters".to_owned(), words("counters")?)],
            ..self.clone()
        })
    }
}

/// Numbers that the current case has measured, for its row of the report. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Figures(Rc<RefCell<BTreeMap<&'static str, u64>>>);

impl Figures {
    /// Reports a number under a name that states its unit. A case reports a name once.
    pub(crate) fn add(&self, name: &'static str, value: u64) {
        self.0.borrow_mut().insert(name, value);
    }

    /// The numbers since the last call.
    pub(crate) fn take(&self) -> BTreeMap<&'static str, u64> {
        self.0.take()
    }
}

/// Function of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Host,
    Dpu,
}

/// Time limit of a process in seconds: a case takes one or two.
const LIMIT_SECONDS: &str = "60";
/// The same with a user-mode emulator, on a loaded machine.
const FOREIGN_LIMIT_SECONDS: &str = "900";
/// Directory of the plugins beside the other processor's programs.
const FOREIGN_PLUGINS: &str = "plugins";

/// Adds the library to the launcher's preloads, and executes the program.
const PRELOAD: &str =
    r#"LD_PRELOAD="${LD_PRELOAD:+$LD_PRELOAD:}$1"; export LD_PRELOAD; shift; exec "$@""#;

/// A process.
pub(crate) struct Peer {
    name: String,
    /// Part of the library's log line, if the process uses the library.
    sign: Option<&'static str>,
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    /// Its lines other than answers.
    log: Vec<String>,
}

impl Peer {
    /// The command of a process with the given mode.
    pub(crate) fn command(
        launch: &Launch,
        ucx: &Ucx,
        side: Side,
        entry_point: EntryPoint,
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
        // Of both: each waits for the other.
        command.arg(match launch.foreign {
            None => LIMIT_SECONDS,
            Some(_) => FOREIGN_LIMIT_SECONDS,
        });
        let foreign = launch.foreign.as_ref().filter(|_| side == Side::Dpu);
        if let Some(foreign) = foreign {
            // Before the launcher, which preloads the device's library.
            command.arg("env");
            for (name, value) in foreign.environment() {
                command.arg(format!("{name}={}", value.display()));
            }
        }
        command.args(words).arg("env");
        for (name, value) in [
            // Loopback connections must use the adapter, otherwise the bytes would bypass it.
            ("UCX_TLS", "rc_x"),
            // The data of imported memory is not in this process: no protocol may copy it by the
            // CPU.
            ("UCX_ZCOPY_THRESH", "0"),
            ("UCX_XGVMI_LOG_LEVEL", "debug"),
        ] {
            command.arg(format!("{name}={value}"));
        }
        if entry_point.sign_at_start(launch.is_bound_inside).is_none() {
            // Without the library, its variables are unused.
            command.arg("UCX_WARN_UNUSED_ENV_VARS=n");
        }
        if let (Some(dir), None) = (&ucx.libraries, foreign) {
            command.arg(format!("LD_LIBRARY_PATH={}", dir.display()));
        }
        let own_plugins = foreign.map(|foreign| foreign.programs.join(FOREIGN_PLUGINS));
        let plugins = own_plugins.as_ref().or(launch.plugins.as_ref());
        if let (true, Some(dir)) = (entry_point.needs_plugin_path(), plugins) {
            command.arg(format!("UCX_PLUGIN_PATH={}", dir.display()));
        }
        if let (EntryPoint::Module, Some(dir)) = (entry_point, &launch.plugins) {
            command.arg(format!("UCX_MODULE_DIR={}", dir.display()));
        }
        for (name, value) in variables {
            command.arg(format!("{name}={value}"));
        }
        let beside = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default();
            foreign.map_or(path.clone(), |foreign| foreign.programs.join(name))
        };
        if entry_point.preloads() {
            command
                .args(["sh", "-c", PRELOAD, "sh"])
                .arg(beside(&launch.library));
        }
        command.args(foreign.map(|foreign| &foreign.emulator));
        command.arg(beside(&own)).arg(mode);
        command.arg(foreign.map_or(&ucx.libucp, |foreign| &foreign.ucx));
        Ok(command)
    }

    /// Runs a process to its end. Returns its lines, and whether it succeeded.
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
        entry_point: EntryPoint,
        variables: &[(&str, &str)],
    ) -> Result<Self, String> {
        let mut command = Self::command(launch, ucx, side, entry_point, variables, "agent")?;
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
        let name = format!(
            "{side:?} with UCX {}, library {}",
            ucx.version,
            entry_point.name()
        );
        let output = BufReader::new(output);
        let mut peer = Self {
            name,
            sign: entry_point.sign(launch.is_bound_inside),
            child,
            input,
            output,
            log: Vec::new(),
        };
        peer.answer("start")?;
        Ok(peer)
    }

    /// Sends a request. Returns the words of the answer if it succeeded.
    pub(crate) fn ask(&mut self, request: &str) -> Result<String, String> {
        let sent = writeln!(self.input, "{request}").and_then(|()| self.input.flush());
        sent.map_err(|error| format!("{}: {request}: {error}", self.name))?;
        self.answer(request)
    }

    /// Ends it and returns its log, with any content.
    pub(crate) fn log(mut self) -> Result<Vec<String>, String> {
        self.ask("quit")?;
        let status = self.child.wait().map_err(|error| error.to_string())?;
        match status.success() {
            true => Ok(std::mem::take(&mut self.log)),
            false => Err(format!("{}: {status}", self.name)),
        }
    }

    /// Ends it, and checks whether it used the library as intended.
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
        match (self.sign, trouble) {
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
        // After `end` it no longer exists; otherwise a failure has no remedy.
        let _killed = self.child.kill();
        let _reaped = self.child.wait();
    }
}
