//! The device commands for keys and aliases in a row.

use serde_json::Value;

/// Device commands that create, export and destroy keys and aliases.
const KEY_COMMANDS: [&str; 5] = [
    "create_mkey",
    "destroy_mkey",
    "allow_other_vhca_access",
    "create_alias",
    "destroy_alias",
];

/// The sum of the commands for keys and aliases of a row.
pub(crate) fn key_commands(row: &Value, commands: &str) -> Option<f64> {
    let counts = KEY_COMMANDS.map(|key| row[commands][key].as_f64());
    counts.into_iter().sum()
}
