//! Any bytes as a pickle.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    tracer::fuzz::pickle(bytes);
});
