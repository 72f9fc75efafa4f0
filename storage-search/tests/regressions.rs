//! Sequences that broke a promise once keep all of them now.

use storage_search::{REGRESSIONS, Regression, Stock, parse, to_text};

#[test]
fn sequences_that_broke_a_promise_keep_all_of_them() {
    storage_search::silence().unwrap();
    let mut stock = Stock::default();
    let mut broken = Vec::new();
    for regression in REGRESSIONS {
        let name = regression.name;
        for steps in regression.sequences().unwrap() {
            for setting in Regression::settings() {
                if let Some((at, violation)) = stock.run(setting, &steps).unwrap() {
                    let (text, kind) = (to_text(&steps[..=at]), violation.kind);
                    broken.push(format!(
                        "{name}: {setting:?}: {text}: {kind}: {}",
                        violation.detail
                    ));
                }
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn steps_come_back_from_their_text() {
    for seed in 0..2000 {
        let (_, steps) = storage_search::sequence(seed);
        let text = to_text(&steps);
        assert_eq!(parse(&text).unwrap(), steps, "{text}");
    }
    for text in [
        "open 3",
        "write",
        "write 9",
        "power 0",
        "power 0 first",
        "kill 1",
        "",
    ] {
        assert!(parse(text).is_err(), "{text}");
    }
}
