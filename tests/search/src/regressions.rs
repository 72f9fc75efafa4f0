//! Sequences that broke a promise once, each as short as it can be. `cargo test -p storage-search` carries them out.

use crate::step::{Step, parse};
use crate::world::Setting;

/// Most operations of a step.
const CUTS: u8 = 40;

/// A sequence that broke a promise once.
#[derive(Debug, Clone, Copy)]
pub struct Regression {
    /// What was wrong.
    pub name: &'static str,
    layout: &'static str,
    steps: &'static str,
}

const fn new(name: &'static str, steps: &'static str) -> Regression {
    of("2+1", name, steps)
}

const fn of(layout: &'static str, name: &'static str, steps: &'static str) -> Regression {
    Regression {
        name,
        layout,
        steps,
    }
}

/// All of them.
pub const REGRESSIONS: &[Regression] = &[
    new(
        "three targets that return one after another leave no complete one, and the volume never opens again",
        "open 012; restart 012; flush; attach 0; attach 1; attach 2; kill; open 012",
    ),
    new(
        "a request of a volume that was opened with two targets does not wait for the third one",
        "open 012; restart 0; write 0; kill; open 01; read",
    ),
    new(
        "a flush succeeds although a block has one holder, because two targets have lost power since its write",
        "open 012; write 0; power 01 none; read; attach 0; attach 1; flush; read",
    ),
    new(
        "a flush succeeds although a block has one holder, because a target has taken the place of another",
        "open 01; write 0; power 0 none; attach 2; flush; keep",
    ),
    new(
        "a target that was absent takes a value back that two others have decided and shown",
        "open 012; write 0; power 01 none; kill; open 01; read; kill; open 012; read",
    ),
    new(
        "a first write that was never acknowledged comes back after zeros were shown",
        "open 012; kill-at *; write 0; open 12; read; kill; open 012; read",
    ),
    new(
        "a first write that has lost power comes back after zeros were shown",
        "open 02; write 0; power 2 first 2; kill; open 12; read; kill; open 012; read",
    ),
    new(
        "a zero entry of the index reads as zeros where a block was written",
        "open 12; write 0; kill; damage 2 0 zero; open 02; read",
    ),
    new(
        "a target that is cut off reads as zeros where a block was written",
        "open 01; write 0; kill; damage 0 0 cut; open 02; read",
    ),
    new(
        "a target whose sync fails prevents the opening with two others",
        "sync-fails 1; open 012",
    ),
    new(
        "a target whose sync has no space prevents the opening with two others",
        "sync-full 1; open 012",
    ),
    new(
        "a target whose sync had no space counts as a durable holder",
        "open 012; write 0; rebuild; die-at 1 *; write 0; sync-full 2; rebuild; flush; machine none; open 12; read",
    ),
    new(
        "a block that two targets of an opening cannot decide stays lost when the third one returns",
        "open 01; write 0; kill-at *; write 0; open 12; keep; read",
    ),
    new(
        "a target that fails while it is marked prevents the opening with two others",
        "die-at 0 *; open 012",
    ),
    new(
        "a target whose flushed record is damaged says that the block was never written",
        "open 02; write 0; flush; machine none; damage 0 1 byte 86; open 012; read",
    ),
    new(
        "a target that holds a newer value votes for an older one",
        "open 012; sync-full 2; write 0; flush; write 0; power 12 none; term; open 012; read",
    ),
    new(
        "a value that is older than the last flush is shown after two losses of power",
        "open 012; write 0; power 2 first 8; flush; write 0; flush; write 0; power 1 none; flush; kill; open 012; read",
    ),
    new(
        "a block that was never written stays lost because a rebuild has marked it",
        "damage 0 0 zero; open 01; rebuild; attach 2; read; kill; open 012; read",
    ),
    new(
        "a block that was never written stays lost when the second target returns that says so",
        "damage 0 0 byte 58; open 02; restart 0; attach 1; read",
    ),
    new(
        "an opening that is killed makes a write that was cut off win alone",
        "open 012; write 0; flush; kill-at 4; write 0; kill-at *; open 012; kill; open 02; read",
    ),
    new(
        "a target that returns and is killed has a block only unsettled that it held settled",
        "open 12; write 0; part 1 0; restart 2; write 0; kill-at *; attach 2; open 02; read",
    ),
    new(
        "a flushed value is replaced by an older one where its record is damaged and its other holder is absent",
        "open 01; write 0; flush; kill; power 0 none; damage 0 1 zero; open 02; read",
    ),
    new(
        "a target that has lost power returns and counts as complete without a record",
        "open 012; write 0; power 0 any 93; kill; open 12; keep; power 1 none; read",
    ),
    new(
        "a block stays lost because an opening was killed that had decided against it at one target",
        "open 01; kill-at 3; write 0; kill-at *; open 12; open 012; read",
    ),
    new(
        "a target with a damaged entry makes a block lost about which two others agree",
        "open 01; write 0; kill; damage 1 0 byte 12; power 0 none; open 02; read; kill; open 012; read",
    ),
    new(
        "the process after a failed sync believes the cache, and a flush of it makes nothing durable",
        "open 012; write 0; sync-full 0; term; open 01; keep; flush; machine none; open 01; read",
    ),
    new(
        "a target that runs on after its sync has failed counts as a durable holder for the next export",
        "open 012; write 0; sync-fails 1; term; open 012; flush; rebuild; machine none; open 01; read",
    ),
    new(
        "a target whose sync has failed while it was marked counts as a durable holder",
        "open 012; write 0; kill; sync-fails 0; open 012; kill; open 012; keep; flush; machine none; open 02; read",
    ),
    new(
        "zeros are shown where a flush of the next export has covered two failed syncs",
        "open 012; write 0; sync-full 2; sync-full 1; flush; kill; open 02; read; flush; machine none; open 12; read",
    ),
    new(
        "zeros are shown for flushed data after a full target has lost power and the sync of the other one has failed",
        "open 01; sync-full 1; write 0; full 1; write 0; write 0; write 0; write 0; scrub; power 1 none; sync-fails 0; kill; open 012; read",
    ),
    new(
        "a target whose flushed record is damaged votes for zeros after the other one has dropped it",
        "open 01; write 0; scrub; write 0; kill; power 0 none; damage 0 5 cut; open 012; flush; kill; open 012; read",
    ),
    new(
        "a target whose sync failed and whose record is damaged votes for zeros",
        "open 12; write 0; flush; write 0; sync-fails 2; term; damage 2 5 cut; open 02; kill; open 012; read",
    ),
    new(
        "a target whose sync had no space and whose record is damaged votes for zeros",
        "open 02; write 0; scrub; sync-full 2; write 0; flush; kill; damage 2 1 byte 78; open 01; kill; open 012; read",
    ),
    new(
        "a target with a damaged entry and record makes a block lost about which two others agree",
        "open 02; write 0; kill; damage 2 4 byte 93; power 0 none; damage 2 5 zero; open 01; read; kill; open 012; read",
    ),
    new(
        "a write over a block about which too few targets say something drops the half of a flushed generation",
        "damage 2 4 cut; open 01; kill-at 3; write 0; open 12; kill-at 1; write 0; open 012; read",
    ),
    new(
        "a damaged entry that was written again and not synced counts as durable for the next export",
        "damage 2 0 zero; open 12; write 0; sync-fails 2; flush; kill; open 12; read; flush; machine none; open 12; read",
    ),
    new(
        "an opening decides for a generation with a damaged record, and drops the whole half of the next one",
        "open 012; write 0; kill; damage 2 3 zero; open 02; kill-at 3; write 0; open 12; kill; open 012; read",
    ),
    new(
        "a write that is cut off over a lost block drops the half of another one that was cut off",
        "open 012; write 0; kill; damage 1 3 zero; open 01; kill-at 3; write 0; open 12; kill-at *; write 0; open 012; read",
    ),
    new(
        "a block that counts as never written since a target has returned is lost at the next opening",
        "open 01; write 0; power 0 none; machine first 5; open 01; part 1 1; flush; restart 1; attach 2; read; kill; open 012; read",
    ),
    new(
        "a complete target that took a place since the targets were equal does not return while one of the others is there",
        "open 012; write 0; term; open 012; replace 0; keep; kill; open 12; restart 2; attach 0; read; attach 2; flush; kill; open 01; read",
    ),
    new(
        "two groups of one unit move to the settled index, and the second is emptied before the map has the unit",
        "open 02; write 0; snap; write 0; kill; open 012; die-at 2 1; rebuild; restart 2; kill; open 02; read",
    ),
    new(
        "the model: a half block that a read has restored counts as durable without a sync",
        "open 12; write 0; term; open 012; read; power 1 none; read; machine none; open 02; read",
    ),
    new(
        "the model: a write over damage that no sync has covered has mended it",
        "open 012; write 0; flush; kill; damage 2 5 byte 155; open 12; write 0; machine none; open 012; read; rebuild; kill; open 02; read",
    ),
    new(
        "the model: a flush counts only the targets of its own, although the volume has flushed by itself before",
        "damage 2 4 zero; open 12; sync-fails 2; write 0; die-at 1 2; keep; flush; part 0 1",
    ),
    new(
        "the model: a write that failed makes a flush forget which targets had made the last acknowledged one durable",
        "damage 2 2 zero; open 12; sync-full 1; zero 1; attach 0; power 12 none; zero 1; attach 1; flush; kill; open 01; read",
    ),
    of(
        "mirror-3",
        "copies that left one process after another count as used without each other",
        "open 012; power 2 none; grow; power 1 none; attach 2; write 0; kill; open 012; read",
    ),
    of(
        "mirror-3",
        "copies that left before another one was replaced count as used without each other",
        "open 012; die-at 1 4; replace 0; die-at 1 0; write 0; kill; open 012; read",
    ),
    of(
        "mirror-3",
        "a copy counts as used without the others because the one that it trusts was replaced in a later opening",
        "open 012; sync-full 2; grow; power 1 none; write 0; kill; open 02; rebuild; replace 0; kill; open 012; read",
    ),
    of(
        "mirror-2",
        "the model: a rebuild knows what a volume has grown by although the only copy that decides is damaged there",
        "damage 0 0 zero; open 01; power 1 none; grow; kill; open 01; rebuild",
    ),
    of(
        "mirror-2",
        "the model: a rebuild knows what a snapshot lacks although the only copy that decides is damaged there",
        "damage 0 0 zero; open 01; sync-fails 1; snap; kill; open 01; rebuild",
    ),
    of(
        "mirror-2",
        "zeros are read for a flushed block whose record is damaged at the only copy that decides",
        "open 01; power 1 none; write 0; flush; machine none; damage 0 3 cut; open 01; read",
    ),
    of(
        "mirror-2",
        "a write fails at once because all targets were full one after the other, though one that is there is completed soon",
        "damage 0 5 cut; open 01; sync-full 0; zero 2; full 1; write 0",
    ),
    of(
        "mirror-2",
        "a write to full targets fails as one that lacks targets",
        "open 01; full 0; write 0; full 1; all; space 0; space 1; keep; all; read",
    ),
    of(
        "mirror-2",
        "the model: the copy that was replaced, named again without its successor, counts as one that is left",
        "damage 0 5 cut; open 01; snap; replace 1; full 1; write 0; kill; alone 1; zero 2; unsnap 0; kill-at 6; snap; \
         damage 0 3 zero; swap 1; open 01; read",
    ),
    of(
        "mirror-2",
        "a replaced copy is used again beside a new one that is not trusted yet",
        "open 01; write 0; replace 0; flush; replace 1; write 0; kill; open 01; kill; swap 0; open 01",
    ),
    of(
        "mirror-3",
        "a replaced copy is used again beside two new ones that are not trusted yet",
        "open 012; write 0; replace 1; flush; replace 2; replace 0; write 0; kill; open 012; kill; swap 1; open 012",
    ),
    of(
        "mirror-3",
        "blocks that nobody has read since a clean end count as lost when a copy is lost, though the others have them",
        "open 012; write 0; kill; open 012; rebuild; term; open 012; power 2 none; read",
    ),
    of(
        "mirror-3",
        "snapshots of copies that count as gone are there again when one of these has returned",
        "open 012; power 12 none; snap; write 0; kill; sync-fails 2; open 012; kill; alone 2; attach 1; read; kill; open 12; read",
    ),
    of(
        "mirror-3",
        "the model: a write is acknowledged by a copy that lacks blocks, as another one is full",
        "open 012; write 0; full 1; power 12 none; full 2; replace 2; keep; die-at 0 0; write 0; space 2; write 0",
    ),
    of(
        "mirror-3",
        "the model: an opening without absent targets that is refused changes which ones are left",
        "open 012; restart 02; write 0; kill; alone 2; keep; kill; alone 01; open 02; kill; open 012",
    ),
    of(
        "mirror-2",
        "the model: what the only copy that decides has lost is found again when another one is trusted",
        "open 01; write 0; restart 0; snap; kill; damage 1 0 byte 21; open 01; rebuild; read",
    ),
    of(
        "mirror-2",
        "the model: a damage that finds nothing to damage takes away what no sync has covered",
        "damage 1 2 zero; open 01; restart 0; write 0; write 0; sync-full 1; flush; kill; damage 1 2 byte 25; open 1; read",
    ),
    of(
        "2+2",
        "a write to full targets fails as one that lacks targets, as one was full before",
        "open 123; full 3; attach 0; full 2; write 0; write 0; full 0; all",
    ),
    of(
        "4+2",
        "a loss of power while all targets are flushed leaves too few parts of each generation of a flushed block",
        "open 012345; write 0; flush; write 0; kill-at 3; flush; kill-at *; open 012345; machine none; open 012345; read",
    ),
    of(
        "8+3",
        "a loss of power in the second flush of a block leaves too few parts of what the first one was about",
        "open 0123456789a; write 0; flush; write 0; write 0; kill-at 5; flush; kill-at *; open 0123456789a; \
         machine none; open 0123456789a; read",
    ),
    of(
        "4+2",
        "a loss of power that leaves parts of entries and records hides what was flushed before",
        "open 012345; write 0; flush; write 0; kill-at *; flush; machine any 11; open 012345; read",
    ),
    of(
        "3+2",
        "zeros are read where two targets have dropped what was flushed, beside a newer value that counts as lost",
        "open 0124; write 1; write 0; flush; write 1; kill; power 04 none; open 0124; power 04 none; write 1; term; \
         open 01234; read",
    ),
    of(
        "4+2",
        "records that never reached the disks of some targets hide a block that was never written",
        "open 012345; write 0; machine any 68; open 012345; read",
    ),
    of(
        "4+2",
        "records that are torn at targets without a voice make a damaged one count as one that was not flushed",
        "open 012345; write 0; write 0; power 45 any 59; flush; machine none; damage 3 4 cut; open 012345; read",
    ),
    of(
        "4+2",
        "a new target that lacks everything counts as one that may have what a loss of power has taken",
        "open 012345; write 0; flush; replace 5; sync-full 5; flush; write 0; machine any 232; open 012345; read",
    ),
    of(
        "4+2",
        "a new target that was away counts as one that may have what a loss of power has taken",
        "open 01234; keep; write 0; kill; open 012345; replace 1; kill; open 02345; scrub; write 0; power 25 none; kill; \
         open 012345; read",
    ),
    of(
        "4+2",
        "an opening that was cut off makes a target that lacks the record of a replacement the one that knows best",
        "open 012345; sync-fails 1; rebuild; replace 5; kill; kill-at *; open 012345; swap 5; open 12345",
    ),
    of(
        "2+2",
        "an opening that was cut off makes a target that was away at a replacement the one that knows best",
        "open 123; replace 2; kill; kill-at *; open 023; swap 2; open 0123",
    ),
];

impl Regression {
    /// Its sequences: `kill-at *` is each operation of the step behind it.
    ///
    /// # Errors
    /// Its text has a step that does not exist.
    pub fn sequences(&self) -> anyhow::Result<Vec<Vec<Step>>> {
        let cuts = if self.steps.contains('*') {
            0..CUTS
        } else {
            0..1
        };
        let with = |at: u8| parse(&self.steps.replace('*', &at.to_string()));
        cuts.map(with).collect()
    }

    /// What it is carried out on.
    ///
    /// # Errors
    /// Its layout does not exist.
    pub fn settings(&self) -> anyhow::Result<[Setting; 7]> {
        let layout = self.layout.parse().map_err(anyhow::Error::msg)?;
        let with = |blocks, elsewhere, settles| Setting {
            blocks,
            layout,
            block_len: 128,
            elsewhere,
            settles,
            lies: false,
            forgets: false,
        };
        Ok([
            with(1, false, false),
            with(1, false, true),
            with(1, true, true),
            with(3, false, false),
            with(3, true, false),
            with(3, false, true),
            with(3, true, true),
        ])
    }
}
