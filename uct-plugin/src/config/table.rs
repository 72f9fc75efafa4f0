//! The table of the options: names, defaults, what they are for, and where their values go. UCX's
//! parser, `ucx_info -c` and `OPTIONS.md` have it all from here.

use std::ffi::{c_char, c_int, c_uint};
use std::mem::offset_of;
use std::ptr::null;

use crate::ucs_config::{Kind, Option as Spec, Words};

/// Largest pool, as `xgvmi-pool` has it.
const MKEYS_MAX: u32 = 1 << 20;
/// Largest map, likewise.
const ALIASES_MAX: u32 = 1 << 22;
/// Longest batch, likewise.
const BATCH_MAX: u32 = 1 << 14;

/// The options' values, in the types that UCX's parsers write.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Raw {
    pub(super) enable: c_int,
    pub(super) log_level: c_uint,
    pub(super) pool_init: c_uint,
    pub(super) pool_max: c_uint,
    pub(super) pool_low: c_uint,
    pub(super) pool_high: c_uint,
    pub(super) pool_age: f64,
    pub(super) refill: c_int,
    pub(super) pool_order: c_uint,
    pub(super) on_full: c_uint,
    pub(super) full_timeout: f64,
    pub(super) invalidate: c_uint,
    pub(super) batch: c_uint,
    pub(super) poll_timeout: f64,
    pub(super) alias_max: c_uint,
    pub(super) alias_ttl: f64,
    pub(super) import_max: c_uint,
    pub(super) key_file: *const c_char,
    pub(super) stats: c_int,
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

static POOL_ORDER: Words<3> = Words([c"fifo".as_ptr(), c"lifo".as_ptr(), null()]);

static INVALIDATE: Words<4> = Words([
    c"strict".as_ptr(),
    c"batched".as_ptr(),
    c"chained".as_ptr(),
    null(),
]);

/// All options.
pub(super) static OPTIONS: [Spec; 19] = [
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
               hundreds of microseconds then instead of at the first export that needs it, and so does\n\
               the queue by which keys are bound, which is made along with the first. A program\n\
               that announces its keys (xgvmi_announce) has 64 of them created then in any case.",
        offset: offset_of!(Raw, pool_init),
        kind: Kind::Uint {
            min: 0,
            max: MKEYS_MAX,
        },
    },
    Spec {
        name: c"POOL_MAX",
        default: c"4096",
        doc: c"Maximal number of memory keys in the pool of one memory domain.",
        offset: offset_of!(Raw, pool_max),
        kind: Kind::Uint {
            min: 1,
            max: MKEYS_MAX,
        },
    },
    Spec {
        name: c"POOL_LOW",
        default: c"0",
        doc: c"Number of free memory keys below which UCX_XGVMI_REFILL creates more.",
        offset: offset_of!(Raw, pool_low),
        kind: Kind::Uint {
            min: 0,
            max: MKEYS_MAX,
        },
    },
    Spec {
        name: c"POOL_HIGH",
        default: c"256",
        doc: c"Number of free memory keys up to which UCX_XGVMI_REFILL creates, and beyond which it\n\
               destroys those that were not needed for UCX_XGVMI_POOL_AGE.",
        offset: offset_of!(Raw, pool_high),
        kind: Kind::Uint {
            min: 0,
            max: MKEYS_MAX,
        },
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
        doc: c"Create and destroy memory keys in the background, in one thread for each pool, and\n\
               destroy aliases for UCX_XGVMI_ALIAS_TTL, in one thread for each map.",
        offset: offset_of!(Raw, refill),
        kind: Kind::Bool,
    },
    Spec {
        name: c"POOL_ORDER",
        default: c"fifo",
        doc: c"Which free memory key is bound next:\n \
               - fifo: the one that was released longest ago, so that a peer that kept a key meets\n   \
                 an invalid one for as long as there are others\n \
               - lifo: the one that was released last, which the adapter may still have at hand,\n   \
                 and by which a peer that kept it reaches the next buffer",
        offset: offset_of!(Raw, pool_order),
        kind: Kind::Word(&POOL_ORDER.0),
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
        kind: Kind::Uint {
            min: 1,
            max: BATCH_MAX,
        },
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
        kind: Kind::Uint {
            min: 1,
            max: ALIASES_MAX,
        },
    },
    Spec {
        name: c"ALIAS_TTL",
        default: c"0s",
        doc: c"Time for which an alias must not have been in use to be destroyed, at an import or,\n\
               with UCX_XGVMI_REFILL, in the background. 0: never, unless another one needs room.",
        offset: offset_of!(Raw, alias_ttl),
        kind: Kind::Time,
    },
    Spec {
        name: c"IMPORT_MAX",
        default: c"1024",
        doc: c"Maximal number of imports of one exporter that UCX keeps; UCX_XGVMI_ALIAS_MAX if that\n\
               is less. Beyond it, UCX gives back what was not in use for the longest time. Its\n\
               alias stays in the map, so that the next import of it costs no command. UCX itself\n\
               keeps all of them, in use or not, until the context ends.",
        offset: offset_of!(Raw, import_max),
        kind: Kind::Uint {
            min: 1,
            max: ALIASES_MAX,
        },
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

/// The values when UCX's parser is not there. A test compares them with [`OPTIONS`].
impl Raw {
    pub(super) const DEFAULT: Self = Self {
        enable: 1,
        log_level: 0,
        pool_init: 0,
        pool_max: 4096,
        pool_low: 0,
        pool_high: 256,
        pool_age: 60.0,
        refill: 0,
        pool_order: 0,
        on_full: 0,
        full_timeout: 0.1,
        invalidate: 0,
        batch: 64,
        poll_timeout: 5.0,
        alias_max: 65_536,
        alias_ttl: 0.0,
        import_max: 1024,
        key_file: null(),
        stats: 1,
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;
    use std::fmt::Write as _;
    use std::path::Path;
    use std::{env, fs};

    use crate::config::PREFIX;

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
        check(c"POOL_ORDER", "fifo");
        check(c"INVALIDATE", "strict");
        check(c"KEY_FILE", "");
        check(c"POOL_INIT", raw.pool_init);
        check(c"POOL_MAX", raw.pool_max);
        check(c"POOL_LOW", raw.pool_low);
        check(c"POOL_HIGH", raw.pool_high);
        check(c"BATCH", raw.batch);
        check(c"ALIAS_MAX", raw.alias_max);
        check(c"IMPORT_MAX", raw.import_max);
        check_time(c"ALIAS_TTL", raw.alias_ttl);
        check_time(c"POOL_AGE", raw.pool_age);
        check_time(c"FULL_TIMEOUT", raw.full_timeout);
        check_time(c"POLL_TIMEOUT", raw.poll_timeout);
        let words = [raw.log_level, raw.pool_order, raw.on_full, raw.invalidate];
        assert_eq!(words, [0; 4]);
    }

    #[test]
    fn each_option_has_its_own_place() {
        let bytes = |option: &Spec| match option.kind {
            Kind::Bool | Kind::Uint { .. } | Kind::Word(_) => 4,
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

    /// What `OPTIONS.md` is to hold.
    fn page() -> String {
        let mut page = String::from(
            "# Options\n\n\
             Set them in the environment or in `ucx.conf`; `ucx_info -c` shows their values. This page\n\
             is written from the table in `src/config/table.rs`: run the tests of the crate with\n\
             `XGVMI_BLESS=1` after a change there.\n",
        );
        for option in &OPTIONS {
            let kind = match option.kind {
                Kind::Bool => "`y` or `n`".to_owned(),
                Kind::Uint { min, max } => format!("number, {min} to {max}"),
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
