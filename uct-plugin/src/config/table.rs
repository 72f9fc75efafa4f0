//! The option table: names, defaults, descriptions and storage offsets. UCX's parser, `ucx_info -c`
//! and `docs/OPTIONS.md` use this table.

use std::ffi::{c_char, c_int, c_uint};
use std::mem::offset_of;
use std::ptr::null;

use crate::ucs_config::{Kind, Option as Spec, Words};

/// Largest pool. `xgvmi-pool` has the same limit.
const MKEYS_MAX: u32 = 1 << 20;
/// Largest alias map. `xgvmi-pool` has the same limit.
const ALIASES_MAX: u32 = 1 << 22;
/// Most registrations that stay: half of the followed ones.
const KEEP_MAX: u32 = 512;
/// Longest batch. `xgvmi-pool` has the same limit.
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
    pub(super) batch_time: f64,
    pub(super) poll_timeout: f64,
    pub(super) prove: c_uint,
    pub(super) post: c_uint,
    pub(super) alias_max: c_uint,
    pub(super) alias_ttl: f64,
    pub(super) import_max: c_uint,
    pub(super) ucp_hooks: c_uint,
    pub(super) key_file: *const c_char,
    pub(super) stats: c_int,
    pub(super) arena: usize,
    pub(super) arena_age: f64,
    pub(super) keep: c_uint,
    pub(super) keep_bytes: usize,
}

/// UCX's names of its log levels. The first entry, "auto", is ours and means UCX_LOG_LEVEL.
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

static POOL_ORDER: Words<4> = Words([
    c"fifo".as_ptr(),
    c"lifo".as_ptr(),
    c"affinity".as_ptr(),
    null(),
]);

static UCP_HOOKS: Words<4> = Words([c"auto".as_ptr(), c"y".as_ptr(), c"n".as_ptr(), null()]);

static INVALIDATE: Words<4> = Words([
    c"strict".as_ptr(),
    c"batched".as_ptr(),
    c"chained".as_ptr(),
    null(),
]);

static PROVE: Words<4> = Words([c"y".as_ptr(), c"n".as_ptr(), c"once".as_ptr(), null()]);

static POST: Words<4> = Words([c"raw".as_ptr(), c"verbs".as_ptr(), c"send".as_ptr(), null()]);

