//! The arena for temporary buffers, and registrations that stay, through stock UCX: each promise is a case of the
//! program `fresh`, in which host and DPU are two contexts of one process.

use crate::crash::nothing_is_left;
use crate::harness::Case;
use crate::process::{self, Running};
use crate::world::{LIMIT, Testbed, World, succeed};
use anyhow::{Result, ensure};
use std::process::Command;

/// Variables of a case.
type Settings = &'static [(&'static str, &'static str)];

/// Name of the test, case of the program, and variables.
const KEPT: &[(&str, &str, Settings)] = &[
    ("reuse", "reuse", &[]),
    (
        "reuse_by_malloc",
        "reuse",
        &[("MALLOC_MMAP_THRESHOLD_", "16384")],
    ),
    ("reuse_on_small_pages", "small_pages", &[]),
    // With more keys than exports the stale key is not bound again.
    (
        "stale_peer_reads_nothing",
        "stale",
        &[("UCX_XGVMI_POOL_INIT", "64")],
    ),
    ("range_rests_until_its_handle_ends", "resting", &[]),
    ("peer_does_not_reach_a_neighbour", "neighbour", &[]),
    ("remote_key_is_not_the_slab", "remote_key", &[]),
    ("registration_over_two_slabs", "edge", &[]),
    ("madvise", "advice", &[]),
    ("mremap", "remap", &[]),
    ("map_fixed", "fixed", &[]),
    ("munmap_of_parts", "parts", &[]),
    ("mprotect", "protect", &[]),
    ("fork", "fork", &[]),
    ("numa_node", "node", &[]),
    ("two_domains", "domains", &[]),
    ("eight_threads", "threads", &[]),
    ("full", "full", &[("UCX_XGVMI_ARENA", "32mb")]),
    ("idle_slab_goes", "idle", &[("UCX_XGVMI_ARENA_AGE", "0s")]),
];

/// Name of the test, variables that make an arena impossible, and the reason that the library gives.
const OFF: &[(&str, Settings, &str)] = &[
    (
        "without_events",
        &[("UCX_MEM_EVENTS", "n")],
        "UCX has no memory events (UCX_MEM_EVENTS)",
    ),
    (
        "without_safe_forks",
        &[("UCX_IB_FORK_INIT", "y")],
        "a forked child would lose memory",
    ),
    (
        "with_batches",
        &[("UCX_XGVMI_INVALIDATE", "batched")],
        "it needs UCX_XGVMI_INVALIDATE=strict",
    ),
    (
        "of_less_than_a_slab",
        &[("UCX_XGVMI_ARENA", "31mb")],
        "less than one slab",
    ),
];

/// Registrations that stay: name of the test and of the case, and variables. UCX's own cache is off.
const STAYS: &[(&str, Settings)] = &[
    // With more keys than exports the stale key is not bound again.
    ("kept_again", &[("UCX_XGVMI_POOL_INIT", "64")]),
    ("kept_changed", &[]),
    (
        "kept_bounded",
        &[("UCX_XGVMI_KEEP", "4"), ("UCX_XGVMI_KEEP_BYTES", "256k")],
    ),
    (
        "kept_memory_limit",
        &[(
            "BFEMU_FAULTS",
            "node0.host command reg_mr nth 24 errno ENOMEM",
        )],
    ),
    (
        "kept_limit_of_another",
        &[(
            "BFEMU_FAULTS",
            "node0.host command reg_mr nth 32 errno ENOMEM",
        )],
    ),
    ("kept_several", &[]),
];

/// As [`OFF`], for registrations that stay.
const STAYS_NOT: &[(&str, Settings, &str)] = &[
    (
        "without_events",
        &[("UCX_MEM_EVENTS", "n")],
        "UCX has no memory events (UCX_MEM_EVENTS)",
    ),
    (
        "without_safe_forks",
        &[("UCX_IB_FORK_INIT", "y")],
        "a forked child would lose memory",
    ),
];

/// The program with the library, and registrations that stay.
fn keeping(world: &World, testbed: &Testbed<'_>, case: &str, settings: Settings) -> Command {
    let mut command = program(world, testbed, case, &[]);
    command.env_remove("UCX_XGVMI_ARENA");
    command.env("UCX_XGVMI_KEEP", "64");
    command.env("UCX_RCACHE_ENABLE", "n");
    command.envs(settings.iter().copied());
    command
}

