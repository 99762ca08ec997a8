//! CPU time and memory of the processes under measurement, read from /proc.

use std::fs;

/// CPU time of one process, all its threads, in nanoseconds. `schedstat` is exact where `stat` counts ticks.
pub fn cpu_ns(pid: u32) -> u64 {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return 0;
    };
    threads
        .flatten()
        .filter_map(|thread| fs::read_to_string(thread.path().join("schedstat")).ok())
        .filter_map(|text| text.split(' ').next().and_then(|word| word.parse::<u64>().ok()))
        .sum()
}

/// Resident memory of the processes together, in kB.
pub fn resident_kb(pids: &[u32]) -> u64 {
    pids.iter()
        .filter_map(|pid| fs::read_to_string(format!("/proc/{pid}/status")).ok())
        .filter_map(|text| rss(&text))
        .sum()
}

fn rss(status: &str) -> Option<u64> {
    status
        .lines()
        .find(|line| line.starts_with("VmRSS"))?
        .split_whitespace()
        .nth(1)?
        .parse()
        .ok()
}
