//! Unit tests of crates that run on a DPU, under a user-mode emulator.

use super::{cargo, tools};
use crate::{Case, World};
use anyhow::{Context as _, Result, ensure};
use dev_setup::aarch64::Aarch64;

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
    "bf-emu",
];

/// Libraries whose names are not those of their packages.
const NAMES: [(&str, &str); 2] = [
    ("uct-plugin", "uct_ib_mlx5_xgvmi"),
    ("ucc-tl", "ucc_tl_xgvmi"),
];

/// Each crate that is wanted.
pub(crate) fn run_all(world: &World) -> Result<Vec<Case>> {
    let tools = tools::ensure()?;
    let wants = |name: &&str| world.wants(name);
    let tested: Vec<&str> = TESTED.iter().copied().filter(wants).collect();
    Ok(of(&tools, &tested))
}

/// Builds the tests together, so that nothing is compiled twice, and runs them all.
pub(super) fn of(tools: &Aarch64, packages: &[&str]) -> Vec<Case> {
    if packages.is_empty() {
        return Vec::new();
    }
    // A failure's text contains the output as well.
    let said = cargo(tools, &["test", "--lib", "--no-fail-fast"], packages);
    let said = said.unwrap_or_else(|error| format!("{error:#}"));
    let cases = packages.iter();
    cases
        .map(|package| Case::of(format!("unit tests of {package}"), result(&said, package)))
        .collect()
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
                    Running unittests src/lib.rs (t/deps/xgvmi_blk-4)\nsignal: 11\n";
        result(said, "naaice").unwrap();
        for (package, expect) in [
            ("uct-plugin", "test b ... FAILED"),
            ("bf-emu", "ok. 0 passed"),
            ("xgvmi-blk", "signal: 11"),
            ("xgvmi-pool", "did not run"),
        ] {
            let error = format!("{:#}", result(said, package).unwrap_err());
            assert!(error.contains(expect), "{package}: {error}");
        }
        let error = result(said, "uct-plugin").unwrap_err().to_string();
        assert!(!error.contains("naaice"), "{error}");
    }
}
