//! The registrations of one slab: one per memory domain and kind of access.

use xgvmi_pool::Lkey;

/// Registrations of one slab. Further domains take the ordinary path.
const KEYS: usize = 8;

/// State of a place. Zeroed memory has the first value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
enum State {
    #[default]
    Empty = 0,
    /// A thread registers the slab.
    Registering,
    Ready,
    /// The slab cannot be registered in this way.
    Refused,
}

/// One registration. All zero is an empty place.
#[derive(Clone, Copy, Debug, Default)]
struct SlabKey {
    state: State,
    /// Address of the memory domain.
    md: usize,
    access: u64,
    key: Registered,
}

/// A finished registration of a slab.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Registered {
    lkey: u32,
    /// Flags of UCX's memory handle.
    pub(super) flags: u32,
    /// Address of UCX's memory handle.
    pub(super) memh: usize,
}

impl Registered {
    pub(super) fn new(lkey: Lkey, flags: u32, memh: usize) -> Self {
        Self {
            lkey: lkey.raw(),
            flags,
            memh,
        }
    }

    /// The slab's local key.
    pub(super) fn lkey(&self) -> Lkey {
        Lkey::from_raw(self.lkey)
    }
}

/// The registrations.
#[derive(Debug, Default)]
pub(super) struct SlabKeys([SlabKey; KEYS]);

/// Answer to a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    Ready(Registered),
    /// The caller registers the slab and reports it with [`SlabKeys::done`].
    New(usize),
    /// Another thread registers the slab.
    Wait,
    /// No registration, now and later.
    Refused,
}

impl SlabKeys {
    /// The registration of a domain for this access.
    pub(super) fn find(&mut self, md: usize, access: u64) -> Found {
        let is_it =
            |key: &&SlabKey| key.state != State::Empty && (key.md, key.access) == (md, access);
        if let Some(key) = self.0.iter().find(is_it) {
            return match key.state {
                State::Ready => Found::Ready(key.key),
                State::Registering => Found::Wait,
                State::Empty | State::Refused => Found::Refused,
            };
        }
        let Some(at) = self.0.iter().position(|key| key.state == State::Empty) else {
            return Found::Refused;
        };
        self.0[at] = SlabKey {
            state: State::Registering,
            md,
            access,
            key: Registered::default(),
        };
        Found::New(at)
    }

    /// Ends a [`Found::New`].
    pub(super) fn done(&mut self, at: usize, key: Option<Registered>) {
        let place = &mut self.0[at];
        place.state = match key {
            Some(_) => State::Ready,
            None => State::Refused,
        };
        place.key = key.unwrap_or_default();
    }

    /// Takes a finished registration of the domain out. Refusals for the domain go too.
    pub(super) fn take(&mut self, md: usize) -> Option<Registered> {
        for place in &mut self.0 {
            if place.md == md && place.state == State::Refused {
                *place = SlabKey::default();
            }
        }
        let is_it = |place: &&mut SlabKey| place.md == md && place.state == State::Ready;
        let place = self.0.iter_mut().find(is_it)?;
        Some(std::mem::take(place).key)
    }

    /// True if no domain has a registration.
    pub(super) fn is_empty(&self) -> bool {
        let holds = |key: &SlabKey| matches!(key.state, State::Registering | State::Ready);
        !self.0.iter().any(holds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_domain_and_access_has_its_registration() {
        let mut keys = SlabKeys::default();
        assert_eq!(keys.find(64, 3), Found::New(0));
        assert_eq!(keys.find(64, 3), Found::Wait);
        assert_eq!(keys.find(64, 7), Found::New(1));
        assert_eq!(keys.find(128, 3), Found::New(2));
        let key = Registered::new(Lkey::from_raw(0x4100), 2, 0x5000);
        keys.done(0, Some(key));
        keys.done(1, None);
        assert_eq!(keys.find(64, 3), Found::Ready(key));
        assert_eq!(keys.find(64, 7), Found::Refused);
        assert!(!keys.is_empty());
        assert_eq!((keys.take(64), keys.take(64)), (Some(key), None));
        keys.done(2, None);
        assert!(keys.is_empty());
        assert_eq!(
            keys.find(64, 7),
            Found::New(0),
            "a new domain at this address"
        );
    }

    #[test]
    fn further_domains_are_refused() {
        let mut keys = SlabKeys::default();
        for md in 1..=KEYS {
            assert!(matches!(keys.find(md, 0), Found::New(_)));
        }
        assert_eq!(keys.find(KEYS + 1, 0), Found::Refused);
    }
}
