//! Options of a rank for its services: flags override a file, the file overrides defaults.

use crate::error::{OffloadError, Result};
use crate::scheme::Scheme;
use crate::secret;
use clap::Args;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::num::NonZero;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;
use xgvmi_daemon::Secret;
use xgvmi_daemon::config::{read_toml, within};
use xgvmi_daemon::options::time;

/// Options of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientOptions {
    /// `host:port` of the SPs of this rank's node. Its ranks use them in turn.
    pub services: Vec<String>,
    /// Minimum number of ranks of each SP: fewer ranks use fewer SPs.
    pub ranks_per_sp: usize,
    /// The node's name. Ranks with the same name and the same SPs belong to one node.
    pub node: String,
    /// How keys are created. All ranks and SPs must use the same scheme.
    pub scheme: Scheme,
    /// Maximum time to connect.
    pub connect_limit: Duration,
    /// Maximum time until an SP listens: the end of the attempts that its host, or the network, refuses.
    pub absent_limit: Duration,
    /// Maximum time to wait for a collective; `None` for no limit.
    pub limit: Option<Duration>,
    /// Time to poll before a wait sleeps.
    pub spin: Duration,
    /// The secret. The SPs must have the same one.
    pub secret: Option<Secret>,
    /// The libucp to use. Default: the program's own, or the loader's search.
    pub ucx_library: Option<PathBuf>,
}

/// The flags, to be flattened into a program's own.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub struct ClientArgs {
    /// An SP of this rank's node; several are shared by the node's ranks.
    #[arg(long = "sp", value_name = "ADDR:PORT", value_delimiter = ',')]
    pub services: Vec<String>,
    /// Use another SP of the node for every N of its ranks only: more SPs mean more messages [default: 8].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub ranks_per_sp: Option<u16>,
    /// This rank's node, by its name in the file [default: the host name].
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
    /// A file that names the SPs of all nodes, and other options.
    #[arg(long, value_name = "FILE.toml")]
    pub offload_config: Option<PathBuf>,
    /// Time limit for connecting to the SPs [default: 30s].
    #[arg(long, alias = "connect-limit-s", value_name = "TIME", value_parser = time(CONNECT))]
    pub connect_limit: Option<Duration>,
    /// Time limit until the SP of this rank listens [default: that of the connect].
    #[arg(long, alias = "absent-limit-s", value_name = "TIME", value_parser = time(CONNECT))]
    pub absent_limit: Option<Duration>,
    /// Time limit of the wait for an offloaded collective; 0s for none [default: 0s].
    #[arg(long, alias = "offload-limit-s", value_name = "TIME", value_parser = time(LIMIT))]
    pub offload_limit: Option<Duration>,
    /// Poll for this long before sleeping; costs a core [default: 0s].
    #[arg(long, alias = "offload-spin-us", value_name = "TIME", value_parser = time(SPIN))]
    pub offload_spin: Option<Duration>,
    /// A file with the secret of the SPs.
    #[arg(long, value_name = "FILE")]
    pub secret_file: Option<PathBuf>,
    /// The libucp to use [default: the program's own, or the loader's search].
    #[arg(long, value_name = "FILE")]
    pub ucx_library: Option<PathBuf>,
}

/// Contents of the options file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
struct ClientFile {
    /// SPs of nodes that the file does not name.
    sp: Vec<String>,
    nodes: BTreeMap<String, Node>,
    ranks_per_sp: Option<NonZero<u16>>,
    #[serde(alias = "connect-limit-s")]
    connect_limit: Option<Given>,
    #[serde(alias = "absent-limit-s")]
    absent_limit: Option<Given>,
    #[serde(alias = "offload-limit-s")]
    offload_limit: Option<Given>,
    #[serde(alias = "offload-spin-us")]
    offload_spin: Option<Given>,
    secret_file: Option<PathBuf>,
    ucx_library: Option<PathBuf>,
}

/// A time in the file: a text with its unit. A number, the former form, is refused with the new one.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Given {
    Text(String),
    Number(u64),
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Node {
    sp: Vec<String>,
}

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);
/// Range of the limits of a connect.
const CONNECT: RangeInclusive<Duration> = SECOND..=DAY;
/// Range of the limit of a collective.
const LIMIT: RangeInclusive<Duration> = Duration::ZERO..=DAY;
/// Range of the polling time.
const SPIN: RangeInclusive<Duration> = Duration::ZERO..=SECOND;

/// Default of `ranks-per-sp`.
pub const RANKS_PER_SP: u16 = 8;

/// Maximum number of SPs per node. A DPU has about ten cores.
const SERVICES_MAX: usize = 256;

