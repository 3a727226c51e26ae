//! Reads the machine's names, clocks and caches, and the date.
//!
//! Nothing is recorded that identifies a single machine: no host names, no serial numbers.

use std::{fs, process::Command, time::SystemTime};

use schema::Hardware;

/// Returns the processor's name; `cpu` where the system does not report it.
pub fn cpu_name() -> String {
    name_in(&fs::read_to_string("/proc/cpuinfo").unwrap_or_default())
}

/// Finds the processor's name in `/proc/cpuinfo`.
fn name_in(cpuinfo: &str) -> String {
    let Some(name) = entry(cpuinfo, "model name").map(plain) else { return "cpu".to_string() };
    match (entry(cpuinfo, "cpu family"), entry(cpuinfo, "model\t")) {
        // Virtual machines hide the model of the processor: `AMD EPYC` is several, years apart.
        (Some(family), Some(model)) if !name.contains(|c: char| c.is_ascii_digit()) => {
            format!("{name} family {family} model {model}")
        }
        _ => name,
    }
}

/// Returns what the system reports about the processor besides its name.
pub fn hardware() -> Hardware {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kilobytes = entry(&memory, "MemTotal").and_then(|size| size.split(' ').next()?.parse::<u64>().ok());
    Hardware {
        architecture: architecture(std::env::consts::ARCH, &cpuinfo).map(str::to_string),
        core_cache: caches().find(|(level, _)| *level == 2).map(|(_, size)| size as u64),
        last_cache: largest_cache().map(|size| size as u64),
        memory: kilobytes.map(|kilobytes| kilobytes << 10),
    }
}

/// Names the vector registers of a processor: kernels pad channels to them.
fn architecture(machine: &str, cpuinfo: &str) -> Option<&'static str> {
    let flags = || entry(cpuinfo, "flags").unwrap_or_default().split(' ');
    match machine {
        "x86_64" if flags().any(|flag| flag == "avx512f") => Some("x86-64-avx512"),
        "x86_64" if flags().any(|flag| flag == "avx2") => Some("x86-64-avx2"),
        "x86_64" => Some("x86-64"),
        "aarch64" => Some("arm64"),
        _ => None,
    }
}

/// Returns the first entry of this name in a file of lines like `model name : AMD EPYC`.
fn entry<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| Some(line.strip_prefix(name)?.trim_start().strip_prefix(':')?.trim()))
}

/// Returns what currently limits a GPU's speed, as `key value` pairs; the GPU is given by its bus address.
pub fn gpu_clocks(address: &str) -> Option<String> {
    let fields = "driver_version,clocks.sm,clocks.mem,clocks.max.sm,power.limit,temperature.gpu";
    // The driver's own tool; nothing without it.
    let output = Command::new("nvidia-smi")
        .args([&format!("--query-gpu={fields}"), "--format=csv,noheader", &format!("--id={address}")])
        .output()
        .ok()
        .filter(|output| output.status.success())?;
    let answer = String::from_utf8(output.stdout).ok()?;
    let names = ["driver", "SM", "memory", "largest SM", "power limit", "temperature"];
    let pairs = names.iter().zip(answer.trim().split(", ")).map(|(name, value)| format!("{name} {value}"));
    Some(pairs.collect::<Vec<_>>().join(", "))
}

/// Returns what currently limits the processor's speed.
pub fn clocks() -> Option<String> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let clock = entry(&text, "cpu MHz")?;
    let governor = fs::read_to_string("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
    let governor = governor.map_or_else(|_| String::new(), |text| format!(", governor {}", text.trim()));
    Some(format!("{clock} MHz{governor}"))
}

/// Returns the bytes of the largest cache of the first processor.
pub fn largest_cache() -> Option<f64> {
    caches().map(|(_, size)| size).reduce(f64::max)
}

/// Returns level and bytes of the first processor's caches.
fn caches() -> impl Iterator<Item = (u32, f64)> {
    (0..8).filter_map(|index| {
        let file = |name: &str| {
            fs::read_to_string(format!("/sys/devices/system/cpu/cpu0/cache/index{index}/{name}")).ok()
        };
        Some((file("level")?.trim().parse().ok()?, cache_size(file("size")?.trim())?))
    })
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

/// Removes trademark signs and repeated spaces.
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
    fn processors_are_told_apart() {
        let check = |name: &str, expected: &str| {
            let text = format!("processor\t: 0\ncpu family\t: 25\nmodel\t\t: 1\nmodel name\t: {name}\n");
            assert_eq!(name_in(&text), expected);
        };
        check("AMD EPYC", "AMD EPYC family 25 model 1");
        check("Intel(R) Xeon(R) Processor", "Intel Xeon Processor family 25 model 1");
        check("AMD EPYC 7763 64-Core Processor", "AMD EPYC 7763 64-Core Processor");
        assert_eq!(name_in("model name : Neoverse"), "Neoverse");
        assert_eq!(name_in(""), "cpu");
        assert_eq!(architecture("x86_64", "flags\t\t: fpu avx2 avx512f\n"), Some("x86-64-avx512"));
        assert_eq!(architecture("x86_64", "flags\t\t: fpu avx2\n"), Some("x86-64-avx2"));
        assert_eq!(architecture("x86_64", ""), Some("x86-64"));
        assert_eq!(architecture("riscv64", ""), None);
    }

    #[test]
    fn caches_and_names() {
        assert_eq!(cache_size("32768K"), Some(33_554_432.0));
        assert_eq!(cache_size("32M"), Some(33_554_432.0));
        assert_eq!(cache_size("much"), None);
        assert_eq!(plain("Intel(R) Xeon(R)  CPU @ 2.20GHz"), "Intel Xeon CPU @ 2.20GHz");
    }
}
