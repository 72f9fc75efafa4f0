//! Link layers of the emulated device's ports, by the names of `bf-emu run --link`.

use anyhow::{Context, Result};

/// A link layer of the emulated device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Link {
    /// InfiniBand, the emulator's default.
    #[default]
    Infiniband,
    /// InfiniBand on a port where each message needs a global route.
    InfinibandGrh,
    /// Ethernet with RoCE v1 and v2.
    Ethernet,
}

impl Link {
    /// All link layers.
    pub const ALL: [Self; 3] = [Self::Infiniband, Self::InfinibandGrh, Self::Ethernet];

    /// Its name in the options of `bf-emu run`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Infiniband => "infiniband",
            Self::InfinibandGrh => "infiniband-grh",
            Self::Ethernet => "ethernet",
        }
    }

    /// Parses a link's name.
    ///
    /// # Errors
    /// There is no link of this name.
    pub fn named(name: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|link| link.name() == name);
        found.with_context(|| {
            let names = Self::ALL.map(Self::name);
            format!("no link '{name}'; there are {}", names.join(", "))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_have_names() {
        for link in Link::ALL {
            assert_eq!(Link::named(link.name()).unwrap(), link);
        }
        let error = Link::named("ib").unwrap_err().to_string();
        assert!(error.contains("infiniband-grh, ethernet"), "{error}");
    }
}
