//! Counts per bucket. Shared between the streams, which fill it per token, and the metrics.

use std::sync::atomic::{AtomicU64, Ordering};

/// `edges` are upper bounds, ascending; the last bucket is everything above. The sum is kept in
/// whole nanoseconds.
pub struct Histogram {
    edges: Box<[f64]>,
    counts: Box<[AtomicU64]>,
    sum_ns: AtomicU64,
}

impl Histogram {
    #[must_use]
    pub fn new(edges: &[f64]) -> Self {
        Self {
            edges: edges.into(),
            counts: (0..=edges.len()).map(|_| AtomicU64::new(0)).collect(),
            sum_ns: AtomicU64::new(0),
        }
    }

    /// Counts `times` observations of `seconds` each.
    pub fn observe(&self, seconds: f64, times: u64) {
        let bucket = self.edges.partition_point(|edge| *edge < seconds);
        if let Some(count) = self.counts.get(bucket) {
            count.fetch_add(times, Ordering::Relaxed);
        }
        self.sum_ns.fetch_add((seconds.max(0.0) * 1e9) as u64 * times, Ordering::Relaxed);
    }

    /// Counts per bucket (not cumulative) and the sum in seconds.
    #[must_use]
    pub fn snapshot(&self) -> (Vec<u64>, f64) {
        let counts = self.counts.iter().map(|c| c.load(Ordering::Relaxed)).collect();
        (counts, self.sum_ns.load(Ordering::Relaxed) as f64 / 1e9)
    }
}

#[cfg(test)]
mod tests {
    use super::Histogram;

    #[test]
    fn an_edge_belongs_to_the_bucket_below_it() {
        let histogram = Histogram::new(&[0.1, 1.0]);
        for seconds in [0.05, 0.1, 0.5, 1.0, 7.0] {
            histogram.observe(seconds, 1);
        }
        histogram.observe(0.2, 3);
        let (counts, sum) = histogram.snapshot();
        assert_eq!(counts, [2, 5, 1]);
        assert!((sum - 9.25).abs() < 1e-6, "{sum}");
    }
}
