//! Peers in C, compiled at the start of the bench.

use std::env;
use std::ffi::c_void;
use std::process::Command;
use std::ptr::NonNull;

use libloading::Library;

/// The three functions of a peer; both sources define them.
#[derive(Debug)]
pub struct Peer {
    make: unsafe extern "C" fn(*const u64, u64) -> *mut c_void,
    run: unsafe extern "C" fn(*mut c_void, u64) -> u64,
    free: unsafe extern "C" fn(*mut c_void),
    /// Dropped last: it contains the functions.
    _library: Library,
}

/// Target processor of a peer's compilation.
#[derive(Debug, Clone, Copy)]
pub enum Processor {
    /// The processor of this machine.
    This,
    /// The baseline of its architecture, which instruction counters also support.
    Any,
}

/// A list or table of a peer.
#[derive(Debug)]
pub struct Made<'a> {
    peer: &'a Peer,
    made: NonNull<c_void>,
}

// SAFETY: the list takes its own mutex; only one thread uses the table.
unsafe impl Sync for Made<'_> {}

impl Peer {
    /// The free list under a mutex.
    pub fn list(processor: Processor) -> Option<Self> {
        Self::compile("list", include_str!("list.c"), processor, None)
    }

    /// The table of the UCX with the installed headers.
    pub fn table(processor: Processor) -> Option<Self> {
        match env::var("XGVMI_UCX_INCLUDE") {
            Ok(include) => {
                Self::compile("table", include_str!("table.c"), processor, Some(&include))
            }
            Err(_) => {
                println!("no peer: XGVMI_UCX_INCLUDE does not name UCX's headers");
                None
            }
        }
    }

    fn compile(
        name: &str,
        source: &str,
        processor: Processor,
        include: Option<&str>,
    ) -> Option<Self> {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let (file, object) = (
            dir.path().join(format!("{name}.c")),
            dir.path().join("peer.so"),
        );
        std::fs::write(&file, source).expect("written");
        let mut cc = Command::new("cc");
        cc.args(["-O3", "-shared", "-fPIC", "-o"])
            .args([&object, &file]);
        if matches!(processor, Processor::This) {
            cc.arg("-march=native");
        }
        cc.args(include.iter().map(|include| format!("-I{include}")));
        match cc.output() {
            Ok(output) if output.status.success() => {}
            Ok(output) => {
                println!("no peer: cc: {}", String::from_utf8_lossy(&output.stderr));
                return None;
            }
            Err(error) => {
                println!("no peer: cc: {error}");
                return None;
            }
        }
        // SAFETY: our own source, without constructors.
        let library = unsafe { Library::new(&object) }.expect("just compiled");
        // SAFETY: the types are those of the source.
        let make = *unsafe { library.get(b"peer_make\0") }.expect("in the source");
        // SAFETY: as above.
        let run = *unsafe { library.get(b"peer_run\0") }.expect("in the source");
        // SAFETY: as above.
        let free = *unsafe { library.get(b"peer_free\0") }.expect("in the source");
        Some(Self {
            make,
            run,
            free,
            _library: library,
        })
    }

    /// A list of `count` keys.
    pub fn make(&self, count: u32) -> Made<'_> {
        self.fill(&vec![0; count as usize])
    }

    /// A table of the numbers.
    pub fn fill(&self, numbers: &[u64]) -> Made<'_> {
        // SAFETY: reads only the given number of values.
        let made = unsafe { (self.make)(numbers.as_ptr(), numbers.len() as u64) };
        Made {
            peer: self,
            made: NonNull::new(made).expect("memory"),
        }
    }
}

impl Made<'_> {
    /// Runs `rounds` rounds, which must all succeed.
    pub fn run(&self, rounds: u64) {
        // SAFETY: created by the same peer.
        let done = unsafe { (self.peer.run)(self.made.as_ptr(), rounds) };
        assert_eq!(done, rounds, "the peer did not do all of it");
    }
}

impl Drop for Made<'_> {
    fn drop(&mut self) {
        // SAFETY: created by the same peer, and no longer in use.
        unsafe { (self.peer.free)(self.made.as_ptr()) };
    }
}
