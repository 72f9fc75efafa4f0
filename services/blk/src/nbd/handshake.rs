//! The handshake: options until the client chooses the export.

use super::export::{Export, Exports};
use super::wire::{
    BASE_ALLOCATION, GREETING, OPTION_HEADER, OPTION_MAX, OPTION_REPLY_MAGIC, handshake_flag, info,
    info_request, meta_request, option, option_header, reply,
};
use std::io::{self, Read, Write};

/// Number of the context `base:allocation` in replies.
pub(super) const CONTEXT: u32 = 1;
/// Most options of a connection.
const OPTIONS_MAX: usize = 1024;

const NO_TLS: &str = "it does not use TLS, which is required";

/// What a client has chosen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Chosen {
    /// Replies have chunks.
    pub(super) structured: bool,
    /// BLOCK_STATUS is possible.
    pub(super) allocation: bool,
}

/// How far TLS has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Security {
    /// The server has no certificate.
    Absent,
    /// The client may ask for TLS.
    Offered,
    /// The client must ask for TLS.
    Required,
    /// The connection has TLS.
    Active,
}

/// Takes the place of a client that chooses the export, or tells why there is none.
pub(super) type Admit<'a> = &'a dyn Fn() -> io::Result<()>;

/// The end of the options.
pub(super) enum Shaken {
    /// The client leaves without choosing the export.
    Left,
    /// The client starts TLS next, then sends options again.
    StartTls,
    /// Requests to this export follow.
    Chosen(Chosen, Export),
}

/// Greets the client. True if it wants no zeros after the old form of choosing an export.
pub(super) fn greet<S: Read + Write>(stream: &mut S) -> io::Result<bool> {
    let ours = handshake_flag::FIXED | handshake_flag::NO_ZEROES;
    stream.write_all(&[&GREETING[..], &ours.to_be_bytes()].concat())?;
    let mut flags = [0; 4];
    stream.read_exact(&mut flags)?;
    let flags = u32::from_be_bytes(flags);
    if flags & !u32::from(ours) != 0 || flags & u32::from(handshake_flag::FIXED) == 0 {
        return Err(broken(
            "the client has other handshake flags than fixed newstyle",
        ));
    }
    Ok(flags & u32::from(handshake_flag::NO_ZEROES) != 0)
}

/// Answers options until the client has chosen, starts TLS, or leaves. What was negotiated before TLS does not count.
pub(super) fn options<S: Read + Write>(
    stream: &mut S,
    exports: &Exports,
    (security, no_zeroes): (Security, bool),
    admit: Admit<'_>,
) -> io::Result<Shaken> {
    let mut chosen = Chosen::default();
    let mut denied = false;
    for _ in 0..OPTIONS_MAX {
        let mut header = [0; OPTION_HEADER];
        match stream.read_exact(&mut header) {
            Err(error) if denied && error.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(broken(NO_TLS));
            }
            other => other?,
        }
        let header = option_header(&header).map_err(|error| broken(error.0))?;
        if header.length > OPTION_MAX {
            let text = "the data of an option has at most 65536 bytes";
            answer(stream, header.option, reply::ERR_TOO_BIG, text.as_bytes())?;
            return Err(broken(text));
        }
        let mut data = vec![0; header.length as usize];
        stream.read_exact(&mut data)?;
        match header.option {
            option::ABORT => {
                // The client may be gone already.
                let _ = answer(stream, header.option, reply::ACK, &[]);
                return if denied {
                    Err(broken(NO_TLS))
                } else {
                    Ok(Shaken::Left)
                };
            }
            option::STARTTLS => {
                if start_tls(stream, security, &data)? {
                    return Ok(Shaken::StartTls);
                }
            }
            // As below.
            option::EXPORT_NAME if security == Security::Required => {
                return Err(broken(NO_TLS));
            }
            option if security == Security::Required => {
                let text = b"this server requires TLS";
                answer(stream, option, reply::ERR_TLS_REQD, text)?;
                denied = true;
            }
            option::EXPORT_NAME => {
                let name = std::str::from_utf8(&data);
                let name =
                    name.map_err(|_| broken("the client wants an export that there is not"))?;
                let export = exports
                    .find(name)
                    .map_err(|(_, text)| io::Error::other(text))?;
                // This option has no reply that could be an error.
                admit()?;
                let mut answer = [
                    &export.size().to_be_bytes()[..],
                    &export.flags().to_be_bytes(),
                ]
                .concat();
                answer.resize(if no_zeroes { 10 } else { 134 }, 0);
                stream.write_all(&answer)?;
                return Ok(Shaken::Chosen(chosen, export));
            }
            option => {
                let request = (option, &data[..]);
                if let Some(export) = negotiate(stream, exports, request, (&mut chosen, admit))? {
                    return Ok(Shaken::Chosen(chosen, export));
                }
            }
        }
    }
    Err(broken("the client sends too many options"))
}

/// Answers STARTTLS. True if TLS starts.
fn start_tls<S: Write>(stream: &mut S, security: Security, data: &[u8]) -> io::Result<bool> {
    let (kind, text): (u32, &[u8]) = match security {
        Security::Active => (reply::ERR_INVALID, b"the connection has TLS already"),
        _ if !data.is_empty() => (reply::ERR_INVALID, b"this option has no data"),
        Security::Absent => (reply::ERR_POLICY, b"this server has no certificate for TLS"),
        Security::Offered | Security::Required => (reply::ACK, &[]),
    };
    answer(stream, option::STARTTLS, kind, text)?;
    Ok(kind == reply::ACK)
}

