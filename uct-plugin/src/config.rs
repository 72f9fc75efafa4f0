//! The options of this library. One table, [`OPTIONS`], says what there is: UCX's parser reads from
//! it, `ucx_info -c` shows it, and `OPTIONS.md` is written from it.

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::mem::offset_of;
use std::path::PathBuf;
use std::ptr::{NonNull, null};
use std::sync::OnceLock;
use std::time::Duration;

use xgvmi_pool::mlx5::Mlx5Options;
use xgvmi_pool::{AccessKey, AliasPolicy, Invalidate, OnFull, PoolPolicy, Seal};

use crate::original::Module;
use crate::ucs_config::{self, Kind, Listing, Option as Spec, Symbols, Words};
use crate::{key_file, log};

/// What the names of the options start with in the environment.
pub(crate) const PREFIX: &str = "UCX_XGVMI_";

/// The options' values, in the types that UCX's parsers write.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Raw {
    enable: c_int,
    log_level: c_uint,
    pool_init: c_uint,
    pool_max: c_uint,
    pool_low: c_uint,
    pool_high: c_uint,
    pool_age: f64,
    refill: c_int,
    on_full: c_uint,
    full_timeout: f64,
    invalidate: c_uint,
    batch: c_uint,
    poll_timeout: f64,
    alias_max: c_uint,
    key_file: *const c_char,
    stats: c_int,
}

/// The options' values.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// Whether anything is served.
    pub(crate) enable: bool,
    /// Whether numbers are shown to `xgvmi stat`.
    pub(crate) stats: bool,
    pool_init: u32,
    pool_max: u32,
    pool_low: u32,
    pool_high: u32,
    pool_age: Duration,
    refill: bool,
    on_full: OnFull,
    invalidate: Invalidate,
    batch: u32,
    poll_timeout: Duration,
    alias_max: u32,
    access_key: AccessKey,
    seal: Seal,
}

impl Options {
    /// How the pools of the memory domains behave.
    pub(crate) fn pool_policy(&self) -> PoolPolicy {
        PoolPolicy {
            mkeys_max: self.pool_max,
            prefill: self.pool_init,
            low: self.pool_low,
            high: self.pool_high,
            age: self.pool_age,
            keeper: self.refill,
            access_key: self.access_key.clone(),
            invalidate: self.invalidate,
            batch_ops: self.batch,
            on_full: self.on_full,
            ..PoolPolicy::default()
        }
    }

    /// How the alias maps of the memory domains behave.
    pub(crate) fn alias_policy(&self) -> AliasPolicy {
        AliasPolicy {
            aliases_max: self.alias_max,
            access_key: self.access_key.clone(),
            ..AliasPolicy::default()
        }
    }

    /// Numbers of the devices.
    pub(crate) fn device(&self) -> Mlx5Options {
        Mlx5Options {
            poll_timeout: self.poll_timeout,
            ..Mlx5Options::default()
        }
    }

    /// Keys that a pool shall have before the first export.
    pub(crate) fn pool_init(&self) -> u32 {
        self.pool_init
    }

    /// What the messages of the job's programs are sealed with.
    pub(crate) fn seal(&self) -> &Seal {
        &self.seal
    }
}

/// UCX's names of its log levels, after one of our own for "as UCX".
static LOG_LEVELS: Words<14> = Words([
    c"auto".as_ptr(),
    c"fatal".as_ptr(),
    c"error".as_ptr(),
    c"warn".as_ptr(),
    c"diag".as_ptr(),
    c"info".as_ptr(),
    c"debug".as_ptr(),
    c"trace".as_ptr(),
    c"req".as_ptr(),
    c"data".as_ptr(),
    c"async".as_ptr(),
    c"func".as_ptr(),
    c"poll".as_ptr(),
    null(),
]);

static ON_FULL: Words<3> = Words([c"fallback".as_ptr(), c"wait".as_ptr(), null()]);

static INVALIDATE: Words<4> = Words([
    c"strict".as_ptr(),
    c"batched".as_ptr(),
    c"chained".as_ptr(),
    null(),
]);

