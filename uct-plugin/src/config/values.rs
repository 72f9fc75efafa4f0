//! Converts the values from UCX's parsers to the library's types.

use std::ffi::CStr;
use std::path::PathBuf;
use std::time::Duration;

use xgvmi_pool::mlx5::{Post, Prove};
use xgvmi_pool::{AccessKey, Invalidate, OnFull, ReuseOrder, Seal};

use super::table::{OPTIONS, Raw};
use super::{Options, PREFIX, UcpHooks};
use crate::ucs_config::Kind;
use crate::{key_file, log};

/// Largest arena, also for `inf`.
const ARENA_MAX: usize = 1 << 38;

impl Raw {
    /// Converted values. A value that UCX's parser accepts and the library does not is reported and
    /// replaced.
    pub(super) fn options(&self) -> Options {
        let (access_key, seal, is_usable) = self.access();
        let pool_max = number(c"POOL_MAX", self.pool_max);
        // A pool smaller than the default mark uses its own size as mark.
        let high = number(c"POOL_HIGH", self.pool_high).min(pool_max);
        let ttl = time("ALIAS_TTL", self.alias_ttl, Self::DEFAULT.alias_ttl);
        Options {
            enable: self.enable != 0 && is_usable,
            stats: self.stats != 0,
            pool_init: at_most(
                "POOL_INIT",
                number(c"POOL_INIT", self.pool_init),
                "POOL_MAX",
                pool_max,
            ),
            pool_max,
            pool_low: at_most(
                "POOL_LOW",
                number(c"POOL_LOW", self.pool_low),
                "POOL_HIGH",
                high,
            ),
            pool_high: high,
            pool_age: time("POOL_AGE", self.pool_age, Self::DEFAULT.pool_age),
            refill: self.refill != 0,
            pool_order: match self.pool_order {
                0 => ReuseOrder::Fifo,
                1 => ReuseOrder::Lifo,
                _ => ReuseOrder::Affinity,
            },
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
            batch: number(c"BATCH", self.batch),
            batch_time: time("BATCH_TIME", self.batch_time, Self::DEFAULT.batch_time),
            poll_timeout: time_above_zero(
                "POLL_TIMEOUT",
                self.poll_timeout,
                Self::DEFAULT.poll_timeout,
            ),
            prove: match self.prove {
                0 => Prove::Yes,
                1 => Prove::No,
                _ => Prove::Once,
            },
            post: match self.post {
                0 => Post::Raw,
                1 => Post::Verbs,
                _ => Post::Send,
            },
            alias_max: number(c"ALIAS_MAX", self.alias_max),
            import_max: number(c"IMPORT_MAX", self.import_max),
            ucp_hooks: match self.ucp_hooks {
                0 => UcpHooks::Tested,
                1 => UcpHooks::Any,
                _ => UcpHooks::None,
            },
            alias_ttl: (!ttl.is_zero()).then_some(ttl),
            arena: self.arena.min(ARENA_MAX),
            arena_age: time("ARENA_AGE", self.arena_age, Self::DEFAULT.arena_age),
            keep: number(c"KEEP", self.keep),
            keep_bytes: self.keep_bytes,
            access_key,
            seal,
        }
    }

    /// The access key and the seal, and whether they are valid.
    fn access(&self) -> (AccessKey, Seal, bool) {
        let open = |is_usable| (AccessKey::UCX_COMPATIBLE, Seal::OPEN, is_usable);
        if self.key_file.is_null() {
            return open(true);
        }
        // SAFETY: UCX's parser has stored a string there, which is never freed.
        let path = unsafe { CStr::from_ptr(self.key_file) };
        if path.is_empty() {
            return open(true);
        }
        let path = PathBuf::from(path.to_string_lossy().into_owned());
        match key_file::read(&path) {
            Ok(secret) => (secret.access_key(), secret.seal(), true),
            Err(error) => {
                // Otherwise the pool would export with an unintended key.
                log::error!("disabled, {PREFIX}KEY_FILE: {error}");
                open(false)
            }
        }
    }
}

/// The number, or the nearest limit of the option's range.
fn number(name: &CStr, value: u32) -> u32 {
    let option = OPTIONS.iter().find(|option| option.name == name);
    let Some(Kind::Uint { min, max }) = option.map(|option| option.kind) else {
        return value;
    };
    let used = value.clamp(min, max);
    if used != value {
        let name = name.to_string_lossy();
        log::error!(
            "Invalid value for {name}: '{value}'. Expected: {min} to {max}; {used} is used"
        );
    }
    used
}

