//! The command `storage-search`.

use anyhow::{Context as _, Result, bail};
use lexopt::prelude::*;
use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;
use storage_search::{
    Alphabet, Finding, Report, Setting, Stock, explore, parse, search, sequence, to_text,
};
use xgvmi_blk::Layout;

const HELP: &str = "\
Usage: storage-search [OPTIONS]

Searches the states of a block volume for broken promises: all sequences up to a depth, then random ones.
  --core N       depth with whole steps (default 4)
  --full N       depth with steps that are cut, failed syncs, full disks and damage (default 2)
  --random N     number of random sequences (default 100000)
  --seed N       seed of the first one (default 1)
  --report FILE  writes {\"states\",\"sequences\",\"violations\"} as JSON
  --replay N     carries out the sequence of this seed alone, and shortens it if it fails
  --steps TEXT   carries out this sequence alone: 'open 012; write 0; kill; open 01; read'
  --blocks N     blocks of the volume for --steps (default 1)
  --layout L     layout of the volume (default 2+1)
  --elsewhere    targets of --steps are processes of their own
  --settles      their indexes settle groups as soon as they can
  --log          shows what the product says";

/// Sequences shown of each kind of violation.
const SHOWN: usize = 8;

struct Options {
    core: u32,
    full: u32,
    random: u64,
    seed: u64,
    report: Option<PathBuf>,
    replay: Option<u64>,
    steps: Option<String>,
    blocks: u8,
    layout: Layout,
    elsewhere: bool,
    settles: bool,
    log: bool,
}

fn options() -> Result<Option<Options>> {
    let mut options = Options {
        core: 4,
        full: 2,
        random: 100_000,
        seed: 1,
        report: None,
        replay: None,
        steps: None,
        blocks: 1,
        layout: Layout::HALVES,
        elsewhere: false,
        settles: false,
        log: false,
    };
    let mut words = lexopt::Parser::from_env();
    while let Some(word) = words.next()? {
        match word {
            Long("core") => options.core = words.value()?.parse()?,
            Long("full") => options.full = words.value()?.parse()?,
            Long("random") => options.random = words.value()?.parse()?,
            Long("seed") => options.seed = words.value()?.parse()?,
            Long("report") => options.report = Some(words.value()?.into()),
            Long("replay") => options.replay = Some(words.value()?.parse()?),
            Long("steps") => options.steps = Some(words.value()?.string()?),
            Long("blocks") => options.blocks = words.value()?.parse::<u8>()?.clamp(1, 3),
            Long("layout") => {
                options.layout = words.value()?.parse_with(str::parse)?;
            }
            Long("elsewhere") => options.elsewhere = true,
            Long("settles") => options.settles = true,
            Long("log") => options.log = true,
            Short('h') | Long("help") => return Ok(None),
            other => bail!("{}; try --help", other.unexpected()),
        }
    }
    Ok(Some(options))
}

fn tell(text: &str) -> Result<()> {
    writeln!(std::io::stdout(), "{text}").context("standard output")
}

/// Carries out one sequence. True if it keeps all promises.
fn one(setting: Setting, steps: &[storage_search::Step]) -> Result<bool> {
    let mut stock = Stock::default();
    tell(&format!("{setting:?}\n{}", to_text(steps)))?;
    let Some((at, violation)) = stock.run(setting, steps)? else {
        tell("it keeps all promises")?;
        return Ok(true);
    };
    tell(&format!(
        "step {}: {}: {}",
        at + 1,
        violation.kind,
        violation.detail
    ))?;
    let (setting, steps) = stock.minimize(setting, steps, violation.kind)?;
    tell(&format!("shorter: {setting:?}\n{}", to_text(&steps)))?;
    if let Some((_, violation)) = stock.run(setting, &steps)? {
        tell(&violation.detail)?;
    }
    Ok(false)
}

/// What was found, each sequence as short as it can be, a few of each kind.
fn shortest(report: &Report) -> Result<Vec<(&'static str, Finding)>> {
    let mut stock = Stock::default();
    let mut all: BTreeMap<&'static str, BTreeMap<(usize, String), Finding>> = BTreeMap::new();
    for (kind, mut finding) in report.findings() {
        let (setting, steps) = stock.minimize(finding.setting, &finding.steps, kind)?;
        if let Some((_, violation)) = stock.run(setting, &steps)? {
            finding.detail = violation.detail;
        }
        (finding.setting, finding.steps) = (setting, steps);
        let key = (finding.steps.len(), to_text(&finding.steps));
        all.entry(kind).or_default().insert(key, finding);
    }
    let few = |(kind, findings): (_, BTreeMap<_, Finding>)| {
        findings
            .into_values()
            .take(SHOWN)
            .map(move |finding| (kind, finding))
    };
    Ok(all.into_iter().flat_map(few).collect())
}

/// All sequences up to the depths, and random ones.
fn all(options: &Options) -> Result<bool> {
    let report = Report::default();
    let started = Instant::now();
    let mut states = 0;
    for (elsewhere, settles) in [(false, false), (true, false), (false, true), (true, true)] {
        for (alphabet, depth) in [
            (Alphabet::Core, options.core),
            (Alphabet::Full, options.full),
        ] {
            let setting = Setting {
                blocks: 1,
                layout: options.layout,
                block_len: 128,
                elsewhere,
                settles,
                lies: false,
                forgets: false,
            };
            let found = explore(setting, alphabet, depth, &report)?;
            states += found;
            tell(&format!(
                "{alphabet:?}, {}, {}: {found} states to depth {depth}, {} violations so far ({} s)",
                if elsewhere {
                    "targets elsewhere"
                } else {
                    "files"
                },
                if settles {
                    "settled index"
                } else {
                    "groups in change"
                },
                report.violations(),
                started.elapsed().as_secs()
            ))?;
        }
    }
    search(options.layout, options.seed, options.random, &report)?;
    for (kind, finding) in shortest(&report)? {
        tell(&format!("{kind}: {}", finding.to_line()))?;
    }
    let (sequences, violations) = (report.sequences(), report.violations());
    tell(&format!(
        "{states} states, {sequences} sequences ({} random from seed {}), {violations} violations ({} s)",
        options.random,
        options.seed,
        started.elapsed().as_secs()
    ))?;
    if let Some(path) = &options.report {
        let json =
            serde_json::json!({"states": states, "sequences": sequences, "violations": violations});
        if let Some(dir) = path.parent() {
            std::fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
        }
        std::fs::write(path, format!("{json:#}\n")).with_context(|| path.display().to_string())?;
    }
    Ok(violations == 0)
}

fn run() -> Result<bool> {
    let Some(options) = options()? else {
        tell(HELP)?;
        return Ok(true);
    };
    if !options.log {
        storage_search::silence()?;
    }
    if let Some(seed) = options.replay {
        let (setting, steps) = sequence(seed, options.layout);
        return one(setting, &steps);
    }
    if let Some(text) = &options.steps {
        let setting = Setting {
            blocks: options.blocks,
            layout: options.layout,
            block_len: 128,
            elsewhere: options.elsewhere,
            settles: options.settles,
            lies: false,
            forgets: false,
        };
        return one(setting, &parse(text)?);
    }
    all(&options)
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            // Standard error may be silenced.
            let _ = tell(&format!("storage-search: {error:#}"));
            ExitCode::from(2)
        }
    }
}
