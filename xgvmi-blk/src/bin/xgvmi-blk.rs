//! `xgvmi-blk`: volumes of three targets, and their export to block clients; see `docs/STORAGE.md`.

use anyhow::{Context as _, Result, bail};
use clap::{Args, Parser, Subcommand};
use std::collections::HashMap;
use std::io::Write as _;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use xgvmi_blk::geometry::TARGETS;
use xgvmi_blk::nbd::{self, Export};
use xgvmi_blk::remote::{self, Address, RemoteTarget};
use xgvmi_blk::store::{MemoryMedium, NewTarget};
use xgvmi_blk::{BlkError, Geometry, Id, Role, Store, Target, Volume, sbc};
use xgvmi_daemon::Secret;

/// Purpose of the key that is derived from a secret file. Another use of the same file derives another key.
const SECRET_CONTEXT: &str = "xgvmi 2026 block storage target traffic";
/// Time between attempts to take absent targets back.
const RETURN: Duration = Duration::from_secs(1);

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
    /// Serves a target file to the process that owns its volume, over TCP.
    Target(ServeArgs),
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
struct ServeArgs {
    /// File of the target.
    file: PathBuf,
    /// Address and port; port 0 chooses one. Beyond loopback a secret is necessary.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7710")]
    listen: SocketAddr,
    /// File with the secret of both sides, 16 to 4,096 bytes, for its owner only.
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
    /// Most bytes of data, or with K, M, G, T.
    #[arg(long, value_parser = size)]
    capacity: Option<u64>,
}

/// How targets are opened.
#[derive(Debug, Args)]
struct OpenArgs {
    /// Most bytes of data in each target file, or with K, M, G, T.
    #[arg(long, value_parser = size)]
    capacity: Option<u64>,
    /// File with the secret of targets at tcp: addresses.
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
    /// Longest wait for an answer of a target at a tcp: address, in milliseconds. A slower one counts as absent.
    #[arg(long, value_name = "MS", default_value_t = 5000, value_parser = clap::value_parser!(u64).range(1..=600_000))]
    target_timeout: u64,
}

#[derive(Debug, Args)]
struct TargetArgs {
    /// Files, or tcp:HOST:PORT, in any order. Two are enough.
    #[arg(required = true, num_args = 1..=3, value_name = "TARGET")]
    targets: Vec<String>,
    #[command(flatten)]
    open: OpenArgs,
}

#[derive(Debug, Args)]
struct ExportArgs {
    /// Files, or tcp:HOST:PORT, in any order. Two are enough.
    #[arg(num_args = 0..=3, value_name = "TARGET", required_unless_present = "memory")]
    targets: Vec<String>,
    #[command(flatten)]
    open: OpenArgs,
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
        Command::Target(args) => serve(&args),
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

/// The targets that the user names, and how to open them.
struct Opener {
    targets: Vec<String>,
    capacity: Option<u64>,
    remote: Address,
}

impl Opener {
    fn new(targets: &[String], args: &OpenArgs) -> Result<Self> {
        let secret = args.secret_file.as_deref().map(secret).transpose()?;
        Ok(Self {
            targets: targets.to_vec(),
            capacity: args.capacity,
            remote: Address {
                address: String::new(),
                secret,
                limit: Duration::from_millis(args.target_timeout),
                owner: new_id()?.0,
            },
        })
    }

    fn open(&self, target: &str) -> Result<Arc<dyn Target>, BlkError> {
        Ok(match target.strip_prefix("tcp:") {
            Some(address) => Arc::new(RemoteTarget::connect(&Address {
                address: address.to_owned(),
                ..self.remote.clone()
            })?),
            None => Arc::new(Store::open_file(Path::new(target), self.capacity)?),
        })
    }

