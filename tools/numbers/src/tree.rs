//! The text files of the workspace, for rules and for generated parts of documents.

use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};

/// The text files of the tree.
#[derive(Debug, Default)]
pub struct Tree {
    /// Sorted by path.
    pub files: Vec<Source>,
}

/// A text file.
#[derive(Debug)]
pub struct Source {
    /// Path relative to the root, with `/`.
    pub path: String,
    /// The whole text.
    pub text: String,
}

impl Tree {
    /// Reads all text files below the root, except for build output.
    ///
    /// # Errors
    /// If a directory cannot be listed.
    pub fn read(root: &Path) -> Result<Self> {
        let mut tree = Self::default();
        let mut dirs = vec![PathBuf::new()];
        while let Some(dir) = dirs.pop() {
            let absolute = root.join(&dir);
            let entries = fs::read_dir(&absolute)
                .with_context(|| format!("cannot list {}", absolute.display()))?;
            for entry in entries {
                let entry = entry?;
                let path = dir.join(entry.file_name());
                let kind = entry.file_type()?;
                // `.git` is a file in a linked work tree.
                if [".git", "target"].contains(&entry.file_name().to_string_lossy().as_ref()) {
                    continue;
                }
                if kind.is_dir() {
                    dirs.push(path);
                } else if kind.is_file()
                    && let Ok(text) = fs::read_to_string(root.join(&path))
                {
                    // Files that are not UTF-8 are not text.
                    tree.files.push(Source {
                        path: path.display().to_string(),
                        text,
                    });
                }
            }
        }
        tree.files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(tree)
    }

    /// The source files in Rust.
    pub fn rust(&self) -> impl Iterator<Item = &Source> {
        self.files.iter().filter(|file| file.path.ends_with(".rs"))
    }

    /// The documents.
    pub fn markdown(&self) -> impl Iterator<Item = &Source> {
        self.files.iter().filter(|file| file.path.ends_with(".md"))
    }

    /// The file with a path.
    pub fn get(&self, path: &str) -> Option<&Source> {
        self.files.iter().find(|file| file.path == path)
    }
}

impl Source {
    /// Whether a tool generates the file.
    pub fn is_generated(&self) -> bool {
        self.path.ends_with("/bindings.rs")
    }

    /// `path:line: fault` for each line in which `fault` finds one.
    pub fn faults(&self, mut fault: impl FnMut(&str) -> Option<String>) -> Vec<String> {
        let numbered = self.text.lines().enumerate();
        numbered
            .filter_map(|(at, line)| Some(format!("{}:{}: {}", self.path, at + 1, fault(line)?)))
            .collect()
    }
}