fn cases_of_kept() -> impl Iterator<Item = Case> {
    let stays = STAYS.iter().map(|(case, settings)| {
        Case::new((*case).to_owned(), move |world| {
            let testbed = Testbed::of(world, 1)?;
            let said = succeed(&mut keeping(world, &testbed, case, settings))?;
            ensure!(said.contains(&format!("kept: {case}")), "{said}");
            ensure!(
                !said.contains(" ERROR ") && !said.contains("UCX_XGVMI_KEEP"),
                "{said}"
            );
            nothing_is_left(&testbed)
        })
    });
    let stays_not = STAYS_NOT.iter().map(|(name, settings, reason)| {
        Case::new(format!("kept_off_{name}"), move |world| {
            let testbed = Testbed::of(world, 1)?;
            let said = succeed(&mut keeping(world, &testbed, "kept_off", settings))?;
            let lines: Vec<_> = said
                .lines()
                .filter(|line| line.contains("UCX_XGVMI_KEEP"))
                .collect();
            ensure!(lines.len() == 1 && lines[0].contains(reason), "{said}");
            Ok(())
        })
    });
    stays.chain(stays_not)
}

pub(crate) fn cases() -> Vec<Case> {
    let mut cases: Vec<_> = KEPT
        .iter()
        .map(|(name, case, settings)| {
            Case::new(format!("arena_{name}"), move |world| {
                let testbed = Testbed::of(world, 1)?;
                let said = succeed(&mut program(world, &testbed, case, settings))?;
                ensure!(said.contains(&format!("kept: {case}")), "{said}");
                ensure!(
                    !said.contains(" ERROR ") && !said.contains("UCX_XGVMI_ARENA"),
                    "{said}"
                );
                nothing_is_left(&testbed)
            })
        })
        .collect();
    cases.extend(OFF.iter().map(|(name, settings, reason)| {
        Case::new(format!("arena_off_{name}"), move |world| {
            let testbed = Testbed::of(world, 1)?;
            let said = succeed(&mut program(world, &testbed, "off", settings))?;
            let lines: Vec<_> = said
                .lines()
                .filter(|line| line.contains("UCX_XGVMI_ARENA"))
                .collect();
            ensure!(lines.len() == 1 && lines[0].contains(reason), "{said}");
            Ok(())
        })
    }));
    cases.extend(cases_of_kept());
    cases.push(Case::new("arena_slab_cannot_be_registered", refused));
    cases.push(Case::new("exports_of_eight_threads_live_at_once", many));
    cases.push(Case::new("exports_as_many_as_without_the_pool", crowd));
    cases.push(Case::new("free_keys_make_room_for_ucxs_own", room));
    cases.push(Case::new(
        "what_is_unused_makes_room_on_a_full_device",
        space,
    ));
    cases.push(Case::new(
        "arena_makes_room_for_another_context",
        makes_room,
    ));
    cases.push(Case::new("arena_killed_process_leaves_no_key", killed));
    cases
}

/// The program with the library and an arena.
fn program(world: &World, testbed: &Testbed<'_>, case: &str, settings: Settings) -> Command {
    let functions = "node0.host,node0.dpu";
    let mut command = testbed.ucx_command_with(&[], functions, world.built("fresh"));
    process::without_ucx_settings(&mut command);
    command.arg(world.ucx_lib.join("libucp.so.0"));
    command.args(["mlx5_0", "mlx5_1", "check", case]);
    command.env("LD_PRELOAD", world.built("libuct_ib_mlx5_xgvmi.so"));
    command.env("UCX_XGVMI_ARENA", "256mb");
    // The emulated machine does not say that its kernel copies pinned pages, so libibverbs would take them from children.
    command.env("UCX_IB_FORK_INIT", "n");
    command.envs(settings.iter().copied());
    command
}

/// The system has a limit of locked memory: one line, and UCX registers the buffers.
fn refused(world: &World) -> Result<()> {
    let testbed = Testbed::of(world, 1)?;
    // The first four registrations are UCX's own.
    let rule = "node0.host command reg_mr nth 5 errno ENOMEM";
    let said = succeed(program(world, &testbed, "refused", &[]).env("BFEMU_FAULTS", rule))?;
    let lines = said
        .lines()
        .filter(|line| line.contains("gets no further slab"));
    ensure!(lines.count() == 1 && !said.contains(" ERROR "), "{said}");
    Ok(())
}

