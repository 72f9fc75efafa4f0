//! The page on the architecture repeats what the rules and the crates say: one line for each crate, a picture of the
//! crates in layers, and a picture of the path of a key through the layers of the plugin and the pool.
//!
//! A picture that is out of date is written anew below the target directory, and the fault names the copy.

use crate::{graph, layers};
use doc_numbers::tree::Tree;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

const PAGE: &str = "docs/ARCHITECTURE.md";
/// Folders of the product. The crates of all others serve development.
const PRODUCT: [&str; 8] = [
    "bindings",
    "shared",
    "services",
    "clients",
    "cli",
    "xgvmi-pool",
    "uct-plugin",
    "ucx-sys",
];
const PLUGIN: &str = "uct-plugin/src";
const POOL: &str = "xgvmi-pool/src";

/// A path through the code: title, and functions from the first to the last call, with root and module.
type Route = (
    &'static str,
    &'static [(&'static str, &'static str, &'static str)],
);

const ROUTES: [Route; 4] = [
    (
        "host: export of a buffer",
        &[
            (PLUGIN, "operations", "uct_ib_mlx5_devx_mkey_pack"),
            (PLUGIN, "export", "pack"),
            (POOL, "hooks", "bind"),
            (POOL, "pool", "bind"),
            (POOL, "binding", "draw"),
            (POOL, "local_cache", "take"),
            (POOL, "mlx5::device", "run"),
        ],
    ),
    (
        "host: end of a registration",
        &[
            (PLUGIN, "operations", "uct_ib_mlx5_devx_mem_dereg"),
            (PLUGIN, "release", "dereg"),
            (POOL, "hooks", "unbind"),
            (POOL, "pool", "unbind"),
            (POOL, "binding", "release"),
            (POOL, "mlx5::device", "run"),
        ],
    ),
    (
        "DPU: import of a key",
        &[
            (PLUGIN, "operations", "uct_ib_mlx5_devx_mem_attach"),
            (PLUGIN, "import", "attach"),
            (POOL, "hooks", "pin"),
            (POOL, "alias", "pin"),
            (POOL, "alias", "find_or_make"),
            (POOL, "mlx5::device", "create_alias"),
        ],
    ),
    (
        "DPU: end of an import",
        &[
            (PLUGIN, "operations", "uct_ib_mlx5_devx_mem_dereg"),
            (PLUGIN, "release", "dereg_import"),
            (POOL, "alias_entry", "unpin"),
        ],
    ),
];

/// Each crate has a line on the page: a link to its folder and the first sentence of its own documentation.
pub(super) fn crates(tree: &Tree) -> Vec<String> {
    let Some(page) = tree.get(PAGE) else {
        return vec![format!("{PAGE} is absent")];
    };
    let folders = folders(tree).into_values();
    let lines = folders.filter_map(|folder| match sentence(tree, &folder) {
        Some(sentence) => {
            let line = format!("- [`{folder}`](../{folder}): {sentence}");
            (!page.text.lines().any(|have| have == line))
                .then(|| format!("{PAGE}: no line like this one: {line}"))
        }
        None => Some(format!(
            "{folder}: its first file does not say in a sentence what the crate owns"
        )),
    });
    lines.collect()
}

/// The pictures are those of the tables.
pub(super) fn current(tree: &Tree, place: &Path) -> Vec<String> {
    let drawn = [
        ("docs/layers.svg", layer_picture(tree, graph::EDGES)),
        ("docs/path-of-a-key.svg", route_picture(tree)),
    ];
    let check = |(path, svg): (&str, Result<String, String>)| {
        let svg = match svg {
            Ok(svg) => svg,
            Err(fault) => return Some(fault),
        };
        if tree.get(path).is_some_and(|file| file.text == svg) {
            return None;
        }
        let copy = place.join(path.rsplit('/').next().unwrap_or(path));
        Some(match fs::write(&copy, svg) {
            Ok(()) => format!("{path} is out of date: cp {} {path}", copy.display()),
            Err(error) => format!("{path} is out of date; {}: {error}", copy.display()),
        })
    };
    drawn.into_iter().filter_map(check).collect()
}

