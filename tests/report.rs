//! The report in a real browser: nothing fetched, nothing run that a name brings along, and fast when large.
//!
//! The browser is driven over the DevTools protocol on its standard input and output; nothing but Chromium is needed.
//! `make programs` installs it. Without one, the tests that need it are skipped.

#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

use std::{fs, path::Path, process::Command, time::Instant};

use browser::Browser;
use serde_json::json;

mod needs;

#[path = "report/browser.rs"]
mod browser;
#[path = "report/models.rs"]
mod models;

/// Writes the plan of the small U-Net.
fn unet_plan(folder: &Path) -> std::path::PathBuf {
    // The page of a model names its digest.
    let page = report(folder, &fixture("traces/unet_small.pt"), &[]);
    let digest = page.split_once("model-digest\" content=\"").unwrap().1.split('"').next().unwrap();
    let path = folder.join("plan.yaml");
    fs::write(&path, models::UNET_PLAN.replace("\"00\"", &format!("\"{digest}\""))).unwrap();
    path
}

/// Writes a report and returns its text.
fn report(folder: &Path, model: &Path, more: &[&str]) -> String {
    let page = folder.join("report.html");
    let output = Command::new(env!("CARGO_BIN_EXE_model-analyze"))
        .arg("report")
        .arg(model)
        .args(more)
        .arg("-o")
        .arg(&page)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stdout.is_empty());
    fs::read_to_string(page).unwrap()
}

fn fixture(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name)
}

#[test]
fn a_small_model_makes_a_small_page_and_always_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let page = report(folder.path(), &fixture("traces/gpt2_tiny.pt"), &[]);
    assert!(page.len() < 105_000, "{}", page.len());
    assert!(page == report(folder.path(), &fixture("traces/gpt2_tiny.pt"), &[]), "two runs differ");
    // The name of SVG's elements is not an address that anybody visits.
    let page = page.replace("http://www.w3.org/2000/svg", "");
    assert!(!page.contains("http://") && !page.contains("https://"), "the page names an address");
}

#[test]
fn a_plan_brings_its_sections() {
    let folder = tempfile::tempdir().unwrap();
    let plan = unet_plan(folder.path());
    let page = report(folder.path(), &fixture("traces/unet_small.pt"), &[plan.to_str().unwrap()]);
    for part in ["id=\"stages\"", "id=\"timeline\"", "id=\"what-if\"", "Bottleneck", "Fits"] {
        assert!(page.contains(part), "{part} is missing");
    }
    let plan = page.split_once("<script id=\"plan\" type=\"application/json\">").unwrap().1;
    let plan: serde_json::Value = serde_json::from_str(plan.split_once('<').unwrap().0).unwrap();
    assert_eq!(plan["stages"].as_array().unwrap().len(), 2);
    // Nothing is recommended that nobody gets stages for.
    let data = page.split_once("<script id=\"data\" type=\"application/json\">").unwrap().1;
    let data: serde_json::Value = serde_json::from_str(data.split_once("</script>").unwrap().0).unwrap();
    let of = |name: &str| data["what_if"][name].as_array().unwrap().clone();
    for (schedule, is_planned) in of("schedules").iter().zip(of("is_planned")) {
        let split = Command::new(env!("CARGO_BIN_EXE_model-analyze"))
            .arg("split")
            .arg(fixture("traces/cnn_basic.pt"))
            .args([
                "--devices",
                "2xt4",
                "--micro-batches",
                "4",
                "--dry-run",
                "--schedule",
                schedule.as_str().unwrap(),
            ])
            .output()
            .unwrap();
        assert_eq!(
            split.status.success(),
            is_planned,
            "{schedule}: {}",
            String::from_utf8_lossy(&split.stderr)
        );
    }
}

#[test]
fn a_plan_for_another_model_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let plan = unet_plan(folder.path());
    let page = folder.path().join("page.html");
    let output = Command::new(env!("CARGO_BIN_EXE_model-analyze"))
        .args([
            "report".as_ref(),
            fixture("traces/gpt2_tiny.pt").as_os_str(),
            plan.as_os_str(),
            "-o".as_ref(),
        ])
        .arg(&page)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains("was made for another model, `unet_small`"), "{message}");
    assert!(!page.exists());
}

