//! Command lines of programs.

use crate::error::{Code, Fault, Result, call, fail};
use crate::log;
use crate::object::{Alone, Object, find, publish, store, withdraw};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Most parameters of a command line.
const PARAMETERS_MAX: usize = 256;

/// `enum doca_argp_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Type {
    #[default]
    Unknown,
    String,
    Int,
    Boolean,
}

/// `doca_argp_param_cb_t`.
type Callback = unsafe extern "C" fn(*mut c_void, *mut c_void) -> u32;
/// `doca_argp_validation_cb_t`.
type Validation = unsafe extern "C" fn(*mut c_void) -> u32;

#[derive(Debug, Default, Clone)]
struct Settings {
    short: Option<String>,
    long: Option<String>,
    arguments: String,
    description: String,
    callback: Option<Callback>,
    of: Type,
    is_mandatory: bool,
    is_multiple: bool,
    is_registered: bool,
}

impl Settings {
    /// How messages name the parameter.
    fn shown(&self) -> String {
        match (&self.short, &self.long) {
            (Some(short), Some(long)) => format!("-{short}, --{long}"),
            (Some(short), None) => format!("-{short}"),
            (None, long) => format!("--{}", long.as_deref().unwrap_or_default()),
        }
    }
}

/// `struct doca_argp_param`.
#[derive(Debug, Default)]
pub struct ArgpParam(Alone<Settings>);

impl Object for ArgpParam {
    const NAME: &'static str = "struct doca_argp_param";
}

/// The command line in use.
struct Line {
    program: Option<String>,
    config: Pointer,
    parameters: Vec<(Arc<ArgpParam>, Settings)>,
    validations: Vec<Validation>,
}

/// A pointer that the program carries through the library.
#[derive(Clone, Copy)]
struct Pointer(*mut c_void);

// SAFETY: never used here; the program's own callbacks get it.
unsafe impl Send for Pointer {}

static LINE: Mutex<Option<Line>> = Mutex::new(None);

fn line() -> MutexGuard<'static, Option<Line>> {
    LINE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn none() -> Fault {
    Fault::new(
        Code::BadState,
        "no command line is in use: call doca_argp_init first",
    )
}

/// The text behind a pointer of C.
///
/// # Safety
/// NULL, or a string.
unsafe fn text(pointer: *const c_char) -> Option<String> {
    if pointer.is_null() {
        return None;
    }
    // SAFETY: a string by contract.
    let text = unsafe { CStr::from_ptr(pointer) };
    Some(text.to_string_lossy().into_owned())
}

/// `doca_argp_init`.
///
/// # Safety
/// `program_name` is NULL or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_argp_init(program_name: *const c_char, config: *mut c_void) -> Code {
    call("doca_argp_init", || {
        let mut line = line();
        if line.is_some() {
            fail!(
                BadState,
                "a command line is in use already: call doca_argp_destroy first"
            );
        }
        *line = Some(Line {
            // SAFETY: as the caller promises.
            program: unsafe { text(program_name) },
            config: Pointer(config),
            parameters: Vec::new(),
            validations: Vec::new(),
        });
        Ok(())
    })
}

/// `doca_argp_destroy`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_argp_destroy() -> Code {
    call("doca_argp_destroy", || {
        let line = line().take().ok_or_else(none)?;
        for (parameter, _) in &line.parameters {
            withdraw(parameter);
        }
        Ok(())
    })
}

/// `doca_argp_param_create`.
///
/// # Safety
/// `param` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_argp_param_create(param: *mut *mut ArgpParam) -> Code {
    call("doca_argp_param_create", || {
        let parameter = Arc::<ArgpParam>::default();
        // SAFETY: as the caller promises.
        unsafe { store(param, Arc::as_ptr(&parameter).cast_mut()) }?;
        publish(&parameter);
        Ok(())
    })
}

