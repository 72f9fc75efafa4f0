//! Rebuilds by groups, several at once, whose targets fail, are full, or are used meanwhile.

use super::*;
use std::ops::Deref;
use std::sync::Mutex;

/// So many that several groups are under way.
const MANY: u64 = 350;
/// Room for growth and for snapshots.
const SHAPE: Shape = Shape {
    room: 1 << 14,
    slots: 256,
};

type Hook = Box<dyn FnMut(&str, u64) -> Option<i32> + Send>;

/// A target elsewhere. Before each call a hook may choose an error for it.
struct Hooked {
    store: Store,
    hook: Mutex<Option<Hook>>,
}

impl Hooked {
    fn at(&self, call: &str, block: u64) -> Result<&Store> {
        let mut hook = self.hook.lock().unwrap();
        match hook.as_mut().and_then(|hook| hook(call, block)) {
            Some(errno) => Err(BlkError::io("hooked", io::Error::from_raw_os_error(errno))),
            None => Ok(&self.store),
        }
    }

    fn hook(&self, hook: impl FnMut(&str, u64) -> Option<i32> + Send + 'static) {
        *self.hook.lock().unwrap() = Some(Box::new(hook));
    }

    fn unhook(&self) {
        *self.hook.lock().unwrap() = None;
    }
}

impl Target for Hooked {
    fn name(&self) -> &str {
        self.store.name()
    }

    fn identity(&self) -> Identity {
        self.store.identity()
    }

    fn part(&self, blocks: Range<u64>) -> Result<Part> {
        self.store.part(blocks)
    }

    fn changed(&self, from: u64) -> Result<Changed> {
        self.store.changed(from)
    }

    fn grow(&self, blocks: u64) -> Result<()> {
        self.at("grow", 0)?.grow(blocks)
    }

    fn prepare(&self, block: u64, half: &Half, keep: u64) -> Result<()> {
        self.at("prepare", block)?.prepare(block, half, keep)
    }

    fn commit(&self, block: u64, generation: u64) -> Result<()> {
        self.at("commit", block)?.commit(block, generation)
    }

    fn fetch(&self, block: u64, generation: u64) -> Result<Half> {
        self.at("fetch", block)?.fetch(block, generation)
    }

    fn flush(&self) -> Result<()> {
        self.at("flush", 0)?.flush()
    }

    fn mark(&self, epoch: u64, mark: Mark) -> Result<()> {
        self.at("mark", 0)?.mark(epoch, mark)
    }

    fn layers(&self) -> Result<crate::layers::Layers> {
        self.store.layers()
    }

    fn set_layers(&self, layers: &crate::layers::Layers) -> Result<()> {
        self.store.set_layers(layers)
    }

    fn usage(&self) -> Usage {
        self.store.usage()
    }

    fn is_elsewhere(&self) -> bool {
        true
    }
}

/// A volume with many blocks, one target of which lacks them.
struct Site {
    disks: [Disk; 3],
    targets: [Arc<Hooked>; 3],
    volume: Volume,
    shadow: Mutex<Vec<u64>>,
    lacking: Role,
}

impl Deref for Site {
    type Target = Volume;

    fn deref(&self) -> &Volume {
        &self.volume
    }
}

fn store(disk: &Disk, role: Role) -> Store {
    Store::open(&role.to_string(), Box::new(disk.clone()), None).unwrap()
}

fn of_block(block: u64) -> usize {
    usize::try_from(block).unwrap()
}

impl Site {
    fn new(lacking: Role) -> Self {
        let disks = Role::HALVES.map(|role| {
            let disk = Disk {
                bytes: Arc::default(),
                writes_left: Arc::new(AtomicU64::new(u64::MAX)),
            };
            let new = NewTarget {
                geometry: Geometry::new(u32::try_from(BLOCK).unwrap(), MANY).unwrap(),
                ..new_target(role, true)
            };
            let medium = Box::new(disk.clone());
            Store::create_with(&role.to_string(), medium, new, SHAPE, None).unwrap();
            disk
        });
        let targets = Role::HALVES.map(|role| {
            Arc::new(Hooked {
                store: store(&disks[role.index()], role),
                hook: Mutex::new(None),
            })
        });
        let all = targets
            .each_ref()
            .map(|target| Arc::clone(target) as Arc<dyn Target>);
        let volume = Volume::open(all.to_vec()).unwrap();
        volume.detach(lacking, "it is away");
        let site = Self {
            disks,
            targets,
            volume,
            shadow: Mutex::new(vec![0; of_block(MANY)]),
            lacking,
        };
        for block in (0..MANY).filter(|block| block % 7 != 3) {
            site.put(block, block % 5 + 1);
        }
        site.volume.flush().unwrap();
        site.attach(lacking);
        assert_eq!(site.missing_blocks(lacking), MANY - MANY / 7);
        site
    }

    fn target(&self, role: Role) -> &Arc<Hooked> {
        &self.targets[role.index()]
    }

    /// The one that lacks blocks.
    fn rebuilt(&self) -> &Arc<Hooked> {
        self.target(self.lacking)
    }

    /// One of those that have them, which gives data.
    fn source(&self) -> Role {
        let mut roles = Role::HALVES.into_iter();
        roles.find(|role| *role != self.lacking).unwrap()
    }

    fn attach(&self, role: Role) {
        let target = Arc::clone(self.target(role)) as Arc<dyn Target>;
        self.volume.attach(target).unwrap();
    }

    fn put(&self, block: u64, version: u64) {
        self.volume
            .write(offset(block), &content(block, version))
            .unwrap();
        self.shadow.lock().unwrap()[of_block(block)] = version;
    }