#[test]
fn measured_times_stand_beside_predicted_ones() {
    let folder = tempfile::tempdir().unwrap();
    let (plan, measured) = (unet_plan(folder.path()), folder.path().join("measured.json"));
    fs::write(&measured, models::MEASURED).unwrap();
    let more = [plan.to_str().unwrap(), "--measured", measured.to_str().unwrap()];
    let page = report(folder.path(), &fixture("traces/unet_small.pt"), &more);
    assert!(page.contains("Predicted against measured") && page.contains("class=\"scatter\""));
    let Some(mut browser) = Browser::start() else { return };
    browser.open(&folder.path().join("report.html"));
    let titles = "[...document.querySelectorAll('#charts h3')].map(e => e.firstChild.data).join()";
    assert_eq!(browser.run(titles), json!("Measured,Simulated"));
    browser.assert_clean();
}

#[test]
fn a_reader_opens_finds_walks_and_sorts() {
    let folder = tempfile::tempdir().unwrap();
    let plan = unet_plan(folder.path());
    report(folder.path(), &fixture("traces/unet_small.pt"), &[plan.to_str().unwrap()]);
    let Some(mut browser) = Browser::start() else { return };
    browser.open(&folder.path().join("report.html"));
    // Everything is drawn.
    assert!(browser.run("document.querySelectorAll('#canvas rect.box').length").as_u64() > Some(10));
    assert!(browser.run("document.querySelectorAll('#charts rect.span').length").as_u64() > Some(20));
    assert!(browser.run("document.querySelectorAll('#grid button.cell').length").as_u64() > Some(10));
    // Keys: close the first block, open it again, go in.
    browser.run("document.getElementById('canvas').focus()");
    browser.keys(&["Home", "ArrowDown"]);
    let active = "document.getElementById(document.getElementById('canvas').getAttribute('aria-activedescendant'))?.getAttribute('aria-expanded') ?? 'gone'";
    assert_eq!(browser.run(active), json!("true"));
    browser.keys(&["Enter"]);
    assert_eq!(browser.run(active), json!("false"));
    assert_eq!(browser.run("document.querySelector('#details h3').textContent"), json!("stem"));
    browser.keys(&[" ", "ArrowRight"]);
    assert_eq!(browser.run("document.querySelector('#details .path').textContent"), json!("stem.0"));
    browser.keys(&["ArrowLeft"]);
    assert_eq!(browser.run("document.querySelector('#details h3').textContent"), json!("stem"));
    assert_eq!(browser.run("location.hash"), json!("#/stem"));
    // Finding: a part of a name, opened on the way; a pattern; and Enter for the next.
    browser.run("document.getElementById('less').click()");
    browser.find("down.1.3");
    assert_eq!(browser.run("document.querySelector('#details .path').textContent"), json!("down.1.3"));
    browser.find("/up\\.\\d$/");
    assert_eq!(browser.run("document.getElementById('found').textContent"), json!("1 of 3"));
    // An address names a box and a colour.
    browser.run("location.hash = '#/up.0?color=memory'");
    browser.wait("document.querySelector('#details .path')?.textContent === 'up.0'");
    assert_eq!(browser.run("document.getElementById('color').value"), json!("memory"));
    // Tables sort; a cell of the what-if grid answers.
    browser.run("[...document.querySelectorAll('#blocks thead button')].find(e => e.textContent === 'Parameters').click()");
    let column = "[...document.querySelectorAll('#blocks tbody tr')].map(r => +r.cells[3].dataset.v)";
    assert_eq!(browser.run(&format!("{column}.every((v, i, all) => !i || all[i - 1] >= v)")), json!(true));
    browser.run("document.querySelector('#grid button.cell:not(.none):not(.planned)').click()");
    assert!(
        browser.run("document.getElementById('answer').textContent").as_str().unwrap().contains("throughput")
    );
    // So does the timeline, until the plan is asked for again.
    let title = "document.querySelector('#charts h3').firstChild.data";
    assert!(browser.run(title).as_str().unwrap().starts_with("Simulated: "));
    browser.run("document.querySelector('button.planned:not([hidden])').click()");
    assert_eq!(browser.run(title), json!("Simulated"));
    // No label stands on another, on a box or on a frame's head.
    browser.run("document.getElementById('all').click()");
    browser.run("for (let i = 0; i < 6; i++) document.getElementById('in').click()");
    browser.run("new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)))");
    assert!(browser.run("document.querySelectorAll('#canvas text.shape').length").as_u64() > Some(3));
    let overlaps = "(() => { const box = (e) => e.getBoundingClientRect(); \
        const labels = [...document.querySelectorAll('#canvas text.shape')].map(box); \
        const others = [...document.querySelectorAll('#canvas rect.box:not(.frame):not(.behind), #canvas text.title')].map(box); \
        const isOver = (a, b) => a.left < b.right && b.left < a.right && a.top + 1 < b.bottom && b.top + 1 < a.bottom; \
        return labels.filter((a, at) => others.some((b) => isOver(a, b)) || labels.slice(at + 1).some((b) => isOver(a, b))).length; })()";
    assert_eq!(browser.run(overlaps), json!(0));
    // On paper the whole graph is one picture.
    browser.run("dispatchEvent(new Event('beforeprint'))");
    assert!(browser.run("document.getElementById('canvas').getAttribute('viewBox')").is_string());
    browser.run("dispatchEvent(new Event('afterprint'))");
    assert!(browser.run("document.getElementById('canvas').getAttribute('viewBox')").is_null());
    browser.assert_clean();
}

