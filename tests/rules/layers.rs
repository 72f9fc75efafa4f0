//! Rules about the modules of a crate: their layers, and that a module uses only its own layer and those below it.

pub(super) mod imports;

use doc_numbers::tree::{Source, Tree};
use imports::{Import, Modules};
use std::collections::{BTreeMap, BTreeSet};

/// A crate with layered modules.
#[derive(Debug)]
struct Crate {
    /// The folder of its root module.
    root: &'static str,
    /// The library's name in paths, for a binary that uses it.
    name: &'static str,
    /// Layers from the bottom: description and modules. A path of several modules (`uverbs::abi`) assigns a module to
    /// another layer than its parent's.
    layers: &'static [(&'static str, &'static [&'static str])],
}

/// To add a crate, add its root, its name, and its layers from the bottom. The rule then reports violations.
const CRATES: &[Crate] = &[
    Crate {
        root: "bf-emu/src",
        name: "bf_emu",
        layers: &[
            ("machine", &["bits", "sys", "guard", "memory", "trap"]),
            ("model", &["model"]),
            ("shared state", &["fabric"]),
            ("execution", &["engine"]),
            ("view", &["view"]),
            ("process", &["process"]),
            ("commands", &["commands"]),
            ("runner of the DPA", &["dpa"]),
            ("reports", &["report", "fuzzing"]),
            ("command line", &["cli"]),
        ],
    },
    Crate {
        root: "bf-emu/preload/src",
        name: "bfemu_preload",
        layers: &[
            ("calls", &["call", "next", "complaint"]),
            ("state", &["masks", "record", "records", "context", "watch"]),
            (
                "doorbell trap",
                &["store", "store_aarch64", "resume", "fault", "install"],
            ),
            (
                "interposed calls",
                &[
                    "signals",
                    "files",
                    "names",
                    "open",
                    "stat",
                    "exec",
                    "interfaces",
                ],
            ),
        ],
    },
    Crate {
        root: "shared/daemon/src",
        name: "xgvmi_daemon",
        layers: &[
            (
                "basics",
                &[
                    "error",
                    "random",
                    "budget",
                    "codec",
                    "histogram",
                    "text",
                    "log",
                    "memory",
                    "poll",
                    "poller",
                    "processor",
                    "ready",
                ],
            ),
            ("options", &["config", "options", "secret", "secrets"]),
            (
                "connections",
                &["admission", "background", "link", "dialer", "listener"],
            ),
            ("processes", &["signal", "workers"]),
            ("status", &["counters", "metrics", "status", "control"]),
            ("shell", &["daemon"]),
        ],
    },
    Crate {
        root: "services/offload/src",
        name: "xgvmi_offload",
        layers: &[
            (
                "basics",
                &[
                    "error",
                    "job_id",
                    "library",
                    "radix",
                    "reduction",
                    "scheme",
                    "secret",
                    "token",
                ],
            ),
            ("messages", &["wire", "draft", "control"]),
            (
                "rules",
                &[
                    "exchange",
                    "client::lanes",
                    "client::names",
                    "client::options",
                    "client::patience",
                    "client::spans",
                    "client::streams",
                    "client::types",
                    "client::waiting",
                    "client::window",
                    "service::actions",
                    "service::again",
                    "service::counters",
                    "service::familiar",
                    "service::incoming",
                    "service::late",
                    "service::ledger",
                    "service::options",
                    "service::outbox",
                    "service::ready",
                    "service::relays",
                    "service::repeats",
                    "service::pulse",
                    "service::sharing",
                    "service::slots",
                    "service::spacing",
                    "service::turns",
                    "service::windows",
                ],
            ),
            (
                "data path",
                &[
                    "service::dpa",
                    "service::imported",
                    "service::imports",
                    "service::segments",
                    "service::transport",
                    "service::trees",
                    "service::vectors",
                    "service::greeting",
                    "service::mover",
                    "service::job",
                    "service::script",
                ],
            ),
            (
                "state",
                &[
                    "client::state",
                    "service::connections",
                    "service::preparing",
                    "service::state",
                ],
            ),
            (
                "events",
                &[
                    "client::call",
                    "client::connect",
                    "client::introduction",
                    "client::launch",
                    "service::admission",
                    "service::hearing",
                    "service::status",
                    "service::timers",
                ],
            ),
            ("processes", &["client", "service"]),
            (
                "programs",
                &[
                    "check",
                    "fuzzing",
                    "bin::xgvmi-offload-check",
                    "bin::xgvmi-sp",
                ],
            ),
        ],
    },
    Crate {
        root: "doca/pcc-lab/src",
        name: "pcc_lab",
        layers: &[
            ("units", &["units", "refusal", "histogram", "trace"]),
            ("algorithms", &["algorithm", "native"]),
            (
                "parts",
                &[
                    "packet",
                    "calendar",
                    "pacer",
                    "port",
                    "scheduler",
                    "report",
                    "counts",
                ],
            ),
            ("input", &["scenario", "routes", "check"]),
            ("simulator", &["sim"]),
        ],
    },
    Crate {
        root: "xgvmi-pool/src",
        name: "xgvmi_pool",
        layers: &[
            ("values", &["key", "error", "region", "span", "secret"]),
            (
                "threads",
                &["sync", "gate", "flight", "signals", "keeper", "parallel"],
            ),
            ("interface", &["device", "policy", "event"]),
            ("devices", &["mlx5", "sim"]),
            (
                "parts",
                &[
                    "affinity",
                    "alias_entry",
                    "alias_table",
                    "backoff",
                    "expiry",
                    "free_list",
                    "idle_watch",
                    "latency",
                    "local_cache",
                    "long_keys",
                    "replay",
                    "slots",
                    "stats",
                    "tags",
                    "unpinned",
                    "use_clock",
                    "waiters",
                ],
            ),
            (
                "pool and alias map",
                &[
                    "alias", "announce", "binding", "core", "export", "pool", "upkeep",
                ],
            ),
            ("hooks", &["hooks"]),
            ("models for loom", &["models"]),
        ],
    },
    Crate {
        root: "uct-plugin/src",
        name: "uct_ib_mlx5_xgvmi",
        layers: &[
            ("UCX's interface", &["abi", "module", "calls", "ucs_config"]),
            (
                "process",
                &[
                    "domains::place",
                    "hot",
                    "log",
                    "panic",
                    "allocator",
                    "forked",
                    "event_lock",
                    "first",
                    "system_pages",
                ],
            ),
            ("options", &["key_file", "config"]),
            (
                "UCX in this process",
                &["original", "check", "chunks", "rkey", "ucm", "ucp"],
            ),
            (
                "records",
                &[
                    "memh",
                    "registrations",
                    "numbers",
                    "counter_file",
                    "opened",
                    "owner",
                    "arena::counts",
                    "kept",
                ],
            ),
            ("memory domains", &["md", "domains", "vfs", "serve"]),
            (
                "operations",
                &["export", "import", "release", "announce", "arena"],
            ),
            (
                "entry points",
                &[
                    "key_provider",
                    "entry_point",
                    "operations",
                    "md_open",
                    "api",
                ],
            ),
        ],
    },
    Crate {
        root: "shared/verbs/src",
        name: "xgvmi_verbs",
        layers: &[
            ("values", &["direction", "error", "process"]),
            ("objects", &["adapter", "memory", "queue_pair"]),
            (
                "transfers",
                &["engine", "mover", "host", "notices", "reads", "shown"],
            ),
            ("sessions", &["aliases"]),
        ],
    },
    Crate {
        root: "shared/ucp/src",
        name: "xgvmi_ucp",
        layers: &[
            (
                "basics",
                &[
                    "buffer",
                    "error",
                    "exported_key",
                    "hash",
                    "inbox",
                    "pattern",
                ],
            ),
            ("context", &["context"]),
            ("objects", &["memory", "worker"]),
            ("connections", &["request", "endpoint", "rkey"]),
            ("transfers", &["get", "gets", "exporter"]),
        ],
    },
    Crate {
        root: "services/blk/src",
        name: "xgvmi_blk",
        layers: &[
            (
                "basics",
                &[
                    "crc32c", "crew", "roles", "geometry", "error", "pipe", "say", "tries",
                ],
            ),
            (
                "formats",
                &["block", "code", "encryption", "layers", "record", "sbc"],
            ),
            ("targets", &["store"]),
            ("volume", &["volume", "remote", "disk"]),
            ("requests", &["aio"]),
            ("service", &["frames", "service", "client"]),
            ("export", &["nbd", "vhost"]),
            ("processes", &["operate"]),
            ("programs", &["fuzzing", "bin::xgvmi-blk"]),
        ],
    },
    Crate {
        root: "doca/dpacc/src",
        name: "dpacc",
        layers: &[
            ("basics", &["fault", "types", "options"]),
            ("tools", &["tools"]),
            (
                "files",
                &["attributes", "objects", "dwarf", "image", "generate"],
            ),
            ("steps", &["build", "fuzzing"]),
            ("programs", &["bin::dpa-app-attributes2blob"]),
        ],
    },
    Crate {
        root: "doca/os/src",
        name: "dpa_os",
        layers: &[
            (
                "values",
                &[
                    "core_file",
                    "debugger",
                    "device",
                    "event_queue",
                    "fault",
                    "fixed",
                    "launch",
                    "order",
                    "task_queue",
                    "window",
                ],
            ),
            ("threads", &["refusal", "thread"]),
            ("state", &["kernel"]),
            ("device calls", &["context"]),
            ("families of calls", &["format", "doca", "congestion"]),
            ("all calls", &["calls"]),
            ("execution", &["environment"]),
            ("process", &["os"]),
        ],
    },
    Crate {
        root: "doca/flexio/src",
        name: "flexio",
        layers: &[
            ("basics", &["error", "variadic"]),
            ("programs", &["app"]),
            ("device", &["verbs", "object", "memory", "launch"]),
            ("processes", &["process"]),
            ("queues", &["queue", "thread"]),
            (
                "objects",
                &["events", "shared", "tasks", "congestion", "dct"],
            ),
            ("C interface", &["capi", "fuzzing", "resources"]),
        ],
    },
    Crate {
        root: "doca/rv64/src",
        name: "rv64",
        layers: &[
            ("values", &["op", "trap"]),
            ("instructions", &["alu", "compressed", "decode"]),
            ("memory", &["space", "heap"]),
            ("harts", &["hart", "schedule", "environment"]),
            ("execution", &["code", "exec"]),
            ("programs", &["program", "lines"]),
            ("machine", &["machine"]),
        ],
    },
];

