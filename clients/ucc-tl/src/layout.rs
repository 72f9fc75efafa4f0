//! Offsets of the fields in UCC's internal structures that a component needs, per version of UCC.
//!
//! Offsets are in bytes and apply to 64-bit machines. They were compiled from the headers of each release
//! (`src/components/tl/ucc_tl.h`, `src/components/base/ucc_base_iface.h`, `src/schedule/ucc_schedule.h`,
//! `src/core/ucc_context.h`, `src/core/ucc_progress_queue.h`). No row is used unchecked: values read through it are
//! compared with values from UCC's exported functions, see `ucc.rs`, `team.rs` and `task.rs`.

/// The layouts of one range of versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    /// First and last version, as major and minor number.
    versions: [(u32, u32); 2],
    /// `ucc_tl_iface_t`.
    pub(crate) iface: Iface,
    /// `ucc_base_team_t`.
    pub(crate) team: Team,
    /// `ucc_coll_task_t`.
    pub(crate) task: Task,
    /// `ucc_context_t.pq`.
    pub(crate) context_queue: usize,
    /// `ucc_progress_queue_t`: `enqueue` and `progress`.
    pub(crate) queue: [usize; 2],
    /// `ucc_base_coll_args_t.args`.
    pub(crate) args: usize,
}

/// `ucc_tl_iface_t`, the table of functions that a component exports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Iface {
    pub(crate) name: usize,
    pub(crate) score: usize,
    pub(crate) lib_config: usize,
    pub(crate) context_config: usize,
    pub(crate) lib: usize,
    pub(crate) context: usize,
    pub(crate) team: usize,
    pub(crate) collective: usize,
    pub(crate) size: usize,
}

/// `ucc_base_team_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Team {
    pub(crate) context: usize,
    pub(crate) params_mask: usize,
    pub(crate) oob: usize,
    pub(crate) rank: usize,
    pub(crate) size: usize,
    /// UCC's number of the team.
    pub(crate) id: usize,
}

/// `ucc_coll_task_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Task {
    pub(crate) user_status: usize,
    pub(crate) status: usize,
    pub(crate) args: usize,
    pub(crate) team: usize,
    pub(crate) post: usize,
    pub(crate) progress: usize,
    pub(crate) finalize: usize,
    pub(crate) size: usize,
}

/// UCC 1.5 added `mem_map`, `mem_unmap` and `memh_pack` to the interface; nothing here has moved since.
const LAYOUTS: [Layout; 1] = [Layout {
    versions: [(1, 5), (1, 9)],
    iface: Iface {
        name: 0,
        score: 24,
        lib_config: 32,
        context_config: 88,
        lib: 144,
        context: 176,
        team: 232,
        collective: 264,
        size: 472,
    },
    team: Team {
        context: 0,
        params_mask: 8,
        oob: 80,
        rank: 224,
        size: 228,
        id: 232,
    },
    task: Task {
        user_status: 0,
        status: 4,
        args: 32,
        team: 296,
        post: 320,
        progress: 344,
        finalize: 352,
        size: 464,
    },
    context_queue: 224,
    queue: [0, 16],
    args: 8,
}];

/// The layout for the interface of an unknown UCC. The component's functions then refuse.
pub(crate) const NEWEST: Layout = LAYOUTS[LAYOUTS.len() - 1];

/// Size of each object that the component allocates and UCC fills in: twice the largest of any version.
pub(crate) const OBJECT_BYTES: usize = 1024;

const _: () = assert!(NEWEST.iface.size <= OBJECT_BYTES && NEWEST.task.size <= OBJECT_BYTES);

impl Layout {
    /// The layout of a version; `None` for an unknown version.
    pub(crate) fn of(major: u32, minor: u32) -> Option<Self> {
        LAYOUTS.into_iter().find(|layout| {
            layout.versions[0] <= (major, minor) && (major, minor) <= layout.versions[1]
        })
    }

    /// The supported versions, for a log line.
    pub(crate) fn known() -> String {
        let text = |[(a, b), (c, d)]: [(u32, u32); 2]| format!("{a}.{b} to {c}.{d}");
        let ranges: Vec<String> = LAYOUTS.iter().map(|layout| text(layout.versions)).collect();
        ranges.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bindings::{
        ucc_coll_args_t, ucc_context_params_t, ucc_oob_coll_t, ucc_team_params_t,
    };

    #[test]
    fn versions_have_their_rows() {
        let check = |major, minor, known| assert_eq!(Layout::of(major, minor).is_some(), known);
        check(1, 4, false);
        check(1, 5, true);
        check(1, 9, true);
        check(1, 10, false);
        check(2, 5, false);
        assert_eq!(Layout::known(), "1.5 to 1.9");
    }

    /// Checks that the public structures inside the internal ones match the offsets.
    #[test]
    fn public_structures_fit_between_the_offsets() {
        let team = NEWEST.team;
        assert_eq!(
            team.params_mask + std::mem::offset_of!(ucc_team_params_t, oob),
            team.oob
        );
        // Scope and scope number lie between the parameters and the rank.
        assert_eq!(
            team.params_mask + size_of::<ucc_team_params_t>() + 8,
            team.rank
        );
        assert_eq!((team.rank + 4, team.size + 4), (team.size, team.id));
        assert_eq!(size_of::<ucc_oob_coll_t>(), 40);
        // Mask and arguments, then the team, a count and two saved buffers precede the task's team.
        assert_eq!(size_of::<ucc_coll_args_t>(), 200);
        assert!(NEWEST.task.args + size_of::<ucc_coll_args_t>() < NEWEST.task.team);
        assert_eq!(size_of::<ucc_context_params_t>() % 8, 0);
    }
}
