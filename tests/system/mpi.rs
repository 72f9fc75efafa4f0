//! `osu_alltoallv` and `osu_ialltoallv` under a stock launcher, over stock UCX, on the emulated device.

use crate::harness::Case;
use crate::offload::{Farm, Process};
use crate::process;
use crate::world::{LIMIT, Testbed, World, succeed};
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::process::Command;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = vec![
        Case::new("osu_alltoallv", |world| {
            measured(world, "osu_alltoallv", "-f -z --temp-buffers mmap")
        }),
        Case::new("osu_ialltoallv", |world| {
            measured(world, "osu_ialltoallv", "-f -t 3 --temp-buffers mmap")
        }),
        Case::new("osu_datatypes_and_in_place", datatypes),
        Case::new("osu_buffer_kinds", buffer_kinds),
        Case::new("osu_files", files),
        Case::new("osu_offload_ksm", |world| offloaded(world, "ksm")),
        Case::new("osu_offload_stock", |world| offloaded(world, "stock")),
        Case::new("osu_offload_xgvmi", |world| offloaded(world, "xgvmi")),
        Case::new("osu_offload_overlap", overlap),
        Case::new("osu_offload_service_missing", service_missing),
        Case::new("osu_offload_service_killed", service_killed),
    ];
    cases.extend(
        BAD.iter()
            .map(|bad| Case::new(bad.name, move |world| refused(world, bad))),
    );
    cases
}

/// The launcher with two ranks on the host of each of two nodes.
fn over_device(
    world: &World,
    testbed: &Testbed<'_>,
    program: &str,
    options: &str,
) -> Result<Command> {
    placed(world, testbed, program, |_| Ok(options.to_owned()))
}

/// The same, with options for each node.
fn placed(
    world: &World,
    testbed: &Testbed<'_>,
    program: &str,
    options: impl Fn(u32) -> Result<String>,
) -> Result<Command> {
    let mut command = world.mpi()?;
    for node in 0..2 {
        if node > 0 {
            command.arg(":");
        }
        let placed = testbed.command(&format!("node{node}.host"), world.built(program));
        command
            .args(["-np", "2"])
            .arg(placed.get_program())
            .args(placed.get_args());
        for (name, value) in placed.get_envs() {
            // The launcher's libraries come first and are already set.
            if let Some(value) = value
                && name != "LD_LIBRARY_PATH"
            {
                command.env(name, value);
            }
        }
        command.args(options(node)?.split_whitespace());
    }
    Ok(command)
}

/// A run over the device that compares every byte, at four sizes.
fn measured(world: &World, program: &str, options: &str) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let options = format!("-m 2048:16384 -i 5 -x 1 -c -u 1 {options}");
    let output = succeed(&mut over_device(world, &testbed, program, &options)?)?;
    let rows: Vec<Vec<&str>> = table(&output);
    ensure!(rows.len() == 4, "not four sizes:\n{output}");
    for (row, size) in rows.iter().zip(["2048", "4096", "8192", "16384"]) {
        ensure!(row[0] == size, "not {size}:\n{output}");
        ensure!(row.contains(&"Pass"), "no Pass at {size}:\n{output}");
        let numbers = row.iter().skip(1).filter(|word| **word != "Pass");
        for word in numbers {
            ensure!(
                word.parse::<f64>().is_ok(),
                "'{word}' is no number:\n{output}"
            );
        }
    }
    // Blocks to the other node use the device, whichever transport UCX selects.
    let moved = testbed.stats()?.executed("send")? + testbed.stats()?.executed("rdma_read")?;
    ensure!(moved > 0, "the device executed nothing");
    Ok(())
}

/// Lines of numbers, as scripts read OSU's output.
fn table(output: &str) -> Vec<Vec<&str>> {
    output
        .lines()
        .filter(|line| line.starts_with(|first: char| first.is_ascii_digit()))
        .map(|line| line.split_whitespace().collect())
        .collect()
}

