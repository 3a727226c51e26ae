//! Any text as a printed graph: what can be read prints back to what can be read, and becomes a picture.
#![no_main]
libfuzzer_sys::fuzz_target!(|text: &str| {
    if let Ok(tree) = tracer::ir::parse(text) {
        let printed = tree.to_string();
        let again = tracer::ir::parse(&printed).expect("what is printed can be read");
        assert_eq!(again.to_string(), printed);
    }
    if let Ok(program) = tracer::ir::read_ir(text) {
        model_analyze_fuzz::to_picture(&program);
    }
});