/// `doca_argp_param_destroy`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_argp_param_destroy(param: *mut ArgpParam) -> Code {
    call("doca_argp_param_destroy", || {
        let parameter = find(param)?;
        if parameter.0.enter()?.is_registered {
            fail!(
                InUse,
                "the parameter is registered: doca_argp_destroy frees it"
            );
        }
        withdraw(&parameter);
        Ok(())
    })
}

/// Changes a parameter. The setters return nothing, so the log alone has a fault.
fn set(
    name: &'static str,
    param: *mut ArgpParam,
    change: impl FnOnce(&mut Settings) -> Result<()>,
) {
    call(name, || {
        let parameter = find(param)?;
        let mut settings = parameter.0.enter()?;
        if settings.is_registered {
            fail!(
                BadState,
                "the parameter {} is registered, and changes no more",
                settings.shown()
            );
        }
        change(&mut settings)
    });
}

macro_rules! text_setters {
    ($($function:ident = |$settings:ident, $text:ident| $change:expr;)*) => {$(
        #[doc = concat!("`", stringify!($function), "`.")]
        ///
        /// # Safety
        /// The text is NULL or a string.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $function(param: *mut ArgpParam, value: *const c_char) {
            set(stringify!($function), param, |$settings| {
                // SAFETY: as the caller promises.
                let Some($text) = (unsafe { text(value) }) else {
                    fail!(InvalidValue, "the text is NULL");
                };
                $change;
                Ok(())
            });
        }
    )*};
}

text_setters! {
    doca_argp_param_set_short_name = |settings, value| settings.short = Some(name(value)?);
    doca_argp_param_set_long_name = |settings, value| settings.long = Some(name(value)?);
    doca_argp_param_set_arguments = |settings, value| settings.arguments = value;
    doca_argp_param_set_description = |settings, value| settings.description = value;
}

/// Checks a name of a parameter.
fn name(value: String) -> Result<String> {
    let is_good = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if value.is_empty() || value.starts_with('-') || !value.chars().all(is_good) {
        fail!(
            InvalidValue,
            "\"{value}\" is no name of a parameter: use letters, digits, \"_\" and \"-\", and no \"-\" first"
        );
    }
    Ok(value)
}

/// `doca_argp_param_set_callback`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_argp_param_set_callback(param: *mut ArgpParam, callback: Option<Callback>) {
    set("doca_argp_param_set_callback", param, |settings| {
        settings.callback = callback;
        Ok(())
    });
}

/// `doca_argp_param_set_type`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_argp_param_set_type(param: *mut ArgpParam, value: u32) {
    set("doca_argp_param_set_type", param, |settings| {
        settings.of = match value {
            1 => Type::String,
            2 => Type::Int,
            3 => Type::Boolean,
            _ => fail!(
                InvalidValue,
                "{value} is no type of a parameter; they are string, int and boolean"
            ),
        };
        Ok(())
    });
}

/// `doca_argp_param_set_mandatory`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_argp_param_set_mandatory(param: *mut ArgpParam) {
    set("doca_argp_param_set_mandatory", param, |settings| {
        settings.is_mandatory = true;
        Ok(())
    });
}

/// `doca_argp_param_set_multiplicity`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_argp_param_set_multiplicity(param: *mut ArgpParam) {
    set("doca_argp_param_set_multiplicity", param, |settings| {
        settings.is_multiple = true;
        Ok(())
    });
}

/// Names of the library's own parameters: short, long, name of the value, text.
const OWN: [(&str, &str, &str, &str); 4] = [
    ("h", "help", "", "Show this text and end"),
    ("v", "version", "", "Show the version and end"),
    (
        "l",
        "log-level",
        "<level>",
        "Level of the program's lines: 10 (none), 20, 30 (errors), 40, 50, 60, 70 (all)",
    ),
    (
        "",
        "sdk-log-level",
        "<level>",
        "Level of the library's lines, as above",
    ),
];

