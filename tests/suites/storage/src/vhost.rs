//! Stock QEMU without KVM on the vhost-user-blk device of an export: a Linux guest reads, writes, discards and flushes.

use super::{FILES, LIMIT, Place, SIZE_MIB, START, World, replay};
use anyhow::{Context as _, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use testbed::process::{self, Running};
use testbed::workspace;

type Test = fn(&Machine<'_>) -> Result<()>;

/// Names of the tests.
pub const VHOST_TESTS: [&str; 7] = [
    "qemu: a guest reads, copies in two queues, discards and flushes",
    "qemu: the export is killed while the guest writes, and returns",
    "qemu: a guest of a read-only device",
    "dm-flakey: targets lose their power in a guest, and what was flushed is there",
    "fsx: random writes, holes and truncations of a file of ext4 in a guest, each read compared",
    "qemu: a guest boots from the volume by a boot loader there",
    "nbd: fsx on ext4 on a device of the guest's kernel, whose export is in the guest",
];

/// Name of the test that needs fsstress, which no package of Debian has.
pub const EXERCISE_TEST: &str = "xfstests: fsstress on ext4 in a guest";

/// Modules of the guest, in the order in which they are loaded.
const MODULES: [&str; 6] = [
    "virtio/virtio.ko",
    "virtio/virtio_ring.ko",
    "virtio/virtio_pci_legacy_dev.ko",
    "virtio/virtio_pci_modern_dev.ko",
    "virtio/virtio_pci.ko",
    "block/virtio_blk.ko",
];

/// Name of the test that needs a module of the guest's kernel.
pub const LOG_TEST: &str = "dm-log-writes: the power is lost after each write of the targets' disk, and what was flushed is there";

/// The module.
const LOG_MODULE: &str = "md/dm-log-writes.ko";

/// Flushes in its log, and most bytes of that.
const LOGGED: u64 = 30;
const LOG_BYTES: u64 = 1 << 30;

/// More modules of the guest whose disks lose their power.
const CRASH_MODULES: [&str; 4] = [
    "block/loop.ko",
    "block/nbd.ko",
    "md/dm-mod.ko",
    "md/dm-flakey.ko",
];

/// Power losses in a guest.
const CRASHES: u64 = 12;

/// Bytes of the copies of the guest.
const BLOCK: usize = 64 << 10;
/// A guest without KVM is slow.
const GUEST: Duration = Duration::from_secs(400);
/// Single copies of the guest that writes while the export is killed.
const STEPS: usize = 150;

/// A directory with a volume, and what a guest needs.
struct Machine<'a> {
    place: Place<'a>,
    /// QEMU, the kernel and busybox, unpacked.
    root: &'a Path,
    machinery: Machinery<'a>,
}

/// Programs of the virtual machine and of its guest.
#[derive(Debug, Clone, Copy)]
pub struct Machinery<'a> {
    /// Unpacked packages: QEMU, the kernel and busybox.
    pub root: &'a Path,
    /// Unpacked packages: syslinux, mtools, dosfstools, nbd-client.
    pub tools: &'a Path,
    /// The program fsx.
    pub fsx: &'a Path,
    /// A directory with fsstress.
    pub exercisers: Option<&'a Path>,
}

