//! Any bytes as a whole file.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(program) = tracer::read_archive(bytes) {
        model_analyze_fuzz::to_picture(&program);
    }
});
