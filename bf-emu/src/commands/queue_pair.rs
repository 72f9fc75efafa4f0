//! Operations on queue pairs that verbs and device commands share.

use mlx5_prm::qp::state;

use crate::engine::polling;
use crate::fabric::objects::{Alternate, Held, Migration, Qp};

/// Drops everything posted and resets the rings.
pub(crate) fn reset(qp: &mut Qp) {
    qp.state = state::RST;
    polling::forget_rung(qp.dbrec);
    qp.sq_done = 0;
    qp.rq_done = 0;
    qp.give_up_at_ns = 0;
    qp.retry_at_ns = 0;
    qp.pending = false;
    qp.held = Held::default();
    qp.defer_until_ns = 0;
    qp.arrives_at_ns = 0;
    qp.left_at_ns = 0;
    qp.is_established = false;
    qp.tells_drained = false;
    qp.copies = false;
    qp.set_remote(None);
    qp.remote_qpn = 0;
    qp.carried = 0;
    qp.alternate = Alternate::default();
    qp.migration = Migration::Migrated;
    qp.refused_path = false;
}
