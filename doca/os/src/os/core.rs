//! The state of a process as a core file.

use super::Os;
use crate::core_file::{
    CoreFile, HEADER_BYTES, RANGES_MAX, SEGMENT_BYTES, SIGSEGV, file_header, note, segment,
};
use rv64::{Hart, Rights};

impl Os {
    /// The process's state as a core file: all threads, that of a fault first, the program and its memory. Memory behind windows is
    /// left out. [`read_core`](Self::read_core) gives its bytes.
    #[must_use]
    pub fn core_file(&self) -> CoreFile {
        let fault = self.kernel.fault.as_ref().map(|fault| fault.thread);
        let threads = self.kernel.threads.iter().zip(0..);
        let mut harts: Vec<(&Hart, u32)> = threads
            .filter_map(|(thread, hart)| {
                let number = thread.as_ref()?.view.number;
                Some((self.machine.hart(hart)?, number))
            })
            .collect();
        // A debugger selects the first thread.
        harts.sort_by_key(|(_, number)| Some(*number) != fault);
        let mut notes = Vec::new();
        for (hart, number) in &harts {
            let signal = if Some(*number) == fault { SIGSEGV } else { 0 };
            notes.extend(note(hart, *number, signal));
        }
        // Of the stacks and thread-local storage, only those of threads.
        let (first, _) = self.machine.stack(0);
        let (last, bytes) = self.machine.stack(rv64::HARTS_MAX - 1);
        let stacks = first.saturating_sub(1 << 20)..last + bytes;
        let of_thread = |start: u64| {
            let mut own = harts.iter();
            own.any(|(hart, _)| self.machine.has_range(hart.id(), start))
        };
        let mut ranges: Vec<(u64, u64, Rights)> = self
            .machine
            .memory()
            .memory_ranges()
            .filter(|(start, ..)| !stacks.contains(start) || of_thread(*start))
            .collect();
        ranges.truncate(RANGES_MAX);
        let count = u16::try_from(ranges.len() + 1).unwrap_or(u16::MAX);
        let mut head = file_header(count);
        let mut offset = u64::from(HEADER_BYTES) + u64::from(SEGMENT_BYTES) * u64::from(count);
        let length = notes.len() as u64;
        head.extend(segment(4, Rights::default(), [offset, 0, length]));
        offset += length;
        for (start, bytes, rights) in &ranges {
            head.extend(segment(1, *rights, [offset, *start, *bytes]));
            offset += bytes;
        }
        head.extend(notes);
        let ranges = ranges.iter().map(|(start, bytes, _)| (*start, *bytes));
        CoreFile {
            head,
            ranges: ranges.collect(),
        }
    }

    /// Bytes of a core file from an offset on. Returns how many there are, which is less than the buffer only at the end.
    pub fn read_core(&self, core: &CoreFile, offset: u64, buffer: &mut [u8]) -> usize {
        let mut done = 0;
        let skipped = usize::try_from(offset).unwrap_or(usize::MAX);
        let head = core.head.get(skipped..).unwrap_or_default();
        let count = head.len().min(buffer.len());
        buffer[..count].copy_from_slice(&head[..count]);
        done += count;
        let mut skip = offset.saturating_sub(core.head.len() as u64);
        for (start, bytes) in &core.ranges {
            if done == buffer.len() {
                break;
            }
            if skip >= *bytes {
                skip -= bytes;
                continue;
            }
            let left = usize::try_from(bytes - skip).unwrap_or(usize::MAX);
            let part = left.min(buffer.len() - done);
            let place = &mut buffer[done..done + part];
            // Memory that has been returned since is 0.
            if self.machine.memory().peek(start + skip, place).is_err() {
                place.fill(0);
            }
            done += part;
            skip = 0;
        }
        done
    }
}