/// All options.
static OPTIONS: [Spec; 16] = [
    Spec {
        name: c"ENABLE",
        default: c"y",
        doc: c"Serve exported and imported memory keys from the pool and the alias map.\n\
               Otherwise everything is left to UCX.",
        offset: offset_of!(Raw, enable),
        kind: Kind::Bool,
    },
    Spec {
        name: c"LOG_LEVEL",
        default: c"auto",
        doc: c"Log level of the pool and the alias map; \"auto\" is the one of UCX_LOG_LEVEL.",
        offset: offset_of!(Raw, log_level),
        kind: Kind::Word(&LOG_LEVELS.0),
    },
    Spec {
        name: c"POOL_INIT",
        default: c"0",
        doc: c"Number of memory keys that are created when a memory domain is opened. Each takes\n\
               hundreds of microseconds then instead of at the first export that needs it.",
        offset: offset_of!(Raw, pool_init),
        kind: Kind::Uint,
    },
    Spec {
        name: c"POOL_MAX",
        default: c"4096",
        doc: c"Maximal number of memory keys in the pool of one memory domain.",
        offset: offset_of!(Raw, pool_max),
        kind: Kind::Uint,
    },
    Spec {
        name: c"POOL_LOW",
        default: c"0",
        doc: c"Number of free memory keys below which UCX_XGVMI_REFILL creates more.",
        offset: offset_of!(Raw, pool_low),
        kind: Kind::Uint,
    },
    Spec {
        name: c"POOL_HIGH",
        default: c"256",
        doc: c"Number of free memory keys up to which UCX_XGVMI_REFILL creates, and beyond which it\n\
               destroys those that were not needed for UCX_XGVMI_POOL_AGE.",
        offset: offset_of!(Raw, pool_high),
        kind: Kind::Uint,
    },
    Spec {
        name: c"POOL_AGE",
        default: c"60s",
        doc: c"Time for which a free memory key must not have been needed to be destroyed.",
        offset: offset_of!(Raw, pool_age),
        kind: Kind::Time,
    },
    Spec {
        name: c"REFILL",
        default: c"n",
        doc: c"Create and destroy memory keys in the background, in one thread for each pool.",
        offset: offset_of!(Raw, refill),
        kind: Kind::Bool,
    },
    Spec {
        name: c"ON_FULL",
        default: c"fallback",
        doc: c"What an export does when all UCX_XGVMI_POOL_MAX memory keys are in use:\n \
               - fallback: take UCX's own path\n \
               - wait: wait for a key, first come first served, and then take UCX's own path",
        offset: offset_of!(Raw, on_full),
        kind: Kind::Word(&ON_FULL.0),
    },
    Spec {
        name: c"FULL_TIMEOUT",
        default: c"100ms",
        doc: c"Time for which UCX_XGVMI_ON_FULL=wait waits.",
        offset: offset_of!(Raw, full_timeout),
        kind: Kind::Time,
    },
    Spec {
        name: c"INVALIDATE",
        default: c"strict",
        doc: c"When the memory key of deregistered memory stops to work:\n \
               - strict: before the deregistration\n \
               - batched: UCX_XGVMI_BATCH keys together\n \
               - chained: together with the next export\n\
               In the last two, a peer that kept the key can reach the memory until its\n\
               registration is gone, so that only a peer that is trusted may have it.",
        offset: offset_of!(Raw, invalidate),
        kind: Kind::Word(&INVALIDATE.0),
    },
    Spec {
        name: c"BATCH",
        default: c"64",
        doc: c"Maximal number of memory keys that wait for their invalidation, unless it is strict.",
        offset: offset_of!(Raw, batch),
        kind: Kind::Uint,
    },
    Spec {
        name: c"POLL_TIMEOUT",
        default: c"5s",
        doc: c"Time after which a work request that was not completed is given up. Its queue is\n\
               replaced, and the export takes UCX's own path.",
        offset: offset_of!(Raw, poll_timeout),
        kind: Kind::Time,
    },
    Spec {
        name: c"ALIAS_MAX",
        default: c"65536",
        doc: c"Maximal number of aliases of imported memory keys in one memory domain. Beyond it,\n\
               the alias that was not used for the longest time gives way.",
        offset: offset_of!(Raw, alias_max),
        kind: Kind::Uint,
    },
    Spec {
        name: c"KEY_FILE",
        default: c"",
        doc: c"File with the secret of the job, at least 16 random characters, the same for all its\n\
               processes and readable by its user alone. The access key of the memory keys is made\n\
               from it, and the seal of announcements. Without it, the access key is the one that UCX has built in and everybody\n\
               knows. With it, only peers that have it can import, which excludes those without\n\
               this library; what takes UCX's own path is exported under UCX's key all the same.",
        offset: offset_of!(Raw, key_file),
        kind: Kind::String,
    },
    Spec {
        name: c"STATS",
        default: c"y",
        doc: c"Show the numbers of this process to xgvmi stat, in a file of some 16 KiB below\n\
               /dev/shm/xgvmi-<user id> that no other user can read.",
        offset: offset_of!(Raw, stats),
        kind: Kind::Bool,
    },
];

