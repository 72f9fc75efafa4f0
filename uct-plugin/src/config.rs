//! Converts the options of this library to policies of the pool and the map. [`table`] defines the
//! options, [`values`] converts their values.

mod table;
mod values;

use std::ffi::c_uint;
use std::ptr::NonNull;
use std::time::Duration;

use once_cell::race::OnceBox;
use xgvmi_pool::mlx5::{FormFailure, Mlx5Options, Post, Prove};
use xgvmi_pool::{AccessKey, AliasPolicy, Invalidate, OnFull, PoolPolicy, ReuseOrder, Seal};

use crate::log;
use crate::module::Module;
use crate::ucs_config::{self, Listing, Symbols};
use table::{OPTIONS, Raw};

/// Prefix of the options' names in the environment.
pub(crate) const PREFIX: &str = "UCX_XGVMI_";

/// The UCX versions in which the library redirects UCP's calls to its import cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UcpHooks {
    /// The tested versions.
    Tested,
    /// Every version that passes the checks.
    Any,
    /// None.
    None,
}

/// The options' values.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// Whether the library serves calls.
    pub(crate) enable: bool,
    /// Whether `xgvmi stat` can read the counters.
    pub(crate) stats: bool,
    pool_init: u32,
    pool_max: u32,
    pool_low: u32,
    pool_high: u32,
    pool_age: Duration,
    refill: bool,
    pool_order: ReuseOrder,
    on_full: OnFull,
    invalidate: Invalidate,
    batch: u32,
    batch_time: Duration,
    poll_timeout: Duration,
    prove: Prove,
    post: Post,
    alias_max: u32,
    alias_ttl: Option<Duration>,
    import_max: u32,
    /// Whether the library redirects calls of libucp.
    pub(crate) ucp_hooks: UcpHooks,
    arena: usize,
    arena_age: Duration,
    keep: u32,
    keep_bytes: usize,
    access_key: AccessKey,
    seal: Seal,
}

impl Options {
    /// Policy of the memory domains' pools.
    pub(crate) fn pool_policy(&self) -> PoolPolicy {
        PoolPolicy {
            mkeys_max: self.pool_max,
            prefill: self.pool_init,
            low: self.pool_low,
            high: self.pool_high,
            age: self.pool_age,
            keeper: self.refill,
            order: self.pool_order,
            access_key: self.access_key.clone(),
            invalidate: self.invalidate,
            batch_ops: self.batch,
            batch_time: self.batch_time,
            on_full: self.on_full,
            caches: processors(),
            ..PoolPolicy::default()
        }
    }

    /// Policy of the memory domains' alias maps.
    pub(crate) fn alias_policy(&self) -> AliasPolicy {
        AliasPolicy {
            aliases_max: self.alias_max,
            access_key: self.access_key.clone(),
            ttl: self.alias_ttl,
            // Without a time to live the map needs no upkeep.
            keeper: self.refill && self.alias_ttl.is_some(),
            ..AliasPolicy::default()
        }
    }

    /// Maximum number of aliases of a memory domain.
    pub(crate) fn aliases_max(&self) -> u32 {
        self.alias_max
    }

    /// Maximum number of imports of one exporter in UCP: at most the number of aliases.
    pub(crate) fn imports_max(&self) -> u32 {
        self.import_max.min(self.alias_max)
    }

    /// Parameters of the devices.
    pub(crate) fn device(&self) -> Mlx5Options {
        Mlx5Options {
            poll_timeout: self.poll_timeout,
            sq_wqebbs: match self.invalidate {
                // UCX exports one buffer at a time, so chains are short. Creating a longer queue
                // would make the first export slower.
                Invalidate::Strict => WQEBBS_WITHOUT_BATCHES,
                _ => Mlx5Options::default().sq_wqebbs,
            },
            // UCX has already queried the adapter and reports the result for the memory domain.
            is_known_to_cross: true,
            gid_index: gid_index(std::env::var("UCX_IB_GID_INDEX").ok().as_deref()),
            post: self.post,
            prove: self.prove,
            on_failure: Some(tell_failure),
            ..Mlx5Options::default()
        }
    }