/// Runs all tests that are wanted.
///
/// # Errors
/// The directory cannot be created.
pub fn run_vhost(
    world: &World<'_>,
    machinery: Machinery<'_>,
) -> Result<Vec<(&'static str, Result<()>)>> {
    let tests: [Test; 7] = [
        copies, killed, read_only, crashes, compared, booted, kernel_nbd,
    ];
    let Machinery {
        root, exercisers, ..
    } = machinery;
    let wants = |name: &str| {
        let parts = &world.parts;
        parts.is_empty() || parts.iter().any(|part| name.contains(part))
    };
    let exercise = move |machine: &Machine<'_>| match exercisers {
        Some(dir) => exercised(machine, dir),
        None => Ok(()),
    };
    type Boxed<'a> = Box<dyn Fn(&Machine<'_>) -> Result<()> + 'a>;
    let named = VHOST_TESTS.into_iter().zip(tests);
    let named = named.map(|(name, test)| (name, Box::new(test) as Boxed<'_>));
    let more = exercisers.map(|_| (EXERCISE_TEST, Box::new(exercise) as Boxed<'_>));
    let log = has_log(root).then(|| (LOG_TEST, Box::new(logged) as Boxed<'_>));
    named
        .chain(more)
        .chain(log)
        .filter(|(name, _)| wants(name))
        .map(|(name, test)| {
            let place = Place::on_host(world, "storage-vhost")?;
            let machine = Machine {
                place,
                root,
                machinery,
            };
            Ok((name, machine.prepare().and_then(|()| test(&machine))))
        })
        .collect()
}

/// True if the kernel at `root` has dm-log-writes.
#[must_use]
pub fn has_log(root: &Path) -> bool {
    let modules = only(root.join("lib/modules"), "");
    modules.is_ok_and(|modules| modules.join("kernel/drivers").join(LOG_MODULE).exists())
}

/// The kernel's command line for a part of the guest's script.
fn line_of(part: &str) -> String {
    format!("console=ttyS0 quiet panic=-1 part={part}")
}

/// The only path below `dir` that begins with this name.
fn only(dir: PathBuf, begin: &str) -> Result<PathBuf> {
    let entries = fs::read_dir(&dir).with_context(|| dir.display().to_string())?;
    let mut names = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let is_it = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with(begin))
    };
    let found = names.find(is_it);
    found.with_context(|| format!("no {begin}... in {}", dir.display()))
}

impl Machine<'_> {
    /// Makes the volume, its image, and the guest's files.
    fn prepare(&self) -> Result<()> {
        let place = &self.place;
        place.image("image", SIZE_MIB)?;
        place.create(SIZE_MIB, 4096)?;
        let dir = place.path("guest");
        for sub in ["bin", "dev", "proc", "sys"] {
            fs::create_dir_all(dir.join(sub))?;
        }
        let copy =
            |from: &Path, to: &Path| fs::copy(from, to).with_context(|| from.display().to_string());
        copy(&self.root.join("bin/busybox"), &dir.join("bin/busybox"))?;
        let script = workspace::root().join("tests/suites/storage_guest.sh");
        copy(&script, &dir.join("init"))?;
        let modules = only(self.root.join("lib/modules"), "")?;
        let log = has_log(self.root).then_some(&LOG_MODULE);
        for module in MODULES.iter().chain(&CRASH_MODULES).chain(log) {
            let from = modules.join("kernel/drivers").join(module);
            let name = from.file_name().context("a name")?;
            copy(&from, &dir.join(name))?;
        }
        self.pack()
    }

    fn pack(&self) -> Result<()> {
        let pack =
            "chmod 755 guest/init; cd guest; find . | ./bin/busybox cpio -o -H newc > ../initrd";
        self.place.stock("sh", &["-c", pack]).map(drop)
    }

    /// Gives the guest a program of this machine with its libraries, which all have to be in one directory there.
    fn give(&self, program: &Path, name: &str) -> Result<()> {
        let place = &self.place;
        let program = program.to_str().context("the path of a program")?;
        let to = format!("guest/bin/{name}");
        // Debug information would fill the guest's memory.
        place.stock("strip", &["-o", &to, program])?;
        fs::create_dir_all(place.path("guest/lib"))?;
        fs::create_dir_all(place.path("guest/lib64"))?;
        let more = self.machinery.tools.join("lib/x86_64-linux-gnu");
        let more = format!("LD_LIBRARY_PATH={}:$LD_LIBRARY_PATH", more.display());
        let libraries = place.stock("sh", &["-c", &format!("{more} ldd '{program}'")])?;
        for path in libraries
            .split_whitespace()
            .filter(|word| word.starts_with('/'))
        {
            let from = Path::new(path);
            let name = from.file_name().context("the name of a library")?;
            let dir = match path.contains("/ld-linux") {
                true => "guest/lib64",
                false => "guest/lib",
            };
            fs::copy(from, place.path(dir).join(name)).with_context(|| path.to_owned())?;
        }
        Ok(())
    }

    /// The path of a stock program.
    fn stock_path(&self, program: &str) -> Result<PathBuf> {
        let found = self
            .place
            .stock("sh", &["-c", &format!("command -v {program}")])?;
        Ok(PathBuf::from(found.trim()))
    }

    /// An export with both sockets.
    fn export(&self, options: &[&str]) -> Result<Running> {
        let mut command = Command::new(self.place.world.bin.join("xgvmi-blk"));
        command
            .arg("export")
            .args(FILES)
            .current_dir(&self.place.dir);
        command.args(["--socket", "socket", "--vhost-socket", "vhost"]);
        Running::saying(command.args(options), START, "exports volume")
    }

    fn nbdcopy(&self, from: &str, to: &str) -> Result<()> {
        self.place
            .stock("nbdcopy", &["--flush", from, to])
            .map(drop)
    }

    /// Starts a guest.
    fn start(&self, part: &str) -> Result<Running> {
        self.start_with(part, &[])
    }

    /// The same with more options of QEMU.
    fn start_with(&self, part: &str, options: &[&str]) -> Result<Running> {
        let kernel = only(self.root.join("boot"), "vmlinuz-")?;
        let kernel = kernel.to_str().context("the path of a kernel")?;
        let line = line_of(part);
        let own = ["-initrd", "initrd", "-kernel", kernel, "-append", &line];
        self.emulate("", &[options, &own].concat())
    }

    /// Starts QEMU with the disk, and options of its device.
    fn emulate(&self, of_disk: &str, options: &[&str]) -> Result<Running> {
        let root = self.root;
        let libraries = ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"];
        let libraries = libraries.map(|dir| root.join(dir).display().to_string());
        let mut command = Command::new(root.join("usr/bin/qemu-system-x86_64"));
        command
            .current_dir(&self.place.dir)
            .env("LD_LIBRARY_PATH", libraries.join(":"));
        for dir in ["usr/share/qemu", "usr/share/seabios"] {
            command.arg("-L").arg(root.join(dir));
        }
        let words = "-machine pc,accel=tcg -nodefaults -display none -no-reboot -serial stdio -m 512 -smp 2 \
                     -object memory-backend-memfd,id=memory,size=512M,share=on -numa node,memdev=memory \
                     -chardev socket,id=disk,path=vhost,reconnect=1 \
                     -device vhost-user-blk-pci,chardev=disk,num-queues=2";
        let words = format!("{words}{of_disk}");
        command.args(words.split_whitespace()).args(options);
        Running::spawn(&mut command)
    }

    /// Waits until the guest has ended. Returns what it has said.
    fn end(&self, guest: Running) -> Result<String> {
        let done = guest.wait(GUEST)?;
        ensure!(
            done.ok() && done.output.contains("guest: done"),
            "{}",
            done.output
        );
        Ok(done.output)
    }

    /// The volume is the image after these changes of it, which `scrub` confirms.
    fn holds(&self, export: Running, change: impl FnOnce(&mut [u8])) -> Result<()> {
        let uri = "nbd+unix:///?socket=socket";
        self.nbdcopy(uri, "out")?;
        drop(export);
        let mut expect = fs::read(self.place.path("image"))?;
        change(&mut expect);
        fs::write(self.place.path("expect"), expect)?;
        self.place.same("expect", "out")?;
        self.place.scrub().map(drop)
    }

    /// What a guest says about its disk.
    fn describes(&self, said: &str, export: &Running, read_only: &str) -> Result<()> {
        let sum = self.place.stock("sha256sum", &["image"])?;
        let sum = sum.split_whitespace().next().context("a sum")?.to_owned();
        let told = export.said();
        let id = told
            .split("exports volume ")
            .nth(1)
            .context("an identifier")?;
        let serial = id.get(..20).context("a serial number")?;
        for line in [
            format!(
                "guest: sectors {} serial {serial} queues 2 cache write back read-only {read_only}",
                (SIZE_MIB << 20) / 512
            ),
            format!("guest: sum {sum}"),
        ] {
            ensure!(said.contains(&line), "'{line}' is not in:\n{said}");
        }
        Ok(())
    }
}

fn copies(machine: &Machine<'_>) -> Result<()> {
    let export = machine.export(&[])?;
    machine.nbdcopy("image", "nbd+unix:///?socket=socket")?;
    let said = machine.end(machine.start("copy")?)?;
    machine.describes(&said, &export, "0")?;
    ensure!(!said.contains("guest: error"), "{said}");
    machine.holds(export, |bytes| {
        bytes.copy_within(128 * BLOCK..256 * BLOCK, 512 * BLOCK);
        bytes.copy_within(256 * BLOCK..384 * BLOCK, 640 * BLOCK);
        bytes[4 << 20..5 << 20].fill(0);
    })
}

fn killed(machine: &Machine<'_>) -> Result<()> {
    let mut export = machine.export(&[])?;
    machine.nbdcopy("image", "nbd+unix:///?socket=socket")?;
    let mut guest = machine.start("steps")?;
    for step in [20, 60, 100] {
        let sign = format!("guest: step {step}\r");
        let reached = process::wait_until(LIMIT, || {
            guest.said().contains(&sign) || guest.group.has_ended()
        });
        ensure!(reached && !guest.group.has_ended(), "{}", guest.said());
        export.group.kill();
        process::wait_until(START, || export.group.has_ended());
        export = machine.export(&[])?;
    }
    let said = machine.end(guest)?;
    ensure!(!said.contains("guest: error"), "{said}");
    machine.holds(export, |bytes| {
        for step in 1..=STEPS {
            bytes.copy_within(step * BLOCK..(step + 1) * BLOCK, (768 + step) * BLOCK);
        }
    })
}

fn read_only(machine: &Machine<'_>) -> Result<()> {
    let export = machine.export(&[])?;
    let uri = "nbd+unix:///?socket=socket";
    machine.nbdcopy("image", uri)?;
    drop(export);
    let export = machine.export(&["--read-only"])?;
    let said = machine.end(machine.start("read-only")?)?;
    machine.describes(&said, &export, "1")?;
    ensure!(said.contains("guest: error at 1"), "{said}");
    let mut info = Command::new("nbdinfo");
    info.args(["--is", "read-only", uri])
        .current_dir(&machine.place.dir);
    for (name, value) in machine.place.world.tools {
        info.env(name, value);
    }
    ensure!(
        process::run(&mut info, LIMIT)?.ok(),
        "NBD clients may write"
    );
    machine.holds(export, |_| ())
}

/// What a guest needs whose disks lose their power.
fn give_crashes(machine: &Machine<'_>) -> Result<()> {
    let bin = machine.place.world.bin;
    machine.give(&bin.join("xgvmi-blk"), "xgvmi-blk")?;
    machine.give(&bin.join("storage-crash"), "storage-crash")?;
    for program in ["dmsetup", "mkfs.ext4"] {
        machine.give(&machine.stock_path(program)?, program)?;
    }
    machine.pack()
}

/// The log of a disk is made in a guest, and replayed here up to each moment.
fn logged(machine: &Machine<'_>) -> Result<()> {
    const SEED: u64 = 1;
    let place = &machine.place;
    let export = machine.export(&[])?;
    give_crashes(machine)?;
    let log = place.path("log");
    fs::File::create(&log)?.set_len(LOG_BYTES)?;
    let drive = [
        "-drive",
        "if=none,id=log,file=log,format=raw",
        "-device",
        "virtio-blk-pci,drive=log",
    ];
    let part = format!("crash rounds={LOGGED} logged=/dev/vdb");
    let said = machine.end(machine.start_with(&part, &drive)?)?;
    ensure!(
        said.contains(&format!("storage-crash: {LOGGED} flushes in the log")),
        "{said}"
    );
    drop(export);
    let program = place.world.bin.join("xgvmi-blk");
    let (moments, _) = replay::replay(&program, (&place.dir, &log), (LOGGED, SEED))?;
    // Each flush of the client needs one of at least two targets.
    ensure!(moments as u64 > 3 * LOGGED, "{moments} moments only");
    Ok(())
}

/// Everything is in the guest: export, targets, their disks, and the client. The machine itself may have no device mapper.
fn crashes(machine: &Machine<'_>) -> Result<()> {
    let export = machine.export(&[])?;
    give_crashes(machine)?;
    let said = machine.end(machine.start(&format!("crash rounds={CRASHES}"))?)?;
    ensure!(
        said.contains(&format!("storage-crash: {CRASHES} power losses")),
        "{said}"
    );
    drop(export);
    Ok(())
}

/// Programs exercise a file system on the kernel's ext4 in a guest, which is clean afterwards.
fn exercise(machine: &Machine<'_>, part: &str) -> Result<()> {
    let export = machine.export(&[])?;
    machine.give(&machine.stock_path("mkfs.ext4")?, "mkfs.ext4")?;
    machine.pack()?;
    let said = machine.end(machine.start(part)?)?;
    ensure!(said.contains(&format!("guest: {part} 0")), "{said}");
    ensure!(!said.contains("guest: error"), "{said}");
    machine.nbdcopy("nbd+unix:///?socket=socket", "out")?;
    drop(export);
    machine.place.stock("e2fsck", &["-f", "-n", "out"])?;
    machine.place.scrub().map(drop)
}

fn compared(machine: &Machine<'_>) -> Result<()> {
    machine.give(machine.machinery.fsx, "fsx")?;
    exercise(machine, "fsx")
}

/// fsstress of xfstests, in `dir`.
fn exercised(machine: &Machine<'_>, dir: &Path) -> Result<()> {
    machine.give(&dir.join("fsstress"), "fsstress")?;
    exercise(machine, "fsstress")
}

/// The volume is a disk with boot loader, kernel and the guest's files, and QEMU gets nothing else.
fn booted(machine: &Machine<'_>) -> Result<()> {
    let place = &machine.place;
    let tools = machine.machinery.tools;
    let path = |dir: &Path| dir.display().to_string();
    let kernel = path(&only(machine.root.join("boot"), "vmlinuz-")?);
    let config = format!(
        "DEFAULT guest\nPROMPT 0\nLABEL guest\nKERNEL vmlinuz\nINITRD initrd\nAPPEND {}\n",
        line_of("booted")
    );
    fs::write(place.path("syslinux.cfg"), config)?;
    let dirs = ["usr/bin", "usr/sbin", "bin", "sbin"].map(|dir| path(&tools.join(dir)));
    let libraries = ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"];
    let libraries = libraries.map(|dir| path(&tools.join(dir))).join(":");
    let make = format!(
        "export PATH={}:$PATH LD_LIBRARY_PATH={libraries} MTOOLS_SKIP_CHECK=1; rm image && \
         mkfs.fat -C image {} >/dev/null && syslinux --install image && \
         mcopy -i image {kernel} ::vmlinuz && mcopy -i image initrd syslinux.cfg ::",
        dirs.join(":"),
        SIZE_MIB << 10
    );
    place.stock("sh", &["-e", "-c", &make])?;
    let export = machine.export(&[])?;
    machine.nbdcopy("image", "nbd+unix:///?socket=socket")?;
    let said = machine.end(machine.emulate(",bootindex=0", &[])?)?;
    machine.describes(&said, &export, "0")?;
    ensure!(
        said.contains("guest: booted") && said.contains("BOOT_IMAGE=vmlinuz"),
        "{said}"
    );
    machine.holds(export, |_| ())
}

/// Export and targets are in the guest, and its kernel is the client. The machine itself may have no nbd.
fn kernel_nbd(machine: &Machine<'_>) -> Result<()> {
    let export = machine.export(&[])?;
    let bin = machine.place.world.bin;
    machine.give(&bin.join("xgvmi-blk"), "xgvmi-blk")?;
    machine.give(machine.machinery.fsx, "fsx")?;
    let client = machine.machinery.tools.join("sbin/nbd-client");
    machine.give(&client, "nbd-client")?;
    machine.give(&machine.stock_path("mkfs.ext4")?, "mkfs.ext4")?;
    machine.give(&machine.stock_path("e2fsck")?, "e2fsck")?;
    machine.pack()?;
    let said = machine.end(machine.start("nbd")?)?;
    for line in [
        "guest: fsx 0",
        "guest: e2fsck 0",
        "guest: copies are equal",
        "\"bad_halves\": 0",
        "\"lost_blocks\": 0",
    ] {
        ensure!(said.contains(line), "'{line}' is not in:\n{said}");
    }
    ensure!(!said.contains("guest: error"), "{said}");
    drop(export);
    Ok(())
}