#[test]
fn a_map_shows_where_the_window_is() {
    let folder = tempfile::tempdir().unwrap();
    report(folder.path(), &fixture("traces/unet_small.pt"), &[]);
    let Some(mut browser) = Browser::start() else { return };
    browser.open(&folder.path().join("report.html"));
    let settle = "new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)))";
    // Where everything is in the window, there is none.
    browser.run("document.getElementById('fit').click()");
    browser.run(settle);
    let is_away = "getComputedStyle(document.getElementById('map')).display === 'none'";
    assert_eq!(browser.run(is_away), json!(true));
    browser.run("document.getElementById('all').click()");
    browser.run("for (let i = 0; i < 6; i++) document.getElementById('in').click()");
    browser.run(settle);
    assert_eq!(browser.run(is_away), json!(false));
    // It has as many spots as the graph has boxes, and its frame is the window's share of the graph.
    let share = |width: &str| {
        format!(
            "(() => {{ const of = (id) => document.querySelector(id).getBoundingClientRect(); \
             const [map, frame, canvas, scene] = ['#map g', '#map .window', '#canvas', '#canvas > g'].map(of); \
             return {width}; }})()"
        )
    };
    let (in_map, in_window) = ("frame.width / map.width", "canvas.width / scene.width");
    let off = browser.run(&share(&format!("({in_map}) / ({in_window})"))).as_f64().unwrap();
    assert!((0.7..1.4).contains(&off), "{off}");
    // Neither keys nor screen readers meet it.
    let focusable = "document.querySelectorAll('#map [tabindex], #map[tabindex]').length";
    assert_eq!(browser.run(focusable), json!(0));
    assert_eq!(browser.run("document.getElementById('map').getAttribute('aria-hidden')"), json!("true"));
    // A press in its first corner brings the window there; dragging the frame moves the window.
    let press = |kind: &str, x: &str, y: &str| {
        format!(
            "(() => {{ const map = document.getElementById('map'); const of = map.getBoundingClientRect(); \
             map.setPointerCapture = () => 0; \
             map.dispatchEvent(new PointerEvent('{kind}', {{ pointerId: 1, clientX: of.left + {x}, clientY: of.top + {y}, bubbles: true }})); }})()"
        )
    };
    let corner = "(() => { const of = document.querySelector('#map .window').getBoundingClientRect(); \
        const map = document.getElementById('map').getBoundingClientRect(); return [of.left - map.left, of.top - map.top]; })()";
    browser.run(&press("pointerdown", "4", "4"));
    browser.run(settle);
    let first: Vec<f64> = serde_json::from_value(browser.run(corner)).unwrap();
    assert!(first.iter().all(|at| *at < 6.0), "{first:?}");
    browser.run(&press("pointermove", "of.width / 2", "of.height / 2"));
    browser.run(&press("pointerup", "0", "0"));
    browser.run(settle);
    let second: Vec<f64> = serde_json::from_value(browser.run(corner)).unwrap();
    assert!(second[0] > first[0] && second[1] > first[1], "{first:?} {second:?}");
    browser.run(&press("pointermove", "4", "4"));
    browser.run(settle);
    assert_eq!(browser.run(corner), json!(second), "nothing moves after the press has ended");
    browser.assert_clean();
}