    /// Bytes of the arena for temporary buffers. Zero for none.
    pub(crate) fn arena(&self) -> usize {
        self.arena
    }

    /// Time after which the arena returns an empty slab.
    pub(crate) fn arena_age(&self) -> Duration {
        self.arena_age
    }

    /// Number and bytes of registrations that stay after UCX has released them.
    pub(crate) fn keep(&self) -> (usize, usize) {
        (self.keep as usize, self.keep_bytes)
    }

    /// True if a key is invalid as soon as its memory is released.
    pub(crate) fn is_strict(&self) -> bool {
        self.invalidate == Invalidate::Strict
    }

    /// Minimum number of keys of a pool before the first export.
    pub(crate) fn pool_init(&self) -> u32 {
        self.pool_init
    }

    /// Interval at which imports look for expired aliases. `None` if nothing expires or a thread
    /// does it.
    pub(crate) fn alias_upkeep(&self) -> Option<Duration> {
        self.alias_ttl.filter(|_| !self.refill).map(|ttl| ttl / 4)
    }

    /// The key of the seal of messages between the job's programs.
    pub(crate) fn seal(&self) -> &Seal {
        &self.seal
    }
}

/// Reports that a request form of binds is not used, once per form and memory domain.
fn tell_failure(failure: &FormFailure) {
    log::warning!("{failure}; such exports take UCX's own path");
}

/// The GID table index from the user's UCX options. UCX's value for automatic selection is `auto`.
fn gid_index(value: Option<&str>) -> Option<u8> {
    value?.trim().parse().ok()
}

/// Building blocks of a work queue without batches: space for 85 exports of as many threads.
const WQEBBS_WITHOUT_BATCHES: u32 = 256;

/// Processors that this process may use. The standard library reads files for a more precise value,
/// which would make the first export slower. Zero selects that.
fn processors() -> u32 {
    // SAFETY: an all-zero set is a valid one.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set has the given size.
    let asked = unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) };
    match asked {
        // SAFETY: the set was filled.
        0 => u32::try_from(unsafe { libc::CPU_COUNT(&set) }).expect("a count"),
        _ => 0,
    }
}

/// Made without a lock: a thread of the parent could hold one at a fork.
static VALUES: OnceBox<Options> = OnceBox::new();

/// The options' values: those of the environment after [`load`], before it the defaults.
pub(crate) fn get() -> &'static Options {
    VALUES.get_or_init(|| Box::new(Raw::DEFAULT.options()))
}

/// Adds the options to a UCX that the program itself is linked to, and takes their values from it.
/// UCX's tools then list them, and UCX does not warn of unused variables on a machine without a
/// device. That UCX is already initialised, because a preloaded library is initialised after the
/// libraries of the program.
/// of the program.
pub(crate) fn announce() {
    read(&|name| {
        // SAFETY: the name ends in a zero byte.
        NonNull::new(unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) })
    });
}

/// Adds the options to this copy of UCX and takes their values from it, unless another copy was
/// first. For an invalid value UCX prints its own error line, and the default applies.
pub(crate) fn load(module: &Module) {
    if !read(&|name| module.symbol(name)) {
        log::info!("this UCX has no option parser, the options are not read");
    }
}

/// False if this UCX has no option parser.
fn read(symbol: &Symbols<'_>) -> bool {
    let Some(listing) = ucs_config::list(symbol, &OPTIONS, size_of::<Raw>()) else {
        return false;
    };
    if let Listing::New(entry) = listing {
        // Each copy reads them, so each knows that the variables are used.
        let mut raw = Raw::DEFAULT;
        // SAFETY: the options' offsets are those of the fields of `Raw`, and the fields have the
        // types that the parsers write.
        if !unsafe { ucs_config::fill(symbol, entry, (&raw mut raw).cast()) } {
            raw = Raw::DEFAULT;
        }
        let level = raw
            .log_level
            .checked_sub(1)
            .or_else(|| ucs_config::log_level(symbol));
        if VALUES.get().is_none() {
            log::set_level(level.unwrap_or(log::Level::Warn as c_uint));
        }
        VALUES.get_or_init(|| Box::new(raw.options()));
    }
    true
}
