//! One test's directory: its processes, its files, and comparisons.

use super::{FILES, LIMIT, START, World};
use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use testbed::cluster::Cluster;
use testbed::port;
use testbed::process::{self, Running};

/// Where the work on a volume is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// The export holds the targets.
    Host,
    /// A service on a DPU holds the targets, and the export is an initiator.
    Dpu,
}

/// Directory and environment of one test.
pub(super) struct Place<'a> {
    pub(super) world: &'a World<'a>,
    pub(super) dir: PathBuf,
    pub(super) way: Way,
}

/// A running export. Dropping it kills it.
pub(super) struct Server {
    pub(super) running: Running,
    pub(super) uri: String,
    /// The service and its device.
    pub(super) service: Option<Service>,
}

/// A running service. The fields end in their order.
pub(super) struct Service {
    pub(super) running: Running,
    /// Its targets and options.
    words: Vec<String>,
    address: String,
    device: Cluster,
}

impl Server {
    /// Output of the process that holds the targets.
    pub(super) fn said(&self) -> String {
        let holder = self.service.as_ref().map(|service| &service.running);
        holder.unwrap_or(&self.running).said()
    }

    /// Kills the service and starts it again.
    pub(super) fn renew_service(&mut self, place: &Place<'_>) -> Result<()> {
        let service = self.service.as_mut().context("a service")?;
        service.running.group.kill();
        // The next one needs its port and its locks.
        process::wait_until(START, || service.running.group.has_ended());
        let listen = service.address.clone();
        service.running = place.start_service(&service.device, &service.words, &listen)?;
        Ok(())
    }
}

