//! Unit tests of crates that run on a DPU, under a user-mode emulator.

use super::{LIMIT, STARTER_EMULATOR, cargo, command, starter, to_end, tools};
use crate::{Case, World};
use anyhow::{Context as _, Result, ensure};
use dev_setup::aarch64::Aarch64;
use std::process::Command;
use std::time::Duration;
use testbed::headers;

/// Time limit of the tests of one crate. The longest take ten minutes on a loaded machine.
const CRATE: Duration = Duration::from_secs(2400);
/// Exit code of tests that the limit has ended.
const ENDED: &str = "exit status: 124";

/// Crates whose unit tests run on the processor.
const TESTED: &[&str] = &[
    "mlx5-prm",
    "xgvmi-pool",
    "uct-plugin",
    "xgvmi-daemon",
    "xgvmi-verbs",
    "xgvmi-ucp",
    "xgvmi-offload",
    "xgvmi-blk",
    "naaice",
    "xgvmi-naa",
    "ucc-tl",
    "flexio",
    "bf-emu",
];

/// Libraries whose names are not those of their packages.
const NAMES: [(&str, &str); 2] = [
    ("uct-plugin", "uct_ib_mlx5_xgvmi"),
    ("ucc-tl", "ucc_tl_xgvmi"),
];

/// Bindings whose tests compare layouts and constants with headers.
const BINDINGS: [&str; 3] = ["mlx5dv-sys", "rdmacm-sys", "ucx-sys"];

/// Name of that comparison.
const LAYOUTS: &str = "layouts of the libraries' headers";

/// Each crate that is wanted.
pub(crate) fn run_all(world: &World) -> Result<Vec<Case>> {
    let tools = tools::ensure()?;
    let wants = |name: &&str| world.wants(name);
    let tested: Vec<&str> = TESTED.iter().copied().filter(wants).collect();
    let mut cases = of(&tools, &tested);
    if world.wants(LAYOUTS) {
        cases.push(layouts(&tools));
    }
    Ok(cases)
}

/// Compares the bindings with the headers of the processor's libraries, and of the stock UCX that the set-up has.
pub(super) fn layouts(tools: &Aarch64) -> Case {
    Case::of(LAYOUTS, compared(tools))
}

fn compared(tools: &Aarch64) -> Result<()> {
    let env = dev_setup::ensure()?;
    let words = ["test", "--test", "layout", "--no-fail-fast"];
    let mut tests = command(tools, &words, &BINDINGS);
    tests.args(["--", "--nocapture"]);
    tests.env(headers::COMPILER, tools.cc());
    tests.env(headers::RUNNER, tools.runner());
    tests.env("XGVMI_UCX_INCLUDE", &env.ucx_include);
    let said = to_end(&mut tests, LIMIT)?;
    let passed = said.matches("test result: ok. 1 passed").count();
    let is_whole = passed == BINDINGS.len() && !said.contains("SKIP ");
    ensure!(is_whole, "{passed} of {} ran:\n{said}", BINDINGS.len());
    Ok(())
}

/// Tests that fork. A child of bf-emu's waited once without end on a futex of its own process, while threads of other tests
/// ran. Nothing that it calls has such a lock, and the emulator takes not all of its own locks before it forks. So they run in
/// processes without other tests.
const FORKING: &[(&str, &[&str])] = &[
    ("xgvmi-pool", &["a_child_knows_that_it_is_one"]),
    (
        "uct-plugin",
        &["a_lock_that_a_thread_of_the_parent_holds_does_not_stop_a_child"],
    ),
    (
        "bf-emu",
        &[
            "a_peer_learns_of_all_at_whatever_step_a_process_ends",
            "a_process_without_free_descriptors_takes_no_other_for_dead",
            "a_child_does_not_wait_for_a_thread_of_its_parent",
        ],
    ),
];

