//! The application's computation during an outstanding collective.

use crate::options::ComputeKind;
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Side of OSU's matrix. One pass takes about a microsecond, which is the resolution of a duration.
const SIDE: usize = 25;

/// OSU's loop, or sleep.
#[derive(Debug)]
pub struct Compute {
    kind: ComputeKind,
    matrix: Box<[[f32; SIDE]; SIDE]>,
    x: [f32; SIDE],
    y: [f32; SIDE],
}

impl Compute {
    /// A computation with OSU's values.
    #[must_use]
    pub fn new(kind: ComputeKind) -> Self {
        Self {
            kind,
            matrix: Box::new([[2.0; SIDE]; SIDE]),
            x: [1.0; SIDE],
            y: [1.0; SIDE],
        }
    }

    /// Computes for at least `target`.
    pub fn run(&mut self, target: Duration) {
        let began = Instant::now();
        if self.kind == ComputeKind::Sleep {
            std::thread::sleep(target);
            return;
        }
        while began.elapsed() < target {
            for row in 0..SIDE {
                for column in 0..SIDE {
                    self.x[row] +=
                        self.matrix[row][column] * self.matrix[column][row] + self.y[column];
                }
            }
            // Nothing uses the result, but the compiler must not remove the computation.
            black_box(&self.x);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_takes_at_least_as_long_as_asked() {
        for kind in [ComputeKind::Loop, ComputeKind::Sleep] {
            let began = Instant::now();
            Compute::new(kind).run(Duration::from_millis(2));
            assert!(began.elapsed() >= Duration::from_millis(2), "{kind:?}");
        }
    }
}
