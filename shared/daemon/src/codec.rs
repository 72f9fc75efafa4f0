//! Serializes messages: little endian. The reader checks every length before use.

/// A message that is malformed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a {message} of {length} bytes is {fault}")]
pub struct BadMessage {
    /// Name of the message.
    pub message: &'static str,
    /// Length of the message in bytes.
    pub length: usize,
    /// The defect.
    pub fault: &'static str,
}

/// Builds a message.
#[derive(Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// A writer that holds up to `bytes` without reallocation.
    #[inline]
    #[must_use]
    pub fn with_capacity(bytes: usize) -> Self {
        Self {
            bytes: Vec::with_capacity(bytes),
        }
    }

    /// A writer in the memory of an earlier message, which holds up to `bytes` without reallocation.
    #[inline]
    #[must_use]
    pub fn over(mut memory: Vec<u8>, bytes: usize) -> Self {
        memory.clear();
        memory.reserve(bytes);
        Self { bytes: memory }
    }

    /// Bytes of the message so far.
    #[inline]
    #[must_use]
    pub fn length(&self) -> usize {
        self.bytes.len()
    }

    /// Appends a byte.
    #[inline]
    pub fn u8(&mut self, value: u8) -> &mut Self {
        self.bytes.push(value);
        self
    }

    /// Appends bytes without their length.
    #[inline]
    pub fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(bytes);
        self
    }

    /// Appends a number.
    #[inline]
    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes.extend_from_slice(&value.to_le_bytes());
        self
    }

    /// Appends a number.
    #[inline]
    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes.extend_from_slice(&value.to_le_bytes());
        self
    }

    /// Appends a number in as few bytes as it needs: seven bits per byte, the low ones first.
    #[inline]
    pub fn varint(&mut self, value: u64) -> &mut Self {
        put_varint(&mut self.bytes, value);
        self
    }

    /// Appends a length (64 bits), then the bytes.
    #[inline]
    pub fn blob(&mut self, bytes: &[u8]) -> &mut Self {
        self.u64(bytes.len() as u64);
        self.bytes.extend_from_slice(bytes);
        self
    }

    /// Appends a count, then each item as `write` serializes it.
    pub fn list<T>(&mut self, items: &[T], write: impl Fn(&mut Self, &T)) -> &mut Self {
        self.u64(items.len() as u64);
        for item in items {
            write(self, item);
        }
        self
    }

    /// Appends a count, then a record of `N` bytes for each item.
    #[inline]
    pub fn records<const N: usize, T>(
        &mut self,
        items: &[T],
        write: impl Fn(&T) -> [u8; N],
    ) -> &mut Self {
        self.u64(items.len() as u64);
        self.bytes.reserve(items.len() * N);
        for item in items {
            self.bytes.extend_from_slice(&write(item));
        }
        self
    }

    /// Returns the message.
    #[inline]
    #[must_use]
    pub fn finish(self) -> Vec<u8> {
        self.bytes
    }
}

/// Appends a number as [`Writer::varint`] does.
#[inline]
pub fn put_varint(bytes: &mut Vec<u8>, value: u64) {
    if value < 0x80 {
        return bytes.push(value.to_le_bytes()[0]);
    }
    if value >> VARINT_WORD != 0 {
        return put_long_varint(bytes, value);
    }
    // Seven bits per byte of a word.
    let word = (value & 0xfff_ffff) | (value & 0xff_ffff_f000_0000) << 4;
    let word = (word & 0x3fff_0000_3fff) | (word & 0xfff_c000_0fff_c000) << 2;
    let word = (word & 0x7f_007f_007f_007f) | (word & 0x3f80_3f80_3f80_3f80) << 1;
    let length = (64 - word.leading_zeros()).div_ceil(8);
    let more = 0x8080_8080_8080_8080 & ((1 << (8 * (length - 1))) - 1);
    bytes.extend_from_slice(&(word | more).to_le_bytes());
    bytes.truncate(bytes.len() - 8 + length as usize);
}

/// Bits of a number whose bytes fit in a word.
const VARINT_WORD: u32 = 56;

fn put_long_varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value > 0x7f {
        bytes.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    bytes.push(value.to_le_bytes()[0]);
}

/// Parses a message.
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    message: &'static str,
    length: usize,
    rest: &'a [u8],
    /// The first defect that a function without an error has found.
    broken: Option<&'static str>,
}

impl<'a> Reader<'a> {
    /// Starts to parse `bytes`. `message` is the name in errors.
    #[inline]
    #[must_use]
    pub fn new(message: &'static str, bytes: &'a [u8]) -> Self {
        Self {
            message,
            length: bytes.len(),
            rest: bytes,
            broken: None,
        }
    }

    /// Reads a number.
    ///
    /// # Errors
    /// The message is too short.
    #[inline]
    pub fn u32(&mut self) -> Result<u32, BadMessage> {
        let (word, rest) = self
            .rest
            .split_first_chunk()
            .ok_or_else(|| self.fault(SHORT))?;
        self.rest = rest;
        Ok(u32::from_le_bytes(*word))
    }