impl Raw {
    /// The values when UCX's parser is not there. A test compares them with [`OPTIONS`].
    const DEFAULT: Self = Self {
        enable: 1,
        log_level: 0,
        pool_init: 0,
        pool_max: 4096,
        pool_low: 0,
        pool_high: 256,
        pool_age: 60.0,
        refill: 0,
        on_full: 0,
        full_timeout: 0.1,
        invalidate: 0,
        batch: 64,
        poll_timeout: 5.0,
        alias_max: 65_536,
        key_file: null(),
        stats: 1,
    };

    fn options(&self) -> Options {
        let (access_key, seal, is_usable) = self.access();
        Options {
            enable: self.enable != 0 && is_usable,
            stats: self.stats != 0,
            pool_init: self.pool_init,
            pool_max: self.pool_max,
            pool_low: self.pool_low,
            pool_high: self.pool_high,
            pool_age: time("POOL_AGE", self.pool_age, Self::DEFAULT.pool_age),
            refill: self.refill != 0,
            on_full: match self.on_full {
                0 => OnFull::Fail,
                _ => OnFull::Wait(time(
                    "FULL_TIMEOUT",
                    self.full_timeout,
                    Self::DEFAULT.full_timeout,
                )),
            },
            invalidate: match self.invalidate {
                0 => Invalidate::Strict,
                1 => Invalidate::Batched,
                _ => Invalidate::Chained,
            },
            batch: self.batch,
            poll_timeout: time(
                "POLL_TIMEOUT",
                self.poll_timeout,
                Self::DEFAULT.poll_timeout,
            ),
            alias_max: self.alias_max,
            access_key,
            seal,
        }
    }

    /// The access key and the seal, and whether they are what was asked for.
    fn access(&self) -> (AccessKey, Seal, bool) {
        let open = |is_usable| (AccessKey::UCX_COMPATIBLE, Seal::OPEN, is_usable);
        if self.key_file.is_null() {
            return open(true);
        }
        // SAFETY: UCX's parser has put a string there, which nobody frees.
        let path = unsafe { CStr::from_ptr(self.key_file) };
        if path.is_empty() {
            return open(true);
        }
        let path = PathBuf::from(path.to_string_lossy().into_owned());
        match key_file::read(&path) {
            Ok(secret) => (secret.access_key(), secret.seal(), true),
            Err(error) => {
                // The pool would export under a key that was not wanted.
                log::error!("switched off, {PREFIX}KEY_FILE: {error}");
                open(false)
            }
        }
    }
}

/// A time in seconds, as UCX reads it. Negative ones, and those that do not fit, are bad values.
fn time(name: &str, seconds: f64, default: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_else(|error| {
        log::error!("{PREFIX}{name}={seconds}s: {error}, {default}s is used");
        Duration::try_from_secs_f64(default).unwrap_or_default()
    })
}

static VALUES: OnceLock<Options> = OnceLock::new();

/// The options' values: those of the environment once [`load`] was called, else the defaults.
pub(crate) fn get() -> &'static Options {
    VALUES.get_or_init(|| Raw::DEFAULT.options())
}

/// Shows the options to a UCX that the program itself is linked to and takes their values from it,
/// so that its tools list them and nobody warns of unused variables even where there is no device.
/// That UCX is initialised by now, because a preloaded library is initialised after the libraries
/// of the program.
pub(crate) fn announce() {
    read(&|name| {
        // SAFETY: the name ends in a zero byte.
        NonNull::new(unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) })
    });
}

/// Shows the options to this copy of UCX and takes their values from it, if no other copy was
/// first. A value that UCX cannot read costs UCX's own error line, and the default is used.
pub(crate) fn load(module: &Module) {
    if !read(&|name| module.symbol(name)) {
        log::info!("this UCX has no option parser, the options are not read");
    }
}

