//! Parses the output of `cargo test`, and that of the system tests, which has the same format.

use super::tally::{Case, Outcome};

/// All tests in the output of one `cargo test`, named `binary::test`.
///
/// A test that prints `SKIP name: reason` has not run. It counts as skipped and not as passed, although libtest, which
/// has no skip at run time, reports it as ok.
///
/// libtest writes the line of a test in pieces, and programs that tests start write between them. The sum that libtest
/// prints for each binary is one piece: what a divided line hides is taken from it.
pub(crate) fn parse(output: &str) -> Vec<Case> {
    let mut parser = Parser::default();
    for line in output.lines() {
        parser.read(line);
    }
    parser.cases
}

#[derive(Default)]
struct Parser {
    cases: Vec<Case>,
    binary: String,
    /// The cases of the current binary begin here. Binaries of two crates may have the same name.
    first: usize,
    /// `running N tests`
    announced: Option<usize>,
    told: Told,
    /// Names whose line has no verdict, because other output divides it.
    divided: Vec<String>,
    section: Section,
    block: Block,
}

/// Tests of a binary by what libtest says of them.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Told {
    passed: usize,
    failed: usize,
    ignored: usize,
}

#[derive(Default, PartialEq)]
enum Section {
    #[default]
    Verdicts,
    Successes,
    Failures,
}

/// The output of one test, below its heading.
#[derive(Default)]
enum Block {
    #[default]
    Outside,
    /// Of a test of this index, if it is known.
    Of(Option<usize>),
}

impl Parser {
    fn read(&mut self, line: &str) {
        let outside = matches!(self.block, Block::Outside);
        if let Some(name) = binary_of(line) {
            // A crashed binary has no result line; cargo's own error line follows instead.
            self.begin(name);
        } else if let Some(count) = announced_of(line).filter(|_| outside) {
            self.announced = Some(count);
            self.told = Told::default();
            self.divided.clear();
            self.section = Section::Verdicts;
        } else if let Some((name, verdict)) = verdict_of(line) {
            self.add(name, verdict);
        } else if let Some((name, reason)) = skip_of(line) {
            self.add_divided(name, "ok");
            match self.find(name) {
                Some(at) => self.cases[at].outcome = Outcome::Skip(reason.to_owned()),
                // A skipped part of a test does not change the test's verdict.
                None => {
                    let own = self.own(name);
                    self.cases.push(Case::skip(own, reason));
                }
            }
        } else if let Some(name) = block_of(line) {
            if self.section == Section::Failures {
                self.add_divided(name, "FAILED");
            }
            self.block = Block::Of(self.find(name));
        } else if line == "failures:" || line == "successes:" {
            self.section = match line {
                "failures:" => Section::Failures,
                _ => Section::Successes,
            };
            self.block = Block::Outside;
        } else if let Some(sum) = sum_of(line).filter(|_| outside) {
            self.settle(sum);
        } else if let Block::Of(Some(at)) = self.block
            && let Outcome::Fail(detail) = &mut self.cases[at].outcome
        {
            detail.push_str(line);
            detail.push('\n');
        } else if line.contains("(signal: ") {
            self.cases.push(Case::fail(
                self.binary.clone(),
                format!("the test process died: {line}"),
            ));
        } else if self.section == Section::Failures && outside {
            self.add_divided(line.trim_start(), "FAILED");
        } else if let Some(name) = divided_of(line).filter(|_| outside) {
            self.divided.push(name.to_owned());
        }
    }

    fn begin(&mut self, binary: String) {
        *self = Self {
            first: self.cases.len(),
            cases: std::mem::take(&mut self.cases),
            binary,
            ..Self::default()
        };
    }

    fn own(&self, name: &str) -> String {
        format!("{}::{name}", self.binary)
    }

    /// A case of the current binary.
    fn find(&self, name: &str) -> Option<usize> {
        let own = self.own(name);
        let here = self.cases[self.first..].iter();
        Some(self.first + here.clone().position(|case| case.name == own)?)
    }

    fn add(&mut self, name: &str, verdict: &str) {
        let name = self.own(name);
        self.cases.push(match verdict {
            "ok" => {
                self.told.passed += 1;
                Case::pass(name)
            }
            "FAILED" => {
                self.told.failed += 1;
                Case::fail(name, "")
            }
            other => {
                self.told.ignored += 1;
                Case::skip(name, other)
            }
        });
    }

    /// Adds a test without a verdict, which a later line gives.
    fn add_divided(&mut self, name: &str, verdict: &str) {
        if let Some(at) = self.divided.iter().position(|divided| divided == name) {
            self.divided.remove(at);
            self.add(name, verdict);
        }
    }

    /// Adds what `sum` has more than the lines.
    fn settle(&mut self, sum: Told) {
        let count = sum.passed + sum.failed + sum.ignored;
        // Another sum is that of a program which a test has started.
        if self.announced.take() != Some(count) {
            return;
        }
        let mut divided = std::mem::take(&mut self.divided).into_iter();
        let mut name = || {
            divided
                .next()
                .unwrap_or_else(|| "(other output divides the line of this test)".to_owned())
        };
        for _ in self.told.failed..sum.failed {
            self.add(&name(), "FAILED");
        }
        for _ in self.told.ignored..sum.ignored {
            self.add(&name(), "ignored");
        }
        for _ in self.told.passed..sum.passed {
            self.add(&name(), "ok");
        }
    }
}

/// `     Running unittests src/lib.rs (target/debug/deps/xgvmi_pool-0123456789abcdef)` or `   Doc-tests xgvmi_pool`.
fn binary_of(line: &str) -> Option<String> {
    let line = line.trim_start();
    if let Some(name) = line.strip_prefix("Doc-tests ") {
        return Some(format!("{name} (doc)"));
    }
    let path = line
        .strip_prefix("Running ")?
        .rsplit_once('(')?
        .1
        .strip_suffix(')')?;
    let file = path.rsplit('/').next()?;
    Some(
        file.rsplit_once('-')
            .map_or(file, |(name, _hash)| name)
            .to_owned(),
    )
}