/// Packages of the workspace with their folders.
fn folders(tree: &Tree) -> BTreeMap<String, String> {
    let manifests = tree
        .files
        .iter()
        .filter_map(|file| Some((file.path.strip_suffix("/Cargo.toml")?, &file.text)));
    manifests
        .filter(|(folder, _)| !folder.starts_with("fuzz/") && *folder != "fuzz")
        .filter_map(|(folder, text)| {
            let name = text
                .lines()
                .find_map(|line| line.strip_prefix("name = \""))?;
            Some((name.trim_end_matches('"').to_owned(), folder.to_owned()))
        })
        .collect()
}

/// The first sentence of a crate's documentation, as plain text.
fn sentence(tree: &Tree, folder: &str) -> Option<String> {
    let roots = ["src/lib.rs", "src/main.rs", "system/main.rs"];
    let file = roots
        .iter()
        .find_map(|root| tree.get(&format!("{folder}/{root}")))?;
    let lines = file.text.lines().map_while(|line| line.strip_prefix("//!"));
    let paragraph: Vec<&str> = lines
        .map(str::trim)
        .take_while(|line| !line.is_empty())
        .collect();
    let text = paragraph.join(" ").replace("[`", "`").replace("`]", "`");
    let end = text.find(". ").map_or(text.len(), |at| at + 1);
    text[..end].ends_with('.').then(|| text[..end].to_owned())
}