/// False if this UCX has no options.
fn read(symbol: &Symbols<'_>) -> bool {
    let Some(listing) = ucs_config::list(symbol, &OPTIONS, size_of::<Raw>()) else {
        return false;
    };
    if let Listing::New(entry) = listing {
        // Each copy is asked, so that each knows that the variables are used.
        let mut raw = Raw::DEFAULT;
        // SAFETY: the options' offsets are those of the fields of `Raw`, of the types that the
        // parsers of their kinds write.
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
        VALUES.get_or_init(|| raw.options());
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write as _;
    use std::path::Path;
    use std::{env, fs};

    fn text(text: &CStr) -> &str {
        text.to_str().expect("ASCII")
    }

    fn default(name: &CStr) -> &'static str {
        let option = OPTIONS
            .iter()
            .find(|option| option.name == name)
            .expect("an option");
        text(option.default)
    }

    #[track_caller]
    fn check(name: &CStr, value: impl ToString) {
        assert_eq!(default(name), value.to_string());
    }

    #[track_caller]
    fn check_time(name: &CStr, seconds: f64) {
        let default = default(name);
        let (number, unit) = match default.strip_suffix("ms") {
            Some(number) => (number, 1e-3),
            None => (default.strip_suffix('s').expect("seconds"), 1.0),
        };
        let number: f64 = number.parse().expect("a number");
        assert!(
            (number * unit - seconds).abs() < 1e-9,
            "{name:?}: {default} is not {seconds}"
        );
    }

    #[test]
    fn defaults_are_those_of_the_table() {
        let raw = Raw::DEFAULT;
        check(c"ENABLE", if raw.enable == 1 { "y" } else { "n" });
        check(c"STATS", if raw.stats == 1 { "y" } else { "n" });
        check(c"REFILL", if raw.refill == 1 { "y" } else { "n" });
        check(c"LOG_LEVEL", "auto");
        check(c"ON_FULL", "fallback");
        check(c"INVALIDATE", "strict");
        check(c"KEY_FILE", "");
        check(c"POOL_INIT", raw.pool_init);
        check(c"POOL_MAX", raw.pool_max);
        check(c"POOL_LOW", raw.pool_low);
        check(c"POOL_HIGH", raw.pool_high);
        check(c"BATCH", raw.batch);
        check(c"ALIAS_MAX", raw.alias_max);
        check_time(c"POOL_AGE", raw.pool_age);
        check_time(c"FULL_TIMEOUT", raw.full_timeout);
        check_time(c"POLL_TIMEOUT", raw.poll_timeout);
        assert_eq!((raw.log_level, raw.on_full, raw.invalidate), (0, 0, 0));
    }

    #[test]
    fn defaults_are_those_of_the_pool() {
        let options = Raw::DEFAULT.options();
        assert!(options.enable);
        assert_eq!(options.pool_policy(), PoolPolicy::default());
        assert_eq!(options.alias_policy(), AliasPolicy::default());
        assert_eq!(options.device(), Mlx5Options::default());
    }

    #[test]
    fn each_option_has_its_own_place() {
        let bytes = |option: &Spec| match option.kind {
            Kind::Bool | Kind::Uint | Kind::Word(_) => 4,
            Kind::Time | Kind::String => 8,
        };
        let mut places: Vec<_> = OPTIONS
            .iter()
            .map(|option| (option.offset, bytes(option)))
            .collect();
        places.sort_unstable();
        for pair in places.windows(2) {
            assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{pair:?}");
        }
        let (last, bytes) = places[places.len() - 1];
        assert!(last + bytes <= size_of::<Raw>());
    }

    #[test]
    fn a_bad_time_is_replaced() {
        assert_eq!(time("X", 0.25, 5.0), Duration::from_millis(250));
        assert_eq!(time("X", -1.0, 5.0), Duration::from_secs(5));
        assert_eq!(time("X", f64::NAN, 5.0), Duration::from_secs(5));
        assert_eq!(time("X", 1e300, 5.0), Duration::from_secs(5));
    }

    /// What `OPTIONS.md` is to hold.
    fn page() -> String {
        let mut page = String::from(
            "# Options\n\n\
             Set them in the environment or in `ucx.conf`; `ucx_info -c` shows their values. This page\n\
             is written from the table in `src/config.rs`: run the tests of the crate with\n\
             `XGVMI_BLESS=1` after a change there.\n",
        );
        for option in &OPTIONS {
            let kind = match option.kind {
                Kind::Bool => "`y` or `n`".to_owned(),
                Kind::Uint => "number".to_owned(),
                Kind::Time => "time, such as `5s`, `100ms`, `20us`".to_owned(),
                Kind::String => "text".to_owned(),
                Kind::Word(words) => {
                    let words = words.iter().take_while(|word| !word.is_null());
                    // SAFETY: the words are constants.
                    let words = words.map(|&word| text(unsafe { CStr::from_ptr(word) }));
                    words
                        .map(|word| format!("`{word}`"))
                        .collect::<Vec<_>>()
                        .join(", ")
                }
            };
            let default = match text(option.default) {
                "" => "empty".to_owned(),
                default => format!("`{default}`"),
            };
            write!(
                page,
                "\n## {PREFIX}{}\n\n{kind}; default: {default}\n\n{}\n",
                text(option.name),
                text(option.doc)
            )
            .expect("a String takes all");
        }
        page
    }

    #[test]
    fn the_page_is_up_to_date() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("OPTIONS.md");
        let page = page();
        if env::var_os("XGVMI_BLESS").is_some() {
            fs::write(&path, &page).expect("the page is written");
        }
        let found = fs::read_to_string(&path).unwrap_or_default();
        assert!(
            found == page,
            "{} is old: run with XGVMI_BLESS=1",
            path.display()
        );
    }
}
