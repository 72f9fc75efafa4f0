//! MPI through a small C library that the MPI's own `mpicc` compiles and the program loads at run time
//! (`shim/osu_mpi.c`).
//!
//! MPI has no binary interface, so a program that links MPI works with one MPI only. These programs do not link
//! it. One build works with any MPI whose library is given, and the workspace builds on machines without MPI.

use crate::layout::Layout;
use anyhow::{Context as _, Result, bail, ensure};
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Interface number that a matching library returns; see `INTERFACE` in the C file.
const INTERFACE: c_int = 2;

/// File name of the library in the programs' directory.
const LIBRARY: &str = "libosu_mpi.so";

/// The environment variable with the library, if no option gives it.
const ENV_LIBRARY: &str = "OSU_MPI_LIBRARY";

/// Maximum length of MPI's texts. Open MPI's version has 120 bytes, and no error is longer.
const TEXT_MAX: usize = 512;

/// Maximum bytes per rank of [`World::allgather`]. Addresses and error texts are far smaller.
const GATHER_MAX: usize = 1 << 20;

/// Sleep time of [`World::sleeping_barrier`] between two tests: some scheduling quanta, far above the cost of a
/// test.
const BARRIER_PAUSE: Duration = Duration::from_micros(50);

macro_rules! calls {
    ($($name:ident: fn($($argument:ty),*) $(-> $answer:ty)?;)*) => {
        /// The functions of the C library.
        #[derive(Debug)]
        struct Calls { $($name: unsafe extern "C" fn($($argument),*) $(-> $answer)?),* }

        impl Calls {
            fn resolve(library: &Library) -> Result<Self, libloading::Error> {
                // SAFETY: the C file declares each name with this signature, and `osu_mpi_interface` has answered that
                // the library is compiled from that file.
                unsafe {
                    Ok(Self { $($name: *library.get(concat!("osu_mpi_", stringify!($name)).as_bytes())?),* })
                }
            }
        }
    };
}

calls! {
    init: fn(*mut c_int, *mut c_int) -> c_int;
    finalize: fn() -> c_int;
    abort: fn(c_int);
    version: fn(*mut c_char, c_int) -> c_int;
    error: fn(c_int, *mut c_char, c_int) -> c_int;
    barrier: fn() -> c_int;
    ibarrier: fn(*mut u64) -> c_int;
    reduce_sum: fn(*const f64, *mut f64, c_int) -> c_int;
    allgather: fn(*const c_void, *mut c_void, c_int) -> c_int;
    alltoallv:
        fn(c_int, *const c_void, *const c_int, *const c_int, *mut c_void, *const c_int, *const c_int) -> c_int;
    ialltoallv: fn(
        c_int, *const c_void, *const c_int, *const c_int, *mut c_void, *const c_int, *const c_int, *mut u64
    ) -> c_int;
    test: fn(*mut u64, *mut c_int) -> c_int;
    wait: fn(*mut u64) -> c_int;
}

/// All ranks of the job, MPI_COMM_WORLD. MPI is initialised once per process, as long as this value lives.
#[derive(Debug)]
pub struct World {
    calls: Calls,
    rank: usize,
    size: usize,
    version: String,
}

/// An outstanding non-blocking MPI operation.
///
/// The caller keeps its buffers until [`World::wait`] or [`World::test`] reports completion.
#[derive(Debug)]
pub struct Operation {
    kept: u64,
}

impl World {
    /// Loads the library (`library`, else `$OSU_MPI_LIBRARY`, else the one in this program's directory) and
    /// initialises MPI.
    ///
    /// # Errors
    /// The library is absent or of another kind, or MPI's own error.
    pub fn start(library: Option<&Path>) -> Result<Self> {
        let path = match library.map(Path::to_owned).or_else(named_library) {
            Some(path) => path,
            None => beside_program()?,
        };
        let calls = load(&path)?;
        let (mut rank, mut size) = (0, 0);
        // SAFETY: two places for an integer each, and no MPI was initialised before: `World` is made once, by main.
        let rc = unsafe { (calls.init)(&raw mut rank, &raw mut size) };
        ensure!(rc == 0, "MPI_Init failed with code {rc}");
        let mut world = Self {
            rank: usize::try_from(rank).context("MPI_Comm_rank")?,
            size: usize::try_from(size).context("MPI_Comm_size")?,
            version: String::new(),
            calls,
        };
        world.version = world.text(|text, length| {
            // SAFETY: `text` has room for `length` bytes.
            unsafe { (world.calls.version)(text, length) }
        });
        Ok(world)
    }

    /// This process's rank, from 0.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Number of ranks.
    #[must_use]
    pub fn size(&self) -> usize {
        self.size
    }

    /// The first line of MPI's own version text.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Finalises MPI. All ranks call it.
    ///
    /// # Errors
    /// MPI's error.
    pub fn finish(self) -> Result<()> {
        // SAFETY: takes nothing; `self` is consumed, so no call follows.
        self.check("MPI_Finalize", unsafe { (self.calls.finalize)() })
    }

