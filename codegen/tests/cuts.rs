//! Cuts of real traces at random places: each passes the check, and its archives are read back as intended.

#![allow(clippy::unwrap_used)]

use std::path::Path;

use codegen::{
    Assignment, Content, CutError, CutOptions, Names, Pipeline, Skips, Step, Targets, Tied, check, cut,
    is_detour,
};
use proptest::prelude::*;
use tracer::{NodeId, Program, Type};

const TRACES: [&str; 10] = [
    "gpt2_tiny.pt",
    "unet_small.pt",
    "lstm_seq2seq_small.pt",
    "bert_tiny.pt",
    "cnn_dropout.pt",
    "repeats.pt",
    "conversions.pt",
    "writes.pt",
    "numbers.pt",
    "called.pt",
];

fn bytes(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/traces").join(name);
    std::fs::read(path).expect("the fixture is there")
}

fn operators(program: &Program) -> Vec<&str> {
    program.nodes.iter().map(|node| node.operator.as_str()).collect()
}

/// Operators that a stage's code shows: its steps without conversions of sizes, but with conversions to floats and
/// lists.
fn expected<'p>(program: &'p Program, pipeline: &Pipeline, stage: usize) -> Vec<&'p str> {
    let runs = pipeline.stages[stage].steps.iter().filter_map(|step| match step {
        Step::Run { node, .. } => Some(program.nodes[node.index()].operator.as_str()),
        Step::Unbox(value) if program.values[value.index()].type_ == Type::Float => Some("aten::Float"),
        Step::Unbox(value) if matches!(program.values[value.index()].type_, Type::List(_)) => {
            Some("prim::tolist")
        }
        Step::Clone(_) | Step::Unbox(_) => None,
    });
    runs.filter(|name| !is_detour(name)).collect()
}

fn cut_at(program: &Program, cuts: &[usize], skips: Skips) -> Result<Pipeline, Vec<CutError>> {
    let assignment = Assignment::at(program.nodes.len(), cuts);
    cut(program, &assignment, &Names::new(program), &CutOptions { skips, tied: Tied::Replicate })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn any_cut_is_right_or_refused(
        which in 0..TRACES.len(),
        places in prop::collection::btree_set(1..1000_usize, 1..5),
        portal in any::<bool>(),
    ) {
        let bytes = bytes(TRACES[which]);
        let program = tracer::read_archive(&bytes).expect("the fixture reads");
        let mut cuts: Vec<usize> = places.iter().map(|place| place * program.nodes.len() / 1000).collect();
        cuts.retain(|cut| *cut > 0);
        cuts.dedup();
        let skips = if portal { Skips::Portal } else { Skips::Relay };
        let Ok(pipeline) = cut_at(&program, &cuts, skips) else { return Ok(()) };
        prop_assert_eq!(check(&program, &pipeline), Ok(()));
        let names = Names::new(&program);
        let targets = Targets { torchscript: true, python: false };
        let facts = codegen::facts(&program);
        let (files, _) = codegen::stages(&program, &names, &pipeline, &facts, &codegen::About::default(), targets)
            .expect("the fixture has its data");
        for (stage, file) in files.iter().filter(|file| file.path.ends_with(".pt")).enumerate() {
            let mut archive = Vec::new();
            file.content.write(&mut &bytes[..], &mut archive).expect("writing to memory");
            let read = tracer::read_archive(&archive).expect("our own archive reads");
            let shown: Vec<&str> = operators(&read).into_iter().filter(|name| !is_detour(name)).collect();
            let meant = expected(&program, &pipeline, stage);
            // In-place operators may have become out-of-place.
            let plain = |name: &&str| name.trim_end_matches('_').to_string();
            prop_assert_eq!(
                shown.iter().map(plain).collect::<Vec<_>>(),
                meant.iter().map(plain).collect::<Vec<_>>()
            );
            prop_assert_eq!(read.inputs.len(), pipeline.stages[stage].inputs.len());
        }
    }
}

#[test]
fn sizes_of_files_are_known_before_they_are_written() {
    let bytes = bytes("gpt2_tiny.pt");
    let program = tracer::read_archive(&bytes).expect("the fixture reads");
    let pipeline = cut_at(&program, &[100], Skips::Relay).expect("a legal cut");
    let names = Names::new(&program);
    let targets = Targets { torchscript: false, python: true };
    let facts = codegen::facts(&program);
    let (files, _) =
        codegen::stages(&program, &names, &pipeline, &facts, &codegen::About::default(), targets)
            .expect("the fixture has its data");
    for file in &files {
        let mut out = Vec::new();
        file.content.write(&mut &bytes[..], &mut out).expect("writing to memory");
        assert!(matches!(file.content, Content::Plain(_)));
        assert_eq!(out.len() as u64, file.content.size(), "{}", file.path);
    }
}