/// The layer of each crate, counted from the bottom: one above the highest crate that it may use.
fn levels<'a>(edges: &[(&'a str, &[&'a str])]) -> Result<BTreeMap<&'a str, usize>, String> {
    let mut levels: BTreeMap<&str, usize> = edges.iter().map(|(name, _)| (*name, 0)).collect();
    for _ in 0..=edges.len() {
        let mut changed = false;
        for (name, uses) in edges {
            let below = uses.iter().filter_map(|used| levels.get(used)).max();
            let level = below.map_or(0, |below| below + 1);
            changed |= levels.insert(name, level) != Some(level);
        }
        if !changed {
            return Ok(levels);
        }
    }
    Err("tests/rules/graph.rs: crates may use each other in a circle".to_owned())
}

const BOX: (usize, usize) = (116, 26);
const GAP: usize = 8;

/// Crates in rows: a crate uses crates of lower rows only. Product on the left, development on the right.
fn layer_picture(tree: &Tree, edges: &[(&str, &[&str])]) -> Result<String, String> {
    let (levels, folders) = (levels(edges)?, folders(tree));
    let top = levels.values().max().copied().unwrap_or(0);
    let is_product = |name: &str| {
        let folder = folders.get(name).map_or("", String::as_str);
        PRODUCT.contains(&folder.split('/').next().unwrap_or_default())
    };
    // The crates of a side in each row.
    let side = |product: bool| -> Vec<Vec<&str>> {
        let row = |level: usize| {
            let on_level = edges.iter().filter(|(name, _)| levels[name] == level);
            let names = on_level.map(|(name, _)| *name);
            names.filter(|name| is_product(name) == product).collect()
        };
        (0..=top).rev().map(row).collect()
    };
    let sides = [side(true), side(false)];
    let widths = sides.each_ref().map(|rows| {
        let most = rows.iter().map(Vec::len).max().unwrap_or(0);
        most * (BOX.0 + GAP) + GAP
    });
    let (width, height) = (
        widths[0] + widths[1] + 3 * GAP,
        (top + 1) * (BOX.1 + 2 * GAP) + 36,
    );
    let mut svg = head(
        width,
        height,
        "Crates in layers: a crate uses crates of lower rows only",
    );
    let looks = [
        ("product", "#e0ecfb", "#1d4ed8"),
        ("device, tests and tools", "#eceff3", "#8a94a3"),
    ];
    let mut left = GAP;
    for ((rows, side_width), (title, fill, stroke)) in sides.iter().zip(widths).zip(looks) {
        text(&mut svg, left + side_width / 2, 18, title, "#111");
        for (at, names) in rows.iter().enumerate() {
            let y = 28 + at * (BOX.1 + 2 * GAP);
            let used = names.len() * (BOX.0 + GAP) - if names.is_empty() { 0 } else { GAP };
            let start = left + (side_width - used) / 2;
            for (place, name) in names.iter().enumerate() {
                let x = start + place * (BOX.0 + GAP);
                let uses = edges.iter().find(|(known, _)| known == name);
                let uses = uses.map_or_else(String::new, |(_, uses)| uses.join(", "));
                let shown = format!("{name} uses: {uses}");
                boxed(&mut svg, (x, y, BOX.0, BOX.1), (fill, stroke), &shown);
                text(&mut svg, x + BOX.0 / 2, y + 17, name, "#111");
            }
        }
        left += side_width + GAP;
    }
    svg.push_str("</svg>\n");
    Ok(svg)
}

/// The routes as columns, over the layers of the plugin and of the pool.
fn route_picture(tree: &Tree) -> Result<String, String> {
    const LINE: usize = 17;
    const LABEL: usize = 150;
    const COLUMN: usize = 244;
    // Layers that a route passes, from the top: root, layer, its name.
    let mut rows: Vec<(&str, usize, &str)> = Vec::new();
    for (title, steps) in &ROUTES {
        let mut before: Option<(&str, usize)> = None;
        for (root, module, function) in *steps {
            let (layer, name) = layers::layer(root, module)
                .ok_or_else(|| format!("{title}: no layer has the module {module} of {root}"))?;
            if !defines(tree, root, module, function) {
                return Err(format!(
                    "{title}: {root}: {module} has no function {function}"
                ));
            }
            if before.is_some_and(|(above, from)| above == *root && from < layer) {
                return Err(format!(
                    "{title}: {module}::{function} is above the step before it"
                ));
            }
            before = Some((root, layer));
            if !rows.contains(&(root, layer, name)) {
                rows.push((root, layer, name));
            }
        }
    }
    rows.sort_by_key(|(root, layer, _)| (*root != PLUGIN, usize::MAX - layer));
    let most = |row: &(&str, usize, &str)| {
        let counts = ROUTES.iter().map(|(_, steps)| in_row(steps, row).count());
        counts.max().unwrap_or(0)
    };
    let heights: Vec<usize> = rows.iter().map(|row| most(row) * LINE + 14).collect();
    let width = LABEL + ROUTES.len() * COLUMN + GAP;
    let height = 64 + heights.iter().map(|height| height + GAP).sum::<usize>() + 30;
    let mut svg = head(
        width,
        height,
        "Path of a key through the layers of the plugin and the pool",
    );
    let middle = |column: usize| LABEL + column * COLUMN + COLUMN / 2;
    for (column, (title, _)) in ROUTES.iter().enumerate() {
        text(&mut svg, middle(column), 18, title, "#111");
        text(&mut svg, middle(column), 42, "UCX calls", "#555");
        arrow(&mut svg, middle(column), 46, 56);
    }
    let mut y = 58;
    for (row, height) in rows.iter().zip(&heights) {
        let (root, _, name) = row;
        let (fill, stroke) = match *root == PLUGIN {
            true => ("#fde7d8", "#c2410c"),
            false => ("#e0ecfb", "#1d4ed8"),
        };
        let shown = format!("{root}, layer: {name}");
        boxed(
            &mut svg,
            (GAP, y, width - 2 * GAP, *height),
            (fill, stroke),
            &shown,
        );
        let package = root.trim_end_matches("/src");
        text(&mut svg, LABEL / 2, y + height / 2 - 3, package, "#555");
        text(&mut svg, LABEL / 2, y + height / 2 + 12, name, "#111");
        for (column, (_, steps)) in ROUTES.iter().enumerate() {
            for (at, (_, module, function)) in in_row(steps, row).enumerate() {
                let shown = function.trim_start_matches("uct_ib_mlx5_devx_");
                let place = y + 19 + at * LINE;
                text(
                    &mut svg,
                    middle(column),
                    place,
                    &format!("{module}::{shown}"),
                    "#111",
                );
            }
        }
        y += height + GAP;
    }
    let ends = [
        "bind: a UMR request",
        "invalidation: a UMR request",
        "a command, at the first import",
    ];
    for (column, end) in ends.iter().enumerate() {
        arrow(&mut svg, middle(column), y - GAP, y + 4);
        text(&mut svg, middle(column), y + 18, end, "#555");
    }
    text(
        &mut svg,
        middle(3),
        y + 18,
        "the alias stays in the map",
        "#555",
    );
    svg.push_str("</svg>\n");
    Ok(svg)
}

/// The steps in a row of the picture.
fn in_row<'a>(
    steps: &'a [(&'a str, &'a str, &'a str)],
    row: &'a (&str, usize, &str),
) -> impl Iterator<Item = &'a (&'a str, &'a str, &'a str)> {
    steps.iter().filter(move |(root, module, _)| {
        *root == row.0 && layers::layer(root, module).is_some_and(|(layer, _)| layer == row.1)
    })
}

