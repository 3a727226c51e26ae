//! `model-analyze graph` from the outside.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::path::{Path, PathBuf};

use assert_cmd::Command;

mod needs;

fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_model-analyze"));
    command.arg("graph");
    command
}

fn trace(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/traces").join(name)
}

fn run(arguments: &[&str], model: &str) -> String {
    let output = command().arg(trace(model)).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
fn refuse(arguments: &[&str], expected: &[&str]) {
    let output = command().arg(trace("cnn_basic.pt")).args(arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8(output.stderr).unwrap();
    for text in expected {
        assert!(error.contains(text), "{text:?} in {error}");
    }
}

#[test]
fn every_fixture_is_drawn() {
    let mut traces: Vec<PathBuf> =
        std::fs::read_dir(trace("")).unwrap().map(|entry| entry.unwrap().path()).collect();
    traces.sort();
    assert!(!traces.is_empty());
    for model in traces {
        let name = model.file_name().unwrap().to_string_lossy().into_owned();
        for depth in ["1", "2", "99"] {
            let svg = run(&["--depth", depth], &name);
            assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"), "{name} at depth {depth}");
        }
    }
}

#[test]
fn the_same_model_gives_the_same_bytes() {
    for format in ["svg", "dot", "explorer"] {
        let draw = || run(&["--format", format, "--color", "cost"], "unet_small.pt");
        assert_eq!(draw(), draw());
    }
}

#[test]
fn committed_pictures_are_what_is_drawn() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = tempfile::tempdir().unwrap();
    // The commands stand in the Makefile, once.
    let makefile = std::fs::read_to_string(root.join("Makefile")).unwrap();
    let mut n_drawn = 0;
    for line in makefile.lines().filter(|line| line.contains(" docs/pictures/")) {
        let (arguments, picture) = line.split_once("/model-analyze ").unwrap().1.rsplit_once(' ').unwrap();
        let drawn = folder.path().join("drawn.svg");
        let mut run = Command::new(env!("CARGO_BIN_EXE_model-analyze"));
        run.current_dir(root).args(arguments.split_whitespace()).arg(&drawn).assert().success();
        let (committed, drawn) = (std::fs::read(root.join(picture)).unwrap(), std::fs::read(&drawn).unwrap());
        assert!(
            committed == drawn,
            "{picture} is drawn differently today: look at what `make pictures` makes"
        );
        n_drawn += 1;
    }
    // What was measured stands in a folder of its own: a fit's last digits are the machine's.
    let pictures = std::fs::read_dir(root.join("docs/pictures")).unwrap();
    let n_files = pictures.filter(|entry| entry.as_ref().is_ok_and(|entry| entry.path().is_file())).count();
    assert_eq!(n_drawn, n_files);
}

#[test]
fn the_file_name_says_what_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str| {
        let path = folder.path().join(name);
        run(&["-o", path.to_str().unwrap()], "cnn_basic.pt");
        std::fs::read_to_string(path).unwrap()
    };
    assert!(write("a.svg").starts_with("<svg "));
    assert!(write("a.dot").starts_with("digraph "));
    let json: serde_json::Value = serde_json::from_str(&write("a.json")).unwrap();
    let nodes = json["graphs"][0]["nodes"].as_array().unwrap();
    assert!(nodes.iter().any(|node| !node["incomingEdges"].as_array().unwrap().is_empty()));
}

#[test]
fn amoebanet_is_a_chain_with_double_skips() {
    let dot = run(&["--format", "dot", "--depth", "1"], "amoebanet_6_small.pt");
    // Each cell reads the two before it.
    let id = |name: &str| {
        let line = dot.lines().find(|line| line.contains(&format!("label=\"{name}\\n"))).unwrap();
        line.trim().split('[').next().unwrap().to_string()
    };
    for cell in 2..6 {
        for before in [cell - 1, cell - 2] {
            let edge = format!("{} -> {} ", id(&format!("cells.{before}")), id(&format!("cells.{cell}")));
            assert!(dot.contains(&edge), "{edge}\n{dot}");
        }
    }
}

