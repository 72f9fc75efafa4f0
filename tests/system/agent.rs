//! Drives `programs/verbs_agent.c`: a process in one function of the device that executes commands.

use crate::process;
use crate::talk::Talk;
use crate::world::{LIMIT, Testbed, World};
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// Time limit of a command. The slowest command registers memory.
const ANSWER: Duration = Duration::from_secs(20);

/// A running agent with an open device.
pub(crate) struct Agent {
    name: String,
    talk: Talk,
    pub(crate) vhca: u32,
    lid: u32,
}

/// The answer to a command: `ok` with values, or a refusal.
#[derive(Debug)]
pub(crate) struct Answer {
    command: String,
    line: String,
}

/// Memory of an agent, registered in its slot.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Memory {
    pub(crate) addr: u64,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
}

/// The status of a work completion, with libibverbs' names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wc {
    Success,
    LocProtErr,
    WrFlushErr,
    RemAccessErr,
    Other(u32),
}

impl Agent {
    pub(crate) fn start(testbed: &Testbed<'_>, function: &str) -> Result<Self> {
        Self::start_with(testbed, &[], function)
    }

    /// Like [`Agent::start`], with options of `bf-emu run`.
    pub(crate) fn start_with(
        testbed: &Testbed<'_>,
        options: &[&str],
        function: &str,
    ) -> Result<Self> {
        let talk =
            Talk::start(&mut testbed.command_with(options, function, compile("verbs_agent")?))?;
        let mut agent = Self {
            name: function.to_owned(),
            talk,
            vhca: 0,
            lid: 0,
        };
        let answer = agent.ask("open")?;
        agent.vhca = answer.value("vhca")?;
        agent.lid = answer.value("lid")?;
        Ok(agent)
    }

    /// Address of its port.
    pub(crate) fn lid(&self) -> u32 {
        self.lid
    }

    /// Sends one line and waits for the answer.
    pub(crate) fn ask(&mut self, command: &str) -> Result<Answer> {
        let line = self
            .talk
            .ask(command, ANSWER)
            .with_context(|| format!("{} at '{command}'", self.name))?;
        Ok(Answer {
            command: format!("{}: {command}", self.name),
            line,
        })
    }

    /// Sends one line. The command must succeed.
    pub(crate) fn tell(&mut self, command: &str) -> Result<Answer> {
        let answer = self.ask(command)?;
        ensure!(answer.is_ok(), "{} -> {}", answer.command, answer.line);
        Ok(answer)
    }

    pub(crate) fn memory(&mut self, slot: u32, size: u64, rights: &str) -> Result<Memory> {
        let answer = self.tell(&format!("mem {slot} {size} {rights}"))?;
        Ok(Memory {
            addr: answer.value("addr")?,
            lkey: answer.value("lkey")?,
            rkey: answer.value("rkey")?,
        })
    }

    pub(crate) fn fill(&mut self, slot: u32, offset: u64, length: u64, seed: u64) -> Result<()> {
        self.tell(&format!("fill {slot} {offset} {length} {seed}"))
            .map(drop)
    }

    /// Fails unless these bytes equal those of `fill` with the same length and seed, at any place.
    pub(crate) fn expect(&mut self, slot: u32, offset: u64, length: u64, seed: u64) -> Result<()> {
        self.check(slot, offset, length, seed, 0)
    }

    /// Fails unless these bytes equal the contents after a `fill` of the whole memory.
    pub(crate) fn expect_kept(
        &mut self,
        slot: u32,
        offset: u64,
        length: u64,
        seed: u64,
    ) -> Result<()> {
        self.check(slot, offset, length, seed, offset)
    }

    fn check(&mut self, slot: u32, offset: u64, length: u64, seed: u64, base: u64) -> Result<()> {
        let answer = self.tell(&format!("check {slot} {offset} {length} {seed} {base}"))?;
        ensure!(
            answer.value::<u32>("same")? == 1,
            "{} -> {}",
            answer.command,
            answer.line
        );
        Ok(())
    }

    /// Kills the process, as a crash would.
    pub(crate) fn end(&mut self) -> Result<()> {
        self.talk.end()
    }

    /// One RDMA operation, until its completion.
    pub(crate) fn rdma(
        &mut self,
        verb: &str,
        local: (u64, u32),
        remote: (u64, u32),
        length: u64,
    ) -> Result<Wc> {
        let (laddr, lkey) = local;
        let (raddr, rkey) = remote;
        let answer = self.tell(&format!("{verb} 0 {laddr} {lkey} {raddr} {rkey} {length}"))?;
        answer.wc()
    }
}

/// A running agent of another program, with an open device.
pub(crate) struct Driven {
    pub(crate) name: &'static str,
    talk: Talk,
    limit: Duration,
    /// The answer to `open`.
    pub(crate) opened: Answer,
}

impl Driven {
    /// Starts `programs/NAME.c` in a function, with options of `bf-emu run` and the time limit of a command.
    pub(crate) fn start(
        testbed: &Testbed<'_>,
        options: &[&str],
        function: &'static str,
        (program, limit): (&str, Duration),
    ) -> Result<Self> {
        let mut command = testbed.command_with(options, function, compile(program)?);
        let mut talk = Talk::start(&mut command)?;
        let line = talk.ask("open", limit)?;
        let opened = Answer::new(format!("{function}: open"), line);
        opened.expect_start("ok")?;
        Ok(Self {
            name: function,
            talk,
            limit,
            opened,
        })
    }

    /// Sends one line and waits for the answer.
    pub(crate) fn ask(&mut self, command: &str) -> Result<Answer> {
        let line = self
            .talk
            .ask(command, self.limit)
            .with_context(|| format!("{} at '{command}'", self.name))?;
        Ok(Answer::new(format!("{}: {command}", self.name), line))
    }