    /// Ends all ranks at once with this exit code after an error on one of them.
    pub fn abort(&self, code: i32) -> ! {
        // SAFETY: takes an integer.
        unsafe { (self.calls.abort)(code) };
        // MPI_Abort may return before the launcher ends the process.
        std::process::exit(code)
    }

    /// Waits until all ranks have entered. MPI polls meanwhile.
    ///
    /// # Errors
    /// MPI's error.
    pub fn barrier(&self) -> Result<()> {
        // SAFETY: takes nothing.
        self.check("MPI_Barrier", unsafe { (self.calls.barrier)() })
    }

    /// Like [`World::barrier`], but sleeps between tests, so that waiting ranks do not take cores from working
    /// ones.
    ///
    /// # Errors
    /// MPI's error.
    pub fn sleeping_barrier(&self) -> Result<()> {
        let mut kept = 0;
        // SAFETY: a place for a request.
        self.check("MPI_Ibarrier", unsafe {
            (self.calls.ibarrier)(&raw mut kept)
        })?;
        let mut operation = Operation { kept };
        while !self.test(&mut operation)? {
            std::thread::sleep(BARRIER_PAUSE);
        }
        Ok(())
    }

    /// The sums of all ranks' values at rank 0, zeros elsewhere. All ranks pass the same number of values.
    ///
    /// # Errors
    /// MPI's error, or more values than MPI's count type allows.
    pub fn sum(&self, values: &[f64]) -> Result<Vec<f64>> {
        let count = c_int::try_from(values.len())?;
        let mut sums = vec![0.0; values.len()];
        // SAFETY: `count` values on both sides.
        let rc = unsafe { (self.calls.reduce_sum)(values.as_ptr(), sums.as_mut_ptr(), count) };
        self.check("MPI_Reduce", rc)?;
        Ok(sums)
    }

    /// Each rank's bytes, in rank order, at every rank. Lengths may differ.
    ///
    /// # Errors
    /// MPI's error, or more than 1 MiB from a rank.
    pub fn allgather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        let lengths = self.allgather_equal(&(bytes.len() as u64).to_le_bytes())?;
        let lengths: Vec<usize> = lengths
            .as_chunks::<8>()
            .0
            .iter()
            .map(|length| usize::try_from(u64::from_le_bytes(*length)))
            .collect::<Result<_, _>>()?;
        let longest = lengths.iter().copied().max().unwrap_or(0);
        // Every rank sees the same lengths, so all ranks stop here or none.
        ensure!(
            longest <= GATHER_MAX,
            "a rank gives {longest} bytes to all; the limit is {GATHER_MAX}"
        );
        let mut padded = bytes.to_vec();
        padded.resize(longest.max(1), 0);
        let all = self.allgather_equal(&padded)?;
        Ok(all
            .chunks(padded.len())
            .zip(lengths)
            .map(|(chunk, length)| chunk[..length].to_vec())
            .collect())
    }

    fn allgather_equal(&self, bytes: &[u8]) -> Result<Vec<u8>> {
        let count = c_int::try_from(bytes.len())?;
        let mut all = vec![0_u8; bytes.len() * self.size];
        // SAFETY: `count` bytes to read, and room for that many of each rank.
        let rc = unsafe {
            (self.calls.allgather)(bytes.as_ptr().cast(), all.as_mut_ptr().cast(), count)
        };
        self.check("MPI_Allgather", rc)?;
        Ok(all)
    }

    /// MPI_Alltoallv; in place without `send`.
    ///
    /// # Errors
    /// A layout outside a buffer, or MPI's own error.
    pub fn alltoallv(
        &self,
        layout: &Layout,
        send: Option<&[u8]>,
        receive: &mut [u8],
    ) -> Result<()> {
        let length = send.map_or(receive.len(), <[u8]>::len);
        layout.check(self.size, length, receive.len())?;
        let (elements, datatype) = layout.elements();
        // SAFETY: the layout has been checked: one count and displacement per rank, and every block is in its buffer.
        // In elements they are the same blocks. A null pointer stands for MPI_IN_PLACE.
        let rc = unsafe {
            (self.calls.alltoallv)(
                datatype as c_int,
                send.map_or(std::ptr::null(), <[u8]>::as_ptr).cast(),
                elements.counts.as_ptr(),
                elements.displacements.as_ptr(),
                receive.as_mut_ptr().cast(),
                elements.counts.as_ptr(),
                elements.displacements.as_ptr(),
            )
        };
        self.check("MPI_Alltoallv", rc)
    }

    /// MPI_Ialltoallv; in place without `send`.
    ///
    /// # Errors
    /// A layout outside a buffer, or MPI's own error.
    ///
    /// # Safety
    /// Until the operation is complete, both buffers and the layout stay in place, nothing writes to the send
    /// buffer, and nothing accesses the receive buffer.
    pub unsafe fn start_alltoallv(
        &self,
        layout: &Layout,
        send: Option<*const [u8]>,
        receive: *mut [u8],
    ) -> Result<Operation> {
        let length = send.map_or(receive.len(), <*const [u8]>::len);
        layout.check(self.size, length, receive.len())?;
        let (elements, datatype) = layout.elements();
        let mut kept = 0;
        // SAFETY: as in alltoallv(); the caller keeps buffers and layout until the end.
        let rc = unsafe {
            (self.calls.ialltoallv)(
                datatype as c_int,
                send.map_or(std::ptr::null(), <*const [u8]>::cast),
                elements.counts.as_ptr(),
                elements.displacements.as_ptr(),
                receive.cast(),
                elements.counts.as_ptr(),
                elements.displacements.as_ptr(),
                &raw mut kept,
            )
        };
        self.check("MPI_Ialltoallv", rc)?;
        Ok(Operation { kept })
    }

    /// Progresses the operation and returns whether it is complete.
    ///
    /// # Errors
    /// MPI's error.
    pub fn test(&self, operation: &mut Operation) -> Result<bool> {
        let mut done = 0;
        // SAFETY: a request that MPI gave, and a place for an integer.
        let rc = unsafe { (self.calls.test)(&raw mut operation.kept, &raw mut done) };
        self.check("MPI_Test", rc)?;
        Ok(done != 0)
    }

    /// Waits until the operation is complete.
    ///
    /// # Errors
    /// MPI's error.
    pub fn wait(&self, operation: &mut Operation) -> Result<()> {
        // SAFETY: a request that MPI gave.
        let rc = unsafe { (self.calls.wait)(&raw mut operation.kept) };
        self.check("MPI_Wait", rc)
    }

    fn check(&self, call: &str, rc: c_int) -> Result<()> {
        if rc == 0 {
            return Ok(());
        }
        let text = self.text(|text, length| {
            // SAFETY: `text` has room for `length` bytes.
            unsafe { (self.calls.error)(rc, text, length) }
        });
        bail!("{call} failed with code {rc}: {text}")
    }

    /// The first line of a text from MPI; empty if MPI has none.
    fn text(&self, write: impl Fn(*mut c_char, c_int) -> c_int) -> String {
        let mut text = [0_u8; TEXT_MAX];
        // TEXT_MAX fits.
        let length = c_int::try_from(text.len()).unwrap_or(c_int::MAX);
        if write(text.as_mut_ptr().cast(), length) != 0 {
            return String::new();
        }
        let text = CStr::from_bytes_until_nul(&text).unwrap_or_default();
        let text = text.to_string_lossy();
        text.lines().next().unwrap_or_default().trim().to_owned()
    }
}