#[test]
fn a_missing_operator_fails_the_check() {
    let program = tracer::read_archive(&bytes("cnn_basic.pt")).expect("the fixture reads");
    let pipeline = cut_at(&program, &[4], Skips::Relay).expect("a legal cut");
    assert_eq!(check(&program, &pipeline), Ok(()));
    let mut lacking = pipeline.clone();
    lacking.stages[1].steps.pop();
    assert!(check(&program, &lacking).is_err());
    let mut unfed = pipeline.clone();
    unfed.stages[1].inputs.clear();
    assert!(check(&program, &unfed).is_err());
    let mut doubled = pipeline.clone();
    let step = doubled.stages[0].steps[0];
    doubled.stages[1].steps.insert(0, step);
    assert!(check(&program, &doubled).is_err());
    let mut homeless = pipeline;
    homeless.stages[0].tensors.clear();
    assert!(check(&program, &homeless).is_err());
}

#[test]
fn blocks_are_resolved_by_path() {
    let program = tracer::read_archive(&bytes("gpt2_tiny.pt")).expect("the fixture reads");
    for node in (0..program.nodes.len() as u32).step_by(17).map(NodeId) {
        let path = codegen::operator_path(&program, node);
        let cut = codegen::cut_before(&program, std::slice::from_ref(&path));
        match node.0 {
            0 => assert!(cut.is_err()),
            _ => assert_eq!(cut.expect("the path is known").stage_of[node.index() - 1], 0, "{path}"),
        }
    }
    // Operators of two name spaces may have the same name.
    let numbers = tracer::read_archive(&bytes("numbers.pt")).expect("the fixture reads");
    let paths = (0..numbers.nodes.len() as u32).map(|node| codegen::operator_path(&numbers, NodeId(node)));
    let paths: Vec<String> = paths.collect();
    assert!(paths.iter().any(|path| path == "/abs (2)"), "{paths:?}");
    let all = codegen::assign(&numbers, &[paths[..30].to_vec(), paths[30..].to_vec()]).expect("named once");
    assert!(all.stage_of.iter().enumerate().all(|(node, stage)| *stage == u32::from(node >= 30)));
    let errors =
        codegen::assign(&program, &[vec!["transformer.h.0".into()], vec!["lm_head".into()]]).unwrap_err();
    assert!(
        errors
            .iter()
            .any(|error| matches!(error, CutError::Missing { path, .. } if path == "transformer.h.1"))
    );
}

#[test]
fn a_block_that_keeps_its_activations_says_why() {
    let program = tracer::read_archive(&bytes("gpt2_tiny.pt")).expect("the fixture reads");
    let pipeline = cut_at(&program, &[program.nodes.len() / 2], Skips::Relay).expect("a legal cut");
    let check = |stage: usize, block: &str, reason: Option<&str>| {
        let mut recompute = vec![Vec::new(); 2];
        recompute[stage].push(block.to_string());
        let about = codegen::About { recompute, ..Default::default() };
        let said = codegen::kept_activations(&program, &pipeline, &about);
        assert_eq!(said.len(), usize::from(reason.is_some()), "{said:?}");
        assert!(reason.is_none_or(|reason| said[0].ends_with(reason)), "{said:?}");
    };
    check(0, "transformer.h.0", None);
    check(0, "transformer.h.9", Some("the model has no such block"));
    check(0, "transformer.h.1", Some("the stage runs nothing of it"));
    check(0, "transformer.wte", None);
}

