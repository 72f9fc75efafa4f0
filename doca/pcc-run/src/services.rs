//! What a program asks of its device: messages, time, counters, and properties of probes.

use pcc_dev::{Service, fxp, limits};
use pcc_lab::algorithm::ProbePriority;

/// Bytes of messages, entries of the trace and refusals that are kept.
const PRINTED_MAX: usize = 1 << 20;
const TRACE_MAX: usize = 4_096;
const REFUSED_MAX: usize = 64;

/// What a program has said.
#[derive(Debug, Clone, Default)]
pub struct Output {
    /// What it has printed, up to 1 MiB.
    pub printed: String,
    /// Bytes that it has printed beyond that.
    pub lost: u64,
    /// The first entries of its trace: format and arguments.
    pub trace: Vec<[u64; 6]>,
    /// What the library has refused, the first lines.
    pub refused: Vec<String>,
    /// The last custom header of probes: flow and words.
    pub header: Option<(u32, Vec<u32>)>,
}

/// The services of one process.
#[derive(Debug, Default)]
pub(crate) struct Services {
    pub(crate) output: Output,
    pub(crate) time_us: u64,
    pub(crate) sent_bytes: u64,
    pub(crate) received_bytes: u64,
    /// Of the event that is handled.
    pub(crate) priority: Option<ProbePriority>,
}

/// Reads the program's memory. False if there is none at the address.
pub(crate) type Read<'a> = &'a mut dyn FnMut(u64, &mut [u8]) -> bool;

impl Services {
    /// Serves a call. None: the number is unknown, or an address is wrong.
    pub(crate) fn serve(
        &mut self,
        number: u64,
        arguments: [u64; 4],
        read: Read<'_>,
    ) -> Option<u64> {
        let [a, b, c, _] = arguments;
        match Service::from_number(number)? {
            Service::Print => {
                let text = text(a, b, read)?;
                let output = &mut self.output;
                if output.printed.len() + text.len() <= PRINTED_MAX {
                    output.printed.push_str(&text);
                } else {
                    output.lost += b;
                }
            }
            Service::Refuse => {
                let text = text(a, b, read)?;
                if self.output.refused.len() < REFUSED_MAX {
                    self.output.refused.push(text);
                }
            }
            Service::Trace => {
                let mut bytes = [0; 48];
                read(a, &mut bytes).then_some(())?;
                let mut words = [0; 6];
                for (word, place) in words.iter_mut().zip(bytes.chunks_exact(8)) {
                    *word = u64::from_le_bytes(place.try_into().ok()?);
                }
                if self.output.trace.len() < TRACE_MAX {
                    self.output.trace.push(words);
                }
            }
            Service::Flush => {}
            Service::Thread => return Some(0),
            Service::Counter => return Some(self.counter(a)),
            Service::Header => {
                let words = usize::try_from(c.min(u64::from(limits::HEADER_WORDS))).ok()?;
                let mut bytes = vec![0; words * 4];
                read(b, &mut bytes).then_some(())?;
                let words = bytes
                    .chunks_exact(4)
                    .filter_map(|word| word.try_into().ok());
                let words = words.map(u32::from_le_bytes).collect();
                self.output.header = Some((u32::try_from(a).ok()?, words));
            }
            Service::Priority => {
                self.priority = Some(match (b, u8::try_from(c)) {
                    (0, _) => ProbePriority::Flow,
                    (_, Ok(priority)) if priority < 8 => ProbePriority::Own(priority),
                    _ => return Some(1),
                });
            }
            Service::Time => return Some(self.time_us),
            Service::Intrinsic => {
                return fxp::by_number(a, u32::try_from(b).ok()?).map(u64::from);
            }
        }
        Some(0)
    }

    /// A counter by its number. Those of other ports are 0.
    fn counter(&self, number: u64) -> u64 {
        match (number & 0xf, number >> 4 & 0xf) {
            (0, 1) => self.received_bytes,
            (0, 2) => self.sent_bytes,
            _ => 0,
        }
    }
}

fn text(address: u64, bytes: u64, read: Read<'_>) -> Option<String> {
    let bytes = usize::try_from(bytes.min(u64::from(limits::TEXT_BYTES))).ok()?;
    let mut text = vec![0; bytes];
    read(address, &mut text).then(|| String::from_utf8_lossy(&text).into_owned())
}
