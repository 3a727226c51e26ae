//! Blocks that a model repeats are written once, and a changed source with such blocks is refused.

#![allow(clippy::unwrap_used, missing_docs)]

mod emitted;

use codegen::{About, Targets};
use emitted::Emitted;

/// A fixture as one Python stage.
fn emitted(name: &str, about: &About) -> Emitted {
    Emitted::of(name, 1, about, Targets { torchscript: false, python: true })
}

const STAGE: &str = "stages/stage_0.py";

fn source(emitted: &Emitted) -> String {
    String::from_utf8(emitted.files[STAGE].clone()).unwrap()
}

/// Returns the message about the stage after a change.
#[track_caller]
fn refusal(emitted: &mut Emitted, change: impl FnOnce(&str) -> String) -> String {
    let before = source(emitted);
    let after = change(&before);
    assert_ne!(before, after, "nothing was changed");
    emitted.files.insert(STAGE.to_string(), after.into_bytes());
    let said = emitted.check().expect_err("a changed source must be refused").to_string();
    emitted.files.insert(STAGE.to_string(), before.into_bytes());
    said
}

#[test]
fn layers_that_are_alike_are_one_class() {
    let emitted = emitted("gpt2_tiny.pt", &About::default());
    let text = source(&emitted);
    assert_eq!(emitted.check(), Ok(()), "{text}");
    assert!(
        text.contains("class GPT2Block(Holder):\n    \"\"\"transformer.h.0 and 1 like it.\"\"\"\n"),
        "{text}"
    );
    // Conv1D is GPT-2's own linear layer: twice in each layer, so a class of its own inside of the other.
    for layer in 0..2 {
        assert!(text.contains(&format!("    \"transformer.h.{layer}\": GPT2Block,\n")), "{text}");
        assert!(text.contains(&format!("    \"transformer.h.{layer}.mlp.c_proj\": Conv1D,\n")), "{text}");
        let call = format!(" = self.transformer.h[{layer}](");
        assert_eq!(text.matches(&call).count(), 1, "{text}");
        assert!(text.contains(&format!("  # transformer.h.{layer}\n")), "{text}");
    }
    // Its lines name its tensors relative to it, and so do places.
    assert_eq!(text.matches("self.attn.c_attn.weight").count(), 1, "{text}");
    assert_eq!(text.matches("  # .attn.c_attn\n").count(), text.matches("  # .mlp.c_fc\n").count());
}

#[test]
fn a_block_that_keeps_no_activations_is_called_by_its_helper() {
    let recompute = vec![vec!["transformer.h.0".to_string()]];
    let emitted = emitted("gpt2_tiny.pt", &About { recompute, ..About::default() });
    let text = source(&emitted);
    assert_eq!(emitted.check(), Ok(()), "{text}");
    assert!(text.contains(" = again(self.transformer.h[0], "), "{text}");
    assert!(text.contains(" = self.transformer.h[1]("), "{text}");
    assert!(!text.contains("def block_0"), "{text}");
    // A part of a layer is a method, and its layer is unchanged.
    let recompute = vec![vec!["transformer.h.0.mlp".to_string()]];
    let part = self::emitted("gpt2_tiny.pt", &About { recompute, ..About::default() });
    assert_eq!(part.check(), Ok(()), "{}", source(&part));
    assert!(!source(&part).contains("self.transformer.h[0]("), "{}", source(&part));
}

#[test]
fn changed_blocks_are_refused() {
    let mut emitted = emitted("gpt2_tiny.pt", &About::default());
    let mut check = |expected: &str, change: &dyn Fn(&str) -> String| {
        let said = refusal(&mut emitted, change);
        assert!(said.contains(expected), "{said}");
    };
    let call = "self.transformer.h[1](";
    check("which is not a block", &|t| t.replace("    \"transformer.h.1\": GPT2Block,\n", ""));
    check("line", &|t| {
        t.replace("    \"transformer.h.1\": GPT2Block,\n", "    \"transformer.h.1\": Path,\n")
    });
    check("order", &|t| t.replace(call, "self.transformer.h[0]("));
    check("which is not a block", &|t| t.replace(call, "self.transformer.h[2]("));
    check("line", &|t| t.replace(call, "self.load_state_dict("));
    check("line", &|t| t.replace("class GPT2Block(Holder)", "class GPT2Block(nn.Module)"));
    check("line", &|t| t.replace("class GPT2Block(Holder)", "class WEIGHTS(Holder)"));
    check("line", &|t| t.replacen("  # .attn.c_attn\n", "\n        import os  # .attn.c_attn\n", 1));
    check("order", &|t| t.replacen("  # .ln_1\n", "  # .ln_2\n", 1));
    // Blocks that call each other endlessly, in few lines.
    check("more operators than the model has", &|t| {
        let (mut classes, mut blocks) = (String::new(), String::new());
        for depth in 0..40 {
            let path = vec!["a"; depth + 1].join(".");
            let next = if depth == 39 {
                "y = torch.relu(x)  # .\n"
            } else {
                "y = self.a(x)  # .a\n        y = self.a(x)  # .a\n"
            };
            classes += &format!(
                "\n\nclass A{depth}(Holder):\n    \"\"\"a.\"\"\"\n\n    def forward(self, x):\n        {next}        return y\n"
            );
            blocks += &format!("    \"{path}\": A{depth},\n");
        }
        let t = t.replacen("\n\nclass GPT2Block", &format!("{classes}\n\nclass GPT2Block"), 1);
        let t = t.replacen("\nBLOCKS = {\n", &format!("\nBLOCKS = {{\n{blocks}"), 1);
        let at = t.rfind("    def forward(self").unwrap();
        let line = at + t[at..].find('\n').unwrap() + 1;
        format!("{}        y = self.a(x)  # a\n{}", &t[..line], &t[line..])
    });
}

#[test]
fn what_differs_stays_apart() {
    // Two decoders of an LSTM, convolutions of other sizes, a module that is called twice: all are read back.
    for name in [
        "unet_small.pt",
        "lstm_seq2seq_small.pt",
        "odd_calls.pt",
        "repeats.pt",
        "called.pt",
        "writes.pt",
        "bert_tiny.pt",
        "amoebanet_6_small.pt",
    ] {
        let emitted = emitted(name, &About::default());
        assert_eq!(emitted.check(), Ok(()), "{name}: {}", source(&emitted));
    }
}
