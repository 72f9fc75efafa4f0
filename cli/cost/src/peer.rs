//! The DPU of a measurement: a function of this machine, or a `cost_table --serve` on the DPU itself.
//!
//! The protocol uses lines over TCP. The server sends [`GREETING`]. For each `alias GVMI MKEY ACCESS_KEY`
//! (decimal, decimal, 64 hexadecimal digits) it creates the alias, destroys it, and answers `ok CREATION_NS
//! DESTRUCTION_NS` or `error TEXT`.

use anyhow::{Context as _, Result, bail, ensure};
use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream, ToSocketAddrs as _};
use std::sync::Arc;
use std::time::{Duration, Instant};
use xgvmi_pool::mlx5::{Function, Mlx5Device, Mlx5Options};
use xgvmi_pool::{AccessKey, AliasDevice as _, Gvmi, Mkey, OwnerUuid, RemoteKey};

/// First line of the server. The number is the protocol version.
const GREETING: &str = "cost_table 1";
/// Maximum length of a line. Longer error texts are truncated.
const LINE_MAX: usize = 512;
/// Time limit for a line of the other side. Commands take less than a millisecond; the host's steps between
/// them take seconds for the largest memory.
const PATIENCE: Duration = Duration::from_secs(60);

/// Something that makes and destroys aliases on a DPU.
pub trait AliasTimes: std::fmt::Debug {
    /// Makes an alias of `key` and destroys it. Returns both times, in nanoseconds, as the DPU measured them.
    ///
    /// # Errors
    /// If the DPU refuses either, or the connection to it ends.
    fn alias_ns(&mut self, key: &RemoteKey, access: &AccessKey) -> Result<(u64, u64)>;
}

/// The DPU of a measurement.
#[derive(Debug)]
pub enum Dpu<'d> {
    /// A function of this machine.
    Local(Arc<Mlx5Device>),
    /// A `cost_table --serve` on another machine.
    Remote(Line),
    /// Anything else.
    Other(&'d mut dyn AliasTimes),
}

impl Dpu<'_> {
    /// A function of this machine.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn local(function: &Function) -> Result<Self> {
        Ok(Self::Local(function.device(Mlx5Options::default())?))
    }

    /// The server at `HOST:PORT`.
    pub(super) fn connect(address: &str) -> Result<Self> {
        let place = address
            .to_socket_addrs()
            .with_context(|| format!("'{address}' is no HOST:PORT"))?
            .next()
            .with_context(|| format!("'{address}' has no address"))?;
        let stream = TcpStream::connect_timeout(&place, PATIENCE)
            .with_context(|| format!("connecting to `cost_table --serve` at {address}"))?;
        let mut line = Line::new(stream)?;
        let greeting = line.read()?;
        ensure!(
            greeting.as_deref() == Some(GREETING),
            "{address} answers {greeting:?}: that is not this version's `cost_table --serve`"
        );
        Ok(Self::Remote(line))
    }

    /// Creates an alias and destroys it. The DPU measures both times, in nanoseconds.
    pub(super) fn alias(&mut self, key: &RemoteKey, access: &AccessKey) -> Result<(u64, u64)> {
        match self {
            Self::Local(device) => make(device, key, access),
            Self::Other(other) => other.alias_ns(key, access),
            Self::Remote(line) => {
                line.write(&request(key, access))?;
                let answer = line.read()?.context("the DPU's `cost_table` has gone")?;
                parse_answer(&answer)
            }
        }
    }
}

fn make(device: &Mlx5Device, key: &RemoteKey, access: &AccessKey) -> Result<(u64, u64)> {
    let ns = |start: Instant| u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let start = Instant::now();
    let alias = device.create_alias(key, access)?;
    let created = ns(start);
    let start = Instant::now();
    device.destroy_alias(alias.index)?;
    Ok((created, ns(start)))
}

/// Serves one `cost_table` at an address until its connection ends. Returns a summary as text.
///
/// # Errors
/// If the function or the address is unusable, or the connection breaks.
pub fn serve(function: &Function, address: &str) -> Result<String> {
    let device = function.device(Mlx5Options::default())?;
    let listener = TcpListener::bind(address).with_context(|| format!("listening at {address}"))?;
    eprintln!(
        "serving aliases of {} at {}",
        function.name(),
        listener.local_addr()?
    );
    let (stream, peer) = listener.accept()?;
    let mut line = Line::new(stream)?;
    line.write(GREETING)?;
    let mut served = 0_u64;
    while let Some(text) = line.read()? {
        let done = parse_request(&text).and_then(|(key, access)| make(&device, &key, &access));
        let answer = match done {
            Ok((created, destroyed)) => {
                served += 1;
                format!("ok {created} {destroyed}")
            }
            // One line, whatever the text.
            Err(error) => format!("error {error:#}").replace('\n', " "),
        };
        line.write(&answer)?;
    }
    Ok(format!("{served} aliases made and destroyed for {peer}\n"))
}