/// Checks each crate of the table.
pub(super) fn layers(tree: &Tree) -> Vec<String> {
    CRATES
        .iter()
        .flat_map(|one| check(one, &files(tree, one.root)))
        .collect()
}

/// No module of any crate, program, example or test uses itself through others. A module may use what the modules that
/// contain it declare for it, unless the table gives its crate layers.
pub(super) fn circles(tree: &Tree) -> Vec<String> {
    let roots: BTreeSet<&str> = tree
        .rust()
        .filter_map(|file| {
            let (folder, name) = file.path.rsplit_once('/')?;
            ["lib.rs", "main.rs"].contains(&name).then_some(folder)
        })
        .collect();
    let found = roots.into_iter().flat_map(|root| {
        let package = root.strip_suffix("/src").unwrap_or(root);
        let name = package.rsplit('/').next().unwrap_or(package);
        let modules = Modules::read(root, &name.replace('-', "_"), &files(tree, root));
        let mut imports = modules.imports();
        if !CRATES.iter().any(|one| one.root == root) {
            imports.retain(|import| !import.from.starts_with(&format!("{}::", import.to)));
        }
        circles_of(root, &imports)
    });
    found.collect()
}

/// The files of a crate. A nested crate's directory has its own root.
fn files<'a>(tree: &'a Tree, root: &str) -> Vec<&'a Source> {
    let inside = format!("{root}/");
    tree.rust()
        .filter(|file| file.path.starts_with(&inside))
        .collect()
}

