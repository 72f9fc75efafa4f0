//! Rules as text: parses words into a checked [`Rule`], and formats one. Has no side effects.
//!
//! ```text
//! rules  = [rule] { (";" | newline) [rule] }         "#" begins a comment
//! rule   = where what [which] ["times" N] action
//! where  = FUNCTION | "any"                          as node0.host
//! what   = "command" NAME | "request" NAME           see Call and Request
//! which  = "nth" N | "every" N | "after" N | "chance" P "seed" S     without: always
//! action = "status" STATUS ["syndrome" N]            commands: refused by the device
//!        | "errno" ERRNO                             commands: refused by the kernel
//!        | "syndrome" SYNDROME                       requests: completes in error
//!        | "late" TIME | "never" | "qp_error" | "vanish"
//!        | "ignored" | "longer" | "shifted"        requests: does something else
//! ```

use mlx5_prm::cmd::status;
use mlx5_prm::cqe::syndrome;

use super::{Action, Call, Event, LATE_MAX_NS, Request, Rule, When, Wrong};
use crate::bits::low32;

/// Longest text of rules in bytes. [`super::RULES_MAX`] rules need far less.
pub const TEXT_BYTES_MAX: usize = 64 * 1024;

/// An invalid rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("fault rule {number} `{rule}`: {problem}")]
pub struct FaultError {
    /// Number of the rule in the text, from 1.
    pub number: usize,
    /// Text of the rule.
    pub rule: String,
    /// The error.
    #[source]
    pub problem: Problem,
}

/// Errors in rules.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// The rule is incomplete.
    #[error("{what} is missing after `{behind}`: {allowed}")]
    Missing {
        /// The missing part.
        what: &'static str,
        /// The previous word.
        behind: String,
        /// The permitted words.
        allowed: String,
    },
    /// A word is unknown at its position.
    #[error("`{word}` is not valid as {what}: {allowed}")]
    Unknown {
        /// The expected part.
        what: &'static str,
        /// The unknown word.
        word: String,
        /// The permitted words.
        allowed: String,
    },
    /// Words follow the end of the rule.
    #[error("`{word}` is not allowed: the rule ends with its action")]
    Extra {
        /// The first of these words.
        word: String,
    },
    /// The action is not possible for the event.
    #[error("`{action}` is for {what} only")]
    Misfit {
        /// The action.
        action: String,
        /// "commands" or "requests".
        what: &'static str,
    },
    /// The text is too long.
    #[error("{bytes} bytes of rules are more than {TEXT_BYTES_MAX}")]
    Long {
        /// Its length in bytes.
        bytes: usize,
    },
}

const STATUSES: [(&str, u8); 15] = [
    ("INTERNAL_ERR", status::INTERNAL_ERR),
    ("BAD_OP", status::BAD_OP),
    ("BAD_PARAM", status::BAD_PARAM),
    ("BAD_SYS_STATE", status::BAD_SYS_STATE),
    ("BAD_RESOURCE", status::BAD_RESOURCE),
    ("RESOURCE_BUSY", status::RESOURCE_BUSY),
    ("LIMITS_EXCEEDED", status::LIMITS_EXCEEDED),
    ("BAD_RES_STATE", status::BAD_RES_STATE),
    ("BAD_INDEX", status::BAD_INDEX),
    ("NO_RESOURCES", status::NO_RESOURCES),
    ("BAD_QP_STATE", status::BAD_QP_STATE),
    ("BAD_PACKET", status::BAD_PACKET),
    ("BAD_SIZE", status::BAD_SIZE),
    ("BAD_INPUT_LEN", status::BAD_INPUT_LEN),
    ("BAD_OUTPUT_LEN", status::BAD_OUTPUT_LEN),
];

