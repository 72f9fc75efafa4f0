//! `xgvmi-blk`: volumes of three targets, and their export to block clients; see `docs/STORAGE.md`.

use anyhow::{Context as _, Result, bail};
use clap::{Args, Parser, Subcommand};
use std::io::Write as _;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use xgvmi_blk::geometry::TARGETS;
use xgvmi_blk::nbd::{self, Export};
use xgvmi_blk::store::{MemoryMedium, NewTarget};
use xgvmi_blk::{Geometry, Id, Role, Store, Target, Volume, sbc};

/// Block storage over three targets: compressed blocks in two halves and their parity. Two targets are enough.
#[derive(Debug, Parser)]
#[command(name = "xgvmi-blk", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Creates the target files of a new volume, or one new target of an old volume.
    Create(CreateArgs),
    /// Exports a volume by NBD on a Unix socket.
    Export(ExportArgs),
    /// Compares all halves and parities of a volume and repairs them. Prints a report as JSON.
    Scrub(TargetArgs),
    /// Completes the targets that do not hold everything.
    Rebuild(TargetArgs),
    /// Shows the state of a volume as JSON.
    Show(TargetArgs),
    /// Converts image files of the reference application.
    #[command(subcommand)]
    Sbc(SbcCommand),
}

#[derive(Debug, Args)]
struct CreateArgs {
    /// Files of data_1, data_2 and data_p. They must not exist.
    #[arg(required = true, num_args = 1..=3, value_name = "FILE")]
    targets: Vec<PathBuf>,
    /// Size of the volume in bytes, or with K, M, G, T.
    #[arg(long, value_parser = size, required_unless_present = "like")]
    size: Option<u64>,
    /// Bytes of a block: a multiple of 64, up to 1 MiB.
    #[arg(long, value_parser = size, default_value = "4096")]
    block_size: u64,
    /// Create one new target of the volume of this target.
    #[arg(long, value_name = "FILE", conflicts_with = "size", requires = "role")]
    like: Option<PathBuf>,
    /// Role of the new target.
    #[arg(long, value_parser = role, value_name = "data_1|data_2|data_p", requires = "like")]
    role: Option<Role>,
}

#[derive(Debug, Args)]
struct TargetArgs {
    /// Files of the targets, in any order. Two are enough.
    #[arg(required = true, num_args = 1..=3, value_name = "FILE")]
    targets: Vec<PathBuf>,
    /// Most bytes of data in each target, or with K, M, G, T.
    #[arg(long, value_parser = size)]
    capacity: Option<u64>,
}

#[derive(Debug, Args)]
struct ExportArgs {
    /// Files of the targets, in any order. Two are enough.
    #[arg(num_args = 0..=3, value_name = "FILE", required_unless_present = "memory")]
    targets: Vec<PathBuf>,
    /// Most bytes of data in each target, or with K, M, G, T.
    #[arg(long, value_parser = size)]
    capacity: Option<u64>,
    /// Unix socket. It must not exist, unless no process listens on it.
    #[arg(long, value_name = "FILE")]
    socket: PathBuf,
    /// Name of the export.
    #[arg(long, default_value = "")]
    name: String,
    /// Use three targets in memory with this size of the volume. Nothing is kept.
    #[arg(long, value_parser = size, value_name = "SIZE", conflicts_with = "targets")]
    memory: Option<u64>,
    /// Bytes of a block of a volume in memory.
    #[arg(long, value_parser = size, default_value = "4096")]
    block_size: u64,
}

#[derive(Debug, Subcommand)]
enum SbcCommand {
    /// Writes an image as data_1, data_2 and data_p.
    Write {
        /// The image.
        image: PathBuf,
        /// Files of data_1, data_2 and data_p. They are overwritten.
        #[arg(required = true, num_args = 3, value_name = "FILE")]
        files: Vec<PathBuf>,
        /// Bytes of a block: a multiple of 64, up to 1 MiB.
        #[arg(long, default_value_t = 4096)]
        block_size: u32,
    },
    /// Reads an image from two of the three files, or from all.
    Read {
        /// The image. It is overwritten.
        image: PathBuf,
        /// File of data_1.
        #[arg(long, value_name = "FILE")]
        data_1: Option<PathBuf>,
        /// File of data_2.
        #[arg(long, value_name = "FILE")]
        data_2: Option<PathBuf>,
        /// File of data_p.
        #[arg(long, value_name = "FILE")]
        data_p: Option<PathBuf>,
    },
}

