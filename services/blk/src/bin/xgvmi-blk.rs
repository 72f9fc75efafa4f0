//! `xgvmi-blk`: volumes of several targets, and their export to block clients; see `docs/STORAGE.md`.

use anyhow::{Context as _, Result, anyhow, bail};
use clap::{Args, Parser, Subcommand};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use xgvmi_blk::geometry::TARGETS_MAX;
use xgvmi_blk::operate::{
    self, ControlArgs, ExportArgs, OpenArgs, Opener, ServiceArgs, StatusArgs, TargetArgs,
    create_store, new_id, rebuild,
};
use xgvmi_blk::store::NewTarget;
use xgvmi_blk::volume::VolumeStatus;
use xgvmi_blk::{BlkError, Geometry, KeyFile, Layout, Role, Volume, sbc};
use xgvmi_daemon::options::{bytes, parse};

/// Block storage over several targets: compressed blocks in parts and their parity, or copies.
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
    Target(TargetArgs),
    /// Runs on a DPU: serves a volume to initiators on its host, whose memory it reads and writes by DMA.
    Service(ServiceArgs),
    /// Exports a volume by NBD on a Unix socket.
    Export(ExportArgs),
    /// Compares all halves and parities of a volume and repairs them. Prints a report as JSON.
    Scrub(VolumeArgs),
    /// Completes the targets that do not hold everything.
    Rebuild(VolumeArgs),
    /// Gives a volume more blocks, which are zeros.
    Resize(ResizeArgs),
    /// Wraps the key of an encrypted volume with another key file. Data is not written again.
    RotateKey(RotateArgs),
    /// Shows the state of a volume as JSON. Changes nothing.
    Show(VolumeArgs),
    /// Shows the state of a running export, service or target.
    Status(StatusArgs),
    /// Commands a running export or service.
    Ctl(ControlArgs),
    /// Converts image files of the reference application.
    #[command(subcommand)]
    Sbc(SbcCommand),
}

#[derive(Debug, Args)]
struct CreateArgs {
    /// Files of data_1, data_2 and data_p, or of the roles of --layout, which must not exist; block devices; or nbd:SOCKET of an
    /// NBD server, whose export is zero.
    #[arg(required = true, num_args = 1..=TARGETS_MAX, value_name = "FILE")]
    targets: Vec<String>,
    /// Size of the volume in bytes, or with K, M, G, T.
    #[arg(long, required_unless_present = "like", value_parser = bytes)]
    size: Option<u64>,
    /// Bytes of a block: a multiple of 64, up to 1 MiB.
    #[arg(long, default_value = "4096", value_parser = bytes)]
    block_size: u64,
    /// How data is spread: 2+1 (two halves and parity), mirror-2, mirror-3, or K+M: K parts (2 to 8) and M parities (1 to 3).
    #[arg(long, default_value_t = Layout::HALVES, value_name = "LAYOUT", conflicts_with = "like")]
    layout: Layout,
    /// Create one new target of the volume of this target, or of the export or service with this status socket.
    #[arg(long, value_name = "FILE", conflicts_with = "size", requires = "role")]
    like: Option<PathBuf>,
    /// The volume, if the process of --like has several.
    #[arg(long, value_name = "NAME", requires = "like")]
    volume: Option<String>,
    /// Overwrite what block devices hold.
    #[arg(long)]
    force: bool,
    /// Encrypt the volume: file with its key, 16 to 4,096 bytes, which other users cannot read.
    #[arg(long, value_name = "FILE", conflicts_with = "like")]
    key_file: Option<PathBuf>,
    /// Role of the new target.
    #[arg(long, value_name = "ROLE", requires = "like")]
    role: Option<String>,
}

#[derive(Debug, Args)]
struct VolumeArgs {
    /// Files, tcp:HOST:PORT, or nbd:SOCKET of an NBD server, in any order. Two are enough.
    #[arg(required = true, num_args = 1..=TARGETS_MAX, value_name = "TARGET")]
    targets: Vec<String>,
    #[command(flatten)]
    open: OpenArgs,
}

#[derive(Debug, Args)]
struct ResizeArgs {
    #[command(flatten)]
    volume: VolumeArgs,
    /// New size of the volume in bytes, or with K, M, G, T. It cannot be smaller than the old one.
    #[arg(long, value_parser = bytes)]
    size: u64,
}