/// `doca_argp_register_param`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_argp_register_param(param: *mut ArgpParam) -> Code {
    call("doca_argp_register_param", || {
        let parameter = find(param)?;
        let mut line = line();
        let line = line.as_mut().ok_or_else(none)?;
        let mut settings = parameter.0.enter()?;
        if settings.is_registered {
            fail!(
                AlreadyExist,
                "the parameter {} is registered already",
                settings.shown()
            );
        }
        let missing = if settings.short.is_none() && settings.long.is_none() {
            "name"
        } else if settings.description.is_empty() {
            "description"
        } else if settings.callback.is_none() {
            "callback"
        } else if settings.of == Type::Unknown {
            "type"
        } else {
            ""
        };
        if !missing.is_empty() {
            fail!(
                InvalidValue,
                "the parameter {} has no {missing}",
                settings.shown()
            );
        }
        let others = line.parameters.iter().map(|(_, other)| other);
        let taken = others
            .flat_map(|other| [other.short.as_deref(), other.long.as_deref()])
            .flatten()
            .chain(OWN.iter().flat_map(|own| [own.0, own.1]));
        for used in taken {
            if [&settings.short, &settings.long].contains(&&Some(used.to_owned())) {
                fail!(AlreadyExist, "another parameter has the name \"{used}\"");
            }
        }
        if line.parameters.len() >= PARAMETERS_MAX {
            fail!(Full, "there are {PARAMETERS_MAX} parameters already");
        }
        settings.is_registered = true;
        let settings = settings.clone();
        line.parameters.push((Arc::clone(&parameter), settings));
        Ok(())
    })
}

/// `doca_argp_register_validation_callback`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_argp_register_validation_callback(callback: Option<Validation>) -> Code {
    call("doca_argp_register_validation_callback", || {
        let Some(callback) = callback else {
            fail!(InvalidValue, "the callback is NULL");
        };
        let mut line = line();
        let line = line.as_mut().ok_or_else(none)?;
        if line.validations.len() >= PARAMETERS_MAX {
            fail!(Full, "there are {PARAMETERS_MAX} callbacks already");
        }
        line.validations.push(callback);
        Ok(())
    })
}

fn usage(program: &str, parameters: &[Settings]) -> String {
    let mut text = format!("Usage: {program} [options]\n\nOptions of DOCA:\n");
    let mut add = |short: &str, long: &str, arguments: &str, description: &str| {
        let names: Vec<String> = [("-", short), ("--", long)]
            .iter()
            .filter(|(_, name)| !name.is_empty())
            .map(|(dash, name)| format!("{dash}{name}"))
            .collect();
        let names = format!("{} {arguments}", names.join(", "));
        let _ = writeln!(text, "  {names:<36} {description}");
    };
    for (short, long, arguments, description) in OWN {
        add(short, long, arguments, description);
    }
    for one in parameters {
        let mark = if one.is_mandatory { " (mandatory)" } else { "" };
        add(
            one.short.as_deref().unwrap_or_default(),
            one.long.as_deref().unwrap_or_default(),
            &one.arguments,
            &format!("{}{mark}", one.description),
        );
    }
    text
}

/// One read parameter.
#[derive(Debug, PartialEq)]
enum Item {
    Help,
    Version,
    Level {
        is_sdk: bool,
        level: u32,
    },
    /// Index of the parameter, and its value.
    Of(usize, Value),
}

#[derive(Debug, PartialEq)]
enum Value {
    String(CString),
    Int(c_int),
    True,
}

