//! Messages between a process and the DPA's runner, which are programs of the same build.

use std::io::{self, Read, Write};

/// Most bytes of a command, and of its answer.
const BYTES_MAX: u32 = 1 << 20;
const REQUEST_BYTES: usize = 36;
const ANSWER_BYTES: usize = 20;

/// What a process asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Kind {
    /// This connection keeps the objects of its context.
    Hello = 1,
    Create,
    Modify,
    Query,
    Destroy,
    /// The channel and the cookie of a thread's events.
    Events,
    /// All processes and threads, as JSON. Of any process.
    Report,
    /// A debugger: requests and answers are JSON.
    Debug,
    /// Part of a process's program, from the offset in the input on.
    Program,
}

/// What the environment of a program wants for its processes of the DPA, in [`Request::options`].
pub(crate) mod option {
    /// Threads wait for a debugger.
    pub(crate) const HOLD: u32 = 1;
    /// A fault writes a core file to the program's working directory.
    pub(crate) const CORE: u32 = 2;
    /// Accesses that a weakly ordered memory may not order are reported.
    pub(crate) const WEAK: u32 = 4;

    /// First bit of the seconds after which a function is killed; 0 for the DPA's own limit.
    pub(crate) const LIMIT_AT: u32 = 8;
    /// The DPA's own limit of seconds.
    pub(crate) const LIMIT_SECONDS: u32 = 120;

    /// The seconds of options.
    pub(crate) const fn limit(options: u32) -> u32 {
        match options >> LIMIT_AT {
            0 => LIMIT_SECONDS,
            own if own < LIMIT_SECONDS => own,
            _ => LIMIT_SECONDS,
        }
    }

    /// The names.
    pub(crate) const NAMES: [(&str, u32); 3] = [("hold", HOLD), ("core", CORE), ("weak", WEAK)];
}

impl Kind {
    const ALL: [Self; 9] = [
        Self::Hello,
        Self::Create,
        Self::Modify,
        Self::Query,
        Self::Destroy,
        Self::Events,
        Self::Report,
        Self::Debug,
        Self::Program,
    ];
}

/// A command, without its mailbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) kind: Kind,
    /// The caller's number on the device.
    pub(crate) process: u32,
    pub(crate) context: u32,
    pub(crate) function: u32,
    /// Number of the object, except for a creation.
    pub(crate) object: u32,
    /// Bytes that the answer may have.
    pub(crate) capacity: u32,
    pub(crate) pid: i32,
    /// See [`option`].
    pub(crate) options: u32,
}

/// The answer of a command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Answer {
    /// Status and syndrome of the device.
    pub(crate) status: u8,
    pub(crate) syndrome: u32,
    /// An error of the kernel, or 0.
    pub(crate) errno: i32,
    /// Number of a created object.
    pub(crate) object: u32,
    pub(crate) output: Vec<u8>,
}

fn words<const N: usize>(words: [u32; N]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Reads words and the bytes behind them, whose number is the last word.
fn receive<const N: usize, const BYTES: usize>(
    mut stream: impl Read,
) -> io::Result<([u32; N], Vec<u8>)> {
    let mut head = [0; BYTES];
    stream.read_exact(&mut head)?;
    let mut words = [0; N];
    for (word, bytes) in words.iter_mut().zip(head.as_chunks::<4>().0) {
        *word = u32::from_le_bytes(*bytes);
    }
    let length = words.last().copied().unwrap_or_default();
    if length > BYTES_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = vec![0; length as usize];
    stream.read_exact(&mut bytes)?;
    Ok((words, bytes))
}

fn length(bytes: &[u8]) -> io::Result<u32> {
    let length = u32::try_from(bytes.len()).ok();
    length
        .filter(|length| *length <= BYTES_MAX)
        .ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

impl Request {
    pub(crate) fn send(&self, mut stream: impl Write, input: &[u8]) -> io::Result<()> {
        let mut message = words([
            self.kind as u32,
            self.process,
            self.context,
            self.function,
            self.object,
            self.capacity,
            self.pid.cast_unsigned(),
            self.options,
            length(input)?,
        ]);
        message.extend_from_slice(input);
        stream.write_all(&message)
    }

    pub(crate) fn receive(stream: impl Read) -> io::Result<(Self, Vec<u8>)> {
        let (
            [
                kind,
                process,
                context,
                function,
                object,
                capacity,
                pid,
                options,
                _,
            ],
            input,
        ) = receive::<9, REQUEST_BYTES>(stream)?;
        let kind = Kind::ALL.into_iter().find(|known| *known as u32 == kind);
        let request = Self {
            kind: kind.ok_or(io::ErrorKind::InvalidData)?,
            process,
            context,
            function,
            object,
            capacity,
            pid: pid.cast_signed(),
            options,
        };
        Ok((request, input))
    }
}

impl Answer {
    pub(crate) fn send(&self, mut stream: impl Write) -> io::Result<()> {
        let mut message = words([
            self.status.into(),
            self.syndrome,
            self.errno.cast_unsigned(),
            self.object,
            length(&self.output)?,
        ]);
        message.extend_from_slice(&self.output);
        stream.write_all(&message)
    }

    pub(crate) fn receive(stream: impl Read) -> io::Result<Self> {
        let ([status, syndrome, errno, object, _], output) = receive::<5, ANSWER_BYTES>(stream)?;
        Ok(Self {
            status: u8::try_from(status).map_err(|_| io::ErrorKind::InvalidData)?,
            syndrome,
            errno: errno.cast_signed(),
            object,
            output,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_as_they_were() {
        let request = Request {
            kind: Kind::Query,
            process: 3,
            context: 9,
            function: 1,
            object: 77,
            capacity: 4096,
            pid: -5,
            options: option::WEAK,
        };
        let mut bytes = Vec::new();
        request.send(&mut bytes, b"mailbox").unwrap();
        assert_eq!(
            Request::receive(&bytes[..]).unwrap(),
            (request, b"mailbox".to_vec())
        );
        let answer = Answer {
            status: 3,
            syndrome: 4,
            errno: libc::EIO,
            object: 5,
            output: vec![1, 2],
        };
        let mut bytes = Vec::new();
        answer.send(&mut bytes).unwrap();
        assert_eq!(Answer::receive(&bytes[..]).unwrap(), answer);
    }

    #[test]
    fn damaged_messages_are_refused() {
        let mut bytes = words([Kind::Hello as u32, 0, 0, 0, 0, 0, 0, 0, BYTES_MAX + 1]);
        assert!(Request::receive(&bytes[..]).is_err(), "too long");
        bytes[32..].copy_from_slice(&1u32.to_le_bytes());
        assert!(Request::receive(&bytes[..]).is_err(), "cut");
        bytes[0] = 99;
        bytes.push(0);
        assert!(Request::receive(&bytes[..]).is_err(), "unknown kind");
    }
}