#[derive(Debug, Args)]
struct RotateArgs {
    #[command(flatten)]
    volume: VolumeArgs,
    /// The new key file.
    #[arg(long, value_name = "FILE", requires = "key_file")]
    new_key_file: PathBuf,
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
    operate::ignore_file_size_limit();
    operate::use_few_heaps();
    let done = match parse::<Cli>().command {
        Command::Create(args) => create(&args),
        Command::Target(args) => operate::target(&args),
        Command::Service(args) => operate::service(&args),
        Command::Export(args) => operate::export(&args),
        Command::Scrub(args) => open(&args).and_then(|volume| show(&volume.scrub()?)),
        Command::Rebuild(args) => open(&args).and_then(|volume| rebuild(&volume)),
        Command::Resize(args) => resize(&args),
        Command::RotateKey(args) => rotate_key(&args),
        Command::Show(args) => inspect(&args).and_then(|status| show(&status)),
        Command::Status(args) => operate::show_status(&args).and_then(|text| tell(text.trim_end())),
        Command::Ctl(args) => operate::ctl(&args).and_then(|text| tell(&text)),
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

fn role(layout: Layout, name: &str) -> Result<Role> {
    layout.role_named(name).with_context(|| {
        let names: Vec<String> = layout.roles().map(|role| role.to_string()).collect();
        format!("role {name}: give {}", names.join(", "))
    })
}

fn block_size(bytes: u64) -> Result<u32> {
    u32::try_from(bytes).with_context(|| format!("block size {bytes}: the most is 1 MiB"))
}

fn create(args: &CreateArgs) -> Result<()> {
    let (news, volume, wrapping) = match (&args.like, &args.role, args.size) {
        (Some(like), Some(name), _) => {
            if args.targets.len() != 1 {
                bail!("--like creates one target: give one file");
            }
            let (geometry, layout, volume, wrapping) = operate::like(like, args.volume.as_deref())?;
            let new = NewTarget {
                geometry,
                role: role(layout, name)?,
                volume,
                complete: false,
            };
            (vec![new], volume, wrapping)
        }
        (_, _, Some(size)) => {
            let layout = args.layout;
            if args.targets.len() != layout.targets() {
                bail!(
                    "a new volume of layout {layout} has {} targets: give as many files",
                    layout.targets()
                );
            }
            let geometry = Geometry::of_size(block_size(args.block_size)?, size)?;
            let volume = new_id()?;
            let new = |role| NewTarget {
                geometry,
                role,
                volume,
                complete: true,
            };
            let key = args.key_file.as_deref().map(KeyFile::read).transpose()?;
            let wrapping = key.map(|key| key.new_wrapping(volume)).transpose()?;
            (layout.roles().map(new).collect(), volume, wrapping)
        }
        _ => bail!("give --size, or --like and --role"),
    };
    let mut made = Vec::new();
    for (path, new) in args.targets.iter().zip(news) {
        let is_there = path.starts_with("nbd:") || Path::new(path).symlink_metadata().is_ok();
        let fault = match create_store(path, new, args.force, wrapping).map(drop) {
            Ok(()) => None,
            Err(BlkError::Io { error, .. }) if error.kind() == ErrorKind::AlreadyExists => Some(
                anyhow!("{path}: a file of this name exists: remove it, or name another one"),
            ),
            Err(error) => {
                if !is_there && matches!(error, BlkError::Io { .. }) {
                    // Only a part of it could be written.
                    made.push(path);
                }
                Some(error.into())
            }
        };
        if let Some(fault) = fault {
            // A part of a volume would be in the way of the next attempt.
            for path in made {
                let _ = std::fs::remove_file(path);
            }
            return Err(fault);
        }
        if !is_there {
            made.push(path);
        }
    }
    tell(&format!("volume {volume}"))
}

fn open(args: &VolumeArgs) -> Result<Volume> {
    Ok(Opener::new(&args.targets, &args.open)?.open_volume()?)
}

fn resize(args: &ResizeArgs) -> Result<()> {
    let volume = open(&args.volume)?;
    let geometry = volume.grow(args.size)?;
    volume.close()?;
    tell(&format!(
        "volume {} has {} bytes",
        volume.id(),
        geometry.size()
    ))
}

fn rotate_key(args: &RotateArgs) -> Result<()> {
    let new = KeyFile::read(&args.new_key_file)?;
    let volume = open(&args.volume)?;
    volume.rotate_key(&new)?;
    volume.close()?;
    tell(&format!(
        "volume {}: {} opens it from here on",
        volume.id(),
        args.new_key_file.display()
    ))
}

fn inspect(args: &VolumeArgs) -> Result<VolumeStatus> {
    Ok(Opener::new(&args.targets, &args.open)?.inspect()?)
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
            let mut files = [None; 3];
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

/// Writes a line on standard output.
fn tell(text: &str) -> Result<()> {
    Ok(xgvmi_daemon::print(&format!("{text}\n"))?)
}