/// A table per datatype, whole elements only, and in place: with MPI and with the service
/// processes.
fn datatypes(world: &World) -> Result<()> {
    let headers = ["MPI_CHAR", "MPI_INT", "MPI_FLOAT"].map(|name| format!("# Datatype: {name}.\n"));
    for (program, options) in [
        ("osu_alltoallv", "-T all -f"),
        ("osu_alltoallv", "-T all -l --temp-buffers mmap"),
        ("osu_ialltoallv", "-T all -l"),
    ] {
        let mut command = alone(world, program, "2")?;
        // 3 bytes hold no int and no float; 6 and 12 hold one and three.
        command.args(["-m", "3:12", "-i", "5", "-x", "1", "-c"]);
        command.args(options.split_whitespace());
        let output = succeed(&mut command)?;
        let sizes: Vec<&str> = table(&output).iter().map(|row| row[0]).collect();
        ensure!(
            sizes == ["3", "6", "12", "6", "12", "6", "12"]
                && headers
                    .iter()
                    .all(|header| output.contains(header.as_str()))
                && output.matches(" Pass").count() == sizes.len(),
            "{program} {options}:\n{output}"
        );
    }
    let farm = Farm::new(world, "stock", 1)?;
    let options = "-m 1024:4096 -i 5 -x 1 -c -u 1 -T mpi_float -l";
    let output = succeed(&mut by_services(
        world,
        &farm,
        "osu_alltoallv",
        "stock",
        options,
    )?)?;
    ensure!(
        output.matches(" Pass").count() == 3,
        "by the service processes:\n{output}"
    );
    Ok(())
}

/// The buffer kinds that the other tests do not use, without the device.
fn buffer_kinds(world: &World) -> Result<()> {
    for kind in ["none", "malloc", "ring:3", "mmap --time-alloc"] {
        let mut command = alone(world, "osu_alltoallv", "2")?;
        command.args(["-m", "65536:131072", "-i", "5", "-x", "1", "-c"]);
        command.arg("--temp-buffers").args(kind.split_whitespace());
        let output = succeed(&mut command)?;
        let rows = table(&output);
        ensure!(
            rows.len() == 2 && rows.iter().all(|row| row.contains(&"Pass")),
            "{kind}:\n{output}"
        );
    }
    Ok(())
}

/// The three files contain the values of the table.
fn files(world: &World) -> Result<()> {
    let place = tempfile::tempdir()?;
    let file = |name: &str| place.path().join(name);
    let mut command = alone(world, "osu_ialltoallv", "2")?;
    command.args(["-m", "1024:4096", "-i", "5", "-x", "1"]);
    for (option, name) in [
        ("--json", "a.json"),
        ("--csv", "a.csv"),
        ("--plot", "a.svg"),
    ] {
        command.arg(option).arg(file(name));
    }
    let output = succeed(&mut command)?;
    let text = std::fs::read_to_string(file("a.json"))?;
    let record: Value = serde_json::from_str(&text)?;
    ensure!(
        record["schema"] == 1 && record["tool"] == "osu_ialltoallv" && record["ranks"] == 2,
        "{text}"
    );
    let rows = record["rows"].as_array().context("no rows")?;
    ensure!(rows.len() == 3 && table(&output).len() == 3, "{text}");
    for row in rows {
        for number in [
            &row["first_us"],
            &row["steady_us"]["p50"],
            &row["steady_us"]["p99"],
            &row["overlap"]["pure_us"],
        ] {
            ensure!(number.as_f64().is_some_and(|us| us > 0.0), "{text}");
        }
    }
    let csv = std::fs::read_to_string(file("a.csv"))?;
    let fields: Vec<usize> = csv.lines().map(|line| line.split(',').count()).collect();
    ensure!(
        fields.len() == 4 && fields.iter().all(|count| *count == fields[0]),
        "{csv}"
    );
    let svg = std::fs::read_to_string(file("a.svg"))?;
    ensure!(
        svg.contains("osu_ialltoallv, 2 ranks") && svg.contains("4 KiB"),
        "{svg}"
    );
    Ok(())
}

