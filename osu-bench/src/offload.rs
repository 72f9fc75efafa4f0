//! The offloaded backend: service processes on the DPUs carry out the collective (`xgvmi_offload`).

use crate::buffers::Pair;
use crate::layout::{Blocks, Layout};
use crate::mpi::World;
use crate::options::{Options, Scheme};
use anyhow::{Context as _, Result};
use std::error::Error;
use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use xgvmi_offload::{
    Client, CommunicatorId, Exchange, Memory, Request, Scheme as ClientScheme, Side,
};

/// File name of the library for scheme xgvmi.
const PLUGIN: &str = "libuct_ib_mlx5_xgvmi.so";

/// The loader's environment variable.
const LD_PRELOAD: &str = "LD_PRELOAD";

/// This rank's connection to its service process.
#[derive(Debug)]
pub struct Offload {
    client: Client,
    /// Counts and displacements of the last layout, in the client's types.
    converted: Option<(Rc<Layout>, Rc<Converted>)>,
}

/// A layout in the client's types.
#[derive(Debug)]
struct Converted {
    send: Sizes,
    receive: Sizes,
}

#[derive(Debug)]
struct Sizes {
    counts: Vec<usize>,
    displacements: Vec<usize>,
}

impl Sizes {
    fn of(blocks: &Blocks) -> Result<Self> {
        let all = |numbers: &[i32]| -> Result<Vec<usize>> {
            let all = numbers.iter().map(|number| usize::try_from(*number));
            Ok(all.collect::<Result<_, _>>()?)
        };
        Ok(Self {
            counts: all(&blocks.counts)?,
            displacements: all(&blocks.displacements)?,
        })
    }

    fn side(&self, memory: *mut [u8]) -> Side<'_> {
        Side {
            memory: Memory::Temporary {
                start: memory.cast(),
                length: memory.len(),
            },
            counts: &self.counts,
            displacements: &self.displacements,
        }
    }
}

/// Counters of the offloaded collective on this rank since the connection.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Counted {
    /// Time in registration and export, in microseconds.
    pub registration_us: f64,
    /// Exports that found a free key in the pool, and exports that did not. Zero without our library.
    pub host: Hits,
    /// Imports at the service process that found an alias, and imports that did not. Zero without our library.
    pub alias: Hits,
}

/// Hits and misses.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Hits {
    /// Hits.
    pub hits: u64,
    /// Misses.
    pub misses: u64,
}

/// The ranks' exchange over MPI.
struct ByMpi<'w>(&'w World);

impl Exchange for ByMpi<'_> {
    fn allgather(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, Box<dyn Error + Send + Sync>> {
        Ok(self.0.allgather(mine)?)
    }
}

impl Offload {
    /// Connects. Collective over all ranks; if one fails, all return the same error.
    ///
    /// # Errors
    /// The client's error.
    pub fn connect(world: &World, options: &Options) -> Result<Self> {
        let scheme = match options.scheme {
            Scheme::Ksm => ClientScheme::Ksm,
            Scheme::Stock => ClientScheme::Stock,
            Scheme::Xgvmi => ClientScheme::Xgvmi,
        };
        let client = Client::connect(
            &options.offload.clone().options(scheme)?,
            u32::try_from(world.rank())?,
            u32::try_from(world.size())?,
            &mut ByMpi(world),
        )?;
        Ok(Self {
            client,
            converted: None,
        })
    }

    /// Starts an alltoallv between all ranks; in place without `send`.
    ///
    /// # Errors
    /// A layout outside a buffer, or the client's own error.
    ///
    /// # Safety
    /// Until the request is complete, both buffers stay in place, nothing writes to the send buffer, and
    /// nothing accesses the receive buffer.
    pub unsafe fn start(
        &mut self,
        layout: &Rc<Layout>,
        send: Option<*mut [u8]>,
        receive: *mut [u8],
    ) -> Result<Request> {
        let sizes = self.convert(layout)?;
        let (world, receive) = (CommunicatorId::WORLD, sizes.receive.side(receive));
        Ok(match send {
            Some(send) => {
                // SAFETY: the caller's promise.
                unsafe { self.client.alltoallv(world, sizes.send.side(send), receive) }?
            }
            None => {
                // SAFETY: the caller's promise.
                unsafe { self.client.alltoallv_in_place(world, receive) }?
            }
        })
    }

    /// Progresses the request and returns whether it is complete.
    ///
    /// # Errors
    /// The client's error.
    pub fn test(&mut self, request: &mut Request) -> Result<bool> {
        Ok(self.client.test(request)?)
    }

    /// Waits until the request is complete.
    ///
    /// # Errors
    /// The client's error.
    pub fn wait(&mut self, request: Request) -> Result<()> {
        Ok(self.client.wait(request)?)
    }

    /// Counters so far.
    #[must_use]
    pub fn counted(&self) -> Counted {
        let stats = self.client.stats();
        let hits = |hits: Option<u64>, misses: Option<u64>| Hits {
            hits: hits.unwrap_or(0),
            misses: misses.unwrap_or(0),
        };
        Counted {
            registration_us: stats.registration_us,
            host: hits(stats.host_hits, stats.host_misses),
            alias: hits(stats.alias_hits, stats.alias_misses),
        }
    }