fn main() -> ExitCode {
    if let Some(code) = cli_pages::asked::<Cli>() {
        return code;
    }
    let done = match Cli::parse().command {
        Command::Create(args) => create(&args),
        Command::Export(args) => export(&args),
        Command::Scrub(args) => open(&args).and_then(|volume| show(&volume.scrub()?)),
        Command::Rebuild(args) => open(&args).and_then(|volume| rebuild(&volume)),
        Command::Show(args) => open(&args).and_then(|volume| show(&volume.status())),
        Command::Sbc(command) => convert(&command),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// A number of bytes, with a suffix or without.
fn size(text: &str) -> Result<u64, String> {
    let (number, shift) = match text.char_indices().last() {
        Some((at, 'K' | 'k')) => (&text[..at], 10),
        Some((at, 'M' | 'm')) => (&text[..at], 20),
        Some((at, 'G' | 'g')) => (&text[..at], 30),
        Some((at, 'T' | 't')) => (&text[..at], 40),
        _ => (text, 0),
    };
    let number: u64 = number
        .parse()
        .map_err(|_| "give a number of bytes, or with K, M, G, T")?;
    number
        .checked_mul(1 << shift)
        .ok_or_else(|| "the number is too large".to_owned())
}

fn role(text: &str) -> Result<Role, String> {
    let of_name = Role::ALL.into_iter().find(|role| role.to_string() == text);
    of_name.ok_or_else(|| "give data_1, data_2 or data_p".to_owned())
}

fn block_size(bytes: u64) -> Result<u32> {
    u32::try_from(bytes).with_context(|| format!("block size {bytes}: the most is 1 MiB"))
}

fn new_id() -> Result<Id> {
    Ok(Id(xgvmi_daemon::random()
        .context("cannot get random bytes")?
        .to_ne_bytes()))
}

fn create(args: &CreateArgs) -> Result<()> {
    let (news, volume) = match (&args.like, args.role, args.size) {
        (Some(like), Some(role), _) => {
            if args.targets.len() != 1 {
                bail!("--like creates one target: give one file");
            }
            let identity = Store::open_file(like, None)?.identity();
            let new = NewTarget {
                geometry: identity.geometry,
                role,
                volume: identity.volume,
                complete: false,
            };
            (vec![new], identity.volume)
        }
        (_, _, Some(size)) => {
            if args.targets.len() != TARGETS {
                bail!("a new volume has three targets: give three files");
            }
            let geometry = Geometry::of_size(block_size(args.block_size)?, size)?;
            let volume = new_id()?;
            let new = |role| NewTarget {
                geometry,
                role,
                volume,
                complete: true,
            };
            (Role::ALL.map(new).to_vec(), volume)
        }
        _ => bail!("give --size, or --like and --role"),
    };
    for (path, new) in args.targets.iter().zip(news) {
        Store::create_file(path, new, None)?;
    }
    tell(&format!("volume {volume}"))
}

fn open_files(targets: &[PathBuf], capacity: Option<u64>) -> Result<Volume> {
    let mut stores: Vec<Arc<dyn Target>> = Vec::new();
    let mut faults = Vec::new();
    for path in targets {
        match Store::open_file(path, capacity) {
            Ok(store) => stores.push(Arc::new(store)),
            Err(error) => faults.push(error),
        }
    }
    // With two others, a target that cannot be opened counts as absent. One in use by another process does not.
    for fault in faults {
        if matches!(fault, xgvmi_blk::BlkError::InUse { .. }) || stores.len() < 2 {
            return Err(fault.into());
        }
        eprintln!("xgvmi-blk: {fault}; the volume is opened without it");
    }
    Ok(Volume::open(stores)?)
}

fn open(args: &TargetArgs) -> Result<Volume> {
    open_files(&args.targets, args.capacity)
}

fn in_memory(args: &ExportArgs, size: u64) -> Result<Volume> {
    let geometry = Geometry::of_size(block_size(args.block_size)?, size)?;
    let volume = new_id()?;
    let mut stores: Vec<Arc<dyn Target>> = Vec::new();
    for role in Role::ALL {
        let new = NewTarget {
            geometry,
            role,
            volume,
            complete: true,
        };
        let name = format!("memory {role}");
        let medium = Box::new(MemoryMedium::default());
        stores.push(Arc::new(Store::create(&name, medium, new, args.capacity)?));
    }
    Ok(Volume::open(stores)?)
}

fn export(args: &ExportArgs) -> Result<()> {
    let volume = match args.memory {
        Some(size) => in_memory(args, size)?,
        None => open_files(&args.targets, args.capacity)?,
    };
    let volume = Arc::new(volume);
    let listener = bind(&args.socket)?;
    tell(&format!(
        "xgvmi-blk {} exports volume {} on {}",
        env!("CARGO_PKG_VERSION"),
        volume.id(),
        args.socket.display()
    ))?;
    xgvmi_daemon::notify("READY=1").context("telling systemd")?;
    complete_in_background(&volume)?;
    let served = nbd::listen(&listener, &Export::new(Arc::clone(&volume), &args.name));
    served.with_context(|| format!("the socket {}", args.socket.display()))
}

/// Listens on a socket. Replaces one that a process has left behind.
fn bind(path: &Path) -> Result<UnixListener> {
    let listener = match UnixListener::bind(path) {
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
            if std::os::unix::net::UnixStream::connect(path).is_ok() {
                bail!("{}: another process listens on this socket", path.display());
            }
            std::fs::remove_file(path)
                .with_context(|| format!("cannot replace {}", path.display()))?;
            UnixListener::bind(path)
        }
        other => other,
    };
    listener.with_context(|| format!("cannot listen on {}", path.display()))
}

/// Completes targets that lack blocks, while the volume serves.
fn complete_in_background(volume: &Arc<Volume>) -> Result<()> {
    let volume = Arc::clone(volume);
    let work = move || {
        if let Err(error) = rebuild(&volume) {
            eprintln!("xgvmi-blk: rebuild: {error:#}");
        }
    };
    let thread = std::thread::Builder::new()
        .name("rebuild".to_owned())
        .spawn(work);
    thread.map(drop).context("cannot start the rebuild")
}

fn rebuild(volume: &Volume) -> Result<()> {
    for (role, target) in Role::ALL.into_iter().zip(volume.status().targets) {
        if target.absent.is_empty() {
            let count = volume.rebuild(role)?;
            if count != 0 {
                eprintln!("xgvmi-blk: {role}: {count} blocks were completed");
            }
        }
    }
    Ok(())
}

fn convert(command: &SbcCommand) -> Result<()> {
    let read = |path: &PathBuf| {
        std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
    };
    let write = |path: &PathBuf, bytes: &[u8]| {
        std::fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
    };
    match command {
        SbcCommand::Write {
            image,
            files,
            block_size,
        } => {
            let encoded = sbc::encode(&read(image)?, *block_size)?;
            files
                .iter()
                .zip(&encoded)
                .try_for_each(|(path, bytes)| write(path, bytes))
        }
        SbcCommand::Read {
            image,
            data_1,
            data_2,
            data_p,
        } => {
            let paths = [data_1, data_2, data_p].map(Option::as_ref);
            let bytes = paths.map(|path| path.map(read).transpose());
            let [first, second, parity] = bytes;
            let bytes = [first?, second?, parity?];
            let mut files = [None; TARGETS];
            for ((file, bytes), path) in files.iter_mut().zip(&bytes).zip(paths) {
                if let (Some(bytes), Some(path)) = (bytes, path) {
                    *file = Some(sbc::parse(bytes).with_context(|| path.display().to_string())?);
                }
            }
            write(image, &sbc::decode(files)?)
        }
    }
}

fn show(value: &impl serde::Serialize) -> Result<()> {
    tell(&serde_json::to_string_pretty(value)?)
}

fn tell(text: &str) -> Result<()> {
    let mut stdout = std::io::stdout();
    let written = writeln!(stdout, "{text}").and_then(|()| stdout.flush());
    written.context("writing to standard output")
}