/// A launch of the offloaded collective. MPI itself does not use the device, so that only the
/// collective's commands count.
fn by_services(
    world: &World,
    farm: &Farm<'_>,
    program: &str,
    scheme: &str,
    options: &str,
) -> Result<Command> {
    let mut command = placed(world, &farm.testbed, program, |node| {
        Ok(format!(
            "--backend offload --scheme {scheme} --sp {} --node n{node} --barrier sleep {options}",
            farm.addresses(node)?
        ))
    })?;
    command
        .env("OMPI_MCA_pml", "ob1")
        .env_remove("OMPI_MCA_osc");
    Ok(command)
}

/// Every byte through the service processes, and the key commands, which distinguish the schemes.
fn offloaded(world: &World, scheme: &'static str) -> Result<()> {
    let farm = Farm::new(world, scheme, 1)?;
    let place = tempfile::tempdir()?;
    let json = place.path().join("run.json");
    let counters = farm.testbed.emulator("stats");
    let words: Vec<_> = std::iter::once(counters.get_program())
        .chain(counters.get_args())
        .map(|word| word.to_string_lossy())
        .collect();
    let options = format!(
        "-m 256:16384 -i 6 -x 3 -c -u 1 --temp-buffers mmap --json {} --counters {} --json ;",
        json.display(),
        words.join(" ")
    );
    let output = succeed(&mut by_services(
        world,
        &farm,
        "osu_alltoallv",
        scheme,
        &options,
    )?)?;
    let rows = table(&output);
    ensure!(
        rows.len() == 7 && rows.iter().all(|row| row.contains(&"Pass")),
        "{output}"
    );
    let record: Value = serde_json::from_str(&std::fs::read_to_string(&json)?)?;
    for row in record["rows"].as_array().context("no rows")? {
        let commands = &row["commands_per_iteration"];
        let count = |kind: &str| {
            commands[kind]
                .as_f64()
                .with_context(|| format!("no {kind}: {row}"))
        };
        let keys =
            count("create_mkey")? + count("create_alias")? + count("allow_other_vhca_access")?;
        let hits = row["offload"]["host_hit_percent"].as_f64();
        // Short blocks travel in messages and need no key.
        if row["size"].as_u64() < Some(512) {
            ensure!(keys == 0.0, "{row}");
            continue;
        }
        match scheme {
            // Two calls per iteration (the table times one of them), four ranks, two buffers each.
            "ksm" => ensure!(keys >= 24.0 && hits.is_none(), "{row}"),
            "xgvmi" => {
                let gone = count("destroy_mkey")? + count("destroy_alias")?;
                ensure!(keys + gone == 0.0 && hits == Some(100.0), "{row}");
            }
            _ => ensure!(count("umr_bind")? >= 8.0 && hits.is_none(), "{row}"),
        }
        ensure!(
            row["offload"]["registration_us"].as_f64() > Some(0.0),
            "{row}"
        );
    }
    Ok(())
}

/// The offloaded collective progresses while its ranks compute. The share depends on the cores; the
/// numbers add up.
fn overlap(world: &World) -> Result<()> {
    let farm = Farm::new(world, "xgvmi", 1)?;
    let options = "-m 65536:65536 -i 5 -x 2 -f -c -u 1 -t 2 --temp-buffers mmap --compute sleep";
    let output = succeed(&mut by_services(
        world,
        &farm,
        "osu_ialltoallv",
        "xgvmi",
        options,
    )?)?;
    let rows = table(&output);
    let row = rows.first().with_context(|| format!("no row:\n{output}"))?;
    ensure!(rows.len() == 1 && row.contains(&"Pass"), "{output}");
    let number = |at: usize| -> Result<f64> { Ok(row[at].parse()?) };
    let (overall, parts) = (
        number(1)?,
        number(2)? + number(3)? + number(4)? + number(5)?,
    );
    ensure!(parts <= overall * 1.01 && parts > overall / 2.0, "{output}");
    Ok(())
}

/// No service listens there: one error, and no rank waits.
fn service_missing(world: &World) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let mut command = placed(world, &testbed, "osu_alltoallv", |node| {
        Ok(format!(
            "--backend offload --scheme stock --sp 127.0.0.1:1 --node n{node} --connect-limit 2s"
        ))
    })?;
    command
        .env("OMPI_MCA_pml", "ob1")
        .env_remove("OMPI_MCA_osc");
    ends_with_one_error(&mut command, "127.0.0.1:1")
}

