//! Any legal cut gives the whole model's results, compared in torch: outputs, the gradient of every parameter, and
//! buffers, in both formats, for models traced in eval and in training mode.
//!
//! Stages are drawn at random: contiguous ones, cut between any two operators; and others that only respect
//! dependencies of operators, by operator or by block, as a plan names them. `CUT_CASES` sets the number of cases.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::{
    cell::{Cell, RefCell},
    collections::BTreeSet,
    fs,
    io::{BufRead, BufReader, Lines, Write},
    ops::Range,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use codegen::{Assignment, CutOptions, Names, Pipeline, Skips, Targets, Tied, check, cut_near};
use proptest::{
    prelude::*,
    test_runner::{Config, TestRunner},
};
use tracer::{CallId, NodeId, Operand, Program};

#[path = "../../tests/needs/mod.rs"]
mod needs;

const MODELS: [&str; 13] = [
    "amoebanet_6_small",
    "bert_tiny",
    "cnn_basic",
    "cnn_dropout",
    "conversions",
    "gpt2_tiny",
    "lstm_seq2seq_small",
    "numbers",
    "called",
    "odd_calls",
    "repeats",
    "unet_small",
    "writes",
];

/// The suite's number of cases; a hundred times as many take a minute or two.
const CASES: u32 = 30;

/// How stages are drawn.
#[derive(Clone, Debug)]
enum Way {
    /// One after the other in the trace.
    Contiguous,
    /// Any operator in any stage that has or gets its inputs.
    Operators,
    /// The same for blocks, opened down to this depth.
    Blocks(usize),
}

#[derive(Clone, Debug)]
struct Case {
    model: usize,
    training: bool,
    way: Way,
    /// Positions in thousandths of the trace at which a later stage begins.
    places: BTreeSet<usize>,
    skips: Skips,
}

fn case() -> impl Strategy<Value = Case> {
    let way = prop_oneof![
        1 => Just(Way::Contiguous),
        2 => Just(Way::Operators),
        3 => (1..6_usize).prop_map(Way::Blocks)
    ];
    let skips = any::<bool>().prop_map(|portal| if portal { Skips::Portal } else { Skips::Relay });
    let places = prop::collection::btree_set(1..1000_usize, 1..6);
    (0..MODELS.len(), any::<bool>(), way, places, skips)
        .prop_map(|(model, training, way, places, skips)| Case { model, training, way, places, skips })
}

/// The pieces that are assigned as a whole, each with its path.
fn units(program: &Program, way: &Way) -> Vec<(Range<usize>, String)> {
    let loose = |node: usize| (node..node + 1, codegen::operator_path(program, NodeId(node as u32)));
    let Way::Blocks(depth) = way else { return (0..program.nodes.len()).map(loose).collect() };
    let depth_of = |mut call: CallId| {
        let mut depth = 0;
        while let Some(parent) = program.calls[call.index()].parent {
            depth += 1;
            call = parent;
        }
        depth
    };
    let mut units = Vec::new();
    let mut node = 0;
    while node < program.nodes.len() {
        // The call of this depth that begins here, if one does.
        let block = program.calls.iter().enumerate().find(|(index, call)| {
            let is_leaf = !program.calls.iter().any(|c| c.parent == Some(CallId(*index as u32)));
            let at = depth_of(CallId(*index as u32));
            call.nodes.start as usize == node
                && !call.nodes.is_empty()
                && (at == *depth || (at > 0 && at < *depth && is_leaf))
        });
        match block {
            Some((index, call)) => {
                let end = call.nodes.end as usize;
                units.push((node..end, codegen::call_path(program, CallId(index as u32))));
                node = end;
            }
            None => {
                units.push(loose(node));
                node += 1;
            }
        }
    }
    units
}

/// Values that a node reads.
fn reads(program: &Program, node: usize) -> Vec<usize> {
    fn walk(operand: &Operand, found: &mut Vec<usize>) {
        match operand {
            Operand::Value(value) => found.push(value.index()),
            Operand::List(items) | Operand::Tuple(items) => items.iter().for_each(|item| walk(item, found)),
            Operand::Dict(pairs) => pairs.iter().for_each(|(key, value)| {
                walk(key, found);
                walk(value, found);
            }),
            _ => {}
        }
    }
    let mut found = Vec::new();
    program.nodes[node].arguments.iter().for_each(|argument| walk(&argument.operand, &mut found));
    found
}

/// Random numbers are drawn in the order of the trace, or a seed would not reproduce them: such operators keep their
/// order.
fn draws(program: &Program, node: usize) -> bool {
    program.nodes[node].operator.contains("dropout") || program.nodes[node].operator.contains("lstm")
}

