//! An inbox against a plain model: messages of a few owners, some old, some damaged, some of
//! another job. A refused message changes nothing.
#![no_main]

use std::collections::HashMap;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use xgvmi_pool::{
    Announcement, Body, Gvmi, Inbox, Mkey, OwnerUuid, RemoteExport, Secret, VirtAddr,
};

#[derive(Arbitrary, Debug)]
enum Step {
    /// A valid message, if it is new.
    Message(Message),
    /// A valid message with one modified byte.
    Damaged { message: Message, at: u16, by: u8 },
    /// A truncated valid message.
    Cut { message: Message, at: u16 },
    /// A valid message of another job.
    Foreign(Message),
    /// The owner is dead.
    Forget { owner: u8 },
}

#[derive(Arbitrary, Debug)]
struct Message {
    owner: u8,
    sequence: u8,
    keys: Vec<u32>,
    exports: Option<Vec<(u32, u32, u16)>>,
}

impl Message {
    fn announcement(&self) -> Announcement {
        let body = match &self.exports {
            None => Body::Keys(self.keys.iter().map(|key| Mkey::from_raw(*key)).collect()),
            Some(exports) => Body::Exports(
                exports
                    .iter()
                    .map(|(mkey, addr, len)| RemoteExport {
                        mkey: Mkey::from_raw(*mkey),
                        addr: VirtAddr::new((*addr).into()),
                        len: u64::from(*len) + 1,
                    })
                    .collect(),
            ),
        };
        Announcement {
            gvmi: Gvmi::new(3),
            owner: OwnerUuid::new(u64::from(self.owner % 4)),
            sequence: self.sequence.into(),
            body,
        }
    }
}

fuzz_target!(|steps: Vec<Step>| {
    let seal = |byte| Secret::new(&[byte; 32]).expect("long enough").seal();
    let (ours, theirs) = (seal(1), seal(2));
    let mut inbox = Inbox::new(ours.clone());
    let mut seen: HashMap<u64, u64> = HashMap::new();
    for step in steps {
        match step {
            Step::Message(message) => {
                let announcement = message.announcement();
                let (owner, sequence) = (announcement.owner.get(), announcement.sequence);
                let is_new = seen.get(&owner).is_none_or(|seen| sequence > *seen);
                let received = inbox.receive(&announcement.to_bytes(&ours));
                assert_eq!(received.is_ok(), is_new);
                if is_new {
                    seen.insert(owner, sequence);
                }
            }
            Step::Damaged { message, at, by } => {
                let mut bytes = message.announcement().to_bytes(&ours);
                let at = usize::from(at) % bytes.len();
                bytes[at] ^= by.max(1);
                assert!(inbox.receive(&bytes).is_err());
            }
            Step::Cut { message, at } => {
                let bytes = message.announcement().to_bytes(&ours);
                let at = usize::from(at) % bytes.len();
                assert!(inbox.receive(&bytes[..at]).is_err());
            }
            Step::Foreign(message) => {
                assert!(
                    inbox
                        .receive(&message.announcement().to_bytes(&theirs))
                        .is_err()
                );
            }
            Step::Forget { owner } => {
                let owner = u64::from(owner % 4);
                inbox.forget(OwnerUuid::new(owner));
                seen.remove(&owner);
            }
        }
    }
});
