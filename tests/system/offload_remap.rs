//! Ranks that need no MPI. The service processes keep imports between calls, while ranks unmap their buffers and map others at
//! the same addresses; and they reduce vectors whose sums are known.

use crate::harness::Case;
use crate::offload::{Farm, NODES, Process};
use crate::world::{LIMIT, World, free_port};
use anyhow::{Context, Result, ensure};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("offload_remapped_buffers", remapped),
        Case::new("offload_remapped_buffers_under_the_adversary", |world| {
            verified(
                world,
                ("xgvmi", 1),
                Some("adversary:3"),
                ("remap_ranks", "33"),
            )
        }),
        // With two services per node, two nodes of two ranks have lanes.
        Case::new("offload_lanes_remapped_buffers", |world| {
            verified(world, ("xgvmi", 2), Some("trap"), ("remap_ranks", "33"))
        }),
        Case::new("offload_lanes_known_sums", |world| {
            for scheme in ["ksm", "stock"] {
                verified(world, (scheme, 2), None, ("reduce_ranks", "24"))?;
            }
            Ok(())
        }),
        Case::new("offload_known_sums", |world| {
            verified(world, ("xgvmi", 1), None, ("reduce_ranks", "24"))
        }),
        // Eight service processes form a tree for short vectors.
        Case::new("offload_sums_of_many_nodes", |world| {
            apart(world, "xgvmi", 4, ("reduce_ranks", "8"))
        }),
        Case::new("offload_sums_under_the_adversary", |world| {
            verified(
                world,
                ("stock", 1),
                Some("adversary:5"),
                ("reduce_ranks", "12"),
            )
        }),
    ]
}

/// A service keeps imports between calls, and must not use those of memory that is gone.
fn remapped(world: &World) -> Result<()> {
    for scheme in ["ksm", "stock", "xgvmi"] {
        verified(world, (scheme, 1), Some("trap"), ("remap_ranks", "33"))?;
    }
    Ok(())
}

/// Ranks of a program, which verify some rounds, with some services per node.
fn verified(
    world: &World,
    (scheme, services): (&'static str, u32),
    mode: Option<&str>,
    (program, rounds): (&str, &str),
) -> Result<()> {
    let farm = Farm::with_each(world, scheme, services, |_, command| {
        command.envs(mode.map(|mode| ("BFEMU_MODE", mode)));
    })?;
    let node = |rank| Ok((rank / 2, farm.addresses(rank / 2)?));
    run(&farm, (2 * NODES, &node), (scheme, mode), (program, rounds))
}

/// The same, with each service process as a node of its own for two ranks.
fn apart(world: &World, scheme: &'static str, services: u32, program: (&str, &str)) -> Result<()> {
    let farm = Farm::new(world, scheme, services)?;
    let node = |rank| {
        let node = rank / 2 / services;
        let addresses = farm.addresses(node)?;
        let address = addresses.split(',').nth((rank / 2 % services) as usize);
        Ok((node, address.context("too few services")?.to_owned()))
    };
    run(
        &farm,
        (2 * NODES * services, &node),
        (scheme, None),
        program,
    )
}

/// The emulated node of a rank, and the addresses of its services.
type Node<'a> = &'a dyn Fn(u32) -> Result<(u32, String)>;

fn run(
    farm: &Farm<'_>,
    (size, node_of): (u32, Node<'_>),
    (scheme, mode): (&str, Option<&str>),
    (program, rounds): (&str, &str),
) -> Result<()> {
    let meet = format!("127.0.0.1:{}", free_port()?);
    let ranks = (0..size).map(|rank| {
        let (node, addresses) = node_of(rank)?;
        let mut command = farm.command(&format!("node{node}.host"), program);
        command.envs(mode.map(|mode| ("BFEMU_MODE", mode)));
        command.args([rank.to_string(), size.to_string(), format!("n{}", rank / 2)]);
        command.args([&meet, &addresses, scheme, rounds]);
        Process::spawn(&mut command)
    });
    let ranks = ranks.collect::<Result<Vec<_>>>()?;
    let verified = farm.succeed(ranks, LIMIT)?;
    ensure!(verified > 0, "no byte was moved");
    Ok(())
}