/// A service process dies during the run: the ranks end with an error that says so.
fn service_killed(world: &World) -> Result<()> {
    let mut farm = Farm::new(world, "stock", 1)?;
    let options = "-m 4096:8192 -i 1000 -x 1 --temp-buffers mmap";
    let mut command = by_services(world, &farm, "osu_alltoallv", "stock", options)?;
    let mut job = Process::spawn(&mut command)?;
    // The title line: all ranks are connected, and the first size has begun.
    job.hear("Avg Latency(us)")?;
    farm.services[1][0].group.kill();
    let (code, said) = job.end(LIMIT, &["osu_alltoallv: rank "])?;
    ensure!(code == Some(1), "exit code {code:?}:\n{said}");
    ensure!(said.contains("osu_alltoallv: rank "), "no error:\n{said}");
    Ok(())
}

/// A command line that must be refused.
struct Bad {
    name: &'static str,
    ranks: &'static str,
    /// Arguments of all ranks, or of the first and the second of two, separated by " : ".
    arguments: &'static str,
    /// The message that rank 0 prints once.
    expect: &'static str,
}

const BAD: &[Bad] = &[
    Bad {
        name: "osu_bad_option",
        ranks: "2",
        arguments: "-Z",
        expect: "Invalid option [-Z]",
    },
    Bad {
        name: "osu_bad_size",
        ranks: "2",
        arguments: "-m 99999999999999999999",
        expect: "Invalid Message Size [-m 99999999999999999999]",
    },
    Bad {
        name: "osu_bad_sizes_beyond_int",
        ranks: "3",
        arguments: "-m 1000000000 -M 100G",
        expect: "the largest size is 715827882",
    },
    Bad {
        name: "osu_bad_alone",
        ranks: "1",
        arguments: "",
        expect: "This test requires at least two processes",
    },
    Bad {
        name: "osu_bad_sizes_disagree",
        ranks: "1",
        arguments: "-m 8 : -m 16",
        expect: "rank 1 was started with other options than rank 0",
    },
    Bad {
        name: "osu_bad_one_rank_only",
        ranks: "1",
        arguments: "-m 8 : -i 0",
        expect: "Invalid Number of Iterations [-i 0]",
    },
    Bad {
        name: "osu_bad_file",
        ranks: "2",
        arguments: "--json /nonexistent/file",
        expect: "rank 0: cannot write /nonexistent/file",
    },
    Bad {
        name: "osu_bad_library",
        ranks: "2",
        arguments: "--mpi-library /nonexistent/file",
        expect: "cannot load /nonexistent/file; make it by your MPI's compiler",
    },
];

fn refused(world: &World, bad: &Bad) -> Result<()> {
    let mut command = world.mpi()?;
    command
        .env("OMPI_MCA_pml", "ob1")
        .env_remove("OMPI_MCA_osc");
    for (index, arguments) in bad.arguments.split(" : ").enumerate() {
        if index > 0 {
            command.arg(":");
        }
        command
            .args(["-np", bad.ranks])
            .arg(world.built("osu_alltoallv"))
            .args(arguments.split_whitespace());
    }
    ends_with_one_error(&mut command, bad.expect)
}

/// Exit code 1, and the error once.
fn ends_with_one_error(command: &mut Command, expect: &str) -> Result<()> {
    let done = process::run(command, LIMIT)?;
    let shown = format!("{}\n{}", process::shown(command), done.output);
    ensure!(!done.timed_out, "it hangs: {shown}");
    ensure!(done.status.code() == Some(1), "{}: {shown}", done.verdict());
    let said = done
        .output
        .lines()
        .filter(|line| line.contains(expect))
        .count();
    ensure!(
        said == 1,
        "said {said} times, not once, '{expect}': {shown}"
    );
    Ok(())
}

/// Ranks without the device, over MPI's default transport within one machine.
fn alone(world: &World, program: &str, ranks: &str) -> Result<Command> {
    let mut command = world.mpi()?;
    command
        .env("OMPI_MCA_pml", "ob1")
        .env_remove("OMPI_MCA_osc");
    command.args(["-np", ranks]).arg(world.built(program));
    Ok(command)
}
