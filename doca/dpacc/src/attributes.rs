//! Attributes of a program: the file that a programmer writes, and the bytes that the program carries.

use crate::fault::{Fault, Place};
use std::path::Path;

/// The key of the list.
const LIST: &str = "Feature_list:";

/// Attributes that a device may know.
const KNOWN: &[&str] = &["Generating_Empty_CQE"];

/// Most bytes of a file.
pub(crate) const MAX_BYTES: usize = 64 << 10;

/// Reads the file: `Feature_list:`, then lines `NAME: true` or `NAME: false`, and comments from `#`. Returns the bytes
/// for `-dpa-proc-attr`: one line `NAME=1` or `NAME=0` for each attribute, in the order of the file.
///
/// # Errors
/// The first line that is not understood. Attributes are requests to the device, so none is ignored.
pub fn blob(text: &str, file: &Path) -> Result<String, Fault> {
    let fault = |line: usize, what: String| Fault {
        place: Some(Place {
            file: file.to_owned(),
            line: Some(line as u64 + 1),
        }),
        what,
    };
    if text.len() > MAX_BYTES {
        return Err(Fault::in_file(
            file,
            format!("has more than {MAX_BYTES} bytes"),
        ));
    }
    let (mut blob, mut in_list, mut seen) = (String::new(), false, Vec::new());
    for (at, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        if line == LIST && !in_list {
            in_list = true;
            continue;
        }
        let Some((name, value)) = line.split_once(':').filter(|_| in_list) else {
            return Err(fault(
                at,
                format!("'{line}' is not 'NAME: true' or 'NAME: false' after {LIST}"),
            ));
        };
        let (name, value) = (name.trim(), value.trim());
        if !KNOWN.contains(&name) {
            return Err(fault(
                at,
                format!("unknown attribute '{name}'; known are {}", KNOWN.join(", ")),
            ));
        }
        if seen.contains(&name) {
            return Err(fault(at, format!("attribute '{name}' is there twice")));
        }
        seen.push(name);
        let value = match value {
            "true" => 1,
            "false" => 0,
            _ => return Err(fault(at, format!("'{value}' is neither true nor false"))),
        };
        blob.push_str(&format!("{name}={value}\n"));
    }
    match in_list {
        true => Ok(blob),
        false => Err(Fault::in_file(file, format!("has no {LIST}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_become_lines() {
        let read = |text| blob(text, Path::new("a.yaml")).map_err(|fault| fault.to_string());
        assert_eq!(read("# none\nFeature_list:\n"), Ok(String::new()));
        let one = "Feature_list: # requests\n\n  Generating_Empty_CQE: true # one\n";
        assert_eq!(read(one), Ok("Generating_Empty_CQE=1\n".to_owned()));
        let expect = [
            ("", "a.yaml: error: has no Feature_list:"),
            (
                "Other:\n",
                "a.yaml:1: error: 'Other:' is not 'NAME: true' or 'NAME: false' after Feature_list:",
            ),
            (
                "Feature_list:\n  Fly: true\n",
                "a.yaml:2: error: unknown attribute 'Fly'; known are Generating_Empty_CQE",
            ),
            (
                "Feature_list:\n  Generating_Empty_CQE: maybe\n",
                "a.yaml:2: error: 'maybe' is neither true nor false",
            ),
            (
                "Feature_list:\n Generating_Empty_CQE: true\n Generating_Empty_CQE: true\n",
                "a.yaml:3: error: attribute 'Generating_Empty_CQE' is there twice",
            ),
        ];
        for (text, fault) in expect {
            assert_eq!(read(text), Err(fault.to_owned()), "{text}");
        }
    }
}