    /// Reads a number.
    ///
    /// # Errors
    /// The message is too short.
    #[inline]
    pub fn u64(&mut self) -> Result<u64, BadMessage> {
        let (word, rest) = self
            .rest
            .split_first_chunk()
            .ok_or_else(|| self.fault(SHORT))?;
        self.rest = rest;
        Ok(u64::from_le_bytes(*word))
    }

    /// Reads exactly `N` bytes.
    ///
    /// # Errors
    /// The message is too short.
    #[inline]
    pub fn raw<const N: usize>(&mut self) -> Result<[u8; N], BadMessage> {
        let (bytes, rest) = self
            .rest
            .split_first_chunk()
            .ok_or_else(|| self.fault(SHORT))?;
        self.rest = rest;
        Ok(*bytes)
    }

    /// Reads a number as [`Reader::varint`] does. After a defect it is 0, as all later ones, and [`Reader::sound`] has the error:
    /// a message of many numbers is checked once.
    #[inline(always)]
    pub fn number(&mut self) -> u64 {
        match *self.rest {
            [byte @ 0..0x80, ref rest @ ..] => {
                self.rest = rest;
                byte.into()
            }
            [low, high @ 0..0x80, ref rest @ ..] => {
                self.rest = rest;
                u64::from(low & 0x7f) | u64::from(high) << 7
            }
            _ => self.long_number(),
        }
    }

    #[inline(never)]
    fn long_number(&mut self) -> u64 {
        match self.varint() {
            Ok(number) => number,
            Err(bad) => self.break_off(bad.fault).into(),
        }
    }

    /// Reads a number of 32 bits as [`Reader::number`] does. `fault` is the defect if it is larger.
    #[inline(always)]
    pub fn number32(&mut self, fault: &'static str) -> u32 {
        match u32::try_from(self.number()) {
            Ok(number) => number,
            Err(_) => self.break_off(fault),
        }
    }

    /// Reads exactly `N` bytes as [`Reader::number`] reads a number.
    #[inline(always)]
    pub fn fixed<const N: usize>(&mut self) -> [u8; N] {
        if let Some((bytes, rest)) = self.rest.split_first_chunk() {
            self.rest = rest;
            return *bytes;
        }
        self.break_off(SHORT);
        [0; N]
    }