/// The rank from the launcher, before MPI is initialised. It limits error messages to one rank.
#[must_use]
pub fn launcher_rank() -> Option<usize> {
    [
        "PMIX_RANK",
        "OMPI_COMM_WORLD_RANK",
        "PMI_RANK",
        "SLURM_PROCID",
    ]
    .iter()
    .find_map(|name| std::env::var(name).ok()?.parse().ok())
}

fn named_library() -> Option<PathBuf> {
    std::env::var_os(ENV_LIBRARY)
        .filter(|name| !name.is_empty())
        .map(PathBuf::from)
}

fn beside_program() -> Result<PathBuf> {
    let program = std::env::current_exe().context("this program's own path")?;
    Ok(program.with_file_name(LIBRARY))
}

fn load(path: &Path) -> Result<Calls> {
    // SAFETY: its initialisers are those of the C library and of MPI, which are made to be loaded. RTLD_GLOBAL, because
    // components of some MPIs look for MPI's own symbols among the global ones.
    let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL) };
    let library = library.with_context(|| {
        format!(
            "cannot load {}; make it by your MPI's compiler: \
             mpicc -O2 -fPIC -shared -o {LIBRARY} osu_mpi.c, which is in osu-bench/shim and installed in \
             share/xgvmi-offload, and name it with --mpi-library or \
             ${ENV_LIBRARY}",
            path.display()
        )
    })?;
    // SAFETY: a function of this name has this signature in any version of the C file.
    let interface = unsafe { library.get::<unsafe extern "C" fn() -> c_int>(b"osu_mpi_interface") };
    // SAFETY: it takes nothing.
    let number = interface.map(|call| unsafe { call() });
    match number {
        Ok(INTERFACE) => {}
        Ok(other) => bail!(
            "{} has interface {other}, this program needs {INTERFACE}; compile it anew",
            path.display()
        ),
        Err(_) => bail!("{} is no library of shim/osu_mpi.c", path.display()),
    }
    let calls = Calls::resolve(&library).with_context(|| path.display().to_string())?;
    // MPI cannot be unloaded, because it leaves handlers and threads.
    std::mem::forget(library);
    Ok(calls)
}