#[test]
fn sizes_are_asked_of_the_models_inputs_instead_of_sent() {
    let numbers = |pipeline: &Pipeline| {
        let ports = pipeline.stages.iter().flat_map(|stage| &stage.inputs);
        ports.filter(|port| port.kind.is_boxed()).count()
    };
    let check = |trace: &str, block: &str, before: usize, after: usize| {
        let program = tracer::read_archive(&bytes(trace)).expect("the fixture reads");
        let assignment = codegen::cut_before(&program, &[block.to_string()]).expect("the block is known");
        let (names, facts) = (Names::new(&program), codegen::facts(&program));
        let options = CutOptions::default();
        let sent = cut(&program, &assignment, &names, &options).expect("a legal cut");
        let (near, asked) =
            codegen::cut_near(&program, &assignment, &names, &facts, &options).expect("a legal cut");
        assert_eq!((numbers(&sent), numbers(&asked)), (before, after), "{trace}");
        assert_eq!(check(&near, &asked), Ok(()));
    };
    // The width comes from the embedding's weight, not from an input.
    check("gpt2_tiny.pt", "transformer.h.1", 5, 1);
    check("cnn_basic.pt", "conv2", 0, 0);
}

#[test]
fn control_flow_that_cannot_be_a_stage_is_named_with_its_line() {
    let mut program = tracer::read_archive(&bytes("odd_calls.pt")).expect("the fixture reads");
    let scripted = program.nodes.iter().position(|node| node.operator == "prim::Opaque").expect("a loop");
    // As if the loop read an attribute of a module.
    let span = &mut program.nodes[scripted].span;
    program.sources[span.source as usize].text.insert_str(span.end as usize, "\n    self");
    span.end += 9;
    let pipeline = cut_at(&program, &[4], Skips::Relay).expect("a legal cut");
    let targets = Targets { torchscript: true, python: false };
    let (names, facts) = (Names::new(&program), codegen::facts(&program));
    let about = codegen::About::default();
    let error =
        codegen::stages(&program, &names, &pipeline, &facts, &about, targets).unwrap_err().to_string();
    assert!(error.contains(".py:") && error.contains("accesses a module"), "{error}");
}

#[test]
fn a_stage_does_not_read_what_it_made_after_a_later_one_wrote_to_it() {
    let program = tracer::read_archive(&bytes("conversions.pt")).expect("the fixture reads");
    let write = program.nodes.iter().position(|node| node.operator == "aten::mul_").expect("a write");
    let after = program.nodes.iter().rposition(|node| node.operator == "aten::einsum").expect("a reader");
    // The write and its view go to the second stage; the reader stays in the first, or goes there too.
    let with = |reader: u32| {
        let stage_of = (0..program.nodes.len()).map(|node| match node {
            node if node + 1 >= write && node <= write => 1,
            node if node >= after => reader,
            _ => 0,
        });
        let assignment =
            Assignment { stage_of: stage_of.collect(), ..Assignment::at(program.nodes.len(), &[1]) };
        cut(&program, &assignment, &Names::new(&program), &CutOptions::default())
    };
    let errors = with(0).expect_err("its numbers are of before");
    let order = |error: &CutError| matches!(error, CutError::InPlaceOrder { stage: 0, writer: 1, node, .. } if node.index() == after);
    assert!(errors.iter().any(order), "{errors:?}");
    assert!(with(1).is_ok());
}

#[test]
fn every_cut_among_writes_is_right_or_refused() {
    let program = tracer::read_archive(&bytes("writes.pt")).expect("the fixture reads");
    let copy = program.nodes.iter().position(|node| node.operator == "aten::contiguous").expect("a copy");
    let (mut right, mut kept) = (0, 0);
    for cut in 1..program.nodes.len() {
        match cut_at(&program, &[cut], Skips::Relay) {
            Ok(pipeline) => {
                assert_eq!(check(&program, &pipeline), Ok(()), "cut before operator {cut}");
                right += 1;
            }
            // A copy made before the first write is missing from the values that the first stage could send.
            Err(errors) => {
                let copied = program.values[program.nodes[copy].outputs[0].index()].name.clone();
                let names_it = |error: &CutError| matches!(error, CutError::InPlaceAlias { values, .. } if values.contains(&copied));
                kept += usize::from(errors.iter().any(names_it));
            }
        }
    }
    assert!(right > 10 && kept > 1, "{right} cuts are right, {kept} would lose the copy");
}

/// Stage 1 writes to `out`, stage 2 recomputes views of it and reads only these: it gets stage 1's value.
#[test]
fn views_are_made_again_of_what_the_last_writer_holds() {
    let program = tracer::read_archive(&bytes("writes.pt")).expect("the fixture reads");
    for skips in [Skips::Portal, Skips::Relay] {
        let pipeline = cut_at(&program, &[37, 45], skips).expect("a cut");
        assert_eq!(check(&program, &pipeline), Ok(()), "{skips:?}");
    }
}
