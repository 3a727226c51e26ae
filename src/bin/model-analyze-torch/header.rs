//! The header of a profile, and the progress of measuring it.

use indicatif::{ProgressBar, ProgressStyle};
use model_analyze::parts::Profile;

/// Returns the command line without paths.
pub fn command(arguments: &Profile) -> String {
    let what = if arguments.sweep {
        "--sweep"
    } else if arguments.suite {
        "--suite"
    } else {
        "--model MODEL"
    };
    let threads = arguments.threads.map_or(String::new(), |n| format!(" --threads {n}"));
    let Profile { device, minutes, seed, .. } = arguments;
    format!("model-analyze profile {what} --device {device} --minutes {minutes} --seed {seed}{threads}")
}

/// Returns the time and the load of the machine, by which a reader can judge the measurements.
pub fn moment() -> String {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split_whitespace().next().map_or(String::new(), |load| format!(", load {load}"));
    format!("{}{load}", runtime::profile::civil_date(std::time::SystemTime::now()))
}

/// Returns a bar on standard error that counts seconds down; silent if there is no terminal.
pub fn countdown(seconds: f64) -> ProgressBar {
    let bar = ProgressBar::new(seconds.ceil() as u64);
    let style = ProgressStyle::with_template("{bar:30} {msg}");
    bar.set_style(style.expect("the template is well formed"));
    bar
}

/// Moves the bar.
pub fn tick(bar: &ProgressBar, elapsed: f64, limit: f64, message: &str) {
    let left = (limit - elapsed).max(0.0).round() as u64;
    bar.set_position((elapsed as u64).min(limit.ceil() as u64));
    bar.set_message(format!("{}:{:02} left, {message}", left / 60, left % 60));
}
