//! Announcements from any sender: the parser either returns the written content of the bytes or
//! refuses them.

use proptest::prelude::*;
use xgvmi_pool::{
    Announcement, Body, Gvmi, Inbox, Mkey, OwnerUuid, RemoteExport, Seal, Secret, VirtAddr,
};

fn seal() -> Seal {
    Secret::new(&[3; 32]).expect("long enough").seal()
}

fn body() -> impl Strategy<Value = Body> {
    let export =
        (any::<u32>(), 0..1u64 << 63, 1..1u64 << 62).prop_map(|(mkey, addr, len)| RemoteExport {
            mkey: Mkey::from_raw(mkey),
            addr: VirtAddr::new(addr),
            len,
        });
    let keys = prop::collection::btree_set(0..2000u32, 0..300);
    prop_oneof![
        prop::collection::vec(export, 0..40).prop_map(Body::Exports),
        (keys, any::<u8>()).prop_map(|(indices, tag)| {
            let key = |index| Mkey::from_raw(index << 8 | u32::from(tag));
            Body::Keys(indices.into_iter().map(key).collect())
        }),
    ]
}

fn announcement() -> impl Strategy<Value = Announcement> {
    (any::<u16>(), any::<u64>(), any::<u64>(), body()).prop_map(|(gvmi, owner, sequence, body)| {
        Announcement {
            gvmi: Gvmi::new(gvmi),
            owner: OwnerUuid::new(owner),
            sequence,
            body,
        }
    })
}

proptest! {
    #[test]
    fn what_is_written_is_read(announcement in announcement()) {
        let bytes = announcement.to_bytes(&seal());
        prop_assert_eq!(Announcement::parse(&bytes, &seal()), Ok(announcement));
    }

    #[test]
    fn what_was_changed_is_refused(
        announcement in announcement(),
        at in any::<prop::sample::Index>(),
        change in 1..=255u8,
    ) {
        let mut bytes = announcement.to_bytes(&seal());
        let at = at.index(bytes.len());
        bytes[at] ^= change;
        let mut inbox = Inbox::new(seal());
        prop_assert!(inbox.receive(&bytes).is_err());
        bytes[at] ^= change;
        prop_assert!(inbox.receive(&bytes).is_ok(), "the bad one changed nothing");
    }

    #[test]
    fn noise_is_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(Announcement::parse(&bytes, &Seal::OPEN).is_err());
        let mut named = b"XGVMIANN\x01\0".to_vec();
        named.extend(bytes);
        prop_assert!(Announcement::parse(&named, &Seal::OPEN).is_err());
    }
}
