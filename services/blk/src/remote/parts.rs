//! Messages with half blocks in parts, for a frame or for memory that the other side reads: no half block is copied on the way.
//! Does no I/O.

use super::wire::{Answer, put_half_head, put_step};
use crate::store::Step;
use xgvmi_daemon::codec::Writer;

/// A half block of fewer bytes is copied: each part costs more than that.
const COPIED: usize = 512;

/// A message whose half blocks are where they were.
#[derive(Debug)]
pub(super) struct Parts<'a> {
    /// What is between half blocks.
    heads: Vec<u8>,
    /// Half blocks, each behind so many bytes of `heads`.
    halves: Vec<(usize, &'a [u8])>,
}

impl<'a> Parts<'a> {
    fn new(
        mut heads: Writer,
        count: usize,
        mut put: impl FnMut(usize, &mut Writer) -> &'a [u8],
    ) -> Self {
        let mut halves = Vec::with_capacity(count);
        for nth in 0..count {
            match put(nth, &mut heads) {
                half if half.len() < COPIED => {
                    heads.raw(half);
                }
                half => halves.push((heads.length(), half)),
            }
        }
        Self {
            heads: heads.finish(),
            halves,
        }
    }

    /// A call of several steps. The answer may go to a slot.
    pub(super) fn of_steps(steps: &[Step<'a>], slot: Option<u16>) -> Self {
        let mut heads = Writer::with_capacity(16 + 48 * steps.len());
        if let Some(slot) = slot {
            heads.u8(15).raw(&slot.to_le_bytes());
        }
        heads.u8(11).u64(steps.len() as u64);
        Self::new(heads, steps.len(), |nth, heads| match steps[nth] {
            Step::Prepare { block, half, keep } => {
                put_half_head(heads.u8(3).u64(block).u64(keep), half);
                &half.data
            }
            step => {
                put_step(heads, step);
                &[]
            }
        })
    }

    /// The message that answers the call with this number.
    pub(super) fn of_answer(answer: &'a Answer, call: u64) -> Self {
        let answers = match answer {
            Answer::Steps(answers) => &answers[..],
            other => std::slice::from_ref(other),
        };
        let mut heads = Writer::with_capacity(64 + 32 * answers.len());
        heads.u64(call);
        if let Answer::Steps(answers) = answer {
            heads.u8(12).u64(answers.len() as u64);
        }
        Self::new(heads, answers.len(), |nth, heads| match &answers[nth] {
            Answer::Half(half) => {
                put_half_head(heads.u8(3), half);
                &half.data
            }
            other => {
                other.put(heads);
                &[]
            }
        })
    }

    /// The parts in their order.
    pub(super) fn all(&self) -> Vec<&[u8]> {
        let mut all = Vec::with_capacity(2 * self.halves.len() + 1);
        let mut from = 0;
        for (to, half) in &self.halves {
            all.extend([&self.heads[from..*to], half]);
            from = *to;
        }
        all.push(&self.heads[from..]);
        all
    }

    #[cfg(test)]
    fn to_bytes(&self) -> Vec<u8> {
        self.all().concat()
    }
}

#[cfg(test)]
mod tests {
    use super::super::wire::Call;
    use super::super::wire::tests::{answers, half};
    use super::*;
    use crate::record::Half;

    /// The parts of a message are those of its bytes.
    #[test]
    fn parts_are_the_message() {
        let long = Half {
            data: vec![7; COPIED].into(),
            ..half()
        };
        let half = half();
        let steps = [
            Step::Prepare {
                block: 9,
                half: &long,
                keep: 2,
            },
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
        let bytes = Parts::of_steps(&steps, None).to_bytes();
        let call = Call::parse(&bytes.clone().into()).unwrap();
        assert_eq!(call.to_bytes(), bytes);
        let Call::Steps(steps_of_call) = call else {
            panic!("{call:?}");
        };
        let parts = Parts::of_steps(&steps, None);
        assert_eq!(parts.all().len(), 3);
        assert_eq!(parts.all()[1].as_ptr(), long.data.as_ptr(), "a copy");
        let into = Call::parse(&Parts::of_steps(&steps, Some(7)).to_bytes().into());
        assert_eq!(into, Ok(Call::Into(7, steps_of_call)));
        for answer in answers() {
            let parts = Parts::of_answer(&answer, 7);
            assert_eq!(parts.to_bytes(), answer.to_bytes(7), "{answer:?}");
        }
    }
}
