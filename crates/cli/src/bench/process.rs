//! This process as Linux sees it: its memory and its CPU time.

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

/// Follows the resident memory of this process until it is asked for the peak.
pub(super) struct Memory {
    peak: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
}

impl Memory {
    /// In a thread of its own: the runtime's are busy.
    pub(super) fn watch() -> Self {
        let memory = Self { peak: Arc::default(), over: Arc::default() };
        let (peak, over) = (Arc::clone(&memory.peak), Arc::clone(&memory.over));
        thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                peak.fetch_max(resident(), Ordering::Relaxed);
                thread::sleep(Duration::from_millis(20));
            }
        });
        memory
    }

    /// Bytes; 0 where it cannot be told.
    pub(super) fn peak(self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

/// Bytes of this process in memory, as Linux tells.
fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kilobytes.unwrap_or(0) * 1024
}

/// CPU time of all threads so far, also of those that have ended.
pub(super) fn cpu() -> Option<Duration> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // The name stands in parentheses and may hold anything.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    // Linux reports them in hundredths of a second on every architecture.
    Some(Duration::from_millis((user + system) * 10))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn memory_and_time_of_this_process_are_known() {
        assert!(resident() > 1024 * 1024);
        let before = cpu().unwrap();
        while cpu().unwrap() == before {
            std::hint::black_box(fs::read("/proc/self/stat").unwrap());
        }
    }
}