fn check(one: &Crate, files: &[&Source]) -> Vec<String> {
    if files.is_empty() {
        return vec![format!(
            "{}: no such folder; tests/rules/layers.rs names it",
            one.root
        )];
    }
    let modules = Modules::read(one.root, one.name, files);
    let mut faults = unlisted(one, &modules);
    let imports = modules.imports();
    faults.extend(upward(one, &imports));
    faults
}

/// Index, from the bottom, and name of a module's layer in the crate with this root.
pub(super) fn layer(root: &str, module: &str) -> Option<(usize, &'static str)> {
    let one = CRATES.iter().find(|one| one.root == root)?;
    let at = layer_of(one, module)?;
    Some((at, one.layers.get(at)?.0))
}

/// Index in the table of a module's layer.
fn layer_of(one: &Crate, module: &str) -> Option<usize> {
    let holds = |entry: &str| {
        module
            .strip_prefix(entry)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
    };
    let entries = one.layers.iter().enumerate();
    entries
        .flat_map(|(at, (_, entries))| entries.iter().map(move |entry| (entry.len(), at, *entry)))
        .filter(|(_, _, entry)| holds(entry))
        .max()
        .map(|(_, at, _)| at)
}

/// Modules without a layer, and layers without a module.
fn unlisted(one: &Crate, modules: &Modules) -> Vec<String> {
    let mut faults: Vec<String> = modules
        .names()
        .filter(|(name, _)| layer_of(one, name).is_none())
        .map(|(name, path)| {
            format!(
                "{path}: module {name} has no layer; add it to a layer in tests/rules/layers.rs"
            )
        })
        .collect();
    let listed = one.layers.iter().flat_map(|(_, entries)| entries.iter());
    let gone = listed.filter(|entry| !modules.names().any(|(name, _)| name == **entry));
    faults.extend(gone.map(|entry| {
        format!(
            "{}: tests/rules/layers.rs lists module {entry}, which does not exist",
            one.root
        )
    }));
    faults
}