/// Draws the stages of a case; `None` if only one remains.
fn assignment(program: &Program, case: &Case) -> Option<Assignment> {
    let units = units(program, &case.way);
    let starts: BTreeSet<usize> = case.places.iter().map(|place| place * units.len() / 1000).collect();
    let mut stage_of = vec![0_usize; program.nodes.len()];
    let (mut last, mut last_draw) = (0, 0);
    for (index, (range, _)) in units.iter().enumerate() {
        let made_before = range.clone().flat_map(|node| reads(program, node)).filter_map(|value| {
            let producer = program.values[value].producer?.index();
            (!range.contains(&producer)).then(|| stage_of[producer])
        });
        let is_draw = range.clone().any(|node| draws(program, node));
        let order = [(matches!(case.way, Way::Contiguous), last), (is_draw, last_draw)];
        let least = order.iter().filter(|(holds, _)| *holds).map(|(_, stage)| *stage);
        let stage = made_before.chain(least).max().unwrap_or(0) + usize::from(starts.contains(&index));
        stage_of[range.clone()].fill(stage);
        last = stage;
        last_draw = if is_draw { stage } else { last_draw };
    }
    let used: Vec<usize> = stage_of.iter().copied().collect::<BTreeSet<_>>().into_iter().collect();
    let mut blocks = vec![Vec::new(); used.len()];
    for (range, path) in units {
        let stage = used.binary_search(&stage_of[range.start]).expect("all that is used");
        blocks[stage].push(path);
    }
    // By path, as a plan says it.
    let assignment = codegen::assign(program, &blocks).expect("every operator is named once");
    let meant = stage_of.iter().map(|stage| used.binary_search(stage).expect("all that is used") as u32);
    assert!(assignment.stage_of.iter().copied().eq(meant), "paths mean other operators");
    (used.len() > 1).then_some(assignment)
}

fn write(program: &Program, pipeline: &Pipeline, archive: &[u8], out: &Path) {
    let names = Names::new(program);
    let facts = codegen::facts(program);
    let targets = Targets { torchscript: true, python: true };
    let about = codegen::About::default();
    let (mut files, manifest) = codegen::stages(program, &names, pipeline, &facts, &about, targets).unwrap();
    files.push(codegen::manifest_file(&manifest));
    for file in files {
        let mut bytes = Vec::new();
        file.content.write(&mut &archive[..], &mut bytes).unwrap();
        let path = out.join(file.path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
}

/// The interpreter that runs the comparison.
struct Torch {
    child: Child,
    input: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Torch {
    #[track_caller]
    fn start(root: &Path, folder: &Path) -> Option<Self> {
        let python = needs::python()?;
        let mut child = Command::new(python)
            .args(["-W", "ignore"])
            .arg(root.join("tests/oracle/random_cuts.py"))
            .arg(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python starts");
        let input = child.stdin.take().unwrap();
        let mut answers = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(answers.next().expect("torch is in .venv").unwrap(), "ready");
        Some(Self { child, input, answers })
    }

    fn compare(&mut self, model: &Path, out: &Path) -> serde_json::Value {
        writeln!(self.input, "{} {}", model.display(), out.display()).unwrap();
        self.input.flush().unwrap();
        serde_json::from_str(&self.answers.next().expect("an answer").unwrap()).unwrap()
    }
}

#[test]
fn any_legal_cut_gives_what_the_whole_model_gives() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("cuts-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let Some(torch) = Torch::start(&root, &folder) else { return };
    let torch = RefCell::new(torch);
    let cases = std::env::var("CUT_CASES").map_or(CASES, |cases| cases.parse().expect("a number"));
    let (right, refused, crossed) = (Cell::new(0), Cell::new(0), Cell::new(0));
    let config = Config { cases, max_shrink_iters: 200, failure_persistence: None, ..Config::default() };
    let done = TestRunner::new(config).run(&case(), |case| {
        let place = if case.training { folder.clone() } else { root.join("fixtures/traces") };
        let model = place.join(format!("{}.pt", MODELS[case.model]));
        let archive = fs::read(&model).unwrap();
        let program = tracer::read_archive(&archive).unwrap();
        let Some(assignment) = assignment(&program, &case) else { return Ok(()) };
        let options = CutOptions { skips: case.skips, tied: Tied::Replicate };
        let (names, facts) = (Names::new(&program), codegen::facts(&program));
        let Ok((program, pipeline)) = cut_near(&program, &assignment, &names, &facts, &options) else {
            refused.set(refused.get() + 1);
            return Ok(());
        };
        prop_assert_eq!(check(&program, &pipeline), Ok(()));
        let out = folder.join("out");
        write(&program, &pipeline, &archive, &out);
        let answer = torch.borrow_mut().compare(&model, &out);
        fs::remove_dir_all(&out).unwrap();
        for form in ["torchscript", "python"] {
            prop_assert_eq!(
                &answer[form]["ok"],
                &serde_json::Value::Bool(true),
                "{}: {}",
                form,
                answer[form]
            );
        }
        right.set(right.get() + 1);
        crossed.set(crossed.get() + u32::from(!assignment.stage_of.is_sorted()));
        Ok(())
    });
    let mut torch = torch.into_inner();
    drop(torch.input);
    torch.child.wait().unwrap();
    fs::remove_dir_all(&folder).unwrap();
    let (right, refused, crossed) = (right.get(), refused.get(), crossed.get());
    println!("{right} cuts are right, {crossed} of them not contiguous; {refused} were refused");
    done.unwrap_or_else(|error| panic!("{error}"));
    assert!(right * 2 > cases, "only {right} of {cases} cuts could be tried, {refused} were refused");
    assert!(crossed * 10 > cases, "only {crossed} of {cases} cuts are not contiguous");
}
