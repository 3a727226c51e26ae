//! What the machine says of itself: names, clocks, caches, the day.
//!
//! Nothing is recorded that tells machines of one model apart: no host names, no serial numbers.

use std::{fs, process::Command, time::SystemTime};

/// Returns the processor's name; `cpu` where the system does not tell.
pub fn cpu_name() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    name.map_or_else(|| "cpu".to_string(), |(_, name)| plain(name))
}

/// Returns what limits the processor's or the GPU's speed just now, as `key value` pairs.
pub fn clocks(gpu: Option<usize>) -> Option<String> {
    if let Some(index) = gpu {
        let fields = "driver_version,clocks.sm,clocks.mem,clocks.max.sm,power.limit,temperature.gpu";
        let answer = nvidia_smi(index, fields)?;
        let values: Vec<&str> = answer.split(", ").collect();
        let names = ["driver", "SM", "memory", "largest SM", "power limit", "temperature"];
        let pairs = names.iter().zip(values).map(|(name, value)| format!("{name} {value}"));
        return Some(pairs.collect::<Vec<_>>().join(", "));
    }
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let clock = text.lines().find_map(|line| line.strip_prefix("cpu MHz")?.split_once(": "))?;
    let governor = fs::read_to_string("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
    let governor = governor.map_or_else(|_| String::new(), |text| format!(", governor {}", text.trim()));
    Some(format!("{} MHz{governor}", clock.1.trim()))
}

/// Returns the name of a CUDA device, as the driver's tool knows it.
pub fn gpu_name(index: usize) -> Option<String> {
    nvidia_smi(index, "name").map(|name| plain(&name))
}

/// Returns the bytes of the largest cache of the first processor.
pub fn largest_cache() -> Option<f64> {
    let size = |index: usize| {
        let text =
            fs::read_to_string(format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size")).ok()?;
        cache_size(text.trim())
    };
    (0..8).filter_map(size).reduce(f64::max)
}

fn cache_size(text: &str) -> Option<f64> {
    let (number, unit) = match text.strip_suffix('K') {
        Some(number) => (number, 1024.0),
        None => (text.strip_suffix('M')?, 1024.0 * 1024.0),
    };
    Some(number.parse::<f64>().ok()? * unit)
}

/// Returns the day of a time, in UTC: `2026-11-21`.
///
/// Hinnant: chrono-compatible low-level date algorithms, `civil_from_days`; years begin in March.
pub fn civil_date(time: SystemTime) -> String {
    let seconds = time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let days = (seconds / 86_400) as i64 + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

/// Asks the driver's own tool; nothing where it is not there.
fn nvidia_smi(index: usize, fields: &str) -> Option<String> {
    let output = Command::new("nvidia-smi")
        .args([format!("--query-gpu={fields}"), "--format=csv,noheader".into(), format!("--id={index}")])
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_string())
}

/// Drops marks and doubled spaces.
fn plain(name: &str) -> String {
    let name = name.replace("(R)", "").replace("(TM)", "");
    name.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn dates() {
        let day = |seconds| civil_date(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(day(0), "1970-01-01");
        assert_eq!(day(951_782_400), "2000-02-29");
        assert_eq!(day(1_735_689_599), "2024-12-31");
        assert_eq!(day(1_735_689_600), "2025-01-01");
    }

    #[test]
    fn caches_and_names() {
        assert_eq!(cache_size("32768K"), Some(33_554_432.0));
        assert_eq!(cache_size("32M"), Some(33_554_432.0));
        assert_eq!(cache_size("much"), None);
        assert_eq!(plain("Intel(R) Xeon(R)  CPU @ 2.20GHz"), "Intel Xeon CPU @ 2.20GHz");
    }
}
