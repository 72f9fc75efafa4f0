//! Whether registered memory counts against RLIMIT_MEMLOCK, from the environment.

/// Environment variable: `counted`, `free` or `pinned`.
pub const ENV_MEMLOCK: &str = "BFEMU_MEMLOCK";

/// Whether registered memory counts against RLIMIT_MEMLOCK.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LockedMemory {
    /// As in the kernel.
    #[default]
    Counted,
    /// It does not, for users whose limit is small.
    Free,
    /// It does, and its pages stay the device's when the program unmaps them.
    Pinned,
}

/// The value of [`ENV_MEMLOCK`].
pub(super) fn own_locked_memory() -> Result<LockedMemory, Box<dyn std::error::Error>> {
    match std::env::var(ENV_MEMLOCK) {
        Err(std::env::VarError::NotPresent) => Ok(LockedMemory::Counted),
        Err(error) => Err(format!("{ENV_MEMLOCK}: {error}").into()),
        Ok(text) => match text.as_str() {
            "counted" => Ok(LockedMemory::Counted),
            "free" => Ok(LockedMemory::Free),
            "pinned" => Ok(LockedMemory::Pinned),
            _ => Err(
                format!("{ENV_MEMLOCK} is `{text}`; allowed are counted, free and pinned").into(),
            ),
        },
    }
}