/// Answers an option. Returns the export that the client has chosen by it.
fn negotiate<S: Write>(
    stream: &mut S,
    exports: &Exports,
    (option, data): (u32, &[u8]),
    (chosen, admit): (&mut Chosen, Admit<'_>),
) -> io::Result<Option<Export>> {
    match option {
        option::LIST | option::STRUCTURED_REPLY if !data.is_empty() => {
            answer(
                stream,
                option,
                reply::ERR_INVALID,
                b"this option has no data",
            )?;
        }
        option::LIST => {
            for name in exports.names() {
                let data = [&length(name.len()), name.as_bytes()].concat();
                answer(stream, option, reply::SERVER, &data)?;
            }
            answer(stream, option, reply::ACK, &[])?;
        }
        option::STRUCTURED_REPLY => {
            chosen.structured = true;
            answer(stream, option, reply::ACK, &[])?;
        }
        option::INFO | option::GO => return describe(stream, exports, (option, data), admit),
        option::LIST_META_CONTEXT | option::SET_META_CONTEXT => {
            contexts(stream, exports, (option, data), chosen)?
        }
        _ => answer(
            stream,
            option,
            reply::ERR_UNSUP,
            b"this server does not have the option",
        )?,
    }
    Ok(None)
}

/// Answers INFO and GO. Returns the export if GO was successful.
fn describe<S: Write>(
    stream: &mut S,
    exports: &Exports,
    (option, data): (u32, &[u8]),
    admit: Admit<'_>,
) -> io::Result<Option<Export>> {
    let Some(request) = info_request(data) else {
        answer(
            stream,
            option,
            reply::ERR_INVALID,
            b"the data of the option is malformed",
        )?;
        return Ok(None);
    };
    let export = match exports.find(request.name) {
        Ok(export) => export,
        Err((kind, text)) => {
            answer(stream, option, kind, text.as_bytes())?;
            return Ok(None);
        }
    };
    if option == option::GO
        && let Err(error) = admit()
    {
        let text = error.to_string();
        answer(stream, option, reply::ERR_POLICY, text.as_bytes())?;
        return Err(error);
    }
    let mut tell = |kind: u16, data: &[u8]| {
        let data = [&kind.to_be_bytes(), data].concat();
        answer(stream, option, reply::INFO, &data)
    };
    let sizes = export.block_sizes().map(u32::to_be_bytes).concat();
    tell(
        info::EXPORT,
        &[
            &export.size().to_be_bytes()[..],
            &export.flags().to_be_bytes(),
        ]
        .concat(),
    )?;
    tell(info::BLOCK_SIZE, &sizes)?;
    if request.kinds.contains(&info::NAME) {
        tell(info::NAME, export.name().as_bytes())?;
    }
    if request.kinds.contains(&info::DESCRIPTION) {
        tell(info::DESCRIPTION, export.description().as_bytes())?;
    }
    answer(stream, option, reply::ACK, &[])?;
    Ok((option == option::GO).then_some(export))
}

/// Answers LIST_META_CONTEXT and SET_META_CONTEXT.
fn contexts<S: Write>(
    stream: &mut S,
    exports: &Exports,
    (option, data): (u32, &[u8]),
    chosen: &mut Chosen,
) -> io::Result<()> {
    let Some(request) = meta_request(data) else {
        return answer(
            stream,
            option,
            reply::ERR_INVALID,
            b"the data of the option is malformed",
        );
    };
    if !chosen.structured {
        return answer(
            stream,
            option,
            reply::ERR_INVALID,
            b"negotiate structured replies first",
        );
    }
    if let Err((kind, text)) = exports.find(request.name) {
        return answer(stream, option, kind, text.as_bytes());
    }
    let sets = option == option::SET_META_CONTEXT;
    // A list without queries asks for everything, a set without queries for nothing. A namespace alone is for lists.
    let wanted = request
        .queries
        .iter()
        .any(|query| *query == BASE_ALLOCATION || (!sets && *query == "base:"));
    let wanted = wanted || (!sets && request.queries.is_empty());
    if sets {
        chosen.allocation = wanted;
    }
    if wanted {
        let number = if sets { CONTEXT } else { 0 };
        let data = [&number.to_be_bytes(), BASE_ALLOCATION.as_bytes()].concat();
        answer(stream, option, reply::META_CONTEXT, &data)?;
    }
    answer(stream, option, reply::ACK, &[])
}

fn answer<S: Write>(stream: &mut S, option: u32, reply: u32, data: &[u8]) -> io::Result<()> {
    let header = [
        &OPTION_REPLY_MAGIC.to_be_bytes()[..],
        &option.to_be_bytes(),
        &reply.to_be_bytes(),
        &length(data.len()),
    ];
    stream.write_all(&[&header.concat(), data].concat())
}

/// A length of at most [`OPTION_MAX`].
fn length(bytes: usize) -> [u8; 4] {
    u32::try_from(bytes).unwrap_or(u32::MAX).to_be_bytes()
}

pub(super) fn broken(text: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}
