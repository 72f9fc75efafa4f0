//! The programs of the comparison: examples of the device library, and those of others from directories that the user names.

use anyhow::{Context as _, Result};
use pcc_lab::{Algorithm, Lab, Scenario};
use pcc_run::{Build, Image, Options, Sources};
use std::path::{Path, PathBuf};

/// Variables with directories of other projects.
const SAMPLES: &str = "XGVMI_DOCA_SAMPLES";
const TUTORIAL: &str = "XGVMI_PCC_TUTORIAL";

/// An algorithm of the comparison. Without an image: no control.
#[derive(Debug, Clone)]
pub(crate) struct Contender {
    pub(crate) name: String,
    image: Option<Image>,
    options: Options,
    /// Form of its probes.
    pub(crate) probe: &'static str,
    /// Instructions per event, as RV64.
    pub(crate) instructions: Option<f64>,
}

impl Contender {
    fn none() -> Self {
        Self {
            name: "none".to_owned(),
            image: None,
            options: Options::default(),
            probe: "ccmad",
            instructions: None,
        }
    }

    fn of(sources: &Sources) -> Result<Self> {
        let is_hpcc = sources.name == "hpcc";
        let mut contender = Self {
            name: sources.name.clone(),
            image: Some(Image::build(sources, Build::Host)?),
            options: Options {
                raw_probes: is_hpcc,
                ..Options::default()
            },
            probe: if is_hpcc { "ifa2" } else { "ccmad" },
            instructions: None,
        };
        contender.instructions = contender.counted(sources);
        Ok(contender)
    }

    /// The mean of a short incast, interpreted. None without a compiler for the DPA, which has said so.
    fn counted(&self, sources: &Sources) -> Option<f64> {
        let interpreted = Self {
            image: Some(Image::build(sources, Build::Dpa).ok()?),
            ..self.clone()
        };
        let text = format!(
            "duration_us = 300\nhost.probe = '{}'\ntopology = {{ shape = 'star', hosts = 9, gbps = 200, delay_ns = 1000 }}
traffic = [{{ kind = 'incast', to = 0, flows = 8 }}]",
            self.probe
        );
        let scenario = Scenario::from_toml(&text).ok()?;
        interpreted
            .lab(&scenario)
            .ok()?
            .run()
            .instructions_per_event
    }

    fn with(&self, name: &str, parameters: &[(u32, u32)]) -> Self {
        Self {
            name: name.to_owned(),
            options: Options {
                parameters: parameters.to_vec(),
                ..self.options.clone()
            },
            ..self.clone()
        }
    }

    /// The same with another value of its first parameter.
    pub(crate) fn with_rate(&self, rate: u32) -> Self {
        self.with(&self.name, &[(0, rate)])
    }

    /// A process. One that does not start fails at its first event.
    pub(crate) fn process(&self) -> Box<dyn Algorithm> {
        let Some(image) = &self.image else {
            return Box::new(Refusing("no program".to_owned()));
        };
        match image.start(&self.options) {
            Ok(process) => Box::new(process),
            Err(refused) => Box::new(Refusing(refused.to_string())),
        }
    }

    /// A lab with a process on each host.
    pub(crate) fn lab(&self, scenario: &Scenario) -> Result<Lab> {
        let Some(image) = &self.image else {
            return Ok(Lab::new(scenario)?);
        };
        // The first process tells whether the program starts.
        image.start(&self.options)?;
        let make = |_| self.process();
        Ok(Lab::with_algorithm(scenario, &make)?)
    }
}

/// In place of a process that did not start: it fails at its first event, and the report says why.
#[derive(Debug)]
struct Refusing(String);

impl Algorithm for Refusing {
    fn name(&self) -> &str {
        "refused"
    }

    fn handle(
        &mut self,
        _: &mut pcc_lab::Context,
        _: &pcc_lab::Event,
        _: &pcc_lab::algorithm::Port,
    ) -> Result<pcc_lab::Decision, pcc_lab::Failure> {
        Err(pcc_lab::Failure(self.0.clone()))
    }
}

fn example(name: &str) -> Sources {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../pcc-dev/examples");
    Sources::new(name, &[folder.join(format!("{name}.c"))])
}

/// The program with a constant rate.
pub(crate) fn constant() -> Result<Contender> {
    Contender::of(&example("constant"))
}

fn named(variable: &str) -> Option<PathBuf> {
    let path = std::env::var_os(variable).filter(|path| !path.is_empty());
    if path.is_none() {
        eprintln!("note: {variable} names no directory; its programs are left out");
    }
    path.map(PathBuf::from)
}

/// All that take part.
pub(crate) fn all() -> Result<Vec<Contender>> {
    let mut all = vec![Contender::none()];
    if let Some(root) = named(SAMPLES) {
        let device = root.join("applications/pcc/device");
        let folder = device.join("rp/rtt_template");
        let files = [
            folder.join("rp_rtt_template_dev_main.c"),
            folder.join("algo/rtt_template.c"),
        ];
        let template = Contender::of(&Sources {
            includes: vec![
                device,
                root.join("applications/common/device"),
                folder.join("algo"),
            ],
            ..Sources::new("template", &files)
        })
        .context("the template of the samples")?;
        // A twentieth of the increase, and an eighth of the port for new flows.
        all.push(template.with("template, tuned", &[(1, 2_621), (3, 1 << 17)]));
        all.insert(1, template);
    }
    if let Some(root) = named(TUTORIAL) {
        let device = root.join("doca-3/doca-pcc-ecn/device");
        let files = [device.join("rp_main.c"), device.join("algo/rtt_template.c")];
        let sources = Sources {
            includes: vec![device.join("algo"), device],
            ..Sources::new("tutorial ECN", &files)
        };
        all.push(Contender::of(&sources).context("the program of the tutorial")?);
    }
    for name in ["dcqcn", "swift", "hpcc"] {
        all.push(Contender::of(&example(name))?);
    }
    Ok(all)
}