/// The number, limited by another option's.
fn at_most(name: &str, value: u32, limit_name: &str, limit: u32) -> u32 {
    if value > limit {
        log::error!(
            "Invalid value for {name}: '{value}'. Expected: at most that of {limit_name}; \
             {limit} is used"
        );
    }
    value.min(limit)
}

/// A time in seconds from UCX's parser. Negative and out-of-range values are invalid.
fn time(name: &str, seconds: f64, default: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_else(|error| {
        log::error!("Invalid value for {name}: '{seconds:?}s'. {error}; {default}s is used");
        Duration::from_secs_f64(default)
    })
}

/// A time that also must not be zero.
fn time_above_zero(name: &str, seconds: f64, default: f64) -> Duration {
    let found = time(name, seconds, default);
    if found.is_zero() {
        log::error!("Invalid value for {name}: '0s'. Expected: more than 0; {default}s is used");
        return Duration::from_secs_f64(default);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use xgvmi_pool::mlx5::Mlx5Options;
    use xgvmi_pool::{AliasPolicy, PoolPolicy};

    #[test]
    fn defaults_are_those_of_the_pool() {
        let options = Raw::DEFAULT.options();
        assert!(options.enable);
        let pool = options.pool_policy();
        assert!(pool.caches > 0, "the processors are known");
        assert_eq!(PoolPolicy { caches: 0, ..pool }, PoolPolicy::default());
        assert_eq!(options.alias_policy(), AliasPolicy::default());
        let device = options.device();
        // UCX's result for the adapter is used, and exports are expected one by one.
        assert!(device.is_known_to_cross && device.sq_wqebbs < Mlx5Options::default().sq_wqebbs);
        assert!(device.on_failure.is_some(), "a failure is told");
        let default = Mlx5Options::default();
        assert_eq!((device.post, device.prove), (default.post, default.prove));
        assert_eq!(device.poll_timeout, default.poll_timeout);
        assert_eq!(device.port, default.port);
    }

    #[test]
    fn a_bad_time_is_replaced() {
        assert_eq!(time("X", 0.25, 5.0), Duration::from_millis(250));
        assert_eq!(time("X", -1.0, 5.0), Duration::from_secs(5));
        assert_eq!(time("X", f64::NAN, 5.0), Duration::from_secs(5));
        assert_eq!(time("X", 1e300, 5.0), Duration::from_secs(5));
        assert_eq!(time_above_zero("X", 0.0, 5.0), Duration::from_secs(5));
        assert_eq!(time_above_zero("X", 0.5, 5.0), Duration::from_millis(500));
    }

    /// Checks the converted options for a set of values.
    #[track_caller]
    fn check(set: impl FnOnce(&mut Raw), seen: impl FnOnce(&Options) -> u32, expect: u32) {
        let mut raw = Raw::DEFAULT;
        set(&mut raw);
        let options = raw.options();
        assert_eq!(seen(&options), expect);
        // With any values, the pool and the map accept the policies.
        let policy = options.pool_policy();
        assert!(policy.mkeys_max >= 1 && policy.prefill <= policy.mkeys_max);
        assert!(policy.low <= policy.high && policy.high <= policy.mkeys_max);
    }

    #[test]
    fn a_number_out_of_range_is_replaced() {
        check(|raw| raw.pool_max = 0, |options| options.pool_max, 1);
        check(
            |raw| raw.pool_max = u32::MAX,
            |options| options.pool_max,
            1 << 20,
        );
        check(|raw| raw.pool_max = 1, |options| options.pool_high, 1);
        check(
            |raw| raw.pool_init = 5000,
            |options| options.pool_init,
            4096,
        );
        check(|raw| raw.pool_low = 300, |options| options.pool_low, 256);
        check(|raw| raw.batch = 0, |options| options.batch, 1);
        check(|raw| raw.alias_max = 0, |options| options.alias_max, 1);
        check(|raw| raw.alias_max = 77, |options| options.alias_max, 77);
    }

    #[test]
    fn aliases_rest_for_ever_unless_a_time_is_set() {
        let ttl = |seconds, refill| {
            let raw = Raw {
                alias_ttl: seconds,
                refill,
                ..Raw::DEFAULT
            };
            let options = raw.options();
            let policy = options.alias_policy();
            (policy.ttl, policy.keeper, options.alias_upkeep())
        };
        let seconds = Duration::from_secs;
        assert_eq!(ttl(0.0, 0), (None, false, None));
        assert_eq!(ttl(0.0, 1), (None, false, None));
        assert_eq!(ttl(8.0, 0), (Some(seconds(8)), false, Some(seconds(2))));
        assert_eq!(ttl(8.0, 1), (Some(seconds(8)), true, None));
    }
}