fn request(key: &RemoteKey, access: &AccessKey) -> String {
    let mut text = format!("alias {} {} ", key.gvmi.get(), key.mkey.raw());
    for byte in access.as_bytes() {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

fn parse_request(text: &str) -> Result<(RemoteKey, AccessKey)> {
    let words: Vec<&str> = text.split(' ').collect();
    let ["alias", gvmi, mkey, access] = words.as_slice() else {
        bail!("'{text}' is not 'alias GVMI MKEY ACCESS_KEY'");
    };
    let key = RemoteKey {
        gvmi: Gvmi::new(gvmi.parse().context("GVMI")?),
        mkey: Mkey::from_raw(mkey.parse().context("MKEY")?),
        owner: OwnerUuid::UNKNOWN,
    };
    let mut bytes = [0; AccessKey::BYTES];
    ensure!(
        access.len() == 2 * bytes.len() && access.is_ascii(),
        "ACCESS_KEY has not {} digits",
        2 * bytes.len()
    );
    for (byte, digits) in bytes.iter_mut().zip(access.as_bytes().chunks(2)) {
        let digits = std::str::from_utf8(digits).context("ACCESS_KEY")?;
        *byte = u8::from_str_radix(digits, 16).context("ACCESS_KEY")?;
    }
    Ok((key, AccessKey::new(bytes)))
}

fn parse_answer(text: &str) -> Result<(u64, u64)> {
    let words: Vec<&str> = text.split(' ').collect();
    match words.as_slice() {
        ["ok", created, destroyed] => Ok((created.parse()?, destroyed.parse()?)),
        ["error", ..] => bail!("the DPU: {}", text.trim_start_matches("error ")),
        _ => bail!("the DPU answers '{text}'"),
    }
}

/// Lines of bounded length over a connection with time limits.
#[derive(Debug)]
pub struct Line {
    reader: BufReader<TcpStream>,
}

impl Line {
    fn new(stream: TcpStream) -> Result<Self> {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        Ok(Self {
            reader: BufReader::new(stream),
        })
    }

    fn write(&mut self, text: &str) -> Result<()> {
        let mut line: String = text.chars().take(LINE_MAX / 4).collect();
        line.push('\n');
        let stream = self.reader.get_mut();
        stream
            .write_all(line.as_bytes())
            .context("to the other side")
    }

    /// The next line, or `None` after the other side has closed.
    fn read(&mut self) -> Result<Option<String>> {
        let mut line = String::new();
        let mut bounded = (&mut self.reader).take(LINE_MAX as u64);
        bounded
            .read_line(&mut line)
            .context("from the other side")?;
        match line.strip_suffix('\n') {
            Some(line) => Ok(Some(line.to_owned())),
            None if line.is_empty() => Ok(None),
            None => bail!(
                "the other side sent {} bytes without an end of line",
                line.len()
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_as_they_are_written() {
        let key = RemoteKey {
            gvmi: Gvmi::new(7),
            mkey: Mkey::from_raw(0x1234_5600),
            owner: OwnerUuid::UNKNOWN,
        };
        let text = request(&key, &AccessKey::UCX_COMPATIBLE);
        assert!(text.len() < LINE_MAX / 4, "{} characters", text.len());
        let (again, access) = parse_request(&text).expect("our own");
        assert_eq!(again, key);
        assert_eq!(access.as_bytes(), AccessKey::UCX_COMPATIBLE.as_bytes());
    }

    #[test]
    fn what_is_no_request_is_refused() {
        let check = |text: &str| {
            assert!(parse_request(text).is_err(), "{text}");
        };
        check("");
        check("alias 1 2");
        check("alias 70000 2 00");
        check("alias 1 2 00");
        check(&format!("alias 1 2 {}", "é".repeat(32)));
        check(&format!("alias 1 2 {}", "x".repeat(64)));
        check(&format!("alias 1 2 {} 3", "0".repeat(64)));
    }

    #[test]
    fn answers_are_read() {
        let check = |text: &str, expect: Option<(u64, u64)>| {
            assert_eq!(parse_answer(text).ok(), expect, "{text}");
        };
        check("ok 1 2", Some((1, 2)));
        check("ok 1", None);
        check("error it is gone", None);
        check("", None);
    }
}