    fn volume(&self) -> Result<Volume> {
        let mut found = Vec::new();
        let mut faults = Vec::new();
        for target in &self.targets {
            match self.open(target) {
                Ok(target) => found.push(target),
                Err(error) => faults.push(error),
            }
        }
        // With two others, a target that cannot be opened counts as absent. One in use by another process does not.
        for fault in faults {
            if matches!(fault, BlkError::InUse { .. }) || found.len() < 2 {
                return Err(fault.into());
            }
            eprintln!("xgvmi-blk: {fault}; the volume is opened without it");
        }
        Ok(Volume::open(found)?)
    }

    /// Completes targets that lack blocks and takes back those that return, without end, while the volume serves.
    fn keep_complete(&self, volume: &Volume) {
        let mut told: HashMap<&str, String> = HashMap::new();
        let mut complete = false;
        loop {
            let present = volume.present();
            for name in &self.targets {
                if !present.contains(name) {
                    let taken = self.open(name).and_then(|target| volume.attach(target));
                    complete &= taken.is_err();
                    tell_once(&mut told, name, taken.map_err(Into::into));
                }
            }
            if !complete {
                let rebuilt = rebuild(volume);
                complete = rebuilt.is_ok();
                tell_once(&mut told, "rebuild", rebuilt);
            }
            std::thread::sleep(RETURN);
        }
    }
}

/// Logs an error, unless it was the last one of its kind.
fn tell_once<'a, T>(told: &mut HashMap<&'a str, String>, kind: &'a str, result: Result<T>) {
    match result {
        Ok(_) => drop(told.remove(kind)),
        Err(error) => {
            let error = format!("{error:#}");
            if told.get(kind) != Some(&error) {
                eprintln!("xgvmi-blk: {kind}: {error}");
                told.insert(kind, error);
            }
        }
    }
}

fn secret(path: &Path) -> Result<Secret> {
    Ok(Secret::read(path, SECRET_CONTEXT)?)
}

fn serve(args: &ServeArgs) -> Result<()> {
    let secrets: Vec<Secret> = args
        .secret_file
        .as_deref()
        .map(secret)
        .transpose()?
        .into_iter()
        .collect();
    if secrets.is_empty() && !args.listen.ip().is_loopback() {
        bail!(
            "{}: beyond loopback a target needs a secret: give --secret-file FILE",
            args.listen
        );
    }
    let store = Store::open_file(&args.file, args.capacity)?;
    let identity = store.identity();
    let listener = TcpListener::bind(args.listen)
        .with_context(|| format!("cannot listen on {}", args.listen))?;
    tell(&format!(
        "xgvmi-blk {} serves {} of volume {} at tcp:{}",
        env!("CARGO_PKG_VERSION"),
        identity.role,
        identity.volume,
        listener.local_addr()?
    ))?;
    xgvmi_daemon::notify("READY=1").context("telling systemd")?;
    remote::serve(&listener, store, secrets).with_context(|| args.listen.to_string())
}

fn open(args: &TargetArgs) -> Result<Volume> {
    Opener::new(&args.targets, &args.open)?.volume()
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
        stores.push(Arc::new(Store::create(
            &name,
            medium,
            new,
            args.open.capacity,
        )?));
    }
    Ok(Volume::open(stores)?)
}

fn export(args: &ExportArgs) -> Result<()> {
    let opener = Opener::new(&args.targets, &args.open)?;
    let volume = match args.memory {
        Some(size) => in_memory(args, size)?,
        None => opener.volume()?,
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
    let kept = Arc::clone(&volume);
    let keeper = std::thread::Builder::new().name("keeper".to_owned());
    keeper
        .spawn(move || opener.keep_complete(&kept))
        .context("cannot start the keeper")?;
    let export = Export::new(Arc::clone(&volume), &args.name);
    let served = Arc::new(nbd::Server::new(listener, export)).run();
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

fn rebuild(volume: &Volume) -> Result<()> {
    for (role, target) in Role::ALL.into_iter().zip(volume.status().targets) {
        if target.absent.is_empty() {
            // Also marks a target as complete that lacks nothing.
            let count = volume.rebuild(role)?;
            if count != 0 {
                eprintln!("xgvmi-blk: {role} is complete: it lacked {count} blocks");
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