    /// Reads this number of bytes as [`Reader::number`] reads a number.
    #[inline(always)]
    pub fn piece(&mut self, length: u64) -> &'a [u8] {
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        if let Some((bytes, rest)) = self.rest.split_at_checked(length) {
            self.rest = rest;
            return bytes;
        }
        self.break_off(SHORT);
        &[]
    }

    /// The message has this defect. Returns 0.
    #[cold]
    fn break_off(&mut self, fault: &'static str) -> u32 {
        self.broken.get_or_insert(fault);
        self.rest = &[];
        0
    }

    /// Checks that the functions without an error have found no defect.
    ///
    /// # Errors
    /// The first defect.
    #[inline(always)]
    pub fn sound(&self) -> Result<(), BadMessage> {
        match self.broken {
            None => Ok(()),
            Some(fault) => Err(self.fault(fault)),
        }
    }

    /// Reads a number of [`Writer::varint`].
    ///
    /// # Errors
    /// The message is too short, or the number has more than 64 bits.
    #[inline]
    pub fn varint(&mut self) -> Result<u64, BadMessage> {
        match *self.rest {
            [byte @ 0..0x80, ref rest @ ..] => {
                self.rest = rest;
                Ok(byte.into())
            }
            [low, high @ 0..0x80, ref rest @ ..] => {
                self.rest = rest;
                Ok(u64::from(low & 0x7f) | u64::from(high) << 7)
            }
            _ => match self.rest.first_chunk() {
                Some(word) => self.varint_in(u64::from_le_bytes(*word)),
                None => self.long_varint(),
            },
        }
    }

    /// Reads a number from the next eight bytes, if it ends there.
    fn varint_in(&mut self, word: u64) -> Result<u64, BadMessage> {
        let ends = !word & 0x8080_8080_8080_8080;
        if ends == 0 {
            return self.long_varint();
        }
        // Seven bits of each byte up to the first whose highest bit is 0.
        let length = ends.trailing_zeros() / 8 + 1;
        let word = word & 0x7f7f_7f7f_7f7f_7f7f & (u64::MAX >> (64 - 8 * length));
        let word = (word & 0x7f_007f_007f_007f) | (word & 0x7f00_7f00_7f00_7f00) >> 1;
        let word = (word & 0x3fff_0000_3fff) | (word & 0x3fff_0000_3fff_0000) >> 2;
        let word = (word & 0xfff_ffff) | (word & 0xfff_ffff_0000_0000) >> 4;
        self.rest = &self.rest[length as usize..];
        Ok(word)
    }

    fn long_varint(&mut self) -> Result<u64, BadMessage> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let [byte] = self.raw()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(self.fault("with a number of more than 64 bits"))
    }

    /// Reads this number of bytes.
    ///
    /// # Errors
    /// The message is too short.
    #[inline]
    pub fn bytes(&mut self, length: u64) -> Result<&'a [u8], BadMessage> {
        let split = usize::try_from(length)
            .ok()
            .and_then(|length| self.rest.split_at_checked(length));
        let (bytes, rest) = split.ok_or_else(|| self.fault(SHORT))?;
        self.rest = rest;
        Ok(bytes)
    }

    /// The bytes that were not read.
    #[inline]
    #[must_use]
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Reads a length and that many bytes.
    ///
    /// # Errors
    /// The message is too short.
    #[inline]
    pub fn blob(&mut self) -> Result<&'a [u8], BadMessage> {
        let length = usize::try_from(self.u64()?).map_err(|_| self.fault(SHORT))?;
        let (blob, rest) = self
            .rest
            .split_at_checked(length)
            .ok_or_else(|| self.fault(SHORT))?;
        self.rest = rest;
        Ok(blob)
    }

    /// Reads a list of items of at least `size` bytes each. The minimum size bounds the memory that a count reserves by
    /// the length of the message.
    ///
    /// # Errors
    /// The message is too short, and errors of `read`.
    pub fn list<T>(
        &mut self,
        size: usize,
        mut read: impl FnMut(&mut Self) -> Result<T, BadMessage>,
    ) -> Result<Vec<T>, BadMessage> {
        let count = self.count(size)?;
        // The message length bounds the capacity.
        let mut items = Vec::with_capacity(count);
        for _ in 0..count {
            items.push(read(self)?);
        }
        Ok(items)
    }

    /// Reads a count and a record of `N` bytes for each item.
    ///
    /// # Errors
    /// The message is too short.
    #[inline]
    pub fn records<const N: usize>(&mut self) -> Result<&'a [[u8; N]], BadMessage> {
        let count = self.count(N)?;
        // count() has checked the product against the remaining length.
        let (records, rest) = self.rest.split_at(count * N);
        self.rest = rest;
        Ok(records.as_chunks::<N>().0)
    }

    /// Reads the count of a list of items of at least `size` bytes each, and checks that the message can contain them.
    ///
    /// # Errors
    /// The message is too short.
    #[inline]
    pub fn count(&mut self, size: usize) -> Result<usize, BadMessage> {
        let count = usize::try_from(self.u64()?).map_err(|_| self.fault(SHORT))?;
        if count > self.rest.len() / size.max(1) {
            return Err(self.fault(SHORT));
        }
        Ok(count)
    }

    /// Checks that no bytes remain.
    ///
    /// # Errors
    /// The message is longer than its contents.
    #[inline]
    pub fn end(self) -> Result<(), BadMessage> {
        self.sound()?;
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(self.fault("too long"))
        }
    }

    /// An error about this message. An earlier defect has caused later ones.
    #[cold]
    #[must_use]
    pub fn fault(&self, fault: &'static str) -> BadMessage {
        BadMessage {
            message: self.message,
            length: self.length,
            fault: self.broken.unwrap_or(fault),
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
    fn numbers_take_as_few_bytes_as_they_need() {
        for (value, length) in [(0, 1), (127, 1), (128, 2), (1 << 14, 3), (u64::MAX, 10)] {
            let mut writer = Writer::default();
            let bytes = std::mem::take(writer.varint(value)).finish();
            assert_eq!(bytes.len(), length, "{value}");
            let mut reader = Reader::new("X", &bytes);
            assert_eq!(reader.varint(), Ok(value));
            assert!(reader.end().is_ok());
            let shorter = &bytes[..length - 1];
            assert!(Reader::new("X", shorter).varint().is_err());
        }
        let long = [0xff; 11];
        let error = Reader::new("X", &long).varint().unwrap_err();
        assert_eq!(error.fault, "with a number of more than 64 bits");
    }

    #[test]
    fn the_first_defect_of_many_numbers_is_the_error() {
        let mut writer = Writer::default();
        writer.varint(5).varint(1 << 40).raw(&[1, 2, 3]);
        let bytes = writer.finish();
        let mut reader = Reader::new("X", &bytes);
        assert_eq!((reader.number(), reader.number()), (5, 1 << 40));
        assert_eq!(reader.fixed(), [1, 2]);
        assert_eq!(reader.piece(1), [3]);
        assert!(reader.sound().is_ok());
        assert_eq!((reader.number(), reader.piece(1)), (0, &[][..]));
        assert_eq!(reader.end().unwrap_err().fault, SHORT);
        let mut reader = Reader::new("X", &bytes);
        let numbers = [0; 3].map(|_| reader.number32("too large"));
        assert_eq!(numbers, [5, 0, 0]);
        assert_eq!(reader.fixed(), [0; 2]);
        assert_eq!(reader.sound().unwrap_err().fault, "too large");
        assert_eq!(reader.fault("another").fault, "too large");
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