const SYNDROMES: [(&str, u8); 13] = [
    ("LOCAL_LENGTH_ERR", syndrome::LOCAL_LENGTH_ERR),
    ("LOCAL_QP_OP_ERR", syndrome::LOCAL_QP_OP_ERR),
    ("LOCAL_PROT_ERR", syndrome::LOCAL_PROT_ERR),
    ("WR_FLUSH_ERR", syndrome::WR_FLUSH_ERR),
    ("MW_BIND_ERR", syndrome::MW_BIND_ERR),
    ("BAD_RESP_ERR", syndrome::BAD_RESP_ERR),
    ("LOCAL_ACCESS_ERR", syndrome::LOCAL_ACCESS_ERR),
    ("REMOTE_INVAL_REQ_ERR", syndrome::REMOTE_INVAL_REQ_ERR),
    ("REMOTE_ACCESS_ERR", syndrome::REMOTE_ACCESS_ERR),
    ("REMOTE_OP_ERR", syndrome::REMOTE_OP_ERR),
    ("TRANSPORT_RETRY_EXC_ERR", syndrome::TRANSPORT_RETRY_EXC_ERR),
    ("RNR_RETRY_EXC_ERR", syndrome::RNR_RETRY_EXC_ERR),
    ("REMOTE_ABORTED_ERR", syndrome::REMOTE_ABORTED_ERR),
];

const ERRNOS: [(&str, i32); 17] = [
    ("EPERM", libc::EPERM),
    ("ENOENT", libc::ENOENT),
    ("EINTR", libc::EINTR),
    ("EIO", libc::EIO),
    ("EAGAIN", libc::EAGAIN),
    ("ENOMEM", libc::ENOMEM),
    ("EACCES", libc::EACCES),
    ("EFAULT", libc::EFAULT),
    ("EBUSY", libc::EBUSY),
    ("ENODEV", libc::ENODEV),
    ("EINVAL", libc::EINVAL),
    ("EMFILE", libc::EMFILE),
    ("ENOSPC", libc::ENOSPC),
    ("EOPNOTSUPP", libc::EOPNOTSUPP),
    ("EREMOTEIO", libc::EREMOTEIO),
    ("ETIMEDOUT", libc::ETIMEDOUT),
    ("EPROTONOSUPPORT", libc::EPROTONOSUPPORT),
];

/// Units of time in nanoseconds, the largest first.
const UNITS: [(&str, u64); 4] = [
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1000),
    ("ns", 1),
];

const WHENS: [&str; 4] = ["nth", "every", "after", "chance"];
const ACTIONS: [&str; 10] = [
    "status", "errno", "syndrome", "late", "never", "qp_error", "vanish", "ignored", "longer",
    "shifted",
];

/// Parses rules for a device with these functions.
///
/// # Errors
/// The first invalid rule, and the permitted words.
pub fn parse(text: &str, functions: &[&str]) -> Result<Vec<Rule>, FaultError> {
    if text.len() > TEXT_BYTES_MAX {
        let problem = Problem::Long { bytes: text.len() };
        return Err(FaultError {
            number: 1,
            rule: String::new(),
            problem,
        });
    }
    let mut rules = Vec::new();
    let without_comments = text
        .lines()
        .map(|line| line.split_once('#').map_or(line, |(rule, _)| rule));
    let texts = without_comments.flat_map(|line| line.split(';'));
    for text in texts.map(str::trim).filter(|text| !text.is_empty()) {
        let rule = parse_rule(text, functions).map_err(|problem| FaultError {
            number: rules.len() + 1,
            rule: text.to_owned(),
            problem,
        })?;
        rules.push(rule);
    }
    Ok(rules)
}

