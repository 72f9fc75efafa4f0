//! What a rank does while it waits for a collective: `UCC_TL_XGVMI_WAIT`. UCC knows no waits, only looks at a collective, and a
//! program that computes between its looks must not be held up. So a wait is many looks without a pause.

use std::time::{Duration, Instant};

/// Number of looks without a pause after which they are a wait, and the shortest pause.
pub(crate) const LOOKS: u32 = 8;
const PAUSE: Duration = Duration::from_micros(10);

/// The longest sleep: a rank also waits for messages of other components.
pub(crate) const SLEEP: Duration = Duration::from_millis(1);

/// The user's choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    Spin,
    Yield,
    Sleep,
}

/// What to do after a look at a collective that is not complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rest {
    None,
    Yield,
    /// Sleep until something happens, at most for this time.
    Sleep(Duration),
}

/// The looks at a collective.
#[derive(Debug)]
pub(crate) struct Pace {
    wait: Wait,
    looks: u32,
    /// End of the last look, with its rest.
    looked: Instant,
    /// What the thread had used at the last rest or pause.
    used: Usage,
}

/// What a thread has used: processor time, and how often it has given its core away to sleep.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    processor: Duration,
    sleeps: i64,
}

impl Usage {
    /// Of this thread.
    pub(crate) fn now() -> Self {
        // SAFETY: the structure has integers only.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: the structure is writable. The call cannot fail with these arguments.
        unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
        let duration = |time: libc::timeval| {
            let seconds = Duration::from_secs(time.tv_sec.try_into().unwrap_or(0));
            seconds + Duration::from_micros(time.tv_usec.try_into().unwrap_or(0))
        };
        Self {
            processor: duration(usage.ru_utime) + duration(usage.ru_stime),
            sleeps: usage.ru_nvcsw,
        }
    }

    /// Whether the thread has neither worked nor slept for most of a time: others had its core.
    fn has_stood(self, since: Self, time: Duration) -> bool {
        let worked = self.processor.saturating_sub(since.processor);
        self.sleeps == since.sleeps && worked < time / 2
    }
}

impl Wait {
    /// # Errors
    /// The valid values.
    pub(crate) fn new(text: &str) -> Result<Self, String> {
        match text.to_lowercase().as_str() {
            "spin" => Ok(Self::Spin),
            "yield" => Ok(Self::Yield),
            "sleep" => Ok(Self::Sleep),
            other => Err(format!("'{other}' is none of spin, yield, sleep")),
        }
    }
}

impl Pace {
    /// The looks begin. `usage` is [`Usage::now`].
    pub(crate) fn new(wait: Wait, now: Instant, usage: impl FnOnce() -> Usage) -> Self {
        Self {
            wait,
            looks: 0,
            looked: now,
            used: match wait {
                Wait::Spin => Usage::default(),
                Wait::Yield | Wait::Sleep => usage(),
            },
        }
    }

    /// The collective is not complete.
    pub(crate) fn look(&mut self, now: Instant, usage: impl FnOnce() -> Usage) -> Rest {
        if self.wait == Wait::Spin {
            return Rest::None;
        }
        let since = now.saturating_duration_since(self.looked);
        self.looks = self.looks.saturating_add(1);
        if since >= PAUSE {
            let used = usage();
            if !used.has_stood(self.used, since) {
                self.looks = 0;
            }
            self.used = used;
        }
        self.looked = now;
        match self.wait {
            Wait::Yield if self.looks > LOOKS => Rest::Yield,
            Wait::Sleep if self.looks > LOOKS => Rest::Sleep(SLEEP),
            _ => Rest::None,
        }
    }

    /// The rest is over.
    pub(crate) fn rested(&mut self, now: Instant, usage: Usage) {
        (self.looked, self.used) = (now, usage);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: u64 = LOOKS as u64;

    fn micros(time: u64) -> Duration {
        Duration::from_micros(time)
    }

    fn used(processor_us: u64, sleeps: i64) -> Usage {
        Usage {
            processor: micros(processor_us),
            sleeps,
        }
    }

    #[test]
    fn only_many_looks_without_a_pause_are_a_wait() {
        let start = Instant::now();
        for (wait, expect) in [
            (Wait::Spin, Rest::None),
            (Wait::Yield, Rest::Yield),
            (Wait::Sleep, Rest::Sleep(SLEEP)),
        ] {
            let mut pace = Pace::new(wait, start, || used(0, 0));
            // A program that computes between its looks.
            for look in 1..2000 {
                let rest = pace.look(start + micros(look * 100), || used(look * 100, 0));
                assert_eq!(rest, Rest::None);
            }
            let then = start + micros(200_000);
            assert_eq!(pace.look(then, || used(200_000, 0)), Rest::None);
            for look in 1..=LIMIT {
                let rest = pace.look(then + micros(look), || panic!("no pause"));
                assert_eq!(rest, Rest::None, "{look}");
            }
            let no_pause = || panic!("no pause");
            assert_eq!(pace.look(then + micros(LIMIT + 1), no_pause), expect);
            // Its own rest is no pause of the program.
            pace.rested(then + micros(1000), used(200_040, 1));
            assert_eq!(pace.look(then + micros(1001), no_pause), expect);
            // Other processes had the core: no pause of the program either.
            let look = pace.look(then + micros(9000), || used(200_080, 1));
            assert_eq!(look, expect);
            // It computes.
            let look = pace.look(then + micros(9100), || used(200_180, 1));
            assert_eq!(look, Rest::None);
        }
    }

    /// It waits for a file, or takes a nap: nothing in a look may take longer than it has to.
    #[test]
    fn a_program_that_sleeps_between_its_looks_is_not_held_up() {
        let start = Instant::now();
        let mut pace = Pace::new(Wait::Sleep, start, || used(0, 0));
        for look in 1..2000_u32 {
            let usage = || used(u64::from(look), look.into());
            let rest = pace.look(start + micros(100) * look, usage);
            assert_eq!(rest, Rest::None);
        }
    }

    #[test]
    fn a_thread_knows_what_it_has_used() {
        let before = Usage::now();
        let (_sender, receiver) = std::sync::mpsc::channel::<()>();
        assert!(receiver.recv_timeout(micros(100)).is_err());
        let slept = Usage::now();
        assert!(slept.sleeps > before.sleeps, "{before:?} {slept:?}");
        while Usage::now().processor < slept.processor + micros(5000) {
            std::hint::spin_loop();
        }
        assert!(!Usage::now().has_stood(slept, micros(5000)));
        assert!(slept.has_stood(slept, micros(5000)));
    }

    #[test]
    fn an_unknown_choice_is_explained() {
        assert_eq!(Wait::new("Sleep"), Ok(Wait::Sleep));
        assert_eq!(
            Wait::new("doze").unwrap_err(),
            "'doze' is none of spin, yield, sleep"
        );
    }
}
