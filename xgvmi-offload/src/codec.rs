//! Bytes in and out of the active messages: little endian, every length checked before it is believed.

/// Why a message was not understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a {message} of {length} bytes is {fault}")]
pub(super) struct BadMessage {
    pub(super) message: &'static str,
    pub(super) length: usize,
    pub(super) fault: &'static str,
}

/// Builds a message.
#[derive(Debug, Default)]
pub(super) struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    pub(super) fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes.extend_from_slice(&value.to_le_bytes());
        self
    }

    pub(super) fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes.extend_from_slice(&value.to_le_bytes());
        self
    }

    /// A length (64 bits), then the bytes.
    pub(super) fn blob(&mut self, bytes: &[u8]) -> &mut Self {
        self.u64(bytes.len() as u64);
        self.bytes.extend_from_slice(bytes);
        self
    }

    /// A count, then each item as `write` has it.
    pub(super) fn list<T>(&mut self, items: &[T], write: impl Fn(&mut Self, &T)) -> &mut Self {
        self.u64(items.len() as u64);
        for item in items {
            write(self, item);
        }
        self
    }

    pub(super) fn finish(self) -> Vec<u8> {
        self.bytes
    }
}

/// Takes a message apart.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    message: &'static str,
    length: usize,
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// `message` names it in errors.
    pub(super) fn new(message: &'static str, bytes: &'a [u8]) -> Self {
        Self {
            message,
            length: bytes.len(),
            rest: bytes,
        }
    }

    pub(super) fn u32(&mut self) -> Result<u32, BadMessage> {
        let (word, rest) = self.rest.split_first_chunk().ok_or(self.fault(SHORT))?;
        self.rest = rest;
        Ok(u32::from_le_bytes(*word))
    }

    pub(super) fn u64(&mut self) -> Result<u64, BadMessage> {
        let (word, rest) = self.rest.split_first_chunk().ok_or(self.fault(SHORT))?;
        self.rest = rest;
        Ok(u64::from_le_bytes(*word))
    }

    pub(super) fn blob(&mut self) -> Result<&'a [u8], BadMessage> {
        let length = usize::try_from(self.u64()?).map_err(|_| self.fault(SHORT))?;
        let (blob, rest) = self
            .rest
            .split_at_checked(length)
            .ok_or(self.fault(SHORT))?;
        self.rest = rest;
        Ok(blob)
    }

    /// A list of items that take `size` bytes each at the least, so that no count makes us reserve more than came.
    pub(super) fn list<T>(
        &mut self,
        size: usize,
        mut read: impl FnMut(&mut Self) -> Result<T, BadMessage>,
    ) -> Result<Vec<T>, BadMessage> {
        let count = usize::try_from(self.u64()?).map_err(|_| self.fault(SHORT))?;
        if count > self.rest.len() / size.max(1) {
            return Err(self.fault(SHORT));
        }
        (0..count).map(|_| read(self)).collect()
    }

    /// Nothing may be left.
    pub(super) fn end(self) -> Result<(), BadMessage> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(self.fault("too long"))
        }
    }

    pub(super) fn fault(&self, fault: &'static str) -> BadMessage {
        BadMessage {
            message: self.message,
            length: self.length,
            fault,
        }
    }
}

const SHORT: &str = "too short";

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Vec<u8> {
        let mut writer = Writer::default();
        writer.u32(7).u64(u64::MAX).blob(b"abc");
        writer.list(&[1u32, 2], |writer, item| {
            writer.u32(*item);
        });
        writer.finish()
    }

    fn read(bytes: &[u8]) -> Result<(u32, u64, Vec<u8>, Vec<u32>), BadMessage> {
        let mut reader = Reader::new("SAMPLE", bytes);
        let read = (
            reader.u32()?,
            reader.u64()?,
            reader.blob()?.to_vec(),
            reader.list(4, Reader::u32)?,
        );
        reader.end()?;
        Ok(read)
    }

    #[test]
    fn what_was_written_is_read() {
        let expect = (7, u64::MAX, b"abc".to_vec(), vec![1, 2]);
        assert_eq!(read(&sample()), Ok(expect));
    }

    #[test]
    fn every_other_length_is_refused() {
        let bytes = sample();
        for length in 0..bytes.len() {
            let error = read(&bytes[..length]).unwrap_err();
            assert_eq!(error.fault, SHORT, "{length} bytes");
        }
        let longer = [&bytes[..], &[0]].concat();
        assert_eq!(
            read(&longer).unwrap_err().to_string(),
            format!("a SAMPLE of {} bytes is too long", longer.len())
        );
    }

    #[test]
    fn no_count_is_believed() {
        for count in [3, u64::from(u32::MAX), u64::MAX] {
            let mut writer = Writer::default();
            writer.u64(count).u32(1).u32(2);
            let bytes = writer.finish();
            assert!(Reader::new("X", &bytes).list(4, Reader::u32).is_err());
            if count > 8 {
                assert!(Reader::new("X", &bytes).blob().is_err());
            }
        }
    }
}
