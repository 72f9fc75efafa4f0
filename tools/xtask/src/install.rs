//! `cargo xtask install`: installs the library into UCX's module directory, and the command, below a prefix.

mod dpa;

use crate::stage::{self, LIBRARY, Layout, Part};
use crate::workspace;
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

const HELP: &str = "\
Usage: cargo xtask install --prefix DIR
       cargo xtask install --dpa DIR

The second form installs what builds of DPA programs need, in the places of a DOCA installation: include/, lib/ with
lib/pkgconfig/, tools/dpacc, VERSION. A build script that names /opt/mellanox/doca finds it through a link of that name. The first
form does the following.

Builds the library and its commands, and installs below DIR:

  lib/xgvmi/libuct_ib_mlx5_xgvmi.so.0  the library, and .so.0.0.0, the name that some UCX packages expect
  lib/ucx/                             links to it, for a UCX below the same prefix
  lib/xgvmi/libucc_tl_xgvmi.so         the component of UCC, and lib/ucc/, a link for a UCC below the same prefix
  lib/pkgconfig/xgvmi.pc               its location, for builds
  include/xgvmi.h                      its C interface
  lib/libxgvmi_blk.so.0                block storage for C programs, and include/xgvmi_blk.h
  lib/xgvmi/libxgvmi-fio.so            engine of fio 3.33 for volumes behind a service of xgvmi-blk
  bin/                                 xgvmi; xgvmi-sp, xgvmi-offload-check, osu_alltoallv, osu_ialltoallv, cost_table,
                                       xgvmi-model; xgvmi-blk
  lib/systemd/system/xgvmi-sp.service  a unit for DPUs; xgvmi-blk-target@.service, xgvmi-blk-export@.service
                                       and xgvmi-blk-service@.service
  lib/libnaaice.so, include/naaice/    calls to accelerators, and lib/cmake/naaice/ for find_package(naaice)
  bin/xgvmi-naa                        an accelerator as a service on DPUs, and lib/systemd/system/xgvmi-naa.service
  share/xgvmi-offload/osu_mpi.c        the MPI calls of osu_alltoallv, for the MPI's mpicc (see OSU.md)
  share/xgvmi-offload/xgvmi_mpi*       neighbourhood collectives of MPI programs, for the MPI's mpicc (see UCC.md)
  share/xgvmi-offload/reads.c          the program of xgvmi-sp --dpa, for dpacc
  share/man, share/*completion*        manual pages and completions of the commands
  share/doc/xgvmi/                     options, hardware, defects, licences
  share/doc/xgvmi-offload/             service processes, benchmarks, model, example configurations
  share/doc/xgvmi-blk/                 block storage, example configurations
  share/doc/xgvmi-naa/                 calls to accelerators, example configuration

Existing files are replaced atomically, never written to, so that running processes continue.
If DIR is UCX's own prefix and UCX is 1.22 or later, UCX loads the library by itself.";

/// Runs the command.
pub(crate) fn run(arguments: Vec<String>) -> Result<ExitCode> {
    let Some((prefix, is_dpa)) = parse(arguments)? else {
        println!("{HELP}");
        return Ok(ExitCode::SUCCESS);
    };
    if is_dpa {
        dpa::install(&prefix)?;
        println!("installed in {}", prefix.display());
        let place = prefix.join("lib/pkgconfig");
        println!("for meson and make:  PKG_CONFIG_PATH={}", place.display());
        return Ok(ExitCode::SUCCESS);
    }
    let built = stage::build()?;
    let layout = Layout::prefix(&prefix);
    for part in [
        Part::Product,
        Part::Offload,
        Part::Storage,
        Part::Accelerator,
    ] {
        stage::put(part, &built, &layout)?;
        let documents = prefix.join("share/doc").join(part.package());
        for licence in ["LICENSE-APACHE", "LICENSE-MIT"] {
            let text = fs::read_to_string(workspace::root().join(licence)).context(licence)?;
            stage::text(&text, &documents.join(licence), 0o644)?;
        }
    }
    let plugins = layout.plugins();
    let plugins = plugins.display();
    println!("installed in {}", prefix.display());
    println!("any UCX from 1.18 on:  LD_PRELOAD={plugins}/{LIBRARY} your-program");
    println!("UCX 1.22 and later:    UCX_PLUGIN_PATH={plugins} your-program");
    Ok(ExitCode::SUCCESS)
}

/// The prefix, and whether it is for DPA programs; `None` for a help request.
fn parse(arguments: Vec<String>) -> Result<Option<(PathBuf, bool)>> {
    use lexopt::prelude::{Long, Short};
    let mut prefix = None;
    let mut parser = lexopt::Parser::from_args(arguments);
    while let Some(argument) = parser.next()? {
        match argument {
            Long("prefix") => prefix = Some((PathBuf::from(parser.value()?), false)),
            Long("dpa") => prefix = Some((PathBuf::from(parser.value()?), true)),
            Short('h') | Long("help") => return Ok(None),
            other => bail!("{}; try: cargo xtask install --help", other.unexpected()),
        }
    }
    let (prefix, is_dpa) =
        prefix.context("--prefix is missing; try: cargo xtask install --help")?;
    let absolute = std::path::absolute(&prefix);
    let absolute = absolute.with_context(|| prefix.display().to_string())?;
    Ok(Some((absolute, is_dpa)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prefix_is_needed() {
        let parse = |words: &[&str]| parse(words.iter().map(|&word| word.to_owned()).collect());
        assert!(parse(&[]).is_err());
        assert!(parse(&["--prefix"]).is_err());
        assert!(parse(&["here"]).is_err());
        assert_eq!(parse(&["--help"]).unwrap(), None);
        assert_eq!(
            parse(&["--prefix=/opt/x"]).unwrap(),
            Some(("/opt/x".into(), false))
        );
        assert_eq!(
            parse(&["--dpa", "/opt/y"]).unwrap(),
            Some(("/opt/y".into(), true))
        );
        assert!(parse(&["--prefix", "x"]).unwrap().unwrap().0.is_absolute());
    }
}