/// Reads all words, before any callback runs.
fn read(words: &[CString], parameters: &[Settings]) -> Result<Vec<Item>> {
    let mut items = Vec::new();
    let mut rest = words.iter();
    while let Some(word) = rest.next() {
        let shown = word.to_string_lossy().into_owned();
        let (name, attached) = match shown.split_once('=') {
            Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
            None => (shown.clone(), None),
        };
        let mut value = || -> Result<String> {
            match &attached {
                Some(value) => Ok(value.clone()),
                None => match rest.next() {
                    Some(word) => Ok(word.to_string_lossy().into_owned()),
                    None => fail!(InvalidValue, "{name} needs a value, and is the last word"),
                },
            }
        };
        let is = |short: &str, long: &str| {
            (!short.is_empty() && name == format!("-{short}"))
                || (!long.is_empty() && name == format!("--{long}"))
        };
        let own = OWN.iter().position(|own| is(own.0, own.1));
        let at = parameters.iter().position(|one| {
            let name = |of: &Option<String>| of.clone().unwrap_or_default();
            is(&name(&one.short), &name(&one.long))
        });
        items.push(match (own, at) {
            (Some(0), _) => Item::Help,
            (Some(1), _) => Item::Version,
            (Some(own), _) => {
                let level = number(&name, &value()?)?;
                Item::Level {
                    is_sdk: own == 3,
                    level: u32::try_from(level).unwrap_or_default(),
                }
            }
            (None, Some(at)) => Item::Of(
                at,
                match parameters[at].of {
                    Type::Int => Value::Int(number(&name, &value()?)?),
                    Type::Boolean => match attached.as_deref() {
                        None | Some("true") => Value::True,
                        Some(other) => {
                            fail!(InvalidValue, "{name} takes no value, but has \"{other}\"")
                        }
                    },
                    Type::String | Type::Unknown => {
                        Value::String(CString::new(value()?).unwrap_or_default())
                    }
                },
            ),
            (None, None) => fail!(
                InvalidValue,
                "\"{shown}\" is no parameter of this program; --help lists them"
            ),
        });
    }
    for (at, one) in parameters.iter().enumerate() {
        let count = items
            .iter()
            .filter(|item| matches!(item, Item::Of(index, _) if *index == at))
            .count();
        if count > 1 && !one.is_multiple {
            fail!(
                InvalidValue,
                "{} is given {count} times; give it once",
                one.shown()
            );
        }
        let ends = items.contains(&Item::Help) || items.contains(&Item::Version);
        if count == 0 && one.is_mandatory && !ends {
            fail!(
                InvalidValue,
                "{} is mandatory, and missing: {}",
                one.shown(),
                one.description
            );
        }
    }
    Ok(items)
}

fn number(name: &str, text: &str) -> Result<c_int> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text),
    };
    let value = match digits.strip_prefix("0x") {
        Some(digits) => i64::from_str_radix(digits, 16),
        None => digits.parse::<i64>(),
    };
    let value = value.ok().filter(|_| !digits.starts_with(['+', '-']));
    match value.and_then(|value| c_int::try_from(sign * value).ok()) {
        Some(value) => Ok(value),
        None => fail!(
            InvalidValue,
            "\"{text}\" of {name} is no number between {} and {}",
            c_int::MIN,
            c_int::MAX
        ),
    }
}

/// The result of a program's callback.
fn result_of(code: u32, what: &str) -> Result<()> {
    if code == Code::Success as u32 {
        return Ok(());
    }
    let known = Code::from_number(code).unwrap_or(Code::Unknown);
    Err(Fault::new(
        known,
        format!("the program refuses {what}: {}", known.name()),
    ))
}