    /// Disconnects from the service process.
    ///
    /// # Errors
    /// The client's error.
    pub fn close(self) -> Result<()> {
        self.client.close().context("leaving the service process")
    }

    /// The layout in the client's types; it is the same for all iterations of a size.
    fn convert(&mut self, layout: &Rc<Layout>) -> Result<Rc<Converted>> {
        if let Some((known, converted)) = &self.converted
            && Rc::ptr_eq(known, layout)
        {
            return Ok(Rc::clone(converted));
        }
        let converted = Rc::new(Converted {
            send: Sizes::of(layout.send())?,
            receive: Sizes::of(layout.receive())?,
        });
        self.converted = Some((Rc::clone(layout), Rc::clone(&converted)));
        Ok(converted)
    }
}

impl Counted {
    /// The difference to the counters `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let since = |after: Hits, before: Hits| Hits {
            hits: after.hits.saturating_sub(before.hits),
            misses: after.misses.saturating_sub(before.misses),
        };
        Self {
            registration_us: self.registration_us - before.registration_us,
            host: since(self.host, before.host),
            alias: since(self.alias, before.alias),
        }
    }
}

/// Loads the library of scheme xgvmi before UCX. This must happen before this process loads any other library,
/// so the process restarts itself with the library preloaded. It returns if no restart is needed.
///
/// # Errors
/// The library is absent, or the program cannot restart.
pub fn preload(options: &Options) -> Result<()> {
    let preloaded = std::env::var_os(LD_PRELOAD).unwrap_or_default();
    let Some(value) = preload_value(options, &preloaded, beside_program().as_deref())? else {
        return Ok(());
    };
    let program = std::env::current_exe().context("this program's own path")?;
    let error = Command::new(&program)
        .args(std::env::args_os().skip(1))
        .env(LD_PRELOAD, value)
        .exec();
    Err(error).with_context(|| format!("cannot run {} again", program.display()))
}

/// The library to preload. `None` if it is already preloaded, not needed, or installed in UCX.
fn preload_value(
    options: &Options,
    preloaded: &OsString,
    beside: Option<&Path>,
) -> Result<Option<OsString>> {
    let wanted =
        options.backend == crate::options::BackendKind::Offload && options.scheme == Scheme::Xgvmi;
    if !wanted || preloaded.to_string_lossy().contains("libuct_ib_mlx5_xgvmi") {
        return Ok(None);
    }
    let library = match (&options.plugin, beside) {
        (Some(named), _) => named
            .canonicalize()
            .with_context(|| format!("the library of scheme xgvmi, {}", named.display()))?,
        (None, Some(beside)) => beside.to_owned(),
        (None, None) => return Ok(None),
    };
    let mut value = library.into_os_string();
    if !preloaded.is_empty() {
        value.push(":");
        value.push(preloaded);
    }
    Ok(Some(value))
}

fn beside_program() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    Some(program.with_file_name(PLUGIN)).filter(|file| file.is_file())
}

/// First address and length of both buffers of a pair, for the client.
pub(crate) fn parts(pair: &mut Pair) -> (*mut [u8], *mut [u8]) {
    (pair.send.as_mut_slice(), pair.receive.as_mut_slice())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{BackendKind, Program};

    #[test]
    fn the_library_is_preloaded_once_and_only_for_its_scheme() {
        let check =
            |backend, scheme, preloaded: &str, beside: Option<&str>, expect: Option<&str>| {
                let mut options = Options::new(Program::Blocking);
                options.backend = backend;
                options.scheme = scheme;
                let value =
                    preload_value(&options, &preloaded.into(), beside.map(Path::new)).unwrap();
                assert_eq!(value, expect.map(OsString::from), "{preloaded}");
            };
        let here = Some("/d/libuct_ib_mlx5_xgvmi.so");
        check(BackendKind::Offload, Scheme::Xgvmi, "", here, here);
        check(
            BackendKind::Offload,
            Scheme::Xgvmi,
            "/e/libother.so",
            here,
            Some("/d/libuct_ib_mlx5_xgvmi.so:/e/libother.so"),
        );
        check(
            BackendKind::Offload,
            Scheme::Xgvmi,
            "/x/libuct_ib_mlx5_xgvmi.so.0",
            here,
            None,
        );
        check(BackendKind::Offload, Scheme::Xgvmi, "", None, None);
        check(BackendKind::Offload, Scheme::Stock, "", here, None);
        check(BackendKind::Mpi, Scheme::Xgvmi, "", here, None);
    }

    #[test]
    fn a_library_that_is_not_there_is_named() {
        let mut options = Options::new(Program::Blocking);
        options.backend = BackendKind::Offload;
        options.plugin = Some("/nonexistent/library.so".into());
        let error = preload_value(&options, &OsString::new(), None).unwrap_err();
        assert!(
            format!("{error:#}").contains("/nonexistent/library.so"),
            "{error:#}"
        );
    }
}
