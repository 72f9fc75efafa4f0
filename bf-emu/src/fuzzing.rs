//! Entry points for the fuzz targets in `fuzz/`, which see only public items.

use crate::engine::work;

/// Parses a work queue entry of a queue of this service type. If it is accepted, asserts the
/// properties on which the engine relies.
pub fn work(bytes: &[u8], queue: u8) {
    let Ok(work) = work::parse(bytes, queue) else {
        return;
    };
    assert!(work.data_at <= work.end, "the data begins behind the end");
    assert!(work.end <= bytes.len(), "it ends behind its bytes");
    let entries = work::klms(&bytes[work.data_at..work.end]).count();
    assert!(entries * mlx5_prm::mkey::KLM_BYTES <= work.end - work.data_at);
}
