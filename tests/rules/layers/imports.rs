//! Finds the modules that each module uses, from the text of the files: `use` declarations and paths outside of tests.

use doc_numbers::tree::Source;
use proc_macro2::{Delimiter, Spacing, Span, TokenStream, TokenTree};
use std::collections::BTreeMap;

/// One use of a module by another. Modules are paths from the crate's root, `a::b`; the root is empty.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Import {
    pub(super) from: String,
    pub(super) to: String,
    /// File of the using module.
    pub(super) path: String,
    pub(super) line: usize,
}

/// The modules of a crate, without modules that exist only for tests.
#[derive(Debug)]
pub(super) struct Modules {
    /// The library's name.
    name: String,
    files: Vec<Module>,
}

#[derive(Debug)]
struct Module {
    path: String,
    module: Vec<String>,
    tokens: Vec<Token>,
    /// Names that the module re-exports: name to path.
    hands_on: BTreeMap<String, Vec<String>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Token {
    text: String,
    line: usize,
    /// The modules inside the file that contain the token, from the outermost.
    inside: Vec<String>,
}

/// Maximum number of steps from a re-exported name to its definition.
const HANDS_MAX: usize = 8;

impl Modules {
    /// Reads the files of a crate with this root.
    pub(super) fn read(root: &str, name: &str, files: &[&Source]) -> Self {
        let mut modules = Self {
            name: name.to_owned(),
            files: Vec::new(),
        };
        for file in files {
            let Some(module) = module_of(root, &file.path) else {
                continue;
            };
            modules.files.push(Module {
                path: file.path.clone(),
                tokens: placed(without_tests(&tokens(&file.text))),
                module,
                hands_on: BTreeMap::new(),
            });
        }
        for at in 0..modules.files.len() {
            let file = &modules.files[at];
            let mut hands_on = BTreeMap::new();
            let own = used(&file.tokens).into_iter();
            for (path, name, _) in own.filter(|(_, _, at)| file.tokens[*at].inside.is_empty()) {
                if let Some(path) = modules.absolute(&file.module, &path) {
                    hands_on.insert(name, path);
                }
            }
            modules.files[at].hands_on = hands_on;
        }
        modules
    }

    /// Modules other than the roots, with their files.
    pub(super) fn names(&self) -> impl Iterator<Item = (String, &str)> {
        let inner = self.files.iter().filter(|file| !file.module.is_empty());
        inner.map(|file| (file.module.join("::"), file.path.as_str()))
    }

    /// Every use of one module by another.
    pub(super) fn imports(&self) -> Vec<Import> {
        let mut imports: Vec<Import> = Vec::new();
        for file in &self.files {
            for (path, at) in paths(&file.tokens) {
                let token = &file.tokens[at];
                let module = [file.module.as_slice(), &token.inside].concat();
                let Some(path) = self.absolute(&module, &path) else {
                    continue;
                };
                let line = token.line;
                let to = self.defined_in(path);
                let known = |one: &Import| one.path == file.path && one.to == to.join("::");
                if to != file.module && !imports.iter().any(known) {
                    imports.push(Import {
                        from: file.module.join("::"),
                        to: to.join("::"),
                        path: file.path.clone(),
                        line,
                    });
                }
            }
        }
        imports
    }

    fn is_module(&self, module: &[String]) -> bool {
        self.files.iter().any(|file| file.module == module)
    }

    /// A path from the root; `None` for a path into another crate.
    fn absolute(&self, module: &[String], path: &[String]) -> Option<Vec<String>> {
        let (first, rest) = path.split_first()?;
        match first.as_str() {
            "crate" => Some(rest.to_vec()),
            "self" => Some([module, rest].concat()),
            "super" => {
                let ups = path.iter().take_while(|part| *part == "super").count();
                let above = module.len().checked_sub(ups)?;
                Some([&module[..above], &path[ups..]].concat())
            }
            name if name == self.name => Some(rest.to_vec()),
            // A child of the module in question.
            _ => {
                let child = [module, &path[..1]].concat();
                self.is_module(&child).then(|| [module, path].concat())
            }
        }
    }

