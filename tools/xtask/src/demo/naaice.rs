//! `cargo xtask demo naaice`: a remote call on fresh buffers, by the way in which the accelerator reaches them. This
//! file builds; `xgvmi-testbed` runs.

use super::orchestrated::{self, Valued};
use crate::{process, setup, workspace};
use anyhow::{Context, Result};
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

const HELP: &str = "\
Usage: cargo xtask demo naaice [OPTIONS]

One shots (create, call, finalize) on fresh buffers, and calls of one session, from node0.host to accelerators on two
emulated nodes. The caller verifies every byte. Ways:
  verbs     libnaaice over an RDMA connection to node1.dpu: the host writes inputs, the accelerator writes outputs
  loop      the same calls by a hand-written verbs loop, without sessions
  ksm       xgvmi-naa on node0.dpu: aliases of a key per region and session
  pool      xgvmi-naa on node0.dpu: aliases of pooled keys, announced ahead
  original  as verbs, with the server of the NAAICE communication library; XGVMI_NAAICE_BUILT names its directory

  --sizes LIST       bytes of each region: two inputs, one output [default: 1K,16K,64K,256K,1M,4M,16M,64M]
  --iterations N     one shots, and calls, per size; fewer above 1 MiB [default: 50]
  --quick            sizes 16K,256K, ten iterations

Host and accelerators run on different cores if there are two. The ways take turns. Then the host computes during calls:
the table shows the share of a call that takes no additional time.

Writes target/demo-naaice/report.json, report.md, report.svg.";

/// Directory of the original's built programs.
const ORIGINAL: &str = "XGVMI_NAAICE_BUILT";
const OPTIONS: [Valued; 2] = [
    ("sizes", "1K,16K,64K,256K,1M,4M,16M,64M", "16K,256K"),
    ("iterations", "50", "10"),
];
const LIMIT: Duration = Duration::from_secs(900);

/// Runs the demo with the arguments after `cargo xtask demo naaice`.
pub(super) fn run(arguments: Vec<String>) -> Result<ExitCode> {
    let Some(options) = orchestrated::parse("naaice", &OPTIONS, arguments)? else {
        println!("{HELP}");
        return Ok(ExitCode::SUCCESS);
    };
    let env = setup::ensure()?;
    workspace::build(&["-p bf-emu -p bf-emu-preload -p testbed-programs -p naaice -p xgvmi-naa"])?;
    let output = workspace::reports_dir("demo-naaice");
    let programs = Programs::compile(&env)?;
    let mut command = orchestrated::program("naaice-demo", &output, &options);
    command.arg("--kernels").arg(&programs.kernels);
    command.arg("--server").arg(&programs.server);
    command.arg("--by-hand").arg(&programs.by_hand);
    if let Some(original) = std::env::var_os(ORIGINAL) {
        command.arg("--original").arg(original);
    }
    orchestrated::run(command.envs(env.for_verbs()), LIMIT, &output)
}

/// C programs of the demo, with the kernels of the tests.
struct Programs {
    kernels: PathBuf,
    server: PathBuf,
    by_hand: PathBuf,
}

impl Programs {
    fn compile(env: &setup::Env) -> Result<Self> {
        let release = workspace::built("").display().to_string();
        // Before LD_LIBRARY_PATH, in which cargo names the directory of a debug build.
        let rpath = format!("-Wl,--disable-new-dtags,-rpath,{release}");
        let library = ["-L", &release, "-lnaaice", &rpath, "-lpthread"];
        Ok(Self {
            kernels: compile(env, &["naaice_kernels"], &["-shared", "-fPIC"])?,
            server: compile(env, &["naaice_server", "naaice_kernels"], &library)?,
            by_hand: compile(
                env,
                &["naaice_loop", "naaice_kernels"],
                &["-lrdmacm", "-libverbs"],
            )?,
        })
    }
}

/// Compiles programs of the tests. The result has the name of the first one.
fn compile(env: &setup::Env, sources: &[&str], options: &[&str]) -> Result<PathBuf> {
    let root = workspace::root();
    let place = workspace::target_dir().join("naaice");
    std::fs::create_dir_all(&place).with_context(|| place.display().to_string())?;
    let binary = place.join(sources[0]);
    let mut cc = Command::new("cc");
    cc.args(["-O3", "-o"]).arg(&binary);
    cc.arg("-I").arg(root.join("clients/naaice/include"));
    for source in sources {
        cc.arg(root.join(format!("tests/programs/{source}.c")));
    }
    process::stdout(cc.args(options).envs(env.for_cc()), LIMIT)?;
    Ok(binary)
}
