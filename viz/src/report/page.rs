//! The page: its head with the policy, its sections, and the data for its script.

use std::fmt::Write as _;

use schema::{REPORT_VERSION, ReportData, ReportStage};

use super::{
    data, embed,
    figures::{plural, stage_class},
    input::Report,
    overview, scatter, stages, table, timeline,
};
use crate::{
    palette::{self, Shade},
    svg::Escaped,
};

/// The script, in the order in which its parts use each other.
const CODE: &str = concat!(
    include_str!("app/base.js"),
    include_str!("app/model.js"),
    include_str!("app/layout.js"),
    include_str!("app/draw.js"),
    include_str!("app/map.js"),
    include_str!("app/graph.js"),
    include_str!("app/timeline.js"),
    include_str!("app/what_if.js"),
    include_str!("app/main.js"),
);
const STYLE: &str = include_str!("app/style.css");

/// Writes the report as one HTML file.
pub fn html(report: &Report<'_>) -> String {
    let (diagram, closed) = data::diagram(report);
    let graph = data::columns(report, &diagram, &closed);
    let code = embed::squeezed(&format!("(async()=>{{\"use strict\";\n{CODE}\n}})();"));
    let style = embed::squeezed(&format!("{}{STYLE}", colours()));
    let mut page = String::new();
    head(&mut page, report, &code, &style);
    header(&mut page, report);
    overview::cards(&mut page, report);
    page.push_str(GRAPH);
    if let Some(planned) = &report.planned {
        stages::section(&mut page, planned);
        page.push_str(TIMELINE);
        if let Some(measured) = report.measured {
            scatter::section(&mut page, planned.timeline, measured);
        }
        if planned.what_if.is_some() {
            page.push_str(WHAT_IF);
        }
    }
    table::section(&mut page, &diagram, &graph);
    footer(&mut page, report);
    let data = ReportData {
        schema_version: REPORT_VERSION,
        graph,
        stages: report.planned.iter().flat_map(|planned| &planned.plan.stages).map(stage).collect(),
        timelines: timelines(report),
        what_if: report.planned.as_ref().and_then(|planned| planned.what_if).cloned(),
    };
    // Numbers that JSON cannot hold become null; nothing else can fail.
    let json = |value: serde_json::Result<String>| value.unwrap_or_else(|_| "null".to_string());
    page.push_str(&embed::data("data", &json(serde_json::to_string(&data)), embed::OWN_LIMIT));
    if let Some(planned) = &report.planned {
        let steps: Vec<(usize, schema::ReportTimeline)> =
            planned.what_if_steps.iter().map(|(cell, step)| (*cell, timeline::step_columns(step))).collect();
        if !steps.is_empty() {
            page.push_str(&embed::data("steps", &json(serde_json::to_string(&steps)), embed::OWN_LIMIT));
        }
        if !planned.what_if_devices.is_empty() {
            let devices = json(serde_json::to_string(planned.what_if_devices));
            page.push_str(&embed::data("cells", &devices, embed::OWN_LIMIT));
        }
        page.push_str(&embed::data("plan", &json(serde_json::to_string(planned.plan)), embed::PLAIN_LIMIT));
    }
    let _ = write!(page, "<script>{code}</script>\n</body>\n</html>\n");
    page
}