/// Builds the tests together, so that nothing is compiled twice, and runs them all.
pub(super) fn of(tools: &Aarch64, packages: &[&str]) -> Vec<Case> {
    if packages.is_empty() {
        return Vec::new();
    }
    let forking = FORKING.iter().flat_map(|(_, tests)| *tests);
    let others: Vec<&str> = forking.flat_map(|test| ["--skip", test]).collect();
    let mut said = vec![(packages.to_vec(), said(tools, packages, &others))];
    for &(package, tests) in FORKING {
        if packages.contains(&package) {
            let alone = [&["--test-threads=1"], tests].concat();
            said.push((vec![package], self::said(tools, &[package], &alone)));
        }
    }
    let of_package = |package: &str| {
        let mut own = said.iter().filter(|(of, _)| of.contains(&package));
        own.try_for_each(|(_, said)| match said {
            Ok(said) | Err(said) => result(said, package),
        })
    };
    let cases = packages.iter();
    cases
        .map(|package| Case::of(format!("unit tests of {package}"), of_package(package)))
        .collect()
}

/// The output of tests, with words for them, or an error that contains that of the failed ones.
fn said(tools: &Aarch64, packages: &[&str], words: &[&str]) -> Result<String, String> {
    let run = || {
        cargo(tools, &["test", "--lib", "--no-run"], packages)?;
        let options = ["test", "--lib", "--no-fail-fast", "--"];
        let mut tests = command(tools, &[&options, words].concat(), packages);
        starting(&mut tests, tools)?;
        let (runner, limited) = tools.limited(CRATE);
        let count = u32::try_from(packages.len())?;
        to_end(tests.env(runner, limited), LIMIT + CRATE * count)
    };
    run().map_err(|error: anyhow::Error| format!("{error:#}"))
}

/// Lets the emulated program start itself again: the kernel knows no program of another processor. The variables are those of the
/// emulator and of its library; programs of this machine do not read them.
fn starting(command: &mut Command, tools: &Aarch64) -> Result<()> {
    let preload = format!("LD_PRELOAD={}", starter(tools)?.display());
    command.env("QEMU_SET_ENV", preload);
    command.env("QEMU_LD_PREFIX", tools.libraries());
    command.env(STARTER_EMULATOR, tools.emulator());
    Ok(())
}

/// The result of a package in cargo's output.
fn result(said: &str, package: &str) -> Result<()> {
    let own = NAMES.iter().find(|(name, _)| *name == package);
    let library = own.map_or(package.replace('-', "_"), |(_, library)| {
        (*library).to_owned()
    });
    let mark = format!("/deps/{library}-");
    let after = said.split_once(&mark).map(|(_, after)| after);
    let after = after.with_context(|| format!("the tests did not run:\n{said}"))?;
    let own = after.split("Running unittests").next().unwrap_or(after);
    let ended = own.lines().find(|line| line.starts_with("test result: "));
    let is_good = |line: &str| line.starts_with("test result: ok.") && !line.contains(" 0 passed");
    let seconds = CRATE.as_secs();
    ensure!(
        ended.is_some() || !own.contains(ENDED),
        "they did not end within {seconds} s:\n{own}"
    );
    ensure!(ended.is_some_and(is_good), "{own}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_package_has_its_own_result() {
        let said = "   Compiling naaice\n     Running unittests src/lib.rs (t/deps/naaice-1)\n\ntest a ... ok\n\
                    test result: ok. 33 passed; 0 failed\n     Running unittests src/lib.rs (t/deps/uct_ib_mlx5_xgvmi-2)\n\
                    test b ... FAILED\ntest result: FAILED. 2 passed; 1 failed\n\
                    Running unittests src/lib.rs (t/deps/bf_emu-3)\ntest result: ok. 0 passed; 0 failed\n\
                    Running unittests src/lib.rs (t/deps/xgvmi_blk-4)\nsignal: 11\n\
                    Running unittests src/lib.rs (t/deps/xgvmi_offload-5)\ntest c ... ok\n(exit status: 124)\n";
        result(said, "naaice").unwrap();
        for (package, expect) in [
            ("uct-plugin", "test b ... FAILED"),
            ("bf-emu", "ok. 0 passed"),
            ("xgvmi-blk", "signal: 11"),
            ("xgvmi-offload", "did not end within 2400 s"),
            ("xgvmi-pool", "did not run"),
        ] {
            let error = format!("{:#}", result(said, package).unwrap_err());
            assert!(error.contains(expect), "{package}: {error}");
        }
        let error = result(said, "uct-plugin").unwrap_err().to_string();
        assert!(!error.contains("naaice"), "{error}");
    }
}