impl<'a> Place<'a> {
    /// A new directory with this name, for work on the host.
    pub(super) fn on_host(world: &'a World<'a>, name: &str) -> Result<Self> {
        let dir = world.dir.join(name);
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
        Ok(Self {
            world,
            dir,
            way: Way::Host,
        })
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Runs a stock program. Returns its output.
    pub(super) fn stock(&self, program: &str, arguments: &[&str]) -> Result<String> {
        self.stock_within(LIMIT, program, arguments)
    }

    pub(super) fn stock_within(
        &self,
        limit: Duration,
        program: &str,
        arguments: &[&str],
    ) -> Result<String> {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(&self.dir);
        for (name, value) in self.world.tools {
            command.env(name, value);
        }
        process::stdout(&mut command, limit)
    }

    pub(super) fn ours(&self, arguments: &[&str]) -> Result<String> {
        let mut command = Command::new(self.world.bin.join("xgvmi-blk"));
        process::stdout(command.args(arguments).current_dir(&self.dir), LIMIT)
    }

    /// Creates the targets of a volume.
    pub(super) fn create(&self, mib: u64, block_size: u32) -> Result<()> {
        let (size, block_size) = (format!("{mib}M"), block_size.to_string());
        let mut words = vec!["create"];
        words.extend(FILES);
        words.extend(["--size", size.as_str(), "--block-size", block_size.as_str()]);
        self.ours(&words).map(drop)
    }

    /// Creates the targets of another volume in place of what is there.
    pub(super) fn create_again(&self, mib: u64) -> Result<()> {
        for name in FILES {
            fs::remove_file(self.path(name))?;
        }
        self.create(mib, 4096)
    }

    /// Exports the volume on these targets.
    pub(super) fn export(&self, targets: &[&str]) -> Result<Server> {
        let service = match self.way {
            Way::Host => None,
            Way::Dpu => {
                let device = self.world.cluster(1)?;
                let words: Vec<String> = targets.iter().map(|word| (*word).to_owned()).collect();
                let address = format!("127.0.0.1:{}", port::free()?);
                Some(Service {
                    running: self.start_service(&device, &words, &address)?,
                    words,
                    address,
                    device,
                })
            }
        };
        let program = self.world.bin.join("xgvmi-blk");
        let mut command = match &service {
            None => Command::new(program),
            Some(service) => service.device.command("node0.host", &program),
        };
        command.arg("export").current_dir(&self.dir);
        match &service {
            None => command.args(targets),
            Some(service) => command.args(["--service", &service.address]),
        };
        // A path of a socket has at most 107 bytes, and a checkout may be deep: a relative one is short.
        command.args(["--socket", "socket"]);
        let running = Running::saying(&mut command, START, "exports volume")?;
        Ok(Server {
            running,
            uri: "nbd+unix:///?socket=socket".to_owned(),
            service,
        })
    }

    /// Starts a service on the DPU.
    pub(super) fn start_service(
        &self,
        device: &Cluster,
        words: &[String],
        listen: &str,
    ) -> Result<Running> {
        let mut command = match self.world.dpu {
            None => device.command("node0.dpu", self.world.bin.join("xgvmi-blk")),
            Some(foreign) => foreign.command(device, "node0.dpu", "xgvmi-blk"),
        };
        command.arg("service").args(words);
        command.args(["--listen", listen]).current_dir(&self.dir);
        Running::saying(&mut command, START, " serves volume")
    }

    /// As [`Place::target`], at an address to which it can return.
    pub(super) fn new_target(&self, file: &str) -> Result<(Running, String)> {
        self.target(file, &format!("127.0.0.1:{}", port::free()?))
    }

    /// Serves a target in a process of its own. Returns it and its address.
    pub(super) fn target(&self, file: &str, listen: &str) -> Result<(Running, String)> {
        let mut command = Command::new(self.world.bin.join("xgvmi-blk"));
        command
            .args(["target", file, "--listen", listen])
            .current_dir(&self.dir);
        let mut running = Running::spawn(&mut command)?;
        let ready = process::wait_until(START, || {
            running.said().contains(" at tcp:") || running.group.has_ended()
        });
        let said = running.said();
        let address = said
            .split_whitespace()
            .find(|word| word.starts_with("tcp:"));
        let address = address
            .filter(|_| ready)
            .with_context(|| format!("the target does not start:\n{said}"))?;
        Ok((running, address.to_owned()))
    }

    /// Waits until all targets hold everything, by the status socket `status`.
    pub(super) fn settle(&self) -> Result<()> {
        let show = || -> Result<Value> {
            let said = self.ours(&["ctl", "--socket", "status", "show"])?;
            serde_json::from_str(&said).with_context(|| said.clone())
        };
        let mut last = Value::Null;
        let complete = |target: &Value| {
            target["complete"] == true && target["absent"] == "" && target["missing_blocks"] == 0
        };
        let settled = process::wait_until(LIMIT, || {
            last = show().unwrap_or_default();
            last["targets"]
                .as_array()
                .is_some_and(|all| all.len() == 3 && all.iter().all(complete))
        });
        ensure!(settled, "not all targets become complete: {last}");
        ensure!(last["lost_blocks"] == 0, "{last}");
        Ok(())
    }

    /// Writes a file of `mib` MiB: text, noise and zeros in turn, 64 KiB each.
    pub(super) fn image(&self, name: &str, mib: u64) -> Result<()> {
        let mut bytes = Vec::new();
        let mut random = fastrand::Rng::with_seed(1);
        let length = usize::try_from(mib << 20)?;
        while bytes.len() < length {
            for line in 0..2048u32 {
                let text = format!("line {line:8} of an image, {:8}\n", bytes.len());
                bytes.extend_from_slice(&text.as_bytes()[..32]);
            }
            let noise = bytes.len();
            bytes.resize(noise + (64 << 10), 0);
            random.fill(&mut bytes[noise..]);
            bytes.resize(bytes.len() + (64 << 10), 0);
        }
        bytes.truncate(length);
        fs::write(self.path(name), bytes).with_context(|| name.to_owned())
    }

    /// Fails unless two files are equal.
    pub(super) fn same(&self, one: &str, other: &str) -> Result<()> {
        let read = |name: &str| fs::read(self.path(name)).with_context(|| name.to_owned());
        let (one_bytes, other_bytes) = (read(one)?, read(other)?);
        let differs = one_bytes.iter().zip(&other_bytes).position(|(a, b)| a != b);
        ensure!(
            one_bytes.len() == other_bytes.len(),
            "{one} and {other} have different lengths"
        );
        ensure!(
            differs.is_none(),
            "{one} and {other} differ at byte {differs:?}"
        );
        Ok(())
    }

    /// The report of a scrub: all is right.
    pub(super) fn scrub(&self) -> Result<Value> {
        let mut words = vec!["scrub"];
        words.extend(FILES);
        let report: Value = serde_json::from_str(&self.ours(&words)?)?;
        for name in ["bad_halves", "lost_blocks"] {
            ensure!(report[name] == 0, "the scrub finds {name}: {report}");
        }
        Ok(report)
    }

    /// Copies the volume out, also with each target absent, and compares it with `image`.
    pub(super) fn compare_each(&self, image: &str) -> Result<()> {
        for absent in [None, Some(0), Some(1), Some(2)] {
            let server = self.export(&without(absent))?;
            self.stock("nbdcopy", &[&server.uri, "out"])?;
            self.same(image, "out")
                .with_context(|| format!("without target {absent:?}"))?;
        }
        Ok(())
    }
}

/// The targets without one of them.
pub(super) fn without(absent: Option<usize>) -> Vec<&'static str> {
    let targets = FILES.iter().enumerate();
    targets
        .filter(|(index, _)| Some(*index) != absent)
        .map(|(_, name)| *name)
        .collect()
}

/// Servers that run: that of the clients, and those behind it.
pub(super) struct Served {
    pub(super) server: Server,
    pub(super) behind: Vec<Running>,
}

impl Served {
    /// Without servers behind it.
    pub(super) fn alone(server: Server) -> Self {
        let behind = Vec::new();
        Self { server, behind }
    }

    /// Processor time of all processes.
    pub(super) fn processor(&self) -> Result<Duration> {
        let each = std::iter::once(&self.server.running).chain(&self.behind);
        each.map(|running| process::processor_time(running.group.child.id()))
            .sum()
    }
}
