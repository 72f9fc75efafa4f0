//! Finds limits of the device: creates objects until it refuses one, up to a bound.

use xgvmi_pool::mlx5::Mlx5Device;
use xgvmi_pool::{
    AccessKey, AliasDevice as _, DeviceError, MkeyDevice as _, MkeyIndex, MkeySpec, RemoteKey,
};

use super::report::Found;

/// UMR keys of one function, each with `klm_entries` translation entries.
pub(super) fn mkeys(device: &Mlx5Device, klm_entries: u32, most: u32) -> Found {
    let spec = MkeySpec {
        klm_entries,
        access_key: AccessKey::UCX_COMPATIBLE,
    };
    until_refused(
        most,
        || device.create_mkey(&spec),
        |key| device.destroy_mkey(key),
    )
}

/// Aliases of one remote key.
pub(super) fn aliases(
    device: &Mlx5Device,
    key: &RemoteKey,
    access: &AccessKey,
    most: u32,
) -> Found {
    until_refused(
        most,
        || device.create_alias(key, access).map(|alias| alias.index),
        |alias| device.destroy_alias(alias),
    )
}

fn until_refused(
    most: u32,
    create: impl Fn() -> Result<MkeyIndex, DeviceError>,
    destroy: impl Fn(MkeyIndex) -> Result<(), DeviceError>,
) -> Found {
    let mut made = Vec::new();
    let mut refusal = None;
    for _ in 0..most {
        match create() {
            Ok(object) => made.push(object),
            Err(error) => {
                refusal = Some(error.to_string());
                break;
            }
        }
    }
    let mut created = 0;
    for object in made {
        created += 1;
        if let Err(error) = destroy(object) {
            // The object stays until the process ends, which follows immediately.
            refusal.get_or_insert_with(|| format!("destroying one: {error}"));
        }
    }
    Found {
        created,
        tried: most,
        refusal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    fn check(allowed: u32, most: u32, expect: (u32, bool)) {
        let live = Cell::new(0_u32);
        let found = until_refused(
            most,
            || {
                if live.get() == allowed {
                    return Err(DeviceError::Unsupported {
                        what: "one more".to_owned(),
                    });
                }
                live.set(live.get() + 1);
                Ok(MkeyIndex::new(live.get()).expect("a small number"))
            },
            |_| {
                live.set(live.get() - 1);
                Ok(())
            },
        );
        assert_eq!((found.created, found.refusal.is_some()), expect);
        assert_eq!(live.get(), 0, "all are destroyed");
    }

    #[test]
    fn creation_ends_at_the_refusal_or_the_bound() {
        check(5, 10, (5, true));
        check(10, 5, (5, false));
        check(0, 5, (0, true));
        check(5, 0, (0, false));
    }
}
