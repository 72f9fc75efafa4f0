//! Unmodified libibverbs programs: device listing, and transfers between two nodes.

use crate::harness::Case;
use crate::world::{Testbed, World, free_port, succeed, succeed_pair};
use anyhow::{Context, Result, ensure};

/// The communicating functions.
const SERVER: &str = "node0.host";
const CLIENT: &str = "node1.host";

/// A perftest program, and the minimum counts of the device at its end.
struct Perftest {
    program: &'static str,
    size: u32,
    iterations: u32,
    work: &'static str,
}

const PERFTEST: &[Perftest] = &[
    Perftest {
        program: "ib_write_lat",
        size: 8,
        iterations: 1000,
        work: "rdma_write",
    },
    Perftest {
        program: "ib_send_lat",
        size: 8,
        iterations: 1000,
        work: "send",
    },
    Perftest {
        program: "ib_read_bw",
        size: 65536,
        iterations: 500,
        work: "rdma_read",
    },
    Perftest {
        program: "ib_atomic_lat",
        size: 8,
        iterations: 500,
        work: "atomic",
    },
];

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = vec![
        Case::new("ibv_devices", devices),
        Case::new("ibv_devinfo", devinfo),
        Case::new("ibv_rc_pingpong", pingpong),
    ];
    cases.extend(
        PERFTEST
            .iter()
            .map(|row| Case::new(row.program, move |world| perftest(world, row))),
    );
    cases
}

fn devices(world: &World) -> Result<()> {
    let testbed = Testbed::new(world)?;
    for function in ["node0.host", "node0.dpu"] {
        let output = succeed(&mut testbed.command(function, world.verbs_tool("ibv_devices")))?;
        let listed = output
            .lines()
            .filter(|line| line.trim_start().starts_with("mlx5_"))
            .count();
        ensure!(
            listed == 1,
            "{function} is one device, {listed} are listed:\n{output}"
        );
    }
    Ok(())
}

fn devinfo(world: &World) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let info = |function: &str| {
        succeed(
            testbed
                .command(function, world.verbs_tool("ibv_devinfo"))
                .arg("-v"),
        )
    };
    let host = info("node0.host")?;
    for want in [
        "hca_id:\tmlx5_0",
        "PORT_ACTIVE",
        "vendor_id:\t\t\t0x02c9",
        "atomic_cap:\t\t\tATOMIC_HCA",
    ] {
        ensure!(
            host.contains(want),
            "ibv_devinfo -v has no '{want}':\n{host}"
        );
    }
    // The two functions of a node have different ids and the same system image GUID.
    let (dpu, other) = (info("node0.dpu")?, info("node1.host")?);
    let field = |text: &str, name: &str| -> Result<String> {
        let line = text
            .lines()
            .find(|line| line.trim_start().starts_with(name));
        let value = line
            .and_then(|line| line.split_once(':'))
            .map(|(_, v)| v.trim().to_owned());
        value.with_context(|| format!("ibv_devinfo -v has no {name}:\n{text}"))
    };
    let image = |text: &str| field(text, "sys_image_guid");
    let node = |text: &str| field(text, "node_guid");
    ensure!(
        image(&host)? == image(&dpu)?,
        "host and DPU of a node differ in sys_image_guid"
    );
    ensure!(
        image(&host)? != image(&other)?,
        "two nodes have one sys_image_guid"
    );
    ensure!(
        node(&host)? != node(&dpu)?,
        "host and DPU of a node have one node_guid"
    );
    Ok(())
}

fn pingpong(world: &World) -> Result<()> {
    pingpong_in(world, &Testbed::new(world)?)
}

/// Two processes that send to each other. They compare one byte of each page of the last buffer.
pub(crate) fn pingpong_in(world: &World, testbed: &Testbed<'_>) -> Result<()> {
    let port = free_port()?;
    let program = world.verbs_tool("ibv_rc_pingpong");
    // -c compares.
    let options = ["-d", "mlx5_0", "-n", "1000", "-c", "-p", &port.to_string()].map(str::to_owned);
    let (server, client) = succeed_pair(
        testbed.command(SERVER, &program).args(&options),
        testbed
            .command(CLIENT, &program)
            .args(&options)
            .arg("127.0.0.1"),
        port,
    )?;
    for output in [&server, &client] {
        ensure!(
            output.contains("8192000 bytes in"),
            "not all bytes were exchanged:\n{output}"
        );
        ensure!(
            !output.contains("invalid data"),
            "wrong bytes arrived:\n{output}"
        );
    }
    Ok(())
}

fn perftest(world: &World, row: &Perftest) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let port = free_port()?;
    let program = world.verbs_tool(row.program);
    let mut options = ["-d", "mlx5_0", "-F"].map(str::to_owned).to_vec();
    options.extend([
        "-p".to_owned(),
        port.to_string(),
        "-n".to_owned(),
        row.iterations.to_string(),
    ]);
    // The atomic tests have one size only and refuse a size option.
    if row.program != "ib_atomic_lat" {
        options.extend(["-s".to_owned(), row.size.to_string()]);
    }
    let (_, client) = succeed_pair(
        testbed.command(SERVER, &program).args(&options),
        testbed
            .command(CLIENT, &program)
            .args(&options)
            .arg("127.0.0.1"),
        port,
    )?;
    // The result row: size, iterations, then times or bandwidths, all above zero.
    let numbers = client
        .lines()
        .map(|line| {
            line.split_whitespace()
                .map_while(|w| w.parse::<f64>().ok())
                .collect::<Vec<_>>()
        })
        .find(|numbers| numbers.len() >= 4 && numbers[0] == f64::from(row.size))
        .with_context(|| format!("no result row for {} bytes:\n{client}", row.size))?;
    ensure!(
        numbers[1..4].iter().all(|&n| n > 0.0),
        "a result is zero: {numbers:?}\n{client}"
    );
    let executed = testbed.stats()?.executed(row.work)?;
    ensure!(
        executed >= u64::from(row.iterations),
        "{} iterations, but the device executed {executed} {}",
        row.iterations,
        row.work
    );
    Ok(())
}