/// `test a::b ... ok`, optionally followed by a measured time or an ignore reason.
fn verdict_of(line: &str) -> Option<(&str, &str)> {
    let (name, verdict) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
    let name = name.strip_suffix(" - should panic").unwrap_or(name);
    match verdict.split([' ', ',']).next()? {
        "ok" => Some((name, "ok")),
        "FAILED" => Some((name, "FAILED")),
        "ignored" => Some((name, verdict)),
        _ => None,
    }
}

/// `running 3 tests`
fn announced_of(line: &str) -> Option<usize> {
    let (_, count) = line.rsplit_once("running ")?;
    count
        .strip_suffix(" tests")
        .or(count.strip_suffix(" test"))?
        .parse()
        .ok()
}

/// `test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; ...`, or its end alone.
fn sum_of(line: &str) -> Option<Told> {
    let (before, after) = line.split_once(" passed; ")?;
    let (failed, after) = after.split_once(" failed; ")?;
    let (ignored, _) = after.split_once(" ignored; ")?;
    Some(Told {
        passed: before.rsplit(' ').next()?.parse().ok()?,
        failed: failed.parse().ok()?,
        ignored: ignored.parse().ok()?,
    })
}

/// The name in `test a::b ... other output`, which may begin with other output.
fn divided_of(line: &str) -> Option<&str> {
    let (before, _) = line.split_once(" ... ")?;
    let name = before.rsplit_once("test ").map(|(_, name)| name)?;
    let name = name.strip_suffix(" - should panic").unwrap_or(name);
    (!name.is_empty() && !name.contains(' ')).then_some(name)
}

fn skip_of(line: &str) -> Option<(&str, &str)> {
    line.strip_prefix("SKIP ")?.split_once(": ")
}

/// `---- a::b stdout ----`
fn block_of(line: &str) -> Option<&str> {
    line.strip_prefix("---- ")?.strip_suffix(" stdout ----")
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
   Compiling xgvmi-pool v0.1.0
     Running unittests src/lib.rs (target/debug/deps/xgvmi_pool-0123456789abcdef)

running 3 tests
test lease::binds ... ok
test lease::skips ... ok
test lease::breaks ... FAILED

successes:

---- lease::skips stdout ----
SKIP lease::skips: no headers here

failures:

---- lease::breaks stdout ----
assertion failed: left == right
  left: 1

failures:
    lease::breaks

test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s

   Doc-tests xgvmi_pool

running 2 tests
test xgvmi-pool/src/lib.rs - (line 3) ... ok
test xgvmi-pool/src/lib.rs - Lease (line 9) ... ignored
";

    #[test]
    fn each_test_is_counted_once() {
        let cases = parse(OUTPUT);
        let expect = [
            Case::pass("xgvmi_pool::lease::binds"),
            Case::skip("xgvmi_pool::lease::skips", "no headers here"),
            Case::fail(
                "xgvmi_pool::lease::breaks",
                "assertion failed: left == right\n  left: 1\n\n",
            ),
            Case::pass("xgvmi_pool (doc)::xgvmi-pool/src/lib.rs - (line 3)"),
            Case::skip(
                "xgvmi_pool (doc)::xgvmi-pool/src/lib.rs - Lease (line 9)",
                "ignored",
            ),
        ];
        assert_eq!(cases, expect);
    }

    /// As libtest writes it: name, verdict and line end apart, beside programs that write to the same place.
    const DIVIDED: &str = "\
     Running unittests src/lib.rs (target/debug/deps/blk-0123456789abcdef)

running 6 tests
test a::clean ... ok
xgvmi-blk: test a::behind_other_output ... ok
test a::with_a_piece_at_its_end ... okWarning: nothing
other: test a::breaks ... xgvmi-blk: a line
FAILED
an end of nothingtest a::skips ... a line
ok
test a::absent

successes:

---- a::skips stdout ----
SKIP a::skips: no headers here

---- a::clean stdout ----
running 9 tests
test result: ok. 9 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s

successes:
    a::clean

failures:

---- a::breaks stdout ----
assertion failed

failures:
    a::breaks

test result: FAILED a program says something
. 5 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s
error: test failed, to rerun pass `-p blk --lib`
     Running unittests src/lib.rs (target/debug/deps/blk-1123456789abcdef)

running 1 test
test a::clean ... ok

successes:

---- a::clean stdout ----
SKIP a::clean: no headers here


successes:
    a::clean

test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s
";

    #[test]
    fn a_test_whose_line_is_divided_counts_once() {
        let expect = [
            Case::pass("blk::a::clean"),
            Case::skip("blk::a::skips", "no headers here"),
            Case::fail("blk::a::breaks", "assertion failed\n\n"),
            Case::pass("blk::a::behind_other_output"),
            Case::pass("blk::a::with_a_piece_at_its_end"),
            Case::pass("blk::(other output divides the line of this test)"),
            Case::skip("blk::a::clean", "no headers here"),
        ];
        assert_eq!(parse(DIVIDED), expect);
    }

    #[test]
    fn a_binary_that_dies_is_a_failure() {
        let output = "     Running tests/rules.rs (target/debug/deps/rules-00ff)\ntest a ... ok\n\
                      error: test failed\n  process didn't exit successfully: `x` (signal: 11, SIGSEGV)\n";
        let cases = parse(output);
        assert_eq!(cases.len(), 2);
        assert!(
            cases[1].is_failure() && cases[1].name == "rules",
            "{cases:?}"
        );
    }
}
