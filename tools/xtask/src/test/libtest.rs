//! Parses the output of `cargo test`, and that of the system tests, which has the same format.

use super::tally::{Case, Outcome};

/// All tests in the output of one `cargo test`, named `binary::test`.
///
/// A test that prints `SKIP name: reason` has not run. It counts as skipped and not as passed, although libtest, which
/// has no skip at run time, reports it as ok.
pub(crate) fn parse(output: &str) -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    let mut binary = String::new();
    let mut block: Option<usize> = None;
    for line in output.lines() {
        if let Some(name) = binary_of(line) {
            // A crashed binary has no result line; cargo's own error line follows instead.
            binary = name;
            block = None;
        } else if let Some((name, verdict)) = verdict_of(line) {
            let name = format!("{binary}::{name}");
            cases.push(match verdict {
                "ok" => Case::pass(name),
                "FAILED" => Case::fail(name, ""),
                other => Case::skip(name, other),
            });
        } else if let Some((name, reason)) = skip_of(line) {
            let own = format!("{binary}::{name}");
            match cases.iter_mut().find(|case| case.name == own) {
                Some(case) => case.outcome = Outcome::Skip(reason.to_owned()),
                // A skipped part of a test does not change the test's verdict.
                None => cases.push(Case::skip(own, reason)),
            }
        } else if let Some(name) = block_of(line) {
            let own = format!("{binary}::{name}");
            block = cases.iter().position(|case| case.name == own);
        } else if line == "failures:" || line == "successes:" || line.starts_with("test result:") {
            block = None;
        } else if let Some(Outcome::Fail(detail)) = block
            .and_then(|at| cases.get_mut(at))
            .map(|case| &mut case.outcome)
        {
            detail.push_str(line);
            detail.push('\n');
        } else if line.contains("(signal: ") {
            cases.push(Case::fail(
                binary.clone(),
                format!("the test process died: {line}"),
            ));
        }
    }
    cases
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
