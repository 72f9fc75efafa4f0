//! What a rank does while it waits for a collective: `UCC_TL_XGVMI_WAIT`. UCC knows no waits, only looks at a collective, and a
//! program that computes between its looks must not be held up. So a wait is many looks without a pause.

use std::time::{Duration, Instant};

/// Number of looks without a pause after which they are a wait, and the shortest pause.
pub(crate) const LOOKS: u32 = 500;
const PAUSE: Duration = Duration::from_micros(50);

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
    pub(crate) fn new(wait: Wait, now: Instant) -> Self {
        Self {
            wait,
            looks: 0,
            looked: now,
        }
    }

    /// The collective is not complete.
    pub(crate) fn look(&mut self, now: Instant) -> Rest {
        self.looks = match now.saturating_duration_since(self.looked) < PAUSE {
            true => self.looks.saturating_add(1),
            false => 0,
        };
        self.looked = now;
        match self.wait {
            Wait::Yield if self.looks > LOOKS => Rest::Yield,
            Wait::Sleep if self.looks > LOOKS => Rest::Sleep(SLEEP),
            _ => Rest::None,
        }
    }

    /// The rest is over.
    pub(crate) fn rested(&mut self, now: Instant) {
        self.looked = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_many_looks_without_a_pause_are_a_wait() {
        let start = Instant::now();
        let micros = |time| start + Duration::from_micros(time);
        for (wait, expect) in [
            (Wait::Spin, Rest::None),
            (Wait::Yield, Rest::Yield),
            (Wait::Sleep, Rest::Sleep(SLEEP)),
        ] {
            let mut pace = Pace::new(wait, start);
            // A program that computes between its looks.
            for look in 0..2000 {
                assert_eq!(pace.look(micros(look * 100)), Rest::None);
            }
            for look in 0..=500 {
                let rest = pace.look(micros(200_000 + look));
                assert!(rest == Rest::None || look == 500, "{look}: {rest:?}");
            }
            // Its own rest is no pause of the program.
            assert_eq!(pace.look(micros(200_501)), expect);
            pace.rested(micros(201_501));
            assert_eq!(pace.look(micros(201_502)), expect);
            assert_eq!(pace.look(micros(201_600)), Rest::None);
        }
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