    /// Completes it, and compares each byte, also with each target absent.
    fn end(self, what: &str) {
        self.targets.iter().for_each(|target| target.unhook());
        self.volume.rebuild(self.lacking).unwrap();
        assert_eq!(self.volume.missing_blocks(self.lacking), 0, "{what}");
        assert!(self.volume.is_complete(self.lacking), "{what}");
        let shadow = self.shadow.into_inner().unwrap();
        expect(&self.volume, &shadow);
        let report = self.volume.scrub().unwrap();
        assert_eq!(
            (report.bad_halves, report.lost_blocks),
            (0, 0),
            "{what}: {report:?}"
        );
        drop((self.volume, self.targets));
        for absent in Role::HALVES {
            let others = Role::HALVES.into_iter().filter(|role| *role != absent);
            let others = others.map(|role| -> Arc<dyn Target> {
                Arc::new(store(&self.disks[role.index()], role))
            });
            expect(&Volume::open(others.collect()).unwrap(), &shadow);
        }
    }
}

/// Fails calls of a kind from the `after`-th on, `times` of them.
fn failing(
    wanted: &'static str,
    errno: i32,
    (mut after, mut times): (u64, u64),
) -> impl FnMut(&str, u64) -> Option<i32> + Send + 'static {
    move |call, _| {
        if call != wanted {
            return None;
        }
        if after > 0 {
            after -= 1;
            return None;
        }
        times = times.checked_sub(1)?;
        Some(errno)
    }
}

/// The target that is rebuilt has no space for some blocks, or fails, at any place of a group.
#[test]
fn a_rebuild_goes_on_after_its_target_was_full_or_failed() {
    for lacking in [Role::FIRST, Role::PARITY] {
        for call in ["prepare", "commit"] {
            for errno in [libc::ENOSPC, libc::EIO] {
                for (after, times) in [(0, 1), (100, 70), (200, u64::MAX)] {
                    let what = format!("{lacking} {call} {errno} {after} {times}");
                    let site = Site::new(lacking);
                    site.rebuilt().hook(failing(call, errno, (after, times)));
                    let error = site.rebuild(lacking).unwrap_err();
                    assert_eq!(error.is_full(), errno == libc::ENOSPC, "{what}: {error}");
                    assert!(!site.is_complete(lacking) && site.missing_blocks(lacking) > 0);
                    let left = site.volume.used(lacking).is_none();
                    // A full one stays, and takes what is written meanwhile or lacks it.
                    assert_eq!(left, errno == libc::EIO, "{what}");
                    for block in (0..MANY).step_by(11) {
                        site.put(block, 9);
                    }
                    if left {
                        site.rebuilt().unhook();
                        site.attach(lacking);
                    }
                    site.end(&what);
                }
            }
        }
    }
}

/// A source that is full takes no writes, and gives what it has.
#[test]
fn a_rebuild_does_not_need_space_at_its_sources() {
    for lacking in Role::HALVES {
        let site = Site::new(lacking);
        let source = site.source();
        site.target(source)
            .hook(failing("prepare", libc::ENOSPC, (0, u64::MAX)));
        assert_eq!(site.rebuild(lacking).unwrap(), MANY - MANY / 7);
        for block in 0..9 {
            site.put(block, 8);
        }
        assert_eq!(site.missing_blocks(source), 9);
        site.target(source).unhook();
        assert_eq!(site.rebuild(source).unwrap(), 9);
        site.end(&format!("{lacking}"));
    }
}

/// A source fails in the middle of a group. No block counts as lost because of that; the rest follows when it is back.
#[test]
fn a_rebuild_goes_on_after_a_source_has_failed() {
    for lacking in Role::HALVES {
        for after in [0, 63, 64, 200] {
            let what = format!("{lacking} {after}");
            let site = Site::new(lacking);
            let source = site.source();
            site.target(source)
                .hook(failing("fetch", libc::EIO, (after, 1)));
            let error = site.rebuild(lacking).unwrap_err();
            assert!(matches!(error, BlkError::Lost { .. }), "{what}: {error}");
            assert!(site.volume.used(source).is_none() && !site.is_complete(lacking));
            site.attach(source);
            assert_eq!(site.status().lost_blocks, 0, "{what}");
            site.end(&what);
        }
    }
}

/// One block that a source cannot read, again and again, keeps no other one from its place.
#[test]
fn a_bad_sector_of_a_source_holds_up_its_block_only() {
    for lacking in Role::HALVES {
        let site = Site::new(lacking);
        let source = site.source();
        let hook = |call: &str, block| (call == "fetch" && block == 70).then_some(libc::EIO);
        site.target(source).hook(hook);
        for _ in 0..3 {
            site.rebuild(lacking).unwrap_err();
            site.attach(source);
        }
        assert_eq!(site.missing_blocks(lacking), 1);
        site.end(&format!("{lacking}"));
    }
}

/// A client writes the same blocks, and the volume grows and gets a snapshot.
#[test]
fn a_rebuild_beside_writes_growth_and_snapshots() {
    for lacking in Role::HALVES {
        let site = Site::new(lacking);
        let grown = (MANY + 100) * BLOCK as u64;
        std::thread::scope(|scope| {
            let rebuilds = scope.spawn(|| site.rebuild(lacking).unwrap());
            let writes = scope.spawn(|| {
                for version in 6..9 {
                    for block in (0..MANY).rev().step_by(3) {
                        site.put(block, version);
                    }
                }
            });
            site.grow(grown).unwrap();
            site.create_snapshot("middle", true).unwrap();
            site.grow(grown + 100 * BLOCK as u64).unwrap();
            writes.join().unwrap();
            rebuilds.join().unwrap();
        });
        site.shadow.lock().unwrap().resize(of_block(MANY) + 200, 0);
        site.put(MANY + 150, 2);
        site.end(&format!("{lacking}"));
    }
}
