//! The library's options, parsed from the page that the library generates from its option table.

/// The generated page.
const PAGE: &str = include_str!("../../../docs/OPTIONS.md");

/// One option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    pub(crate) name: &'static str,
    /// Type or allowed values.
    pub(crate) takes: String,
    pub(crate) default: &'static str,
    /// Description, in lines.
    pub(crate) help: &'static str,
}

/// All options, in the page's order: those of the host, of the DPU, and of both.
pub(crate) fn all() -> Vec<Setting> {
    let sections = PAGE.split("\n## ").skip(1);
    let options = sections.flat_map(|section| section.split("\n### ").skip(1));
    options.filter_map(parse).collect()
}

/// Parses an option: name, a line with type and default, description.
fn parse(option: &'static str) -> Option<Setting> {
    let mut parts = option.splitn(3, "\n\n");
    let (name, line, help) = (parts.next()?, parts.next()?, parts.next()?);
    let (takes, default) = line.split_once("; default: ")?;
    let default = match default {
        "empty" => "",
        quoted => quoted.trim_matches('`'),
    };
    Some(Setting {
        name,
        takes: takes.replace('`', ""),
        default,
        help: help.trim_end(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_of_the_page_is_found() {
        let all = all();
        assert_eq!(all.len(), PAGE.matches("\n### UCX_XGVMI_").count());
        let find = |name| all.iter().find(|setting| setting.name == name);
        let invalidate = find("UCX_XGVMI_INVALIDATE").expect("an option");
        assert_eq!(invalidate.takes, "strict, batched, chained");
        assert_eq!(invalidate.default, "strict");
        assert!(invalidate.help.starts_with("When to invalidate"));
        assert_eq!(find("UCX_XGVMI_KEY_FILE").expect("an option").default, "");
        assert_eq!(find("UCX_XGVMI_STATS").expect("an option").default, "y");
        assert!(all.iter().all(|setting| !setting.help.contains('#')));
    }
}
