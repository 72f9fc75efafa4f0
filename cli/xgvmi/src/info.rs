//! `xgvmi info`: version, the installed UCX and UCC, its entry points for the library, and the options.

use std::path::PathBuf;

use ucx_sys::Ucp;

use crate::{options, ucc};

/// Oldest and newest UCX version that the library is tested with.
pub(crate) const KNOWN: [(u32, u32); 2] = [(1, 18), (1, 23)];
/// First version that loads modules from `UCX_PLUGIN_PATH`.
const PLUGINS: (u32, u32) = (1, 22);

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Print the options with their values in this environment, like ucx_info
    #[arg(short = 'c', long)]
    config: bool,
    /// Print the description of each option as well
    #[arg(short = 'f', long)]
    full: bool,
    /// The libucp to check [default: the one that the loader finds]
    #[arg(long, value_name = "FILE")]
    ucx: Option<PathBuf>,
}

/// Prints all information. Without UCX, the output says so.
pub(crate) fn run(arguments: &Arguments) -> bool {
    if arguments.config || arguments.full {
        print!(
            "{}",
            listing(arguments.full, |name| std::env::var(name).ok())
        );
        return true;
    }
    println!("xgvmi   {}", env!("CARGO_PKG_VERSION"));
    match Ucp::load(arguments.ucx.as_deref()) {
        Ok(ucp) => {
            println!("UCX     {}", ucp.version());
            println!("load by {}", entry_points(ucp.version()));
        }
        Err(error) => println!("UCX     {error}"),
    }
    println!("UCC     {}", ucc::look());
    println!("options");
    print!("{}", listing(false, |name| std::env::var(name).ok()));
    true
}

/// How a UCX of this version loads the library.
pub(crate) fn entry_points(version: &str) -> &'static str {
    match parse(version) {
        Some(number) if number < KNOWN[0] => "none: too old, the library stays inactive",
        Some(number) if number > KNOWN[1] => {
            "unknown version: the library checks its layout and stays inactive if the layout differs"
        }
        Some(number) if number >= PLUGINS => "LD_PRELOAD, UCX_PLUGIN_PATH",
        Some(_) => "LD_PRELOAD",
        None => "none: not a version of UCX",
    }
}

/// True if a UCX of this version loads modules from `UCX_PLUGIN_PATH`.
pub(crate) fn has_plugins(version: &str) -> bool {
    parse(version).is_some_and(|number| number >= PLUGINS)
}

/// Major and minor version.
pub(crate) fn parse(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.split('.').map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => Some((major, minor)),
        _ => None,
    }
}

/// The options in UCX's own format.
fn listing(is_full: bool, value_of: impl Fn(&str) -> Option<String>) -> String {
    let mut text = String::new();
    for setting in options::all() {
        if is_full {
            let lines = setting.help.lines().chain([setting.takes.as_str()]);
            text.push_str("#\n");
            lines.for_each(|line| text.push_str(&format!("# {line}\n")));
            text.push_str("#\n");
        }
        let value = value_of(setting.name).unwrap_or_else(|| setting.default.to_owned());
        text.push_str(&format!("{}={value}\n", setting.name));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_version_has_its_entry_points() {
        for (version, expect) in [
            ("1.17.0", "none"),
            ("1.18.1", "LD_PRELOAD"),
            ("1.21.0", "LD_PRELOAD"),
            ("1.22.0", "LD_PRELOAD, UCX_PLUGIN_PATH"),
            ("1.23.0", "LD_PRELOAD, UCX_PLUGIN_PATH"),
            ("1.24.0", "unknown"),
            ("2.0", "unknown"),
            ("unknown", "none"),
        ] {
            assert!(entry_points(version).starts_with(expect), "{version}");
        }
        assert_eq!(entry_points("1.21.0"), "LD_PRELOAD");
    }

    #[test]
    fn options_are_listed_as_ucx_lists_them() {
        let set = |name: &str| (name == "UCX_XGVMI_POOL_MAX").then(|| "77".to_owned());
        let short = listing(false, set);
        assert!(short.contains("UCX_XGVMI_POOL_MAX=77\n"), "{short}");
        assert!(short.contains("UCX_XGVMI_BATCH=64\n"), "{short}");
        assert!(!short.contains('#'), "{short}");
        let full = listing(true, set);
        let part = "# y or n\n#\nUCX_XGVMI_REFILL=n\n";
        assert!(full.contains(part), "{full}");
    }
}
