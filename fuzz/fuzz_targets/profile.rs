//! A map of columns, a line of dashes, and the CSV that it is for. Without the line: a CSV of our own.
#![no_main]

use indexmap::IndexMap;

libfuzzer_sys::fuzz_target!(|text: &str| {
    let profile = match text.split_once("\n---\n") {
        Some((map, csv)) => {
            let Ok(map) = schema::ProfileMap::read(map) else { return };
            schema::read_profile(csv, &map)
        }
        None => schema::read_own_profile(text),
    };
    let Ok(profile) = profile else { return };
    if let Ok(groups) = cost_model::group(&profile, &IndexMap::new()) {
        for group in groups {
            let _ = cost_model::fit(&group.samples, &group.machine);
        }
    }
});