#[test]
fn a_cell_of_the_grid_shows_its_devices_as_simulate_does() {
    let folder = tempfile::tempdir().unwrap();
    let plan = unet_plan(folder.path());
    report(folder.path(), &fixture("traces/unet_small.pt"), &[plan.to_str().unwrap()]);
    let Some(mut browser) = Browser::start() else { return };
    browser.open(&folder.path().join("report.html"));
    let rows = "[...document.querySelectorAll('#devices tbody tr')].map(r => [2, 4, 5, 6].map(c => +r.cells[c].dataset.v))";
    let words = "[...document.querySelectorAll('#devices tbody tr')].map(r => r.textContent).join()";
    let (own, own_words) = (browser.run(rows), browser.run(words));
    browser.run("document.querySelector('#grid button[aria-label^=\"gpipe, 8 \"]').click()");
    let shown: Vec<[f64; 4]> = serde_json::from_value(browser.run(rows)).unwrap();
    assert_eq!(
        browser.run("document.getElementById('circumstances').textContent"),
        json!("gpipe · 8 micro-batches")
    );
    let output = Command::new(env!("CARGO_BIN_EXE_model-analyze"))
        .arg("simulate")
        .arg(&plan)
        .args(["--schedule", "gpipe", "--micro-batches", "8", "--format", "json"])
        .output()
        .unwrap();
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let step = answer["step_seconds"].as_f64().unwrap();
    let devices = answer["devices"].as_array().unwrap();
    assert_eq!(devices.len(), shown.len());
    for (device, shown) in devices.iter().zip(&shown) {
        let of = |value: &serde_json::Value| value.as_f64().unwrap();
        let expected = [
            of(&device["peak_memory_bytes"]),
            of(&device["peak_memory_bytes"]) / of(&device["memory_limit_bytes"]),
            of(&device["busy_seconds"]) / step,
            of(&device["time_parts"]["idle"]) / step,
        ];
        for (shown, expected) in shown.iter().zip(expected) {
            assert!((shown / expected - 1.0).abs() < 1e-9, "{shown} {expected}");
        }
    }
    assert!(json!(shown) != own, "the cell has other devices than the plan");
    // The plan's own cell says what stands there without a script.
    browser.run("document.querySelector('#grid button.planned').click()");
    assert_eq!((browser.run(rows), browser.run(words)), (own, own_words));
    browser.assert_clean();
}

#[test]
fn hostile_names_stay_names() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("hostile.txt");
    fs::write(&model, models::hostile()).unwrap();
    let page = report(folder.path(), &model, &[]);
    assert_eq!(page.matches("<script").count(), 2, "data and code alone");
    assert!(!page.contains("<img"));
    let Some(mut browser) = Browser::start() else { return };
    browser.open(&folder.path().join("report.html"));
    browser.run("document.getElementById('all').click()");
    browser.find("img");
    assert!(
        browser
            .run("document.querySelector('#details .path').textContent")
            .as_str()
            .unwrap()
            .contains("<img")
    );
    assert_eq!(browser.run("document.images.length + document.scripts.length"), json!(2));
    browser.assert_clean();
}

#[test]
fn twenty_thousand_boxes_stay_fluent() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("large.txt");
    fs::write(&model, models::large(1000)).unwrap();
    let begin = Instant::now();
    let page = report(folder.path(), &model, &[]);
    println!("20,000 boxes: {} bytes, written in {:.2?}", page.len(), begin.elapsed());
    assert!(page.len() < 1_000_000, "{}", page.len());
    let Some(mut browser) = Browser::start() else { return };
    browser.open(&folder.path().join("report.html"));
    let open_all = "(async () => { const t = performance.now(); document.getElementById('all').click(); \
        await new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r))); return performance.now() - t; })()";
    let took = browser.run(open_all).as_f64().unwrap();
    println!("all opened and drawn in {took:.0} ms");
    assert!(took < 2000.0, "{took}");
    // A deep address in it is found and drawn, and only what is in the window is.
    browser.run("location.hash = '#/layers.777.attn'");
    browser.wait("document.querySelector('#details .path')?.textContent === 'layers.777.attn'");
    browser.wait("document.querySelectorAll('#canvas *').length >= 10");
    let drawn = browser.run("document.querySelectorAll('#canvas *').length").as_u64().unwrap();
    assert!((10..4000).contains(&drawn), "{drawn}");
    browser.assert_clean();
}

