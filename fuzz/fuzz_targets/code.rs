//! Any text as a code record.
#![no_main]
libfuzzer_sys::fuzz_target!(|text: &str| {
    tracer::fuzz::code(text);
});
