//! Seconds of the monotonic clock: the same numbers as Python's `time.monotonic()`.

use rustix::time::{ClockId, clock_gettime};

pub fn now_s() -> f64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
