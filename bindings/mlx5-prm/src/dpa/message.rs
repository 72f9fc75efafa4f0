//! Lines of text from threads.

/// What an answer has before the text of each message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MessageHead {
    /// Number of the thread.
    pub thread: u32,
    /// The stream that the program names.
    pub stream: i32,
    /// The level that the program names.
    pub level: u8,
    /// Bytes of the text, which follows.
    pub bytes: u16,
}

impl MessageHead {
    /// Bytes in an answer.
    pub const BYTES: usize = 12;

    /// The bytes of an answer.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let [t0, t1, t2, t3] = self.thread.to_be_bytes();
        let [s0, s1, s2, s3] = self.stream.to_be_bytes();
        let [b0, b1] = self.bytes.to_be_bytes();
        [t0, t1, t2, t3, s0, s1, s2, s3, self.level, 0, b0, b1]
    }

    /// The first message of an answer with its text, and what follows; `None` behind the last one.
    #[must_use]
    pub fn split(answer: &[u8]) -> Option<(Self, &[u8], &[u8])> {
        let (head, rest) = answer.split_first_chunk::<{ Self::BYTES }>()?;
        let [t0, t1, t2, t3, s0, s1, s2, s3, level, _, b0, b1] = *head;
        let head = Self {
            thread: u32::from_be_bytes([t0, t1, t2, t3]),
            stream: i32::from_be_bytes([s0, s1, s2, s3]),
            level,
            bytes: u16::from_be_bytes([b0, b1]),
        };
        let (text, rest) = rest.split_at_checked(head.bytes.into())?;
        Some((head, text, rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_as_they_were_written() {
        let head = MessageHead {
            thread: 258,
            stream: -2,
            level: 60,
            bytes: 3,
        };
        let mut answer = [0; 2 * MessageHead::BYTES + 3];
        answer[..12].copy_from_slice(&head.to_bytes());
        answer[12..15].copy_from_slice(b"one");
        answer[15..].copy_from_slice(&MessageHead { bytes: 1, ..head }.to_bytes());
        let (first, text, rest) = MessageHead::split(&answer).expect("a message");
        assert_eq!((first, text), (head, &b"one"[..]));
        assert_eq!(MessageHead::split(rest), None, "its text is cut");
    }
}
