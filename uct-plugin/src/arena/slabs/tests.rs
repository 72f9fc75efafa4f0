//! The slab table against a plain model that knows the owner of every page.
//!
//! Properties: no page has two owners. A range that the program gets is free of handles, and its
//! parts that were ever given out are in its list of parts to zero. A page with a handle is not
//! given out again before the handle ends. A retired page is never given out. Counts agree.

use super::*;

const SLABS: usize = 3;
/// Steps in the usual run. `XGVMI_ARENA_STEPS` sets another number.
const STEPS: usize = 20_000;

/// A page in the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Page {
    /// Number of the range that has it.
    owner: Option<u64>,
    handles: u32,
    is_retired: bool,
    /// Number of the last owner; its bytes.
    content: u64,
}

struct Model {
    pages: Vec<[Page; SLAB_PAGES]>,
    ranges: Vec<(u64, usize, Span)>,
    handles: Vec<(usize, Span)>,
    next: u64,
    now_ms: u64,
    served: u64,
}

/// A simple generator of numbers, so that a seed repeats a run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 11).unwrap() % limit
    }
}

fn table() -> Slabs<Vec<Slab>> {
    Slabs::new(vec![Slab::ABSENT; SLABS])
}

impl Model {
    fn new() -> Self {
        Self {
            pages: vec![[Page::default(); SLAB_PAGES]; SLABS],
            ranges: Vec::new(),
            handles: Vec::new(),
            next: 1,
            now_ms: 0,
            served: 0,
        }
    }

    fn took(&mut self, range: &Range) {
        self.served += 1;
        let number = self.next;
        self.next += 1;
        let mut zeroed = vec![false; SLAB_PAGES];
        for part in range.dirty() {
            assert!(part.first >= range.span.first && part.end() <= range.span.end());
            zeroed[part.first..part.end()].fill(true);
        }
        let pages = range.span.first..range.span.end();
        let zeroed = &zeroed[pages.clone()];
        for (page, is_zeroed) in self.pages[range.slab][pages].iter_mut().zip(zeroed) {
            assert_eq!(
                (page.owner, page.handles, page.is_retired),
                (None, 0, false)
            );
            assert!(page.content == 0 || *is_zeroed, "bytes of {}", page.content);
            (page.owner, page.content) = (Some(number), number);
        }
        self.ranges.push((number, range.slab, range.span));
    }

    fn gave(&mut self, slab: usize, span: Span, given: Given) {
        let mut expect = Given::default();
        for page in &mut self.pages[slab][span.first..span.end()] {
            expect.has_retired |= page.is_retired;
            if page.owner.take().is_some() && !page.is_retired {
                expect.pages += 1;
                expect.resting += usize::from(page.handles > 0);
            }
        }
        assert_eq!(given, expect);
    }

    /// A part of a span.
    fn part(random: &mut Random, span: Span) -> Span {
        let first = span.first + random.below(span.count());
        Span::new(first, first + 1 + random.below(span.end() - first))
    }

    fn step(&mut self, table: &mut Slabs<Vec<Slab>>, random: &mut Random) {
        self.now_ms += 1;
        match random.below(100) {
            0..40 => self.take(table, random),
            40..70 if !self.ranges.is_empty() => self.give(table, random),
            70..82 if !self.ranges.is_empty() => self.pin(table, random),
            82..97 if !self.handles.is_empty() => self.unpin(table, random),
            97 if random.below(400) == 0 && !self.ranges.is_empty() => {
                let (_, slab, span) = self.ranges[random.below(self.ranges.len())];
                let span = Self::part(random, span);
                table.retire(slab, span);
                for page in &mut self.pages[slab][span.first..span.end()] {
                    page.is_retired = true;
                }
            }
            98 if random.below(50) == 0 => self.let_go(table),
            _ => {}
        }
    }

    fn take(&mut self, table: &mut Slabs<Vec<Slab>>, random: &mut Random) {
        let count = match random.below(8) {
            0 => 1 + random.below(4096),
            1..4 => 1 + random.below(256),
            _ => 4 + random.below(16),
        };
        match table.take(count, 0) {
            Taken::Range(range) => {
                assert_eq!(range.span.count(), count);
                self.took(&range);
            }
            Taken::Make(slab) => {
                let is_mapped = random.below(4) > 0;
                table.made(slab, is_mapped, self.now_ms);
                for page in &mut self.pages[slab] {
                    assert_eq!((page.owner, page.handles), (None, 0));
                    page.content = 0;
                }
            }
            Taken::Full => {
                let free = |slab: &[Page; SLAB_PAGES]| {
                    let held =
                        |page: &Page| page.owner.is_some() || page.handles > 0 || page.is_retired;
                    let mut longest = 0;
                    let mut length = 0;
                    for page in slab {
                        length = if held(page) { 0 } else { length + 1 };
                        longest = longest.max(length);
                    }
                    longest
                };
                let is_ready = |slab: &usize| table.is_mapped(*slab) && !table.is_going(*slab);
                for slab in (0..SLABS).filter(is_ready) {
                    assert!(free(&self.pages[slab]) < count, "slab {slab} has space");
                }
            }
        }
    }