/// Many exports of eight memory domains at once, with a fork in the middle. All are of the pool.
fn many(world: &World) -> Result<()> {
    let testbed = Testbed::of(world, 1)?;
    let mut command = program(world, &testbed, "many", &[("UCX_RCACHE_ENABLE", "n")]);
    let said = succeed(command.env_remove("UCX_XGVMI_ARENA"))?;
    ensure!(
        said.contains("kept: many") && said.contains("left to UCX 0\n"),
        "{said}"
    );
    nothing_is_left(&testbed)
}

/// The device has 262,144 entries of indirect keys. With 20,000 live exports, those of the pool leave enough for those that
/// UCX makes itself.
fn crowd(world: &World) -> Result<()> {
    let testbed = Testbed::of(world, 1)?;
    let settings: Settings = &[("UCX_RCACHE_ENABLE", "n"), ("XGVMI_EXPORTS", "2500")];
    let mut command = program(world, &testbed, "many", settings);
    let said = succeed(command.env_remove("UCX_XGVMI_ARENA"))?;
    let is_kept = said.contains("kept: many") && !said.contains(" ERROR ");
    ensure!(is_kept && !said.contains("left to UCX 0\n"), "{said}");
    nothing_is_left(&testbed)
}

/// The device refuses the first key that UCX creates itself, after 22 of both contexts and their pools.
fn room(world: &World) -> Result<()> {
    let testbed = Testbed::of(world, 1)?;
    let settings: Settings = &[
        ("UCX_RCACHE_ENABLE", "n"),
        ("UCX_XGVMI_POOL_MAX", "8"),
        ("XGVMI_EXPORTS", "8"),
    ];
    let mut command = program(world, &testbed, "room", settings);
    let rule = "node0.host command create_mkey nth 23 errno ENOMEM";
    command
        .env_remove("UCX_XGVMI_ARENA")
        .env("BFEMU_FAULTS", rule);
    let said = succeed(&mut command)?;
    let refused = said.lines().filter(|line| line.contains(" ERROR "));
    ensure!(
        said.contains("kept: room") && refused.count() == 1,
        "{said}"
    );
    nothing_is_left(&testbed)
}

/// The device refuses a registration of UCX, and then an alias.
fn space(world: &World) -> Result<()> {
    let testbed = Testbed::of(world, 1)?;
    let settings: Settings = &[("UCX_RCACHE_ENABLE", "n"), ("UCX_XGVMI_POOL_MAX", "8")];
    let mut command = program(world, &testbed, "space", settings);
    let rules = "node0.host command reg_mr nth 23 errno ENOMEM;node0.dpu command create_general_object nth 9 status LIMITS_EXCEEDED";
    command
        .env_remove("UCX_XGVMI_ARENA")
        .env("BFEMU_FAULTS", rules);
    let said = succeed(&mut command)?;
    ensure!(said.contains("kept: space"), "{said}");
    nothing_is_left(&testbed)
}

/// The system refuses a registration while a slab of another context is idle: the slab goes, and UCX tries again.
fn makes_room(world: &World) -> Result<()> {
    let testbed = Testbed::of(world, 1)?;
    let rule = "node0.host command reg_mr nth 24 errno ENOMEM";
    let settings: Settings = &[("UCX_RCACHE_ENABLE", "n"), ("UCX_XGVMI_ARENA_AGE", "60m")];
    let said = succeed(program(world, &testbed, "limit", settings).env("BFEMU_FAULTS", rule))?;
    ensure!(said.contains("kept: limit"), "{said}");
    nothing_is_left(&testbed)
}

fn killed(world: &World) -> Result<()> {
    let testbed = Testbed::of(world, 1)?;
    for _ in 0..3 {
        let mut command = program(world, &testbed, "hold", &[]);
        let mut holder = Running::saying(&mut command, LIMIT, "holding 32")?;
        holder.group.kill();
        drop(holder);
        nothing_is_left(&testbed)?;
    }
    Ok(())
}