    /// The module that defines the item at the end of a path, if it can be determined.
    fn defined_in(&self, mut path: Vec<String>) -> Vec<String> {
        for _ in 0..HANDS_MAX {
            let length = (0..=path.len())
                .rev()
                .find(|length| *length == 0 || self.is_module(&path[..*length]));
            let (module, rest) = path.split_at(length.unwrap_or(0));
            let Some(name) = rest.first() else {
                return module.to_vec();
            };
            // A crate may have two roots, for its library and its binary.
            let files = self.files.iter().filter(|file| file.module == module);
            let next = files.filter_map(|file| file.hands_on.get(name)).next();
            match next {
                Some(next) if *next != path[..module.len() + 1] => path = next.clone(),
                _ => return module.to_vec(),
            }
        }
        Vec::new()
    }
}

/// The module of a file; `None` for a test file.
fn module_of(root: &str, path: &str) -> Option<Vec<String>> {
    let inside = path.strip_prefix(root)?.strip_prefix('/')?;
    let mut parts: Vec<String> = inside
        .strip_suffix(".rs")?
        .split('/')
        .map(str::to_owned)
        .collect();
    if parts.iter().any(|part| part == "tests") {
        return None;
    }
    let last = parts.last()?.as_str();
    if last == "mod" || (parts.len() == 1 && ["lib", "main"].contains(&last)) {
        parts.pop();
    }
    Some(parts)
}

/// Words, `::` and other single characters than `:`, without comments and literals. A text that is no Rust has none.
fn tokens(text: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    flatten(text.parse().unwrap_or_default(), &mut tokens);
    tokens
}

/// Adds the tokens of a stream, with the brackets of its groups.
fn flatten(stream: TokenStream, tokens: &mut Vec<Token>) {
    let token = |text: &str, span: Span| Token {
        text: text.to_owned(),
        line: span.start().line,
        inside: Vec::new(),
    };
    let mut colons = 0;
    for tree in stream {
        match tree {
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Parenthesis => ("(", ")"),
                    Delimiter::Bracket => ("[", "]"),
                    Delimiter::Brace | Delimiter::None => ("{", "}"),
                };
                tokens.push(token(open, group.span_open()));
                flatten(group.stream(), tokens);
                tokens.push(token(close, group.span_close()));
            }
            TokenTree::Punct(sign) if sign.as_char() == ':' => {
                colons += 1;
                if colons == 2 {
                    tokens.push(token("::", sign.span()));
                }
                if sign.spacing() == Spacing::Joint && colons < 2 {
                    continue;
                }
            }
            TokenTree::Punct(sign) => tokens.push(token(&sign.to_string(), sign.span())),
            TokenTree::Ident(word) => tokens.push(token(&word.to_string(), word.span())),
            TokenTree::Literal(_) => {}
        }
        colons = 0;
    }
}

/// The tokens without items that exist only in tests (`#[cfg(test)]` and similar).
fn without_tests(tokens: &[Token]) -> Vec<Token> {
    let mut kept = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        match test_item(tokens, at) {
            Some(end) => at = end,
            None => {
                kept.push(tokens[at].clone());
                at += 1;
            }
        }
    }
    kept
}

/// Index after the item that begins at `at`, if it exists only in tests.
fn test_item(tokens: &[Token], at: usize) -> Option<usize> {
    let is = |offset: usize, text: &str| tokens.get(at + offset).is_some_and(|t| t.text == text);
    if !(is(0, "#") && is(1, "[") && is(2, "cfg")) {
        return None;
    }
    let end = closing(tokens, at + 1);
    let is_for_tests = tokens[at..end].iter().any(|token| token.text == "test");
    is_for_tests.then(|| item_end(tokens, end))
}

/// The number of lines of a file's items that exist only in tests, and the modules among these items that are files of
/// their own.
pub(in super::super) fn tests_in(text: &str) -> (usize, Vec<String>) {
    let (mut lines, mut modules) = (0, Vec::new());
    if !text.contains("#[cfg(") {
        return (lines, modules);
    }
    let tokens = tokens(text);
    let mut at = 0;
    while at < tokens.len() {
        let Some(end) = test_item(&tokens, at) else {
            at += 1;
            continue;
        };
        if let Some(last) = tokens.get(end - 1) {
            lines += last.line - tokens[at].line + 1;
        }
        if let [.., keyword, name, stop] = &tokens[at..end.min(tokens.len())]
            && keyword.text == "mod"
            && stop.text == ";"
        {
            modules.push(name.text.clone());
        }
        at = end;
    }
    (lines, modules)
}

/// The tokens, each with its modules inside the file.
fn placed(mut tokens: Vec<Token>) -> Vec<Token> {
    for at in 0..tokens.len() {
        let is =
            |offset: usize, text: &str| tokens.get(at + offset).is_some_and(|t| t.text == text);
        if is(0, "mod") && is(2, "{") {
            let name = tokens[at + 1].text.clone();
            let end = closing(&tokens, at + 2);
            for token in &mut tokens[at + 3..end] {
                token.inside.push(name.clone());
            }
        }
    }
    tokens
}