#[test]
fn a_written_list_is_taken_apart_piece_by_piece() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.txt");
    let text = "graph(%x : Float(2, 3, strides=[3, 1], requires_grad=0, device=cpu)):\n  \
                %1 : int = prim::Constant[value=1]()\n  %a : Tensor = aten::relu(%x)\n  \
                %b : Tensor = aten::neg(%x)\n  %l : Tensor[] = prim::ListConstruct(%a, %b)\n  \
                %c : Tensor = aten::__getitem__(%l, %1)\n  %out : Tensor = aten::exp(%c)\n  return (%out)\n";
    std::fs::write(&path, text).unwrap();
    let output = command().arg(&path).args(["--format", "dot"]).output().unwrap();
    let dot = String::from_utf8(output.stdout).unwrap();
    assert!(!dot.contains("label=\"relu"), "what nobody reads is drawn as read: {dot}");
    assert!(dot.contains("label=\"neg") && dot.contains("label=\"exp"), "{dot}");
}

#[test]
fn costs_are_numbers_as_well_as_colours() {
    let svg = run(&["--color", "memory"], "cnn_basic.pt");
    assert!(svg.contains("saved activations, from 0 to"));
    let costs = run(&["--format", "explorer-costs", "--color", "cost"], "cnn_basic.pt");
    let costs: serde_json::Value = serde_json::from_str(&costs).unwrap();
    assert!(costs.as_object().unwrap().values().all(|data| data["results"].is_object()));
}

#[test]
fn stages_come_from_a_plan() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plan.yaml");
    let cost = "{forward: 0.0, input_gradient: 0.0, weight_gradient: 0.0, parameters: 0, optimizer: 0, activations: 0, workspace: 0}";
    let plan = |second: &str, digest: &str| {
        format!(
            "kind: plan\nversion: 1\nwritten_by: test\nmodel: {{name: unet, digest: '{digest}'}}\n\
             cluster: {{types: {{t: {{memory: 1000000000, memory_bandwidth: 1.0e9, peak: {{float32: 1.0e9}}}}}}, \
             devices: [{{name: a, type: t, place: []}}, {{name: b, type: t, place: []}}], \
             levels: [{{name: link, bandwidth: 1.0e9, latency: 0.0}}]}}\nstrategy: by-hand\nschedule: 1f1b\nmicro_batches: 2\nstages:\n\
             - {{blocks: [stem], devices: [a], cost: {cost}}}\n\
             - {{blocks: [{second}], devices: [b], cost: {cost}}}\npredicted: {{}}\n"
        )
    };
    // The page of a model names its digest.
    let mut report = Command::new(env!("CARGO_BIN_EXE_model-analyze"));
    let page = report.arg("report").arg(trace("unet_small.pt")).args(["-o", "-"]).output().unwrap();
    let page = String::from_utf8(page.stdout).unwrap();
    let digest = page.split_once("model-digest\" content=\"").unwrap().1.split('"').next().unwrap();
    std::fs::write(&path, plan("head", digest)).unwrap();
    let svg = run(&["--plan", path.to_str().unwrap()], "unet_small.pt");
    assert!(svg.contains(">S0<") && svg.contains(">S1<") && svg.contains("S1 stage 1"));
    let check = |text: String, expected: &str| {
        std::fs::write(&path, text).unwrap();
        let output = command().arg(trace("unet_small.pt")).arg("--plan").arg(&path).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(error.contains(expected), "{error}");
    };
    check(plan("nowhere", digest), "no block `nowhere`");
    check(plan("head", "00"), "was made for another model, `unet`");
    check(plan("head", digest).replace("version: 1", "version: 9"), "the newest supported is 1");
}

#[test]
fn wrong_wishes_are_explained() {
    refuse(&["-o", "page.html"], &["`graph` writes no HTML", "report"]);
    refuse(&["-o", "picture.gif"], &["cannot write a .gif file", ".svg, .png, .pdf"]);
    refuse(&["-o", "picture"], &["does not tell the format"]);
    refuse(&["--color", "stage"], &["no stages", "--plan"]);
    refuse(&["--depth", "0"], &["--depth"]);
    refuse(&["--plan", "/nonexistent.yaml"], &["nonexistent.yaml"]);
}

