//! Messages with half blocks in parts, for a frame or for memory that the other side reads: no half block is copied on the way.
//! Does no I/O.

use super::wire::{Answer, put_half_head, put_step};
use crate::store::Step;
use xgvmi_daemon::codec::Writer;

/// A call of several steps, without a copy of their half blocks. The answer may go to a slot.
pub(super) fn steps_to_bytes(steps: &[Step<'_>], slot: Option<u16>) -> Vec<u8> {
    let length = |step: &Step<'_>| match step {
        Step::Prepare { half, .. } => 64 + half.data.len(),
        _ => 32,
    };
    let length = 32 + steps.iter().map(length).sum::<usize>();
    let mut bytes = Vec::with_capacity(length);
    if let Some(slot) = slot {
        bytes.push(15);
        bytes.extend(slot.to_le_bytes());
    }
    steps_in_parts(steps, |part| bytes.extend_from_slice(part));
    bytes
}

/// The parts of a call of several steps in their order. No half block is copied.
pub(super) fn steps_in_parts(steps: &[Step<'_>], mut put: impl FnMut(&[u8])) {
    let mut head = Writer::with_capacity(64);
    head.u8(11).u64(steps.len() as u64);
    for step in steps {
        let data = match *step {
            Step::Prepare { block, half, keep } => {
                put_half_head(head.u8(3).u64(block).u64(keep), half);
                &half.data[..]
            }
            step => {
                put_step(&mut head, step);
                &[]
            }
        };
        head = put_and_reuse(head, &mut put);
        put(data);
    }
}

/// Puts the bytes of a writer. Returns an empty one in its memory.
fn put_and_reuse(writer: Writer, put: &mut impl FnMut(&[u8])) -> Writer {
    let bytes = writer.finish();
    put(&bytes);
    Writer::over(bytes, 64)
}

impl Answer {
    /// The parts of the message that answers the call with this number, in their order. No half block is copied.
    pub(super) fn in_parts(&self, call: u64, mut put: impl FnMut(&[u8])) {
        let mut head = Writer::with_capacity(64);
        head.u64(call);
        let answers = match self {
            Self::Steps(answers) => {
                head.u8(12).u64(answers.len() as u64);
                answers
            }
            other => std::slice::from_ref(other),
        };
        for answer in answers {
            let data = match answer {
                Self::Half(half) => {
                    put_half_head(head.u8(3), half);
                    &half.data[..]
                }
                other => {
                    other.put(&mut head);
                    &[]
                }
            };
            head = put_and_reuse(head, &mut put);
            put(data);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::wire::Call;
    use super::super::wire::tests::{answers, half};
    use super::*;

    /// The parts of a message are those of its bytes.
    #[test]
    fn parts_are_the_message() {
        let half = half();
        let steps = [
            Step::Prepare {
                block: 1,
                half: &half,
                keep: 2,
            },
            Step::Commit {
                block: 3,
                generation: 4,
            },
            Step::Fetch {
                block: 5,
                generation: 6,
            },
        ];
        let bytes = steps_to_bytes(&steps, None);
        let call = Call::parse(&bytes).unwrap();
        assert_eq!(call.to_bytes(), bytes);
        let Call::Steps(steps_of_call) = call else {
            panic!("{call:?}");
        };
        let into = Call::parse(&steps_to_bytes(&steps, Some(7)));
        assert_eq!(into, Ok(Call::Into(7, steps_of_call)));
        for answer in answers() {
            let mut bytes = Vec::new();
            answer.in_parts(7, |part| bytes.extend_from_slice(part));
            assert_eq!(bytes, answer.to_bytes(7), "{answer:?}");
        }
    }
}