    /// Sends one line. The command must succeed.
    pub(crate) fn tell(&mut self, command: &str) -> Result<Answer> {
        let answer = self.ask(command)?;
        answer.expect_start("ok")?;
        Ok(answer)
    }

    /// Kills the process, as a crash would.
    pub(crate) fn end(&mut self) -> Result<()> {
        self.talk.end()
    }
}

/// Connects a fresh pair of QPs, in slot 0 of both agents.
pub(crate) fn connect(a: &mut Agent, b: &mut Agent) -> Result<()> {
    let a_qpn: u32 = a.tell("qp 0")?.value("qpn")?;
    let b_qpn: u32 = b.tell("qp 0")?.value("qpn")?;
    let (a_lid, b_lid) = (a.lid, b.lid);
    a.tell(&format!("connect 0 {b_qpn} {b_lid}"))?;
    b.tell(&format!("connect 0 {a_qpn} {a_lid}"))?;
    Ok(())
}

impl Answer {
    /// The command and its answer.
    pub(crate) fn new(command: String, line: String) -> Self {
        Self { command, line }
    }

    pub(crate) fn is_ok(&self) -> bool {
        self.line == "ok" || self.line.starts_with("ok ")
    }

    pub(crate) fn value<T: std::str::FromStr>(&self, key: &str) -> Result<T> {
        let found = self
            .line
            .split(' ')
            .find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
        let value = found.and_then(|text| text.parse().ok());
        value.with_context(|| format!("no {key} in the answer: {} -> {}", self.command, self.line))
    }

    pub(crate) fn wc(&self) -> Result<Wc> {
        Ok(match self.value::<u32>("wc")? {
            0 => Wc::Success,
            4 => Wc::LocProtErr,
            5 => Wc::WrFlushErr,
            10 => Wc::RemAccessErr,
            other => Wc::Other(other),
        })
    }

    /// Fails unless the answer starts with this text.
    pub(crate) fn expect_start(&self, start: &str) -> Result<()> {
        ensure!(
            self.line.starts_with(start),
            "{} -> {}, not {start}",
            self.command,
            self.line
        );
        Ok(())
    }

    /// Whether the answer contains this text.
    pub(crate) fn contains(&self, part: &str) -> bool {
        self.line.contains(part)
    }

    /// Whether the answer ends with this text.
    pub(crate) fn ends_with(&self, end: &str) -> bool {
        self.line.ends_with(end)
    }

    /// Fails unless the command was refused.
    pub(crate) fn expect_refusal(&self) -> Result<()> {
        ensure!(
            !self.is_ok(),
            "{} was not refused: {}",
            self.command,
            self.line
        );
        Ok(())
    }
}

/// Compiles `programs/NAME.c`, a program on libibverbs.
pub(crate) fn compile(name: &str) -> Result<PathBuf> {
    compile_with(name, &["-libverbs", "-lmlx5"])
}

/// Compiles `programs/NAME.c` against the stock UCX under test, with more options in front.
pub(crate) fn compile_for_ucx(world: &World, name: &str, more: &[&OsStr]) -> Result<PathBuf> {
    let mut libraries = OsString::from("-L");
    libraries.push(&world.ucx_lib);
    let mut options = more.to_vec();
    options.extend([
        "-isystem".as_ref(),
        world.ucx_include.as_os_str(),
        &libraries,
        "-l:libucp.so.0".as_ref(),
        "-l:libucs.so.0".as_ref(),
        "-Wl,--allow-shlib-undefined".as_ref(),
    ]);
    compile_with(name, &options)
}

/// Compiles `programs/NAME.c`.
pub(crate) fn compile_with<S: AsRef<OsStr>>(name: &str, options: &[S]) -> Result<PathBuf> {
    compile_by("cc", &format!("{name}.c"), options)
}

/// As [`compile_with`], for a program in C++20.
pub(crate) fn compile_cxx<S: AsRef<OsStr>>(name: &str, options: &[S]) -> Result<PathBuf> {
    let standard = OsStr::new("-std=gnu++20");
    let options: Vec<&OsStr> = options
        .iter()
        .map(AsRef::as_ref)
        .chain([standard])
        .collect();
    compile_by("c++", &format!("{name}.cc"), &options)
}

/// Compiles a source once per run: tests run at the same time, and the program of one must not vanish while another one
/// writes it anew.
fn compile_by<S: AsRef<OsStr>>(compiler: &str, source: &str, options: &[S]) -> Result<PathBuf> {
    type Built = Arc<OnceLock<Result<PathBuf, String>>>;
    static BUILT: Mutex<BTreeMap<Vec<OsString>, Built>> = Mutex::new(BTreeMap::new());
    let mut words = vec![OsString::from(source)];
    words.extend(options.iter().map(|option| option.as_ref().to_owned()));
    let mut all = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    let one = Arc::clone(all.entry(words).or_default());
    drop(all);
    let built = one.get_or_init(|| {
        compile_now(compiler, source, options).map_err(|error| format!("{error:#}"))
    });
    built.clone().map_err(anyhow::Error::msg)
}

fn compile_now<S: AsRef<OsStr>>(compiler: &str, source: &str, options: &[S]) -> Result<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("programs")
        .join(source);
    let name = path.file_stem().context("a source's name")?;
    let binary = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let source = &path;
    // Another run of these tests may start the program meanwhile.
    let new = binary.with_extension(std::process::id().to_string());
    let mut cc = Command::new(compiler);
    cc.args(["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&new)
        .arg(source);
    process::stdout(cc.args(options), LIMIT)?;
    std::fs::rename(&new, &binary)?;
    Ok(binary)
}
