//! Seconds of the monotonic clock: the same numbers as Python's `time.monotonic()`.

#[expect(unsafe_code, reason = "clock_gettime fills the struct that it is given; std's Instant hides the number")]
pub fn now_s() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec for the call to write to.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