/// Whether the file of a module has a function of that name.
fn defines(tree: &Tree, root: &str, module: &str, function: &str) -> bool {
    let path = module.replace("::", "/");
    let files = [format!("{root}/{path}.rs"), format!("{root}/{path}/mod.rs")];
    let forms = [format!("fn {function}("), format!("fn {function}<")];
    let mut found = files.iter().filter_map(|path| tree.get(path));
    found.any(|file| forms.iter().any(|form| file.text.contains(form)))
}

fn head(width: usize, height: usize, title: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"Helvetica, Arial, sans-serif\" font-size=\"13\" role=\"img\">\n<title>{title}</title>\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"#fff\"/>\n"
    )
}

fn text(svg: &mut String, x: usize, y: usize, text: &str, fill: &str) {
    let _ = writeln!(
        svg,
        "<text x=\"{x}\" y=\"{y}\" text-anchor=\"middle\" fill=\"{fill}\">{text}</text>"
    );
}

fn arrow(svg: &mut String, x: usize, from: usize, to: usize) {
    let _ = writeln!(
        svg,
        "<path d=\"M{x} {from}V{to}m-4 -5l4 5l4 -5\" fill=\"none\" stroke=\"#555\"/>"
    );
}

/// A rectangle with a text that a browser shows under the pointer.
fn boxed(
    svg: &mut String,
    (x, y, width, height): (usize, usize, usize, usize),
    (fill, stroke): (&str, &str),
    shown: &str,
) {
    let _ = writeln!(
        svg,
        "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" rx=\"4\" fill=\"{fill}\" stroke=\"{stroke}\">\
         <title>{shown}</title></rect>"
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::planted;

    #[test]
    fn a_crate_without_its_line_is_found() {
        let check = |page: &str, lib: &str, expect: &[&str]| {
            let tree = planted(&[
                (PAGE, page),
                ("a/b/Cargo.toml", "[package]\nname = \"bb\"\n"),
                ("a/b/src/lib.rs", lib),
            ]);
            assert_eq!(crates(&tree), expect, "{page}");
        };
        let lib = "//! Owns [`X`] and\n//! more. Second.\n//!\n//! Third.\n";
        let line = "- [`a/b`](../a/b): Owns `X` and more.";
        check(line, lib, &[]);
        let fault = format!("{PAGE}: no line like this one: {line}");
        check("- [`a/b`](../a/b): Owns `Y`.\n", lib, &[&fault]);
        let silent = "a/b: its first file does not say in a sentence what the crate owns";
        check(line, "use std::fs;\n", &[silent]);
        check(line, "//! Title\n", &[silent]);
    }

    #[test]
    fn a_crate_is_above_all_that_it_uses() {
        let edges: [(&str, &[&str]); 3] = [
            ("top", &["middle", "low"]),
            ("low", &[]),
            ("middle", &["low"]),
        ];
        assert_eq!(
            levels(&edges).unwrap(),
            BTreeMap::from([("low", 0), ("middle", 1), ("top", 2)])
        );
        let circle: [(&str, &[&str]); 2] = [("a", &["b"]), ("b", &["a"])];
        assert!(levels(&circle).unwrap_err().contains("circle"));
    }

    #[test]
    fn an_old_picture_is_found_and_written_anew() {
        let place = tempfile::tempdir().unwrap();
        let real = crate::tree();
        let faults = current(&planted(&[("docs/layers.svg", "<svg/>")]), place.path());
        assert!(faults[0].contains("cp "), "{faults:?}");
        assert!(place.path().join("layers.svg").exists());
        // A step that no file has any more.
        assert!(faults[1].contains("has no function"), "{faults:?}");
        let svg = route_picture(real).unwrap();
        assert!(
            svg.contains("binding::draw") && svg.contains("alias::find_or_make"),
            "{svg}"
        );
        let svg = layer_picture(real, graph::EDGES).unwrap();
        assert!(
            svg.contains(">uct-plugin<") && svg.contains(">bf-emu<"),
            "{svg}"
        );
    }
}
