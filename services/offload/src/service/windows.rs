//! Division of a reduction's vector: windows, which the SPs reduce one after the other, and the segments of a window,
//! each of which one SP reduces for all.
//!
//! All SPs derive the same division from the vector's length, the size of its elements, and the number of members. A window has
//! at most 64 owners, and each window has other owners than the one before, so that all members of a long vector reduce equal
//! shares of it.

/// Maximum length of a window in bytes. The SP of a rank holds the segments of all members of two windows.
const WINDOW_MAX: u64 = 256 << 10;

/// Length in bytes from which a segment is worth its messages.
const SEGMENT_MIN: u64 = 4 << 10;

/// Number of windows of a reduction that are under way at once: one moves while the other is reduced.
pub const WINDOWS_AT_ONCE: u32 = 2;

/// Number of SPs from which a short vector takes a tree: with fewer, one that hears of all others is sooner done.
const TREE_FROM: u64 = 8;

/// Bytes that a vector on a tree may have for each SP. Along the tree it is reduced as often as there are levels; an owner reduces
/// [`SEGMENT_MIN`] of each SP, and has messages with each.
const TREE_MAX_EACH: u64 = 512;

/// Maximum length of a vector. It is beyond any address space, and it keeps all products below 2^64.
const VECTOR_MAX: u64 = 1 << 47;

/// Division of a vector into windows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Division {
    element: u64,
    elements: u64,
    members: u64,
    /// Minimum number of elements of a segment.
    least: u64,
    windows: u32,
}

/// A window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    element: u64,
    members: u64,
    start: u64,
    elements: u64,
    owners: u64,
    /// Distance by which the owners are moved from those of the first window.
    shift: u64,
}

/// A range of bytes of the vector.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Range {
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub length: u64,
}

impl Range {
    /// Start and length of what both ranges contain.
    pub fn common(&self, other: &Self) -> (u64, u64) {
        let start = self.offset.max(other.offset);
        let end = (self.offset + self.length).min(other.offset + other.length);
        // An empty range begins where the other does, so that a caller can count from it.
        match end > start {
            true => (start, end - start),
            false => (self.offset.max(other.offset), 0),
        }
    }
}

impl Division {
    /// The division of `length` bytes in elements of `element` bytes. Segments are `direct_min` bytes or longer, if the
    /// vector is. `None` without members, for a part of an element, and for a vector beyond any address space.
    pub fn new(length: u64, element: u64, members: usize, direct_min: u64) -> Option<Self> {
        let elements = length.checked_div(element)?;
        if members == 0 || elements * element != length || length > VECTOR_MAX {
            return None;
        }
        let windows = length.div_ceil(WINDOW_MAX).max(1);
        Some(Self {
            element,
            elements,
            members: members as u64,
            least: SEGMENT_MIN.max(direct_min).div_ceil(element),
            windows: u32::try_from(windows).ok()?,
        })
    }

    /// Length of the vector in bytes.
    pub fn length(&self) -> u64 {
        self.elements * self.element
    }

    /// Number of windows, at least 1.
    pub fn windows(&self) -> u32 {
        self.windows
    }

    /// Whether the SPs reduce the vector along a tree: it is short for so many of them.
    pub fn is_tree(&self, direct_min: u64) -> bool {
        let most = (self.members * TREE_MAX_EACH).min(WINDOW_MAX);
        let most = most.max(direct_min.saturating_sub(1));
        (1..=most).contains(&self.length()) && self.members >= TREE_FROM
    }

    /// The same vector as one window, which one member reduces.
    pub fn undivided(self) -> Self {
        Self {
            least: self.elements.max(1),
            windows: 1,
            ..self
        }
    }

    /// A window.
    pub fn window(&self, index: u32) -> Window {
        let start = part(self.elements, index.into(), self.windows.into());
        let end = part(self.elements, u64::from(index) + 1, self.windows.into());
        let elements = end - start;
        Window {
            element: self.element,
            members: self.members,
            start,
            elements,
            owners: (elements / self.least).clamp(1, self.members),
            shift: u64::from(index) % self.members,
        }
    }
}

impl Window {
    /// Number of members that reduce a segment of it.
    #[must_use]
    pub fn owners(&self) -> u64 {
        self.owners
    }

    /// The window's first byte.
    pub fn start(&self) -> u64 {
        self.start * self.element
    }

    /// Length in bytes.
    pub fn length(&self) -> u64 {
        self.elements * self.element
    }

