//! Any bytes as a whole file: a trace, or a checkpoint.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = tracer::read_tensors(bytes);
    if let Ok(program) = tracer::read_archive(bytes) {
        model_analyze_fuzz::to_picture(&program);
    }
});