/// Imports from a higher layer. The crate's root is above all layers.
fn upward(one: &Crate, imports: &[Import]) -> Vec<String> {
    let name = |layer: usize| one.layers.get(layer).map_or("root", |(name, _)| name);
    let mut faults = Vec::new();
    for import in imports {
        let Some(from) = layer_of(one, &import.from) else {
            // The root, or a module that has been reported already.
            continue;
        };
        let to = layer_of(one, &import.to).unwrap_or(one.layers.len());
        if to > from {
            let target = if import.to.is_empty() {
                "the root"
            } else {
                &import.to
            };
            faults.push(format!(
                "{}:{}: {} (layer {from}, {}) uses {target} (layer {to}, {}); move what both need below both, or let \
                 the upper one pass it in",
                import.path,
                import.line,
                import.from,
                name(from),
                name(to),
            ));
        }
    }
    faults
}

/// Files of one crate that import each other in a cycle, with one fault per cycle.
fn circles_of(root: &str, imports: &[Import]) -> Vec<String> {
    let mut graph: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for import in imports {
        // The root declares all modules; the rule reports its users as upward imports.
        if !import.from.is_empty() && !import.to.is_empty() {
            graph.entry(&import.from).or_default().insert(&import.to);
        }
    }
    let reach = |start: &str| {
        let mut seen: BTreeSet<&str> = BTreeSet::new();
        let mut left: Vec<&str> = graph.get(start).into_iter().flatten().copied().collect();
        while let Some(module) = left.pop() {
            if seen.insert(module) {
                left.extend(graph.get(module).into_iter().flatten());
            }
        }
        seen
    };
    let reached: BTreeMap<&str, BTreeSet<&str>> = graph
        .keys()
        .map(|module| (*module, reach(module)))
        .collect();
    let meets = |from: &str, to: &str| reached.get(from).is_some_and(|seen| seen.contains(to));
    let mut told: BTreeSet<&str> = BTreeSet::new();
    let mut faults = Vec::new();
    for module in graph.keys().copied() {
        if told.contains(module) || !meets(module, module) {
            continue;
        }
        let group: Vec<&str> = graph
            .keys()
            .copied()
            .filter(|other| meets(module, other) && meets(other, module))
            .collect();
        told.extend(&group);
        let ties: Vec<String> = imports
            .iter()
            .filter(|import| group.contains(&&*import.from) && group.contains(&&*import.to))
            .map(|import| format!("{}:{} uses {}", import.path, import.line, import.to))
            .collect();
        faults.push(format!(
            "{root}: modules {} use each other in a circle ({}); move what they share into a module below them",
            group.join(", "),
            ties.join("; ")
        ));
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::planted;

    const SAMPLE: Crate = Crate {
        root: "sample/src",
        name: "sample",
        layers: &[
            ("bottom", &["low", "top::types"]),
            ("middle", &["middle"]),
            ("top", &["top", "cli"]),
        ],
    };

    fn found(extra: &[(&str, &str)]) -> Vec<String> {
        let mut all = vec![
            (
                "sample/src/lib.rs",
                "pub mod low; pub mod middle; pub mod top;",
            ),
            ("sample/src/main.rs", "mod cli; use sample::low;"),
            ("sample/src/cli.rs", "use sample::top;"),
            ("sample/src/low.rs", ""),
            (
                "sample/src/middle/mod.rs",
                "pub mod part; pub use part::Thing;",
            ),
            ("sample/src/middle/part.rs", "use crate::low::{self, X};"),
            (
                "sample/src/top/mod.rs",
                "mod types; use crate::middle::Thing;",
            ),
            ("sample/src/top/types.rs", ""),
        ];
        for (path, text) in extra {
            all.retain(|(known, _)| known != path);
            all.push((path, text));
        }
        let tree = planted(&all);
        let mut found = check(&SAMPLE, &files(&tree, SAMPLE.root));
        found.extend(circles(&tree));
        found
    }

    #[track_caller]
    fn check_found(extra: &[(&str, &str)], expect: &[&str]) {
        let found = found(extra);
        assert_eq!(found.len(), expect.len(), "{extra:?}: {found:#?}");
        for (fault, part) in found.iter().zip(expect) {
            assert!(fault.contains(part), "{part}: {fault}");
        }
    }

    #[test]
    fn what_uses_only_what_is_below_passes() {
        check_found(&[], &[]);
        check_found(
            &[(
                "sample/src/low.rs",
                "//! use crate::top;\n/* crate::top */ const A: &str = \"crate::top\";",
            )],
            &[],
        );
        check_found(
            &[(
                "sample/src/low.rs",
                "#[cfg(test)]\nmod tests { use crate::top::{A, B}; }",
            )],
            &[],
        );
        check_found(
            &[(
                "sample/src/top/types.rs",
                "const A: u8 = 1; mod inner { use super::A; pub(in crate::top) fn f() {} }",
            )],
            &[],
        );
        // A separate module in a lower layer, and a name that a module re-exports.
        check_found(&[("sample/src/low.rs", "use crate::top::types::T;")], &[]);
        check_found(
            &[(
                "sample/src/top/mod.rs",
                "mod types; fn f(x: &'static str) { crate::low::g('\"', x) }",
            )],
            &[],
        );
    }

    #[test]
    fn an_import_from_above_is_found() {
        let at = "sample/src/low.rs:2: low (layer 0, bottom) uses middle::part (layer 1, middle)";
        check_found(
            &[("sample/src/low.rs", "\nuse crate::middle::part::Thing;")],
            &[at, "circle"],
        );
        check_found(
            &[("sample/src/low.rs", "\nuse crate::{middle::{part::Thing}};")],
            &[at, "circle"],
        );
        check_found(
            &[("sample/src/low.rs", "\nuse crate::middle::Thing;")],
            &[at, "circle"],
        );
        check_found(
            &[("sample/src/low.rs", "\nfn f() { super::middle::part::g() }")],
            &[at, "circle"],
        );
        check_found(
            &[(
                "sample/src/low.rs",
                "#[cfg(test)]\nmod tests {}\nuse crate::root_item;",
            )],
            &["low.rs:3"],
        );
        check_found(
            &[("sample/src/middle/part.rs", "use super::super::top::f;")],
            &["part.rs:1: middle::part", "circle"],
        );
    }

    #[test]
    fn a_circle_within_a_layer_is_found() {
        let a = ("sample/src/middle/a.rs", "use super::part::B;");
        let b = ("sample/src/middle/part.rs", "use crate::middle::a::A;");
        check_found(
            &[a, b],
            &["middle::a, middle::part use each other in a circle"],
        );
    }

    #[test]
    fn a_module_without_a_layer_and_a_layer_without_a_module_are_found() {
        check_found(
            &[("sample/src/extra.rs", "")],
            &["sample/src/extra.rs: module extra has no layer"],
        );
        let tree = planted(&[("sample/src/lib.rs", ""), ("sample/src/low.rs", "")]);
        let found = check(&SAMPLE, &files(&tree, SAMPLE.root));
        assert_eq!(found.len(), 4, "{found:#?}");
        assert_eq!(check(&SAMPLE, &[]).len(), 1);
    }
}
