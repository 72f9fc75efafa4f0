//! What each development command needs: child processes with a time limit, one progress line for parallel work, and the
//! paths of the workspace.

pub mod process;
pub mod progress;
pub mod workspace;