const GRAPH: &str = "<section id=\"graph\" class=\"js\"><h2>Graph</h2>
<div class=\"tools\"><label>Find <input id=\"find\" type=\"search\" placeholder=\"name or /pattern/\" autocomplete=\"off\" spellcheck=\"false\"></label><output id=\"found\" for=\"find\"></output>
<label>Colour <select id=\"color\"></select></label>
<span class=\"group\" role=\"group\" aria-label=\"Boxes\"><button id=\"less\" title=\"Close the innermost level\">Collapse level</button><button id=\"more\" title=\"Open the outermost closed level\">Expand level</button><button id=\"all\">Expand all</button></span>
<span class=\"group\" role=\"group\" aria-label=\"View\"><button id=\"out\" aria-label=\"Smaller\" title=\"Smaller (-)\">−</button><button id=\"fit\" title=\"Show everything (0)\">Fit</button><button id=\"in\" aria-label=\"Larger\" title=\"Larger (+)\">+</button><button id=\"turn\" title=\"Downwards or to the right\">Rotate layout</button></span></div>
<div class=\"split\"><div id=\"stage\"><div id=\"board\"><svg id=\"canvas\" tabindex=\"0\" role=\"tree\" aria-label=\"Blocks of the model\" aria-describedby=\"keys\"></svg><svg id=\"map\" aria-hidden=\"true\" hidden></svg></div><p class=\"legend\" id=\"legend\"></p></div><aside id=\"details\" aria-live=\"polite\"></aside></div>
<p class=\"note\" id=\"keys\">Click or Enter opens a box · arrow keys walk, Home and End jump, x unfolds ×N · + − 0 zoom · drag moves (the map in the corner, too), Ctrl and the wheel zoom · / finds. Stacked boxes are identical blocks.</p></section>
";
const TIMELINE: &str = "<section id=\"timeline\" class=\"js\"><h2>Timeline and memory</h2><div class=\"tools\"><span class=\"group\" role=\"group\" aria-label=\"Time\"><button data-zoom=\"out\" aria-label=\"Smaller\" title=\"Smaller (-)\">−</button><button data-zoom=\"fit\">Whole step</button><button data-zoom=\"in\" aria-label=\"Larger\">+</button></span><button class=\"planned\" hidden>Back to the plan</button><span id=\"kinds\" class=\"legend\"></span></div><div id=\"charts\"></div></section>
";
const WHAT_IF: &str = "<section id=\"what-if\" class=\"js\"><h2>What if</h2><p class=\"note\">The same stages, simulated under other schedules, numbers of micro-batches and link speeds. A micro-batch keeps its size, so more of them are a larger batch: compare time per micro-batch. ★ is the best that fits and that <code>split --schedule</code> plans stages for, ✕ does not fit, dashed is the plan. Choose a cell to see its step and its devices above.</p>
<div class=\"tools\"><label>Show <select id=\"metric\"></select></label><span class=\"group\" role=\"group\" aria-label=\"Link speed\" id=\"links\"></span></div><div class=\"scroll\" id=\"grid\"></div><p id=\"answer\" aria-live=\"polite\"></p></section>
";

fn head(page: &mut String, report: &Report<'_>, code: &str, style: &str) {
    let _ = write!(
        page,
        "<!doctype html>
<html lang=\"en\">
<head>
<meta charset=\"utf-8\">
<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src {}; style-src {}; img-src data:; base-uri 'none'; form-action 'none'\">
<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">
<meta name=\"color-scheme\" content=\"light dark\">
<meta name=\"generator\" content=\"{}\">
<meta name=\"model-digest\" content=\"{}\">
<title>{} · model-analyze</title>
<link rel=\"icon\" href=\"data:,\">
<style>{style}</style>
</head>
",
        embed::hash_source(code),
        embed::hash_source(style),
        Escaped(&report.origin.tool),
        Escaped(&report.origin.digest),
        Escaped(report.name()),
    );
}

fn header(page: &mut String, report: &Report<'_>) {
    let what = match &report.planned {
        Some(planned) => {
            let stages = planned.plan.stages.len();
            let devices = plural(planned.simulated.devices.len(), "device");
            let schedule = format!(", {}", planned.simulated.schedule);
            format!("{} on {devices}{}", plural(stages, "stage"), if stages > 1 { &schedule } else { "" })
        }
        None => "read from its trace, without a plan".to_string(),
    };
    let inputs: Vec<String> = report
        .graph
        .inputs
        .iter()
        .map(|id| report.graph.value(*id))
        .map(|value| match value.fact.tensor() {
            Some(tensor) => format!("{} {tensor}", value.name),
            None => value.name.clone(),
        })
        .collect();
    let _ = write!(
        page,
        "<body>\n<header><div><h1>{}</h1><p>{} · {}</p></div><button id=\"theme\" class=\"js\" aria-label=\"Light or dark\">◐</button></header>\n<main>\n<noscript><p class=\"note\">The graph, the timeline and the what-if panel need JavaScript. Everything below does not.</p></noscript>\n",
        Escaped(report.name()),
        Escaped(&what),
        Escaped(&inputs.join(", ")),
    );
}

fn footer(page: &mut String, report: &Report<'_>) {
    let origin = &report.origin;
    let _ = write!(
        page,
        "</main>\n<footer><p>{}</p><p>model <code>{}</code></p><p><code>{}</code></p>",
        Escaped(&origin.tool),
        Escaped(&origin.digest),
        Escaped(&origin.command)
    );
    if report.planned.is_some() {
        page.push_str("<p class=\"js\"><button id=\"save\">Save the plan as JSON</button></p>");
    }
    page.push_str("</footer>\n<div id=\"tip\" role=\"tooltip\" hidden></div>\n");
}