/// All options.
pub(super) static OPTIONS: [Spec; 27] = [
    Spec {
        name: c"ENABLE",
        default: c"y",
        doc: c"Serve exports from the key pool and imports from the alias map.\n\
               With n, UCX handles all exports and imports itself.",
        offset: offset_of!(Raw, enable),
        kind: Kind::Bool,
    },
    Spec {
        name: c"LOG_LEVEL",
        default: c"auto",
        doc: c"Log level of the pool and the alias map. \"auto\" uses UCX_LOG_LEVEL.",
        offset: offset_of!(Raw, log_level),
        kind: Kind::Word(&LOG_LEVELS.0),
    },
    Spec {
        name: c"POOL_INIT",
        default: c"0",
        doc: c"Number of memory keys to create when a memory domain opens. Each key takes hundreds\n\
               of microseconds. Keys that are not created here are created by the exports that first\n\
               need them. The first key also creates the queue pair for UMR. A program that announces\n\
               its keys (xgvmi_announce) always starts with at least 64 keys.",
        offset: offset_of!(Raw, pool_init),
        kind: Kind::Uint {
            min: 0,
            max: MKEYS_MAX,
        },
    },
    Spec {
        name: c"POOL_MAX",
        default: c"4096",
        doc: c"Maximum number of memory keys in the pool of one memory domain.",
        offset: offset_of!(Raw, pool_max),
        kind: Kind::Uint {
            min: 1,
            max: MKEYS_MAX,
        },
    },
    Spec {
        name: c"POOL_LOW",
        default: c"0",
        doc: c"UCX_XGVMI_REFILL creates keys when fewer keys than this are free.",
        offset: offset_of!(Raw, pool_low),
        kind: Kind::Uint {
            min: 0,
            max: MKEYS_MAX,
        },
    },
    Spec {
        name: c"POOL_HIGH",
        default: c"256",
        doc: c"UCX_XGVMI_REFILL creates keys until this number is free. It destroys free keys above\n\
               this number that nothing has used for UCX_XGVMI_POOL_AGE.",
        offset: offset_of!(Raw, pool_high),
        kind: Kind::Uint {
            min: 0,
            max: MKEYS_MAX,
        },
    },
    Spec {
        name: c"POOL_AGE",
        default: c"60s",
        doc: c"Idle time after which UCX_XGVMI_REFILL may destroy a free memory key.",
        offset: offset_of!(Raw, pool_age),
        kind: Kind::Time,
    },
    Spec {
        name: c"REFILL",
        default: c"n",
        doc: c"Create and destroy memory keys in the background, with one thread per pool, and destroy\n\
               aliases after UCX_XGVMI_ALIAS_TTL, with one thread per alias map.",
        offset: offset_of!(Raw, refill),
        kind: Kind::Bool,
    },
    Spec {
        name: c"POOL_ORDER",
        default: c"fifo",
        doc: c"Order in which free memory keys are bound again:\n \
               - fifo: the key released first. A peer that still holds a released key gets an access\n   \
               error as long as other keys are free.\n \
               - lifo: the key released last. It is more likely to be in the adapter's cache. A peer\n   \
               that still holds it can access the next buffer.\n \
               - affinity: the key that the same address had before, if it is free, else as fifo. It helps\n   \
               an importer that caches by address and key; UCX's own cache of imports does not. A peer\n   \
               that still holds the key can access the next buffer at that address.",
        offset: offset_of!(Raw, pool_order),
        kind: Kind::Word(&POOL_ORDER.0),
    },
    Spec {
        name: c"ON_FULL",
        default: c"fallback",
        doc: c"Action of an export when all UCX_XGVMI_POOL_MAX memory keys are in use:\n \
               - fallback: let UCX export the buffer without the pool.\n \
               - wait: wait for a key in order of arrival, for at most UCX_XGVMI_FULL_TIMEOUT. Then\n   \
               act as fallback.",
        offset: offset_of!(Raw, on_full),
        kind: Kind::Word(&ON_FULL.0),
    },
    Spec {
        name: c"FULL_TIMEOUT",
        default: c"100ms",
        doc: c"Maximum wait of an export with UCX_XGVMI_ON_FULL=wait.",
        offset: offset_of!(Raw, full_timeout),
        kind: Kind::Time,
    },
    Spec {
        name: c"INVALIDATE",
        default: c"strict",
        doc: c"When to invalidate the memory key of deregistered memory:\n \
               - strict: before the deregistration.\n \
               - batched: when UCX_XGVMI_BATCH keys wait for it.\n \
               - chained: together with the next export.\n\
               With batched and chained, for at most UCX_XGVMI_BATCH_TIME, a peer that still holds the\n\
               key can access the memory until its registration ends, and afterwards memory that reuses\n\
               its addresses and local key. Use them only if all peers are trusted with all registered\n\
               memory of the process.",
        offset: offset_of!(Raw, invalidate),
        kind: Kind::Word(&INVALIDATE.0),
    },
    Spec {
        name: c"BATCH",
        default: c"64",
        doc: c"Maximum number of memory keys that wait for invalidation, unless UCX_XGVMI_INVALIDATE\n\
               is strict.",
        offset: offset_of!(Raw, batch),
        kind: Kind::Uint {
            min: 1,
            max: BATCH_MAX,
        },
    },
    Spec {
        name: c"BATCH_TIME",
        default: c"10ms",
        doc: c"Longest time for which a memory key waits for its invalidation with batched and chained.\n\
               The next export or release after this time invalidates it. With UCX_XGVMI_REFILL a\n\
               thread does so if no such call occurs.",
        offset: offset_of!(Raw, batch_time),
        kind: Kind::Time,
    },
    Spec {
        name: c"POLL_TIMEOUT",
        default: c"5s",
        doc: c"Maximum wait for the completion of a UMR work request. After it the library replaces the\n\
               queue pair and lets UCX export the buffer.",
        offset: offset_of!(Raw, poll_timeout),
        kind: Kind::Time,
    },
    Spec {
        name: c"PROVE",
        default: c"y",
        doc: c"Verify the adapter's binds before the first key leaves the process: a read through a key\n\
               must return the bytes, and reads beyond its end and after its invalidation must fail. If\n\
               the check fails, UCX exports the buffers itself.\n \
               - y: in each process, at the first export of each request form on each device.\n \
               - n: never.\n \
               - once: once per adapter model and firmware. A file in $XDG_CACHE_HOME/xgvmi or\n   \
               ~/.cache/xgvmi stores the result.",
        offset: offset_of!(Raw, prove),
        kind: Kind::Word(&PROVE.0),
    },
    Spec {
        name: c"POST",
        default: c"raw",
        doc: c"How work requests are posted to the pool's queue pair:\n \
               - raw: by this library, through its own doorbell register; by libmlx5 if there is none.\n \
               - verbs: by libmlx5 in all cases, which takes longer.\n \
               - send: by libmlx5's ibv_post_send, as with a libmlx5 that has no raw work requests. UCX\n   \
               itself exports buffers of several registrations, or of 2 GiB and more.",
        offset: offset_of!(Raw, post),
        kind: Kind::Word(&POST.0),
    },
    Spec {
        name: c"ALIAS_MAX",
        default: c"65536",
        doc: c"Maximum number of aliases of imported memory keys in one memory domain. When the limit\n\
               is reached, the library evicts the least recently used alias.",
        offset: offset_of!(Raw, alias_max),
        kind: Kind::Uint {
            min: 1,
            max: ALIASES_MAX,
        },
    },
    Spec {
        name: c"ALIAS_TTL",
        default: c"0s",
        doc: c"Idle time after which an alias is destroyed. This happens at an import or, with\n\
               UCX_XGVMI_REFILL, in the background. 0: only eviction destroys aliases.",
        offset: offset_of!(Raw, alias_ttl),
        kind: Kind::Time,
    },
    Spec {
        name: c"IMPORT_MAX",
        default: c"1024",
        doc: c"Maximum number of imports of one exporter that UCX keeps. UCX_XGVMI_ALIAS_MAX limits it\n\
               as well. When the limit is reached, UCX releases the least recently used import. Its\n\
               alias stays in the map, so the next import of the same key issues no command. Without\n\
               the library, UCX keeps all imports until the context is destroyed.",
        offset: offset_of!(Raw, import_max),
        kind: Kind::Uint {
            min: 1,
            max: ALIASES_MAX,
        },
    },
    Spec {
        name: c"UCP_HOOKS",
        default: c"auto",
        doc: c"Redirect the calls by which UCP uses its cache of imports, for UCX_XGVMI_IMPORT_MAX and to\n\
               learn the exporter of a key from UCX 1.18:\n \
               - auto: in UCX 1.18 to 1.23, which it was tested with (1.22: by source only).\n \
               - y: in any version in which all checks pass.\n \
               - n: not at all. UCP then keeps each import until the context ends.",
        offset: offset_of!(Raw, ucp_hooks),
        kind: Kind::Word(&UCP_HOOKS.0),
    },
    Spec {
        name: c"KEY_FILE",
        default: c"",
        doc: c"File with the secret of the job: at least 16 random characters, the same for all\n\
               processes of the job, readable only by its owner. The library derives the access key of\n\
               memory keys and the authentication code of announcements from it. Without the file, the\n\
               access key is the public constant of UCX. With it, only peers that have the secret can\n\
               import, so peers without this library cannot. Buffers that UCX exports itself still use\n\
               the constant of UCX.",
        offset: offset_of!(Raw, key_file),
        kind: Kind::String,
    },
    Spec {
        name: c"STATS",
        default: c"y",
        doc: c"Publish the counters of this process for xgvmi stat, in a file of about 16 KiB below\n\
               /dev/shm/xgvmi-<user id>. Only the same user can read it.",
        offset: offset_of!(Raw, stats),
        kind: Kind::Bool,
    },
    Spec {
        name: c"ARENA",
        default: c"0",
        doc: c"Size of the arena, in slabs of 32 MiB: registered memory for temporary buffers. Private\n\
               mappings of 16 KiB to 16 MiB, also those of malloc, then need no registration of their own.\n\
               UCX's memory events feed the arena. It stays off, with a warning, without these events\n\
               (UCX_MEM_EVENTS), without pages of 4 KiB, with another allocator than the C library's, with\n\
               UCX_XGVMI_INVALIDATE other than strict, and where a forked child would lose memory\n\
               (UCX_IB_FORK_INIT on kernels that do not copy pinned pages). Slabs count against ulimit -l.",
        offset: offset_of!(Raw, arena),
        kind: Kind::Bytes,
    },
    Spec {
        name: c"ARENA_AGE",
        default: c"10s",
        doc: c"Time after which the arena returns a slab without buffers to the system, at the release of\n\
               a buffer.",
        offset: offset_of!(Raw, arena_age),
        kind: Kind::Time,
    },
    Spec {
        name: c"KEEP",
        default: c"0",
        doc: c"Number of registrations that stay after UCX has released them, for the next registration of\n\
               the same memory. Any change of the mapping and any fork ends them. Like UCX_XGVMI_ARENA,\n\
               it needs UCX's memory events, pages of 4 KiB, the C library's allocator and safe forks.",
        offset: offset_of!(Raw, keep),
        kind: Kind::Uint { min: 0, max: KEEP_MAX },
    },
    Spec {
        name: c"KEEP_BYTES",
        default: c"256mb",
        doc: c"Maximum memory of these registrations. They count against ulimit -l.",
        offset: offset_of!(Raw, keep_bytes),
        kind: Kind::Bytes,
    },
];