/// The text of a rule, for a device with these functions.
#[must_use]
pub fn text(rule: &Rule, functions: &[&str]) -> String {
    let index = (rule.function as usize).checked_sub(1);
    let place = index.map_or("any", |index| functions.get(index).copied().unwrap_or("?"));
    let event = match rule.event {
        Event::Call(call) => format!("command {}", call.name()),
        Event::Request(request) => format!("request {}", request.name()),
    };
    let when = match rule.when {
        When::Always => String::new(),
        When::Nth(n) => format!(" nth {n}"),
        When::Every(n) => format!(" every {n}"),
        When::After(n) => format!(" after {n}"),
        When::Chance { of_2_32, seed } => format!(" chance {} seed {seed}", probability(of_2_32)),
    };
    let times = match rule.times {
        0 => String::new(),
        times => format!(" times {times}"),
    };
    let action = match rule.action {
        Action::Status {
            status,
            syndrome: 0,
        } => format!("status {}", name_of(&STATUSES, status)),
        Action::Status { status, syndrome } => {
            format!(
                "status {} syndrome {syndrome:#x}",
                name_of(&STATUSES, status)
            )
        }
        Action::Errno(errno) => format!("errno {}", name_of(&ERRNOS, errno)),
        Action::Syndrome(syndrome) => format!("syndrome {}", name_of(&SYNDROMES, syndrome)),
        Action::Late { ns } => format!("late {}", time_text(ns)),
        Action::Never => "never".to_owned(),
        Action::QpError => "qp_error".to_owned(),
        Action::Vanish => "vanish".to_owned(),
        Action::Wrong(wrong) => {
            let named = Wrong::NAMES.iter().find(|(_, known)| *known == wrong);
            named.map_or("?", |(name, _)| *name).to_owned()
        }
    };
    format!("{place} {event}{when}{times} {action}")
}

fn name_of<T: Copy + Eq + std::fmt::Display>(names: &[(&'static str, T)], value: T) -> String {
    let found = names.iter().find(|(_, known)| *known == value);
    found.map_or_else(|| value.to_string(), |(name, _)| (*name).to_owned())
}

#[expect(clippy::cast_precision_loss, reason = "numbers up to 2^32 are exact")]
fn probability(of_2_32: u64) -> f64 {
    of_2_32 as f64 / 4_294_967_296.0
}

fn time_text(ns: u64) -> String {
    let whole = |(_, unit): &&(&str, u64)| ns.is_multiple_of(*unit);
    let (name, unit) = UNITS.iter().find(whole).unwrap_or(&("ns", 1));
    format!("{}{name}", ns / unit)
}

/// The words of one rule.
struct Words<'a> {
    rest: std::iter::Peekable<std::str::SplitWhitespace<'a>>,
    last: &'a str,
}

impl<'a> Words<'a> {
    fn next(
        &mut self,
        what: &'static str,
        allowed: &dyn Fn() -> String,
    ) -> Result<&'a str, Problem> {
        let word = self.rest.next().ok_or_else(|| Problem::Missing {
            what,
            behind: self.last.to_owned(),
            allowed: allowed(),
        })?;
        self.last = word;
        Ok(word)
    }

    /// Consumes the next word if it is this one.
    fn take(&mut self, word: &'static str) -> bool {
        let is_it = self.rest.next_if_eq(&word).is_some();
        if is_it {
            self.last = word;
        }
        is_it
    }

    /// Parses one of a list of names.
    fn choice<T: Copy>(
        &mut self,
        what: &'static str,
        choices: impl Iterator<Item = (&'a str, T)> + Clone,
    ) -> Result<T, Problem> {
        let allowed = || {
            let names: Vec<_> = choices.clone().map(|(name, _)| name).collect();
            format!("one of {}", names.join(", "))
        };
        let word = self.next(what, &allowed)?;
        let found = choices.clone().find(|(name, _)| *name == word);
        found
            .map(|(_, value)| value)
            .ok_or_else(|| Problem::Unknown {
                what,
                word: word.to_owned(),
                allowed: allowed(),
            })
    }

    fn number(&mut self, what: &'static str, least: u64, most: u64) -> Result<u64, Problem> {
        let allowed = || format!("a number from {least} to {most}, decimal or 0x");
        let word = self.next(what, &allowed)?;
        let parsed = match word.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16),
            None => word.parse(),
        };
        parsed
            .ok()
            .filter(|number| (least..=most).contains(number))
            .ok_or_else(|| Problem::Unknown {
                what,
                word: word.to_owned(),
                allowed: allowed(),
            })
    }

    fn probability(&mut self) -> Result<u64, Problem> {
        let allowed = || "a number from 0 to 1, as 0.01".to_owned();
        let word = self.next("probability", &allowed)?;
        let parsed = word.parse::<f64>().ok();
        let parsed = parsed.filter(|p| (0.0..=1.0).contains(p));
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "0 to 2^32 by the check above"
        )]
        let of_2_32 = parsed.map(|p| (p * 4_294_967_296.0).round() as u64);
        of_2_32.ok_or_else(|| Problem::Unknown {
            what: "probability",
            word: word.to_owned(),
            allowed: allowed(),
        })
    }

    fn time(&mut self) -> Result<u64, Problem> {
        let allowed = || "a whole number with ns, us, ms or s, up to 3600s".to_owned();
        let word = self.next("time", &allowed)?;
        let end = word
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(word.len());
        let (number, unit) = word.split_at(end);
        let unit = UNITS.iter().find(|(name, _)| *name == unit);
        number
            .parse::<u64>()
            .ok()
            .zip(unit)
            .and_then(|(number, (_, unit))| number.checked_mul(*unit))
            .filter(|ns| *ns <= LATE_MAX_NS)
            .ok_or_else(|| Problem::Unknown {
                what: "time",
                word: word.to_owned(),
                allowed: allowed(),
            })
    }
}

