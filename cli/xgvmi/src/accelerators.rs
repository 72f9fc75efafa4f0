//! Finds libnaaice, the device of RDMA connections, and the accelerators of `NAA_SPEC`.

use std::path::Path;
use std::time::Duration;

use naaice::spec::{self, Entry, Scheme};

use crate::access::may_use;
use crate::ucc;

/// The library of programs that call accelerators.
const LIBRARY: &str = "libnaaice.so";
/// The kernel's device of RDMA connections.
const MANAGER: &str = "/dev/infiniband/rdma_cm";
/// Time limit of one accelerator.
const LIMIT: Duration = Duration::from_secs(2);
/// Accelerators that are tried. A job may have many.
const TRIED_MAX: usize = 16;

/// State of calls to accelerators on this machine.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Accelerators {
    /// The loader's error if the library is not found.
    pub(crate) library: Result<(), String>,
    /// Why RDMA connections cannot be made.
    pub(crate) manager: Result<(), String>,
    pub(crate) spec: Spec,
}

/// The accelerators of `NAA_SPEC`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Spec {
    /// The variable is not set.
    Absent,
    /// The specification's fault.
    Faulty(String),
    /// The accelerators that were tried, each once, and the number of others.
    Tried(Vec<Tried>, usize),
}

/// An accelerator.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Tried {
    /// Address and port, with the scheme of a service.
    pub(crate) name: String,
    /// Function codes.
    pub(crate) functions: Vec<u8>,
    pub(crate) scheme: Scheme,
    /// Why it cannot be reached.
    pub(crate) reached: Result<(), String>,
}

/// Asks loader and device, and tries the accelerators.
pub(crate) fn look() -> Accelerators {
    let manager = Path::new(MANAGER);
    let text = std::env::var(spec::VARIABLE).unwrap_or_default();
    Accelerators {
        library: ucc::open(Path::new(LIBRARY)).map(drop),
        manager: match manager.exists() {
            false => Err(format!("no {MANAGER}")),
            true if may_use(manager) => Ok(()),
            true => Err(format!("no access to {MANAGER}")),
        },
        spec: look_at(&text, &|entry| {
            naaice::reach(entry, LIMIT).map_err(|error| error.to_string())
        }),
    }
}

fn look_at(text: &str, reach: &dyn Fn(&Entry) -> Result<(), String>) -> Spec {
    if text.is_empty() {
        return Spec::Absent;
    }
    let entries = match spec::parse(text) {
        Ok(entries) => entries,
        Err(fault) => return Spec::Faulty(fault.to_string()),
    };
    let mut tried: Vec<Tried> = Vec::new();
    let mut others = 0;
    for entry in &entries {
        let name = match entry.scheme {
            Scheme::Dpu => format!("dpu/{}", entry.peer()),
            Scheme::Verbs => entry.peer(),
        };
        if let Some(at) = tried.iter().position(|known| known.name == name) {
            let functions = &mut tried[at].functions;
            if !functions.contains(&entry.function) {
                functions.push(entry.function);
            }
        } else if tried.len() == TRIED_MAX {
            others += 1;
        } else {
            tried.push(Tried {
                name,
                functions: vec![entry.function],
                scheme: entry.scheme,
                reached: reach(entry),
            });
        }
    }
    Spec::Tried(tried, others)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn each_accelerator_is_tried_once() {
        let tries = Cell::new(0);
        let reach = |entry: &Entry| {
            tries.set(tries.get() + 1);
            match entry.port {
                7800 => Ok(()),
                _ => Err("refused".to_owned()),
            }
        };
        let text = "dpu/a:7800:1:2,dpu/a:7800:2:1,dpu/a:7800:2:2,b::3:1";
        let Spec::Tried(tried, 0) = look_at(text, &reach) else {
            panic!("{text}");
        };
        assert_eq!(tries.get(), 2);
        assert_eq!(tried[0].functions, [1, 2]);
        assert_eq!(
            (tried[0].name.as_str(), tried[1].name.as_str()),
            ("dpu/a:7800", "b:12345")
        );
        assert_eq!(tried[1].reached, Err("refused".to_owned()));
        let many: Vec<String> = (1..=20).map(|port| format!("a:{port}:1:1")).collect();
        let Spec::Tried(tried, others) = look_at(&many.join(","), &reach) else {
            panic!("{many:?}");
        };
        assert_eq!((tried.len(), others), (TRIED_MAX, 4));
    }

    #[test]
    fn a_fault_has_its_place() {
        let never = |_: &Entry| panic!("nothing of a faulty specification is tried");
        assert_eq!(look_at("", &never), Spec::Absent);
        let Spec::Faulty(fault) = look_at("a:1:1:1,b:0:1:1", &never) else {
            panic!("port 0");
        };
        assert!(fault.contains("entry 2"), "{fault}");
    }
}