/// The values that apply when UCX's parser is absent. A test compares them with [`OPTIONS`].
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
        batch_time: 0.01,
        poll_timeout: 5.0,
        prove: 0,
        post: 0,
        alias_max: 65_536,
        alias_ttl: 0.0,
        import_max: 1024,
        ucp_hooks: 0,
        key_file: null(),
        stats: 1,
        arena: 0,
        arena_age: 10.0,
        keep: 0,
        keep_bytes: 256 << 20,
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
        check(c"UCP_HOOKS", "auto");
        check(c"KEY_FILE", "");
        check(c"POOL_INIT", raw.pool_init);
        check(c"POOL_MAX", raw.pool_max);
        check(c"POOL_LOW", raw.pool_low);
        check(c"POOL_HIGH", raw.pool_high);
        check(c"BATCH", raw.batch);
        check(c"ALIAS_MAX", raw.alias_max);
        check(c"IMPORT_MAX", raw.import_max);
        check(c"ARENA", raw.arena);
        check(c"KEEP", raw.keep);
        check(c"KEEP_BYTES", format!("{}mb", raw.keep_bytes >> 20));
        check_time(c"ARENA_AGE", raw.arena_age);
        check_time(c"BATCH_TIME", raw.batch_time);
        check_time(c"ALIAS_TTL", raw.alias_ttl);
        check_time(c"POOL_AGE", raw.pool_age);
        check_time(c"FULL_TIMEOUT", raw.full_timeout);
        check_time(c"POLL_TIMEOUT", raw.poll_timeout);
        let words = [
            raw.log_level,
            raw.pool_order,
            raw.on_full,
            raw.invalidate,
            raw.prove,
            raw.post,
        ];
        assert_eq!(words, [0; 6]);
    }

    #[test]
    fn each_option_has_its_own_place() {
        let bytes = |option: &Spec| match option.kind {
            Kind::Bool | Kind::Uint { .. } | Kind::Word(_) => 4,
            Kind::Time | Kind::Bytes | Kind::String => 8,
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

    /// Sections of `docs/OPTIONS.md`: the process in which an option has an effect.
    const SECTIONS: [(&str, &[&str]); 3] = [
        (
            "Host",
            &[
                "POOL_INIT",
                "POOL_MAX",
                "POOL_ORDER",
                "ON_FULL",
                "FULL_TIMEOUT",
                "INVALIDATE",
                "BATCH",
                "BATCH_TIME",
                "POOL_LOW",
                "POOL_HIGH",
                "POOL_AGE",
                "POLL_TIMEOUT",
                "PROVE",
                "POST",
                "ARENA",
                "ARENA_AGE",
                "KEEP",
                "KEEP_BYTES",
            ],
        ),
        (
            "DPU",
            &["ALIAS_MAX", "ALIAS_TTL", "IMPORT_MAX", "UCP_HOOKS"],
        ),
        (
            "Host and DPU",
            &["ENABLE", "LOG_LEVEL", "REFILL", "KEY_FILE", "STATS"],
        ),
    ];

    #[test]
    fn each_option_is_in_one_section_of_the_page() {
        let mut listed: Vec<&str> = SECTIONS
            .iter()
            .flat_map(|(_, names)| *names)
            .copied()
            .collect();
        let mut all: Vec<&str> = OPTIONS.iter().map(|option| text(option.name)).collect();
        listed.sort_unstable();
        all.sort_unstable();
        assert_eq!(listed, all);
    }

    /// The expected text of `docs/OPTIONS.md`.
    fn page() -> String {
        let mut page = String::from(
            "# Options\n\n\
             Options of the library. Set them in the environment or in `ucx.conf`:\n\n\
             ```sh\n\
             UCX_XGVMI_POOL_INIT=64 LD_PRELOAD=/path/to/libuct_ib_mlx5_xgvmi.so ./program\n\
             ucx_info -c\n\
             ```\n\n\
             `ucx_info -c` prints their values if it loads the library. This page is generated from\n\
             `uct-plugin/src/config/table.rs`: after a change there, run\n\
             `XGVMI_BLESS=1 cargo test -p uct-plugin`.\n",
        );
        for (title, names) in &SECTIONS {
            write!(page, "\n## {title}\n").expect("a String takes all");
            for name in *names {
                let option = OPTIONS.iter().find(|option| text(option.name) == *name);
                add(&mut page, option.expect("an option of this name"));
            }
        }
        page
    }

    /// Adds an option to the page. The command `xgvmi` reads this form.
    fn add(page: &mut String, option: &Spec) {
        let kind = match option.kind {
            Kind::Bool => "`y` or `n`".to_owned(),
            Kind::Uint { min, max } => format!("number, {min} to {max}"),
            Kind::Time => "time, such as `5s`, `100ms`, `20us`".to_owned(),
            Kind::Bytes => "size, such as `256mb`, `1gb`".to_owned(),
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
            "\n### {PREFIX}{}\n\n{kind}; default: {default}\n\n{}\n",
            text(option.name),
            text(option.doc)
        )
        .expect("a String takes all");
    }

    #[test]
    fn the_page_is_up_to_date() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/OPTIONS.md");
        let page = page();
        if env::var_os("XGVMI_BLESS").is_some() {
            fs::write(&path, &page).expect("the page is written");
        }
        let found = fs::read_to_string(&path).unwrap_or_default();
        assert!(
            found == page,
            "{} is out of date: run the test with XGVMI_BLESS=1",
            path.display()
        );
    }
}