/// Index after the bracket that closes the one at `at`.
fn closing(tokens: &[Token], at: usize) -> usize {
    let mut depth = 0_usize;
    for (index, token) in tokens.iter().enumerate().skip(at) {
        match token.text.as_str() {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth = depth.saturating_sub(1),
            _ => continue,
        }
        if depth == 0 {
            return index + 1;
        }
    }
    tokens.len()
}

/// Index after the item at `at`, which ends with its braces or its semicolon.
fn item_end(tokens: &[Token], at: usize) -> usize {
    let mut index = at;
    while let Some(token) = tokens.get(index) {
        match token.text.as_str() {
            ";" => return index + 1,
            "{" => return closing(tokens, index),
            "(" | "[" => index = closing(tokens, index),
            _ => index += 1,
        }
    }
    index
}

/// Every path of two or more names, with expanded braces, and the index of its first token. Includes the paths of `use`
/// and excludes those in visibility modifiers.
fn paths(tokens: &[Token]) -> Vec<(Vec<String>, usize)> {
    let mut paths = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let before = at.checked_sub(1).map(|before| tokens[before].text.as_str());
        if before == Some("use") {
            let end = item_end_of_use(tokens, at);
            for (path, _, inner) in spread(&tokens[at..end]) {
                paths.push((path, at + inner));
            }
            at = end;
            continue;
        }
        let mut end = at;
        let mut path = Vec::new();
        while let Some(token) = tokens.get(end)
            && is_word(&token.text)
        {
            path.push(token.text.clone());
            end += 1;
            match tokens.get(end) {
                Some(token) if token.text == "::" => end += 1,
                _ => break,
            }
        }
        let is_path = path.len() > 1 && before != Some("::");
        if is_path && before != Some("in") {
            paths.push((path, at));
        }
        at = end.max(at + 1);
    }
    paths
}

/// Names that `use` declarations import: path, name, and index of the first token.
fn used(tokens: &[Token]) -> Vec<(Vec<String>, String, usize)> {
    let uses = tokens
        .iter()
        .enumerate()
        .filter(|(_, token)| token.text == "use");
    let trees = uses.map(|(at, _)| (at + 1, &tokens[at + 1..item_end_of_use(tokens, at + 1)]));
    trees
        .flat_map(|(at, tree)| {
            spread(tree)
                .into_iter()
                .map(move |(path, name, inner)| (path, name, at + inner))
        })
        .collect()
}

fn item_end_of_use(tokens: &[Token], at: usize) -> usize {
    let length = tokens[at..].iter().position(|token| token.text == ";");
    length.map_or(tokens.len(), |length| at + length)
}

/// The paths of a `use` tree: path, imported name, and index in the tree of the path's first token.
fn spread(tree: &[Token]) -> Vec<(Vec<String>, String, usize)> {
    let mut prefix: Vec<String> = Vec::new();
    let mut at = 0;
    while let Some(token) = tree.get(at) {
        match token.text.as_str() {
            "::" => {}
            "{" => {
                let end = closing(tree, at).saturating_sub(1).max(at + 1);
                return list(&tree[at + 1..end])
                    .into_iter()
                    .map(|(path, name, inner)| match path.as_slice() {
                        [only] if only == "self" => {
                            let name = prefix.last().cloned().unwrap_or(name);
                            (prefix.clone(), name, at + 1 + inner)
                        }
                        _ => ([prefix.clone(), path].concat(), name, at + 1 + inner),
                    })
                    .collect();
            }
            "*" => break,
            "as" => {
                let name = tree
                    .get(at + 1)
                    .map_or_else(String::new, |token| token.text.clone());
                return vec![(prefix, name, 0)];
            }
            word => prefix.push(word.to_owned()),
        }
        at += 1;
    }
    match prefix.last().cloned() {
        Some(name) => vec![(prefix, name, 0)],
        None => Vec::new(),
    }
}

/// The paths of the trees in a comma-separated list, as for [`spread`].
fn list(list: &[Token]) -> Vec<(Vec<String>, String, usize)> {
    let mut paths = Vec::new();
    let mut begin = 0;
    while begin < list.len() {
        let mut end = begin;
        while list.get(end).is_some_and(|token| token.text != ",") {
            end = match list[end].text.as_str() {
                "{" => closing(list, end),
                _ => end + 1,
            };
        }
        let tree = spread(&list[begin..end]).into_iter();
        paths.extend(tree.map(|(path, name, inner)| (path, name, begin + inner)));
        begin = end + 1;
    }
    paths
}

fn is_word(text: &str) -> bool {
    text.chars()
        .next()
        .is_some_and(|c| c.is_alphabetic() || c == '_')
}