    fn give(&mut self, table: &mut Slabs<Vec<Slab>>, random: &mut Random) {
        let at = random.below(self.ranges.len());
        let (number, slab, span) = self.ranges.swap_remove(at);
        if random.below(5) > 0 {
            let given = table.give(slab, span, self.now_ms);
            self.gave(slab, span, given);
            return;
        }
        // A part only; the rest remains.
        let part = Self::part(random, span);
        let given = table.give(slab, part, self.now_ms);
        self.gave(slab, part, given);
        if part.first > span.first {
            self.ranges
                .push((number, slab, Span::new(span.first, part.first)));
        }
        if part.end() < span.end() {
            self.ranges
                .push((number, slab, Span::new(part.end(), span.end())));
        }
    }

    fn pin(&mut self, table: &mut Slabs<Vec<Slab>>, random: &mut Random) {
        let (_, slab, span) = self.ranges[random.below(self.ranges.len())];
        let span = Self::part(random, span);
        let pages = &mut self.pages[slab][span.first..span.end()];
        let can_be = pages
            .iter()
            .all(|page| page.owner.is_some() && !page.is_retired);
        assert_eq!(table.is_live(slab, span), can_be);
        assert_eq!(table.pin(slab, span), can_be);
        if can_be {
            for page in pages {
                page.handles += 1;
            }
            self.handles.push((slab, span));
        }
    }

    fn unpin(&mut self, table: &mut Slabs<Vec<Slab>>, random: &mut Random) {
        let at = random.below(self.handles.len());
        let (slab, span) = self.handles.swap_remove(at);
        let is_clean = random.below(5000) > 0;
        table.unpin(slab, span, is_clean, self.now_ms);
        for page in &mut self.pages[slab][span.first..span.end()] {
            page.handles -= 1;
            page.is_retired |= !is_clean;
        }
    }

    fn let_go(&mut self, table: &mut Slabs<Vec<Slab>>) {
        table.let_go(self.now_ms, 10);
        for slab in 0..SLABS {
            if table.is_going(slab) {
                let held = |page: &Page| page.owner.is_some() || page.handles > 0;
                assert!(!self.pages[slab].iter().any(held));
                table.gone(slab);
            }
        }
    }

    /// Compares all pages.
    fn check(&self, table: &Slabs<Vec<Slab>>) {
        for (number, pages) in self.pages.iter().enumerate() {
            let slab = table.slab(number);
            let mut used = 0;
            for (at, page) in pages.iter().enumerate() {
                let held = page.owner.is_some() || page.handles > 0 || page.is_retired;
                used += usize::from(held);
                assert_eq!(slab.used.has(at), held, "page {at} of slab {number}");
                assert_eq!(slab.live.has(at), page.owner.is_some());
                assert_eq!(u32::from(slab.pins[at]), page.handles);
                assert_eq!(slab.pinned.has(at), page.handles > 0);
            }
            assert_eq!(slab.used_count, used);
        }
    }
}

#[test]
fn random_events_agree_with_a_model_of_every_page() {
    let steps = std::env::var("XGVMI_ARENA_STEPS");
    let steps = steps.map_or(STEPS, |steps| steps.parse().expect("a number"));
    // A new table from time to time: retired pages never come back.
    const AT_ONCE: usize = 30_000;
    let mut served = 0;
    for round in 0..steps.div_ceil(AT_ONCE) {
        let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ (round as u64 + 1));
        let (mut model, mut table) = (Model::new(), table());
        for step in 0..AT_ONCE.min(steps - round * AT_ONCE) {
            model.step(&mut table, &mut random);
            if step % 10_000 == 0 {
                model.check(&table);
            }
        }
        model.check(&table);
        served += model.served;
    }
    assert!(
        served > steps as u64 / 10,
        "{served} ranges in {steps} steps"
    );
}