/// Plans a fixture, writes its report, and returns both as values.
fn planned(folder: &Path, model: &str, more: &[&str]) -> (serde_json::Value, String) {
    let plan = folder.join("plan.yaml");
    let output = Command::new(env!("CARGO_BIN_EXE_model-analyze"))
        .arg("plan")
        .arg(fixture(model))
        .args(more)
        .args(["--format", "json", "-o"])
        .arg(&plan)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let page = report(folder, &fixture(model), &[plan.to_str().unwrap()]);
    (serde_json::from_slice(&output.stdout).unwrap(), page)
}

/// Returns a page's data that were small enough to stand in it as they are.
fn embedded(page: &str, id: &str) -> serde_json::Value {
    let data = page.split_once(&format!("<script id=\"{id}\" type=\"application/json\">")).unwrap().1;
    serde_json::from_str(data.split_once('<').unwrap().0).unwrap()
}

#[test]
fn every_operator_is_of_a_stage_and_their_times_add_up_to_it() {
    // Two types of devices, too: the second stage's operators take what the plan says they take there.
    for devices in ["2xt4", "1xt4+1xa100"] {
        let folder = tempfile::tempdir().unwrap();
        let arguments = ["--devices", devices, "--strategy", "1f1b"];
        let (answer, page) = planned(folder.path(), "traces/unet_small.pt", &arguments);
        let (plan, data) = (embedded(&page, "plan"), embedded(&page, "data"));
        let numbers = |column: &str| -> Vec<i64> {
            data["graph"][column].as_array().unwrap().iter().map(|item| item.as_i64().unwrap()).collect()
        };
        let (parents, stages, times) = (numbers("parent"), numbers("stage"), numbers("time"));
        let mut sums = vec![0; answer["stages"].as_array().unwrap().len()];
        for item in (1..parents.len()).filter(|item| !parents[1..].contains(&(*item as i64))) {
            match usize::try_from(stages[item]) {
                Ok(stage) => sums[stage] += times[item],
                Err(_) => assert_eq!(times[item], 0, "{devices}: box {item} takes time and has no stage"),
            }
        }
        for (stage, sum) in sums.iter().enumerate() {
            let cost = &plan["stages"][stage]["cost"];
            let whole: f64 = ["forward", "input_gradient", "weight_gradient"]
                .map(|of| cost[of].as_f64().unwrap())
                .iter()
                .sum();
            let off = *sum as f64 / 1e9 / whole - 1.0;
            assert!(off.abs() < 0.001, "{devices}: stage {stage} takes {whole}, its operators {sum} ns");
        }
    }
}

#[test]
fn the_bubble_is_the_same_in_the_plan_its_simulation_and_its_page() {
    for (model, devices) in [("traces/gpt2_tiny.pt", "2xt4"), ("traces/unet_small.pt", "4xa100")] {
        for strategy in ["1f1b", "zero-bubble", "interleaved", "data-parallel"] {
            let folder = tempfile::tempdir().unwrap();
            let (answer, page) =
                planned(folder.path(), model, &["--devices", devices, "--strategy", strategy]);
            let bubble = answer["bubble"].as_f64().unwrap();
            let card = page.split_once("<dt>Bubble</dt><dd><b>").unwrap().1;
            assert_eq!(
                card.split_once('<').unwrap().0,
                format!("{:.1} %", 100.0 * bubble),
                "{model} {strategy}"
            );
            let output = Command::new(env!("CARGO_BIN_EXE_model-analyze"))
                .arg("simulate")
                .arg(folder.path().join("plan.yaml"))
                .args(["--format", "json"])
                .output()
                .unwrap();
            let simulated: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
            assert_eq!(simulated["bubble"].as_f64().unwrap(), bubble, "{model} {strategy}");
        }
    }
}