fn stage(stage: &schema::PlanStage) -> ReportStage {
    ReportStage { devices: stage.devices.clone(), blocks: stage.blocks.len() }
}

fn timelines(report: &Report<'_>) -> Vec<schema::ReportTimeline> {
    let measured = report.measured.map(|measured| timeline::columns("measured", measured));
    let simulated = report.planned.as_ref().map(|p| timeline::columns("simulated", p.timeline));
    measured.into_iter().chain(simulated).collect()
}

/// Returns the palette as CSS variables, each with its light and its dark value.
fn colours() -> String {
    let mut css = String::from(":root{");
    let mut put = |name: String, shade: Shade| {
        let _ = write!(css, "--{name}:light-dark({},{});", shade.light, shade.dark);
    };
    for (name, shade) in [
        ("page", palette::PAGE),
        ("text", palette::TEXT),
        ("muted", palette::MUTED),
        ("wire", palette::WIRE),
        ("faint", palette::FAINT),
    ] {
        put(name.to_string(), shade);
    }
    for (level, shade) in palette::FRAMES.iter().enumerate() {
        put(format!("frame{level}"), *shade);
    }
    for (level, (cost, memory)) in palette::COST.iter().zip(&palette::MEMORY).enumerate() {
        put(format!("cost{level}"), *cost);
        put(format!("memory{level}"), *memory);
    }
    for (number, family) in palette::FAMILIES.iter().enumerate() {
        put(format!("fill{number}"), family.fill);
        put(format!("line{number}"), family.line);
    }
    css.push_str("}\n");
    for (number, shade) in palette::STAGES.iter().enumerate() {
        let class = stage_class(number);
        let _ = writeln!(css, ".{class}{{--stage:light-dark({},{})}}", shade.light, shade.dark);
    }
    for number in 0..palette::FAMILIES.len() {
        let _ = writeln!(css, ".f{number}{{--fill:var(--fill{number});--line:var(--line{number})}}");
    }
    for level in 0..palette::COST.len() {
        let _ =
            writeln!(css, ".c{level}{{--fill:var(--cost{level})}}\n.y{level}{{--fill:var(--memory{level})}}");
    }
    css
}

#[cfg(test)]
mod tests {
    use graph::ModelGraph;

    use super::*;
    use crate::report::Origin;

    const HOSTILE: &str =
        "</title><script>alert(1)</script><img src=x onerror='alert(2)'>\"&\u{2028}\u{202e}";

    fn page() -> String {
        let graph = ModelGraph { name: HOSTILE.to_string(), ..ModelGraph::default() };
        let costs = graph::costs(&graph);
        let origin = Origin {
            tool: HOSTILE.to_string(),
            command: HOSTILE.to_string(),
            name: HOSTILE.to_string(),
            digest: HOSTILE.to_string(),
        };
        html(&Report {
            graph: &graph,
            costs: &costs,
            seconds: None,
            stages: None,
            planned: None,
            measured: None,
            origin,
        })
    }

    fn between<'a>(text: &'a str, from: &str, to: &str) -> &'a str {
        text.split_once(from).unwrap().1.split_once(to).unwrap().0
    }

    #[test]
    fn the_policy_names_exactly_what_is_there() {
        let page = page();
        let policy = between(&page, "Content-Security-Policy\" content=\"", "\">");
        let code = between(&page, "<script>", "</script>");
        let style = between(&page, "<style>", "</style>");
        assert_eq!(
            policy,
            format!(
                "default-src 'none'; script-src {}; style-src {}; img-src data:; base-uri 'none'; form-action 'none'",
                embed::hash_source(code),
                embed::hash_source(style)
            )
        );
        // One of each, no code or style in attributes: the policy would refuse them.
        assert_eq!((page.matches("<script>").count(), page.matches("<style>").count()), (1, 1));
        assert!(!page.contains(" style=\"") && !page.contains(" onclick="));
    }

    #[test]
    fn hostile_names_are_text_everywhere() {
        let page = page();
        assert!(!page.contains("<img") && !page.contains("alert(1)</script>") && !page.contains('\u{202e}'));
        assert_eq!(page.matches("</title>").count(), 1);
        assert_eq!(page.matches("<script").count(), 2);
    }

    #[test]
    fn code_never_parses_text_as_html() {
        let is_forbidden =
            ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "</"];
        for word in is_forbidden {
            assert!(!CODE.contains(word), "{word}");
        }
        assert!(!STYLE.contains("url(") && !STYLE.contains("@import"));
    }
}