fn parse_rule(text: &str, functions: &[&str]) -> Result<Rule, Problem> {
    let mut words = Words {
        rest: text.split_whitespace().peekable(),
        last: "",
    };
    let places = (1u32..).zip(functions).map(|(index, name)| (*name, index));
    let function = words.choice("function", [("any", 0)].into_iter().chain(places))?;
    let event = if words.choice("event", [("command", true), ("request", false)].into_iter())? {
        let calls = Call::ALL.iter().map(|call| (call.name(), *call));
        Event::Call(words.choice("command", calls)?)
    } else {
        let requests = Request::ALL
            .iter()
            .map(|request| (request.name(), *request));
        Event::Request(words.choice("request", requests)?)
    };
    let when = parse_when(&mut words)?;
    let times = if words.take("times") {
        words.number("count", 1, u64::MAX)?
    } else {
        0
    };
    let action = parse_action(&mut words, event)?;
    match words.rest.next() {
        Some(word) => Err(Problem::Extra {
            word: word.to_owned(),
        }),
        None => Ok(Rule {
            function,
            event,
            when,
            times,
            action,
        }),
    }
}

fn parse_when(words: &mut Words<'_>) -> Result<When, Problem> {
    let count = |words: &mut Words<'_>| words.number("count", 1, u64::MAX);
    if words.take("nth") {
        Ok(When::Nth(count(words)?))
    } else if words.take("every") {
        Ok(When::Every(count(words)?))
    } else if words.take("after") {
        Ok(When::After(count(words)?))
    } else if words.take("chance") {
        let of_2_32 = words.probability()?;
        words.choice("word", [("seed", ())].into_iter())?;
        let seed = words.number("seed", 0, u64::MAX)?;
        Ok(When::Chance { of_2_32, seed })
    } else {
        Ok(When::Always)
    }
}

