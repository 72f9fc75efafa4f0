//! The tables of the scale model.

use crate::query::Query;
use anyhow::{Result, bail};
use bench_report::table::{self, Form, shown};
use serde_json::Value;

/// The grid of the scale model: a line for each number of nodes, with a letter for the bottleneck.
pub(super) fn model(report: &Value, query: &Query) -> Result<String> {
    let mut rows = query.rows(report, "rows")?;
    rows.sort_by_key(|row| ["nodes", "size"].map(|key| row[key].as_u64()));
    let cell = |row: &&Value| {
        let saved = shown(&row["time_saved_percent"], Form::Fixed(1))?;
        // The variation of a credit-dependent schedule exceeds this difference.
        let saved = if saved == "-0.0" { "0.0" } else { &saved };
        let letter = match row["bottleneck"].as_str() {
            Some("link") => "L",
            Some("messages") => "M",
            Some("keys") => "K",
            Some("credits") => "C",
            other => bail!("no letter for the bottleneck {other:?}"),
        };
        let (nodes, size) = (
            shown(&row["nodes"], Form::Count)?,
            shown(&row["size"], Form::Size)?,
        );
        Ok((nodes, size, format!("{saved} {letter}")))
    };
    let cells = rows.iter().map(cell).collect::<Result<Vec<_>>>()?;
    table::crossed("nodes", &cells)
}

/// Largest block for which the service process is the limit: a line for each process, a column for each number of nodes.
pub(super) fn limits(report: &Value, query: &Query) -> Result<String> {
    let cell = |row: &&Value| {
        let count = |key: &str| shown(&row[key], Form::Count);
        let software = shown(&row["software"], Form::Text)?;
        let line = format!(
            "{software}, {} SP, cores {} times slower",
            count("sps")?,
            count("slower")?
        );
        let line = line.replace(", cores 1 times slower", "");
        Ok((
            line,
            format!("{} nodes", count("nodes")?),
            shown(&row["size"], Form::Size)?,
        ))
    };
    let rows = query.rows(report, "limits")?;
    let cells = rows.iter().map(cell).collect::<Result<Vec<_>>>()?;
    table::crossed("service process", &cells)
}

/// Times of the offloaded call over those of UCC's, and with computation.
pub(super) fn beside_ucc(report: &Value, query: &Query) -> Result<String> {
    let cell = |row: &&Value| {
        let nodes = shown(&row["nodes"], Form::Count)?;
        let slower = shown(&row["slower"], Form::Count)?;
        let line = format!("{nodes} nodes, cores {slower} times slower");
        let ratio = |key: &str| shown(&row[key], Form::Fixed(2));
        let cell = format!("{} ({})", ratio("of_ucc")?, ratio("of_ucc_with_overlap")?);
        Ok((
            line.replace(", cores 1 times slower", ""),
            shown(&row["size"], Form::Size)?,
            cell,
        ))
    };
    let rows = query.rows(report, "beside_ucc")?;
    let cells = rows.iter().map(cell).collect::<Result<Vec<_>>>()?;
    table::crossed("machine", &cells)
}

/// Sizes at which the offload does not lose, blocking and with computation: a line for each collective and machine.
pub(super) fn crossings(report: &Value, query: &Query) -> Result<String> {
    let cell = |row: &&Value| {
        let count = |key: &str| shown(&row[key], Form::Count);
        let collective = shown(&row["collective"], Form::Text)?;
        let slower = format!(", cores {} times slower", count("slower")?);
        let line = format!("{collective}, {} per node{slower}", count("ppn")?);
        let sizes = |from: &str, to: &str| {
            let size = |key: &str| shown(&row[key], Form::Size);
            Ok::<_, anyhow::Error>(match row[from].as_u64() {
                Some(0) => "-".to_owned(),
                _ if row[to] == row["most"] => format!("from {}", size(from)?),
                _ if row[to] == row[from] => size(from)?,
                _ => format!("{} to {}", size(from)?, size(to)?),
            })
        };
        let overlap = sizes("from_with_overlap", "to_with_overlap")?;
        let cell = format!("{}; {overlap}", sizes("from", "to")?);
        let nodes = format!("{} nodes", count("nodes")?);
        Ok((line.replace(", cores 1 times slower", ""), nodes, cell))
    };
    let rows = query.rows(report, "crossings")?;
    let cells = rows.iter().map(cell).collect::<Result<Vec<_>>>()?;
    table::crossed("collective", &cells)
}

/// Saved time at each of the slides' sizes, with a line for each changed input.
pub(super) fn changes(report: &Value, query: &Query) -> Result<String> {
    let cell = |row: &&Value| {
        let saved = shown(&row["time_saved_percent"], Form::Fixed(1))?;
        Ok((
            shown(&row["what"], Form::Text)?,
            shown(&row["size"], Form::Size)?,
            saved,
        ))
    };
    let rows = query.rows(report, "sensitivity")?;
    let cells = rows.iter().map(cell).collect::<Result<Vec<_>>>()?;
    table::crossed("change", &cells)
}

#[cfg(test)]
mod tests {
    use super::super::tests::check;
    use serde_json::json;

    #[test]
    fn the_grid_names_what_limits_a_call() {
        let row = |nodes: u32, saved: f64, limit: &str| json!({"nodes": nodes, "size": 1024, "time_saved_percent": saved, "bottleneck": limit});
        let report = json!({"rows": [row(32, -0.01, "link"), row(2, 91.14, "credits")]});
        check("model", &report, "| 2 | 91.1 C |\n| 32 | 0.0 L |");
    }

    #[test]
    fn the_limits_are_a_line_for_each_service_process() {
        let row = |nodes: u32, slower: f64, size: u64| json!({"nodes": nodes, "sps": 4, "software": "measured", "slower": slower, "size": size});
        let report = json!({"limits": [row(2, 1.0, 2048), row(8, 1.0, 0), row(2, 4.0, 4096), row(8, 4.0, 8192)]});
        let lines = "| measured, 4 SP | 2 KiB | - |\n| measured, 4 SP, cores 4 times slower | 4 KiB | 8 KiB |";
        check(
            "model-limits",
            &report,
            "| service process | 2 nodes | 8 nodes |",
        );
        check("model-limits", &report, lines);
    }

    #[test]
    fn sizes_at_which_the_offload_does_not_lose_are_a_cell() {
        let row = |nodes: u32, run: [u64; 2], overlap: [u64; 2]| {
            json!({"collective": "bcast", "nodes": nodes, "ppn": 32, "slower": 4.0, "from": run[0], "to": run[1],
                   "from_with_overlap": overlap[0], "to_with_overlap": overlap[1], "most": 65536})
        };
        let rows = [
            row(2, [0, 0], [1024, 65536]),
            row(8, [512, 512], [512, 2048]),
        ];
        check(
            "model-crossings",
            &json!({ "crossings": rows }),
            "| bcast, 32 per node, cores 4 times slower | -; from 1 KiB | 512 B; 512 B to 2 KiB |",
        );
    }
}