fn made(nodes: &[u32]) -> Slabs<Vec<Slab>> {
    let mut table = table();
    for node in nodes {
        let Taken::Make(slab) = table.take(SLAB_PAGES, *node) else {
            panic!("no new slab");
        };
        table.made(slab, true, 0);
        let Taken::Range(range) = table.take(SLAB_PAGES, *node) else {
            panic!("no range in a new slab");
        };
        assert_eq!(range.dirty().count(), 0, "fresh memory is zero");
        table.give(range.slab, range.span, 0);
    }
    table
}

#[test]
fn a_range_comes_from_the_node_of_its_thread() {
    let mut table = made(&[0, 1]);
    for node in [1, 0, 1] {
        let Taken::Range(range) = table.take(4, node) else {
            panic!("both nodes have space");
        };
        assert_eq!(range.slab, usize::try_from(node).unwrap());
        assert_eq!(range.dirty().count(), 1, "the pages had an owner before");
    }
    // The third node gets the last slab, a fourth gets nothing.
    assert!(matches!(table.take(4, 2), Taken::Make(2)));
    assert!(
        matches!(table.take(4, 2), Taken::Full),
        "it is not made yet"
    );
    table.made(2, true, 0);
    assert!(matches!(table.take(4, 3), Taken::Full));
}

#[test]
fn a_resting_page_is_not_given_out_before_its_last_handle_ends() {
    let mut table = made(&[0]);
    let Taken::Range(range) = table.take(SLAB_PAGES, 0) else {
        panic!("no range");
    };
    let (all, part) = (range.span, Span::new(100, 200));
    assert!(table.pin(0, part) && table.pin(0, part));
    let given = table.give(0, all, 1);
    assert_eq!((given.pages, given.resting), (SLAB_PAGES, 100));
    assert!(!table.pin(0, part), "the program has unmapped it");
    for _ in 0..2 {
        let taken = |table: &mut Slabs<Vec<Slab>>| match table.take(SLAB_PAGES - 150, 0) {
            Taken::Range(range) => Some(range.span.first),
            _ => None,
        };
        assert!(matches!(taken(&mut table), Some(200) | None));
        table.give(0, Span::new(200, SLAB_PAGES), 1);
        table.unpin(0, part, true, 2);
    }
    assert!(matches!(table.take(SLAB_PAGES, 0), Taken::Range(_)));
}

#[test]
fn a_handle_does_not_reach_beyond_a_slab_or_its_live_pages() {
    let mut table = made(&[0]);
    let Taken::Range(range) = table.take(64, 0) else {
        panic!("no range");
    };
    let end = range.span.end();
    assert!(!table.pin(0, Span::new(end - 1, end + 1)));
    table.retire(0, Span::new(3, 4));
    assert!(!table.pin(0, Span::new(0, 8)) && table.pin(0, Span::new(4, 8)));
    assert_eq!(table.live_run(0, Span::new(0, end)), Some(Span::new(0, 3)));
    assert_eq!(
        table.retired_run(0, Span::new(0, end)),
        Some(Span::new(3, 4))
    );
}

#[test]
fn a_slab_that_ends_keeps_its_ranges_and_gives_no_new_ones() {
    let mut table = made(&[0]);
    let Taken::Range(range) = table.take(64, 0) else {
        panic!("no range");
    };
    table.retire(0, Span::new(0, 1));
    assert!(table.has_retired(0));
    table.end(0);
    assert!(table.is_live(0, Span::new(1, 64)) && !table.is_going(0));
    assert!(matches!(table.take(4, 0), Taken::Make(1)));
    table.made(1, true, 0);
    table.refuse(1);
    assert!(
        matches!(table.take(4, 0), Taken::Full),
        "there is no further slab"
    );
    assert_eq!(table.give(0, range.span, 0).pages, 63);
}

#[test]
fn an_empty_slab_goes_after_its_time_and_comes_back_zeroed() {
    let mut table = made(&[0]);
    assert_eq!(table.let_go(999, 1000), 0);
    assert_eq!(table.let_go(1000, 1000), 1);
    assert!(table.is_going(0) && table.mapped() == 1);
    assert!(matches!(table.take(4, 0), Taken::Make(1)));
    table.made(1, false, 1000);
    table.gone(0);
    assert_eq!(table.mapped(), 0);
    let Taken::Make(slab) = table.take(4, 0) else {
        panic!("no new slab");
    };
    assert_eq!(slab, 0);
    table.made(slab, true, 2000);
    let Taken::Range(range) = table.take(4, 0) else {
        panic!("no range");
    };
    assert_eq!(range.dirty().count(), 0);
}