fn parse_action(words: &mut Words<'_>, event: Event) -> Result<Action, Problem> {
    let of_call = matches!(event, Event::Call(_));
    // The error lists the words of both parts: the rule may lack its action, or misspell its
    // selection.
    let known = ACTIONS.into_iter().chain(WHENS).chain(["times"]);
    let word = words.choice("action", known.map(|word| (word, word)))?;
    let misfit = |what| {
        Err(Problem::Misfit {
            action: word.to_owned(),
            what,
        })
    };
    let action = match word {
        "status" | "errno" if !of_call => return misfit("commands"),
        "syndrome" | "never" | "qp_error" | "ignored" if of_call => return misfit("requests"),
        "longer" | "shifted" if event != Event::Request(Request::UmrBind) => {
            return misfit("umr_bind");
        }
        "status" => {
            let status = words.choice("status", STATUSES.into_iter())?;
            let syndrome = if words.take("syndrome") {
                words.number("syndrome", 0, u64::from(u32::MAX))?
            } else {
                0
            };
            Action::Status {
                status,
                syndrome: low32(syndrome),
            }
        }
        "errno" => Action::Errno(words.choice("errno", ERRNOS.into_iter())?),
        "syndrome" => Action::Syndrome(words.choice("syndrome", SYNDROMES.into_iter())?),
        "late" => Action::Late { ns: words.time()? },
        "never" => Action::Never,
        "qp_error" => Action::QpError,
        "vanish" => Action::Vanish,
        "ignored" => Action::Wrong(Wrong::Ignored),
        "longer" => Action::Wrong(Wrong::Longer),
        "shifted" => Action::Wrong(Wrong::Shifted),
        word => {
            return Err(Problem::Unknown {
                what: "action",
                word: word.to_owned(),
                allowed: format!("here one of {}", ACTIONS.join(", ")),
            });
        }
    };
    Ok(action)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FUNCTIONS: [&str; 4] = ["node0.host", "node0.dpu", "node1.host", "node1.dpu"];

    #[track_caller]
    fn check(input: &str, expect: &str) {
        let said = match parse(input, &FUNCTIONS) {
            Ok(rules) => {
                let texts: Vec<_> = rules.iter().map(|rule| text(rule, &FUNCTIONS)).collect();
                texts.join("; ")
            }
            Err(error) => format!("! {error}"),
        };
        assert!(
            said == expect || expect.starts_with('!') && said.starts_with(expect),
            "{input}\n  gives  {said}\n  expect {expect}"
        );
    }

    #[test]
    fn what_is_meant_is_understood() {
        for text in [
            "node0.host command create_mkey nth 7 status LIMITS_EXCEEDED",
            "any command allow_other_vhca_access status BAD_PARAM syndrome 0x1a",
            "node1.dpu command create_general_object every 3 times 2 errno EINVAL",
            "any command modify_qp_rtr after 10 errno ENOMEM",
            "node0.host request umr_bind nth 100 late 40s",
            "node0.host request umr chance 0.25 seed 42 syndrome MW_BIND_ERR",
            "any request any never",
            "node0.dpu request send qp_error",
            "any command reg_mr late 1500us; any request rdma_write vanish",
        ] {
            check(text, text);
        }
        check("", "");
        check(" ;;# nothing\n # here ; either\n", "");
        check(
            "any request nop never # because\n any request nop late 0x1s",
            "! fault rule 2 `any request nop late 0x1s`: `0x1s` is not valid as time",
        );
        check("any command any late 1000ms", "any command any late 1s");
        check(
            "any command any nth 0x10 vanish",
            "any command any nth 16 vanish",
        );
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (input, expect) in [
            (
                "node9.host command any vanish",
                "! fault rule 1 `node9.host command any vanish`: `node9.host` is not valid as function: one \
                 of any, node0.host, node0.dpu, node1.host, node1.dpu",
            ),
            (
                "any",
                "! fault rule 1 `any`: event is missing after `any`: one of command, request",
            ),
            (
                "any ioctl x",
                "! fault rule 1 `any ioctl x`: `ioctl` is not valid as event: one of",
            ),
            (
                "any request umr",
                "! fault rule 1 `any request umr`: action is missing after `umr`",
            ),
            (
                "any request umr nth 0 never",
                "! fault rule 1 `any request umr nth 0 never`: `0` is not valid as count: a number from 1 to",
            ),
            (
                "any request umr status BAD_OP",
                "! fault rule 1 `any request umr status BAD_OP`: `status` is for commands only",
            ),
            (
                "any command any never",
                "! fault rule 1 `any command any never`: `never` is for requests only",
            ),
            (
                "any command any chance 1.5 seed 1 vanish",
                "! fault rule 1 `any command any chance",
            ),
            (
                "any command any vanish now",
                "! fault rule 1 `any command any vanish now`: `now` is not allowed",
            ),
            (
                "any command any late 3601s",
                "! fault rule 1 `any command any late 3601s`: `3601s` is not valid as time",
            ),
            (
                "any command any late 18446744073709551615s",
                "! fault rule 1",
            ),
            (
                "any command any times 2 nth 1 vanish",
                "! fault rule 1 `any command any times 2 nth 1 vanish`: `nth` is not valid as action: here one of status",
            ),
        ] {
            check(input, expect);
        }
        let long = "#".repeat(TEXT_BYTES_MAX + 1);
        check(
            &long,
            "! fault rule 1 ``: 65537 bytes of rules are more than 65536",
        );
    }

    fn any_rule() -> impl Strategy<Value = Rule> {
        let when = prop_oneof![
            Just(When::Always),
            (1..=u64::MAX).prop_map(When::Nth),
            (1..=u64::MAX).prop_map(When::Every),
            (1..=u64::MAX).prop_map(When::After),
            (0..=1u64 << 32, any::<u64>())
                .prop_map(|(of_2_32, seed)| When::Chance { of_2_32, seed }),
        ];
        let of_both = || {
            prop_oneof![
                (0..=LATE_MAX_NS).prop_map(|ns| Action::Late { ns }),
                Just(Action::Vanish),
            ]
        };
        let of_call = prop_oneof![
            (0..STATUSES.len(), any::<u32>()).prop_map(|(index, syndrome)| Action::Status {
                status: STATUSES[index].1,
                syndrome,
            }),
            (0..ERRNOS.len()).prop_map(|index| Action::Errno(ERRNOS[index].1)),
            of_both(),
        ];
        let of_request = prop_oneof![
            (0..SYNDROMES.len()).prop_map(|index| Action::Syndrome(SYNDROMES[index].1)),
            Just(Action::Never),
            Just(Action::QpError),
            Just(Action::Wrong(Wrong::Ignored)),
            of_both(),
        ];
        let call = (0..Call::ALL.len()).prop_map(|index| Event::Call(Call::ALL[index]));
        let request = (0..Request::ALL.len()).prop_map(|index| Event::Request(Request::ALL[index]));
        let fits = prop_oneof![(call, of_call), (request, of_request)];
        (0u32..=4, fits, when, any::<u64>()).prop_map(|(function, (event, action), when, times)| {
            Rule {
                function,
                event,
                when,
                times,
                action,
            }
        })
    }

    // Properties: a formatted rule parses to the same rule; arbitrary text causes no panic;
    // accepted rules are consistent; each refusal has a message.
    proptest! {
        #[test]
        fn a_rule_that_is_written_is_read_as_it_was(rules in proptest::collection::vec(any_rule(), 0..5)) {
            let texts: Vec<_> = rules.iter().map(|rule| text(rule, &FUNCTIONS)).collect();
            prop_assert_eq!(parse(&texts.join("\n"), &FUNCTIONS), Ok(rules.clone()));
            prop_assert_eq!(parse(&texts.join(" ; "), &FUNCTIONS), Ok(rules));
        }

        #[test]
        fn any_text_is_answered(input in ".{0,200}") {
            if let Err(error) = parse(&input, &FUNCTIONS) {
                prop_assert!(!error.to_string().is_empty());
            }
        }

        #[test]
        fn words_in_any_order_are_answered(
            words in proptest::collection::vec(
                proptest::sample::select(vec![
                    "any", "node0.host", "command", "request", "create_mkey", "umr", "nth", "every", "chance",
                    "seed", "times", "1", "0.5", "0x7", "status", "BAD_OP", "errno", "EIO", "syndrome",
                    "MW_BIND_ERR", "late", "5ms", "never", "qp_error", "vanish", ";", "#",
                ]),
                0..12,
            ),
        ) {
            if let Ok(rules) = parse(&words.join(" "), &FUNCTIONS) {
                for rule in rules {
                    prop_assert!(rule.action.fits(rule.event));
                    prop_assert!(rule.function <= 4);
                }
            }
        }
    }
}