    /// The segment of a member; `None` if it has none. Members are counted from 0.
    pub fn segment(&self, member: usize) -> Option<Range> {
        // Owners are spread evenly over the members. Any run of neighbours then has equally many of them, give or take one, so
        // after any number of moves by one place each member has owned as many segments as any other, give or take one.
        let place = (member as u64 + self.members - self.shift) % self.members;
        let owner = (place * self.owners).div_ceil(self.members);
        if owner >= self.owners || owner * self.members / self.owners != place {
            return None;
        }
        let first = part(self.elements, owner, self.owners);
        let end = part(self.elements, owner + 1, self.owners);
        Some(Range {
            offset: (self.start + first) * self.element,
            length: (end - first) * self.element,
        })
    }
}

/// Start of part `index` of `count` nearly equal parts.
fn part(elements: u64, index: u64, count: u64) -> u64 {
    let (each, rest) = (elements / count, elements % count);
    each * index + rest.min(index)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The segments of all windows cover the vector once and in order, and have the minimum length.
    #[track_caller]
    fn check(length: u64, element: u64, members: usize, direct_min: u64) {
        let division = Division::new(length, element, members, direct_min).expect("valid");
        let mut at = 0;
        for index in 0..division.windows() {
            let window = division.window(index);
            assert_eq!(window.start(), at);
            let mut bytes = 0;
            let mut segments: Vec<Range> = (0..members)
                .filter_map(|member| window.segment(member))
                .collect();
            segments.sort_unstable_by_key(|segment| segment.offset);
            // An owner holds its segment of all members: no more than a window, or twice the shortest segments.
            let most = (window.length() / members as u64).max(2 * SEGMENT_MIN.max(direct_min));
            for segment in segments {
                assert_eq!(segment.offset, at);
                assert!(segment.length.is_multiple_of(element));
                assert!(segment.length >= direct_min.min(length), "{segment:?}");
                assert!(segment.length <= most + 2 * element, "{segment:?}");
                at += segment.length;
                bytes += segment.length;
            }
            assert!(bytes <= WINDOW_MAX + element, "{bytes}");
        }
        assert_eq!(at, length);
    }

    #[test]
    fn segments_cover_the_vector() {
        for members in [1, 2, 3, 4, 7, 64, 1000] {
            for element in [1, 2, 4, 8] {
                for direct_min in [256, 300, 512, 64 << 10] {
                    for elements in [0, 1, 63, 64, 1023, 32768, 65537, 1_000_003] {
                        check(elements * element, element, members, direct_min);
                    }
                }
            }
        }
        check(1 << 33, 8, 3, 512);
    }

    #[test]
    fn several_members_own_segments() {
        let owners = |length, members, index| {
            let division = Division::new(length, 8, members, 512).expect("valid");
            let window = division.window(index);
            (0..members)
                .filter(|member| window.segment(*member).is_some())
                .collect::<Vec<usize>>()
        };
        assert_eq!(owners(4096, 4, 0), [0]);
        assert_eq!(owners(8192, 4, 0), [0, 2]);
        assert_eq!(owners(1 << 20, 4, 0), [0, 1, 2, 3]);
        assert_eq!(owners(12288, 8, 0), [0, 2, 5]);
        assert_eq!(owners(1 << 20, 128, 1)[..3], [1, 3, 5]);
    }

    /// After any number of windows.
    #[test]
    fn members_own_equally_many_segments() {
        for members in [1, 2, 3, 7, 63, 64, 65, 100, 512, 1000] {
            for (window, direct_min) in [
                (WINDOW_MAX, 512),
                (WINDOW_MAX, 5000),
                (WINDOW_MAX - 4096, 512),
            ] {
                let windows = 2 * members as u64 + 3;
                let division = Division::new(windows * window, 8, members, direct_min);
                let division = division.expect("valid");
                let mut owned = vec![0; members];
                for index in 0..division.windows() {
                    let window = division.window(index);
                    let before: u32 = owned.iter().sum();
                    for (member, owned) in owned.iter_mut().enumerate() {
                        *owned += u32::from(window.segment(member).is_some());
                    }
                    assert_eq!(u64::from(owned.iter().sum::<u32>() - before), window.owners);
                    let (least, most) = (owned.iter().min(), owned.iter().max());
                    assert!(
                        most <= least.map(|least| least + 1).as_ref(),
                        "{members}: {owned:?}"
                    );
                }
                assert!(owned.iter().all(|owned| *owned > 0), "{members}");
            }
        }
    }

    #[test]
    fn what_no_rank_can_send_has_no_division() {
        assert_eq!(Division::new(8, 8, 0, 512), None);
        assert_eq!(Division::new(7, 8, 2, 512), None);
        assert_eq!(Division::new(1 << 48, 8, 2, 512), None);
    }
}
