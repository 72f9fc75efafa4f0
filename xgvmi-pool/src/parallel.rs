//! Runs the same function on many items with a few threads.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::signals;

/// The results of the function, in the order of the items. The calling thread works too. If the
/// system starts no other thread, it works alone.
pub(crate) fn parallel<T: Sync, R: Send>(
    items: &[T],
    threads: u32,
    work: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    let helpers = (threads as usize).min(items.len()).saturating_sub(1);
    if helpers == 0 {
        return items.iter().map(work).collect();
    }
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::with_capacity(items.len()));
    let turn = || {
        let mut mine = Vec::new();
        // One item at a time: an item takes hundreds of microseconds or almost nothing.
        loop {
            let place = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(place) else {
                break;
            };
            mine.push((place, work(item)));
        }
        done.lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .extend(mine);
    };
    thread::scope(|scope| {
        signals::blocked(|| {
            for _ in 0..helpers {
                if thread::Builder::new().spawn_scoped(scope, turn).is_err() {
                    break;
                }
            }
        });
        turn();
    });
    let mut done = done
        .into_inner()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    done.sort_unstable_by_key(|(place, _)| *place);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_the_order_of_the_items() {
        let items: Vec<u32> = (0..1000).collect();
        for threads in [0, 1, 2, 8] {
            let results = parallel(&items, threads, |item| item * 2);
            assert!(
                results
                    .iter()
                    .zip(&items)
                    .all(|(result, item)| *result == item * 2)
            );
            assert_eq!(results.len(), items.len());
        }
        assert!(parallel(&[0u8; 0], 4, |item| *item).is_empty());
    }
}
