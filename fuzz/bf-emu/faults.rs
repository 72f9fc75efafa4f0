//! Fault rules: any text is rules or an error, and rules survive a round trip through text.
#![no_main]

use bf_emu::model::faults::parse::{parse, text};
use libfuzzer_sys::fuzz_target;

const FUNCTIONS: [&str; 2] = ["node0.host", "node0.dpu"];

fuzz_target!(|input: &str| {
    let Ok(rules) = parse(input, &FUNCTIONS) else {
        return;
    };
    let shown: Vec<String> = rules.iter().map(|rule| text(rule, &FUNCTIONS)).collect();
    let again = parse(&shown.join("\n"), &FUNCTIONS).expect("what was shown");
    assert_eq!(rules, again);
});