/// `doca_argp_start`.
///
/// # Safety
/// `argv` has `argc` strings, and the callbacks keep the contract of the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_argp_start(argc: c_int, argv: *mut *mut c_char) -> Code {
    call("doca_argp_start", || {
        let count = usize::try_from(argc).unwrap_or_default();
        if argv.is_null() && count > 0 {
            fail!(InvalidValue, "argv is NULL");
        }
        let mut words = Vec::new();
        for at in 0..count {
            // SAFETY: `argv` has `argc` elements.
            let word = unsafe { argv.add(at).read() };
            if word.is_null() {
                fail!(InvalidValue, "word {at} of the command line is NULL");
            }
            // SAFETY: a string by contract.
            words.push(unsafe { CStr::from_ptr(word) }.to_owned());
        }
        // The callbacks may call this library, so no lock is held then.
        let (program, config, parameters, validations) = {
            let line = line();
            let line = line.as_ref().ok_or_else(none)?;
            let settings: Vec<Settings> =
                line.parameters.iter().map(|(_, one)| one.clone()).collect();
            (
                line.program.clone(),
                line.config,
                settings,
                line.validations.clone(),
            )
        };
        let first = words
            .first()
            .map(|word| word.to_string_lossy().into_owned());
        let program = program.or(first).unwrap_or_default();
        for item in read(words.get(1..).unwrap_or_default(), &parameters)? {
            match item {
                Item::Help => end(&usage(&program, &parameters)),
                Item::Version => end(&format!("{program}: xgvmi {}\n", env!("CARGO_PKG_VERSION"))),
                Item::Level { is_sdk, level } => log::set_all(level, is_sdk)?,
                Item::Of(at, value) => {
                    let one = &parameters[at];
                    let Some(callback) = one.callback else {
                        continue;
                    };
                    let code = match value {
                        Value::String(text) => {
                            let mut bytes = text.into_bytes_with_nul();
                            // SAFETY: a string that the callback may change in place, as the header says.
                            unsafe { callback(bytes.as_mut_ptr().cast(), config.0) }
                        }
                        Value::Int(mut number) => {
                            // SAFETY: an int, as the header says.
                            unsafe { callback((&raw mut number).cast(), config.0) }
                        }
                        Value::True => {
                            let mut yes = true;
                            // SAFETY: a bool, as the header says.
                            unsafe { callback((&raw mut yes).cast(), config.0) }
                        }
                    };
                    result_of(code, &format!("the value of {}", one.shown()))?;
                }
            }
        }
        for validation in validations {
            // SAFETY: the program's own function and pointer.
            let code = unsafe { validation(config.0) };
            result_of(code, "its configuration")?;
        }
        Ok(())
    })
}

/// Shows a text and ends the process, as the user has asked.
fn end(text: &str) -> ! {
    use std::io::Write as _;
    let mut out = std::io::stdout();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    // SAFETY: the handlers of the process run; this thread holds no lock of the library.
    unsafe { libc::exit(0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters() -> Vec<Settings> {
        let one = |short: &str, long: &str, of| Settings {
            short: Some(short.to_owned()),
            long: Some(long.to_owned()),
            of,
            ..Settings::default()
        };
        vec![
            one("pf_dev", "pf-device", Type::String),
            one("m", "msgsize", Type::Int),
            one("x", "fast", Type::Boolean),
        ]
    }

    fn words(line: &str) -> Vec<CString> {
        line.split(' ')
            .map(|word| CString::new(word).expect("no NUL"))
            .collect()
    }

    #[test]
    fn values_follow_as_a_word_or_after_an_equals_sign() {
        let items = read(
            &words("-pf_dev mlx5_0 --msgsize=0x40 -x --sdk-log-level 60"),
            &parameters(),
        );
        let expect = [
            Item::Of(0, Value::String(c"mlx5_0".to_owned())),
            Item::Of(1, Value::Int(64)),
            Item::Of(2, Value::True),
            Item::Level {
                is_sdk: true,
                level: 60,
            },
        ];
        assert_eq!(items.expect("good words"), expect);
    }

    #[test]
    fn bad_words_are_refused_by_name() {
        for (line, said) in [
            ("--wrong", "\"--wrong\" is no parameter"),
            ("-m", "-m needs a value"),
            ("-m 1x", "\"1x\" of -m is no number"),
            ("-m 4294967296", "is no number between"),
            ("-m 1 --msgsize 2", "-m, --msgsize is given 2 times"),
            ("-x=3", "-x takes no value"),
        ] {
            let fault = read(&words(line), &parameters()).expect_err(line);
            assert!(fault.text.contains(said), "{line}: {}", fault.text);
        }
        let mut needed = parameters();
        needed[1].is_mandatory = true;
        let fault = read(&words("-x"), &needed).expect_err("missing");
        assert!(
            fault.text.contains("--msgsize is mandatory"),
            "{}",
            fault.text
        );
        read(&words("--help"), &needed).expect("help needs nothing else");
    }
}