#[test]
#[cfg(unix)]
fn pixels_and_paper_are_made_by_rsvg_convert() {
    use std::os::unix::fs::PermissionsExt;

    let folder = tempfile::tempdir().unwrap();
    let draw = |path: &Path, ending: &str| {
        Command::new(env!("CARGO_BIN_EXE_model-analyze"))
            .env("PATH", path)
            .current_dir(folder.path())
            .arg("graph")
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/traces/cnn_basic.pt"))
            .args(["-o", &format!("picture.{ending}")])
            .output()
            .unwrap()
    };
    let missing = draw(Path::new("/nonexistent"), "png");
    let said = String::from_utf8_lossy(&missing.stderr);
    assert_eq!(missing.status.code(), Some(2));
    assert!(said.contains("rsvg-convert, which is not on the PATH") && said.contains("librsvg"), "{said}");
    assert!(!folder.path().join("picture.png").exists());
    // One that says how it is called, and on what.
    let program = folder.path().join("rsvg-convert");
    std::fs::write(&program, "#!/bin/sh\necho \"$@\"\n/bin/cat\n").unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    for (ending, asked) in
        [("png", "--unlimited --format png --zoom 2\n"), ("pdf", "--unlimited --format pdf\n")]
    {
        assert!(draw(folder.path(), ending).status.success());
        let picture = std::fs::read_to_string(folder.path().join(format!("picture.{ending}"))).unwrap();
        assert!(picture.starts_with(&format!("{asked}<svg ")), "{picture}");
    }
}

/// Tells whether Graphviz is installed; says so where it is not.
#[track_caller]
fn has_graphviz() -> bool {
    let is_there =
        std::process::Command::new("dot").arg("-V").output().is_ok_and(|output| output.status.success());
    if !is_there {
        needs::skip(needs::Need::Graphviz);
    }
    is_there
}

#[test]
fn graphviz_draws_every_fixture_where_it_is_installed() {
    if !has_graphviz() {
        return;
    }
    for name in ["cnn_basic.pt", "unet_small.pt", "gpt2_tiny.pt", "amoebanet_6_small.pt"] {
        for direction in ["TB", "LR"] {
            let svg = run(&["--renderer", "dot", "--direction", direction], name);
            // Ours has no document type; this is Graphviz' own.
            assert!(svg.contains("Generated by graphviz"), "{name} {direction}");
        }
    }
}

#[test]
fn names_stay_names_in_graphviz() {
    if !has_graphviz() {
        return;
    }
    let output = command()
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/hostile/names.pt"))
        .args(["--input", "4x3", "--renderer", "dot", "--depth", "9"])
        .output()
        .unwrap();
    let (svg, notes) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8_lossy(&output.stderr));
    assert!(svg.contains("Generated by graphviz"), "{notes}");
    let options = roxmltree::ParsingOptions { allow_dtd: true, ..Default::default() };
    let picture = roxmltree::Document::parse_with_options(&svg, options).unwrap();
    for node in picture.descendants().filter(roxmltree::Node::is_element) {
        let name = node.tag_name().name();
        assert!(["svg", "g", "title", "path", "polygon", "text", "a"].contains(&name), "<{name}>");
        let mut names = node.attributes().map(|attribute| attribute.name());
        assert!(names.all(|name| !name.starts_with("on") && name != "href"), "<{name}>");
    }
}

#[test]
fn without_graphviz_the_picture_is_drawn_all_the_same() {
    let output = command()
        .arg(trace("cnn_basic.pt"))
        .args(["--renderer", "dot"])
        .env("PATH", "/nonexistent")
        .output()
        .unwrap();
    assert!(output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("note: `dot` is not on the PATH"));
    assert!(output.stdout.starts_with(b"<svg "));
}