impl ClientArgs {
    /// Reads the file, if one is given, and checks all options.
    ///
    /// # Errors
    /// [`OffloadError::Options`] with the name of the option, or with the file and the line.
    pub fn options(self, scheme: Scheme) -> Result<ClientOptions> {
        let file: ClientFile = self
            .offload_config
            .as_deref()
            .map(read_toml)
            .transpose()?
            .unwrap_or_default();
        let node = self.node.map_or_else(host_name, Ok)?;
        let services = if self.services.is_empty() {
            file.nodes
                .get(&node)
                .map_or(file.sp, |named| named.sp.clone())
        } else {
            self.services
        };
        if services.is_empty() {
            return Err(OffloadError::Options(format!(
                "no services are known for node '{node}': give --sp ADDR:PORT, or --offload-config with `sp` or \
                 `[nodes.{node}]`"
            )));
        }
        within("the number of services", services.len(), 1..=SERVICES_MAX)?;
        let connect_limit = chosen(
            "connect-limit",
            self.connect_limit,
            file.connect_limit,
            CONNECT,
        )?;
        let connect_limit = connect_limit.unwrap_or(Duration::from_secs(30));
        let absent_limit = chosen(
            "absent-limit",
            self.absent_limit,
            file.absent_limit,
            CONNECT,
        )?;
        let limit = chosen(
            "offload-limit",
            self.offload_limit,
            file.offload_limit,
            LIMIT,
        )?;
        let spin = chosen("offload-spin", self.offload_spin, file.offload_spin, SPIN)?;
        let ranks_per_sp = self.ranks_per_sp.or(file.ranks_per_sp.map(NonZero::get));
        Ok(ClientOptions {
            services,
            ranks_per_sp: ranks_per_sp.unwrap_or(RANKS_PER_SP).into(),
            node,
            scheme,
            connect_limit,
            absent_limit: absent_limit.unwrap_or(connect_limit),
            limit: limit.filter(|limit| !limit.is_zero()),
            spin: spin.unwrap_or_default(),
            secret: self
                .secret_file
                .or(file.secret_file)
                .as_deref()
                .map(secret::read)
                .transpose()?,
            ucx_library: self.ucx_library.or(file.ucx_library),
        })
    }
}

/// The time of the command line, or else that of the file.
fn chosen(
    name: &str,
    flag: Option<Duration>,
    file: Option<Given>,
    range: RangeInclusive<Duration>,
) -> Result<Option<Duration>> {
    let text = match (flag, file) {
        (Some(time), _) => format!("{}us", time.as_micros()),
        (None, Some(Given::Text(text))) => text,
        (None, Some(Given::Number(number))) => number.to_string(),
        (None, None) => return Ok(None),
    };
    let time = time(range)(&text);
    time.map(Some)
        .map_err(|why| OffloadError::Options(format!("{name}: {why}")))
}

fn host_name() -> Result<String> {
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .map(|name| name.trim().to_owned())
        .map_err(|error| OffloadError::io("the host's name", error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    fn file(text: &str) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        file.write_all(text.as_bytes()).expect("written");
        file
    }

    fn args(file: &tempfile::NamedTempFile, node: &str) -> ClientArgs {
        ClientArgs {
            offload_config: Some(file.path().to_owned()),
            node: Some(node.to_owned()),
            ..ClientArgs::default()
        }
    }

    #[test]
    fn a_node_finds_its_services() {
        let file = file("sp = ['a:1']\noffload-limit = '5s'\n[nodes.n1]\nsp = ['b:1', 'b:2']\n");
        let check = |args: ClientArgs, expect: &[&str]| {
            let options = args.options(Scheme::Stock).expect("valid");
            assert_eq!(options.services, expect);
            assert_eq!(options.limit, Some(Duration::from_secs(5)));
        };
        check(args(&file, "n0"), &["a:1"]);
        check(args(&file, "n1"), &["b:1", "b:2"]);
        let flags = ClientArgs {
            services: vec!["c:1".to_owned()],
            ..args(&file, "n1")
        };
        check(flags, &["c:1"]);
    }

    #[test]
    fn the_ranks_of_a_service_are_chosen_by_the_flag_or_the_file() {
        let of = |text: &str, flag| {
            let file = file(text);
            let args = ClientArgs {
                ranks_per_sp: flag,
                ..args(&file, "n0")
            };
            args.options(Scheme::Stock)
                .map(|options| options.ranks_per_sp)
        };
        let given = "sp = ['a:1']\nranks-per-sp = 3";
        assert_eq!(of("sp = ['a:1']", None).expect("valid"), 8);
        assert_eq!(of(given, None).expect("valid"), 3);
        assert_eq!(of(given, Some(1)).expect("valid"), 1);
        assert!(of("sp = ['a:1']\nranks-per-sp = 0", None).is_err());
    }

    #[test]
    fn a_collective_has_no_limit_unless_one_is_set() {
        let limit = |text: &str| {
            let options = args(&file(text), "n0").options(Scheme::Stock);
            options.expect("valid").limit
        };
        assert_eq!(limit("sp = ['a:1']"), None);
        assert_eq!(limit("sp = ['a:1']\noffload-limit = '0s'"), None);
        let limit = limit("sp = ['a:1']\noffload-limit = '7s'");
        assert_eq!(limit, Some(Duration::from_secs(7)));
    }

    #[test]
    fn the_example_is_valid() {
        // The secret's file does not exist in this test.
        let example = include_str!("../../packaging/offload.toml");
        let example = file(&example.replace("\nsecret-file", "\n# secret-file"));
        let services = |node: &str| {
            let options = args(&example, node).options(Scheme::Stock);
            options.expect("valid").services.len()
        };
        assert_eq!((services("node0"), services("node7")), (4, 1));
    }

    #[test]
    fn what_cannot_be_right_is_named() {
        let check = |args: ClientArgs, expect: &str| {
            let error = args.options(Scheme::Stock).unwrap_err().to_string();
            assert!(error.contains(expect), "{error}");
        };
        check(args(&file(""), "n7"), "no services are known for node 'n7'");
        check(args(&file("spp = []"), "n"), "spp");
        let valid = file("sp = ['a:1']");
        let limit = ClientArgs {
            connect_limit: Some(Duration::ZERO),
            ..args(&valid, "n")
        };
        check(limit, "connect-limit: it must be from 1s");
        // The former names, and numbers without units.
        let number = file("sp = ['a:1']\noffload-limit-s = 5");
        let expect = "offload-limit: 5 has no unit: give 5us, 5ms, 5s or 5m";
        check(args(&number, "n"), expect);
        let words = ["--connect-limit-s", "5"];
        let error = xgvmi_daemon::options::parse_words::<ClientArgs>(&words).unwrap_err();
        assert!(error.to_string().contains("5 has no unit"), "{error}");
    }
}
